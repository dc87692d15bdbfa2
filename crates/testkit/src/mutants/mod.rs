//! Mutants: sound images of which one to three fields lie, under good checksums, opened and worked in by everything
//! that can be called: the operations, the cleaner, sending and receiving, fsync, a crash, the replay of logs, the
//! checker.
//!
//! Invariants of each run:
//! 1. Nothing panics, and nothing goes on for ever: reads and writes of the devices are bounded ([`MOST_CALLS`],
//!    [`MOST_WRITTEN`]); whoever runs it bounds time and memory.
//! 2. An image that the checker finds clean in spite of the changes is worked in without an error that speaks of
//!    damage, and is clean and readable after each crash and each shutdown.
//! 3. Files that nothing works with ([`filling::SOUND`]) keep their content where only subvolumes were changed. Where
//!    another tree was, reading them may be an error, and where one of [`ALLOCATING`] was, they may be overwritten:
//!    nothing else says what is free.
//! 4. A run depends on its numbers alone.

mod campaign;
mod change;
mod filling;
mod ground;
mod kernel_made;
pub mod operations;
mod shapes;
mod surroundings;

pub use campaign::{Tally, campaign};
pub use change::Change;
pub use shapes::{Shape, shapes};

use crate::editor::Editor;
use crate::fingerprint::{Compare, Fingerprint, differences};
use crate::rng::Rng;
use butterfs_check::Report;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Errno, Error, Filesystem, GoingDown, Ino, InodeId, Options, Subvolume, TreeId};
use change::Changer;
use filling::SOUND;
use operations::{OPERATIONS, Worker};
use shapes::{copy_of, open, shared, top};
use std::collections::BTreeSet;
use std::sync::Arc;
use surroundings::{Meter, MeteredDevice};

/// Calls of the devices in one run.
pub const MOST_CALLS: u64 = 100_000;
/// Bytes written to the devices in one run.
pub const MOST_WRITTEN: u64 = 128 << 20;
/// Operations before the crash, and behind it.
const OPERATIONS_EACH: usize = 16;

/// Trees that say what is free, or (a log) what files hold: whoever believes a lie of theirs overwrites what is in use.
const ALLOCATING: [TreeId; 6] =
    [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::CHUNK, TreeId::DEV, TreeId::TREE_LOG];

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The shape.
    pub shape: &'static str,
    /// The changes.
    pub changes: Vec<Change>,
    /// Whether the checker found the changed image clean.
    pub is_clean: bool,
    /// Whether it was opened for writing.
    pub is_opened: bool,
    /// Operations, in order.
    pub operations: Vec<&'static str>,
    /// Errors that speak of damage.
    pub noticed: Vec<String>,
    /// Calls of the devices.
    pub calls: u64,
    /// Bytes written.
    pub written: u64,
}

/// Makes and works in one mutant. The outcome is filled in on the way, so that it says how far a run came that panics.
pub fn run(rng: &mut Rng, outcome: &mut Outcome) -> Result<(), String> {
    let shape = &shapes()[rng.index(shapes().len())];
    let changes = if rng.chance(1) { 0 } else { 1 + rng.index(3) };
    run_in(shape, changes, rng, outcome)
}

/// The same in this shape, with so many changes.
pub fn run_in(shape: &'static Shape, changes: usize, rng: &mut Rng, outcome: &mut Outcome) -> Result<(), String> {
    *outcome = Outcome { shape: &shape.name, ..Outcome::default() };
    let disks = copy_of(&shape.disks);
    let changed = mutate(shape, changes, &disks, rng, outcome);
    let report = judged(&disks);
    // The checker unpacks nothing, and does not look at everything that a log says.
    let unseen = |change: &Change| {
        change.text.contains(".compression:")
            || change.structure == "beside EXTENT_DATA"
            || change.tree == Some(TreeId::TREE_LOG)
    };
    let is_unseen_by_the_judge = outcome.changes.iter().any(unseen);
    outcome.is_clean =
        shape.is_clean && !is_unseen_by_the_judge && report.is_clean() && remarks(&report).is_subset(&shape.notes);
    let before = look_at_sound(&disks);
    let meter = Arc::new(Meter::default());
    let devices = MeteredDevice::all(&disks, &meter);
    for life in 0..2 {
        if let Ok(filesystem) = opened(&devices, outcome)? {
            live(&filesystem, life, shape, &changed, rng, outcome);
            drop(filesystem);
            still_clean(&disks, outcome)?;
        }
    }
    (outcome.calls, outcome.written) = (meter.calls(), meter.written());
    if meter.calls() > MOST_CALLS || meter.written() > MOST_WRITTEN {
        return Err(format!("{} calls of the devices, {} bytes written", meter.calls(), meter.written()));
    }
    if outcome.is_clean && rng.chance(20) {
        let filesystem = open(&shared(&disks), looking()).map_err(|error| error.to_string())?;
        Fingerprint::of_library(&filesystem)?;
    }
    stays_sound(&before, &look_at_sound(&disks), outcome)
}

/// The devices of one mutant, and what was changed, for readers that are not the engine.
pub fn mutant(rng: &mut Rng) -> (Vec<Arc<dyn BlockDevice>>, Outcome) {
    let shape = &shapes()[rng.index(shapes().len())];
    let mut outcome = Outcome { shape: &shape.name, ..Outcome::default() };
    let (disks, changes) = (copy_of(&shape.disks), 1 + rng.index(3));
    mutate(shape, changes, &disks, rng, &mut outcome);
    (shared(&disks), outcome)
}

fn mutate(
    shape: &Shape,
    changes: usize,
    disks: &[Arc<MemoryDevice>],
    rng: &mut Rng,
    outcome: &mut Outcome,
) -> Vec<InodeId> {
    let devices = shared(disks);
    let editor = Editor::open(devices.clone());
    let mut changer = Changer { editor: &editor, ground: &shape.ground, disks: &devices, rng, spoiled: Vec::new() };
    for _ in 0..changes * 4 {
        if outcome.changes.len() < changes {
            outcome.changes.extend(changer.change());
        }
    }
    let inodes = outcome.changes.iter().filter_map(|change| {
        let (tree, key) = (change.tree?, change.key?);
        let tree = if tree == TreeId::TREE_LOG { TreeId::FS } else { tree };
        (is_subvolume(tree) && !shape.sound.contains(&key.objectid)).then(|| InodeId::new(tree, Ino(key.objectid)))
    });
    inodes.collect()
}

fn is_subvolume(tree: TreeId) -> bool {
    tree == TreeId::FS || (256..=Ino::LAST_FREE.0).contains(&tree.0)
}

/// Opening may be refused, unless the checker finds nothing.
fn opened(devices: &[Arc<dyn BlockDevice>], outcome: &mut Outcome) -> Result<Result<Filesystem, Error>, String> {
    let opened = open(devices, Options::default());
    outcome.is_opened |= opened.is_ok();
    match &opened {
        Err(error) if outcome.is_clean && speaks_of_damage(error) => {
            Err(format!("the judge finds nothing, but: {error}"))
        }
        _ => Ok(opened),
    }
}

/// Works, then ends in one of several ways.
fn live(filesystem: &Filesystem, life: u32, shape: &Shape, changed: &[InodeId], rng: &mut Rng, outcome: &mut Outcome) {
    let mut worker = Worker::new(filesystem, rng, shape, changed.to_vec());
    for _ in 0..OPERATIONS_EACH {
        let table = *worker.rng.pick(&OPERATIONS);
        let (name, operation) = *worker.rng.pick(table);
        outcome.operations.push(name);
        if let Err(error) = operation(&mut worker)
            && speaks_of_damage(&error)
        {
            outcome.noticed.push(format!("{name}: {error}"));
        }
    }
    worker.finish();
    let ended = match (life, rng.below(6)) {
        // A crash: what is buffered is gone.
        (0, 0..3) => Ok(()),
        (0, 3) => filesystem.go_down(GoingDown::AtOnce),
        (0, 4) => {
            filesystem.abort("a test");
            Ok(())
        }
        _ => filesystem.shutdown(),
    };
    if let Err(error) = ended
        && speaks_of_damage(&error)
    {
        outcome.noticed.push(format!("the end: {error}"));
    }
}

fn speaks_of_damage(error: &Error) -> bool {
    [Errno::EIO, Errno::EUCLEAN].contains(&error.errno())
}

fn still_clean(disks: &[Arc<MemoryDevice>], outcome: &Outcome) -> Result<(), String> {
    if !outcome.is_clean {
        return Ok(());
    }
    // The checker unpacks nothing, and lets a file be longer than files can be.
    const UNSEEN: [&str; 5] = ["compressed", "zstd: ", "zlib: ", "lzo: ", "the size is impossible"];
    let is_unseen = |sentence: &String| UNSEEN.iter().any(|words| sentence.contains(words));
    if let Some(sentence) = outcome.noticed.iter().find(|sentence| !is_unseen(sentence)) {
        return Err(format!("the judge found nothing, but: {sentence}"));
    }
    let report = judged(disks);
    if report.is_clean() { Ok(()) } else { Err(format!("no longer clean: {}", crate::judge::text(&report))) }
}

/// How [`SOUND`] looks; the image stays as it is, also where it has a log.
fn look_at_sound(disks: &[Arc<MemoryDevice>]) -> Result<Fingerprint, String> {
    let filesystem = open(&shared(&copy_of(disks)), looking()).map_err(|error| error.to_string())?;
    let found = filesystem.lookup(top(), SOUND).map_err(|error| error.to_string())?;
    Fingerprint::of_library_below(&filesystem, found.id)
}

fn looking() -> Options {
    let subvolume = Subvolume::Id(TreeId::FS);
    Options { read_only: true, no_log_replay: true, subvolume, ..Options::default() }
}

fn stays_sound(
    before: &Result<Fingerprint, String>,
    after: &Result<Fingerprint, String>,
    outcome: &Outcome,
) -> Result<(), String> {
    let Ok(before) = before else { return Ok(()) };
    let trees = || outcome.changes.iter().map(|change| change.tree);
    match after {
        Ok(_) if trees().any(|tree| tree.is_none_or(|tree| ALLOCATING.contains(&tree))) => Ok(()),
        // A name elsewhere may lead to one of these files now.
        Ok(_) if outcome.changes.iter().any(|change| change.text.contains("DirItem.location")) => Ok(()),
        Ok(after) => {
            let found = differences(before, after, Compare { atime: false, ..Compare::ALL });
            if found.is_empty() { Ok(()) } else { Err(format!("files that nothing worked with changed: {found:?}")) }
        }
        Err(error) if trees().all(|tree| tree.is_some_and(is_subvolume)) => {
            Err(format!("files that nothing worked with cannot be read: {error}"))
        }
        Err(_) => Ok(()),
    }
}

/// Our checker, on one thread.
fn judged(disks: &[Arc<MemoryDevice>]) -> Report {
    let options = butterfs_check::Options { check_data: true, threads: 1, ..butterfs_check::Options::default() };
    butterfs_check::check(shared(disks), &options, &|_| {})
}

/// The remarks of a report besides errors.
fn remarks(report: &Report) -> BTreeSet<String> {
    let warnings = report.findings.iter().map(|finding| format!("{finding}"));
    warnings.chain(report.notes.iter().cloned()).collect()
}
