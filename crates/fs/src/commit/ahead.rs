//! Booking references ahead of the commit, a slice at a time: what everybody waits for in one go stays small, however
//! much is queued.
//!
//! # Invariants
//! 1. A slice is a short freeze: no handle is open meanwhile. So no operation is seen half-way, and whoever holds a
//!    handle finds queue and trees as they were when the handle began.
//! 2. Whoever waited for one slice comes before the next one.
//! 3. What is booked ahead stays part of the running transaction; what it frees is pinned like everything else.

use super::Engine;
use super::booking::book_chunks;
use crate::error::Result;
use crate::extent;
use crate::options::Canary;
use crate::transaction::{Copied, Handle};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::collections::BTreeSet;

fn checksum_key(at: Logical) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at.0)
}

impl Engine {
    /// Books a slice where many changes wait. For whoever is about to join; no handle may be held.
    pub(crate) fn book_one_slice(&self) -> Result<()> {
        if self.waiting() <= self.options().policies.booking.early || self.has_canary(Canary::BookedAtOnce) {
            return Ok(());
        }
        // One slice at a time is enough; whoever books it is not overtaken by many.
        let Some(_turn) = self.booking_turn.try_lock() else { return Ok(()) };
        self.book_slice(self.options().policies.booking.slice)
    }

    /// The number of changes that wait.
    fn waiting(&self) -> usize {
        self.gate.running().refs.weight()
    }

    /// Books until no more wait than others have to put up with. For whoever has queued very much at once.
    pub(crate) fn book_what_is_too_much(&self) -> Result<()> {
        self.book_down_to(self.options().policies.booking.early)
    }

    /// Books most of what waits, so that little is left for the moment in which a commit stops everybody.
    pub(super) fn book_before_commit(&self) -> Result<()> {
        let left = self.options().policies.booking.left;
        self.book_down_to(left)?;
        self.preload_freeze();
        Ok(())
    }

    /// In a bounded number of slices, larger ones where others queue as fast: booking queues changes too.
    fn book_down_to(&self, left: usize) -> Result<()> {
        if self.has_canary(Canary::BookedAtOnce) {
            return Ok(());
        }
        let _turn = self.booking_turn.lock();
        let slice = self.options().policies.booking.slice.max(1);
        let mut slices = 2 * self.waiting() / slice + 8;
        while self.waiting() > left && slices > 0 {
            self.book_slice(slice.max((self.waiting() / 4).min(8 * slice)))?;
            slices -= 1;
        }
        Ok(())
    }

    fn book_slice(&self, most: usize) -> Result<()> {
        self.preload_booking(most, &mut Copied::new());
        let stopped = self.stop_handles_in_turn()?;
        // A slice that failed half-way leaves a transaction that cannot be completed; an error aborts before handles go
        // on.
        self.book_some(stopped.handle(), most).inspect_err(|error| self.abort(error))
    }

    /// Has the leaves in memory that about `most` changes are going to be made in, while nobody waits.
    fn preload_booking(&self, most: usize, copied: &mut Copied) {
        let (keys, going) = self.gate.running().refs.next_keys(most);
        let (globals, core) = (self.globals(), self.core());
        globals.extent.preload_copied(core, &keys, copied);
        let sums: Vec<Key> = going.iter().map(|at| checksum_key(*at)).collect();
        globals.csum.preload_copied(core, &sums, copied);
        let mut places: Vec<Logical> = keys.iter().map(|key| Logical(key.objectid)).collect();
        places.dedup();
        extent::preload(core, &places, copied);
    }

    /// The same for everything that is recorded when the transaction is frozen. Recording copies blocks, which is
    /// recorded too.
    fn preload_freeze(&self) {
        self.load_groups_ahead();
        let _ = self.groups_with_caches();
        let (core, globals, mut copied) = (self.core(), self.globals(), Copied::new());
        self.preload_booking(usize::MAX, &mut copied);
        let changed = self.dirty_inodes.preload(core, &mut copied);
        let changed = changed.into_iter().chain(self.gate.running().unrecorded());
        let mut keys: Vec<Key> = changed.filter_map(|id| Some(core.trees.get(id)?.root_item_key())).collect();
        keys.extend(globals.all().map(|tree| tree.root_item_key()));
        keys.sort_unstable();
        globals.root.preload_copied(core, &keys, &mut copied);
        let mut known = BTreeSet::new();
        copied.extend(core.space.next_nodes());
        while !copied.is_empty() {
            let mut places: Vec<Logical> = std::mem::take(&mut copied);
            places.sort_unstable();
            places.retain(|at| known.insert(*at));
            extent::preload(core, &places, &mut copied);
            copied.retain(|at| !known.contains(at));
        }
    }

    fn book_some(&self, handle: &Handle, most: usize) -> Result<()> {
        // The free space of a group must be there before anything in it is booked.
        let chunks = book_chunks(handle)?;
        handle.transaction().books().chunks_booked_ahead.extend(chunks);
        extent::run_some_refs(handle, most.max(1))
    }
}
