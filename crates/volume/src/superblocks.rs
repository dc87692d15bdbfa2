//! Writing superblocks, the only place that does, and reading them again.
//!
//! Never are both kinds of copies on their way at once: either all secondary copies go first and are flushed, then all
//! primaries, then a flush; or the primaries and a flush, and the secondary ones follow, durable with the flush before the
//! next primaries. What a power cut tore is mended before anything else is written. So whatever a power cut leaves, each device has a valid copy of the old or of the new generation.

use crate::error::VolumeError;
use crate::member::Member;
use crate::ownership::Look;
use crate::volume::Volume;
use butterfs_ondisk::Physical;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, super_flags};
use zerocopy::IntoBytes;

impl Volume {
    /// Makes `sb` the superblock of every device, in every copy, and durable. Place, device item and checksum are
    /// filled in here, the device item from [`set_device_item`](Self::set_device_item); the one in `sb` is ignored.
    ///
    /// The tree blocks that it points to must be durable already. A copy that cannot be written is counted and told; when
    /// no device takes its primary one, that is an error, after which nobody knows which superblock is on disk.
    pub fn write_superblock(&self, sb: &Superblock) -> Result<(), VolumeError> {
        self.write_superblock_with(sb, &self.device_items())
    }

    /// Like [`write_superblock`](Self::write_superblock), with the device items of the moment that `sb` is of: those
    /// of the volume may be ahead when the next transaction is already running.
    pub fn write_superblock_with(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        self.check_writable()?;
        self.check_still_ours(Look::Fresh)?;
        self.write_secondary_superblocks(sb, items);
        self.flush()?;
        self.write_primaries(sb, items)?;
        self.flush()
    }

    /// Makes `sb` the secondary superblocks of every device, durable with the next flush. Only for an `sb` that the
    /// primary ones have already, or that is followed by a flush and the primary ones. What cannot be written is told.
    pub fn write_secondary_superblocks(&self, sb: &Superblock, items: &[DevItem]) {
        for (member, item) in self.with_items(items) {
            for at in Superblock::copies_on(item.total_bytes.get()).filter(|at| *at != OFFSETS[0]) {
                if self.check_writable().is_err() {
                    return;
                }
                if let Err(error) = write_copy(member, sb, item, at) {
                    self.tell(error.to_string());
                }
            }
        }
    }

    /// Makes `sb` durable in every copy that is not valid: a power cut may have torn it, and another one may tear those of
    /// the other kind, which are written next. `sb` is the one that the filesystem was opened with, without a log.
    pub fn mend_superblocks(&self, sb: &Superblock) -> Result<(), VolumeError> {
        let items = self.device_items();
        let mut mended = false;
        for (member, item) in self.with_items(&items) {
            for at in Superblock::copies_on(item.total_bytes.get()) {
                let mut bytes = vec![0; SUPERBLOCK_LEN];
                if member.read(at, &mut bytes).is_ok() && Superblock::parse(&bytes, at).is_ok() {
                    continue;
                }
                self.check_writable()?;
                match write_copy(member, sb, item, at) {
                    Ok(()) => mended = true,
                    Err(error) => self.tell(error.to_string()),
                }
            }
        }
        if mended { self.flush() } else { Ok(()) }
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

    fn write_primaries(&self, sb: &Superblock, items: &[DevItem]) -> Result<(), VolumeError> {
        let mut failures = Vec::new();
        let mut taken = 0;
        for (member, item) in self.with_items(items) {
            match write_copy(member, sb, item, OFFSETS[0]) {
                Ok(()) => taken += 1,
                Err(error) if self.give_up(member, &error) => {}
                Err(error) => failures.push(error),
            }
        }
        // One device that takes it is enough for the next mount.
        let tolerated = if taken > 0 { failures.len() } else { 0 };
        self.tolerate(failures.into_iter().map(Err), tolerated)
    }

    /// Each device in use with its item among `items`, or its current one.
    fn with_items(&self, items: &[DevItem]) -> impl Iterator<Item = (&Member, DevItem)> {
        self.members.iter().filter(|member| member.is_in_use()).map(|member| {
            let item = items.iter().find(|item| item.devid.get() == member.id.0).copied();
            (member, item.unwrap_or_else(|| member.item()))
        })
    }

    /// The primary superblock that is on the first device in use now, to compare with what we last wrote.
    pub fn read_superblock(&self) -> Result<Superblock, VolumeError> {
        let member = self
            .members
            .iter()
            .find(|member| member.is_in_use())
            .ok_or_else(|| VolumeError::refused("there are no devices"))?;
        let name = || member.device.name();
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let read = member.read(OFFSETS[0], &mut bytes);
        read.map_err(|error| VolumeError::refused(format!("cannot read the superblock of {}: {error}", name())))?;
        let parsed = Superblock::parse(&bytes, OFFSETS[0]);
        parsed.map_err(|error| VolumeError::refused(format!("{}: {error}", name())))
    }
}

fn write_copy(member: &Member, sb: &Superblock, item: DevItem, at: Physical) -> Result<(), VolumeError> {
    let mut own = *sb;
    own.bytenr = at.0.into();
    own.dev_item = item;
    own.flags = (own.flags.get() | super_flags::WRITTEN).into();
    own.seal();
    let fail = |error| VolumeError::Write { at: None, device: member.device.name(), physical: at, error };
    own.validate(at).map_err(|error| fail(std::io::Error::other(error)))?;
    let written = member.write_superblock(at, own.as_bytes());
    if at == OFFSETS[0] {
        // After a failed write nobody knows what is there.
        member.know_superblock(written.is_ok().then(|| own.as_bytes()));
    }
    written.map_err(fail)
}

#[cfg(test)]
mod tests;
