//! Rules for the extent tree: extents and the references to them, inline and keyed.

use super::inode::is_free_number;
use super::{CheckContext, Item};
use crate::checksum::extent_data_ref_hash;
use crate::features::incompat;
use crate::items::{ExtentDataRef, ExtentItem, TreeBlockInfo, extent_flags};
use crate::key::{Key, KeyType};
use crate::units::{MAX_LEVELS, TreeId};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

pub(super) fn check_extent_item(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let key = item.key;
    ensure!(
        ctx.aligned(key.objectid),
        "invalid key objectid, have {} expect to be aligned to {}",
        key.objectid,
        ctx.sectorsize
    );
    if key.kind == KeyType::METADATA_ITEM {
        ensure!(
            ctx.has(incompat::SKINNY_METADATA),
            "invalid key type, METADATA_ITEM type invalid without SKINNY_METADATA"
        );
    }
    let Ok((extent, rest)) = ExtentItem::ref_from_prefix(item.data) else {
        return Err(format!("invalid item size, have {} expect at least {}", item.data.len(), ExtentItem::LEN));
    };
    ctx.check_generation("extent", extent.generation.get())?;
    let flags = extent.flags.get();
    let refs = if is_tree_block(flags)? {
        check_tree_block(key, rest, ctx)?
    } else {
        check_data_extent(key, flags, rest, ctx)?
    };
    let inline = check_inline_refs(refs, ctx)?;
    ensure!(inline <= extent.refs.get(), "invalid extent refs, have {} expect >= inline {inline}", extent.refs);
    check_no_overlap(item, ctx)
}

fn is_tree_block(flags: u64) -> Result<bool, String> {
    let (data, tree_block) = (flags & extent_flags::DATA != 0, flags & extent_flags::TREE_BLOCK != 0);
    ensure!(data != tree_block, "invalid extent flag, have {flags:#x} expect exactly one of DATA and TREE_BLOCK");
    Ok(tree_block)
}

/// The rules for a tree block's extent; returns its inline references.
fn check_tree_block<'a>(key: Key, rest: &'a [u8], ctx: &CheckContext) -> Result<&'a [u8], String> {
    let (level, rest) = if key.kind == KeyType::METADATA_ITEM {
        (key.offset, rest)
    } else {
        ensure!(
            key.offset == u64::from(ctx.nodesize),
            "invalid extent length, have {} expect {}",
            key.offset,
            ctx.nodesize
        );
        let Ok((info, rest)) = TreeBlockInfo::ref_from_prefix(rest) else {
            return Err(format!("invalid item size, {} bytes left for the tree block info", rest.len()));
        };
        (u64::from(info.level), rest)
    };
    ensure!(level < MAX_LEVELS as u64, "invalid tree block info level, have {level} expect [0, 7]");
    Ok(rest)
}

fn check_data_extent<'a>(key: Key, flags: u64, rest: &'a [u8], ctx: &CheckContext) -> Result<&'a [u8], String> {
    ensure!(key.kind == KeyType::EXTENT_ITEM, "invalid key type, METADATA_ITEM for a data extent");
    ensure!(ctx.aligned(key.offset), "invalid extent length, have {} expect aligned to {}", key.offset, ctx.sectorsize);
    ensure!(flags & extent_flags::FULL_BACKREF == 0, "invalid extent flag, data has full backref set");
    Ok(rest)
}

/// The sort order of an inline reference: by type, then by sequence number downwards.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct InlineRefOrder(u8, std::cmp::Reverse<u64>);

/// Checks the inline references and counts what they reference.
fn check_inline_refs(mut rest: &[u8], ctx: &CheckContext) -> Result<u64, String> {
    let (mut total, mut last) = (0u64, None);
    while !rest.is_empty() {
        let (order, count, after) = check_inline_ref(rest, ctx)?;
        let ordered = last.is_none_or(|last| last <= order);
        ensure!(ordered, "inline extent ref out of order, type {} seq {:#x}", order.0, order.1.0);
        total = total.saturating_add(count);
        (rest, last) = (after, Some(order));
    }
    Ok(total)
}

/// One inline reference: its order, what it counts, and what follows.
fn check_inline_ref<'a>(rest: &'a [u8], ctx: &CheckContext) -> Result<(InlineRefOrder, u64, &'a [u8]), String> {
    let short = || format!("inline ref of type {} exceeds the item, {} bytes left", rest[0], rest.len());
    let (kind, body) = (KeyType(rest[0]), &rest[1..]);
    if kind == KeyType::EXTENT_DATA_REF {
        let (data_ref, after) = ExtentDataRef::ref_from_prefix(body).map_err(|_| short())?;
        check_data_ref(data_ref, ctx)?;
        return Ok((InlineRefOrder(kind.0, std::cmp::Reverse(hash_of(data_ref))), data_ref.count.get().into(), after));
    }
    let (offset, after) = U64::ref_from_prefix(body).map_err(|_| short())?;
    let order = InlineRefOrder(kind.0, std::cmp::Reverse(offset.get()));
    match kind {
        // An owner reference counts nothing. Its type sorts it first.
        KeyType::EXTENT_OWNER_REF => Ok((order, 0, after)),
        KeyType::TREE_BLOCK_REF => Ok((order, 1, after)),
        KeyType::SHARED_BLOCK_REF => {
            check_parent(offset.get(), ctx)?;
            Ok((order, 1, after))
        }
        KeyType::SHARED_DATA_REF => {
            check_parent(offset.get(), ctx)?;
            let (count, after) = U32::ref_from_prefix(after).map_err(|_| short())?;
            ensure!(count.get() != 0, "invalid shared data ref count, should have non-zero value");
            Ok((order, count.get().into(), after))
        }
        KeyType(kind) => Err(format!("unknown inline ref type: {kind}")),
    }
}

fn check_parent(at: u64, ctx: &CheckContext) -> Result<(), String> {
    ensure!(ctx.aligned(at), "invalid tree parent bytenr, have {at} expect aligned to {}", ctx.sectorsize);
    Ok(())
}

fn hash_of(data_ref: &ExtentDataRef) -> u64 {
    extent_data_ref_hash(data_ref.root.get(), data_ref.objectid.get(), data_ref.offset.get())
}

fn check_data_ref(data_ref: &ExtentDataRef, ctx: &CheckContext) -> Result<(), String> {
    let tree = TreeId(data_ref.root.get());
    let legal = tree.is_subvolume() || tree == TreeId::DATA_RELOC || tree == TreeId::ROOT;
    ensure!(legal, "invalid extent data backref root, have {}", tree.0 as i64);
    let inode = data_ref.objectid.get();
    ensure!(is_free_number(inode), "invalid extent data backref objectid, have {inode}");
    // The offset counts from the start of the extent and may lie before the file: it is only aligned.
    ensure!(ctx.aligned(data_ref.offset.get()), "invalid extent data backref offset, have {}", data_ref.offset);
    ensure!(data_ref.count.get() != 0, "invalid extent data backref count, have 0");
    Ok(())
}

/// An extent must end before the next one starts.
fn check_no_overlap(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let prev = item.prev.filter(|(key, _)| matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM));
    let Some((prev, _)) = prev else { return Ok(()) };
    let length = if prev.kind == KeyType::METADATA_ITEM { u64::from(ctx.nodesize) } else { prev.offset };
    let end = prev.objectid.saturating_add(length);
    ensure!(end <= item.key.objectid, "previous extent {prev} overlaps current extent {}", item.key);
    Ok(())
}

/// Keyed TREE_BLOCK_REF, SHARED_BLOCK_REF and SHARED_DATA_REF.
pub(super) fn check_simple_ref(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let (key, size) = (item.key, item.data.len());
    let expected = if key.kind == KeyType::SHARED_DATA_REF { 4 } else { 0 };
    ensure!(size == expected, "invalid item size, have {size} expect {expected} for key type {}", key.kind.0);
    ensure!(
        ctx.aligned(key.objectid),
        "invalid key objectid, have {} expect to be aligned to {}",
        key.objectid,
        ctx.sectorsize
    );
    if key.kind != KeyType::TREE_BLOCK_REF {
        check_parent(key.offset, ctx)?;
    }
    let zero_count = expected == 4 && item.data == [0; 4];
    ensure!(!zero_count, "invalid shared data backref count, should have non-zero value");
    Ok(())
}

/// Keyed EXTENT_DATA_REF: several on a hash collision. The hash in the key is not checked, a collision moves it on.
pub(super) fn check_data_refs(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let at = item.key.objectid;
    ensure!(ctx.aligned(at), "invalid key objectid, have {at} expect to be aligned to {}", ctx.sectorsize);
    let Ok(refs) = <[ExtentDataRef]>::ref_from_bytes(item.data) else {
        return Err(format!(
            "invalid item size, have {} expect to be aligned to {}",
            item.data.len(),
            ExtentDataRef::LEN
        ));
    };
    refs.iter().try_for_each(|data_ref| check_data_ref(data_ref, ctx))
}
