//! Questions about space: what block groups, chunks, devices and files take.
//!
//! As in the kernel everybody learns the totals; where chunks lie, and the devices, only those who administer the
//! system.

use super::Refused;
use super::perform::{AT_ONCE, Answering, Each};
use butterfs_control::question;
use butterfs_control::{ChunkRecord, FilesystemRecord, MeasuredExtent, MemberRecord, SpaceRecord};
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_fs::{ChunkUsage, DeviceUsage, SpaceUsage};

impl Answering<'_> {
    pub(super) fn filesystem_record(&self) -> Result<FilesystemRecord, Refused> {
        let filesystem = self.filesystem();
        let (superblock, statfs) = (filesystem.superblock(), filesystem.statfs());
        let spaces = filesystem.space_usage();
        let devices = filesystem.device_usage();
        let missing = devices.iter().filter(|device| device.storage.is_none()).map(|device| device.total_bytes);
        let slack = |device: &DeviceUsage| match &device.storage {
            Some((_, bytes)) => bytes.saturating_sub(device.total_bytes),
            None => 0,
        };
        Ok(FilesystemRecord {
            uuid: superblock.fsid,
            label: superblock.label().to_vec(),
            generation: superblock.generation().0,
            bytes_used: spaces.iter().map(|space| space.used).sum(),
            sectorsize: superblock.sectorsize.get(),
            nodesize: superblock.nodesize.get(),
            available: statfs.blocks_available * u64::from(statfs.block_size),
            global_reserve: filesystem.global_reserve(),
            devices: devices.len() as u64,
            device_bytes: devices.iter().map(|device| device.total_bytes).sum(),
            missing_bytes: missing.sum(),
            slack_bytes: devices.iter().map(slack).sum(),
            spaces: spaces.into_iter().map(space).collect(),
            discard: filesystem.discard_mode().option().to_owned(),
        })
    }

    pub(super) fn chunks(&self, each: Each<'_, ChunkRecord>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.filesystem().chunk_usage().into_iter().map(chunk).try_for_each(each)
    }

    pub(super) fn members(&self, each: Each<'_, MemberRecord>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.filesystem().device_usage().into_iter().map(member).try_for_each(each)
    }

    pub(super) fn measure(
        &self,
        question: &question::MeasureFile,
        each: Each<'_, MeasuredExtent>,
    ) -> Result<(), Refused> {
        let id = self.inode(question.file)?;
        self.access().must_read(&self.filesystem().getattr(id)?)?;
        let mut at = 0;
        loop {
            let extents = self.filesystem().some_extents(id, at..u64::MAX / 2, AT_ONCE)?;
            for extent in extents.iter().filter(|extent| takes_space(extent)) {
                each(measured(extent, self.filesystem().has_other_users(id, extent)?))?;
            }
            match extents.last() {
                Some(extent) if extents.len() == AT_ONCE => at = extent.end(),
                _ => return Ok(()),
            }
        }
    }
}

fn takes_space(extent: &FileExtent) -> bool {
    extent.kind != ExtentKind::Inline && extent.is_on_disk()
}

/// A compressed extent is given from its first byte, as FIEMAP does.
fn measured(extent: &FileExtent, shared: bool) -> MeasuredExtent {
    let is_plain = extent.compression == 0;
    let address = extent.at.0 + if is_plain { extent.offset } else { 0 };
    MeasuredExtent { address, len: extent.len, shared }
}

fn space(SpaceUsage { flags, total, used, raw }: SpaceUsage) -> SpaceRecord {
    SpaceRecord { flags, total, used, raw }
}

fn chunk(ChunkUsage { chunk, used }: ChunkUsage) -> ChunkRecord {
    ChunkRecord {
        start: chunk.start.0,
        length: chunk.length,
        used,
        flags: chunk.kind,
        stripe_length: chunk.stripe_length(),
        stripes: chunk.stripes.iter().map(|stripe| (stripe.device.0, stripe.physical.0)).collect(),
    }
}

fn member(DeviceUsage { id, uuid, storage, total_bytes, allocated }: DeviceUsage) -> MemberRecord {
    MemberRecord { id: id.0, uuid, storage, total_bytes, allocated }
}
