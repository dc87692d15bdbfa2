//! Finding an inode by name, and looking at it.

use super::Namespace;
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{Attr, mode};
use crate::inode::directory::{self, EntryTarget};
use crate::inode::entry::NAME_MAX;
use crate::inode::{Inode, InodeId, reference, subvolume_entry};
use crate::transaction::without_waiting;
use butterfs_ondisk::items::{FileExtentHead, compression, file_extent_type};
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::sync::Arc;
use zerocopy::FromBytes;

/// The object of an entry.
#[derive(Clone)]
pub(super) enum Object {
    /// An inode of the directory's own tree.
    Inode(Arc<Inode>),
    /// A subvolume.
    Subvolume(TreeId, subvolume_entry::RootBackref),
    /// The remains of an entry for a subvolume in a snapshot.
    Placeholder(TreeId),
}

fn no_entry() -> Error {
    Error::refused(Errno::ENOENT, "there is no such name")
}

impl Namespace {
    /// Finds an entry of a directory, and counts the reference that the caller gets to its inode.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        match name {
            b"." => self.getattr_retained(parent),
            b".." => self.getattr_retained(self.parent_at_rest(parent)?),
            _ => self.lookup_entry(parent, name),
        }
    }

    fn getattr_retained(&self, id: InodeId) -> Result<Attr> {
        let attr = self.getattr(id)?;
        self.inodes.retain(attr.id);
        Ok(attr)
    }

    fn lookup_entry(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Error::refused(Errno::ENAMETOOLONG, "a name has at most 255 bytes"));
        }
        if parent.is_placeholder() {
            return Err(no_entry());
        }
        let directory = self.directory(parent)?;
        match self.object(&directory, name)?.ok_or_else(no_entry)? {
            Object::Inode(inode) => Ok(inode.attr()),
            Object::Subvolume(tree, _) => {
                let entered = self.enter_subvolume(tree).and_then(|()| self.getattr_retained(InodeId::root_of(tree)));
                // It was deleted since.
                entered.map_err(|error| if error.is(Errno::ESTALE) { no_entry() } else { error })
            }
            Object::Placeholder(subvolume) => {
                let attr = self.placeholder(&directory, subvolume);
                self.inodes.retain(attr.id);
                Ok(attr)
            }
        }
    }

    /// The object that a name refers to; an inode with one more lookup that somebody outside remembers.
    fn object(&self, directory: &Inode, name: &[u8]) -> Result<Option<Object>> {
        let mut doubtful = None;
        loop {
            let found = without_waiting(self.core(), &directory.tree, |source| {
                // A rename is in the midst of two changes while it has the directory.
                let _guard = directory.lock_shared()?;
                directory::find(source, &directory.tree, directory.ino, name)
            })?;
            let Some(target) = found.map(|found| found.target) else { return Ok(None) };
            let resolved = match target {
                EntryTarget::Inode(ino) => self.resolve_inode(directory, ino, 1),
                EntryTarget::Subvolume(id) => self.subvolume_object(directory, name, id),
            };
            match resolved {
                // Somebody may have removed it since.
                Err(_) if doubtful != Some(target) => doubtful = Some(target),
                resolved => return resolved.map(Some),
            }
        }
    }

    /// The object of an entry for a subvolume: with the directory locked, because an entry that has just lost its
    /// subvolume looks like a placeholder. `ENOENT` when the name does not lead there any more.
    pub(super) fn subvolume_object(&self, directory: &Inode, name: &[u8], subvolume: TreeId) -> Result<Object> {
        // From here on everything is in memory.
        let _ = self.resolve_subvolume(directory, name, subvolume);
        let _guard = directory.lock_shared()?;
        let found = directory::find(self.core(), &directory.tree, directory.ino, name)?;
        if found.map(|found| found.target) != Some(EntryTarget::Subvolume(subvolume)) {
            return Err(no_entry());
        }
        self.resolve_subvolume(directory, name, subvolume)
    }

    /// The object at the target of an entry. Where the directory is not locked, it may be gone.
    pub(super) fn resolve(&self, directory: &Inode, name: &[u8], target: EntryTarget) -> Result<Object> {
        match target {
            EntryTarget::Inode(ino) => self.resolve_inode(directory, ino, 0),
            EntryTarget::Subvolume(tree) => self.resolve_subvolume(directory, name, tree),
        }
    }

    fn resolve_inode(&self, directory: &Inode, ino: Ino, lookups: u64) -> Result<Object> {
        let child = self.inodes.get_retained(InodeId::new(directory.tree_id(), ino), lookups);
        child.map(Object::Inode).map_err(|error| match error {
            refused @ Error::Refused { .. } if directory.tree.is_deleted() => refused,
            // The name is there, the inode is not: damage, not absence.
            Error::Refused { what, .. } => Error::corrupt(format!("directory {}: {what}", directory.ino)),
            other => other,
        })
    }

    fn resolve_subvolume(&self, directory: &Inode, name: &[u8], subvolume: TreeId) -> Result<Object> {
        let backref = subvolume_entry::confirm(self.core(), directory.id(), name, subvolume)?;
        let Some(backref) = backref else { return Ok(Object::Placeholder(subvolume)) };
        match self.core().tree(subvolume) {
            Ok(_) => Ok(Object::Subvolume(subvolume, backref)),
            Err(error) if error.is(Errno::ENOENT) => Ok(Object::Placeholder(subvolume)),
            Err(error) => Err(error),
        }
    }

    /// The placeholder for `subvolume` in a directory.
    pub(super) fn placeholder(&self, directory: &Inode, subvolume: TreeId) -> Attr {
        let id = InodeId::placeholder(directory.tree_id(), subvolume);
        let made = || (subvolume_entry::placeholder(id, &directory.attr()), directory.id());
        self.placeholders.lock().entry(id).or_insert_with(made).0
    }

    /// The attributes that `stat` shows.
    pub fn getattr(&self, id: InodeId) -> Result<Attr> {
        if id.is_placeholder() {
            let known = self.placeholders.lock().get(&id).map(|(attr, _)| *attr);
            return Ok(known.unwrap_or_else(|| subvolume_entry::unplaced(id, Default::default())));
        }
        Ok(self.inodes.get(id)?.attr())
    }

    /// The directory that holds a directory; the top level holds itself.
    pub fn parent(&self, id: InodeId) -> Result<InodeId> {
        if id.is_placeholder() {
            let known = self.placeholders.lock().get(&id).map(|(_, parent)| *parent);
            return Ok(known.unwrap_or(InodeId::root_of(id.tree)));
        }
        let tree = self.core().tree(id.tree)?;
        match reference::parent(self.core(), &tree, id.ino)? {
            Some(parent) => Ok(InodeId::new(id.tree, parent)),
            None if id == InodeId::root_of(id.tree) => Ok(subvolume_entry::parent(self.core(), id.tree)?.unwrap_or(id)),
            None => Err(Error::refused(Errno::ENOENT, "the directory was removed")),
        }
    }

    /// The same, not in the midst of a rename. The directory is not locked.
    pub(super) fn parent_at_rest(&self, id: InodeId) -> Result<InodeId> {
        if id.is_placeholder() || id == InodeId::root_of(id.tree) {
            return self.parent(id);
        }
        // From here on everything is in memory.
        let _ = self.parent(id);
        let directory = self.directory(id)?;
        let _guard = directory.lock.read();
        self.parent(id)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, id: InodeId) -> Result<Vec<u8>> {
        let inode = self.inode(id)?;
        let (file_mode, size) = inode.with(|state| (state.mode(), state.size));
        if file_mode & mode::S_IFMT != mode::S_IFLNK {
            return Err(Error::refused(Errno::EINVAL, "not a symbolic link"));
        }
        let damaged = || Error::corrupt(format!("tree {}: symbolic link {} has no target", id.tree, id.ino));
        let key = Key::new(id.ino.0, KeyType::EXTENT_DATA, 0);
        let payload = inode.tree.get(self.core(), key)?.ok_or_else(damaged)?;
        let (head, target) = FileExtentHead::ref_from_prefix(&payload).map_err(|_| damaged())?;
        if head.kind != file_extent_type::INLINE || head.compression != compression::NONE || target.is_empty() {
            return Err(damaged());
        }
        let len = usize::try_from(size).map_or(target.len(), |size| size.min(target.len()));
        let target = target[..len].to_vec();
        self.note_access(&inode);
        Ok(target)
    }
}
