//! Rules for file extents and checksums of data.

use super::inode::check_placement;
use super::{CheckContext, Item, LeafState};
use crate::items::{FileExtent, FileExtentHead, compression, file_extent_type};
use crate::key::{KeyType, objectid};
use zerocopy::FromBytes;

pub(super) fn check_extent_data(item: &Item, state: &LeafState, ctx: &CheckContext) -> Result<(), String> {
    ensure!(ctx.aligned(item.key.offset), "unaligned file offset, have {}", item.key.offset);
    check_placement(item)?;
    check_file_type(item, state)?;
    let Ok((head, inline)) = FileExtentHead::ref_from_prefix(item.data) else {
        return Err(format!("invalid item size, have {} expect at least {}", item.data.len(), FileExtentHead::LEN));
    };
    ensure!(head.kind <= file_extent_type::PREALLOC, "invalid type for file extent, have {}", head.kind);
    ensure!(head.compression <= compression::ZSTD, "invalid compression for file extent, have {}", head.compression);
    ensure!(head.encryption == 0, "invalid encryption for file extent, have {}", head.encryption);
    if head.kind == file_extent_type::INLINE {
        check_inline(item, head, inline.len())?;
    } else {
        check_regular(item, ctx)?;
    }
    check_no_overlap(item, ctx)
}

/// Only regular files, directories of old caches and symbolic links have extents; special files never do.
fn check_file_type(item: &Item, state: &LeafState) -> Result<(), String> {
    if let Some((_, mode)) = state.inode.filter(|(ino, _)| *ino == item.key.objectid) {
        let special = matches!(mode & 0o170000, 0o010000 | 0o020000 | 0o060000 | 0o140000);
        ensure!(!special, "file extent in a special file of mode {mode:#o}");
    }
    Ok(())
}

fn check_inline(item: &Item, head: &FileExtentHead, have: usize) -> Result<(), String> {
    ensure!(item.key.offset == 0, "invalid file offset for inline file extent, have {} expect 0", item.key.offset);
    let ram_bytes = head.ram_bytes.get();
    let exact = head.compression != compression::NONE || ram_bytes == have as u64;
    ensure!(exact, "invalid ram_bytes for uncompressed inline extent, have {ram_bytes} expect {have}");
    Ok(())
}

fn check_regular(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let Ok(extent) = FileExtent::ref_from_bytes(item.data) else {
        return Err(format!("invalid item size, have {} expect {}", item.data.len(), FileExtent::LEN));
    };
    let body = &extent.body;
    let aligned = [
        ("ram_bytes", extent.head.ram_bytes),
        ("disk_bytenr", body.disk_bytenr),
        ("disk_num_bytes", body.disk_num_bytes),
        ("offset", body.offset),
        ("num_bytes", body.num_bytes),
    ];
    for (name, value) in aligned {
        ensure!(
            ctx.aligned(value.get()),
            "invalid {name} for file extent, have {value}, should be aligned to {}",
            ctx.sectorsize
        );
    }
    let fits = item.key.offset.checked_add(body.num_bytes.get()).is_some();
    ensure!(fits, "extent end overflow, have file offset {} extent num bytes {}", item.key.offset, body.num_bytes);
    Ok(())
}

fn check_no_overlap(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let Some((prev, data)) = item.prev else { return Ok(()) };
    if prev.objectid != item.key.objectid || prev.kind != KeyType::EXTENT_DATA {
        return Ok(());
    }
    let end = end_of(prev.offset, data, ctx);
    ensure!(
        end <= item.key.offset,
        "file extent end range ({end}) goes beyond start offset ({}) of the next file extent",
        item.key.offset
    );
    Ok(())
}

/// The end, in the file, of an extent that passed its own checks.
fn end_of(offset: u64, data: &[u8], ctx: &CheckContext) -> u64 {
    match (FileExtentHead::ref_from_prefix(data), FileExtent::ref_from_bytes(data)) {
        (Ok((head, _)), _) if head.kind == file_extent_type::INLINE => {
            let end = offset.saturating_add(head.ram_bytes.get());
            end.checked_next_multiple_of(u64::from(ctx.sectorsize)).unwrap_or(u64::MAX)
        }
        (_, Ok(extent)) => offset.saturating_add(extent.body.num_bytes.get()),
        _ => offset,
    }
}

pub(super) fn check_csum_item(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let (key, size) = (item.key, item.data.len());
    ensure!(
        key.objectid == objectid::EXTENT_CSUM,
        "invalid key objectid for csum item, have {} expect -10",
        key.objectid as i64
    );
    ensure!(ctx.aligned(key.offset), "unaligned key offset for csum item, have {}", key.offset);
    ensure!(
        ctx.csum_len != 0 && size.is_multiple_of(ctx.csum_len),
        "unaligned item size for csum item, have {size} should be aligned to {}",
        ctx.csum_len
    );
    let covered = |size: usize| (size / ctx.csum_len) as u64 * u64::from(ctx.sectorsize);
    ensure!(key.offset.checked_add(covered(size)).is_some(), "csum item at {} overflows", key.offset);
    if let Some((prev, data)) = item.prev.filter(|(prev, _)| prev.kind == KeyType::EXTENT_CSUM) {
        let end = prev.offset.saturating_add(covered(data.len()));
        ensure!(
            end <= key.offset,
            "csum end range ({end}) goes beyond the start range ({}) of the next csum item",
            key.offset
        );
    }
    Ok(())
}
