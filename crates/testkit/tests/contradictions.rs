//! Items that are each well-formed and contradict one another: an error that names the rule, never a panic or a loop.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Env, Errno, Error, Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::items::{ChunkHead, FileExtent, InodeItem};
use butterfs_ondisk::{Ino, Key, KeyType};
use butterfs_testkit::editor::{Editor, ItemPosition};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::judge::judge_memory;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

fn open(disk: &Arc<MemoryDevice>, read_only: bool) -> Result<Filesystem, Error> {
    let options = Options { read_only, commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![disk.clone()], options, Env::system())
}

/// A filesystem with what `fill` makes in it.
fn image(fill: impl FnOnce(&Filesystem, InodeId)) -> (Editor, Arc<MemoryDevice>) {
    let disk = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&(disk.clone() as Arc<dyn BlockDevice>));
    let filesystem = open(&disk, false).expect("a new filesystem");
    fill(&filesystem, filesystem.root());
    filesystem.shutdown().expect("a good device");
    drop(filesystem);
    Editor::of_copy(&disk)
}

#[test]
fn two_files_disagree_about_the_length_of_their_extent() {
    let (editor, disk) = image(|filesystem, root| {
        let one = filesystem.create(&ROOT, root, b"one", 0o644).expect("room").id;
        filesystem.write(one, 0, &[7; 8192], true).expect("room");
        let two = filesystem.create(&ROOT, root, b"two", 0o644).expect("room").id;
        filesystem.sync().expect("a good device");
        filesystem.copy_range((one, 0), (two, 0), 4096).expect("room");
    });
    let of_two = |key: Key| key.objectid == 258 && key.kind == KeyType::EXTENT_DATA;
    editor.change(
        TreeId::FS,
        |item| of_two(item.key()),
        |extent: &mut FileExtent| {
            (extent.body.disk_num_bytes, extent.head.ram_bytes) = (4096.into(), 4096.into());
        },
    );
    let filesystem = open(&disk, false).expect("each item is well-formed");
    let removed = [b"one", b"two"].map(|name| filesystem.unlink(filesystem.root(), name).map(drop));
    let synced = filesystem.sync();
    let said: Vec<String> =
        removed.into_iter().chain([synced]).filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(said.iter().any(|said| said.contains("8192") && said.contains("4096")), "{said:?}");
    assert!(filesystem.sync().is_err());
    drop(filesystem);
    assert!(open(&disk, true).is_ok(), "nothing was written");
}

#[test]
fn a_generation_without_a_successor_is_refused_for_writing() {
    for generation in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let (editor, disk) = image(|_, _| {});
        editor.superblock(|sb| sb.generation = generation.into());
        let said = open(&disk, false).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(&format!("generation {generation}")), "{said}");
        // The trees are of another generation; what is asked here is an answer.
        assert!(open(&disk, true).is_err());
    }
}

#[test]
fn a_directory_that_lies_in_itself_has_no_path() {
    let (editor, disk) = image(|filesystem, root| {
        let above = filesystem.mkdir(&ROOT, root, b"above", 0o755).expect("room").id;
        filesystem.mkdir(&ROOT, above, b"below", 0o755).expect("room");
    });
    let position = editor.find(TreeId::FS, |item| item.key().objectid == 257 && item.is(KeyType::INODE_REF));
    editor.set_key(position, |key| Key { offset: 258, ..key });
    let filesystem = open(&disk, true).expect("each item is well-formed");
    for ino in [257, 258] {
        let said = filesystem.directory_path(InodeId::new(TreeId::FS, Ino(ino))).expect_err("a loop").to_string();
        assert!(said.contains("loop"), "{said}");
    }
}

#[test]
fn a_size_without_a_next_block_can_be_looked_at() {
    let (editor, disk) = image(|filesystem, root| drop(filesystem.mkdir(&ROOT, root, b"folder", 0o755)));
    let of_folder = |key: Key| key.objectid == 257 && key.kind == KeyType::INODE_ITEM;
    editor.change(TreeId::FS, |item| of_folder(item.key()), |inode: &mut InodeItem| inode.size = (u64::MAX - 2).into());
    let filesystem = open(&disk, true).expect("each item is well-formed");
    let found = filesystem.lookup(filesystem.root(), b"folder").expect("an inode of any size");
    assert_eq!(found.size, u64::MAX - 2);
}

#[test]
fn two_root_items_of_one_subvolume_are_no_loop() {
    let _watchdog = Watchdog::new("two_root_items_of_one_subvolume_are_no_loop", 60);
    let (editor, disk) = image(|filesystem, root| {
        filesystem.create_subvolume(&ROOT, root, b"twice").expect("room");
    });
    let position = editor.find(TreeId::ROOT, |item| item.is(KeyType::ROOT_ITEM) && item.key().objectid == 256);
    let payload = editor.node(position.leaf).item(position.slot).to_vec();
    editor.insert(TreeId::ROOT, Key::new(256, KeyType::ROOT_ITEM, 1), &payload);
    let filesystem = open(&disk, false).expect("each item is well-formed");
    filesystem.delete_subvolume(filesystem.root(), b"twice").expect("it is there");
    filesystem.sync().expect("memory can be written");
    let _ = filesystem.clean_subvolumes();
    // The second root item is one of a living subvolume that nobody finds.
    let _ = filesystem.repair_uuid_tree();
}

#[test]
fn fields_of_chunks_without_a_meaning_may_differ() {
    let (editor, disk) = image(|_, _| {});
    let is_system =
        |key: Key| key.kind == KeyType::CHUNK_ITEM && key.offset == editor.sb.chunk_root.get() / (1 << 20) * (1 << 20);
    editor.change(
        TreeId::CHUNK,
        |item| is_system(item.key()),
        |chunk: &mut ChunkHead| {
            (chunk.io_align, chunk.owner) = (4096.into(), 7.into());
        },
    );
    assert!(judge_memory(&disk).is_clean());
    open(&disk, false).expect("the kernel mounts it too");
}

#[test]
fn a_removed_folder_that_is_open_has_no_path() {
    let (_, disk) = image(|filesystem, root| drop(filesystem.mkdir(&ROOT, root, b"folder", 0o755)));
    let filesystem = open(&disk, false).expect("a sound image");
    let folder = filesystem.lookup(filesystem.root(), b"folder").expect("it was made").id;
    filesystem.rmdir(filesystem.root(), b"folder").expect("it is empty");
    let refused = filesystem.directory_path(folder).expect_err("it has no name");
    assert!(refused.is(Errno::ENOENT), "{refused}");
}

#[test]
fn the_checker_finds_keys_that_nobody_looks_up() {
    let (editor, disk) = image(|_, _| {});
    let summary = editor.find(TreeId::FREE_SPACE, |item| item.is(KeyType::FREE_SPACE_INFO));
    editor.set_key(summary, |key| Key { offset: key.offset / 2, ..key });
    assert!(!judge_memory(&disk).is_clean(), "a summary of half a group");
    let (editor, disk) = image(|_, _| {});
    let mut last = None;
    editor.each_leaf(TreeId::CHUNK, &mut |leaf| {
        let mut slots = (0..leaf.nritems()).filter(|slot| leaf.key(*slot).kind == KeyType::CHUNK_ITEM);
        last = slots.next_back().map(|slot| ItemPosition { leaf: leaf.at(), slot });
        false
    });
    editor.set_key(last.expect("there are chunks"), |key| Key { objectid: 257, ..key });
    assert!(!judge_memory(&disk).is_clean(), "a chunk of another object");
}
