//! For tests: small volumes of every profile on faulty memory devices, and superblocks that obey all rules.

use crate::chunk_map::ChunkMap;
use crate::volume::Volume;
use butterfs_device::{BlockDevice, FaultyDevice, MemoryDevice};
use butterfs_ondisk::chunk::{self, Chunk, ChunkStripe, STRIPE_LEN};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{DevItem, block_group_flags as bits};
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::{MAGIC, OFFSETS, Superblock};
use butterfs_ondisk::{DeviceId, Logical, Physical};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

pub const START: Logical = Logical(10 << 20);
pub const ROWS: u64 = 3;
/// Small enough that no superblock copy but the first lies on a device.
pub const DEVICE_LEN: u64 = 4 << 20;
/// Profiles with all the stripe counts that are worth trying.
pub const SHAPES: [(&str, usize); 17] = [
    ("single", 1),
    ("DUP", 2),
    ("RAID1", 2),
    ("RAID1C3", 3),
    ("RAID1C4", 4),
    ("RAID0", 1),
    ("RAID0", 2),
    ("RAID0", 3),
    ("RAID10", 2),
    ("RAID10", 4),
    ("RAID10", 6),
    ("RAID5", 2),
    ("RAID5", 3),
    ("RAID5", 5),
    ("RAID6", 3),
    ("RAID6", 4),
    ("RAID6", 6),
];

/// A volume with one chunk.
pub struct Rig {
    pub volume: Volume,
    pub chunk: Chunk,
    pub devices: Vec<Arc<FaultyDevice>>,
    pub memory: Vec<Arc<MemoryDevice>>,
}

pub fn dev_item(id: u64, total_bytes: u64) -> DevItem {
    let mut item = DevItem::new_zeroed();
    item.devid = id.into();
    item.total_bytes = total_bytes.into();
    (item.io_align, item.io_width, item.sector_size) = (4096.into(), 4096.into(), 4096.into());
    item.uuid = uuid_of(id);
    item
}

pub fn uuid_of(id: u64) -> [u8; 16] {
    [id as u8; 16]
}

/// One chunk of this profile over as many devices as it needs, with everything writable and healthy.
pub fn rig(profile: &str, stripes: usize) -> Rig {
    let profile = Profile::named(profile).unwrap();
    let count = stripes / profile.stripes_per_device;
    let name = |id| format!("disk{id}");
    let memory: Vec<_> = (1..=count).map(|id| Arc::new(MemoryDevice::named(&name(id), DEVICE_LEN))).collect();
    let devices: Vec<_> = memory.iter().map(|device| Arc::new(FaultyDevice::new(device.clone()))).collect();
    let members =
        devices.iter().zip(1..).map(|(device, id)| (dev_item(id, DEVICE_LEN), device.clone() as Arc<dyn BlockDevice>));
    let volume = Volume::of_devices(members.collect());
    let chunk = chunk_of(profile, stripes);
    volume.set_chunk_map(ChunkMap::from_chunks([chunk.clone()]).unwrap());
    Rig { volume, chunk, devices, memory }
}

fn chunk_of(profile: &Profile, stripes: usize) -> Chunk {
    let stripe = |index: usize| {
        let id = (index / profile.stripes_per_device + 1) as u64;
        let physical = Physical((1 << 20) * (1 + index as u64 % 2) + id * STRIPE_LEN);
        ChunkStripe { device: DeviceId(id), physical, dev_uuid: uuid_of(id) }
    };
    let length = ROWS * STRIPE_LEN * profile.data_stripes(stripes) as u64;
    Chunk::new(START, length, bits::DATA | profile.bit, 4096, (0..stripes).map(stripe).collect())
}

/// Bytes that differ from place to place and from seed to seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A superblock that obeys every rule, of a filesystem with `devices` devices of `total_bytes` each.
pub fn superblock(generation: u64, devices: u64, total_bytes: u64) -> Superblock {
    let mut sb = Superblock::new_zeroed();
    sb.magic = MAGIC;
    sb.fsid = [0xf5; 16];
    sb.flags = 1.into();
    sb.generation = generation.into();
    (sb.root, sb.chunk_root) = ((30 << 20).into(), (22 << 20).into());
    sb.total_bytes = (devices * total_bytes).into();
    sb.bytes_used = (1 << 20).into();
    sb.num_devices = devices.into();
    (sb.sectorsize, sb.nodesize, sb.leafsize, sb.stripesize) = (4096.into(), 16384.into(), 16384.into(), 4096.into());
    sb.incompat_flags = incompat::MIXED_BACKREF.into();
    let stripe = ChunkStripe { device: DeviceId(1), physical: Physical(1 << 20), dev_uuid: uuid_of(1) };
    let system = Chunk::new(Logical(22 << 20), 1 << 20, bits::SYSTEM, 4096, vec![stripe]);
    assert!(chunk::append_sys_chunk(&mut sb, &system));
    sb
}

/// The superblock as it lies at `at` of device `id`.
pub fn copy_on(sb: &Superblock, id: u64, total_bytes: u64, at: Physical) -> Superblock {
    let mut own = *sb;
    own.bytenr = at.0.into();
    own.dev_item = dev_item(id, total_bytes);
    own.dev_item.fsid = sb.block_fsid();
    own.seal();
    own
}

/// A device with every copy of the superblock that it has room for.
pub fn device_with(sb: &Superblock, id: u64, len: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::named(&format!("disk{id}"), len);
    for at in OFFSETS.into_iter().filter(|at| at.0 + 4096 <= len) {
        device.write_at(at.0, copy_on(sb, id, len, at).as_bytes()).unwrap();
    }
    Arc::new(device)
}
