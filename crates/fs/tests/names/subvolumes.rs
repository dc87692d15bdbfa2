//! Subvolumes as directory entries: where they may move, and the placeholders that snapshots show for them.

use crate::world::{ROOT, World, errno};
use butterfs_fs::RenameMode::{Exchange, NoReplace, Replace};
use butterfs_fs::{Errno, InodeId};

fn subvolume(world: &World, parent: InodeId, name: &str) -> InodeId {
    InodeId::root_of(world.fs.create_subvolume(&ROOT, parent, name.as_bytes()).unwrap())
}

#[test]
fn a_subvolume_moves_between_directories_and_subvolumes() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let (one, two) = (subvolume(&world, root, "one"), subvolume(&world, root, "two"));
    let dir = world.dir(root, "dir");
    world.file(one, "inside");
    fs.rename(root, b"one", root, b"renamed", Replace).unwrap();
    fs.rename(root, b"renamed", dir, b"moved", NoReplace).unwrap();
    assert_eq!((world.id("dir/moved"), fs.parent(one).unwrap()), (one, dir));
    fs.rename(dir, b"moved", two, b"deep", Replace).unwrap();
    assert_eq!((world.id("two/deep"), fs.parent(one).unwrap()), (one, two));
    assert_eq!(fs.lookup(one, b"..").unwrap().id, two);
    assert_eq!(errno(fs.rename(root, b"two", one, b"loop", Replace)), Some(Errno::EINVAL));
    let below = world.dir(one, "below");
    assert_eq!(errno(fs.rename(root, b"two", below, b"loop", Replace)), Some(Errno::EINVAL));
    let world = world.reopen();
    assert_eq!(world.id("two/deep/inside").tree, one.tree);
    assert_eq!(world.fs.parent(one).unwrap(), two);
    world.finish();
}

#[test]
fn operations_that_cannot_cross_subvolumes() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let sub = subvolume(&world, root, "sub");
    let (file, _dir) = (world.file(root, "file"), world.dir(root, "dir"));
    world.file(sub, "other");
    assert_eq!(errno(fs.rename(root, b"file", sub, b"file", Replace)), Some(Errno::EXDEV));
    assert_eq!(errno(fs.rename(root, b"dir", sub, b"dir", Replace)), Some(Errno::EXDEV));
    assert_eq!(errno(fs.rename(root, b"file", sub, b"other", Exchange)), Some(Errno::EXDEV));
    assert_eq!(errno(fs.link(file, sub, b"link")), Some(Errno::EXDEV));
    assert_eq!(errno(fs.unlink(root, b"sub")), Some(Errno::EISDIR));
    assert_eq!(errno(fs.rmdir(root, b"sub")), Some(Errno::ENOTEMPTY));
    assert_eq!(errno(fs.rename(root, b"dir", root, b"sub", Replace)), Some(Errno::ENOTEMPTY));
    assert_eq!(errno(fs.rename(root, b"file", root, b"sub", Replace)), Some(Errno::EISDIR));
    // In one directory anything changes places.
    fs.rename(root, b"file", root, b"sub", Exchange).unwrap();
    assert_eq!((world.id("file"), world.id("sub")), (sub, file));
    let world = world.reopen();
    assert_eq!((world.id("file"), world.id("sub")), (sub, file));
    world.finish();
}

#[test]
fn a_snapshot_shows_placeholders() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let source = subvolume(&world, root, "source");
    let nested = subvolume(&world, source, "nested");
    world.file(nested, "inside");
    let copy = InodeId::root_of(fs.snapshot(source.tree, root, b"copy", false).unwrap());
    let shown = fs.lookup(copy, b"nested").unwrap();
    assert!(shown.id.is_placeholder());
    assert_eq!((shown.mode, shown.size, shown.nlink), (0o040755, 0, 1));
    assert_eq!(fs.getattr(shown.id).unwrap(), shown);
    assert_eq!(world.list(shown.id), [""; 0]);
    assert_eq!(fs.parent(shown.id).unwrap(), copy);
    assert_eq!(errno(fs.lookup(shown.id, b"inside")), Some(Errno::ENOENT));
    assert_eq!(errno(fs.create(&ROOT, shown.id, b"new", 0o644)), Some(Errno::EACCES));
    assert_eq!(errno(fs.set_xattr(&ROOT, shown.id, b"user.a", b"", 0)), Some(Errno::EACCES));
    assert_eq!(errno(fs.rename(copy, b"nested", copy, b"other", Replace)), Some(Errno::ENOTEMPTY));
    assert_eq!(errno(fs.rename(copy, b"nested", root, b"other", Replace)), Some(Errno::ENOTEMPTY));
    let mut ids = Vec::new();
    fs.readdirplus(copy, 2, u64::MAX, &mut |entry, attr| {
        ids.push((entry.id, attr.map(|attr| attr.mode)));
        true
    })
    .unwrap();
    assert_eq!(ids, [(shown.id, Some(0o040755))]);
    fs.forget(shown.id, 2);
    assert_eq!(errno(fs.unlink(copy, b"nested")), Some(Errno::EISDIR));
    fs.rmdir(copy, b"nested").unwrap();
    assert_eq!(fs.getattr(copy).unwrap().size, 0);
    assert_eq!(world.id("source/nested/inside").tree, nested.tree);
    let world = world.reopen();
    assert_eq!(errno(world.stat("copy/nested")), Some(Errno::ENOENT));
    world.finish();
}

#[test]
fn a_read_only_subvolume_changes_nothing() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let source = subvolume(&world, root, "source");
    world.file(source, "file");
    world.dir(source, "dir");
    let copy = InodeId::root_of(fs.snapshot(source.tree, root, b"copy", true).unwrap());
    let file = world.id("copy/file");
    let refused = Some(Errno::EROFS);
    assert_eq!(errno(fs.create(&ROOT, copy, b"new", 0o644)), refused);
    assert_eq!(errno(fs.tmpfile(&ROOT, copy, 0o644)), refused);
    assert_eq!(errno(fs.unlink(copy, b"file")), refused);
    assert_eq!(errno(fs.rmdir(copy, b"dir")), refused);
    assert_eq!(errno(fs.link(file, copy, b"link")), refused);
    assert_eq!(errno(fs.rename(copy, b"file", copy, b"x", Replace)), refused);
    assert_eq!(errno(fs.set_xattr(&ROOT, file, b"security.x", b"", 0)), refused);
    assert_eq!(errno(fs.set_xattr(&ROOT, file, b"trusted.x", b"", 0)), refused);
    assert_eq!(errno(fs.set_flags(file, 0, 1)), refused);
    let chmod = butterfs_fs::SetAttr { mode: Some(0), ..Default::default() };
    assert_eq!(errno(fs.setattr(&ROOT, file, &chmod)), refused);
    fs.readdir(copy, 0, &mut |_| true).unwrap();
    // The subvolume as such may get another name.
    fs.rename(root, b"copy", root, b"renamed", Replace).unwrap();
    world.reopen().finish();
}

#[test]
fn orphans_of_a_subvolume_go_when_it_is_entered() {
    let world = World::new();
    let sub = subvolume(&world, world.root(), "sub");
    let file = world.file(sub, "file");
    world.fs.unlink(sub, b"file").unwrap();
    world.fs.sync().unwrap();
    let later = world.after_power_cut();
    assert_eq!(later.fs.getattr(file).unwrap().nlink, 0);
    assert_eq!(later.id("sub"), sub);
    assert_eq!(errno(later.fs.getattr(file)), Some(Errno::ENOENT));
    later.finish();
    world.fs.forget(file, 1);
    world.finish();
}
