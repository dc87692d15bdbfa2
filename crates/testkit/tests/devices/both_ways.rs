//! Ours to the kernel and back, on every layout: we make and fill, the kernel shows the same and writes, we show that.

use crate::rig::{DEVICE_BYTES, LAYOUTS, Layout, Work, make, open, same};
use butterfs_device::BlockDevice;
use butterfs_fs::Options;
use butterfs_testkit::engine::device;
use butterfs_testkit::fingerprint::{Compare, Fingerprint};
use butterfs_testkit::kernel::{KernelMount, check_several, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OPERATIONS: usize = 600;
/// More than the first data chunks hold, so that new ones are made.
const LARGE: usize = 40 << 20;

fn devices(images: &[PathBuf]) -> Vec<Arc<dyn BlockDevice>> {
    images.iter().map(|image| device(image)).collect()
}

fn write_large(path: &Path, seed: u64) {
    let mut bytes = vec![0; LARGE];
    Rng::new(seed).fill(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn there_and_back(layout: Layout, seed: u64) {
    let scratch = Scratch::new("devices");
    let images: Vec<PathBuf> =
        (1..=layout.2).map(|id| scratch.sparse_file(&format!("disk{id}"), DEVICE_BYTES)).collect();
    make(&devices(&images), layout);
    let mut work = Work::new(seed);
    let ours = open(&devices(&images), Options::default());
    work.go_on(&ours, OPERATIONS);
    work.is_shown("ours", &ours);
    ours.shutdown().unwrap();
    drop(ours);
    check_several(&images);

    let mount = KernelMount::several(&images, "noatime");
    let shown = Fingerprint::of_tree(mount.path());
    same("the kernel's view", &Fingerprint::of_model(&work.model), &shown, Compare::MODEL);
    write_large(&mount.path().join("by the kernel"), seed);
    run_ok(60, "sync", &["-f", mount.path().to_str().expect("test paths are text")]);
    let theirs = Fingerprint::of_tree(mount.path());
    assert_eq!(mount.finish(), [""; 0], "{layout:?}");

    // In another order: who is who is on the devices.
    let mut reversed = devices(&images);
    reversed.reverse();
    let again = open(&reversed, Options::default());
    let shown = Fingerprint::of_library(&again).unwrap();
    same("our view of the kernel's work", &theirs, &shown, Compare { atime: false, ..Compare::ALL });
    again.unlink(again.root(), b"by the kernel").unwrap();
    work.go_on(&again, OPERATIONS);
    work.is_shown("ours again", &again);
    again.shutdown().unwrap();
    drop((again, reversed));
    check_several(&images);
}

#[test]
fn every_layout_goes_to_the_kernel_and_back() {
    if !requirement::kernel_btrfs("every_layout_goes_to_the_kernel_and_back") {
        return;
    }
    let watchdog = Watchdog::new("every_layout_goes_to_the_kernel_and_back", 400);
    for (layout, seed) in LAYOUTS.iter().zip(9000..) {
        watchdog.note(&format!("{layout:?}"));
        there_and_back(*layout, seed);
    }
}
