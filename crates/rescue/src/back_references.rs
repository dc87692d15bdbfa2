//! Data extents as the extent tree has them, by the inode that they belong to: where a file has lost the item of an
//! extent, they still say where its data is.
//!
//! Invariant: memory is bounded ([`MOST`]); where there are more references, none is used.

use crate::tree::Tree;
use crate::trust::Trust;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, extent_flags};
use butterfs_ondisk::{Key, KeyType, Logical};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// References that are kept: about 64 MiB.
const MOST: usize = 1 << 20;

/// A data extent that an inode uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Referenced {
    /// The position in the file at which its first byte belongs.
    pub offset: u64,
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
}

impl Referenced {
    /// The file's extent, as bytes that are not compressed.
    pub fn stored(&self) -> FileExtent {
        FileExtent::new(ExtentKind::Regular, self.offset, Logical(self.at), self.len, 0)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct BackReferences {
    by_inode: FxHashMap<(u64, u64), Vec<Referenced>>,
    count: usize,
}

impl BackReferences {
    /// Reads an extent tree, as far as it can be believed.
    pub fn of(extents: Tree<'_>) -> BackReferences {
        let (mut all, mut extent) = (BackReferences::default(), (0, 0));
        extents.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            if quality.trust() != Trust::Proved {
                return ControlFlow::Continue(());
            }
            match key.kind {
                KeyType::EXTENT_ITEM => {
                    extent = (key.objectid, key.offset);
                    inline(data, &mut |reference| all.add(extent, reference));
                }
                KeyType::EXTENT_DATA_REF if key.objectid == extent.0 => {
                    if let Ok((reference, _)) = ExtentDataRef::read_from_prefix(data) {
                        all.add(extent, reference);
                    }
                }
                _ => {}
            }
            if all.count <= MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if all.count > MOST { BackReferences::default() } else { all }
    }

    fn add(&mut self, (at, len): (u64, u64), reference: ExtentDataRef) {
        let (inode, offset) = ((reference.root.get(), reference.objectid.get()), reference.offset.get());
        self.by_inode.entry(inode).or_default().push(Referenced { offset, at, len });
        self.count += 1;
    }

    /// The extents of an inode, in the order of the file.
    pub fn of_inode(&self, tree: u64, ino: u64) -> Vec<Referenced> {
        let mut found = self.by_inode.get(&(tree, ino)).cloned().unwrap_or_default();
        found.sort_unstable_by_key(|one| one.offset);
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
    let Ok((item, mut rest)) = ExtentItem::read_from_prefix(data) else { return };
    if item.flags.get() & extent_flags::DATA == 0 {
        return;
    }
    while let Some((kind, body)) = rest.split_first() {
        let len = match KeyType(*kind) {
            KeyType::EXTENT_DATA_REF => {
                let Ok((reference, _)) = ExtentDataRef::read_from_prefix(body) else { return };
                take(reference);
                ExtentDataRef::LEN
            }
            KeyType::SHARED_DATA_REF => 12,
            _ => 8,
        };
        let Some(next) = body.get(len..) else { return };
        rest = next;
    }
}
