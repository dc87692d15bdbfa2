//! Filesystems on several devices through the command: made, mounted, checked, and seen by the kernel.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_testkit::kernel::{KernelMount, check_several, run_ok};
use butterfs_testkit::requirement;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, eventually, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Image files beside the bed's, which is the first one; they are made.
fn images(bed: &Bed, count: usize, options: &[&str]) -> Vec<PathBuf> {
    let others = (2..=count).map(|id| bed.image.with_file_name(format!("disk{id}.img")));
    let images: Vec<PathBuf> = std::iter::once(bed.image.clone()).chain(others).collect();
    let paths: Vec<&str> = images.iter().map(|image| text(image)).collect();
    butterfs_ok(&[&["mkfs", "-q", "-b", "200M"], options, &paths].concat());
    images
}

#[test]
fn all_devices_are_given_one_after_the_other_or_as_options() {
    const TEST: &str = "mount_devices";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let images = images(&bed, 3, &["-d", "raid0", "-m", "raid1c3", "-L", "three"]);
    let [one, two, three] = [0, 1, 2].map(|index: usize| text(&images[index]));
    butterfs_ok(&["mount", one, two, three, text(&bed.at)]);
    fs::write(bed.path("first"), vec![b'1'; 3 << 20]).unwrap();
    bed.umount_ok();
    let others = format!("device={two},device={three},device={one}");
    butterfs_ok(&["mount", "-o", &others, one, text(&bed.at)]);
    assert_eq!(fs::read(bed.path("first")).unwrap(), vec![b'1'; 3 << 20]);
    fs::write(bed.path("second"), b"2").unwrap();
    bed.umount_ok();
    check_several(&images);
    let mount = KernelMount::several(&images, "ro");
    assert_eq!(fs::read(mount.path().join("first")).unwrap(), vec![b'1'; 3 << 20]);
    assert_eq!(fs::read(mount.path().join("second")).unwrap(), b"2");
    let shown = run_ok(60, "btrfs", &["filesystem", "show", text(mount.path())]);
    assert!(shown.contains("'three'") && shown.contains("Total devices 3"), "{shown}");
    assert_eq!(shown.matches("size 200.00MiB").count(), 3, "{shown}");
    assert_eq!(mount.finish(), [""; 0]);
}

/// Spoils what is not zero of the chunks on an image.
fn spoil(image: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut block = [0; 4096];
    for at in (1 << 20..200 << 20).step_by(4096).filter(|at| *at != 64 << 20) {
        file.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            block[7] ^= 1;
            file.write_all_at(&block, at).unwrap();
        }
    }
}

#[test]
fn the_serving_process_reports_bad_copies() {
    const TEST: &str = "mount_bad_copies";
    let Some(bed) = Bed::new(TEST) else { return };
    let images = images(&bed, 2, &["-d", "raid1"]);
    let [one, two] = [0, 1].map(|index: usize| text(&images[index]));
    butterfs_ok(&["mount", one, two, text(&bed.at)]);
    fs::write(bed.path("file"), vec![b'1'; 3 << 20]).unwrap();
    bed.umount_ok();
    spoil(&images[1]);
    let log = fs::File::create(bed.scratch.join("said")).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_butterfs"));
    let process = process.args(["mount", "--foreground", one, two, text(&bed.at)]).stderr(log).stdout(Stdio::null());
    let mut process = process.spawn().unwrap();
    eventually(|| bed.is_mounted());
    assert_eq!(fs::read(bed.path("file")).unwrap(), vec![b'1'; 3 << 20]);
    butterfs_ok(&["umount", text(&bed.at)]);
    assert!(process.wait().unwrap().success());
    let said = fs::read_to_string(bed.scratch.join("said")).unwrap();
    assert!(said.contains("disk2.img") && said.contains("repaired from another copy"), "{said}");
}

#[test]
fn a_missing_device_is_refused_by_number() {
    const TEST: &str = "mount_without_a_device";
    let Some(bed) = Bed::new(TEST) else { return };
    let images = images(&bed, 2, &["-d", "raid1"]);
    let ran = butterfs(&["mount", text(&images[1]), text(&bed.at)]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("has 2 devices, but only 1 were given") && ran.stderr.contains("disk2.img"), "{ran:?}");
    assert!(ran.stderr.contains("-o degraded"), "{ran:?}");
    assert!(!bed.is_mounted());
    let ran = butterfs(&["mount", "-o", "degraded", text(&images[1]), text(&bed.at)]);
    assert!(ran.code == Some(0) && ran.stderr.contains("only 1 were given"), "{ran:?}");
    fs::write(bed.path("written without"), b"1").unwrap();
    bed.umount_ok();
    let ran = butterfs(&["mount", text(&images[0]), text(&images[1]), text(&bed.at)]);
    assert!(ran.code == Some(0) && ran.stderr.contains("has missed commits"), "{ran:?}");
    assert_eq!(fs::read(bed.path("written without")).unwrap(), b"1");
    let mounted = butterfs_ok(&["device", "stats", text(&bed.at)]);
    bed.umount_ok();
    // The device that was away is counted, on the mount and afterwards.
    for shown in [mounted, butterfs_ok(&["device", "stats", text(&images[0]), text(&images[1])])] {
        let name = text(&images[0]);
        assert!(shown.contains(&format!("[{name}].generation_errs  1")), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.ends_with(" 0")).count(), 9, "{shown}");
    }
    let ran = butterfs(&["device", "stats", "--check", text(&images[0]), text(&images[1])]);
    assert_eq!(ran.code, Some(64), "{ran:?}");
}

/// The command fails with this sentence.
fn refused(arguments: &[&str], sentence: &str) {
    let ran = butterfs(arguments);
    assert!(ran.code == Some(1) && ran.stderr.contains(sentence), "{arguments:?}: {ran:?}");
}

#[test]
fn scrub_and_replacement_exclude_each_other_and_work_is_cancelled() {
    const TEST: &str = "mount_device_work";
    let Some(bed) = Bed::for_root(TEST) else { return };
    butterfs_ok(&["mkfs", "-q", "-b", "700M", text(&bed.image)]);
    let new = bed.image.with_file_name("new.img");
    fs::File::create(&new).unwrap().set_len(800 << 20).unwrap();
    let (at, new) = (text(&bed.at), text(&new));
    bed.mount_ok("");
    let content: Vec<u8> = (0..160u64 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
    fs::write(bed.path("file"), &content).unwrap();
    run_ok(60, "sync", &["-f", at]);
    butterfs_ok(&["scrub", "start", "--limit", "1M", at]);
    refused(
        &["replace", "start", "-B", "1", new, at],
        &format!("ioctl(DEV_REPLACE_START) on '{at}' returns error: scrub is in progress"),
    );
    butterfs_ok(&["scrub", "cancel", at]);
    butterfs_ok(&["replace", "start", "-f", "1", new, at]);
    let running = butterfs_ok(&["replace", "status", "-1", at]).contains("% done");
    if running {
        let again = butterfs(&["replace", "start", "-f", "1", new, at]);
        assert!(again.code == Some(1) && !again.stderr.contains("cannot"), "{again:?}");
        refused(&["scrub", "start", "-B", at], "failed for device id 1: ret=-1, errno=115 (Operation now in progress)");
        // Refused, and the mount stays as it was.
        refused(
            &["mount", "-o", "remount,ro", text(&bed.image), at],
            "cannot become read-only while 'device replace' is in progress",
        );
        fs::write(bed.path("written"), b"still writable").unwrap();
        assert!(bed.mountinfo().unwrap().contains(" rw"), "{:?}", bed.mountinfo());
        butterfs_ok(&["replace", "cancel", at]);
        eventually(|| !butterfs_ok(&["replace", "status", "-1", at]).contains("% done"));
        assert!(butterfs_ok(&["replace", "status", "-1", at]).contains("canceled on"));
        assert_eq!(butterfs(&["replace", "cancel", at]).code, Some(2), "none runs");
        butterfs_ok(&["device", "add", new, at]);
        let devices = butterfs_ok(&["device", "usage", at]);
        assert!(devices.contains("ID: 1") && devices.contains("ID: 2"), "{devices}");
    }
    refused(&["device", "remove", "cancel", at], "no device remove is in progress");
    refused(&["filesystem", "resize", "cancel", at], "no resize is in progress");
    assert!(fs::read(bed.path("file")).unwrap() == content);
    bed.umount_ok();
    refused(&["device", "scan", "--forget"], "butterfs registers no devices, so there are none to forget");
}

#[test]
fn a_mounted_seed_sprouts() {
    const TEST: &str = "mount_seed";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfstune"]) {
        return;
    }
    butterfs_ok(&["mkfs", "-q", "-b", "300M", text(&bed.image)]);
    let new = bed.image.with_file_name("new.img");
    fs::File::create(&new).unwrap().set_len(400 << 20).unwrap();
    let (at, seed, new_path) = (text(&bed.at), text(&bed.image), text(&new));
    bed.mount_ok("");
    fs::write(bed.path("old"), vec![b'o'; 3 << 20]).unwrap();
    bed.umount_ok();
    run_ok(20, "btrfstune", &["-f", "-S", "1", seed]);
    let ran = butterfs(&["mount", "-o", "ro", seed, at]);
    assert!(ran.code == Some(0) && ran.stderr.contains("seed device"), "{ran:?}");
    butterfs_ok(&["device", "add", new_path, at]);
    assert!(fs::write(bed.path("too early"), b"1").is_err());
    refused(&["device", "add", "-f", new_path, at], "");
    butterfs_ok(&["mount", "-o", "remount,rw", seed, at]);
    fs::write(bed.path("own"), vec![b'n'; 2 << 20]).unwrap();
    bed.umount_ok();
    refused(&["mount", new_path, at], "only 1 were given");
    butterfs_ok(&["mount", seed, new_path, at]);
    assert_eq!(fs::read(bed.path("old")).unwrap(), vec![b'o'; 3 << 20]);
    butterfs_ok(&["device", "remove", "1", at]);
    assert_eq!(fs::read(bed.path("own")).unwrap(), vec![b'n'; 2 << 20]);
    bed.umount_ok();
    let mount = KernelMount::new(&new, "ro");
    assert_eq!(fs::read(mount.path().join("old")).unwrap(), vec![b'o'; 3 << 20]);
    assert_eq!(fs::read(mount.path().join("own")).unwrap(), vec![b'n'; 2 << 20]);
    assert_eq!(mount.finish(), [""; 0]);
    // Without a mount.
    fs::File::create(&new).unwrap().set_len(400 << 20).unwrap();
    butterfs_ok(&["device", "add", "-f", "--image", seed, new_path]);
    check_several(&[bed.image.clone(), new]);
}
