//! `butterfs mount --show`: the options in force, in one line, as /proc/mounts shows those of the kernel's btrfs.

use crate::error::CliError;
use crate::open_filesystem::{about, mounted, plain};
use butterfs_control::question::{FindSubvolume, FindSubvolumePath};
use butterfs_control::{InodePath, SubvolumeId};
use butterfs_fuse::client;
use std::io::Write;
use std::path::Path;

/// Shows those of the mount at `mountpoint`.
pub fn show(mountpoint: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let options = client::options(mountpoint).map_err(CliError::failed)?;
    let mut opened = mounted(mountpoint)?;
    let asking = about([&opened.object(mountpoint)?], |[inode]| FindSubvolume { inode });
    let SubvolumeId(id) = opened.ask_one("cannot find the subvolume", asking)?;
    let InodePath(path) = opened.ask_one("cannot find the subvolume", plain(FindSubvolumePath { id }))?;
    write!(out, "{options},subvolid={id},subvol=/")?;
    out.write_all(&[path.as_slice(), b"\n"].concat())?;
    Ok(())
}
