//! `butterfs mount --show`: the options in force, in one line, as /proc/mounts shows those of the kernel's btrfs.

use crate::error::CliError;
use crate::open_filesystem::{about, mounted, plain};
use crate::output::{self, Format};
use butterfs_control::question::{FindSubvolume, FindSubvolumePath};
use butterfs_control::{InodePath, SubvolumeId};
use butterfs_fuse::client;
use std::io::Write;
use std::path::Path;

/// Shows those of the mount at `mountpoint`.
pub fn show(mountpoint: &Path, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    let options = client::options(mountpoint).map_err(CliError::failed)?;
    let mut opened = mounted(mountpoint)?;
    let asking = about([&opened.object(mountpoint)?], |[inode]| FindSubvolume { inode });
    let SubvolumeId(id) = opened.ask_one("cannot find the subvolume", asking)?;
    let InodePath(path) = opened.ask_one("cannot find the subvolume", plain(FindSubvolumePath { id }))?;
    match format {
        Format::Text => {
            write!(out, "{options},subvolid={id},subvol=/")?;
            Ok(out.write_all(&[path.as_slice(), b"\n"].concat())?)
        }
        Format::Json => {
            let subvol = format!("subvol=/{}", String::from_utf8_lossy(&path));
            let mut all: Vec<String> = options.split(',').map(str::to_owned).collect();
            all.extend([format!("subvolid={id}"), subvol]);
            output::json(out, "mount-show", &all)
        }
    }
}
