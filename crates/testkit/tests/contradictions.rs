//! Items that are each well-formed and contradict one another: an error that names the rule, never a panic or a loop.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Env, Error, Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::items::FileExtent;
use butterfs_ondisk::{Ino, Key, KeyType};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::engine::FORMATS;
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
    }
}

#[test]
fn a_directory_that_lies_in_itself_has_no_path() {
    let (editor, disk) = image(|filesystem, root| {
        let above = filesystem.mkdir(&ROOT, root, b"above", 0o755).expect("room").id;
        filesystem.mkdir(&ROOT, above, b"below", 0o755).expect("room");
    });
    let place = editor.find(TreeId::FS, |item| item.key().objectid == 257 && item.is(KeyType::INODE_REF));
    editor.set_key(place, |key| Key { offset: 258, ..key });
    let filesystem = open(&disk, true).expect("each item is well-formed");
    for ino in [257, 258] {
        let said = filesystem.directory_path(InodeId::new(TreeId::FS, Ino(ino))).expect_err("a loop").to_string();
        assert!(said.contains("loop"), "{said}");
    }
}
