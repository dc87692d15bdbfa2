//! A handle on any inode. It counts one reference in the engine and gives it back when it is dropped.

use crate::error::{Error, Result};
use crate::filesystem::Shared;
use crate::metadata::{InodeFlags, Metadata, Times};
use crate::resolve::path_of;
use crate::types::{Access, Mode, Owner};
use butterfs_fs::{Attr, InodeId, SetAttr, SetTime};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Follow {
    /// It is: the path stands for what the link leads to.
    #[default]
    Links,
    /// It is not: the path stands for the link itself.
    Nothing,
}

/// A file, directory, symbolic link or special file: its attributes, not its content.
///
/// [`Dir::node`](crate::Dir::node) opens one by path. A node stays valid when it is renamed, and while a file that has
/// lost its last name is still open.
///
/// ```
/// # use butterfs::{Device, Filesystem, Mkfs};
/// use butterfs::{Follow, Mode, Owner};
///
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// # let filesystem = Filesystem::open(disk)?;
/// # let root = filesystem.root();
/// root.write("tool", "#!/bin/sh\n")?;
/// let tool = root.node("tool", Follow::Links)?;
/// tool.set_mode(Mode::new(0o755))?;
/// tool.set_owner(Owner::new(1000, 1000))?;
/// tool.set_xattr("user.origin", b"example")?;
/// assert_eq!(tool.metadata()?.mode(), Mode::new(0o755));
/// # Ok::<(), butterfs::Error>(())
/// ```
#[derive(Clone)]
pub struct Node {
    pub(crate) reference: Arc<Reference>,
}

/// One reference to an inode.
pub(crate) struct Reference {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: InodeId,
    /// The root directory of a subvolume needs none: it has no name that could go.
    is_counted: bool,
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.memory().forget(self.id, 1);
        }
    }
}

impl Node {
    /// Takes over a reference that the engine has counted.
    pub(crate) fn counted(shared: &Arc<Shared>, attr: &Attr) -> Node {
        let reference = Reference { shared: Arc::clone(shared), id: attr.id, is_counted: true };
        Node { reference: Arc::new(reference) }
    }

    /// The root directory of a subvolume.
    pub(crate) fn root(shared: &Arc<Shared>, id: InodeId) -> Node {
        let reference = Reference { shared: Arc::clone(shared), id, is_counted: false };
        Node { reference: Arc::new(reference) }
    }

    pub(crate) fn engine(&self) -> Result<&butterfs_fs::Filesystem> {
        self.reference.shared.engine()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.reference.shared
    }

    pub(crate) fn id(&self) -> InodeId {
        self.reference.id
    }

    pub(crate) fn attr(&self) -> Result<Attr> {
        Ok(self.engine()?.getattr(self.id())?)
    }

    /// Type, size, permissions, owner and times.
    pub fn metadata(&self) -> Result<Metadata> {
        self.attr().map(Metadata::of)
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        self.set(SetAttr { mode: Some(mode.bits()), ..SetAttr::default() })
    }

    /// Sets user and group. As with `chown(2)`, a file loses its set-user-id and set-group-id bits: set the mode
    /// afterwards.
    pub fn set_owner(&self, owner: Owner) -> Result<()> {
        self.set(SetAttr { uid: Some(owner.uid), gid: Some(owner.gid), ..SetAttr::default() })
    }

    /// Sets the times of the last access and the last change of the content.
    pub fn set_times(&self, times: Times) -> Result<()> {
        let set = |time: Option<crate::Timestamp>| time.map(|time| SetTime::At(time.engine()));
        let (atime, mtime) = (set(times.accessed), set(times.modified));
        self.set(SetAttr { atime, mtime, ..SetAttr::default() })
    }

    pub(crate) fn set(&self, set: SetAttr) -> Result<()> {
        let caller = self.shared().caller();
        self.engine()?.setattr(&caller, self.id(), &set)?;
        Ok(())
    }

    /// Sets those of the flags in `scope` that are in `flags` and clears the others, as `chattr` does.
    pub fn set_flags(&self, flags: InodeFlags, scope: InodeFlags) -> Result<()> {
        Ok(self.engine()?.set_flags(self.id(), flags.bits(), scope.bits())?)
    }

    /// The target of a symbolic link, as it is stored.
    pub fn read_link(&self) -> Result<PathBuf> {
        Ok(path_of(self.engine()?.readlink(self.id())?))
    }

    /// Makes the inode durable: content, attributes and names; of a directory also its entries.
    pub fn sync(&self) -> Result<()> {
        Ok(self.engine()?.fsync(self.id(), false)?)
    }

    /// Returns true if the filesystem may be written now.
    pub(crate) fn must_be_writable(&self) -> Result<()> {
        match Access::of_read_only(self.engine()?.is_read_only()) {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => {
                Err(Error::refused(butterfs_fs::Errno::EROFS, "the filesystem is open read-only or was closed"))
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &crate::InodeId::from(self.id())).finish_non_exhaustive()
    }
}
