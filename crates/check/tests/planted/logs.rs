//! Planted errors in log trees.

use super::{Plant, SUBVOLUME, is_file};
use butterfs_ondisk::items::{FileExtent, RootItem, file_extent_type};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};

fn log(e: &Editor) -> Logical {
    e.log_of(SUBVOLUME).expect("the subvolume has a log")
}

fn find(e: &Editor, wanted: impl Fn(Item<'_>) -> bool) -> ItemPosition {
    e.find_below(log(e), wanted).expect("the log has such an item")
}

fn is_new_data(item: Item<'_>) -> bool {
    let is_new =
        |extent: &FileExtent| extent.head.kind == file_extent_type::REGULAR && extent.body.disk_bytenr.get() != 0;
    item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_new)
}

/// Says that the log begins at a block that is in use.
fn use_a_block_twice(e: &Editor) {
    let (log, other) = (log(e), e.root(SUBVOLUME));
    let bytes = e.node(log).bytes().to_vec();
    let position = e.find(TreeId::TREE_LOG, |item| item.key().offset == SUBVOLUME.get());
    e.edit_item(position, |root: &mut RootItem| root.bytenr = other.get().into());
    let mut block = bytes;
    block[48..56].copy_from_slice(&other.get().to_le_bytes());
    e.stamp(other, block);
}

pub const PLANTS: &[Plant] = &[
    ("log-block", use_a_block_twice),
    ("log-item", |e| e.insert_below(log(e), Key::new(1 << 40, KeyType::ORPHAN_ITEM, 0), &[])),
    ("log-without-subvolume", |e| {
        let position = e.find(TreeId::TREE_LOG, |item| item.is_last());
        e.set_key(position, |key| Key { offset: 70_000, ..key });
    }),
    ("log-inode-missing", |e| e.remove_at(find(e, is_file))),
    ("log-range", |e| {
        let ItemPosition { leaf, slot } = find(e, |item| item.is(KeyType::DIR_LOG_INDEX) && item.key().offset > 0);
        e.edit(leaf, |leaf| leaf.item_mut(slot).fill(0));
    }),
    ("log-extent", |e| {
        e.edit_item(find(e, is_new_data), |extent: &mut FileExtent| {
            extent.body.disk_bytenr = (extent.body.disk_bytenr.get() + (1 << 40)).into();
        });
    }),
    ("log-checksum-missing", |e| {
        let position = find(e, |item| item.is(KeyType::EXTENT_CSUM));
        e.remove_at(position);
    }),
];
