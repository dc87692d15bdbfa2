//! The set of devices: another size, one more, one less.
//!
//! | operation | before its commit | its commit | after |
//! |---|---|---|---|
//! | grow | | size | |
//! | shrink | nothing new behind the end, chunks there move | size | |
//! | add | the new device is wiped | item, superblocks on it | |
//! | remove | nothing new on it, its chunks move | item gone | its superblocks are wiped |
//!
//! A chunk moves beneath its addresses where that is possible, else its content moves into other chunks
//! (`relocation`). Each chunk moves in a commit of its own. An operation that ends early leaves those that have moved
//! where they are, and everything else as it was.

use super::{Exclusive, ExclusiveOperation, Filesystem, OperationProgress};
use crate::error::{Errno, Error, Result};
use crate::migration::MigrationTarget;
use crate::mkfs::{refuse_existing, wipe, wipe_superblocks};
use crate::mount;
use crate::options::Options;
use crate::transaction::{DeviceChange, Reserve};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, super_flags};
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_volume::Chunk;
use std::path::Path;
use std::sync::Arc;

/// The kernel makes no device smaller.
const SMALLEST: u64 = 256 << 20;

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

/// How a chunk leaves its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// It gets other stripes.
    Migrate,
    /// Its content gets other addresses.
    Empty,
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
        self.must_not_be_seed(id)?;
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

    /// Moves the chunks for which `position` says something, the highest first, until there is none: each beneath its
    /// addresses where its profile and the room on the devices allow that. The others are emptied into other chunks.
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
        let mut means: &[Means] = &[Means::Migrate, Means::Empty];
        let mut no_room = None;
        while let (chunks, Some(mean)) = (find(), means.first()) {
            if chunks.is_empty() {
                return Ok(());
            }
            let mut has_moved = false;
            for (_, start, len) in chunks {
                match self.move_chunk(*mean, start, len, progress) {
                    Ok(moved) => has_moved |= moved,
                    // What is moved after it may leave room.
                    Err(error) if error.is(Errno::ENOSPC) || error.is(Errno::EOPNOTSUPP) => no_room = Some(error),
                    Err(error) => return Err(error),
                }
                // With one chunk less the others may move as a whole.
                if has_moved && *mean == Means::Empty {
                    break;
                }
            }
            means = if has_moved { &[Means::Migrate, Means::Empty] } else { &means[1..] };
        }
        if find().is_empty() { Ok(()) } else { no_room.map_or(Ok(()), Err) }
    }

    /// Whether the chunk was moved.
    fn move_chunk(&self, mean: Means, start: Logical, len: u64, progress: &OperationProgress) -> Result<bool> {
        match mean {
            Means::Migrate => self.migrate_chunk(start, &MigrationTarget::default(), progress),
            Means::Empty => self.empty_chunk(start, progress).inspect(|_| progress.add_done(len)).map(|()| true),
        }
    }

    /// Adds a device. Refused: one that belongs to the filesystem (`EEXIST`), one that something is recognised on,
    /// unless `force`d, and one that is too small (`EINVAL`).
    ///
    /// Added to a seed filesystem, which is only read, it gets a filesystem of its own with that content, which has
    /// another UUID. It is there for whoever opens all these devices next; this one stays as it is.
    pub fn add_device(&self, device: Arc<dyn BlockDevice>, force: bool, old: OldContent) -> Result<DeviceId> {
        let _alarm = self.0.engine.alarm();
        if self.is_seed() {
            return self.sprout(device, force, old);
        }
        self.0.engine.must_not_be_read_only()?;
        let _running = self.begin_exclusive(ExclusiveOperation::DeviceAdd)?;
        let item = mount::new_item(self.0.engine.core(), &*device)?;
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

    /// Removes a device after everything on it has moved to the others. What a missing one had comes from other copies.
    pub fn remove_device(&self, which: RemovedDevice) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        let engine = &self.0.engine;
        engine.must_not_be_read_only()?;
        let running = self.begin_exclusive(ExclusiveOperation::DeviceRemove)?;
        self.must_leave_enough()?;
        let id = self.removed_id(which)?;
        engine.commit_unused_groups()?;
        // A seed is left alone.
        let is_seed = engine.volume().is_seed(id);
        let change = |is_leaving| {
            let is_leaving = is_leaving || is_seed;
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
        if let Some((_, device)) = devices.into_iter().find(|(item, _)| item.devid.get() == id.0 && !is_seed) {
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
        let writable = present.iter().filter(|(other, _)| !self.0.engine.volume().is_seed(*other)).count();
        if is_there(id) && !self.0.engine.volume().is_seed(id) && writable < 2 {
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

    /// Whether it is a filesystem from which others sprout.
    pub fn is_seed(&self) -> bool {
        let _alarm = self.0.engine.alarm();
        self.superblock().flags.get() & super_flags::SEEDING != 0
    }

    /// Refuses what would change a seed device.
    pub(super) fn must_not_be_seed(&self, id: DeviceId) -> Result<()> {
        match self.0.engine.volume().is_seed(id) {
            true => Err(Error::refused_at(Errno::EPERM, format!("device {id} is a seed device, which is only read"))),
            false => Ok(()),
        }
    }

    /// The device of the filesystem that has sprouted from this one, if one has.
    pub fn sprouted(&self) -> Option<Arc<dyn BlockDevice>> {
        let _alarm = self.0.engine.alarm();
        self.0.sprouted.get().cloned()
    }

    /// A new filesystem on `new`, with what this one has.
    fn sprout(&self, new: Arc<dyn BlockDevice>, force: bool, old: OldContent) -> Result<DeviceId> {
        let running = self.begin_exclusive(ExclusiveOperation::DeviceAdd)?;
        if let Some(device) = self.0.sprouted.get() {
            let what = format!("a filesystem on {} has sprouted already: make the mount writable first", device.name());
            return Err(Error::refused_at(Errno::EBUSY, what));
        }
        let id = DeviceId(mount::new_item(self.0.engine.core(), &*new)?.devid.get());
        self.must_not_be_ours(&*new, None)?;
        self.prepare_device(&new, new.len(), force, old)?;
        let seeds = self.0.engine.volume().present_devices().into_iter().map(|(_, device)| device).collect();
        let options = Options { degraded: self.options().degraded, ..Options::default() };
        let sprouted = Filesystem::from(mount::sprout(seeds, Arc::clone(&new), options, self.0.engine.env().clone())?);
        let settled = sprouted.leave_system_chunks(&running).and_then(|()| sprouted.shutdown());
        settled.inspect_err(|_| wipe_superblocks(&*new))?;
        self.0.sprouted.get_or_init(|| new);
        Ok(id)
    }

    /// The superblock of a sprouted filesystem leads to its own devices only.
    fn leave_system_chunks(&self, running: &Exclusive) -> Result<()> {
        self.sync()?;
        let volume = self.0.engine.volume();
        let is_left = |chunk: &&Chunk| chunk.kind & bits::SYSTEM != 0 && volume.is_on_seed(chunk);
        let chunks: Vec<Logical> = self.chunks().iter().filter(is_left).map(|chunk| chunk.start).collect();
        chunks.into_iter().try_for_each(|start| self.empty_chunk(start, running.progress()))
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
