//! Lost and returned devices, beside the kernel: what one side writes without a device, the other shows without it and
//! with it back; and what the kernel made with parity, we show without every set of devices that it survives.

use crate::rig::{DEVICE_BYTES, Layout, Work, make, open, same};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::Options;
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::engine::device;
use butterfs_testkit::fingerprint::{Compare, Fingerprint};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, check_several, run, run_ok};
use butterfs_testkit::library::ROOT;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn sparse(scratch: &Scratch, count: usize) -> Vec<PathBuf> {
    (1..=count).map(|id| scratch.sparse_file(&format!("disk{id}"), DEVICE_BYTES)).collect()
}

fn writable(images: &[PathBuf]) -> Vec<Arc<dyn BlockDevice>> {
    images.iter().map(|image| device(image)).collect()
}

fn degraded() -> Options {
    Options { degraded: true, ..Options::default() }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Files of every length with content that compresses badly, some without checksums.
fn fill(folder: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    for number in 0..40u64 {
        let path = folder.join(format!("{seed}-{number}"));
        std::fs::File::create(&path).unwrap();
        if number % 4 == 1 {
            run_ok(20, "chattr", &["+C", text(&path)]);
        }
        let mut content = vec![0; (number * number * 800 + number) as usize];
        rng.fill(&mut content);
        std::fs::write(&path, content).unwrap();
    }
    run_ok(60, "sync", &["-f", text(folder)]);
}

fn kernels_view(images: &[PathBuf], options: &str) -> Fingerprint {
    let mount = KernelMount::several(images, options);
    let print = Fingerprint::of_tree(mount.path());
    // It may complain of the device that has missed something, and must not fail.
    mount.finish();
    print
}

/// The kernel reads and repairs everything on all devices.
fn scrub(images: &[PathBuf]) {
    let mount = KernelMount::several(images, "noatime");
    let said = run(120, "btrfs", &["scrub", "start", "-B", text(mount.path())]).output;
    assert!(said.contains("finished") && !said.contains("uncorrectable errors"), "{said}");
    mount.finish();
}

/// We write without a device; the kernel shows it without, and with the device back, and repairs it.
fn ours_then_the_kernels(layout: Layout, lost: usize, seed: u64) {
    let what = format!("{layout:?} without device {}", lost + 1);
    let scratch = Scratch::new("devices-lost");
    let images = sparse(&scratch, layout.2);
    make(&writable(&images), layout);
    let mut work = Work::new(seed);
    let filesystem = open(&writable(&images), Options::default());
    work.go_on(&filesystem, 200);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let mut left = images.clone();
    left.remove(lost);
    let filesystem = open(&writable(&left), degraded());
    work.go_on(&filesystem, 300);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let model = Fingerprint::of_model(&work.model);
    same(&what, &model, &kernels_view(&left, "ro,degraded"), Compare::MODEL);
    same(&format!("{what}, back"), &model, &kernels_view(&images, "noatime"), Compare::MODEL);
    scrub(&images);
    check_several(&images);
    let filesystem = open(&writable(&images), Options::default());
    work.is_shown(&format!("{what}, repaired by the kernel"), &filesystem);
}

#[test]
fn the_kernel_reads_what_we_wrote_without_a_device() {
    let test = "the_kernel_reads_what_we_wrote_without_a_device";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, 300);
    let cases = [(("raid1", "raid1", 2), 0), (("raid1c3", "raid1", 3), 1), (("raid10", "raid10", 4), 3)];
    for ((layout, lost), seed) in cases.into_iter().zip(9500..) {
        watchdog.note(&format!("{layout:?} {lost}"));
        ours_then_the_kernels(layout, lost, seed);
    }
}

/// The kernel writes without a device; with the device back we show what the kernel wrote, and never the old state.
#[test]
fn we_read_what_the_kernel_wrote_without_a_device() {
    let test = "we_read_what_the_kernel_wrote_without_a_device";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, 200);
    for lost in [0, 1] {
        let scratch = Scratch::new("devices-back");
        let images = sparse(&scratch, 2);
        mkfs("raid1", &images);
        let mount = KernelMount::several(&images, "noatime");
        fill(mount.path(), 1);
        assert_eq!(mount.finish(), [""; 0]);
        let mount = KernelMount::several(&[images[1 - lost].clone()], "noatime,degraded");
        // The same names without checksums, overwritten in place: only the generation tells which is new.
        (0..40).step_by(3).for_each(|number| std::fs::remove_file(mount.path().join(format!("1-{number}"))).unwrap());
        let plain = std::fs::OpenOptions::new().write(true).open(mount.path().join("1-25")).unwrap();
        plain.write_all_at(&vec![b'n'; 400_000], 4096).unwrap();
        drop(plain);
        fill(mount.path(), 2);
        let print = Fingerprint::of_tree(mount.path());
        mount.finish();
        let filesystem = open(&writable(&images), Options::default());
        assert!(filesystem.notes()[0].contains("has missed commits"), "{:?}", filesystem.notes());
        let shown = Fingerprint::of_library(&filesystem).unwrap();
        same("our view", &print, &shown, Compare { atime: false, ..Compare::ALL });
        filesystem.mkdir(&ROOT, filesystem.root(), b"so that there is a commit", 0o755).unwrap();
        filesystem.shutdown().unwrap();
        drop(filesystem);
        kernel_counts_like_us(&images);
    }
}

/// `btrfs device stats` reads the counters that we keep.
fn kernel_counts_like_us(images: &[PathBuf]) {
    let filesystem = open(&writable(images), Options { read_only: true, ..Options::default() });
    let ours: u64 = filesystem.device_stats().iter().map(|(.., stats)| stats.generation_errors).sum();
    drop(filesystem);
    assert!(ours > 0);
    let mount = KernelMount::several(images, "ro");
    let said = run_ok(60, "btrfs", &["device", "stats", text(mount.path())]);
    mount.finish();
    let generation = said.lines().filter(|line| line.contains("generation_errs"));
    let theirs: u64 = generation.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum();
    assert!(theirs >= ours, "{said}");
}

fn mkfs(profile: &str, images: &[PathBuf]) {
    let loops: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
    let paths: Vec<&str> = loops.iter().map(|device| text(device.path())).collect();
    run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-d", profile, "-m", profile], &paths[..]].concat());
    for path in paths {
        run(20, "btrfs", &["device", "scan", "--forget", path]);
    }
}

fn read_only(images: &[PathBuf], lost: usize) -> Vec<Arc<dyn BlockDevice>> {
    let kept = images.iter().enumerate().filter(|(index, _)| lost >> index & 1 == 0);
    let open = |image| Arc::new(FileDevice::open(image, &FileOptions::inspect()).unwrap()) as Arc<dyn BlockDevice>;
    kept.map(|(_, image)| open(image)).collect()
}

#[test]
fn parity_of_the_kernel_is_read_without_what_it_survives() {
    let test = "parity_of_the_kernel_is_read_without_what_it_survives";
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, 300);
    for (profile, count) in [("raid5", 3), ("raid6", 4)] {
        let scratch = Scratch::new("devices-parity");
        let images = sparse(&scratch, count);
        mkfs(profile, &images);
        let mount = KernelMount::several(&images, "noatime");
        fill(mount.path(), 3);
        let print = Fingerprint::of_tree(mount.path());
        mount.finish();
        let tolerated = Profile::named(profile).unwrap().tolerated_failures;
        for lost in (0..1usize << count).filter(|lost| lost.count_ones() as usize <= tolerated) {
            let options = Options { read_only: true, ..degraded() };
            let filesystem = open(&read_only(&images, lost), options);
            let shown =
                Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{profile} {lost:b}: {error}"));
            same(&format!("{profile} without {lost:b}"), &print, &shown, Compare { atime: false, ..Compare::ALL });
        }
    }
}
