//! `butterfs check`: what a user and a script see.

mod common;

use butterfs_device::{FileDevice, FileOptions};
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::butterfs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn made(scratch: &Scratch) -> std::path::PathBuf {
    let image = scratch.sparse_file("image", 256 << 20);
    common::butterfs_ok(&["mkfs", "-q", "-f", text(&image)]);
    image
}

fn wipe(image: &Path, at: u64) {
    let file = std::fs::File::options().write(true).open(image).expect("it was made");
    file.write_all_at(&[0; 4096], at).expect("it can be written");
}

#[test]
fn sound_and_damaged() {
    let scratch = Scratch::new("check");
    let image = made(&scratch);
    let sound = butterfs(&["check", "--readonly", "--check-data-csum", text(&image)]);
    assert_eq!((sound.code, sound.stderr.as_str()), (Some(0), ""), "{sound:?}");
    assert!(sound.stdout.contains("[4/7] checking fs roots") && sound.stdout.contains("no error found"), "{sound:?}");
    wipe(&image, 64 << 20);
    let warned = butterfs(&["check", text(&image)]);
    assert_eq!(warned.code, Some(0), "a damaged secondary superblock is a warning: {warned:?}");
    assert!(warned.stdout.contains("WARNING") && warned.stdout.contains("[superblock-copy]"), "{warned:?}");
    let image = made(&scratch);
    wipe(&image, 64 << 10);
    let refused = butterfs(&["check", text(&image)]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("ERROR") && refused.stdout.contains("[superblock-primary]"), "{refused:?}");
    let by_copy = butterfs(&["check", "-s", "1", text(&image)]);
    assert_eq!(by_copy.code, Some(0), "{by_copy:?}");
    assert_ne!(butterfs(&["check", text(&scratch.join("nothing"))]).code, Some(0));
}

#[test]
fn json_and_progress() {
    let scratch = Scratch::new("check-json");
    let image = made(&scratch);
    wipe(&image, 64 << 10);
    let json = butterfs(&["check", "--json", text(&image)]);
    assert_eq!((json.code, json.stderr.as_str()), (Some(1), ""), "{json:?}");
    let line = json.stdout.trim();
    assert!(line.starts_with("{\"fsid\":\"") && line.ends_with('}') && line.lines().count() == 1, "{line}");
    for part in ["\"clean\":false", "\"errors\":1", "\"id\":\"superblock-primary\"", "\"repairable\":true"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let quiet = butterfs(&["check", "-q", text(&image)]);
    assert_eq!(quiet.stdout.lines().count(), 1, "{quiet:?}");
}

#[test]
fn several_devices() {
    const TEST: &str = "several_devices";
    if !requirement::programs(TEST, &["mkfs.btrfs"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (one, two) = (scratch.sparse_file("one", 512 << 20), scratch.sparse_file("two", 512 << 20));
    let mkfs = requirement::program("mkfs.btrfs").expect("it was required");
    run_ok(60, mkfs, &["-q", "-f", "-d", "raid1", "-m", "raid1", text(&one), text(&two)]);
    for devices in [[&one, &two], [&two, &one]] {
        let both = butterfs(&["check", text(devices[0]), text(devices[1])]);
        assert_eq!(both.code, Some(0), "{both:?}");
    }
    let alone = butterfs(&["check", text(&one)]);
    assert_eq!(alone.code, Some(1), "{alone:?}");
    assert!(alone.stdout.contains("[cannot-open]"), "{alone:?}");
}

/// A device that is just being unmounted is in use for a moment longer.
#[test]
fn a_check_waits_for_who_is_about_to_let_go() {
    let scratch = Scratch::new("check_waits");
    let image = made(&scratch);
    let held = FileDevice::open(&image, &FileOptions::read_write()).expect("nobody has it");
    let mut check = Command::new(env!("CARGO_BIN_EXE_butterfs"))
        .args(["check", "-q", text(&image)])
        .spawn()
        .expect("the command was built");
    // Longer than it takes to be refused.
    std::thread::sleep(Duration::from_millis(500));
    assert!(check.try_wait().expect("our own child").is_none(), "it has not waited");
    drop(held);
    assert!(check.wait().expect("our own child").success());
}
