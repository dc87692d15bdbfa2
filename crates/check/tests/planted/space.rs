//! Planted errors in superblocks, blocks, roots, chunks, devices, block groups and free space.

use super::{Plant, SUBVOLUME, kind};
use butterfs_ondisk::items::{
    BlockGroupItem, ChunkHead, DevExtent, DevItem, FreeSpaceInfo, Stripe, block_group_flags as bits,
};
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use zerocopy::FromBytes;

fn first_leaf_with_names(editor: &Editor) -> Logical {
    editor.find(SUBVOLUME, kind(KeyType::DIR_INDEX)).leaf
}

fn is_chunk(item: Item<'_>, flag: u64) -> bool {
    let has = |chunk: &ChunkHead| chunk.kind.get() & flag != 0;
    item.is_inner(KeyType::CHUNK_ITEM) && item.head().is_some_and(has)
}

/// The groups behind those that mkfs.btrfs made first, and removed again.
fn is_lasting(item: Item<'_>, kind: KeyType) -> bool {
    item.is_inner(kind) && item.key().objectid > 20 << 20
}

fn is_dev_item(item: Item<'_>) -> bool {
    item.is(KeyType::DEV_ITEM)
}

fn first_stripe(editor: &Editor, ItemPosition { leaf, slot }: ItemPosition) -> Stripe {
    let node = editor.node(leaf);
    Stripe::read_from_prefix(&node.item(slot)[ChunkHead::LEN..]).expect("a chunk has a stripe").0
}

fn set_first_stripe(editor: &Editor, ItemPosition { leaf, slot }: ItemPosition, change: impl FnOnce(&mut Stripe)) {
    editor.edit(leaf, |leaf| {
        let (stripe, _) = Stripe::mut_from_prefix(&mut leaf.item_mut(slot)[ChunkHead::LEN..]).expect("it has one");
        change(stripe);
    });
}

fn blank(editor: &Editor, copies: usize, at: usize) {
    for offset in &OFFSETS[at..at + copies] {
        editor.devices[0].write_at(offset.get(), &[0; 4096]).expect("memory can be written");
    }
}

pub const PLANTS: &[Plant] = &[
    ("cannot-open", |e| blank(e, 2, 0)),
    ("superblock-primary", |e| blank(e, 1, 0)),
    ("superblock-copy", |e| blank(e, 1, 1)),
    ("superblock-bytes-used", |e| e.superblock(|sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into())),
    ("superblock-total-bytes", |e| e.superblock(|sb| sb.total_bytes = (sb.total_bytes.get() - 4096).into())),
    ("tree-block", |e| e.write_raw(first_leaf_with_names(e), &[7; 512])),
    ("tree-block-copy", |e| {
        let (_, offset) = e.copies(first_leaf_with_names(e))[1];
        e.devices[0].write_at(offset + 200, &[7; 64]).expect("memory can be written");
    }),
    ("key-order-across-blocks", |e| {
        let position = e.find(SUBVOLUME, |item| item.is_last() && item.is(KeyType::DIR_INDEX));
        e.set_key(position, |key| Key { offset: u64::MAX, ..key });
    }),
    ("root-missing", |e| {
        e.remove(TreeId::ROOT, |item| item.is_inner(KeyType::ROOT_ITEM) && item.key().objectid == TreeId::CSUM.get())
    }),
    ("root-doubled", |e| {
        let ItemPosition { leaf, slot } =
            e.find(TreeId::ROOT, |item| item.is_inner(KeyType::ROOT_ITEM) && item.leaf.free_space() > 470);
        e.edit(leaf, |leaf| {
            let (key, data) = (leaf.key(slot), leaf.item(slot).to_vec());
            leaf.insert_item(slot + 1, Key { offset: key.offset + 1, ..key }, &data);
        });
    }),
    ("system-chunk", |e| e.remove(TreeId::CHUNK, |item| is_chunk(item, bits::SYSTEM))),
    ("chunk", |e| {
        let position = e.find(TreeId::CHUNK, |item| is_chunk(item, bits::DATA));
        set_first_stripe(e, position, |stripe| stripe.offset = (stripe.offset.get() + (1 << 40)).into());
    }),
    ("stripe-overlap", |e| {
        let system = first_stripe(e, e.find(TreeId::CHUNK, |item| is_chunk(item, bits::SYSTEM)));
        let data = e.find(TreeId::CHUNK, |item| is_chunk(item, bits::DATA));
        set_first_stripe(e, data, |stripe| stripe.offset = system.offset);
    }),
    ("device-extent-missing", |e| e.remove(TreeId::DEV, kind(KeyType::DEV_EXTENT))),
    ("device-extent-extra", |e| {
        e.change(TreeId::DEV, kind(KeyType::DEV_EXTENT), |extent: &mut DevExtent| {
            extent.chunk_offset = (extent.chunk_offset.get() + 4096).into();
        });
    }),
    ("device-item-missing", |e| e.remove(TreeId::CHUNK, is_dev_item)),
    ("device-identity", |e| e.change(TreeId::CHUNK, is_dev_item, |device: &mut DevItem| device.uuid[0] ^= 1)),
    ("device-bytes-used", |e| {
        e.change(TreeId::CHUNK, is_dev_item, |device: &mut DevItem| {
            device.bytes_used = (device.bytes_used.get() ^ 256).into();
        });
    }),
    ("block-group-missing", |e| e.remove(TreeId::EXTENT, kind(KeyType::BLOCK_GROUP_ITEM))),
    ("block-group-extra", |e| {
        let position = e.find(TreeId::EXTENT, kind(KeyType::BLOCK_GROUP_ITEM));
        e.set_key(position, |key| Key { offset: key.offset + 4096, ..key });
    }),
    ("block-group-type", |e| {
        let is_metadata = |group: &BlockGroupItem| group.flags.get() & bits::METADATA != 0;
        e.change(
            TreeId::EXTENT,
            |item| item.is(KeyType::BLOCK_GROUP_ITEM) && item.head().is_some_and(is_metadata),
            |group: &mut BlockGroupItem| group.flags = (group.flags.get() ^ (bits::METADATA | bits::DATA)).into(),
        );
    }),
    ("block-group-used", |e| {
        e.change(TreeId::EXTENT, kind(KeyType::BLOCK_GROUP_ITEM), |group: &mut BlockGroupItem| {
            group.used = (group.used.get() + 4096).into();
        });
    }),
    ("free-space-info-missing", |e| {
        e.remove(TreeId::FREE_SPACE, |item| is_lasting(item, KeyType::FREE_SPACE_INFO));
    }),
    ("free-space-stray", |e| e.insert(TreeId::FREE_SPACE, Key::new(1 << 50, KeyType::FREE_SPACE_EXTENT, 4096), &[])),
    ("free-space-count", |e| {
        e.change(
            TreeId::FREE_SPACE,
            |item| is_lasting(item, KeyType::FREE_SPACE_INFO),
            |info: &mut FreeSpaceInfo| info.extent_count = (info.extent_count.get() ^ 64).into(),
        );
    }),
    ("free-space-form", |e| {
        e.change(
            TreeId::FREE_SPACE,
            |item| is_lasting(item, KeyType::FREE_SPACE_INFO),
            |info: &mut FreeSpaceInfo| info.flags = (info.flags.get() ^ FreeSpaceInfo::USING_BITMAPS).into(),
        );
    }),
    ("free-space-wrong", |e| e.remove(TreeId::FREE_SPACE, |item| is_lasting(item, KeyType::FREE_SPACE_EXTENT))),
];
