//! Damage of which nothing need be lost, because other structures say what was there: everything is as before.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, support, text};
use butterfs_check::Report;
use butterfs_device::MemoryDevice;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use butterfs_ondisk::items::{
    DirItem, ExtentItem, FileExtent, FileExtentHead, InodeItem, RootItem, block_group_flags as bits, compression,
};
use butterfs_ondisk::items::{extent_flags, file_extent_type, inode_flags};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Key, KeyType, TreeId};
use butterfs_repair::{Options, Start, apply, plan};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use std::path::Path;
use std::sync::Arc;

const SUBVOLUME: TreeId = TreeId(256);

/// The name of a case, what it does, and whether attributes or checksums are lost by it.
type Case = (&'static str, fn(&Editor), Lost);

#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Nothing,
    /// The attributes of the inode whose item it was.
    Attributes,
    /// The knowledge that a subvolume had been deleted.
    Deletion,
}

fn remove_root(editor: &Editor, id: TreeId) {
    editor.remove(TreeId::ROOT, |item| item.is(KeyType::ROOT_ITEM) && item.key().objectid == id.get());
}

/// The leaf of the root tree in which the subvolume's root item is.
fn root_leaf(editor: &Editor) -> ItemPosition {
    editor.find(TreeId::ROOT, |item| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get())
}

/// Changes a number in the header of an item, 0 for the offset of its payload and 4 for its length.
fn shift(editor: &Editor, ItemPosition { leaf, slot }: ItemPosition, number: usize) {
    let mut bytes = editor.node(leaf).bytes().to_vec();
    bytes[HEADER_LEN + slot * ITEM_LEN + 17 + number] ^= 1;
    editor.stamp(leaf, bytes);
}

/// Adds an orphan item.
fn orphan(editor: &Editor, tree: TreeId, number: u64) {
    editor.insert(tree, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, number), &[]);
}

/// Marks a subvolume as deleted, as its deletion does, which takes its names away too.
fn delete(editor: &Editor, subvolume: TreeId, flags: u64) {
    let wanted = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == subvolume.get();
    editor.change(TreeId::ROOT, wanted, |root: &mut RootItem| {
        (root.refs, root.flags) = (0.into(), (root.flags.get() | flags).into());
    });
}

/// Gives a file's extent another length on the device, and perhaps in memory.
fn relength(editor: &Editor, wanted: impl Fn(Item<'_>) -> bool, by: i64, also_unpacked: bool) {
    editor.change(SUBVOLUME, wanted, |extent: &mut FileExtent| {
        let length = extent.body.disk_num_bytes.get().wrapping_add_signed(by);
        extent.body.disk_num_bytes = length.into();
        if also_unpacked {
            extent.head.ram_bytes = length.into();
        }
    });
}

/// An extent of this kind whose inode has this flag; its item lies before it in the same leaf.
fn of_flag(editor: &Editor, kind: u8, flag: u64) -> impl Fn(Item<'_>) -> bool {
    let mut flagged = Vec::new();
    editor.each_leaf(SUBVOLUME, &mut |leaf| {
        for (key, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::INODE_ITEM) {
            let item = <InodeItem as zerocopy::FromBytes>::ref_from_bytes(data).expect("an inode item");
            flagged.extend((item.flags.get() & flag == flag).then_some(key.objectid));
        }
        false
    });
    move |item| {
        let is_kind = |extent: &FileExtent| extent.head.kind == kind && extent.body.disk_bytenr.get() != 0;
        item.is_inner(KeyType::EXTENT_DATA)
            && flagged.contains(&item.key().objectid)
            && item.head().is_some_and(is_kind)
    }
}

/// Damages each copy of a leaf with files at another place.
fn damage_copies(editor: &Editor, tree: TreeId, kind: KeyType) {
    let leaf = editor.find(tree, |item| item.is_inner(kind)).leaf;
    let places = editor.copies(leaf);
    assert_eq!(places.len(), 2, "tree blocks have two copies");
    for ((_, offset), inside) in places.into_iter().zip([700, 2900]) {
        editor.devices[0].write_at(offset + inside, &[0x5a; 300]).expect("memory can be written");
    }
}

/// A file with one extent that begins at its start, and nothing else.
fn plain_extent(item: Item<'_>) -> bool {
    let whole = |extent: &FileExtent| {
        extent.body.disk_bytenr.get() != 0
            && extent.head.kind == 1
            && extent.body.num_bytes == extent.body.disk_num_bytes
    };
    item.is_inner(KeyType::EXTENT_DATA)
        && item.key().offset == 0
        && item.head().is_some_and(whole)
        && item.next().is_some_and(|next| !next.is(KeyType::EXTENT_DATA))
}

const CASES: &[Case] = &[
    ("a leaf of the root tree", |editor| editor.write_raw(root_leaf(editor).leaf, &[0x5a; 4096]), Lost::Nothing),
    ("the root tree", |editor| editor.write_raw(editor.root(TreeId::ROOT), &[0x5a; 4096]), Lost::Deletion),
    ("a subvolume's root item", |editor| remove_root(editor, SUBVOLUME), Lost::Nothing),
    ("a snapshot's root item", |editor| remove_root(editor, TreeId(257)), Lost::Nothing),
    ("the top level's root item", |editor| remove_root(editor, TreeId::FS), Lost::Nothing),
    ("the data relocation tree's root item", |editor| remove_root(editor, TreeId::DATA_RELOC), Lost::Nothing),
    ("the UUID tree's root item", |editor| remove_root(editor, TreeId::UUID), Lost::Nothing),
    ("the device tree's root item", |editor| remove_root(editor, TreeId::DEV), Lost::Nothing),
    ("an offset in the root tree", |editor| shift(editor, root_leaf(editor), 0), Lost::Nothing),
    ("a length in the root tree", |editor| shift(editor, root_leaf(editor), 4), Lost::Nothing),
    (
        "a reference of a subvolume that is a byte longer",
        |editor| {
            let wanted = |item: Item<'_>| item.is(KeyType::ROOT_REF) && item.slot + 1 < item.leaf.nritems();
            shift(editor, editor.find(TreeId::ROOT, wanted), 4);
        },
        Lost::Nothing,
    ),
    (
        "an offset in the checksum tree",
        |editor| shift(editor, editor.find(TreeId::CSUM, |item| item.is(KeyType::EXTENT_CSUM)), 0),
        Lost::Nothing,
    ),
    (
        "a reference that leads to a file",
        |editor| {
            let is_link = |item: Item<'_>| item.is_inner(KeyType::INODE_REF) && item.key().offset == 256;
            let alone = |item: Item<'_>| is_link(item) && item.data().len() < 20 && item.data()[10..].starts_with(b"d");
            let link = editor.find(SUBVOLUME, alone);
            editor.set_key(link, |key| Key { offset: 257, ..key });
        },
        Lost::Nothing,
    ),
    (
        "a name in a reference",
        |editor| {
            let alone = |item: Item<'_>| item.is_inner(KeyType::INODE_REF) && item.data()[10..].starts_with(b"d");
            let ItemPosition { leaf, slot } = editor.find(SUBVOLUME, alone);
            editor.edit(leaf, |leaf| leaf.item_mut(slot)[10] = b'/');
        },
        Lost::Nothing,
    ),
    (
        "the name of a top directory",
        |editor| {
            let is_top = |item: Item<'_>| item.key() == Key::new(256, KeyType::INODE_REF, 256);
            let ItemPosition { leaf, slot } = editor.find(TreeId::FS, is_top);
            editor.edit(leaf, |leaf| leaf.item_mut(slot)[10] = b'x');
        },
        Lost::Nothing,
    ),
    (
        "the generation of a pointer",
        |editor| {
            editor.edit(editor.root(SUBVOLUME), |node| {
                let (at, generation) = node.child(1);
                node.set_child(1, at, Generation(generation.get() + 16));
            });
        },
        Lost::Nothing,
    ),
    (
        "a bit of an extent's type",
        |editor| editor.change(SUBVOLUME, plain_extent, |extent: &mut FileExtent| extent.head.kind ^= 4),
        Lost::Nothing,
    ),
    (
        "entries that lead to another directory",
        |editor| {
            let root = editor.root(TreeId::FS);
            let entries = |kind: KeyType| editor.find(TreeId::FS, |item| item.is(kind) && item.data().ends_with(b"c"));
            let above = editor.find(TreeId::FS, |item| item.is(KeyType::INODE_REF) && item.data().ends_with(b"a"));
            let inode = editor.node(root).key(above.slot).objectid;
            for kind in [KeyType::DIR_ITEM, KeyType::DIR_INDEX] {
                editor.edit_item(entries(kind), |entry: &mut DirItem| entry.location.objectid = inode.into());
            }
        },
        Lost::Nothing,
    ),
    (
        "a bit of an extent's address",
        |editor| {
            let far =
                |extent: &mut FileExtent| extent.body.disk_bytenr = (extent.body.disk_bytenr.get() ^ 1 << 24).into();
            editor.change(SUBVOLUME, plain_extent, far);
        },
        Lost::Nothing,
    ),
    ("a file's extent item", |editor| editor.remove(SUBVOLUME, plain_extent), Lost::Nothing),
    (
        "the item of an inode",
        |editor| {
            let is_item = |item: Item<'_>, inode| item.is_inner(KeyType::INODE_ITEM) && item.key().objectid == inode;
            // A file whose inode item begins or ends a leaf cannot be used: the item would not be taken out alone.
            let has_item = |inode| editor.try_find(SUBVOLUME, |item| is_item(item, inode)).is_some();
            let extent = editor.find(SUBVOLUME, |item| plain_extent(item) && has_item(item.key().objectid));
            let inode = editor.node(extent.leaf).key(extent.slot).objectid;
            editor.remove(SUBVOLUME, |item| is_item(item, inode));
        },
        Lost::Attributes,
    ),
    (
        "a bit of an inode's generation",
        |editor| {
            let is_file = |item: Item<'_>| item.is_inner(KeyType::INODE_ITEM);
            let high = |inode: &mut InodeItem| inode.generation = (inode.generation.get() | 1 << 40).into();
            editor.change(SUBVOLUME, is_file, high);
        },
        Lost::Nothing,
    ),
    ("both copies of a leaf with files", |e| damage_copies(e, SUBVOLUME, KeyType::INODE_ITEM), Lost::Nothing),
    ("both copies of a leaf of the root tree", |e| damage_copies(e, TreeId::ROOT, KeyType::ROOT_ITEM), Lost::Nothing),
    ("both copies of the chunk tree", |e| damage_copies(e, TreeId::CHUNK, KeyType::CHUNK_ITEM), Lost::Nothing),
    ("a length that is too small", |e| relength(e, plain_extent, -4096, false), Lost::Nothing),
    ("a length that is too large", |e| relength(e, plain_extent, 4096, false), Lost::Nothing),
    ("both lengths too small", |e| relength(e, plain_extent, -4096, true), Lost::Nothing),
    ("both lengths too large", |e| relength(e, plain_extent, 4096, true), Lost::Nothing),
    (
        "the length of data without checksums",
        |e| relength(e, of_flag(e, 1, inode_flags::NODATASUM), 4096, false),
        Lost::Nothing,
    ),
    (
        "the length of allocated space",
        |e| relength(e, of_flag(e, file_extent_type::PREALLOC, 0), -4096, false),
        Lost::Nothing,
    ),
    (
        "a mark on data without checksums",
        |e| {
            let wanted = of_flag(e, 1, inode_flags::NODATASUM);
            e.change(SUBVOLUME, wanted, |extent: &mut FileExtent| extent.head.compression = compression::LZO);
        },
        Lost::Nothing,
    ),
    ("an orphan item of a file that has names", |e| orphan(e, SUBVOLUME, 257), Lost::Nothing),
    ("an orphan item of no inode", |e| orphan(e, SUBVOLUME, 1 << 30), Lost::Nothing),
    ("an orphan item of a subvolume that is there", |e| orphan(e, TreeId::ROOT, 256), Lost::Nothing),
    ("an orphan item of no subvolume", |e| orphan(e, TreeId::ROOT, 70_000), Lost::Nothing),
    ("an orphan item of another tree", |e| orphan(e, TreeId::ROOT, TreeId::CSUM.get()), Lost::Nothing),
    (
        "a deletion that left the names",
        |e| {
            delete(e, SUBVOLUME, RootItem::DEAD);
            orphan(e, TreeId::ROOT, SUBVOLUME.get());
        },
        Lost::Nothing,
    ),
    (
        "a deletion that left one reference and the entry",
        |e| {
            delete(e, SUBVOLUME, 0);
            orphan(e, TreeId::ROOT, SUBVOLUME.get());
            let is_back = |item: Item<'_>| item.is(KeyType::ROOT_BACKREF) && item.key().objectid == SUBVOLUME.get();
            e.remove(TreeId::ROOT, is_back);
        },
        Lost::Nothing,
    ),
    (
        "a chunk item",
        |editor| {
            let map = editor.volume.chunk_map();
            let data = map.iter().find(|chunk| chunk.kind & bits::DATA != 0).expect("it has data").start;
            let wanted = |item: Item<'_>| item.is(KeyType::CHUNK_ITEM) && item.key().offset == data.get();
            editor.remove(TreeId::CHUNK, wanted);
        },
        Lost::Nothing,
    ),
    ("the place of a chunk of data", |editor| move_chunk(editor, bits::DATA), Lost::Nothing),
    ("the place of one copy of a chunk of trees", |editor| move_chunk(editor, bits::METADATA), Lost::Nothing),
    ("the level in a subvolume's root item", |editor| change_level(editor, SUBVOLUME), Lost::Nothing),
    ("the level in the top level's root item", |editor| change_level(editor, TreeId::FS), Lost::Nothing),
    ("the level in the checksum tree's root item", |editor| change_level(editor, TreeId::CSUM), Lost::Nothing),
    ("the level in the extent tree's root item", |editor| change_level(editor, TreeId::EXTENT), Lost::Nothing),
    ("the level of the root tree", |editor| editor.superblock(|sb| sb.root_level ^= 2), Lost::Nothing),
    (
        "the address in a subvolume's root item",
        |editor| {
            // A leaf of the last transaction, as the root is: only the level tells them apart.
            let root = editor.node(editor.root(SUBVOLUME));
            let is_new = |slot: &usize| root.child(*slot).1 == root.generation();
            let slot = (0..root.nritems()).find(is_new).expect("the transaction that wrote the root wrote a leaf");
            let is_it = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == SUBVOLUME.get();
            editor.change(TreeId::ROOT, is_it, |item: &mut RootItem| item.bytenr = root.child(slot).0.get().into());
        },
        Lost::Nothing,
    ),
    (
        "a pointer that leads where the next one does",
        |editor| {
            editor.edit(editor.root(SUBVOLUME), |node| {
                let (at, generation) = node.child(2);
                node.set_child(1, at, generation);
            });
        },
        Lost::Nothing,
    ),
    (
        "the address in a pointer",
        |editor| {
            let elsewhere = editor.root(TreeId::CSUM);
            editor.edit(editor.root(SUBVOLUME), |node| node.set_child(1, elsewhere, node.child(1).1));
        },
        Lost::Nothing,
    ),
    (
        "full back references of a tree that nothing shares",
        |editor| {
            let blocks = editor.blocks(TreeId::CSUM);
            for block in blocks {
                let is_it = |item: Item<'_>| item.is(KeyType::METADATA_ITEM) && item.key().objectid == block.get();
                editor.change(TreeId::EXTENT, is_it, |extent: &mut ExtentItem| {
                    extent.flags = (extent.flags.get() | extent_flags::FULL_BACKREF).into();
                });
            }
        },
        Lost::Nothing,
    ),
];

/// Has the first stripe of a chunk begin one stripe later, in the chunk tree alone.
fn move_chunk(editor: &Editor, kind: u64) {
    let map = editor.volume.chunk_map();
    let chunk = map.iter().find(|chunk| chunk.kind & kind != 0).expect("it has both");
    let position = editor.find(TreeId::CHUNK, |item| item.key() == chunk.key());
    let mut moved = chunk.clone();
    moved.stripes[0].physical = moved.stripes[0].physical.plus(STRIPE_LEN);
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot).copy_from_slice(&moved.encode()));
}

fn change_level(editor: &Editor, tree: TreeId) {
    let is_it = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == tree.get();
    editor.change(TreeId::ROOT, is_it, |root: &mut RootItem| root.level ^= 2);
}

fn settle(
    base: &Arc<MemoryDevice>,
    (before, known): (&Fingerprint, &Report),
    image: &Path,
    (name, damage, lost): &Case,
) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(&editor);
    let mut options = Options { now: 1_700_000_000, ..Options::default() };
    options.check.check_data = true;
    let made = plan(&devices(&damaged), &options, &|_, _| {}).map_err(|trouble| format!("{name}: {trouble}"))?;
    let said = || format!("before:{}\n  steps:{}\n  after:{}", text(&made.before), actions(&made), text(&made.after));
    if !made.is_clean()
        || made.after.warnings > 0
        || made.before.findings.iter().all(|one| known.findings.contains(one))
    {
        return Err(format!("{name}: trouble {:?}\n  {}", made.trouble, said()));
    }
    apply(&made, &devices(&damaged), &MemoryDevice::new(made.undo_len())).map_err(|trouble| trouble.to_string())?;
    write_image(&damaged, image);
    let after = judged(image, "after the repair").and_then(|()| shown(image));
    let after = after.map_err(|reason| format!("{name}: {reason}\n  {}", said()))?;
    let found = differences(before, &after, Compare { blocks: false, ..Compare::ALL });
    let is_allowed = |line: &String| match lost {
        Lost::Nothing => false,
        // Everything but the content and the names, as far as the content ends in a whole sector.
        Lost::Attributes => !line.contains("missing") && !line.contains("content"),
        Lost::Deletion => line.starts_with("\"snap3") || line.starts_with("\"\":"),
    };
    let found: Vec<String> = found.into_iter().filter(|line| !is_allowed(line)).collect();
    let first = found.iter().take(6).cloned().collect::<Vec<_>>().join("\n    ");
    if found.is_empty() { Ok(()) } else { Err(format!("{name}: not as before:\n    {first}\n  {}", said())) }
}

/// An extent with this compression that shows this many bytes becomes one with another compression.
fn remark(editor: &Editor, from: u8, to: u8, at_least: u64) {
    let is_it = |extent: &FileExtent| {
        (extent.head.kind, extent.head.compression) == (1, from) && extent.body.num_bytes.get() >= at_least
    };
    let wanted = |item: Item<'_>| item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_it);
    editor.change(SUBVOLUME, wanted, |extent: &mut FileExtent| extent.head.compression = to);
}

/// Cases on files with compression.
const PACKED: &[Case] = &[
    ("the mark of zlib", |editor| remark(editor, compression::ZLIB, compression::NONE, 128 << 10), Lost::Nothing),
    ("the mark of LZO", |editor| remark(editor, compression::LZO, compression::NONE, 128 << 10), Lost::Nothing),
    ("the mark of Zstandard", |editor| remark(editor, compression::ZSTD, compression::NONE, 128 << 10), Lost::Nothing),
    ("a mark too much", |editor| remark(editor, compression::NONE, compression::ZSTD, 129 << 10), Lost::Nothing),
    ("the mark of zlib on what is not packed", |editor| mark(editor, short, compression::ZLIB), Lost::Nothing),
    ("the mark of LZO on what is not packed", |editor| mark(editor, short, compression::LZO), Lost::Nothing),
    ("the mark of Zstandard on what is not packed", |editor| mark(editor, short, compression::ZSTD), Lost::Nothing),
    (
        "a mark and a length of what is not packed",
        |editor| {
            editor.change(SUBVOLUME, short, |extent: &mut FileExtent| {
                (extent.head.compression, extent.head.ram_bytes) = (compression::ZLIB, (128 << 10).into());
            });
        },
        Lost::Nothing,
    ),
    ("zlib for Zstandard", |editor| remark(editor, compression::ZLIB, compression::ZSTD, 1), Lost::Nothing),
    ("LZO for zlib", |editor| remark(editor, compression::LZO, compression::ZLIB, 1), Lost::Nothing),
    ("Zstandard for LZO", |editor| remark(editor, compression::ZSTD, compression::LZO, 1), Lost::Nothing),
    ("no mark on a part of zlib", |editor| mark(editor, part::<1>, compression::NONE), Lost::Nothing),
    ("no mark on a part of LZO", |editor| mark(editor, part::<2>, compression::NONE), Lost::Nothing),
    ("no mark on a part of Zstandard", |editor| mark(editor, part::<3>, compression::NONE), Lost::Nothing),
    ("a packed length that is too small", |e| relength(e, long, -4096, false), Lost::Nothing),
    ("a packed length that is too large", |e| relength(e, long, 4096, false), Lost::Nothing),
    ("another mark on zlib in an item", |editor| mark_inline::<1, 2>(editor), Lost::Nothing),
    ("another mark on LZO in an item", |editor| mark_inline::<2, 3>(editor), Lost::Nothing),
    ("another mark on Zstandard in an item", |editor| mark_inline::<3, 1>(editor), Lost::Nothing),
];

/// Marks packed data that stands in its item as packed otherwise.
fn mark_inline<const FROM: u8, const TO: u8>(editor: &Editor) {
    let is_it = |item: Item<'_>| {
        let is_packed = |head: &FileExtentHead| (head.kind, head.compression) == (file_extent_type::INLINE, FROM);
        item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_packed)
    };
    editor.change(SUBVOLUME, is_it, |head: &mut FileExtentHead| head.compression = TO);
}

/// The extent of a short file that is not packed.
fn short(item: Item<'_>) -> bool {
    let is_short = |extent: &FileExtent| {
        (extent.head.kind, extent.head.compression) == (1, 0) && extent.body.num_bytes.get() == 64 << 10
    };
    item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_short)
}

/// An extent that is packed so.
fn packed<const KIND: u8>(item: Item<'_>) -> bool {
    let is_packed = |extent: &FileExtent| (extent.head.kind, extent.head.compression) == (1, KIND);
    item.is_inner(KeyType::EXTENT_DATA) && item.head().is_some_and(is_packed)
}

/// A packed extent of several sectors that one item shows.
fn long(item: Item<'_>) -> bool {
    let is_long = |extent: &FileExtent| extent.body.disk_num_bytes.get() > 4096;
    packed::<1>(item) && item.key().offset > 0 && item.head().is_some_and(is_long)
}

/// A packed extent that shows less than it takes.
fn part<const KIND: u8>(item: Item<'_>) -> bool {
    let is_part = |extent: &FileExtent| extent.body.num_bytes <= extent.body.disk_num_bytes;
    packed::<KIND>(item) && item.head().is_some_and(is_part)
}

fn mark(editor: &Editor, wanted: fn(Item<'_>) -> bool, kind: u8) {
    editor.change(SUBVOLUME, wanted, |extent: &mut FileExtent| extent.head.compression = kind);
}

/// Cases in leaves that ten subvolumes share.
const SHARED: &[Case] = &[
    ("a mark", |editor| remark(editor, compression::ZSTD, compression::LZO, 1), Lost::Nothing),
    ("a length", |e| relength(e, plain_extent, 4096, false), Lost::Nothing),
    ("an extent's item", |editor| editor.remove(SUBVOLUME, plain_extent), Lost::Nothing),
    (
        "an offset",
        |e| e.change(SUBVOLUME, plain_extent, |extent: &mut FileExtent| extent.body.offset = 4096.into()),
        Lost::Nothing,
    ),
    (
        "a link count",
        |e| {
            let is_file = |item: Item<'_>| {
                item.is_inner(KeyType::INODE_ITEM) && item.head().is_some_and(|item: &InodeItem| item.nlink.get() == 2)
            };
            e.change(SUBVOLUME, is_file, |item: &mut InodeItem| item.nlink = 9.into());
        },
        Lost::Nothing,
    ),
    ("an entry", |e| e.remove(SUBVOLUME, |item| item.is_inner(KeyType::DIR_ITEM)), Lost::Nothing),
    ("an index", |e| e.remove(SUBVOLUME, |item| item.is_inner(KeyType::DIR_INDEX)), Lost::Nothing),
    (
        "a reference",
        |e| e.remove(SUBVOLUME, |item| item.is_inner(KeyType::INODE_REF) && item.key().offset > 256),
        Lost::Nothing,
    ),
    ("an orphan item", |e| orphan(e, SUBVOLUME, 257), Lost::Nothing),
    (
        "a file extent's generation",
        |e| {
            e.change(SUBVOLUME, plain_extent, |extent: &mut FileExtent| extent.head.generation = (1 << 40).into());
        },
        Lost::Nothing,
    ),
];

#[test]
fn what_subvolumes_share_is_repaired_in_all_of_them() {
    all("shared", || support::shared("shared"), SHARED);
}

#[test]
fn what_other_structures_say_is_not_lost() {
    all("witnesses", || support::filled("witnesses", 160 << 20, &["-n", "4096"]), CASES);
}

#[test]
fn data_says_how_it_is_packed() {
    all("packed", || support::packed("packed"), PACKED);
}

fn all(name: &str, make: impl Fn() -> Option<Arc<MemoryDevice>>, cases: &[Case]) {
    if !support::kernel(name) {
        return;
    }
    let Some(base) = make() else { return };
    let scratch = support::Scratch::new(&format!("{name}-images"));
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let before = shown(&image).expect("the sound image can be mounted");
    // Findings about what mkfs.btrfs left behind do not count.
    let options = butterfs_check::Options { check_data: true, ..Default::default() };
    let sound = support::judge_with(&base, &options);
    assert!(sound.is_clean(), "the sound image: {}", text(&sound));
    let only = std::env::var("PLANT").ok();
    let cases = cases.iter().filter(|(name, ..)| only.as_ref().is_none_or(|only| name.contains(only.as_str())));
    let failures: Vec<String> = cases.filter_map(|case| settle(&base, (&before, &sound), &image, case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The newest backup root is that of the last commit; entering by an older one says what that costs.
#[test]
fn entering_by_a_backup_root_costs_nothing_or_says_what() {
    if !support::kernel("backup-roots") {
        return;
    }
    let Some(base) = support::filled("backup-roots", 160 << 20, &[]) else { return };
    let enter = |device: &Arc<MemoryDevice>| {
        let options = Options { start: Start { backup: true, ..Start::default() }, ..Options::default() };
        plan(&devices(device), &options, &|_, _| {}).expect("a plan")
    };
    let (_, sound) = Editor::of_copy(&base);
    let made = enter(&sound);
    assert!(made.is_clean() && made.actions.iter().all(|action| action.lost.is_none()), "{}", actions(&made));
    apply(&made, &devices(&sound), &MemoryDevice::new(made.undo_len())).expect("memory can be written");
    let scratch = support::Scratch::new("backup-roots-images");
    let image = scratch.0.join("image");
    let kernel = |device: &MemoryDevice| {
        write_image(device, &image);
        shown(&image).expect("it can be mounted")
    };
    assert_eq!(differences(&kernel(&base), &kernel(&sound), Compare { blocks: false, ..Compare::ALL }), [""; 0]);
    let (editor, damaged) = Editor::of_copy(&base);
    let last = editor.sb.generation.get();
    editor.write_raw(editor.root(TreeId::ROOT), &[0x5a; 4096]);
    let made = enter(&damaged);
    let lost: Vec<&str> = made.actions.iter().filter_map(|action| action.lost.as_deref()).collect();
    assert!(lost.iter().any(|lost| lost.contains(&format!("the last commit is {last}"))), "{lost:?}");
}
