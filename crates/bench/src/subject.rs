//! The sides: each makes a filesystem in the backing file, mounts it, and is measured.

use crate::table::Table;
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

/// What mounts have taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes written to the backing file.
    pub written: u64,
    /// The most resident memory of a serving process, in bytes; 0 for the kernel.
    pub memory: u64,
}

impl Usage {
    /// What a serving process has taken so far.
    pub fn of(served: &Served) -> Usage {
        let number = |file: &str, field: &str| {
            let text = std::fs::read_to_string(format!("/proc/{}/{file}", served.id())).unwrap_or_default();
            let found = text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok());
            found.unwrap_or(0u64)
        };
        Usage { written: number("io", "write_bytes:"), memory: number("status", "VmHWM:") << 10 }
    }

    /// That of both, one after the other.
    pub fn and(self, other: Usage) -> Usage {
        Usage { written: self.written + other.written, memory: self.memory.max(other.memory) }
    }

    /// Enters what `what` took on both sides.
    pub fn enter(self, what: &str, kernel: Option<Usage>, table: &mut Table) {
        let written = (self.written as f64, kernel.map(|kernel| kernel.written as f64));
        table.compared(&format!("{what}: written to the device"), written, megabytes, true, "");
        self.enter_memory(what, table);
    }

    /// Enters the memory alone.
    pub fn enter_memory(self, what: &str, table: &mut Table) {
        let name = format!("{what}: peak memory of the serving process");
        table.compared(&name, (self.memory as f64, None), megabytes, true, "");
    }
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

/// A mount of a side.
#[derive(Debug)]
enum Mount {
    /// Ours, or that in memory.
    Served(Served),
    /// With what had been written to its device before.
    Kernel(KernelMount, u64),
}

impl Mount {
    fn path(&self) -> &Path {
        match self {
            Mount::Served(served) => served.path(),
            Mount::Kernel(mount, _) => mount.path(),
        }
    }

    /// What it has taken, with what is not written yet.
    fn usage(&self) -> Usage {
        if let Ok(root) = std::fs::File::open(self.path()) {
            let _ = rustix::fs::syncfs(root);
        }
        match self {
            Mount::Served(served) => Usage::of(served),
            Mount::Kernel(mount, before) => Usage { written: mount.written() - before, memory: 0 },
        }
    }
}

/// A filesystem of one side in a backing file.
#[derive(Debug)]
pub struct Subject {
    side: Side,
    image: PathBuf,
    at: PathBuf,
    options: String,
    mount: Option<Mount>,
    /// Of earlier mounts.
    usage: Usage,
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
        let (image, at, options) = (image.to_owned(), at.to_owned(), options.to_owned());
        let mut subject = Subject { side, image, at, options, mount: None, usage: Usage::default() };
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
            Side::Kernel => {
                let mount = KernelMount::new(&self.image, &self.options);
                let before = mount.written();
                Mount::Kernel(mount, before)
            }
        });
    }

    fn unmount(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        self.usage = self.usage.and(mount.usage());
        match mount {
            Mount::Served(served) => served.unmount(),
            Mount::Kernel(mount, _) => drop(mount.finish()),
        }
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        self.mount.as_ref().expect("mounted from new() to finish()").path()
    }

    /// Unmounts; what all its mounts took.
    pub fn finish(mut self) -> Usage {
        self.unmount();
        self.usage
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
