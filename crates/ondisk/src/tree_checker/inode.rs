//! Rules for inodes, their names, directory entries and extended attributes.

use super::{CheckContext, Item, LeafState};
use crate::checksum::name_hash;
use crate::items::{DirItem, InodeExtref, InodeItem, InodeRef, dir_type, inode_flags};
use crate::key::{Key, KeyType, objectid};
use crate::units::{Ino, TreeId};
use zerocopy::FromBytes;

const S_IFMT: u32 = 0o170000;
/// Inode flags in the low 32 bits: 0 to 11, and ROOT_ITEM_INIT.
const KNOWN_FLAGS: u64 = 0xfff | inode_flags::ROOT_ITEM_INIT;
const NAME_MAX: usize = 255;

/// Whether `number` can be the number of an inode: one that is handed out, or one of two in the root tree.
pub(super) fn is_inode_number(number: u64) -> bool {
    is_free_number(number) || number == Ino::TREE_ROOT_DIR.0 || number == objectid::FREE_INO
}

/// Whether `number` is in the range that inode numbers are handed out from.
pub(super) fn is_free_number(number: u64) -> bool {
    (Ino::FIRST_FREE.0..=Ino::LAST_FREE.0).contains(&number)
}

/// In a subvolume the items of an inode stand together, so the one before in the leaf is of the same inode.
pub(super) fn check_placement(item: &Item) -> Result<(), String> {
    if let Some((prev, _)) = item.prev {
        let placed = !item.owner.is_subvolume() || prev.objectid == item.key.objectid;
        ensure!(placed, "invalid previous key objectid, have {} expect {}", prev.objectid, item.key.objectid);
    }
    Ok(())
}

pub(super) fn check_inode_item(item: &Item, state: &mut LeafState, ctx: &CheckContext) -> Result<(), String> {
    check_inode_key(item.key)?;
    let Ok(inode) = InodeItem::ref_from_bytes(item.data) else {
        return Err(format!("invalid item size, have {} expect {}", item.data.len(), InodeItem::LEN));
    };
    ctx.check_generation("inode", inode.generation.get())?;
    ctx.check_generation("inode transid", inode.transid.get())?;
    let mode = inode.mode.get();
    ensure!(mode & !(S_IFMT | 0o7777) == 0, "unknown mode bit detected: {mode:#o}");
    ensure!(
        matches!(mode & S_IFMT, 0o010000 | 0o020000 | 0o040000 | 0o060000 | 0o100000 | 0o120000 | 0o140000),
        "invalid mode: have {mode:#o} expect valid S_IF* bit"
    );
    let nlink = inode.nlink.get();
    ensure!(mode & S_IFMT != 0o040000 || nlink <= 1, "invalid nlink: have {nlink} expect no more than 1 for dir");
    let flags = inode.flags.get();
    let unknown = u64::from(flags as u32) & !KNOWN_FLAGS;
    ensure!(unknown == 0, "unknown incompat flags detected: {unknown:#x}");
    let unknown = flags >> 32 << 32 & !inode_flags::VERITY;
    ensure!(unknown == 0 || !ctx.writable, "unknown ro-compat flags detected on writable mount: {unknown:#x}");
    state.inode = Some((item.key.objectid, mode));
    Ok(())
}

fn check_inode_key(key: Key) -> Result<(), String> {
    ensure!(is_inode_number(key.objectid), "invalid key objectid, have {} which is not an inode number", key.objectid);
    ensure!(key.offset == 0, "invalid key offset, have {} expect 0", key.offset);
    Ok(())
}

pub(super) fn check_inode_ref(item: &Item) -> Result<(), String> {
    check_placement(item)?;
    // The root tree names tree 5 and its own directory from a directory below the usual range.
    let parent = item.key.offset;
    let in_root_tree = item.owner == TreeId::ROOT && parent == Ino::TREE_ROOT_DIR.0;
    ensure!(is_free_number(parent) || in_root_tree, "invalid parent directory {parent}");
    let size = item.data.len();
    ensure!(size > InodeRef::LEN, "invalid item size, have {size} expect more than {}", InodeRef::LEN);
    let mut rest = item.data;
    while !rest.is_empty() {
        let Ok((head, after)) = InodeRef::ref_from_prefix(rest) else {
            return Err(format!("inode ref overflow, {} bytes left for its header", rest.len()));
        };
        rest = skip_name(after, head.name_len.get())?;
    }
    Ok(())
}

pub(super) fn check_inode_extref(item: &Item) -> Result<(), String> {
    check_placement(item)?;
    let size = item.data.len();
    ensure!(size > InodeExtref::LEN, "invalid item size, have {size} expect more than {}", InodeExtref::LEN);
    let mut rest = item.data;
    while !rest.is_empty() {
        let Ok((head, after)) = InodeExtref::ref_from_prefix(rest) else {
            return Err(format!("inode extref overflow, {} bytes left for its header", rest.len()));
        };
        let parent = head.parent.get();
        ensure!(is_free_number(parent), "invalid parent directory {parent}");
        rest = skip_name(after, head.name_len.get())?;
    }
    Ok(())
}

/// The bytes behind a name of `len` bytes at the start of `rest`.
fn skip_name(rest: &[u8], len: u16) -> Result<&[u8], String> {
    let len = usize::from(len);
    ensure!((1..=NAME_MAX).contains(&len), "invalid name length, have {len} expect [1, {NAME_MAX}]");
    rest.get(len..).ok_or_else(|| format!("name overflow, have {len} expect at most {}", rest.len()))
}

/// The entries of a DIR_ITEM, DIR_INDEX or XATTR_ITEM.
pub(super) fn check_dir_item(item: &Item, max_item: usize) -> Result<(), String> {
    check_placement(item)?;
    let mut rest = item.data;
    while !rest.is_empty() {
        let Ok((entry, after)) = DirItem::ref_from_prefix(rest) else {
            return Err(format!("dir item header crosses item boundary, {} bytes left", rest.len()));
        };
        rest = check_dir_entry(item.key, entry, after, max_item)?;
    }
    Ok(())
}

fn check_dir_entry<'a>(key: Key, entry: &DirItem, after: &'a [u8], max_item: usize) -> Result<&'a [u8], String> {
    let is_xattr = key.kind == KeyType::XATTR_ITEM;
    check_location(entry.location.into(), is_xattr)?;
    let kind = entry.kind;
    ensure!((dir_type::REG_FILE..=dir_type::XATTR).contains(&kind), "invalid dir item type, have {kind}");
    ensure!((kind == dir_type::XATTR) == is_xattr, "invalid dir item type, have {kind} in key type {}", key.kind.0);
    let (name_len, data_len) = (usize::from(entry.name_len.get()), usize::from(entry.data_len.get()));
    ensure!(name_len <= NAME_MAX, "dir item name len too long, have {name_len} max {NAME_MAX}");
    let limit = max_item - DirItem::LEN;
    ensure!(
        name_len + data_len <= limit,
        "dir item name and data len too long, have {} max {limit}",
        name_len + data_len
    );
    ensure!(is_xattr || data_len == 0, "dir item with invalid data len, have {data_len} expect 0");
    let Some((body, rest)) = after.split_at_checked(name_len + data_len) else {
        return Err(format!("dir item data crosses item boundary, have {} left {}", name_len + data_len, after.len()));
    };
    if key.kind != KeyType::DIR_INDEX {
        let hash = name_hash(&body[..name_len]);
        ensure!(hash == key.offset, "name hash mismatch with key, have {hash:#018x} expect {:#018x}", key.offset);
    }
    Ok(rest)
}

fn check_location(location: Key, is_xattr: bool) -> Result<(), String> {
    if is_xattr {
        ensure!(location == Key::MIN, "invalid xattr location key {location}, expect (0 0 0)");
        return Ok(());
    }
    match location.kind {
        KeyType::ROOT_ITEM => {
            let legal = TreeId(location.objectid).is_subvolume();
            ensure!(legal, "invalid dir item location {location}, not a subvolume");
        }
        KeyType::INODE_ITEM | KeyType(0) => check_inode_key(location)?,
        kind => return Err(format!("invalid dir item location type, have {}", kind.0)),
    }
    Ok(())
}
