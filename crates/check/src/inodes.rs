//! The inodes of a subvolume, leaf by leaf: what a leaf says is a value, and values of neighbouring leaves are joined.
//!
//! An inode's own items lie together, so its counts and its extents are checked as soon as its last item was seen; only
//! the first and the last inode of a range of leaves are still open. Names are spread over the tree: each side adds up
//! a hash of what it says, and only where the sums differ does a further pass ask which names they are (`names`). So
//! memory does not grow with the subvolume.

use crate::csums::Checksums;
use crate::finding::{Finding, Tree};
use crate::names::{self, NameItem, NameSums};
use crate::packing::{self, Suspect};
use crate::roots::Name;
use crate::session::Session;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type, inode_flags};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::packing::{LARGEST, Packing};
use butterfs_ondisk::{Ino, Key, KeyType, Logical, TreeId};
use butterfs_tree::Node;
use zerocopy::FromBytes;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// The fields of an inode item that the checks need.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    mode: u32,
    nlink: u32,
    size: u64,
    nbytes: u64,
    flags: u64,
}

/// Some of an inode's items, which lie behind each other.
#[derive(Clone, Debug, Default)]
struct Inode {
    number: u64,
    item: Option<Attributes>,
    links: u64,
    /// The sum of its references, without the entry type.
    references: u64,
    /// Of a directory: bytes of names in each kind of entry, and the sums of the entries.
    name_bytes: u64,
    by_hash: u64,
    by_index: u64,
    has_entries: bool,
    /// Of a file: where the first extent begins and the last one ends, the bytes, and the first place between them with
    /// neither extent nor hole.
    extents: Option<(u64, u64)>,
    bytes: u64,
    gap: Option<u64>,
    /// The first extents without checksums, and with some.
    unsummed_at: Option<u64>,
    summed_at: Option<u64>,
    /// The first packed extent, and its mark.
    packed_at: Option<(u64, u8)>,
}

/// The inodes of a range of leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inodes {
    pub sums: NameSums,
    /// The first inode, which may have begun before. When there is no other one it may also go on behind.
    first: Option<Box<Inode>>,
    /// The last one, which may go on behind.
    last: Option<Box<Inode>>,
    /// Inodes without a name.
    pub nameless: Vec<u64>,
    /// Those that have an orphan item.
    pub orphans: Vec<u64>,
    /// Entries of subvolumes.
    pub subvolumes: Vec<Name>,
}

/// The inodes of one leaf of `tree`.
pub(crate) fn of_leaf(session: &Session<'_>, checksums: &Checksums, tree: TreeId, leaf: &Node) -> Inodes {
    let mut pass = LeafPass { session, checksums, tree, found: Inodes::default(), current: None };
    leaf.items().for_each(|(key, data)| pass.item(key, data));
    if let Some(inode) = pass.current.take() {
        pass.found.push(inode, session, tree);
    }
    pass.found
}

impl Inodes {
    /// Adds what lies directly behind.
    pub fn join(&mut self, next: Inodes, session: &Session<'_>, tree: TreeId) {
        self.sums.references = self.sums.references.wrapping_add(next.sums.references);
        self.sums.entries = self.sums.entries.wrapping_add(next.sums.entries);
        self.nameless.extend(next.nameless);
        self.orphans.extend(next.orphans);
        self.subvolumes.extend(next.subvolumes);
        let open = if self.last.is_some() { &mut self.last } else { &mut self.first };
        match (open.as_mut(), next.first) {
            (Some(inode), Some(more)) if inode.number == more.number => inode.join(*more, session, tree),
            (_, Some(inode)) => self.push(inode, session, tree),
            (_, None) => {}
        }
        if let Some(inode) = next.last {
            self.push(inode, session, tree);
        }
    }

    /// Adds an inode behind those before, so that the last one of them has ended.
    fn push(&mut self, inode: Box<Inode>, session: &Session<'_>, tree: TreeId) {
        if self.first.is_none() {
            self.first = Some(inode);
        } else if let Some(ended) = self.last.replace(inode) {
            self.end(&ended, session, tree);
        }
    }

    /// Ends the subvolume: all inodes are whole.
    pub fn finish(&mut self, session: &Session<'_>, tree: TreeId) {
        for ended in [self.first.take(), self.last.take()].into_iter().flatten() {
            self.end(&ended, session, tree);
        }
        let orphans = &mut self.orphans;
        orphans.sort_unstable();
        for inode in self.nameless.iter().filter(|inode| orphans.binary_search(inode).is_err()) {
            session.report(Finding::InodeNameless { tree: Tree(tree), inode: Ino(*inode) });
        }
    }

    /// Checks a whole inode.
    fn end(&mut self, inode: &Inode, session: &Session<'_>, tree: TreeId) {
        let kind = names::kind_of_mode(inode.mode());
        let references = inode.references.wrapping_mul(names::type_factor(kind));
        self.sums.references = self.sums.references.wrapping_add(references);
        let checked = Whole { session, tree: Tree(tree), number: Ino(inode.number), inode };
        if checked.check() {
            self.nameless.push(inode.number);
        }
    }

    /// Memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let inodes = [&self.first, &self.last].into_iter().flatten().count();
        let names: usize = self.subvolumes.iter().map(|name| size_of::<Name>() + name.name.len()).sum();
        size_of::<Inodes>() + inodes * size_of::<Inode>() + names + 8 * (self.nameless.len() + self.orphans.len())
    }
}

impl Inode {
    fn mode(&self) -> u32 {
        self.item.map_or(0, |item| item.mode)
    }

    fn is(&self, kind: u32) -> bool {
        self.mode() & S_IFMT == kind
    }

    /// Adds the items of the same inode that lie directly behind.
    fn join(&mut self, next: Inode, session: &Session<'_>, tree: TreeId) {
        self.item = self.item.or(next.item);
        self.links += next.links;
        self.references = self.references.wrapping_add(next.references);
        self.name_bytes = self.name_bytes.wrapping_add(next.name_bytes);
        self.by_hash = self.by_hash.wrapping_add(next.by_hash);
        self.by_index = self.by_index.wrapping_add(next.by_index);
        self.has_entries |= next.has_entries;
        if let Some(range) = next.extents
            && !self.add_extent(range)
        {
            let (tree, inode, offset) = (Tree(tree), Ino(self.number), range.0);
            session.report(Finding::FileOverlap { tree, inode, offset });
        }
        self.bytes = self.bytes.wrapping_add(next.bytes);
        self.gap = self.gap.or(next.gap);
        self.unsummed_at = self.unsummed_at.or(next.unsummed_at);
        self.summed_at = self.summed_at.or(next.summed_at);
        self.packed_at = self.packed_at.or(next.packed_at);
    }

    /// Adds a range of the file; false when it overlaps the ones before.
    fn add_extent(&mut self, (start, end): (u64, u64)) -> bool {
        let Some((_, last)) = &mut self.extents else {
            self.extents = Some((start, end));
            return true;
        };
        if start > *last {
            self.gap = self.gap.or(Some(*last));
        }
        let apart = start >= *last;
        *last = end.max(*last);
        apart
    }
}

/// The pass over one leaf.
struct LeafPass<'s, 'a> {
    session: &'s Session<'a>,
    checksums: &'s Checksums,
    tree: TreeId,
    found: Inodes,
    current: Option<Box<Inode>>,
}

impl LeafPass<'_, '_> {
    fn report(&self, finding: impl FnOnce(Tree) -> Finding) {
        self.session.report(finding(Tree(self.tree)));
    }

    fn item(&mut self, key: Key, data: &[u8]) {
        if key.objectid == objectid::ORPHAN {
            if key.kind == KeyType::ORPHAN_ITEM {
                self.found.orphans.push(key.offset);
            }
            return;
        }
        if key.objectid > Ino::LAST_FREE.get() {
            return;
        }
        if self.current.as_ref().is_none_or(|inode| inode.number != key.objectid) {
            let next = Box::new(Inode { number: key.objectid, ..Inode::default() });
            if let Some(ended) = self.current.replace(next) {
                self.found.push(ended, self.session, self.tree);
            }
        }
        match key.kind {
            KeyType::INODE_ITEM => {
                let item = InodeItem::ref_from_bytes(data).ok().map(|item| Attributes {
                    mode: item.mode.get(),
                    nlink: item.nlink.get(),
                    size: item.size.get(),
                    nbytes: item.nbytes.get(),
                    flags: item.flags.get(),
                });
                self.current.iter_mut().for_each(|inode| inode.item = item);
            }
            KeyType::EXTENT_DATA => self.extent(key, data),
            kind if kind.is_unknown() => self.report(|tree| Finding::ItemUnknown { tree, key }),
            _ => self.names(key, data),
        }
    }

    fn names(&mut self, key: Key, data: &[u8]) {
        let (Some(inode), seed) = (self.current.as_mut(), self.session.options.seed) else { return };
        let (found, mut wrong_hash, mut impossible) = (&mut self.found, None, Vec::new());
        names::each(key, data, 0, &mut |item| match item {
            NameItem::Reference { name, hash } => {
                inode.links += 1;
                if !name.is_root_dir() {
                    inode.references = inode.references.wrapping_add(name.plain(seed));
                    name.note_impossible(&mut impossible);
                }
                wrong_hash = wrong_hash.or(hash.filter(|hash| *hash != key.offset));
            }
            NameItem::ByHash { name } => {
                inode.has_entries = true;
                inode.name_bytes = inode.name_bytes.wrapping_add(name.name.len() as u64);
                inode.by_hash = inode.by_hash.wrapping_add(name.digest_without_index(seed));
                name.note_impossible(&mut impossible);
            }
            NameItem::ByIndex { name } => {
                inode.has_entries = true;
                inode.name_bytes = inode.name_bytes.wrapping_add(name.name.len() as u64);
                inode.by_index = inode.by_index.wrapping_add(name.digest_without_index(seed));
                name.note_impossible(&mut impossible);
                if name.is_subvolume() {
                    let (child, directory, index) = (name.inode, name.directory, name.index);
                    found.subvolumes.push(Name { child, directory, index, name: name.name.to_vec() });
                } else {
                    found.sums.entries = found.sums.entries.wrapping_add(name.digest(seed));
                }
            }
        });
        for name in impossible {
            self.report(|tree| Finding::NameImpossible { tree, key, name });
        }
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
        let (mut bad_bounds, mut is_unwritten, mut doubtful) = (false, false, None);
        let packed = head.compression != compression::NONE && head.kind != file_extent_type::PREALLOC;
        inode.packed_at = inode.packed_at.or(packed.then_some((offset, head.compression)));
        let length = if head.kind == file_extent_type::INLINE {
            inode.bytes = inode.bytes.wrapping_add(head.ram_bytes.get());
            head.ram_bytes.get().checked_next_multiple_of(sector).unwrap_or(u64::MAX)
        } else {
            let Ok(extent) = FileExtent::read_from_bytes(data) else { return };
            if extent.body.disk_bytenr.get() != 0 {
                inode.bytes = inode.bytes.wrapping_add(extent.body.num_bytes.get());
                let end = extent.body.offset.get().saturating_add(extent.body.num_bytes.get());
                let plain = head.compression == compression::NONE;
                let ram = head.ram_bytes.get();
                let limit = if plain { extent.body.disk_num_bytes.get().min(ram) } else { ram };
                // Nothing larger is ever compressed in one piece, and no reader would unpack it.
                let too_large = !plain && limit.max(extent.body.disk_num_bytes.get()) > LARGEST;
                bad_bounds = end > limit || too_large;
                if !bad_bounds {
                    note_sums(inode, &extent, offset, self.checksums);
                    is_unwritten = self.tree.is_subvolume() && has_odd_sums(&extent, self.checksums);
                    doubtful = (head.kind == file_extent_type::REGULAR).then_some(extent);
                }
            }
            extent.body.num_bytes.get()
        };
        let apart = inode.add_extent((offset, offset.saturating_add(length)));
        let stored = head.generation.get();
        if stored > self.session.sb.generation.get().saturating_add(1) {
            self.report(|tree| Finding::FileExtentGeneration { tree, inode: number, offset, stored });
        }
        if !apart {
            self.report(|tree| Finding::FileOverlap { tree, inode: number, offset });
        }
        match doubtful {
            Some(extent) => self.look_at_data(number, offset, &extent),
            None if head.kind == file_extent_type::INLINE => self.check_inline(number, offset, &head, data),
            None => {}
        }
        if length == 0 && head.kind != file_extent_type::INLINE {
            self.report(|tree| Finding::FileExtentEmpty { tree, inode: number, offset });
        }
        if is_unwritten {
            self.report(|tree| Finding::ChecksumUnwritten { tree, inode: number, offset });
        }
        if bad_bounds {
            self.report(|tree| Finding::FileExtentBounds { tree, inode: number, offset });
        }
    }
}

impl LeafPass<'_, '_> {
    /// Reads the data of an extent whose mark may be wrong, where data is checked.
    fn look_at_data(&self, inode: Ino, offset: u64, extent: &FileExtent) {
        let packing = packing::of_extent(extent, self.session.sectorsize());
        if self.session.options.check_data && packing.is_doubtful() {
            let at = Logical(extent.body.disk_bytenr.get());
            packing::look(self.session, Suspect { tree: self.tree, inode, offset, at, packing });
        }
    }

    /// An item that has its data shows how that is packed.
    fn check_inline(&self, inode: Ino, offset: u64, head: &FileExtentHead, data: &[u8]) {
        let data = &data[size_of::<FileExtentHead>()..];
        let (mark, stored, unpacked) = (head.compression, data.len() as u64, head.ram_bytes.get());
        if let Some(right) = (Packing { mark, stored, unpacked, unit: 1 }).right_mark(data) {
            self.session.report(packing::finding(self.tree, inode, offset, mark, right));
        }
    }
}

/// Remembers whether the data that the item shows has checksums.
fn note_sums(inode: &mut Inode, extent: &FileExtent, offset: u64, checksums: &Checksums) {
    if !checksums.complete || extent.head.kind == file_extent_type::PREALLOC {
        return;
    }
    let body = &extent.body;
    let (mut start, mut length) = (body.disk_bytenr.get(), body.disk_num_bytes.get());
    if extent.head.compression == compression::NONE {
        (start, length) = (start.saturating_add(body.offset.get()), body.num_bytes.get());
    }
    let covered = checksums.covered.bytes_within(start..start.saturating_add(length));
    if covered < length {
        inode.unsummed_at = inode.unsummed_at.or(Some(offset));
    }
    if covered > 0 {
        inode.summed_at = inode.summed_at.or(Some(offset));
    }
}

/// Whether the part of an allocated extent that the item shows has checksums. Other items may show written parts of it.
fn has_odd_sums(extent: &FileExtent, checksums: &Checksums) -> bool {
    let start = extent.body.disk_bytenr.get().saturating_add(extent.body.offset.get());
    let shown = start..start.saturating_add(extent.body.num_bytes.get());
    extent.head.kind == file_extent_type::PREALLOC && checksums.complete && checksums.covered.bytes_within(shown) > 0
}

/// An inode of which all items were seen.
struct Whole<'s, 'a> {
    session: &'s Session<'a>,
    tree: Tree,
    number: Ino,
    inode: &'s Inode,
}

impl Whole<'_, '_> {
    /// Checks it; true when it has no name, and must be an orphan.
    fn check(&self) -> bool {
        let (tree, number, inode) = (self.tree, self.number, self.inode);
        let Some(item) = inode.item else {
            // The format keeps items of its own below the first inode.
            if number >= Ino::FIRST_FREE {
                self.session.report(Finding::InodeMissing { tree, inode: number });
            }
            return false;
        };
        if inode.is(S_IFDIR) {
            self.check_directory(&item);
        } else if inode.has_entries {
            self.session.report(Finding::DirectoryNot { tree, inode: number });
        }
        if inode.is(S_IFREG) && !self.is_being_moved(&item) {
            self.check_file(&item);
        }
        if inode.is(S_IFLNK) {
            self.check_target(&item);
        }
        if !inode.is(S_IFDIR) && !self.is_being_moved(&item) && item.nbytes != inode.bytes {
            let (stored, found) = (item.nbytes, inode.bytes);
            self.session.report(Finding::InodeBytes { tree, inode: number, stored, found });
        }
        self.has_no_name(&item)
    }

    /// A balance moves data through a nameless file; a crash leaves it in any state, and the next mount deletes it.
    fn is_being_moved(&self, item: &Attributes) -> bool {
        self.tree.0 == TreeId::DATA_RELOC && item.nlink == 0 && self.inode.links == 0
    }

    fn has_no_name(&self, item: &Attributes) -> bool {
        let (tree, inode, stored, found) = (self.tree, self.number, item.nlink.into(), self.inode.links);
        if found != stored {
            self.session.report(Finding::InodeLinks { tree, inode, stored, found });
        }
        found == 0 && stored == 0
    }

    fn check_directory(&self, item: &Attributes) {
        let (tree, inode) = (self.tree, self.number);
        let (stored, found) = (item.size, self.inode.name_bytes);
        if stored != found {
            self.session.report(Finding::DirectorySize { tree, inode, stored, found });
        }
        if self.inode.by_hash != self.inode.by_index {
            self.session.report(Finding::DirectoryEntries { tree, inode });
        }
    }

    /// A symbolic link has its target, until its deletion takes that away.
    fn check_target(&self, item: &Attributes) {
        let (tree, inode, stored) = (self.tree, self.number, item.size);
        let is_deleted = item.nlink == 0 && self.inode.links == 0;
        let found = if self.inode.extents.is_some_and(|(start, _)| start == 0) { self.inode.bytes } else { 0 };
        if !is_deleted && (stored == 0 || found < stored) {
            self.session.report(Finding::SymlinkTarget { tree, inode, stored, found });
        }
    }

    fn check_file(&self, item: &Attributes) {
        let (tree, number, inode) = (self.tree, self.number, self.inode);
        if self.session.identity.incompat & incompat::NO_HOLES == 0 {
            let (start, end) = inode.extents.unwrap_or((0, 0));
            let gaps = [(start > 0).then_some(0), inode.gap.filter(|gap| *gap < item.size), Some(end)];
            if let Some(offset) = gaps.into_iter().flatten().find(|gap| *gap < item.size) {
                self.session.report(Finding::FileGap { tree, inode: number, offset });
            }
        }
        let sums = item.flags & inode_flags::NODATASUM == 0;
        if let Some(offset) = inode.unsummed_at.filter(|_| sums) {
            self.session.report(Finding::ChecksumMissing { tree, inode: number, offset });
        }
        if let Some((offset, mark)) = inode.packed_at.filter(|_| !sums) {
            let rule = "its inode is to have no checksums, which packed data always has".to_owned();
            let marked = butterfs_ondisk::packing::name(mark).to_owned();
            self.session.report(Finding::FilePacking { tree, inode: number, offset, marked, rule });
        }
        if let Some(offset) = inode.summed_at.filter(|_| !sums) {
            self.session.report(Finding::ChecksumOdd { tree, inode: number, offset });
        }
    }
}
