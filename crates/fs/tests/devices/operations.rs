//! Each operation, with everybody's content the same before and after.

use super::scene::*;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, Storage};
use butterfs_fs::migration::MigrationTarget;
use butterfs_fs::{DeviceId, Errno, Filesystem, Logical, OperationProgress, Options};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
use std::sync::Arc;

fn chunks_of(fs: &Filesystem, kind: u64) -> Vec<Logical> {
    fs.chunks().iter().filter(|chunk| chunk.kind & kind != 0).map(|chunk| chunk.start).collect()
}

#[test]
fn a_device_shrinks_and_grows() {
    let devices = memory(&[1 << 30]);
    make(&devices, "single", "DUP");
    let fs = open(dynamic(&devices), Options::default());
    let root = fs.root();
    // Data chunks up to far behind the new end; then what lies in front is deleted.
    for number in 0..3 {
        let id = fs.create(&ROOT, root, format!("filler{number}").as_bytes(), 0o600).unwrap().id;
        fs.fallocate(id, 0, 0, 100 << 20, false).unwrap();
        fs.forget(id, 1);
    }
    fill(&fs);
    for number in 0..3 {
        fs.unlink(root, format!("filler{number}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let before = seen(&fs);
    let refused = |size| fs.resize_device(DeviceId(1), size, Storage::Stays).unwrap_err();
    assert!(refused(NewSize::Bytes(255 << 20)).is(Errno::EINVAL));
    assert!(refused(NewSize::More(1 << 20)).is(Errno::EFBIG));
    assert!(fs.resize_device(DeviceId(9), NewSize::Max, Storage::Stays).unwrap_err().is(Errno::ENODEV));
    let resized = fs.resize_device(DeviceId(1), NewSize::Bytes(400 << 20), Storage::Stays).unwrap();
    assert_eq!((resized.from, resized.to), (1 << 30, 400 << 20));
    let ends = fs.chunks().iter().map(|chunk| chunk.stripes[0].physical.0 + chunk.stripe_length()).max().unwrap();
    assert!(ends <= 400 << 20, "a chunk ends at {ends}");
    assert_eq!(fs.superblock().total_bytes.get(), 400 << 20);
    assert_eq!(seen(&fs), before);
    fs.shutdown().unwrap();
    assert_clean(&devices, "a_device_shrinks_and_grows");
    let fs = open(dynamic(&devices), Options::default());
    assert_eq!(seen(&fs), before);
    fs.resize_device(DeviceId(1), NewSize::Max, Storage::Stays).unwrap();
    assert_eq!(fs.superblock().total_bytes.get(), 1 << 30);
    fs.shutdown().unwrap();
    assert_clean(&devices, "a_device_grows");
}

#[test]
fn chunks_become_all_profiles() {
    let devices = memory(&[512 << 20; 4]);
    make(&devices, "single", "single");
    let fs = open(dynamic(&devices), Options::default());
    fill(&fs);
    let before = seen(&fs);
    let progress = OperationProgress::default();
    for name in ["DUP", "RAID1", "RAID1C3", "RAID1C4", "RAID10", "RAID0", "RAID1", "single", "RAID1"] {
        let target = MigrationTarget { profile: Profile::named(name), avoid: Vec::new() };
        for start in chunks_of(&fs, bits::DATA | bits::METADATA | bits::SYSTEM) {
            let moved = fs.migrate_chunk(start, &target, &progress);
            moved.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(fs.chunks().iter().all(|chunk| chunk.profile().name == name));
        assert_eq!(seen(&fs), before, "{name}");
        let id = fs.create(&ROOT, fs.root(), b"in between", 0o600).unwrap().id;
        fs.write(id, 0, &noise(9, 100_000), false).unwrap();
        fs.fsync(id, false).unwrap();
        fs.forget(id, 1);
        fs.unlink(fs.root(), b"in between").unwrap();
    }
    fs.shutdown().unwrap();
    assert_clean(&devices, "chunks_become_all_profiles");
    let fs = open(dynamic(&devices), Options::default());
    assert_eq!(seen(&fs), before);
}

#[test]
fn devices_come_and_go() {
    let devices = memory(&[512 << 20, 600 << 20, 700 << 20]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    let add = |device: &Arc<MemoryDevice>| fs.add_device(device.clone(), false, OldContent::Discard);
    let too_small: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
    assert!(fs.add_device(too_small, false, OldContent::Keep).unwrap_err().is(Errno::EINVAL));
    let first = fs.remove_device(RemovedDevice::Id(DeviceId(1))).unwrap_err();
    assert_eq!(first.to_string(), "unable to remove the only writeable device");
    assert_eq!(add(&devices[1]).unwrap(), DeviceId(2));
    assert_eq!(add(&devices[2]).unwrap(), DeviceId(3));
    assert!(add(&devices[2]).unwrap_err().is(Errno::EEXIST), "it has a superblock");
    fs.remove_device(RemovedDevice::Id(DeviceId(1))).unwrap();
    assert_eq!(fs.superblock().num_devices.get(), 2);
    assert_eq!(seen(&fs), before);
    assert!(butterfs_fs::mkfs::recognise(&*devices[0]).unwrap().is_none(), "it is wiped");
    fs.shutdown().unwrap();
    assert_clean(&devices[1..], "devices_come_and_go");
    let fs = open(dynamic(&devices[1..]), Options::default());
    assert_eq!(seen(&fs), before);
    assert_eq!(fs.remove_device(RemovedDevice::Missing).unwrap_err().to_string(), "no missing devices found to remove");
}

#[test]
fn a_missing_device_is_removed() {
    let devices = memory(&[512 << 20; 4]);
    make(&devices[..3], "RAID1", "RAID1");
    let fs = open(dynamic(&devices[..3]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    fs.shutdown().unwrap();
    let degraded = Options { degraded: true, ..Options::default() };
    let fs = open(dynamic(&devices[1..3]), degraded);
    assert_eq!(seen(&fs), before);
    fs.remove_device(RemovedDevice::Missing).unwrap();
    assert_eq!(seen(&fs), before);
    assert!(fs.chunks().iter().all(|chunk| chunk.stripes.iter().all(|stripe| stripe.device != DeviceId(1))));
    fs.shutdown().unwrap();
    assert_clean(&devices[1..3], "a_missing_device_is_removed");
    let fs = open(dynamic(&devices[1..3]), Options::default());
    assert_eq!(seen(&fs), before);
    let text = fs.remove_device(RemovedDevice::Id(DeviceId(2))).unwrap_err().to_string();
    assert_eq!(text, "unable to go below two devices on raid1");
}

#[test]
fn bad_copies_do_not_move() {
    let devices = memory(&[512 << 20; 2]);
    make(&devices, "RAID1", "RAID1");
    let fs = open(dynamic(&devices), Options::default());
    fill(&fs);
    let before = seen(&fs);
    // All of the first device's copies of data are damaged.
    for chunk in fs.chunks().iter().filter(|chunk| chunk.kind & bits::DATA != 0) {
        let stripe = chunk.stripes.iter().find(|stripe| stripe.device == DeviceId(1)).unwrap();
        for at in (0..chunk.stripe_length()).step_by(64 << 10) {
            devices[0].write_at(stripe.physical.0 + at + 512, &[0xff; 100]).unwrap();
        }
    }
    let progress = OperationProgress::default();
    let target = MigrationTarget { profile: Profile::named("single"), avoid: vec![DeviceId(2)] };
    let moves: Vec<_> = chunks_of(&fs, bits::DATA).iter().map(|at| fs.migrate_chunk(*at, &target, &progress)).collect();
    // What has no checksum cannot be told from what is right.
    assert!(moves.iter().all(Result::is_ok), "{moves:?}");
    let after = seen(&fs);
    assert_eq!(content(&fs, "big").len(), 9 << 20);
    assert_eq!(before.entries.len(), after.entries.len());
}
