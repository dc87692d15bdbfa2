//! A loop device over an image file.

use super::command::{run, run_ok};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Attached while it lives.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches the first free loop device to `image`.
    pub fn attach(image: &Path, read_only: bool) -> LoopDevice {
        LoopDevice::attach_with(image, if read_only { &["--read-only"] } else { &[] })
    }

    /// The same, past the page cache of the file: what a disk is most like. With it where the file's filesystem cannot.
    pub fn attach_direct(image: &Path) -> LoopDevice {
        LoopDevice::attach_with(image, &["--direct-io=on"])
    }

    fn attach_with(image: &Path, options: &[&str]) -> LoopDevice {
        let image = image.to_str().expect("test paths are text");
        let shown = run_ok(20, "losetup", &[&["--find", "--show"], options, &[image]].concat());
        LoopDevice { path: PathBuf::from(shown.trim()) }
    }

    /// `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `loop3`, as the kernel log names it.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).expect("losetup prints a path")
    }

    /// Waits until no filesystem has it; false when one still has after ten seconds. A mount namespace that was made
    /// meanwhile, by fusermount3 or a server on an older kernel, holds what others unmount until it ends.
    pub fn is_let_go(&self) -> bool {
        let is_free = || {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&self.path, flags, Mode::empty()).map(drop) != Err(Errno::BUSY)
        };
        (0..500).any(|_| {
            let freed = is_free();
            if !freed {
                std::thread::sleep(Duration::from_millis(20));
            }
            freed
        })
    }

    /// Bytes written to it, since before it was attached.
    pub fn written(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/sys/block/{}/stat", self.name())).unwrap_or_default();
        let sectors = stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok());
        sectors.unwrap_or(0) * 512
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let node = self.path.to_string_lossy();
        // Write protection would stay with the node, for whoever gets it next.
        if std::fs::read_to_string(format!("/sys/block/{}/ro", self.name())).is_ok_and(|ro| ro.trim() == "1") {
            run(20, "blockdev", &["--setrw", &node]);
        }
        run(20, "losetup", &["-d", &node]);
    }
}
