//! Reading directories.
//!
//! A handle remembers the last entry that existed when the directory was opened or rewound, and shows none behind it:
//! a program that renames what it reads would otherwise see its own new entries without end.

use super::{Outcome, Shared, errno};
use crate::protocol::directory::Listing;
use crate::protocol::flags::open;
use crate::protocol::wire::{EntryOut, OpenOut, ReadIn};
use butterfs_fs::InodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Open directories.
#[derive(Default)]
pub struct Handles {
    next: AtomicU64,
    /// The last entry to show, by handle.
    last: Mutex<FxHashMap<u64, u64>>,
}

impl Handles {
    fn open(&self, last: u64) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.last.lock().insert(handle, last);
        handle
    }

    fn last(&self, handle: u64) -> Option<u64> {
        self.last.lock().get(&handle).copied()
    }

    fn rewind(&self, handle: u64, last: u64) {
        if let Some(known) = self.last.lock().get_mut(&handle) {
            *known = last;
        }
    }

    /// Ends a handle.
    pub fn close(&self, handle: u64) {
        self.last.lock().remove(&handle);
    }

    /// Ends the handle in an answer that was not taken.
    pub fn close_unused(&self, payload: &[u8]) {
        if let Ok((answer, _)) = OpenOut::read_from_prefix(payload) {
            self.close(answer.fh);
        }
    }
}

impl Shared {
    pub(super) fn open_directory(&self, id: InodeId, payload: &mut Vec<u8>) -> Outcome {
        let last = self.filesystem().last_offset(id).map_err(errno)?;
        let open_flags = open::KEEP_CACHE | open::CACHE_DIR;
        let answer = OpenOut { fh: self.directories.open(last), open_flags, ..OpenOut::default() };
        payload.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn read_directory(&self, id: InodeId, arguments: &ReadIn, payload: &mut Vec<u8>) -> Outcome {
        let last = self.last_shown(id, arguments)?;
        let mut listing = Listing::new(payload, arguments.size);
        let show = &mut |entry: butterfs_fs::DirEntry<'_>| {
            listing.push(self.nodes.ino(entry.id), entry.offset_next, entry.kind, entry.name)
        };
        self.filesystem().readdir_until(id, arguments.offset, last, show).map_err(errno)
    }

    /// The engine counts a reference for each entry with attributes that the listing takes.
    pub(super) fn read_directory_plus(&self, id: InodeId, arguments: &ReadIn, payload: &mut Vec<u8>) -> Outcome {
        let last = self.last_shown(id, arguments)?;
        let mut listing = Listing::new(payload, arguments.size);
        let mut barred = Vec::new();
        let listed = self.filesystem().readdirplus(id, arguments.offset, last, &mut |entry, attr| {
            let shut = attr.filter(|_| self.closed_entries.bar(id, entry.name));
            let shown = attr.filter(|_| shut.is_none());
            let found = shown.map_or(EntryOut::default(), |attr| self.entry(attr));
            let ino = self.nodes.ino(entry.id);
            let taken = listing.push_plus(&found, ino, entry.offset_next, entry.kind, entry.name);
            barred.extend(shut.filter(|_| taken).map(|attr| attr.id));
            taken
        });
        // Counted for a listing that shows no more than their names.
        barred.into_iter().for_each(|id| self.filesystem().forget(id, 1));
        match listed {
            // What was listed before the damage counts; the next call meets it first.
            Err(_) if !payload.is_empty() => Ok(()),
            listed => listed.map_err(errno),
        }
    }

    fn last_shown(&self, id: InodeId, arguments: &ReadIn) -> Result<u64, Errno> {
        if arguments.offset == 0 {
            let last = self.filesystem().last_offset(id).map_err(errno)?;
            self.directories.rewind(arguments.fh, last);
            return Ok(last);
        }
        Ok(self.directories.last(arguments.fh).unwrap_or(u64::MAX))
    }
}
