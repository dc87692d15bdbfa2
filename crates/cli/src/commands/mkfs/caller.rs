//! Devices that the calling program has locked for us: systemd-repart holds the lock of a block device while it calls
//! `mkfs.btrfs` for it, so that nobody else looks at it meanwhile.

use butterfs_device::{FileDevice, FileOptions, OpenError, OpenErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most generations of callers that are asked.
const MAX_DEPTH: usize = 16;

/// Opens a device for writing. Where another process holds its lock and a caller of ours has it open, the lock is the
/// caller's; a block device is still claimed, so that the kernel cannot mount it.
pub fn open(path: &Path) -> Result<FileDevice, OpenError> {
    match FileDevice::open(path, &FileOptions::read_write()) {
        Err(error) if matches!(error.kind, OpenErrorKind::InUse { .. }) && a_caller_has_open(path) => {
            FileDevice::open(path, &FileOptions { lock: false, ..FileOptions::read_write() })
        }
        opened => opened,
    }
}

/// Whether a process from which this one descends has the device or file open.
fn a_caller_has_open(path: &Path) -> bool {
    let Ok(wanted) = path.metadata().map(|it| identity(&it)) else { return false };
    let mut process = rustix::process::getppid().map_or(0, |it| it.as_raw_nonzero().get());
    for _ in 0..MAX_DEPTH {
        if process <= 1 {
            return false;
        }
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        if open.filter_map(|entry| entry.path().metadata().ok()).any(|it| identity(&it) == wanted) {
            return true;
        }
        process = parent_of(process);
    }
    false
}

/// The number of a device, or place and number of a file.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64, u64) {
    use std::os::unix::fs::FileTypeExt;
    match metadata.file_type().is_block_device() {
        true => (0, 0, metadata.rdev()),
        false => (metadata.dev(), metadata.ino(), 0),
    }
}

/// The process that has started another one; 0 where that is not known.
fn parent_of(process: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
