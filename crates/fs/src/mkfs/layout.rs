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
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
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
    /// What to call it.
    pub name: String,
}

/// The chunks of a filesystem on one `device`, in logical order: system, metadata (or mixed), data.
pub fn chunks(settings: &Settings, device: &MemberDevice) -> Vec<Chunk> {
    let mut at = (Logical(RESERVED), Physical(RESERVED));
    let mut out = Vec::new();
    for (kind, profile, stripe) in wanted(settings, device.total_bytes) {
        let stripes = (0..profile.stripes_per_device as u64)
            .map(|copy| ChunkStripe { device: device.id, physical: at.1.plus(copy * stripe), dev_uuid: device.uuid })
            .collect();
        out.push(Chunk::new(at.0, stripe, kind | profile.bit, settings.sectorsize, stripes));
        at = (at.0.plus(stripe), at.1.plus(stripe * profile.stripes_per_device as u64));
    }
    out
}

/// Bytes that a device must have at least.
pub fn minimum_bytes(settings: &Settings) -> u64 {
    RESERVED + allocated(&wanted(settings, 0))
}

/// Type, profile and bytes of each stripe of the chunks, for a device of `total` bytes; the smallest ones for 0.
fn wanted(settings: &Settings, total: u64) -> Vec<(u64, &'static Profile, u64)> {
    let (metadata, data) = (settings.metadata, settings.data);
    let system = (bits::SYSTEM, metadata, if metadata.copies > 1 { 8 * MIB } else { 4 * MIB });
    if settings.mixed() {
        let others = allocated(&[system]);
        return vec![system, (bits::METADATA | bits::DATA, metadata, metadata_stripe(settings, total, others))];
    }
    let data = (bits::DATA, data, 8 * MIB);
    let others = allocated(&[system, data]);
    vec![system, (bits::METADATA, metadata, metadata_stripe(settings, total, others)), data]
}

/// Bytes that stripes take on the device.
fn allocated(stripes: &[(u64, &'static Profile, u64)]) -> u64 {
    stripes.iter().map(|(_, profile, stripe)| stripe * profile.stripes_per_device as u64).sum()
}

/// Bytes of a stripe of the metadata chunk, on a device of `total` bytes of which `others` go to other chunks.
///
/// The sizes are those of mkfs.btrfs (see [`customary`]), but [`NODES`] nodes if the device has room for them: the
/// kernel reserves for the worst case, and with much less than this it may find no space for the first file.
fn metadata_stripe(settings: &Settings, total: u64, others: u64) -> u64 {
    let (profile, nodesize) = (settings.metadata, u64::from(settings.nodesize));
    let least = if profile.copies > 1 { usable(nodesize).max(32 * MIB) } else { usable(nodesize) };
    let room = total.saturating_sub(RESERVED + others) / profile.stripes_per_device as u64;
    customary(profile, total).max(NODES * nodesize).min(room / STRIPE_LEN * STRIPE_LEN).max(least)
}

/// Bytes of metadata with which the kernel can still create and delete files when it cannot allocate more, found by
/// trying.
fn usable(nodesize: u64) -> u64 {
    match nodesize {
        4096 | 8192 => 8 * MIB,
        16384 => 16 * MIB,
        32768 => 24 * MIB,
        _ => 42 * MIB,
    }
}

/// What mkfs.btrfs makes: 8 MiB without copies; otherwise as much as the kernel allocates at once, or where that is
/// more than a tenth of the device, this tenth with all copies, but 32 MiB at least.
fn customary(profile: &Profile, total: u64) -> u64 {
    let most = if total > 50 * GIB { GIB } else { 256 * MIB };
    match profile.copies {
        1 => 8 * MIB,
        _ if most <= total / 10 => most,
        _ => (total / 10 / profile.stripes_per_device as u64 / STRIPE_LEN * STRIPE_LEN).max(32 * MIB),
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
        MkfsOptions { metadata, data, features, ..Default::default() }.settings().unwrap()
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
            assert_eq!(minimum_bytes(&options.settings().unwrap()), minimum, "{nodesize}");
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
        for chunk in chunks(settings, &device(total)) {
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
            let chunk = &chunks(&settings("dup", "single", false), &device(total))[1];
            assert_eq!((chunk.length, chunk.kind), (stripe, bits::METADATA | bits::DUP), "{total}");
        }
    }
}
