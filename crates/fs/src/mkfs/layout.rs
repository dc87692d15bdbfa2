//! Which chunks a new filesystem starts with and where they lie.
//!
//! ```text
//! device   | 1 MiB reserved | SYSTEM, copy | METADATA, copy | DATA, copy | unallocated …
//! logical  | 1 MiB hole     | SYSTEM | METADATA | DATA |
//! ```
//!
//! # Invariants
//! 1. Stripes begin and end at multiples of 64 KiB, at or above 1 MiB, and end before the device does.
//! 2. A device of at least [`minimum_bytes`] always has room for the layout.
//!
//! Chunks may lie over the superblock's second and third copy; whoever allocates from them leaves those bytes out.

use super::options::Settings;
use butterfs_ondisk::chunk::{Chunk, ChunkStripe, STRIPE_LEN};
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size};
use butterfs_ondisk::items::{ChunkHead, Stripe, block_group_flags as bits};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::SYS_CHUNK_ARRAY_LEN;
use butterfs_ondisk::{DeviceId, Logical, Physical};

/// Bytes at the start of every device that no chunk uses.
pub const RESERVED: u64 = 1 << 20;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Nodes that the metadata chunk has room for, if the device has.
const NODES: u64 = 2048;

/// A device of the new filesystem.
#[derive(Clone, Debug)]
pub struct MemberDevice {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes that the filesystem uses of it; a multiple of the sector size.
    pub total_bytes: u64,
    /// The name.
    pub name: String,
}

/// One of the first chunks.
struct Part {
    kind: u64,
    profile: &'static Profile,
    /// Bytes of each stripe; `None`: whatever suits metadata.
    stripe: Option<u64>,
    /// Bytes that are left on each device for the parts behind it.
    behind: u64,
}

impl Part {
    fn on_device(&self, stripe: u64) -> u64 {
        stripe * self.profile.stripes_per_device as u64
    }
}

/// A device, and from where on it is free.
#[derive(Clone, Copy)]
struct Room<'a> {
    device: &'a MemberDevice,
    at: Physical,
}

impl Room<'_> {
    fn free(&self) -> u64 {
        self.device.total_bytes.saturating_sub(self.at.0)
    }
}

/// The chunks of a filesystem on `devices`, in logical order: system, metadata (or mixed), data. Each lies on the
/// devices with the most free space. There are as many as the profiles need, of [`minimum_bytes`] at least.
pub fn chunks(settings: &Settings, devices: &[MemberDevice]) -> Vec<Chunk> {
    let mut rooms: Vec<Room<'_>> = devices.iter().map(|device| Room { device, at: Physical(RESERVED) }).collect();
    let total = devices.iter().map(|device| device.total_bytes).sum();
    let (mut start, mut out) = (Logical(RESERVED), Vec::new());
    for part in parts(settings) {
        rooms.sort_by_key(|room| (std::cmp::Reverse(room.free()), room.device.id));
        let count = device_count(part.profile, rooms.len(), most_stripes(part.kind, settings.nodesize));
        let chosen = &mut rooms[..count];
        let stripe = part.stripe.unwrap_or_else(|| metadata_stripe(settings, &part, total, chosen));
        let stripes: Vec<ChunkStripe> = chosen.iter_mut().flat_map(|room| place(room, &part, stripe)).collect();
        let length = stripe * part.profile.data_stripes(stripes.len()) as u64;
        out.push(Chunk::new(start, length, part.kind | part.profile.bit, settings.sectorsize, stripes));
        start = start.plus(length);
    }
    out
}

/// Takes the stripes of a part from a device.
fn place(room: &mut Room<'_>, part: &Part, stripe: u64) -> Vec<ChunkStripe> {
    let first = room.at;
    room.at = first.plus(part.on_device(stripe));
    let copies = 0..part.profile.stripes_per_device as u64;
    let on =
        |copy| ChunkStripe { device: room.device.id, physical: first.plus(copy * stripe), dev_uuid: room.device.uuid };
    copies.map(on).collect()
}

/// Of `given` devices, how many a chunk of this profile uses.
fn device_count(profile: &Profile, given: usize, most: usize) -> usize {
    let most = most / profile.stripes_per_device;
    given.min(profile.max_devices.unwrap_or(most)) / profile.device_multiple * profile.device_multiple
}

/// Most stripes of a chunk: its item fits into a leaf, and two system chunks into the superblock.
fn most_stripes(kind: u64, nodesize: u32) -> usize {
    let entry = size_of::<DiskKey>() + ChunkHead::LEN;
    match kind & bits::SYSTEM {
        0 => (leaf_data_size(nodesize) - ITEM_LEN - ChunkHead::LEN) / Stripe::LEN,
        _ => (SYS_CHUNK_ARRAY_LEN / 2 - entry) / Stripe::LEN,
    }
}

/// Bytes that a device must have at least.
pub fn minimum_bytes(settings: &Settings) -> u64 {
    let smallest = |part: &Part| part.on_device(part.stripe.unwrap_or_else(|| least_metadata(settings)));
    RESERVED + parts(settings).iter().map(smallest).sum::<u64>()
}

fn parts(settings: &Settings) -> Vec<Part> {
    let (metadata, data) = (settings.metadata, settings.data);
    let system = if is_redundant(metadata) { 8 * MIB } else { 4 * MIB };
    let system = Part { kind: bits::SYSTEM, profile: metadata, stripe: Some(system), behind: 0 };
    if settings.mixed() {
        let kind = bits::METADATA | bits::DATA;
        return vec![system, Part { kind, profile: metadata, stripe: None, behind: 0 }];
    }
    let data = Part { kind: bits::DATA, profile: data, stripe: Some(8 * MIB), behind: 0 };
    let behind = data.on_device(8 * MIB);
    vec![system, Part { kind: bits::METADATA, profile: metadata, stripe: None, behind }, data]
}

/// Bytes of a stripe of the metadata chunk, on the `chosen` ones of devices that have `total` bytes together.
///
/// The sizes are those of mkfs.btrfs (see [`customary`]), but [`NODES`] nodes if the devices have room for them: the
/// kernel reserves for the worst case, and with much less than this it may find no space for the first file.
fn metadata_stripe(settings: &Settings, part: &Part, total: u64, chosen: &[Room<'_>]) -> u64 {
    let profile = part.profile;
    let least_free = chosen.iter().map(Room::free).min().unwrap_or(0);
    let room = least_free.saturating_sub(part.behind) / profile.stripes_per_device as u64;
    let stripes = chosen.len() * profile.stripes_per_device;
    customary(profile, total, stripes)
        .max(NODES * u64::from(settings.nodesize))
        .min(room / STRIPE_LEN * STRIPE_LEN)
        .max(least_metadata(settings))
}

fn least_metadata(settings: &Settings) -> u64 {
    let least = usable_metadata(settings.nodesize);
    if is_redundant(settings.metadata) { least.max(32 * MIB) } else { least }
}

/// Whether a profile stores more than the data.
fn is_redundant(profile: &Profile) -> bool {
    profile.copies > 1 || profile.parity > 0
}

/// Bytes of metadata with which the kernel can still create and delete files when it cannot allocate more, found by
/// trying.
pub fn usable_metadata(nodesize: u32) -> u64 {
    match nodesize {
        4096 | 8192 => 8 * MIB,
        16384 => 16 * MIB,
        32768 => 24 * MIB,
        _ => 42 * MIB,
    }
}

/// The size that mkfs.btrfs chooses: 8 MiB without copies; otherwise as much as the kernel allocates at once, or where
/// that is more than a tenth of the devices, this tenth with all copies, but 32 MiB at least.
fn customary(profile: &Profile, total: u64, stripes: usize) -> u64 {
    let most = if total > 50 * GIB { GIB } else { 256 * MIB };
    match is_redundant(profile) {
        false => 8 * MIB,
        _ if most * profile.data_stripes(stripes) as u64 <= total / 10 => most,
        _ => (total / 10 / stripes as u64 / STRIPE_LEN * STRIPE_LEN).max(32 * MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{FeatureChoice, MkfsOptions};

    fn settings(metadata: &str, data: &str, mixed: bool) -> Settings {
        let mut features = FeatureChoice::default();
        if mixed {
            features.set_mixed();
        }
        let (metadata, data) = (Profile::named(metadata), Profile::named(data));
        MkfsOptions { metadata, data, features, ..Default::default() }.settings(16).unwrap()
    }

    fn device(total_bytes: u64) -> MemberDevice {
        MemberDevice { id: DeviceId(1), uuid: [7; 16], total_bytes, name: "test".to_owned() }
    }

    #[test]
    fn the_minimum_is_within_what_mkfs_btrfs_accepts() {
        // Metadata, data, mixed, our minimum, the minimum that mkfs.btrfs names.
        let table = [
            ("dup", "single", false, 93323264, 114294784),
            ("single", "single", false, 30408704, 47185920),
            ("dup", "dup", false, 101711872, 240123904),
            ("single", "dup", false, 38797312, 173015040),
            ("single", "single", true, 13631488, 16777216),
        ];
        for (metadata, data, mixed, ours, theirs) in table {
            let minimum = minimum_bytes(&settings(metadata, data, mixed));
            assert_eq!(minimum, ours, "{metadata} {data} {mixed}");
            assert!(minimum <= theirs, "{metadata} {data} {mixed}");
        }
    }

    #[test]
    fn large_nodes_need_more_metadata() {
        for (nodesize, minimum) in [(8192, 93323264), (32768, 93323264), (65536, 114294784)] {
            let options = MkfsOptions { nodesize: Some(nodesize), ..Default::default() };
            assert_eq!(minimum_bytes(&options.settings(1).unwrap()), minimum, "{nodesize}");
        }
    }

    #[test]
    fn chunks_fit_from_the_minimum_upwards_without_overlap() {
        let kinds =
            [("dup", "single", false), ("single", "dup", false), ("dup", "dup", true), ("single", "single", true)];
        for (metadata, data, mixed) in kinds {
            let settings = settings(metadata, data, mixed);
            let minimum = minimum_bytes(&settings);
            for step in 0..2000u64 {
                let total = minimum + step * step * step * 16 / 4096 * 4096;
                check_layout(&settings, total);
            }
        }
    }

    fn check_layout(settings: &Settings, total: u64) {
        let (mut logical, mut physical) = (RESERVED, RESERVED);
        for chunk in chunks(settings, &[device(total)]) {
            assert_eq!(chunk.start.0, logical);
            logical = chunk.end().0;
            for stripe in &chunk.stripes {
                assert_eq!(stripe.physical.0, physical);
                assert!(physical.is_multiple_of(STRIPE_LEN));
                physical += chunk.stripe_length();
            }
        }
        assert!(physical <= total, "{physical} > {total}");
    }

    #[test]
    fn metadata_grows_with_the_device() {
        // The device, and what mkfs.btrfs makes on it.
        let table = [
            (120 * MIB, 32 * MIB),
            (600 * MIB, 32 * MIB),
            (GIB, 53673984),
            (2 * GIB, 107347968),
            (3 * GIB, 256 * MIB),
            (50 * GIB, 256 * MIB),
            (60 * GIB, GIB),
        ];
        for (total, stripe) in table {
            let chunk = &chunks(&settings("dup", "single", false), &[device(total)])[1];
            assert_eq!((chunk.length, chunk.kind), (stripe, bits::METADATA | bits::DUP), "{total}");
        }
    }

    #[test]
    fn chunks_of_every_profile_lie_on_different_devices_inside_of_them() {
        let sizes = [150 * MIB, 400 * MIB, 200 * MIB, 1000 * MIB, 130 * MIB];
        for (metadata, data) in
            [("raid1", "raid0"), ("raid1c3", "raid1"), ("raid1c4", "raid10"), ("raid10", "raid1c4"), ("raid5", "raid6")]
        {
            for count in 4..=sizes.len() {
                let devices: Vec<MemberDevice> = (1..)
                    .zip(&sizes[..count])
                    .map(|(id, &size)| MemberDevice { id: DeviceId(id), ..device(size) })
                    .collect();
                let mut used = std::collections::BTreeMap::<DeviceId, Vec<(u64, u64)>>::new();
                for chunk in chunks(&settings(metadata, data, false), &devices) {
                    let mut on: Vec<DeviceId> = chunk.stripes.iter().map(|stripe| stripe.device).collect();
                    on.sort_unstable();
                    on.dedup();
                    assert_eq!(on.len(), chunk.stripes.len(), "{chunk:?}");
                    for stripe in &chunk.stripes {
                        let end = stripe.physical.0 + chunk.stripe_length();
                        assert!(stripe.physical.0 >= RESERVED && end <= sizes[stripe.device.0 as usize - 1]);
                        used.entry(stripe.device).or_default().push((stripe.physical.0, end));
                    }
                }
                for extents in used.values_mut() {
                    extents.sort_unstable();
                    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{extents:?}");
                }
            }
        }
    }

    #[test]
    fn a_chunk_uses_as_many_devices_as_its_profile_does() {
        // Profile, devices given, devices used of at most 58.
        let table = [
            ("single", 3, 1),
            ("raid0", 3, 3),
            ("raid0", 70, 58),
            ("raid1", 3, 2),
            ("raid1c3", 4, 3),
            ("raid10", 5, 4),
            ("raid5", 5, 5),
            ("raid6", 3, 3),
            ("dup", 2, 1),
        ];
        for (profile, given, used) in table {
            assert_eq!(device_count(Profile::named(profile).unwrap(), given, 58), used, "{profile} {given}");
        }
        assert_eq!(most_stripes(bits::SYSTEM, 16384), 29);
        assert_eq!(most_stripes(bits::DATA, 16384), 506);
    }
}
