//! Filesystems in memory, files with known content, and damage.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Point, Source, Time};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::scrub::{Counters, Progress, Scrub};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::rng::Rng;
use std::sync::{Arc, Mutex};

pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };
pub const SECTOR: usize = 4096;
const DEVICE_BYTES: u64 = 200 << 20;

type Hook = Mutex<Option<Box<dyn FnMut(Point) + Send>>>;

/// Time that stands still, no threads, and a hook at points of the engine.
#[derive(Clone, Default)]
pub struct Quiet(pub Arc<Hook>);

impl Source for Quiet {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000, nsec: 0 }
    }
    fn random(&self) -> [u8; 16] {
        Env::system().uuid()
    }
    fn threads(&self) -> usize {
        2
    }
    fn background(&self) -> bool {
        false
    }
    fn reached(&self, point: Point) {
        // What the hook does may come to points, too.
        let hook = self.0.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(point);
            self.0.lock().unwrap().get_or_insert(hook);
        }
    }
}

pub fn shared(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect()
}

/// Devices in memory with a new filesystem.
pub fn make(count: usize, metadata: &str, data: &str) -> Vec<Arc<MemoryDevice>> {
    let disks: Vec<_> =
        (1..=count).map(|id| Arc::new(MemoryDevice::named(&format!("disk{id}"), DEVICE_BYTES))).collect();
    let (metadata, data) = (Profile::named(metadata), Profile::named(data));
    mkfs(&shared(&disks), &MkfsOptions { metadata, data, ..MkfsOptions::default() }, &Env::system()).expect("mkfs");
    disks
}

pub fn open_with(devices: &[Arc<dyn BlockDevice>], options: Options, env: Env) -> Filesystem {
    Filesystem::open(devices.to_vec(), options, env).unwrap_or_else(|error| panic!("{error}"))
}

/// Opened without threads in the background.
pub fn quiet(disks: &[Arc<MemoryDevice>]) -> Filesystem {
    open_with(&shared(disks), Options::default(), Env::new(Quiet::default()))
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

pub fn write(filesystem: &Filesystem, name: &str, content: &[u8]) -> InodeId {
    let made = filesystem.create(&ROOT, filesystem.root(), name.as_bytes(), 0o644).expect("create");
    filesystem.write(made.id, 0, content, false).expect("write");
    // Nobody has it open, so deleting it frees its space.
    filesystem.forget(made.id, 1);
    made.id
}

/// The places of a sector with this content, on each disk.
pub fn places(disks: &[Arc<MemoryDevice>], content: &[u8]) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    let mut block = vec![0; 1 << 20];
    for (index, disk) in disks.iter().enumerate() {
        for at in (0..disk.len()).step_by(block.len()) {
            disk.read_at(at, &mut block).unwrap();
            let hits = block.chunks(SECTOR).enumerate().filter(|(_, sector)| *sector == &content[..SECTOR]);
            found.extend(hits.map(|(sector, _)| (index, at + (sector * SECTOR) as u64)));
        }
    }
    found
}

/// Flips a bit.
pub fn damage(disk: &MemoryDevice, at: u64) {
    let mut sector = vec![0; SECTOR];
    disk.read_at(at, &mut sector).unwrap();
    sector[1000] ^= 4;
    disk.write_at(at, &sector).unwrap();
}

/// The counters of all devices together.
pub fn sum(progress: &Progress) -> Counters {
    progress.devices.iter().fold(Counters::default(), |mut sum, device| {
        sum.add(&device.counters);
        sum
    })
}

/// The counters of a run that has ended, and its findings as lines.
pub fn outcome(scrub: &Scrub) -> (Counters, Vec<String>) {
    let findings = scrub.findings(0);
    let lines = findings.iter().map(|finding| {
        let files: Vec<String> = finding.files.iter().map(ToString::to_string).collect();
        format!("{}: {}", finding.damage, files.join(", "))
    });
    (sum(&scrub.progress(Default::default())), lines.collect())
}
