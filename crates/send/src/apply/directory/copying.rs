//! Copying a whole tree, which an incremental stream then changes.
//!
//! 1. Where the filesystem can share content, copies share it; holes stay holes.
//! 2. Nothing of the source is changed or followed. Content, owner, permissions and attributes of a copy are those of
//!    one inode, whatever names others exchange meanwhile: who may change the source's names must not get a file of
//!    their own content with another's owner and set-id bits.
//! 3. A constant number of descriptors is open, however deep the tree is and however many hard links there are.

use super::super::{Failure, Outcome};
use super::descent::Descent;
use super::links::Links;
use super::object::{Object, path_of};
use super::permission::{self, Needs};
use super::tree::{PathAt, Tree};
use super::{Moment, content, flags, system};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat, fstat, linkat, mkdirat,
    mknodat, openat, readlinkat, symlinkat, utimensat,
};
use rustix::io::Errno as Number;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// The identity to record for the copy.
#[derive(Default)]
pub(super) struct Copied {
    /// Whether something was met that directories hand down to what is made in them.
    pub hands_down: bool,
    /// Flags that forbid changes, by path, for the end.
    pub fixed: Vec<(Vec<u8>, u64)>,
}

/// The listeners for events.
pub(super) struct Listeners<'l> {
    /// Decides about what cannot be kept: an error ends the copying.
    pub lost: &'l mut dyn FnMut(&str, Failure) -> Outcome,
    pub reached: &'l mut dyn FnMut(Moment),
}

/// Copies what is in one directory into another, and then what is known of the directory itself.
pub(super) fn tree(source: OwnedFd, target: OwnedFd, listeners: Listeners<'_>) -> Result<Copied, Failure> {
    let copy = Tree::new(target.try_clone().map_err(super::of_io)?);
    let (source, target) = (Descent::new(source), Descent::new(target));
    let mut copier = Copier { source, target, copy, links: Links::new(), listeners, copied: Copied::default() };
    copier.run()?;
    Ok(copier.copied)
}

enum Task {
    Enter(Vec<u8>),
    Leave,
}

struct Copier<'l> {
    source: Descent,
    target: Descent,
    /// The target, for the first names of hard links.
    copy: Tree,
    links: Links,
    listeners: Listeners<'l>,
    copied: Copied,
}

impl Copier<'_> {
    fn run(&mut self) -> Outcome {
        let mut todo = Vec::new();
        self.entries(&mut todo)?;
        while let Some(task) = todo.pop() {
            match task {
                Task::Enter(name) => {
                    self.source.down(&name)?;
                    mkdirat(&**self.target.at(), &name[..], Mode::RWXU).map_err(system)?;
                    self.target.down(&name)?;
                    self.links.down();
                    todo.push(Task::Leave);
                    self.entries(&mut todo)?;
                }
                Task::Leave => {
                    let left = self.flags_of_directory()?;
                    let name = self.source.up()?;
                    self.target.up()?;
                    self.links.up();
                    self.describe_directory(&left, &name)?;
                }
            }
        }
        let root = self.flags_of_directory()?;
        self.describe_directory(&root, b".")
    }

    /// Copies what is in the directory, and notes the directories among it.
    fn entries(&mut self, todo: &mut Vec<Task>) -> Outcome {
        let here = Descent::new(self.source.at().try_clone().map_err(super::of_io)?);
        here.each_name(&mut |name| {
            let found = Object::at(&self.source.resolve(name))?;
            (self.listeners.reached)(Moment::Found);
            if found.kind() == FileType::Directory {
                todo.push(Task::Enter(name.to_vec()));
                return Ok(());
            }
            self.entry(&found, name)
        })
    }

    fn flags_of_directory(&mut self) -> Result<Rc<OwnedFd>, Failure> {
        let (source, target) = (Rc::clone(self.source.at()), Rc::clone(self.target.at()));
        self.flags(&source, &target, b".")?;
        Ok(source)
    }

    fn describe_directory(&mut self, source: &Rc<OwnedFd>, name: &[u8]) -> Outcome {
        let stat = fstat(&**source).map_err(system)?;
        self.copied.hands_down |= stat.st_mode & 0o2000 != 0;
        self.describe(source.as_fd(), &stat, &self.target.resolve(name))
    }

    fn entry(&mut self, found: &Object, name: &[u8]) -> Outcome {
        let to = self.target.resolve(name);
        let stat = &found.stat;
        if stat.st_nlink > 1
            && let Some(path) = self.links.path(found.identity())
        {
            let first = self.copy.resolve(&path)?;
            let link = || linkat(&*first.directory, first.name, &*to.directory, name, AtFlags::empty());
            return permission::at(&[(&first, Needs::Object)], link).map_err(system);
        }
        match found.kind() {
            FileType::RegularFile => {
                let source = found.open(OFlags::RDONLY)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let target = openat(&*to.directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(system)?;
                self.flags(&source, &target, name)?;
                content::whole(&source, &target, stat.st_size as u64)?;
            }
            FileType::Symlink => {
                let text = readlinkat(found, "", Vec::new()).map_err(system)?;
                symlinkat(text.as_bytes(), &*to.directory, name).map_err(system)?;
            }
            kind => mknodat(&*to.directory, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev).map_err(system)?,
        }
        if stat.st_nlink > 1 {
            self.links.note(found.identity(), stat.st_nlink, name, self.target.names());
        }
        self.describe(found.as_fd(), stat, &to)
    }

    /// Copies flags but those that forbid changes, which are noted.
    fn flags(&mut self, source: &OwnedFd, target: &OwnedFd, name: &[u8]) -> Outcome {
        let found = flags::of(source);
        if found == 0 {
            return Ok(());
        }
        let path = self.target.path_of(name);
        if let Err(failure) = flags::change(target, found & !flags::FIXED) {
            (self.listeners.lost)(&format!("fileattr {}", String::from_utf8_lossy(&path)), failure)?;
        }
        if found & flags::FIXED != 0 {
            self.copied.fixed.push((path, found));
        }
        Ok(())
    }

    /// Owner, permissions, attributes, times.
    fn describe(&mut self, from: BorrowedFd<'_>, stat: &Stat, to: &PathAt<'_>) -> Outcome {
        let shown = String::from_utf8_lossy(to.name).into_owned();
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let owned = chownat(&*to.directory, to.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        if let Err(error) = owned {
            (self.listeners.lost)(&format!("chown {shown}"), system(error))?;
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            Object::at(to)?.set_mode(stat.st_mode)?;
        }
        self.attributes(from, to, &shown)?;
        let set = || utimensat(&*to.directory, to.name, &times(stat), AtFlags::SYMLINK_NOFOLLOW);
        to.within(set).map_err(system)
    }

    fn attributes(&mut self, from: BorrowedFd<'_>, to: &PathAt<'_>, shown: &str) -> Outcome {
        let path = path_of(from);
        let list = || {
            let mut names = vec![0; 65_536];
            rustix::fs::listxattr(&path, &mut names).map(|len| names[..len].to_vec())
        };
        let names = match permission::of_object(from, list) {
            Err(Number::OPNOTSUPP) => return Ok(()),
            listed => listed.map_err(system)?,
        };
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let get = || {
                let mut value = vec![0; 65_536];
                rustix::fs::getxattr(&path, name, &mut value).map(|len| value[..len].to_vec())
            };
            let value = permission::of_object(from, get).map_err(system)?;
            self.copied.hands_down |= super::is_handed_down(name);
            let set = || rustix::fs::lsetxattr(&to.proc_path()[..], name, &value, XattrFlags::empty());
            if let Err(error) = to.with_object(set) {
                let what = format!("set_xattr {} of {shown}", String::from_utf8_lossy(name));
                (self.listeners.lost)(&what, system(error))?;
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
