//! Copying: ranges of files, and a whole tree, which an incremental stream then changes.
//!
//! Where the filesystem can share content, copies share it; holes stay holes. Nothing of the source is changed or
//! followed.

use super::super::{Failure, Outcome};
use super::permission::{self, Needs};
use super::tree::{Place, open_regular};
use super::{flags, system};
use butterfs_fs::Errno;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags, chownat, copy_file_range,
    fstat, ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, mknodat, openat, readlinkat, seek, symlinkat,
    utimensat,
};
use rustix::fs::{Gid, Uid};
use rustix::io::{Errno as Number, pread, pwrite};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// Bytes that are copied at once where nothing can be shared.
const COPY_BYTES: usize = 1 << 20;

/// Copies `len` bytes; the ranges do not overlap.
pub(super) fn range(source: &OwnedFd, from: u64, target: &OwnedFd, to: u64, len: u64) -> Outcome {
    let mut done = 0;
    while done < len {
        let (mut read_at, mut write_at) = (from + done, to + done);
        let wanted = usize::try_from(len - done).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), wanted) {
            Ok(0) => return Err(Failure::new(Errno::EIO, format!("the source ends after {done} bytes"))),
            Ok(copied) => done += copied as u64,
            Err(Number::INTR) => {}
            Err(Number::XDEV | Number::INVAL | Number::OPNOTSUPP | Number::NOSYS | Number::PERM) => {
                return plain(source, from + done, target, to + done, len - done);
            }
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

fn plain(source: &OwnedFd, from: u64, target: &OwnedFd, to: u64, len: u64) -> Outcome {
    let mut buffer = vec![0; COPY_BYTES.min(len as usize)];
    let mut done = 0;
    while done < len {
        let wanted = buffer.len().min((len - done) as usize);
        match pread(source, &mut buffer[..wanted], from + done) {
            Ok(0) => return Err(Failure::new(Errno::EIO, format!("the source ends after {done} bytes"))),
            Ok(read) => {
                write_all(target, &buffer[..read], to + done)?;
                done += read as u64;
            }
            Err(Number::INTR) => {}
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

/// Writes everything.
pub(super) fn write_all(target: &OwnedFd, mut data: &[u8], mut offset: u64) -> Outcome {
    while !data.is_empty() {
        match pwrite(target, data, offset) {
            Ok(0) => return Err(Failure::new(Errno::EIO, "nothing could be written")),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Number::INTR) => {}
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

/// Copies a tree.
pub(super) struct Copier<'l> {
    /// Hears of what cannot be kept.
    pub lost: &'l mut dyn FnMut(&str, Failure),
    /// Whether something was met that directories hand down to what is made in them.
    pub hands_down: bool,
    /// Flags that forbid changes, by path, for the end.
    pub fixed: Vec<(Vec<u8>, u64)>,
    /// The path of the directory that is being copied.
    path: Vec<u8>,
    links: HashMap<(u64, u64), (Rc<OwnedFd>, Vec<u8>)>,
}

impl<'l> Copier<'l> {
    pub fn new(lost: &'l mut dyn FnMut(&str, Failure)) -> Copier<'l> {
        Copier { lost, hands_down: false, fixed: Vec::new(), path: Vec::new(), links: HashMap::new() }
    }

    /// Copies what is in one directory into another, and then what is known of the directory itself.
    pub fn directory(&mut self, source: OwnedFd, target: OwnedFd) -> Outcome {
        let (source, target) = (Rc::new(source), Rc::new(target));
        let inside = Place { directory: Rc::clone(&source), name: b"." };
        for entry in inside.within(|| Dir::read_from(&*source)).map_err(system)? {
            let entry = entry.map_err(system)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.entry(&source, &target, name)?;
            }
        }
        let here = |directory: &Rc<OwnedFd>| Place { directory: Rc::clone(directory), name: b"." };
        let stat = fstat(&*source).map_err(system)?;
        self.hands_down |= stat.st_mode & 0o2000 != 0;
        self.flags(&source, &target, b".");
        self.describe(&here(&source), &here(&target), &stat)
    }

    fn entry(&mut self, source: &Rc<OwnedFd>, target: &Rc<OwnedFd>, name: &[u8]) -> Outcome {
        let from = Place { directory: Rc::clone(source), name };
        let to = Place { directory: Rc::clone(target), name };
        let stat = from.stat()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let inode = (stat.st_dev, stat.st_ino);
        if kind != FileType::Directory
            && stat.st_nlink > 1
            && let Some((directory, first)) = self.links.get(&inode)
        {
            let first = Place { directory: Rc::clone(directory), name: first };
            let link = || linkat(&*first.directory, first.name, &**target, name, AtFlags::empty());
            return permission::at(&[(&first, Needs::Object)], link).map_err(system);
        }
        match kind {
            FileType::Directory => {
                mkdirat(&**target, name, Mode::RWXU).map_err(system)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = |at: &Place<'_>| {
                    at.with_object(|| openat(&*at.directory, name, flags, Mode::empty())).map_err(system)
                };
                let (source, target, len) = (open(&from)?, open(&to)?, self.path.len());
                super::super::paths::push(&mut self.path, name);
                self.directory(source, target)?;
                self.path.truncate(len);
                return Ok(());
            }
            FileType::RegularFile => {
                let source = open_regular(&from, OFlags::RDONLY)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let target = openat(&*to.directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(system)?;
                self.flags(&source, &target, name);
                content(&source, &target, stat.st_size as u64)?;
            }
            FileType::Symlink => {
                let text = from.within(|| readlinkat(&**source, name, Vec::new())).map_err(system)?;
                symlinkat(text.as_bytes(), &**target, name).map_err(system)?;
            }
            _ => mknodat(&**target, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev).map_err(system)?,
        }
        if stat.st_nlink > 1 {
            self.links.insert(inode, (Rc::clone(target), name.to_vec()));
        }
        self.describe(&from, &to, &stat)
    }

    /// Copies flags but those that forbid changes, which are noted.
    fn flags(&mut self, source: &OwnedFd, target: &OwnedFd, name: &[u8]) {
        let found = flags::of(source);
        if found == 0 {
            return;
        }
        let mut path = self.path.clone();
        if name != b"." {
            super::super::paths::push(&mut path, name);
        }
        if let Err(failure) = flags::change(target, found & !flags::FIXED) {
            (self.lost)(&format!("fileattr {}", String::from_utf8_lossy(&path)), failure);
        }
        if found & flags::FIXED != 0 {
            self.fixed.push((path, found));
        }
    }

    /// Owner, permissions, attributes, times.
    fn describe(&mut self, from: &Place<'_>, to: &Place<'_>, stat: &Stat) -> Outcome {
        let shown = String::from_utf8_lossy(to.name).into_owned();
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let owned = chownat(&*to.directory, to.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        if let Err(error) = owned {
            (self.lost)(&format!("chown {shown}"), system(error));
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            to.within(|| rustix::fs::chmodat(&*to.directory, to.name, mode, AtFlags::empty())).map_err(system)?;
        }
        self.attributes(from, to, &shown)?;
        let set = || utimensat(&*to.directory, to.name, &times(stat), AtFlags::SYMLINK_NOFOLLOW);
        to.within(set).map_err(system)
    }

    fn attributes(&mut self, from: &Place<'_>, to: &Place<'_>, shown: &str) -> Outcome {
        let list = || {
            let mut names = vec![0; 65_536];
            rustix::fs::llistxattr(&from.proc_path()[..], &mut names).map(|len| names[..len].to_vec())
        };
        let names = match from.within(list) {
            Err(Number::OPNOTSUPP) => return Ok(()),
            listed => listed.map_err(system)?,
        };
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let get = || {
                let mut value = vec![0; 65_536];
                rustix::fs::lgetxattr(&from.proc_path()[..], name, &mut value).map(|len| value[..len].to_vec())
            };
            let value = from.with_object(get).map_err(system)?;
            self.hands_down |= super::is_handed_down(name);
            let set = || rustix::fs::lsetxattr(&to.proc_path()[..], name, &value, XattrFlags::empty());
            if let Err(error) = to.with_object(set) {
                (self.lost)(&format!("set_xattr {} of {shown}", String::from_utf8_lossy(name)), system(error));
            }
        }
        Ok(())
    }
}

fn times(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| Timespec { tv_sec: sec, tv_nsec: nsec as _ };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Copies a regular file's content to a new file.
fn content(source: &OwnedFd, target: &OwnedFd, size: u64) -> Outcome {
    if size == 0 || ioctl_ficlone(target.as_fd(), source.as_fd()).is_ok() {
        return Ok(());
    }
    ftruncate(target, size).map_err(system)?;
    let mut at = 0;
    while at < size {
        let start = match seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Number::NXIO) => break,
            Err(Number::INVAL | Number::OPNOTSUPP) => at,
            Err(error) => return Err(system(error)),
        };
        let end = seek(source, SeekFrom::Hole(start)).unwrap_or(size).clamp(start, size);
        if end == start {
            break;
        }
        range(source, start, target, start, end - start)?;
        at = end;
    }
    // Nobody may have written to the source, or the copy is nothing.
    let now = fstat(source).map_err(system)?;
    if now.st_size as u64 != size {
        return Err(Failure::new(Errno::EAGAIN, "the source changes while it is copied"));
    }
    let _ = futimens(target, &times(&now));
    Ok(())
}
