//! Another name for an inode.

use super::{Namespace, lock_all};
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{Attr, InodeId, dir_type_of, timespec};
use crate::inode::directory::{self, EntryTarget, check_name};
use crate::inode::entry::DirItemEntry;
use crate::inode::reference::{self, Reference};
use crate::inode::refusals::FIXED;
use crate::inode::{Inode, Orphan, orphan, preload};
use crate::transaction::{Handle, Reserve};
use std::sync::Arc;

/// The most names that an inode can have.
const LINKS_MAX: u32 = 65535;

impl Namespace {
    /// Gives an inode another name, or a file made without a name its first, and counts the reference that the
    /// caller gets to it.
    pub fn link(&self, id: InodeId, new_parent: InodeId, new_name: &[u8]) -> Result<Attr> {
        check_name(new_name)?;
        let inode = self.inode(id)?;
        let directory = self.directory(new_parent)?;
        if inode.is_directory() {
            return Err(Error::refused(Errno::EPERM, "a directory has one name"));
        }
        if id.tree != new_parent.tree {
            return Err(Error::refused(Errno::EXDEV, "a file cannot have names in two subvolumes"));
        }
        preload::addition(self.core(), &directory, new_name);
        preload::record(self.core(), &inode.tree, inode.ino, directory.ino, new_name);
        if inode.with(|state| state.orphan == Orphan::Recorded) {
            preload::orphan(self.core(), &inode.tree, inode.ino);
        }
        self.run(Reserve::items(5), |handle| {
            let _guards = lock_all(&[&directory, &inode])?;
            directory.must_take_entries()?;
            self.link_locked(handle, &inode, &directory, new_name)?;
            self.inodes.retain(id);
            Ok(inode.attr())
        })
    }

    fn link_locked(&self, handle: &Handle, inode: &Arc<Inode>, directory: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let (tree, ino) = (&inode.tree, inode.ino);
        check_source(inode)?;
        let slot = reference::plan_addition(handle.core(), tree, ino, directory.ino, name, None)?;
        let kind = dir_type_of(inode.with(|state| state.mode())).unwrap_or_default();
        let entry = DirItemEntry::of_directory(EntryTarget::Inode(ino).location(), handle.generation(), kind, name);
        let index = directory::add(handle, directory, &entry)?;
        reference::add(handle, tree, slot, &Reference { directory: directory.ino, index, name })?;
        let now = timespec(handle.core().env().now());
        let orphan = inode.change(|state| {
            state.item.nlink = (state.item.nlink.get() + 1).into();
            state.item.ctime = now;
            if std::mem::take(&mut state.linkable) {
                state.linked_in = handle.generation().0;
            }
            std::mem::take(&mut state.orphan)
        });
        if orphan != Orphan::No {
            self.inodes.spare(inode.id());
        }
        if orphan == Orphan::Recorded {
            tree.remove(handle, orphan::key(ino))?;
        }
        directory.change(|state| {
            state.grow_directory(2 * name.len() as i64);
            (state.item.mtime, state.item.ctime) = (now, now);
        });
        Ok(())
    }
}

fn check_source(inode: &Inode) -> Result<()> {
    inode.must_not_have(FIXED)?;
    inode.with(|state| match state.item.nlink.get() {
        0 if !state.linkable => Err(Error::refused(Errno::ENOENT, "the file was removed")),
        LINKS_MAX.. => Err(Error::refused(Errno::EMLINK, "the file has the most names that a file can have")),
        _ => Ok(()),
    })
}
