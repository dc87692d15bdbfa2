//! `btrfs receive` makes the same trees out of our streams.

use crate::random::{OTHER_SHAPE, work};
use crate::world::{TRAVELS, World, job};
use butterfs_fs::TreeId;
use butterfs_send::wire::Version;
use butterfs_testkit::fingerprint::{Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{engine, requirement};
use std::path::Path;

/// Receives `stream` with btrfs-progs into a new filesystem, and gives its mount to `look`.
pub fn received(scratch: &Scratch, stream: &[u8], look: impl FnOnce(&Path)) {
    let (image, file) = (scratch.sparse_file("received.img", 4 << 30), scratch.join("stream"));
    std::fs::write(&file, stream).expect("room for the stream");
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let at = mount.path().to_str().expect("test paths are text");
    let finished = run(900, "btrfs", &["receive", "-f", file.to_str().expect("test paths are text"), at]);
    assert_eq!(finished.code, Some(0), "btrfs receive: {}", finished.output);
    assert!(!finished.output.contains("ERROR"), "btrfs receive: {}", finished.output);
    look(mount.path());
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
    check_all(&image);
    std::fs::remove_file(image).expect("our own file");
}

/// Fails where a received subvolume is not what was sent.
pub fn same_tree(what: &str, sent: &Fingerprint, received: &Path) {
    let found = differences(sent, &Fingerprint::of_tree(received), TRAVELS);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(8)]);
}

#[test]
fn the_kernel_receives_random_work() {
    if !requirement::kernel_btrfs("the_kernel_receives_random_work") {
        return;
    }
    let watchdog = Watchdog::new("the_kernel_receives_random_work", 300);
    let scratch = Scratch::new("send-random");
    for version in [Version::V1, Version::V2] {
        let image = scratch.sparse_file("sent.img", 2 << 30);
        let device = engine::device(&image);
        engine::FORMATS[0].make(&device);
        let world = World::open(device);
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        for seed in 5000..5015 {
            watchdog.note(&format!("seed {seed}"));
            let (old, new): (TreeId, TreeId) = work(&world, seed, OTHER_SHAPE, &seed.to_string());
            stream.extend(world.send(&job(old, None, version)));
            stream.extend(world.send(&job(new, Some(old), version)));
            for name in ["old", "new"] {
                let name = format!("{name}{seed}");
                sent.push((world.print(&name), name));
            }
        }
        watchdog.note("receiving");
        received(&scratch, &stream, |top| {
            sent.iter().for_each(|(print, name)| same_tree(name, print, &top.join(name)));
        });
        drop(world);
        std::fs::remove_file(image).expect("our own file");
    }
}
