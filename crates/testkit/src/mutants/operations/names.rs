//! Names, attributes and extended attributes.

use super::{Operation, shown};
use crate::library::ROOT;
use butterfs_fs::env::Time;
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{RenameMode, SetAttr, SetTime, inode_flags};

/// Names of attributes: some that files have, and one that only some have.
const XATTRS: [&[u8]; 4] = [b"user.short", b"user.long", b"security.capability", b"btrfs.compression"];

pub const OPERATIONS: &[Operation] = &[
    ("lookup", |w| {
        let entry = w.entry();
        let found = w.filesystem.lookup(entry.parent, &entry.name)?;
        w.filesystem.forget(found.id, 1);
        Ok(())
    }),
    ("acquire", |w| {
        let id = w.entry().id;
        w.filesystem.acquire(id);
        w.filesystem.release(id);
        Ok(())
    }),
    ("release", |w| {
        // The last one of a file without a name deletes it.
        let id = w.filesystem.tmpfile(&ROOT, w.folder(), 0o600)?.id;
        w.filesystem.acquire(id);
        let written = w.filesystem.write(id, 0, &[3; 9000], false);
        w.filesystem.release(id);
        w.filesystem.forget(id, 1);
        written.map(drop)
    }),
    ("getattr", |w| w.filesystem.getattr(w.object()).map(drop)),
    ("create", |w| {
        let (folder, name, len) = (w.folder(), w.fresh(), w.len());
        let id = w.filesystem.create(&ROOT, folder, &name, 0o644)?.id;
        let written = w.filesystem.write(id, 0, &vec![5; len], false);
        w.filesystem.forget(id, 1);
        written.map(drop)
    }),
    ("mkdir", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        w.filesystem.mkdir(&ROOT, folder, &name, 0o755).map(|made| w.filesystem.forget(made.id, 1))
    }),
    ("mknod", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        w.filesystem
            .mknod(&ROOT, folder, &name, mode::S_IFIFO | 0o600, (0, 0))
            .map(|made| w.filesystem.forget(made.id, 1))
    }),
    ("symlink", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        w.filesystem.symlink(&ROOT, folder, &name, b"somewhere").map(|made| w.filesystem.forget(made.id, 1))
    }),
    ("tmpfile", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        let id = w.filesystem.tmpfile(&ROOT, folder, 0o600)?.id;
        let linked = w.filesystem.link(id, folder, &name).map(|_| w.filesystem.forget(id, 1));
        w.filesystem.forget(id, 1);
        linked
    }),
    ("make_bare", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        let made = w.filesystem.make_bare(folder, &name, mode::S_IFREG | 0o600, (0, 0), b"")?;
        w.filesystem.forget(made.id, 1);
        Ok(())
    }),
    ("link", |w| {
        let (id, folder, name) = (w.object(), w.folder(), w.fresh());
        w.filesystem.link(id, folder, &name).map(|linked| w.filesystem.forget(linked.id, 1))
    }),
    ("unlink", |w| {
        let entry = w.entry();
        w.filesystem.unlink(entry.parent, &entry.name)
    }),
    ("rmdir", |w| {
        let entry = w.entry();
        w.filesystem.rmdir(entry.parent, &entry.name)
    }),
    ("rename", |w| {
        let (entry, fresh, other) = (w.entry(), w.fresh(), w.entry());
        match w.rng.below(4) {
            // Into another directory only what has nothing below it: the system's part is to refuse the rest.
            0 if w.filesystem.getattr(entry.id)?.mode & mode::S_IFMT != mode::S_IFDIR => {
                w.filesystem.rename(entry.parent, &entry.name, other.parent, &fresh, RenameMode::NoReplace)
            }
            1 if other.parent == entry.parent => {
                w.filesystem.rename(entry.parent, &entry.name, other.parent, &other.name, RenameMode::Exchange)
            }
            2 if other.parent == entry.parent => {
                w.filesystem.rename(entry.parent, &entry.name, other.parent, &other.name, RenameMode::Replace)
            }
            3 => {
                let how = RenameMode::Whiteout { caller: ROOT, replace: true };
                w.filesystem.rename(entry.parent, &entry.name, entry.parent, &fresh, how)
            }
            _ => w.filesystem.rename(entry.parent, &entry.name, entry.parent, &fresh, RenameMode::Replace),
        }
    }),
    ("rename_expected", |w| {
        let (entry, fresh) = (w.entry(), w.fresh());
        w.filesystem.rename_expected(entry.parent, &entry.name, &fresh, entry.id)
    }),
    ("readlink", |w| w.filesystem.readlink(w.object()).map(drop)),
    ("parent", |w| w.filesystem.parent(w.object()).map(drop)),
    ("readdir", |w| {
        let (id, mut count) = (w.folder(), 0);
        w.filesystem.readdir(id, 0, &mut |_| shown(&mut count))
    }),
    ("readdir_until", |w| {
        let (id, offset, mut count) = (w.object(), w.rng.below(200), 0);
        w.filesystem.readdir_until(id, offset, offset + 50, &mut |_| shown(&mut count))
    }),
    ("readdirplus", |w| {
        let (id, mut count, mut met) = (w.folder(), 0, Vec::new());
        let listed = w.filesystem.readdirplus(id, 0, u64::MAX, &mut |_, attr| {
            met.extend(attr.map(|attr| attr.id));
            shown(&mut count)
        });
        met.into_iter().for_each(|id| w.filesystem.forget(id, 1));
        listed
    }),
    ("last_offset", |w| w.filesystem.last_offset(w.object()).map(drop)),
    ("check_writable", |w| {
        let appending = w.rng.chance(50);
        w.filesystem.check_writable(w.object(), appending)
    }),
    ("setattr", |w| {
        let (id, time) = (w.object(), Time { sec: w.rng.bits() as i64 >> 20, nsec: 7 });
        let set = match w.rng.below(4) {
            0 => SetAttr { mode: Some(w.rng.below(0o10000) as u32), ..SetAttr::default() },
            1 => SetAttr { uid: Some(1000), gid: Some(7), kill_suidgid: true, ..SetAttr::default() },
            2 => SetAttr { atime: Some(SetTime::At(time)), mtime: Some(SetTime::Now), ..SetAttr::default() },
            _ => SetAttr { size: Some(w.offset()), ..SetAttr::default() },
        };
        w.filesystem.setattr(&ROOT, id, &set).map(drop)
    }),
    ("set_flags", |w| {
        let flags = [inode_flags::NODUMP, inode_flags::COMPRESS, inode_flags::NODATACOW, inode_flags::SYNC, 0];
        let flag = *w.rng.pick(&flags);
        w.filesystem.set_flags(w.object(), flag, flags.iter().fold(0, |all, flag| all | flag))
    }),
    ("get_xattr", |w| {
        let name = *w.rng.pick(&XATTRS);
        w.filesystem.get_xattr(w.object(), name).map(drop)
    }),
    ("set_xattr", |w| {
        let (id, name, len) = (w.object(), *w.rng.pick(&XATTRS[..2]), w.rng.below(900) as usize);
        w.filesystem.set_xattr(&ROOT, id, name, &vec![b'x'; len], 0)
    }),
    ("remove_xattr", |w| {
        let name = *w.rng.pick(&XATTRS);
        w.filesystem.remove_xattr(&ROOT, w.object(), name)
    }),
    ("list_xattrs", |w| w.filesystem.list_xattrs(w.object()).map(drop)),
];
