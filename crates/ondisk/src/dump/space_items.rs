//! Block groups, chunks, devices, free space.

use super::{padded, uuid};
use crate::items::{BlockGroupItem, ChunkHead, DevExtent, DevItem, FreeSpaceInfo, Stripe, block_group_flags as bits};
use std::io::{self, Write};
use zerocopy::FromBytes;

pub(super) fn block_group(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let BlockGroupItem { used, chunk_objectid, flags } = padded(data);
    let kind = kind_text(flags.get());
    writeln!(out, "\t\tblock group used {used} chunk_objectid {chunk_objectid} flags {kind}")
}

/// Type and profile of a chunk, with the separators where btrfs-progs has them.
fn kind_text(flags: u64) -> String {
    let has = |bit| flags & bit != 0;
    let mut text = String::new();
    if has(bits::DATA) {
        text.push_str("DATA");
    }
    if has(bits::METADATA) {
        text.push_str(if has(bits::DATA) { "|METADATA" } else { "METADATA" });
    }
    if has(bits::SYSTEM) {
        text.push_str(if has(bits::DATA) { "|SYSTEM" } else { "SYSTEM" });
    }
    text + "|" + profile_name(flags)
}

/// The profile; of several bits, which only a damaged item has, the first in this order.
fn profile_name(flags: u64) -> &'static str {
    let by_priority = [
        (bits::RAID10, "RAID10"),
        (bits::RAID1, "RAID1"),
        (bits::RAID1C3, "RAID1C3"),
        (bits::RAID1C4, "RAID1C4"),
        (bits::DUP, "DUP"),
        (bits::RAID0, "RAID0"),
        (bits::RAID5, "RAID5"),
        (bits::RAID6, "RAID6"),
    ];
    by_priority.iter().find(|(bit, _)| flags & bit != 0).map_or("single", |(_, name)| name)
}

/// A chunk item's payload, in a leaf or in the superblock.
pub(super) fn chunk(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let head: ChunkHead = padded(data);
    let count = usize::from(head.num_stripes.get());
    if count == 0 {
        return writeln!(out, "invalid num_stripes: 0");
    }
    let rest = data.get(ChunkHead::LEN..).unwrap_or_default();
    let Ok((stripes, _)) = <[Stripe]>::ref_from_prefix_with_elems(rest, count) else {
        return writeln!(out, "\t\tchunk item invalid");
    };
    let ChunkHead { length, owner, stripe_len, io_align, io_width, sector_size, num_stripes, sub_stripes, .. } = head;
    let kind = kind_text(head.kind.get());
    writeln!(out, "\t\tlength {length} owner {owner} stripe_len {stripe_len} type {kind}")?;
    writeln!(out, "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size}")?;
    writeln!(out, "\t\tnum_stripes {num_stripes} sub_stripes {sub_stripes}")?;
    for (index, Stripe { devid, offset, dev_uuid }) in stripes.iter().enumerate() {
        writeln!(out, "\t\t\tstripe {index} devid {devid} offset {offset}")?;
        writeln!(out, "\t\t\tdev_uuid {}", uuid(*dev_uuid))?;
    }
    Ok(())
}

pub(super) fn device(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let device: DevItem = padded(data);
    let DevItem { devid, total_bytes, bytes_used, io_align, io_width, sector_size, kind, generation, .. } = device;
    let DevItem { start_offset, dev_group, seek_speed, bandwidth, .. } = device;
    writeln!(out, "\t\tdevid {devid} total_bytes {total_bytes} bytes_used {bytes_used}")?;
    writeln!(out, "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size} type {kind}")?;
    writeln!(out, "\t\tgeneration {generation} start_offset {start_offset} dev_group {dev_group}")?;
    writeln!(out, "\t\tseek_speed {seek_speed} bandwidth {bandwidth}")?;
    writeln!(out, "\t\tuuid {}", uuid(device.uuid))?;
    writeln!(out, "\t\tfsid {}", uuid(device.fsid))
}

pub(super) fn dev_extent(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let DevExtent { chunk_tree, chunk_objectid, chunk_offset, length, chunk_tree_uuid } = padded(data);
    writeln!(out, "\t\tdev extent chunk_tree {chunk_tree}")?;
    writeln!(out, "\t\tchunk_objectid {chunk_objectid} chunk_offset {chunk_offset} length {length}")?;
    writeln!(out, "\t\tchunk_tree_uuid {}", uuid(chunk_tree_uuid))
}

pub(super) fn free_space_info(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let FreeSpaceInfo { extent_count, flags } = padded(data);
    writeln!(out, "\t\tfree space info extent count {extent_count} flags {flags}")
}
