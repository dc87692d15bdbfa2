//! The file that becomes the image.
//!
//! # Invariants
//! 1. Nothing is to be seen under the final name before the image is complete and durable; what stood there stays until
//!    then.
//! 2. Where the filesystem can do that, the file has no name until then, so that nothing is left behind by a kill.

use crate::error::{Error, ErrorKind, Result};
use butterfs_device::BlockDevice;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new file that grows as it is written.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    path: PathBuf,
    /// The name that it has meanwhile.
    temporary: Option<PathBuf>,
    len: AtomicU64,
}

impl ImageFile {
    /// A file that is going to be at `path`, of at most `limit` bytes.
    ///
    /// A symbolic link stays, and what it leads to is replaced; only regular files are.
    pub fn create(path: &Path, limit: u64) -> Result<ImageFile> {
        let path = &replaced(path)?;
        let failed = |error: io::Error| cannot_create(path, &error);
        let mode = Mode::from_raw_mode(0o666);
        let nameless = rustix::fs::open(folder_of(path), OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode);
        let (file, temporary) = match nameless {
            // Without /proc it could not get its name.
            Ok(file) if Path::new("/proc/self/fd").exists() => (file.into(), None),
            _ => {
                let temporary = temporary_name(path);
                let file = File::options().read(true).write(true).create_new(true).open(&temporary).map_err(failed)?;
                (file, Some(temporary))
            }
        };
        Ok(ImageFile { file, path: path.to_owned(), temporary, len: AtomicU64::new(limit) })
    }

    /// A file that exists, to be changed where it is.
    pub fn open(path: &Path, limit: u64) -> Result<ImageFile> {
        let file = File::options().read(true).write(true).open(path);
        let file =
            file.map_err(|error| Error::new(ErrorKind::Output, format!("cannot open {}: {error}", path.display())))?;
        Ok(ImageFile { file, path: path.to_owned(), temporary: None, len: AtomicU64::new(limit) })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether there may be something else than zeros in a range.
    pub fn has_data(&self, range: Range<u64>) -> bool {
        match rustix::fs::seek(&self.file, SeekFrom::Data(range.start)) {
            Ok(at) => at < range.end,
            Err(error) => error != rustix::io::Errno::NXIO,
        }
    }

    /// The folder that it lies in.
    pub fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Gives the file its length; when this returns that is durable.
    pub fn complete(&self) -> Result<()> {
        let done = self.file.set_len(self.len()).and_then(|()| self.file.sync_all());
        done.map_err(|error| cannot_create(&self.path, &error))
    }

    /// Gives the file its length and its name; both are durable when this returns.
    pub fn publish(&self) -> Result<()> {
        self.name_it().map_err(|error| cannot_create(&self.path, &error))
    }

    fn name_it(&self) -> io::Result<()> {
        self.file.set_len(self.len())?;
        self.file.sync_all()?;
        let temporary = match &self.temporary {
            Some(temporary) => temporary.clone(),
            None => {
                let temporary = temporary_name(&self.path);
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, own, CWD, &temporary, AtFlags::SYMLINK_FOLLOW)?;
                temporary
            }
        };
        std::fs::rename(&temporary, &self.path).inspect_err(|_| drop(std::fs::remove_file(&temporary)))?;
        File::open(folder_of(&self.path))?.sync_all()
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // After success it has another name.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// The path at which a file is replaced, or made.
fn replaced(path: &Path) -> Result<PathBuf> {
    let refused = |why: &str| Err(Error::new(ErrorKind::Output, format!("cannot create {}: {why}", path.display())));
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(error) => return Err(cannot_create(path, &error)),
    };
    if !metadata.is_symlink() {
        return match metadata.file_type() {
            kind if kind.is_file() => Ok(path.to_owned()),
            kind if kind.is_dir() => refused("it is a folder"),
            _ => refused("it is there and no regular file; 'mkfs --rootdir' fills a device"),
        };
    }
    match path.canonicalize() {
        Ok(target) => replaced(&target),
        Err(error) => Err(cannot_create(path, &error)),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name beside `path` that nobody else uses.
fn temporary_name(path: &Path) -> PathBuf {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the system has a source of randomness");
    folder_of(path).join(format!(".butterfs-image-{:016x}", u64::from_le_bytes(random)))
}

fn cannot_create(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Output, format!("cannot create {}: {error}", path.display()))
}

impl BlockDevice for ImageFile {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64)? {
                // Behind the end of what was written.
                0 => buf[done..].fill(0),
                read => done += read,
            }
            if done < buf.len() && self.file.metadata()?.len() <= offset + done as u64 {
                buf[done..].fill(0);
                return Ok(());
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        // What counts is that the image is durable when it gets its name.
        Ok(())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }
}
