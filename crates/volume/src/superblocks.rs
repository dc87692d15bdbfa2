//! Writing superblocks, the only place that does, and reading them again.
//!
//! Never are both kinds of copies on their way at once. A commit writes the primaries and flushes, and the secondary
//! copies follow, durable with the flush before the next primaries. A log changes the primaries only, and only their
//! first sector, so no power cut tears them; before the next commit's primaries the secondary copies are made to lead
//! to the log too. What a power cut tore is repaired before anything else is written. So whatever a power cut leaves,
//! each device has a valid copy of the old or of the new state, and what that leads to is durable.
//!
//! A stale device gets a superblock only when the trees that it leads to say that the device is stale, and after the
//! whole devices: so whoever opens the devices later, all or some of them, never takes it for one that has everything.

use crate::error::VolumeError;
use crate::member::{Caching, Member};
use crate::ownership::Look;
use crate::volume::Volume;
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, super_flags};
use butterfs_ondisk::{DeviceId, Physical};
use std::sync::Arc;
use zerocopy::IntoBytes;

impl Volume {
    /// Makes `sb` the superblock of every device, in every copy, and durable. Place, device item and checksum are
    /// filled in here, the device item from [`set_device_item`](Self::set_device_item); the one in `sb` is ignored.
    ///
    /// The tree blocks that it points to must be durable already. A copy that cannot be written is counted and told;
    /// when no device takes its primary one, that is an error, after which nobody knows which superblock is on disk.
    pub fn write_superblock(&self, sb: &Superblock) -> Result<(), VolumeError> {
        self.write_superblock_with(sb, &self.device_items())
    }

    /// Like [`write_superblock`](Self::write_superblock), with the device items of the moment that `sb` is of: those
    /// of the volume may be ahead when the next transaction is already running.
    pub fn write_superblock_with(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        self.check_writable()?;
        self.check_still_ours(Look::Fresh)?;
        self.write_secondary_superblocks(sb, items);
        self.order()?;
        self.write_primaries(sb, items)?;
        self.flush()
    }

    /// Makes the secondary superblocks of every whole device what its primary one is, durable with the next flush: so
    /// it comes before a flush, and the next primary ones after that. What cannot be written is told.
    ///
    /// A stale device keeps its older ones: the trees that the primary ones lead to may not say that it is stale.
    pub fn refresh_secondary_superblocks(&self) {
        for member in self.members().iter().filter(|member| member.is_whole()) {
            let Some(primary) = member.known_superblock() else { continue };
            for at in Superblock::copies_on(primary.dev_item.total_bytes.get()).filter(|at| *at != OFFSETS[0]) {
                if self.check_writable().is_err() {
                    return;
                }
                if let Err(error) = write_copy(member, &primary, primary.dev_item, at) {
                    self.tell(error.to_string());
                }
            }
        }
    }

    /// Makes `sb` the secondary superblocks of every device, durable with the next flush. Only for an `sb` that the
    /// primary ones have already, or that is followed by a flush and the primary ones. What cannot be written is told.
    pub fn write_secondary_superblocks(&self, sb: &Superblock, items: &[DevItem]) {
        self.write_twin_superblocks(sb, items, false);
        for (member, item) in self.with_items(items) {
            for at in Superblock::copies_on(item.total_bytes.get()).filter(|at| *at != OFFSETS[0]) {
                if self.check_writable().is_err() {
                    return;
                }
                if let Err(error) = write_copy(&member, sb, item, at) {
                    self.tell(error.to_string());
                }
            }
        }
    }

    /// Makes `sb` durable in every copy that is not valid: a power cut may have torn it, and another one may tear those
    /// of the other kind, which are written next. The same for the primary copies that a power cut kept from the last
    /// commit, on devices that count as whole nevertheless: without that the loss of another device would make them
    /// doubtful again. `sb` is the one that the filesystem was opened with.
    pub fn repair_superblocks(&self, sb: &Superblock) -> Result<(), VolumeError> {
        let items = self.device_items();
        let mut repaired = false;
        for (member, item) in self.with_items(&items) {
            for at in Superblock::copies_on(item.total_bytes.get()) {
                let mut bytes = vec![0; SUPERBLOCK_LEN];
                let found =
                    member.read(at, &mut bytes, Caching::Kept).ok().and_then(|()| Superblock::parse(&bytes, at).ok());
                let is_late = |found: &Superblock| found.generation.get() < sb.generation.get() && member.is_whole();
                if found.is_some_and(|found| at != OFFSETS[0] || !is_late(&found)) {
                    continue;
                }
                self.check_writable()?;
                match write_copy(&member, sb, item, at) {
                    Ok(()) => {
                        repaired = true;
                        member.count_repaired_superblock(at);
                    }
                    Err(error) => self.tell(error.to_string()),
                }
            }
        }
        if repaired { self.flush() } else { Ok(()) }
    }

    /// Makes `sb` the primary superblock of every device, and durable: all that a log needs, because secondary
    /// copies are of whole commits.
    pub fn write_primary_superblock(&self, sb: &Superblock) -> Result<(), VolumeError> {
        self.write_primary_superblock_with(sb, &self.device_items())
    }

    /// Like [`write_primary_superblock`](Self::write_primary_superblock), with these device items.
    pub fn write_primary_superblock_with(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        self.check_writable()?;
        self.check_still_ours(Look::Fresh)?;
        self.write_primaries(sb, items)?;
        self.flush()
    }

    /// Like [`write_primary_superblock_with`](Self::write_primary_superblock_with), durable with the next flush.
    pub fn write_unflushed_primary_superblock(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        self.check_writable()?;
        self.check_still_ours(Look::Cached)?;
        self.write_primaries(sb, items)
    }

    /// The whole devices first.
    fn write_primaries(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        let all = self.with_items(items);
        self.write_first_primaries(sb, &all)?;
        let (stale, whole): (Vec<_>, Vec<_>) = all.into_iter().partition(|(member, _)| member.is_stale());
        if whole.is_empty() {
            return self.write_primaries_of(sb, stale);
        }
        self.write_primaries_of(sb, whole)?;
        self.write_twin_superblocks(sb, items, true);
        if stale.is_empty() {
            return Ok(());
        }
        self.flush()?;
        for (member, item) in stale {
            if let Err(error) = write_copy(&member, sb, item, OFFSETS[0]) {
                self.lose_superblock(&member, &error);
            }
        }
        Ok(())
    }

    /// Devices that join get theirs first: until the others have one that counts them, nobody misses them.
    fn write_first_primaries(&self, sb: &Superblock, all: &[(Arc<Member>, DevItem)]) -> Result<(), VolumeError> {
        let new: Vec<_> = all.iter().filter(|(member, _)| member.is_new()).collect();
        if new.len() == all.len() {
            new.iter().for_each(|(member, _)| member.set_new(false));
            return Ok(());
        }
        for (member, item) in &new {
            write_first_copy(member, sb, *item)?;
            member.set_new(false);
        }
        Ok(())
    }

    /// One device that takes it is enough for the next mount; the others are behind then.
    fn write_primaries_of(&self, sb: &Superblock, members: Vec<(Arc<Member>, DevItem)>) -> Result<(), VolumeError> {
        let count = members.len();
        let write = |(member, item): (Arc<Member>, DevItem)| {
            let failed = write_copy(&member, sb, item, OFFSETS[0]).err()?;
            Some((member.id, failed))
        };
        let mut failures: Vec<_> = members.into_iter().filter_map(write).collect();
        if failures.len() == count {
            let nobody = || VolumeError::refused("no device can take the superblock");
            return Err(failures.pop().map_or_else(nobody, |(_, error)| error));
        }
        for (id, error) in failures {
            let is_survived = self.member(id).is_some_and(|member| self.lose_superblock(&member, &error));
            if !is_survived {
                return Err(error);
            }
        }
        Ok(())
    }

    /// A device that did not take a superblock that others have taken: the next mount will call it stale, so it is so
    /// now.
    fn lose_superblock(&self, member: &Arc<Member>, error: &VolumeError) -> bool {
        member.refuse_superblocks();
        if self.mark_failed(member, error) {
            return true;
        }
        let is_survived = self.miss(std::slice::from_ref(member));
        if is_survived {
            self.tell(format!("{error}; the other devices go on"));
        }
        is_survived
    }

    /// Each device that superblocks are written to, with its item among `items`, or its current one.
    fn with_items(&self, items: &[DevItem]) -> Vec<(Arc<Member>, DevItem)> {
        let members = self.members();
        let with_item = |member: &Arc<Member>| {
            let item = items.iter().find(|item| item.devid.get() == member.id.0).copied();
            (Arc::clone(member), item.unwrap_or_else(|| member.item()))
        };
        members.iter().filter(|member| member.takes_superblocks()).map(with_item).collect()
    }

    /// Says which devices the trees call stale that the next superblock of a commit leads to: they may take
    /// superblocks.
    pub fn set_recorded_stale(&self, recorded: &dyn Fn(DeviceId) -> bool) {
        self.members().iter().for_each(|member| member.set_recorded(recorded(member.id)));
    }

    /// Whether the trees of the next superblock know this device, so that it gets one.
    pub fn take_superblocks(&self, id: DeviceId, takes: bool) {
        if let Some(member) = self.member(id) {
            member.set_known(takes);
        }
    }

    /// Lets a device go on which no chunk lies: returns it when nobody uses it any more. One that is not there is
    /// missed no more.
    pub fn remove_device(&self, id: DeviceId) -> Option<Arc<dyn BlockDevice>> {
        let removed = self.member(id);
        self.change_devices(|set| match removed {
            Some(_) => set.without(id),
            None => set.with_absent(set.absent.saturating_sub(1)),
        });
        self.drain();
        removed.map(|member| Arc::clone(&member.device))
    }

    /// So many devices of the filesystem are not there.
    pub fn set_missing(&self, count: u64) {
        self.change_devices(|set| set.with_absent(count));
    }

    /// One more device. Superblocks go to it from [`take_superblocks`](Self::take_superblocks) on.
    pub fn add_device(&self, item: DevItem, device: Arc<dyn BlockDevice>) {
        let member = Arc::new(Member::new(item, device));
        member.set_known(false);
        member.set_new(true);
        self.change_devices(|set| set.with(member));
    }

    /// The primary superblock that is on the first device that superblocks are written to now, to compare with what we
    /// last wrote.
    pub fn read_superblock(&self) -> Result<Superblock, VolumeError> {
        let members = self.members();
        let member = members
            .iter()
            .find(|member| member.takes_superblocks())
            .ok_or_else(|| VolumeError::refused("there are no devices"))?;
        let name = || member.device.name();
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let read = member.read(OFFSETS[0], &mut bytes, Caching::Kept);
        read.map_err(|error| VolumeError::refused(format!("cannot read the superblock of {}: {error}", name())))?;
        let parsed = Superblock::parse(&bytes, OFFSETS[0]);
        parsed.map_err(|error| VolumeError::refused(format!("{}: {error}", name())))
    }
}

pub(crate) fn write_copy(member: &Member, sb: &Superblock, item: DevItem, at: Physical) -> Result<(), VolumeError> {
    let mut own = *sb;
    own.bytenr = at.0.into();
    own.dev_item = item;
    own.flags = (own.flags.get() | super_flags::WRITTEN).into();
    own.seal();
    let fail = |error| VolumeError::Write { at: None, device: member.device.name(), physical: at, error };
    own.validate(at).map_err(|error| fail(std::io::Error::other(error)))?;
    member.write_superblock(at, own.as_bytes()).map_err(fail)
}

/// The first primary superblock of a device, and durable.
pub(crate) fn write_first_copy(member: &Member, sb: &Superblock, item: DevItem) -> Result<(), VolumeError> {
    write_copy(member, sb, item, OFFSETS[0])?;
    member.flush().map_err(|error| VolumeError::Flush { device: member.device.name(), error })
}

#[cfg(test)]
mod tests;
