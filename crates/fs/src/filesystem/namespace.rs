//! Names and attributes of a [`Filesystem`].

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::file::Resized;
use crate::inode::attr::{Attr, Caller, SetAttr, SetTime};
use crate::inode::{Inode, InodeId, References};
use crate::namespace::{DirEntry, RenameMode};
use butterfs_ondisk::items::inode_flags;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Every call that returns an entry (lookup, create, mkdir, mknod, symlink, link, tmpfile, each entry of
/// readdirplus) counts a reference to its inode, which [`forget`](Filesystem::forget) gives back. References and
/// open handles keep an inode without a name from being deleted.
impl Filesystem {
    /// Finds an entry of a directory.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.lookup(parent, name)
    }

    /// Gives back `count` references.
    pub fn forget(&self, id: InodeId, count: u64) {
        let _operation = self.begin();
        self.0.inodes.forget(id, count);
    }

    /// The inodes that references are counted to at another instance, which shows the same filesystem at an earlier
    /// moment, and whether each of them is the same inode here: its number may be free or another's now.
    pub fn compare_references(&self, other: &Filesystem) -> Result<References> {
        let (_operation, _others) = (self.begin(), other.begin());
        let ids = other.0.inodes.lookups().into_iter().map(|(id, _)| id);
        let same = |id| Ok((id, self.is_same_inode(other, id)?));
        ids.map(same).collect::<Result<_>>().map(References)
    }

    /// Takes over the references that are counted at another instance of the same filesystem, which changes nothing.
    /// `compared` saves work; what it does not know is compared now. Returns all inodes, and whether each of them is
    /// the same here. References to others are not taken over.
    pub fn adopt_references(&self, other: &Filesystem, compared: &References) -> Result<References> {
        let (_operation, _others) = (self.begin(), other.begin());
        let lookups = other.0.inodes.lookups();
        let same = |id: InodeId| compared.0.get(&id).map_or_else(|| self.is_same_inode(other, id), |same| Ok(*same));
        let all = lookups.iter().map(|(id, _)| Ok((*id, same(*id)?))).collect::<Result<FxHashMap<_, _>>>()?;
        for (id, count) in lookups {
            if all[&id] {
                self.0.inodes.retain_many(id, count);
            }
        }
        Ok(References(all))
    }

    fn is_same_inode(&self, other: &Filesystem, id: InodeId) -> Result<bool> {
        let born = |filesystem: &Filesystem| match filesystem.0.names.getattr(id) {
            Err(error) if error.is(Errno::ENOENT) || error.is(Errno::ESTALE) => Ok(None),
            attr => attr.map(|attr| Some((attr.generation, attr.btime))),
        };
        let before = born(other)?;
        Ok(before.is_some() && before == born(self)?)
    }

    /// Counts an open handle.
    pub fn acquire(&self, id: InodeId) {
        let _operation = self.begin();
        self.0.inodes.acquire(id);
    }

    /// Gives an open handle back.
    pub fn release(&self, id: InodeId) {
        let _operation = self.begin();
        self.0.inodes.release(id);
    }

    /// The attributes that `stat` shows.
    pub fn getattr(&self, id: InodeId) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.getattr(id)
    }

    /// Makes a regular file.
    pub fn create(&self, caller: &Caller, parent: InodeId, name: &[u8], permissions: u32) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.create(caller, parent, name, permissions)
    }

    /// Makes a directory.
    pub fn mkdir(&self, caller: &Caller, parent: InodeId, name: &[u8], permissions: u32) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.mkdir(caller, parent, name, permissions)
    }

    /// Makes a regular file, a device, a FIFO or a socket; the type is in `mode`, none means a regular file.
    pub fn mknod(&self, caller: &Caller, parent: InodeId, name: &[u8], mode: u32, rdev: (u32, u32)) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.mknod(caller, parent, name, mode, rdev)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: &Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.symlink(caller, parent, name, target)
    }

    /// Makes a regular file without a name, which [`link`](Filesystem::link) can give it one.
    pub fn tmpfile(&self, caller: &Caller, parent: InodeId, permissions: u32) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.tmpfile(caller, parent, permissions)
    }

    /// Gives an inode another name.
    pub fn link(&self, id: InodeId, new_parent: InodeId, new_name: &[u8]) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.link(id, new_parent, new_name)
    }

    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let _operation = self.begin();
        self.0.names.unlink(parent, name)
    }

    /// Removes an empty directory, or deletes an empty subvolume.
    pub fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let _operation = self.begin();
        let removed = self.0.names.rmdir(parent, name);
        match removed {
            Err(error) if error.is(Errno::EPERM) && self.names_subvolume(parent, name)? => {
                self.delete_empty_subvolume(parent, name).map(|_| ())
            }
            other => other,
        }
    }

    fn names_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<bool> {
        let id = self.lookup(parent, name)?.id;
        self.forget(id, 1);
        Ok(id == InodeId::root_of(id.tree))
    }

    /// Renames.
    pub fn rename(
        &self,
        old_parent: InodeId,
        old_name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        how: RenameMode,
    ) -> Result<()> {
        let _operation = self.begin();
        self.0.names.rename((old_parent, old_name), (new_parent, new_name), how, None)
    }

    /// Gives what is called `old_name` a new name in the same directory that must not exist, if it is `expected`; else
    /// `ESTALE`. For callers who know what they want to rename: users can exchange names at any moment.
    pub fn rename_expected(&self, parent: InodeId, old_name: &[u8], new_name: &[u8], expected: InodeId) -> Result<()> {
        let _operation = self.begin();
        self.0.names.rename((parent, old_name), (parent, new_name), RenameMode::NoReplace, Some(expected))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, id: InodeId) -> Result<Vec<u8>> {
        let _operation = self.begin();
        self.0.names.readlink(id)
    }

    /// The directory that holds a directory; the top level holds itself.
    pub fn parent(&self, id: InodeId) -> Result<InodeId> {
        let _operation = self.begin();
        self.0.names.parent(id)
    }

    /// Shows the entries of a directory from `offset` on (0 is `.`, 1 is `..`), until the callback says that it has
    /// no room for one.
    pub fn readdir(&self, id: InodeId, offset: u64, show: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let _operation = self.begin();
        self.0.names.readdir(id, offset, show)
    }

    /// The same, without entries at an offset greater than `last`.
    pub fn readdir_until(
        &self,
        id: InodeId,
        offset: u64,
        last: u64,
        show: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _operation = self.begin();
        self.0.names.readdir_until(id, offset, last, show)
    }

    /// The same with attributes, which `.`, `..` and entries whose inode cannot be read do not have. Entries with
    /// attributes that the callback takes are counted as looked up.
    pub fn readdirplus(
        &self,
        id: InodeId,
        offset: u64,
        last: u64,
        show: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let _operation = self.begin();
        self.0.names.readdirplus(id, offset, last, show)
    }

    /// The offset of the last entry that exists now: a listing that began now need not go further.
    pub fn last_offset(&self, id: InodeId) -> Result<u64> {
        let _operation = self.begin();
        self.0.names.last_offset(id)
    }

    /// Refuses when the content of an inode cannot be changed: by anybody, or, where it is append-only, other than by
    /// `appending`. For `open(2)`, because later errors come too late for a caller whose writes are cached.
    pub fn check_writable(&self, id: InodeId, appending: bool) -> Result<()> {
        let _operation = self.begin();
        if self.is_read_only() {
            return Err(Error::refused(Errno::EROFS, "the filesystem is read-only"));
        }
        let inode = self.0.names.inode(id)?;
        inode.must_be_writable()?;
        let fixed = if appending { inode_flags::IMMUTABLE } else { inode_flags::IMMUTABLE | inode_flags::APPEND };
        if inode.with(|state| state.has(fixed)) {
            return Err(Error::refused(Errno::EPERM, "the inode is immutable or append-only"));
        }
        Ok(())
    }

    /// Changes attributes. A size that stays changes no times, unless the time of modification is to be now.
    pub fn setattr(&self, caller: &Caller, id: InodeId, set: &SetAttr) -> Result<Attr> {
        let _operation = self.begin();
        let effects = Resized { set_id: set.kill_suidgid, touch: set.mtime == Some(SetTime::Now) };
        let resize = &mut |inode: &Arc<Inode>, size| self.0.files.set_size(inode, size, effects);
        self.0.names.setattr(caller, id, set, resize)
    }

    /// As `chattr`: sets those of the flags in `scope` that are in `wanted`, and clears the others. `EINVAL` for ways
    /// of storing data that exclude each other.
    pub fn set_flags(&self, id: InodeId, wanted: u64, scope: u64) -> Result<()> {
        let _operation = self.begin();
        self.0.names.set_flags(id, wanted, scope)
    }

    /// The value of an extended attribute; `ENODATA` when there is none.
    pub fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let _operation = self.begin();
        self.0.names.get_xattr(id, name)
    }

    /// Sets an extended attribute; `flags` as for `setxattr`.
    pub fn set_xattr(&self, caller: &Caller, id: InodeId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let _operation = self.begin();
        self.0.names.set_xattr(caller, id, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, caller: &Caller, id: InodeId, name: &[u8]) -> Result<()> {
        let _operation = self.begin();
        self.0.names.remove_xattr(caller, id, name)
    }

    /// The names of all extended attributes, each followed by a zero byte.
    pub fn list_xattrs(&self, id: InodeId) -> Result<Vec<u8>> {
        let _operation = self.begin();
        self.0.names.list_xattrs(id)
    }
}

#[cfg(test)]
mod tests {
    use crate::env::Env;
    use crate::filesystem::Filesystem;
    use crate::inode::attr::{Caller, SetAttr};
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::options::Options;
    use butterfs_device::{BlockDevice, MemoryDevice};
    use std::sync::Arc;

    /// A filesystem that is dropped with changed inodes leaves nothing in memory.
    #[test]
    fn a_dropped_filesystem_is_gone() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        mkfs(&[Arc::clone(&device)], &MkfsOptions::default(), &Env::system()).unwrap();
        let fs = Filesystem::open(vec![device], Options::default(), Env::system()).unwrap();
        let engine = Arc::downgrade(&fs.0.engine);
        let made = fs.create(&Caller::default(), fs.root(), b"file", 0o644).unwrap();
        fs.write(made.id, 0, &[1; 10_000], false).unwrap();
        drop(fs);
        assert!(engine.upgrade().is_none());
    }

    #[test]
    fn inodes_in_memory_are_bounded() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        let env = Env::system();
        mkfs(&[Arc::clone(&device)], &MkfsOptions::default(), &env).unwrap();
        let fs = Filesystem::open(vec![device], Options::default(), env).unwrap();
        let caller = Caller::default();
        let mut ids = Vec::new();
        for number in 0..60_000 {
            let made = fs.create(&caller, fs.root(), format!("{number}").as_bytes(), 0o644).unwrap();
            ids.push(made.id);
        }
        // Although all of them are referred to from outside.
        let unused = super::super::UNUSED_INODES;
        assert!(fs.0.inodes.len() <= unused + 64, "{} inodes in memory", fs.0.inodes.len());
        for id in &ids {
            fs.setattr(&caller, *id, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        }
        assert!(fs.0.inodes.len() <= unused + 64, "{} inodes in memory", fs.0.inodes.len());
        fs.shutdown().unwrap();
    }
}
