//! Flags of inode items in terms of FS_IOC_SETFLAGS. Those that forbid changes are set when the tree is complete.

use super::super::{Failure, Outcome};
use super::tree::open_regular;
use super::{Directory, system};
use butterfs_fs::inode_flags as on_disk;
use rustix::fs::{
    FileType, IFlags, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, fstat, ioctl_getflags, ioctl_setflags, openat,
};
use std::os::fd::OwnedFd;

/// Flags that forbid changes.
pub(super) const FIXED: u64 = on_disk::IMMUTABLE | on_disk::APPEND;
/// The property that says how a file is compressed.
const COMPRESSION: &str = "btrfs.compression";

/// Flags as they are on disk, and as the system call has them. Whether a file is compressed is not among them: its
/// property says that.
const FLAGS: [(u64, IFlags); 8] = [
    (on_disk::SYNC, IFlags::SYNC),
    (on_disk::IMMUTABLE, IFlags::IMMUTABLE),
    (on_disk::APPEND, IFlags::APPEND),
    (on_disk::NODUMP, IFlags::NODUMP),
    (on_disk::NOATIME, IFlags::NOATIME),
    (on_disk::DIRSYNC, IFlags::DIRSYNC),
    (on_disk::NOCOMPRESS, NOCOMPRESS),
    (on_disk::NODATACOW, IFlags::NOCOW),
];
/// `FS_NOCOMP_FL`.
const NOCOMPRESS: IFlags = IFlags::from_bits_retain(0x400);
/// Those that say how content is stored, and that not every filesystem takes.
const STORING: IFlags = NOCOMPRESS.union(IFlags::NOCOW);
/// `FS_COMPR_FL`.
const COMPRESS: IFlags = IFlags::from_bits_retain(0x4);

impl Directory {
    pub(super) fn set_flags(&mut self, path: &[u8], flags: u64) -> Outcome {
        let file = self.open_any(path)?;
        let open = self.open_section()?;
        open.fixed.retain(|(known, _)| known != path);
        if flags & FIXED != 0 {
            open.fixed.push((path.to_vec(), flags));
        }
        let Some(file) = file else { return Ok(()) };
        let set = change(&file, flags & !FIXED);
        self.may_lose(&format!("fileattr {}", String::from_utf8_lossy(path)), set)
    }

    /// Sets the flags that forbid changes, but for the root's, which are returned: it has still to be moved.
    pub(super) fn set_fixed_flags(&mut self) -> Result<Option<u64>, Failure> {
        let fixed = self.open.as_mut().map(|open| std::mem::take(&mut open.fixed)).unwrap_or_default();
        let mut of_root = None;
        for (path, flags) in fixed {
            if path.is_empty() {
                of_root = Some(flags);
                continue;
            }
            // What is gone needs none.
            let Ok(Some(file)) = self.open_any(&path) else { continue };
            let set = change(&file, flags);
            self.may_lose(&format!("fileattr {}", String::from_utf8_lossy(&path)), set)?;
        }
        Ok(of_root)
    }

    /// A file or directory; none for what has no flags.
    fn open_any(&mut self, path: &[u8]) -> Result<Option<OwnedFd>, Failure> {
        let path_at = self.resolve(path)?;
        match path_at.kind()? {
            FileType::RegularFile => open_regular(&path_at, OFlags::RDONLY).map(Some),
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = || openat(&*path_at.directory, path_at.name, flags, Mode::empty());
                path_at.with_object(open).map(Some).map_err(system)
            }
            _ => Ok(None),
        }
    }
}

/// The flags of a file or directory, as they are on disk; none where the filesystem has none.
pub(super) fn of(file: &OwnedFd) -> u64 {
    let now = ioctl_getflags(file).unwrap_or(IFlags::empty());
    FLAGS.iter().filter(|(_, flag)| now.contains(*flag)).map(|(on_disk, _)| on_disk).sum()
}

/// Takes flags that forbid changes from what is to be deleted.
pub(super) fn unfix(file: &OwnedFd) -> Outcome {
    change(file, of(file) & !FIXED)
}

/// Sets flags; those of [`STORING`] by themselves, because some filesystems take the others only.
pub(super) fn change(file: &OwnedFd, wanted: u64) -> Outcome {
    let now = ioctl_getflags(file).map_err(system)?;
    let mut flags = now;
    for (on_disk, flag) in FLAGS {
        flags.set(flag, wanted & on_disk != 0);
    }
    let plain = flags & !STORING | now & STORING;
    let set = if plain == now { Ok(()) } else { set(file, plain) };
    // How content is stored is chosen while there is none, and not twice.
    let stat = fstat(file).map_err(system)?;
    let is_open = FileType::from_raw_mode(stat.st_mode) == FileType::Directory || stat.st_size == 0;
    let takes = |flag| flag != IFlags::NOCOW || is_open;
    let storing =
        [NOCOMPRESS, IFlags::NOCOW].into_iter().filter(|flag| takes(*flag) && (flags ^ plain).contains(*flag));
    storing.fold(set, |done, flag| {
        let now = ioctl_getflags(file).map_err(system)?;
        done.and(self::set(file, now ^ flag))
    })
}

/// Sets these flags and leaves the property as it is, which the kernel sets by the flags too.
fn set(file: &OwnedFd, flags: IFlags) -> Outcome {
    let mut value = [0; 64];
    let known =
        if flags.intersects(COMPRESS | NOCOMPRESS) { fgetxattr(file, COMPRESSION, &mut value).ok() } else { None };
    ioctl_setflags(file, flags).map_err(system)?;
    known.map_or(Ok(()), |len| fsetxattr(file, COMPRESSION, &value[..len], XattrFlags::empty()).map_err(system))
}
