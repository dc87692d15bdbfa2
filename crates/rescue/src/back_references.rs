//! Data extents as the extent tree has them, by the inode that they belong to: where a file has lost the item of an
//! extent, they still say where its data is.
//!
//! Invariant: memory is bounded ([`MOST`]). Where there are more references, those of inodes whose tree blocks are lost
//! are kept; where even they are more, none is used.

use crate::tree::{Losses, Tree, meets, merged};
use crate::trust::Trust;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, extent_flags};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};
use zerocopy::FromBytes;

/// References that are kept: about 64 MiB.
const MOST: usize = 1 << 20;

/// A data extent that an inode uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Referenced {
    /// The position in the file at which its first byte belongs. Of an extent whose beginning the file does not show
    /// that may lie before the file: then it is a negative number of 64 bits.
    pub offset: u64,
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// The transaction that has written it.
    pub generation: u64,
}

impl Referenced {
    /// The file's extent, as bytes that are not compressed.
    pub fn stored(&self) -> FileExtent {
        FileExtent::new(ExtentKind::Regular, self.offset, Logical(self.at), self.len, 0)
    }
}

/// The extent tree of a commit. Its references are read when they are wanted first.
#[derive(Debug)]
pub struct ExtentTree<'a> {
    /// The tree.
    pub tree: Tree<'a>,
    /// Subvolumes of the same commit.
    subvolumes: Vec<Tree<'a>>,
    /// References that are kept.
    most: usize,
    references: OnceCell<BackReferences>,
}

impl<'a> ExtentTree<'a> {
    /// The extent tree, and the subvolumes whose lost inodes count most.
    pub fn new(tree: Tree<'a>, subvolumes: Vec<Tree<'a>>) -> ExtentTree<'a> {
        ExtentTree { tree, subvolumes, most: MOST, references: OnceCell::new() }
    }

    /// Its references to data.
    pub fn references(&self) -> &BackReferences {
        self.references.get_or_init(|| {
            BackReferences::of(self.tree, self.most, &|_| true).unwrap_or_else(|| {
                let lost = lost_inodes(&self.subvolumes);
                let is_lost = |ino| meets(&lost, &(ino..ino + 1));
                BackReferences::of(self.tree, self.most, &is_lost).unwrap_or_default()
            })
        })
    }
}

impl ExtentTree<'_> {
    /// Whether an extent has a reference of one of these tree blocks.
    pub fn is_shared_by(&self, one: &Referenced, blocks: &Losses) -> bool {
        let first = Key::new(one.at, KeyType::EXTENT_ITEM, one.len);
        let last = Key::new(one.at, KeyType::SHARED_DATA_REF, u64::MAX);
        let mut is_shared = false;
        self.tree.scan(first, last, &mut |key, data, quality| {
            let is_proved = quality.trust() == Trust::Proved;
            match key.kind {
                KeyType::SHARED_DATA_REF => is_shared |= is_proved && blocks.has_lost(key.offset),
                KeyType::EXTENT_ITEM if is_proved => each_inline(data, &mut |kind, body| {
                    let parent = body.first_chunk().map(|parent| u64::from_le_bytes(*parent));
                    is_shared |= kind == KeyType::SHARED_DATA_REF && parent.is_some_and(|at| blocks.has_lost(at));
                }),
                _ => {}
            }
            if is_shared { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        is_shared
    }
}

/// The numbers of the inodes of which tree blocks are lost in any of these subvolumes.
fn lost_inodes(subvolumes: &[Tree<'_>]) -> Vec<Range<u64>> {
    let (mut known, mut lost) = (FxHashSet::default(), Vec::new());
    for tree in subvolumes {
        // Snapshots share most of their nodes.
        let losses = tree.blocks(&mut |block, _| !block.node.is_leaf() && known.insert(block.node.at().0));
        let end = |end: &Option<Key>| end.map_or(u64::MAX, |end| end.objectid.saturating_add(1));
        lost.extend(losses.ranges.iter().map(|(from, until)| from.objectid..end(until)));
    }
    merged(lost)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct BackReferences {
    /// Tree, inode and extent, in order.
    all: Vec<(u64, u64, Referenced)>,
}

impl BackReferences {
    /// Reads the references of wanted inodes in an extent tree, as far as it can be believed; `None` if they are more
    /// than `most`.
    fn of(extents: Tree<'_>, most: usize, is_wanted: &dyn Fn(u64) -> bool) -> Option<BackReferences> {
        let (mut all, mut extent) = (Vec::new(), (0, 0, 0));
        let add = |all: &mut Vec<_>, (at, len, generation): (u64, u64, u64), reference: ExtentDataRef| {
            let (ino, offset) = (reference.objectid.get(), reference.offset.get());
            if ino < u64::MAX && is_wanted(ino) {
                all.push((reference.root.get(), ino, Referenced { offset, at, len, generation }));
            }
        };
        extents.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            if quality.trust() != Trust::Proved {
                return ControlFlow::Continue(());
            }
            match key.kind {
                KeyType::EXTENT_ITEM => {
                    let item = ExtentItem::read_from_prefix(data).ok();
                    extent = (key.objectid, key.offset, item.map_or(0, |(item, _)| item.generation.get()));
                    inline(data, &mut |reference| add(&mut all, extent, reference));
                }
                KeyType::EXTENT_DATA_REF if key.objectid == extent.0 => {
                    if let Ok((reference, _)) = ExtentDataRef::read_from_prefix(data) {
                        add(&mut all, extent, reference);
                    }
                }
                _ => {}
            }
            if all.len() <= most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if all.len() > most {
            return None;
        }
        all.sort_unstable();
        Some(BackReferences { all })
    }

    /// The extents of an inode, in the order of the file.
    pub fn of_inode(&self, tree: TreeId, ino: u64) -> Vec<Referenced> {
        let first = self.all.partition_point(|(root, of, _)| (*root, *of) < (tree.0, ino));
        let own = self.all[first..].iter().take_while(|(root, of, _)| (*root, *of) == (tree.0, ino));
        own.map(|(_, _, extent)| *extent).collect()
    }

    /// The inodes of a tree that have extents, in order.
    pub fn inodes(&self, tree: TreeId) -> Vec<u64> {
        let first = self.all.partition_point(|(root, ..)| *root < tree.0);
        let mut found: Vec<u64> = Vec::new();
        for (_, ino, _) in self.all[first..].iter().take_while(|(root, ..)| *root == tree.0) {
            if found.last() != Some(ino) {
                found.push(*ino);
            }
        }
        found
    }
}

/// The inodes of a subvolume by the data extents that their lists name.
///
/// Invariant: memory is bounded as that of [`BackReferences`] is.
#[derive(Debug, Default)]
pub struct Users {
    by_extent: FxHashMap<u64, Vec<u64>>,
}

impl Users {
    /// Reads the lists of extents of all files of a subvolume.
    pub fn of(tree: &Tree<'_>) -> Users {
        let (mut users, mut count) = (Users::default(), 0);
        let sector = tree.wreck.sectorsize();
        tree.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            let is_extent = key.kind == KeyType::EXTENT_DATA && quality.trust() == Trust::Proved;
            let parsed = is_extent.then(|| FileExtent::parse(key, data, sector).ok()).flatten();
            if let Some(extent) = parsed.filter(FileExtent::is_on_disk) {
                let inodes = users.by_extent.entry(extent.at.0).or_default();
                if inodes.last() != Some(&key.objectid) {
                    inodes.push(key.objectid);
                    count += 1;
                }
            }
            if count <= MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if count > MOST { Users::default() } else { users }
    }

    /// The inodes that use the extent at an address.
    pub fn of_extent(&self, at: u64) -> impl Iterator<Item = u64> {
        self.by_extent.get(&at).into_iter().flatten().copied()
    }
}

/// The references to data in an extent item.
fn inline(data: &[u8], take: &mut dyn FnMut(ExtentDataRef)) {
    each_inline(data, &mut |kind, body| {
        if let (KeyType::EXTENT_DATA_REF, Ok((reference, _))) = (kind, ExtentDataRef::read_from_prefix(body)) {
            take(reference);
        }
    });
}

/// The references in the item of a data extent: kind and body.
fn each_inline(data: &[u8], take: &mut dyn FnMut(KeyType, &[u8])) {
    let Ok((item, mut rest)) = ExtentItem::read_from_prefix(data) else { return };
    if item.flags.get() & extent_flags::DATA == 0 {
        return;
    }
    while let Some((kind, body)) = rest.split_first() {
        let len = match KeyType(*kind) {
            KeyType::EXTENT_DATA_REF => ExtentDataRef::LEN,
            KeyType::SHARED_DATA_REF => 12,
            _ => 8,
        };
        let Some(next) = body.get(len..) else { return };
        take(KeyType(*kind), body);
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wreck::{Opening, Wreck};
    use butterfs_device::{BlockDevice, MemoryDevice};
    use butterfs_fs::mkfs::{MkfsOptions, mkfs};
    use butterfs_fs::{Caller, Env, Filesystem, Options};
    use butterfs_testkit::editor::Editor;
    use std::sync::Arc;

    /// Of too many references those of inodes whose leaf is lost are kept.
    #[test]
    fn lost_inodes_come_first() {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device];
        mkfs(&devices, &MkfsOptions { nodesize: Some(4096), ..MkfsOptions::default() }, &Env::system()).unwrap();
        let filesystem = Filesystem::open(devices.clone(), Options::default(), Env::system()).unwrap();
        let caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };
        for number in 0..60 {
            let made =
                filesystem.create(&caller, filesystem.root(), format!("file{number}").as_bytes(), 0o640).unwrap();
            filesystem.write(made.id, 0, &[number; 9000], false).unwrap();
            filesystem.forget(made.id, 1);
        }
        filesystem.shutdown().unwrap();
        let editor = Editor::open(devices.clone());
        let last = editor.find(TreeId::FS, |item| item.key().objectid == 316 && item.is(KeyType::INODE_ITEM)).leaf;
        let first = editor.node(last).key(0).objectid;
        editor.write_raw(last, &[0; 4096]);
        let wreck = Wreck::open(devices, Opening::default()).unwrap();
        let roots = crate::roots::Roots::assemble(&wreck);
        let tree = |id| Tree::new(&wreck, roots.trees[&id].root);
        let of = |most| ExtentTree { most, ..ExtentTree::new(tree(TreeId::EXTENT), vec![tree(TreeId::FS)]) };
        assert_eq!(of(60).references().inodes(TreeId::FS), (257..317).collect::<Vec<u64>>());
        let lost = of(59).references().inodes(TreeId::FS);
        assert_eq!(lost, (first..317).collect::<Vec<u64>>());
        assert!(of(2).references().inodes(TreeId::FS).is_empty());
    }
}
