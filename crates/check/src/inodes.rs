//! The inodes of one subvolume, in one pass in the order of their numbers.
//!
//! An inode's own items lie together, so its counts and its extents are checked as they pass by. Names are spread over
//! the tree: each side adds up a hash of what it says, in any order, and only where the sums differ does a further pass
//! ask which names they are (`names`). So memory does not grow with the subvolume.

use crate::csums::Checksums;
use crate::finding::{Finding, Tree};
use crate::names::{self, Entry, NameSums};
use crate::roots::Name;
use crate::session::Session;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type, inode_flags};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use butterfs_tree::Node;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// The inode that is passing by.
#[derive(Default)]
struct Inode {
    number: u64,
    item: Option<InodeItem>,
    links: u64,
    /// Of a directory: bytes of names in each kind of entry, and the sums of the entries.
    name_bytes: u64,
    by_hash: u64,
    by_index: u64,
    has_entries: bool,
    /// Of a file: the end of the last extent, the bytes, and the first place with neither extent nor hole.
    end: u64,
    bytes: u64,
    gap: Option<u64>,
    no_checksums_at: Option<u64>,
    odd_checksums_at: Option<u64>,
}

impl Inode {
    fn mode(&self) -> u32 {
        self.item.map_or(0, |item| item.mode.get())
    }

    fn is(&self, kind: u32) -> bool {
        self.mode() & S_IFMT == kind
    }
}

/// The pass over one subvolume.
pub(crate) struct InodePass<'s, 'a> {
    session: &'s Session<'a>,
    checksums: &'s Checksums,
    tree: TreeId,
    current: Option<Inode>,
    pub sums: NameSums,
    /// Inodes without a name, until an orphan item is found for each.
    nameless: BTreeSet<u64>,
    /// ROOT_REFs for which no entry was found yet.
    pub subvolumes: BTreeSet<Name>,
}

impl<'s, 'a> InodePass<'s, 'a> {
    pub fn new(session: &'s Session<'a>, checksums: &'s Checksums, tree: TreeId, subvolumes: BTreeSet<Name>) -> Self {
        let (current, sums, nameless) = Default::default();
        InodePass { session, checksums, tree, current, sums, nameless, subvolumes }
    }

    fn report(&self, finding: impl FnOnce(Tree) -> Finding) {
        self.session.report(finding(Tree(self.tree)));
    }

    pub fn leaf(&mut self, node: &Node) {
        node.items().for_each(|(key, data)| self.item(key, data));
    }

    fn item(&mut self, key: Key, data: &[u8]) {
        if key.objectid == objectid::ORPHAN {
            // The inode before may be the one that is meant.
            self.finish_inode();
            if key.kind == KeyType::ORPHAN_ITEM {
                self.nameless.remove(&key.offset);
            }
            return;
        }
        if key.objectid > Ino::LAST_FREE.get() {
            return;
        }
        if self.current.as_ref().is_none_or(|inode| inode.number != key.objectid) {
            self.finish_inode();
            self.current = Some(Inode { number: key.objectid, ..Inode::default() });
        }
        match key.kind {
            KeyType::INODE_ITEM => {
                let item = InodeItem::read_from_bytes(data).ok();
                self.current.iter_mut().for_each(|inode| inode.item = item);
            }
            KeyType::EXTENT_DATA => self.extent(key, data),
            _ => self.names(key, data),
        }
    }

    fn names(&mut self, key: Key, data: &[u8]) {
        let Some(inode) = self.current.as_mut() else { return };
        let mut wrong_hash = None;
        names::each(key, data, inode.mode(), &mut |entry| match entry {
            Entry::Reference { name, hash } => {
                inode.links += 1;
                if !name.is_root_dir() {
                    self.sums.references = self.sums.references.wrapping_add(name.digest());
                }
                wrong_hash = wrong_hash.or(hash.filter(|hash| *hash != key.offset));
            }
            Entry::ByHash { name } => {
                inode.has_entries = true;
                inode.name_bytes = inode.name_bytes.wrapping_add(name.name.len() as u64);
                inode.by_hash = inode.by_hash.wrapping_add(name.digest_without_index());
            }
            Entry::ByIndex { name } => {
                inode.has_entries = true;
                inode.name_bytes = inode.name_bytes.wrapping_add(name.name.len() as u64);
                inode.by_index = inode.by_index.wrapping_add(name.digest_without_index());
                if name.is_subvolume {
                    let (child, directory, index) = (name.inode, name.directory, name.index);
                    self.subvolumes.remove(&Name { child, directory, index, name: name.name.to_vec() });
                } else {
                    self.sums.entries = self.sums.entries.wrapping_add(name.digest());
                }
            }
        });
        if let Some(found) = wrong_hash {
            let (inode, stored) = (Ino(key.objectid), key.offset);
            self.report(|tree| Finding::ExtrefHash { tree, inode, stored, found });
        }
    }

    fn extent(&mut self, key: Key, data: &[u8]) {
        let sector = self.session.sectorsize();
        let Some(inode) = self.current.as_mut() else { return };
        let Ok((head, _)) = FileExtentHead::read_from_prefix(data) else { return };
        let (number, offset) = (Ino(key.objectid), key.offset);
        let overlaps = offset < inode.end;
        if offset > inode.end {
            inode.gap = inode.gap.or(Some(inode.end));
        }
        let mut bad_bounds = false;
        let length = if head.kind == file_extent_type::INLINE {
            inode.bytes = inode.bytes.wrapping_add(head.ram_bytes.get());
            head.ram_bytes.get().checked_next_multiple_of(sector).unwrap_or(u64::MAX)
        } else {
            let Ok(extent) = FileExtent::read_from_bytes(data) else { return };
            if extent.body.disk_bytenr.get() != 0 {
                inode.bytes = inode.bytes.wrapping_add(extent.body.num_bytes.get());
                let end = extent.body.offset.get().saturating_add(extent.body.num_bytes.get());
                let plain = head.compression == compression::NONE;
                let limit = if plain { extent.body.disk_num_bytes.get() } else { head.ram_bytes.get() };
                bad_bounds = end > limit;
                if !bad_bounds {
                    check_sums(inode, &extent, offset, self.checksums);
                }
            }
            extent.body.num_bytes.get()
        };
        inode.end = inode.end.max(offset.saturating_add(length));
        let stored = head.generation.get();
        if stored > self.session.sb.generation.get().saturating_add(1) {
            self.report(|tree| Finding::FileExtentGeneration { tree, inode: number, offset, stored });
        }
        if overlaps {
            self.report(|tree| Finding::FileOverlap { tree, inode: number, offset });
        }
        if bad_bounds {
            self.report(|tree| Finding::FileExtentBounds { tree, inode: number, offset });
        }
    }

    fn finish_inode(&mut self) {
        let Some(inode) = self.current.take() else { return };
        let number = Ino(inode.number);
        let Some(item) = inode.item else {
            // The format keeps items of its own below the first inode.
            if number >= Ino::FIRST_FREE {
                self.report(|tree| Finding::InodeMissing { tree, inode: number });
            }
            return;
        };
        self.check_links(&inode, &item);
        if inode.is(S_IFDIR) {
            self.check_directory(&inode, &item);
        } else if inode.has_entries {
            self.report(|tree| Finding::DirectoryNot { tree, inode: number });
        }
        if inode.is(S_IFREG) {
            self.check_file(&inode, &item);
        }
        if !inode.is(S_IFDIR) && item.nbytes.get() != inode.bytes {
            let (stored, found) = (item.nbytes.get(), inode.bytes);
            self.report(|tree| Finding::InodeBytes { tree, inode: number, stored, found });
        }
    }

    fn check_links(&mut self, inode: &Inode, item: &InodeItem) {
        let (number, stored) = (Ino(inode.number), u64::from(item.nlink.get()));
        if inode.links != stored {
            let found = inode.links;
            self.report(|tree| Finding::InodeLinks { tree, inode: number, stored, found });
        } else if stored == 0 {
            self.nameless.insert(inode.number);
        }
    }

    fn check_directory(&self, inode: &Inode, item: &InodeItem) {
        let (number, stored, found) = (Ino(inode.number), item.size.get(), inode.name_bytes);
        if stored != found {
            self.report(|tree| Finding::DirectorySize { tree, inode: number, stored, found });
        }
        if inode.by_hash != inode.by_index {
            self.report(|tree| Finding::DirectoryEntries { tree, inode: number });
        }
    }

    fn check_file(&self, inode: &Inode, item: &InodeItem) {
        let number = Ino(inode.number);
        if self.session.identity.incompat & incompat::NO_HOLES == 0 {
            let size = item.size.get();
            let short = (inode.end < size).then_some(inode.end);
            if let Some(offset) = inode.gap.filter(|gap| *gap < size).or(short) {
                self.report(|tree| Finding::FileGap { tree, inode: number, offset });
            }
        }
        if let Some(offset) = inode.no_checksums_at {
            self.report(|tree| Finding::ChecksumMissing { tree, inode: number, offset });
        }
        if let Some(offset) = inode.odd_checksums_at {
            self.report(|tree| Finding::ChecksumOdd { tree, inode: number, offset });
        }
    }

    /// Ends the pass; what is left in `subvolumes` has no entry.
    pub fn finish(&mut self) {
        self.finish_inode();
        for inode in std::mem::take(&mut self.nameless) {
            self.report(|tree| Finding::InodeNameless { tree, inode: Ino(inode) });
        }
    }
}

/// Whether the data that the item shows has checksums, or has none, as the inode wants it.
fn check_sums(inode: &mut Inode, extent: &FileExtent, offset: u64, checksums: &Checksums) {
    let Some(item) = inode.item.filter(|_| checksums.complete) else { return };
    let body = &extent.body;
    let (mut start, mut length) = (body.disk_bytenr.get(), body.disk_num_bytes.get());
    if extent.head.compression == compression::NONE {
        (start, length) = (start.saturating_add(body.offset.get()), body.num_bytes.get());
    }
    let covered = checksums.covered.bytes_within(start..start.saturating_add(length));
    if extent.head.kind == file_extent_type::PREALLOC {
        return;
    }
    if item.flags.get() & inode_flags::NODATASUM == 0 {
        if covered < length {
            inode.no_checksums_at = inode.no_checksums_at.or(Some(offset));
        }
    } else if covered > 0 {
        inode.odd_checksums_at = inode.odd_checksums_at.or(Some(offset));
    }
}
