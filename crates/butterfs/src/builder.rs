//! [`Builder`]: opens a filesystem with options.

use crate::device::{Device, of_engine, open_all};
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::types::{Access, Owner, SubvolumeId};
use butterfs_fs::{Algorithm, Env, Method, Options};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Opens a filesystem with options. The defaults are those of the kernel's mount.
///
/// ```
/// use butterfs::{Access, Builder, Compression, Device, Mkfs, SubvolumeChoice};
///
/// # fn main() -> butterfs::Result<()> {
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// let filesystem = Builder::new()
///     .device(disk)
///     .access(Access::ReadWrite)
///     .subvolume(SubvolumeChoice::TopLevel)
///     .compression(Compression::zstd(3))
///     .open()?;
/// filesystem.close()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct Builder {
    devices: Vec<Device>,
    owner: Owner,
    options: Options,
}

/// Which subvolume [`Filesystem::root`] leads to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SubvolumeChoice {
    /// The default subvolume: the top level, unless [`Filesystem::set_default_subvolume`] has chosen another one.
    #[default]
    Default,
    /// The top level, which contains every other subvolume.
    TopLevel,
    /// The subvolume with this id.
    Id(SubvolumeId),
    /// The subvolume at this path from the top level.
    Path(PathBuf),
}

/// The choice between refusing and opening a filesystem with missing devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MissingDevices {
    /// Refuse to open it.
    #[default]
    Refuse,
    /// Open it if the profiles survive the loss (`degraded`).
    Allow,
}

/// The treatment of the log that a crash after an `fsync` has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Log {
    /// Replay it. This writes to the devices, also if the filesystem is opened read-only.
    #[default]
    Replay,
    /// Ignore it: the devices are not written, and changes that only the log contains are not shown. Implies
    /// [`Access::ReadOnly`].
    Ignore,
}

/// The compression of new file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Compression(Option<Method>, Effort);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Effort {
    #[default]
    Promising,
    Everything,
}

impl Compression {
    /// New data is not compressed.
    pub const NONE: Compression = Compression(None, Effort::Promising);

    /// zstd at a level from -15 to 15. 0 stands for the default, 3; a level out of range for the nearest one.
    pub fn zstd(level: i32) -> Compression {
        Compression(Some(Method::new(Algorithm::Zstd, level)), Effort::Promising)
    }

    /// zlib at a level from 1 to 9. 0 stands for the default, 3; a level out of range for the nearest one.
    pub fn zlib(level: i32) -> Compression {
        Compression(Some(Method::new(Algorithm::Zlib, level)), Effort::Promising)
    }

    /// LZO.
    pub fn lzo() -> Compression {
        Compression(Some(Method::from(Algorithm::Lzo)), Effort::Promising)
    }

    /// Tries to compress every file, also one whose beginning does not look compressible (`compress-force`).
    pub fn forced(self) -> Compression {
        Compression(self.0, Effort::Everything)
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// No devices, and the default options.
    pub fn new() -> Builder {
        Builder { devices: Vec::new(), owner: Owner::ROOT, options: Options::default() }
    }

    /// Adds a device. Call it once for each device of the filesystem, in any order.
    pub fn device(mut self, device: impl Into<Device>) -> Builder {
        self.devices.push(device.into());
        self
    }

    /// Adds devices.
    pub fn devices<D: Into<Device>>(mut self, devices: impl IntoIterator<Item = D>) -> Builder {
        self.devices.extend(devices.into_iter().map(Into::into));
        self
    }

    /// Sets whether the filesystem may be changed.
    pub fn access(mut self, access: Access) -> Builder {
        self.options.read_only = access.is_read_only();
        self
    }

    /// Sets which subvolume the root is.
    pub fn subvolume(mut self, subvolume: SubvolumeChoice) -> Builder {
        use butterfs_fs::Subvolume;
        self.options.subvolume = match subvolume {
            SubvolumeChoice::Default => Subvolume::Default,
            SubvolumeChoice::TopLevel => Subvolume::Id(butterfs_fs::TreeId::FS),
            SubvolumeChoice::Id(id) => Subvolume::Id(id.tree()),
            SubvolumeChoice::Path(path) => Subvolume::Path(path.as_os_str().as_bytes().to_vec()),
        };
        self
    }

    /// Sets the user and group that new files belong to.
    pub fn owner(mut self, owner: Owner) -> Builder {
        self.owner = owner;
        self
    }

    /// Sets the compression of new data. The flags of a file take precedence.
    pub fn compression(mut self, compression: Compression) -> Builder {
        self.options.data.compress(compression.0, compression.1 == Effort::Everything);
        self
    }

    /// Sets whether the filesystem is opened if devices are missing.
    pub fn missing_devices(mut self, missing: MissingDevices) -> Builder {
        self.options.degraded = missing == MissingDevices::Allow;
        self
    }

    /// Sets whether a log is replayed.
    pub fn log(mut self, log: Log) -> Builder {
        self.options.no_log_replay = log == Log::Ignore;
        self
    }

    /// Sets the longest time until a change becomes durable without a call. 30 seconds by default; rounded down to
    /// whole seconds, at least one.
    pub fn commit_interval(mut self, interval: Duration) -> Builder {
        self.options.commit_interval_secs = interval.as_secs().max(1);
        self
    }

    /// Limits the bytes of tree blocks that are kept in memory. 256 MiB by default.
    pub fn cache_bytes(mut self, bytes: usize) -> Builder {
        self.options.node_cache_bytes = bytes;
        self
    }

    /// Limits the bytes of file data that may wait in memory to be written. 256 MiB by default.
    pub fn dirty_bytes(mut self, bytes: usize) -> Builder {
        self.options.dirty_data_bytes = bytes;
        self
    }

    /// Opens the filesystem.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if another process or the kernel uses a device,
    /// [`ErrorKind::MissingDevice`](crate::ErrorKind::MissingDevice) if not all devices were given,
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such subvolume, and a sentence that names the
    /// reason if the devices hold no btrfs or one with features that are not supported.
    pub fn open(self) -> Result<Filesystem> {
        let Builder { devices, owner, mut options } = self;
        options.read_only |= options.no_log_replay;
        // Replaying a log writes, as a read-only mount of the kernel does.
        let access = Access::of_read_only(options.no_log_replay || options.read_only && !has_log(&devices)?);
        let devices = open_all(&devices, access)?;
        let devices_of_engine = of_engine(&devices);
        let name = devices_of_engine[0].name();
        let engine = butterfs_fs::Filesystem::open(devices_of_engine, options, Env::system())
            .map_err(|error| Error::from(error).on_device(name))?;
        Ok(Filesystem::new(engine, owner, &devices))
    }
}

/// Whether opening the filesystem would replay a log. Opening reports the structures that cannot be read.
fn has_log(devices: &[Device]) -> Result<bool> {
    let devices = open_all(devices, Access::ReadOnly)?;
    Ok(butterfs_fs::Filesystem::has_log(of_engine(&devices)).unwrap_or(false))
}
