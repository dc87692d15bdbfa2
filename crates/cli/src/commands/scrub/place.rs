//! The target of a scrub command: a mount, one device of it, or devices and images that nobody has mounted.

use crate::error::CliError;
use crate::open_filesystem::{self, Intent, OpenFilesystem};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fuse::client;
use butterfs_fuse::mount::mountinfo;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The place of the filesystem.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    /// Work on this image or device, which is not mounted; once for each device of the filesystem
    #[arg(long, value_name = "IMAGE")]
    image: Vec<PathBuf>,
    /// A directory of a mount, a device of one, or a device or image that is not mounted
    #[arg(value_name = "PATH|DEVICE", required_unless_present = "image")]
    path: Option<PathBuf>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub enum Place {
    /// A mount, or the device with this name on it.
    Mount { path: PathBuf, device: Option<PathBuf> },
    /// Nobody has them mounted.
    Images(Vec<PathBuf>),
}

impl Target {
    /// As the user called it.
    pub fn shown(&self) -> String {
        let path = self.path.as_ref().or_else(|| self.image.first());
        path.map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// The arguments that make it.
    pub fn to_command_line(&self) -> Vec<OsString> {
        let images = self.image.iter().flat_map(|image| [OsString::from("--image"), image.into()]);
        let path = self.path.iter().flat_map(|path| [OsString::from("--"), path.into()]);
        images.chain(path).collect()
    }

    /// The place.
    pub fn place(&self) -> Result<Place, CliError> {
        let Some(path) = self.path.as_ref().filter(|_| self.image.is_empty()) else {
            return Ok(Place::Images(self.image.clone()));
        };
        match std::fs::metadata(path) {
            Ok(found) if !found.is_dir() => Ok(mount_of(path).unwrap_or_else(|| Place::Images(vec![path.clone()]))),
            Err(error) if !client::left_alone(&error) => Err(open_filesystem::cannot_access(path, error)),
            _ => Ok(Place::Mount { path: path.clone(), device: None }),
        }
    }
}

/// The mount of ours that this device is the source of.
fn mount_of(device: &Path) -> Option<Place> {
    let wanted = device.canonicalize().ok()?;
    let is_it = |mount: &mountinfo::Mount| {
        mount.is_ours() && Path::new(&mount.source).canonicalize().is_ok_and(|source| source == wanted)
    };
    let mount = mountinfo::all().ok()?.into_iter().find(is_it)?;
    Some(Place::Mount { path: mount.mountpoint, device: Some(device.to_owned()) })
}

impl Place {
    /// The filesystem.
    pub fn open(&self, intent: Intent) -> Result<OpenFilesystem, CliError> {
        match self {
            Place::Mount { path, .. } => open_filesystem::mounted(path),
            Place::Images(images) => open_filesystem::images_for(images, intent),
        }
    }

    /// Whether a device with this name is meant.
    pub fn means(&self, name: &str) -> bool {
        match self {
            Place::Mount { device: Some(device), .. } => {
                device.canonicalize().ok() == Path::new(name).canonicalize().ok() || device == Path::new(name)
            }
            _ => true,
        }
    }
}

/// The UUID of the filesystem on a device, without a lock: somebody may be working on it.
pub fn fsid_of(image: &Path) -> Result<[u8; 16], CliError> {
    let device = FileDevice::open(image, &FileOptions::inspect())?;
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    let copies = OFFSETS.into_iter().find_map(|at| {
        device.read_at(at.0, &mut bytes).ok()?;
        Superblock::parse(&bytes, at).ok()
    });
    let none = || CliError::failed(format!("not a btrfs filesystem: {}", image.display()));
    Ok(copies.ok_or_else(none)?.fsid)
}
