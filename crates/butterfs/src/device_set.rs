//! The set of devices of an open filesystem: sizes, and devices that come, go or take the place of another one.
//!
//! One such operation, or one balance, runs at a time; a second one fails with [`ErrorKind::Busy`](crate::ErrorKind).

use crate::device::Device;
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::mkfs::Existing;
use crate::types::{DeviceId, Uuid};
use butterfs_fs::ExclusiveOperation;
use butterfs_fs::filesystem::SourceReads;
use butterfs_fs::filesystem::{self as engine, watched};
use std::fmt;
use std::ops::ControlFlow;

/// A device of a filesystem, and how often something went wrong on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's number in the filesystem.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its path or name; none if the device is missing.
    pub name: Option<String>,
    /// Bytes that the filesystem uses of it.
    pub total_bytes: u64,
    /// Bytes in chunks.
    pub allocated_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Blocks that were read but are wrong.
    pub corruption_errors: u64,
}

/// The requested size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSize {
    /// This many bytes.
    Bytes(u64),
    /// This many bytes more.
    Grow(u64),
    /// This many bytes less.
    Shrink(u64),
    /// All that the storage has.
    Max,
}

/// Whether the storage below a device is resized with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StorageSize {
    /// The storage keeps its size.
    #[default]
    Keep,
    /// An image file grows before the device does, and is cut after it has shrunk.
    Follow,
}

/// The device that [`Filesystem::remove_device`] removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedDevice {
    /// The device with this number.
    Id(DeviceId),
    /// The first device that is missing.
    Missing,
}

/// Whether a replacement reads the old device if another copy is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OldDevice {
    /// Read it as any other copy.
    #[default]
    Read,
    /// Read it only if no other copy is good: for a device that is about to fail.
    Avoid,
}

/// The progress of work on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkProgress {
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes that there are to do; 0 until they have been counted.
    pub total_bytes: u64,
}

type Watch<'a> = Box<dyn FnMut(&WorkProgress) -> ControlFlow<()> + 'a>;

/// A device that is to be resized; made by [`Filesystem::resize_device`].
#[must_use = "nothing is resized until `run` is called"]
pub struct ResizeRequest<'a> {
    filesystem: Filesystem,
    id: DeviceId,
    size: DeviceSize,
    storage: StorageSize,
    watch: Watch<'a>,
}

/// A device that is to be removed; made by [`Filesystem::remove_device`].
#[must_use = "nothing is removed until `run` is called"]
pub struct RemoveRequest<'a> {
    filesystem: Filesystem,
    device: RemovedDevice,
    watch: Watch<'a>,
}

/// A device that is to be replaced; made by [`Filesystem::replace_device`].
#[must_use = "nothing is replaced until `run` is called"]
pub struct ReplaceRequest<'a> {
    filesystem: Filesystem,
    old: DeviceId,
    new: Device,
    existing: Existing,
    reads: OldDevice,
    watch: Watch<'a>,
}

impl Filesystem {
    /// The devices of the filesystem, ascending by number, also those that are missing.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// for device in filesystem.devices() {
    ///     let name = device.name.as_deref().unwrap_or("missing");
    ///     println!("{} {name}: {} of {} bytes allocated", device.id, device.allocated_bytes, device.total_bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let engine = self.shared.memory();
        let errors = engine.device_stats();
        let describe = |device: butterfs_fs::DeviceUsage| {
            let of_device = errors.iter().find(|(id, ..)| *id == device.id);
            let stats = of_device.map(|(_, _, stats)| *stats).unwrap_or_default();
            DeviceInfo {
                id: DeviceId::of(device.id),
                uuid: Uuid::from_bytes(device.uuid),
                name: device.storage.map(|(name, _)| name),
                total_bytes: device.total_bytes,
                allocated_bytes: device.allocated,
                read_errors: stats.read_errors,
                write_errors: stats.write_errors,
                flush_errors: stats.flush_errors,
                corruption_errors: stats.corruption_errors,
            }
        };
        engine.device_usage().into_iter().map(describe).collect()
    }

    /// Adds a device; durable when this returns. Its old content is lost. Existing data stays where it is until a
    /// [balance](Filesystem::balance).
    ///
    /// ```
    /// # use butterfs::{Device, Existing, Filesystem, Mkfs};
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// let id = filesystem.add_device(Device::memory(256 << 20), Existing::Keep)?;
    /// assert_eq!(id.get(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_device(&self, device: impl Into<Device>, existing: Existing) -> Result<DeviceId> {
        let engine = self.shared.engine()?;
        let device = self.shared.lease(device.into())?;
        let force = existing == Existing::Overwrite;
        Ok(DeviceId::of(engine.add_device(device, force, engine::OldContent::Discard)?))
    }

    /// Removes a device: its data moves to the other devices first.
    ///
    /// ```
    /// # use butterfs::{Device, Existing, Filesystem, Mkfs};
    /// use butterfs::{DeviceId, RemovedDevice};
    ///
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(512 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// # filesystem.add_device(Device::memory(512 << 20), Existing::Keep)?;
    /// filesystem.remove_device(RemovedDevice::Id(DeviceId::new(2))).run()?;
    /// assert_eq!(filesystem.devices().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_device<'a>(&self, device: RemovedDevice) -> RemoveRequest<'a> {
        RemoveRequest { filesystem: self.clone(), device, watch: unwatched() }
    }

    /// Resizes a device. Data behind the new end moves first.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::{DeviceId, DeviceSize};
    ///
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(1 << 30);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// filesystem.resize_device(DeviceId::new(1), DeviceSize::Bytes(512 << 20)).run()?;
    /// assert_eq!(filesystem.devices()[0].total_bytes, 512 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn resize_device<'a>(&self, id: DeviceId, size: DeviceSize) -> ResizeRequest<'a> {
        let storage = StorageSize::default();
        ResizeRequest { filesystem: self.clone(), id, size, storage, watch: unwatched() }
    }

    /// Replaces a device, also one that is missing, by `new`, which gets its number. `new` must be at least as large.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::DeviceId;
    ///
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// # filesystem.root().write("file", "content")?;
    /// let new = Device::memory(256 << 20);
    /// filesystem.replace_device(DeviceId::new(1), new.clone()).run()?;
    /// filesystem.close()?;
    /// assert_eq!(Filesystem::open(new)?.root().read("file")?, b"content");
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace_device<'a>(&self, old: DeviceId, new: impl Into<Device>) -> ReplaceRequest<'a> {
        let (existing, reads) = (Existing::default(), OldDevice::default());
        ReplaceRequest { filesystem: self.clone(), old, new: new.into(), existing, reads, watch: unwatched() }
    }
}

fn unwatched<'a>() -> Watch<'a> {
    Box::new(|_| ControlFlow::Continue(()))
}

impl<'a> ResizeRequest<'a> {
    /// Sets whether an image file follows the size of its device.
    pub fn storage(mut self, storage: StorageSize) -> ResizeRequest<'a> {
        self.storage = storage;
        self
    }

    /// Calls `watch` several times a second while data moves; [`ControlFlow::Break`] cancels the resize, which then
    /// fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) and leaves the size as it was.
    pub fn on_progress(mut self, watch: impl FnMut(&WorkProgress) -> ControlFlow<()> + 'a) -> ResizeRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Resizes the device; durable when this returns `Ok`.
    pub fn run(self) -> Result<()> {
        let ResizeRequest { filesystem, id, size, storage, watch } = self;
        let engine = filesystem.shared.engine()?;
        let work = || engine.resize_device(id.engine(), size.engine(), storage.engine()).map(drop);
        run(&filesystem, ExclusiveOperation::Resize, work, watch)
    }
}

impl<'a> RemoveRequest<'a> {
    /// Calls `watch` several times a second while data moves; [`ControlFlow::Break`] cancels the removal, which then
    /// fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) and leaves the device in the filesystem.
    pub fn on_progress(mut self, watch: impl FnMut(&WorkProgress) -> ControlFlow<()> + 'a) -> RemoveRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Removes the device; durable when this returns `Ok`.
    pub fn run(self) -> Result<()> {
        let RemoveRequest { filesystem, device, watch } = self;
        let engine = filesystem.shared.engine()?;
        let work = || engine.remove_device(device.engine());
        run(&filesystem, ExclusiveOperation::DeviceRemove, work, watch)
    }
}

impl<'a> ReplaceRequest<'a> {
    /// Sets the treatment of content on the new device.
    pub fn existing(mut self, existing: Existing) -> ReplaceRequest<'a> {
        self.existing = existing;
        self
    }

    /// Sets whether the old device is read.
    pub fn old_device(mut self, reads: OldDevice) -> ReplaceRequest<'a> {
        self.reads = reads;
        self
    }

    /// Calls `watch` several times a second while data is copied; [`ControlFlow::Break`] cancels the replacement, which
    /// then fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) and leaves the old device in its place.
    pub fn on_progress(mut self, watch: impl FnMut(&WorkProgress) -> ControlFlow<()> + 'a) -> ReplaceRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Replaces the device; durable when this returns `Ok`.
    pub fn run(self) -> Result<()> {
        let ReplaceRequest { filesystem, old, new, existing, reads, watch } = self;
        let (source, reads, force) = (old.engine(), reads.engine(), existing == Existing::Overwrite);
        let request = engine::ReplaceRequest { source, reads, force, old: engine::OldContent::Discard };
        let replacement = filesystem.shared.engine()?.begin_replace(filesystem.shared.lease(new)?, &request)?;
        run(&filesystem, ExclusiveOperation::DeviceReplace, || replacement.run(), watch)
    }
}

/// Runs `work`, and tells `watch` the progress of `operation`.
fn run(
    filesystem: &Filesystem,
    operation: ExclusiveOperation,
    work: impl FnOnce() -> butterfs_fs::Result<()> + Send,
    mut watch: Watch<'_>,
) -> Result<()> {
    let mut total = 0;
    let mut report = |done_bytes, total_bytes| {
        total = total_bytes;
        watch(&WorkProgress { done_bytes, total_bytes }).is_continue()
    };
    watched(filesystem.shared.engine()?, operation, work, &mut report)?;
    // The last report: there is nothing left to cancel.
    let _ = watch(&WorkProgress { done_bytes: total, total_bytes: total });
    Ok(())
}

impl DeviceSize {
    fn engine(self) -> engine::NewSize {
        match self {
            DeviceSize::Bytes(bytes) => engine::NewSize::Bytes(bytes),
            DeviceSize::Grow(bytes) => engine::NewSize::More(bytes),
            DeviceSize::Shrink(bytes) => engine::NewSize::Less(bytes),
            DeviceSize::Max => engine::NewSize::Max,
        }
    }
}

impl StorageSize {
    fn engine(self) -> engine::Storage {
        match self {
            StorageSize::Keep => engine::Storage::Stays,
            StorageSize::Follow => engine::Storage::Follows,
        }
    }
}

impl RemovedDevice {
    fn engine(self) -> engine::RemovedDevice {
        match self {
            RemovedDevice::Id(id) => engine::RemovedDevice::Id(id.engine()),
            RemovedDevice::Missing => engine::RemovedDevice::Missing,
        }
    }
}

impl OldDevice {
    fn engine(self) -> SourceReads {
        match self {
            OldDevice::Read => SourceReads::Allowed,
            OldDevice::Avoid => SourceReads::Avoided,
        }
    }
}

impl fmt::Debug for ResizeRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResizeRequest").field("id", &self.id).field("size", &self.size).finish_non_exhaustive()
    }
}

impl fmt::Debug for RemoveRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoveRequest").field("device", &self.device).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReplaceRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaceRequest").field("old", &self.old).field("new", &self.new).finish_non_exhaustive()
    }
}
