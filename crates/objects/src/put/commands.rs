//! Commands of a stream as edits of the index.

use super::{Open, failure, refused};
use crate::items::{
    self, DIRECTORY, ENTRY, Extent, INODE, Inode, LINK_TEXT, NAME, REGULAR, SYMLINK, XATTR, key, parts,
};
use crate::manifest::{self, Listing};
use crate::view::View;
use butterfs_fs::Errno;
use butterfs_send::apply::{Failure, Outcome};
use butterfs_send::wire::{Command, Timespec, Uuid};

/// The modes of special files.
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;
const PERMISSIONS: u32 = 0o7_777;
/// Flags of `fallocate(2)`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

impl Open {
    /// Carries out one command.
    pub(super) fn carry_out(&mut self, command: &Command<'_>) -> Outcome {
        // Other commands may read the size of the file that is being written.
        if !matches!(command, Command::Write { .. }) {
            self.end_piece()?;
        }
        match *command {
            Command::Mkfile { path, .. } => self.make(path, REGULAR | 0o600, 0).map(|_| ()),
            Command::Mkdir { path, .. } => self.make(path, DIRECTORY | 0o700, 0).map(|_| ()),
            Command::Mknod { path, rdev, mode, .. } => self.make(path, mode as u32, rdev).map(|_| ()),
            Command::Mkfifo { path, .. } => self.make(path, FIFO | 0o600, 0).map(|_| ()),
            Command::Mksock { path, .. } => self.make(path, SOCKET | 0o600, 0).map(|_| ()),
            Command::Symlink { path, target, .. } => {
                let ino = self.make(path, SYMLINK | 0o777, 0)?;
                self.index.set(key(ino, LINK_TEXT, b""), Some(target.to_vec())).map_err(failure)
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => self.link(path, existing),
            Command::Unlink { path } => self.unlink(path),
            Command::Rmdir { path } => self.remove_directory(path),
            Command::SetXattr { path, name, value } => {
                let ino = self.find(path)?;
                self.index.set(key(ino, XATTR, name), Some(value.to_vec())).map_err(failure)
            }
            Command::RemoveXattr { path, name } => {
                let ino = self.find(path)?;
                self.index.set(key(ino, XATTR, name), None).map_err(failure)
            }
            Command::Write { path, offset, data } => {
                let ino = self.file(path)?;
                self.write(ino, offset, data)
            }
            Command::Clone { offset, len, path, source_uuid, source_transid, source, source_offset } => {
                let ino = self.file(path)?;
                self.clone_from((source_uuid, source_transid), (source, source_offset), (ino, offset), len)
            }
            Command::Truncate { path, size } => {
                let ino = self.file(path)?;
                self.truncate(ino, size)
            }
            Command::Chmod { path, mode } => self.change(path, |inode| {
                inode.mode = inode.mode & items::TYPE | mode as u32 & PERMISSIONS;
            }),
            Command::Chown { path, uid, gid } => self.change(path, |inode| {
                (inode.uid, inode.gid) = (uid as u32, gid as u32);
            }),
            Command::Utimes { path, atime, mtime, ctime, otime } => self.change(path, |inode| {
                let made: Timespec = otime.unwrap_or(inode.times[3]);
                inode.times = [atime, mtime, ctime, made];
            }),
            Command::Fileattr { path, flags } => {
                self.stream = 2;
                self.change(path, |inode| inode.flags = flags)
            }
            Command::Fallocate { path, mode, offset, len } => self.allocate(path, mode, offset, len),
            Command::EncodedWrite { path, offset, .. } => {
                let ino = self.file(path)?;
                let content = butterfs_send::apply::decoded(command)?;
                self.write(ino, offset, &content)
            }
            Command::UpdateExtent { .. } => {
                Err(refused(Errno::EOPNOTSUPP, "the stream says only that content changed"))
            }
            _ => Err(refused(Errno::EOPNOTSUPP, "a command of this kind is not kept in a store")),
        }
    }

    pub(super) fn inode(&self, ino: u64) -> Result<Inode, Failure> {
        let value = self.index.get(&key(ino, INODE, b"")).map_err(failure)?;
        let inode = value.and_then(|value| Inode::from_bytes(&value));
        inode.ok_or_else(|| refused(Errno(117), "the index in the store has an entry without an inode"))
    }

    pub(super) fn set_inode(&mut self, ino: u64, inode: &Inode) -> Outcome {
        self.index.set(key(ino, INODE, b""), Some(inode.to_bytes())).map_err(failure)
    }

    fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Inode)) -> Outcome {
        let ino = self.find(path)?;
        let mut inode = self.inode(ino)?;
        change(&mut inode);
        self.set_inode(ino, &inode)
    }

    /// The inode of a path.
    fn find(&mut self, path: &[u8]) -> Result<u64, Failure> {
        if path.is_empty() {
            return Ok(items::ROOT);
        }
        if let Some(ino) = self.paths.get(path) {
            return Ok(*ino);
        }
        let (directory, name) = split(path);
        let directory = self.find(directory)?;
        let ino = self.entry(directory, name)?.ok_or_else(|| refused(Errno::ENOENT, "there is no such file"))?;
        if self.paths.len() >= 10_000 {
            self.paths.clear();
        }
        self.paths.insert(path.to_vec(), ino);
        Ok(ino)
    }

    fn file(&mut self, path: &[u8]) -> Result<u64, Failure> {
        let ino = self.find(path)?;
        let is_open = self.pending.as_ref().is_some_and(|pending| pending.is_of(ino));
        if is_open || self.inode(ino)?.is(REGULAR) {
            return Ok(ino);
        }
        Err(refused(Errno::EINVAL, "it is not a regular file"))
    }

    fn entry(&self, directory: u64, name: &[u8]) -> Result<Option<u64>, Failure> {
        let value = self.index.get(&key(directory, ENTRY, name)).map_err(failure)?;
        Ok(value.and_then(|value| items::entry_from(&value)).map(|(ino, _)| ino))
    }

    /// Makes a name.
    fn enter(&mut self, path: &[u8], ino: u64, mode: u32) -> Outcome {
        let (directory, name) = split(path);
        let directory = self.find(directory)?;
        if !self.inode(directory)?.is(DIRECTORY) {
            return Err(refused(Errno::ENOTDIR, "its parent is not a directory"));
        }
        self.index.set(key(directory, ENTRY, name), Some(items::entry_value(ino, mode))).map_err(failure)?;
        self.index.set(key(ino, NAME, &items::name_rest(directory, name)), Some(Vec::new())).map_err(failure)
    }

    /// Removes a name.
    fn leave(&mut self, path: &[u8], ino: u64) -> Outcome {
        let (directory, name) = split(path);
        let directory = self.find(directory)?;
        self.paths.clear();
        self.index.set(key(directory, ENTRY, name), None).map_err(failure)?;
        self.index.set(key(ino, NAME, &items::name_rest(directory, name)), None).map_err(failure)
    }

    fn is_there(&mut self, path: &[u8]) -> Result<bool, Failure> {
        match self.find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.errno == Errno::ENOENT.0 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn make(&mut self, path: &[u8], mode: u32, device: u64) -> Result<u64, Failure> {
        if self.is_there(path)? {
            return Err(refused(Errno::EEXIST, "it is there already"));
        }
        let ino = self.next_inode;
        self.next_inode += 1;
        self.inodes += 1;
        self.enter(path, ino, mode)?;
        self.set_inode(ino, &Inode { mode, links: 1, device, ..Inode::default() })?;
        Ok(ino)
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Outcome {
        let ino = self.find(path)?;
        let inside = to.starts_with(path) && to.get(path.len()) == Some(&b'/');
        if inside {
            return Err(refused(Errno::EINVAL, "a directory cannot be moved into itself"));
        }
        if self.is_there(to)? {
            let replaced = self.find(to)?;
            if replaced == ino {
                return Ok(());
            }
            if self.inode(replaced)?.is(DIRECTORY) { self.remove_directory(to)? } else { self.unlink(to)? }
        }
        let mode = self.inode(ino)?.mode;
        self.leave(path, ino)?;
        self.enter(to, ino, mode)
    }

    fn link(&mut self, path: &[u8], existing: &[u8]) -> Outcome {
        if self.is_there(path)? {
            return Err(refused(Errno::EEXIST, "it is there already"));
        }
        let ino = self.find(existing)?;
        let mut inode = self.inode(ino)?;
        if inode.is(DIRECTORY) {
            return Err(refused(Errno::EPERM, "a directory has one name"));
        }
        inode.links += 1;
        self.set_inode(ino, &inode)?;
        self.enter(path, ino, inode.mode)
    }

    fn unlink(&mut self, path: &[u8]) -> Outcome {
        let ino = self.find(path)?;
        let mut inode = self.inode(ino)?;
        if inode.is(DIRECTORY) {
            return Err(refused(Errno::EISDIR, "it is a directory"));
        }
        self.leave(path, ino)?;
        inode.links = inode.links.saturating_sub(1);
        if inode.links > 0 {
            return self.set_inode(ino, &inode);
        }
        self.bytes = self.bytes.saturating_sub(inode.size);
        self.forget(ino)
    }

    fn remove_directory(&mut self, path: &[u8]) -> Outcome {
        let ino = self.find(path)?;
        if ino == items::ROOT || !self.inode(ino)?.is(DIRECTORY) {
            return Err(refused(Errno::ENOTDIR, "it is not a directory that can be removed"));
        }
        let first = self.index.at_or_after(&key(ino, ENTRY, b"")).map_err(failure)?;
        if first.is_some_and(|(key, _)| matches!(parts(&key), Some((other, ENTRY, _)) if other == ino)) {
            return Err(refused(Errno::ENOTEMPTY, "the directory is not empty"));
        }
        self.leave(path, ino)?;
        self.forget(ino)
    }

    /// Removes all items of an inode.
    fn forget(&mut self, ino: u64) -> Outcome {
        self.inodes = self.inodes.saturating_sub(1);
        let mut next = key(ino, 0, b"");
        while let Some((key, _)) = self.index.at_or_after(&next).map_err(failure)? {
            if !matches!(parts(&key), Some((other, ..)) if other == ino) {
                break;
            }
            next = [&key[..], &[0]].concat();
            self.index.set(key, None).map_err(failure)?;
        }
        Ok(())
    }

    fn allocate(&mut self, path: &[u8], mode: u32, offset: u64, len: u64) -> Outcome {
        let ino = self.file(path)?;
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| refused(Errno::EFBIG, "the range has no end"))?;
        if mode & PUNCH_HOLE != 0 {
            return self.clear(ino, offset, end);
        }
        self.stream = 2;
        let mut at = offset;
        for (begin, extent) in self.extents(ino, offset, end)? {
            if begin > at {
                self.set_extent(ino, at, Extent { len: begin - at, data: None })?;
            }
            at = begin + extent.len;
        }
        if at < end {
            self.set_extent(ino, at, Extent { len: end - at, data: None })?;
        }
        if mode & KEEP_SIZE != 0 { Ok(()) } else { self.grow(ino, end) }
    }

    /// Shares bytes of a file of this snapshot, or of the one that it is made from.
    fn clone_from(
        &mut self,
        snapshot: (Uuid, u64),
        (source, source_offset): (&[u8], u64),
        (ino, offset): (u64, u64),
        len: u64,
    ) -> Outcome {
        if snapshot.0 == self.uuid {
            let source = self.file(source)?;
            return self.share((source, source_offset), (ino, offset), len);
        }
        let repository = self.index.nodes.archive.repository().clone();
        let id = manifest::id(&snapshot.0, snapshot.1);
        let other = match &self.parent {
            Some(parent) if parent.id() == id => Some(parent.clone()),
            _ => Listing::new(&repository).and_then(|listing| listing.by_id(&id)).map_err(failure)?,
        };
        let missing = || refused(Errno::ENOENT, "the store does not have the snapshot that content is shared with");
        let other = other.ok_or_else(missing)?;
        let view = View::new(&self.index.nodes.archive, &other).map_err(failure)?;
        let source = view.find(source).map_err(failure)?;
        let until = source_offset.checked_add(len).filter(|_| offset.checked_add(len).is_some());
        let until = until.ok_or_else(|| refused(Errno::EINVAL, "the range to clone has no end"))?;
        let mut parts = Vec::new();
        view.extents(source, source_offset, until, |begin, extent| {
            parts.push((begin, extent));
            Ok(())
        })
        .map_err(failure)?;
        self.clear(ino, offset, offset + len)?;
        for (begin, extent) in parts {
            self.set_extent(ino, offset + (begin - source_offset), extent)?;
        }
        self.grow(ino, offset + len)
    }
}

/// The directory and the name of a path that is not empty.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
