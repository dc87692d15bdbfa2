//! One system call on a path, and what comes back.

use super::acl;
use butterfs_testkit::rng::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Root,
    Somebody,
}

impl Caller {
    /// Root more often: most of the tree is root's.
    pub const ALL: [Caller; 4] = [Caller::Root, Caller::Root, Caller::Root, Caller::Somebody];
}

/// The function that is called.
#[derive(Clone, Debug)]
pub enum What {
    Create(u32),
    Mkdir(u32),
    Mknod(FileType, u32),
    Symlink(usize),
    Link(PathBuf),
    Unlink,
    Rmdir,
    Rename(PathBuf, u32),
    Chmod(u32),
    Chown(Option<u32>, Option<u32>),
    SetXattr(String, Vec<u8>, u32),
    RemoveXattr(String),
    GetXattr(String),
    ListXattrs,
    List,
    Stat,
    Truncate(u64),
    Write(usize),
    SetTimes(Option<i64>),
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Call {
    pub path: PathBuf,
    pub what: What,
}

/// The result of a call: text that stands for the value, or an errno.
pub type Answer = Result<String, Errno>;

const MODES: [u32; 7] = [0o777, 0o666, 0o2777, 0o4755, 0o1777, 0o644, 0];
const XATTRS: [&str; 11] = [
    "user.a",
    "user.b",
    "trusted.t",
    "security.s",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "btrfs.compression",
    "btrfs.other",
    "security.capability",
    "user.",
    "other.x",
];

/// `cap_net_bind_service=ep`, version 2.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn random_path(rng: &mut Rng) -> PathBuf {
    // Folders with this name nest; no path becomes too long to look at.
    let long = "x".repeat(60);
    let too_long = "y".repeat(256);
    let names = ["a", "b", "c", "d", "e", "f", "\u{fc}", &long, &too_long];
    (0..=rng.below(3)).map(|_| *rng.pick(&names)).collect()
}

fn random_value(rng: &mut Rng, name: &str) -> Vec<u8> {
    if name.contains("acl") {
        return acl::random(rng);
    }
    let compression: [&[u8]; 6] = [b"", b"zstd", b"lzo:1", b"none", b"no", b"bad"];
    let plain: [&[u8]; 4] = [b"", b"value", &[b'w'; 300], &[b'w'; 16500]];
    match name {
        "security.capability" => CAPABILITY.to_vec(),
        "btrfs.compression" => rng.pick(&compression).to_vec(),
        _ => rng.pick(&plain).to_vec(),
    }
}

impl What {
    fn random(rng: &mut Rng) -> What {
        let mode = *rng.pick(&MODES);
        let xattr = (*rng.pick(&XATTRS)).to_owned();
        match rng.below(30) {
            0..3 => What::Create(mode),
            3..6 => What::Mkdir(mode),
            6 => What::Symlink(rng.index(4)),
            7 => {
                use FileType::{BlockDevice, CharacterDevice, Fifo, RegularFile, Socket};
                What::Mknod(*rng.pick(&[BlockDevice, CharacterDevice, Fifo, RegularFile, Socket]), mode)
            }
            8..10 => What::Link(random_path(rng)),
            10..12 => What::Unlink,
            12 => What::Rmdir,
            13..17 => What::Rename(random_path(rng), *rng.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 6])),
            17 => What::Chmod(mode),
            18 => {
                let ids = [None, Some(0), Some(50), Some(1000)];
                What::Chown(*rng.pick(&ids), *rng.pick(&ids))
            }
            19..22 => {
                let value = random_value(rng, &xattr);
                What::SetXattr(xattr, value, *rng.pick(&[0, 0, 1, 2]))
            }
            22 => What::RemoveXattr(xattr),
            23 => What::GetXattr(xattr),
            24 => What::ListXattrs,
            25 => What::List,
            26 => What::Stat,
            27 => What::Truncate(*rng.pick(&[0, 5, 5000])),
            28 => What::Write(*rng.pick(&[0, 1, 5000])),
            _ => What::SetTimes(*rng.pick(&[None, Some(7)])),
        }
    }
}

fn done(result: rustix::io::Result<()>) -> Answer {
    result.map(|()| String::new())
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

impl Call {
    /// A call that the random source decides on.
    pub fn random(rng: &mut Rng) -> Call {
        Call { path: random_path(rng), what: What::random(rng) }
    }

    /// The paths that it is about.
    pub fn paths(&self) -> Vec<&Path> {
        match &self.what {
            What::Link(other) | What::Rename(other, _) => vec![&self.path, other],
            _ => vec![&self.path],
        }
    }

    /// The attributes that `stat` shows for them.
    pub fn stat_paths(&self, root: &Path) -> Vec<Answer> {
        self.paths().into_iter().map(|path| stat(&root.join(path))).collect()
    }

    /// Whether FUSE's own part of the kernel decides about the times: it takes every accepted attribute for a change,
    /// also a property that means nothing for the file.
    pub fn is_answered_by_fuse_alone(&self, answer: &Answer) -> bool {
        let property = |name: &String| name == "btrfs.compression";
        let about_property = match &self.what {
            What::SetXattr(name, ..) | What::RemoveXattr(name) => property(name),
            _ => false,
        };
        about_property && answer.is_ok()
    }

    /// Runs it below `root`.
    pub fn run(&self, root: &Path, caller: Caller) -> Answer {
        let Caller::Somebody = caller else { return self.perform(root) };
        let (nobody, root_id) = (Uid::from_raw(1000), Uid::ROOT);
        let switch = |uid, gid| {
            // The group while we may, so first on the way down and last on the way up.
            rustix::thread::set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT)?;
            rustix::thread::set_thread_res_uid(root_id, uid, root_id)
        };
        switch(nobody, Gid::from_raw(1000)).expect("root may become somebody");
        let answer = self.perform(root);
        rustix::thread::set_thread_res_uid(root_id, root_id, root_id).expect("the saved id is root's");
        switch(root_id, Gid::ROOT).expect("root again");
        answer
    }

    fn perform(&self, root: &Path) -> Answer {
        let path = &root.join(&self.path);
        match &self.what {
            What::Create(_) | What::Mkdir(_) | What::Mknod(..) | What::Symlink(_) => self.make(path),
            What::Link(to) => done(rustix::fs::linkat(CWD, path, CWD, root.join(to), AtFlags::empty())),
            What::Unlink => done(rustix::fs::unlink(path)),
            What::Rmdir => done(rustix::fs::rmdir(path)),
            What::Rename(to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                done(rustix::fs::renameat_with(CWD, path, CWD, root.join(to), flags))
            }
            What::Chmod(bits) => done(rustix::fs::chmod(path, mode(*bits))),
            What::Chown(uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                done(rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW))
            }
            What::SetXattr(name, value, flags) => {
                done(rustix::fs::lsetxattr(path, name.as_str(), value, XattrFlags::from_bits_retain(*flags)))
            }
            What::RemoveXattr(name) => done(rustix::fs::lremovexattr(path, name.as_str())),
            What::GetXattr(name) => {
                let mut value = vec![0; 65536];
                let len = rustix::fs::lgetxattr(path, name.as_str(), &mut value)?;
                Ok(format!("{:?}", &value[..len]))
            }
            What::ListXattrs => list_xattrs(path),
            What::List => list(path),
            What::Stat => stat(path),
            What::Truncate(len) => {
                let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, mode(0))?;
                done(rustix::fs::ftruncate(file, *len))
            }
            What::Write(len) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, flags, mode(0o644))?;
                rustix::io::write(file, &vec![b'x'; *len]).map(|written| written.to_string())
            }
            What::SetTimes(time) => {
                let time = match time {
                    Some(sec) => Timespec { tv_sec: *sec, tv_nsec: 5 },
                    None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                };
                let times = Timestamps { last_access: time, last_modification: time };
                done(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW))
            }
        }
    }

    fn make(&self, path: &Path) -> Answer {
        match &self.what {
            What::Create(bits) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                done(rustix::fs::open(path, flags, mode(*bits)).map(drop))
            }
            What::Mkdir(bits) => done(rustix::fs::mkdir(path, mode(*bits))),
            What::Mknod(kind, bits) => {
                done(rustix::fs::mknodat(CWD, path, *kind, mode(*bits), rustix::fs::makedev(5, 7)))
            }
            What::Symlink(len) => done(rustix::fs::symlink("t".repeat(*len).as_str(), path)),
            _ => unreachable!("only what makes something comes here"),
        }
    }
}

fn list_xattrs(path: &Path) -> Answer {
    let mut list = vec![0u8; 65536];
    let len = rustix::fs::llistxattr(path, &mut list)?;
    let mut names: Vec<&[u8]> = list[..len].split(|byte| *byte == 0).collect();
    names.sort_unstable();
    Ok(format!("{:?}", names.iter().map(|name| OsStr::from_bytes(name)).collect::<Vec<_>>()))
}

fn list(path: &Path) -> Answer {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::Dir::new(rustix::fs::open(path, flags, mode(0))?)?;
    let mut names = Vec::new();
    for entry in directory {
        let entry = entry?;
        names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
    }
    names.sort_unstable();
    Ok(names.join(", "))
}

fn stat(path: &Path) -> Answer {
    let stat = rustix::fs::lstat(path)?;
    let rest = (stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_size, stat.st_rdev);
    Ok(format!("{rest:?}"))
}
