//! Operations on names and attributes.

use crate::meter::{Operation, Reach};
use crate::world::ROOT;
use Reach::{All, One};
use butterfs_fs::{InodeId, References, RenameMode, SetAttr, inode_flags};

/// See the [module](self).
pub const OPERATIONS: &[Operation] = &[
    Operation::new("lookup", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.lookup(s.dir, b"file")).unwrap();
    }),
    Operation::new("lookup", "no such name", One, |s, m| {
        m.call(s, || s.world.fs.lookup(s.dir, b"nothing")).unwrap_err();
    }),
    Operation::new("forget", "", One, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.forget(id, 1));
    }),
    Operation::new("adopt_references", "", All, |s, m| {
        let other = s.world.after_power_cut();
        m.call(s, || other.fs.adopt_references(&s.world.fs, &References::default()).unwrap());
    }),
    Operation::new("compare_references", "", All, |s, m| {
        let other = s.world.after_power_cut();
        m.call(s, || other.fs.compare_references(&s.world.fs).unwrap());
    }),
    Operation::new("acquire", "", One, |s, m| {
        m.call(s, || s.world.fs.acquire(s.file));
        s.world.fs.release(s.file);
    }),
    Operation::new("release", "", One, |s, m| {
        s.world.fs.acquire(s.file);
        m.call(s, || s.world.fs.release(s.file));
    }),
    Operation::new("release", "of a file without a name", One, |s, m| {
        let (id, name) = s.another();
        s.world.fs.acquire(id);
        s.world.fs.unlink(s.dir, &name).unwrap();
        s.world.fs.forget(id, 1);
        m.call(s, || s.world.fs.release(id));
    }),
    Operation::new("getattr", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.getattr(s.file)).unwrap();
    }),
    Operation::new("create", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.create(&ROOT, s.dir, &name, 0o644)).unwrap();
    }),
    Operation::new("mkdir", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.mkdir(&ROOT, s.dir, &name, 0o755)).unwrap();
    }),
    Operation::new("mknod", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.mknod(&ROOT, s.dir, &name, 0o010_644, (0, 0))).unwrap();
    }),
    Operation::new("make_bare", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.make_bare(s.dir, &name, 0o100_644, (0, 0), b"")).unwrap();
    }),
    Operation::new("symlink", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.symlink(&ROOT, s.dir, &name, b"target")).unwrap();
    }),
    Operation::new("readlink", "", One, |s, m| {
        let id = s.world.fs.symlink(&ROOT, s.dir, &s.name(), b"target").unwrap().id;
        m.call(s, || s.world.fs.readlink(id)).unwrap();
    }),
    Operation::new("tmpfile", "", One, |s, m| {
        let id = m.call(s, || s.world.fs.tmpfile(&ROOT, s.dir, 0o644)).unwrap().id;
        s.world.fs.forget(id, 1);
    }),
    Operation::new("link", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.link(s.file, s.dir, &name)).unwrap();
        s.world.fs.unlink(s.dir, &name).unwrap();
    }),
    Operation::new("unlink", "", One, |s, m| {
        let (id, name) = s.another();
        s.world.fs.forget(id, 1);
        m.call(s, || s.world.fs.unlink(s.dir, &name)).unwrap();
    }),
    Operation::new("unlink", "one of the names", One, |s, m| {
        let name = s.name();
        s.world.fs.link(s.file, s.dir, &name).unwrap();
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.unlink(s.dir, &name)).unwrap();
    }),
    Operation::new("rmdir", "", One, |s, m| {
        let name = s.name();
        s.world.fs.mkdir(&ROOT, s.dir, &name, 0o755).unwrap();
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.rmdir(s.dir, &name)).unwrap();
    }),
    Operation::new("rmdir", "not empty", One, |s, m| {
        m.call(s, || s.world.fs.rmdir(s.world.fs.root(), b"d")).unwrap_err();
    }),
    Operation::new("rename", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.rename(s.dir, b"file", s.dir, &name, RenameMode::Replace)).unwrap();
        s.world.fs.rename(s.dir, &name, s.dir, b"file", RenameMode::Replace).unwrap();
    }),
    Operation::new("rename", "over a file", One, |s, m| {
        let ((_, first), (_, second)) = (s.another(), s.another());
        m.call(s, || s.world.fs.rename(s.dir, &first, s.dir, &second, RenameMode::Replace)).unwrap();
    }),
    Operation::new("rename", "a folder, down", One, |s, m| {
        let name = s.name();
        s.world.fs.mkdir(&ROOT, s.world.fs.root(), &name, 0o755).unwrap();
        m.call(s, || s.world.fs.rename(s.world.fs.root(), &name, s.dir, &name, RenameMode::Replace)).unwrap();
    }),
    Operation::new("rename_expected", "", One, |s, m| {
        let ((id, old), new) = (s.another(), s.name());
        m.call(s, || s.world.fs.rename_expected(s.dir, &old, &new, id)).unwrap();
    }),
    Operation::new("parent", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.parent(s.dir)).unwrap();
    }),
    Operation::new("readdir", "", All, |s, m| {
        m.call(s, || s.world.fs.readdir(s.dir, 0, &mut |_| true)).unwrap();
    }),
    Operation::new("readdir", "some entries", One, |s, m| {
        let mut left = 10;
        let mut show = |_: butterfs_fs::DirEntry<'_>| {
            left -= 1;
            left > 0
        };
        m.call(s, || s.world.fs.readdir(s.dir, 2, &mut show)).unwrap();
    }),
    Operation::new("readdirplus", "", All, |s, m| {
        let mut seen: Vec<InodeId> = Vec::new();
        let last = s.world.fs.last_offset(s.dir).unwrap();
        m.call(s, || {
            s.world.fs.readdirplus(s.dir, 0, last, &mut |_, attr| {
                seen.extend(attr.map(|attr| attr.id));
                true
            })
        })
        .unwrap();
        seen.into_iter().for_each(|id| s.world.fs.forget(id, 1));
    }),
    Operation::new("last_offset", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.last_offset(s.dir)).unwrap();
    }),
    Operation::new("check_writable", "", One, |s, m| m.call(s, || s.world.fs.check_writable(s.file, false)).unwrap()),
    Operation::new("setattr", "mode", One, |s, m| {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        m.call(s, || s.world.fs.setattr(&ROOT, s.file, &set)).unwrap();
    }),
    Operation::new("set_flags", "", One, |s, m| {
        m.call(s, || s.world.fs.set_flags(s.file, inode_flags::NODUMP, inode_flags::NODUMP)).unwrap();
        s.world.fs.set_flags(s.file, 0, inode_flags::NODUMP).unwrap();
    }),
    Operation::new("get_xattr", "", One, |s, m| {
        m.call(s, || s.world.fs.get_xattr(s.file, b"user.nothing")).unwrap_err();
    }),
    Operation::new("set_xattr", "", One, |s, m| {
        m.call(s, || s.world.fs.set_xattr(&ROOT, s.file, b"user.one", b"value", 0)).unwrap();
    }),
    Operation::new("remove_xattr", "", One, |s, m| {
        s.world.fs.set_xattr(&ROOT, s.file, b"user.one", b"value", 0).unwrap();
        m.call(s, || s.world.fs.remove_xattr(&ROOT, s.file, b"user.one")).unwrap();
    }),
    Operation::new("list_xattrs", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.list_xattrs(s.file)).unwrap();
    }),
    Operation::new("directory_path", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.directory_path(s.dir)).unwrap();
    }),
    Operation::new("inode_paths", "", All, |s, m| {
        m.call(s, || s.world.fs.inode_paths(s.file).try_for_each(|path| path.map(drop))).unwrap();
    }),
    Operation::new("claim", "", One, |s, m| {
        let claim = m.call(s, || s.world.fs.claim(s.dir, b"file", std::time::Duration::ZERO));
        assert!(claim.is_some());
    }),
];
