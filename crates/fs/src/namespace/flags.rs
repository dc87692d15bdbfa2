//! The flags that `chattr` shows and sets, by the kernel's rules:
//!
//! - Compression is asked for or forbidden, not both, and goes together with copy on write only. Asking for it sets the
//!   property `btrfs.compression`, anything else removes it.
//! - Copy on write is chosen while a file is empty; later that is ignored. Without it there are no checksums.
//! - A file has no `DIRSYNC`; what is neither file nor directory has but `NODUMP` and `NOATIME`.

use super::Namespace;
use super::extended::{set_compression, unset};
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{InodeId, mode};
use crate::inode::property::COMPRESSION;
use crate::inode::xattr::Demand;
use crate::inode::{Inode, InodeState, Known, preload};
use crate::options::Algorithm;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::items::inode_flags::*;
use std::sync::Arc;

/// The flags that a user may set.
const SETTABLE: u64 = SYNC | IMMUTABLE | APPEND | NODUMP | NOATIME | DIRSYNC | COMPRESS | NOCOMPRESS | NODATACOW;
/// The flags about the storage of data.
const STORING: u64 = COMPRESS | NOCOMPRESS | NODATACOW;

impl Namespace {
    /// Sets those of the flags in `scope` that are in `wanted`, and clears the others.
    pub fn set_flags(&self, id: InodeId, wanted: u64, scope: u64) -> Result<()> {
        let inode = self.inode(id)?;
        preload::attribute(self.core(), &inode.tree, inode.ino, COMPRESSION);
        self.run(Reserve::items(3), |handle| {
            let _guard = inode.lock_exclusive()?;
            inode.must_be_writable()?;
            let scope = scope & SETTABLE;
            let (old, kind) = inode.with(|state| (state.flags(), state.mode() & mode::S_IFMT));
            let wanted = ((old & !scope) | (wanted & scope)) & allowed(kind);
            check_storing(old, wanted)?;
            if scope & STORING != 0 {
                apply_compression(handle, &inode, wanted)?;
            }
            let now = handle.core().env().now();
            inode.change(|state| {
                apply_nodatacow(state, kind, wanted);
                state.clear_flags(SETTABLE & !STORING);
                state.set_flags(wanted & SETTABLE & !STORING);
                state.touch(now);
            });
            Ok(())
        })
    }
}

fn allowed(kind: u32) -> u64 {
    match kind {
        mode::S_IFDIR => u64::MAX,
        mode::S_IFREG => !DIRSYNC,
        _ => NODUMP | NOATIME,
    }
}

fn check_storing(old: u64, wanted: u64) -> Result<()> {
    let compression = COMPRESS | NOCOMPRESS;
    let both = wanted & compression == compression;
    let without_cow = wanted & NODATACOW != 0 && (wanted & COMPRESS | old & compression) != 0
        || old & NODATACOW != 0 && wanted & compression != 0;
    if both || without_cow {
        return Err(Error::refused(Errno::EINVAL, "these ways of storing data exclude each other"));
    }
    Ok(())
}

fn apply_compression(handle: &Handle, inode: &Arc<Inode>, wanted: u64) -> Result<()> {
    if wanted & COMPRESS != 0 {
        let method = handle.core().data_policy().compress;
        let algorithm = method.map_or(Algorithm::Zlib, |method| method.algorithm);
        return set_compression(handle, inode, algorithm.name().as_bytes(), Demand::Any);
    }
    unset(handle, inode, COMPRESSION)?;
    inode.change(|state| {
        state.compression = Known::Absent;
        state.clear_flags(COMPRESS | NOCOMPRESS);
        state.set_flags(wanted & NOCOMPRESS);
    });
    Ok(())
}

fn apply_nodatacow(state: &mut InodeState, kind: u32, wanted: u64) {
    let flags = if kind == mode::S_IFREG { NODATACOW | NODATASUM } else { NODATACOW };
    let changes = (state.flags() ^ wanted) & NODATACOW != 0;
    match kind {
        _ if !changes => {}
        mode::S_IFREG if state.size > 0 => {}
        mode::S_IFREG | mode::S_IFDIR if wanted & NODATACOW != 0 => state.set_flags(flags),
        _ => state.clear_flags(flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of ways to store, as the kernel answers.
    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        for (old, wanted, fine) in [
            (0, COMPRESS, true),
            (0, COMPRESS | NOCOMPRESS, false),
            (0, COMPRESS | NODATACOW, false),
            (0, NOCOMPRESS | NODATACOW, true),
            (COMPRESS, NOCOMPRESS, true),
            (COMPRESS, NODATACOW, false),
            (NOCOMPRESS, NODATACOW, false),
            (NODATACOW, COMPRESS, false),
            (NODATACOW, NOCOMPRESS, false),
            (NODATACOW, NODATACOW, true),
            (NODATACOW, 0, true),
        ] {
            assert_eq!(check_storing(old, wanted).is_ok(), fine, "{old:#x} {wanted:#x}");
        }
    }
}
