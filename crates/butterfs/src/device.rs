//! A device as callers name it: a path, an open file, memory, a part of another one, or an implementation of their own.

use crate::error::{Error, Result};
use crate::lease::{Claim, LeasedDevice, Storage};
use crate::types::Access;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice, OpenError, ReadOnlyDevice, WindowDevice};
use butterfs_fs::Errno;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Storage that holds a filesystem, or one of its devices.
///
/// A `Device` made from a path is opened when it is used, and locked while it is: another process that uses butterfs,
/// and a mount by the kernel, is refused meanwhile. Clones stand for the same storage. Memory and every other device
/// that is open already has one writer or any number of readers, too: everyone else is refused with
/// [`ErrorKind::Busy`](crate::ErrorKind::Busy).
///
/// ```
/// use butterfs::{Device, Filesystem, Mkfs};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("butterfs-doc-device-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let image = folder.join("disk.img");
/// Mkfs::new().device(Device::create(&image, 1 << 30)?).run()?; // sparse: takes no space until it is filled
///
/// let by_path = Filesystem::open(Device::path(&image))?; // or Filesystem::open(image.as_path())
/// by_path.close()?;
/// let by_file = Filesystem::open(Device::file(std::fs::File::options().read(true).write(true).open(&image)?)?)?;
/// by_file.close()?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Device(Source);

#[derive(Clone, Debug)]
enum Source {
    Path(PathBuf),
    Open(Storage),
    Window(Box<Device>, Range<u64>),
}

impl Device {
    /// A regular file or a block device.
    pub fn path(path: impl Into<PathBuf>) -> Device {
        Device(Source::Path(path.into()))
    }

    /// A new, sparse file of `len` bytes. [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if there is a
    /// file.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Device> {
        let file = FileDevice::create(&path, len).map_err(open_error)?;
        Ok(Device::from_open(Arc::new(file)))
    }

    /// A file or a block device that is open already; read-only if the descriptor is.
    pub fn file(file: File) -> Result<Device> {
        let file = FileDevice::from_file(file, "the open file").map_err(open_error)?;
        Ok(Device::from_open(Arc::new(file)))
    }

    /// `len` bytes of memory, all zero. Memory is used only for what is written. See [`MemoryDevice`] for snapshots of
    /// it and for its bytes.
    pub fn memory(len: u64) -> Device {
        MemoryDevice::new(len).into()
    }

    /// Storage of your own: anything that reads and writes bytes at offsets.
    pub fn custom(device: impl BlockDevice + 'static) -> Device {
        Device::from_open(Arc::new(device))
    }

    /// The bytes `range` of this device: a partition of a disk image, for example.
    pub fn window(self, range: Range<u64>) -> Device {
        Device(Source::Window(Box::new(self), range))
    }

    fn from_open(device: Arc<dyn BlockDevice>) -> Device {
        Device(Source::Open(Storage::new(device)))
    }

    /// Opens it; writing is refused where `access` says so.
    pub(crate) fn open(&self, access: Access) -> Result<Arc<LeasedDevice>> {
        let (device, claim) = self.claimed(access)?;
        Ok(Arc::new(LeasedDevice::new(device, claim)))
    }

    fn claimed(&self, access: Access) -> Result<(Arc<dyn BlockDevice>, Option<Claim>)> {
        match &self.0 {
            Source::Path(path) => {
                let options = if access.is_read_only() { FileOptions::read_only() } else { FileOptions::read_write() };
                // Another process may be closing it at this moment.
                let options = FileOptions { wait: Duration::from_millis(100), ..options };
                Ok((Arc::new(FileDevice::open(path, &options).map_err(open_error)?), None))
            }
            Source::Open(storage) => {
                let refused = |errno, sentence: &str| {
                    let name = storage.device.name();
                    Error::refused(errno, format!("{name} {sentence}")).on_device(name)
                };
                let (writes, device) = (!access.is_read_only(), Arc::clone(&storage.device));
                if writes && device.is_read_only() {
                    return Err(refused(Errno::EROFS, "is write-protected (open it read-only)"));
                }
                let claim = storage.claim(writes);
                let claim = claim.ok_or_else(|| refused(Errno::EBUSY, "is in use (close the filesystem on it)"))?;
                Ok((if writes { device } else { Arc::new(ReadOnlyDevice::new(device)) }, Some(claim)))
            }
            Source::Window(device, range) => {
                let (whole, claim) = device.claimed(access)?;
                let name = whole.name();
                let window = WindowDevice::new(whole, range.clone());
                Ok((Arc::new(window.map_err(|error| Error::system(error).on_device(name))?), claim))
            }
        }
    }
}

pub(crate) fn open_all(devices: &[Device], access: Access) -> Result<Vec<Arc<LeasedDevice>>> {
    if devices.is_empty() {
        return Err(Error::refused(Errno::EINVAL, "no device was given"));
    }
    devices.iter().map(|device| device.open(access)).collect()
}

/// The devices as the engine takes them.
pub(crate) fn of_engine(devices: &[Arc<LeasedDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| Arc::clone(device) as _).collect()
}

fn open_error(error: OpenError) -> Error {
    use butterfs_device::OpenErrorKind;
    // The sentence names the path.
    let sentence = match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    };
    let errno = match &error.kind {
        OpenErrorKind::NotFound => Errno::ENOENT,
        OpenErrorKind::Exists => Errno::EEXIST,
        OpenErrorKind::PermissionDenied => Errno::EACCES,
        OpenErrorKind::WriteProtected => Errno::EROFS,
        OpenErrorKind::NotStorage { .. } => Errno::EINVAL,
        OpenErrorKind::InUse { .. } | OpenErrorKind::UsedByKernel { .. } => Errno::EBUSY,
        OpenErrorKind::CannotLock(cause) | OpenErrorKind::Io(cause) => {
            Errno(cause.raw_os_error().unwrap_or(Errno::EIO.0))
        }
    };
    Error::refused(errno, sentence).on_device(error.path.to_string_lossy())
}

impl From<&str> for Device {
    fn from(path: &str) -> Device {
        Device::path(path)
    }
}

impl From<&Path> for Device {
    fn from(path: &Path) -> Device {
        Device::path(path)
    }
}

impl From<PathBuf> for Device {
    fn from(path: PathBuf) -> Device {
        Device::path(path)
    }
}

impl From<&PathBuf> for Device {
    fn from(path: &PathBuf) -> Device {
        Device::path(path)
    }
}

impl From<MemoryDevice> for Device {
    fn from(device: MemoryDevice) -> Device {
        Device::custom(device)
    }
}

impl From<Arc<dyn BlockDevice>> for Device {
    fn from(device: Arc<dyn BlockDevice>) -> Device {
        Device::from_open(device)
    }
}
