//! A loop device over an image file.

use super::command::{run, run_ok};
use std::path::{Path, PathBuf};

/// Attached while it lives.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches the first free loop device to `image`.
    pub fn attach(image: &Path, read_only: bool) -> LoopDevice {
        let image = image.to_str().expect("test paths are text");
        let arguments = ["--find", "--show", image, "--read-only"];
        let shown = run_ok(20, "losetup", &arguments[..if read_only { 4 } else { 3 }]);
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
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run(20, "losetup", &["-d", &self.path.to_string_lossy()]);
    }
}
