//! Inodes without a name: how long they live, and what a power cut leaves.

use crate::world::{ROOT, World, errno};
use butterfs_fs::{Errno, InodeId};

#[test]
fn an_open_file_outlives_its_name() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    fs.acquire(file);
    fs.unlink(root, b"file").unwrap();
    fs.forget(file, 1);
    assert_eq!(fs.getattr(file).unwrap().nlink, 0);
    fs.sync().unwrap();
    fs.set_xattr(&ROOT, file, b"user.a", b"still here", 0).unwrap();
    fs.release(file);
    assert_eq!(errno(fs.getattr(file)), Some(Errno::ENOENT));
    world.finish();
}

/// After a mount the next number follows from the greatest in the tree. What is still to be written of the last inode,
/// which is deleted before a number was asked for, must not be written over a new one.
#[test]
fn the_number_of_a_deleted_inode_is_not_used_again() {
    let world = World::new();
    let old = world.file(world.root(), "old");
    let world = world.reopen();
    let (fs, root) = (&world.fs, world.root());
    fs.unlink(root, b"old").unwrap();
    let new = fs.mknod(&ROOT, root, b"new", 0o060_640, (8, 1)).unwrap();
    assert!(new.id.ino > old.ino, "{} after {}", new.id.ino, old.ino);
    fs.forget(new.id, 1);
    let world = world.reopen();
    let found = world.stat("new").unwrap();
    assert_eq!((found.mode, found.nlink, found.rdev), (0o060_640, 1, (8, 1)));
    world.finish();
}

#[test]
fn shutting_down_deletes_what_is_still_open() {
    let world = World::new();
    let file = world.file(world.root(), "file");
    world.fs.acquire(file);
    world.fs.unlink(world.root(), b"file").unwrap();
    let world = world.reopen();
    assert_eq!(errno(world.fs.getattr(file)), Some(Errno::ENOENT));
    world.finish();
}

#[test]
fn the_next_mount_deletes_what_a_power_cut_left() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let (file, dir) = (world.file(root, "file"), world.dir(root, "dir"));
    let unnamed = fs.tmpfile(&ROOT, root, 0o600).unwrap().id;
    fs.unlink(root, b"file").unwrap();
    fs.rmdir(root, b"dir").unwrap();
    fs.sync().unwrap();
    let later = world.after_power_cut();
    for id in [file, dir, unnamed] {
        assert_eq!(errno(later.fs.getattr(id)), Some(Errno::ENOENT), "{id:?}");
    }
    assert_eq!(later.list(later.root()), [""; 0]);
    later.finish();
    // A power cut before the commit brings the names back.
    for id in [file, dir, unnamed] {
        fs.forget(id, 1);
    }
    world.finish();
}

#[test]
fn a_removed_directory_takes_nothing_in() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    fs.acquire(dir);
    fs.rmdir(root, b"dir").unwrap();
    assert_eq!(errno(fs.mkdir(&ROOT, dir, b"below", 0o755)), Some(Errno::ENOENT));
    assert_eq!(errno(fs.tmpfile(&ROOT, dir, 0o600)), Some(Errno::ENOENT));
    fs.forget(dir, 1);
    fs.release(dir);
    world.finish();
}

/// A file of many small extents, each written back on its own.
fn scattered(world: &World, name: &str, extents: u64) -> InodeId {
    scattered_in(world, world.root(), name, extents)
}

fn scattered_in(world: &World, directory: InodeId, name: &str, extents: u64) -> InodeId {
    let file = world.file(directory, name);
    for number in 0..extents {
        world.fs.write(file, number * 8192, &[number as u8; 4096], false).unwrap();
    }
    world.fs.sync().unwrap();
    file
}

#[test]
fn a_file_of_many_extents_is_deleted_in_steps() {
    const EXTENTS: u64 = 5000;
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    world.file(root, "first");
    fs.sync().unwrap();
    let free = fs.statfs().blocks_free;
    let file = scattered(&world, "file", EXTENTS);
    let linked = scattered(&world, "linked", 100);
    fs.link(linked, root, b"second name").unwrap();
    assert_eq!(fs.getattr(file).unwrap().blocks, EXTENTS * 8);
    fs.unlink(root, b"file").unwrap();
    fs.unlink(root, b"linked").unwrap();
    fs.sync().unwrap();
    // Still referred to: it is all there, also for the next mount, which deletes it.
    let mut content = Vec::new();
    fs.read(file, (EXTENTS - 1) * 8192, 4096, &mut content).unwrap();
    assert_eq!(content, [(EXTENTS - 1) as u8; 4096]);
    let later = world.after_power_cut();
    assert_eq!(errno(later.fs.getattr(file)), Some(Errno::ENOENT));
    later.fs.sync().unwrap();
    assert!(later.fs.statfs().blocks_free + 600 > free, "{} of {free}", later.fs.statfs().blocks_free);
    later.finish();
    // Deleted while others commit; what a power cut leaves in between is sound.
    let mut cuts = Vec::new();
    std::thread::scope(|scope| {
        let deleter = scope.spawn(|| fs.forget(file, 1));
        while !deleter.is_finished() {
            fs.sync().unwrap();
            cuts.push(world.on_device());
        }
    });
    for cut in cuts.iter().step_by(cuts.len().div_ceil(8).max(1)) {
        crate::world::judge(cut);
    }
    assert_eq!(errno(fs.getattr(file)), Some(Errno::ENOENT));
    assert_eq!(world.stat("second name").unwrap().blocks, 800);
    fs.forget(linked, 2);
    world.finish();
}

#[test]
fn unwritten_data_of_a_deleted_file_goes_nowhere() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    fs.acquire(file);
    fs.write(file, 0, &[1; 100_000], false).unwrap();
    fs.unlink(root, b"file").unwrap();
    fs.write(file, 100_000, &[2; 100_000], false).unwrap();
    fs.forget(file, 1);
    fs.release(file);
    assert!(fs.write(file, 0, b"late", false).is_err());
    fs.sync().unwrap();
    world.finish();
}

/// A snapshot takes over files of its source that have no name and are open there; nobody can open them in the
/// snapshot.
#[test]
fn a_snapshot_keeps_no_files_without_a_name() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let source = InodeId::root_of(fs.create_subvolume(&ROOT, root, b"source").unwrap());
    assert_eq!(world.id("source"), source);
    let orphan = |number: u64| {
        let file = world.file(source, &format!("doomed{number}"));
        fs.write(file, 0, &vec![number as u8; (number * 3000) as usize], false).unwrap();
        file
    };
    // Each leaf of the tree has some, and what is left of them is more than one leaf.
    let open: Vec<InodeId> = (0..80).map(orphan).collect();
    let large = scattered_in(&world, source, "large", 400);
    let kept = world.file(source, "kept");
    let dir = world.dir(source, "dir");
    for number in 0..80 {
        fs.unlink(source, format!("doomed{number}").as_bytes()).unwrap();
    }
    fs.unlink(source, b"large").unwrap();
    fs.rmdir(source, b"dir").unwrap();
    let unnamed = fs.tmpfile(&ROOT, source, 0o600).unwrap().id;
    let all: Vec<InodeId> = open.iter().copied().chain([large, dir, unnamed]).collect();
    let copies: Vec<InodeId> = [(b"r", true), (b"w", false), (b"s", true)]
        .map(|(name, read_only)| InodeId::root_of(fs.snapshot(source.tree, root, name, read_only).unwrap()))
        .to_vec();
    for copy in &copies {
        for id in &all {
            let there = InodeId::new(copy.tree, id.ino);
            assert_eq!(errno(fs.getattr(there)), Some(Errno::ENOENT), "{there:?}");
        }
        assert_eq!(world.list(*copy), ["kept"]);
        fs.getattr(InodeId::new(copy.tree, kept.ino)).unwrap();
    }
    // In the source they live on.
    let mut content = Vec::new();
    fs.read(open[7], 0, 21_000, &mut content).unwrap();
    assert_eq!(content, [7; 21_000]);
    fs.sync().unwrap();
    crate::world::judge(&world.on_device());
    // A power cut before the next commit leaves them in a snapshot; the next mount deletes them when it is entered.
    let late = fs.snapshot(source.tree, root, b"late", true).unwrap();
    let later = world.after_power_cut();
    assert_eq!(later.fs.getattr(InodeId::new(late, unnamed.ino)).unwrap().nlink, 0);
    assert_eq!(later.id("late"), InodeId::root_of(late));
    assert_eq!(errno(later.fs.getattr(InodeId::new(late, unnamed.ino))), Some(Errno::ENOENT));
    later.finish();
    all.iter().for_each(|id| fs.forget(*id, 1));
    fs.forget(kept, 1);
    world.finish();
}

/// Entering a subvolume deletes what nobody has open, and only that.
#[test]
fn open_orphans_survive_entering_their_subvolume() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let sub = InodeId::root_of(fs.create_subvolume(&ROOT, root, b"sub").unwrap());
    let file = world.file(sub, "file");
    fs.write(file, 0, &[7; 5000], false).unwrap();
    fs.unlink(sub, b"file").unwrap();
    fs.sync().unwrap();
    assert_eq!(world.id("sub"), sub);
    let mut content = Vec::new();
    fs.read(file, 0, 5000, &mut content).unwrap();
    assert_eq!(content, [7; 5000]);
    fs.forget(file, 1);
    assert_eq!(errno(fs.getattr(file)), Some(Errno::ENOENT));
    world.finish();
}

/// A file that is open while its subvolume becomes read-only goes when it is closed; not while the subvolume is read as
/// a tree, which would change under its reader.
#[test]
fn a_read_only_subvolume_loses_its_orphans_unless_it_is_read() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let sub = InodeId::root_of(fs.create_subvolume(&ROOT, root, b"sub").unwrap());
    assert_eq!(world.id("sub"), sub);
    let files = ["one", "two"].map(|name| world.file(sub, name));
    for (file, name) in files.iter().zip(["one", "two"]) {
        fs.write(*file, 0, &[1; 100_000], false).unwrap();
        fs.unlink(sub, name.as_bytes()).unwrap();
    }
    fs.set_subvolume_readonly(sub.tree, true).unwrap();
    fs.forget(files[0], 1);
    assert_eq!(errno(fs.getattr(files[0])), Some(Errno::ENOENT));
    let reader = fs.read_snapshot(sub.tree).unwrap();
    fs.forget(files[1], 1);
    assert!(fs.getattr(files[1]).is_ok());
    fs.sync().unwrap();
    let item = butterfs_ondisk::Key::new(files[1].ino.0, butterfs_ondisk::KeyType::INODE_ITEM, 0);
    let position = reader.search(item).unwrap();
    assert_eq!(position.leaf.key(position.slot), item);
    drop(reader);
    let world = world.reopen();
    assert_eq!(world.id("sub"), sub);
    assert_eq!(errno(world.fs.getattr(files[1])), Some(Errno::ENOENT));
    world.finish();
}
