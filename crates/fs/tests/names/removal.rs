//! Taking names away.

use crate::world::{World, errno};
use butterfs_fs::Errno;

#[test]
fn removal_of_each_kind_of_object() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    world.file(dir, "inside");
    world.file(root, "file");
    assert_eq!(errno(fs.unlink(root, b"dir")), Some(Errno::EISDIR));
    assert_eq!(errno(fs.rmdir(root, b"file")), Some(Errno::ENOTDIR));
    assert_eq!(errno(fs.rmdir(root, b"dir")), Some(Errno::ENOTEMPTY));
    assert_eq!(errno(fs.unlink(root, b"nothing")), Some(Errno::ENOENT));
    assert_eq!(errno(fs.rmdir(root, b".")), Some(Errno::EINVAL));
    fs.unlink(dir, b"inside").unwrap();
    fs.rmdir(root, b"dir").unwrap();
    fs.unlink(root, b"file").unwrap();
    assert_eq!(world.list(root), [""; 0]);
    assert_eq!(fs.getattr(root).unwrap().size, 0);
    world.finish();
}

#[test]
fn removal_changes_times_of_both() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    fs.link(file, root, b"other").unwrap();
    let (parent, inode) = (fs.getattr(root).unwrap(), fs.getattr(file).unwrap());
    fs.unlink(root, b"file").unwrap();
    let (parent_after, inode_after) = (fs.getattr(root).unwrap(), fs.getattr(file).unwrap());
    assert!(parent_after.mtime > parent.mtime && parent_after.ctime > parent.ctime);
    assert!(inode_after.ctime > inode.ctime && inode_after.mtime == inode.mtime);
    assert_eq!(inode_after.nlink, 1);
    world.finish();
}
