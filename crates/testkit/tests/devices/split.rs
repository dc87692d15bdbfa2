//! Devices that were apart: each side is written alone, by us or by the kernel, and then both are given. Where both
//! sides have something they are refused; where one was only away they are opened, however much the other one has done
//! meanwhile.

use crate::rig::{DEVICE_BYTES, in_memory, make, quiet, quiet_env, shared};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::engine::device;
use butterfs_testkit::judge::{judge, text};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, check_several, run, run_ok};
use butterfs_testkit::library::ROOT;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use butterfs_testkit::watchdog::Watchdog;
use std::path::PathBuf;
use std::sync::Arc;

const COMMITS: usize = 6;

fn options() -> Options {
    Options { commit_interval_secs: 3600, ..Options::default() }
}

fn degraded() -> Options {
    Options { degraded: true, ..options() }
}

fn file(filesystem: &Filesystem, name: &str) {
    let id = filesystem.create(&ROOT, filesystem.root(), name.as_bytes(), 0o644).expect("room").id;
    filesystem.write(id, 0, &vec![name.len() as u8; 9000], false).unwrap();
    filesystem.sync().unwrap();
}

fn is_there(filesystem: &Filesystem, name: &str) -> bool {
    filesystem.lookup(filesystem.root(), name.as_bytes()).is_ok()
}

/// Both devices with a file each has.
fn together() -> Vec<Arc<MemoryDevice>> {
    let disks = in_memory(("raid1", "raid1", 2));
    let filesystem = quiet(&shared(&disks), options());
    file(&filesystem, "common");
    filesystem.shutdown().unwrap();
    disks
}

/// The states of a device that is written alone: after each commit, in one mount or in several. The first is as it was.
fn alone(disk: &MemoryDevice, side: &str, commits: usize, remount: bool) -> Vec<Arc<MemoryDevice>> {
    let disk = Arc::new(disk.snapshot());
    let mut states = vec![Arc::new(disk.snapshot())];
    let open = || quiet(&shared(std::slice::from_ref(&disk)), degraded());
    let mut filesystem = open();
    for number in 1..=commits {
        file(&filesystem, &format!("{side} {number}"));
        if remount {
            filesystem.shutdown().unwrap();
            drop(filesystem);
            filesystem = open();
        }
        states.push(Arc::new(disk.snapshot()));
    }
    states
}

fn open_both(
    one: &MemoryDevice,
    other: &MemoryDevice,
    options: Options,
) -> (Vec<Arc<MemoryDevice>>, Result<Filesystem, String>) {
    let disks = vec![Arc::new(one.snapshot()), Arc::new(other.snapshot())];
    let opened = Filesystem::open(shared(&disks), options, quiet_env());
    (disks, opened.map_err(|error| error.to_string()))
}

/// Every number of commits on each side: refused where both have some, and nothing is written.
fn every_pair(what: &str, ones: &[Arc<MemoryDevice>], others: &[Arc<MemoryDevice>], sides: [&str; 2]) {
    let counts = || [0, 1, 2, 3, COMMITS].into_iter().flat_map(|n| [0, 1, 2, 3, COMMITS].map(|m| (n, m)));
    // All of them take a minute.
    let all = || (0..=COMMITS).flat_map(|n| (0..=COMMITS).map(move |m| (n, m)));
    let pairs: Vec<_> =
        if std::env::var_os("BUTTERFS_SPLIT_ALL").is_some() { all().collect() } else { counts().collect() };
    for (n, m) in pairs {
        let (one, other) = (&ones[n], &others[m]);
        {
            let what = format!("{what}: {n} and {m} commits");
            let (disks, opened) = open_both(one, other, options());
            match opened {
                Err(error) => {
                    assert!(n > 0 && m > 0, "{what}: one was only away: {error}");
                    assert!(error.contains("devid") && error.contains("stale=DEVID"), "{what}: {error}");
                    let is_same = |disk: usize, was: &MemoryDevice| disks[disk].to_bytes() == was.to_bytes();
                    let unchanged = (n, m) != (3, 2) || is_same(0, one) && is_same(1, other);
                    assert!(unchanged, "{what}: refusing has written");
                }
                Ok(filesystem) => {
                    assert!(n == 0 || m == 0, "{what}: both sides are mixed");
                    assert!(is_there(&filesystem, "common"), "{what}");
                    let all =
                        |count: usize, side: &str| (1..=count).all(|k| is_there(&filesystem, &format!("{side} {k}")));
                    assert!(all(n, sides[0]) && all(m, sides[1]), "{what}: something is missing");
                    filesystem.mkdir(&ROOT, filesystem.root(), b"goes on", 0o755).unwrap();
                    filesystem.shutdown().unwrap();
                }
            }
        }
    }
}

#[test]
fn both_sides_written_by_us_are_refused() {
    let _watchdog = Watchdog::new("both_sides_written_by_us_are_refused", 200);
    let disks = together();
    for remount in [false, true] {
        let ones = alone(&disks[0], "one", COMMITS, remount);
        let others = alone(&disks[1], "other", COMMITS, !remount);
        every_pair("ours", &ones, &others, ["one", "other"]);
    }
}

#[test]
fn a_device_that_was_away_for_long_is_accepted() {
    let _watchdog = Watchdog::new("a_device_that_was_away_for_long_is_accepted", 200);
    for remount in [false, true] {
        let disks = together();
        let states = alone(&disks[1], "other", 120, remount);
        for after in [1, 2, 5, 30, 120] {
            let (disks, opened) = open_both(&disks[0], &states[after], options());
            let filesystem = opened.unwrap_or_else(|error| panic!("after {after} commits: {error}"));
            assert!((1..=after).all(|number| is_there(&filesystem, &format!("other {number}"))));
            assert!(filesystem.resync().unwrap());
            filesystem.shutdown().unwrap();
            drop(filesystem);
            let report = judge(shared(&disks));
            assert!(report.is_clean(), "after {after}: {}", text(&report));
            // It may go again, and so may the other one.
            let again = alone(&disks[0], "one", 1, false);
            let (_, opened) = open_both(&again[1], &disks[1], options());
            assert!(is_there(&opened.unwrap(), "one 1"));
            let (_, opened) = open_both(&again[1], &alone(&disks[1], "other b", 1, false)[1], options());
            assert!(opened.is_err(), "after {after}");
        }
    }
}

/// The user who drops one side gets the other one, whole.
#[test]
fn one_side_can_be_given_up() {
    let _watchdog = Watchdog::new("one_side_can_be_given_up", 200);
    let disks = together();
    for (commits, given_up) in [([2, 2], 1), ([2, 2], 2), ([1, 5], 1), ([1, 5], 2)] {
        let one = alone(&disks[0], "one", commits[0], false).pop().unwrap();
        let other = alone(&disks[1], "other", commits[1], true).pop().unwrap();
        let stale = vec![butterfs_fs::DeviceId(given_up)];
        let (disks, opened) = open_both(&one, &other, Options { stale, ..options() });
        let filesystem = opened.unwrap();
        let (kept, lost) = if given_up == 1 { ("other 1", "one 1") } else { ("one 1", "other 1") };
        let shows = |filesystem: &Filesystem| is_there(filesystem, kept) && !is_there(filesystem, lost);
        assert!(shows(&filesystem));
        file(&filesystem, "since then");
        drop(filesystem);
        // It is remembered.
        let filesystem = quiet(&shared(&disks), options());
        assert!(shows(&filesystem) && filesystem.resync().unwrap());
        filesystem.shutdown().unwrap();
        drop(filesystem);
        let report = judge(shared(&disks));
        assert!(report.is_clean(), "{}", text(&report));
        let alone = quiet(&shared(&disks[given_up as usize - 1..given_up as usize]), degraded());
        assert!(shows(&alone) && is_there(&alone, "since then"));
    }
}

/// Three devices, of which one or two are left.
#[test]
fn sides_of_three_devices() {
    let _watchdog = Watchdog::new("sides_of_three_devices", 200);
    let disks = in_memory(("raid1c3", "raid1c3", 3));
    let filesystem = quiet(&shared(&disks), options());
    file(&filesystem, "common");
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let copies = |disks: &[Arc<MemoryDevice>]| disks.iter().map(|disk| Arc::new(disk.snapshot())).collect::<Vec<_>>();
    let write = |disks: &[Arc<MemoryDevice>], name: &str| {
        let filesystem = quiet(&shared(disks), degraded());
        file(&filesystem, name);
        filesystem.shutdown().unwrap();
    };
    let (pair, single) = (copies(&disks[..2]), copies(&disks[2..]));
    write(&pair, "pair");
    let all = [copies(&pair), copies(&single)].concat();
    assert!(is_there(&quiet(&shared(&all), options()), "pair"));
    write(&single, "single");
    for _ in 0..3 {
        let all = [copies(&pair), copies(&single)].concat();
        assert!(Filesystem::open(shared(&all), options(), quiet_env()).is_err());
        write(&pair, "more");
        let filesystem = quiet(&shared(&pair), degraded());
        filesystem.unlink(filesystem.root(), b"more").unwrap();
        filesystem.shutdown().unwrap();
    }
}

fn mirrored(scratch: &Scratch) -> Vec<PathBuf> {
    let images: Vec<PathBuf> = (1..=2).map(|id| scratch.sparse_file(&format!("disk{id}"), DEVICE_BYTES)).collect();
    let devices: Vec<Arc<dyn BlockDevice>> = images.iter().map(|image| device(image)).collect();
    make(&devices, ("raid1", "raid1", 2));
    images
}

fn write_by_kernel(images: &[PathBuf], options: &str, name: &str) {
    let mount = KernelMount::several(images, options);
    std::fs::write(mount.path().join(name), vec![name.len() as u8; 9000]).unwrap();
    run_ok(60, "sync", &["-f", mount.path().to_str().expect("test paths are text")]);
    mount.finish();
}

/// The same with sides that the kernel has written: it leaves no note of what was missing.
#[test]
fn sides_written_by_the_kernel() {
    let test = "sides_written_by_the_kernel";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, 300);
    let scratch = Scratch::new("devices-split");
    let images = mirrored(&scratch);
    write_by_kernel(&images, "noatime", "common");
    let start: Vec<_> = images.iter().map(|image| Arc::new(load(image))).collect();
    let by_kernel = |index: usize, side: &str| {
        let mut states = vec![start[index].clone()];
        for number in 1..=COMMITS {
            write_by_kernel(&images[index..=index], "noatime,degraded", &format!("{side} {number}"));
            states.push(Arc::new(load(&images[index])));
        }
        states
    };
    let (ones, others) = (by_kernel(0, "one"), by_kernel(1, "other"));
    every_pair("the kernel's", &ones, &others, ["one", "other"]);
    every_pair("ours and the kernel's", &alone(&start[0], "one", COMMITS, true), &others, ["one", "other"]);
    every_pair("the kernel's and ours", &ones, &alone(&start[1], "other", COMMITS, false), ["one", "other"]);
}

/// btrfs-progs alone: ours finds what the stale device lacks.
fn btrfs_check(images: &[PathBuf]) {
    let loops: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, true)).collect();
    let finished = run(120, "btrfs", &["check", loops[0].path().to_str().expect("test paths are text")]);
    assert_eq!(finished.code, Some(0), "{}", finished.output);
}

/// The kernel mounts devices of which one is stale, and writes both superblocks. We still know which it is.
#[test]
fn the_kernel_in_between_does_not_make_a_device_whole() {
    let test = "the_kernel_in_between_does_not_make_a_device_whole";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, 200);
    let scratch = Scratch::new("devices-stale");
    let images = mirrored(&scratch);
    let devices = || images.iter().map(|image| device(image) as Arc<dyn BlockDevice>).collect::<Vec<_>>();
    let filesystem = quiet(&devices(), options());
    file(&filesystem, "common");
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let filesystem = quiet(&devices()[1..], degraded());
    file(&filesystem, "without the first");
    filesystem.shutdown().unwrap();
    drop(filesystem);
    for name in ["by the kernel", "by the kernel again"] {
        write_by_kernel(&images, "noatime", name);
    }
    btrfs_check(&images);
    let filesystem = quiet(&devices(), options());
    let told = filesystem.resync().map(|whole| (whole, filesystem.take_messages())).unwrap();
    assert!(told.0 && told.1.iter().any(|message| message.contains("devid 1 has been brought up to date")), "{told:?}");
    filesystem.shutdown().unwrap();
    drop(filesystem);
    check_several(&images);
    write_by_kernel(&images, "noatime", "in the end");
}
