//! Everything that can be called on an open filesystem, as one table; a test holds it against the sources, so that a
//! new function is called here too.

mod contents;
mod names;
mod subvolumes;
mod whole;

use super::filling::SOUND;
use super::shapes::{Shape, top};
use crate::rng::Rng;
use butterfs_fs::{Filesystem, InodeId, Result, SnapshotReader, TreeId};

/// The name of a function, and a call of it.
pub type Operation = (&'static str, fn(&mut Worker<'_>) -> Result<()>);

/// Tables by what they are about.
pub const OPERATIONS: [&[Operation]; 4] =
    [names::OPERATIONS, contents::OPERATIONS, subvolumes::OPERATIONS, whole::OPERATIONS];

/// Functions that open and end a filesystem, or give out what never changes: a run has its own places for them.
pub const ELSEWHERE: &[&str] = &[
    "open",
    "has_log",
    "shutdown",
    "abort",
    "go_down",
    "halt_switch",
    "adopt_references",
    "compare_references",
    "forget",
    // They move chunks or change devices; tests of devices, balance and discards.
    "begin_replace_at",
    "begin_replace",
    "continue_replace",
    "cancel_replace",
    "migrate_chunk",
    "has_other_users",
    "add_device",
    "add_device_at",
    "is_seed",
    "sprouted",
    "device_at",
    "remove_device",
    "begin_exclusive",
    "cancel_exclusive",
    "trim",
    "set_discard_mode",
    "discard_freed",
    "balance_begin",
    "balance_resume",
    "balance_begin_again",
    "balance_pause",
    "balance_cancel",
    "balance_ask_to_cancel",
    "balance_drive",
    "balance_step",
];

/// A name that was found.
#[derive(Clone, Debug)]
pub struct FoundName {
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: Vec<u8>,
    /// The target.
    pub id: InodeId,
}

/// Works in a filesystem, at random.
pub struct Worker<'a> {
    /// The filesystem.
    pub filesystem: &'a Filesystem,
    /// Chooses.
    pub rng: &'a mut Rng,
    /// Names that were found when the work began.
    pub entries: Vec<FoundName>,
    /// Inodes whose items were changed, found or not.
    pub changed: Vec<InodeId>,
    /// Subvolumes that there were.
    pub subvolumes: Vec<TreeId>,
    /// The last stream that was sent.
    pub stream: Vec<u8>,
    fresh: u32,
}

impl<'a> Worker<'a> {
    /// Begins by looking up some names.
    pub fn new(filesystem: &'a Filesystem, rng: &'a mut Rng, shape: &Shape, changed: Vec<InodeId>) -> Worker<'a> {
        const NAMES: usize = 12;
        let subvolumes = shape.subvolumes.clone();
        let mut worker =
            Worker { filesystem, rng, entries: Vec::new(), changed, subvolumes, stream: Vec::new(), fresh: 0 };
        for _ in 0..NAMES {
            let path = worker.rng.pick(&shape.paths).clone();
            let found = worker.find(&path);
            let mut found = found.ok().flatten();
            // A name that lies may lead to what must stay as it is.
            found.take_if(|entry| entry.id.tree == TreeId::FS && shape.sound.contains(&entry.id.ino.0));
            worker.entries.extend(found);
        }
        worker
    }

    fn find(&self, path: &[u8]) -> Result<Option<FoundName>> {
        let mut at = None;
        let mut parent = top();
        for name in path.split(|byte| *byte == b'/') {
            let id = self.filesystem.lookup(parent, name)?.id;
            at = Some(FoundName { parent, name: name.to_vec(), id });
            parent = id;
        }
        Ok(at)
    }

    /// Gives back what [`Worker::new`] took.
    pub fn finish(self) {
        self.entries.iter().for_each(|entry| self.filesystem.forget(entry.id, 1));
    }

    fn object(&mut self) -> InodeId {
        if !self.changed.is_empty() && (self.entries.is_empty() || self.rng.chance(40)) {
            return *self.rng.pick(&self.changed);
        }
        self.entry().id
    }

    fn entry(&mut self) -> FoundName {
        match self.entries.is_empty() {
            true => FoundName { parent: top(), name: b"files".to_vec(), id: top() },
            false => self.rng.pick(&self.entries).clone(),
        }
    }

    /// A directory, as far as is known.
    fn folder(&mut self) -> InodeId {
        if self.rng.chance(30) { top() } else { self.entry().parent }
    }

    fn subvolume(&mut self) -> TreeId {
        *self.rng.pick(&self.subvolumes)
    }

    fn fresh(&mut self) -> Vec<u8> {
        self.fresh += 1;
        format!("fresh-{}-{}", self.fresh, self.rng.below(1000)).into_bytes()
    }

    /// Seldom far away.
    fn offset(&mut self) -> u64 {
        match self.rng.below(20) {
            0 => 1 << (20 + self.rng.below(43)),
            1..8 => self.rng.below(40) * 4096,
            _ => self.rng.below(150_000),
        }
    }

    fn len(&mut self) -> usize {
        self.rng.below(60_000) as usize
    }

    /// A read-only subvolume.
    fn reader(&mut self) -> Result<SnapshotReader> {
        let id = self.subvolume();
        self.filesystem.read_snapshot(id)
    }

    /// The subvolume at the top that a name is of, but not the one that must stay as it is.
    fn top_name(&mut self) -> Vec<u8> {
        let names: [&[u8]; 6] = [b"before", b"after", b"first", b"second", b"work", b"doomed"];
        let name = *self.rng.pick(&names);
        assert_ne!(name, SOUND);
        name.to_vec()
    }
}

/// Ends an endless listing.
fn shown(count: &mut u32) -> bool {
    *count += 1;
    assert!(*count < 100_000, "a listing does not end");
    true
}
