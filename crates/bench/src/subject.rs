//! The sides: each makes a filesystem in the backing file, mounts it, and is measured.

use crate::table::Table;
use butterfs_testkit::kernel::{KernelMount, LoopDevice, mkfs, run_ok};
use butterfs_testkit::serve::{self, Served, memory_binary};
use std::path::{Path, PathBuf};

/// The server of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Ours, on the backing file.
    Ours,
    /// Ours, on a loop device like the kernel's.
    OnDevice,
    /// The kernel's, on a loop device that passes the page cache of the backing file.
    Kernel,
    /// A filesystem in memory behind the same transport and session as ours. Its content is gone when it is
    /// unmounted.
    Memory,
}

/// The same of all sides that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Sides<T> {
    /// Ours, on the backing file.
    pub ours: T,
    /// Ours, on a block device; none where that makes no difference or could not be made.
    pub on_device: Option<T>,
    /// None without root.
    pub kernel: Option<T>,
}

impl<T> Sides<T> {
    /// Measures ours, and where `with_kernel` says that they can be made, ours on a block device and the kernel's.
    pub fn measure(with_kernel: bool, mut measure: impl FnMut(Side) -> T) -> Sides<T> {
        let ours = measure(Side::Ours);
        let on_device = with_kernel.then(|| measure(Side::OnDevice));
        Sides { ours, on_device, kernel: with_kernel.then(|| measure(Side::Kernel)) }
    }

    /// A measurement that exists for ours on a file and for the kernel's only.
    pub fn two(ours: T, kernel: Option<T>) -> Sides<T> {
        Sides { ours, on_device: None, kernel }
    }

    /// A part of it, or something made of it.
    pub fn map<U>(&self, part: impl Fn(&T) -> U) -> Sides<U> {
        Sides {
            ours: part(&self.ours),
            on_device: self.on_device.as_ref().map(&part),
            kernel: self.kernel.as_ref().map(&part),
        }
    }

    /// The result of `find` for each; none without ours.
    pub fn find<'a, U>(&'a self, find: impl Fn(&'a T) -> Option<U>) -> Option<Sides<U>> {
        Some(Sides {
            ours: find(&self.ours)?,
            on_device: self.on_device.as_ref().and_then(&find),
            kernel: self.kernel.as_ref().and_then(&find),
        })
    }
}

/// The resources that mounts have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes written to the backing file.
    pub written: u64,
    /// The most resident memory of a serving process, in bytes; 0 for the kernel.
    pub memory: u64,
}

impl Usage {
    /// The resources that a serving process has used so far.
    pub fn of(served: &Served) -> Usage {
        let number = |file: &str, field: &str| {
            let text = std::fs::read_to_string(format!("/proc/{}/{file}", served.id())).unwrap_or_default();
            let found = text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok());
            found.unwrap_or(0u64)
        };
        Usage { written: number("io", "write_bytes:"), memory: number("status", "VmHWM:") << 10 }
    }

    /// The sum of both, one after the other.
    pub fn and(self, other: Usage) -> Usage {
        Usage { written: self.written + other.written, memory: self.memory.max(other.memory) }
    }
}

impl Sides<Usage> {
    /// Enters what `what` took.
    pub fn enter(&self, what: &str, table: &mut Table) {
        let written = self.map(|usage| usage.written as f64);
        table.compared(&format!("{what}: written to the device"), written, megabytes, true, "");
        self.enter_memory(what, table);
    }

    /// Enters the memory alone.
    pub fn enter_memory(&self, what: &str, table: &mut Table) {
        let name = format!("{what}: peak memory of the serving process");
        let memory = Sides { kernel: None, ..self.map(|usage| usage.memory as f64) };
        table.compared(&name, memory, megabytes, true, "");
    }
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

/// A mount of a side.
#[derive(Debug)]
pub enum Mount {
    /// Ours on files, or that in memory.
    Served(Served),
    /// Ours on block devices, and what had been written to them before.
    OnDevice(Served, Vec<LoopDevice>, u64),
    /// With what had been written to its devices before.
    Kernel(KernelMount, u64),
}

impl Mount {
    /// Mounts the filesystem that lies in `images`.
    pub fn new(side: Side, images: &[impl AsRef<Path>], at: &Path, options: &str) -> Mount {
        let served = |devices: &[&Path]| {
            let others: String = devices[1..].iter().map(|device| format!(",device={}", device.display())).collect();
            Served::mount(devices[0], at, &format!("{options}{others}"))
        };
        let paths = || images.iter().map(AsRef::as_ref);
        match side {
            Side::Ours => Mount::Served(served(&paths().collect::<Vec<_>>())),
            Side::OnDevice => {
                let devices: Vec<LoopDevice> = paths().map(LoopDevice::attach_direct).collect();
                let before = devices.iter().map(LoopDevice::written).sum();
                let nodes: Vec<&Path> = devices.iter().map(LoopDevice::path).collect();
                Mount::OnDevice(served(&nodes), devices, before)
            }
            Side::Memory => {
                let program = memory_binary().expect("asked for where it is");
                Mount::Served(Served::memory(&program, images[0].as_ref(), at, options))
            }
            Side::Kernel => {
                let mount = KernelMount::direct(images, options);
                let before = mount.written();
                Mount::Kernel(mount, before)
            }
        }
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        match self {
            Mount::Served(served) | Mount::OnDevice(served, ..) => served.path(),
            Mount::Kernel(mount, _) => mount.path(),
        }
    }

    /// Unmounts.
    pub fn end(self) {
        match self {
            Mount::Served(served) => served.unmount(),
            Mount::OnDevice(served, devices, _) => {
                served.unmount();
                drop(devices);
            }
            Mount::Kernel(mount, _) => drop(mount.finish()),
        }
    }

    /// The resources it has used, including data that is not written yet.
    fn usage(&self) -> Usage {
        if let Ok(root) = std::fs::File::open(self.path()) {
            let _ = rustix::fs::syncfs(root);
        }
        match self {
            Mount::Served(served) => Usage::of(served),
            Mount::OnDevice(served, devices, before) => {
                let written = devices.iter().map(LoopDevice::written).sum::<u64>() - before;
                Usage { written, ..Usage::of(served) }
            }
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
        Subject::made(side, image, at, &[], options)
    }

    /// The same with options of mkfs, which both programs know.
    pub fn made(side: Side, image: &Path, at: &Path, made: &[&str], options: &str) -> Subject {
        match side {
            Side::Ours | Side::OnDevice => serve::mkfs(image, made),
            Side::Kernel => mkfs(image, made),
            Side::Memory => {}
        }
        let (image, at, options) = (image.to_owned(), at.to_owned(), options.to_owned());
        let mut subject = Subject { side, image, at, options, mount: None, usage: Usage::default() };
        subject.mount();
        subject
    }

    fn mount(&mut self) {
        self.mount = Some(Mount::new(self.side, &[&self.image], &self.at, &self.options));
    }

    fn unmount(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        self.usage = self.usage.and(mount.usage());
        mount.end();
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
            Some(Mount::Served(served) | Mount::OnDevice(served, ..)) => Some(served.id()),
            _ => None,
        }
    }

    /// Unmounts, forgets every cached page of this machine, and mounts again. A filesystem in memory stays mounted: the
    /// kernel drops its caches of it.
    pub fn cool(&mut self) {
        if self.side != Side::Memory {
            self.unmount();
        }
        empty_caches();
        if self.mount.is_none() {
            self.mount();
        }
    }
}

/// Makes this machine forget every cached page. Without root they stay, on all sides alike.
pub fn empty_caches() {
    run_ok(60, "sync", &[]);
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3\n");
}

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.unmount();
        }
    }
}
