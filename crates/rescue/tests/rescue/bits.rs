//! Single wrong bits in blocks whose checksums are right: what several items say outvotes the one that is wrong, and it
//! is named.

use crate::opened::{plain, scanned};
use crate::saved::Hashing;
use crate::trust::{Bed, CALLER, found, restore};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::options::DataPolicy;
use butterfs_fs::{Env, Filesystem, Ino, InodeId, Options};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType, Profile, TreeId};
use butterfs_rescue::data::Grade;
use butterfs_rescue::patch::chunk_tree;
use butterfs_rescue::restore::Summary;
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use butterfs_testkit::scratch::Scratch;
use std::sync::Arc;

/// Flips one bit in the key of an item; its leaf may be out of order afterwards.
fn flip_key(editor: &Editor, ItemPosition { leaf, slot }: ItemPosition, bit: usize) {
    let mut bytes = editor.node(leaf).bytes().to_vec();
    bytes[101 + 25 * slot + bit / 8] ^= 1 << (bit % 8);
    editor.stamp(leaf, bytes);
}

fn restored(device: Arc<MemoryDevice>) -> (Hashing, Summary) {
    restore(&plain(&[device as Arc<dyn BlockDevice>]).unwrap())
}

fn is_large(item: Item<'_>) -> bool {
    item.is(KeyType::EXTENT_DATA) && item.data().len() == 53
}

/// The address and the length of the extent of an item.
fn extent_of(editor: &Editor, position: ItemPosition) -> (u64, u64) {
    let node = editor.node(position.leaf);
    let number = |at: usize| u64::from_le_bytes(node.item(position.slot)[at..at + 8].try_into().unwrap());
    (number(21), number(29))
}

/// The extent tree has an extent at another place than the file: the list of the file is complete, and its bytes fit
/// their checksums.
#[test]
fn a_wrong_extent_item_replaces_no_extent_of_a_list() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    for bit in [9, 12, 13, 14, 17, 20] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let (at, _) = extent_of(&editor, editor.find(TreeId::FS, is_large));
        let position = editor.find(TreeId::EXTENT, |item| item.is(KeyType::EXTENT_ITEM) && item.key().objectid == at);
        flip_key(&editor, position, bit);
        let (sink, summary) = restored(copy);
        assert!(sink.paths == sound.paths, "{bit}: {summary:?}");
    }
}

/// A reference in the extent tree names another file, which has a gap of that size: the bytes are not that file's.
#[test]
fn a_wrong_reference_fills_no_gap() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let gap = editor.find(TreeId::FS, is_large);
    let ino = editor.node(gap.leaf).key(gap.slot).objectid;
    let (gone, _) = extent_of(&editor, gap);
    let other = editor.find(TreeId::FS, |item| is_large(item) && item.key().objectid != ino);
    let (at, _) = extent_of(&editor, other);
    editor.remove_at(gap);
    let is_extent = |item: Item<'_>, at: u64| item.is(KeyType::EXTENT_ITEM) && item.key().objectid == at;
    editor.remove(TreeId::EXTENT, |item| is_extent(item, gone));
    let position = editor.find(TreeId::EXTENT, |item| is_extent(item, at));
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[33..41].copy_from_slice(&ino.to_le_bytes()));
    let (sink, summary) = restore(&bed.wreck());
    let name = format!("large{}", ino - 257 - 60);
    let is_right = |(path, what): (&Vec<u8>, &(u64, u64))| *path == name.as_bytes() || sink.paths[path] == *what;
    assert!(sound.paths.iter().all(is_right), "{summary:?}");
    assert_eq!(found(&summary, &format!("/{name}")).map(|finding| finding.grade), Some(Grade::Lost), "{summary:?}");
}

/// Two copies of data without checksums differ: nothing says which is right, and that is told.
#[test]
fn copies_without_checksums_that_differ_are_named() {
    let devices = [(); 2].map(|()| Arc::new(MemoryDevice::new(256 << 20)));
    let all: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|device| device.clone() as Arc<dyn BlockDevice>).collect();
    let raid1 = Profile::named("raid1");
    let options = MkfsOptions { data: raid1, metadata: raid1, ..MkfsOptions::default() };
    mkfs(&all, &options, &Env::system()).unwrap();
    let mut data = DataPolicy::default();
    data.apply("nodatasum").expect("an option").expect("a value");
    let filesystem = Filesystem::open(all.clone(), Options { data, ..Options::default() }, Env::system()).unwrap();
    let content = crate::noise(7, 100_000);
    let made = filesystem.create(&CALLER, filesystem.root(), b"file", 0o640).unwrap();
    filesystem.write(made.id, 0, &content, false).unwrap();
    filesystem.forget(made.id, 1);
    filesystem.shutdown().unwrap();
    let (_, summary) = restore(&plain(&all).unwrap());
    assert!(summary.complete && summary.unverified == 1, "{summary:?}");
    for device in &devices {
        let mut sector = vec![0; 4096];
        let at = (0..device.len()).step_by(4096).find(|at| {
            device.read_at(*at, &mut sector).unwrap();
            sector == content[8192..12288]
        });
        let copy = Arc::new(device.snapshot());
        copy.write_at(at.unwrap() + 100, b"garbage").unwrap();
        let others = devices.iter().map(|one| if Arc::ptr_eq(one, device) { copy.clone() } else { one.clone() });
        let all: Vec<Arc<dyn BlockDevice>> = others.map(|one| one as Arc<dyn BlockDevice>).collect();
        let (_, summary) = restore(&plain(&all).unwrap());
        let finding = found(&summary, "/file").expect("it is named");
        assert!(!summary.complete && finding.grade == Grade::Doubtful, "{summary:?}");
        assert!(finding.reasons[0].contains("4096 bytes differ") && finding.reasons[0].contains("8192"), "{finding:?}");
    }
}

/// One of the items that say a name has another one: the hash, the index and the inode decide.
#[test]
fn names_with_a_wrong_bit_are_outvoted() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let is_named = |item: Item<'_>, kind| item.is(kind) && item.data().ends_with(b"small20");
    for (flipped, lost) in [
        (KeyType::DIR_ITEM, None),
        (KeyType::DIR_INDEX, None),
        (KeyType::DIR_ITEM, Some(KeyType::DIR_INDEX)),
        (KeyType::INODE_REF, None),
    ] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        if let Some(lost) = lost {
            editor.remove(TreeId::FS, |item| is_named(item, lost));
        }
        let position = editor.find(TreeId::FS, |item| is_named(item, flipped));
        editor.edit(position.leaf, |leaf| {
            let item = leaf.item_mut(position.slot);
            let first = item.len() - 7;
            item[first] ^= 16;
        });
        let (sink, summary) = restored(copy);
        assert!(sink.paths == sound.paths, "{flipped:?} {lost:?}: {summary:?}");
        assert!(!summary.complete && found(&summary, "/small20").is_some(), "{flipped:?} {lost:?}: {summary:?}");
    }
}

/// Leaves are lost that have only entries of a directory of links: the inodes know their names. Where they do not, they
/// count them.
#[test]
fn links_without_entries_come_back() {
    let bed = Bed::new();
    let mut links = 0;
    bed.change(|filesystem| {
        let directory = filesystem.mkdir(&CALLER, filesystem.root(), b"links", 0o755).unwrap().id;
        links = directory.ino.0;
        for ino in 257..317 {
            let id = InodeId { ino: Ino(ino), ..filesystem.root() };
            let name = format!("another-name-of-{ino}");
            filesystem.link(id, directory, name.as_bytes()).unwrap();
        }
    });
    let sound = restore(&bed.wreck()).0;
    assert_eq!(sound.paths.len(), 244);
    let editor = bed.editor();
    let is_entry = |key: Key| key.objectid == links && matches!(key.kind, KeyType::DIR_ITEM | KeyType::DIR_INDEX);
    let mut leaves = Vec::new();
    editor.each_leaf(TreeId::FS, &mut |leaf| {
        if leaf.items().all(|(key, _)| is_entry(key)) {
            leaves.push(leaf.at());
        }
        false
    });
    assert!(leaves.len() >= 2);
    leaves.iter().for_each(|leaf| editor.write_raw(*leaf, &[0; 4096]));
    let (sink, summary) = restore(&bed.wreck());
    let missing: Vec<_> = sound.paths.keys().filter(|path| !sink.paths.contains_key(*path)).collect();
    assert!(sink.paths == sound.paths, "{} missing", missing.len());
    assert!(!summary.complete && summary.orphans >= 10 && summary.links == 60, "{summary:?}");
    // Without the reference too, the number of names is all that is left.
    let name = sound.paths.keys().find(|path| path.starts_with(b"links/")).unwrap().clone();
    let is_lost = |item: Item<'_>| item.data().ends_with(&name[6..]);
    while let Some(position) = editor.try_find(TreeId::FS, is_lost) {
        editor.edit(position.leaf, |leaf| leaf.remove_items(position.slot..position.slot + 1));
    }
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths.len() + 1, sound.paths.len(), "{summary:?}");
    let says = |reason: &String| reason.contains("counts 1 more names");
    assert!(summary.findings.iter().any(|finding| finding.reasons.iter().any(says)), "{summary:?}");
}

/// One wrong bit in a key of a leaf: the other items are taken, and the key follows from its neighbours where it can.
#[test]
fn a_wrong_key_costs_no_leaf() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let is_inner = |leaf: &butterfs_ondisk::Logical| {
        let node = editor.node(*leaf);
        node.is_leaf() && node.key(0).objectid > 260 && node.key(0).kind == KeyType::INODE_ITEM
    };
    let leaf = editor.blocks(TreeId::FS).into_iter().find(is_inner).expect("a leaf that begins with an inode");
    let count = editor.node(leaf).nritems();
    for (slot, bit) in
        [0, 1, count / 2, count - 1].into_iter().flat_map(|slot| [0, 3, 8, 9, 40, 70].map(|bit| (slot, bit)))
    {
        let (editor, copy) = Editor::of_copy(&bed.device);
        flip_key(&editor, ItemPosition { leaf, slot }, bit);
        let (sink, summary) = restored(copy);
        let changed: Vec<_> = sound.paths.iter().filter(|(path, what)| sink.paths.get(*path) != Some(what)).collect();
        assert!(changed.len() <= 2, "slot {slot}, bit {bit}: {changed:?}");
        assert!(!summary.complete, "slot {slot}, bit {bit}: {summary:?}");
        // The key of the first one is also in its parent.
        assert!(slot > 0 || bit >= 64 || changed.is_empty(), "bit {bit}: {changed:?}");
    }
}

/// The item of a chunk names a wrong place: the data fits its checksums where the device tree says, and the item is
/// repaired.
#[test]
fn a_wrong_stripe_follows_from_the_device_tree() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let is_data = |item: Item<'_>| item.is(KeyType::CHUNK_ITEM) && item.data()[24] & 1 != 0;
    for bit in [16, 20, 26] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let position = editor.find(TreeId::CHUNK, is_data);
        editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[56 + bit / 8] ^= 1 << (bit % 8));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![copy];
        let wreck = plain(&devices).unwrap();
        assert!(wreck.notes.iter().any(|note| note.contains("chunk-recover")), "{bit}: {:?}", wreck.notes);
        let (sink, _) = restore(&wreck);
        assert!(sink.paths == sound.paths, "{bit}");
        let plan = chunk_tree::plan(&wreck).unwrap();
        assert!(!plan.is_sound && plan.lost.is_empty(), "{bit}: {plan:?}");
        chunk_tree::apply(&plan, &wreck, &devices).unwrap();
        let wreck = plain(&devices).unwrap();
        assert!(wreck.notes.is_empty(), "{bit}: {:?}", wreck.notes);
        let (sink, summary) = restore(&wreck);
        assert!(summary.complete && sink.paths == sound.paths, "{bit}: {summary:?}");
    }
}

/// One wrong field of a chunk's item: device extents, block group and tree blocks say what it was, with a scan too.
#[test]
fn a_wrong_field_of_a_chunk_follows_from_its_witnesses() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let scratch = Scratch::new("chunk-fields");
    let (data, trees) = (1, 4);
    // Length, device, place, and the offset of the key.
    let payload = [(data, 3, 1), (data, 48, 2), (trees, 4, 1), (trees, 3, 1), (trees, 48, 2), (trees, 58, 1)];
    let fields = payload.map(|(kind, byte, mask)| (kind, Some(byte), mask)).into_iter();
    for (kind, byte, mask) in fields.chain([(data, None, 1), (trees, None, 1)]) {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let is_it = |item: Item<'_>| item.is(KeyType::CHUNK_ITEM) && item.data()[24] & kind != 0;
        let position = editor.find(TreeId::CHUNK, is_it);
        match byte {
            Some(byte) => editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[byte] ^= mask),
            None => editor.set_key(position, |key| Key { offset: key.offset ^ 1 << 16, ..key }),
        }
        let devices: Vec<Arc<dyn BlockDevice>> = vec![copy];
        let (sink, _) = restore(&plain(&devices).unwrap());
        assert!(sink.paths == sound.paths, "{kind} {byte:?}");
        let wreck = scanned(&devices, &scratch).unwrap();
        let plan = chunk_tree::plan(&wreck).unwrap();
        assert!(!plan.is_sound && plan.lost.is_empty(), "{kind} {byte:?}: {plan:?}");
        chunk_tree::apply(&plan, &wreck, &devices).unwrap();
        let wreck = plain(&devices).unwrap();
        assert!(wreck.notes.is_empty(), "{kind} {byte:?}: {:?}", wreck.notes);
        let (sink, summary) = restore(&wreck);
        assert!(summary.complete && sink.paths == sound.paths, "{kind} {byte:?}: {summary:?}");
    }
}

/// One wrong bit in the extent item or the length of a symbolic link: the bytes are there.
#[test]
fn symbolic_links_follow_from_their_bytes() {
    let bed = Bed::new();
    let target = b"somewhere/else";
    bed.change(|filesystem| {
        filesystem.symlink(&CALLER, filesystem.root(), b"link", target).unwrap();
    });
    let is_link = |item: Item<'_>| item.is(KeyType::EXTENT_DATA) && item.data().ends_with(target);
    let position = bed.editor().find(TreeId::FS, is_link);
    let ino = bed.editor().node(position.leaf).key(position.slot).objectid;
    // The length (8 to 15), the compression, the type.
    let bytes = [(8, 0), (8, 3), (10, 0), (15, 7), (16, 0), (16, 5), (20, 0), (20, 1), (20, 6)];
    let items = bytes.into_iter().map(|(byte, bit)| (KeyType::EXTENT_DATA, byte, bit));
    let inodes = [(16, 0), (17, 2), (23, 7)].map(|(byte, bit)| (KeyType::INODE_ITEM, byte, bit));
    for (kind, byte, bit) in items.chain(inodes) {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let position = editor.find(TreeId::FS, |item| item.is(kind) && item.key().objectid == ino);
        editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[byte] ^= 1 << bit);
        let (sink, summary) = restored(copy);
        assert_eq!(sink.targets.get(&b"link"[..]).map(Vec::as_slice), Some(&target[..]), "{kind:?} {byte} {bit}");
        assert!(!summary.complete && found(&summary, "/link").is_some(), "{kind:?} {byte} {bit}: {summary:?}");
    }
}

/// A length that no file has, and one of inline data that is not that of its item.
#[test]
fn impossible_lengths_follow_from_the_extents() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    for name in ["small20", "large2"] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let ino = 257 + if name == "small20" { 20 } else { 62 };
        editor.change::<InodeItem>(
            TreeId::FS,
            |item| item.key() == Key::new(ino, KeyType::INODE_ITEM, 0),
            |item| item.size = (item.size.get() | 1 << 63).into(),
        );
        let (sink, summary) = restored(copy);
        assert!(sink.paths == sound.paths, "{summary:?}");
        assert!(!summary.complete && found(&summary, &format!("/{name}")).is_some(), "{summary:?}");
    }
    for bit in [16, 3, 63] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let position = editor.find(TreeId::FS, |item| item.key() == Key::new(277, KeyType::EXTENT_DATA, 0));
        editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[8 + bit / 8] ^= 1 << (bit % 8));
        let (sink, summary) = restored(copy);
        assert!(sink.paths == sound.paths, "{bit}: {summary:?}");
        assert!(!summary.complete && found(&summary, "/small20").is_some(), "{bit}: {summary:?}");
    }
}
