//! The items of a subvolume: numbers for its inodes in the order of their paths, and everything about each of them.

use crate::blocks::Items;
use crate::data::{Data, Extent, Stored};
use crate::entry::Time;
use crate::error::{Error, Result};
use crate::pool::SECTOR;
use crate::tree::{Body, Id, Inode, Tree, Xattr, file_type};
use butterfs_fs::mkfs::GENERATION;
use butterfs_ondisk::checksum::{extref_hash, name_hash};
use butterfs_ondisk::header::leaf_data_size;
use butterfs_ondisk::items::*;
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};
use zerocopy::{FromZeros, IntoBytes};

/// Index of a folder's first entry.
const FIRST_INDEX: u64 = 2;
/// Most links of an inode, as the kernel has it.
const MAX_LINKS: usize = 65535;

/// A name of an inode.
#[derive(Clone, Copy)]
struct Name<'t> {
    parent: u64,
    index: u64,
    name: &'t [u8],
}

/// A subvolume that stands in a folder of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// The subvolume.
    pub subvolume: u32,
    /// The folder's inode number.
    pub folder: u64,
    /// Index of the entry.
    pub index: u64,
    /// Name of the entry.
    pub name: Vec<u8>,
}

/// A subvolume with the numbers of its inodes.
pub struct Numbered<'t> {
    tree: &'t Tree,
    /// The tree of its items.
    pub id: TreeId,
    /// The inodes in the order of their numbers, with their first names.
    inodes: Vec<(u64, Id, Name<'t>)>,
    /// Whether the numbers are those of the tree.
    keeps: bool,
    /// The other names of those that have several.
    more_names: FxHashMap<Id, Vec<Name<'t>>>,
    /// The numbers of inodes that have several names in the whole tree, and of folders.
    numbers: FxHashMap<Id, u64>,
    /// The number of the first child that is numbered with its folder, by folder; see `number_of`.
    first_children: FxHashMap<Id, u64>,
    /// The subvolumes inside.
    pub nested: Vec<Nested>,
}

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The extent.
    pub address: u64,
    /// Its bytes on disk.
    pub stored: u64,
    /// The tree.
    pub root: u64,
    /// The inode.
    pub inode: u64,
    /// Where the extent begins in the file.
    pub offset: u64,
}

/// The input of items besides the tree.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Contents.
    pub data: &'a Data,
    /// The tree of each subvolume.
    pub roots: &'a [TreeId],
    /// The time of what no source has.
    pub epoch: Time,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Whether holes have no items.
    pub no_holes: bool,
}

impl<'t> Numbered<'t> {
    /// Numbers the inodes from `top` down: the children of a folder follow each other, then come those of the first
    /// folder among them.
    ///
    /// With `keeps`, the numbers are those of the tree, so that an inode has the same number in all snapshots, and no
    /// other one has it: what differs between two of them can be sent.
    pub fn new(tree: &'t Tree, id: TreeId, top: Id, keeps: bool) -> Result<Numbered<'t>> {
        let dots = Name { parent: Ino::ROOT_DIR.0, index: 0, name: b".." };
        let mut it = Numbered {
            tree,
            id,
            inodes: vec![(Ino::ROOT_DIR.0, top, dots)],
            keeps,
            more_names: FxHashMap::default(),
            numbers: FxHashMap::default(),
            first_children: FxHashMap::default(),
            nested: Vec::new(),
        };
        it.numbers.insert(top, Ino::ROOT_DIR.0);
        let mut waiting = vec![top];
        while let Some(folder) = waiting.pop() {
            let from = waiting.len();
            it.number_children(folder, &mut waiting)?;
            waiting[from..].reverse();
        }
        it.inodes.sort_by_key(|(number, ..)| *number);
        Ok(it)
    }

    fn number_children(&mut self, folder: Id, waiting: &mut Vec<Id>) -> Result<()> {
        let parent = self.numbers[&folder];
        self.first_children.insert(folder, Ino::ROOT_DIR.0 + self.inodes.len() as u64);
        let children = &self.tree.get(folder).folder().expect("only folders wait").children;
        for (index, (name, &id)) in (FIRST_INDEX..).zip(children) {
            let inode = self.tree.get(id);
            let name = Name { parent, index, name };
            if let Some(subvolume) = inode.folder().and_then(|folder| folder.subvolume) {
                let nested = Nested { subvolume, folder: parent, index, name: name.name.to_vec() };
                self.nested.push(nested);
                continue;
            }
            if inode.names > 1
                && let Some(number) = self.numbers.get(&id)
            {
                let names = self.more_names.entry(id).or_default();
                names.push(name);
                if names.len() >= MAX_LINKS {
                    return Err(Error::content(format!("inode {number} has more than {MAX_LINKS} names")));
                }
                continue;
            }
            let number = match self.keeps {
                true => Ino::ROOT_DIR.0 + u64::from(self.tree.origin(id)),
                false => Ino::ROOT_DIR.0 + self.inodes.len() as u64,
            };
            self.inodes.push((number, id, name));
            if self.keeps || inode.names > 1 || inode.folder().is_some() {
                self.numbers.insert(id, number);
            }
            if inode.folder().is_some() {
                waiting.push(id);
            }
        }
        Ok(())
    }

    /// How many inodes there are.
    pub fn len(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Hands over all items.
    pub fn items(&self, context: Context<'_>, out: &mut dyn Items) -> Result<()> {
        for (number, id, name) in &self.inodes {
            let (number, inode) = (*number, self.tree.get(*id));
            let more = self.more_names.get(id).map_or(&[][..], Vec::as_slice);
            let writer = InodeItems { number, inode, context };
            let sequence = if self.keeps { trace(inode, *name, more) } else { 0 };
            writer.inode_item(1 + more.len() as u32, sequence, out)?;
            writer.names(*name, more, out)?;
            writer.xattrs(out)?;
            if let Some(folder) = inode.folder() {
                let entries: Vec<Entry<'_>> = self.entries(*id, folder.children.iter(), context.roots).collect();
                writer.entries_by_hash(&entries, out)?;
                writer.entries_by_index(&entries, out)?;
            }
            writer.content(out)?;
        }
        Ok(())
    }

    /// Hands over all references to extents.
    pub fn references(&self, data: &Data, out: &mut Vec<Reference>) {
        for (inode, id, _) in &self.inodes {
            let inode = *inode;
            let Body::File(_, content) = self.tree.get(*id).body else { continue };
            if let Stored::Extents(extents) = data.stored(content) {
                out.extend(extents.iter().map(|extent| {
                    let Extent { at, address, stored, .. } = *extent;
                    Reference { address, stored, root: self.id.0, inode, offset: at }
                }));
            }
        }
    }

    /// The entries of a folder. Without kept numbers, those of children that are numbered with it follow each other.
    fn entries<'a>(
        &'a self,
        folder: Id,
        children: impl Iterator<Item = (&'a Box<[u8]>, &'a Id)>,
        roots: &'a [TreeId],
    ) -> impl Iterator<Item = Entry<'a>> {
        let mut next = self.first_children[&folder];
        (FIRST_INDEX..).zip(children).map(move |(index, (name, &id))| {
            let inode = self.tree.get(id);
            let location = match (inode.folder().and_then(|folder| folder.subvolume), self.numbers.get(&id)) {
                (Some(subvolume), _) => Key::new(roots[subvolume as usize].0, KeyType::ROOT_ITEM, u64::MAX),
                (None, Some(&number)) => {
                    next += u64::from(number == next);
                    Key::new(number, KeyType::INODE_ITEM, 0)
                }
                (None, None) => {
                    next += 1;
                    Key::new(next - 1, KeyType::INODE_ITEM, 0)
                }
            };
            Entry { index, name, location, kind: entry_type(inode.mode) }
        })
    }
}

/// A number that differs where an inode has other names or attributes: Linux sends an inode whose names have changed
/// only if its inode item has changed too.
fn trace(inode: &Inode, name: Name<'_>, more: &[Name<'_>]) -> u64 {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for Name { parent, index, name } in std::iter::once(&name).chain(more) {
        add(&parent.to_le_bytes());
        add(&index.to_le_bytes());
        add(name);
    }
    for (name, value) in &inode.xattrs {
        add(name);
        add(value);
    }
    u64::from_le_bytes(hasher.finalize()[..8].try_into().expect("8 bytes"))
}

struct Entry<'a> {
    index: u64,
    name: &'a [u8],
    location: Key,
    kind: u8,
}

fn entry_type(mode: u32) -> u8 {
    match mode & file_type::MASK {
        file_type::FOLDER => dir_type::DIR,
        file_type::SYMLINK => dir_type::SYMLINK,
        file_type::CHARACTER => dir_type::CHRDEV,
        file_type::BLOCK => dir_type::BLKDEV,
        file_type::FIFO => dir_type::FIFO,
        file_type::SOCKET => dir_type::SOCK,
        _ => dir_type::REG_FILE,
    }
}

/// One inode.
struct InodeItems<'a> {
    number: u64,
    inode: &'a Inode,
    context: Context<'a>,
}

impl InodeItems<'_> {
    fn key(&self, kind: KeyType, offset: u64) -> Key {
        Key::new(self.number, kind, offset)
    }

    fn time(&self, time: Time) -> Timespec {
        Timespec::from(if time == crate::tree::IMPLIED { self.context.epoch } else { time })
    }

    fn inode_item(&self, links: u32, sequence: u64, out: &mut dyn Items) -> Result<()> {
        let inode = self.inode;
        let (size, nbytes) = self.sizes();
        let rdev = match inode.body {
            Body::Device(number) => number,
            _ => 0,
        };
        let [atime, ctime, otime] = inode.other_times().map(|time| self.time(time));
        let item = InodeItem {
            generation: GENERATION.0.into(),
            transid: GENERATION.0.into(),
            size: size.into(),
            nbytes: nbytes.into(),
            nlink: links.into(),
            uid: inode.uid.into(),
            gid: inode.gid.into(),
            mode: inode.mode.into(),
            rdev: rdev.into(),
            flags: u64::from(inode.flags).into(),
            sequence: sequence.into(),
            atime,
            ctime,
            mtime: self.time(inode.mtime),
            otime,
            ..InodeItem::default()
        };
        out.bytes(self.key(KeyType::INODE_ITEM, 0), item.as_bytes())
    }

    /// Bytes of content, and bytes that its extents cover.
    fn sizes(&self) -> (u64, u64) {
        match &self.inode.body {
            Body::Folder(folder) => (folder.children.keys().map(|name| 2 * name.len() as u64).sum(), 0),
            Body::Symlink(target) => (target.len() as u64, target.len() as u64),
            Body::File(size, content) => {
                let covered = match self.context.data.stored(*content) {
                    Stored::Nowhere => 0,
                    Stored::Inline { len, .. } => u64::from(*len),
                    Stored::Extents(extents) => extents.iter().map(|extent| extent.len).sum(),
                };
                (*size, covered)
            }
            _ => (0, 0),
        }
    }

    /// The names: those in one folder share an item as long as that fits into a leaf; the others have items of their
    /// own.
    fn names(&self, first: Name<'_>, more: &[Name<'_>], out: &mut dyn Items) -> Result<()> {
        if more.is_empty() {
            return out.bytes(self.key(KeyType::INODE_REF, first.parent), &inode_ref(&first));
        }
        let mut names: Vec<Name<'_>> = std::iter::once(first).chain(more.iter().copied()).collect();
        names.sort_by_key(|name| (name.parent, name.index));
        let room = leaf_data_size(self.context.nodesize) - butterfs_ondisk::header::ITEM_LEN;
        let mut extended: std::collections::BTreeMap<u64, Vec<u8>> = std::collections::BTreeMap::new();
        for names in names.chunk_by(|one, other| one.parent == other.parent) {
            let mut item = Vec::new();
            for name in names {
                let bytes = inode_ref(name);
                if item.len() + bytes.len() <= room {
                    item.extend_from_slice(&bytes);
                } else {
                    let bytes = inode_extref(name);
                    extended.entry(extref_hash(name.parent, name.name)).or_default().extend_from_slice(&bytes);
                }
            }
            out.bytes(self.key(KeyType::INODE_REF, names[0].parent), &item)?;
        }
        extended.iter().try_for_each(|(hash, item)| out.bytes(self.key(KeyType::INODE_EXTREF, *hash), item))
    }

    fn xattrs(&self, out: &mut dyn Items) -> Result<()> {
        let mut sorted: Vec<(u64, &Xattr)> =
            self.inode.xattrs.iter().map(|xattr| (name_hash(&xattr.0), xattr)).collect();
        sorted.sort_by_key(|(hash, _)| *hash);
        for same in sorted.chunk_by(|one, other| one.0 == other.0) {
            let item: Vec<u8> = same.iter().flat_map(|(_, xattr)| xattr_item(xattr)).collect();
            out.bytes(self.key(KeyType::XATTR_ITEM, same[0].0), &item)?;
        }
        Ok(())
    }

    fn entries_by_hash(&self, entries: &[Entry<'_>], out: &mut dyn Items) -> Result<()> {
        let mut sorted: Vec<(u64, usize)> =
            entries.iter().enumerate().map(|(slot, entry)| (name_hash(entry.name), slot)).collect();
        sorted.sort_unstable();
        for same in sorted.chunk_by(|one, other| one.0 == other.0) {
            let len = same.iter().map(|(_, slot)| DirItem::LEN + entries[*slot].name.len()).sum();
            out.item(self.key(KeyType::DIR_ITEM, same[0].0), len, &mut |mut bytes| {
                for (_, slot) in same {
                    let (own, rest) = bytes.split_at_mut(DirItem::LEN + entries[*slot].name.len());
                    entries[*slot].write(own);
                    bytes = rest;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn entries_by_index(&self, entries: &[Entry<'_>], out: &mut dyn Items) -> Result<()> {
        entries.iter().try_for_each(|entry| {
            out.item(self.key(KeyType::DIR_INDEX, entry.index), DirItem::LEN + entry.name.len(), &mut |bytes| {
                entry.write(bytes);
                Ok(())
            })
        })
    }

    fn content(&self, out: &mut dyn Items) -> Result<()> {
        match &self.inode.body {
            Body::Symlink(target) => {
                let head = inline_head(target.len() as u64, compression::NONE);
                out.bytes(self.key(KeyType::EXTENT_DATA, 0), &[head.as_bytes(), target].concat())
            }
            Body::File(size, content) => self.file(*size, self.context.data.stored(*content), out),
            _ => Ok(()),
        }
    }

    fn file(&self, size: u64, stored: &Stored, out: &mut dyn Items) -> Result<()> {
        match stored {
            Stored::Nowhere => self.hole(0, size, out),
            &Stored::Inline { at, stored, len, compression } => {
                let head = inline_head(len.into(), compression);
                let length = FileExtentHead::LEN + usize::from(stored);
                out.item(self.key(KeyType::EXTENT_DATA, 0), length, &mut |bytes| {
                    let (first, rest) = bytes.split_at_mut(FileExtentHead::LEN);
                    first.copy_from_slice(head.as_bytes());
                    self.context.data.inline(at, rest)
                })
            }
            Stored::Extents(extents) => {
                let mut end = 0;
                for extent in extents {
                    self.hole(end, extent.at, out)?;
                    out.bytes(self.key(KeyType::EXTENT_DATA, extent.at), file_extent(extent).as_bytes())?;
                    end = extent.at + extent.len;
                }
                self.hole(end, size, out)
            }
        }
    }

    /// A hole, where filesystems have items for them.
    fn hole(&self, start: u64, end: u64, out: &mut dyn Items) -> Result<()> {
        let end = end.next_multiple_of(SECTOR as u64);
        if self.context.no_holes || start >= end {
            return Ok(());
        }
        let hole = Extent { at: start, len: end - start, address: 0, stored: 0, compression: compression::NONE };
        out.bytes(self.key(KeyType::EXTENT_DATA, start), file_extent(&hole).as_bytes())
    }
}

impl Entry<'_> {
    fn write(&self, out: &mut [u8]) {
        let head = DirItem {
            location: DiskKey::from(self.location),
            transid: GENERATION.0.into(),
            data_len: 0.into(),
            name_len: (self.name.len() as u16).into(),
            kind: self.kind,
        };
        out[..DirItem::LEN].copy_from_slice(head.as_bytes());
        out[DirItem::LEN..].copy_from_slice(self.name);
    }
}

fn inode_ref(name: &Name<'_>) -> Vec<u8> {
    let head = InodeRef { index: name.index.into(), name_len: (name.name.len() as u16).into() };
    [head.as_bytes(), name.name].concat()
}

fn inode_extref(name: &Name<'_>) -> Vec<u8> {
    let (index, name_len) = (name.index.into(), (name.name.len() as u16).into());
    [InodeExtref { parent: name.parent.into(), index, name_len }.as_bytes(), name.name].concat()
}

fn xattr_item((name, value): &Xattr) -> Vec<u8> {
    let head = DirItem {
        location: DiskKey::default(),
        transid: GENERATION.0.into(),
        data_len: (value.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        kind: dir_type::XATTR,
    };
    [head.as_bytes(), name, value].concat()
}

fn inline_head(len: u64, compression: u8) -> FileExtentHead {
    FileExtentHead {
        generation: GENERATION.0.into(),
        ram_bytes: len.into(),
        compression,
        kind: file_extent_type::INLINE,
        ..FileExtentHead::new_zeroed()
    }
}

fn file_extent(extent: &Extent) -> FileExtent {
    FileExtent {
        head: FileExtentHead {
            generation: GENERATION.0.into(),
            ram_bytes: extent.len.into(),
            compression: extent.compression,
            kind: file_extent_type::REGULAR,
            ..FileExtentHead::new_zeroed()
        },
        body: FileExtentBody {
            disk_bytenr: extent.address.into(),
            disk_num_bytes: extent.stored.into(),
            offset: 0.into(),
            num_bytes: extent.len.into(),
        },
    }
}

/// The longest target of a symbolic link in tree blocks of this size, and the longest extended attribute with its name.
pub fn longest(nodesize: u32) -> (usize, usize) {
    /// The longest path that the kernel resolves.
    const PATH: usize = 4095;
    let room = leaf_data_size(nodesize) - butterfs_ondisk::header::ITEM_LEN;
    ((room - FileExtentHead::LEN).min(PATH), room - DirItem::LEN)
}
