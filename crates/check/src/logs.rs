//! Log trees: what fsync has saved since the last commit, and the next mount replays.
//!
//! Their blocks, and the data that is new in them, are in no extent item: they must lie in space that is free. What
//! replay ignores (items of other types, logs of subvolumes that are gone) is a warning.
//!
//! Memory: 8 bytes for each block of a log, 40 bytes for each data extent in it.
//!
//! Not here: what replay makes of a log.

use crate::csums::{self, Checksums};
use crate::extents::{ExtentScan, Runs};
use crate::finding::{Finding, Tree};
use crate::roots::{Root, Roots};
use crate::session::Session;
use crate::walk::walk;
use butterfs_ondisk::items::{
    FileExtent, FileExtentHead, InodeItem, RootItem, block_group_flags as bits, compression, file_extent_type,
    inode_flags,
};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::NodePtr;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// The facts about the rest of the filesystem.
pub(crate) struct Logs<'s, 'a> {
    pub session: &'s Session<'a>,
    pub roots: &'s Roots,
    pub scan: &'s ExtentScan,
    pub checksums: &'s Checksums,
    /// Blocks of all logs so far.
    blocks: BTreeSet<u64>,
}

impl<'s, 'a> Logs<'s, 'a> {
    pub fn new(session: &'s Session<'a>, roots: &'s Roots, scan: &'s ExtentScan, checksums: &'s Checksums) -> Self {
        Logs { session, roots, scan, checksums, blocks: BTreeSet::new() }
    }

    /// Checks all logs, if there are any.
    pub fn check(&mut self) {
        let (session, sb) = (self.session, &self.session.sb);
        if sb.log_root.get() == 0 {
            return;
        }
        session.note("there is a log, which the next mount replays; it was checked, and not replayed");
        let (at, generation) = (Logical(sb.log_root.get()), Generation(sb.generation.get().saturating_add(1)));
        let root = NodePtr { at, generation, level: Level(sb.log_root_level), tree: TreeId::TREE_LOG, first_key: None };
        let mut logs = Vec::new();
        walk(session, root, None, &mut |node, _| {
            self.place(TreeId::TREE_LOG, node.at());
            if node.is_leaf() {
                node.items().for_each(|(key, data)| self.root_item(key, data, &mut logs));
            }
        });
        for (subvolume, log) in logs {
            self.check_one(subvolume, &log);
        }
    }

    fn root_item(&self, key: Key, data: &[u8], logs: &mut Vec<(TreeId, Root)>) {
        let subvolume = TreeId(key.offset);
        let item = RootItem::parse(data).filter(|_| key.kind == KeyType::ROOT_ITEM);
        let Some(item) = item.filter(|_| key.objectid == TreeId::TREE_LOG.get()) else {
            return self.session.report(Finding::LogItem { tree: Tree(TreeId::TREE_LOG), key });
        };
        if self.roots.complete && self.roots.get(subvolume).is_none_or(Root::is_dead) {
            self.session.report(Finding::LogOrphan { tree: Tree(subvolume) });
        }
        logs.push((subvolume, Root { id: TreeId::TREE_LOG, item }));
    }

    /// A block of a log lies in free space for metadata, and belongs to no other log.
    fn place(&mut self, subvolume: TreeId, at: Logical) {
        let length = self.session.nodesize();
        let end = at.get().saturating_add(length);
        let map = self.session.volume.chunk_map();
        let reason = if self.blocks.range(at.get().saturating_sub(length - 1)..end).next().is_some() {
            "is part of two logs"
        } else if map.get_range(at, length).is_none_or(|chunk| chunk.kind & bits::METADATA == 0) {
            "does not lie in a block group for metadata"
        } else if self.scan.complete && self.scan.used.bytes_within(at.get()..end) > 0 {
            "lies in space that an extent uses"
        } else {
            ""
        };
        if !reason.is_empty() {
            self.session.report(Finding::LogBlock { tree: Tree(subvolume), at, reason: reason.to_owned() });
        }
        self.blocks.insert(at.get());
    }

    fn check_one(&mut self, subvolume: TreeId, log: &Root) {
        let session = self.session;
        let mut pass = LogPass::new(session, subvolume, self.scan);
        let complete = walk(session, log.ptr(), None, &mut |node, _| {
            self.place(subvolume, node.at());
            if node.is_leaf() {
                node.items().for_each(|(key, data)| pass.item(key, data));
            }
        });
        if complete && self.checksums.complete {
            pass.check_sums(self.checksums);
        }
        if complete && session.options.check_data {
            self.check_data(log, &pass.new_data());
        }
    }

    /// The data that only the log refers to, against the log's checksums.
    fn check_data(&self, log: &Root, data: &Runs) {
        crate::walk::items(self.session, log.ptr(), &mut |key, digests| {
            if key.kind == KeyType::EXTENT_CSUM {
                csums::check_item(self.session, key.offset, digests, data);
            }
        });
    }
}

/// Data that an inode in the log shows.
struct Shown {
    start: u64,
    length: u64,
    inode: Ino,
    offset: u64,
    /// The extent has no item yet.
    is_new: bool,
}

/// The pass over one log tree.
struct LogPass<'s, 'a> {
    session: &'s Session<'a>,
    tree: Tree,
    scan: &'s ExtentScan,
    inode: Option<(u64, InodeItem)>,
    /// Of the inode that is passing by: where its last extent ends.
    end: u64,
    current: u64,
    summed: Vec<Shown>,
    sums: Runs,
}

impl<'s, 'a> LogPass<'s, 'a> {
    fn new(session: &'s Session<'a>, subvolume: TreeId, scan: &'s ExtentScan) -> Self {
        let (tree, inode, end, current) = (Tree(subvolume), None, 0, 0);
        let (summed, sums) = (Vec::new(), Runs::default());
        LogPass { session, tree, scan, inode, end, current, summed, sums }
    }

    fn item(&mut self, key: Key, data: &[u8]) {
        if key.kind == KeyType::EXTENT_CSUM {
            let sectors = (data.len() / self.session.identity.checksum.len()) as u64;
            let length = sectors.saturating_mul(self.session.sectorsize());
            return self.sums.push(key.offset..key.offset.saturating_add(length));
        }
        if self.current != key.objectid {
            (self.current, self.end) = (key.objectid, 0);
        }
        if key.kind == KeyType::INODE_ITEM {
            self.inode = InodeItem::read_from_bytes(data).ok().map(|item| (key.objectid, item));
            return;
        }
        if !is_replayed(key.kind) {
            return self.session.report(Finding::LogItem { tree: self.tree, key });
        }
        if self.inode.is_none_or(|(number, _)| number != key.objectid) {
            let (tree, inode) = (self.tree, Ino(key.objectid));
            self.session.report(Finding::LogInode { tree, inode });
        }
        match key.kind {
            KeyType::DIR_LOG_INDEX => self.range(key, data),
            KeyType::EXTENT_DATA => self.extent(key, data),
            _ => {}
        }
    }

    /// A range of entries for which the log decides. They may overlap: after several fsyncs of a directory within one
    /// transaction those of the kernel do, and its replay takes them.
    fn range(&mut self, key: Key, data: &[u8]) {
        let last = data.try_into().ok().map(u64::from_le_bytes);
        if last.is_none_or(|last| last < key.offset) {
            let (tree, inode, first) = (self.tree, Ino(key.objectid), key.offset);
            self.session.report(Finding::LogRange { tree, inode, first });
        }
    }

    fn extent(&mut self, key: Key, data: &[u8]) {
        let fault = self.extent_fault(key, data);
        if let Some(reason) = fault {
            let (tree, inode, offset, reason) = (self.tree, Ino(key.objectid), key.offset, reason.to_owned());
            self.session.report(Finding::LogExtent { tree, inode, offset, reason });
        }
    }

    fn extent_fault(&mut self, key: Key, data: &[u8]) -> Option<&'static str> {
        let (head, _) = FileExtentHead::read_from_prefix(data).ok()?;
        let overlaps = key.offset < self.end;
        if head.kind == file_extent_type::INLINE {
            let length = head.ram_bytes.get().checked_next_multiple_of(self.session.sectorsize());
            self.end = self.end.max(length.unwrap_or(u64::MAX));
            return overlaps.then_some("overlaps the extent before");
        }
        let extent = FileExtent::read_from_bytes(data).ok()?;
        let body = &extent.body;
        self.end = self.end.max(key.offset.saturating_add(body.num_bytes.get()));
        let newest = self.session.sb.generation.get().saturating_add(1);
        let plain = head.compression == compression::NONE;
        let limit = if plain { body.disk_num_bytes.get() } else { head.ram_bytes.get() };
        if overlaps {
            Some("overlaps the extent before")
        } else if head.generation.get() > newest {
            Some("has a generation that is still to come")
        } else if body.disk_bytenr.get() == 0 {
            None
        } else if body.offset.get().saturating_add(body.num_bytes.get()) > limit {
            Some("shows more bytes than the extent has")
        } else {
            self.place(key, &extent, plain)
        }
    }

    /// The extent is one that is in use, or lies in free space for data.
    fn place(&mut self, key: Key, extent: &FileExtent, plain: bool) -> Option<&'static str> {
        let body = &extent.body;
        let (at, length) = (body.disk_bytenr.get(), body.disk_num_bytes.get());
        let range = at..at.saturating_add(length);
        let map = self.session.volume.chunk_map();
        if map.get_range(Logical(at), length).is_none_or(|chunk| chunk.kind & bits::DATA == 0) {
            return Some("does not lie in a block group for data");
        }
        let (used, as_data) = (self.scan.used.bytes_within(range.clone()), self.scan.data.bytes_within(range));
        if self.scan.complete && used != 0 && (used, as_data) != (length, length) {
            return Some("is neither an extent nor free space");
        }
        let (mut start, mut shown) = (at, length);
        if plain {
            (start, shown) = (at.saturating_add(body.offset.get()), body.num_bytes.get());
        }
        let sums = self.inode.is_some_and(|(_, item)| item.flags.get() & inode_flags::NODATASUM == 0);
        if sums && extent.head.kind == file_extent_type::REGULAR {
            let (inode, offset, is_new) = (Ino(key.objectid), key.offset, used == 0);
            self.summed.push(Shown { start, length: shown, inode, offset, is_new });
        }
        None
    }

    fn check_sums(&self, committed: &Checksums) {
        for Shown { start, length, inode, offset, .. } in &self.summed {
            let range = *start..start.saturating_add(*length);
            let missing = self.sums.gaps(range).into_iter().any(|gap| !committed.covered.gaps(gap).is_empty());
            if missing {
                let (tree, inode, offset) = (self.tree, *inode, *offset);
                self.session.report(Finding::LogChecksum { tree, inode, offset });
            }
        }
    }

    /// The data that only this log refers to.
    fn new_data(&self) -> Runs {
        let new = self.summed.iter().filter(|shown| shown.is_new);
        let mut ranges: Vec<_> = new.map(|shown| (shown.start, shown.start.saturating_add(shown.length))).collect();
        ranges.sort_unstable();
        let mut runs = Runs::default();
        ranges.into_iter().for_each(|(start, end)| runs.push(start..end));
        runs
    }
}

/// Whether items of this type belong into a log. Older kernels wrote some that newer ones ignore.
fn is_replayed(kind: KeyType) -> bool {
    const VERITY: [u8; 2] = [36, 37];
    matches!(
        kind,
        KeyType::INODE_REF
            | KeyType::INODE_EXTREF
            | KeyType::XATTR_ITEM
            | KeyType::DIR_LOG_ITEM
            | KeyType::DIR_LOG_INDEX
            | KeyType::DIR_ITEM
            | KeyType::DIR_INDEX
            | KeyType::EXTENT_DATA
    ) || VERITY.contains(&kind.0)
}
