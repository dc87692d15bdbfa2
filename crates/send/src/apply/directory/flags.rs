//! Flags of inode items in terms of FS_IOC_SETFLAGS. Those that forbid changes are set when the tree is complete.

use super::super::{Failure, Outcome};
use super::tree::open_regular;
use super::{Directory, system};
use butterfs_fs::inode_flags as on_disk;
use rustix::fs::{FileType, IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, openat};
use std::os::fd::OwnedFd;

/// Flags that forbid changes.
const FIXED: u64 = on_disk::IMMUTABLE | on_disk::APPEND;

/// Flags as they are on disk, and as the system call has them. Whether a file is compressed is not among them: its
/// property says that, and these flags would overwrite it.
const FLAGS: [(u64, IFlags); 6] = [
    (on_disk::SYNC, IFlags::SYNC),
    (on_disk::IMMUTABLE, IFlags::IMMUTABLE),
    (on_disk::APPEND, IFlags::APPEND),
    (on_disk::NODUMP, IFlags::NODUMP),
    (on_disk::NOATIME, IFlags::NOATIME),
    (on_disk::DIRSYNC, IFlags::DIRSYNC),
];

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

    /// Sets the flags that forbid changes.
    pub(super) fn set_fixed_flags(&mut self) -> Outcome {
        let fixed = self.open.as_mut().map(|open| std::mem::take(&mut open.fixed)).unwrap_or_default();
        for (path, flags) in fixed {
            // What is gone needs none.
            let Ok(Some(file)) = self.open_any(&path) else { continue };
            let set = change(&file, flags);
            self.may_lose(&format!("fileattr {}", String::from_utf8_lossy(&path)), set)?;
        }
        Ok(())
    }

    /// A file or directory; none for what has no flags.
    fn open_any(&mut self, path: &[u8]) -> Result<Option<OwnedFd>, Failure> {
        let place = self.place(path)?;
        match place.kind()? {
            FileType::RegularFile => open_regular(&place, OFlags::RDONLY).map(Some),
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(&*place.directory, place.name, flags, Mode::empty()).map(Some).map_err(system)
            }
            _ => Ok(None),
        }
    }
}

fn change(file: &OwnedFd, wanted: u64) -> Outcome {
    let now = ioctl_getflags(file).map_err(system)?;
    let mut flags = now;
    for (on_disk, flag) in FLAGS {
        flags.set(flag, wanted & on_disk != 0);
    }
    if flags == now { Ok(()) } else { ioctl_setflags(file, flags).map_err(system) }
}
