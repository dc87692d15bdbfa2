//! The content of the shapes: something in every way of storing, in few blocks.

use super::shapes::top;
use crate::fingerprint::Fingerprint;
use crate::library::{Library, ROOT};
use crate::model::ModelFs;
use crate::operation::{Content, Op, OperationTarget, RelPath};
use crate::workload::{Generator, Shape, run as run_workload};
use butterfs_fs::{Algorithm, DataPolicy, Filesystem, InodeId, SetAttr};
use std::collections::BTreeSet;

/// Nothing below it is worked with: what must stay as it is.
pub const SOUND: &[u8] = b"sound";

const NOISE: u64 = 2;
const WORDS: u64 = 1;

/// Fills a new filesystem.
pub fn fill(filesystem: &Filesystem) {
    folder_of_files(filesystem, top(), SOUND);
    let files = folder_of_files(filesystem, top(), b"files");
    prealloc_and_holes(filesystem, files);
    let share = filesystem.create(&ROOT, files, b"sharing", 0o644).expect("room").id;
    let source = filesystem.lookup(files, b"noise").expect("it was made").id;
    filesystem.sync().expect("memory can be written");
    filesystem.clone_range((source, 4096), (share, 0), 16384).expect("room");
    links(filesystem, files);
    random(filesystem);
    filesystem.sync().expect("memory can be written");
    let top_is_sent = filesystem.snapshot(butterfs_fs::TreeId::FS, top(), b"before", true).expect("room");
    filesystem.write(source, 8192, &content(WORDS, 5000), false).expect("room");
    filesystem.rename(files, b"words", files, b"renamed", butterfs_fs::RenameMode::Replace).expect("room");
    filesystem.snapshot(butterfs_fs::TreeId::FS, top(), b"after", true).expect("room");
    filesystem.set_default_subvolume(butterfs_fs::TreeId::FS).expect("it is there");
    assert!(filesystem.subvolume_info(top_is_sent).expect("it was made").is_readonly());
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    Content { seed, len }.bytes()
}

fn file(filesystem: &Filesystem, folder: InodeId, name: &[u8], bytes: &[u8]) -> InodeId {
    let id = filesystem.create(&ROOT, folder, name, 0o644).expect("room").id;
    filesystem.write(id, 0, bytes, false).expect("room");
    id
}

fn folder_of_files(filesystem: &Filesystem, parent: InodeId, name: &[u8]) -> InodeId {
    let folder = filesystem.mkdir(&ROOT, parent, name, 0o755).expect("room").id;
    file(filesystem, folder, b"inline", &content(NOISE, 900));
    file(filesystem, folder, b"noise", &content(NOISE, 50_000));
    for (name, algorithm) in [(&b"words"[..], Algorithm::Zstd), (b"lzo", Algorithm::Lzo), (b"zlib", Algorithm::Zlib)] {
        let policy = DataPolicy { compress: Some(algorithm.into()), force: true, ..DataPolicy::default() };
        filesystem.set_data_policy(policy);
        let id = file(filesystem, folder, name, &content(WORDS, 140_000));
        filesystem.write_back(id).expect("memory can be written");
        filesystem.set_data_policy(DataPolicy::default());
    }
    let attributed = file(filesystem, folder, b"xattrs", b"short");
    for (name, len) in [("user.short", 3), ("user.long", 700), ("trusted.empty", 0)] {
        filesystem.set_xattr(&ROOT, attributed, name.as_bytes(), &content(NOISE, len), 0).expect("room");
    }
    filesystem.symlink(&ROOT, folder, b"symlink", b"inline").expect("room");
    filesystem.mknod(&ROOT, folder, b"fifo", 0o010_644, (0, 0)).expect("room");
    filesystem.mkdir(&ROOT, folder, b"empty", 0o700).expect("room");
    folder
}

fn prealloc_and_holes(filesystem: &Filesystem, folder: InodeId) {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 3;
    let id = file(filesystem, folder, b"prealloc", &content(NOISE, 3000));
    filesystem.fallocate(id, KEEP_SIZE, 8192, 200_000, false).expect("room");
    filesystem.write_back(id).expect("memory can be written");
    filesystem.write(id, 40_000, &content(NOISE, 9000), false).expect("room");
    let id = file(filesystem, folder, b"holes", &content(NOISE, 90_000));
    filesystem.write_back(id).expect("memory can be written");
    filesystem.fallocate(id, PUNCH_HOLE, 12288, 30_000, false).expect("room");
    filesystem.setattr(&ROOT, id, &SetAttr { size: Some(1 << 21), ..SetAttr::default() }).expect("room");
    filesystem.set_data_policy(DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() });
    let id = file(filesystem, folder, b"in place", &content(NOISE, 60_000));
    filesystem.write_back(id).expect("memory can be written");
    filesystem.set_data_policy(DataPolicy::default());
}

/// More than fit in one INODE_REF.
fn links(filesystem: &Filesystem, folder: InodeId) {
    let id = file(filesystem, folder, b"linked", b"once");
    let len = filesystem.superblock().nodesize.get() as usize / 40;
    for number in 0..60 {
        let name = format!("{number:03}{}", "x".repeat(len.min(240)));
        filesystem.link(id, folder, name.as_bytes()).expect("extended references");
    }
}

fn random(filesystem: &Filesystem) {
    let work = filesystem.create_subvolume(&ROOT, top(), b"work").expect("room");
    let (mut model, mut library) = (ModelFs::default(), Library::below(filesystem, &RelPath::from("work")));
    let shape = Shape { inodes_max: 25, write_max: 20_000, file_max: 40_000, orphans: false, ..Shape::SMALL };
    let mut generator = Generator::new(1701, shape);
    for name in [&b"first"[..], b"second"] {
        run_workload(&mut generator, 150, &mut model, &mut library).unwrap_or_else(|found| panic!("{found:?}"));
        filesystem.snapshot(work, top(), name, true).expect("room");
    }
    for handle in model.handles().keys().copied().collect::<Vec<u32>>() {
        library.apply(&Op::Close { handle }).expect("it is open");
    }
}

/// Files that somebody has open and that have no name.
pub fn orphans(filesystem: &Filesystem) {
    let nameless = filesystem.tmpfile(&ROOT, top(), 0o600).expect("room").id;
    filesystem.write(nameless, 0, &content(NOISE, 30_000), false).expect("room");
    let id = file(filesystem, top(), b"unlinked", &content(NOISE, 10_000));
    filesystem.acquire(id);
    filesystem.unlink(top(), b"unlinked").expect("it was made");
}

/// Changes that are in the log only.
pub fn log(filesystem: &Filesystem) {
    let files = filesystem.lookup(top(), b"files").expect("it was made").id;
    let found = |name: &[u8]| filesystem.lookup(files, name).expect("it was made").id;
    let new = file(filesystem, files, b"new", &content(NOISE, 20_000));
    let folder = filesystem.mkdir(&ROOT, files, b"new folder", 0o755).expect("room").id;
    file(filesystem, folder, b"inside", b"short");
    filesystem.link(found(b"inline"), folder, b"linked inline").expect("room");
    filesystem.unlink(files, b"lzo").expect("it was made");
    filesystem.remove_xattr(&ROOT, found(b"xattrs"), b"user.short").expect("it has it");
    filesystem.rename(files, b"zlib", folder, b"moved", butterfs_fs::RenameMode::Replace).expect("room");
    filesystem.write(found(b"noise"), 4096, &content(WORDS, 3000), false).expect("room");
    for id in [new, folder, found(b"noise"), found(b"xattrs"), found(b"inline"), files] {
        filesystem.fsync(id, false).expect("memory can be written");
    }
}

/// A folder's content that takes about so many leaves of 4 KiB.
pub fn many_leaves(filesystem: &Filesystem, folder: InodeId, leaves: usize) {
    for number in 0..leaves * 2 {
        file(filesystem, folder, format!("{number}").as_bytes(), &content(NOISE, 1500));
    }
}

/// A little of everything that takes space.
pub fn something(filesystem: &Filesystem, name: &[u8]) {
    let folder = filesystem.mkdir(&ROOT, top(), name, 0o755).expect("room").id;
    file(filesystem, folder, b"noise", &content(NOISE, 40_000));
    file(filesystem, folder, b"inline", b"short");
}

/// Paths of what operations work with, and the inodes of the top level with which nothing works.
pub fn paths(filesystem: &Filesystem) -> (Vec<Vec<u8>>, BTreeSet<u64>) {
    let print = Fingerprint::of_library(filesystem).expect("a sound image");
    let is_sound = |path: &[u8]| path.split(|byte| *byte == b'/').any(|name| name == SOUND);
    let numbers = print.numbers.iter().filter(|(path, _)| path.starts_with(SOUND)).map(|(_, ino)| *ino).collect();
    (print.entries.into_keys().filter(|path| !path.is_empty() && !is_sound(path)).collect(), numbers)
}
