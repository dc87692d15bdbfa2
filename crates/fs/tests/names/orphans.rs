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
