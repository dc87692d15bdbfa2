//! The tree checker: every rule that the content of a tree block must obey, so that nobody above checks again.
//!
//! It runs on every block that is read, after the checksum, and on every block before it is written.
//!
//! # Invariants
//! 1. It never panics and never allocates for a good block, whatever the bytes are.
//! 2. The layout of a leaf is checked as a whole before any payload is looked at.
//! 3. It obeys the rules that newer kernels check, and accepts what older kernels legally wrote (a `ram_bytes`
//!    that is not `disk_num_bytes`, chunks whose `sub_stripes` is 0).
//!
//! Not checked here: what a block's parent promises (address, level, generation, first key), the filesystem's
//! identity, the checksum, and anything that spans two blocks.

mod extent;
mod file;
mod inode;
mod root;
mod space;

use crate::features::incompat;
use crate::header::{Header, ITEM_LEN, ItemHeader, KeyPointer, leaf_data_size, max_item_size, pointers_per_node};
use crate::key::{Key, KeyType};
use crate::superblock::Superblock;
use crate::units::{Generation, MAX_LEVELS, TreeId};
use std::fmt;
use zerocopy::FromBytes;

/// The parameters of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckContext {
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Generation of the last committed superblock; nothing may be more than one newer.
    pub super_generation: Generation,
    /// `incompat_flags` of the superblock.
    pub incompat: u64,
    /// Bytes of a data checksum.
    pub csum_len: usize,
    /// Whether the filesystem is going to be written: then unknown read-only-compatible inode flags are refused.
    pub writable: bool,
}

impl CheckContext {
    /// The context of a filesystem with a valid superblock.
    pub fn of(sb: &Superblock, writable: bool) -> CheckContext {
        CheckContext {
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            super_generation: sb.generation(),
            incompat: sb.incompat_flags.get(),
            csum_len: sb.checksum_kind().unwrap_or_default().len(),
            writable,
        }
    }

    fn has(&self, feature: u64) -> bool {
        self.incompat & feature != 0
    }

    /// The largest generation that may occur: that of the running transaction.
    fn newest_generation(&self) -> u64 {
        self.super_generation.0.saturating_add(1)
    }

    fn aligned(&self, value: u64) -> bool {
        // The sector size is a power of two; a mask is cheaper than a division here, where every block passes.
        value & (u64::from(self.sectorsize) - 1) == 0
    }

    fn check_generation(&self, what: &str, value: u64) -> Result<(), String> {
        let newest = self.newest_generation();
        ensure!(value <= newest, "invalid {what} generation, have {value} expect (0, {newest}]");
        Ok(())
    }
}

/// A rule that a tree block breaks, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The level that the block's header has.
    pub level: u8,
    /// The tree that the block's header names.
    pub owner: u64,
    /// The address that the block's header has.
    pub block: u64,
    /// The item or pointer; `None` when it is the block as a whole.
    pub slot: Option<usize>,
    /// Its key.
    pub key: Option<Key>,
    /// The rule, with the values that break it.
    pub rule: String,
}

impl Violation {
    fn of(header: &Header, slot: Option<usize>, key: Option<Key>, rule: String) -> Violation {
        let (owner, block) = (header.owner.get(), header.bytenr.get());
        Violation { level: header.level, owner, block, slot, key, rule }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.level == 0 { "leaf" } else { "node" };
        write!(f, "corrupt {kind}: root={} block={}", self.owner as i64, self.block)?;
        if let Some(slot) = self.slot {
            write!(f, " slot={slot}")?;
        }
        if let Some(key) = self.key {
            write!(f, " key={key}")?;
        }
        write!(f, ", {}", self.rule)
    }
}

impl std::error::Error for Violation {}

/// One leaf item as the rules see it.
struct Item<'a> {
    key: Key,
    data: &'a [u8],
    /// The item before it in the leaf.
    prev: Option<(Key, &'a [u8])>,
    /// The tree that wrote the leaf.
    owner: TreeId,
}

/// The state that is kept from item to item of a leaf.
#[derive(Default)]
struct LeafState {
    /// Inode number and mode of the last INODE_ITEM.
    inode: Option<(u64, u32)>,
}

/// Checks a tree block of `ctx.nodesize` bytes against every rule about its structure and its items.
pub fn check(block: &[u8], ctx: &CheckContext) -> Result<(), Violation> {
    let (header, body) = split(block, ctx)?;
    check_header(header).map_err(|rule| Violation::of(header, None, None, rule))?;
    check_structure(header, body, ctx)?;
    if header.level == 0 { check_items(header, body, ctx) } else { Ok(()) }
}

/// Checks only what is needed to find a block's items or pointers: for tools that show damaged filesystems. Neither
/// the payloads nor the flags are looked at.
pub fn check_layout(block: &[u8], ctx: &CheckContext) -> Result<(), Violation> {
    let (header, body) = split(block, ctx)?;
    check_level(header).map_err(|rule| Violation::of(header, None, None, rule))?;
    check_structure(header, body, ctx)
}

fn split<'a>(block: &'a [u8], ctx: &CheckContext) -> Result<(&'a Header, &'a [u8]), Violation> {
    well_sized(block, ctx).ok_or_else(|| {
        let rule = format!("invalid block size, have {} expect {}", block.len(), ctx.nodesize);
        Violation { level: 0, owner: 0, block: 0, slot: None, key: None, rule }
    })
}

fn check_structure(header: &Header, body: &[u8], ctx: &CheckContext) -> Result<(), Violation> {
    let structure = if header.level > 0 { check_node(header, body, ctx) } else { check_leaf(header, body, ctx) };
    structure.map_err(|(slot, rule)| Violation::of(header, slot, None, rule))
}

/// The header, when block and context have sizes that the other functions can rely on.
fn well_sized<'a>(block: &'a [u8], ctx: &CheckContext) -> Option<(&'a Header, &'a [u8])> {
    let legal = |size: u32| size.is_power_of_two() && (512..=65536).contains(&size);
    if !legal(ctx.nodesize) || !ctx.sectorsize.is_power_of_two() || block.len() != ctx.nodesize as usize {
        return None;
    }
    Header::ref_from_prefix(block).ok()
}

fn check_header(header: &Header) -> Result<(), String> {
    check_level(header)?;
    ensure!(header.flags.get() & Header::WRITTEN != 0, "invalid flag, WRITTEN not set");
    Ok(())
}

fn check_level(header: &Header) -> Result<(), String> {
    let level = usize::from(header.level);
    ensure!(level < MAX_LEVELS, "invalid level, have {level} expect [0, {}]", MAX_LEVELS - 1);
    Ok(())
}

/// A fault, and the slot it is in.
type Fault = (Option<usize>, String);

fn check_node(header: &Header, body: &[u8], ctx: &CheckContext) -> Result<(), Fault> {
    let count = header.nritems.get() as usize;
    let limit = pointers_per_node(ctx.nodesize);
    let pointers = match <[KeyPointer]>::ref_from_prefix_with_elems(body, count.min(limit)) {
        Ok((pointers, _)) if (1..=limit).contains(&count) => pointers,
        _ => return Err((None, format!("invalid nritems, have {count} should be in [1, {limit}]"))),
    };
    let mut prev: Option<Key> = None;
    for (slot, pointer) in pointers.iter().enumerate() {
        check_pointer(pointer, prev, ctx).map_err(|rule| (Some(slot), rule))?;
        prev = Some(pointer.key.into());
    }
    Ok(())
}

fn check_pointer(pointer: &KeyPointer, prev: Option<Key>, ctx: &CheckContext) -> Result<(), String> {
    let (at, key) = (pointer.blockptr.get(), Key::from(pointer.key));
    ensure!(at != 0, "invalid NULL node pointer");
    ensure!(ctx.aligned(at), "unaligned pointer, have {at} should be aligned to {}", ctx.sectorsize);
    match prev {
        Some(prev) if prev >= key => Err(format!("invalid key order, prev {prev} current {key}")),
        _ => Ok(()),
    }
}

/// The structure of a leaf; the items' payloads are not looked at.
fn check_leaf(header: &Header, body: &[u8], ctx: &CheckContext) -> Result<(), Fault> {
    let count = header.nritems.get() as usize;
    let limit = leaf_data_size(ctx.nodesize) / ITEM_LEN;
    if count > limit {
        return Err((None, format!("invalid nritems, have {count} should be in [0, {limit}]")));
    }
    check_packing(item_headers(body, count), ctx).map_err(|(slot, rule)| (Some(slot), rule))
}

/// The item headers of a leaf that has room for `count` of them.
fn item_headers(body: &[u8], count: usize) -> &[ItemHeader] {
    <[ItemHeader]>::ref_from_prefix_with_elems(body, count).map_or(&[], |(items, _)| items)
}

/// The items of a leaf whose structure has been checked.
fn check_items(header: &Header, body: &[u8], ctx: &CheckContext) -> Result<(), Violation> {
    if header.nritems.get() == 0 {
        return check_empty_leaf(header, ctx).map_err(|rule| Violation::of(header, None, None, rule));
    }
    let owner = TreeId(header.owner.get());
    let (mut state, mut prev) = (LeafState::default(), None);
    for (slot, item) in item_headers(body, header.nritems.get() as usize).iter().enumerate() {
        let data = payload(item, body);
        let item = Item { key: item.key.into(), data, prev, owner };
        check_item(&item, &mut state, ctx).map_err(|rule| Violation::of(header, Some(slot), Some(item.key), rule))?;
        prev = Some((item.key, data));
    }
    Ok(())
}

/// The data of an item whose layout has been checked.
fn payload<'a>(item: &ItemHeader, body: &'a [u8]) -> &'a [u8] {
    let start = item.offset.get() as usize;
    &body[start..start + item.size.get() as usize]
}

/// Trees that are never empty, and the rule that a leaf without an owner is not one.
fn check_empty_leaf(header: &Header, ctx: &CheckContext) -> Result<(), String> {
    if header.flags.get() & Header::RELOC != 0 {
        return Ok(());
    }
    let owner = TreeId(header.owner.get());
    let never_empty = match owner {
        TreeId(0) | TreeId::ROOT | TreeId::CHUNK | TreeId::DEV | TreeId::FS | TreeId::DATA_RELOC => true,
        TreeId::EXTENT => !ctx.has(incompat::EXTENT_TREE_V2),
        _ => false,
    };
    ensure!(!never_empty, "invalid root, root {} must never be empty", owner.0 as i64);
    Ok(())
}

/// Keys ascend; data is packed from the end of the block without a gap, and does not meet the item headers.
fn check_packing(items: &[ItemHeader], ctx: &CheckContext) -> Result<(), (usize, String)> {
    let headers_end = items.len() * ITEM_LEN;
    let (mut prev, mut expected_end) = (Key::MIN, leaf_data_size(ctx.nodesize));
    for (slot, item) in items.iter().enumerate() {
        let key = Key::from(item.key);
        if key <= prev {
            return Err((slot, format!("bad key order, prev {prev} current {key}")));
        }
        // Offset and size are 32 bits each: their sum cannot overflow.
        let start = item.offset.get() as usize;
        let end = item.offset.get() as u64 + item.size.get() as u64;
        if end != expected_end as u64 {
            return Err((slot, format!("unexpected item end, have {end} expect {expected_end}")));
        }
        if start < headers_end {
            return Err((slot, format!("slot overlaps with its data, item end {headers_end} data start {start}")));
        }
        (prev, expected_end) = (key, start);
    }
    Ok(())
}

/// The rules of the item's type. Types that are not listed have none.
fn check_item(item: &Item, state: &mut LeafState, ctx: &CheckContext) -> Result<(), String> {
    match item.key.kind {
        KeyType::INODE_ITEM => inode::check_inode_item(item, state, ctx),
        KeyType::INODE_REF => inode::check_inode_ref(item),
        KeyType::INODE_EXTREF => inode::check_inode_extref(item),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => {
            inode::check_dir_item(item, max_item_size(ctx.nodesize))
        }
        KeyType::EXTENT_DATA => file::check_extent_data(item, state, ctx),
        KeyType::EXTENT_CSUM => file::check_csum_item(item, ctx),
        KeyType::ROOT_ITEM => root::check_root_item(item, ctx),
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => root::check_root_ref(item),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => extent::check_extent_item(item, ctx),
        KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF | KeyType::SHARED_DATA_REF => {
            extent::check_simple_ref(item, ctx)
        }
        KeyType::EXTENT_DATA_REF => extent::check_data_refs(item, ctx),
        KeyType::BLOCK_GROUP_ITEM => space::check_block_group(item, ctx),
        KeyType::CHUNK_ITEM => space::check_chunk(item, ctx),
        KeyType::DEV_ITEM => space::check_dev_item(item),
        KeyType::DEV_EXTENT => space::check_dev_extent(item, ctx),
        KeyType::FREE_SPACE_INFO => space::check_free_space_info(item, ctx),
        KeyType::FREE_SPACE_EXTENT => space::check_free_space_extent(item, ctx),
        KeyType::FREE_SPACE_BITMAP => space::check_free_space_bitmap(item, ctx),
        KeyType::RAID_STRIPE => space::check_raid_stripe(item, ctx),
        _ => Ok(()),
    }
}

/// Checks an item by itself: what its neighbours say about it is not looked at.
pub fn check_alone(owner: TreeId, key: Key, data: &[u8], ctx: &CheckContext) -> Result<(), String> {
    check_item(&Item { key, data, prev: None, owner }, &mut LeafState::default(), ctx)
}

/// Checks which tree a block says it belongs to against the tree that is being read. Log trees, relocation trees
/// and `TreeId(0)`, a tree that the caller does not know, are not checked.
pub fn check_owner(header_owner: TreeId, tree: TreeId, is_root: bool) -> Result<(), String> {
    let allowed = match tree {
        TreeId(0) | TreeId::TREE_LOG | TreeId::TREE_RELOC => true,
        // Snapshots share blocks, which keep the id of the subvolume that wrote them; a root is never shared.
        tree if tree.is_subvolume() && !is_root => header_owner.is_subvolume(),
        tree => header_owner == tree,
    };
    ensure!(allowed, "invalid owner, tree {} has a block of tree {}", tree.0 as i64, header_owner.0 as i64);
    Ok(())
}

#[cfg(test)]
mod tests;
