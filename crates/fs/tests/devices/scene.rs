//! A filesystem in memory with everything that a move must keep, and checks of the result.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{AccessTimes, Algorithm, Caller, DataPolicy, Filesystem, InodeId, Method, Options, inode_flags};
pub use butterfs_testkit::engine::quiet_env as env;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::judge::{judge, text};
use butterfs_testkit::kernel;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Root without a umask.
pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// Bytes that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

pub fn memory(sizes: &[u64]) -> Vec<Arc<MemoryDevice>> {
    let device = |(number, len): (usize, &u64)| Arc::new(MemoryDevice::named(&format!("disk{}", number + 1), *len));
    sizes.iter().enumerate().map(device).collect()
}

pub fn dynamic(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| device.clone() as Arc<dyn BlockDevice>).collect()
}

/// A UUID that no other filesystem of this machine has. The kernel and btrfs-progs look for the devices of a filesystem
/// by its UUID among all that there are, and two tests may show them theirs at once.
fn unique_fsid() -> [u8; 16] {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut fsid = [0xb7; 16];
    fsid[..4].copy_from_slice(&std::process::id().to_le_bytes());
    fsid[8..].copy_from_slice(&number.to_le_bytes());
    fsid
}

/// A new filesystem with this profile of data and that of trees.
pub fn make(devices: &[Arc<MemoryDevice>], data: &str, metadata: &str) {
    use butterfs_ondisk::profile::Profile;
    let (data, metadata) = (Profile::named(data), Profile::named(metadata));
    let options = MkfsOptions { data, metadata, fsid: Some(unique_fsid()), ..MkfsOptions::default() };
    mkfs(&dynamic(devices), &options, &env()).expect("mkfs");
}

pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: Options) -> Filesystem {
    // Looking changes nothing.
    let options = Options { access_times: AccessTimes::Never, ..options };
    Filesystem::open(devices, options, env()).expect("open")
}

/// Snapshots, reflinks, compression, files without copy on write, preallocated space, attributes, many small files.
pub fn fill(fs: &Filesystem) {
    let root = fs.root();
    let file = |name: &str| fs.create(&ROOT, root, name.as_bytes(), 0o644).expect("a file").id;
    let big = file("big");
    fs.write(big, 0, &noise(1, 9 << 20), false).unwrap();
    let nocow = file("nocow");
    fs.set_flags(
        nocow,
        inode_flags::NODATACOW | inode_flags::NODATASUM,
        inode_flags::NODATACOW | inode_flags::NODATASUM,
    )
    .unwrap();
    fs.write(nocow, 0, &noise(2, 2 << 20), false).unwrap();
    let prealloc = file("prealloc");
    fs.fallocate(prealloc, 0, 0, 3 << 20, false).unwrap();
    fs.write(prealloc, 1 << 20, &noise(3, 300_000), false).unwrap();
    fs.set_data_policy(DataPolicy { compress: Some(Method::from(Algorithm::Zstd)), ..fs.data_policy() });
    let packed = file("packed");
    fs.write(packed, 0, &b"a line that repeats itself\n".repeat(60_000), false).unwrap();
    fs.sync().unwrap();
    fs.set_data_policy(DataPolicy::default());
    let clone = file("clone");
    fs.clone_range((big, 0), (clone, 0), 4 << 20).unwrap();
    let dir = fs.mkdir(&ROOT, root, b"dir", 0o755).unwrap().id;
    for number in 0..400u64 {
        let id = fs.create(&ROOT, dir, format!("file{number}").as_bytes(), 0o600).unwrap().id;
        fs.write(id, 0, &noise(number, (number * 37 % 6000) as usize), false).unwrap();
        fs.set_xattr(&ROOT, id, b"user.number", number.to_string().as_bytes(), 0).unwrap();
        fs.forget(id, 1);
    }
    fs.snapshot(root.tree, root, b"snap", true).unwrap();
    fs.write(big, 3 << 20, &noise(4, 1 << 20), false).unwrap();
    fs.snapshot(root.tree, root, b"snap2", false).unwrap();
    fs.sync().unwrap();
}

/// The fingerprint of the content that `fill` made.
pub fn seen(fs: &Filesystem) -> Fingerprint {
    Fingerprint::of_library(fs).expect("everything can be read")
}

/// Panics unless everything is as it was.
pub fn assert_same(before: &Fingerprint, after: &Fingerprint, what: &str) {
    let changed: Vec<String> = before
        .entries
        .iter()
        .filter(|(path, entry)| *path != b"between" && after.entries.get(*path) != Some(entry))
        .map(|(path, _)| String::from_utf8_lossy(path).into_owned())
        .collect();
    let came = after.entries.len() as i64 - before.entries.len() as i64;
    assert!(changed.is_empty() && came == 0, "{what}: {came} more, changed: {:?}", &changed[..changed.len().min(9)]);
}

/// The content of a file.
pub fn content(fs: &Filesystem, name: &str) -> Vec<u8> {
    let (mut at, mut size) = (fs.root(), 0);
    for name in name.split('/') {
        let attr = fs.lookup(at, name.as_bytes()).unwrap();
        (at, size) = (attr.id, attr.size);
    }
    let mut out = Vec::new();
    fs.read(at, 0, size as usize, &mut out).unwrap();
    out
}

/// Panics unless our checker and `btrfs check` call the filesystem clean.
pub fn assert_clean(devices: &[Arc<MemoryDevice>], test: &str) {
    let report = judge(dynamic(devices));
    assert!(report.is_clean(), "{test}: {}", text(&report));
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let images = files(&scratch, devices);
    kernel::check_several(&images);
    let mount = kernel::KernelMount::several(&images, "");
    std::fs::write(mount.path().join("from the kernel"), b"it goes on").unwrap();
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{test}: {complaints:?}");
}

/// The devices as image files.
pub fn files(scratch: &Scratch, devices: &[Arc<MemoryDevice>]) -> Vec<PathBuf> {
    let write = |(number, device): (usize, &Arc<MemoryDevice>)| scratch.image(&format!("image{number}"), &**device);
    devices.iter().enumerate().map(write).collect()
}

pub fn file(fs: &Filesystem, name: &str) -> InodeId {
    fs.lookup(fs.root(), name.as_bytes()).unwrap().id
}
