//! Files without copy on write: overwritten where they are, unless somebody else shows the same data.

use super::world::{ROOT, World, pattern};
use butterfs_fs::file_extent::FileExtent;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{DataPolicy, Errno, InodeId, Options, TreeId, inode_flags};

const LEN: usize = 400_000;

/// Ranges of the file and their addresses.
fn mapping(world: &World, id: InodeId) -> Vec<(u64, u64, u64)> {
    let range = |extent: FileExtent| (extent.start, extent.len, extent.at.0 + extent.offset);
    world.fs.extents(id, 0..u64::MAX / 2).unwrap().into_iter().map(range).collect()
}

/// A file of [`LEN`] bytes without copy on write, durable.
fn nodatacow_file(world: &World, name: &str) -> (InodeId, Vec<u8>) {
    let id = world.file(name);
    world.fs.set_flags(id, inode_flags::NODATACOW, inode_flags::NODATACOW).unwrap();
    let content = pattern(1, LEN);
    world.write(id, 0, &content);
    world.fs.sync().unwrap();
    (id, content)
}

fn overwrite(world: &World, id: InodeId, content: &mut [u8], at: usize, len: usize, seed: u64) {
    let data = pattern(seed, len);
    world.write(id, at as u64, &data);
    content[at..at + len].copy_from_slice(&data);
    world.fs.fsync(id, false).unwrap();
}

/// By a commit or by a log, what `fsync` promised is there after a power cut.
#[test]
fn data_of_its_own_is_overwritten_where_it_is() {
    for no_tree_log in [true, false] {
        let options = Options { no_tree_log, ..Options::default() };
        overwritten_in_place(&World::with(&MkfsOptions::default(), options, 256 << 20));
    }
}

fn overwritten_in_place(world: &World) {
    let (id, mut content) = nodatacow_file(world, "file");
    assert!(world.fs.getattr(id).unwrap().flags & inode_flags::NODATASUM != 0);
    let before = mapping(world, id);
    for (number, (at, len)) in [(0, 4096), (5000, 100), (100_001, 77_777), (LEN - 5, 5)].into_iter().enumerate() {
        overwrite(world, id, &mut content, at, len, 10 + number as u64);
        assert_eq!(mapping(world, id), before);
        let cut = world.after_power_cut();
        assert!(cut.content(cut.id("file")) == content, "{at}");
    }
    // Behind the end of the file, in the last sector.
    world.write(id, LEN as u64, b"more");
    content.extend_from_slice(b"more");
    world.fs.fsync(id, false).unwrap();
    assert_eq!(mapping(world, id), before);
    let cut = world.after_power_cut();
    assert!(cut.content(cut.id("file")) == content);
    cut.finish("in-place");
}

#[test]
fn shared_content_is_copied_once() {
    let world = World::new();
    let (id, mut content) = nodatacow_file(&world, "file");
    let (first, old) = (mapping(&world, id), content.clone());
    let snapshot = world.fs.snapshot(TreeId::FS, world.fs.root(), b"snapshot", true).unwrap();
    overwrite(&world, id, &mut content, 40_000, 50_000, 2);
    let second = mapping(&world, id);
    assert_ne!(second, first);
    overwrite(&world, id, &mut content, 41_000, 30_000, 3);
    assert_eq!(mapping(&world, id), second, "the copy is the file's own");
    overwrite(&world, id, &mut content, 0, 4096, 4);
    assert_ne!(mapping(&world, id), second, "the rest is still shared");
    let in_snapshot = InodeId::new(snapshot, id.ino);
    assert!(world.content(in_snapshot) == old);
    assert!(world.content(id) == content);
    let world = world.reopen();
    assert!(world.content(world.id("file")) == content);
    assert!(world.content(world.id("snapshot/file")) == old);
    world.finish("in-place-snapshot");
}

/// Also where the data was written, but not written back, when the snapshot was taken.
#[test]
fn a_snapshot_shows_what_was_buffered_and_nothing_later() {
    let world = World::new();
    let (id, mut content) = nodatacow_file(&world, "file");
    let data = pattern(7, 20_000);
    world.write(id, 8192, &data);
    content[8192..28_192].copy_from_slice(&data);
    let snapshot = world.fs.snapshot(TreeId::FS, world.fs.root(), b"snapshot", false).unwrap();
    let old = content.clone();
    overwrite(&world, id, &mut content, 9000, 10_000, 8);
    assert!(world.content(InodeId::new(snapshot, id.ino)) == old);
    assert!(world.content(id) == content);
    world.finish("in-place-buffered");
}

#[test]
fn clones_and_their_sources_are_copied() {
    let world = World::new();
    let (id, mut content) = nodatacow_file(&world, "file");
    let (clone, mut copied) = (world.file("clone"), content.clone());
    world.fs.set_flags(clone, inode_flags::NODATACOW, inode_flags::NODATACOW).unwrap();
    world.fs.clone_range((id, 0), (clone, 0), 0).unwrap();
    let shared = mapping(&world, id);
    assert_eq!(mapping(&world, clone), shared);
    overwrite(&world, id, &mut content, 100_000, 50_000, 5);
    assert_ne!(mapping(&world, id), shared);
    overwrite(&world, clone, &mut copied, 300_000, 1, 6);
    assert_ne!(mapping(&world, clone), shared);
    assert!(world.content(id) == content && world.content(clone) == copied);
    // Alone again, the file is written in place again.
    world.fs.unlink(world.fs.root(), b"clone").unwrap();
    world.fs.forget(clone, 1);
    world.fs.sync().unwrap();
    world.fs.sync().unwrap();
    let alone = mapping(&world, id);
    overwrite(&world, id, &mut content, 0, 30_000, 9);
    assert_eq!(mapping(&world, id), alone);
    // One without checksums does not share with one that has them.
    let summed = world.file("summed");
    let refused = world.fs.clone_range((id, 0), (summed, 0), 0);
    assert!(refused.is_err_and(|error| error.is(Errno::EINVAL)));
    world.finish("in-place-clones");
}

#[test]
fn a_full_disk_takes_what_is_overwritten_in_place() {
    let mut data = DataPolicy::default();
    data.nodatacow();
    let options = Options { data, ..Options::default() };
    let world = World::with(&MkfsOptions::default(), options, 160 << 20);
    let (id, mut content) = nodatacow_file(&world, "file");
    let filler = world.file("filler");
    let piece = pattern(3, 1 << 20);
    let full = (0..).find(|at| world.fs.write(filler, at << 20, &piece, false).is_err()).unwrap();
    for at in full << 8.. {
        if world.fs.write(filler, at << 12, &piece[..4096], false).is_err() {
            break;
        }
    }
    world.fs.sync().unwrap();
    assert!(world.fs.write(filler, 1 << 40, &piece, false).is_err_and(|error| error.is(Errno::ENOSPC)));
    overwrite(&world, id, &mut content, 0, LEN, 4);
    assert!(world.content(id) == content);
    assert_eq!(world.fs.getattr(filler).unwrap().flags & inode_flags::NODATACOW, inode_flags::NODATACOW);
    world.finish("in-place-full");
}

#[test]
fn the_choice_is_made_while_a_file_is_empty() {
    let world = World::new();
    let (fs, nodatacow) = (&world.fs, inode_flags::NODATACOW);
    let flags = |id| fs.getattr(id).unwrap().flags;
    let late = world.file("late");
    world.write(late, 0, b"x");
    fs.set_flags(late, nodatacow, nodatacow).unwrap();
    assert_eq!(flags(late), 0);
    let (early, _) = nodatacow_file(&world, "early");
    fs.set_flags(early, 0, nodatacow).unwrap();
    assert_eq!(flags(early), nodatacow | inode_flags::NODATASUM);
    fs.set_flags(early, inode_flags::NODUMP, inode_flags::NODUMP).unwrap();
    assert_eq!(flags(early), nodatacow | inode_flags::NODATASUM | inode_flags::NODUMP);
    let folder = fs.mkdir(&ROOT, fs.root(), b"folder", 0o755).unwrap().id;
    fs.set_flags(folder, nodatacow, nodatacow).unwrap();
    assert_eq!(flags(folder), nodatacow);
    let inherits = fs.create(&ROOT, folder, b"file", 0o644).unwrap().id;
    assert_eq!(flags(inherits), nodatacow | inode_flags::NODATASUM);
    let refused = fs.set_flags(inherits, inode_flags::COMPRESS, inode_flags::COMPRESS);
    assert!(refused.is_err_and(|error| error.is(Errno::EINVAL)));
    world.finish("in-place-choice");
}
