//! Which devices count: what the profiles survive, and what becomes of a device that fails.
//!
//! | device | is written | is read | counts for what a profile survives |
//! |---|---|---|---|
//! | whole | yes | yes | yes |
//! | stale: has missed writes | yes | last, where a checksum or generation confirms it | no |
//! | failed, missing | no | no | no |
//!
//! A device is marked failed when a flush of it fails, because what it has of all that was written is not known then,
//! and stale when it has missed a write that is known. Either only where every chunk still has what its profile demands
//! on whole devices; else the failure is an error. Where a chunk has no copy on another device (single, DUP, RAID0)
//! nothing of it was missed without an error, so staleness does not matter to it.

use crate::chunk_map::ChunkMap;
use crate::error::VolumeError;
use crate::layout::{Layout, StripeAddress};
use crate::member::{Caching, Condition, Member};
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{DeviceId, Logical};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bugs that the simulator must find.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Stale data counts as whole.
    StaleBelieved,
    /// Reading asks all mirrors in turn, stale or not.
    MirrorsTakeTurns,
    /// Data that no checksum confirms is read from stale devices where whole ones fail, and those are repaired from it.
    RepairsFromStale,
    /// A device that lacks the last superblock counts as whole although another one is missing.
    InterruptedForgiven,
    /// Writes to a chunk that moves do not go to its new stripes.
    MoveNotFollowed,
    /// A part of a row is written without its new parity.
    ParityNotUpdated,
}

impl Volume {
    /// Whether some device is missing or failed.
    pub fn is_incomplete(&self) -> bool {
        self.members().absent > 0 || self.members().iter().any(|member| !member.is_in_use())
    }

    /// Whether no device is missing, failed or stale.
    pub fn is_whole(&self) -> bool {
        self.members().absent == 0 && self.members().iter().all(|member| member.is_whole())
    }

    /// The number of times that a device has got worse or missed a write since the filesystem was opened.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Whether a device is there and new chunks may lie on it.
    pub fn is_usable(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.is_in_use())
    }

    /// Whether a device has missed writes and is written again.
    pub fn is_stale(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.is_stale())
    }

    /// Whether a device is there and has missed nothing.
    pub fn is_whole_device(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.is_whole())
    }

    /// The devices that have missed writes and are written again.
    pub fn stale_devices(&self) -> Vec<DeviceId> {
        self.members().iter().filter(|member| member.is_stale()).map(|member| member.id).collect()
    }

    /// Writes that a device has missed since it was opened.
    pub fn missed_writes(&self, id: DeviceId) -> u64 {
        self.member(id).map_or(0, |member| member.missed())
    }

    /// Says which devices are known to have missed writes.
    pub fn set_stale(&self, is_stale: &dyn Fn(DeviceId) -> bool) {
        for member in self.members().iter().filter(|member| is_stale(member.id)) {
            member.worsen(Condition::Stale);
        }
    }

    /// Says which devices were written without the others, which is given up: nothing on them is believed.
    pub fn set_foreign(&self, is_foreign: &dyn Fn(DeviceId) -> bool) {
        self.members().iter().filter(|member| is_foreign(member.id)).for_each(|member| member.make_foreign());
    }

    /// Whether nothing on a device is believed.
    pub fn is_foreign(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.is_foreign())
    }

    /// The devices, each with its superblock as it was when they were opened, ascending by number. Without those that
    /// are foreign.
    pub fn opened_as(&self) -> Vec<(DeviceId, Superblock, Arc<dyn BlockDevice>)> {
        let members = self.members();
        let own = members.iter().filter(|member| !member.is_foreign());
        own.filter_map(|member| Some((member.id, *member.opened_as()?, member.device.clone()))).collect()
    }

    /// While repairs are held, reading writes nothing.
    pub fn hold_repairs(&self, are_held: bool) {
        self.repairs_held.store(are_held, Ordering::Release);
    }

    /// Reads a copy of the bytes at `at`, which lie in one element, from the device that `on` wants: `None` where it
    /// cannot be read.
    pub fn read_on(&self, at: Logical, len: usize, on: DeviceId) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.located(at, len, |layout| {
            let piece = layout.pieces(at, len).next();
            let found = piece.is_some_and(|piece| {
                (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror)).any(|address| {
                    let is_it = layout.chunk().stripes[address.stripe].device == on;
                    is_it
                        && self.fetch_stripe(&layout, 0, address, (Trust::Verified, Caching::Kept), &mut bytes).is_ok()
                })
            });
            Ok(found)
        });
        read.unwrap_or(false).then_some(bytes)
    }

    /// A stale device has been brought up to date, unless it has missed more than `missed` writes. Says whether it is
    /// whole.
    pub fn recover(&self, id: DeviceId, missed: u64) -> bool {
        self.member(id).is_some_and(|member| member.recover(missed))
    }

    /// A bug on purpose, for tests of the tests.
    #[doc(hidden)]
    pub fn plant(&self, bug: Bug) {
        self.bug.get_or_init(|| bug);
    }

    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.bug.get() == Some(&bug)
    }

    /// Whether every chunk of `map` can be written without the devices that are missing or stale. The error names one
    /// that cannot.
    pub fn check_survivable(&self, map: &ChunkMap) -> Result<(), VolumeError> {
        self.check_survives(map, &|id| !self.is_usable(id), &|id| self.is_stale(id))
    }

    /// Whether the devices of `map` without these could have been written alone.
    pub fn can_do_without(&self, map: &ChunkMap, lost: &[DeviceId]) -> bool {
        self.check_survives(map, &|id| lost.contains(&id) || !self.is_usable(id), &|_| false).is_ok()
    }

    /// Whether a device lacks something of which the trees that the next superblock leads to say nothing.
    pub fn has_unrecorded_loss(&self) -> bool {
        self.members().iter().any(|member| member.lacks_unrecorded())
    }

    /// Takes devices for whole that are behind by the last commit or log only, where chunks have too few copies without
    /// them: so many cannot have failed in a commit that ended, so a power cut came between the superblocks of the
    /// devices, and what they lead to was durable on all of them before, but on those that the trees call stale
    /// (`named`). That holds only where no device is missing: others may have committed without this one, which still
    /// has blocks of the same generation from a commit that a crash cut off.
    pub fn forgive_interrupted(&self, map: &ChunkMap, newest: &Superblock, named: &[DeviceId]) {
        let may_have_missed = self.members().absent > 0 && !self.has_bug(Bug::InterruptedForgiven);
        if may_have_missed || self.check_survivable(map).is_ok() {
            return;
        }
        let is_close = |sb: &Superblock| sb.generation() >= newest.previous_commit();
        let is_doubtful =
            |member: &&Arc<Member>| member.is_stale() && !member.is_foreign() && !named.contains(&member.id);
        let members = self.members();
        for member in members.iter().filter(is_doubtful).filter(|member| member.opened_as().is_some_and(is_close)) {
            member.recover(member.missed());
        }
    }

    fn check_survives(
        &self,
        map: &ChunkMap,
        is_lost: &dyn Fn(DeviceId) -> bool,
        is_stale: &dyn Fn(DeviceId) -> bool,
    ) -> Result<(), VolumeError> {
        for chunk in map.iter() {
            let profile = chunk.profile();
            let most = profile.tolerated_failures;
            let lost = count_devices(chunk, is_lost);
            let doubtful = count_devices(chunk, &|id| is_lost(id) || most > 0 && is_stale(id));
            if doubtful > most {
                let (start, name) = (chunk.start, profile.name);
                let stale = match doubtful - lost {
                    0 => String::new(),
                    stale => format!(" and {stale} more may be out of date"),
                };
                return Err(VolumeError::refused(format!(
                    "chunk {start} lacks {lost} of its devices{stale}, and {name} survives {most}; only reading is \
                     possible"
                )));
            }
        }
        Ok(())
    }

    /// Stops using a device that failed, if every chunk survives without it. Says whether it did.
    pub(crate) fn mark_failed(&self, failed: &Member, why: &VolumeError) -> bool {
        let is_lost = |id| id == failed.id || !self.is_usable(id);
        let is_stale = |id| self.is_stale(id) && !self.has_bug(Bug::StaleBelieved);
        let others = self.members().iter().any(|member| member.id != failed.id && member.is_in_use());
        if !others || self.check_survives(&self.chunk_map(), &is_lost, &is_stale).is_err() {
            return false;
        }
        if failed.worsen(Condition::Failed) {
            self.losses.fetch_add(1, Ordering::AcqRel);
            self.tell(format!("{why}; devid {} is not used any more, the other devices go on", failed.id));
        }
        true
    }

    /// These devices have missed a write that others took: they are stale from now on. Changes nothing and is false
    /// where a chunk would then have less on whole devices than its profile demands.
    pub(crate) fn miss(&self, failed: &[Arc<Member>]) -> bool {
        let becomes_stale = |id| self.is_stale(id) || failed.iter().any(|member| member.id == id);
        let is_lost = |id| !self.is_usable(id);
        if failed.iter().any(|member| member.is_whole())
            && self.check_survives(&self.chunk_map(), &is_lost, &becomes_stale).is_err()
        {
            return false;
        }
        for member in failed {
            self.losses.fetch_add(1, Ordering::AcqRel);
            if member.miss() {
                let id = member.id;
                self.tell(format!(
                    "devid {id} has missed a write; nothing counts on it until it has been brought up to date"
                ));
            }
        }
        true
    }

    /// Whether an address lies on a stale device, and a write may have been missed there.
    pub(crate) fn lacks_something(&self, layout: &Layout<'_>, address: StripeAddress) -> bool {
        layout.chunk().profile().tolerated_failures > 0
            && self.is_stale(layout.chunk().stripes[address.stripe].device)
            && !self.has_bug(Bug::StaleBelieved)
    }

    /// Whether some of a copy lies on stale devices. Computed copies do as soon as one of the row's devices is stale.
    pub(crate) fn touches_stale(&self, layout: &Layout<'_>, at: Logical, len: usize, copy: usize) -> bool {
        if !self.members().iter().any(|member| member.is_stale()) {
            return false;
        }
        if copy >= layout.mirrors() {
            return layout.chunk().stripes.iter().any(|stripe| self.is_stale(stripe.device));
        }
        layout.pieces(at, len).any(|piece| self.lacks_something(layout, layout.stripe_address(&piece, copy)))
    }
}

/// Devices of a chunk for which something holds, each counted once.
fn count_devices(chunk: &Chunk, holds: &dyn Fn(DeviceId) -> bool) -> usize {
    let mut found: Vec<DeviceId> = chunk.stripes.iter().map(|stripe| stripe.device).filter(|id| holds(*id)).collect();
    found.sort_unstable();
    found.dedup();
    found.len()
}
