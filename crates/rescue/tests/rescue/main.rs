//! Files saved from damaged filesystems, beside `btrfs restore` and the kernel's rescue mounts.

mod bits;
mod claims;
mod damage;
mod deleted;
mod headers;
mod logs;
mod losses;
mod opened;
mod profiles;
mod references;
mod repairs;
mod saved;
mod seeds;
mod sinks;
mod trust;

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_rescue::index::Limit;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the images.
const LEN: u64 = 160 << 20;

/// A filesystem that the kernel has made: folders, subvolumes, snapshots, all compressions, several commits. The second
/// image is what it was some commits before its end.
fn made_by_kernel(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    fill(mount.path(), 0);
    mount.finish();
    let earlier = scratch.join("earlier.img");
    run_ok(60, "cp", &["--sparse=always", image.to_str().unwrap(), earlier.to_str().unwrap()]);
    let mount = KernelMount::new(&image, "noatime");
    fill(mount.path(), 1);
    mount.finish();
    (image, earlier)
}

/// Content that no other file has.
fn content(number: usize, len: usize) -> Vec<u8> {
    let line = format!("the content of file number {number}, again and again; ");
    line.bytes().cycle().take(len).collect()
}

fn noise(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(number as u64).fill(&mut bytes);
    bytes
}

fn fill(at: &Path, round: usize) {
    let first = round * 1000;
    for folder in 0..4 {
        let folder = at.join(format!("round{round}/folder{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..40 {
            let number = first + number + 40 * (folder.to_str().unwrap().as_bytes().last().unwrap() - b'0') as usize;
            let len = [100, 3000, 5000, 40_000][number % 4];
            fs::write(folder.join(format!("file{number}")), noise(number, len)).unwrap();
        }
    }
    for (number, method) in ["zlib", "lzo", "zstd"].iter().enumerate() {
        let path = at.join(format!("round{round}/{method}"));
        fs::write(&path, "").unwrap();
        run_ok(10, "btrfs", &["property", "set", path.to_str().unwrap(), "compression", method]);
        fs::write(&path, content(first + 500 + number, 300_000)).unwrap();
    }
    let text = at.join(format!("round{round}")).to_str().unwrap().to_owned();
    run_ok(10, "setfattr", &["-n", "user.note", "-v", "value", &format!("{text}/zlib")]);
    std::os::unix::fs::symlink("zlib", format!("{text}/link")).unwrap();
    fs::hard_link(format!("{text}/lzo"), format!("{text}/second")).unwrap();
    run_ok(10, "mknod", &[&format!("{text}/device"), "b", "7", "99"]);
    run_ok(10, "mkfifo", &["-m", "600", &format!("{text}/fifo")]);
    fs::write(format!("{text}/setuid"), noise(first + 610, 3000)).unwrap();
    run_ok(10, "chmod", &["4711", &format!("{text}/setuid")]);
    // A capability (CAP_NET_RAW, permitted), which goes when the owner changes.
    fs::write(format!("{text}/capable"), noise(first + 620, 3000)).unwrap();
    run_ok(10, "chown", &["7:8", &format!("{text}/capable")]);
    let capability = "0x0100000200200000000000000000000000000000";
    run_ok(10, "setfattr", &["-n", "security.capability", "-v", capability, &format!("{text}/capable")]);
    let sparse = fs::File::create(format!("{text}/sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(first + 600, 10_000), 5 << 20).unwrap();
    drop(sparse);
    run_ok(10, "btrfs", &["subvolume", "create", &format!("{text}/subvolume")]);
    for number in 0..20 {
        fs::write(format!("{text}/subvolume/file{number}"), noise(first + 700 + number, 6000)).unwrap();
    }
    run_ok(20, "btrfs", &["filesystem", "sync", &text]);
    run_ok(20, "btrfs", &["subvolume", "snapshot", "-r", &format!("{text}/subvolume"), &format!("{text}/snapshot")]);
    fs::remove_file(format!("{text}/subvolume/file3")).unwrap();
    fs::write(format!("{text}/subvolume/late"), noise(first + 800, 9000)).unwrap();
    run_ok(20, "btrfs", &["filesystem", "sync", &text]);
}

fn file(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path, &FileOptions::inspect()).unwrap())
}

fn limit() -> Limit {
    Limit::default()
}
