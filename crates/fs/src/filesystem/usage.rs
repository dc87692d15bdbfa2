//! The allocation of a filesystem's space, by type and profile, by chunk and by device.

use super::Filesystem;
use crate::error::Result;
use crate::file_extent::FileExtent;
use crate::inode::InodeId;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_volume::Chunk;

/// All block groups of one type and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Type and profile.
    pub flags: u64,
    /// Bytes of the groups.
    pub total: u64,
    /// Bytes allocated in them.
    pub used: u64,
    /// Bytes of the groups on all devices.
    pub raw: u64,
}

/// A chunk with what is allocated in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkUsage {
    /// The chunk.
    pub chunk: Chunk,
    /// Bytes allocated in it.
    pub used: u64,
}

/// A device of the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its path and its bytes; none where it is missing.
    pub storage: Option<(String, u64)>,
    /// Bytes that the filesystem uses of it.
    pub total_bytes: u64,
    /// Bytes of it that are in chunks.
    pub allocated: u64,
}

/// The kernel lists types in this order, and profiles in that of their bits.
const TYPES: [u64; 4] = [bits::DATA, bits::SYSTEM, bits::METADATA, bits::DATA | bits::METADATA];

fn order(flags: u64) -> (usize, u64) {
    let place = TYPES.iter().position(|kind| *kind == flags & bits::TYPE_MASK);
    (place.unwrap_or(TYPES.len()), flags & bits::PROFILE_MASK)
}

impl Filesystem {
    /// Each type and profile that there are groups of, in the order in which the kernel lists them.
    pub fn space_usage(&self) -> Vec<SpaceUsage> {
        let _alarm = self.0.engine.alarm();
        let mut spaces: Vec<SpaceUsage> = Vec::new();
        for ChunkUsage { chunk, used } in self.chunk_usage() {
            let raw = chunk.stripe_length() * chunk.stripes.len() as u64;
            match spaces.iter_mut().find(|space| space.flags == chunk.kind) {
                Some(space) => {
                    (space.total, space.used, space.raw) =
                        (space.total + chunk.length, space.used + used, space.raw + raw)
                }
                None => spaces.push(SpaceUsage { flags: chunk.kind, total: chunk.length, used, raw }),
            }
        }
        spaces.sort_by_key(|space| order(space.flags));
        spaces
    }

    /// All chunks that have a block group, by address.
    pub fn chunk_usage(&self) -> Vec<ChunkUsage> {
        let _operation = self.begin();
        let core = &self.0.engine;
        let map = core.volume().chunk_map();
        let groups = core.space.groups().into_iter();
        groups.filter_map(|group| Some(ChunkUsage { chunk: map.get(group.start)?.clone(), used: group.used })).collect()
    }

    /// All devices, missing ones too, ascending by number.
    pub fn device_usage(&self) -> Vec<DeviceUsage> {
        let _operation = self.begin();
        let core = &self.0.engine;
        let present = core.volume().present_devices();
        let devices = core.devices.space.lock();
        let usage = |(id, device): (&DeviceId, &crate::transaction::DeviceExtents)| {
            let storage = present.iter().find(|(item, _)| item.devid.get() == id.0);
            DeviceUsage {
                id: *id,
                uuid: device.uuid,
                storage: storage.map(|(_, storage)| (storage.name(), storage.len())),
                total_bytes: device.total_bytes,
                allocated: device.used(),
            }
        };
        devices.devices.iter().map(usage).collect()
    }

    /// Bytes of metadata that are kept for operations that must not fail.
    pub fn global_reserve(&self) -> u64 {
        let _operation = self.begin();
        self.0.engine.global_reserve()
    }

    /// Whether another file, or another subvolume, uses the data of an extent, as of the last commit where that is not
    /// told by the extent alone.
    pub fn has_other_users(&self, id: InodeId, extent: &FileExtent) -> Result<bool> {
        let _operation = self.begin();
        if !extent.is_on_disk() || !self.is_shared(id, extent)? {
            return Ok(false);
        }
        let own = extent.data_ref(id.tree, id.ino.0);
        own.map_or(Ok(false), |own| crate::backref::has_other_users(&self.0.engine, extent, &own))
    }
}
