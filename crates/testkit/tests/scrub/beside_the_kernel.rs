//! The kernel and we scrub copies of the same damaged filesystem: the same counters, the same sectors repaired, the
//! same files named.

use crate::rig::{SECTOR, noise};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::scrub::{Counters, Finding, Settings};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_testkit::engine::device;
use butterfs_testkit::kernel::{KernelMount, check_several, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DEVICE_BYTES: u64 = 300 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn opened(images: &[PathBuf], read_only: bool) -> Filesystem {
    let devices: Vec<Arc<dyn BlockDevice>> = match read_only {
        false => images.iter().map(|image| device(image)).collect(),
        true => images
            .iter()
            .map(|image| Arc::new(FileDevice::open(image, &FileOptions::read_only()).unwrap()) as Arc<dyn BlockDevice>)
            .collect(),
    };
    let options = Options { read_only, ..Options::default() };
    Filesystem::open(devices, options, Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// Data of every kind, made by the kernel.
fn fill(folder: &Path) {
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("large", &noise(1, 12 << 20));
    for number in 0..60u64 {
        write(&format!("small{number}"), &noise(number, 5000 + 4096 * (number as usize % 5)));
    }
    std::fs::File::create(folder.join("nocow")).unwrap();
    run_ok(20, "chattr", &["+C", text(&folder.join("nocow"))]);
    write("nocow", &noise(3, 1 << 20));
    run_ok(20, "fallocate", &["-l", "1M", text(&folder.join("allocated"))]);
    run_ok(20, "btrfs", &["subvolume", "create", text(&folder.join("sv"))]);
    std::fs::File::create(folder.join("sv/compressed")).unwrap();
    run_ok(20, "btrfs", &["property", "set", text(&folder.join("sv/compressed")), "compression", "zstd"]);
    write("sv/compressed", &b"abcdefgh".repeat(200_000));
    write("sv/linked", &noise(5, 300_000));
    std::fs::hard_link(folder.join("sv/linked"), folder.join("sv/link")).unwrap();
    run_ok(20, "btrfs", &["subvolume", "snapshot", "-r", text(&folder.join("sv")), text(&folder.join("snap"))]);
    run_ok(60, "sync", &["-f", text(folder)]);
}

/// Sectors of checksummed or plain data that are in use, and tree blocks that are only a second copy: image and offset.
fn used_sectors(images: &[PathBuf]) -> Vec<(usize, u64)> {
    let filesystem = opened(images, true);
    let chunks = filesystem.chunks();
    let mut found = Vec::new();
    for chunk in chunks.iter() {
        let is_data = chunk.kind & bits::DATA != 0;
        // Reading the trees repairs the copy that is read, so only one that is not read keeps its damage.
        let is_dup = chunk.kind & bits::PROFILE_MASK == bits::DUP;
        let from = if is_data {
            0
        } else if is_dup {
            1
        } else {
            continue;
        };
        for stripe in &chunk.stripes[from..] {
            let image = stripe.device.0 as usize - 1;
            let file = std::fs::File::open(&images[image]).unwrap();
            let mut sector = vec![0; SECTOR];
            for at in (stripe.physical.0..stripe.physical.0 + chunk.stripe_length()).step_by(SECTOR) {
                file.read_exact_at(&mut sector, at).unwrap();
                if sector.iter().any(|byte| *byte != 0) {
                    found.push((image, at));
                }
            }
        }
    }
    found
}

fn flip(image: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut sector = vec![0; SECTOR];
    file.read_exact_at(&mut sector, at).unwrap();
    sector[77] ^= 0x5a;
    file.write_all_at(&sector, at).unwrap();
}

fn sector(images: &[PathBuf], (image, at): (usize, u64)) -> Vec<u8> {
    let mut sector = vec![0; SECTOR];
    std::fs::File::open(&images[image]).unwrap().read_exact_at(&mut sector, at).unwrap();
    sector
}

/// The kernel's counters of each device, and the files that it names: tree, inode, offset and path inside the
/// subvolume.
fn by_the_kernel(images: &[PathBuf]) -> (Vec<Counters>, BTreeSet<(u64, u64, u64, String)>) {
    let mount = KernelMount::several(images, "noatime");
    let status = std::fs::read_dir("/sys/fs/btrfs").unwrap().count();
    assert!(status > 0);
    let shown = run_ok(20, "btrfs", &["filesystem", "show", text(mount.path())]);
    let devices = shown.lines().filter_map(|line| line.split(" path ").nth(1)).map(str::to_owned);
    let counters = devices.map(|device| {
        let said = run(120, "btrfs", &["scrub", "start", "-BR", &device]).output;
        let mut counters = Counters::default();
        for (name, value) in said.lines().filter_map(|line| line.strip_prefix('\t')?.split_once(": ")) {
            counters.set(name, value.parse().unwrap());
        }
        assert!(said.contains("finished"), "{said}");
        counters
    });
    let counters = counters.collect();
    let named = mount.complaints().iter().filter_map(|line| file_of(line)).collect();
    mount.finish();
    (counters, named)
}

/// `… root R, inode I, offset O, length 4096, links N (path: P)`
fn file_of(line: &str) -> Option<(u64, u64, u64, String)> {
    let number = |word: &str| -> Option<u64> {
        let digits = line.split(word).nth(1)?.trim_start();
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let path = line.split("(path: ").nth(1)?.trim_end_matches(')').to_owned();
    Some((number(" root ")?, number(" inode ")?, number(" offset ")?, path))
}

fn by_us(images: &[PathBuf]) -> (Vec<Counters>, Vec<Arc<Finding>>) {
    let filesystem = opened(images, false);
    let scrub = filesystem.start_scrub(Settings::default(), Vec::new()).unwrap();
    while !scrub.is_over() {
        scrub.wait_for_news(std::time::Duration::from_millis(20));
    }
    let counters = scrub.progress(Default::default()).devices.iter().map(|device| device.counters).collect();
    filesystem.shutdown().unwrap();
    (counters, scrub.findings(0))
}

fn compare(seed: u64, metadata: &str, data: &str, count: usize) {
    let what = format!("{metadata}/{data} on {count}, seed {seed}");
    let scratch = Scratch::new("scrub");
    let images: Vec<PathBuf> = (1..=count).map(|id| scratch.sparse_file(&format!("disk{id}"), DEVICE_BYTES)).collect();
    let paths: Vec<&str> = images.iter().map(|image| text(image)).collect();
    run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-m", metadata, "-d", data], &paths[..]].concat());
    let mount = KernelMount::several(&images, "noatime");
    fill(mount.path());
    mount.finish();
    let used = used_sectors(&images);
    let mut rng = Rng::new(seed);
    let chosen: BTreeSet<(usize, u64)> = (0..25).map(|_| used[rng.below(used.len() as u64) as usize]).collect();
    let good: Vec<Vec<u8>> = chosen.iter().map(|place| sector(&images, *place)).collect();
    chosen.iter().for_each(|(image, at)| flip(&images[*image], *at));
    let copies: Vec<PathBuf> = images.iter().map(|image| image.with_extension("kernel")).collect();
    for (image, copy) in images.iter().zip(&copies) {
        run_ok(60, "cp", &["--sparse=always", text(image), text(copy)]);
    }
    let (kernels, named) = by_the_kernel(&copies);
    let (ours, findings) = by_us(&images);
    // The kernel also counts what its own commits have written by then.
    for (device, (kernels, ours)) in kernels.iter().zip(&ours).enumerate() {
        let errors = |c: &Counters| {
            (c.read_errors, c.csum_errors, c.verify_errors, c.super_errors, c.uncorrectable, c.corrected, c.no_csum)
        };
        assert_eq!(errors(kernels), errors(ours), "{what}: device {}", device + 1);
        assert_eq!((kernels.data_extents, kernels.data_bytes), (ours.data_extents, ours.data_bytes), "{what}");
    }
    for (place, good) in chosen.iter().zip(&good) {
        let (theirs, ours) = (sector(&copies, *place) == *good, sector(&images, *place) == *good);
        assert_eq!(theirs, ours, "{what}: {place:?} is repaired");
    }
    let known: BTreeSet<(u64, u64, u64, u64, String)> = findings
        .iter()
        .flat_map(|finding| &finding.files)
        .map(|file| {
            let path = String::from_utf8(file.path.clone().unwrap()).unwrap();
            (file.tree.0, file.ino.0, file.offset, file.offset + file.len, path)
        })
        .collect();
    println!("{what}: {} damaged, the kernel names {}, we {}", chosen.len(), named.len(), known.len());
    for (tree, ino, offset, path) in &named {
        // The kernel's addresses are those of units of 64 KiB.
        let is_known = |(t, i, from, to, p): &(u64, u64, u64, u64, String)| {
            t == tree && i == ino && p.ends_with(path.as_str()) && *from < offset + (64 << 10) && offset < to
        };
        assert!(known.iter().any(is_known), "{what}: inode {ino} of tree {tree} at {offset}, {path}, among {known:?}");
    }
    if ours.iter().all(|counters| counters.uncorrectable == 0) {
        check_several(&images);
    }
}

#[test]
fn the_kernel_and_we_find_repair_and_name_the_same() {
    let test = "the_kernel_and_we_find_repair_and_name_the_same";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, 300);
    let cases = [
        ("dup", "single", 1),
        ("dup", "dup", 1),
        ("raid1", "raid0", 2),
        ("raid1", "raid1", 2),
        ("raid1c3", "raid1c3", 3),
        ("raid10", "raid10", 4),
    ];
    for ((metadata, data, count), seed) in cases.into_iter().zip(9700..) {
        watchdog.note(data);
        compare(seed, metadata, data, count);
    }
}
