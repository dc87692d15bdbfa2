//! The pass `inodes`: an inode's item is made to say what its other items say, and inodes without a name go to
//! `lost+found`.

use crate::action::Pass;
use crate::checksums;
use crate::entries::{self, Entry, Link, by_hash, links_of, next_index, put_by_hash, put_by_index, put_link};
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::items::{
    FileExtent, FileExtentHead, InodeItem, RootItem, dir_type, file_extent_type, inode_flags,
};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const LOST_AND_FOUND: &[u8] = b"lost+found";

fn inode_key(inode: u64) -> Key {
    Key::new(inode, KeyType::INODE_ITEM, 0)
}

fn item_of(forest: &Forest, tree: TreeId, inode: u64) -> Result<Option<InodeItem>> {
    let data = forest.get(tree, inode_key(inode))?;
    Ok(data.and_then(|data| InodeItem::read_from_bytes(&data).ok()))
}

/// The entry type that an inode of this mode has.
fn kind_of_mode(mode: u32) -> Option<u8> {
    match mode >> 12 {
        0o10 => Some(dir_type::REG_FILE),
        0o4 => Some(dir_type::DIR),
        0o2 => Some(dir_type::CHRDEV),
        0o6 => Some(dir_type::BLKDEV),
        0o1 => Some(dir_type::FIFO),
        0o14 => Some(dir_type::SOCK),
        0o12 => Some(dir_type::SYMLINK),
        _ => None,
    }
}

/// The entry type that an inode has, if its item is there.
pub(crate) fn entry_kind(forest: &Forest, tree: TreeId, inode: u64) -> Result<Option<u8>> {
    Ok(item_of(forest, tree, inode)?.and_then(|item| kind_of_mode(item.mode.get())))
}

/// Makes an inode of another type than both of its entries say a file or a symbolic link again, as they say, if it has
/// the extents of one.
pub(crate) fn believe_kind(forest: &mut Forest, tree: TreeId, inode: u64, kind: u8) -> Result<()> {
    let Some(mut item) = item_of(forest, tree, inode)? else { return Ok(()) };
    let mode = item.mode.get();
    let said = said(forest, tree, inode)?;
    let wanted = match kind {
        dir_type::REG_FILE if !said.has_entries => S_IFREG,
        dir_type::SYMLINK if said.inline && !said.has_entries => 0o120_000,
        _ => return Ok(()),
    };
    if mode & S_IFMT != wanted && mode & S_IFMT != S_IFDIR {
        item.mode = (mode & 0o7777 | wanted).into();
        forest.put(tree, inode_key(inode), item.as_bytes())?;
        let what = format!("gives inode {inode} of tree {tree} the type that its entries have");
        forest.did(Pass::Inodes, what);
    }
    Ok(())
}

/// Whether the data of an inode is to have checksums.
pub(crate) fn has_checksums(forest: &Forest, (tree, inode): (TreeId, u64)) -> Result<bool> {
    Ok(item_of(forest, tree, inode)?.is_some_and(|item| item.flags.get() & inode_flags::NODATASUM == 0))
}

/// Whether an inode is a directory.
pub(crate) fn is_directory(forest: &Forest, tree: TreeId, inode: u64) -> Result<bool> {
    if forest.ptr(tree).is_err() {
        return Ok(false);
    }
    Ok(item_of(forest, tree, inode)?.is_some_and(|item| item.mode.get() & S_IFMT == S_IFDIR))
}

/// Whether an inode is there that says it is no directory, and that has no entries.
pub(crate) fn is_something_else(forest: &Forest, tree: TreeId, inode: u64) -> Result<bool> {
    let says_so = item_of(forest, tree, inode)?.is_some_and(|item| item.mode.get() & S_IFMT != S_IFDIR);
    Ok(says_so && entries::by_index(forest, tree, inode)?.is_empty())
}

/// The number of names that an inode's item says it has.
pub(crate) fn links_said(forest: &Forest, tree: TreeId, inode: u64) -> Result<u64> {
    Ok(item_of(forest, tree, inode)?.map_or(u64::MAX, |item| item.nlink.get().into()))
}

/// The sum of an inode's items.
#[derive(Default)]
struct Said {
    item: Option<InodeItem>,
    links: u64,
    name_bytes: u64,
    has_entries: bool,
    /// Behind the last extent.
    end: u64,
    bytes: u64,
    inline: bool,
    first_data: Option<(u64, u64)>,
}

fn said(forest: &Forest, tree: TreeId, inode: u64) -> Result<Said> {
    let mut said = Said::default();
    for (key, data) in forest.object(tree, inode)? {
        match key.kind {
            KeyType::INODE_ITEM => said.item = InodeItem::read_from_bytes(&data).ok(),
            KeyType::INODE_REF | KeyType::INODE_EXTREF => said.links += entries::links(key, &data).len() as u64,
            KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
                said.has_entries = true;
                said.name_bytes += entries::entries(&data).iter().map(|entry| entry.name.len() as u64).sum::<u64>();
            }
            KeyType::EXTENT_DATA => add_extent(&mut said, key.offset, &data),
            _ => {}
        }
    }
    Ok(said)
}

fn add_extent(said: &mut Said, offset: u64, data: &[u8]) {
    let Ok((head, _)) = FileExtentHead::read_from_prefix(data) else { return };
    if head.kind == file_extent_type::INLINE {
        said.inline = true;
        said.bytes = said.bytes.saturating_add(head.ram_bytes.get());
        said.end = said.end.max(offset.saturating_add(head.ram_bytes.get()));
        return;
    }
    let Ok(extent) = FileExtent::read_from_bytes(data) else { return };
    said.end = said.end.max(offset.saturating_add(extent.body.num_bytes.get()));
    if extent.body.disk_bytenr.get() != 0 {
        said.bytes = said.bytes.saturating_add(extent.body.num_bytes.get());
        if head.kind == file_extent_type::REGULAR {
            said.first_data.get_or_insert((extent.body.disk_bytenr.get(), extent.body.disk_num_bytes.get()));
        }
    }
}

/// Makes an inode's item say what its other items say; makes one where there is none.
pub(crate) fn write(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    if inode == Ino::ROOT_DIR.get() {
        make_root_directory(forest, tree)?;
    }
    let said = said(forest, tree, inode)?;
    let old = said.item;
    let mut item = match old {
        Some(item) => item,
        None if said.links == 0 && !said.has_entries && said.end == 0 => return remove_rest(forest, tree, inode),
        None => conceived(forest, tree, inode, &said)?,
    };
    let is_dir = item.mode.get() & S_IFMT == S_IFDIR;
    if said.has_entries && !is_dir {
        match children_agree(forest, tree, inode)? {
            true => item.mode = (item.mode.get() & 0o777 | S_IFDIR).into(),
            false => return remove_entries(forest, tree, inode),
        }
    }
    if item.mode.get() & S_IFMT == S_IFDIR {
        item.nlink = 1.into();
        item.size = said.name_bytes.into();
        if !is_dir {
            item.nbytes = 0.into();
        }
    } else {
        item.nlink = u32::try_from(said.links).unwrap_or(u32::MAX).into();
        item.nbytes = said.bytes.into();
    }
    if old.is_some_and(|old| old.as_bytes() == item.as_bytes()) {
        return Ok(());
    }
    item.transid = forest.store.generation.get().into();
    forest.put(tree, inode_key(inode), item.as_bytes())?;
    match old {
        Some(old) if !is_dir && old.nbytes.get() > item.nbytes.get() => {
            let what = format!("makes the item of inode {inode} of tree {tree} agree with its other items");
            let bytes = old.nbytes.get() - item.nbytes.get();
            forest.lose(Pass::Inodes, what, format!("{bytes} bytes of its content, if it ever had so many"));
        }
        Some(_) => forest
            .did(Pass::Inodes, format!("makes the item of inode {inode} of tree {tree} agree with its other items")),
        None => {
            let what = format!("makes an item of inode {inode} of tree {tree}, with the owner of its directory");
            forest.lose(Pass::Inodes, what, "its mode, owner, times and exact size");
        }
    }
    Ok(())
}

/// Makes the item of an inode that has none where other items got in front of its own in their leaf. A leaf may begin
/// with items of an inode whose item is not there, but nowhere else have such items. Where a leaf begins with them, the
/// next round makes the item, and knows more.
pub(crate) fn complete_leaf(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let first = forest.first_from(tree, Key::new(inode, KeyType(0), 0))?.filter(|first| first.objectid == inode);
    let Some(first) = first.filter(|first| first.kind > KeyType::INODE_ITEM) else { return Ok(()) };
    if forest.begins_leaf(tree, first)? { Ok(()) } else { write(forest, tree, inode) }
}

/// Items of an inode of which nothing is left that people see: attributes without anything.
fn remove_rest(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    if remove_items(forest, tree, inode)? {
        let what = format!("removes what is left of inode {inode} of tree {tree}");
        forest.lose(Pass::Inodes, what, "extended attributes of an inode that is gone");
    }
    Ok(())
}

/// Removes all items of an inode; false: there are none.
fn remove_items(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<bool> {
    let items = forest.object(tree, inode)?;
    for (key, _) in &items {
        forest.remove(tree, *key)?;
    }
    Ok(!items.is_empty())
}

/// An inode item for items that have none.
fn conceived(forest: &Forest, tree: TreeId, inode: u64, said: &Said) -> Result<InodeItem> {
    let link = links_of(forest, tree, inode)?.into_iter().map(|(_, link)| link).next();
    let (mut kind, mut owner) = (None, (0, 0));
    if let Some(link) = &link {
        kind = by_hash(forest, tree, link.directory, &link.name)?.map(|entry| entry.kind);
        owner = item_of(forest, tree, link.directory)?.map_or(owner, |item| (item.uid.get(), item.gid.get()));
    }
    let mode = match kind {
        _ if said.has_entries || inode == Ino::ROOT_DIR.get() => S_IFDIR | 0o700,
        Some(dir_type::DIR) => S_IFDIR | 0o700,
        Some(dir_type::SYMLINK) if said.inline => 0o120_777,
        Some(dir_type::FIFO) => 0o010_600,
        Some(dir_type::SOCK) => 0o140_600,
        _ => S_IFREG | 0o600,
    };
    let mut item = InodeItem::new_zeroed();
    item.generation = forest.store.generation.get().into();
    item.transid = item.generation;
    (item.uid, item.gid) = (owner.0.into(), owner.1.into());
    item.mode = mode.into();
    item.size = said.end.into();
    let now = forest.time();
    (item.atime, item.ctime, item.mtime, item.otime) = (now, now, now, now);
    if let Some((at, length)) = said.first_data
        && checksums::covered(forest, at, length)? == 0
    {
        item.flags = inode_flags::NODATASUM.into();
    }
    Ok(item)
}

/// Whether an inode to which entries of `directory` lead says that it is there.
fn children_agree(forest: &Forest, tree: TreeId, directory: u64) -> Result<bool> {
    for (_, entry) in entries::by_index(forest, tree, directory)? {
        if entry.is_subvolume() {
            return Ok(true);
        }
        let links = links_of(forest, tree, entry.location.objectid)?;
        if links.iter().any(|(_, link)| link.directory == directory) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the entries of what is no directory away; whoever had no other name is found without one then.
fn remove_entries(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    for (key, _) in forest.object(tree, inode)? {
        if matches!(key.kind, KeyType::DIR_ITEM | KeyType::DIR_INDEX) {
            forest.remove(tree, key)?;
        }
    }
    let what = format!("removes entries from inode {inode} of tree {tree}, which is no directory");
    forest.lose(Pass::Inodes, what, "names that no inode knows");
    Ok(())
}

/// Makes the root directory of a tree that has none.
pub(crate) fn make_root_directory(forest: &mut Forest, tree: TreeId) -> Result<()> {
    let inode = Ino::ROOT_DIR.get();
    if item_of(forest, tree, inode)?.is_none() {
        let item = directory(forest, 0o700);
        forest.put(tree, inode_key(inode), item.as_bytes())?;
    }
    put_link(forest, tree, inode, &Link { directory: inode, index: 0, name: b"..".to_vec() })?;
    if let Some(root) = forest.trees.get_mut(&tree) {
        root.item.root_dirid = inode.into();
    }
    Ok(())
}

fn directory(forest: &Forest, permissions: u32) -> InodeItem {
    let mut item = InodeItem::new_zeroed();
    item.generation = forest.store.generation.get().into();
    item.transid = item.generation;
    item.nlink = 1.into();
    item.mode = (S_IFDIR | permissions).into();
    let now = forest.time();
    (item.atime, item.ctime, item.mtime, item.otime) = (now, now, now, now);
    item
}

/// Makes the item of a file whose items are lost, with the owner of the directory in which it is; without one it is
/// root's. Its links and bytes are counted later.
pub(crate) fn make_file(
    forest: &mut Forest,
    tree: TreeId,
    inode: u64,
    directory: Option<u64>,
    size: u64,
    flags: u64,
) -> Result<()> {
    let mut item = InodeItem::new_zeroed();
    item.generation = forest.store.generation.get().into();
    item.transid = item.generation;
    let parent = directory.map(|directory| item_of(forest, tree, directory)).transpose()?.flatten();
    (item.uid, item.gid) = parent.map_or((0.into(), 0.into()), |parent| (parent.uid, parent.gid));
    item.mode = (S_IFREG | 0o600).into();
    (item.size, item.flags) = (size.into(), flags.into());
    let now = forest.time();
    (item.atime, item.ctime, item.mtime, item.otime) = (now, now, now, now);
    forest.put(tree, inode_key(inode), item.as_bytes()).map(drop)
}

/// Makes a file readable for root alone, because its data may be what others have deleted.
pub(crate) fn give_to_root(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let Some(mut item) = item_of(forest, tree, inode)? else { return Ok(()) };
    (item.uid, item.gid, item.mode) = (0.into(), 0.into(), (item.mode.get() & S_IFMT | 0o600).into());
    forest.put(tree, inode_key(inode), item.as_bytes())?;
    let what =
        format!("gives inode {inode} of tree {tree} to root, because nothing verifies the extents put back into it");
    forest.lose(Pass::Files, what, "its owner and mode");
    Ok(())
}

/// The directory `lost+found` of a tree, made where there is none.
pub(crate) fn lost_and_found(forest: &mut Forest, tree: TreeId) -> Result<u64> {
    let root = Ino::ROOT_DIR.get();
    if let Some(entry) = by_hash(forest, tree, root, LOST_AND_FOUND)?
        && !entry.is_subvolume()
        && is_directory(forest, tree, entry.location.objectid)?
    {
        return Ok(entry.location.objectid);
    }
    make_root_directory(forest, tree)?;
    let name = free_name(forest, tree, root, "lost+found")?;
    let inode = forest.last_inode(tree)? + 1;
    let item = directory(forest, 0o700);
    forest.put(tree, inode_key(inode), item.as_bytes())?;
    add_name(forest, tree, root, &name, inode, dir_type::DIR)?;
    Ok(inode)
}

/// A name like `wanted` that the directory does not have.
pub(crate) fn free_name(forest: &Forest, tree: TreeId, directory: u64, wanted: &str) -> Result<Vec<u8>> {
    let mut name = wanted.as_bytes().to_vec();
    let mut number = 1;
    while by_hash(forest, tree, directory, &name)?.is_some() {
        number += 1;
        name = format!("{wanted}-{number}").into_bytes();
    }
    Ok(name)
}

/// Gives an inode a name, on all three places.
fn add_name(forest: &mut Forest, tree: TreeId, directory: u64, name: &[u8], inode: u64, kind: u8) -> Result<()> {
    let index = next_index(forest, tree, directory)?;
    let transid = forest.store.generation.get();
    let entry = Entry { location: inode_key(inode), transid, kind, name: name.to_vec() };
    put_by_hash(forest, tree, directory, name, Some(&entry))?;
    put_by_index(forest, tree, directory, index, Some(&entry))?;
    put_link(forest, tree, inode, &Link { directory, index, name: name.to_vec() })?;
    write(forest, tree, directory)
}

/// Gives an inode without a name one in `lost+found`; in a deleted subvolume an orphan item.
pub(crate) fn adopt(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let is_live = forest.trees.get(&tree).is_some_and(|root| root.is_live_subvolume());
    if !is_live {
        forest.put(tree, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, inode), &[])?;
        forest.did(Pass::Inodes, format!("gives inode {inode} of the deleted subvolume {tree} its orphan item"));
        return Ok(());
    }
    let Some(kind) = entry_kind(forest, tree, inode)? else { return Ok(()) };
    if !links_of(forest, tree, inode)?.is_empty() {
        return Ok(());
    }
    let directory = lost_and_found(forest, tree)?;
    let name = free_name(forest, tree, directory, &inode.to_string())?;
    add_name(forest, tree, directory, &name, inode, kind)?;
    write(forest, tree, inode)?;
    let name = entries::shown(&name);
    forest.lose(Pass::Inodes, format!("gives inode {inode} of tree {tree} the name lost+found/{name}"), "its name");
    Ok(())
}

/// Orphan items of a subvolume: those of inodes that are not deleted go. In a read-only one, in which nothing is open,
/// the others go too, with their inodes.
pub(crate) fn settle_orphans(forest: &mut Forest, tree: TreeId) -> Result<()> {
    let Some(root) = forest.trees.get(&tree).filter(|root| root.is_live_subvolume()) else { return Ok(()) };
    let is_read_only = root.item.flags.get() & RootItem::RDONLY != 0;
    for (key, _) in forest.of_kind(tree, objectid::ORPHAN, KeyType::ORPHAN_ITEM)? {
        let (inode, item) = (key.offset, item_of(forest, tree, key.offset)?);
        let is_named = !links_of(forest, tree, inode)?.is_empty();
        let is_deleted = !is_named && item.is_some_and(|item| item.nlink.get() == 0);
        match (is_read_only, is_deleted) {
            (false, true) => continue,
            (true, _) if !is_named => delete_orphan(forest, tree, inode)?,
            _ => drop_unfinished_verity(forest, tree, inode, item)?,
        }
        forest.remove(tree, key)?;
        forest.did(Pass::Inodes, format!("removes the orphan item of inode {inode} of tree {tree}"));
    }
    Ok(())
}

fn delete_orphan(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    if remove_items(forest, tree, inode)? {
        let what =
            format!("deletes inode {inode} of the read-only subvolume {tree}, which was deleted while it was open");
        forest.did(Pass::Inodes, what);
    }
    Ok(())
}

/// Removes the items of fs-verity from a file for which it was not enabled to the end. Enabling it adds an orphan item
/// first, so that a crash leaves a mark.
fn drop_unfinished_verity(forest: &mut Forest, tree: TreeId, inode: u64, item: Option<InodeItem>) -> Result<()> {
    if item.is_none_or(|item| item.flags.get() & inode_flags::VERITY != 0) {
        return Ok(());
    }
    for kind in [KeyType::VERITY_DESC_ITEM, KeyType::VERITY_MERKLE_ITEM] {
        for (key, _) in forest.of_kind(tree, inode, kind)? {
            forest.remove(tree, key)?;
        }
    }
    Ok(())
}
