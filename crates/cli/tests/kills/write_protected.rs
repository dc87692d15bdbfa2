//! A block device that is write-protected is mounted read-only, each time, and a killed server leaves it as it was.

use super::common::butterfs;
use super::mounted::{Bed, text};
use butterfs_testkit::kernel::{LoopDevice, run_ok, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;

/// The process that serves a mount of `node` at `at`.
fn server(node: &Path) -> Option<Pid> {
    let node = text(node).as_bytes();
    fs::read_dir("/proc").expect("/proc is there").flatten().find_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        let serves = words.any(|word| word == b"--serve") && words.any(|word| word == node);
        entry.file_name().to_str()?.parse().ok().filter(|_| serves).and_then(Pid::from_raw)
    })
}

/// Kills the server of a mount, which is taken away.
fn kill(bed: &Bed, node: &Path) {
    kill_process(server(node).expect("it is mounted in the background"), Signal::KILL).expect("it is ours");
    super::mounted::eventually(|| server(node).is_none());
    unmount(&bed.at);
}

/// Mounts three times what is protected, and kills the server each time.
fn must_be_read_only(bed: &Bed, node: &Path, options: &str, names: &[&str]) {
    let before = fs::read(&bed.image).unwrap();
    for round in 0..3 {
        let ran = butterfs(&["mount", "-o", options, text(node), text(&bed.at)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        if !options.contains("ro") {
            let warning = format!("WARNING: {} is write-protected, mounted read-only\n", node.display());
            assert_eq!(ran.stderr, warning, "mount {round}");
        }
        assert!(bed.mountinfo().unwrap().contains(" ro,"), "mount {round}");
        let late = fs::write(bed.path("late"), b"lost").map_err(|error| error.raw_os_error());
        assert_eq!(late, Err(Some(libc::EROFS)), "mount {round}");
        let mut shown: Vec<_> = fs::read_dir(&bed.at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        shown.sort();
        assert_eq!(shown, names, "mount {round}");
        assert_eq!(fs::read(bed.path("synced")).unwrap(), b"content", "mount {round}");
        kill(bed, node);
        assert!(fs::read(&bed.image).unwrap() == before, "mount {round} has written");
    }
}

#[test]
fn a_protected_device_stays_read_only_over_kills() {
    const TEST: &str = "kills_write_protected";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let device = LoopDevice::attach(&bed.image, false);
    let node = device.path();
    let mount = |options: &str| butterfs(&["mount", "-o", options, text(node), text(&bed.at)]);
    let protect = |how: &str| run_ok(20, "blockdev", &[how, text(node)]);
    assert_eq!(mount("commit=300").code, Some(0));
    fs::write(bed.path("synced"), b"content").unwrap();
    rustix::fs::syncfs(File::open(&bed.at).unwrap()).unwrap();
    kill(&bed, node);
    protect("--setro");
    must_be_read_only(&bed, node, "commit=300", &["synced"]);
    protect("--setrw");
    assert_eq!(mount("commit=300").stderr, "", "it is writable again");
    let logged = File::create(bed.path("logged")).unwrap();
    logged.sync_all().unwrap();
    drop(logged);
    kill(&bed, node);
    protect("--setro");
    // What was fsynced is in a log that cannot be replayed: without it only by name.
    let before = fs::read(&bed.image).unwrap();
    for _ in 0..2 {
        let refused = mount("commit=300");
        assert!(refused.code != Some(0) && refused.stderr.contains("rescue=nologreplay"), "{refused:?}");
        assert!(!bed.is_mounted() && fs::read(&bed.image).unwrap() == before);
    }
    must_be_read_only(&bed, node, "ro,rescue=nologreplay", &["synced"]);
    protect("--setrw");
    assert_eq!(mount("ro").code, Some(0));
    assert_eq!(fs::read(bed.path("logged")).unwrap(), b"", "the log is replayed now");
    kill(&bed, node);
}
