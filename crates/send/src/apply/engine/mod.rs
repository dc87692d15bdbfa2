//! A filesystem of ours as the target: subvolumes, through the engine, mounted or not.
//!
//! 1. What is made inherits nothing: neither default ACLs, nor properties, nor groups. The stream says what it is to
//!    be.
//! 2. A subvolume that is being received is called [`partial_name`](super::partial_name) and its root has the attribute
//!    [`MARK`]; both go when it is complete.
//!    What an interrupted receive has left is deleted by the next one of that name. A running receive holds a
//!    [claim](butterfs_fs::Claim) on the name, and another one is refused.
//! 3. The root's times are those of the last UTIMES, or the parent's, whatever temporary names passed through it.
//! 4. Every [`COMMIT_AFTER`] commands are committed, so that memory does not grow with the stream: until a commit, the
//!    blocks that a transaction has changed stay in memory.
//! 5. Immutable inodes are changed where the stream changes them, and are immutable again at the end.

mod attributes;
mod clones;
mod entries;
mod section;

use super::{Failure, Outcome, Section, StreamTarget, encoded};
use crate::wire::{Command, Timespec, Uuid};
use attributes::Gathered;
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Caller, Claim, Errno, Filesystem, InodeId, RenameMode, SetAttr, TreeId, inode_flags};
use entries::{Entries, Found};
use rustc_hash::FxHashMap;

/// The attribute of the root of a subvolume that is not complete; its value is the UUID that is being received.
pub const MARK: &[u8] = b"user.butterfs.partial";

/// See invariant 4. A command changes some hundred bytes of blocks.
const COMMIT_AFTER: u32 = 50_000;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// Flags of an inode that forbid changes.
const FIXED: u64 = inode_flags::IMMUTABLE | inode_flags::APPEND;
/// Flags that a stream can set. Those of compression follow from the property, which is an attribute: setting them
/// would set the property to what the mount compresses with.
const SETTABLE: u64 = LATE | inode_flags::NODUMP | inode_flags::NOATIME;
/// Flags that are set when the section is complete: those, and the ones that make changes slow.
const LATE: u64 = FIXED | inode_flags::SYNC | inode_flags::DIRSYNC;

/// Told of each entry of a directory outside the section that came or went.
pub type Changed<'a> = Box<dyn FnMut(InodeId, &[u8]) + 'a>;

/// Told of an entry that nobody may follow from now on (true), also before there is one, or may follow again.
pub type Closed<'a> = Box<dyn FnMut(InodeId, &[u8], bool) + 'a>;

/// See the [module](self).
pub struct Engine<'a> {
    filesystem: Filesystem,
    destination: InodeId,
    force_decompress: bool,
    /// The messages to the user about the section that begins.
    notices: Vec<String>,
    changed: Changed<'a>,
    closed: Closed<'a>,
    entries: Entries,
    gathered: Gathered,
    open: Option<Open>,
    /// Commands since the last commit.
    uncommitted: u32,
    /// Subvolumes by the UUID that streams know them by.
    known: FxHashMap<Uuid, TreeId>,
}

/// The section that is being received.
struct Open {
    name: Vec<u8>,
    uuid: Uuid,
    transid: u64,
    root: InodeId,
    /// Times that the root is to have.
    root_times: Option<(Timespec, Timespec)>,
    /// Flags of inodes that are set when everything else is done, where some are [`LATE`].
    flags: FxHashMap<InodeId, u64>,
    _claim: Claim,
}

impl<'a> Engine<'a> {
    /// Subvolumes are made in the directory `destination`.
    pub fn new(filesystem: Filesystem, destination: InodeId) -> Engine<'a> {
        Engine {
            filesystem,
            destination,
            force_decompress: false,
            notices: Vec::new(),
            changed: Box::new(|_, _| {}),
            closed: Box::new(|_, _, _| {}),
            entries: Entries::default(),
            gathered: Gathered::default(),
            open: None,
            uncommitted: 0,
            known: FxHashMap::default(),
        }
    }

    /// Encoded writes are decoded and written as plain data.
    pub fn force_decompress(mut self, force: bool) -> Engine<'a> {
        self.force_decompress = force;
        self
    }

    /// Sets the listener for entries of the destination that came or went.
    pub fn on_change(mut self, changed: Changed<'a>) -> Engine<'a> {
        self.changed = changed;
        self
    }

    /// Sets the guard that keeps others out of the incomplete subvolume.
    pub fn on_close(mut self, closed: Closed<'a>) -> Engine<'a> {
        self.closed = closed;
        self
    }

    fn root(&self) -> Result<InodeId, Failure> {
        let open = self.open.as_ref();
        open.map(|open| open.root).ok_or_else(|| Failure::new(Errno::EINVAL, "no subvolume was begun"))
    }

    fn find(&mut self, path: &[u8]) -> Result<Found, Failure> {
        let root = self.root()?;
        self.entries.find(&self.filesystem, root, path)
    }

    /// A regular file.
    fn file(&mut self, path: &[u8]) -> Result<InodeId, Failure> {
        let found = self.find(path)?;
        match found.kind {
            mode::S_IFREG => Ok(found.id),
            mode::S_IFLNK => Err(Failure::new(Errno::ELOOP, "it is a symbolic link, which is not followed")),
            _ => Err(Failure::new(Errno::EINVAL, "it is not a regular file")),
        }
    }

    fn make(&mut self, path: &[u8], file_mode: u32, rdev: (u32, u32), target: &[u8]) -> Outcome {
        let root = self.root()?;
        let (directory, name) = self.entries.resolve(&self.filesystem, root, path)?;
        let attr =
            self.changing(&[directory], |filesystem| filesystem.make_bare(directory, name, file_mode, rdev, target))?;
        self.filesystem.forget(attr.id, 1);
        self.entries.learn(directory, name, Found { id: attr.id, kind: attr.kind() });
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let root = self.root()?;
        let moved = self.find(from)?;
        let (old, old_name) = self.entries.resolve(&self.filesystem, root, from)?;
        let (new, new_name) = self.entries.resolve(&self.filesystem, root, to)?;
        let replaced = match self.entries.find(&self.filesystem, root, to) {
            Ok(found) => Some(found),
            Err(failure) if failure.errno == Errno::ENOENT.0 => None,
            Err(failure) => return Err(failure),
        };
        if replaced.is_some_and(|replaced| replaced.id == moved.id) {
            // Two names of one inode: as rename(2) has it, both stay.
            return Ok(());
        }
        let involved: Vec<InodeId> =
            [Some(old), Some(new), Some(moved.id), replaced.map(|found| found.id)].into_iter().flatten().collect();
        self.changing(&involved, |filesystem| filesystem.rename(old, old_name, new, new_name, RenameMode::Replace))?;
        self.entries.forget(old, old_name);
        self.entries.forget_removed(new, new_name)?;
        self.entries.learn(new, new_name, moved);
        Ok(())
    }

    fn link(&mut self, path: &[u8], existing: &[u8]) -> Outcome {
        let root = self.root()?;
        let found = self.find(existing)?;
        let (directory, name) = self.entries.resolve(&self.filesystem, root, path)?;
        self.changing(&[directory, found.id], |filesystem| filesystem.link(found.id, directory, name))?;
        self.filesystem.forget(found.id, 1);
        self.entries.learn(directory, name, found);
        Ok(())
    }

    fn remove(&mut self, path: &[u8], is_directory: bool) -> Outcome {
        let root = self.root()?;
        let found = self.find(path)?;
        let (directory, name) = self.entries.resolve(&self.filesystem, root, path)?;
        match (is_directory, found.is_directory()) {
            (true, false) => return Err(Failure::new(Errno::ENOTDIR, "it is not a directory")),
            (false, true) => return Err(Failure::new(Errno::EISDIR, "it is a directory")),
            _ => {}
        }
        self.changing(&[directory, found.id], |filesystem| match is_directory {
            true => filesystem.rmdir(directory, name),
            false => filesystem.unlink(directory, name),
        })?;
        self.entries.forget_removed(directory, name)
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Outcome {
        let id = self.find(path)?.id;
        self.changing(&[id], |filesystem| filesystem.set_xattr(&ROOT, id, name, value, 0))
    }

    /// Removes an attribute. That it is not there is what the stream wants.
    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Outcome {
        let id = self.find(path)?.id;
        match self.changing(&[id], |filesystem| filesystem.remove_xattr(&ROOT, id, name)) {
            Err(failure) if failure.errno == Errno::ENODATA.0 => Ok(()),
            other => other,
        }
    }

    fn encoded_write(&mut self, path: &[u8], offset: u64, command: &Command<'_>) -> Outcome {
        let id = self.file(path)?;
        let sectorsize = self.filesystem.superblock().sectorsize.get();
        let encoded = encoded::of(command, sectorsize)?;
        let keep = !self.force_decompress;
        self.changing(&[id], |filesystem| filesystem.write_encoded(id, offset, &encoded, keep))
    }

    /// Sets flags of an inode, those that forbid changes when the section is complete.
    fn set_flags(&mut self, path: &[u8], flags: u64) -> Outcome {
        let id = self.find(path)?.id;
        self.set_storing(id, flags)?;
        self.filesystem.set_flags(id, flags, SETTABLE & !LATE)?;
        let open = self.open.as_mut().ok_or_else(|| Failure::new(Errno::EINVAL, "no subvolume was begun"))?;
        if flags & LATE != 0 {
            open.flags.insert(id, flags & SETTABLE);
        } else {
            open.flags.remove(&id);
            self.filesystem.set_flags(id, 0, LATE)?;
        }
        Ok(())
    }

    /// Sets how content is stored: whether it is copied on write while there is none, and that it is not compressed
    /// unless the property says that it is.
    fn set_storing(&mut self, id: InodeId, flags: u64) -> Outcome {
        let attr = self.filesystem.getattr(id)?;
        let is_open = attr.kind() == mode::S_IFDIR || attr.kind() == mode::S_IFREG && attr.size == 0;
        for flag in [inode_flags::NODATACOW, inode_flags::NOCOMPRESS] {
            let takes = is_open || flag == inode_flags::NOCOMPRESS && attr.kind() == mode::S_IFREG;
            if !takes || (attr.flags ^ flags) & flag == 0 {
                continue;
            }
            match self.changing(&[id], |filesystem| filesystem.set_flags(id, flags, flag)) {
                Err(failure) if failure.errno == Errno::EINVAL.0 => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn set_attributes(&mut self, path: &[u8], add: impl FnOnce(&mut Gathered, InodeId) -> Outcome) -> Outcome {
        let found = self.find(path)?;
        if !self.gathered.takes(found.id) {
            self.settle()?;
        }
        add(&mut self.gathered, found.id)
    }

    /// Sets what was gathered.
    fn settle(&mut self) -> Outcome {
        let filesystem = self.filesystem.clone();
        let Some((id, set)) = self.gathered.take(|id| filesystem.getattr(id).ok()) else { return Ok(()) };
        self.changing(&[id], |filesystem| filesystem.setattr(&ROOT, id, &set)).map(drop)
    }

    fn commit_now_and_then(&mut self) -> Outcome {
        self.uncommitted += 1;
        if self.uncommitted >= COMMIT_AFTER {
            self.uncommitted = 0;
            self.filesystem.sync()?;
        }
        Ok(())
    }

    /// Does something to inodes, of which some may have to lose flags that forbid it until the section is complete.
    fn changing<R>(
        &mut self,
        ids: &[InodeId],
        change: impl Fn(&Filesystem) -> butterfs_fs::Result<R>,
    ) -> Result<R, Failure> {
        match change(&self.filesystem) {
            Err(error) if error.is(Errno::EPERM) && self.lift(ids)? => Ok(change(&self.filesystem)?),
            other => Ok(other?),
        }
    }

    /// Takes flags that forbid changes from these inodes; false when none of them has any.
    fn lift(&mut self, ids: &[InodeId]) -> Result<bool, Failure> {
        let mut lifted = false;
        for &id in ids {
            let flags = self.filesystem.getattr(id)?.flags;
            if flags & FIXED == 0 {
                continue;
            }
            self.filesystem.set_flags(id, 0, FIXED)?;
            if let Some(open) = &mut self.open {
                open.flags.entry(id).or_insert(flags & SETTABLE);
            }
            lifted = true;
        }
        Ok(lifted)
    }
}

/// Whether a command only adds to what is gathered.
fn is_gathered(command: &Command<'_>) -> bool {
    matches!(command, Command::Chmod { .. } | Command::Chown { .. } | Command::Utimes { .. })
}

fn number(value: u64, what: &str) -> Result<u32, Failure> {
    u32::try_from(value).map_err(|_| Failure::new(Errno::EINVAL, format!("{what} {value} has more than 32 bits")))
}

/// Admits others to the remains.
impl Drop for Engine<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl StreamTarget for Engine<'_> {
    fn begin(&mut self, section: &Section<'_>) -> Outcome {
        self.begin_section(section)
    }

    fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    fn command(&mut self, command: &Command<'_>) -> Outcome {
        if !is_gathered(command) {
            self.settle()?;
            self.commit_now_and_then()?;
        }
        match *command {
            Command::Mkfile { path, .. } => self.make(path, mode::S_IFREG | 0o600, (0, 0), b""),
            Command::Mkdir { path, .. } => self.make(path, mode::S_IFDIR | 0o700, (0, 0), b""),
            Command::Mkfifo { path, .. } => self.make(path, mode::S_IFIFO | 0o600, (0, 0), b""),
            Command::Mksock { path, .. } => self.make(path, mode::S_IFSOCK | 0o600, (0, 0), b""),
            Command::Symlink { path, target, .. } => self.make(path, mode::S_IFLNK | 0o777, (0, 0), target),
            Command::Mknod { path, rdev, mode: file_mode, .. } => {
                let kind = number(file_mode, "the mode")? & mode::S_IFMT;
                if matches!(kind, mode::S_IFDIR | mode::S_IFLNK) {
                    return Err(Failure::new(Errno::EINVAL, "mknod makes neither directories nor symbolic links"));
                }
                self.make(path, kind, encoded::device_numbers(rdev)?, b"")
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => self.link(path, existing),
            Command::Unlink { path } => self.remove(path, false),
            Command::Rmdir { path } => self.remove(path, true),
            Command::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Command::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Command::Write { path, offset, data } => {
                let id = self.file(path)?;
                self.changing(&[id], |filesystem| filesystem.write(id, offset, data, false)).map(drop)
            }
            Command::EncodedWrite { path, offset, .. } => self.encoded_write(path, offset, command),
            Command::Clone { .. } => self.share(command),
            Command::Truncate { path, size } => {
                let id = self.file(path)?;
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                self.changing(&[id], |filesystem| filesystem.setattr(&ROOT, id, &set)).map(drop)
            }
            Command::Fallocate { path, mode, offset, len } => {
                let id = self.file(path)?;
                self.changing(&[id], |filesystem| filesystem.fallocate(id, mode, offset, len, false))
            }
            Command::Chmod { path, mode: permissions } => {
                if self.find(path)?.kind == mode::S_IFLNK {
                    return Err(Failure::new(Errno::ELOOP, "it is a symbolic link, which has no permissions"));
                }
                let permissions = number(permissions, "the mode")?;
                self.set_attributes(path, |gathered, id| {
                    gathered.permit(id, permissions);
                    Ok(())
                })
            }
            Command::Chown { path, uid, gid } => {
                let (uid, gid) = (number(uid, "the owner")?, number(gid, "the group")?);
                self.set_attributes(path, |gathered, id| {
                    gathered.own(id, uid, gid);
                    Ok(())
                })
            }
            Command::Utimes { path, atime, mtime, .. } => {
                if path.is_empty()
                    && let Some(open) = &mut self.open
                {
                    open.root_times = Some((atime, mtime));
                }
                self.set_attributes(path, |gathered, id| {
                    gathered.time(id, atime, mtime);
                    Ok(())
                })
            }
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
        // What was gathered belongs to a subvolume that nobody will use.
        let _ = self.settle();
        self.close();
    }

    fn sync(&mut self) -> Outcome {
        Ok(self.filesystem.sync()?)
    }
}
