//! Each operation, with everybody's content the same before and after.

use super::scene::*;
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation};
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, ReplaceRequest, SourceReads, Storage};
use butterfs_fs::migration::MigrationTarget;
use butterfs_fs::scrub::Settings;
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
        let target = MigrationTarget { profile: Profile::named(name), ..MigrationTarget::default() };
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

/// A chunk of which nearly everything is in use moves beneath its addresses; one with room is emptied, and so is each
/// when addresses or usage are asked for.
#[test]
fn a_balance_moves_full_chunks_whole() {
    use butterfs_fs::filesystem::BalanceEnd;
    use butterfs_ondisk::balance::{args_flags, balance_flags};
    use butterfs_ondisk::items::{BalanceArgs, BalanceItem};
    let devices = memory(&[400 << 20]);
    make(&devices, "single", "DUP");
    let fs = open(dynamic(&devices), Options::default());
    let data = chunks_of(&fs, bits::DATA)[0];
    let group = fs.chunks().get(data).unwrap().length;
    let full = fs.create(&ROOT, fs.root(), b"full", 0o600).unwrap().id;
    for piece in (0..group / 100 * 95).step_by(1 << 20) {
        fs.write(full, piece, &noise(piece, 1 << 20), false).unwrap();
    }
    fs.sync().unwrap();
    let before = seen(&fs);
    let place = |fs: &Filesystem| fs.chunks().get(data).map(|chunk| chunk.stripes[0].physical);
    let old = place(&fs).unwrap();
    let balance = |flags: u64| {
        let args = BalanceArgs { flags: flags.into(), vend: u64::MAX.into(), ..Default::default() };
        let control = BalanceItem { flags: balance_flags::DATA.into(), data: args, ..Default::default() };
        let end = fs.balance_start(control).unwrap();
        assert!(matches!(end, BalanceEnd::Completed { no_space: 0, .. }), "{end:?}");
        assert_same(&before, &seen(&fs), "what it holds");
    };
    balance(0);
    let whole = place(&fs).expect("its addresses stay");
    assert_ne!(whole, old, "it lies elsewhere");
    balance(args_flags::VRANGE);
    assert_eq!(place(&fs), None, "addresses were asked for");
    fs.shutdown().unwrap();
    assert_clean(&devices, "a_balance_moves_full_chunks_whole");
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
    let target =
        MigrationTarget { profile: Profile::named("single"), avoid: vec![DeviceId(2)], ..MigrationTarget::default() };
    let moves: Vec<_> = chunks_of(&fs, bits::DATA).iter().map(|at| fs.migrate_chunk(*at, &target, &progress)).collect();
    // What has no checksum cannot be told from what is right.
    assert!(moves.iter().all(Result::is_ok), "{moves:?}");
    assert_eq!(before.entries.len(), seen(&fs).entries.len());
    assert_eq!(content(&fs, "snap/big"), noise(1, 9 << 20));
}

fn replaced(source: u64) -> ReplaceRequest {
    ReplaceRequest { source: DeviceId(source), reads: SourceReads::Allowed, force: false, old: OldContent::Keep }
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

/// A device that takes its time to make anything durable.
#[derive(Debug)]
struct SlowToFlush(Arc<MemoryDevice>);

impl BlockDevice for SlowToFlush {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(30));
        self.0.flush()
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

/// Users unplug the old device, or begin other work, when the replacement has ended.
#[test]
fn a_replacement_has_ended_when_that_is_durable() {
    let devices = memory(&[512 << 20, 512 << 20, 512 << 20]);
    make(&devices[..2], "RAID1", "RAID1");
    let slow: Vec<Arc<dyn BlockDevice>> =
        devices.iter().map(|device| Arc::new(SlowToFlush(device.clone())) as Arc<dyn BlockDevice>).collect();
    let fs = open(slow[..2].to_vec(), Options::default());
    fill(&fs);
    let replacement = fs.begin_replace(slow[2].clone(), &replaced(1)).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| replacement.run());
        while fs.replace_status().item.state.get() == DevReplaceItem::STARTED {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(fs.exclusive_operation().is_none(), "other work may begin");
        assert!(butterfs_fs::mkfs::recognise(&*devices[0]).unwrap().is_none(), "the old one is wiped");
        running.join().unwrap().unwrap();
    });
    assert_eq!(fs.replace_status().item.state.get(), DevReplaceItem::FINISHED);
    fs.shutdown().unwrap();
    assert_clean(&[devices[2].clone(), devices[1].clone()], "a_replacement_has_ended_when_that_is_durable");
}

/// The number of reads of the replaced device meanwhile.
fn reads_of_source(reads: SourceReads) -> u64 {
    let devices = memory(&[512 << 20, 512 << 20, 512 << 20]);
    make(&devices[..2], "RAID1", "RAID1");
    let counted = Arc::new(FaultyDevice::new(devices[0].clone()));
    // Nothing but counting.
    counted.add_rule(FaultRule::always(Operation::Read, Fault::Misdirect { distance: 0 }));
    let fs = open(vec![counted.clone(), devices[1].clone()], Options::default());
    fill(&fs);
    // Copying it takes many requests, beside which those of the commits count for little.
    let large = fs.create(&ROOT, fs.root(), b"large", 0o600).unwrap().id;
    for piece in (0..64 << 20).step_by(1 << 20) {
        fs.write(large, piece, &noise(piece, 1 << 20), false).unwrap();
    }
    fs.sync().unwrap();
    let before = seen(&fs);
    let count = counted.counts().reads;
    fs.begin_replace(devices[2].clone(), &ReplaceRequest { reads, ..replaced(1) }).unwrap().run().unwrap();
    let count = counted.counts().reads - count;
    fs.shutdown().unwrap();
    drop(fs);
    let after = [devices[2].clone(), devices[1].clone()];
    assert_clean(&after, "a_source_is_spared");
    let alone = open(dynamic(&after[..1]), Options { degraded: true, read_only: true, ..Options::default() });
    assert_same(&before, &seen(&alone), "what the new device has");
    count
}

#[test]
fn a_device_that_is_to_be_spared_is_spared() {
    let (allowed, avoided) = (reads_of_source(SourceReads::Allowed), reads_of_source(SourceReads::Avoided));
    assert!(avoided * 10 < allowed, "read {allowed} times, and {avoided} times where it was to be spared");
}

#[test]
fn scrub_and_replacement_exclude_each_other() {
    let devices = memory(&[512 << 20, 512 << 20]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    fs.limit_scrub(DeviceId(1), 1).unwrap();
    let scrub = fs.start_scrub(Settings::default(), Vec::new()).unwrap();
    let refused = fs.begin_replace(devices[1].clone(), &replaced(1)).err().unwrap();
    assert!(refused.is(Errno::EINPROGRESS) && refused.to_string() == "scrub is in progress", "{refused}");
    assert!(!scrub.is_over() && fs.begin_exclusive(ExclusiveOperation::Resize).is_ok());
    fs.cancel_scrub().unwrap();
    fs.limit_scrub(DeviceId(1), 0).unwrap();
    let replacement = fs.begin_replace(devices[1].clone(), &replaced(1)).unwrap();
    // Its copier could not tell afterwards how far it came.
    assert!(fs.set_read_only(true).unwrap_err().is(Errno::EBUSY) && !fs.is_read_only());
    for refused in [fs.start_scrub(Settings::default(), Vec::new()), fs.scrub(Settings::default(), Vec::new())] {
        let refused = refused.err().unwrap();
        assert!(refused.is(Errno::EINPROGRESS) && refused.to_string() == "a device is being replaced", "{refused}");
    }
    replacement.run().unwrap();
    let scrub = fs.scrub(Settings::default(), Vec::new()).unwrap();
    assert!(scrub.is_over());
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

/// The offset of these bytes on a device.
fn place_of(device: &MemoryDevice, bytes: &[u8]) -> u64 {
    let mut found = [0; 4096];
    (1 << 20..device.len())
        .step_by(4096)
        .find(|at| {
            device.read_at(*at, &mut found).unwrap();
            found == bytes[..4096]
        })
        .expect("it is there")
}

#[test]
fn a_replacement_counts_data_without_a_good_copy_and_goes_on() {
    let devices = memory(&[512 << 20, 512 << 20, 512 << 20]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    fs.shutdown().unwrap();
    drop(fs);
    let place = place_of(&devices[0], &noise(1, 9 << 20));
    devices[0].write_at(place + 4096, &[0; 3 * 4096]).unwrap();
    let fs = open(dynamic(&devices[..1]), Options::default());
    // Its checksum would not tell afterwards which bytes a moved chunk lacks, so nothing moves.
    fs.add_device(devices[2].clone(), false, OldContent::Keep).unwrap();
    let refused = fs.remove_device(RemovedDevice::Id(DeviceId(1))).unwrap_err().to_string();
    assert!(refused.contains("checksum error"), "{refused}");
    fs.remove_device(RemovedDevice::Id(DeviceId(2))).unwrap();
    fs.begin_replace(devices[1].clone(), &replaced(1)).unwrap().run().unwrap();
    let item = fs.replace_status().item;
    assert_eq!((item.state.get(), item.uncorrectable_read_errors.get()), (DevReplaceItem::FINISHED, 3));
    fs.shutdown().unwrap();
    drop(fs);
    let fs = open(dynamic(&devices[1..2]), Options::default());
    assert_eq!(fs.replace_status().item.uncorrectable_read_errors.get(), 3, "it is on disk");
    assert_eq!(content(&fs, "nocow"), noise(2, 2 << 20));
    let mut found = Vec::new();
    assert!(fs.read(file(&fs, "big"), 4096, 4096, &mut found).is_err(), "the checksum tells");
    found.clear();
    fs.read(file(&fs, "big"), 4 * 4096, 1 << 20, &mut found).unwrap();
    assert_eq!(found, noise(1, 9 << 20)[4 * 4096..][..1 << 20]);
}

#[test]
fn a_replacement_ends_where_the_new_device_or_data_without_checksums_fails() {
    let devices = memory(&[512 << 20, 512 << 20]);
    make(&devices[..1], "single", "DUP");
    let old = Arc::new(FaultyDevice::new(devices[0].clone()));
    let fs = open(vec![old.clone()], Options::default());
    fill(&fs);
    let before = seen(&fs);
    let new = Arc::new(FaultyDevice::new(devices[1].clone()));
    let forced = ReplaceRequest { force: true, ..replaced(1) };
    for (on, sentence, skip) in [(Operation::Write, "write", 3), (Operation::Flush, "flush", 0)] {
        let replacement = fs.begin_replace(new.clone(), &forced).unwrap();
        new.add_rule(FaultRule::always(on, Fault::Fail).after(skip, u64::MAX));
        let failed = replacement.run().unwrap_err();
        assert!(failed.is(Errno::EIO) && failed.to_string().contains(sentence), "{failed}");
        let item = fs.replace_status().item;
        assert_eq!((item.state.get(), item.write_errors.get()), (DevReplaceItem::CANCELED, 1), "{sentence}");
        new.clear();
        assert_same(&before, &seen(&fs), "what it holds");
    }
    // Nothing would tell afterwards that these bytes are wrong.
    let place = place_of(&devices[0], &noise(2, 2 << 20));
    old.break_range(place..place + 4096);
    let failed = fs.begin_replace(new, &forced).unwrap().run().unwrap_err().to_string();
    assert!(failed.contains("cannot be read from any device"), "{failed}");
    assert_eq!(fs.replace_status().item.state.get(), DevReplaceItem::CANCELED);
    assert!(butterfs_fs::mkfs::recognise(&*devices[1]).unwrap().is_none(), "the new one is wiped");
    fs.shutdown().unwrap();
    drop(fs);
    assert_clean(&devices[..1], "a_replacement_ends_where_the_new_device_fails");
    let fs = open(dynamic(&devices[..1]), Options::default());
    assert_same(&before, &seen(&fs), "what it holds");
}

/// Cancelled in the middle, by somebody else's thread.
#[test]
fn shrinking_and_removing_are_cancelled() {
    let devices = memory(&[1 << 30, 1 << 30]);
    make(&devices[..1], "single", "DUP");
    let fs = open(dynamic(&devices[..1]), Options::default());
    fill(&fs);
    let between = fs.mkdir(&ROOT, fs.root(), b"between", 0o700).unwrap().id;
    let before = seen(&fs);
    fs.add_device(devices[1].clone(), false, OldContent::Keep).unwrap();
    assert!(!fs.cancel_exclusive(ExclusiveOperation::DeviceRemove), "none runs");
    let cancelled = std::thread::scope(|scope| {
        let removal = scope.spawn(|| fs.remove_device(RemovedDevice::Id(DeviceId(1))));
        while !fs.cancel_exclusive(ExclusiveOperation::DeviceRemove) && !removal.is_finished() {
            std::thread::yield_now();
        }
        removal.join().unwrap()
    });
    assert!(cancelled.unwrap_err().is(Errno::ECANCELED));
    assert_same(&before, &seen(&fs), "what it holds");
    assert_eq!(fs.device_usage().len(), 2, "nothing is removed");
    let used = fs.device_usage()[0].allocated;
    // The device is used again.
    let id = fs.create(&ROOT, between, b"file", 0o600).unwrap().id;
    fs.fallocate(id, 0, 0, 1500 << 20, false).unwrap();
    assert!(fs.device_usage()[0].allocated > used);
    fs.forget(id, 1);
    fs.unlink(between, b"file").unwrap();
    fs.sync().unwrap();
    let cancelled = std::thread::scope(|scope| {
        let shrink = || fs.resize_device(DeviceId(1), NewSize::Bytes(256 << 20), Storage::Stays);
        let shrinking = scope.spawn(shrink);
        while !fs.cancel_exclusive(ExclusiveOperation::Resize) && !shrinking.is_finished() {
            std::thread::yield_now();
        }
        shrinking.join().unwrap()
    });
    // It may have had nothing to move.
    assert!(cancelled.is_ok_and(|resized| resized.to == 256 << 20) || fs.device_usage()[0].total_bytes == 1 << 30);
    assert_same(&before, &seen(&fs), "what it holds");
    fs.shutdown().unwrap();
    assert_clean(&devices, "shrinking_and_removing_are_cancelled");
}
