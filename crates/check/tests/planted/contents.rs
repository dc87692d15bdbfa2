//! Planted errors in inodes, names and file extents.

use super::{Plant, SUBVOLUME, is_file, is_regular, kind};
use butterfs_ondisk::items::{DirItem, FileExtent, InodeItem, RootItem, file_extent_type, inode_flags};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};

const ROOT_DIR: Key = Key::new(256, KeyType::INODE_ITEM, 0);

fn is_subvolume_entry(item: Item<'_>) -> bool {
    let is_subvolume = |entry: &DirItem| Key::from(entry.location).kind == KeyType::ROOT_ITEM;
    item.is_inner(KeyType::DIR_INDEX) && item.head().is_some_and(is_subvolume)
}

/// Takes the only name of a file.
fn take_name(e: &Editor) {
    let position = e.find(SUBVOLUME, |item| {
        let Some((name, after)) = item.next().and_then(|name| Some((name, name.next()?))) else { return false };
        is_file(item)
            && name.is(KeyType::INODE_REF)
            && after.key().objectid != name.key().objectid - 1
            && !after.is(KeyType::INODE_EXTREF)
    });
    e.edit_item(position, |inode: &mut InodeItem| inode.nlink = 0.into());
    e.edit(position.leaf, |leaf| leaf.remove_items(position.slot + 1..position.slot + 2));
}

fn is_hole(item: Item<'_>) -> bool {
    let is_hole =
        |extent: &FileExtent| extent.head.kind == file_extent_type::REGULAR && extent.body.disk_bytenr.get() == 0;
    item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_hole)
}

/// Takes the target of a symbolic link, and the bytes that its item counts.
fn take_target(e: &Editor) {
    let position = e.find(SUBVOLUME, |item| {
        let is_link = |inode: &InodeItem| inode.mode.get() >> 12 == 0o12;
        let extent = item.next().and_then(|reference| reference.next());
        item.is(KeyType::INODE_ITEM)
            && item.head().is_some_and(is_link)
            && extent.is_some_and(|extent| extent.is(KeyType::EXTENT_DATA))
    });
    e.edit_item(position, |inode: &mut InodeItem| inode.nbytes = 0.into());
    e.remove_at(ItemPosition { slot: position.slot + 2, ..position });
}

pub const PLANTS: &[Plant] = &[
    ("root-ref-without-entry", |e| e.remove(TreeId::FS, is_subvolume_entry)),
    ("inode-missing", |e| e.remove(SUBVOLUME, |item| item.is_last() && is_file(item))),
    ("inode-link-count", |e| {
        e.change(SUBVOLUME, is_file, |inode: &mut InodeItem| inode.nlink = (inode.nlink.get() + 3).into());
    }),
    ("inode-without-name", take_name),
    // Of a deleted subvolume too, as long as nothing of it is dropped.
    ("inode-without-name", |e| {
        let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.change(TreeId::ROOT, wanted, |root: &mut RootItem| root.refs = 0.into());
        take_name(e);
    }),
    ("directory-size", |e| {
        e.change(
            TreeId::FS,
            |item| item.key() == ROOT_DIR,
            |inode: &mut InodeItem| inode.size = (inode.size.get() + 2).into(),
        );
    }),
    ("directory-item-index", |e| e.remove(SUBVOLUME, kind(KeyType::DIR_ITEM))),
    ("entries-in-no-directory", |e| {
        e.change(TreeId::FS, |item| item.key() == ROOT_DIR, |inode: &mut InodeItem| inode.mode = 0o100_755.into());
    }),
    ("entry-without-reference", |e| {
        e.remove(SUBVOLUME, |item| item.is_inner(KeyType::INODE_REF) && item.key().objectid > 256);
    }),
    ("reference-without-entry", |e| e.remove(SUBVOLUME, kind(KeyType::DIR_INDEX))),
    ("extref-hash", |e| {
        let position = e.find(SUBVOLUME, |item| item.is_inner(KeyType::INODE_EXTREF) && item.next().is_some());
        e.set_key(position, |key| Key { offset: key.offset + 1, ..key });
    }),
    ("reference-without-entry", |e| {
        let position = e.find(TreeId::FS, |item| {
            item.is(KeyType::INODE_REF) && item.key() == Key::new(256, KeyType::INODE_REF, 256)
        });
        e.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[0] = 1);
    }),
    ("name-impossible", |e| {
        let named = |item: Item<'_>| item.is_inner(KeyType::INODE_REF) && item.key().objectid > 256;
        let ItemPosition { leaf, slot } = e.find(SUBVOLUME, named);
        e.edit(leaf, |leaf| leaf.item_mut(slot)[10] = b'/');
    }),
    ("file-extent-overlap", |e| {
        let wanted = |item: Item<'_>| item.is_last() && item.is(KeyType::EXTENT_DATA) && item.key().offset > 0;
        e.change(SUBVOLUME, wanted, |extent: &mut FileExtent| {
            extent.body.num_bytes = (extent.body.num_bytes.get() + (1 << 20)).into();
        });
    }),
    ("file-extent-generation", |e| {
        e.change(SUBVOLUME, is_regular, |extent: &mut FileExtent| {
            extent.head.generation = (extent.head.generation.get() + 1000).into();
        });
    }),
    ("file-extent-bounds", |e| {
        e.change(SUBVOLUME, is_regular, |extent: &mut FileExtent| {
            extent.body.offset = (extent.body.offset.get() + (1 << 20)).into();
        });
    }),
    ("file-extent-empty", |e| {
        let alone = |item: Item<'_>| is_regular(item) && item.next().is_some_and(|next| !next.is(KeyType::EXTENT_DATA));
        e.change(SUBVOLUME, alone, |extent: &mut FileExtent| extent.body.num_bytes = 0.into());
    }),
    ("checksum-unwritten", |e| {
        e.change(SUBVOLUME, is_regular, |extent: &mut FileExtent| extent.head.kind = file_extent_type::PREALLOC);
    }),
    // Nothing is packed without checksums.
    ("file-extent-packing", |e| {
        let is_unsummed = |inode: &InodeItem| inode.flags.get() & inode_flags::NODATASUM != 0;
        let position = e.find(SUBVOLUME, |item| {
            let extent = item.next().and_then(|reference| reference.next());
            is_file(item) && item.head().is_some_and(is_unsummed) && extent.is_some_and(is_regular)
        });
        let position = ItemPosition { slot: position.slot + 2, ..position };
        e.edit_item(position, |extent: &mut FileExtent| extent.head.compression = 1);
    }),
    ("file-extent-gap", |e| e.remove(SUBVOLUME, is_hole)),
    ("inode-nbytes", |e| {
        e.change(SUBVOLUME, is_file, |inode: &mut InodeItem| inode.nbytes = (inode.nbytes.get() + 4096).into());
    }),
    ("symlink-target", take_target),
];
