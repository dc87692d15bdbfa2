//! Filesystems that have sprouted from seeds: what lies on the seeds is read, and nothing is written there.

use crate::noise;
use crate::opened::{plain, scanned};
use crate::saved::{Contents, below, by_us};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::DeviceId;
use butterfs_rescue::data::Grade;
use butterfs_rescue::patch::{Writer, supers};
use butterfs_rescue::roots::Roots;
use butterfs_rescue::undelete;
use butterfs_testkit::kernel::{KernelMount, LoopDevice, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn fill(at: &Path, round: usize) {
    let folder = at.join(format!("round{round}"));
    fs::create_dir(&folder).unwrap();
    for number in 0..40 {
        let len = [60, 20_000][number % 2];
        fs::write(folder.join(format!("f{number}")), noise(round * 100 + number, len)).unwrap();
    }
    run_ok(20, "btrfs", &["filesystem", "sync", text(at)]);
}

/// The kernel's mount of the filesystem that has sprouted last: that of the first device that is given.
fn mounted(images: &[PathBuf], options: &str) -> KernelMount {
    let newest_first: Vec<&PathBuf> = images.iter().rev().collect();
    KernelMount::several(&newest_first, options)
}

/// A seed, a filesystem that has sprouted from it and is one too, and one from that; and what the kernel shows.
fn sprouted(scratch: &Scratch) -> (Vec<PathBuf>, Contents) {
    let images: Vec<PathBuf> =
        (0..3).map(|number| scratch.sparse_file(&format!("device{number}.img"), 160 << 20)).collect();
    mkfs(&images[0], &["-n", "4096", "-m", "single"]);
    let mount = KernelMount::new(&images[0], "noatime");
    fill(mount.path(), 0);
    mount.finish();
    for round in 1..3 {
        run_ok(20, "btrfstune", &["-f", "-S", "1", text(&images[round - 1])]);
        let new = LoopDevice::attach(&images[round], false);
        let mount = mounted(&images[..round], "noatime");
        run_ok(60, "btrfs", &["device", "add", "-f", text(new.path()), text(mount.path())]);
        run_ok(20, "mount", &["-o", "remount,rw", text(mount.path())]);
        fill(mount.path(), round);
        if round == 2 {
            fs::write(mount.path().join("gone"), noise(5000, 30_000)).unwrap();
            run_ok(20, "btrfs", &["filesystem", "sync", text(mount.path())]);
            fs::remove_file(mount.path().join("gone")).unwrap();
            fs::remove_file(mount.path().join("round0/f39")).unwrap();
        }
        mount.finish();
    }
    let mount = mounted(&images, "ro");
    let all = below(mount.path());
    mount.finish();
    (images, all)
}

fn devices(images: &[PathBuf], order: &[usize]) -> Vec<Arc<dyn BlockDevice>> {
    order.iter().map(|number| Arc::new(load(&images[*number])) as Arc<dyn BlockDevice>).collect()
}

#[test]
fn data_of_seeds_is_restored() {
    const TEST: &str = "seeds_restored";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (images, all) = sprouted(&scratch);
    assert_eq!(all.len(), 119);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let devices = devices(&images, &order);
        for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
            let (sink, summary) = by_us(&wreck);
            let summary = summary.unwrap();
            assert_eq!(sink.contents, all, "{order:?}: {summary:?}");
            assert!(summary.complete && summary.verified == 119, "{order:?}: {summary:?}");
            assert!(wreck.notes.is_empty() && wreck.cautions.is_empty(), "{:?} {:?}", wreck.notes, wreck.cautions);
            assert!(wreck.is_seed(DeviceId(1)) && wreck.is_seed(DeviceId(2)) && !wreck.is_seed(DeviceId(3)));
        }
        // Deleted files come from both sides.
        let wreck = scanned(&devices, &scratch).unwrap();
        let found = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default()).unwrap();
        let whole = |name: &str| found.iter().any(|one| one.path.ends_with(name) && one.grade == Grade::Verified);
        assert!(whole("gone") && whole("round0/f39"), "{found:?}");
    }
}

/// A filesystem whose superblock is damaged counts nevertheless, and not the seed that has a good one.
#[test]
fn a_damaged_superblock_counts_more_than_that_of_a_seed() {
    const TEST: &str = "seeds_superblock";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (images, all) = sprouted(&scratch);
    let devices = devices(&images, &[0, 2, 1]);
    for copy in [64 << 10, 64 << 20] {
        devices[1].write_at(copy + 3500, b"x").unwrap();
    }
    for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
        assert!(wreck.notes[0].contains("although it is damaged"), "{:?}", wreck.notes);
        assert_eq!(by_us(&wreck).0.contents, all);
    }
}

/// A seed that is not there is named, and so is one of another filesystem; the rest is restored.
#[test]
fn missing_and_foreign_seeds_are_named() {
    const TEST: &str = "seeds_missing";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (images, all) = sprouted(&scratch);
    let foreign = scratch.sparse_file("foreign.img", 160 << 20);
    mkfs(&foreign, &["-n", "4096", "-m", "single"]);
    run_ok(20, "btrfstune", &["-f", "-S", "1", text(&foreign)]);
    let images: Vec<PathBuf> = images.into_iter().chain([foreign]).collect();
    for order in [&[2, 1][..], &[2, 1, 3], &[3, 1, 2]] {
        let devices = devices(&images, order);
        for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
            let (sink, summary) = by_us(&wreck);
            let (saved, summary) = (sink.contents.intersection(&all).count(), summary.unwrap());
            let says = |words: &str| wreck.cautions.iter().filter(|caution| caution.contains(words)).count();
            assert_eq!(says("device 1 is missing: it belongs to the seed filesystem"), 1, "{:?}", wreck.cautions);
            assert_eq!(says("belongs to another filesystem"), usize::from(order.len() == 3), "{:?}", wreck.cautions);
            assert!(!summary.complete && saved >= 80, "{order:?}: {saved}, {summary:?}");
        }
    }
    // The right one beside it, the wrong one does no harm.
    for order in [[3, 0, 1, 2], [2, 1, 0, 3]] {
        let devices = devices(&images, &order);
        for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
            assert_eq!(by_us(&wreck).0.contents, all, "{order:?}");
        }
    }
}

/// Commands that write superblocks leave those of seeds alone.
#[test]
fn superblocks_of_seeds_stay() {
    const TEST: &str = "seeds_stay";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (images, all) = sprouted(&scratch);
    let before: Vec<Vec<u8>> = images[..2].iter().map(|image| fs::read(image).unwrap()).collect();
    let open = |image: &PathBuf| {
        Arc::new(FileDevice::open(image, &FileOptions::read_write()).unwrap()) as Arc<dyn BlockDevice>
    };
    let devices: Vec<Arc<dyn BlockDevice>> = images.iter().map(open).collect();
    devices[2].write_at((64 << 20) + 200, &[1; 8]).unwrap();
    let plan = supers::plan(&devices).unwrap();
    assert_eq!((plan.good.len(), plan.bad.len()), (1, 1), "{plan:?}");
    let wreck = plain(&devices).unwrap();
    supers::apply(&plan, &wreck, &devices).unwrap();
    assert!(supers::plan(&devices).unwrap().bad.is_empty());
    let writer = Writer::new(&wreck, &devices).unwrap();
    let on_seed = wreck.chunks().map.iter().find(|chunk| chunk.stripes[0].device == DeviceId(1)).unwrap();
    let refused = writer.write_block(on_seed.start, &[0; 4096]).unwrap_err();
    assert!(refused.0.contains("seed device"), "{refused}");
    drop(devices);
    assert!(images[..2].iter().zip(&before).all(|(image, before)| fs::read(image).unwrap() == *before));
    let mount = mounted(&images, "ro");
    assert_eq!(below(mount.path()), all);
    mount.finish();
}
