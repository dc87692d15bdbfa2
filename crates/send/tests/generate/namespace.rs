//! All short sequences of changes of names, between two snapshots of a small tree.

use crate::receiver::Receiver;
use crate::world::{World, job, same};
use butterfs_send::wire::Version;
use butterfs_testkit::library::Library;
use butterfs_testkit::operation::{Op, OperationTarget, RelPath, RenameHow};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeSet;

/// The directories of the tree.
const DIRECTORIES: [&str; 3] = ["D", "D/E", "G"];
/// Its files; the last is a second name of the first.
const FILES: [&str; 4] = ["D/f", "D/E/g", "G/k", "h"];
/// Names that sequences work with: those, and free ones.
pub const NAMES: [&str; 9] = ["D", "D/E", "G", "D/f", "D/E/g", "h", "n", "G/n", "D/E/n"];

pub fn universe(names: &[&str]) -> Vec<Op> {
    let path = |name: &str| RelPath::from(name);
    let mut ops = Vec::new();
    for one in names {
        ops.push(Op::Unlink { path: path(one) });
        ops.push(Op::Rmdir { path: path(one) });
        ops.push(Op::Mkdir { path: path(one), mode: 0o755 });
        ops.push(Op::Create { path: path(one), mode: 0o644 });
        for other in names.iter().filter(|other| *other != one) {
            for how in [RenameHow::Replace, RenameHow::Exchange] {
                if how == RenameHow::Replace || one < other {
                    ops.push(Op::Rename { from: path(one), to: path(other), how });
                }
            }
            ops.push(Op::Link { from: path(one), to: path(other) });
        }
    }
    ops
}

/// A filesystem with the tree, and a receiver that has it.
pub struct Bench {
    pub world: World,
    pub base: butterfs_fs::TreeId,
    received: Vec<u8>,
    number: usize,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(World::new(8 << 30))
    }

    /// With the tree in this filesystem, as `work` and `base`.
    pub fn of(world: World) -> Bench {
        let (id, mut library) = world.subvolume("work");
        let mut apply = |op| library.apply(&op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        DIRECTORIES.iter().for_each(|path| drop(apply(Op::Mkdir { path: RelPath::from(*path), mode: 0o755 })));
        for path in &FILES[..3] {
            apply(Op::Create { path: RelPath::from(*path), mode: 0o644 });
        }
        apply(Op::Link { from: RelPath::from(FILES[0]), to: RelPath::from(FILES[3]) });
        let base = world.snapshot(id, "base");
        let received = world.send(&job(base, None, Version::V1));
        Bench { world, base, received, number: 0 }
    }

    /// The name of the copy that was run in last.
    pub fn name(&self) -> String {
        format!("q{}", self.number)
    }

    /// Runs a sequence in a copy of the tree; none when one of them fails.
    pub fn run(&mut self, ops: &[&Op]) -> Option<butterfs_fs::TreeId> {
        self.number += 1;
        let name = self.name();
        let id = self.world.fs.snapshot(self.base, crate::world::TOP, name.as_bytes(), false).expect("a free name");
        let mut library = Library::below(&self.world.fs, &RelPath::from(name.as_str()));
        let done = ops.iter().all(|op| library.apply(op).is_ok());
        if done {
            self.world.fs.set_subvolume_readonly(id, true).expect("it exists");
            return Some(id);
        }
        None
    }

    /// Whether the sequence can be run; if so, its stream is received and compared.
    fn judge(&mut self, ops: &[&Op]) -> bool {
        let Some(id) = self.run(ops) else { return false };
        let name = self.name();
        let stream = self.world.send(&job(id, Some(self.base), Version::V1));
        let mut receiver = Receiver::default();
        receiver.receive(&self.received).expect("it was received before");
        receiver.receive(&stream).unwrap_or_else(|why| panic!("{ops:?}: {why}"));
        same(&format!("{ops:?}"), &self.world.print(&name), &receiver.print(name.as_bytes()));
        true
    }
}

#[test]
fn all_short_sequences_of_changes_of_names_travel() {
    let watchdog = Watchdog::new("all_short_sequences_of_changes_of_names_travel", 900);
    let ops = universe(&NAMES);
    let mut bench = Bench::new();
    let possible: Vec<&Op> = ops.iter().filter(|op| bench.judge(&[op])).collect();
    assert!(possible.len() >= 40, "{} changes are possible", possible.len());
    // All pairs is what a developer runs; of them, and of longer ones, CI tries as many as it has time for.
    let all = std::env::var("BUTTERFS_SEND_ALL").is_ok();
    let mut tried = 0;
    let mut rng = Rng::new(20);
    for first in &possible {
        for second in &ops {
            if !all && !rng.chance(12) {
                continue;
            }
            watchdog.note(&format!("{first:?}, {second:?}"));
            tried += usize::from(bench.judge(&[first, second]));
            if bench.number > 3000 {
                bench = Bench::new();
            }
        }
    }
    assert!(tried > 150, "{tried} pairs");
}

#[test]
fn long_sequences_of_changes_of_names_travel() {
    let watchdog = Watchdog::new("long_sequences_of_changes_of_names_travel", 600);
    let count = std::env::var("BUTTERFS_SEND_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(250);
    let ops = universe(&["D", "D/E", "G", "D/f", "h", "n", "D/n", "D/E/n", "G/n", "n/E", "n/n", "n/E/f"]);
    let mut bench = Bench::new();
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let name = format!("long{seed}");
        let fs = &bench.world.fs;
        let id = fs.snapshot(bench.base, crate::world::TOP, name.as_bytes(), false).expect("a free name");
        let mut library = Library::below(fs, &RelPath::from(name.as_str()));
        let mut done = Vec::new();
        for _ in 0..2000 {
            let op = rng.pick(&ops);
            if library.apply(op).is_ok() {
                done.push(op);
            }
            if done.len() as u64 > 3 + seed % 40 {
                break;
            }
        }
        watchdog.note(&format!("seed {seed}: {done:?}"));
        fs.set_subvolume_readonly(id, true).expect("it exists");
        let stream = bench.world.send(&job(id, Some(bench.base), Version::V1));
        let mut receiver = Receiver::default();
        receiver.receive(&bench.received).expect("it was received before");
        receiver.receive(&stream).unwrap_or_else(|why| panic!("seed {seed}: {done:?}: {why}"));
        same(&format!("seed {seed}: {done:?}"), &bench.world.print(&name), &receiver.print(name.as_bytes()));
        let kinds: BTreeSet<&str> = receiver.counts.keys().copied().collect();
        assert!(kinds.contains("snapshot"));
        if seed % 1000 == 999 {
            bench = Bench::new();
        }
    }
}
