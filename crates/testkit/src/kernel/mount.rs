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
    /// None once it is unmounted.
    devices: Vec<LoopDevice>,
    /// Whether the kernel remembers the devices afterwards, because there are more than one.
    remembered: bool,
    log: KernelLog,
}

impl KernelMount {
    /// Mounts `image` with `options` (`ro,noatime`).
    pub fn new(image: &Path, options: &str) -> KernelMount {
        KernelMount::try_new(image, options).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Mounts `image`, or says what the kernel said.
    pub fn try_new(image: &Path, options: &str) -> Result<KernelMount, String> {
        KernelMount::try_several(&[image], options)
    }

    /// Mounts the filesystem on several images with `options`.
    pub fn several(images: &[impl AsRef<Path>], options: &str) -> KernelMount {
        KernelMount::try_several(images, options).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Mounts the filesystem on several images, or says what the kernel said.
    pub fn try_several(images: &[impl AsRef<Path>], options: &str) -> Result<KernelMount, String> {
        let read_only = options.split(',').any(|option| option == "ro");
        let devices = images.iter().map(|image| LoopDevice::attach(image.as_ref(), read_only)).collect();
        // Earlier lines about a loop device are about whoever had it before.
        let log = KernelLog::mark();
        KernelMount::try_attached(devices, log, options)
    }

    /// Mounts the filesystem on several images with `options`, on devices that pass the page cache of the images.
    pub fn direct(images: &[impl AsRef<Path>], options: &str) -> KernelMount {
        let devices = images.iter().map(|image| LoopDevice::attach_direct(image.as_ref())).collect();
        let log = KernelLog::mark();
        KernelMount::try_attached(devices, log, options).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    fn try_attached(devices: Vec<LoopDevice>, log: KernelLog, options: &str) -> Result<KernelMount, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = scratch::root().join(format!("kernel-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        let at = path.to_str().expect("test paths are text");
        let source = devices[0].path().to_string_lossy().into_owned();
        let others: String = devices[1..].iter().map(|device| format!(",device={}", device.path().display())).collect();
        let finished = run(60, "mount", &["-t", "btrfs", "-o", &format!("{options}{others}"), &source, at]);
        let remembered = devices.len() > 1 || options.contains("degraded");
        let mount = KernelMount { path, devices, remembered, log };
        if finished.code == Some(0) {
            return Ok(mount);
        }
        let said: Vec<String> = mount.devices.iter().flat_map(|device| log.lines(device.name())).collect();
        let sentence = format!("the kernel does not mount {source}: {}\n{}", finished.output.trim(), said.join("\n"));
        mount.forget();
        Err(sentence)
    }

    /// Gives the devices back and removes the folder, which is not mounted (any more).
    fn forget(mut self) {
        self.give_back();
    }

    fn give_back(&mut self) {
        let devices = std::mem::take(&mut self.devices);
        if self.remembered {
            devices.iter().for_each(forget);
        }
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written to its devices, since before it was mounted.
    pub fn written(&self) -> u64 {
        self.devices.iter().map(LoopDevice::written).sum()
    }

    /// The complaints in the kernel log since the mount.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> =
            self.devices.iter().flat_map(|device| self.log.complaints(device.name())).collect();
        // What names no device is found for each.
        complaints.dedup();
        complaints
    }

    /// Unmounts; returns what the kernel complained of from before the mount until after it.
    pub fn finish(self) -> Vec<String> {
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
        assert!(!mounts.contains(&format!(" {at} ")), "cannot unmount {at}");
        assert!(self.devices.iter().all(LoopDevice::is_let_go), "somebody holds what was unmounted from {at}");
        let complaints = self.complaints();
        self.forget();
        complaints
    }
}

/// The kernel remembers the devices of filesystems on several ones, and may be given other ones by the same names.
fn forget(device: &LoopDevice) {
    run(20, "btrfs", &["device", "scan", "--forget", &device.path().to_string_lossy()]);
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.devices.is_empty() {
            unmount(&self.path);
            self.devices.iter().for_each(|device| _ = device.is_let_go());
            self.give_back();
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
