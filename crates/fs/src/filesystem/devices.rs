//! The set of devices: another size, one more, one less.
//!
//! | operation | before its commit | its commit | after |
//! |---|---|---|---|
//! | grow | | size | |
//! | shrink | nothing new behind the end, chunks there move | size | |
//! | add | the new device is wiped | item, superblocks on it | |
//! | remove | nothing new on it, its chunks move | item gone | its superblocks are wiped |
//!
//! Each chunk moves in a commit of its own. An operation that ends early leaves those that have moved where they are,
//! and everything else as it was.

use super::{Exclusive, ExclusiveOperation, Filesystem};
use crate::error::{Errno, Error, Result};
use crate::migration::MigrationTarget;
use crate::mkfs::{refuse_existing, wipe, wipe_superblocks};
use crate::transaction::{DeviceChange, Reserve};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::items::{DevItem, block_group_flags as bits};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, super_flags};
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_volume::Chunk;
use std::path::Path;
use std::sync::Arc;

/// The kernel makes no device smaller.
const SMALLEST: u64 = 256 << 20;
/// No chunk lies in the first MiB, so a device needs more.
const RESERVED: u64 = 1 << 20;

/// The requested size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// This many bytes.
    Bytes(u64),
    /// An increase, in bytes.
    More(u64),
    /// A decrease, in bytes.
    Less(u64),
    /// All that the device has.
    Max,
}

/// Whether an image file gets the size of what the filesystem uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It stays as long as it is.
    Stays,
    /// It grows before and is truncated after.
    Follows,
}

/// The outcome of a device's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    /// The device.
    pub id: DeviceId,
    /// Bytes before.
    pub from: u64,
    /// Bytes now.
    pub to: u64,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedDevice {
    /// By its number.
    Id(DeviceId),
    /// The first one that is missing.
    Missing,
}

/// Whether the old content of a device is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldContent {
    /// It is.
    Discard,
    /// Only what would be recognised is wiped.
    Keep,
}

impl Filesystem {
    /// Gives a device another size. `EINVAL` below 256 MiB, `EFBIG` beyond the device, `ENODEV` for one that there is
    /// not, `ENOSPC` where what lies behind the new end has no room elsewhere.
    pub fn resize_device(&self, id: DeviceId, size: NewSize, storage: Storage) -> Result<Resized> {
        let _alarm = self.0.engine.alarm();
        self.0.engine.must_not_be_read_only()?;
        self.must_not_be_seed()?;
        let running = self.begin_exclusive(ExclusiveOperation::Resize)?;
        let devices = self.0.engine.volume().present_devices();
        let device = devices.into_iter().find(|(item, _)| item.devid.get() == id.0);
        let Some((item, device)) = device else {
            return Err(Error::refused_at(Errno::ENODEV, format!("cannot find devid: {id}")));
        };
        let from = item.total_bytes.get();
        let to = self.wanted_bytes(&*device, from, size)?;
        if to < SMALLEST {
            let what = format!("{to} bytes are too few for a device, the minimum is {SMALLEST}");
            return Err(Error::refused_at(Errno::EINVAL, what));
        }
        if to > from {
            lengthen(&*device, to, storage)?;
        } else if to < from {
            self.empty_behind(&running, id, to)?;
        }
        if to != from {
            self.change_device(DeviceChange::Resize { id, total_bytes: to }, 1)?;
        }
        if storage == Storage::Follows && device.len() > to {
            device.set_len(to).map_err(|error| Error::Device(format!("{}: {error}", device.name()).into()))?;
        }
        Ok(Resized { id, from, to })
    }

    fn wanted_bytes(&self, device: &dyn BlockDevice, from: u64, size: NewSize) -> Result<u64> {
        let sector = u64::from(self.0.engine.sectorsize());
        let len =
            device.notice_growth().map_err(|error| Error::Device(format!("{}: {error}", device.name()).into()))?;
        let too_much = || Error::refused(Errno::ERANGE, "the new size is out of range");
        let wanted = match size {
            NewSize::Bytes(bytes) => bytes,
            NewSize::More(bytes) => from.checked_add(bytes).ok_or_else(too_much)?,
            NewSize::Less(bytes) => from.checked_sub(bytes).ok_or_else(|| {
                Error::refused_at(Errno::EINVAL, format!("{bytes} bytes less than {from} are too few for a device"))
            })?,
            NewSize::Max => len,
        };
        Ok(wanted / sector * sector)
    }

    /// Moves everything that lies behind `end` of a device.
    fn empty_behind(&self, running: &Exclusive, id: DeviceId, end: u64) -> Result<()> {
        self.0.engine.commit_unused_groups()?;
        let change = |limit| {
            let mut space = self.0.engine.devices.space.lock();
            space.devices.get_mut(&id).into_iter().for_each(|device| device.limit = limit);
        };
        change(Some(end));
        let is_behind = |chunk: &Chunk| {
            let ends = chunk.stripes.iter().filter(|stripe| stripe.device == id);
            ends.map(|stripe| stripe.physical.0 + chunk.stripe_length()).max().filter(|last| *last > end)
        };
        self.move_chunks(running, &is_behind).inspect_err(|_| change(None))
    }

    /// Moves the chunks for which `position` says something, the highest first, until there is none.
    fn move_chunks(&self, running: &Exclusive, position: &dyn Fn(&Chunk) -> Option<u64>) -> Result<()> {
        let find = || {
            let map = self.chunks();
            let mut found: Vec<(u64, Logical, u64)> =
                map.iter().filter_map(|chunk| Some((position(chunk)?, chunk.start, chunk.length))).collect();
            found.sort_unstable_by_key(|(at, ..)| std::cmp::Reverse(*at));
            found
        };
        let progress = running.progress();
        progress.set_total(find().iter().map(|(_, _, len)| len).sum());
        loop {
            let chunks = find();
            if chunks.is_empty() {
                return Ok(());
            }
            let (mut has_moved, mut no_room) = (false, None);
            for (_, start, _) in chunks {
                match self.migrate_chunk(start, &MigrationTarget::default(), progress) {
                    Ok(moved) => has_moved |= moved,
                    // What is moved after it may leave room.
                    Err(error) if error.is(Errno::ENOSPC) => no_room = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if !has_moved {
                return no_room.map_or(Ok(()), Err);
            }
        }
    }

    /// Adds a device. Refused: one that belongs to the filesystem (`EEXIST`), one that something is recognised on,
    /// unless `force`d, and one that is too small (`EINVAL`).
    pub fn add_device(&self, device: Arc<dyn BlockDevice>, force: bool, old: OldContent) -> Result<DeviceId> {
        let _alarm = self.0.engine.alarm();
        self.0.engine.must_not_be_read_only()?;
        self.must_not_be_seed()?;
        let _running = self.begin_exclusive(ExclusiveOperation::DeviceAdd)?;
        let item = self.new_item(&*device)?;
        self.must_not_be_ours(&*device, None)?;
        self.prepare_device(&device, item.total_bytes.get(), force, old)?;
        let id = DeviceId(item.devid.get());
        self.change_device(DeviceChange::Add { item, device }, 2)?;
        Ok(id)
    }

    /// Opens a device or an image file, claims it, and adds it. Refused where it is mounted or in use.
    pub fn add_device_at(&self, path: &Path, force: bool, old: OldContent) -> Result<DeviceId> {
        let _alarm = self.0.engine.alarm();
        self.add_device(self.open_new_device(path)?, force, old)
    }

    pub(super) fn open_new_device(&self, path: &Path) -> Result<Arc<dyn BlockDevice>> {
        if self.device_at(path).is_some() {
            let what = format!("{} belongs to the filesystem already", path.display());
            return Err(Error::refused_at(Errno::EEXIST, what));
        }
        let device = FileDevice::open(path, &FileOptions::read_write());
        Ok(Arc::new(device.map_err(|error| Error::refused_at(Errno::EBUSY, error.to_string()))?))
    }

    /// The device at a path.
    pub fn device_at(&self, path: &Path) -> Option<DeviceId> {
        let _alarm = self.0.engine.alarm();
        let devices = self.0.engine.volume().present_devices();
        devices.into_iter().find(|(_, device)| device.is_at(path)).map(|(item, _)| DeviceId(item.devid.get()))
    }

    /// Refuses a device that holds a part of this filesystem, forced or not: it may hold the only good copy. Only what
    /// a missing device was may take its place again.
    pub(super) fn must_not_be_ours(&self, device: &dyn BlockDevice, missing: Option<DeviceId>) -> Result<()> {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let read = device.read_at(OFFSETS[0].0, &mut bytes);
        let Some(found) = read.ok().and_then(|()| Superblock::parse(&bytes, OFFSETS[0]).ok()) else { return Ok(()) };
        let id = DeviceId(found.dev_item.devid.get());
        // Number 0 is the new device of a replacement that was given up.
        if found.fsid != self.superblock().fsid || id.0 == 0 || missing == Some(id) {
            return Ok(());
        }
        let what = format!("{} is device {id} of this filesystem; wipe it first if nobody needs it", device.name());
        Err(Error::refused_at(Errno::EEXIST, what))
    }

    /// Leaves nothing on a new device that anything would recognise.
    pub(super) fn prepare_device(
        &self,
        device: &Arc<dyn BlockDevice>,
        bytes: u64,
        force: bool,
        old: OldContent,
    ) -> Result<()> {
        if !force {
            refuse_existing(&**device)?;
        }
        wipe(&**device, bytes)?;
        if old == OldContent::Discard {
            // Only advice; afterwards everything reads as anything.
            let _ = device.discard(0, bytes);
            wipe(&**device, bytes)?;
        }
        Ok(())
    }

    fn new_item(&self, device: &dyn BlockDevice) -> Result<DevItem> {
        let engine = &self.0.engine;
        let sector = u64::from(engine.sectorsize());
        let (name, total_bytes) = (device.name(), device.len() / sector * sector);
        if total_bytes <= RESERVED {
            let what = format!("{name} with {} bytes is too small for a device of a filesystem", device.len());
            return Err(Error::refused_at(Errno::EINVAL, what));
        }
        if device.is_read_only() {
            return Err(Error::refused_at(Errno::EACCES, format!("{name} cannot be written")));
        }
        let last = engine.devices.space.lock().devices.keys().next_back().map_or(0, |id| id.0);
        Ok(DevItem {
            devid: (last + 1).into(),
            total_bytes: total_bytes.into(),
            io_align: engine.sectorsize().into(),
            io_width: engine.sectorsize().into(),
            sector_size: engine.sectorsize().into(),
            uuid: engine.env().uuid(),
            fsid: engine.superblock().block_fsid(),
            ..DevItem::default()
        })
    }

    /// Removes a device after everything on it has moved to the others. What a missing one had comes from other copies.
    pub fn remove_device(&self, which: RemovedDevice) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        let engine = &self.0.engine;
        engine.must_not_be_read_only()?;
        self.must_not_be_seed()?;
        let running = self.begin_exclusive(ExclusiveOperation::DeviceRemove)?;
        self.must_leave_enough()?;
        let id = self.removed_id(which)?;
        engine.commit_unused_groups()?;
        let change = |is_leaving| {
            let mut space = engine.devices.space.lock();
            space.devices.get_mut(&id).into_iter().for_each(|device| device.is_leaving = is_leaving);
        };
        change(true);
        let lies_there =
            |chunk: &Chunk| chunk.stripes.iter().any(|stripe| stripe.device == id).then_some(chunk.start.0);
        let moved = self.move_chunks(&running, &lies_there).and_then(|()| running.progress().must_go_on());
        moved.inspect_err(|_| change(false))?;
        let devices = engine.volume().present_devices();
        self.change_device(DeviceChange::Remove(id), 4)?;
        if let Some((_, device)) = devices.into_iter().find(|(item, _)| item.devid.get() == id.0) {
            wipe_superblocks(&*device);
        }
        Ok(())
    }

    /// The profiles in use need no more devices than are left. The sentences are the kernel's.
    fn must_leave_enough(&self) -> Result<()> {
        let left = self.0.engine.devices.space.lock().devices.len().saturating_sub(1);
        let used = self.chunks().iter().fold(0, |used, chunk| used | chunk.kind);
        let least: &[(u64, usize, &str)] = &[
            (bits::RAID10, 2, "unable to go below four/two devices on raid10"),
            (bits::RAID1, 2, "unable to go below two devices on raid1"),
            (bits::RAID1C3, 3, "unable to go below three devices on raid1c3"),
            (bits::RAID1C4, 4, "unable to go below four devices on raid1c4"),
            (bits::RAID5, 2, "unable to go below two devices on raid5"),
            (bits::RAID6, 3, "unable to go below three devices on raid6"),
        ];
        match least.iter().find(|(profile, devices, _)| used & profile != 0 && left < *devices) {
            Some((_, _, sentence)) => Err(Error::refused(Errno::EINVAL, sentence)),
            None => Ok(()),
        }
    }

    fn removed_id(&self, which: RemovedDevice) -> Result<DeviceId> {
        let present = self.0.engine.volume().devices();
        let is_there = |id: DeviceId| present.iter().any(|(other, _)| *other == id);
        let space = self.0.engine.devices.space.lock();
        let id = match which {
            RemovedDevice::Missing => space
                .devices
                .keys()
                .copied()
                .find(|id| !is_there(*id))
                .ok_or_else(|| Error::refused(Errno::ENOENT, "no missing devices found to remove"))?,
            RemovedDevice::Id(id) if space.devices.contains_key(&id) => id,
            RemovedDevice::Id(_) => return Err(Error::refused(Errno::ENOENT, "No such file or directory")),
        };
        if is_there(id) && present.len() < 2 {
            return Err(Error::refused(Errno::EINVAL, "unable to remove the only writeable device"));
        }
        Ok(id)
    }

    /// Commits a change of a device.
    pub(super) fn change_device(&self, change: DeviceChange, items: u64) -> Result<()> {
        let _operation = self.begin();
        let engine = &self.0.engine;
        engine.must_not_be_together()?;
        let generation = {
            let handle = engine.start(Reserve::removal(items))?;
            let mut books = handle.transaction().books();
            books.device_changes.push(change);
            books.must_happen = true;
            handle.generation()
        };
        engine.commit_through(generation)?;
        // The secondary superblocks wait for a flush.
        Ok(engine.volume().flush()?)
    }

    pub(super) fn must_not_be_seed(&self) -> Result<()> {
        match self.superblock().flags.get() & super_flags::SEEDING {
            0 => Ok(()),
            _ => Err(Error::refused(Errno::EROFS, "devices of a seed filesystem are not changed")),
        }
    }
}

/// The file grows where it may; else the size must be there.
fn lengthen(device: &dyn BlockDevice, to: u64, storage: Storage) -> Result<()> {
    let (name, len) = (device.name(), device.len());
    if to <= len {
        return Ok(());
    }
    if storage == Storage::Follows {
        return device.set_len(to).map_err(|error| Error::Device(format!("{name}: {error}").into()));
    }
    Err(Error::refused_at(Errno::EFBIG, format!("{name} has {len} bytes, less than {to}")))
}
