//! Devices that the calling program has locked for us: systemd-repart holds the lock of a block device while it calls
//! `mkfs.btrfs` for it, so that nobody else looks at it meanwhile.

use butterfs_device::{FileDevice, FileOptions, OpenError, OpenErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most generations of callers that are asked.
const MAX_DEPTH: usize = 16;

/// Opens a device for writing. Where a caller of ours holds its lock, that is no obstacle; a block device is still
/// claimed, so that the kernel cannot mount it.
pub fn open(path: &Path) -> Result<FileDevice, OpenError> {
    match FileDevice::open(path, &FileOptions::read_write()) {
        Err(error) if matches!(error.kind, OpenErrorKind::InUse { .. }) && a_caller_has_locked(path) => {
            FileDevice::open(path, &FileOptions { lock: false, ..FileOptions::read_write() })
        }
        opened => opened,
    }
}

/// Whether a process from which this one descends holds the lock of the device or file: another process that holds it,
/// such as a server, is not passed over only because a caller has opened the file.
fn a_caller_has_locked(path: &Path) -> bool {
    let Ok(wanted) = path.metadata().map(|it| identity(&it)) else { return false };
    let mut process = rustix::process::getppid().map_or(0, |it| it.as_raw_nonzero().get());
    for _ in 0..MAX_DEPTH {
        if process <= 1 {
            return false;
        }
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let is_it = |path: &Path| path.metadata().is_ok_and(|it| identity(&it) == wanted);
        if open.filter(|entry| is_it(&entry.path())).any(|entry| holds_lock(process, &entry.file_name())) {
            return true;
        }
        process = parent_of(process);
    }
    false
}

/// Whether a lock of the whole file was taken through this descriptor.
fn holds_lock(process: i32, descriptor: &std::ffi::OsStr) -> bool {
    let information = Path::new("/proc").join(process.to_string()).join("fdinfo").join(descriptor);
    let text = std::fs::read_to_string(information).unwrap_or_default();
    text.lines().any(|line| line.starts_with("lock:") && line.contains(" FLOCK ") && line.contains(" WRITE "))
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
