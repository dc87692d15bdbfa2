//! Operations run on the engine itself, without a mount.
//!
//! Invariants: (1) paths are walked name by name for every operation, and what a walk retained is given back; (2) an
//! open handle is an `acquire`, given back by `release`; (3) symbolic links are not followed.

use crate::operation::{
    AllocateHow, Attributes, Kind, Moment, Object, Op, OperationTarget, Outcome, RelPath, RenameHow, Reply,
};
use butterfs_fs::{Attr, Caller, Filesystem, InodeId, RenameMode, SetAttr, SetTime};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Root, without a umask.
pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// A folder of an open filesystem in which operations are run.
#[derive(Clone)]
pub struct Library {
    filesystem: Filesystem,
    root: InodeId,
    handles: BTreeMap<u32, InodeId>,
    said: Rc<RefCell<String>>,
}

type Answer<T> = Result<T, Errno>;

impl Library {
    /// Operations are relative to the shown root.
    pub fn new(filesystem: &Filesystem) -> Library {
        Library {
            filesystem: filesystem.clone(),
            root: filesystem.root(),
            handles: BTreeMap::new(),
            said: Rc::default(),
        }
    }

    /// Operations are relative to the folder `path`.
    pub fn below(filesystem: &Filesystem, path: &RelPath) -> Library {
        let mut library = Library::new(filesystem);
        library.root = library.walk(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        library
    }

    /// The sentence of the last error.
    pub fn said(&self) -> String {
        self.said.borrow().clone()
    }

    /// The inode at `path`, of which no reference is kept.
    pub fn find(&self, path: &RelPath) -> Answer<InodeId> {
        self.at(path, |_, id| Ok(id))
    }

    /// The inode at `path`, retained once unless it is the root.
    pub fn retain(&self, path: &RelPath) -> Answer<InodeId> {
        self.walk(path)
    }

    /// The inode that an operation on `object` would be about.
    pub fn find_object(&self, object: &Object) -> Answer<InodeId> {
        self.on(object, |_, id| Ok(id))
    }

    /// The engine's errno as the system's.
    fn errno(&self, error: butterfs_fs::Error) -> Errno {
        *self.said.borrow_mut() = error.to_string();
        Errno::from_raw_os_error(error.errno().0)
    }

    /// The inode at `path`, retained once unless it is the root.
    fn walk(&self, path: &RelPath) -> Answer<InodeId> {
        let mut id = self.root;
        for name in path.names() {
            let found = self.filesystem.lookup(id, name).map(|attr| attr.id).map_err(|error| self.errno(error));
            self.give_back(id);
            id = found?;
        }
        Ok(id)
    }

    fn give_back(&self, id: InodeId) {
        if id != self.root {
            self.filesystem.forget(id, 1);
        }
    }

    fn at<T>(&self, path: &RelPath, run: impl FnOnce(&Filesystem, InodeId) -> butterfs_fs::Result<T>) -> Answer<T> {
        let id = self.walk(path)?;
        let outcome = run(&self.filesystem, id).map_err(|error| self.errno(error));
        self.give_back(id);
        outcome
    }

    fn on<T>(&self, object: &Object, run: impl FnOnce(&Filesystem, InodeId) -> butterfs_fs::Result<T>) -> Answer<T> {
        match object {
            Object::Path(path) => self.at(path, run),
            Object::Handle(handle) => {
                let id = *self.handles.get(handle).ok_or(Errno::BADF)?;
                run(&self.filesystem, id).map_err(|error| self.errno(error))
            }
        }
    }

    /// As `on`, for what the system does through an open regular file.
    fn on_file<T>(
        &self,
        object: &Object,
        run: impl FnOnce(&Filesystem, InodeId) -> butterfs_fs::Result<T>,
    ) -> Answer<T> {
        let attr = self.on(object, |filesystem, id| filesystem.getattr(id))?;
        match Kind::of_mode(attr.mode) {
            Kind::File => self.on(object, run),
            Kind::Folder => Err(Errno::ISDIR),
            Kind::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::INVAL),
        }
    }

    /// Runs on the folder of `path` and its last name.
    fn in_folder<T>(
        &self,
        path: &RelPath,
        run: impl FnOnce(&Filesystem, InodeId, &[u8]) -> butterfs_fs::Result<T>,
    ) -> Answer<T> {
        let (folder, name) = path.split().ok_or(Errno::BUSY)?;
        // The system never asks a filesystem for a name in what is no folder.
        let attr = self.at(&folder, |filesystem, id| filesystem.getattr(id))?;
        if Kind::of_mode(attr.mode) != Kind::Folder {
            return Err(Errno::NOTDIR);
        }
        self.at(&folder, |filesystem, id| run(filesystem, id, name))
    }

    fn make(
        &self,
        path: &RelPath,
        run: impl FnOnce(&Filesystem, InodeId, &[u8]) -> butterfs_fs::Result<Attr>,
    ) -> Answer<()> {
        let attr = self.in_folder(path, run)?;
        self.give_back(attr.id);
        Ok(())
    }

    fn names(&mut self, op: &Op) -> Option<Answer<()>> {
        Some(match op {
            Op::Create { path, mode } => self.make(path, |fs, folder, name| fs.create(&ROOT, folder, name, *mode)),
            Op::Mkdir { path, mode } => self.make(path, |fs, folder, name| fs.mkdir(&ROOT, folder, name, *mode)),
            Op::Mknod { path, kind, mode, major, minor } => {
                let mode = mode | kind.mode_bits();
                self.make(path, |fs, folder, name| fs.mknod(&ROOT, folder, name, mode, (*major, *minor)))
            }
            Op::Symlink { path, target } => {
                self.make(path, |fs, folder, name| fs.symlink(&ROOT, folder, name, &target.0))
            }
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.in_folder(path, |fs, folder, name| fs.unlink(folder, name)),
            Op::Rmdir { path } => self.in_folder(path, |fs, folder, name| fs.rmdir(folder, name)),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Open { path, handle } => self.open(path, *handle),
            Op::Tmpfile { folder, mode, handle } => self.tmpfile(folder, *mode, *handle),
            Op::Close { handle } => match self.handles.remove(handle) {
                Some(id) => {
                    self.filesystem.release(id);
                    Ok(())
                }
                None => Err(Errno::BADF),
            },
            _ => return None,
        })
    }

    fn link(&self, from: &RelPath, to: &RelPath) -> Answer<()> {
        let id = self.walk(from)?;
        // The system looks at the new name before it looks at what is to be linked.
        if self.at(to, |_, _| Ok(())).is_ok() {
            self.give_back(id);
            return Err(Errno::EXIST);
        }
        let made = self.make(to, |fs, folder, name| fs.link(id, folder, name));
        self.give_back(id);
        made
    }

    /// Renames that the system refuses before it asks a filesystem: moving a folder into itself, or over what holds it.
    fn rename_refusal(&self, from: &RelPath, to: &RelPath, how: RenameHow) -> Answer<()> {
        let exists = |path: &RelPath| self.at(path, |_, _| Ok(())).is_ok();
        let is_folder = |path: &RelPath| {
            let attr = self.at(path, |filesystem, id| filesystem.getattr(id));
            attr.is_ok_and(|attr| Kind::of_mode(attr.mode) == Kind::Folder)
        };
        let (from_folder, _) = from.split().ok_or(Errno::BUSY)?;
        let (to_folder, to_name) = to.split().ok_or(Errno::BUSY)?;
        if !is_folder(&from_folder) || !is_folder(&to_folder) {
            return Ok(());
        }
        if to_name.len() > crate::names::NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if from.is_above(to) && exists(from) {
            let taken = how == RenameHow::NoReplace && exists(to);
            let missing = how == RenameHow::Exchange && !exists(to);
            return Err(if taken {
                Errno::EXIST
            } else if missing {
                Errno::NOENT
            } else {
                Errno::INVAL
            });
        }
        match how {
            _ if !to.is_above(from) || !exists(from) => Ok(()),
            RenameHow::NoReplace => Err(Errno::EXIST),
            RenameHow::Exchange => Err(Errno::INVAL),
            RenameHow::Replace | RenameHow::Whiteout => Err(Errno::NOTEMPTY),
        }
    }

    fn rename(&self, from: &RelPath, to: &RelPath, how: RenameHow) -> Answer<()> {
        self.rename_refusal(from, to, how)?;
        let how = match how {
            RenameHow::Replace => RenameMode::Replace,
            RenameHow::NoReplace => RenameMode::NoReplace,
            RenameHow::Exchange => RenameMode::Exchange,
            RenameHow::Whiteout => RenameMode::Whiteout { caller: ROOT, replace: true },
        };
        let (old, old_name) = from.split().ok_or(Errno::BUSY)?;
        let old = self.walk(&old)?;
        let done = self.in_folder(to, |fs, new, new_name| fs.rename(old, old_name, new, new_name, how));
        self.give_back(old);
        done
    }

    fn open(&mut self, path: &RelPath, handle: u32) -> Answer<()> {
        let id = self.on_file(&Object::Path(path.clone()), |fs, id| {
            fs.acquire(id);
            Ok(id)
        })?;
        self.handles.insert(handle, id);
        Ok(())
    }

    fn tmpfile(&mut self, folder: &RelPath, mode: u32, handle: u32) -> Answer<()> {
        let id = self.at(folder, |fs, id| {
            let attr = fs.tmpfile(&ROOT, id, mode)?;
            fs.acquire(attr.id);
            fs.forget(attr.id, 1);
            Ok(attr.id)
        })?;
        self.handles.insert(handle, id);
        Ok(())
    }

    fn change(&self, op: &Op) -> Option<Answer<()>> {
        let set =
            |object: &Object, changes: SetAttr| self.on(object, |fs, id| fs.setattr(&ROOT, id, &changes).map(drop));
        Some(match op {
            Op::Truncate { object, size } => {
                let changes = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.on_file(object, |fs, id| fs.setattr(&ROOT, id, &changes).map(drop))
            }
            Op::Allocate { object, how, offset, len } => {
                let mode = match how {
                    AllocateHow::Extend => 0,
                    AllocateHow::KeepSize => 1,
                    AllocateHow::PunchHole => 3,
                    AllocateHow::ZeroRange => 0x10,
                };
                self.on_file(object, |fs, id| fs.fallocate(id, mode, *offset, *len, false))
            }
            Op::Chmod { object, mode } => set(object, SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Op::Chown { path, uid, gid } => {
                set(&Object::Path(path.clone()), SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
            }
            Op::SetTimes { path, atime, mtime } => {
                let time = |moment: &Moment| butterfs_fs::env::Time { sec: moment.sec, nsec: moment.nsec };
                let (atime, mtime) = (Some(SetTime::At(time(atime))), Some(SetTime::At(time(mtime))));
                set(&Object::Path(path.clone()), SetAttr { atime, mtime, ..SetAttr::default() })
            }
            Op::SetXattr { path, name, value, create, replace } => {
                let flags = u32::from(*create) | u32::from(*replace) << 1;
                self.at(path, |fs, id| fs.set_xattr(&ROOT, id, name.as_bytes(), &value.bytes(), flags))
            }
            Op::RemoveXattr { path, name } => self.at(path, |fs, id| fs.remove_xattr(&ROOT, id, name.as_bytes())),
            Op::Fsync { object, data_only } => self.on(object, |fs, id| fs.fsync(id, *data_only)),
            Op::Sync => self.filesystem.sync().map_err(|error| self.errno(error)),
            _ => return None,
        })
    }

    fn ask(&self, op: &Op) -> Outcome {
        match op {
            Op::Read { object, offset, len } => self.on_file(object, |fs, id| {
                let mut bytes = Vec::new();
                fs.read(id, *offset, *len, &mut bytes)?;
                Ok(Reply::Bytes(bytes))
            }),
            Op::Write { object, offset, content } => self.on_file(object, |fs, id| {
                let written = fs.write(id, *offset, &content.bytes(), false)?;
                Ok(Reply::Count(written as u64))
            }),
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let source = self.on_file(&Object::Path(from.clone()), |_, id| Ok(id))?;
                self.on_file(&Object::Path(to.clone()), |fs, target| {
                    fs.copy_range((source, *from_offset), (target, *to_offset), *len).map(Reply::Count)
                })
            }
            Op::GetXattr { path, name } => self.at(path, |fs, id| fs.get_xattr(id, name.as_bytes()).map(Reply::Bytes)),
            Op::ListXattrs { path } => self.at(path, |fs, id| {
                let list = fs.list_xattrs(id)?;
                let mut names: Vec<Vec<u8>> = list.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
                names.retain(|name| !name.is_empty());
                names.sort();
                Ok(Reply::Names(names))
            }),
            Op::Stat { object } => {
                self.on(object, |fs, id| fs.getattr(id).map(|attr| Reply::Attributes(attributes(&attr))))
            }
            Op::ReadFolder { path } => self.at(path, |fs, id| {
                let mut entries = entries(fs, id)?;
                entries.sort();
                Ok(Reply::Entries(entries))
            }),
            Op::ReadLink { path } => self.at(path, |fs, id| fs.readlink(id).map(Reply::Bytes)),
            _ => unreachable!("{op:?} is no question"),
        }
    }
}

impl OperationTarget for Library {
    fn apply(&mut self, op: &Op) -> Outcome {
        match self.names(op).or_else(|| self.change(op)) {
            Some(outcome) => outcome.map(|()| Reply::Done),
            None => self.ask(op),
        }
    }
}

/// Names and kinds in a folder, without `.` and `..`; listed in several calls, as a transport does.
pub(crate) fn entries(filesystem: &Filesystem, folder: InodeId) -> butterfs_fs::Result<Vec<(Vec<u8>, Kind)>> {
    const AT_ONCE: usize = 100;
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        let mut count = 0;
        filesystem.readdir(folder, offset, &mut |entry| {
            count += 1;
            offset = entry.offset_next;
            if entry.name != b"." && entry.name != b".." {
                found.push((entry.name.to_vec(), Kind::of_mode(u32::from(entry.kind) << 12)));
            }
            count < AT_ONCE
        })?;
        if count < AT_ONCE {
            return Ok(found);
        }
    }
}

fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        kind: Kind::of_mode(attr.mode),
        mode: attr.mode & 0o7777,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        device: attr.rdev,
        mtime: Some(Moment { sec: attr.mtime.sec, nsec: attr.mtime.nsec }),
    }
}
