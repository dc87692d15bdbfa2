//! Reading directories, which are not opened: the kernel is told so, and asks for entries by node.
//!
//! Of a directory that is being read one thing is remembered: the last entry that existed when somebody began. Nothing
//! behind it is shown, because a program that renames what it reads would otherwise see its own new entries without
//! end. It is remembered until a reader has come to the end or the kernel forgets the node; a reader who goes on
//! later sees what exists then. Readers of one directory share it, so that who begins lets the others read as far.

use super::{Outcome, Shared, errno};
use crate::protocol::directory::Listing;
use crate::protocol::wire::{EntryOut, ReadIn};
use butterfs_fs::InodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

/// Directories that are being read: the last entry to show, by node.
#[derive(Default)]
pub struct BeingRead(Mutex<FxHashMap<u64, u64>>);

impl BeingRead {
    fn last(&self, node: u64) -> Option<u64> {
        self.0.lock().get(&node).copied()
    }

    fn begin(&self, node: u64, last: u64) {
        self.0.lock().insert(node, last);
    }

    /// Somebody has come to the end, or nobody can read it any more.
    pub fn end(&self, node: u64) {
        self.0.lock().remove(&node);
    }
}

impl Shared {
    pub(super) fn read_directory(&self, id: InodeId, arguments: &ReadIn, payload: &mut Vec<u8>) -> Outcome {
        let last = self.last_shown(id, arguments)?;
        let mut has_room = true;
        let mut listing = Listing::new(payload, arguments.size);
        let show = &mut |entry: butterfs_fs::DirEntry<'_>| {
            has_room = listing.push(self.nodes.ino(entry.id), entry.offset_next, entry.kind, entry.name);
            has_room
        };
        self.filesystem().readdir_until(id, arguments.offset, last, show).map_err(errno)?;
        self.note_end(id, has_room && payload.is_empty());
        Ok(())
    }

    /// The engine counts a reference for each entry with attributes that the listing takes.
    pub(super) fn read_directory_plus(&self, id: InodeId, arguments: &ReadIn, payload: &mut Vec<u8>) -> Outcome {
        let last = self.last_shown(id, arguments)?;
        let mut listing = Listing::new(payload, arguments.size);
        let (mut has_room, mut barred) = (true, Vec::new());
        let listed = self.filesystem().readdirplus(id, arguments.offset, last, &mut |entry, attr| {
            let shut = attr.filter(|_| self.closed_entries.bar(id, entry.name));
            let shown = attr.filter(|_| shut.is_none());
            let found = shown.map_or(EntryOut::default(), |attr| self.entry(attr));
            let ino = self.nodes.ino(entry.id);
            has_room = listing.push_plus(&found, ino, entry.offset_next, entry.kind, entry.name);
            barred.extend(shut.filter(|_| has_room).map(|attr| attr.id));
            has_room
        });
        // Counted for a listing that shows no more than their names.
        barred.into_iter().for_each(|id| self.filesystem().forget(id, 1));
        match listed {
            // What was listed before the damage counts; the next call meets it first.
            Err(_) if !payload.is_empty() => return Ok(()),
            listed => listed.map_err(errno)?,
        }
        self.note_end(id, has_room && payload.is_empty());
        Ok(())
    }

    fn last_shown(&self, id: InodeId, arguments: &ReadIn) -> Result<u64, Errno> {
        let node = self.nodes.node(id);
        let known = self.being_read.last(node).filter(|_| arguments.offset != 0);
        known.map_or_else(|| self.begin_reading(node, id), Ok)
    }

    fn begin_reading(&self, node: u64, id: InodeId) -> Result<u64, Errno> {
        let last = self.filesystem().last_offset(id).map_err(errno)?;
        self.being_read.begin(node, last);
        Ok(last)
    }

    /// An answer without entries is the end.
    fn note_end(&self, id: InodeId, is_end: bool) {
        if is_end {
            self.being_read.end(self.nodes.node(id));
        }
    }
}
