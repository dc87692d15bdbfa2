//! The pass `inodes` for symbolic links whose target is lost.
//!
//! A target stands in the link's only extent and has no other witness. Readers take a link without one for damaged, so
//! it becomes an empty file, which keeps name, owner, times and attributes. Its mode is 0600: the permissions of a link
//! are for everybody, because nobody looks at them.

use crate::action::Pass;
use crate::entries::{self, by_hash, put_by_hash, put_by_index};
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, dir_type, file_extent_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use zerocopy::{FromBytes, IntoBytes};

const FILE_MODE: u32 = 0o100_600;
const SYMLINK_TYPE: u32 = 0o12;

/// Gives a symbolic link the size of its target, or makes it a file where it has none.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let key = Key::new(inode, KeyType::INODE_ITEM, 0);
    let Some(mut item) = forest.get(tree, key)?.and_then(|data| InodeItem::read_from_bytes(&data).ok()) else {
        return Ok(());
    };
    if item.mode.get() >> 12 != SYMLINK_TYPE {
        return Ok(());
    }
    let extents = forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?;
    let target = extents.first().and_then(|(key, data)| target_len(*key, data));
    let size = item.size.get();
    if let Some(len) = target {
        // The whole target may have come back since the check.
        if size == 0 || size > len {
            item.size = len.into();
            forest.put(tree, key, item.as_bytes())?;
            let what = format!("gives symbolic link {inode} of tree {tree} the size {len} of its target");
            forest.did(Pass::Inodes, what);
        }
        return Ok(());
    }
    let content = extents.iter().map(|(key, data)| shown(*key, data));
    let (end, bytes) = content.fold((0, 0), |(end, sum), (behind, bytes)| (behind.max(end), bytes + sum));
    if size > 0 && bytes >= size && extents[0].0.offset == 0 {
        return Ok(());
    }
    item.mode = FILE_MODE.into();
    item.size = end.into();
    item.nbytes = bytes.into();
    item.transid = forest.store.generation.get().into();
    forest.put(tree, key, item.as_bytes())?;
    let names = retype_entries(forest, tree, inode)?;
    let what = format!("makes symbolic link {inode} of tree {tree} a file that only its owner can read");
    forest.lose(Pass::Inodes, what, format!("the target of symbolic link {inode} of tree {tree}, named {names}"));
    Ok(())
}

/// The length of the target that a link's item has.
fn target_len(key: Key, data: &[u8]) -> Option<u64> {
    let (head, content) = FileExtentHead::read_from_prefix(data).ok()?;
    if (key.offset, head.kind) != (0, file_extent_type::INLINE) {
        return None;
    }
    let len = match head.compression {
        compression::NONE => content.iter().position(|byte| *byte == 0).unwrap_or(content.len()) as u64,
        _ => head.ram_bytes.get(),
    };
    (len > 0).then_some(len)
}

/// The end of an extent's content in the file, and the bytes that it counts for; a hole counts for none.
fn shown(key: Key, data: &[u8]) -> (u64, u64) {
    match (FileExtentHead::read_from_prefix(data), FileExtent::read_from_bytes(data)) {
        (Ok((head, _)), _) if head.kind == file_extent_type::INLINE => (head.ram_bytes.get(), head.ram_bytes.get()),
        (_, Ok(extent)) => {
            let len = extent.body.num_bytes.get();
            let is_hole = extent.body.disk_bytenr.get() == 0;
            (key.offset.saturating_add(len), if is_hole { 0 } else { len })
        }
        _ => (0, 0),
    }
}

/// Makes the entries that lead to an inode those of a file; returns its names for messages.
fn retype_entries(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<String> {
    let mut names = Vec::new();
    for (_, link) in entries::links_of(forest, tree, inode)? {
        let (directory, name) = (link.directory, &link.name[..]);
        if let Some(mut entry) = by_hash(forest, tree, directory, name)?.filter(|entry| entry.leads_to(inode)) {
            entry.kind = dir_type::REG_FILE;
            put_by_hash(forest, tree, directory, name, Some(&entry))?;
        }
        let indexed = forest.get(tree, Key::new(directory, KeyType::DIR_INDEX, link.index))?.unwrap_or_default();
        if let Some(mut entry) = entries::entries(&indexed).into_iter().find(|entry| entry.leads_to(inode)) {
            entry.kind = dir_type::REG_FILE;
            put_by_index(forest, tree, directory, link.index, Some(&entry))?;
        }
        names.push(format!("{} in directory {directory}", entries::shown(name)));
    }
    Ok(names.join(", "))
}
