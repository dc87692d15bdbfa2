//! An open filesystem as a whole.

use crate::builder::Builder;
use crate::device::Device;
use crate::dir::Dir;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{LeasedDevice, Leases};
use crate::node::Node;
use crate::types::{Access, Owner, SubvolumeId};
use butterfs_fs::{Caller, Errno};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open filesystem.
///
/// Clones are cheap and share the open filesystem; so do the [`Dir`]s and [`File`](crate::File)s that it gives. All of
/// them can be used from many threads at once.
///
/// # Closing
///
/// [`close`](Filesystem::close) makes everything durable and reports errors. When the last clone, directory and file of
/// a filesystem that was not closed is dropped, the same happens, but an error is lost: call `close`, or
/// [`sync`](Filesystem::sync), if the result matters. `close` gives the devices back: other clones, and the directories
/// and files that are still open, fail with [`ErrorKind::Closed`] from then on; what another thread is doing at that
/// moment can fail with another error. If the process is killed, the next open finds the last commit.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all handles of a filesystem share; closes the filesystem when the last handle is dropped.
pub(crate) struct Shared {
    engine: butterfs_fs::Filesystem,
    owner: Owner,
    leases: Leases,
    is_closed: AtomicBool,
}

impl Shared {
    /// The engine, until the filesystem is closed.
    pub(crate) fn engine(&self) -> Result<&butterfs_fs::Filesystem> {
        match self.is_closed.load(Ordering::Acquire) {
            false => Ok(&self.engine),
            true => Err(Error::new(ErrorKind::Closed, Errno::EBADF, "the filesystem is closed")),
        }
    }

    /// The engine, also when the filesystem is closed: for what is only in memory.
    pub(crate) fn memory(&self) -> &butterfs_fs::Filesystem {
        &self.engine
    }

    /// Opens one more device, which is given back when the filesystem is closed.
    pub(crate) fn lease(&self, device: Device) -> Result<Arc<LeasedDevice>> {
        let device = device.open(Access::ReadWrite)?;
        self.leases.add(&device);
        Ok(device)
    }

    fn close(&self) -> Result<()> {
        let closed = self.engine.shutdown();
        // Within a transaction it was refused, and everything goes on.
        if !closed.as_ref().is_err_and(|error| error.is(Errno::EBUSY)) {
            self.is_closed.store(true, Ordering::Release);
            self.leases.close();
        }
        Ok(closed?)
    }

    /// On whose behalf things are made: modes are taken as they are given.
    pub(crate) fn caller(&self) -> Caller {
        Caller { uid: self.owner.uid, gid: self.owner.gid, umask: 0, privileged: true }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing twice changes nothing. Nobody can receive the error, as documented.
        let _ = self.close();
    }
}

impl Filesystem {
    pub(crate) fn new(engine: butterfs_fs::Filesystem, owner: Owner, devices: &[Arc<LeasedDevice>]) -> Filesystem {
        let leases = Leases::default();
        devices.iter().for_each(|device| leases.add(device));
        Filesystem { shared: Arc::new(Shared { engine, owner, leases, is_closed: AtomicBool::new(false) }) }
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
        Dir::of(Node::root(&self.shared, self.shared.memory().root()))
    }

    /// The root directory of any subvolume.
    pub fn subvolume_root(&self, id: SubvolumeId) -> Result<Dir> {
        self.shared.engine()?.subvolume_info(id.tree())?;
        Ok(Dir::of(Node::root(&self.shared, butterfs_fs::InodeId::root_of(id.tree()))))
    }

    /// Makes everything durable that was done before the call.
    ///
    /// If the data of a file cannot be written, everything else is durable and the error is that file's; the data stays
    /// in memory, and the next call tries again.
    pub fn sync(&self) -> Result<()> {
        Ok(self.shared.engine()?.sync()?)
    }

    /// Makes everything durable and gives the devices back. See [closing](Filesystem#closing).
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }

    /// Sentences about the way the filesystem was opened that a user should see, such as a device that was left out.
    pub fn notes(&self) -> &[String] {
        self.shared.memory().notes()
    }

    /// Sentences about bad copies and lost data that were found since the last call, with device, address and files.
    pub fn take_messages(&self) -> Vec<String> {
        self.shared.memory().take_messages()
    }

    /// The paths of an inode from the root of its subvolume, one for each name (hard links have several).
    pub fn paths_of(&self, id: crate::InodeId) -> Result<Vec<PathBuf>> {
        let id = butterfs_fs::InodeId::new(id.subvolume.tree(), butterfs_fs::Ino(id.number));
        self.shared.engine()?.inode_paths(id).map(|path| Ok(crate::resolve::path_of(path?))).collect()
    }

    /// Frees the space of deleted subvolumes now instead of in the background.
    pub fn clean_up(&self) -> Result<()> {
        self.shared.engine()?.clean_subvolumes().map_err(Error::from)
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem").field("uuid", &self.info().uuid).finish_non_exhaustive()
    }
}
