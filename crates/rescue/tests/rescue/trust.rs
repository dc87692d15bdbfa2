//! Damage planted by name: everything from damaged or older tree blocks is named, nothing that is sound is left out.

use crate::opened::{plain, scanned};
use crate::saved::{Hashing, by_us, everything};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::options::DataPolicy;
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options};
use butterfs_ondisk::items::{DirItem, InodeItem};
use butterfs_ondisk::{Key, KeyType, Logical, Superblock, TreeId};
use butterfs_rescue::Wreck;
use butterfs_rescue::data::Grade;
use butterfs_rescue::restore::{Finding, ROOT_DIRECTORY, Restorer, Selection, Summary, Wanted};
use butterfs_rescue::roots::Roots;
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::scratch::Scratch;
use std::sync::Arc;
use zerocopy::FromBytes;

pub const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// A filesystem with 60 small and 4 larger files at the top, and 2 subvolumes with 60 files each.
pub struct Bed {
    pub device: Arc<MemoryDevice>,
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7 + at / 256) as u8).collect()
}

fn fill(filesystem: &Filesystem, directory: InodeId, names: &str, count: usize, len: usize) {
    for number in 0..count {
        let made = filesystem.create(&CALLER, directory, format!("{names}{number}").as_bytes(), 0o640).unwrap();
        filesystem.write(made.id, 0, &content(number, len + number), false).unwrap();
        filesystem.forget(made.id, 1);
    }
}

impl Bed {
    pub fn new() -> Bed {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        let options = MkfsOptions { nodesize: Some(4096), ..MkfsOptions::default() };
        mkfs(&devices, &options, &Env::system()).unwrap();
        let bed = Bed { device };
        bed.change(|filesystem| {
            fill(filesystem, filesystem.root(), "small", 60, 100);
            fill(filesystem, filesystem.root(), "large", 4, 100_000);
            for name in ["home", "root"] {
                let id = filesystem.create_subvolume(&CALLER, filesystem.root(), name.as_bytes()).unwrap();
                let top = InodeId { tree: id, ..filesystem.root() };
                fill(filesystem, top, "inside", 60, 3000);
            }
        });
        bed
    }

    pub fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.device.clone()]
    }

    /// Has the engine change it, in a commit of its own.
    pub fn change(&self, change: impl FnOnce(&Filesystem)) {
        let filesystem = Filesystem::open(self.devices(), Options::default(), Env::system()).unwrap();
        change(&filesystem);
        filesystem.shutdown().unwrap();
    }

    pub fn editor(&self) -> Editor {
        Editor::open(self.devices())
    }

    pub fn wreck(&self) -> Wreck {
        plain(&self.devices()).unwrap()
    }

    /// With a scan.
    fn scanned(&self, name: &str) -> Wreck {
        scanned(&self.devices(), &Scratch::new(name)).unwrap()
    }
}

pub fn restore(wreck: &Wreck) -> (Hashing, Summary) {
    let (sink, summary) = by_us(wreck);
    (sink, summary.unwrap())
}

/// Restores only what is whole.
fn restore_whole(wreck: &Wreck) -> (Hashing, Summary) {
    let (mut sink, roots) = (Hashing::default(), Roots::assemble(wreck));
    let wanted = Wanted { whole_files_only: true, ..everything() };
    let mut tell = |_: butterfs_rescue::restore::Event<'_>| ();
    let restorer = Restorer::new(wreck, &roots, wanted, Selection::default(), &mut sink, &mut tell);
    let summary = restorer.run(TreeId::FS, ROOT_DIRECTORY).unwrap();
    (sink, summary)
}

pub fn found<'a>(summary: &'a Summary, path: &str) -> Option<&'a Finding> {
    summary.findings.iter().find(|finding| finding.path == path)
}

/// Changes the inode of a file at the top without giving its leaf a new checksum.
fn spoil_inode(editor: &Editor, ino: u64, change: impl FnOnce(&mut InodeItem)) {
    let position = editor.find(TreeId::FS, |item| item.key() == Key::new(ino, KeyType::INODE_ITEM, 0));
    let mut node = editor.node(position.leaf);
    let (head, _) = InodeItem::mut_from_prefix(node.item_mut(position.slot)).unwrap();
    change(head);
    editor.write_raw(position.leaf, node.bytes());
}

#[test]
fn a_sound_filesystem_leaves_no_doubt() {
    let bed = Bed::new();
    for wreck in [bed.wreck(), bed.scanned("no_doubt")] {
        let (sink, summary) = restore(&wreck);
        assert!(summary.complete && summary.findings.is_empty(), "{summary:?}");
        assert_eq!((summary.files, summary.verified, sink.paths.len()), (184, 184, 184));
        assert_eq!(restore_whole(&wreck).0.paths, sink.paths);
    }
}

/// A leaf whose checksum is wrong: no device, no set-id bits, no wrong length; its files are named and none is whole.
#[test]
fn items_of_a_damaged_leaf_are_named_and_make_no_devices() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    spoil_inode(&editor, 270, |item| (item.mode, item.rdev) = (0o060666.into(), (8 << 20).into()));
    spoil_inode(&editor, 280, |item| item.mode = 0o104755.into());
    spoil_inode(&editor, 290, |item| item.size = 3.into());
    spoil_inode(&editor, 300, |item| item.size = (1 << 40).into());
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths, "all contents are there");
    assert!(sink.files.values().all(|one| one.mode & 0o107000 == 0o100000 && one.mode & 0o22 == 0));
    assert!(!summary.complete && summary.doubtful >= 4 && summary.salvaged_blocks >= 3, "{summary:?}");
    let whole = restore_whole(&bed.wreck()).0;
    for ino in [270, 280, 290, 300] {
        let name = format!("small{}", ino - 257);
        let finding = found(&summary, &format!("/{name}")).unwrap();
        assert!(finding.grade == Grade::Doubtful && !finding.reasons.is_empty(), "{finding:?}");
        assert!(!whole.paths.contains_key(name.as_bytes()));
    }
    assert!(whole.paths.len() > 120 && whole.paths.iter().all(|(path, what)| sound.paths[path] == *what));
}

/// Without its inode a file is guessed, and named.
#[test]
fn files_without_their_inodes_are_named() {
    let bed = Bed::new();
    bed.editor().remove(TreeId::FS, |item| item.key() == Key::new(270, KeyType::INODE_ITEM, 0));
    let (sink, summary) = restore(&bed.wreck());
    assert!(!summary.complete && sink.paths.contains_key(&b"small13"[..]));
    assert_eq!(found(&summary, "/small13").unwrap().grade, Grade::Doubtful);
    assert!(!restore_whole(&bed.wreck()).0.paths.contains_key(&b"small13"[..]));
}

/// Whether an item is an entry of a subvolume with this name.
fn is_entry_of(item: Item<'_>, name: &[u8]) -> bool {
    (item.is(KeyType::DIR_ITEM) || item.is(KeyType::DIR_INDEX)) && item.data().ends_with(name)
}

/// Entries and leaves with entries of subvolumes are lost: the subvolumes are sound, and come back at their places.
#[test]
fn subvolumes_without_entries_come_back() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    for _ in 0..2 {
        editor.remove(TreeId::FS, |item| is_entry_of(item, b"root"));
    }
    let leaf = editor.find(TreeId::FS, |item| is_entry_of(item, b"home") && item.is(KeyType::DIR_INDEX)).leaf;
    editor.write_raw(leaf, &[0xee; 4096]);
    if let Some(other) = editor.try_find(TreeId::FS, |item| is_entry_of(item, b"home")) {
        editor.remove_at(other);
    }
    for wreck in [bed.wreck(), bed.scanned("without_entries")] {
        let (sink, summary) = restore(&wreck);
        let inside: Vec<_> = sound.paths.iter().filter(|(path, _)| path.contains(&b'/')).collect();
        assert_eq!(inside.len(), 120);
        for (path, what) in inside {
            assert_eq!(sink.paths.get(path), Some(what), "{}", String::from_utf8_lossy(path));
        }
        assert!(!summary.complete && summary.orphans >= 2 && summary.lost_blocks == 1, "{summary:?}");
    }
}

/// One of a subvolume's two references has another name: it is at its place, once.
#[test]
fn a_wrong_reference_hides_no_subvolume() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let backref = editor.find(TreeId::ROOT, |item| item.is(KeyType::ROOT_BACKREF) && item.data().ends_with(b"root"));
    editor.edit(backref.leaf, |leaf| leaf.item_mut(backref.slot)[18] = b'R');
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths);
    assert!(summary.complete, "{summary:?}");
}

/// One of a subvolume's two entries has another name: it is no other directory.
#[test]
fn a_wrong_entry_of_a_subvolume_is_named() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let entry = editor.find(TreeId::FS, |item| is_entry_of(item, b"root") && item.is(KeyType::DIR_INDEX));
    editor.edit(entry.leaf, |leaf| leaf.item_mut(entry.slot)[30] = b'R');
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths);
    assert!(!summary.complete && !sink.others.contains_key(&b"Root"[..]), "{summary:?}");
    assert!(found(&summary, "/Root").is_some());
}

/// The root of the root tree is lost: the older state is told; with a scan everything is there.
#[test]
fn an_older_state_is_told() {
    let bed = Bed::new();
    bed.change(|filesystem| {
        fill(filesystem, filesystem.root(), "late", 50, 10);
        let id = filesystem.create_subvolume(&CALLER, filesystem.root(), b"later").unwrap();
        fill(filesystem, InodeId { tree: id, ..filesystem.root() }, "inside", 3, 10);
    });
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    editor.write_raw(editor.root(TreeId::ROOT), &[0xee; 4096]);
    let (sink, summary) = restore(&bed.wreck());
    assert!(!summary.complete && summary.older_states.iter().any(|state| state.tree == 5), "{summary:?}");
    assert!(sink.paths.len() >= 184 && summary.lost_blocks >= 1);
    let (sink, summary) = restore(&bed.scanned("older_state"));
    assert_eq!(sink.paths, sound.paths);
    assert!(!summary.complete && !summary.older_states.is_empty());
}

/// A write of a subvolume's root was lost, so that the one before it is there: its leaves are sound, and older too.
#[test]
fn whatever_an_older_node_leads_to_is_named() {
    let bed = Bed::new();
    let mut before = bed.editor().node(bed.editor().root(TreeId::FS)).bytes().to_vec();
    bed.change(|filesystem| {
        let found = filesystem.lookup(filesystem.root(), b"small7").unwrap();
        filesystem.write(found.id, 0, b"changed", false).unwrap();
        filesystem.forget(found.id, 1);
    });
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let root = editor.root(TreeId::FS);
    before[48..56].copy_from_slice(&root.get().to_le_bytes());
    editor.stamp(root, before);
    let (sink, summary) = restore(&bed.wreck());
    let wrong = |sink: &Hashing| {
        let differs = |(path, what): &(&Vec<u8>, &(u64, u64))| sound.paths.get(*path) != Some(*what);
        let paths = sink.paths.iter().filter(differs).map(|(path, _)| String::from_utf8_lossy(path).into_owned());
        paths.collect::<Vec<String>>()
    };
    assert_eq!(wrong(&sink), ["small7"]);
    let finding = found(&summary, "/small7").expect("it is named");
    assert!(finding.grade == Grade::Doubtful && !summary.complete, "{finding:?}");
    assert_eq!(wrong(&restore_whole(&bed.wreck()).0), Vec::<String>::new());
}

/// A lost extent item is no hole: the extent tree fills the gap; where that has nothing either, the data is missing.
#[test]
fn a_lost_extent_is_no_hole() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let of_large = |item: Item<'_>| item.is(KeyType::EXTENT_DATA) && item.data().len() == 53;
    let position = editor.find(TreeId::FS, of_large);
    let node = editor.node(position.leaf);
    let (ino, at) = (node.key(position.slot).objectid, node.item(position.slot)[21..29].to_vec());
    let name = format!("large{}", ino - 257 - 60);
    editor.remove_at(position);
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths);
    assert!(
        found(&summary, &format!("/{name}")).is_some_and(|finding| finding.grade == Grade::Doubtful),
        "{summary:?}"
    );
    let at = u64::from_le_bytes(at.try_into().unwrap());
    editor.remove(TreeId::EXTENT, |item| item.key().objectid == at && item.is(KeyType::EXTENT_ITEM));
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!((summary.lost, summary.partial, summary.complete), (1, 0, false), "{summary:?}");
    assert!(found(&summary, &format!("/{name}")).is_some_and(|finding| finding.grade == Grade::Lost));
    assert!(sink.paths.contains_key(name.as_bytes()));
    assert!(!restore_whole(&bed.wreck()).0.paths.contains_key(name.as_bytes()));
}

/// One wrong bit in an extent item: what cannot be is named, and no other content is made of it.
#[test]
fn wrong_bits_in_extent_items_are_named() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let position = bed.editor().find(TreeId::FS, |item| item.is(KeyType::EXTENT_DATA) && item.data().len() == 53);
    // Compression, type, address, length on the device, offset, length.
    for (byte, bit) in [(16, 0), (20, 0), (20, 1), (22, 5), (30, 5), (38, 4), (46, 4)] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[byte] ^= 1 << bit);
        let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        let changed: Vec<_> = sink.paths.iter().filter(|(path, what)| sound.paths[*path] != **what).collect();
        assert!(!summary.complete || changed.is_empty(), "{byte} {bit}: {summary:?}");
        let is_named = |path: &[u8]| found(&summary, &format!("/{}", String::from_utf8_lossy(path))).is_some();
        assert!(changed.iter().all(|(path, _)| is_named(path)), "{byte} {bit}");
        // Bytes that were never packed; and what the extent tree knows better.
        assert!(![16, 20, 22, 30].contains(&byte) || changed.is_empty(), "{byte} {bit}: {summary:?}");
    }
}

/// One wrong byte in the extent item or the inode of a damaged leaf: the extent tree has the extent, and the inode
/// counts just its bytes. Nothing is lost, and the file is named.
#[test]
fn extents_of_a_damaged_leaf_follow_from_the_extent_tree() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let position = bed.editor().find(TreeId::FS, |item| item.is(KeyType::EXTENT_DATA) && item.data().len() == 53);
    let ino = bed.editor().node(position.leaf).key(position.slot).objectid;
    let name = format!("/large{}", ino - 257 - 60);
    // Type, address, length on the device, offset, length: first bytes and last ones.
    for byte in [20, 21, 23, 28, 30, 36, 38, 44, 46, 52] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let mut node = editor.node(position.leaf);
        node.item_mut(position.slot)[byte] ^= 0x90;
        editor.write_raw(position.leaf, node.bytes());
        let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        assert!(sink.paths == sound.paths, "{byte}: {:?}", found(&summary, &name));
        assert!(found(&summary, &name).is_some_and(|finding| finding.grade == Grade::Doubtful), "{byte}: {summary:?}");
    }
}

/// Of a compressed file an extent item is lost, or has another mark: its data says how it is packed, and how long it
/// is.
#[test]
fn compressed_extents_follow_from_the_extent_tree_and_their_data() {
    for (option, raw) in [("compress-force=zlib", 1), ("compress-force=lzo", 2), ("compress-force=zstd", 3)] {
        let bed = Bed::new();
        let mut data = DataPolicy::default();
        data.apply(option).expect("an option").expect("a value");
        let filesystem =
            Filesystem::open(bed.devices(), Options { data, ..Options::default() }, Env::system()).unwrap();
        fill(&filesystem, filesystem.root(), "packed", 1, 300_000);
        filesystem.shutdown().unwrap();
        let sound = restore(&bed.wreck()).0;
        let is_packed =
            |item: Item<'_>| item.is(KeyType::EXTENT_DATA) && item.data().len() == 53 && item.data()[16] == raw;
        let marks = (0..=4).chain([0x90]).filter(|mark| *mark != raw);
        for mark in marks.map(Some).chain([None]) {
            let (editor, copy) = Editor::of_copy(&bed.device);
            let position = editor.find(TreeId::FS, is_packed);
            match mark {
                Some(mark) => editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[16] = mark),
                None => editor.remove_at(position),
            }
            let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
            assert!(sink.paths == sound.paths, "{option}, {mark:?}: {summary:?}");
            assert!(mark.is_some() || !summary.complete, "{option}: {summary:?}");
        }
    }
}

/// One wrong offset, and one wrong length, of items in the root tree: both follow from their neighbours.
#[test]
fn wrong_offsets_of_items_follow_from_their_neighbours() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    for (kind, field) in [(KeyType::ROOT_ITEM, 17), (KeyType::ROOT_REF, 21)] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let position =
            editor.find(TreeId::ROOT, |item| item.key().objectid >= 5 && item.is_inner(kind) && !item.is_last());
        let mut bytes = editor.node(position.leaf).bytes().to_vec();
        bytes[101 + 25 * position.slot + field] += 1;
        editor.stamp(position.leaf, bytes);
        let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        assert_eq!(sink.paths, sound.paths, "{kind:?}");
        assert!(summary.older_states.is_empty() && summary.salvaged_blocks == 1, "{summary:?}");
    }
}

/// Entries that lead to the wrong inode: the right one comes back too, and what is there under its name is named.
#[test]
fn entries_that_lead_elsewhere_hide_nothing() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    let is_entry = |item: Item<'_>| is_entry_of(item, b"small20") && item.data()[0] == (277 - 256) as u8;
    while let Some(position) = editor.try_find(TreeId::FS, is_entry) {
        editor.edit_item::<DirItem>(position, |entry| entry.location.objectid = 270.into());
    }
    let (sink, summary) = restore(&bed.wreck());
    assert!(sound.contents.is_subset(&sink.contents), "{summary:?}");
    assert!(!summary.complete && found(&summary, "/small20").is_some(), "{summary:?}");
    let whole = restore_whole(&bed.wreck()).0;
    assert_eq!(whole.paths, sound.paths, "its own references lead the right one there");
}

/// A type that both entries contradict: one wrong bit must not turn a file into a link or a directory.
#[test]
fn entries_outvote_a_wrong_type() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    for kind in [0o120000, 0o040000, 0o060000] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        editor.change::<InodeItem>(
            TreeId::FS,
            |item| item.key() == Key::new(290, KeyType::INODE_ITEM, 0),
            |item| item.mode = (kind | 0o640).into(),
        );
        let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        assert_eq!(sink.paths, sound.paths, "{kind:o}");
        assert!(found(&summary, "/small33").is_some_and(|finding| finding.grade == Grade::Doubtful), "{summary:?}");
    }
}

/// A chunk item that is lost alone: the device extents still say where the chunk is.
#[test]
fn a_lost_chunk_item_follows_from_device_extents() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let editor = bed.editor();
    editor.remove(TreeId::CHUNK, |item| {
        item.is(KeyType::CHUNK_ITEM) && item.data()[24] & 1 != 0 // a chunk for data
    });
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths);
    assert!(summary.complete, "{summary:?}");
}

/// A wrong level, in the item of a subvolume, the superblock or a backup root: the block at the root's address counts.
#[test]
fn a_wrong_level_of_a_root_loses_nothing() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let root_item = |tree: u64| move |item: Item<'_>| item.key().objectid == tree && item.is(KeyType::ROOT_ITEM);
    for (tree, level) in [(256, 3), (256, 0), (257, 7), (5, 2), (5, 0), (7, 3), (2, 4), (4, 1)] {
        let (editor, copy) = Editor::of_copy(&bed.device);
        let position = editor.find(TreeId::ROOT, root_item(tree));
        editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[238] = level);
        let devices = [copy as Arc<dyn BlockDevice>];
        let scratch = Scratch::new("wrong_level");
        for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
            let (sink, summary) = restore(&wreck);
            assert_eq!(sink.paths, sound.paths, "tree {tree}, level {level}: {summary:?}");
            assert!(summary.complete, "tree {tree}, level {level}: {summary:?}");
        }
    }
    let spoilers: [fn(&mut Superblock); 5] = [
        |sb| sb.root_level = 3,
        |sb| sb.chunk_root_level = 2,
        |sb| (sb.root_level, sb.chunk_root_level) = (7, 7),
        |sb| {
            sb.root = 4096.into();
            sb.super_roots.iter_mut().for_each(|slot| slot.tree_root_level = 5);
        },
        |sb| {
            sb.root_level = 3;
            sb.super_roots.iter_mut().for_each(|slot| slot.tree_root_level = 3);
        },
    ];
    for (number, spoil) in spoilers.into_iter().enumerate() {
        let copy = copy_with_superblock(&bed, spoil);
        let (sink, summary) = restore(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        assert_eq!(sink.paths, sound.paths, "{number}: {summary:?}");
        // The last two have no witness for the level of the block.
        assert_eq!(summary.complete, number < 3, "{number}: {summary:?}");
    }
}

/// The address of a root is wrong, and names a part of the tree: that is not taken for the root.
#[test]
fn a_part_of_a_tree_is_no_root() {
    let bed = Bed::new();
    let sound = restore(&bed.wreck()).0;
    let (editor, copy) = Editor::of_copy(&bed.device);
    let root = editor.node(editor.root(TreeId(256)));
    assert!(!root.is_leaf());
    let part =
        (0..root.nritems()).map(|slot| root.child(slot)).find(|(_, generation)| *generation == root.generation());
    let position = editor.find(TreeId::ROOT, |item| item.key().objectid == 256 && item.is(KeyType::ROOT_ITEM));
    let at = part.expect("a leaf of the same commit").0.0;
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[176..184].copy_from_slice(&at.to_le_bytes()));
    let devices = [copy as Arc<dyn BlockDevice>];
    let (sink, summary) = restore(&scanned(&devices, &Scratch::new("part_of_a_tree")).unwrap());
    assert!(sink.paths == sound.paths && !summary.complete, "{summary:?}");
    let (sink, summary) = restore(&plain(&devices).unwrap());
    let has_own_name = |path: &[u8]| !path.windows(10).any(|part| part == b"lost+found");
    let named: Vec<_> = sink.paths.iter().filter(|(path, _)| has_own_name(path)).collect();
    assert!(!summary.complete && named.into_iter().all(|(path, what)| sound.paths.get(path) == Some(what)));
    assert!(sink.paths.len() == sound.paths.len() && summary.doubtful + summary.partial >= 60, "{summary:?}");
}

/// A copy whose superblocks are changed.
fn copy_with_superblock(bed: &Bed, change: fn(&mut Superblock)) -> Arc<MemoryDevice> {
    let (editor, copy) = Editor::of_copy(&bed.device);
    editor.superblock(change);
    copy
}

/// An extent whose type became that of a preallocated one: its data fits its checksums, and is restored with a doubt.
/// If the data does not fit, zeros are restored, with a doubt too. A preallocated extent without checksums causes none.
#[test]
fn data_of_an_extent_that_is_marked_as_preallocated_is_restored() {
    let bed = Bed::new();
    bed.change(|filesystem| {
        let made = filesystem.create(&CALLER, filesystem.root(), b"allocated", 0o640).unwrap();
        filesystem.fallocate(made.id, 0, 0, 50_000, false).unwrap();
        filesystem.forget(made.id, 1);
    });
    let (sound, summary) = restore(&bed.wreck());
    assert!(summary.complete, "{summary:?}");
    let editor = bed.editor();
    let position = editor.find(TreeId::FS, |item| item.is(KeyType::EXTENT_DATA) && item.data().len() == 53);
    let node = editor.node(position.leaf);
    let ino = node.key(position.slot).objectid;
    let place = u64::from_le_bytes(node.item(position.slot)[21..29].try_into().unwrap());
    let name = format!("/large{}", ino - 257 - 60);
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[20] = 2);
    let (sink, summary) = restore(&bed.wreck());
    assert_eq!(sink.paths, sound.paths, "{summary:?}");
    let finding = found(&summary, &name).expect("it is named");
    assert!(finding.grade == Grade::Doubtful && finding.reasons[0].contains("preallocated"), "{finding:?}");
    assert_eq!((summary.findings.len(), summary.complete), (1, false), "{summary:?}");
    editor.copies(Logical(place)).iter().for_each(|(_, offset)| bed.device.write_at(*offset, b"changed").unwrap());
    let (_, summary) = restore(&bed.wreck());
    let finding = found(&summary, &name).expect("it is named");
    assert!(finding.grade == Grade::Doubtful && summary.verified == 184, "{summary:?}");
}
