//! Logs that are damaged, or made to do damage: opening is an error that names the rule and offers to read without the
//! log, nothing is written, and reading without the log works. What passes for a log is replayed into a filesystem that
//! our checker finds clean.

use butterfs_device::{BlockDevice, MemoryDevice, Recorder};
use butterfs_fs::options::Policies;
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::items::{DirItem, FileExtent, InodeItem, InodeRef, RootItem, block_group_flags, dir_type};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::judge::judge_memory;
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::operation::{Object, Op, OperationTarget, RelPath};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::{Scratch, load};
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Links and new folders: root/{foo 257, mydir 258/{foo_2, foo_3, hello_2, x 260/y 261/z 262/qwerty 263}, hello 259}.
const LINKS: &str = "generic-065-1.img";

/// One image of the corpus in memory.
fn image(test: &str, name: &str) -> Option<MemoryDevice> {
    let scratch = Scratch::new("hostile-log");
    Some(load(&super::unpacked(test, &scratch, name)?))
}

fn open(device: Arc<dyn BlockDevice>, read_only: bool, no_log_replay: bool) -> Result<Filesystem, String> {
    let options = Options { read_only, no_log_replay, commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).map_err(|error| error.to_string())
}

/// The offsets of the generation and the owner in a block's header.
const GENERATION: usize = 80;
const OWNER: usize = 88;

/// An edit of the log, given the root of the top level's log, and words of the refusal.
struct Case {
    name: &'static str,
    plant: fn(&Editor, Logical),
    refusal: &'static str,
}

fn log_item(editor: &Editor, log: Logical, objectid: u64, kind: KeyType) -> butterfs_testkit::editor::ItemPosition {
    let wanted = |item: Item<'_>| item.is(kind) && item.key().objectid == objectid;
    editor.find_below(log, wanted).unwrap_or_else(|| panic!("no item ({objectid} {kind:?})"))
}

fn inode(editor: &Editor, log: Logical, ino: u64, change: impl FnOnce(&mut InodeItem)) {
    editor.edit_item(log_item(editor, log, ino, KeyType::INODE_ITEM), change);
}

fn extent(editor: &Editor, log: Logical, change: impl FnOnce(&mut FileExtent)) {
    editor.edit_item(log_item(editor, log, 259, KeyType::EXTENT_DATA), change);
}

/// The start of the first block group with these flags.
fn group(editor: &Editor, flags: u64) -> u64 {
    let map = editor.volume.chunk_map();
    map.iter().find(|chunk| chunk.kind & flags != 0).expect("there is one").start.get()
}

/// The log's root item in the tree of logs.
fn root_item(editor: &Editor, change: impl FnOnce(&mut RootItem)) {
    editor.change(TreeId::TREE_LOG, |item| item.is(KeyType::ROOT_ITEM), change);
}

/// Overwrites a byte of an item, behind `skip` bytes.
fn byte(editor: &Editor, position: butterfs_testkit::editor::ItemPosition, at: usize, value: u8) {
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[at] = value);
}

fn raw_byte(editor: &Editor, at: Logical) {
    let mut bytes = editor.node(at).bytes().to_vec();
    bytes[200] ^= 0x40;
    editor.write_raw(at, &bytes);
}

fn reference(index: u64, name: &[u8]) -> Vec<u8> {
    [InodeRef { index: index.into(), name_len: (name.len() as u16).into() }.as_bytes(), name].concat()
}

fn replace(editor: &Editor, log: Logical, key: Key, data: &[u8]) {
    let position = editor.find_below(log, |item| item.key() == key).expect("the item is there");
    editor.remove_at(position);
    editor.insert_below(log, key, data);
}

fn dir_entry(ino: u64, kind: u8, name: &[u8]) -> Vec<u8> {
    let head = DirItem {
        location: DiskKey::from(Key::new(ino, KeyType::INODE_ITEM, 0)),
        transid: 8.into(),
        data_len: 0.into(),
        name_len: (name.len() as u16).into(),
        kind,
    };
    [head.as_bytes(), name].concat()
}

const fn key(objectid: u64, kind: KeyType, offset: u64) -> Key {
    Key::new(objectid, kind, offset)
}

const CASES: &[Case] = &[
    Case {
        name: "bad checksum of the log root",
        plant: |e, _| raw_byte(e, e.root(TreeId::TREE_LOG)),
        refusal: "checksum mismatch",
    },
    Case {
        name: "extent that shows more than it has",
        plant: |e, log| extent(e, log, |extent| extent.head.ram_bytes = 4096.into()),
        refusal: "shows more than the 4096 bytes",
    },
    Case { name: "bad checksum of a log", plant: raw_byte, refusal: "checksum mismatch" },
    Case {
        name: "log root of an older generation",
        plant: |e, _| e.superblock(|sb| (sb.log_root, sb.log_root_level) = (sb.root, sb.root_level)),
        refusal: "parent transid verify failed",
    },
    Case {
        name: "log root of another level",
        plant: |e, _| e.superblock(|sb| sb.log_root_level = 1),
        refusal: "level verify failed",
    },
    Case {
        name: "log root nowhere",
        plant: |e, _| e.superblock(|sb| sb.log_root = (1 << 60).into()),
        refusal: "no chunk holds",
    },
    Case {
        name: "log root in use",
        plant: |e, _| {
            let at = e.root(TreeId::FS);
            let mut bytes = e.node(at).bytes().to_vec();
            bytes[GENERATION..GENERATION + 8].copy_from_slice(&8u64.to_le_bytes());
            bytes[OWNER..OWNER + 8].copy_from_slice(&TreeId::TREE_LOG.get().to_le_bytes());
            e.stamp(at, bytes);
            e.superblock(|sb| sb.log_root = at.get().into());
        },
        refusal: "",
    },
    Case {
        name: "log of an older generation",
        plant: |e, _| root_item(e, |root| (root.generation, root.generation_v2) = (7.into(), 7.into())),
        refusal: "wanted 8",
    },
    Case {
        name: "log that is the log root",
        plant: |e, _| root_item(e, |root| root.bytenr = e.sb.log_root),
        refusal: "occurs twice",
    },
    Case {
        name: "log that is no log's",
        plant: |e, log| {
            let mut bytes = e.node(log).bytes().to_vec();
            bytes[OWNER..OWNER + 8].copy_from_slice(&TreeId::FS.get().to_le_bytes());
            e.stamp(log, bytes);
        },
        refusal: "belongs to tree 5",
    },
    Case {
        name: "log of the extent tree",
        plant: |e, _| {
            e.set_key(e.find(TreeId::TREE_LOG, |item| item.is(KeyType::ROOT_ITEM)), |key| Key { offset: 2, ..key })
        },
        refusal: "not the root of a subvolume's log",
    },
    Case {
        name: "data in a metadata group",
        plant: |e, log| {
            extent(e, log, |x| x.body.disk_bytenr = (group(e, block_group_flags::METADATA) + (4 << 20)).into())
        },
        refusal: "no place for data",
    },
    Case {
        name: "data over the log",
        plant: |e, log| extent(e, log, |x| x.body.disk_bytenr = log.get().into()),
        refusal: "no place for data",
    },
    Case {
        name: "data inside data in use",
        plant: |e, log| {
            let used = e.find(TreeId::EXTENT, |item| item.is(KeyType::EXTENT_ITEM) && item.key().offset == 8192);
            let at = e.node(used.leaf).key(used.slot).objectid;
            extent(e, log, |x| x.body.disk_bytenr = (at + 4096).into());
        },
        refusal: "overlaps space in use",
    },
    Case {
        name: "data nowhere",
        plant: |e, log| extent(e, log, |x| x.body.disk_bytenr = (1 << 62).into()),
        refusal: "no place for data",
    },
    Case {
        name: "data without end",
        plant: |e, log| extent(e, log, |x| x.body.disk_num_bytes = (u64::MAX - 4095).into()),
        refusal: "beyond its extent",
    },
    Case {
        name: "data longer than its group",
        plant: |e, log| extent(e, log, |x| x.body.disk_num_bytes = (1 << 50).into()),
        refusal: "no place for data",
    },
    Case {
        name: "more data than its extent",
        plant: |e, log| extent(e, log, |x| x.body.num_bytes = 131072.into()),
        refusal: "beyond its extent",
    },
    Case {
        name: "data of no bytes",
        plant: |e, log| extent(e, log, |x| (x.body.disk_num_bytes, x.body.num_bytes) = (0.into(), 0.into())),
        refusal: "no bytes",
    },
    Case {
        name: "unknown kind of extent",
        plant: |e, log| extent(e, log, |x| x.head.kind = 9),
        refusal: "invalid type for file extent",
    },
    Case {
        name: "a file that is a folder",
        plant: |e, log| inode(e, log, 257, |inode| inode.mode = 0o040755.into()),
        refusal: "nlink",
    },
    Case {
        name: "a folder that is a file",
        plant: |e, log| inode(e, log, 258, |inode| inode.mode = 0o100644.into()),
        refusal: "the subvolume has 0o40755",
    },
    Case {
        name: "a new folder that is a file",
        plant: |e, log| inode(e, log, 261, |inode| inode.mode = 0o100644.into()),
        refusal: "type 2 for an inode of mode",
    },
    Case {
        name: "a file without end",
        plant: |e, log| inode(e, log, 259, |inode| inode.size = u64::MAX.into()),
        refusal: "more than a file can have",
    },
    Case {
        name: "a slash in a name",
        plant: |e, log| byte(e, log_item(e, log, 263, KeyType::INODE_REF), InodeRef::LEN, b'/'),
        refusal: "slash",
    },
    Case {
        name: "a zero byte in an entry",
        plant: |e, log| byte(e, log_item(e, log, 262, KeyType::DIR_INDEX), DirItem::LEN, 0),
        refusal: "zero byte",
    },
    Case {
        name: "a name that is two dots",
        plant: |e, log| replace(e, log, key(263, KeyType::INODE_REF, 262), &reference(3, b"..")),
        refusal: "cannot be made",
    },
    Case {
        name: "a name at index 0",
        plant: |e, log| replace(e, log, key(263, KeyType::INODE_REF, 262), &reference(0, b"qwerty")),
        refusal: "not the index of an entry",
    },
    Case {
        name: "a name twice",
        plant: |e, log| {
            replace(
                e,
                log,
                key(263, KeyType::INODE_REF, 262),
                &[reference(3, b"qwerty"), reference(4, b"qwerty")].concat(),
            )
        },
        refusal: "occurs twice",
    },
    Case {
        name: "a name in a file",
        plant: |e, log| e.insert_below(log, key(263, KeyType::INODE_REF, 259), &reference(3, b"x")),
        refusal: "inode 259 is no directory",
    },
    Case {
        name: "a folder with two names",
        plant: |e, log| e.insert_below(log, key(262, KeyType::INODE_REF, 258), &reference(70, b"again")),
        refusal: "would have 2 names",
    },
    Case {
        name: "folders in a circle",
        plant: |e, log| {
            let is = |wanted: Key| move |item: Item<'_>| item.key() == wanted;
            e.remove_at(e.find_below(log, is(key(260, KeyType::DIR_INDEX, 2))).expect("x has y"));
            e.set_key(log_item(e, log, 261, KeyType::INODE_REF), |key| Key { offset: 262, ..key });
            replace(e, log, key(261, KeyType::INODE_REF, 262), &reference(9, b"y"));
        },
        refusal: "would contain itself",
    },
    Case {
        name: "an entry of another type",
        plant: |e, log| replace(e, log, key(262, KeyType::DIR_INDEX, 3), &dir_entry(263, dir_type::DIR, b"qwerty")),
        refusal: "type 2 for an inode of mode",
    },
    Case {
        name: "two entries in one place",
        plant: |e, log| {
            let two =
                [dir_entry(263, dir_type::REG_FILE, b"qwerty"), dir_entry(263, dir_type::REG_FILE, b"uiop")].concat();
            replace(e, log, key(262, KeyType::DIR_INDEX, 3), &two);
        },
        refusal: "not one entry",
    },
    Case {
        name: "an entry in a file",
        plant: |e, log| e.insert_below(log, key(257, KeyType::DIR_INDEX, 9), &dir_entry(263, dir_type::REG_FILE, b"q")),
        refusal: "inode 257 is no directory",
    },
    Case {
        name: "a range that ends before it begins",
        plant: |e, log| e.insert_below(log, key(258, KeyType::DIR_LOG_INDEX, 9), &8u64.to_le_bytes()),
        refusal: "ends before it begins",
    },
    Case {
        name: "a range of seven bytes",
        plant: |e, log| e.insert_below(log, key(258, KeyType::DIR_LOG_INDEX, 9), &[255; 7]),
        refusal: "ends before it begins",
    },
    Case {
        name: "an extent of a folder",
        plant: |e, log| e.insert_below(log, key(258, KeyType::EXTENT_DATA, 0), FileExtent::default().as_bytes()),
        refusal: "",
    },
];

#[test]
fn hostile_logs_are_refused() {
    const TEST: &str = "hostile_logs_are_refused";
    let watchdog = Watchdog::new(TEST, 120);
    let Some(base) = image(TEST, LINKS) else { return };
    let mut wrong = Vec::new();
    for case in CASES {
        watchdog.note(case.name);
        let (editor, copy) = Editor::of_copy(&base);
        let log = editor.log_of(TreeId::FS).expect("the top level has a log");
        (case.plant)(&editor, log);
        wrong.extend(refused(&copy, case).into_iter().map(|what| format!("{}: {what}", case.name)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Opens in every way; says what is not as it should be.
fn refused(planted: &MemoryDevice, case: &Case) -> Vec<String> {
    let mut wrong = Vec::new();
    for read_only in [false, true] {
        let recorder = Recorder::new();
        let device = Arc::new(recorder.record(Arc::new(planted.snapshot())));
        match open(device, read_only, false) {
            Ok(_) => wrong.push("it was opened".to_owned()),
            Err(sentence) if !sentence.contains(case.refusal) || !sentence.contains("-o ro,rescue=nologreplay") => {
                wrong.push(sentence);
            }
            Err(_) => {}
        }
        if !recorder.is_empty() {
            wrong.push(format!("{} writes", recorder.len()));
        }
    }
    // The two that are planted in the committed tree make that unreadable too.
    if case.name != "log root in use" {
        let shown = open(Arc::new(planted.snapshot()), true, true).and_then(|fs| Fingerprint::of_library(&fs));
        match shown {
            Ok(shown) if shown.entries.contains_key(&b"foo"[..]) && !shown.entries.contains_key(&b"mydir/x"[..]) => {}
            other => wrong.push(format!("without the log: {other:?}")),
        }
    }
    wrong
}

/// Replay cannot remove a subvolume, and a log that asks for it is none of a sound writer's.
#[test]
fn a_log_that_removes_a_subvolume_is_refused() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&(device.clone() as Arc<dyn BlockDevice>));
    let policies = Policies { log_at_any_cost: true, ..Policies::default() };
    let options = Options { policies, commit_interval_secs: 3600, ..Options::default() };
    let filesystem = Filesystem::open(vec![device.clone()], options, Env::system()).expect("just made");
    let mut library = Library::new(&filesystem);
    let [folder, new] = ["d", "d/new"].map(RelPath::from);
    library.apply(&Op::Mkdir { path: folder.clone(), mode: 0o755 }).expect("a new name");
    let ino = library.find(&folder).expect("it was made");
    filesystem.create_subvolume(&ROOT, ino, b"sub").expect("a new name");
    let fsync = Op::Fsync { object: Object::Path(folder), data_only: false };
    for op in [Op::Sync, Op::Create { path: new, mode: 0o644 }, fsync] {
        library.apply(&op).expect("a good device");
    }
    let cut = device.snapshot();
    assert!(open(Arc::new(cut.snapshot()), false, false).is_ok(), "the log is good as it is");
    let (editor, copy) = Editor::of_copy(&cut);
    let log = editor.log_of(TreeId::FS).expect("the folder was logged");
    let range = key(ino.ino.0, KeyType::DIR_LOG_INDEX, 2);
    if let Some(position) = editor.find_below(log, |item| item.key() == range) {
        editor.remove_at(position);
    }
    editor.insert_below(log, range, &u64::MAX.to_le_bytes());
    let recorder = Recorder::new();
    let sentence = open(Arc::new(recorder.record(copy)), false, false).err().expect("it is refused");
    assert!(sentence.contains("removes 'sub' from directory") && recorder.is_empty(), "{sentence}");
}

/// A device that cannot be written, and a log.
#[test]
fn a_log_on_a_read_only_device_is_refused() {
    const TEST: &str = "a_log_on_a_read_only_device_is_refused";
    let Some(base) = image(TEST, LINKS) else { return };
    let base = Arc::new(base);
    let locked = || Arc::new(butterfs_device::ReadOnlyDevice::new(base.clone()));
    for read_only in [false, true] {
        let sentence = open(locked(), read_only, false).err().expect("it cannot be replayed");
        assert!(sentence.contains("read-only") && sentence.contains("-o ro,rescue=nologreplay"), "{sentence}");
    }
    let without = open(locked(), true, true).expect("it can be read");
    assert!(without.notes().iter().any(|note| note.contains("not replayed")), "{:?}", without.notes());
    assert!(without.set_read_only(false).is_ok() && without.is_read_only(), "it cannot be made writable");
    let writable = open(base.clone(), false, true).err().expect("a log is not to be overwritten");
    assert!(writable.contains("only possible with ro"), "{writable}");
    // Where it can be written, a read-only mount replays, and stays read-only.
    let replayed = open(base.clone(), true, false).expect("a good log");
    assert!(replayed.is_read_only());
    let shown = Fingerprint::of_library(&replayed).expect("a sound filesystem");
    assert!(shown.entries.contains_key(&b"mydir/x/y/z/qwerty"[..]));
    drop(replayed);
    assert!(!Filesystem::has_log(vec![base.clone()]).expect("a filesystem"), "the log is gone");
    assert_eq!(findings(&base), [""; 0]);
}

/// Random bytes of the log's items changed, with good checksums: an error, or a clean filesystem.
#[test]
fn random_logs() {
    const TEST: &str = "random_logs";
    let watchdog = Watchdog::new(TEST, 200);
    for (name, runs) in [(LINKS, 1500), ("btrfs-056-1.img", 1000), ("btrfs-119-1.img", 500)] {
        let Some(base) = image(TEST, name) else { return };
        let mut opened = 0;
        for seed in 0..runs {
            watchdog.note(&format!("{name}, seed {seed}"));
            let (editor, copy) = Editor::of_copy(&base);
            scramble(&editor, &mut Rng::new(seed));
            let recorder = Recorder::new();
            let recorded = Arc::new(recorder.record(copy.clone()));
            match open(recorded, false, false) {
                Ok(filesystem) => {
                    opened += 1;
                    filesystem.shutdown().unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
                    let bad = findings(&copy);
                    assert!(bad.is_empty(), "{name}, seed {seed}: {bad:#?}");
                }
                Err(_) => assert!(recorder.is_empty(), "{name}, seed {seed}: refused, but written"),
            }
        }
        println!("{name}: {opened} of {runs} were opened");
    }
}

/// The checker's findings, without those that a log may cause: checksums and marks of compression that do not fit the
/// data are found when it is read; and what old releases of mkfs.btrfs leave.
fn findings(device: &Arc<MemoryDevice>) -> Vec<String> {
    let report = judge_memory(device);
    let own = report.findings.iter().filter(|finding| {
        let of_checksums = ["data-checksum", "checksum-missing", "checksum-odd", "checksum-unwritten"];
        !of_checksums.contains(&finding.id()) && !["file-extent-packing", "free-space-stray"].contains(&finding.id())
    });
    own.map(|finding| format!("{finding} [{}]", finding.id())).collect()
}

/// Changes a few bytes of items of some log.
fn scramble(editor: &Editor, rng: &mut Rng) {
    let mut leaves = Vec::new();
    editor.each_leaf(TreeId::TREE_LOG, &mut |roots| {
        for root in roots.items().filter_map(|(_, data)| RootItem::parse(data)) {
            editor.each_leaf_below(Logical(root.bytenr.get()), &mut |leaf| {
                leaves.push(leaf.at());
                false
            });
        }
        false
    });
    for _ in 0..1 + rng.below(3) {
        let at = leaves[rng.index(leaves.len())];
        editor.edit(at, |leaf| {
            let slot = rng.index(leaf.nritems());
            let item = leaf.item_mut(slot);
            let index = rng.index(item.len());
            item[index] = match rng.below(4) {
                0 => 0,
                1 => 255,
                2 => item[index] ^ (1 << rng.below(8)),
                _ => rng.below(256) as u8,
            };
        });
    }
}
