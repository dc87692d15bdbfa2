//! Planted errors in extents, their references, checksums, root items and UUIDs.

use super::{Plant, SUBVOLUME, change_inline, is_data_extent, is_file, is_plain_data_extent, is_regular, kind};
use butterfs_ondisk::items::{ExtentItem, InodeItem, RootItem, extent_flags, inode_flags};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_testkit::editor::{Editor, Item};
use zerocopy::IntoBytes;

/// An extent item without references.
fn extent(refs: u64, flags: u64) -> ExtentItem {
    ExtentItem { refs: refs.into(), generation: 1.into(), flags: flags.into() }
}

/// Takes the last checksums of a leaf further, onto the first ones of the next leaf.
fn stretch_checksums(e: &Editor) {
    let (mut position, mut before): (_, Option<(Logical, u64)>) = (None, None);
    e.each_leaf(TreeId::CSUM, &mut |leaf| {
        let first = leaf.key(0).offset;
        if let Some((at, start)) = before {
            position = Some((at, ((first - start) / 4096 + 1) as usize * 4));
        }
        before = leaf.last_key().map(|last| (leaf.at(), last.offset));
        position.is_some_and(|(at, len)| e.node(at).free_space() >= len)
    });
    let (at, len) = position.expect("there are several leaves of checksums");
    e.edit(at, |leaf| {
        let slot = leaf.nritems() - 1;
        let len = len.max(leaf.item_len(slot));
        leaf.resize_item(slot, len);
    });
}

/// Puts an extent that nothing uses at the end of the data.
fn add_unused(e: &Editor) {
    let end = e.volume.chunk_map().iter().find(|chunk| chunk.kind & 1 != 0).expect("there is data").end();
    let mut last = 0;
    e.each_leaf(TreeId::EXTENT, &mut |leaf| {
        let below = leaf.items().filter(|(key, _)| key.objectid < end.get() && key.kind != KeyType::BLOCK_GROUP_ITEM);
        last = below.map(|(key, _)| key.objectid).fold(last, u64::max);
        false
    });
    let key = Key::new(end.get() - 4096, KeyType::EXTENT_ITEM, 4096);
    assert!(last < key.objectid);
    e.insert(TreeId::EXTENT, key, extent(0, extent_flags::DATA).as_bytes());
}

fn is_full(item: Item<'_>) -> bool {
    let is_full = |extent: &ExtentItem| extent.flags.get() & extent_flags::FULL_BACKREF != 0;
    item.is_inner(KeyType::METADATA_ITEM) && item.head().is_some_and(is_full)
}

pub const PLANTS: &[Plant] = &[
    ("extent-overlap", |e| {
        let position = e.find(TreeId::EXTENT, |item| item.is_last() && is_data_extent(item));
        e.set_key(position, |key| Key { offset: key.offset + (1 << 20), ..key });
    }),
    ("extent-outside-chunk", |e| {
        let item = extent(1, extent_flags::DATA);
        e.insert(TreeId::EXTENT, Key::new(1 << 50, KeyType::EXTENT_ITEM, 4096), item.as_bytes());
    }),
    ("extent-in-wrong-group", |e| {
        let position = e.find(TreeId::EXTENT, is_data_extent);
        let nodesize: u64 = e.sb.nodesize.get().into();
        e.edit(position.leaf, |leaf| {
            let block = [extent(1, extent_flags::TREE_BLOCK).as_bytes(), &[0; 18]].concat();
            leaf.replace_item(position.slot, &block);
            leaf.set_key(position.slot, Key { offset: nodesize, ..leaf.key(position.slot) });
        });
    }),
    ("extent-missing", |e| e.remove(TreeId::EXTENT, is_data_extent)),
    ("extent-unused", add_unused),
    ("extent-refs", |e| {
        e.change(TreeId::EXTENT, is_data_extent, |extent: &mut ExtentItem| {
            extent.refs = (extent.refs.get() + 1).into();
        });
    }),
    ("reference-missing", |e| {
        change_inline(e, |reference| reference.objectid = (reference.objectid.get() + 1).into());
    }),
    ("reference-extra", |e| {
        change_inline(e, |reference| reference.objectid = (reference.objectid.get() + 1).into());
    }),
    ("reference-count", |e| {
        change_inline(e, |reference| reference.count = (reference.count.get() + 1).into());
        e.change(TreeId::EXTENT, is_plain_data_extent, |extent: &mut ExtentItem| {
            extent.refs = (extent.refs.get() + 1).into();
        });
    }),
    ("reference-without-extent", |e| {
        e.insert(TreeId::EXTENT, Key::new(1 << 50, KeyType::TREE_BLOCK_REF, 5), &[]);
    }),
    ("extent-level", |e| {
        let position = e.find(TreeId::EXTENT, |item| item.is_inner(KeyType::METADATA_ITEM) && item.key().offset == 0);
        e.set_key(position, |key| Key { offset: 5, ..key });
    }),
    ("extent-generation", |e| {
        e.change(TreeId::EXTENT, kind(KeyType::METADATA_ITEM), |extent: &mut ExtentItem| {
            extent.generation = (extent.generation.get() - 1).into();
        });
    }),
    ("extent-length", |e| {
        let position = e.find(TreeId::EXTENT, is_data_extent);
        e.set_key(position, |key| Key { offset: key.offset - 4096, ..key });
    }),
    ("full-backref-missing", |e| {
        e.change(TreeId::EXTENT, is_full, |extent: &mut ExtentItem| {
            extent.flags = (extent.flags.get() ^ extent_flags::FULL_BACKREF).into();
        });
    }),
    ("full-backref-extra", |e| {
        let root = e.root(TreeId::CSUM).get();
        let is_it = |item: Item<'_>| item.is(KeyType::METADATA_ITEM) && item.key().objectid == root;
        e.change(TreeId::EXTENT, is_it, |extent: &mut ExtentItem| {
            extent.flags = (extent.flags.get() ^ extent_flags::FULL_BACKREF).into();
        });
    }),
    ("checksum-missing", |e| {
        let position = e.find(TreeId::CSUM, |item| item.data().len() > 4);
        e.edit(position.leaf, |leaf| leaf.resize_item(position.slot, leaf.item_len(position.slot) - 4));
    }),
    ("checksum-odd", |e| {
        let wanted = |item: Item<'_>| is_file(item) && item.next().and_then(|item| item.next()).is_some_and(is_regular);
        e.change(SUBVOLUME, wanted, |inode: &mut InodeItem| {
            inode.flags = (inode.flags.get() | inode_flags::NODATASUM).into();
        });
    }),
    ("checksum-stray", |e| {
        e.remove(TreeId::EXTENT, |item| is_data_extent(item) && item.key().offset == 8192);
    }),
    ("checksum-overlap", stretch_checksums),
    ("data-checksum", |e| {
        let position = e.find(TreeId::CSUM, |item| item.is(KeyType::EXTENT_CSUM));
        let data = e.node(position.leaf).key(position.slot).offset;
        e.write_raw(Logical(data), &[0x5a; 512]);
    }),
    ("root-unreferenced", |e| {
        let id = SUBVOLUME.get();
        e.remove(TreeId::ROOT, |item| item.is_inner(KeyType::ROOT_REF) && item.key().offset == id);
        e.remove(TreeId::ROOT, |item| item.is_inner(KeyType::ROOT_BACKREF) && item.key().objectid == id);
    }),
    ("root-offset", |e| {
        let position =
            e.find(TreeId::ROOT, |item| item.is(KeyType::ROOT_ITEM) && item.key().objectid == TreeId::UUID.get());
        e.set_key(position, |key| Key { offset: 1, ..key });
    }),
    ("root-directory", |e| {
        let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.change(TreeId::ROOT, wanted, |root: &mut RootItem| root.root_dirid = 300.into());
    }),
    ("item-unknown", |e| {
        let wanted = |item: Item<'_>| item.is_inner(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.set_key(e.find(TreeId::ROOT, wanted), |key| Key { kind: KeyType(133), ..key });
    }),
    ("item-unknown", |e| {
        let position = e.find(SUBVOLUME, |item| item.is_inner(KeyType::XATTR_ITEM));
        e.set_key(position, |key| Key { kind: KeyType(25), ..key });
    }),
    ("root-ref-unpaired", |e| e.remove(TreeId::ROOT, kind(KeyType::ROOT_BACKREF))),
    ("root-dead-without-orphan", |e| {
        let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.change(TreeId::ROOT, wanted, |root: &mut RootItem| root.refs = 0.into());
    }),
    ("root-dead-with-name", |e| {
        let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.change(TreeId::ROOT, wanted, |root: &mut RootItem| root.refs = 0.into());
        e.insert(TreeId::ROOT, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, SUBVOLUME.get()), &[]);
    }),
    ("root-orphan-stale", |e| {
        e.insert(TreeId::ROOT, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, SUBVOLUME.get()), &[]);
    }),
    ("orphan-stale", |e| e.insert(SUBVOLUME, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, 257), &[])),
    ("snapshot-orphans", |e| {
        let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
        e.change(TreeId::ROOT, wanted, |root: &mut RootItem| root.flags = RootItem::RDONLY.into());
        e.insert(SUBVOLUME, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, 257), &[]);
    }),
    ("uuid-entry-missing", |e| e.remove(TreeId::UUID, kind(KeyType::UUID_KEY_SUBVOL))),
    ("uuid-entry-stale", |e| {
        let position = e.find(TreeId::UUID, kind(KeyType::UUID_KEY_SUBVOL));
        e.edit(position.leaf, |leaf| leaf.item_mut(position.slot).copy_from_slice(&4256u64.to_le_bytes()));
    }),
    ("uuid-tree-lags", |e| {
        e.remove(TreeId::UUID, kind(KeyType::UUID_KEY_SUBVOL));
        e.superblock(|sb| sb.uuid_tree_generation = 1.into());
    }),
];
