//! An ordinary directory as the target, on any filesystem.
//!
//! A subvolume becomes a directory, a snapshot a copy of the tree that was received before, sharing content where the
//! filesystem can. What was received is remembered [beside the tree](marker).
//!
//! 1. A tree grows in `NAME.partial/tree` and is renamed to `NAME` when it is complete: see [`staging`]. What an
//!    interrupted receive has left is deleted by the next one of that name.
//! 2. Nothing outside of it is touched: see [`tree`]. That holds also where the folder belongs to another user, who
//!    exchanges names meanwhile.
//! 3. What is made inherits nothing: where a directory of the tree could hand something down, things are made outside
//!    of it and moved there.
//! 4. What this filesystem or this user cannot keep of the stream (owners, attributes, devices) is remembered in the
//!    marker and told, not an error. What cannot be kept of names and contents is an error.
//!    So is whatever fails because the disk is full or broken, or a quota is used up.
//! 5. What this user has made it can change, whatever permissions it got: see [`permission`].
//! 6. The number of open descriptors does not depend on the tree.

mod content;
mod copying;
mod descent;
mod flags;
mod links;
mod losses;
pub mod marker;
mod object;
mod permission;
mod removal;
mod staging;
mod tree;

pub use losses::Loss;

use super::{Failure, Outcome, Section, StreamTarget, encoded, partial_name};
use crate::wire::{Command, Timespec, Uuid};
use butterfs_fs::Errno;
use content::write_all;
use copying::{Copied, Listeners};
use losses::Losses;
use marker::Marker;
use object::Object;
use permission::{Lent, Needs};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags, chownat, fchmod, fstat,
    ftruncate, linkat, mkdirat, mknodat, openat, renameat, renameat_with, statat, symlinkat, syncfs, unlinkat,
    utimensat,
};
use rustix::io::Errno as Number;
use staging::{Owner, Staging};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use tree::{PathAt, Tree, open_regular};

/// The tree inside what is not complete.
const TREE: &str = "tree";
/// The name in the staging directory of what is being made and must not inherit.
const STAGED_NAME: &str = "new";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The system's words for an error.
fn system(error: Number) -> Failure {
    let text = std::io::Error::from(error).to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_owned();
    Failure { errno: error.raw_os_error(), reason: text }
}

fn of_io(error: std::io::Error) -> Failure {
    Failure { errno: error.raw_os_error().unwrap_or(Errno::EIO.0), reason: error.to_string() }
}

/// Whether new entries of a directory with this attribute get something from it.
fn is_handed_down(attribute: &[u8]) -> bool {
    attribute == b"system.posix_acl_default" || attribute.starts_with(b"btrfs.")
}

/// A moment at which somebody else may do something. For tests.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The staging directory was made, and not opened yet.
    StagingMade,
    /// An entry of the tree that is being copied was found, and nothing of it was read yet.
    Found,
    /// The tree is complete, and has not got its name yet.
    Complete,
    /// It has just got its name.
    Named,
}

/// See the [module](self).
pub struct Directory {
    destination: OwnedFd,
    owner: Owner,
    open: Option<Open>,
    losses: Losses,
    notices: Vec<String>,
    meanwhile: Option<Box<dyn FnMut(Moment)>>,
    trusts_names: bool,
}

/// The section that is being received.
struct Open {
    name: Vec<u8>,
    uuid: Uuid,
    transid: u64,
    staging: Staging,
    tree: Tree,
    root_times: Option<(Timespec, Timespec)>,
    /// Some directory of the tree could hand something down.
    hands_down: bool,
    /// Flags that forbid changes, by path, for the end.
    fixed: Vec<(Vec<u8>, u64)>,
}

impl Directory {
    /// Trees are made in this directory.
    pub fn open(path: &Path) -> std::io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let destination = openat(CWD, path, flags, Mode::empty())?;
        let (owner, losses) = (Owner::default(), Losses::default());
        let (notices, meanwhile, trusts_names) = (Vec::new(), None, false);
        Ok(Directory { destination, owner, open: None, losses, notices, meanwhile, trusts_names })
    }

    /// Work of somebody else meanwhile. For tests.
    #[doc(hidden)]
    pub fn meanwhile(mut self, work: Box<dyn FnMut(Moment)>) -> Directory {
        self.meanwhile = Some(work);
        self
    }

    /// A bug that tests must find: the staging directory that was opened is not compared with the one that was made.
    #[doc(hidden)]
    pub fn trusting_names(mut self) -> Directory {
        self.trusts_names = true;
        self
    }

    fn reached(&mut self, moment: Moment) {
        if let Some(work) = &mut self.meanwhile {
            work(moment);
        }
    }

    /// The losses so far.
    pub fn losses(&self) -> &[Loss] {
        self.losses.all()
    }

    /// An outcome that may be a loss and no error.
    fn may_lose(&mut self, what: &str, outcome: Outcome) -> Outcome {
        match outcome {
            Err(failure) => self.losses.take(self.destination.as_fd(), what, failure),
            Ok(()) => Ok(()),
        }
    }

    fn open_section(&mut self) -> Result<&mut Open, Failure> {
        self.open.as_mut().ok_or_else(|| Failure::new(Errno::EINVAL, "no subvolume was begun"))
    }

    fn resolve<'p>(&mut self, path: &'p [u8]) -> Result<PathAt<'p>, Failure> {
        self.open_section()?.tree.resolve(path)
    }

    fn begin_section(&mut self, section: &Section<'_>) -> Outcome {
        self.open = None;
        if marker::tree_of(section.name).is_some() {
            let reason = "a subvolume cannot have a name that a marker beside a received tree would have";
            return Err(Failure::new(Errno::EINVAL, reason));
        }
        if statat(&self.destination, section.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Failure::new(Errno::EEXIST, "File exists"));
        }
        let parent = section.parent.map(|(uuid, _)| self.find_tree(&uuid, "the parent")).transpose()?;
        let partial = partial_name(section.name);
        self.clear_away(&partial)?;
        let staging = self.make_staging(&partial)?;
        let marker = Marker { uuid: section.uuid, transid: section.transid, lost: Vec::new() };
        marker.write(staging.directory.as_fd(), marker::INSIDE.as_bytes()).map_err(of_io)?;
        mkdirat(&staging.directory, TREE, Mode::RWXU).map_err(system)?;
        let root = openat(&staging.directory, TREE, DIRECTORY, Mode::empty()).map_err(system)?;
        fchmod(&root, Mode::from_raw_mode(0o755)).map_err(system)?;
        self.losses.begin();
        let (mut copied, mut root_times) = (Copied::default(), None);
        if let Some(parent) = parent {
            let stat = fstat(&parent).map_err(system)?;
            let time = |sec, nsec: u64| Timespec { sec, nsec: nsec as u32 };
            root_times = Some((time(stat.st_atime, stat.st_atime_nsec), time(stat.st_mtime, stat.st_mtime_nsec)));
            copied = self.copy_tree(parent, root.try_clone().map_err(of_io)?)?;
        }
        self.open = Some(Open {
            name: section.name.to_vec(),
            uuid: section.uuid,
            transid: section.transid,
            staging,
            tree: Tree::new(root),
            root_times,
            hands_down: copied.hands_down,
            fixed: copied.fixed,
        });
        Ok(())
    }

    fn copy_tree(&mut self, parent: OwnedFd, root: OwnedFd) -> Result<Copied, Failure> {
        let Directory { destination, losses, meanwhile, .. } = self;
        let mut lost = |what: &str, failure| losses.take(destination.as_fd(), what, failure);
        let mut reached = |moment| meanwhile.iter_mut().for_each(|work| work(moment));
        copying::tree(parent, root, Listeners { lost: &mut lost, reached: &mut reached })
    }

    /// The complete tree that was received as `uuid`.
    fn find_tree(&mut self, uuid: &Uuid, what: &str) -> Result<OwnedFd, Failure> {
        let mut of_others = false;
        for entry in Dir::read_from(&self.destination).map_err(system)? {
            let entry = entry.map_err(system)?;
            let name = entry.file_name().to_bytes();
            let Some(tree) = marker::tree_of(name) else { continue };
            let Some((marker, owner)) = Marker::read(self.destination.as_fd(), name) else { continue };
            if marker.uuid != *uuid {
                continue;
            }
            if !self.owner.is_us(&self.destination, owner)? {
                of_others = true;
                continue;
            }
            let tree = self.tree_name(tree, name)?;
            let destination = Rc::new(self.destination.try_clone().map_err(of_io)?);
            let path_at = PathAt { directory: destination, name: &tree };
            let open = || openat(&self.destination, &tree[..], DIRECTORY, Mode::empty());
            if let Ok(tree) = permission::at(&[(&path_at, Needs::Object)], open) {
                return Ok(tree);
            }
        }
        let whose =
            if of_others { ": its marker belongs to another user, who may have written anything there" } else { "" };
        let uuid = super::words::uuid_text(uuid);
        let reason = format!("cannot find {what} {uuid} among the trees received here{whose}");
        Err(Failure::new(Errno::ENOENT, reason))
    }

    /// The name of the tree beside a marker, also where the marker's had to be cut.
    fn tree_name(&self, shown: &[u8], marker: &[u8]) -> Result<Vec<u8>, Failure> {
        if marker.len() < 255 {
            return Ok(shown.to_vec());
        }
        for entry in Dir::read_from(&self.destination).map_err(system)? {
            let entry = entry.map_err(system)?;
            if marker::name_beside(entry.file_name().to_bytes()) == marker {
                return Ok(entry.file_name().to_bytes().to_vec());
            }
        }
        Ok(shown.to_vec())
    }

    /// Makes something, so that it inherits nothing.
    fn make(&mut self, path: &[u8], make: impl Fn(&OwnedFd, &[u8]) -> Result<(), Number>) -> Outcome {
        let open = self.open_section()?;
        let path_at = open.tree.resolve(path)?;
        if !open.hands_down {
            return path_at.within(|| make(&path_at.directory, path_at.name)).map_err(system);
        }
        make(&open.staging.directory, STAGED_NAME.as_bytes()).map_err(system)?;
        let flags = RenameFlags::NOREPLACE;
        let moved = || renameat_with(&open.staging.directory, STAGED_NAME, &*path_at.directory, path_at.name, flags);
        path_at.within(moved).map_err(|error| {
            let flags = [AtFlags::empty(), AtFlags::REMOVEDIR];
            let _ = flags.iter().any(|flags| unlinkat(&open.staging.directory, STAGED_NAME, *flags).is_ok());
            system(error)
        })
    }

    fn make_special(&mut self, path: &[u8], kind: FileType, rdev: (u32, u32)) -> Outcome {
        let mode = match kind {
            FileType::Fifo | FileType::Socket => Mode::RUSR | Mode::WUSR,
            _ => Mode::empty(),
        };
        let number = rustix::fs::makedev(rdev.0, rdev.1);
        let made = self.make(path, |directory, name| mknodat(directory, name, kind, mode, number));
        match made {
            Err(failure) if failure.errno == Errno::EPERM.0 => {
                let what = format!("mknod {} {kind:?} {}:{}", String::from_utf8_lossy(path), rdev.0, rdev.1);
                self.losses.note(&what, &failure);
                self.make(path, |directory, name| {
                    mknodat(directory, name, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)
                })
            }
            other => other,
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let (old, new) = (self.resolve(from)?, self.resolve(to)?);
        let rename = || renameat(&*old.directory, old.name, &*new.directory, new.name);
        // A directory that moves is written to, because it says where it is.
        permission::at(&[(&old, Needs::Object), (&new, Needs::Directory)], rename).map_err(system)?;
        let open = self.open_section()?;
        open.tree.forget();
        for (path, _) in &mut open.fixed {
            let below = path.strip_prefix(from).filter(|rest| rest.is_empty() || rest[0] == b'/');
            if let Some(rest) = below {
                *path = [to, rest].concat();
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &[u8], flags: AtFlags) -> Outcome {
        let path_at = self.resolve(path)?;
        path_at.within(|| unlinkat(&*path_at.directory, path_at.name, flags)).map_err(system)?;
        self.open_section()?.tree.forget();
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Outcome {
        let path_at = self.resolve(path)?;
        self.open_section()?.hands_down |= is_handed_down(name);
        let set = || rustix::fs::lsetxattr(&path_at.proc_path()[..], name, value, XattrFlags::empty());
        let set = path_at.with_object(set).map_err(system);
        self.may_lose(&attribute("set_xattr", path, name), set)
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Outcome {
        let path_at = self.resolve(path)?;
        match path_at.with_object(|| rustix::fs::lremovexattr(&path_at.proc_path()[..], name)) {
            Ok(()) | Err(Number::NODATA) => Ok(()),
            Err(error) => self.may_lose(&attribute("remove_xattr", path, name), Err(system(error))),
        }
    }

    fn chown(&mut self, path: &[u8], uid: u64, gid: u64) -> Outcome {
        let number = |value: u64| {
            u32::try_from(value).map_err(|_| Failure::new(Errno::EINVAL, format!("{value} has more than 32 bits")))
        };
        let (uid, gid) = (number(uid)?, number(gid)?);
        let path_at = self.resolve(path)?;
        let mode = path_at.stat()?.st_mode;
        let (owner, group) =
            ((uid != u32::MAX).then(|| Uid::from_raw(uid)), (gid != u32::MAX).then(|| Gid::from_raw(gid)));
        let own = || chownat(&*path_at.directory, path_at.name, owner, group, AtFlags::SYMLINK_NOFOLLOW);
        let owned = path_at.within(own).map_err(system);
        // A change of the owner is none of the permissions.
        if owned.is_ok() && mode & 0o6000 != 0 && FileType::from_raw_mode(mode) != FileType::Symlink {
            Object::at(&path_at)?.set_mode(mode)?;
        }
        self.may_lose(&format!("chown {} {uid}:{gid}", String::from_utf8_lossy(path)), owned)
    }

    fn chmod(&mut self, path: &[u8], mode: u64) -> Outcome {
        let object = Object::at(&self.resolve(path)?)?;
        let mode = u32::try_from(mode).map_err(|_| Failure::new(Errno::EINVAL, "the mode has more than 32 bits"))?;
        self.open_section()?.hands_down |= object.kind() == FileType::Directory && mode & 0o2000 != 0;
        object.set_mode(mode)
    }

    fn utimes(&mut self, path: &[u8], atime: Timespec, mtime: Timespec) -> Outcome {
        if path.is_empty() {
            self.open_section()?.root_times = Some((atime, mtime));
        }
        let path_at = self.resolve(path)?;
        let times = timestamps(atime, mtime);
        let set = || utimensat(&*path_at.directory, path_at.name, &times, AtFlags::SYMLINK_NOFOLLOW);
        path_at.within(set).map_err(system)
    }

    fn share(&mut self, command: &Command<'_>) -> Outcome {
        let Command::Clone { offset, len, path, source_uuid, source, source_offset, .. } = *command else {
            return Err(Failure::new(Errno::EINVAL, "not a clone"));
        };
        let own = self.open_section()?.uuid == source_uuid;
        let from = if own {
            self.open_section()?.tree.file(source)?
        } else {
            let mut other = Tree::new(self.find_tree(&source_uuid, "the clone source's tree")?);
            Rc::new(open_regular(&other.resolve(source)?, OFlags::RDONLY)?)
        };
        let size = fstat(&*from).map_err(system)?.st_size as u64;
        let len = if len == 0 { size.saturating_sub(source_offset) } else { len };
        if source_offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Failure::new(Errno::EINVAL, format!("the range ends behind the source's {size} bytes")));
        }
        let into = self.open_section()?.tree.file(path)?;
        let inode = |file: &OwnedFd| fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).map_err(system);
        if inode(&from)? == inode(&into)? && source_offset.abs_diff(offset) < len {
            return Err(Failure::new(Errno::EINVAL, "the ranges overlap"));
        }
        content::range(&from, source_offset, &into, offset, len)
    }

    fn allocate(&mut self, path: &[u8], mode: u32, offset: u64, len: u64) -> Outcome {
        let file = self.open_section()?.tree.file(path)?;
        if ![0, 1, 3, 16, 17].contains(&mode) {
            return Err(Failure::new(Errno::EOPNOTSUPP, format!("mode {mode} is not supported")));
        }
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Failure::new(Errno::EFBIG, "the range ends behind the largest file size"))?;
        if len == 0 {
            return Err(Failure::new(Errno::EINVAL, "the range is empty"));
        }
        if mode < 2 {
            return content::preallocate(&file, offset..end, mode == 1);
        }
        // Zeros are holes, and need no room whatever the stream says.
        content::empty(&file, offset..end)?;
        if mode == 16 && end > content::size_of(&file)? {
            return ftruncate(&*file, end).map_err(system);
        }
        Ok(())
    }

    fn finish_section(&mut self) -> Outcome {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.tree.forget();
        let root = Rc::new(open.tree.root().try_clone_to_owned().map_err(of_io)?);
        if let Some((atime, mtime)) = open.root_times {
            let path_at = PathAt { directory: Rc::clone(&root), name: b"." };
            let times = timestamps(atime, mtime);
            path_at.within(|| utimensat(&*root, ".", &times, AtFlags::empty())).map_err(system)?;
        }
        let of_root = self.set_fixed_flags()?;
        let Some(open) = self.open.take() else { return Ok(()) };
        syncfs(&open.staging.directory).map_err(system)?;
        let marker = Marker { uuid: open.uuid, transid: open.transid, lost: self.losses.lines() };
        {
            // A directory that moves is written to, because it says where it is.
            let _lent = Lent::of(&*root).filter(|_| !rustix::process::geteuid().is_root());
            let mut reached = |moment| self.meanwhile.iter_mut().for_each(|work| work(moment));
            open.staging.publish(&self.destination, (TREE, &open.name), &marker, &mut reached)?;
        }
        if let Some(flags) = of_root {
            self.may_lose("fileattr of the root", flags::change(&root, flags))?;
        }
        open.staging.remove(&self.destination)
    }
}

fn attribute(verb: &str, path: &[u8], name: &[u8]) -> String {
    format!("{verb} {} of {}", String::from_utf8_lossy(name), String::from_utf8_lossy(path))
}

fn timestamps(atime: Timespec, mtime: Timespec) -> Timestamps {
    let time = |time: Timespec| rustix::fs::Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
    Timestamps { last_access: time(atime), last_modification: time(mtime) }
}

/// Takes from a new directory what it got from the one it was made in.
fn disinherit(directory: &OwnedFd) -> Outcome {
    for name in ["system.posix_acl_default", "system.posix_acl_access", "btrfs.compression"] {
        match rustix::fs::fremovexattr(directory, name) {
            Ok(()) | Err(Number::NODATA | Number::OPNOTSUPP | Number::INVAL) => {}
            Err(error) => return Err(system(error)),
        }
    }
    let group = rustix::process::getegid();
    // Only the group that is set is not ours to choose everywhere.
    let _ = rustix::fs::fchown(directory, None, Some(group));
    rustix::fs::fchmod(directory, Mode::RWXU).map_err(system)
}

fn is_empty(directory: &OwnedFd) -> Result<bool, Failure> {
    holds_only(directory, b".")
}

/// Whether a directory holds nothing, or nothing but this.
fn holds_only(directory: &OwnedFd, wanted: &[u8]) -> Result<bool, Failure> {
    for entry in Dir::read_from(directory).map_err(system)? {
        let entry = entry.map_err(system)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && name != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

impl StreamTarget for Directory {
    fn begin(&mut self, section: &Section<'_>) -> Outcome {
        self.begin_section(section)
    }

    fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    fn command(&mut self, command: &Command<'_>) -> Outcome {
        match *command {
            Command::Mkfile { path, .. } => self.make(path, |directory, name| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(drop)
            }),
            Command::Mkdir { path, .. } => self.make(path, |directory, name| mkdirat(directory, name, Mode::RWXU)),
            Command::Mkfifo { path, .. } => self.make_special(path, FileType::Fifo, (0, 0)),
            Command::Mksock { path, .. } => self.make_special(path, FileType::Socket, (0, 0)),
            Command::Mknod { path, rdev, mode, .. } => {
                let mode = u32::try_from(mode).unwrap_or_default();
                let kind = FileType::from_raw_mode(mode);
                if matches!(kind, FileType::Directory | FileType::Symlink | FileType::Unknown) {
                    return Err(Failure::new(Errno::EINVAL, "mknod makes neither directories nor symbolic links"));
                }
                self.make_special(path, kind, encoded::device_numbers(rdev)?)
            }
            Command::Symlink { path, target, .. } => {
                self.make(path, |directory, name| symlinkat(target, directory, name))
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => {
                let (old, new) = (self.resolve(existing)?, self.resolve(path)?);
                let link = || linkat(&*old.directory, old.name, &*new.directory, new.name, AtFlags::empty());
                permission::at(&[(&old, Needs::Object), (&new, Needs::Directory)], link).map_err(system)
            }
            Command::Unlink { path } => self.remove(path, AtFlags::empty()),
            Command::Rmdir { path } => self.remove(path, AtFlags::REMOVEDIR),
            Command::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Command::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Command::Write { path, offset, data } => {
                let file = self.open_section()?.tree.file(path)?;
                write_all(&file, data, offset)
            }
            Command::EncodedWrite { path, offset, .. } => {
                let file = self.open_section()?.tree.file(path)?;
                let encoded = encoded::of(command, 4096)?;
                write_all(&file, encoded.window(&encoded.decode()?), offset)
            }
            Command::Clone { .. } => self.share(command),
            Command::Truncate { path, size } => {
                let file = self.open_section()?.tree.file(path)?;
                ftruncate(&*file, size).map_err(system)
            }
            Command::Fallocate { path, mode, offset, len } => self.allocate(path, mode, offset, len),
            Command::Chmod { path, mode } => self.chmod(path, mode),
            Command::Chown { path, uid, gid } => self.chown(path, uid, gid),
            Command::Utimes { path, atime, mtime, .. } => self.utimes(path, atime, mtime),
            Command::Fileattr { path, flags } => self.set_flags(path, flags),
            Command::EnableVerity { .. }
            | Command::Subvol { .. }
            | Command::Snapshot { .. }
            | Command::End {}
            | Command::UpdateExtent { .. }
            | Command::Unknown { .. } => Err(Failure::not_carried_out(command)),
        }
    }

    fn finish(&mut self) -> Outcome {
        self.finish_section()
    }

    fn abandon(&mut self) {
        self.open = None;
    }

    fn sync(&mut self) -> Outcome {
        syncfs(&self.destination).map_err(system)
    }
}
