//! A device that takes over from another one: it gets every write that the other one gets, at the same places.
//!
//! ```text
//! begin_twin ─► copies, piece by piece (migration.rs) ─► finish_twin: it has the number of the other one
//!                                              └► cancel_twin
//! ```
//!
//! # Invariants
//! 1. Nothing is read from it before `finish_twin`.
//! 2. What fails on it fails for nobody else; the replacement learns it.
//! 3. Its superblocks say number 0, and it gets them only while the trees say that it takes over; the first one, and
//!    the first with its final number, before the other devices have a superblock that says so, because they cannot be
//!    mounted without it from then on.

use crate::error::VolumeError;
use crate::member::{Caching, Condition, Member};
use crate::superblocks::{write_copy, write_first_copy};
use crate::volume::Volume;
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::{OFFSETS, Superblock};
use butterfs_ondisk::{DeviceId, Logical, Physical};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A device with number 0 that was given when the filesystem was opened.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device item in its superblock.
    pub item: DevItem,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its last commit.
    pub generation: u64,
}

impl Volume {
    /// The device with number 0 that was given when the filesystem was opened.
    pub fn target(&self) -> Option<Target> {
        self.members().target.clone()
    }

    /// That device serves nothing.
    pub fn forget_target(&self) {
        self.change_devices(|set| set.with_target(None));
    }

    /// The device `device`, which is described by `item`, gets every write that device `id` gets from now on.
    pub fn begin_twin(&self, id: DeviceId, item: DevItem, device: Arc<dyn BlockDevice>) {
        self.windows.forget_failure();
        let twin = Arc::new(Member::new(item, device));
        twin.set_known(false);
        self.change_devices(|set| set.with_twin(id, Some(Arc::clone(&twin))).with_target(None));
        self.is_moving.store(true, Ordering::Release);
        self.drain();
    }

    /// Makes a first superblock durable on what takes over from the device, so that it is found whatever becomes of the
    /// commit that says so.
    pub fn introduce_twin(&self, id: DeviceId, sb: &Superblock) -> Result<(), VolumeError> {
        self.check_writable()?;
        let Some(twin) = self.members().twin(id).cloned() else { return Ok(()) };
        write_first_copy(&twin, sb, twin.item())
    }

    /// Nothing takes over from the device any more. Returns what did.
    pub fn cancel_twin(&self, id: DeviceId) -> Option<Arc<dyn BlockDevice>> {
        let twin = self.members().twin(id).map(|twin| Arc::clone(&twin.device));
        self.change_devices(|set| set.with_twin(id, None));
        self.forget_move(Logical(u64::MAX));
        self.drain();
        twin
    }

    /// The device that takes over has, from now on, the number of the other one, and is what `item` says. False where
    /// it has failed, and nothing is changed.
    pub fn finish_twin(&self, id: DeviceId, item: DevItem) -> bool {
        let twin = self.members().twin(id).cloned();
        let Some(twin) = twin.filter(|twin| twin.is_in_use()) else { return false };
        let member = Arc::new(Member::new(item, Arc::clone(&twin.device)));
        // Once another device says that it has taken over, it is missed under its new number.
        member.set_new(true);
        self.change_devices(|set| {
            let absent = if set.get(id).is_some() { set.absent } else { set.absent.saturating_sub(1) };
            set.with(Arc::clone(&member)).with_twin(id, None).with_absent(absent)
        });
        self.forget_move(Logical(u64::MAX));
        self.drain();
        true
    }

    /// Whether a device takes over from this one.
    pub fn has_twin(&self, id: DeviceId) -> bool {
        self.members().twin(id).is_some()
    }

    /// Whether some copy of the byte at `at` is on this device.
    pub fn lies_on(&self, at: Logical, id: DeviceId) -> bool {
        let found = self.located(at, 1, |layout| {
            let mut pieces = layout.pieces(at, 1);
            Ok(pieces.any(|piece| {
                (0..layout.mirrors())
                    .any(|mirror| layout.chunk().stripes[layout.stripe_address(&piece, mirror).stripe].device == id)
            }))
        });
        found.unwrap_or(false)
    }

    /// Whether the trees of the next superblock say that devices take over, so that these get one.
    pub fn twins_take_superblocks(&self, take: bool) {
        self.members().twins().for_each(|twin| twin.set_known(take));
    }

    /// Stores on the device that takes over from another one what goes to that one.
    pub(crate) fn store_on_twin(&self, id: DeviceId, at: Physical, data: &[u8], caching: Caching) {
        if !self.is_moving.load(Ordering::Acquire) {
            return;
        }
        let Some(twin) = self.members().twin(id).cloned().filter(|twin| twin.is_in_use()) else { return };
        if let Err(error) = twin.write(at, data, caching) {
            let device = twin.device.name();
            self.fail_twin(&twin, &VolumeError::Write { at: None, device, physical: at, error });
        }
    }

    pub(crate) fn flush_twin(&self, twin: &Arc<Member>) {
        if twin.is_in_use()
            && let Err(error) = twin.flush()
        {
            self.fail_twin(twin, &VolumeError::Flush { device: twin.device.name(), error });
        }
    }

    /// Writes the superblocks of devices that take over: the primary one, or the others.
    pub(crate) fn write_twin_superblocks(&self, sb: &Superblock, items: &[DevItem], primary: bool) {
        let members = self.members();
        for (id, twin) in members.pairs().filter(|(_, twin)| twin.takes_superblocks()) {
            let source = items.iter().find(|item| item.devid.get() == id.0);
            let own = twin.item();
            let item = source.map_or(own, |item| DevItem { devid: 0.into(), uuid: own.uuid, ..*item });
            for at in Superblock::copies_on(item.total_bytes.get()).filter(|at| (*at == OFFSETS[0]) == primary) {
                if let Err(error) = write_copy(twin, sb, item, at) {
                    self.fail_twin(twin, &error);
                }
            }
        }
    }

    fn fail_twin(&self, twin: &Member, error: &VolumeError) {
        twin.worsen(Condition::Failed);
        self.fail_move(error);
    }
}
