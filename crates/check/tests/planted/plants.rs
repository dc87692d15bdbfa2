//! The plants: changes of an image that the kernel made, each with the finding that it must cause.
//!
//! The tests of the repairs plant them too.

mod contents;
pub mod logs;
mod references;
mod space;
pub mod space_cache;

use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, FileExtent, InodeItem, extent_flags, file_extent_type};
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_testkit::editor::{Editor, Item};

/// The subvolume in which most is planted.
pub const SUBVOLUME: TreeId = TreeId(256);

/// A change of an image, and the finding that it must cause.
pub type Plant = (&'static str, fn(&Editor));

fn kind(kind: KeyType) -> impl Fn(Item<'_>) -> bool {
    move |item| item.is_inner(kind)
}

/// A regular file's item.
fn is_file(item: Item<'_>) -> bool {
    let is_regular = |inode: &InodeItem| inode.mode.get() >> 12 == 0o10;
    item.is_inner(KeyType::INODE_ITEM) && item.head().is_some_and(is_regular)
}

pub fn is_data_extent(item: Item<'_>) -> bool {
    let is_data = |extent: &ExtentItem| extent.flags.get() & extent_flags::DATA != 0;
    item.is_inner(KeyType::EXTENT_ITEM) && item.head().is_some_and(is_data)
}

/// A data extent whose first reference stands in it, and is that of a file.
fn is_plain_data_extent(item: Item<'_>) -> bool {
    is_data_extent(item) && item.data().get(ExtentItem::LEN) == Some(&KeyType::EXTENT_DATA_REF.0)
}

/// The offset of that reference in the item.
const INLINE_REF: usize = ExtentItem::LEN + 1;

/// Changes the first inline reference of a data extent.
fn change_inline(editor: &Editor, change: impl FnOnce(&mut ExtentDataRef)) {
    let position = editor.find(TreeId::EXTENT, is_plain_data_extent);
    editor.edit(position.leaf, |leaf| {
        let bytes = &mut leaf.item_mut(position.slot)[INLINE_REF..];
        let (reference, _) = zerocopy::FromBytes::mut_from_prefix(bytes).expect("it is that long");
        change(reference);
    });
}

/// A file extent with data.
fn is_regular(item: Item<'_>) -> bool {
    let has_data =
        |extent: &FileExtent| extent.head.kind == file_extent_type::REGULAR && extent.body.disk_bytenr.get() != 0;
    item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(has_data)
}

/// Those of a filesystem without log and version 1 cache.
pub fn all() -> impl Iterator<Item = &'static Plant> {
    [space::PLANTS, references::PLANTS, contents::PLANTS].into_iter().flatten()
}
