//! RAID5 and RAID6, written by us and by the kernel: parity fits the data, each side reads what the other one wrote
//! without each set of devices that the profile survives, and both go on from what the other one left.
//!
//! `BUTTERFS_PARITY_ALL=1` takes every number of devices up to six and every set of lost ones.

use crate::rig::{DEVICE_BYTES, Layout, Work, make, open, same};
use butterfs_device::BlockDevice;
use butterfs_fs::{Filesystem, Options};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::engine::device;
use butterfs_testkit::fingerprint::{Compare, Fingerprint};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, check_several, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ELEMENT: usize = 64 << 10;
static ZERO: [u8; ELEMENT] = [0; ELEMENT];

/// A chunk with parity, as `btrfs inspect-internal dump-tree` prints it.
struct ParityChunk {
    parity: usize,
    length: u64,
    /// Device number and offset of each stripe.
    stripes: Vec<(usize, u64)>,
}

fn images(scratch: &Scratch, count: usize) -> Vec<PathBuf> {
    (1..=count).map(|id| scratch.sparse_file(&format!("disk{id}"), DEVICE_BYTES)).collect()
}

fn devices(images: &[PathBuf]) -> Vec<Arc<dyn BlockDevice>> {
    images.iter().map(|image| device(image)).collect()
}

fn without(images: &[PathBuf], lost: usize) -> Vec<PathBuf> {
    images.iter().enumerate().filter(|(index, _)| lost >> index & 1 == 0).map(|(_, image)| image.clone()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn chunks(images: &[PathBuf]) -> Vec<ParityChunk> {
    let loops: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, true)).collect();
    let dump = run_ok(60, "btrfs", &["inspect-internal", "dump-tree", "-t", "chunk", text(loops[0].path())]);
    let (mut found, mut is_parity): (Vec<ParityChunk>, bool) = (Vec::new(), false);
    for line in dump.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["length", length, "owner", .., kind] => {
                is_parity = kind.contains("RAID5") || kind.contains("RAID6");
                if is_parity {
                    let parity = if kind.contains("RAID6") { 2 } else { 1 };
                    found.push(ParityChunk { parity, length: length.parse().unwrap(), stripes: Vec::new() });
                }
            }
            ["stripe", _, "devid", id, "offset", offset] if is_parity => {
                found.last_mut().unwrap().stripes.push((id.parse().unwrap(), offset.parse().unwrap()));
            }
            _ => {}
        }
    }
    found
}

/// Twice a byte in the field of Q.
fn doubled(byte: u8) -> u8 {
    (byte << 1) ^ if byte & 0x80 != 0 { 0x1d } else { 0 }
}

/// Every row of every chunk with parity fits; computed here once more, byte by byte. The devices were zero when the
/// filesystem was made. Returns how many rows hold something.
fn parity_fits(what: &str, images: &[PathBuf]) -> usize {
    let files: Vec<File> = images.iter().map(|image| File::open(image).unwrap()).collect();
    let mut rows = 0;
    for chunk in chunks(images) {
        let (stripes, parity) = (chunk.stripes.len(), chunk.parity);
        let data = stripes - parity;
        for row in 0..chunk.length as usize / data / ELEMENT {
            let element = |number: usize| {
                let (id, offset) = chunk.stripes[(number + row) % stripes];
                let mut bytes = vec![0; ELEMENT];
                files[id - 1].read_exact_at(&mut bytes, offset + (row * ELEMENT) as u64).unwrap();
                let superblocks = [64u64 << 10, 64 << 20];
                let is_under = |at: &u64| {
                    (offset + (row * ELEMENT) as u64..).contains(at) && *at < offset + ((row + 1) * ELEMENT) as u64
                };
                (bytes, superblocks.iter().any(is_under))
            };
            let elements: Vec<(Vec<u8>, bool)> = (0..stripes).map(element).collect();
            if elements.iter().any(|(_, is_superblock)| *is_superblock)
                || elements.iter().all(|(bytes, _)| bytes[..] == ZERO)
            {
                continue;
            }
            rows += 1;
            let (mut p, mut q) = (vec![0u8; ELEMENT], vec![0u8; ELEMENT]);
            for (bytes, _) in elements[..data].iter().rev() {
                p.iter_mut().zip(bytes).for_each(|(p, byte)| *p ^= byte);
                if parity > 1 {
                    q.iter_mut().zip(bytes).for_each(|(q, byte)| *q = doubled(*q) ^ byte);
                }
            }
            assert!(p == elements[data].0, "{what}: P of row {row} of {:?}", chunk.stripes);
            assert!(parity < 2 || q == elements[data + 1].0, "{what}: Q of row {row} of {:?}", chunk.stripes);
        }
    }
    rows
}

fn kernels_view(images: &[PathBuf], options: &str) -> Fingerprint {
    let mount = KernelMount::several(images, options);
    let print = Fingerprint::of_tree(mount.path());
    mount.finish();
    print
}

/// The kernel finds nothing to repair.
fn scrub_finds_nothing(what: &str, images: &[PathBuf]) {
    let mount = KernelMount::several(images, "noatime");
    let said = run_ok(120, "btrfs", &["scrub", "start", "-B", text(mount.path())]);
    assert!(said.contains("no errors found"), "{what}: {said}");
    assert_eq!(mount.finish(), [""; 0], "{what}");
}

fn is_all() -> bool {
    std::env::var_os("BUTTERFS_PARITY_ALL").is_some()
}

/// The layouts and, of each, the sets of devices that are lost.
fn cases() -> Vec<(Layout, Vec<usize>)> {
    let all = (2..=6).flat_map(|count| [("raid5", count), ("raid6", count)]);
    let all = all.filter(|(profile, count)| *count >= Profile::named(profile).unwrap().min_devices);
    let some = [("raid5", 2), ("raid5", 3), ("raid6", 3), ("raid6", 4)];
    let chosen: Vec<_> = if is_all() { all.collect() } else { some.to_vec() };
    let lost = |profile: &str, count: usize| {
        let most = Profile::named(profile).unwrap().tolerated_failures as u32;
        let sets = (1..1usize << count).filter(move |lost| lost.count_ones() <= most);
        // The largest sets are the hardest.
        let sets = sets.filter(move |lost| is_all() || lost.count_ones() == most);
        sets.collect::<Vec<_>>()
    };
    chosen.into_iter().map(|(profile, count)| ((profile, profile, count), lost(profile, count))).collect()
}

fn degraded() -> Options {
    Options { degraded: true, ..Options::default() }
}

/// Goes on, and shuts down.
fn work_on(images: &[PathBuf], options: Options, work: &mut Work, operations: usize) {
    let filesystem = open(&devices(images), options);
    work.go_on(&filesystem, operations);
    filesystem.shutdown().unwrap();
}

#[test]
fn the_kernel_reads_what_we_wrote_without_what_the_profile_survives() {
    let test = "the_kernel_reads_what_we_wrote_without_what_the_profile_survives";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, if is_all() { 3600 } else { 300 });
    for ((layout, lost), seed) in cases().into_iter().zip(7000..) {
        let what = format!("{layout:?}");
        watchdog.note(&what);
        let scratch = Scratch::new("parity-ours");
        let images = images(&scratch, layout.2);
        make(&devices(&images), layout);
        let mut work = Work::new(seed);
        (0..3).for_each(|_| work_on(&images, Options::default(), &mut work, 150));
        assert!(parity_fits(&what, &images) > 10, "{what}: hardly anything was written");
        check_several(&images);
        let model = Fingerprint::of_model(&work.model);
        for lost in lost {
            let view = kernels_view(&without(&images, lost), "ro,degraded");
            same(&format!("{what} without {lost:b}"), &model, &view, Compare::MODEL);
        }
        scrub_finds_nothing(&what, &images);
    }
}

/// We write without devices, and without them and with them back it is all there.
#[test]
fn data_written_without_devices_is_whole_without_others() {
    let test = "data_written_without_devices_is_whole_without_others";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, if is_all() { 3600 } else { 300 });
    for ((layout, lost), seed) in cases().into_iter().zip(7100..) {
        // One of the sets; the others' turn comes with other seeds.
        let chosen = if is_all() { lost } else { vec![lost[seed as usize % lost.len()]] };
        for lost in chosen {
            let what = format!("{layout:?} without {lost:b}");
            watchdog.note(&what);
            let scratch = Scratch::new("parity-degraded");
            let images = images(&scratch, layout.2);
            make(&devices(&images), layout);
            let mut work = Work::new(seed);
            work_on(&images, Options::default(), &mut work, 150);
            work_on(&without(&images, lost), degraded(), &mut work, 200);
            let model = Fingerprint::of_model(&work.model);
            same(&what, &model, &kernels_view(&without(&images, lost), "ro,degraded"), Compare::MODEL);
            // Back, and brought up to date.
            let filesystem = open(&devices(&images), Options::default());
            work.is_shown(&format!("{what}, back"), &filesystem);
            assert!(filesystem.resync().unwrap(), "{what}: {:?}", filesystem.take_messages());
            work.go_on(&filesystem, 50);
            filesystem.shutdown().unwrap();
            drop(filesystem);
            check_several(&images);
            parity_fits(&format!("{what}, back"), &images);
            let model = Fingerprint::of_model(&work.model);
            let all = (1usize << layout.2) - 1;
            for other in [lost, (lost << 1 | lost >> (layout.2 - 1)) & all] {
                let view = kernels_view(&without(&images, other), "ro,degraded");
                same(&format!("{what}, then without {other:b}"), &model, &view, Compare::MODEL);
            }
            scrub_finds_nothing(&what, &images);
        }
    }
}

/// The kernel makes a filesystem and writes, we go on, it goes on, whole and without devices.
#[test]
fn both_go_on_from_what_the_other_left() {
    let test = "both_go_on_from_what_the_other_left";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, if is_all() { 3600 } else { 300 });
    for ((layout, lost), seed) in cases().into_iter().zip(7200..) {
        let what = format!("{layout:?}");
        watchdog.note(&what);
        let scratch = Scratch::new("parity-theirs");
        let images = images(&scratch, layout.2);
        mkfs(layout.0, &images);
        let mount = KernelMount::several(&images, "noatime");
        fill(mount.path(), seed);
        overwrite(mount.path(), seed);
        let print = Fingerprint::of_tree(mount.path());
        assert_eq!(mount.finish(), [""; 0]);
        for lost in lost {
            let filesystem = open(&devices(&without(&images, lost)), Options { read_only: true, ..degraded() });
            let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{what} {lost:b}: {error}"));
            same(&format!("{what} without {lost:b}"), &print, &shown, Compare { atime: false, ..Compare::ALL });
        }
        let filesystem = open(&devices(&images), Options::default());
        overwrite_ours(&filesystem, seed);
        filesystem.shutdown().unwrap();
        drop(filesystem);
        let ours = Fingerprint::of_library(&open(&devices(&images), Options { read_only: true, ..Options::default() }))
            .unwrap();
        parity_fits(&what, &images);
        check_several(&images);
        let mount = KernelMount::several(&images, "noatime");
        let theirs = Fingerprint::of_tree(mount.path());
        overwrite(mount.path(), seed + 1);
        assert_eq!(mount.finish(), [""; 0]);
        same(&what, &ours, &theirs, Compare { atime: false, ..Compare::ALL });
        scrub_finds_nothing(&what, &images);
    }
}

fn mkfs(profile: &str, images: &[PathBuf]) {
    let loops: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
    let paths: Vec<&str> = loops.iter().map(|device| text(device.path())).collect();
    run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-d", profile, "-m", profile], &paths[..]].concat());
    for path in paths {
        run(20, "btrfs", &["device", "scan", "--forget", path]);
    }
}

/// Files of every length, each fourth without copy on write.
fn fill(folder: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    for number in 0..40u64 {
        let path = folder.join(format!("{number}"));
        File::create(&path).unwrap();
        if number % 4 == 1 {
            run_ok(20, "chattr", &["+C", text(&path)]);
        }
        let mut content = vec![0; (number * number * 800 + number) as usize];
        rng.fill(&mut content);
        std::fs::write(&path, content).unwrap();
    }
    run_ok(60, "sync", &["-f", text(folder)]);
}

/// Small writes at random places.
fn overwrite(folder: &Path, seed: u64) {
    for (number, at, bytes) in writes(seed) {
        let file = File::options().write(true).open(folder.join(format!("{number}"))).unwrap();
        file.write_all_at(&bytes, at).unwrap();
        if number % 7 == 0 {
            file.sync_all().unwrap();
        }
    }
}

fn overwrite_ours(filesystem: &Filesystem, seed: u64) {
    for (number, at, bytes) in writes(seed + 50) {
        let entry = filesystem.lookup(filesystem.root(), format!("{number}").as_bytes()).unwrap();
        filesystem.write(entry.id, at, &bytes, false).unwrap();
        if number % 7 == 0 {
            filesystem.fsync(entry.id, false).unwrap();
        }
    }
}

fn writes(seed: u64) -> Vec<(u64, u64, Vec<u8>)> {
    let mut rng = Rng::new(seed);
    let write = |_| {
        let number = 5 + rng.below(35);
        let mut bytes = vec![0; 1 + rng.below(20_000) as usize];
        rng.fill(&mut bytes);
        (number, rng.below(number * number * 800), bytes)
    };
    (0..200).map(write).collect()
}
