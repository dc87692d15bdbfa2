//! Mounting by system call, for whoever the kernel lets.
//!
//! # An image file as the source of a `fuseblk` mount
//! The kernel takes only a block device as the source of a `fuseblk` mount: it looks the source up as a path, claims
//! what it finds, and shows that string in mountinfo. So a loop device is attached to the image, and the mount is made
//! in a mount namespace of one thread's own in which the loop device's node is bound over the image's path. There the
//! path *is* the block device. The finished mount is carried out of that namespace by descriptor and shows the image's
//! path, as the mount would that the kernel makes with `-o loop`.
//!
//! Nobody reads or writes through the loop device: the server works on the image itself. What the device adds is the
//! claim, which also keeps `mount -o loop` of the same image from a second life. It goes away with the mount.

use super::loop_device::LoopDevice;
use super::{Backing, Flags, Kind, Mounted, Request, SUBTYPE};
use crate::system;
use crate::transport::DevFuse;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind, mount_change, move_mount,
};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest source that the kernel takes for a `fuseblk` mount.
const LONGEST_OPTION: usize = 255;

/// Mounts. [`io::ErrorKind::PermissionDenied`]: not by this user.
pub fn mount(request: &Request) -> io::Result<Mounted> {
    let outcome = match &request.backing {
        Backing::Unclaimed => return unclaimed(request),
        Backing::BlockDevice => claimed(request, &request.source),
        Backing::ImageFile(image) => over_loop_device(request, image),
    };
    match outcome {
        Ok(device) => Ok(Mounted { device, kind: Kind::FuseBlock }),
        // Somebody else has the device.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error),
        // No such type, no loop devices, a user namespace.
        Err(_) => unclaimed(request),
    }
}

/// Type `fuse`, which also a user namespace may mount.
fn unclaimed(request: &Request) -> io::Result<Mounted> {
    let device = DevFuse::open()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    if request.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(&request.source, &request.mountpoint, kind, mount_flags(&request.flags), data.as_c_str())?;
    Ok(Mounted { device, kind: Kind::Fuse })
}

/// Type `fuseblk` on the block device `source`.
fn claimed(request: &Request, source: &OsStr) -> io::Result<DevFuse> {
    let device = DevFuse::open()?;
    attach(block_mount(request, &device, source)?, &request.mountpoint)?;
    Ok(device)
}

/// Type `fuseblk` on a loop device over `image`, under the image's name.
fn over_loop_device(request: &Request, image: &OwnedFd) -> io::Result<DevFuse> {
    let name = Path::new(&request.source);
    let over = LoopDevice::attach(image.as_fd(), name)?;
    if request.source.len() > LONGEST_OPTION {
        return claimed(request, over.path().as_os_str());
    }
    let device = DevFuse::open()?;
    let elsewhere = || -> io::Result<OwnedFd> {
        system::leave_mount_namespace()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount_bind(over.path(), name)?;
        block_mount(request, &device, &request.source)
    };
    let mount = std::thread::scope(|scope| match scope.spawn(elsewhere).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    })?;
    attach(mount, &request.mountpoint)?;
    Ok(device)
}

/// Makes a `fuseblk` mount that is nowhere yet.
fn block_mount(request: &Request, device: &DevFuse, source: &OsStr) -> io::Result<OwnedFd> {
    let context = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &OsStr| fsconfig_set_string(&context, key, value.as_bytes());
    let number = |key: &str, value: u32| set(key, OsStr::new(&value.to_string()));
    set("source", source)?;
    set("subtype", OsStr::new(SUBTYPE))?;
    number("fd", device.as_fd().as_raw_fd() as u32)?;
    set("rootmode", OsStr::new("40000"))?;
    number("user_id", rustix::process::geteuid().as_raw())?;
    number("group_id", rustix::process::getegid().as_raw())?;
    number("blksize", request.sector_bytes)?;
    fsconfig_set_flag(&context, "default_permissions")?;
    let Flags { read_only, sync, dirsync, lazytime, .. } = request.flags;
    let flags = [
        ("allow_other", request.allow_other),
        ("ro", read_only),
        ("sync", sync),
        ("dirsync", dirsync),
        ("lazytime", lazytime),
    ];
    for (key, _) in flags.into_iter().filter(|(_, on)| *on) {
        fsconfig_set_flag(&context, key)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(&request.flags))?)
}

fn attach(mount: OwnedFd, mountpoint: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn attributes(flags: &Flags) -> MountAttrFlags {
    let table = [
        (flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (flags.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (flags.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (flags.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (flags.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (flags.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (flags.strictatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        (flags.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    table.into_iter().filter(|(on, _)| *on).fold(MountAttrFlags::empty(), |all, (_, flag)| all | flag)
}

/// The same flags for mount(2).
pub(super) fn mount_flags(flags: &Flags) -> rustix::mount::MountFlags {
    use rustix::mount::MountFlags;
    let table = [
        (flags.read_only, MountFlags::RDONLY),
        (flags.nosuid, MountFlags::NOSUID),
        (flags.nodev, MountFlags::NODEV),
        (flags.noexec, MountFlags::NOEXEC),
        (flags.noatime, MountFlags::NOATIME),
        (flags.nodiratime, MountFlags::NODIRATIME),
        (flags.strictatime, MountFlags::STRICTATIME),
        // MS_NOSYMFOLLOW, which the library does not name.
        (flags.nosymfollow, MountFlags::from_bits_retain(256)),
        (flags.sync, MountFlags::SYNCHRONOUS),
        (flags.dirsync, MountFlags::DIRSYNC),
        (flags.lazytime, MountFlags::LAZYTIME),
    ];
    table.into_iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}
