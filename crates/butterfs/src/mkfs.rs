//! Making a filesystem.

use crate::device::{Device, of_engine, open_all};
use crate::error::{Error, Result};
use crate::types::{Access, Uuid};
use butterfs_fs::Env;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_ondisk::profile::Profile as Row;

/// Makes a filesystem. The defaults are those of `mkfs.btrfs`.
///
/// ```
/// use butterfs::{Checksum, Device, Mkfs, Profile};
///
/// # fn main() -> butterfs::Result<()> {
/// let disks = [Device::memory(512 << 20), Device::memory(512 << 20)];
/// let made = Mkfs::new()
///     .devices(disks)
///     .label("backup")
///     .checksum(Checksum::Xxhash64)
///     .metadata(Profile::Raid1)
///     .data(Profile::Raid1)
///     .run()?;
/// println!("{}: {} bytes", made.uuid, made.total_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is made until `run` is called"]
pub struct Mkfs {
    devices: Vec<Device>,
    options: MkfsOptions,
}

/// The checksum of tree blocks and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Checksum {
    /// CRC-32C, the default.
    #[default]
    Crc32c,
    /// XXH64.
    Xxhash64,
    /// SHA-256.
    Sha256,
    /// BLAKE2b with 256 bits.
    Blake2b,
}

impl Checksum {
    fn engine(self) -> butterfs_ondisk::ChecksumKind {
        use butterfs_ondisk::ChecksumKind;
        match self {
            Checksum::Crc32c => ChecksumKind::Crc32c,
            Checksum::Xxhash64 => ChecksumKind::Xxhash64,
            Checksum::Sha256 => ChecksumKind::Sha256,
            Checksum::Blake2b => ChecksumKind::Blake2b,
        }
    }

    pub(crate) fn of(kind: butterfs_ondisk::ChecksumKind) -> Checksum {
        let all = [Checksum::Crc32c, Checksum::Xxhash64, Checksum::Sha256, Checksum::Blake2b];
        all.into_iter().find(|own| own.engine() == kind).expect("both lists have the same checksums")
    }
}

/// The profile of data or metadata: the number of copies and their layout on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped over all devices.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Two copies, striped.
    Raid10,
    /// Striped with one parity: survives the loss of one device.
    Raid5,
    /// Striped with two parities: survives the loss of two devices.
    Raid6,
}

impl Profile {
    fn row(self) -> &'static Row {
        let name = match self {
            Profile::Single => "single",
            Profile::Dup => "dup",
            Profile::Raid0 => "raid0",
            Profile::Raid1 => "raid1",
            Profile::Raid1c3 => "raid1c3",
            Profile::Raid1c4 => "raid1c4",
            Profile::Raid10 => "raid10",
            Profile::Raid5 => "raid5",
            Profile::Raid6 => "raid6",
        };
        Row::named(name).expect("the table has every profile")
    }

    /// Its bit in the flags of a block group.
    pub(crate) fn bit(self) -> u64 {
        self.row().bit
    }
}

/// The treatment of a filesystem or other content that is recognised on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Existing {
    /// Fail with [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists).
    #[default]
    Keep,
    /// Overwrite it.
    Overwrite,
}

/// A filesystem that was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Made {
    /// Its UUID.
    pub uuid: Uuid,
    /// Bytes of all its devices.
    pub total_bytes: u64,
    /// Sentences about problems that did not keep it from being made.
    pub warnings: Vec<String>,
}

impl Mkfs {
    /// No devices, and the default options.
    pub fn new() -> Mkfs {
        Mkfs::default()
    }

    /// Adds a device.
    pub fn device(mut self, device: impl Into<Device>) -> Mkfs {
        self.devices.push(device.into());
        self
    }

    /// Adds devices.
    pub fn devices<D: Into<Device>>(mut self, devices: impl IntoIterator<Item = D>) -> Mkfs {
        self.devices.extend(devices.into_iter().map(Into::into));
        self
    }

    /// The label, at most 255 bytes without NUL and newline.
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Mkfs {
        self.options.label = label.as_ref().to_vec();
        self
    }

    /// The UUID; a random one by default.
    pub fn uuid(mut self, uuid: Uuid) -> Mkfs {
        self.options.fsid = Some(*uuid.as_bytes());
        self
    }

    /// The checksum.
    pub fn checksum(mut self, checksum: Checksum) -> Mkfs {
        self.options.checksum = checksum.engine();
        self
    }

    /// The profile of metadata; [`Profile::Dup`] on one device and [`Profile::Raid1`] on several by default.
    pub fn metadata(mut self, profile: Profile) -> Mkfs {
        self.options.metadata = Some(profile.row());
        self
    }

    /// The profile of data; [`Profile::Single`] by default.
    pub fn data(mut self, profile: Profile) -> Mkfs {
        self.options.data = Some(profile.row());
        self
    }

    /// The size of a tree block in bytes: a power of two from 4096 to 65536, by default 16384.
    pub fn node_bytes(mut self, bytes: u32) -> Mkfs {
        self.options.nodesize = Some(bytes);
        self
    }

    /// Sets the treatment of content that is recognised on a device.
    pub fn existing(mut self, existing: Existing) -> Mkfs {
        self.options.force = existing == Existing::Overwrite;
        self
    }

    /// Makes the filesystem. When this returns `Ok`, it is durable.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) for a device that is too small (the sentence names the
    /// minimum), [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) for one that holds something, and
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for options that contradict each other.
    pub fn run(self) -> Result<Made> {
        let devices = of_engine(&open_all(&self.devices, Access::ReadWrite)?);
        let name = devices[0].name();
        let made = butterfs_fs::mkfs::mkfs(&devices, &self.options, &Env::system());
        let made = made.map_err(|error| Error::from(error).on_device(name))?;
        Ok(Made { uuid: Uuid::from_bytes(made.fsid), total_bytes: made.total_bytes, warnings: made.warnings })
    }
}
