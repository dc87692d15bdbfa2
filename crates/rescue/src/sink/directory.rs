//! Into a directory of any filesystem.
//!
//! Every step is taken from an opened directory by `openat2` that resolves no symbolic link and stays beneath it, or by
//! a name that has no slash. Files are made anew and never opened through what is there.
//!
//! Invariants: (1) a file has its name when all of it is there, so that a run that was ended leaves no part of one;
//! (2) something that has the name already is compared, and counts as restored only where it is the same: content,
//! owner, mode, time and extended attributes, or those of them that the target gives a new file; (3) nothing that was
//! made here is overwritten.

use super::written::{Kind, Written};
use super::{Attributes, Incoming, Made, Moment, Path, Sink, is_safe};
use butterfs_device::is_zero;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Bytes of a path that are resolved at once: the kernel takes 4096.
const LONGEST_STEP: usize = 4000;
/// The bits by which a program gets the rights of its owner or group: of nobody else.
const SET_ID: u32 = 0o6000;

/// See the [module](self).
#[derive(Debug)]
pub struct Directory {
    top: OwnedFd,
    overwrites: bool,
    /// Files, as device and inode, that nothing takes the place of.
    spared: Vec<(u64, u64)>,
    /// The directory that was opened last, and its path.
    last: Option<(Vec<Vec<u8>>, OwnedFd)>,
    written: Written,
    /// Attributes that the last thing did not get, and why.
    lacking: Vec<String>,
    complaints: Vec<String>,
    is_root: bool,
    /// The complaint about owners was made.
    has_told_of_owners: bool,
    /// Reasons for missing extended attributes that were told.
    told: Vec<&'static str>,
}

impl Directory {
    /// Restores into the directory at `path`, which exists. With `overwrites`, what is there makes room.
    pub fn open(path: &std::path::Path, overwrites: bool) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty())?;
        let is_root = rustix::process::geteuid().is_root();
        let (spared, last, written, lacking, complaints) = Default::default();
        let (has_told_of_owners, told) = Default::default();
        Ok(Directory { top, overwrites, spared, last, written, lacking, complaints, is_root, has_told_of_owners, told })
    }

    /// Leaves these files alone, named by device and inode, whatever is overwritten: those that are read.
    pub fn sparing(mut self, files: Vec<(u64, u64)>) -> Directory {
        self.spared = files;
        self
    }

    /// Notes an attribute that the last thing did not get.
    fn lack(&mut self, what: &str, error: Errno) {
        let message = io::Error::from(error).to_string();
        // Its number says nothing more.
        let message = message.split(" (os error").next().unwrap_or_default();
        self.lacking.push(format!("{what} could not be set: {message}"));
    }

    /// Notes an extended attribute that the last thing did not get. Those that no file here could get, because only
    /// btrfs or only root has such, are told once.
    fn lack_xattr(&mut self, path: &Path, name: &[u8], error: Errno) {
        let what = format!("extended attribute {}", String::from_utf8_lossy(name));
        let takes_root = !self.is_root && (name.starts_with(b"security.") || name.starts_with(b"trusted."));
        let reason = match error {
            Errno::OPNOTSUPP | Errno::INVAL if name.starts_with(b"btrfs.") => "only btrfs has such properties",
            Errno::PERM if takes_root => "setting it takes root",
            _ => return self.lack(&what, error),
        };
        if !self.told.contains(&reason) {
            self.told.push(reason);
            self.complaints.push(format!("{}: {what}: {reason}", super::shown(path)));
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
        let name = OsStr::from_bytes(name);
        match make(self.enter(parent)?, name) {
            Err(Errno::EXIST) if self.overwrites && self.written.kind(path).is_none() => {
                if self.there(path)?.is_some_and(|there| self.spared.contains(&(there.st_dev, there.st_ino))) {
                    let message = "it is what is being read, and is not overwritten";
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
                }
                let parent = self.enter(parent)?;
                rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
                Ok(Some(make(parent, name)?))
            }
            Err(Errno::EXIST) => Ok(None),
            made => Ok(Some(made?)),
        }
    }

    /// Notes an owner that could not be set. A user who is not root cannot set any, which is told once.
    fn lack_owner(&mut self, path: &Path, error: Errno) {
        if self.is_root {
            self.lack("owner", error);
        } else if !std::mem::replace(&mut self.has_told_of_owners, true) {
            let what = "owner (other owners, and set-id bits with them, take root)";
            self.complaints.push(format!("{}: {what}: {error}", super::shown(path)));
        }
    }

    /// Owners first: they take set-id bits and capabilities away. Without its owner nothing gets set-id bits.
    fn apply(&mut self, path: &Path, file: &OwnedFd, attributes: &Attributes) {
        let (uid, gid) = (attributes.uid, attributes.gid);
        let mut mode = attributes.mode & 0o7777;
        if attributes.is_wanted && uid != u32::MAX && gid != u32::MAX {
            let changed = rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            if let Err(error) = changed {
                mode &= !SET_ID;
                self.lack_owner(path, error);
            }
        }
        for (name, value) in &attributes.xattrs {
            if let Err(error) = rustix::fs::fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                self.lack_xattr(path, name, error);
            }
        }
        if !attributes.is_wanted {
            return;
        }
        if let Err(error) = rustix::fs::fchmod(file, Mode::from_raw_mode(mode)) {
            self.lack("mode", error);
        }
        if let Err(error) = rustix::fs::futimens(file, &times(attributes)) {
            self.lack("times", error);
        }
    }

    /// The thing that has this name.
    fn there(&mut self, path: &Path) -> io::Result<Option<Stat>> {
        let Some((name, parent)) = path.split_last() else { return Ok(None) };
        let parent = self.enter(parent)?;
        match rustix::fs::statat(parent, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Whether what has this name has these extended attributes, and owner, mode and time if wanted.
    fn has_attributes(&mut self, path: &Path, there: &Stat, attributes: &Attributes) -> io::Result<bool> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let has_owner = !self.is_root || (there.st_uid, there.st_gid) == (attributes.uid, attributes.gid);
        let is_link = FileType::from_raw_mode(there.st_mode) == FileType::Symlink;
        let bits = if self.is_root { 0o7777 } else { 0o1777 };
        let has_mode = is_link || (there.st_mode ^ attributes.mode) & bits == 0;
        let has_time = (there.st_mtime, there.st_mtime_nsec as u32) == attributes.mtime;
        if attributes.is_wanted && !(has_owner && has_mode && has_time) {
            return Ok(false);
        }
        let place = place_in(self.enter(parent)?, name);
        let has = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let mut found = vec![0; value.len() + 1];
            match rustix::fs::lgetxattr(OsStr::from_bytes(&place), OsStr::from_bytes(key), &mut found[..]) {
                Ok(len) => found[..len] == value[..],
                Err(_) => false,
            }
        };
        Ok(attributes.xattrs.iter().all(has))
    }

    /// Whether what has this name is the file that would be made.
    fn is_same_file(
        &mut self,
        path: &Path,
        there: &Stat,
        attributes: &Attributes,
        incoming: Incoming<'_>,
    ) -> io::Result<bool> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let is_regular = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        if !is_regular || there.st_size as u64 != incoming.size {
            return Ok(false);
        }
        if !self.has_attributes(path, there, attributes)? && !self.is_as_new(path, there, attributes)? {
            return Ok(false);
        }
        let Ok(opened) = beneath(self.enter(parent)?, name, OFlags::RDONLY | OFlags::NONBLOCK) else {
            return Ok(false);
        };
        let (file, mut is_same, mut end) = (File::from(opened), true, 0);
        let mut own = Vec::new();
        (incoming.fill)(&mut |offset, bytes| {
            own.resize(bytes.len(), 0);
            is_same =
                is_same && is_hole(&file, end, offset) && file.read_exact_at(&mut own, offset).is_ok() && own == bytes;
            end = offset + bytes.len() as u64;
            Ok(())
        })?;
        Ok(is_same && is_hole(&file, end, incoming.size))
    }

    /// Whether what has this name has the attributes that the target gives a new file here.
    fn is_as_new(&mut self, path: &Path, there: &Stat, attributes: &Attributes) -> io::Result<bool> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let parent = self.enter(parent)?.try_clone_to_owned()?;
        let Ok(fresh) = Fresh::new(parent.as_fd()) else { return Ok(false) };
        let file: OwnedFd = fresh.file.try_clone()?.into();
        self.apply(path, &file, attributes);
        let place = place_in(parent.as_fd(), name);
        let own = |key: &OsStr, value: &mut [u8]| rustix::fs::fgetxattr(&file, key, value);
        let other = |key: &OsStr, value: &mut [u8]| rustix::fs::lgetxattr(OsStr::from_bytes(&place), key, value);
        Ok(are_alike((&rustix::fs::fstat(&file)?, &own), (there, &other), attributes))
    }

    fn has_target(&mut self, path: &Path, target: &OsStr) -> io::Result<bool> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let own = rustix::fs::readlinkat(self.enter(parent)?, OsStr::from_bytes(name), Vec::new());
        Ok(own.is_ok_and(|own| own.as_bytes() == target.as_bytes()))
    }

    /// The outcome for something whose name is taken, by the same thing or another one.
    fn as_made(&mut self, path: &Path, is_same: bool) -> Made {
        if is_same {
            self.written.note(path, Kind::Other);
            return Made::Same;
        }
        self.lacking.clear();
        if self.written.kind(path).is_some() { Made::Taken } else { Made::Kept }
    }

    fn has_made(&mut self, path: &Path) -> Made {
        self.written.note(path, Kind::Other);
        Made::Yes
    }

    /// Has `make` make what cannot be opened, under a name that nobody looks for until it has its attributes. Where its
    /// name is taken, `is_kind` says whether by the same kind of thing.
    fn make_whole(
        &mut self,
        path: &Path,
        attributes: &Attributes,
        make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<(), Errno>,
        is_kind: impl Fn(&mut Directory, &Stat) -> io::Result<bool>,
    ) -> io::Result<Made> {
        let Some((_, parent)) = path.split_last() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the top is a directory"));
        };
        let hidden = Hidden::new(self.enter(parent)?, make)?;
        self.apply_by_name(path, &hidden, attributes);
        if self.make(path, |parent, name| hidden.publish(parent, name))?.is_some() {
            return Ok(self.has_made(path));
        }
        let Some(there) = self.there(path)? else { return Ok(self.as_made(path, false)) };
        let has_attributes = self.has_attributes(path, &there, attributes)?;
        if has_attributes {
            self.lacking.clear();
        }
        let is_alike = has_attributes || self.is_as_hidden(path, &hidden, &there, attributes)?;
        let is_same = is_alike && is_kind(self, &there)?;
        Ok(self.as_made(path, is_same))
    }

    /// Whether what has this name has the attributes that the target has given another thing.
    fn is_as_hidden(
        &mut self,
        path: &Path,
        hidden: &Hidden,
        there: &Stat,
        attributes: &Attributes,
    ) -> io::Result<bool> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let (own, other) =
            (place_in(hidden.parent.as_fd(), hidden.name.as_bytes()), place_in(self.enter(parent)?, name));
        let stat = rustix::fs::statat(&hidden.parent, &*hidden.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let own = |key: &OsStr, value: &mut [u8]| rustix::fs::lgetxattr(OsStr::from_bytes(&own), key, value);
        let other = |key: &OsStr, value: &mut [u8]| rustix::fs::lgetxattr(OsStr::from_bytes(&other), key, value);
        Ok(are_alike((&stat, &own), (there, &other), attributes))
    }

    /// The same for what cannot be opened: by its name in the opened directory, behind which no link is followed.
    fn apply_by_name(&mut self, path: &Path, hidden: &Hidden, attributes: &Attributes) {
        let (parent, name) = (hidden.parent.as_fd(), OsStr::new(&hidden.name));
        let mut failed = None;
        if attributes.is_wanted {
            let (uid, gid) = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
            let may_own = attributes.uid != u32::MAX && attributes.gid != u32::MAX && self.is_root;
            let mode = attributes.mode & if may_own { 0o7777 } else { 0o7777 & !SET_ID };
            if may_own && let Err(error) = rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                failed = Some(("owner", error));
            }
            if attributes.mode & super::super::subvolume::TYPE_MASK != super::super::subvolume::SYMLINK
                && let Err(error) = rustix::fs::chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())
            {
                failed = Some(("mode", error));
            }
            if let Err(error) = rustix::fs::utimensat(parent, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW) {
                failed = Some(("times", error));
            }
        }
        if let Some((what, error)) = failed {
            self.lack(what, error);
        }
        let place = place_in(parent, hidden.name.as_bytes());
        for (key, value) in &attributes.xattrs {
            let name = OsStr::from_bytes(key);
            if let Err(error) = rustix::fs::lsetxattr(OsStr::from_bytes(&place), name, value, XattrFlags::empty()) {
                self.lack_xattr(path, key, error);
            }
        }
    }
}

/// A path to a name in an opened directory.
fn place_in(parent: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    [format!("/proc/self/fd/{}/", parent.as_raw_fd()).as_bytes(), name].concat()
}

/// Reads an extended attribute.
type GetXattr<'a> = &'a dyn Fn(&OsStr, &mut [u8]) -> Result<usize, Errno>;

/// Whether two things have the same extended attributes of those that are wanted, and owner, mode and time if wanted.
fn are_alike(own: (&Stat, GetXattr<'_>), other: (&Stat, GetXattr<'_>), attributes: &Attributes) -> bool {
    let status = |stat: &Stat| (stat.st_uid, stat.st_gid, stat.st_mode, stat.st_mtime, stat.st_mtime_nsec);
    let value = |get: GetXattr<'_>, key: &[u8], len: usize| {
        let mut value = vec![0; len + 1];
        get(OsStr::from_bytes(key), &mut value).map(|len| value[..len].to_vec())
    };
    let has_both = |(key, wanted): (&Vec<u8>, &Vec<u8>)| {
        value(own.1, key, wanted.len()).ok() == value(other.1, key, wanted.len()).ok()
    };
    (!attributes.is_wanted || status(own.0) == status(other.0)) && attributes.xattrs.iter().all(has_both)
}

/// Something under a name that nobody looks for; dropped with it, unless it got its own.
struct Hidden {
    parent: OwnedFd,
    name: String,
}

impl Hidden {
    /// Has `make` make something under a name that nothing has.
    fn new(parent: BorrowedFd<'_>, make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<(), Errno>) -> io::Result<Hidden> {
        let mut number = 0;
        loop {
            let name = format!(".butterfs-restore-{}-{number}", std::process::id());
            match make(parent, OsStr::new(&name)) {
                Err(Errno::EXIST) => number += 1,
                made => {
                    made?;
                    return Ok(Hidden { parent: parent.try_clone_to_owned()?, name });
                }
            }
        }
    }

    /// Gives it its own name, which nothing has.
    fn publish(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        match rustix::fs::renameat_with(parent, &*self.name, parent, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL) => match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(_) => rustix::fs::renameat(parent, &*self.name, parent, name),
            },
            renamed => renamed,
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // It is not there any more when it has its own name.
        let _ = rustix::fs::unlinkat(&self.parent, &*self.name, AtFlags::empty());
    }
}

/// A file that has no name yet, or a hidden one where the filesystem has no files without one.
struct Fresh {
    file: File,
    hidden: Option<Hidden>,
}

impl Fresh {
    fn new(parent: BorrowedFd<'_>) -> io::Result<Fresh> {
        let mode = Mode::RUSR | Mode::WUSR;
        let unnamed = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(parent, c".", unnamed, mode) {
            return Ok(Fresh { file: file.into(), hidden: None });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = Cell::new(None);
        let hidden = Hidden::new(parent, |parent, name| {
            opened.set(Some(rustix::fs::openat(parent, name, flags, mode)?));
            Ok(())
        })?;
        let file = opened.into_inner().expect("it was just made");
        Ok(Fresh { file: file.into(), hidden: Some(hidden) })
    }

    /// Gives the file its name, which nothing has.
    fn publish(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        if let Some(hidden) = &self.hidden {
            return hidden.publish(parent, name);
        }
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(rustix::fs::CWD, own, parent, name, AtFlags::SYMLINK_FOLLOW)
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
            Some(()) => {
                self.written.note(path, Kind::Folder);
                Ok(())
            }
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
        let is_own = self.written.kind(path).is_some();
        if let Some(there) = self.there(path)?.filter(|_| !self.overwrites || is_own) {
            let is_same = self.is_same_file(path, &there, attributes, incoming)?;
            return Ok(self.as_made(path, is_same));
        }
        let fresh = Fresh::new(self.enter(&path[..path.len().saturating_sub(1)])?)?;
        fresh.file.set_len(incoming.size)?;
        (incoming.fill)(&mut |offset, bytes| fresh.file.write_all_at(bytes, offset))?;
        self.apply(path, &fresh.file.try_clone()?.into(), attributes);
        let made = self.make(path, |parent, name| fresh.publish(parent, name))?;
        Ok(if made.is_some() { self.has_made(path) } else { self.as_made(path, false) })
    }

    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        let target = OsStr::from_bytes(target);
        let make = |parent: BorrowedFd<'_>, name: &OsStr| rustix::fs::symlinkat(target, parent, name);
        self.make_whole(path, attributes, make, |sink, _| sink.has_target(path, target))
    }

    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made> {
        let kind = FileType::from_raw_mode(attributes.mode);
        let device = rustix::fs::makedev(attributes.device.0, attributes.device.1);
        let mode = Mode::RUSR | Mode::WUSR;
        let make = |parent: BorrowedFd<'_>, name: &OsStr| rustix::fs::mknodat(parent, name, kind, mode, device);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        self.make_whole(path, attributes, make, |_, there| {
            Ok(FileType::from_raw_mode(there.st_mode) == kind && (!is_device || there.st_rdev == device))
        })
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
        if made.is_some() {
            return Ok(self.has_made(path));
        }
        let places = (self.there(path)?, self.there(first)?);
        let is_same =
            matches!(places, (Some(own), Some(first)) if (own.st_dev, own.st_ino) == (first.st_dev, first.st_ino));
        Ok(self.as_made(path, is_same))
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.top)?)
    }

    fn lacking(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lacking)
    }

    fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }
}

/// Whether a range of a file has no other bytes than zeros.
fn is_hole(file: &File, start: u64, end: u64) -> bool {
    let (mut at, mut bytes) = (start, vec![0; 64 << 10]);
    while at < end {
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => return true,
            // The filesystem does not know.
            Err(_) => at,
        };
        let part = &mut bytes[..(64 << 10).min(end.saturating_sub(at)) as usize];
        if file.read_exact_at(part, at).is_err() || !is_zero(part) {
            return part.is_empty();
        }
        at += part.len() as u64;
    }
    true
}

fn is_directory(parent: BorrowedFd<'_>, name: &OsStr) -> bool {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
