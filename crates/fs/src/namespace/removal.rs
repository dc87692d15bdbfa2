//! Taking a name away, and what that does to the inode.

use super::lookup::Object;
use super::{Namespace, lock_all};
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{InodeId, timespec};
use crate::inode::directory::{self, EntryTarget, Found, check_name};
use crate::inode::{Inode, Orphan, preload, reference};
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::TreeId;
use std::sync::Arc;

/// Which of the two system calls removes the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Unlink,
    Rmdir,
}

/// The outcome of one attempt.
enum Attempt {
    /// The name leads somewhere else than before it was locked.
    Again,
    /// Done; the inode lost its last name.
    Orphan(InodeId),
    Done,
}

impl Namespace {
    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.remove(parent, name, Call::Unlink)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.remove(parent, name, Call::Rmdir)
    }

    fn remove(&self, parent: InodeId, name: &[u8], call: Call) -> Result<()> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        loop {
            preload::name(self.core(), &directory, name);
            match self.run(Reserve::removal(5), |handle| self.try_remove(handle, &directory, name, call))? {
                Attempt::Again => {}
                Attempt::Orphan(id) => {
                    self.inodes.dispose(id);
                    return Ok(());
                }
                Attempt::Done => return Ok(()),
            }
        }
    }

    fn try_remove(&self, handle: &Handle, directory: &Arc<Inode>, name: &[u8], call: Call) -> Result<Attempt> {
        let find = || {
            let found = directory::find(self.core(), &directory.tree, directory.ino, name)?;
            found.ok_or_else(|| Error::refused(Errno::ENOENT, "there is no such name"))
        };
        // The usual case: nobody else holds the inode, so that the order of locking does not matter.
        let guard = directory.lock_exclusive()?;
        let found = find()?;
        let child = match self.resolve(directory, name, found.target)? {
            Object::Inode(child) => child,
            Object::Subvolume(tree, _) => return remove_subvolume(tree, call),
            Object::Placeholder(tree) => return self.remove_placeholder(handle, directory, name, (&found, tree), call),
        };
        if let Some(_child_guard) = child.lock.try_write() {
            return self.remove_locked(handle, directory, name, &found, &child, call);
        }
        drop(guard);
        let _guards = lock_all(&[directory, &child])?;
        let found = find()?;
        if found.target != EntryTarget::Inode(child.ino) {
            return Ok(Attempt::Again);
        }
        self.remove_locked(handle, directory, name, &found, &child, call)
    }

    fn remove_locked(
        &self,
        handle: &Handle,
        directory: &Arc<Inode>,
        name: &[u8],
        found: &Found,
        child: &Arc<Inode>,
        call: Call,
    ) -> Result<Attempt> {
        directory.must_lose_entries()?;
        child.must_lose_names()?;
        match (call, child.is_directory()) {
            (Call::Unlink, true) => return Err(Error::refused(Errno::EISDIR, "a directory is removed by rmdir")),
            (Call::Rmdir, false) => return Err(Error::refused(Errno::ENOTDIR, "not a directory")),
            (Call::Rmdir, true) => must_be_empty(child)?,
            (Call::Unlink, false) => {}
        }
        let is_orphan = take_name(handle, directory, name, found, child)?;
        let now = timespec(self.core().env().now());
        directory.change(|state| {
            state.grow_directory(-2 * name.len() as i64);
            (state.item.mtime, state.item.ctime) = (now, now);
        });
        Ok(if is_orphan { Attempt::Orphan(child.id()) } else { Attempt::Done })
    }

    fn remove_placeholder(
        &self,
        handle: &Handle,
        directory: &Arc<Inode>,
        name: &[u8],
        (found, subvolume): (&Found, TreeId),
        call: Call,
    ) -> Result<Attempt> {
        if call == Call::Unlink {
            return Err(Error::refused(Errno::EISDIR, "a directory is removed by rmdir"));
        }
        directory.must_lose_entries()?;
        let index = directory::search_index(self.core(), &directory.tree, directory.ino, name)?;
        let index = index.ok_or_else(|| {
            Error::corrupt(format!("directory {}: an entry for subvolume {subvolume} has no index", directory.ino))
        })?;
        directory::remove(handle, directory, name, found, index)?;
        let now = timespec(self.core().env().now());
        directory.change(|state| {
            state.grow_directory(-2 * name.len() as i64);
            (state.item.mtime, state.item.ctime) = (now, now);
        });
        self.placeholders.lock().remove(&InodeId::placeholder(directory.tree_id(), subvolume));
        Ok(Attempt::Done)
    }
}

/// Removing a subvolume's entry is deleting the subvolume, which is not done here.
fn remove_subvolume(subvolume: TreeId, call: Call) -> Result<Attempt> {
    match call {
        Call::Unlink => Err(Error::refused(Errno::EISDIR, "a subvolume is not a file")),
        Call::Rmdir => {
            Err(Error::refused_at(Errno::EPERM, format!("subvolume {subvolume} is not removed as a directory")))
        }
    }
}

pub(super) fn must_be_empty(directory: &Inode) -> Result<()> {
    if directory.size() != 0 {
        return Err(Error::refused(Errno::ENOTEMPTY, "the directory is not empty"));
    }
    Ok(())
}

/// Removes an entry, and the inode's own record of the name; true when it was the last. Both inodes are locked; the
/// directory's size and times are the caller's to change.
pub(super) fn take_name(
    handle: &Handle,
    directory: &Inode,
    name: &[u8],
    found: &Found,
    child: &Arc<Inode>,
) -> Result<bool> {
    let record = own_record(handle, directory, name, child)?;
    directory::remove(handle, directory, name, found, record.index)?;
    reference::remove(handle, &child.tree, &record)?;
    let now = timespec(handle.core().env().now());
    Ok(child.change(|state| {
        let links = state.item.nlink.get().saturating_sub(1);
        state.item.nlink = links.into();
        state.item.ctime = now;
        if links == 0 {
            state.orphan = Orphan::Due;
        }
        links == 0
    }))
}

/// The inode's record of a name, checked against the directory.
pub(super) fn own_record(
    handle: &Handle,
    directory: &Inode,
    name: &[u8],
    child: &Inode,
) -> Result<reference::NameRecord> {
    let core = handle.core();
    let record = reference::find(core, &child.tree, child.ino, directory.ino, name)?.ok_or_else(|| {
        let what = format!("tree {}: inode {} has no record", child.tree_id(), child.ino);
        Error::corrupt(format!("{what} of a name in directory {}", directory.ino))
    })?;
    directory::check_index(core, &directory.tree, directory.ino, record.index, name, EntryTarget::Inode(child.ino))?;
    Ok(record)
}
