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
use super::superblock::{Source, Superblock, in_own_namespace};
use super::{Backing, Flags, Kind, Mounted, Place, Request};
use crate::transport::DevFuse;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_bind, mount_change};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The longest source that the kernel takes for a `fuseblk` mount.
const LONGEST_OPTION: usize = 255;

/// Mounts. [`io::ErrorKind::PermissionDenied`]: not by this user.
pub fn mount(request: &Request) -> io::Result<Mounted> {
    let outcome = match &request.backing {
        Backing::Unclaimed => return unclaimed(request),
        Backing::BlockDevice => claimed(request, Source::BlockDevice(PathBuf::from(&request.source))),
        Backing::ImageFile(image) => over_loop_device(request, image),
    };
    match outcome {
        Ok(mounted) => Ok(mounted),
        // Somebody else has the device.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error),
        // No such type, no loop devices, a user namespace.
        Err(_) => unclaimed(request),
    }
}

/// Type `fuse`, which also a user namespace may mount.
fn unclaimed(request: &Request) -> io::Result<Mounted> {
    let device = DevFuse::open()?;
    let source = Source::Connection(device.duplicate()?);
    finish(request, device, source, Kind::Fuse)
}

/// Type `fuseblk` on a block device.
fn claimed(request: &Request, source: Source) -> io::Result<Mounted> {
    finish(request, DevFuse::open()?, source, Kind::FuseBlock)
}

fn finish(request: &Request, device: DevFuse, source: Source, kind: Kind) -> io::Result<Mounted> {
    let superblock = Superblock::new(request, source);
    let root = superblock.create(device.as_fd(), request)?;
    Ok(Mounted { device, kind, place: Place::Detached(root, superblock) })
}

/// Type `fuseblk` on a loop device over `image`, under the image's name.
fn over_loop_device(request: &Request, image: &OwnedFd) -> io::Result<Mounted> {
    let over = LoopDevice::attach(image.as_fd(), Path::new(&request.source))?;
    let node = over.path().to_owned();
    match request.source.len() > LONGEST_OPTION {
        true => claimed(request, Source::BlockDevice(node)),
        false => claimed(request, Source::LoopDevice(node)),
    }
}

/// Runs `make` where the path `shown` is the node `node`.
pub(super) fn under_another_name<T: Send>(
    node: &Path,
    shown: &Path,
    make: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    in_own_namespace(|| {
        mount_bind(node, shown)?;
        make()
    })
}

/// Nothing that happens in this namespace is seen in others. What others unmount goes here too where mounts are shared,
/// so that this copy of the namespace does not keep it.
pub(super) fn keep_to_oneself() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// The flags that belong to one mount.
pub(super) fn attributes(flags: &Flags) -> MountAttrFlags {
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
