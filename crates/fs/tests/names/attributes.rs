//! Changing attributes.

use crate::world::{ROOT, USER, World, errno};
use butterfs_fs::env::Time;
use butterfs_fs::{Caller, Errno, SetAttr, SetTime};
use butterfs_ondisk::items::inode_flags;

/// `CAP_NET_RAW`, effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn attributes_that_are_set_are_kept() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    let before = fs.getattr(file).unwrap();
    let at = |sec, nsec| SetTime::At(Time { sec, nsec });
    let set = SetAttr {
        mode: Some(0o640),
        uid: Some(1),
        gid: Some(2),
        atime: Some(at(-5, 999_999_999)),
        mtime: Some(at(1 << 33, 1)),
        ..SetAttr::default()
    };
    let after = fs.setattr(&ROOT, file, &set).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (0o100640, 1, 2));
    assert_eq!((after.atime, after.mtime), (Time { sec: -5, nsec: 999_999_999 }, Time { sec: 1 << 33, nsec: 1 }));
    assert!(after.ctime > before.ctime);
    assert_eq!(after.btime, before.btime);
    let unchanged = fs.setattr(&ROOT, file, &SetAttr::default()).unwrap();
    assert_eq!(unchanged, after);
    let world = world.reopen();
    assert_eq!(world.fs.getattr(file).unwrap(), after);
    let touched = world.fs.setattr(&ROOT, file, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    assert_eq!(touched.mtime, touched.ctime);
    world.finish();
}

#[test]
fn a_new_owner_takes_set_id_bits() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    for (name, mode, want) in [("exec", 0o6755, 0o100755), ("noexec", 0o6644, 0o102644)] {
        let file = fs.create(&ROOT, root, name.as_bytes(), mode).unwrap();
        assert_eq!(fs.setattr(&ROOT, file.id, &owner).unwrap().mode, want);
    }
    let dir = fs.mkdir(&ROOT, root, b"dir", 0o6755).unwrap();
    assert_eq!(fs.setattr(&ROOT, dir.id, &owner).unwrap().mode, 0o046755);
    let file = fs.create(&ROOT, root, b"caps", 0o755).unwrap();
    fs.set_xattr(&ROOT, file.id, b"security.capability", &CAPABILITY, 0).unwrap();
    fs.setattr(&ROOT, file.id, &owner).unwrap();
    assert_eq!(errno(fs.get_xattr(file.id, b"security.capability")), Some(Errno::ENODATA));
    world.finish();
}

#[test]
fn a_chown_that_changes_nothing_takes_set_id_bits_from_the_owner_only() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = fs.create(&ROOT, root, b"file", 0o6755).unwrap().id;
    let chown = SetAttr { kill_suidgid: true, ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(&USER, file, &chown)), Some(Errno::EPERM));
    assert_eq!(fs.getattr(file).unwrap().mode, 0o106755);
    assert_eq!(fs.setattr(&ROOT, file, &chown).unwrap().mode, 0o100755);
    assert_eq!(errno(fs.setattr(&USER, file, &chown)), None);
    fs.set_xattr(&ROOT, file, b"security.capability", &CAPABILITY, 0).unwrap();
    let write = SetAttr { kill_capability: true, ..SetAttr::default() };
    fs.setattr(&ROOT, file, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.setattr(&USER, file, &write).unwrap().mode, 0o104755);
    assert_eq!(errno(fs.get_xattr(file, b"security.capability")), Some(Errno::ENODATA));
    world.finish();
}

#[test]
fn a_foreign_group_does_not_keep_its_bit() {
    let world = World::new();
    let file = world.file(world.root(), "file");
    let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
    assert_eq!(world.fs.setattr(&USER, file, &set).unwrap().mode, 0o100755);
    assert_eq!(world.fs.setattr(&Caller { gid: 0, ..USER }, file, &set).unwrap().mode, 0o102755);
    assert_eq!(world.fs.setattr(&ROOT, file, &set).unwrap().mode, 0o102755);
    world.finish();
}

#[test]
fn immutable_and_append_only_inodes_stay() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let (file, dir) = (world.file(root, "file"), world.dir(root, "dir"));
    world.file(dir, "inside");
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    for (flag, may_touch, may_add) in [(inode_flags::IMMUTABLE, false, false), (inode_flags::APPEND, true, true)] {
        let refused = |allowed: bool| (!allowed).then_some(Errno::EPERM);
        for id in [file, dir] {
            fs.set_flags(id, flag, flag).unwrap();
            assert_eq!(errno(fs.setattr(&ROOT, id, &chmod)), Some(Errno::EPERM));
            assert_eq!(errno(fs.setattr(&ROOT, id, &touch)), refused(may_touch));
            assert_eq!(errno(fs.set_xattr(&ROOT, id, b"user.x", b"", 0)), Some(Errno::EPERM));
        }
        assert_eq!(errno(fs.unlink(root, b"file")), Some(Errno::EPERM));
        assert_eq!(errno(fs.link(file, root, b"link")), Some(Errno::EPERM));
        assert_eq!(errno(fs.rename(root, b"file", root, b"x", Default::default())), Some(Errno::EPERM));
        assert_eq!(errno(fs.unlink(dir, b"inside")), Some(Errno::EPERM));
        assert_eq!(errno(fs.create(&ROOT, dir, b"new", 0o644)), refused(may_add));
        for id in [file, dir] {
            fs.set_flags(id, 0, flag).unwrap();
        }
    }
    fs.unlink(root, b"file").unwrap();
    world.finish();
}
