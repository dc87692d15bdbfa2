//! Each operation, with everybody's content the same before and after.

use super::scene::*;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, ReplaceRequest, Storage};
use butterfs_fs::migration::MigrationTarget;
use butterfs_fs::{DeviceId, Errno, ExclusiveOperation, Filesystem, Logical, OperationProgress, Options};
use butterfs_ondisk::items::{DevReplaceItem, block_group_flags as bits};
use butterfs_ondisk::profile::Profile;
use std::sync::Arc;

fn chunks_of(fs: &Filesystem, kind: u64) -> Vec<Logical> {
    fs.chunks().iter().filter(|chunk| chunk.kind & kind != 0).map(|chunk| chunk.start).collect()
}

fn last_end(fs: &Filesystem) -> u64 {
    fs.chunks()
        .iter()
        .flat_map(|chunk| chunk.stripes.iter().map(|at| at.physical.0 + chunk.stripe_length()))
        .max()
        .unwrap()
}

#[test]
fn a_device_shrinks_and_grows() {
    let devices = memory(&[1 << 30]);
    make(&devices, "single", "DUP");
    let fs = open(dynamic(&devices), Options::default());
    let root = fs.root();
    fill(&fs);
    // A data chunk far behind the new end, and room in front.
    let filler = fs.create(&ROOT, root, b"filler", 0o600).unwrap().id;
    fs.fallocate(filler, 0, 0, 400 << 20, false).unwrap();
    let late = fs.create(&ROOT, root, b"late", 0o600).unwrap().id;
    fs.fallocate(late, 0, 0, 60 << 20, false).unwrap();
    fs.write(late, 1 << 20, &noise(7, 2 << 20), false).unwrap();
    fs.forget(filler, 1);
    fs.unlink(root, b"filler").unwrap();
    fs.sync().unwrap();
    assert!(last_end(&fs) > 450 << 20, "something lies behind the new end");
    let before = seen(&fs);
    let refused = |size| fs.resize_device(DeviceId(1), size, Storage::Stays).unwrap_err();
    assert!(refused(NewSize::Bytes(255 << 20)).is(Errno::EINVAL));
    assert!(refused(NewSize::More(1 << 20)).is(Errno::EFBIG));
    assert!(fs.resize_device(DeviceId(9), NewSize::Max, Storage::Stays).unwrap_err().is(Errno::ENODEV));
    let resized = fs.resize_device(DeviceId(1), NewSize::Bytes(400 << 20), Storage::Stays).unwrap();
    assert_eq!((resized.from, resized.to), (1 << 30, 400 << 20));
    assert!(last_end(&fs) <= 400 << 20);
    assert_eq!(fs.superblock().total_bytes.get(), 400 << 20);
    assert_same(&before, &seen(&fs), "what it holds");
    fs.shutdown().unwrap();
    assert_clean(&devices, "a_device_shrinks_and_grows");
    let fs = open(dynamic(&devices), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
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
    let between = fs.mkdir(&ROOT, fs.root(), b"between", 0o700).unwrap().id;
    let before = seen(&fs);
    let progress = OperationProgress::default();
    for name in ["DUP", "RAID1", "RAID1C3", "RAID1C4", "RAID10", "RAID0", "RAID1", "single", "RAID1"] {
        let target = MigrationTarget { profile: Profile::named(name), avoid: Vec::new() };
        for start in chunks_of(&fs, bits::DATA | bits::METADATA | bits::SYSTEM) {
            let moved = fs.migrate_chunk(start, &target, &progress);
            moved.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(fs.chunks().iter().all(|chunk| chunk.profile().name == name));
        assert_same(&before, &seen(&fs), "what it holds");
        let id = fs.create(&ROOT, between, b"file", 0o600).unwrap().id;
        fs.write(id, 0, &noise(9, 100_000), false).unwrap();
        fs.fsync(id, false).unwrap();
        fs.forget(id, 1);
        fs.unlink(between, b"file").unwrap();
    }
    fs.shutdown().unwrap();
    assert_clean(&devices, "chunks_become_all_profiles");
    let fs = open(dynamic(&devices), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
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
    assert_same(&before, &seen(&fs), "what it holds");
    assert!(butterfs_fs::mkfs::recognise(&*devices[0]).unwrap().is_none(), "it is wiped");
    fs.shutdown().unwrap();
    assert_clean(&devices[1..], "devices_come_and_go");
    let fs = open(dynamic(&devices[1..]), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
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
    assert_same(&before, &seen(&fs), "what it holds");
    fs.remove_device(RemovedDevice::Missing).unwrap();
    assert_same(&before, &seen(&fs), "what it holds");
    assert!(fs.chunks().iter().all(|chunk| chunk.stripes.iter().all(|stripe| stripe.device != DeviceId(1))));
    fs.shutdown().unwrap();
    assert_clean(&devices[1..3], "a_missing_device_is_removed");
    let fs = open(dynamic(&devices[1..3]), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
    let sentence = fs.remove_device(RemovedDevice::Id(DeviceId(2))).unwrap_err().to_string();
    assert_eq!(sentence, "unable to go below two devices on raid1");
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
    assert_eq!(before.entries.len(), seen(&fs).entries.len());
    assert_eq!(content(&fs, "snap/big"), noise(1, 9 << 20));
}

fn replaced(source: u64) -> ReplaceRequest {
    ReplaceRequest { source: DeviceId(source), avoids_source: false, force: false, old: OldContent::Keep }
}

#[test]
fn a_device_is_replaced() {
    let devices = memory(&[512 << 20, 512 << 20, 500 << 20, 600 << 20]);
    make(&devices[..2], "RAID0", "RAID1");
    let fs = open(dynamic(&devices[..2]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    let refused = fs.begin_replace(devices[2].clone(), &replaced(1)).err().unwrap();
    assert_eq!(refused.to_string(), format!("target device smaller than source device (required {} bytes)", 512 << 20));
    assert!(fs.begin_replace(devices[1].clone(), &replaced(1)).is_err(), "it has a superblock");
    assert!(fs.begin_replace(devices[3].clone(), &replaced(7)).is_err());
    fs.begin_replace(devices[3].clone(), &replaced(1)).unwrap().run().unwrap();
    assert_eq!(fs.replace_status().item.state.get(), DevReplaceItem::FINISHED);
    assert_same(&before, &seen(&fs), "what it holds");
    assert!(butterfs_fs::mkfs::recognise(&*devices[0]).unwrap().is_none(), "the old one is wiped");
    fs.shutdown().unwrap();
    let after = [devices[3].clone(), devices[1].clone()];
    assert_clean(&after, "a_device_is_replaced");
    let fs = open(dynamic(&after), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
    fs.resize_device(DeviceId(1), NewSize::Max, Storage::Stays).unwrap();
    fs.shutdown().unwrap();
}

#[test]
fn a_missing_device_is_replaced() {
    let devices = memory(&[512 << 20, 512 << 20, 512 << 20]);
    make(&devices[..2], "RAID1", "RAID1");
    let fs = open(dynamic(&devices[..2]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    fs.shutdown().unwrap();
    let fs = open(dynamic(&devices[1..2]), Options { degraded: true, ..Options::default() });
    let id = fs.create(&ROOT, fs.root(), b"while it was away", 0o600).unwrap().id;
    fs.write(id, 0, &noise(8, 500_000), false).unwrap();
    fs.begin_replace(devices[2].clone(), &replaced(1)).unwrap().run().unwrap();
    fs.shutdown().unwrap();
    let after = [devices[2].clone(), devices[1].clone()];
    assert_clean(&after, "a_missing_device_is_replaced");
    // The new device alone has everything.
    let fs = open(dynamic(&after[..1]), Options { degraded: true, read_only: true, ..Options::default() });
    assert_eq!(content(&fs, "while it was away"), noise(8, 500_000));
    assert_eq!(content(&fs, "big"), {
        let fs = open(dynamic(&after), Options::default());
        content(&fs, "big")
    });
    assert!(before.entries.len() > 400);
}

#[test]
fn a_replacement_waits_and_goes_on() {
    let devices = memory(&[512 << 20, 512 << 20]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    // Begun, and left.
    drop(fs.begin_replace(devices[1].clone(), &replaced(1)).unwrap());
    fs.shutdown().unwrap();
    drop(fs);
    let alone = Filesystem::open(dynamic(&devices[..1]), Options::default(), env()).err().unwrap().to_string();
    assert!(alone.contains("device replace operation is ongoing"), "{alone}");
    let fs = open(dynamic(&devices), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
    assert!(fs.begin_exclusive(ExclusiveOperation::Resize).is_ok());
    fs.continue_replace().unwrap().unwrap().run().unwrap();
    fs.shutdown().unwrap();
    assert_clean(&devices[1..], "a_replacement_waits_and_goes_on");
    let fs = open(dynamic(&devices[1..]), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
}

#[test]
fn a_replacement_is_cancelled() {
    let devices = memory(&[512 << 20, 512 << 20]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    let before = seen(&fs);
    assert!(!fs.cancel_replace().unwrap());
    let replacement = fs.begin_replace(devices[1].clone(), &replaced(1)).unwrap();
    assert!(fs.cancel_replace().unwrap());
    assert!(replacement.run().unwrap_err().is(Errno::ECANCELED));
    assert_eq!(fs.replace_status().item.state.get(), DevReplaceItem::CANCELED);
    assert!(butterfs_fs::mkfs::recognise(&*devices[1]).unwrap().is_none(), "the new one is wiped");
    assert_same(&before, &seen(&fs), "what it holds");
    // One that was left, and whose new device is lost.
    drop(fs.begin_replace(devices[1].clone(), &replaced(1)).unwrap());
    fs.shutdown().unwrap();
    drop(fs);
    let fs = open(dynamic(&devices[..1]), Options { degraded: true, ..Options::default() });
    assert!(fs.cancel_replace().unwrap());
    fs.shutdown().unwrap();
    assert_clean(&devices[..1], "a_replacement_is_cancelled");
}
