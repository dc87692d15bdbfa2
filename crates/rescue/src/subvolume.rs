//! Files and directories as a tree has them: inodes, names, extended attributes, extents.
//!
//! Invariant: every payload is parsed without trust; what cannot be parsed is left out.

use crate::tree::{Losses, Tree};
use crate::trust::Trust;
use butterfs_fs::file_extent::{ExtentKind, FileExtent, INLINE_HEAD};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{
    DirItem, FileExtentBody, FileExtentHead, InodeExtref, InodeItem, InodeRef, dir_type, file_extent_type,
};
use butterfs_ondisk::{Key, KeyType, TreeId};
use rustc_hash::FxHashSet;
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
    /// How far name and target can be believed.
    pub trust: Trust,
    /// Items of the directory contradict each other about it; this is what most of them say.
    pub is_disputed: bool,
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
    /// How far the item can be believed.
    pub trust: Trust,
    /// How far the names can be believed.
    pub names_trust: Trust,
    /// How far the extended attributes can be believed.
    pub xattrs_trust: Trust,
    /// Blocks that are gone or damaged and that may have had more of it.
    pub losses: Losses,
}

/// An extent item of a file.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The parsed item.
    pub extent: FileExtent,
    /// The bytes of an inline extent, as they are stored.
    pub inline: Vec<u8>,
    /// How far the item can be believed.
    pub trust: Trust,
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
    plausible.then(|| Entry { name: name.to_vec(), target, kind, trust: Trust::Proved, is_disputed: false })
}

/// A statement about a name, and how many items make it.
struct Statement {
    entry: Entry,
    has_hashed_item: bool,
    items: u32,
}

/// The names that a directory has, each once: its index, and what only the hashed items have. Of two statements about
/// a name the one counts that can be believed more, then the one that its inode confirms. Of an inode with a proved
/// name no doubtful ones are taken. A name that does not fit the hash in its key gives way to the one of its inode that
/// does; one that the index has alone does not count against the inode and its hashed item.
pub fn entries(tree: &Tree<'_>, ino: u64) -> (Vec<Entry>, Losses) {
    let mut by_name: BTreeMap<Vec<u8>, (usize, Vec<Statement>)> = BTreeMap::new();
    let losses = tree.scan_object(ino, KeyType::DIR_ITEM, KeyType::DIR_INDEX, &mut |key, data, quality| {
        for (location, kind, name, _) in dir_items(data) {
            let entry = entry_of(location, kind, name).map(|entry| Entry { trust: quality.trust(), ..entry });
            let has_hashed_item = key.kind == KeyType::DIR_ITEM;
            let entry = entry
                .and_then(|entry| if has_hashed_item { hashed(tree, ino, entry, key.offset) } else { Some(entry) });
            let Some(entry) = entry else { continue };
            let number = by_name.len();
            let (_, known) = by_name.entry(entry.name.clone()).or_insert((number, Vec::new()));
            let is_same = |known: &&mut Statement| (known.entry.target, known.entry.kind) == (entry.target, entry.kind);
            if let Some(said) = known.iter_mut().find(is_same) {
                said.entry.trust = said.entry.trust.min(entry.trust);
                said.entry.is_disputed |= entry.is_disputed;
                said.has_hashed_item |= has_hashed_item;
                said.items += 1;
            } else if known.len() < MOST_STATEMENTS {
                known.push(Statement { entry, has_hashed_item, items: 1 });
            }
        }
        ControlFlow::Continue(())
    });
    let mut found: Vec<(usize, Statement)> =
        by_name.into_values().map(|(number, statements)| (number, choose(tree, ino, statements))).collect();
    found.sort_by_key(|(number, _)| *number);
    let mut found: Vec<Statement> = found.into_iter().map(|(_, statement)| statement).collect();
    outvote(tree, ino, &mut found);
    let mut found: Vec<Entry> = found.into_iter().map(|statement| statement.entry).collect();
    confirm(tree, ino, &mut found);
    (found, losses)
}

/// An entry of a hashed item: the hash is a checksum of the name. Where they contradict each other, the name of the
/// inode that fits the hash counts; without one the entry is doubtful, and from a damaged block it is none.
fn hashed(tree: &Tree<'_>, directory: u64, entry: Entry, hash: u64) -> Option<Entry> {
    if name_hash(&entry.name) == hash {
        return Some(entry);
    }
    let is_damaged = entry.trust == Trust::Doubtful;
    let Target::Inode(ino) = entry.target else { return Some(entry).filter(|_| !is_damaged) };
    let names = inode(tree, ino).names;
    let known = names.into_iter().find(|(parent, name)| *parent == directory && name_hash(name) == hash);
    match known {
        Some((_, name)) => Some(Entry { name, is_disputed: true, ..entry }),
        None if is_damaged => None,
        None => Some(Entry { trust: Trust::Doubtful, is_disputed: true, ..entry }),
    }
}

/// Drops names that only one item of the index has, that the inode does not know, and in whose place the inode has
/// another one in this directory.
fn outvote(tree: &Tree<'_>, directory: u64, found: &mut Vec<Statement>) {
    let is_alone =
        |one: &Statement| one.items == 1 && !one.has_hashed_item && !is_confirmed(tree, directory, &one.entry);
    let alone: Vec<bool> = found.iter().map(is_alone).collect();
    if !alone.contains(&true) {
        return;
    }
    let others: FxHashSet<Target> =
        found.iter().zip(&alone).filter(|(_, alone)| !**alone).map(|(one, _)| one.entry.target).collect();
    let is_inode = |target: Target| matches!(target, Target::Inode(_));
    let is_outvoted = |one: &Statement| is_inode(one.entry.target) && others.contains(&one.entry.target);
    let outvoted: Vec<bool> = found.iter().zip(&alone).map(|(one, alone)| *alone && is_outvoted(one)).collect();
    let targets: FxHashSet<Target> =
        found.iter().zip(&outvoted).filter(|(_, out)| **out).map(|(one, _)| one.entry.target).collect();
    let mut flags = outvoted.into_iter();
    found.retain(|_| !flags.next().unwrap_or_default());
    let disputed = found.iter_mut().filter(|one| targets.contains(&one.entry.target));
    disputed.for_each(|one| one.entry.is_disputed = true);
}

/// The target of a name, as the directory's hashed item has it.
pub fn hashed_target(tree: &Tree<'_>, directory: u64, name: &[u8]) -> Option<Target> {
    let data = tree.item(Key::new(directory, KeyType::DIR_ITEM, name_hash(name)))?;
    let (location, kind, ..) = dir_items(&data).find(|(_, _, own, _)| *own == name)?;
    entry_of(location, kind, name).map(|entry| entry.target)
}

/// Statements about one name that are compared.
const MOST_STATEMENTS: usize = 8;

fn choose(tree: &Tree<'_>, directory: u64, mut statements: Vec<Statement>) -> Statement {
    if statements.len() > 1 {
        statements.sort_by_key(|one| (one.entry.trust, !is_confirmed(tree, directory, &one.entry)));
        let is_contradicted = statements[1].entry.trust == statements[0].entry.trust;
        statements[0].entry.is_disputed |= is_contradicted;
    }
    statements.swap_remove(0)
}

/// Whether the inode that an entry names knows that name.
fn is_confirmed(tree: &Tree<'_>, directory: u64, entry: &Entry) -> bool {
    let Target::Inode(ino) = entry.target else { return false };
    let inode = inode(tree, ino);
    let is_of_kind = inode.item.is_none_or(|item| item.mode.get() & TYPE_MASK == mode_of(entry.kind) & TYPE_MASK);
    is_of_kind && inode.names.iter().any(|(parent, name)| *parent == directory && *name == entry.name)
}

/// Believes doubtful entries that their inodes confirm, and drops doubtful names of inodes that have others.
fn confirm(tree: &Tree<'_>, directory: u64, entries: &mut Vec<Entry>) {
    if entries.iter().all(|entry| entry.trust < Trust::Doubtful) {
        return;
    }
    for entry in entries.iter_mut().filter(|entry| entry.trust == Trust::Doubtful) {
        let Target::Inode(ino) = entry.target else { continue };
        if is_confirmed(tree, directory, entry) {
            entry.trust = inode(tree, ino).names_trust.min(entry.trust);
        }
    }
    let proved: FxHashSet<Target> =
        entries.iter().filter(|entry| entry.trust < Trust::Doubtful).map(|entry| entry.target).collect();
    let is_out = |entry: &Entry| entry.trust >= Trust::Doubtful && proved.contains(&entry.target);
    let disputed: FxHashSet<Target> =
        entries.iter().filter(|entry| entry.is_disputed && is_out(entry)).map(|entry| entry.target).collect();
    entries.retain(|entry| !is_out(entry));
    entries.iter_mut().for_each(|entry| entry.is_disputed |= disputed.contains(&entry.target));
}

/// Collects everything that the tree has about an inode.
pub fn inode(tree: &Tree<'_>, ino: u64) -> Inode {
    let mut found = Inode { trust: Trust::Guessed, ..Inode::default() };
    let losses = tree.scan_object(ino, KeyType::INODE_ITEM, KeyType::XATTR_ITEM, &mut |key, data, quality| {
        let trust = quality.trust();
        match key.kind {
            KeyType::INODE_ITEM => {
                found.item = InodeItem::read_from_prefix(data).ok().map(|(item, _)| item);
                found.trust = if found.item.is_some() { trust } else { Trust::Guessed };
            }
            KeyType::INODE_REF => {
                found.names.extend(references(data).map(|name| (key.offset, name.to_vec())));
                found.names_trust = found.names_trust.max(trust);
            }
            KeyType::INODE_EXTREF => {
                found.names.extend(extended_references(data));
                found.names_trust = found.names_trust.max(trust);
            }
            KeyType::XATTR_ITEM => {
                let values = dir_items(data).filter(|(_, kind, ..)| *kind == dir_type::XATTR);
                found.xattrs.extend(values.map(|(_, _, name, value)| (name.to_vec(), value.to_vec())));
                found.xattrs_trust = found.xattrs_trust.max(trust);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    found.losses = losses;
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
    let losses = tree.scan_object(ino, KeyType::EXTENT_DATA, KeyType::EXTENT_DATA, &mut |key, data, quality| {
        let mut parsed = FileExtent::parse(key, data, sector).ok().filter(|extent| extent.start >= end);
        let is_inline = parsed.as_ref().is_some_and(|extent| extent.kind == ExtentKind::Inline);
        let inline = if is_inline { data.get(INLINE_HEAD..).unwrap_or_default().to_vec() } else { Vec::new() };
        let mut trust = quality.trust();
        // The length of inline data that is not packed is that of its item, whatever its head says; but an item of the
        // length of another kind may be one of that kind.
        let of_item = parsed.as_mut().filter(|extent| is_inline && extent.compression == 0);
        if let Some(extent) = of_item.filter(|extent| extent.ram_bytes != inline.len() as u64)
            && (1..=sector).contains(&(inline.len() as u64))
            && data.len() != INLINE_HEAD + FileExtentBody::LEN
        {
            (extent.ram_bytes, trust) = (inline.len() as u64, trust.max(Trust::Doubtful));
        }
        // Inline data that is not packed is all there.
        let is_whole =
            |extent: &FileExtent| !is_inline || extent.compression != 0 || extent.ram_bytes <= inline.len() as u64;
        match parsed.filter(is_whole) {
            Some(extent) => {
                end = extent.end();
                visit(Extent { extent, inline, trust })
            }
            None => {
                bad += 1;
                ControlFlow::Continue(())
            }
        }
    });
    (bad, losses)
}

/// The target of a symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkTarget {
    /// The path in it.
    pub path: Vec<u8>,
    /// How far its item can be believed.
    pub trust: Trust,
    /// The item's length, the length that it names and that of the inode are not the same, or its head is damaged.
    pub contradicts: bool,
}

/// The target of a symbolic link; `None` if no item has it. The bytes are in its first extent item, and of the three
/// lengths that are known (that of the item, the one in it, that of the inode) two decide.
pub fn link_target(tree: &Tree<'_>, ino: u64, inode_item: Option<&InodeItem>) -> Option<LinkTarget> {
    let mut target = None;
    tree.scan_object(ino, KeyType::EXTENT_DATA, KeyType::EXTENT_DATA, &mut |key, data, quality| {
        target = target_of(key, data, inode_item, quality.trust());
        if target.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let is_path = |target: &LinkTarget| (1..=LONGEST_TARGET).contains(&target.path.len()) && !target.path.contains(&0);
    target.filter(is_path)
}

fn target_of(key: Key, data: &[u8], inode_item: Option<&InodeItem>, trust: Trust) -> Option<LinkTarget> {
    let (head, path) = (FileExtentHead::read_from_prefix(data).ok()?.0, data.get(INLINE_HEAD..)?);
    let is_plain = head.kind == file_extent_type::INLINE && head.compression == 0 && head.encryption == 0;
    let is_sound = is_plain && head.other_encoding.get() == 0 && key.offset == 0;
    let (own, named) = (path.len() as u64, head.ram_bytes.get());
    let size = inode_item.map(|item| item.size.get());
    // mkfs.btrfs stores the targets of a folder's links with a zero behind them.
    let is_terminated = own == named && path.last() == Some(&0) && size == own.checked_sub(1);
    let len = if is_terminated {
        own - 1
    } else if own == named || Some(own) == size {
        own
    } else if Some(named) == size && named < own {
        named
    } else {
        return None;
    };
    // Without its head only the inode says that these bytes are all.
    let is_certain = is_plain || Some(len) == size;
    let contradicts = !is_sound || own != named || (!is_terminated && size.is_some_and(|size| size != own));
    is_certain.then(|| LinkTarget { path: path[..len as usize].to_vec(), trust, contradicts })
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
