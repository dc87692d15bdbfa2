//! Work of the kernel on devices and chunks, cut off at random moments as a power cut would: finished or forgotten
//! here, and the content stays what it was.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::filesystem::RemovedDevice;
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::superblock::{OFFSETS, Superblock};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, check_several, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Something that the kernel does.
struct Work {
    name: &'static str,
    /// Devices that the filesystem is made on, and profiles of data and trees.
    devices: usize,
    profiles: (&'static str, &'static str),
    /// The command, with `AT` for the mount and `NEW` for a device that is not used yet.
    command: &'static str,
}

const fn work(
    name: &'static str,
    devices: usize,
    profiles: (&'static str, &'static str),
    command: &'static str,
) -> Work {
    Work { name, devices, profiles, command }
}

const WORKS: &[Work] = &[
    work("replace raid5", 3, ("raid5", "raid1"), "btrfs replace start -B -f 2 NEW AT"),
    work("remove", 3, ("single", "raid1"), "btrfs device remove 2 AT"),
    work("shrink", 1, ("single", "dup"), "btrfs filesystem resize 1:400M AT"),
    work("replace", 2, ("single", "raid1"), "btrfs replace start -B -f 1 NEW AT"),
    work("replace one of one", 1, ("single", "dup"), "btrfs replace start -B -f 1 NEW AT"),
    work("replace a mirror", 2, ("raid1", "raid1"), "btrfs replace start -B -r -f 2 NEW AT"),
    work("replace raid10", 4, ("raid10", "raid10"), "btrfs replace start -B -f 2 NEW AT"),
    work("replace raid6", 4, ("raid6", "raid1c3"), "btrfs replace start -B -f 3 NEW AT"),
    work("remove a mirror", 3, ("raid1", "raid1"), "btrfs device remove 1 AT"),
    work("remove raid5", 4, ("raid5", "raid1"), "btrfs device remove 2 AT"),
    work("shrink a mirror", 2, ("raid1", "raid1"), "btrfs filesystem resize 1:400M AT"),
    work("add and remove", 1, ("single", "dup"), "btrfs device add -f -K NEW AT && btrfs device remove NEW AT"),
    work("to dup", 2, ("single", "raid1"), "btrfs balance start -f -dconvert=dup -mconvert=dup AT"),
    work("to raid0", 2, ("single", "raid1"), "btrfs balance start -f -dconvert=raid0 -mconvert=raid0 AT"),
    work("to raid1", 2, ("single", "dup"), "btrfs balance start -f -dconvert=raid1 -mconvert=raid1 AT"),
    work("to raid10", 4, ("single", "raid1"), "btrfs balance start -f -dconvert=raid10 -mconvert=raid10 AT"),
    work("to raid1c3", 3, ("single", "raid1"), "btrfs balance start -f -dconvert=raid1c3 -mconvert=raid1c3 AT"),
    work("to raid1c4", 4, ("single", "raid1"), "btrfs balance start -f -dconvert=raid1c4 -mconvert=raid1c4 AT"),
    work("to raid5", 3, ("single", "raid1"), "btrfs balance start -f -dconvert=raid5 -mconvert=raid5 AT"),
    work("to raid6", 4, ("single", "raid1"), "btrfs balance start -f -dconvert=raid6 -mconvert=raid6 AT"),
    work("from raid5", 3, ("raid5", "raid5"), "btrfs balance start -f -dconvert=single -mconvert=dup AT"),
    work("from raid6", 4, ("raid6", "raid6"), "btrfs balance start -f -dconvert=single -mconvert=dup AT"),
    work("from raid10", 4, ("raid10", "raid10"), "btrfs balance start -f -dconvert=single -mconvert=dup AT"),
    work("from raid0", 2, ("raid0", "raid0"), "btrfs balance start -f -dconvert=single -mconvert=dup AT"),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// A folder of images on a btrfs that copies all of them at one moment.
struct Host {
    mount: KernelMount,
    rng: Rng,
}

impl Host {
    fn new(scratch: &Scratch, seed: u64) -> Host {
        let image = scratch.sparse_file("host", 12 << 30);
        mkfs(&image, &[]);
        Host { mount: KernelMount::new(&image, "noatime"), rng: Rng::new(seed) }
    }

    /// Copies of the images at moments of the work; and what they show.
    fn interrupted(&mut self, work: &Work, moments: usize) -> (Fingerprint, Vec<Vec<PathBuf>>) {
        let folder = self.mount.path().join("work");
        run_ok(60, "btrfs", &["-q", "subvolume", "create", text(&folder)]);
        let images: Vec<PathBuf> = (0..=work.devices).map(|number| folder.join(format!("disk{number}"))).collect();
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
        }
        let (used, new) = images.split_at(work.devices);
        let others: Vec<&str> = used[1..].iter().map(|image| text(image)).collect();
        mkfs(&used[0], &[&["-d", work.profiles.0, "-m", work.profiles.1], &others[..]].concat());
        let new = LoopDevice::attach(&new[0], false);
        let mount = KernelMount::several(used, "noatime");
        let at = text(mount.path()).to_owned();
        fill(&at);
        let before = print(mount.path());
        let writer = {
            let script = format!(
                "cd {at}/busy && for i in $(seq 100000); do echo $i > f$((i % 50)) || break; \
                 test $((i % 9)) = 0 && sync -f .; \
                 test -e stop && break; sleep 0.003; done"
            );
            std::thread::spawn(move || run(300, "sh", &["-c", &script]))
        };
        let command = work.command.replace("AT", &at).replace("NEW", text(new.path()));
        let running = std::thread::spawn(move || run(300, "sh", &["-c", &command]));
        let mut copies = Vec::new();
        while !running.is_finished() && copies.len() < moments {
            std::thread::sleep(Duration::from_millis(self.rng.below(if moments < 10 { 120 } else { 20 })));
            let copy = self.mount.path().join(format!("left{}", copies.len()));
            run_ok(60, "btrfs", &["-q", "subvolume", "snapshot", text(&folder), text(&copy)]);
            copies.push((0..=work.devices).map(|number| copy.join(format!("disk{number}"))).collect());
        }
        running.join().unwrap();
        // If the kernel has run out of space and stopped writing, the writer has ended already.
        let _ = std::fs::write(format!("{at}/busy/stop"), b"");
        writer.join().unwrap();
        mount.finish();
        drop(new);
        self.delete(&folder);
        (before, copies)
    }

    fn delete(&self, folder: &Path) {
        run_ok(60, "btrfs", &["-q", "subvolume", "delete", text(folder)]);
    }
}

fn fill(at: &str) {
    let script = format!(
        "set -e; cd {at}; mkdir busy; fallocate -l 420M filler
        btrfs -q subvolume create s
        for i in $(seq 10); do head -c 3000000 /dev/urandom > s/large$i; done
        for i in $(seq 150); do head -c $((i * 60)) /dev/urandom > s/small$i; done
        btrfs -q subvolume snapshot -r s r; cp --reflink=always s/large1 s/clone
        for i in $(seq 3 7 150); do echo changed >> s/small$i; done
        touch nocow; chattr +C nocow; head -c 900000 /dev/urandom > nocow; sync; rm filler; sync"
    );
    run_ok(120, "sh", &["-c", &script]);
}

/// Without what was being written.
fn print(at: &Path) -> Fingerprint {
    let mut print = Fingerprint::of_tree(at);
    print.entries.retain(|path, _| !path.is_empty() && !path.starts_with(b"busy"));
    print
}

/// The images that show a filesystem.
fn members(images: &[PathBuf]) -> Vec<PathBuf> {
    let shows = |image: &&PathBuf| {
        let mut bytes = vec![0; butterfs_ondisk::superblock::SUPERBLOCK_LEN];
        let device = FileDevice::open(image, &FileOptions::inspect()).unwrap();
        device.read_at(OFFSETS[0].0, &mut bytes).unwrap();
        Superblock::parse(&bytes, OFFSETS[0]).is_ok()
    };
    images.iter().filter(shows).cloned().collect()
}

fn open(images: &[PathBuf], options: Options) -> butterfs_fs::Result<Filesystem> {
    let device = |image: &PathBuf| -> Arc<dyn BlockDevice> {
        Arc::new(FileDevice::open(image, &FileOptions::read_write()).unwrap())
    };
    Filesystem::open(images.iter().map(device).collect(), options, Env::system())
}

/// Mounts what was left, as a user would, and waits until nothing of it is left.
fn finish(images: &[PathBuf], what: &str) {
    let members = members(images);
    let degraded = || {
        let fs = open(&members, Options { degraded: true, ..Options::default() });
        fs.unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    // As in the kernel, a power cut between the superblocks of two devices needs a degraded mount.
    let fs = match open(&members, Options::default()) {
        Err(error) if error.to_string().contains("tgtdev") => {
            let fs = degraded();
            assert!(fs.cancel_replace().unwrap(), "{what}");
            fs
        }
        // One that has joined without a superblock yet, or has left and is wiped already: nothing lies on it.
        Err(error) if error.to_string().contains("were given") => {
            let fs = degraded();
            fs.remove_device(RemovedDevice::Missing).unwrap_or_else(|error| panic!("{what}: {error}"));
            fs
        }
        opened => opened.unwrap_or_else(|error| panic!("{what}: {error}")),
    };
    // It goes on in the background.
    while fs.balance_status().is_some() || fs.exclusive_operation().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!fs.replace_status().item.is_active(), "{what}");
    fs.shutdown().unwrap();
}

/// A power cut leaves rows whose parity does not fit, where the kernel was writing.
fn repair_parity(members: &[PathBuf], what: &str) {
    let mount = KernelMount::several(members, "noatime");
    let scrubbed = run(120, "btrfs", &["scrub", "start", "-B", text(mount.path())]).output;
    assert!(!scrubbed.contains("ncorrectable:  ") || scrubbed.contains("ncorrectable:  0"), "{what}: {scrubbed}");
    mount.finish();
}

/// Whether nothing of the kernel's is left: no reloc tree, no copy of data, no balance.
fn is_finished(image: &Path) -> bool {
    let dump = |tree| run(60, "btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)]).output;
    let root = dump("root");
    !root.contains("BALANCE") && !root.contains("(TREE_RELOC ROOT_ITEM") && !dump("data_reloc").contains("ORPHAN")
}

fn left(works: &[Work], moments: usize, test: &str) {
    let scratch = Scratch::new(test);
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut host = Host::new(&scratch, seed);
    for work in works {
        let (before, copies) = host.interrupted(work, moments);
        for (number, images) in copies.iter().enumerate() {
            let what = format!("{}, moment {number}", work.name);
            finish(images, &what);
            let members = members(images);
            if [work.name, work.profiles.0].concat().contains("raid5") || work.name.contains("raid6") {
                repair_parity(&members, &what);
            }
            check_several(&members);
            let mount = KernelMount::several(&members, "noatime");
            let found = differences(&before, &print(mount.path()), Compare::ALL);
            assert!(found.is_empty(), "{what}: {:#?}", &found[..found.len().min(20)]);
            let scrubbed = run(120, "btrfs", &["scrub", "start", "-B", text(mount.path())]).output;
            assert!(scrubbed.contains("no errors found"), "{what}: {scrubbed}");
            assert_eq!(mount.finish(), [""; 0], "{what}");
            assert!(is_finished(&members[0]), "{what}");
            host.delete(images[0].parent().unwrap());
        }
        println!("{}: {} moments", work.name, copies.len());
        assert!(!copies.is_empty(), "{}", work.name);
    }
    host.mount.finish();
}

#[test]
fn work_of_the_kernel_is_finished() {
    const TEST: &str = "work_of_the_kernel_is_finished";
    if requirement::kernel_btrfs(TEST) {
        left(&WORKS[..3], 1, TEST);
    }
}

/// `cargo xtask soak kernel-left`.
#[test]
#[ignore = "long: cargo xtask soak kernel-left"]
fn work_of_the_kernel_is_finished_at_many_moments() {
    const TEST: &str = "work_of_the_kernel_at_many_moments";
    if requirement::kernel_btrfs(TEST) {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let (first, moments) = (number("BUTTERFS_FIRST").unwrap_or(0), number("BUTTERFS_MOMENTS").unwrap_or(50));
        left(&WORKS[first..], moments, TEST);
    }
}
