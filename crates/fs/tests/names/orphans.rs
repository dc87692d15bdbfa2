//! Inodes without a name: how long they live, and what a power cut leaves.

use crate::world::{ROOT, World, errno};
use butterfs_fs::Errno;

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
fn scattered(world: &World, name: &str, extents: u64) -> butterfs_fs::InodeId {
    let file = world.file(world.root(), name);
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
