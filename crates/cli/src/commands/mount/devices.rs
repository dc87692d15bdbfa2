//! The mounted devices: opened, locked, and created where missing.

use crate::error::{CliError, os_message};
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, OpenError, OpenErrorKind};
use butterfs_fs::Env;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fuse::mount::Backing;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// For how long a mount waits for a device that is just being unmounted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether this user mounts by system call; others get `fuse` mounts through fusermount3.
pub fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
}

/// The devices of a filesystem, opened and locked.
pub struct Opened {
    /// In the order of their paths. The first one is the source of the mount.
    pub files: Vec<Arc<FileDevice>>,
    /// Nothing can be written to them.
    pub read_only: bool,
}

/// Opens and locks the devices or images of a filesystem. Write-protected ones are opened read-only, and the user is
/// told.
pub fn open(paths: &[PathBuf], read_only: bool) -> Result<Opened, CliError> {
    match open_all(paths, read_only) {
        Err(error) if !read_only && matches!(error.kind, OpenErrorKind::WriteProtected) => {
            report::warn(&format!("{error}, mounted read-only"));
            Ok(Opened { files: open_all(paths, true).map_err(|error| explained(error, &paths[0]))?, read_only: true })
        }
        outcome => Ok(Opened { files: outcome.map_err(|error| explained(error, &paths[0]))?, read_only }),
    }
}

fn open_all(paths: &[PathBuf], read_only: bool) -> Result<Vec<Arc<FileDevice>>, OpenError> {
    // What is mounted is claimed by the kernel, but only that.
    let open = |(index, path): (usize, &PathBuf)| open_one(path, read_only, index > 0 || !may_mount()).map(Arc::new);
    paths.iter().enumerate().map(open).collect()
}

fn open_one(path: &Path, read_only: bool, exclusive: bool) -> Result<FileDevice, OpenError> {
    let options = match read_only {
        true => FileOptions { wait: PATIENCE, ..FileOptions::read_only() },
        false => FileOptions { wait: PATIENCE, exclusive, ..FileOptions::read_write() },
    };
    FileDevice::open(path, &options)
}

fn explained(error: OpenError, source: &Path) -> CliError {
    match error.kind {
        OpenErrorKind::NotFound if error.path == source => {
            CliError::from(error).hint("with --create SIZE an image is made there")
        }
        OpenErrorKind::NotStorage { .. } if error.path.is_dir() => {
            let path = std::path::absolute(&error.path).unwrap_or_else(|_| error.path.clone());
            CliError::from(error).hint(format!("a volume in a folder has a URL: file://{}", path.display()))
        }
        _ => error.into(),
    }
}

/// The devices as the engine takes them.
pub fn shared(files: &[Arc<FileDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    files.iter().map(|file| file.clone() as Arc<dyn BlockDevice>).collect()
}

/// The same devices for writing; the locks stay with `files`.
pub fn writable(files: &[Arc<FileDevice>]) -> Result<Vec<Arc<dyn BlockDevice>>, OpenError> {
    files.iter().map(|file| Ok(Arc::new(file.open_for_writing()?) as Arc<dyn BlockDevice>)).collect()
}

/// The device that the kernel claims for the mount.
pub fn backing(path: &Path, device: &FileDevice, read_only: bool) -> Result<Backing, CliError> {
    match (may_mount(), device.is_block_device()) {
        (false, _) => Ok(Backing::Unclaimed),
        (true, true) => Ok(Backing::BlockDevice),
        (true, false) => image(path, read_only)
            .map(Backing::ImageFile)
            .map_err(|error| CliError::failed(format!("cannot open {}: {}", path.display(), os_message(&error)))),
    }
}

/// A descriptor of an image for the kernel. A read-only mount gets a writable one too where it can, so that it can be
/// made writable later.
fn image(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let open = |write| OpenOptions::new().read(true).write(write).open(path);
    let file = if read_only { open(true).or_else(|_| open(false)) } else { open(true) };
    file.map(OwnedFd::from)
}

/// Makes an image with a filesystem where there is none. False: something is there already.
pub fn create(path: &Path, bytes: u64) -> Result<bool, CliError> {
    let ends_with_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if ends_with_slash && !path.exists() {
        let sentence = format!("no image can be made at {}, because its name ends with a slash", path.display());
        return Err(CliError::failed(sentence).hint("give the name without the slash"));
    }
    let device = match FileDevice::create(path, bytes) {
        Ok(device) => device,
        Err(error) if matches!(error.kind, OpenErrorKind::Exists) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(device)];
    let made = mkfs(&devices, &MkfsOptions::default(), &Env::system());
    made.map(|_| true).map_err(|error| {
        // An image without a filesystem would stand in the way of the next attempt.
        let _ = std::fs::remove_file(path);
        error.into()
    })
}
