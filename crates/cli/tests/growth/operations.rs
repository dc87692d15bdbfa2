//! System calls on a mount, each on a path of a scene.

use crate::commands;
use crate::judge::Reach;
use crate::scene::{ALL, BLOCK, Scene, copy, open};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

/// The measured work, when everything is prepared.
pub type Act<'a> = Box<dyn FnOnce() + 'a>;

/// One way to have the server work.
#[derive(Clone, Copy)]
pub struct Operation {
    pub name: &'static str,
    pub reach: Reach,
    /// The kinds of requests, or the questions, that it is about.
    pub covers: &'static [&'static str],
    pub prepare: for<'a> fn(&'a Scene) -> Act<'a>,
}

/// An operation on one thing.
pub const fn one(
    name: &'static str,
    covers: &'static [&'static str],
    prepare: for<'a> fn(&'a Scene) -> Act<'a>,
) -> Operation {
    Operation { name, reach: Reach::One, covers, prepare }
}

/// An operation on all things.
pub const fn many(
    name: &'static str,
    covers: &'static [&'static str],
    prepare: for<'a> fn(&'a Scene) -> Act<'a>,
) -> Operation {
    Operation { name, reach: ALL, covers, prepare }
}

pub const TABLES: [&[Operation]; 2] = [REQUESTS, commands::QUESTIONS];

pub fn all() -> Vec<Operation> {
    TABLES.concat()
}

/// An answer that nobody looks at.
fn done<T>(_: T) {}

/// Requests without an operation, and the reason.
pub const NOT_MEASURED: [(&str, &str); 13] = [
    ("Forget", "the kernel sends it when it likes"),
    ("BatchForget", "the kernel sends it when it likes"),
    ("Interrupt", "it is not answered"),
    ("Init", "once"),
    ("Destroy", "once"),
    ("Access", "the kernel decides"),
    ("Flush", "not served"),
    ("Opendir", "not served"),
    ("Releasedir", "not served"),
    ("Readdir", "the kernel asks for Readdirplus first"),
    ("Rename", "the kernel of today sends Rename2"),
    ("CopyFileRange", "the kernel of today sends CopyFileRange64, or the other way round"),
    ("Statx", "the kernel asks for attributes that it has no room for only with new flags"),
];

const REQUESTS: &[Operation] = &[
    one("lookup of nothing", &["Lookup"], |scene| {
        let path = scene.name();
        Box::new(move || assert!(fs::metadata(path).is_err()))
    }),
    one("chmod", &["Setattr", "Getattr"], |scene| {
        let path = scene.another();
        Box::new(move || fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod"))
    }),
    one("truncate", &["Setattr"], |scene| {
        let path = scene.another();
        Box::new(move || open(&path).set_len(100).expect("truncate"))
    }),
    one("create", &["Create", "Open"], |scene| {
        let path = scene.name();
        Box::new(move || drop(File::create(path).expect("create")))
    }),
    one("tmpfile", &["Tmpfile"], |scene| {
        Box::new(move || {
            drop(rustix::fs::openat(CWD, &scene.dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("O_TMPFILE"));
        })
    }),
    one("mknod", &["Mknod"], |scene| {
        let path = scene.name();
        Box::new(move || rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).expect("mknod"))
    }),
    one("symlink", &["Symlink", "Readlink"], |scene| {
        let path = scene.name();
        Box::new(move || {
            symlink("target", &path).expect("symlink");
            fs::read_link(&path).expect("readlink");
        })
    }),
    one("mkdir and rmdir", &["Mkdir", "Rmdir"], |scene| {
        let path = scene.name();
        Box::new(move || {
            fs::create_dir(&path).expect("mkdir");
            fs::remove_dir(&path).expect("rmdir");
        })
    }),
    one("link", &["Link"], |scene| {
        let path = scene.name();
        Box::new(move || fs::hard_link(&scene.file, path).expect("link"))
    }),
    one("unlink", &["Unlink"], |scene| {
        let path = scene.another();
        Box::new(move || fs::remove_file(path).expect("unlink"))
    }),
    many("unlink of a whole copy", &["Unlink"], |scene| {
        let path = scene.name();
        fs::copy(&scene.file, &path).expect("room");
        Box::new(move || fs::remove_file(path).expect("unlink"))
    }),
    one("rename", &["Rename2"], |scene| {
        let (from, to) = (scene.another(), scene.another());
        Box::new(move || fs::rename(from, to).expect("rename"))
    }),
    one("rename of a folder", &["Rename2"], |scene| {
        let (from, to) = (scene.at().join("a folder"), scene.name());
        fs::create_dir(&from).expect("room");
        Box::new(move || fs::rename(from, to).expect("rename"))
    }),
    one("exchange", &["Rename2"], |scene| {
        let (from, to) = (scene.another(), scene.another());
        Box::new(move || rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).expect("exchange"))
    }),
    many("listing", &["Readdirplus"], |scene| {
        // The kernel keeps what it has seen of a folder until the folder changes.
        scene.another();
        Box::new(move || {
            assert!(fs::read_dir(&scene.dir).expect("a folder").flatten().all(|entry| entry.metadata().is_ok()))
        })
    }),
    one("read", &["Read"], |scene| {
        let file = open(&scene.file);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        Box::new(move || file.read_exact_at(&mut [0; BLOCK as usize], 0).expect("read"))
    }),
    many("read of all", &["Read"], |scene| {
        let file = open(&scene.file);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        Box::new(move || drop(fs::read(&scene.file).expect("read")))
    }),
    one("write", &["Write", "Release"], |scene| {
        Box::new(move || open(&scene.file).write_all_at(&[4; BLOCK as usize], 0).expect("write"))
    }),
    one("fsync", &["Fsync"], |scene| {
        let file = open(&scene.file);
        file.write_all_at(&[5; BLOCK as usize], 0).expect("write");
        Box::new(move || {
            file.write_all_at(&[6; BLOCK as usize], 0).expect("write");
            file.sync_all().expect("fsync");
        })
    }),
    one("fsync of a folder", &["Fsyncdir"], |scene| {
        let path = scene.name();
        Box::new(move || {
            drop(File::create(path).expect("create"));
            File::open(&scene.dir).expect("a folder").sync_all().expect("fsync");
        })
    }),
    one("syncfs", &["Syncfs"], |scene| Box::new(move || scene.sync())),
    one("statfs", &["Statfs"], |scene| Box::new(move || done(rustix::fs::statfs(scene.at()).expect("statfs")))),
    one("seek for data", &["Lseek"], |scene| {
        let file = open(&scene.file);
        Box::new(move || assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Ok(0)))
    }),
    one("fallocate", &["Fallocate"], |scene| {
        let file = open(&scene.another());
        Box::new(move || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 1 << 20).expect("fallocate"))
    }),
    many("hole over all", &["Fallocate"], |scene| {
        let path = scene.name();
        fs::copy(&scene.file, &path).expect("room");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Box::new(move || rustix::fs::fallocate(open(&path), flags, 0, 1 << 30).expect("fallocate"))
    }),
    one("copy of a block", &["CopyFileRange64"], |scene| {
        let path = scene.another();
        Box::new(move || copy(&scene.file, 0, &path, 8 * BLOCK))
    }),
    many("copy of all", &["CopyFileRange64"], |scene| {
        let path = scene.name();
        Box::new(move || done(fs::copy(&scene.file, path).expect("copy")))
    }),
    one("set and get an attribute", &["Setxattr", "Getxattr", "Removexattr"], |scene| {
        Box::new(move || {
            rustix::fs::setxattr(&scene.file, "user.new", b"value", XattrFlags::empty()).expect("setxattr");
            rustix::fs::getxattr(&scene.file, "user.new", &mut [0u8; 10]).expect("getxattr");
            rustix::fs::removexattr(&scene.file, "user.new").expect("removexattr");
        })
    }),
    many("list the attributes", &["Listxattr"], |scene| {
        Box::new(move || done(rustix::fs::listxattr(&scene.file, &mut vec![0u8; 65536]).expect("listxattr")))
    }),
    one("flags", &["Ioctl"], |scene| {
        let file = open(&scene.file);
        Box::new(move || done(rustix::fs::ioctl_getflags(&file).expect("flags")))
    }),
];
