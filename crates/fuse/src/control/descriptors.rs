//! Which descriptors of others the serving process may hold.
//!
//! Letting go of a descriptor can wait for the server of its filesystem, for ever and out of reach of signals: closing
//! one sends FLUSH and writes back what was changed through mappings, and the last reference to a mount ends the
//! filesystem. So only what belongs to nobody else is harmless.

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fstatfs, statx};
use std::os::fd::AsFd;

/// PIPEFS_MAGIC: pipes without a name. A pipe that has one keeps the filesystem busy that the name lies on.
const PIPES: u64 = 0x5049_5045;
/// FUSE_SUPER_MAGIC.
const FUSE: u64 = 0x6573_5546;

/// Whether a descriptor is no more than the way to something on the FUSE mount with this device number. Other
/// filesystems can show device numbers that are not their own.
pub fn is_path_on(descriptor: impl AsFd, device: (u32, u32)) -> bool {
    let is_path = fcntl_getfl(&descriptor).is_ok_and(|flags| flags.contains(OFlags::PATH));
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let is_on_device = || {
        let stat = statx(&descriptor, c"", flags, StatxFlags::INO);
        stat.is_ok_and(|stat| (stat.stx_dev_major, stat.stx_dev_minor) == device)
    };
    is_path && is_on_device() && lies_on(&descriptor, FUSE)
}

/// Whether a descriptor is a pipe without a name. Sockets are none: what their peers send may bring descriptors.
pub fn is_pipe(descriptor: impl AsFd) -> bool {
    lies_on(descriptor, PIPES)
}

fn lies_on(descriptor: impl AsFd, kind: u64) -> bool {
    fstatfs(descriptor).is_ok_and(|found| found.f_type as u64 == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, fstat};

    #[test]
    fn only_pipes_without_a_name_are_streams() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(is_pipe(&reader) && is_pipe(&writer));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_pipe(&socket) && !is_pipe(std::fs::File::open("/dev/null").unwrap()));
    }

    #[test]
    fn descriptors_of_another_filesystem_are_not_held() {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let device = fstat(&root).unwrap().st_dev;
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        assert!(!is_path_on(&root, (device.0, device.1 + 1)));
        assert_eq!(is_path_on(&root, device), lies_on(&root, FUSE));
        assert!(!is_path_on(std::fs::File::open("/").unwrap(), device));
    }
}
