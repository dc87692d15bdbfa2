//! The sides: each makes a filesystem in the backing file, mounts it, and is measured.

use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::serve::{Served, binary, memory_binary};
use std::path::{Path, PathBuf};

/// Who serves the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Ours,
    Kernel,
    /// A filesystem in memory behind the same transport and session as ours. What it holds is gone when it is unmounted.
    Memory,
}

/// A mount of a side.
#[derive(Debug)]
enum Mount {
    /// Ours, or that in memory.
    Served(Served),
    Kernel(KernelMount),
}

/// A filesystem of one side in a backing file.
#[derive(Debug)]
pub struct Subject {
    side: Side,
    image: PathBuf,
    at: PathBuf,
    options: String,
    mount: Option<Mount>,
}

impl Subject {
    /// Makes a new filesystem in `image` with the defaults of that side's mkfs, and mounts it.
    pub fn new(side: Side, image: &Path, at: &Path) -> Subject {
        Subject::with(side, image, at, "noatime")
    }

    /// The same with mount options.
    pub fn with(side: Side, image: &Path, at: &Path, options: &str) -> Subject {
        let name = image.to_str().expect("a text path");
        match side {
            Side::Ours => drop(run_ok(60, binary(), &["mkfs", "-q", "-f", name])),
            Side::Kernel => mkfs(image, &[]),
            Side::Memory => {}
        }
        let mut subject =
            Subject { side, image: image.to_owned(), at: at.to_owned(), options: options.to_owned(), mount: None };
        subject.mount();
        subject
    }

    fn mount(&mut self) {
        self.mount = Some(match self.side {
            Side::Ours => Mount::Served(Served::mount(&self.image, &self.at, &self.options)),
            Side::Memory => {
                let program = memory_binary().expect("asked for where it is");
                Mount::Served(Served::memory(&program, &self.image, &self.at, &self.options))
            }
            Side::Kernel => Mount::Kernel(KernelMount::new(&self.image, &self.options)),
        });
    }

    fn unmount(&mut self) {
        match self.mount.take() {
            Some(Mount::Served(served)) => served.unmount(),
            Some(Mount::Kernel(mount)) => drop(mount.finish()),
            None => {}
        }
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        match &self.mount {
            Some(Mount::Served(served)) => served.path(),
            Some(Mount::Kernel(mount)) => mount.path(),
            None => unreachable!("mounted from new() to drop()"),
        }
    }

    /// The serving process; none for the kernel.
    pub fn process(&self) -> Option<u32> {
        match &self.mount {
            Some(Mount::Served(served)) => Some(served.id()),
            _ => None,
        }
    }

    /// Unmounts, forgets every cached page of this machine, and mounts again. What is in memory stays mounted: the kernel
    /// forgets what it knows of it.
    pub fn cool(&mut self) {
        if self.side != Side::Memory {
            self.unmount();
        }
        run_ok(60, "sync", &[]);
        // Without root the caches stay, on all sides alike.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "3\n");
        if self.mount.is_none() {
            self.mount();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.unmount();
        }
    }
}
