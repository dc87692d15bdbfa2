//! The engine works in everything that `mkfs` makes, down to the smallest sizes, and finds its work again.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{FeatureChoice, MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Errno, Filesystem, Options};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::profile::Profile;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn caller() -> Caller {
    Caller { uid: 0, gid: 0, umask: 0, privileged: true }
}

fn options(list: &str, nodesize: Option<u32>, metadata: &str, checksum: ChecksumKind) -> MkfsOptions {
    let mut features = FeatureChoice::default();
    features.apply(list).unwrap();
    let metadata = Profile::named(metadata);
    MkfsOptions { features, nodesize, metadata, data: None, checksum, ..Default::default() }
}

/// The minimum that the refusal of an empty device names.
fn minimum(options: &MkfsOptions) -> u64 {
    let nothing: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(0));
    let refusal = mkfs(&[nothing], options, &Env::system()).expect_err("nothing is too small");
    assert!(refusal.is(Errno::ENOSPC), "{refusal}");
    let words = refusal.to_string();
    words.split("the minimum is ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
}

fn open(device: &Arc<dyn BlockDevice>) -> Filesystem {
    Filesystem::open(vec![device.clone()], Options::default(), Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

fn work_in(device: &Arc<dyn BlockDevice>, files: u32) {
    let fs = open(device);
    let folder = fs.mkdir(&caller(), fs.root(), b"folder", 0o755).unwrap().id;
    for number in 0..files {
        let file = fs.create(&caller(), folder, format!("file {number}").as_bytes(), 0o644).unwrap().id;
        fs.write(file, 0, &vec![number as u8; number as usize * 40], true).unwrap();
    }
    fs.shutdown().unwrap();
    let fs = open(device);
    let folder = fs.lookup(fs.root(), b"folder").unwrap().id;
    for number in 0..files {
        let file = fs.lookup(folder, format!("file {number}").as_bytes()).unwrap();
        let mut content = Vec::new();
        fs.read(file.id, 0, 1 << 20, &mut content).unwrap();
        assert!(content == vec![number as u8; number as usize * 40], "file {number}");
        fs.unlink(folder, format!("file {number}").as_bytes()).unwrap();
    }
    fs.rmdir(fs.root(), b"folder").unwrap();
    fs.shutdown().unwrap();
}

#[test]
fn the_engine_works_in_what_mkfs_makes() {
    use ChecksumKind::{Blake2b, Crc32c, Sha256, Xxhash64};
    let table = [
        ("", None, "dup", Crc32c),
        ("", Some(4096), "dup", Xxhash64),
        ("", Some(8192), "single", Sha256),
        ("", Some(32768), "single", Blake2b),
        ("", Some(65536), "dup", Crc32c),
        ("^block-group-tree", None, "single", Crc32c),
        ("^free-space-tree", None, "dup", Crc32c),
        ("^no-holes", None, "dup", Crc32c),
        ("^skinny-metadata,^extref", Some(4096), "single", Crc32c),
        ("mixed-bg", None, "single", Crc32c),
        ("mixed-bg,^free-space-tree", None, "single", Crc32c),
    ];
    for (list, nodesize, metadata, checksum) in table {
        let options = options(list, nodesize, metadata, checksum);
        let minimum = minimum(&options);
        for bytes in [minimum, minimum + 4096, 400 * MIB] {
            println!("{list:?} {nodesize:?} {metadata} in {bytes} bytes");
            let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(bytes));
            mkfs(std::slice::from_ref(&device), &options, &Env::system()).unwrap();
            work_in(&device, 100);
        }
    }
}
