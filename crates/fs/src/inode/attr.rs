//! The attributes of an inode that users see and set, and the item's fields in those terms.
//!
//! Nothing here has a state.

use crate::env::Time;
use butterfs_ondisk::items::{InodeItem, Timespec, dir_type};
use butterfs_ondisk::{Ino, TreeId};

/// An inode of the whole filesystem.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InodeId {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode in it.
    pub ino: Ino,
}

impl InodeId {
    /// Bit of the numbers of placeholders: the empty directories that stand where a snapshot has an entry for a
    /// subvolume that it does not contain. The rest of the number is the entry's subvolume, so that they differ.
    const PLACEHOLDER: u64 = 1 << 63;

    /// An inode of a tree.
    pub const fn new(tree: TreeId, ino: Ino) -> InodeId {
        InodeId { tree, ino }
    }

    /// The root directory of a subvolume.
    pub const fn root_of(tree: TreeId) -> InodeId {
        InodeId { tree, ino: Ino::ROOT_DIR }
    }

    /// The placeholder that stands in `tree` for `subvolume`.
    pub const fn placeholder(tree: TreeId, subvolume: TreeId) -> InodeId {
        InodeId { tree, ino: Ino(InodeId::PLACEHOLDER | subvolume.0) }
    }

    /// Whether this is a placeholder; the kernel shows all of them as inode 2.
    pub const fn is_placeholder(self) -> bool {
        self.ino.0 & InodeId::PLACEHOLDER != 0 && self.ino.0 <= Ino::LAST_FREE.0
    }
}

/// File type bits of a mode.
pub mod mode {
    /// Mask of the type.
    pub const S_IFMT: u32 = 0o170000;
    /// Socket.
    pub const S_IFSOCK: u32 = 0o140000;
    /// Symbolic link.
    pub const S_IFLNK: u32 = 0o120000;
    /// Regular file.
    pub const S_IFREG: u32 = 0o100000;
    /// Block device.
    pub const S_IFBLK: u32 = 0o060000;
    /// Directory.
    pub const S_IFDIR: u32 = 0o040000;
    /// Character device.
    pub const S_IFCHR: u32 = 0o020000;
    /// FIFO.
    pub const S_IFIFO: u32 = 0o010000;
    /// Run as the owner.
    pub const S_ISUID: u32 = 0o4000;
    /// Run as the group; on a directory: new entries have its group.
    pub const S_ISGID: u32 = 0o2000;
    /// Execution by the group.
    pub const S_IXGRP: u32 = 0o0010;
    /// All bits that are not the type.
    pub const PERMISSIONS: u32 = 0o7777;
}

/// The attributes that `stat` and `statx` show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which inode.
    pub id: InodeId,
    /// Tells apart inodes that had the same number.
    pub generation: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
    /// Good size for I/O.
    pub blksize: u32,
    /// The item's flags, see [`inode_flags`](butterfs_ondisk::items::inode_flags).
    pub flags: u64,
}

impl Attr {
    /// The attributes in an item.
    pub fn of_item(id: InodeId, item: &InodeItem, sectorsize: u32) -> Attr {
        Attr {
            id,
            generation: item.generation.get(),
            size: item.size.get(),
            blocks: item.nbytes.get().div_ceil(u64::from(sectorsize)).saturating_mul(u64::from(sectorsize / 512)),
            mode: item.mode.get(),
            nlink: item.nlink.get(),
            uid: item.uid.get(),
            gid: item.gid.get(),
            rdev: device_numbers(item.rdev.get()),
            atime: time_of(item.atime),
            mtime: time_of(item.mtime),
            ctime: time_of(item.ctime),
            btime: time_of(item.otime),
            blksize: sectorsize,
            flags: item.flags.get(),
        }
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & mode::S_IFMT
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This one.
    At(Time),
}

/// A change of an inode's attributes; `None` keeps the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; otherwise now.
    pub ctime: Option<Time>,
    /// The set-id bits go: with `size` as for an unprivileged write, without it as for a change of the owner.
    pub kill_suidgid: bool,
    /// `security.capability` goes, as before a write.
    pub kill_capability: bool,
    /// The set-id bits go, as before the write of somebody who may write without being the owner.
    pub written_by_user: bool,
}

/// On whose behalf something is made or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made.
    pub gid: u32,
    /// Permissions to withhold where no default ACL says otherwise; 0 when the kernel already did.
    pub umask: u32,
    /// Whether set-group-id bits of foreign groups may be kept.
    pub privileged: bool,
}

/// The item's form of a time.
pub fn timespec(time: Time) -> Timespec {
    time.into()
}

/// The time of an item's field. Nanoseconds beyond a second, which only a damaged item has, read as 0.
pub fn time_of(spec: Timespec) -> Time {
    let nsec = spec.nsec.get();
    Time { sec: spec.sec.get(), nsec: if nsec < 1_000_000_000 { nsec } else { 0 } }
}

/// Major and minor of an item's `rdev`.
pub fn device_numbers(rdev: u64) -> (u32, u32) {
    ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32)
}

/// An item's `rdev`.
pub fn device_of(numbers: (u32, u32)) -> u64 {
    (u64::from(numbers.0) << 20) | u64::from(numbers.1 & 0xf_ffff)
}

/// File types: the mode's bits, the directory entry's type on disk, and the `DT_*` number of readdir.
const KINDS: [(u32, u8, u8); 7] = [
    (mode::S_IFREG, dir_type::REG_FILE, 8),
    (mode::S_IFDIR, dir_type::DIR, 4),
    (mode::S_IFCHR, dir_type::CHRDEV, 2),
    (mode::S_IFBLK, dir_type::BLKDEV, 6),
    (mode::S_IFIFO, dir_type::FIFO, 1),
    (mode::S_IFSOCK, dir_type::SOCK, 12),
    (mode::S_IFLNK, dir_type::SYMLINK, 10),
];

/// The directory entry's type on disk for a mode.
pub fn dir_type_of(file_mode: u32) -> Option<u8> {
    KINDS.iter().find(|kind| kind.0 == file_mode & mode::S_IFMT).map(|kind| kind.1)
}

/// The `DT_*` number of a directory entry's type on disk; 0 (unknown) for one that does not exist.
pub fn readdir_kind(on_disk: u8) -> u8 {
    KINDS.iter().find(|kind| kind.1 == on_disk).map_or(0, |kind| kind.2)
}
