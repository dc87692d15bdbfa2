//! Several operations that become durable together, or not at all.

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use butterfs_fs::Errno;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// The filesystem within [`Filesystem::transaction`]. It belongs to its thread.
pub struct Transaction<'a> {
    filesystem: &'a Filesystem,
    /// Other threads wait until the transaction ends.
    of_one_thread: PhantomData<*const ()>,
}

impl Deref for Transaction<'_> {
    type Target = Filesystem;

    fn deref(&self) -> &Filesystem {
        self.filesystem
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Runs `work`. When this returns `Ok`, all changes that `work` made are durable; when `work` returns an error or
    /// panics, none of them was made. After a crash there are all of them or none.
    ///
    /// Other threads that use the filesystem wait meanwhile, and see nothing of a transaction that is under way.
    /// Therefore `work` must not wait for such a thread. Inside of it, [`sync`](Filesystem::sync),
    /// [`File::sync_all`](crate::File::sync_all), [`send`](Filesystem::send), [`close`](Filesystem::close) and another
    /// transaction fail with [`ErrorKind::Busy`](crate::ErrorKind::Busy). A transaction that changes more metadata than
    /// fits into memory fails with [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge); file data is not limited.
    ///
    /// The error can be of any type into which this crate's error converts.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// # filesystem.root().write("version", "1")?;
    /// let failed: Result<(), Box<dyn std::error::Error>> = filesystem.transaction(|tx| {
    ///     tx.root().write("version", "2")?;
    ///     tx.root().create_dir("data-2")?;
    ///     Err("the new version does not start".into())
    /// });
    /// assert!(failed.is_err());
    /// assert_eq!(filesystem.root().read("version")?, b"1");
    /// assert!(!filesystem.root().exists("data-2")?);
    /// # Ok::<(), butterfs::Error>(())
    /// ```
    pub fn transaction<R, E: From<Error>>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<R, E>) -> Result<R, E> {
        let mut failure = None;
        let together = self.shared.engine()?.transaction(|_| {
            let transaction = Transaction { filesystem: self, of_one_thread: PhantomData };
            work(&transaction).map_err(|error| {
                failure = Some(error);
                // Whatever it is: it takes everything back.
                butterfs_fs::Error::refused(Errno::EINTR, "the transaction was given up")
            })
        });
        match (together, failure) {
            (Ok(result), _) => Ok(result),
            (Err(error), Some(failure)) if error.is(Errno::EINTR) => Err(failure),
            // Even the way back failed.
            (Err(error), _) => Err(Error::from(error).into()),
        }
    }
}
