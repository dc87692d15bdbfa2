//! Random work between two snapshots.

use crate::world::{World, travel};
use butterfs_fs::TreeId;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::OperationTarget;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use std::collections::BTreeMap;

/// Few inodes, so that names are used again and again.
pub const SHAPE: Shape =
    Shape { file_max: 300 << 10, write_max: 100 << 10, data_max: 8 << 20, sync_percent: 0, ..Shape::SMALL };
/// More inodes.
pub const OTHER_SHAPE: Shape = Shape { inodes_max: 200, depth_max: 6, ..SHAPE };

/// Seeds to try: `BUTTERFS_SEND_SEEDS`, or as many as CI has time for.
fn seeds(always: u64) -> u64 {
    std::env::var("BUTTERFS_SEND_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(always)
}

/// Works in a new subvolume, with a snapshot in the middle and one at the end: `old` and `new`, and `suffix`.
pub fn work(world: &World, seed: u64, shape: Shape, suffix: &str) -> (TreeId, TreeId) {
    let (id, mut library) = world.subvolume(&format!("work{suffix}"));
    let mut model = ModelFs::default();
    let mut generator = Generator::new(seed, shape);
    let mut work = |count: u64| {
        for _ in 0..count {
            let op = generator.next_op(&model);
            let _ = model.apply(&op);
            let _ = library.apply(&op);
        }
    };
    work(40 + seed * 7 % 300);
    let old = world.snapshot(id, &format!("old{suffix}"));
    work(1 + seed * 13 % 200);
    (old, world.snapshot(id, &format!("new{suffix}")))
}

#[test]
fn random_work_travels() {
    let watchdog = Watchdog::new("random_work_travels", 600);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..seeds(150) {
        watchdog.note(&format!("seed {seed}"));
        let world = World::new(512 << 20);
        let shape = if seed % 2 == 0 { SHAPE } else { OTHER_SHAPE };
        let (old, new) = work(&world, seed, shape, "");
        let receiver = travel(&format!("seed {seed}"), &world, (old, "old"), (new, "new"));
        for (name, count) in receiver.counts {
            *counts.entry(name).or_default() += count;
        }
    }
    // A workload that does not make a command proves nothing about it.
    for name in
        ["mkfile", "mkdir", "symlink", "mknod", "rename", "link", "unlink", "rmdir", "write", "truncate", "chown"]
    {
        assert!(counts.contains_key(name), "no {name} among {counts:?}");
    }
}
