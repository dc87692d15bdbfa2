//! Every block of the chunk tree is lost, of every generation, on several devices: the order of stripes is proved by
//! tree blocks and by checksums of data, and everything is restored.

use crate::opened::{plain, scanned};
use crate::saved::{Contents, below, by_us};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::TreeId;
use butterfs_ondisk::header::Header;
use butterfs_rescue::Wreck;
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::{Scratch, load};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::FromBytes;

const LEN: u64 = 320 << 20;
/// Profiles of data and trees, and how many devices.
const PROFILES: [(&str, &str, usize); 5] = [
    ("raid0", "raid1", 3),
    ("raid10", "raid10", 4),
    ("raid5", "raid1c3", 3),
    ("raid6", "raid1c3", 4),
    ("raid1c3", "raid1c3", 3),
];

/// Zeroes every block of the chunk tree that is on the device.
fn wipe_chunk_tree(device: &MemoryDevice, fsid: [u8; 16], nodesize: usize) {
    let zeros = vec![0; nodesize];
    let mut block = vec![0; 4096];
    for at in (128 << 10..device.len() - nodesize as u64).step_by(4096) {
        device.read_at(at, &mut block).expect("memory can be read");
        let (header, _) = Header::read_from_prefix(&block).expect("it is longer");
        if header.fsid == fsid && header.owner.get() == TreeId::CHUNK.get() {
            device.write_at(at, &zeros).expect("memory can be written");
        }
    }
}

#[test]
fn stripes_are_put_in_order_by_what_lies_on_them() {
    restored_without_chunk_tree(&[PROFILES[0], PROFILES[2]]);
}

#[test]
#[ignore = "long: cargo xtask soak rescue-profiles"]
fn stripes_of_all_profiles_are_put_in_order() {
    restored_without_chunk_tree(&PROFILES);
}

/// Devices with files on them: data and tree profiles, and how many. And the contents of all files.
fn filled(scratch: &Scratch, (data, trees, count): (&str, &str, usize)) -> (Vec<Arc<MemoryDevice>>, Contents) {
    let images: Vec<PathBuf> = (0..count).map(|id| scratch.sparse_file(&format!("{id}.img"), LEN)).collect();
    let paths: Vec<&str> = images.iter().map(|image| image.to_str().expect("a text path")).collect();
    run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-d", data, "-m", trees], &paths[..]].concat());
    let mount = KernelMount::several(&images, "noatime");
    let mut noise = vec![0; 300_000];
    for number in 0..12 {
        Rng::new(number + 1).fill(&mut noise);
        fs::write(mount.path().join(format!("large-{number}")), &noise).expect("room");
        fs::write(mount.path().join(format!("small-{number}")), number.to_string()).expect("room");
    }
    run_ok(20, "sync", &["-f", mount.path().to_str().expect("a text path")]);
    let all = below(mount.path());
    mount.finish();
    (images.iter().map(|image| Arc::new(load(image))).collect(), all)
}

fn without_chunk_trees(devices: &[Arc<MemoryDevice>]) {
    let sb = butterfs_rescue::superblocks::copies(&[devices[0].clone() as Arc<dyn BlockDevice>]);
    let (_, sb) = butterfs_rescue::superblocks::ruling(&sb).expect("it is sound");
    for device in devices {
        wipe_chunk_tree(device, sb.block_fsid(), sb.nodesize.get() as usize);
    }
}

fn as_devices(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect()
}

fn restored_without_chunk_tree(profiles: &[(&str, &str, usize)]) {
    const TEST: &str = "profiles";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    for &profile in profiles {
        let scratch = Scratch::new(TEST);
        let (devices, all) = filled(&scratch, profile);
        without_chunk_trees(&devices);
        let wreck = scanned(&as_devices(&devices), &scratch).expect("it was scanned");
        let found = by_us(&wreck).0.contents;
        assert_eq!(found.intersection(&all).count(), all.len(), "{profile:?}: {:?}", wreck.notes);
    }
}

/// As many devices are gone as the profile survives: everything comes back without a scan, with one, and, where each
/// device has all of the data, without the chunk tree too.
#[test]
fn devices_that_are_gone_cost_nothing_that_has_other_copies() {
    const TEST: &str = "profiles-gone";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (devices, all) = filled(&scratch, PROFILES[4]);
    for left in [vec![0], vec![1], vec![2], vec![0, 2], vec![1, 2]] {
        let copies: Vec<_> = left.iter().map(|id: &usize| Arc::new(devices[*id].snapshot())).collect();
        let count = |wreck: &Wreck| by_us(wreck).0.contents.intersection(&all).count();
        let opened = plain(&as_devices(&copies)).expect("one device leads to everything");
        assert_eq!(count(&opened), all.len(), "{left:?}, without a scan: {:?}", opened.notes);
        let opened = scanned(&as_devices(&copies), &scratch).expect("it was scanned");
        assert_eq!(count(&opened), all.len(), "{left:?}, with a scan: {:?}", opened.notes);
        without_chunk_trees(&copies);
        let opened = scanned(&as_devices(&copies), &scratch).expect("it was scanned");
        assert_eq!(count(&opened), all.len(), "{left:?}, without the chunk tree: {:?}", opened.notes);
    }
}
