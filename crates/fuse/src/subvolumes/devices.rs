//! Questions about the set of devices: sizes, devices that come and go.
//!
//! Work that takes long runs on a thread of its own, and whoever asked learns how far it is. When whoever asked is
//! gone, the work is told to stop, as a signal stops the kernel's.

use super::Refused;
use super::perform::{Answering, Each};
use butterfs_control::question::{self, DeviceName, DeviceWork, SizeChange};
use butterfs_control::{DeviceSize, ReplaceRecord, WorkProgress};
use butterfs_fs::filesystem::{
    NewSize, OldContent, RemovedDevice, ReplaceRequest, ReplaceStatus, SourceReads, Storage, watched,
};
use butterfs_fs::{DeviceId, DeviceUsage, Errno, ExclusiveOperation, Filesystem};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Answering<'_> {
    pub(super) fn devices(&self, each: Each<'_, DeviceSize>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.filesystem().device_usage().into_iter().map(size_of).try_for_each(each)
    }

    pub(super) fn resize(&self, asked: &question::ResizeDevice, each: Each<'_, WorkProgress>) -> Result<(), Refused> {
        self.changed(asked.through)?;
        self.access().must_be_privileged()?;
        let size = match asked.size {
            SizeChange::Bytes(bytes) => NewSize::Bytes(bytes),
            SizeChange::More(bytes) => NewSize::More(bytes),
            SizeChange::Less(bytes) => NewSize::Less(bytes),
            SizeChange::Max => NewSize::Max,
        };
        let storage = if asked.with_file { Storage::Follows } else { Storage::Stays };
        let id = DeviceId(asked.id);
        let work = |filesystem: &Filesystem| filesystem.resize_device(id, size, storage).map(drop);
        work_on(self.filesystem(), ExclusiveOperation::Resize, &work, each)
    }

    pub(super) fn add_device(&self, asked: &question::AddDevice, each: Each<'_, WorkProgress>) -> Result<(), Refused> {
        // A seed is always read-only; what is added to it makes another filesystem.
        let reached = if self.filesystem().is_seed() { self.inode(asked.through) } else { self.changed(asked.through) };
        reached?;
        self.access().must_be_privileged()?;
        let old = if asked.discard { OldContent::Discard } else { OldContent::Keep };
        let path = Path::new(OsStr::from_bytes(&asked.path));
        let work = |filesystem: &Filesystem| filesystem.add_device_at(path, asked.force, old).map(drop);
        work_on(self.filesystem(), ExclusiveOperation::DeviceAdd, &work, each)
    }

    pub(super) fn remove_device(
        &self,
        asked: &question::RemoveDevice,
        each: Each<'_, WorkProgress>,
    ) -> Result<(), Refused> {
        self.changed(asked.through)?;
        self.access().must_be_privileged()?;
        let which = match &asked.device {
            DeviceName::Missing => RemovedDevice::Missing,
            device => RemovedDevice::Id(self.device_id(device)?),
        };
        let work = |filesystem: &Filesystem| filesystem.remove_device(which);
        work_on(self.filesystem(), ExclusiveOperation::DeviceRemove, &work, each)
    }

    /// The number of a device of the filesystem.
    fn device_id(&self, name: &DeviceName) -> Result<DeviceId, Refused> {
        let path = match name {
            DeviceName::Id(id) => return Ok(DeviceId(*id)),
            DeviceName::Path(path) => Path::new(OsStr::from_bytes(path)),
            DeviceName::Missing => return Err(super::perform::malformed()),
        };
        let id = self.filesystem().device_at(path);
        id.ok_or_else(|| Refused::new(Errno::EINVAL.0, "Invalid argument"))
    }

    pub(super) fn cancel_work(&self, asked: &question::CancelDeviceWork) -> Result<(), Refused> {
        self.changed(asked.through)?;
        self.access().must_be_privileged()?;
        let operation = match asked.work {
            DeviceWork::Resize => ExclusiveOperation::Resize,
            DeviceWork::Remove => ExclusiveOperation::DeviceRemove,
            DeviceWork::Replace => return self.cancel_replace(),
        };
        match self.filesystem().cancel_exclusive(operation) {
            true => Ok(()),
            false => Err(Refused::new(Errno::ENOTCONN.0, format!("no {operation} is in progress"))),
        }
    }
}

impl Answering<'_> {
    fn cancel_replace(&self) -> Result<(), Refused> {
        match self.filesystem().cancel_replace()? {
            true => Ok(()),
            false => Err(Refused::new(Errno::ENOTCONN.0, "not started")),
        }
    }

    pub(super) fn start_replace(&self, asked: &question::StartReplace) -> Result<(), Refused> {
        self.changed(asked.through)?;
        self.access().must_be_privileged()?;
        let old = if asked.discard { OldContent::Discard } else { OldContent::Keep };
        let reads = if asked.avoid_source { SourceReads::Avoided } else { SourceReads::Allowed };
        let request = ReplaceRequest { source: self.device_id(&asked.source)?, reads, force: asked.force, old };
        let begun = self.filesystem().begin_replace_at(Path::new(OsStr::from_bytes(&asked.target)), &request)?;
        Ok(begun.run_in_background()?)
    }

    pub(super) fn replace_status(&self) -> Result<ReplaceRecord, Refused> {
        self.access().must_be_privileged()?;
        let ReplaceStatus { item, total_bytes } = self.filesystem().replace_status();
        let permille = (u128::from(item.cursor_left.get()) * 1000).checked_div(u128::from(total_bytes)).unwrap_or(0);
        Ok(ReplaceRecord {
            state: item.state.get(),
            permille: permille.min(1000) as u64,
            started: item.time_started.get() as i64,
            stopped: item.time_stopped.get() as i64,
            write_errors: item.write_errors.get(),
            read_errors: item.uncorrectable_read_errors.get(),
        })
    }
}

fn size_of(device: DeviceUsage) -> DeviceSize {
    let DeviceUsage { id, storage, total_bytes, allocated, .. } = device;
    DeviceSize { id: id.0, name: storage.map(|(name, _)| name), total_bytes, used_bytes: allocated }
}

/// Runs `work`, and tells meanwhile the progress of `operation`.
fn work_on(
    filesystem: &Filesystem,
    operation: ExclusiveOperation,
    work: &(dyn Fn(&Filesystem) -> butterfs_fs::Result<()> + Sync),
    each: Each<'_, WorkProgress>,
) -> Result<(), Refused> {
    let mut report = |done_bytes, total_bytes| each(WorkProgress { done_bytes, total_bytes }).is_ok();
    Ok(watched(filesystem, operation, || work(filesystem), &mut report)?)
}
