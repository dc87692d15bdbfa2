//! Attributes of an inode.

use crate::types::{InodeId, Mode, Owner, Timestamp};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Attr, inode_flags};
use std::ops::BitOr;

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A type that the format does not have: the inode is damaged.
    Unknown,
}

impl FileType {
    pub(crate) fn of_mode(bits: u32) -> FileType {
        match bits & mode::S_IFMT {
            mode::S_IFREG => FileType::File,
            mode::S_IFDIR => FileType::Directory,
            mode::S_IFLNK => FileType::Symlink,
            mode::S_IFBLK => FileType::BlockDevice,
            mode::S_IFCHR => FileType::CharDevice,
            mode::S_IFIFO => FileType::Fifo,
            mode::S_IFSOCK => FileType::Socket,
            _ => FileType::Unknown,
        }
    }

    /// The `DT_*` number of a directory entry.
    pub(crate) fn of_entry(kind: u8) -> FileType {
        FileType::of_mode(u32::from(kind) << 12)
    }
}

/// Attributes of an inode at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(Attr);

impl Metadata {
    pub(crate) fn of(attr: Attr) -> Metadata {
        Metadata(attr)
    }

    /// Which inode this is.
    pub fn id(&self) -> InodeId {
        self.0.id.into()
    }

    /// The type.
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.0.mode)
    }

    /// Returns true for a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::File
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Returns true for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Bytes of the disk that the content takes, before compression and without copies.
    pub fn allocated_bytes(&self) -> u64 {
        self.0.blocks.saturating_mul(512)
    }

    /// The permission bits.
    pub fn mode(&self) -> Mode {
        Mode::new(self.0.mode)
    }

    /// User and group.
    pub fn owner(&self) -> Owner {
        Owner::new(self.0.uid, self.0.gid)
    }

    /// The number of names. Directories have one.
    pub fn links(&self) -> u32 {
        self.0.nlink
    }

    /// Major and minor number of a device file.
    pub fn device_numbers(&self) -> (u32, u32) {
        self.0.rdev
    }

    /// The last access, as far as it is recorded.
    pub fn accessed(&self) -> Timestamp {
        Timestamp::of(self.0.atime)
    }

    /// The last change of the content.
    pub fn modified(&self) -> Timestamp {
        Timestamp::of(self.0.mtime)
    }

    /// The last change of the inode.
    pub fn changed(&self) -> Timestamp {
        Timestamp::of(self.0.ctime)
    }

    /// The time when the inode was made.
    pub fn created(&self) -> Timestamp {
        Timestamp::of(self.0.btime)
    }

    /// The flags that `lsattr` shows, and others.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags(self.0.flags)
    }
}

/// Times to set; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The last access.
    pub accessed: Option<Timestamp>,
    /// The last change of the content.
    pub modified: Option<Timestamp>,
}

/// A set of flags of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct InodeFlags(u64);

impl InodeFlags {
    /// No flag.
    pub const NONE: InodeFlags = InodeFlags(0);
    /// Data is overwritten in place, without checksums (`chattr +C`). Only for empty files.
    pub const NO_COW: InodeFlags = InodeFlags(inode_flags::NODATACOW);
    /// Data is compressed (`+c`).
    pub const COMPRESS: InodeFlags = InodeFlags(inode_flags::COMPRESS);
    /// Data is not compressed (`+m`).
    pub const NO_COMPRESS: InodeFlags = InodeFlags(inode_flags::NOCOMPRESS);
    /// Nothing may be changed (`+i`).
    pub const IMMUTABLE: InodeFlags = InodeFlags(inode_flags::IMMUTABLE);
    /// Data may only be appended (`+a`).
    pub const APPEND_ONLY: InodeFlags = InodeFlags(inode_flags::APPEND);
    /// Access times are not recorded (`+A`).
    pub const NO_ATIME: InodeFlags = InodeFlags(inode_flags::NOATIME);

    /// Returns true if all of `flags` are set.
    pub const fn contains(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for InodeFlags {
    type Output = InodeFlags;

    fn bitor(self, other: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | other.0)
    }
}
