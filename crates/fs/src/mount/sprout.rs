//! Sprouting: a new filesystem on a new device begins with the content of a seed filesystem, whose devices are only
//! read from then on.
//!
//! ```text
//! superblock of the seed ─► other UUID, no flag SEEDING ─► all groups closed ─► the new device joins, with chunks for
//!                           trees ─► commit ─► the seed's system chunks are emptied (by the caller) ─► commit
//! ```
//! The seed's devices keep their items, with the seed's UUID and, from the first commit on, its generation. The
//! chunk tree keeps its UUID.
//!
//! # Invariants
//! 1. Nothing is written to a seed device; until the first commit nothing leads to the new device.

use crate::commit::{Engine, join_device};
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::extent;
use crate::space::Class;
use crate::transaction::{Core, DeviceChange, Reserve};
use butterfs_device::BlockDevice;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::{Superblock, super_flags};
use butterfs_tree::MOST_SEEDS;
use butterfs_volume::Volume;
use std::sync::Arc;

/// No chunk lies in the first MiB, so a device needs more.
const RESERVED: u64 = 1 << 20;

/// The UUIDs of the seeds that the filesystem has sprouted from.
pub(super) fn seeds(volume: &Volume) -> Result<Vec<[u8; 16]>> {
    let seeds = volume.seed_fsids();
    if seeds.len() > MOST_SEEDS {
        let what = format!("the filesystem has sprouted from {} others, more than {MOST_SEEDS}", seeds.len());
        return Err(Error::refused_at(Errno::EOPNOTSUPP, what));
    }
    Ok(seeds)
}

/// The superblock of a new filesystem with the content of a seed, whose devices are seeds from now on.
pub(super) fn leave_seed(volume: &Volume, seed: &Superblock, env: &Env) -> Result<Superblock> {
    if seed.flags.get() & super_flags::SEEDING == 0 {
        return Err(Error::refused(Errno::EINVAL, "the filesystem is no seed"));
    }
    if seed.log_root.get() != 0 {
        return Err(Error::refused(Errno::EIO, "the seed filesystem has a log tree, which nobody may replay"));
    }
    volume.become_seeds(seed.block_fsid());
    let mut own = *seed;
    own.flags = (seed.flags.get() & !super_flags::SEEDING).into();
    own.fsid = env.uuid();
    own.incompat_flags = (seed.incompat_flags.get() & !incompat::METADATA_UUID).into();
    own.metadata_uuid = [0; 16];
    Ok(own)
}

/// The new device joins, and trees have room on it. Everything waits for the first commit.
pub(super) fn begin(engine: &Engine, new: Arc<dyn BlockDevice>) -> Result<()> {
    let item = new_item(engine, &*new)?;
    join_device(engine.core(), &item, &new);
    engine.allocate_chunk(Class::System)?;
    engine.allocate_chunk(Class::Metadata)?;
    let generation = engine.superblock().generation.get();
    let fresh = engine.volume.seeds().into_iter().filter(|(_, seed)| seed.generation.is_none());
    let seeds = fresh.map(|(id, _)| DeviceChange::Seed { id, generation });
    let changes: Vec<DeviceChange> = seeds.chain([DeviceChange::Add { item, device: new }]).collect();
    // The items of chunks are booked next, and count on those of their devices.
    let handle = engine.start(Reserve::items(changes.len() as u64))?;
    let written = changes.iter().try_for_each(|change| extent::write_device_change(&handle, change));
    written.inspect_err(|error| handle.failed(error))?;
    let mut books = handle.transaction().books();
    books.changed_devices.extend(changes);
    books.must_happen = true;
    Ok(())
}

/// The item of a device that joins.
pub fn new_item(core: &Core, device: &dyn BlockDevice) -> Result<DevItem> {
    let sector = u64::from(core.sectorsize());
    let (name, total_bytes) = (device.name(), device.len() / sector * sector);
    if total_bytes <= RESERVED {
        let what = format!("{name} with {} bytes is too small for a device of a filesystem", device.len());
        return Err(Error::refused_at(Errno::EINVAL, what));
    }
    if device.is_read_only() {
        return Err(Error::refused_at(Errno::EACCES, format!("{name} cannot be written")));
    }
    let last = core.devices.space.lock().devices.keys().next_back().map_or(0, |id| id.0);
    Ok(DevItem {
        devid: (last + 1).into(),
        total_bytes: total_bytes.into(),
        io_align: core.sectorsize().into(),
        io_width: core.sectorsize().into(),
        sector_size: core.sectorsize().into(),
        uuid: core.env().uuid(),
        fsid: core.superblock().block_fsid(),
        ..DevItem::default()
    })
}
