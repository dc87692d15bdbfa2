//! Operations run on a mounted filesystem, through the system's calls.
//!
//! Invariants: (1) nothing is followed, nothing blocks: special files are never opened; (2) partial reads, writes and
//! copies are continued, so that an outcome does not depend on how a transport cuts requests.
//! It sets the process's umask to zero, because the modes of the operations are meant as they stand.

use crate::operation::{
    AllocateHow, Attributes, Content, Kind, Moment, Object, Op, OperationTarget, Outcome, RelPath, RenameHow, Reply,
};
use crate::xattrs;
use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A folder in which operations are run.
#[derive(Debug)]
pub struct Mounted {
    root: PathBuf,
    handles: BTreeMap<u32, OwnedFd>,
}

const NO_FOLLOW: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

impl Mounted {
    /// Operations are relative to `root`.
    pub fn new(root: &Path) -> Mounted {
        rustix::process::umask(Mode::empty());
        Mounted { root: root.to_owned(), handles: BTreeMap::new() }
    }

    fn at(&self, path: &RelPath) -> PathBuf {
        if path.0.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(&path.0)) }
    }

    fn open(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::open(self.at(path), flags | NO_FOLLOW, Mode::empty())
    }

    fn with_file<T>(
        &self,
        object: &Object,
        flags: OFlags,
        run: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match object {
            Object::Path(path) => run(&self.open(path, flags)?),
            Object::Handle(handle) => run(self.handles.get(handle).ok_or(Errno::BADF)?),
        }
    }

    fn make(&mut self, op: &Op) -> Option<Result<(), Errno>> {
        let mode = Mode::from_raw_mode;
        Some(match op {
            Op::Create { path, mode: bits } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | NO_FOLLOW;
                rustix::fs::open(self.at(path), flags, mode(*bits)).map(drop)
            }
            Op::Mkdir { path, mode: bits } => rustix::fs::mkdir(self.at(path), mode(*bits)),
            Op::Mknod { path, kind, mode: bits, major, minor } => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    self.at(path),
                    kind,
                    mode(*bits),
                    rustix::fs::makedev(*major, *minor),
                )
            }
            Op::Symlink { path, target } => rustix::fs::symlink(OsStr::from_bytes(&target.0), self.at(path)),
            Op::Link { from, to } => rustix::fs::link(self.at(from), self.at(to)),
            Op::Unlink { path } => rustix::fs::unlink(self.at(path)),
            Op::Rmdir { path } => rustix::fs::rmdir(self.at(path)),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Open { path, handle } => {
                let opened = self.open(path, OFlags::RDWR);
                opened.map(|file| drop(self.handles.insert(*handle, file)))
            }
            Op::Tmpfile { folder, mode: bits, handle } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let opened = rustix::fs::open(self.at(folder), flags, mode(*bits));
                opened.map(|file| drop(self.handles.insert(*handle, file)))
            }
            Op::Close { handle } => self.handles.remove(handle).map(drop).ok_or(Errno::BADF),
            _ => return None,
        })
    }

    fn rename(&self, from: &RelPath, to: &RelPath, how: RenameHow) -> Result<(), Errno> {
        let flags = match how {
            RenameHow::Replace => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
            RenameHow::Whiteout => RenameFlags::WHITEOUT,
        };
        rustix::fs::renameat_with(rustix::fs::CWD, self.at(from), rustix::fs::CWD, self.at(to), flags)
    }

    fn change(&mut self, op: &Op) -> Option<Result<(), Errno>> {
        Some(match op {
            Op::Truncate { object, size } => {
                self.with_file(object, OFlags::WRONLY, |file| rustix::fs::ftruncate(file, *size))
            }
            Op::Allocate { object, how, offset, len } => {
                let flags = match how {
                    AllocateHow::Extend => FallocateFlags::empty(),
                    AllocateHow::KeepSize => FallocateFlags::KEEP_SIZE,
                    AllocateHow::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    AllocateHow::ZeroRange => FallocateFlags::ZERO_RANGE,
                };
                self.with_file(object, OFlags::WRONLY, |file| rustix::fs::fallocate(file, flags, *offset, *len))
            }
            Op::Chmod { object: Object::Path(path), mode } => {
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*mode))
            }
            Op::Chmod { object, mode } => {
                self.with_file(object, OFlags::RDONLY, |file| rustix::fs::fchmod(file, Mode::from_raw_mode(*mode)))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (rustix::fs::Uid::from_raw(*uid), rustix::fs::Gid::from_raw(*gid));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(rustix::fs::CWD, self.at(path), Some(uid), Some(gid), flags)
            }
            Op::SetTimes { path, atime, mtime } => {
                let time = |moment: &Moment| Timespec { tv_sec: moment.sec, tv_nsec: moment.nsec.into() };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                rustix::fs::utimensat(rustix::fs::CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetXattr { path, name, value, create, replace } => {
                let flags = match (create, replace) {
                    (true, _) => XattrFlags::CREATE,
                    (_, true) => XattrFlags::REPLACE,
                    _ => XattrFlags::empty(),
                };
                rustix::fs::lsetxattr(self.at(path), name.as_str(), &value.bytes(), flags)
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), name.as_str()),
            Op::Fsync { object, data_only: true } => {
                self.with_file(object, OFlags::RDONLY, |file| rustix::fs::fdatasync(file))
            }
            Op::Fsync { object, data_only: false } => {
                self.with_file(object, OFlags::RDONLY, |file| rustix::fs::fsync(file))
            }
            Op::Sync => self.open(&RelPath::default(), OFlags::RDONLY).and_then(rustix::fs::syncfs),
            _ => return None,
        })
    }

    fn ask(&self, op: &Op) -> Outcome {
        match op {
            Op::Read { object, offset, len } => {
                self.with_file(object, OFlags::RDONLY, |file| read(file, *offset, *len)).map(Reply::Bytes)
            }
            Op::Write { object, offset, content } => {
                self.with_file(object, OFlags::WRONLY, |file| write(file, *offset, *content)).map(Reply::Count)
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let source = self.open(from, OFlags::RDONLY)?;
                let target = self.open(to, OFlags::WRONLY)?;
                copy_range(&source, *from_offset, &target, *to_offset, *len).map(Reply::Count)
            }
            Op::GetXattr { path, name } => xattrs::value(&self.at(path), name.as_bytes()).map(Reply::Bytes),
            Op::ListXattrs { path } => {
                let mut names = xattrs::names(&self.at(path))?;
                names.sort();
                Ok(Reply::Names(names))
            }
            Op::Stat { object: Object::Path(path) } => {
                rustix::fs::lstat(self.at(path)).map(|stat| Reply::Attributes(attributes(&stat)))
            }
            Op::Stat { object } => self
                .with_file(object, OFlags::RDONLY, |file| rustix::fs::fstat(file))
                .map(|stat| Reply::Attributes(attributes(&stat))),
            Op::ReadFolder { path } => self.read_folder(path),
            Op::ReadLink { path } => {
                rustix::fs::readlink(self.at(path), Vec::new()).map(|target| Reply::Bytes(target.into_bytes()))
            }
            _ => unreachable!("{op:?} is no question"),
        }
    }

    fn read_folder(&self, path: &RelPath) -> Outcome {
        let dir = Dir::new(self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut entries = Vec::new();
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                entries.push((name.to_vec(), Kind::of_mode(entry.file_type().as_raw_mode())));
            }
        }
        entries.sort();
        Ok(Reply::Entries(entries))
    }
}

impl OperationTarget for Mounted {
    fn apply(&mut self, op: &Op) -> Outcome {
        match self.make(op).or_else(|| self.change(op)) {
            Some(outcome) => outcome.map(|()| Reply::Done),
            None => self.ask(op),
        }
    }
}

fn read(file: &OwnedFd, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(file, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn write(file: &OwnedFd, offset: u64, content: Content) -> Result<u64, Errno> {
    let bytes = content.bytes();
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(file, &bytes[done..], offset + done as u64)?;
    }
    Ok(done as u64)
}

fn copy_range(source: &OwnedFd, mut from: u64, target: &OwnedFd, mut to: u64, len: u64) -> Result<u64, Errno> {
    // Both may be one file, which grows while it is copied; what it gets is not copied again.
    let there = (rustix::fs::fstat(source)?.st_size as u64).saturating_sub(from);
    let len = len.min(there.max(1));
    let mut left = len;
    while left > 0 {
        let copied = rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), left as usize)?;
        if copied == 0 {
            break;
        }
        left -= copied as u64;
    }
    Ok(len - left)
}

fn attributes(stat: &rustix::fs::Stat) -> Attributes {
    Attributes {
        kind: Kind::of_mode(stat.st_mode),
        mode: stat.st_mode & 0o7777,
        links: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        device: (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
        mtime: Some(Moment { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 }),
    }
}
