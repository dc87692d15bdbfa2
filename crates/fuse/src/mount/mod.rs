//! Makes, changes and ends mounts.
//!
//! Two types of mount stand for the same server:
//!
//! | type | who | `sync`, `syncfs` | `umount` |
//! |---|---|---|---|
//! | `fuseblk` | root, on a block device | reach the server (SYNCFS) | waits for the server (DESTROY) |
//! | `fuse` | anybody | do not | returns at once, the server commits after it |
//!
//! So root gets `fuseblk`, and for an image file a loop device over it to satisfy the kernel ([`direct`]); everybody
//! else gets `fuse`, through `fusermount3` where mounting is not allowed.
//!
//! # One filesystem, several mounts
//! A mount that is made by system call shows the top level of the filesystem, and is nowhere yet ([`Place::Detached`]).
//! What a user sees is a mount of the same superblock at a subvolume ([`subtree`]), as on the kernel's btrfs. All
//! mounts share one cache, one device number and one server; each has flags of its own. `fusermount3` cannot do this:
//! its mounts show one subvolume ([`Place::Mountpoint`]), and there is one of them.
//!
//! # Invariants
//! 1. `default_permissions` is always on; without it the kernel would remember one user's permissions for another.
//! 2. The source shown is the one given, whatever stands for it.
//! 3. The server holds no mount of its own superblock, except while it makes one: the last unmount ends it.

pub mod direct;
pub mod fusermount;
mod loop_device;
pub mod mountinfo;
pub mod options;
mod superblock;

pub use options::MountOptions;
pub use superblock::{Superblock, device_number, inode_number, make_writable, place, subtree, subtree_by_namespace};

use crate::transport::DevFuse;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The type that mounts show after `fuse.` or `fuseblk.`.
pub const SUBTYPE: &str = "butterfs";

/// Flags of a mount that the kernel enforces, not the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// No writes.
    pub read_only: bool,
    /// Set-id bits mean nothing.
    pub nosuid: bool,
    /// Device nodes mean nothing.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Access times are not shown to change.
    pub noatime: bool,
    /// The same for directories.
    pub nodiratime: bool,
    /// Access times always change.
    pub strictatime: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Times are written late.
    pub lazytime: bool,
}

/// The storage of a mount.
#[derive(Debug)]
pub enum Backing {
    /// Nothing that the kernel could claim: type `fuse`.
    Unclaimed,
    /// The source is a block device: type `fuseblk` where allowed. The kernel claims the device for itself, so the
    /// server's own descriptor must not be an exclusive one.
    BlockDevice,
    /// The source is this open file: type `fuseblk` over a loop device where allowed.
    ImageFile(OwnedFd),
}

/// A request to mount.
#[derive(Debug)]
pub struct Request {
    /// Shown as what is mounted; for a block device, its path.
    pub source: OsString,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// How.
    pub flags: Flags,
    /// Other users may enter.
    pub allow_other: bool,
    /// The storage.
    pub backing: Backing,
    /// The largest sector that a `fuseblk` mount may assume.
    pub sector_bytes: u32,
}

/// The kind of the new mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Type `fuse`.
    Fuse,
    /// Type `fuseblk`.
    FuseBlock,
}

/// A fresh mount: nothing answers yet.
///
/// The connection is dropped first: ending a mount waits for an answer as long as somebody holds the connection.
#[derive(Debug)]
pub struct Mounted {
    /// The connection to serve.
    pub device: DevFuse,
    /// Its type.
    pub kind: Kind,
    /// The place at which it is visible.
    pub place: Place,
}

/// The place at which a fresh mount is visible.
#[derive(Debug)]
pub enum Place {
    /// Nowhere: the mount's root, and how further mounts of its superblock are made.
    Detached(OwnedFd, Superblock),
    /// At its mount point.
    Mountpoint,
}

impl Place {
    /// Shows the root of the superblock at the mount point.
    pub fn show(self, request: &Request) -> io::Result<()> {
        match self {
            Place::Detached(root, _) => place(root, &request.flags, &request.mountpoint),
            Place::Mountpoint => Ok(()),
        }
    }
}

/// Makes a mount. Until the server answers INIT, everybody who looks there waits. The mount point matters to
/// `fusermount3` only.
pub fn mount(request: &Request) -> io::Result<Mounted> {
    match direct::mount(request) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fusermount::mount(request),
        outcome => outcome,
    }
}

/// Ends a mount. `lazily`: it goes out of sight now, and ends when nobody uses it any more.
pub fn unmount(mountpoint: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => fusermount::unmount(mountpoint, lazily),
        outcome => Ok(outcome?),
    }
}

/// Changes the flags of an existing mount, all of them: those that are not set here are taken away.
pub fn remount(mountpoint: &Path, flags: &Flags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(mountpoint, direct::mount_flags(flags), c"")?)
}
