//! Damage of which nothing need be lost, because other structures say what was there: everything is as before.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use butterfs_ondisk::items::{DirItem, FileExtent, InodeItem, block_group_flags as bits, compression};
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
            let extent = editor.find(SUBVOLUME, plain_extent);
            let inode = editor.node(extent.leaf).key(extent.slot).objectid;
            editor.remove(SUBVOLUME, |item| item.is_inner(KeyType::INODE_ITEM) && item.key().objectid == inode);
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
];

fn settle(
    base: &Arc<MemoryDevice>,
    before: &Fingerprint,
    image: &Path,
    (name, damage, lost): &Case,
) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(&editor);
    let mut options = Options { now: 1_700_000_000, ..Options::default() };
    options.check.check_data = true;
    let made = plan(&devices(&damaged), &options, &|_, _| {}).map_err(|trouble| format!("{name}: {trouble}"))?;
    let said = || format!("before:{}\n  steps:{}\n  after:{}", text(&made.before), actions(&made), text(&made.after));
    if !made.is_clean() || made.before.errors == 0 {
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
];

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
    let only = std::env::var("PLANT").ok();
    let cases = cases.iter().filter(|(name, ..)| only.as_ref().is_none_or(|only| name.contains(only.as_str())));
    let failures: Vec<String> = cases.filter_map(|case| settle(&base, &before, &image, case).err()).collect();
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
