//! Images that the kernel wrote: what we never write ourselves (space caches of version 1, quotas), and its logs.

use crate::kernel::{KernelMount, mkfs, run_ok};
use crate::requirement;
use crate::scratch::Scratch;
use butterfs_device::{BlockDevice, MemoryDevice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const IMAGE_BYTES: u64 = 192 << 20;
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
    mkfs(&image, &["-M", "-n", "4096", "-O", "^free-space-tree,^no-holes"]);
    let mount = KernelMount::new(&image, "noatime,space_cache=v1,compress=zstd");
    let at = |name: &str| mount.path().join(name).display().to_string();
    run_ok(60, "btrfs", &["quota", "enable", &at("")]);
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
    run_ok(120, "tar", &["-S", "--zstd", "-xf", &packed, "-C", &to]);
    let entries = std::fs::read_dir(&folder).expect("it was unpacked").flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    let some = files.iter().step_by((files.len() / LOGS).max(1)).take(LOGS);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    some.map(|path| (format!("kernel log: {}", name(path)), loaded(path))).collect()
}

/// The content of an image file; what is zero takes no memory.
fn loaded(image: &Path) -> Arc<MemoryDevice> {
    const PIECE: usize = 64 << 10;
    let file = std::fs::File::open(image).expect("it was made");
    let len = file.metadata().expect("it was made").len();
    let disk = MemoryDevice::new(len);
    let mut piece = vec![0; PIECE];
    for at in (0..len).step_by(PIECE) {
        let take = PIECE.min((len - at) as usize);
        file.read_exact_at(&mut piece[..take], at).expect("a file of this length");
        if piece[..take].iter().any(|byte| *byte != 0) {
            disk.write_at(at, &piece[..take]).expect("memory can be written");
        }
    }
    Arc::new(disk)
}
