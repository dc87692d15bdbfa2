//! One superblock and the mounts of it: how the first is made, how more are made, and how one gets to its mount point.
//!
//! The kernel takes a `fuseblk` mount of a block device that has a FUSE superblock for one more mount of that
//! superblock, and likewise a `fuse` mount with a descriptor of a connection that has one. Further mounts need no
//! message to the server and no second connection.
//!
//! # Invariants
//! 1. A further mount never makes a new superblock: the descriptor that comes with it is none that a superblock could
//!    be made with, so the kernel refuses (`EINVAL`, `ENOTCONN`) when the old one is gone.
//! 2. Nothing that is mounted on the way is seen in any namespace that others see.

use super::direct::{attributes, keep_to_oneself, under_another_name};
use super::{Flags, Request, SUBTYPE};
use crate::system;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, move_mount,
    open_tree, unmount,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The owner of a superblock.
#[derive(Debug)]
pub(super) enum Source {
    /// Type `fuseblk` on this node, which is shown.
    BlockDevice(PathBuf),
    /// Type `fuseblk` on this node; the image beneath is shown.
    LoopDevice(PathBuf),
    /// Type `fuse` with this connection.
    Connection(OwnedFd),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Superblock {
    source: Source,
    shown: OsString,
    allow_other: bool,
    sector_bytes: u32,
}

impl Superblock {
    pub(super) fn new(request: &Request, source: Source) -> Superblock {
        let Request { source: shown, allow_other, sector_bytes, .. } = request;
        Superblock { source, shown: shown.clone(), allow_other: *allow_other, sector_bytes: *sector_bytes }
    }

    /// Makes the superblock. Returns a mount of it that is nowhere.
    pub(super) fn create(&self, connection: BorrowedFd<'_>, request: &Request) -> io::Result<OwnedFd> {
        self.named(|source| self.mount(connection, source, (&request.flags, attributes(&request.flags))))
    }

    /// One more mount of the superblock, which is nowhere and has no flags of its own. It may be that of another
    /// filesystem, where the last mount of this one is gone and its device is used again.
    pub fn another_mount(&self) -> io::Result<OwnedFd> {
        let flags = Flags { read_only: false, ..Flags::default() };
        self.named(|source| match self.again(source, &flags) {
            // The kernel wants to hear whether the superblock can be written.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                self.again(source, &Flags { read_only: true, ..flags })
            }
            outcome => outcome,
        })
    }

    fn again(&self, source: &OsStr, flags: &Flags) -> io::Result<OwnedFd> {
        let unusable = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let flags = (flags, MountAttrFlags::empty());
        match &self.source {
            Source::Connection(connection) => self.mount(connection.as_fd(), source, flags),
            Source::BlockDevice(_) | Source::LoopDevice(_) => self.mount(unusable()?.as_fd(), source, flags),
        }
    }

    /// Runs `make` with the path that the kernel looks up, and shows.
    fn named<T: Send>(&self, make: impl FnOnce(&OsStr) -> io::Result<T> + Send) -> io::Result<T> {
        match &self.source {
            Source::BlockDevice(node) => make(node.as_os_str()),
            // An image that was renamed since has no name that the kernel finds; then the node is shown.
            Source::LoopDevice(node) if !Path::new(&self.shown).exists() => make(node.as_os_str()),
            Source::LoopDevice(node) => under_another_name(node, Path::new(&self.shown), || make(&self.shown)),
            Source::Connection(_) => make(&self.shown),
        }
    }

    /// A mount of the superblock for these flags, with these flags of its own.
    fn mount(
        &self,
        connection: BorrowedFd<'_>,
        source: &OsStr,
        (flags, own): (&Flags, MountAttrFlags),
    ) -> io::Result<OwnedFd> {
        let on_block_device = !matches!(self.source, Source::Connection(_));
        let context = fsopen(if on_block_device { "fuseblk" } else { "fuse" }, FsOpenFlags::FSOPEN_CLOEXEC)?;
        let set = |key: &str, value: &OsStr| fsconfig_set_string(&context, key, value.as_bytes());
        let number = |key: &str, value: u32| set(key, OsStr::new(&value.to_string()));
        set("source", source)?;
        set("subtype", OsStr::new(SUBTYPE))?;
        number("fd", connection.as_raw_fd() as u32)?;
        set("rootmode", OsStr::new("40000"))?;
        number("user_id", rustix::process::geteuid().as_raw())?;
        number("group_id", rustix::process::getegid().as_raw())?;
        if on_block_device {
            number("blksize", self.sector_bytes)?;
        }
        let Flags { read_only, sync, dirsync, lazytime, .. } = *flags;
        let switches = [
            ("default_permissions", true),
            ("allow_other", self.allow_other),
            ("ro", read_only),
            ("sync", sync),
            ("dirsync", dirsync),
            ("lazytime", lazytime),
        ];
        for (key, _) in switches.into_iter().filter(|(_, on)| *on) {
            fsconfig_set_flag(&context, key)?;
        }
        fsconfig_create(&context)?;
        Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, own)?)
    }
}

/// Allows writing to the superblock of a mount; mounts that are read-only themselves stay so.
pub fn make_writable(mount: impl AsFd) -> io::Result<()> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = fspick(mount, "", flags)?;
    fsconfig_set_flag(&context, "rw")?;
    Ok(fsconfig_reconfigure(&context)?)
}

/// A mount of the directory at `path` beneath the root of `mount`, which is used up. It has the same flags and is
/// nowhere. Needs an answering server.
pub fn subtree(mount: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return Ok(mount);
    }
    match copy(mount.as_fd(), path) {
        // Kernels before 6.15 copy only mounts that are somewhere.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => subtree_by_namespace(mount, path),
        outcome => outcome,
    }
}

/// [`subtree`] for kernels before 6.15. A namespace of one's own holds other filesystems for a moment, so that an
/// unmount may not be the last one.
#[doc(hidden)]
pub fn subtree_by_namespace(mount: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    in_own_namespace(|| {
        move_mount(&mount, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let copy = copy(mount.as_fd(), path);
        // Here, because a namespace that ends takes its mounts away some time later, and the mount would outlive its
        // last visible one for so long.
        rustix::process::fchdir(&mount)?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        copy
    })
}

fn copy(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(open_directory(root, path)?, "", flags)?)
}

/// Opens a directory without following links.
fn open_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
    loop {
        match openat2(root, path, flags, Mode::empty(), resolve) {
            // Somebody renamed something meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Gives a mount that is nowhere its flags, and brings it to its mount point.
pub fn place(mount: OwnedFd, flags: &Flags, mountpoint: &Path) -> io::Result<()> {
    let attributes = attributes(flags);
    if attributes != MountAttrFlags::empty() {
        system::set_mount_attributes(mount.as_fd(), attributes)?;
    }
    Ok(move_mount(mount, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The inode number of a mount's root directory, without asking its server.
pub fn inode_number(mount: impl AsFd) -> io::Result<u64> {
    Ok(remembered(mount)?.stx_ino)
}

/// The device number of a mount, without asking its server.
pub fn device_number(mount: impl AsFd) -> io::Result<(u32, u32)> {
    let stat = remembered(mount)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

fn remembered(mount: impl AsFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(mount, c"", flags, StatxFlags::INO)?)
}

/// Runs `act` on a thread with a mount namespace of its own.
pub(super) fn in_own_namespace<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let act = || {
        system::leave_mount_namespace()?;
        keep_to_oneself()?;
        act()
    };
    std::thread::scope(|scope| match scope.spawn(act).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
