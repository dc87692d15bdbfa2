//! Into a directory of any filesystem.
//!
//! Every step is taken from an opened directory by `openat2` that resolves no symbolic link and stays beneath it, or by
//! a name that has no slash. Files are made anew and never opened through what is there.

use super::{Attributes, Incoming, Made, Moment, Path, Sink, is_safe};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Bytes of a path that are resolved at once: the kernel takes 4096.
const LONGEST_STEP: usize = 4000;
/// Complaints that are kept.
const COMPLAINTS: usize = 100;

/// See the [module](self).
#[derive(Debug)]
pub struct Directory {
    top: OwnedFd,
    overwrites: bool,
    /// The directory that was opened last, and its path.
    last: Option<(Vec<Vec<u8>>, OwnedFd)>,
    complaints: Vec<String>,
    is_root: bool,
}

impl Directory {
    /// Restores into the directory at `path`, which exists. With `overwrites`, what is there makes room.
    pub fn open(path: &std::path::Path, overwrites: bool) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty())?;
        let is_root = rustix::process::geteuid().is_root();
        Ok(Directory { top, overwrites, last: None, complaints: Vec::new(), is_root })
    }

    fn complain(&mut self, what: &str, path: &Path, error: Errno) {
        if self.complaints.len() < COMPLAINTS {
            self.complaints.push(format!("{}: {what}: {error}", super::shown(path)));
        }
    }

    /// Opens the directory at a path below the top.
    fn enter(&mut self, path: &Path) -> io::Result<BorrowedFd<'_>> {
        if path.iter().any(|name| !is_safe(name)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that leads elsewhere"));
        }
        let is_last = self.last.as_ref().is_some_and(|(known, _)| known == path);
        if !is_last {
            let opened = self.walk(path)?;
            self.last = Some((path.to_vec(), opened));
        }
        Ok(self.last.as_ref().expect("it was just opened").1.as_fd())
    }

    fn walk(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut at = self.top.try_clone()?;
        let mut rest = path;
        while !rest.is_empty() {
            let mut step = rest[0].clone();
            rest = &rest[1..];
            while let Some(next) = rest.first().filter(|next| step.len() + 1 + next.len() <= LONGEST_STEP) {
                step.push(b'/');
                step.extend_from_slice(next);
                rest = &rest[1..];
            }
            at = beneath(at.as_fd(), &step, OFlags::RDONLY | OFlags::DIRECTORY)?;
        }
        Ok(at)
    }

    /// Has `make` make something with a name that nothing has; what has it stays or makes room.
    fn make<T>(
        &mut self,
        path: &Path,
        make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<T, Errno>,
    ) -> io::Result<Option<T>> {
        let Some((name, parent)) = path.split_last() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the top is a directory"));
        };
        if !is_safe(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that leads elsewhere"));
        }
        let overwrites = self.overwrites;
        let parent = self.enter(parent)?;
        let name = OsStr::from_bytes(name);
        match make(parent, name) {
            Err(Errno::EXIST) if overwrites => {
                rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
                Ok(Some(make(parent, name)?))
            }
            Err(Errno::EXIST) => Ok(None),
            made => Ok(Some(made?)),
        }
    }

    /// Owners first: they take set-id bits and capabilities away.
    fn apply(&mut self, path: &Path, file: &OwnedFd, attributes: &Attributes) {
        let (uid, gid) = (attributes.uid, attributes.gid);
        if attributes.is_wanted && uid != u32::MAX && gid != u32::MAX {
            let changed = rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            if let Err(error) = changed.or_else(|error| if self.is_root { Err(error) } else { Ok(()) }) {
                self.complain("owner", path, error);
            }
        }
        for (name, value) in &attributes.xattrs {
            let name = OsStr::from_bytes(name);
            if let Err(error) = rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()) {
                self.complain(&format!("extended attribute {}", name.to_string_lossy()), path, error);
            }
        }
        if !attributes.is_wanted {
            return;
        }
        if let Err(error) = rustix::fs::fchmod(file, Mode::from_raw_mode(attributes.mode & 0o7777)) {
            self.complain("mode", path, error);
        }
        if let Err(error) = rustix::fs::futimens(file, &times(attributes)) {
            self.complain("times", path, error);
        }
    }

    /// Extended attributes of what cannot be opened: by its name in the opened directory, which no link is followed
    /// behind.
    fn attach_by_name(&mut self, path: &Path, attributes: &Attributes) {
        let (Some((name, _)), Some((_, parent))) = (path.split_last(), &self.last) else { return };
        let place = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
        let place = [&place, &name[..]].concat();
        for (key, value) in &attributes.xattrs {
            let key = OsStr::from_bytes(key);
            if let Err(error) = rustix::fs::lsetxattr(OsStr::from_bytes(&place), key, value, XattrFlags::empty()) {
                self.complain(&format!("extended attribute {}", key.to_string_lossy()), path, error);
            }
        }
    }

    /// The same for what cannot be opened.
    fn apply_by_name(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        let Some((name, parent)) = path.split_last() else { return Ok(()) };
        let is_root = self.is_root;
        let parent = self.enter(parent)?;
        let name = OsStr::from_bytes(name);
        let mut failed = None;
        if attributes.is_wanted {
            let (uid, gid) = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
            let may_own = attributes.uid != u32::MAX && attributes.gid != u32::MAX && is_root;
            if may_own && let Err(error) = rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                failed = Some(("owner", error));
            }
            if attributes.mode & super::super::subvolume::TYPE_MASK != super::super::subvolume::SYMLINK
                && let Err(error) =
                    rustix::fs::chmodat(parent, name, Mode::from_raw_mode(attributes.mode & 0o7777), AtFlags::empty())
            {
                failed = Some(("mode", error));
            }
            if let Err(error) = rustix::fs::utimensat(parent, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW) {
                failed = Some(("times", error));
            }
        }
        if let Some((what, error)) = failed {
            self.complain(what, path, error);
        }
        self.attach_by_name(path, attributes);
        Ok(())
    }
}

/// Opens what lies beneath a directory, through no symbolic link.
fn beneath(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat2(at, OsStr::from_bytes(path), flags, Mode::empty(), resolve)?)
}

fn times(attributes: &Attributes) -> Timestamps {
    let of = |(tv_sec, nsec): Moment| Timespec { tv_sec, tv_nsec: i64::from(nsec.min(999_999_999)) };
    Timestamps { last_access: of(attributes.atime), last_modification: of(attributes.mtime) }
}

impl Sink for Directory {
    fn directory(&mut self, path: &Path, _: &Attributes) -> io::Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let make = |parent: BorrowedFd<'_>, name: &OsStr| match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            // Only a directory can be gone into.
            Err(Errno::EXIST) if is_directory(parent, name) => Ok(()),
            made => made,
        };
        match self.make(path, make)? {
            Some(()) => Ok(()),
            None => Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is no directory has its name")),
        }
    }

    fn leave(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        if path.is_empty() && !attributes.is_wanted && attributes.xattrs.is_empty() {
            return Ok(());
        }
        let file = self.enter(path)?.try_clone_to_owned()?;
        self.apply(path, &file, attributes);
        Ok(())
    }

    fn file(&mut self, path: &Path, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let made = self.make(path, |parent, name| rustix::fs::openat(parent, name, flags, mode))?;
        let Some(opened) = made else { return Ok(Made::Kept) };
        let file = File::from(opened);
        file.set_len(incoming.size)?;
        (incoming.fill)(&mut |offset, bytes| file.write_all_at(bytes, offset))?;
        self.apply(path, &OwnedFd::from(file), attributes);
        Ok(Made::Yes)
    }

    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        let target = OsStr::from_bytes(target);
        let made = self.make(path, |parent, name| rustix::fs::symlinkat(target, parent, name))?;
        if made.is_none() {
            return Ok(Made::Kept);
        }
        self.apply_by_name(path, attributes)?;
        Ok(Made::Yes)
    }

    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made> {
        let kind = FileType::from_raw_mode(attributes.mode);
        let device = rustix::fs::makedev(attributes.device.0, attributes.device.1);
        let mode = Mode::RUSR | Mode::WUSR;
        let made = self.make(path, |parent, name| rustix::fs::mknodat(parent, name, kind, mode, device))?;
        if made.is_none() {
            return Ok(Made::Kept);
        }
        self.apply_by_name(path, attributes)?;
        Ok(Made::Yes)
    }

    fn link(&mut self, path: &Path, first: &Path) -> io::Result<Made> {
        let Some((first_name, first_parent)) = first.split_last() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the top is a directory"));
        };
        let from = self.walk(first_parent)?;
        let first_name = OsStr::from_bytes(first_name).to_owned();
        let made = self.make(path, |parent, name| {
            rustix::fs::linkat(&from, first_name.as_os_str(), parent, name, AtFlags::empty())
        })?;
        Ok(if made.is_some() { Made::Yes } else { Made::Kept })
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.top)?)
    }

    fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }
}

fn is_directory(parent: BorrowedFd<'_>, name: &OsStr) -> bool {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
