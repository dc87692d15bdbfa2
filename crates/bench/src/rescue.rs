//! The worst day: scrubbing, naming damaged files, and scanning for the remains.
//!
//! A device is read by two readers in pieces of 4 MiB, past the page cache; what that brings is its read rate. It is
//! measured before and after what stands beside it, because the disk of a virtual machine is faster at some times.

use crate::Scale;
use crate::check;
use crate::subject::{Sides, empty_caches};
use crate::table::Table;
use butterfs_device::{AlignedBuffer, BlockDevice, FileDevice, FileOptions};
use butterfs_fs::scrub::{End, Settings};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, mkfs, run_ok};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::{requirement, serve};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const READ_BAR: &str = ">= 0.90x";
const KERNEL_BAR: &str = ">= 1.50x";
const PIECE: usize = 4 << 20;
const READERS: u64 = 2;
/// Blocks of data that are damaged.
const BAD: u64 = 1000;
/// Snapshots of the subvolume with these blocks.
const SNAPSHOTS: u64 = 100;
const SECTOR: usize = 4096;
/// Behind everything on the images.
const ROOM: u64 = 256 << 20;
/// Bytes that are scrubbed: in less, the start of the command would count.
const ON_DISK: u64 = 8 << 30;
/// Of an image in memory.
const IN_MEMORY: u64 = 1 << 30;

/// Runs everything.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::kernel_btrfs("bench of rescue") || !serve::binary().is_file() {
        return;
    }
    scrubs(scale, table);
    names(scale, table);
}

fn megabytes(rate: f64) -> String {
    format!("{rate:.0} MB/s")
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

/// Scrubs an image on the disk, where the device is the limit, and images in memory, where the processors are. Scans
/// the first.
fn scrubs(scale: Scale, table: &mut Table) {
    let at_least = |bytes| if scale == crate::LEAST { scale.bytes } else { bytes };
    let (on_disk, in_memory) = (at_least(ON_DISK), at_least(IN_MEMORY));
    let disk = Scratch::new("bench-scrub");
    let image = filled(&disk, "crc32c", on_disk);
    let device = LoopDevice::attach_direct(&image);
    let read = || cold(|| read_all(device.path()));
    let before = read();
    let ours = our_scrub(&device, on_disk);
    let between = read();
    let scanned = scan(&disk, &device);
    let bytes = device_bytes(device.path());
    let device_rate = |before: Duration, after: Duration| rate(2 * bytes, before + after);
    let sides = Sides::two(ours, Some(device_rate(before, between)));
    table.compared("scrub, crc32c; kernel: reading the device", sides, megabytes, false, READ_BAR);
    let sides = Sides::two(rate(bytes, scanned), Some(device_rate(between, read())));
    table.compared("rescue scan; kernel: reading the device", sides, megabytes, false, READ_BAR);
    drop(device);
    let sides = Sides::two(ours, Some(kernel_scrub(&image, on_disk)));
    table.compared("scrub, crc32c", sides, megabytes, false, "");
    for checksum in ["sha256", "blake2"] {
        let memory = Scratch::in_memory("bench-scrub");
        let image = filled(&memory, checksum, in_memory);
        let ours = our_scrub(&LoopDevice::attach_direct(&image), in_memory);
        let sides = Sides::two(ours, Some(kernel_scrub(&image, in_memory)));
        table.compared(&format!("scrub, {checksum}, in memory"), sides, megabytes, false, KERNEL_BAR);
    }
}

/// Bytes per second, of data: trees are two in a thousand.
fn our_scrub(device: &LoopDevice, bytes: u64) -> f64 {
    let (program, path) = (serve::binary(), device.path().to_str().expect("a text path"));
    rate(bytes, cold(|| drop(run_ok(600, &program, &["scrub", "start", "-B", "-r", "-c", "2", "-n", "4", path]))))
}

fn kernel_scrub(image: &Path, bytes: u64) -> f64 {
    let kernel = KernelMount::direct(&[image], "noatime");
    let at = kernel.path().to_str().expect("a text path").to_owned();
    let time = cold(|| drop(run_ok(600, "btrfs", &["scrub", "start", "-B", "-r", "-c", "2", "-n", "4", &at])));
    kernel.finish();
    rate(bytes, time)
}

/// An image of the kernel with so many bytes that look random.
fn filled(folder: &Scratch, checksum: &str, bytes: u64) -> PathBuf {
    let image = folder.join(checksum);
    let mut noise = vec![0; (bytes / 8) as usize];
    Rng::new(0).fill(&mut noise);
    // Holes would be read faster than a device is.
    let mut file = std::fs::File::create(&image).expect("our own file");
    for _ in 0..9 + ROOM.div_ceil(noise.len() as u64) {
        file.write_all(&noise).expect("room");
    }
    drop(file);
    mkfs(&image, &["--nodiscard", "--csum", checksum]);
    let mount = KernelMount::new(&image, "noatime,nodiscard");
    for number in 0..8 {
        Rng::new(number + 1).fill(&mut noise);
        std::fs::write(mount.path().join(number.to_string()), &noise).expect("room");
    }
    mount.finish();
    image
}

/// The time of `work` when nothing is in the page cache.
fn cold(work: impl FnOnce()) -> Duration {
    empty_caches();
    let started = Instant::now();
    work();
    started.elapsed()
}

fn device_bytes(path: &Path) -> u64 {
    FileDevice::open(path, &FileOptions::read_only()).expect("a device").len()
}

fn read_all(path: &Path) {
    let device = FileDevice::open(path, &FileOptions::read_only()).expect("a device");
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let mut buffer = AlignedBuffer::new(PIECE);
                loop {
                    let at = next.fetch_add(PIECE as u64, Ordering::Relaxed);
                    let len = device.len().saturating_sub(at).min(PIECE as u64) as usize;
                    if len == 0 {
                        return;
                    }
                    device.read_uncached(at, &mut buffer[..len]).expect("a good device");
                }
            });
        }
    });
}

fn scan(folder: &Scratch, device: &LoopDevice) -> Duration {
    let map = folder.join("map");
    let path = device.path().to_str().expect("a text path");
    let words = ["rescue", "scan", "-q", "--map", map.to_str().expect("a text path"), path];
    empty_caches();
    check::measure(&serve::binary(), &words).0
}

/// How long after its end a scrub has named every file that damaged blocks are in; then a scan of the same image.
fn names(scale: Scale, table: &mut Table) {
    let folder = Scratch::new("bench-names");
    let image = folder.join("image");
    check::make(&image, scale.library_files, SNAPSHOTS, "DUP");
    let bad = BAD.min(scale.library_files / check::DATA_EACH / 2);
    damage(&image, bad);
    let device = FileDevice::open(&image, &FileOptions::read_only()).expect("an image");
    let options = Options { read_only: true, ..Options::default() };
    let filesystem = Filesystem::open(vec![Arc::new(device)], options, Env::system()).expect("a sound filesystem");
    let settings = Settings { read_only: true, ..Settings::default() };
    let scrub = filesystem.start_scrub(settings, Vec::new()).expect("nothing else runs");
    let uptime = Instant::now();
    let has_ended = || scrub.progress(uptime.elapsed()).devices.iter().all(|lane| lane.end == Some(End::Finished));
    while !has_ended() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let read = Instant::now();
    while !scrub.is_over() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let late = read.elapsed();
    let findings = scrub.findings(0);
    let named: usize = findings.iter().map(|finding| finding.files.len()).sum();
    assert!(findings.len() as u64 == bad && named as u64 > bad * SNAPSHOTS / 2, "{} {named}", findings.len());
    let what = format!("{} files, {SNAPSHOTS} snapshots: {bad} bad blocks named, after the scrub", scale.library_files);
    table.times(&what, Sides::two(late, None), "<= 2 s");
    drop((scrub, filesystem));
    let map = folder.join("map");
    let text = |path: &Path| path.to_str().expect("a text path").to_owned();
    let (_, peak) = check::measure(&serve::binary(), &["rescue", "scan", "-q", "--map", &text(&map), &text(&image)]);
    let sides = Sides::two(peak as f64, None);
    table.compared("rescue scan of them: peak memory", sides, check::mebibytes, true, "<= 512 MiB");
}

/// Overwrites a sector of so many files, each of its own extent.
fn damage(image: &Path, bad: u64) {
    let device = FileDevice::open(image, &FileOptions::read_write()).expect("an image");
    let (mut seen, mut sector) = (BTreeSet::new(), vec![0; SECTOR]);
    let file = std::fs::File::open(image).expect("an image");
    let mut at = 0;
    while (seen.len() as u64) < bad {
        // Only where the file has data.
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)).expect("there is more data");
        at = at.next_multiple_of(SECTOR as u64);
        device.read_at(at, &mut sector).expect("a good device");
        if let Some(number) = check::marked(&sector).filter(|number| number % check::DATA_EACH == 0)
            && seen.insert(number)
        {
            sector[SECTOR / 2] ^= 1;
            device.write_at(at, &sector).expect("a good device");
        }
        at += SECTOR as u64;
    }
    device.flush().expect("a good device");
}
