//! What is mounted: opened, locked, and made where there is none.

use super::image_for_kernel;
use crate::error::{CliError, os_message};
use butterfs_device::{BlockDevice, FileDevice, FileOptions, OpenErrorKind};
use butterfs_fs::Env;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fuse::mount::Backing;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// For how long a mount waits for a device that is just being unmounted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether this user mounts by system call; others get `fuse` mounts through fusermount3.
pub fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
}

/// Opens and locks a device or image, and says what the kernel is to claim for the mount.
pub fn open(path: &Path, read_only: bool) -> Result<(Arc<dyn BlockDevice>, Backing), CliError> {
    let claimed_by_kernel = may_mount();
    let options = match read_only {
        true => FileOptions { wait: PATIENCE, ..FileOptions::read_only() },
        false => FileOptions { wait: PATIENCE, exclusive: !claimed_by_kernel, ..FileOptions::read_write() },
    };
    let device = FileDevice::open(path, &options)?;
    let backing = match (claimed_by_kernel, device.is_block_device()) {
        (false, _) => Backing::Unclaimed,
        (true, true) => Backing::BlockDevice,
        (true, false) => Backing::ImageFile(
            image_for_kernel(path, read_only)
                .map_err(|error| CliError::failed(format!("cannot open {}: {}", path.display(), os_message(&error))))?,
        ),
    };
    Ok((Arc::new(device), backing))
}

/// Makes an image with a filesystem where there is none. False: something is there already.
pub fn create(path: &Path, bytes: u64) -> Result<bool, CliError> {
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
