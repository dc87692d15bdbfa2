//! A btrfs that the kernel has mounted.

use super::command::run;
use super::{KernelLog, LoopDevice};
use crate::scratch;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Mounted while it lives.
#[derive(Debug)]
pub struct KernelMount {
    path: PathBuf,
    device: Option<LoopDevice>,
    log: KernelLog,
}

impl KernelMount {
    /// Mounts `image` with `options` (`ro,noatime`).
    pub fn new(image: &Path, options: &str) -> KernelMount {
        KernelMount::try_new(image, options).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Mounts `image`, or says what the kernel said.
    pub fn try_new(image: &Path, options: &str) -> Result<KernelMount, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let read_only = options.split(',').any(|option| option == "ro");
        let log = KernelLog::mark();
        let device = LoopDevice::attach(image, read_only);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = scratch::root().join(format!("kernel-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        let at = path.to_str().expect("test paths are text");
        let source = device.path().to_string_lossy().into_owned();
        let finished = run(60, "mount", &["-t", "btrfs", "-o", options, &source, at]);
        if finished.code != Some(0) {
            let said = log.lines(device.name()).join("\n");
            let _ = std::fs::remove_dir(&path);
            return Err(format!("the kernel does not mount {}: {}\n{said}", image.display(), finished.output.trim()));
        }
        Ok(KernelMount { path, device: Some(device), log })
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the kernel has complained of since the mount.
    pub fn complaints(&self) -> Vec<String> {
        self.device.as_ref().map_or_else(Vec::new, |device| self.log.complaints(device.name()))
    }

    /// Unmounts; returns what the kernel complained of from before the mount until after it.
    pub fn finish(mut self) -> Vec<String> {
        let at = self.path.to_str().expect("test paths are text");
        for _ in 0..50 {
            let finished = run(120, "umount", &[at]);
            // Somebody else of this machine may just be looking at it.
            if !finished.output.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        assert!(!mounts.contains(at), "cannot unmount {at}");
        let complaints = self.complaints();
        self.device = None;
        complaints
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.device.is_some() {
            unmount(&self.path);
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Unmounts whatever is at `path`; lazily when it is still in use.
pub fn unmount(path: &Path) {
    let at = path.to_string_lossy();
    if run(120, "umount", &[&at]).code != Some(0) {
        run(20, "umount", &["-l", &at]);
    }
}
