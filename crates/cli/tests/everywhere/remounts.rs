//! A mount that is made read-only while commands change something through it: whoever has made it read-only sees no
//! more changes, and while a command is at work it cannot be made read-only.

use crate::BINARY;
use crate::mounted::{Bed, eventually, shell, text};
use crate::sides::{answer, umount};
use butterfs_control::{InodeRef, question};
use butterfs_fuse::client;
use butterfs_send::wire::{Command as Do, Version, encode, encode_header};
use butterfs_testkit::kernel::{KernelMount, mkfs, run};
use butterfs_testkit::requirement;
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::mount::{MountFlags, mount_remount};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first part of a stream: a file that is written to.
fn beginning() -> Vec<u8> {
    let mut stream = Vec::new();
    encode_header(Version::V1, &mut stream);
    let mut put = |command: Do<'_>| encode(&command, Version::V1, &mut stream).unwrap();
    put(Do::Subvol { path: b"s", uuid: [7; 16], transid: 1 });
    put(Do::Mkfile { path: b"f", ino: 257 });
    for number in 0..4096 {
        put(Do::Write { path: b"f", offset: number, data: b"x" });
    }
    stream
}

fn remount(at: &Path, options: &str) -> String {
    let finished = run(20, "mount", &["-o", options, text(at)]);
    answer(finished.code, &finished.output)
}

#[test]
fn a_command_at_work_keeps_its_mount_writable() {
    const TEST: &str = "everywhere_remounts";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let image = bed.scratch.sparse_file("kernel.img", 512 << 20);
    mkfs(&image, &[]);
    let kernel = KernelMount::new(&image, "");
    for (tool, top) in [(BINARY, bed.at.as_path()), ("btrfs", kernel.path())] {
        let other = Bound::new(&bed, tool, top);
        let mut child = Command::new(tool)
            .args(["receive", "-q", text(&other.0)])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(&beginning()).unwrap();
        let made = if tool == BINARY { "s.partial" } else { "s" };
        eventually(|| names(top).contains(std::ffi::OsStr::new(made)));
        eventually(|| remount(&other.0, "remount,bind,ro") == "EBUSY");
        child.kill().unwrap();
        child.wait().unwrap();
        eventually(|| remount(&other.0, "remount,bind,ro") == "done");
        let refused = run(20, tool, &["subvolume", "create", text(&other.0.join("new"))]);
        assert_eq!(answer(refused.code, &refused.output), "EROFS");
    }
    umount(&bed);
    assert_eq!(kernel.finish(), [""; 0]);
}

/// The same mount at one more place.
struct Bound(std::path::PathBuf);

impl Bound {
    fn new(bed: &Bed, name: &str, top: &Path) -> Bound {
        let other = bed.scratch.folder(&format!("other-{}", name.len()));
        shell("mount --bind $top $other", &[("top", top), ("other", &other)]);
        Bound(other)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        run(20, "umount", &[text(&self.0)]);
    }
}

fn names(at: &Path) -> BTreeSet<std::ffi::OsString> {
    fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Makes and deletes a subvolume in a directory as often as it can.
fn work(at: &Path, name: &str, ends: &AtomicBool) {
    let device = fs::metadata(at).unwrap().dev();
    let mut client = client::ask_about((major(device), minor(device))).unwrap();
    let (directory, umask, named) = (InodeRef::Descriptor(0), 0o22, name.as_bytes().to_vec());
    let create = question::CreateSubvolume { directory, umask, name: named.clone() };
    let delete = question::DeleteSubvolume { directory, name: named };
    let mut done = 0;
    while !ends.load(Ordering::Relaxed) {
        let opened = || -> OwnedFd { rustix::fs::open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap() };
        done += u32::from(client.ask(create.clone(), &[opened().as_fd()]).unwrap().is_ok());
        done += u32::from(client.ask(delete.clone(), &[opened().as_fd()]).unwrap().is_ok());
    }
    assert!(done > 0, "{name}: no changes were made");
}

#[test]
fn nothing_changes_behind_a_remount() {
    let Some(bed) = Bed::for_root("everywhere_behind_remounts") else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let other = Bound::new(&bed, "other", &bed.at);
    let (ends, mut quiet, mut changed) = (AtomicBool::new(false), 0, Vec::new());
    std::thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            let (at, ends) = (&other.0, &ends);
            scope.spawn(move || work(at, name, ends));
        }
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && changed.is_empty() {
            let is_read_only = mount_remount(&other.0, MountFlags::BIND | MountFlags::RDONLY, "").is_ok();
            if is_read_only {
                let before = names(&bed.at);
                std::thread::sleep(Duration::from_millis(3));
                changed.extend(names(&bed.at).symmetric_difference(&before).cloned());
                quiet += 1;
                mount_remount(&other.0, MountFlags::BIND, "").expect("nothing is in the way of that");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(changed.is_empty(), "{changed:?} changed after it had been made read-only {quiet} times");
    assert!(quiet > 10, "it was read-only only {quiet} times");
    drop(other);
    umount(&bed);
    bed.judge(|_| ());
}
