//! Discarding on mounts: fstrim beside the kernel's, images that shrink, a full disk, kills in between.

use butterfs_testkit::kernel::{KernelMount, check_all, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn content(number: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::new(number).fill(&mut bytes);
    bytes
}

/// Bytes of storage that a file has.
fn allocated(image: &Path) -> u64 {
    fs::metadata(image).expect("it is there").blocks() * 512
}

fn sync(at: &Path) {
    run_ok(60, "sync", &["-f", text(at)]);
}

fn can_run(test: &str) -> bool {
    requirement::kernel_btrfs(test) && requirement::fuse(test) && requirement::programs(test, &["fstrim"])
}

/// Files, and the traces of others that are gone.
fn fill(at: &Path) {
    for number in 0..60 {
        fs::write(at.join(format!("small{number}")), content(number, 5000 + number * 1000)).expect("there is room");
    }
    for number in 0..6 {
        fs::write(at.join(format!("large{number}")), content(100 + number, 30 * MIB)).expect("there is room");
        sync(at);
    }
    for name in ["large1", "large3", "large4"] {
        fs::remove_file(at.join(name)).expect("it is there");
    }
    (0..60).step_by(2).for_each(|number| fs::remove_file(at.join(format!("small{number}"))).expect("it is there"));
    sync(at);
}

/// The ranges for fstrim, besides everything.
const RANGES: &[&[&str]] = &[
    &["-o", "0", "-l", "1000"],
    &["-o", "18446744073709551615", "-l", "4096"],
    &["-o", "5", "-l", "18446744073709551614"],
    &["-o", "30M", "-l", "40M"],
    &["-m", "20M"],
    &["-m", "8G"],
    &["-o", "100G", "-l", "1G"],
    &["-o", "31459000", "-l", "10485760"],
];

fn trim(at: &Path, range: &[&str]) -> String {
    let ran = run(120, "fstrim", &[&["-v"], range, &[text(at)]].concat());
    ran.output.replace(text(at), "AT")
}

/// The kernel fills a filesystem without discards. Of two copies one is trimmed on its mount, one on ours.
#[test]
fn fstrim_does_and_answers_what_the_kernels_does() {
    const TEST: &str = "fstrim_does_and_answers_what_the_kernels_does";
    if !can_run(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    for options in [&["-m", "dup"][..], &["-M", "-m", "single", "-d", "single"]] {
        let theirs = scratch.sparse_file("theirs.img", 1 << 30);
        run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-K"], options, &[text(&theirs)]].concat());
        let mount = KernelMount::new(&theirs, "nodiscard");
        fill(mount.path());
        assert_eq!(mount.finish(), [""; 0]);
        let ours = scratch.join("ours.img");
        run_ok(60, "cp", &["--sparse=always", text(&theirs), text(&ours)]);
        let before = allocated(&ours);
        let mount = KernelMount::new(&theirs, "nodiscard");
        let mut said: Vec<String> = RANGES.iter().map(|range| trim(mount.path(), range)).collect();
        said.push(trim(mount.path(), &[]));
        said.push(trim(mount.path(), &[]));
        assert_eq!(mount.finish(), [""; 0]);
        let served = Served::mount(&ours, &scratch.folder("at"), "nodiscard");
        for (range, theirs) in RANGES.iter().chain([&&[][..], &&[][..]]).zip(&said) {
            assert_eq!(trim(served.path(), range), *theirs, "{range:?}");
        }
        served.unmount();
        let (after, kernels) = (allocated(&ours), allocated(&theirs));
        assert!(after + 80 * MIB < before, "{before} bytes before, {after} after");
        assert!(after.abs_diff(kernels) < 2 * MIB, "{after} bytes, {kernels} after the kernel's trim");
        check_all(&ours);
        let [theirs, ours] = [&theirs, &ours].map(|image| KernelMount::new(image, "ro"));
        run_ok(60, "diff", &["-r", text(theirs.path()), text(ours.path())]);
        assert_eq!([theirs.finish(), ours.finish()].concat(), [""; 0]);
    }
}

#[test]
fn an_image_shrinks_when_files_are_deleted() {
    const TEST: &str = "an_image_shrinks_when_files_are_deleted";
    if !can_run(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    for (options, shrinks_at_once, shrinks_in_the_end) in
        [("discard", true, true), ("discard=async", false, true), ("", false, true), ("nodiscard", false, false)]
    {
        let image = scratch.sparse_file("disk.img", 600 * MIB);
        serve::mkfs(&image, &[]);
        let served = Served::mount(&image, &scratch.folder("at"), options);
        fs::write(served.path().join("kept"), content(1, 20 * MIB)).expect("there is room");
        fs::write(served.path().join("gone"), content(2, 100 * MIB)).expect("there is room");
        sync(served.path());
        fs::remove_file(served.path().join("gone")).expect("it is there");
        sync(served.path());
        let at_once = allocated(&image);
        served.unmount();
        let in_the_end = allocated(&image);
        assert_eq!(at_once < 60 * MIB, shrinks_at_once, "'{options}': {at_once} bytes at once");
        assert_eq!(in_the_end < 60 * MIB, shrinks_in_the_end, "'{options}': {in_the_end} bytes in the end");
        check_all(&image);
        let mount = KernelMount::new(&image, "ro");
        assert!(fs::read(mount.path().join("kept")).expect("it is there") == content(1, 20 * MIB));
        assert_eq!(mount.finish(), [""; 0]);
    }
}

#[test]
fn a_mount_discards_another_way_after_a_remount() {
    const TEST: &str = "a_mount_discards_another_way_after_a_remount";
    if !can_run(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("disk.img", 600 * MIB);
    serve::mkfs(&image, &[]);
    let served = Served::mount(&image, &scratch.folder("at"), "nodiscard");
    for (options, shrinks) in [("discard=sync", true), ("nodiscard", false), ("discard", true)] {
        let remount = ["mount", "-o", &format!("remount,{options}"), text(&image), text(served.path())];
        run_ok(30, serve::binary(), &remount);
        fs::write(served.path().join("gone"), content(2, 60 * MIB)).expect("there is room");
        sync(served.path());
        fs::remove_file(served.path().join("gone")).expect("it is there");
        sync(served.path());
        let bytes = allocated(&image);
        assert_eq!(bytes < 30 * MIB, shrinks, "{options}: {bytes} bytes");
        run_ok(30, "fstrim", &[text(served.path())]);
    }
    served.unmount();
    check_all(&image);
}

/// Only root may, and nothing happens on a read-only mount. (The kernel trims there, too.)
#[test]
fn fstrim_is_refused_to_users_and_on_read_only_mounts() {
    const TEST: &str = "fstrim_is_refused_to_users_and_on_read_only_mounts";
    if !can_run(TEST) || !requirement::programs(TEST, &["setpriv"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("disk.img", 200 * MIB);
    serve::mkfs(&image, &[]);
    let served = Served::mount(&image, &scratch.folder("at"), "");
    let as_user = run(10, "setpriv", &["--reuid=65534", "--clear-groups", "fstrim", text(served.path())]);
    assert!(as_user.code != Some(0) && as_user.output.contains("not permitted"), "{}", as_user.output);
    served.unmount();
    let served = Served::mount(&image, &scratch.folder("at"), "ro");
    let read_only = run(10, "fstrim", &[text(served.path())]);
    assert!(read_only.code != Some(0) && read_only.output.contains("Read-only"), "{}", read_only.output);
    served.unmount();
}

/// Trims again and again until it is told to stop. Returns how often.
fn trim_on(at: &Path, stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let ran = run(60, "fstrim", &[text(at)]);
        count += usize::from(ran.code == Some(0));
    }
    count
}

/// Writes files until the disk is full; returns their bytes.
fn write_until_full(at: &Path, first: u64) -> (u64, Vec<(PathBuf, u64)>) {
    let (mut bytes, mut files) = (0, Vec::new());
    for number in first.. {
        let path = at.join(format!("file{number}"));
        let data = content(number, MIB + number % 7 * 4096);
        let written = fs::File::create(&path).and_then(|mut file| file.write_all(&data).and_then(|()| file.sync_all()));
        match written {
            Ok(()) => {
                bytes += data.len() as u64;
                files.push((path, number));
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc_enospc()), "{error}");
                let _ = fs::remove_file(&path);
                return (bytes, files);
            }
        }
    }
    unreachable!("numbers end later than disks")
}

fn libc_enospc() -> i32 {
    rustix::io::Errno::NOSPC.raw_os_error()
}

/// Two trims at once, and a disk that fills meanwhile: it takes as much as without them, and nothing is lost.
#[test]
fn a_disk_that_is_trimmed_fills_as_well() {
    const TEST: &str = "a_disk_that_is_trimmed_fills_as_well";
    if !can_run(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let mut taken = Vec::new();
    for trims in [0, 2] {
        let image = scratch.sparse_file("disk.img", 200 * MIB);
        serve::mkfs(&image, &[]);
        let served = Served::mount(&image, &scratch.folder("at"), if trims > 0 { "discard" } else { "nodiscard" });
        let (at, stop) = (served.path(), AtomicBool::new(false));
        let files = std::thread::scope(|scope| {
            let trimming: Vec<_> = (0..trims).map(|_| scope.spawn(|| trim_on(at, &stop))).collect();
            let (bytes, files) = write_until_full(at, 0);
            let (gone, kept) = files.split_at(files.len() / 2);
            gone.iter().for_each(|(path, _)| fs::remove_file(path).expect("it is there"));
            sync(at);
            let (again, more) = write_until_full(at, 1_000_000);
            stop.store(true, Ordering::Relaxed);
            let counts: Vec<usize> = trimming.into_iter().map(|thread| thread.join().expect("it ends")).collect();
            assert!(counts.iter().all(|count| *count > 0), "trims: {counts:?}");
            taken.push((bytes, again));
            [kept, &more].concat()
        });
        for (path, number) in &files {
            let whole = content(*number, MIB + number % 7 * 4096);
            assert!(fs::read(path).expect("it is there") == whole, "{} has changed", path.display());
        }
        served.unmount();
        check_all(&image);
    }
    let [(bytes, again), (trimmed_bytes, trimmed_again)] = taken[..] else { panic!("two rounds") };
    let alike = |one: u64, other: u64| one.abs_diff(other) <= one / 20;
    assert!(alike(bytes, trimmed_bytes) && alike(again, trimmed_again), "{taken:?}");
}

/// The serving process is killed while two trims run and files come and go: what was synced is whole.
#[test]
fn a_kill_during_a_trim_loses_nothing() {
    const TEST: &str = "a_kill_during_a_trim_loses_nothing";
    if !can_run(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("disk.img", 300 * MIB);
    serve::mkfs(&image, &[]);
    for round in 0..3u64 {
        let options = ["discard", "discard=async", "nodiscard"][round as usize];
        let served = Served::mount(&image, &scratch.folder("at"), options);
        let at = served.path().to_owned();
        let mut synced: Vec<u64> = Vec::new();
        let trims: Vec<_> = (0..2)
            .map(|_| {
                let loops = format!("while fstrim {0} 2>/dev/null; do :; done", text(&at));
                Command::new("sh").args(["-c", &loops]).spawn().expect("a shell")
            })
            .collect();
        for number in 0..25 {
            let number = round * 1000 + number;
            fs::write(at.join(format!("file{number}")), content(number, 2 * MIB)).expect("there is room");
            sync(&at);
            synced.push(number);
            if number % 3 == 2 {
                let gone = synced.remove(0);
                fs::remove_file(at.join(format!("file{gone}"))).expect("it is there");
            }
        }
        served.kill();
        trims.into_iter().for_each(|mut trim| drop(trim.wait()));
        check_all(&image);
        let mount = KernelMount::new(&image, "ro");
        for number in &synced {
            let found = fs::read(mount.path().join(format!("file{number}"))).expect("it was synced");
            assert!(found == content(*number, 2 * MIB), "file{number} has changed");
        }
        assert_eq!(mount.finish(), [""; 0]);
    }
}
