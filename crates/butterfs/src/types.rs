//! Small values that appear in many signatures.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The choice between reading only, and reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// Reading and writing.
    #[default]
    ReadWrite,
    /// Reading only.
    ReadOnly,
}

impl Access {
    pub(crate) fn is_read_only(self) -> bool {
        self == Access::ReadOnly
    }

    pub(crate) fn of_read_only(read_only: bool) -> Access {
        if read_only { Access::ReadOnly } else { Access::ReadWrite }
    }
}

/// The user and the group that a file belongs to. The numbers are those of the image; the host's users play no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Owner {
    /// User 0 and group 0.
    pub const ROOT: Owner = Owner { uid: 0, gid: 0 };

    /// This user and this group.
    pub const fn new(uid: u32, gid: u32) -> Owner {
        Owner { uid, gid }
    }
}

/// Permission bits: read, write and execute for owner, group and others, set-user-id, set-group-id, sticky.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mode(u32);

impl Mode {
    /// `rw-r--r--`, the default of new files.
    pub const FILE: Mode = Mode(0o644);
    /// `rwxr-xr-x`, the default of new directories.
    pub const DIRECTORY: Mode = Mode(0o755);

    /// The mode with these bits, as in `Mode::new(0o640)`. Bits above `0o7777` are dropped.
    pub const fn new(bits: u32) -> Mode {
        Mode(bits & 0o7777)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#o}", self.0)
    }
}

/// The number of a device in its filesystem. Devices are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(u64);

impl DeviceId {
    /// The device with this number, as `btrfs filesystem show` prints it.
    pub const fn new(number: u64) -> DeviceId {
        DeviceId(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn engine(self) -> butterfs_fs::DeviceId {
        butterfs_fs::DeviceId(self.0)
    }

    pub(crate) fn of(id: butterfs_fs::DeviceId) -> DeviceId {
        DeviceId(id.get())
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a subvolume. It stays the same when the subvolume is renamed, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubvolumeId(pub(crate) u64);

impl SubvolumeId {
    /// The top-level subvolume, which every filesystem has.
    pub const TOP_LEVEL: SubvolumeId = SubvolumeId(5);

    /// The subvolume with this number, as `btrfs subvolume list` prints it.
    pub const fn new(id: u64) -> SubvolumeId {
        SubvolumeId(id)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn tree(self) -> butterfs_fs::TreeId {
        butterfs_fs::TreeId(self.0)
    }
}

impl fmt::Display for SubvolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies an inode within a filesystem. Inode numbers are unique only within a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct InodeId {
    /// The subvolume.
    pub subvolume: SubvolumeId,
    /// The inode number within it.
    pub number: u64,
}

impl From<butterfs_fs::InodeId> for InodeId {
    fn from(id: butterfs_fs::InodeId) -> InodeId {
        InodeId { subvolume: SubvolumeId(id.tree.get()), number: id.ino.get() }
    }
}

/// A UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// The UUID with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Uuid {
        Uuid(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// None for the UUID of zeros, which stands for "none" on disk.
    pub(crate) fn unless_zero(bytes: [u8; 16]) -> Option<Uuid> {
        (bytes != [0; 16]).then_some(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, byte)| {
            let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")
        })
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A point in time with nanoseconds, as inodes store it. Unlike [`SystemTime`] it can hold every value of the disk
/// format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp {
    secs: i64,
    nanos: u32,
}

impl Timestamp {
    /// `secs` seconds after 1970 (before it if negative), plus `nanos` nanoseconds; none if `nanos` is 10^9 or more.
    pub const fn new(secs: i64, nanos: u32) -> Option<Timestamp> {
        if nanos < 1_000_000_000 { Some(Timestamp { secs, nanos }) } else { None }
    }

    /// Whole seconds since 1970.
    pub const fn secs(self) -> i64 {
        self.secs
    }

    /// Nanoseconds after the second, below 10^9.
    pub const fn nanos(self) -> u32 {
        self.nanos
    }

    /// The time of the host's clock; none if it cannot represent this time.
    pub fn to_system_time(self) -> Option<SystemTime> {
        let whole = match u64::try_from(self.secs) {
            Ok(secs) => UNIX_EPOCH.checked_add(Duration::from_secs(secs)),
            Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(self.secs.unsigned_abs())),
        };
        whole?.checked_add(Duration::from_nanos(self.nanos.into()))
    }

    pub(crate) fn of(time: butterfs_fs::env::Time) -> Timestamp {
        Timestamp { secs: time.sec, nanos: time.nsec }
    }

    pub(crate) fn engine(self) -> butterfs_fs::env::Time {
        butterfs_fs::env::Time { sec: self.secs, nsec: self.nanos }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let (secs, nanos) = (-(before.as_secs() as i64), before.subsec_nanos());
                if nanos == 0 {
                    Timestamp { secs, nanos }
                } else {
                    Timestamp { secs: secs - 1, nanos: 1_000_000_000 - nanos }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_the_way_through_the_system() {
        for (secs, nanos) in [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-5, 1), (1 << 33, 7)] {
            let time = Timestamp::new(secs, nanos).unwrap();
            assert_eq!(Timestamp::from(time.to_system_time().unwrap()), time);
        }
        assert_eq!(Timestamp::new(0, 1_000_000_000), None);
    }

    #[test]
    fn a_uuid_is_shown_in_the_usual_groups() {
        let uuid = Uuid::from_bytes(std::array::from_fn(|at| at as u8));
        assert_eq!(uuid.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
