//! Files and directories as a tree has them: inodes, names, extended attributes, extents.
//!
//! Invariant: every payload is parsed without trust; what cannot be parsed is left out.

use crate::block::Quality;
use crate::tree::{Losses, Tree};
use butterfs_fs::file_extent::FileExtent;
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{DirItem, InodeExtref, InodeItem, InodeRef, dir_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// The type bits of a mode.
pub const TYPE_MASK: u32 = 0o170000;
/// Regular file.
pub const REGULAR: u32 = 0o100000;
/// Directory.
pub const DIRECTORY: u32 = 0o040000;
/// Symbolic link.
pub const SYMLINK: u32 = 0o120000;
/// The longest name that the format has.
pub const LONGEST_NAME: usize = 255;
/// The longest target of a symbolic link.
const LONGEST_TARGET: usize = 4095;

/// The target of a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Target {
    /// An inode of the same tree.
    Inode(u64),
    /// The root directory of another one.
    Subvolume(TreeId),
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode or subvolume.
    pub target: Target,
    /// Type of the inode, see [`dir_type`].
    pub kind: u8,
}

/// All that a tree has about one inode, but its content.
#[derive(Clone, Debug, Default)]
pub struct Inode {
    /// Its item.
    pub item: Option<InodeItem>,
    /// Its names: directory and name.
    pub names: Vec<(u64, Vec<u8>)>,
    /// Its extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The worst block that any of this comes from.
    pub quality: Option<Quality>,
    /// Blocks that may have had more of it.
    pub lost_blocks: u64,
}

/// An extent item of a file.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The parsed item.
    pub extent: FileExtent,
    /// The bytes of an inline extent, as they are stored.
    pub inline: Vec<u8>,
}

/// The directory items in a payload: location, type, name, value.
fn dir_items(mut payload: &[u8]) -> impl Iterator<Item = (Key, u8, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (item, rest) = DirItem::read_from_prefix(payload).ok()?;
        let (name, rest) = rest.split_at_checked(usize::from(item.name_len.get()))?;
        let (value, rest) = rest.split_at_checked(usize::from(item.data_len.get()))?;
        payload = rest;
        Some((item.location.into(), item.kind, name, value))
    })
}

fn entry_of(location: Key, kind: u8, name: &[u8]) -> Option<Entry> {
    let target = match location.kind {
        KeyType::ROOT_ITEM => Target::Subvolume(TreeId(location.objectid)),
        KeyType::INODE_ITEM => Target::Inode(location.objectid),
        _ => return None,
    };
    let plausible = !name.is_empty() && name.len() <= LONGEST_NAME && kind != dir_type::XATTR;
    plausible.then(|| Entry { name: name.to_vec(), target, kind })
}

/// The names that a directory has, each once: its index, and what only the hashed items have, or other inodes say.
pub fn entries(tree: &Tree<'_>, ino: u64) -> (Vec<Entry>, Losses) {
    let mut by_name: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
    let mut order = Vec::new();
    let losses = tree.scan_object(ino, KeyType::DIR_ITEM, KeyType::DIR_INDEX, &mut |key, data, quality| {
        for (location, kind, name, _) in dir_items(data) {
            let is_doubtful = quality == Quality::Pieces || quality == Quality::BadChecksum;
            let is_wrong = key.kind == KeyType::DIR_ITEM && is_doubtful && name_hash(name) != key.offset;
            let Some(entry) = entry_of(location, kind, name).filter(|_| !is_wrong) else { continue };
            if !by_name.contains_key(&entry.name) {
                order.push(entry.name.clone());
                by_name.insert(entry.name.clone(), entry);
            }
        }
        ControlFlow::Continue(())
    });
    let found = order.into_iter().filter_map(|name| by_name.remove(&name)).collect();
    (found, losses)
}

/// Collects everything that the tree has about an inode.
pub fn inode(tree: &Tree<'_>, ino: u64) -> Inode {
    let mut found = Inode::default();
    let losses = tree.scan_object(ino, KeyType::INODE_ITEM, KeyType::XATTR_ITEM, &mut |key, data, quality| {
        found.quality = found.quality.max(Some(quality));
        match key.kind {
            KeyType::INODE_ITEM => found.item = InodeItem::read_from_prefix(data).ok().map(|(item, _)| item),
            KeyType::INODE_REF => found.names.extend(references(data).map(|name| (key.offset, name.to_vec()))),
            KeyType::INODE_EXTREF => found.names.extend(extended_references(data)),
            KeyType::XATTR_ITEM => {
                let values = dir_items(data).filter(|(_, kind, ..)| *kind == dir_type::XATTR);
                found.xattrs.extend(values.map(|(_, _, name, value)| (name.to_vec(), value.to_vec())));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    found.lost_blocks = losses.blocks;
    found
}

/// The names in an INODE_REF.
pub fn references(mut payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (item, rest) = InodeRef::read_from_prefix(payload).ok()?;
        let (name, rest) = rest.split_at_checked(usize::from(item.name_len.get()))?;
        payload = rest;
        Some(name)
    })
}

fn extended_references(mut payload: &[u8]) -> impl Iterator<Item = (u64, Vec<u8>)> {
    std::iter::from_fn(move || {
        let (item, rest) = InodeExtref::read_from_prefix(payload).ok()?;
        let (name, rest) = rest.split_at_checked(usize::from(item.name_len.get()))?;
        payload = rest;
        Some((item.parent.get(), name.to_vec()))
    })
}

/// Shows the extents of a file in order. Those that break a rule, or overlap one before, are counted and left out.
pub fn extents(tree: &Tree<'_>, ino: u64, visit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> (u64, Losses) {
    let (mut bad, mut end) = (0, 0);
    let sector = tree.wreck.sectorsize();
    let losses =
        tree.scan_object(ino, KeyType::EXTENT_DATA, KeyType::EXTENT_DATA, &mut |key, data, _| match FileExtent::parse(
            key, data, sector,
        ) {
            Ok(extent) if extent.start >= end => {
                end = extent.end();
                let is_inline = extent.kind == butterfs_fs::file_extent::ExtentKind::Inline;
                let head = butterfs_fs::file_extent::INLINE_HEAD;
                let inline = if is_inline { data.get(head..).unwrap_or_default().to_vec() } else { Vec::new() };
                visit(Extent { extent, inline })
            }
            _ => {
                bad += 1;
                ControlFlow::Continue(())
            }
        });
    (bad, losses)
}

/// Where a symbolic link leads; `None`: nothing says so.
pub fn link_target(tree: &Tree<'_>, ino: u64) -> Option<Vec<u8>> {
    let mut target = None;
    extents(tree, ino, &mut |extent| {
        target = Some(extent.inline);
        ControlFlow::Break(())
    });
    target.filter(|target| !target.is_empty() && target.len() <= LONGEST_TARGET && !target.contains(&0))
}

/// The mode of an inode of which only the type in its directory is known: nobody but the owner gets in.
pub fn mode_of(kind: u8) -> u32 {
    match kind {
        dir_type::DIR => DIRECTORY | 0o700,
        dir_type::SYMLINK => SYMLINK | 0o777,
        dir_type::FIFO => 0o010600,
        dir_type::SOCK => 0o140600,
        dir_type::CHRDEV => 0o020600,
        dir_type::BLKDEV => 0o060600,
        _ => REGULAR | 0o600,
    }
}

/// The first directory of a tree that has a name in it.
pub fn first_directory(tree: &Tree<'_>) -> Option<u64> {
    let mut found = None;
    tree.scan(Key::MIN, Key::MAX, &mut |key, _, _| {
        if key.kind == KeyType::DIR_INDEX || key.kind == KeyType::DIR_ITEM {
            found = Some(key.objectid);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}
