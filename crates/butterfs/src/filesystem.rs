//! An open filesystem as a whole.

use crate::builder::Builder;
use crate::device::Device;
use crate::dir::Dir;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::types::{Owner, SubvolumeId};
use butterfs_fs::Caller;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// An open filesystem.
///
/// Clones are cheap and share the open filesystem; so do the [`Dir`]s and [`File`](crate::File)s that it gives. All of
/// them can be used from many threads at once.
///
/// # Closing
///
/// [`close`](Filesystem::close) makes everything durable and reports errors. When the last clone, directory and file of
/// a filesystem that was not closed is dropped, the same happens, but an error is lost: call `close`, or
/// [`sync`](Filesystem::sync), if the result matters. After `close`, what is still open can be read, not written; the
/// devices are released when the last of them is dropped. If the process is killed, the next open finds the last
/// commit.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all handles of a filesystem share; closes the filesystem when the last handle is dropped.
pub(crate) struct Shared {
    pub(crate) engine: butterfs_fs::Filesystem,
    pub(crate) owner: Owner,
}

impl Shared {
    /// On whose behalf things are made: modes are taken as they are given.
    pub(crate) fn caller(&self) -> Caller {
        Caller { uid: self.owner.uid, gid: self.owner.gid, umask: 0, privileged: true }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing twice changes nothing. Nobody can receive the error, as documented.
        let _ = self.engine.shutdown();
    }
}

impl Filesystem {
    pub(crate) fn new(engine: butterfs_fs::Filesystem, owner: Owner) -> Filesystem {
        Filesystem { shared: Arc::new(Shared { engine, owner }) }
    }

    /// Opens the filesystem on one device for reading and writing, with default options. For everything else there is
    /// [`Builder`].
    ///
    /// ```no_run
    /// let filesystem = butterfs::Filesystem::open("disk.img")?;
    /// for entry in filesystem.root().read_dir(".")? {
    ///     println!("{}", entry?.file_name().display());
    /// }
    /// # Ok::<(), butterfs::Error>(())
    /// ```
    pub fn open(device: impl Into<Device>) -> Result<Filesystem> {
        Builder::new().device(device).open()
    }

    /// The root directory of the subvolume that was opened.
    pub fn root(&self) -> Dir {
        Dir::of(Node::root(&self.shared, self.shared.engine.root()))
    }

    /// The root directory of any subvolume.
    pub fn subvolume_root(&self, id: SubvolumeId) -> Result<Dir> {
        self.shared.engine.subvolume_info(id.tree())?;
        Ok(Dir::of(Node::root(&self.shared, butterfs_fs::InodeId::root_of(id.tree()))))
    }

    /// Makes everything durable that was done before the call.
    ///
    /// If the data of a file cannot be written, everything else is durable and the error is that file's; the data stays
    /// in memory, and the next call tries again.
    pub fn sync(&self) -> Result<()> {
        Ok(self.shared.engine.sync()?)
    }

    /// Makes everything durable and ends writing. See [closing](Filesystem#closing).
    pub fn close(self) -> Result<()> {
        Ok(self.shared.engine.shutdown()?)
    }

    /// Sentences about the way the filesystem was opened that a user should see, such as a device that was left out.
    pub fn notes(&self) -> &[String] {
        self.shared.engine.notes()
    }

    /// Sentences about bad copies and lost data that were found since the last call, with device, address and files.
    pub fn take_messages(&self) -> Vec<String> {
        self.shared.engine.take_messages()
    }

    /// The paths of an inode from the root of its subvolume, one for each name (hard links have several).
    pub fn paths_of(&self, id: crate::InodeId) -> Result<Vec<PathBuf>> {
        let id = butterfs_fs::InodeId::new(id.subvolume.tree(), butterfs_fs::Ino(id.number));
        self.shared.engine.inode_paths(id).map(|path| Ok(crate::resolve::path_of(path?))).collect()
    }

    /// Frees the space of deleted subvolumes now instead of in the background.
    pub fn clean_up(&self) -> Result<()> {
        self.shared.engine.clean_subvolumes().map_err(Error::from)
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem").field("uuid", &self.info().uuid).finish_non_exhaustive()
    }
}
