//! Images that the kernel wrote: what we never write ourselves (space caches of version 1, quotas), and its logs.

use crate::kernel::{KernelMount, mkfs, run_ok};
use crate::requirement;
use crate::scratch::Scratch;
use butterfs_device::{BlockDevice, MemoryDevice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The kernel writes caches of block groups of 100 MiB and more, and makes those a tenth of the device.
const IMAGE_BYTES: u64 = 1536 << 20;
/// Of the corpus, which has more of them.
const LOGS: usize = 4;

/// Names and devices; fewer where the kernel's btrfs or the corpus is missing, which is said.
pub fn images() -> Vec<(String, Arc<MemoryDevice>)> {
    const TEST: &str = "mutants of kernel-made images";
    let scratch = Scratch::new("mutants");
    let mut found = Vec::new();
    if requirement::kernel_btrfs(TEST) {
        found.push(("kernel: cache of version 1, quotas".to_owned(), with_cache_and_quotas(&scratch)));
    }
    found.extend(logs(TEST, &scratch));
    found
}

fn with_cache_and_quotas(scratch: &Scratch) -> Arc<MemoryDevice> {
    let image = scratch.sparse_file("cache.img", IMAGE_BYTES);
    mkfs(&image, &["-n", "4096", "-O", "^free-space-tree,^no-holes"]);
    let mount = KernelMount::new(&image, "noatime,space_cache=v1,compress=zstd");
    let at = |name: &str| mount.path().join(name).display().to_string();
    run_ok(60, "btrfs", &["quota", "enable", &at("")]);
    // More than the group that mkfs makes.
    run_ok(60, "fallocate", &["-l", "20M", &at("large")]);
    for folder in ["sound", "files"] {
        let folder = mount.path().join(folder);
        std::fs::create_dir(&folder).expect("room");
        for (name, len) in [("inline", 500), ("words", 150_000), ("noise", 40_000)] {
            let seed = if name == "noise" { 2 } else { 1 };
            std::fs::write(folder.join(name), crate::operation::Content { seed, len }.bytes()).expect("room");
        }
        for number in 0..20 {
            std::fs::hard_link(folder.join("inline"), folder.join(format!("link-{number}"))).expect("room");
        }
    }
    run_ok(60, "btrfs", &["subvolume", "create", &at("files/work")]);
    std::fs::write(at("files/work/inside"), [7; 9000]).expect("room");
    run_ok(60, "btrfs", &["qgroup", "limit", "50M", &at("files/work")]);
    run_ok(60, "btrfs", &["subvolume", "snapshot", "-r", &at(""), &at("before")]);
    std::fs::remove_file(at("files/noise")).expect("it is there");
    run_ok(60, "btrfs", &["subvolume", "snapshot", "-r", &at(""), &at("after")]);
    run_ok(60, "sync", &[]);
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
    loaded(&image)
}

fn logs(test: &str, scratch: &Scratch) -> Vec<(String, Arc<MemoryDevice>)> {
    let Some(packed) = requirement::shared_data(test, "corpus/kernel-dirty-logs.tar.zst") else { return Vec::new() };
    if !requirement::programs(test, &["tar", "zstd"]) {
        return Vec::new();
    }
    let folder = scratch.folder("logs");
    let (packed, to) = (packed.display().to_string(), folder.display().to_string());
    let listed = run_ok(120, "tar", &["--zstd", "-tf", &packed]);
    let names: Vec<&str> = listed.lines().filter(|name| !name.ends_with('/')).collect();
    let some: Vec<&str> = names.iter().step_by((names.len() / LOGS).max(1)).take(LOGS).copied().collect();
    run_ok(120, "tar", &[&["-S", "--zstd", "-xf", &packed, "-C", &to], &some[..]].concat());
    some.iter().map(|name| (format!("kernel log: {name}"), loaded(&folder.join(name)))).collect()
}

/// The content of an image file, without its holes.
fn loaded(image: &Path) -> Arc<MemoryDevice> {
    use rustix::fs::{SeekFrom, seek};
    let file = std::fs::File::open(image).expect("it was made");
    let disk = MemoryDevice::new(file.metadata().expect("it was made").len());
    let mut piece = vec![0; 64 << 10];
    let mut end = 0;
    while let Ok(mut at) = seek(&file, SeekFrom::Data(end)) {
        end = seek(&file, SeekFrom::Hole(at)).expect("data ends");
        while at < end {
            let take = piece.len().min((end - at) as usize);
            file.read_exact_at(&mut piece[..take], at).expect("a file of this length");
            disk.write_at(at, &piece[..take]).expect("memory can be written");
            at += take as u64;
        }
    }
    Arc::new(disk)
}
