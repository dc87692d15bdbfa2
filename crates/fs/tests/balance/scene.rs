//! Images that the kernel has filled, and what they show.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::images::{Variant, make};
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image with everything that the testkit's images have, and snapshots that share most of it: some read-only, some
/// changed since, one of a snapshot, and one whose source is gone.
pub fn filled(variant: &Variant, scratch: &Scratch) -> PathBuf {
    let image = make(variant, scratch);
    let mount = KernelMount::new(&image, "noatime");
    let script = "set -e
        btrfs -q subvolume create s
        for i in $(seq 400); do head -c $((i * 37)) /dev/urandom > s/small$i; done
        for i in $(seq 20); do head -c 300000 /dev/urandom > s/large$i; done
        for i in $(seq 8); do yes \"line $i\" | head -c 400000 > s/text$i; done
        touch s/nocow; chattr +C s/nocow; head -c 500000 /dev/urandom > s/nocow
        fallocate -l 3m s/prealloc; head -c 70000 /dev/urandom | dd of=s/prealloc bs=70000 seek=5 conv=notrunc \
        status=none
        for i in $(seq 300); do ln s/small1 s/link-with-a-long-name-$i; done
        setfattr -n user.x -v $(head -c 3000 /dev/zero | tr '\\0' a) s/small2
        btrfs -q subvolume snapshot -r s ro1; sync
        for i in $(seq 3 7 400); do echo changed >> s/small$i; done
        for i in $(seq 2 20); do dd if=/dev/urandom of=s/large$i bs=4096 count=3 seek=$i conv=notrunc status=none; done
        cp --reflink=always s/large1 s/clone; cp --reflink=always s/large5 s/clone5
        btrfs -q subvolume snapshot s rw1; btrfs -q subvolume snapshot -r s ro2; sync
        rm s/small2* s/large3; head -c 90000 /dev/urandom > rw1/new
        btrfs -q subvolume snapshot rw1 rw2; for i in $(seq 50 90); do rm rw2/small$i; done
        btrfs -q subvolume snapshot -r rw2 ro3; sync
        btrfs -q subvolume delete -c rw1; btrfs subvolume sync . >/dev/null; sync";
    run_ok(240, "sh", &["-c", &format!("cd {} && {script}", mount.path().display())]);
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
    image
}

/// Opens an image for writing.
pub fn open(image: &Path) -> Filesystem {
    open_with(image, Options::default())
}

/// The same with options.
pub fn open_with(image: &Path, options: Options) -> Filesystem {
    let device = FileDevice::open(image, &FileOptions::read_write()).unwrap();
    let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(device)];
    Filesystem::open(devices, options, Env::system()).unwrap()
}

/// The fingerprint of all subvolumes on the kernel's mount.
pub fn prints(image: &Path) -> Fingerprint {
    let mount = KernelMount::new(image, "ro,noatime");
    let print = Fingerprint::of_tree(mount.path());
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
    print
}

/// Panics with what differs.
pub fn same(before: &Fingerprint, after: &Fingerprint, what: &str) {
    let found = differences(before, after, Compare::ALL);
    assert!(found.is_empty(), "{what}: {:#?}", &found[..found.len().min(20)]);
}

/// Bytes in use, as the superblock has it.
pub fn used_bytes(image: &Path) -> u64 {
    let options = Options { read_only: true, ..Options::default() };
    let device = FileDevice::open(image, &FileOptions::inspect()).unwrap();
    let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(device)];
    Filesystem::open(devices, options, Env::system()).unwrap().superblock().bytes_used.get()
}

/// The kernel balances too.
pub fn kernel_balances(image: &Path, arguments: &[&str]) {
    let mount = KernelMount::new(image, "noatime");
    let path = mount.path().to_str().unwrap().to_owned();
    run_ok(300, "btrfs", &[&["balance", "start"], arguments, &[&path]].concat());
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Somebody who works in a directory of their own and knows what is in it.
pub struct Worker {
    fs: Filesystem,
    directory: butterfs_fs::InodeId,
    random: butterfs_testkit::rng::Rng,
    known: std::collections::BTreeMap<String, Vec<u8>>,
}

const CALLER: butterfs_fs::Caller = butterfs_fs::Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

impl Worker {
    pub fn new(fs: &Filesystem, number: u64) -> Worker {
        let root = butterfs_fs::InodeId::root_of(butterfs_fs::TreeId::FS);
        let name = format!("worker{number}");
        fs.create_subvolume(&CALLER, root, name.as_bytes()).unwrap();
        let directory = fs.lookup(root, name.as_bytes()).unwrap().id;
        Worker { fs: fs.clone(), directory, random: butterfs_testkit::rng::Rng::new(number), known: Default::default() }
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    /// Writes, syncs, removes and takes snapshots until somebody says to stop.
    pub fn run(mut self, stop: &std::sync::atomic::AtomicBool) -> Worker {
        let mut snapshots = Vec::new();
        let mut rounds = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds < 50 {
            rounds += 1;
            let name = format!("file{}", self.next(60));
            match self.next(12) {
                0 => self.remove(&name),
                1 => {
                    if let Ok(found) = self.fs.lookup(self.directory, name.as_bytes()) {
                        self.fs.fsync(found.id, false).unwrap();
                        self.fs.forget(found.id, 1);
                    }
                }
                2 => {
                    let root = butterfs_fs::InodeId::root_of(butterfs_fs::TreeId::FS);
                    let snapshot = format!("snapshot{}-{rounds}", self.directory.tree.0);
                    self.fs.snapshot(self.directory.tree, root, snapshot.as_bytes(), rounds % 2 == 0).unwrap();
                    snapshots.push(snapshot);
                    if snapshots.len() > 4 {
                        let oldest = snapshots.remove(0);
                        self.fs.delete_subvolume(root, oldest.as_bytes()).unwrap();
                    }
                }
                _ => self.write(&name).unwrap(),
            }
        }
        self
    }

    fn write(&mut self, name: &str) -> butterfs_fs::Result<()> {
        let id = match self.fs.lookup(self.directory, name.as_bytes()) {
            Ok(found) => found.id,
            Err(_) => self.fs.create(&CALLER, self.directory, name.as_bytes(), 0o644).unwrap().id,
        };
        let (at, len) = (self.next(200_000) as usize, self.next(60_000) as usize + 1);
        let seed = self.next(1 << 30);
        let bytes: Vec<u8> =
            (0..len as u64).map(|index| ((index * 31 + seed) ^ (seed >> (index % 24))) as u8).collect();
        self.fs.write(id, at as u64, &bytes, false)?;
        self.fs.forget(id, 1);
        let known = self.known.entry(name.to_owned()).or_default();
        known.resize(known.len().max(at + len), 0);
        known[at..at + len].copy_from_slice(&bytes);
        Ok(())
    }

    /// Writes into so many files.
    pub fn write_all(&mut self, files: u64) -> butterfs_fs::Result<()> {
        (0..files).try_for_each(|number| self.write(&format!("file{number}")))
    }

    pub fn snapshot(&self, name: &str) {
        let root = butterfs_fs::InodeId::root_of(butterfs_fs::TreeId::FS);
        self.fs.snapshot(self.directory.tree, root, name.as_bytes(), true).unwrap();
    }

    fn remove(&mut self, name: &str) {
        if self.known.remove(name).is_some() {
            self.fs.unlink(self.directory, name.as_bytes()).unwrap();
        }
    }

    pub fn verify(&self) {
        for (name, known) in &self.known {
            let found = self.fs.lookup(self.directory, name.as_bytes()).unwrap();
            let mut out = Vec::new();
            self.fs.read(found.id, 0, known.len() + 1, &mut out).unwrap();
            assert!(out == *known, "{name}");
            self.fs.forget(found.id, 1);
        }
    }
}
