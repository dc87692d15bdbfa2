//! Content and order of superblock writes, and what every power cut between them leaves.

use super::*;
use crate::fixture::{device_with, superblock};
use butterfs_device::{BlockDevice, Event, Fault, FaultRule, FaultyDevice, Kept, MemoryDevice, Operation, Recorder};
use butterfs_ondisk::DeviceId;
use std::sync::Arc;

const LEN: u64 = 65 << 20;
const GENERATION: u64 = 8;

/// A volume of two recorded devices, and what they held before.
fn recorded() -> (Volume, Superblock, Recorder, Vec<MemoryDevice>) {
    let recorder = Recorder::new();
    let sb = superblock(GENERATION, 2, LEN);
    let memory = [1, 2].map(|id| device_with(&sb, id, LEN));
    let bases = memory.iter().map(|device| device.snapshot()).collect();
    let devices = memory.map(|device| Arc::new(recorder.record(device)) as Arc<dyn BlockDevice>);
    let (volume, sb, _) = Volume::open(devices.to_vec()).unwrap();
    (volume, sb, recorder, bases)
}

fn next(sb: &Superblock) -> Superblock {
    let mut next = *sb;
    next.generation = (sb.generation.get() + 1).into();
    next
}

/// `w1@65536` for a write to the first device, `f1` for a flush of it.
fn script(recorder: &Recorder) -> Vec<String> {
    let describe = |event: &Event| match event {
        Event::Write { device, offset, .. } => format!("w{}@{offset}", device + 1),
        Event::Flush { device, .. } => format!("f{}", device + 1),
        Event::Discard { .. } => "discard".to_owned(),
    };
    recorder.events(0..recorder.len()).iter().map(describe).collect()
}

#[test]
fn secondaries_flush_primaries_flush() {
    let (volume, sb, recorder, _) = recorded();
    volume.write_superblock(&next(&sb)).unwrap();
    let expected = ["w1@67108864", "w2@67108864", "f1", "f2", "w1@65536", "w2@65536", "f1", "f2"];
    assert_eq!(script(&recorder), expected);
}

#[test]
fn a_log_touches_the_primaries_only() {
    let (volume, sb, recorder, _) = recorded();
    volume.write_primary_superblock(&sb).unwrap();
    assert_eq!(script(&recorder), ["w1@65536", "w2@65536", "f1", "f2"]);
}

#[test]
fn torn_superblocks_are_repaired_and_valid_ones_left_alone() {
    let (volume, sb, recorder, _) = recorded();
    volume.write_superblock(&sb).unwrap();
    for (device, offset, repairing) in [(1, OFFSETS[1].0, "w2@67108864"), (0, OFFSETS[0].0, "w1@65536")] {
        let before = recorder.len();
        volume.repair_superblocks(&sb).unwrap();
        assert_eq!(recorder.len(), before);
        volume.members()[device].device.write_at(offset + 512, &[0xaa; 512]).unwrap();
        volume.repair_superblocks(&sb).unwrap();
        assert_eq!(script(&recorder)[before + 1..], [repairing, "f1", "f2"]);
    }
}

#[test]
fn each_copy_has_its_place_device_and_checksum() {
    let (volume, sb, recorder, bases) = recorded();
    let mut item = volume.device_item(DeviceId(2)).unwrap();
    item.bytes_used = 777.into();
    assert!(volume.set_device_item(item));
    item.devid = 9.into();
    assert!(!volume.set_device_item(item));
    let mut new = next(&sb);
    new.flags = 0.into();
    volume.write_superblock(&new).unwrap();
    recorder.replay(recorder.len(), &[&bases[0], &bases[1]]).unwrap();
    for (device, id) in bases.iter().zip(1..) {
        for at in &OFFSETS[..2] {
            let mut bytes = vec![0; SUPERBLOCK_LEN];
            device.read_at(at.0, &mut bytes).unwrap();
            let found = Superblock::parse(&bytes, *at).unwrap();
            assert_eq!((found.generation.get(), found.flags.get()), (GENERATION + 1, super_flags::WRITTEN));
            let expected = (id, if id == 2 { 777 } else { 0 });
            assert_eq!((found.dev_item.devid.get(), found.dev_item.bytes_used.get()), expected);
        }
    }
    assert_eq!(volume.read_superblock().unwrap().generation.get(), GENERATION + 1);
}

#[test]
fn the_next_transactions_device_items_wait_for_theirs() {
    let (volume, sb, device) = faulty();
    let (frozen, mut ahead) = (volume.device_items(), volume.device_items()[0]);
    ahead.bytes_used = 999.into();
    volume.set_device_item(ahead);
    let used = |volume: &Volume| volume.read_superblock().unwrap().dev_item.bytes_used.get();
    volume.write_superblock_with(&next(&sb), &frozen).unwrap();
    assert_eq!(used(&volume), 0);
    volume.write_superblock_with(&next(&sb), &[]).unwrap();
    assert_eq!(used(&volume), 999);
    volume.write_primary_superblock_with(&next(&sb), &frozen).unwrap();
    assert_eq!((used(&volume), device.counts().writes), (0, 0));
}

/// The remains of each of at most 4 pending writes after a cut: whole, nothing, the first or the last half.
fn every_outcome(pending: usize) -> impl Iterator<Item = Vec<Kept>> {
    let outcome = |digit: usize| match digit & 3 {
        0 => Kept::Nothing,
        1 => Kept::Whole,
        2 => Kept::Sectors(0..1),
        _ => Kept::Sectors(1..8),
    };
    (0..1usize << (2 * pending)).map(move |number| (0..pending).map(|i| outcome(number >> (2 * i))).collect())
}

/// After a cut at any moment, whatever became of the writes on their way, the devices open as the old generation or
/// the new one, and as the new one once the call has returned.
#[test]
fn every_power_cut_leaves_a_filesystem() {
    let (volume, sb, recorder, bases) = recorded();
    volume.write_superblock(&next(&sb)).unwrap();
    let (mut old, mut new) = (0, 0);
    for prefix in 0..=recorder.len() {
        let pending = recorder.pending(prefix);
        for outcomes in every_outcome(pending.len()) {
            let after = bases.iter().map(MemoryDevice::snapshot).collect::<Vec<_>>();
            let mut keep = |index: usize, _: &Event| outcomes[pending.binary_search(&index).unwrap()].clone();
            recorder.crash(prefix, &[&after[0], &after[1]], &mut keep).unwrap();
            let devices = after.into_iter().map(|device| Arc::new(device) as Arc<dyn BlockDevice>);
            let generation = Volume::open(devices.collect()).unwrap().1.generation.get();
            assert!(generation == GENERATION + 1 || prefix < recorder.len(), "it had returned");
            assert!([GENERATION, GENERATION + 1].contains(&generation));
            *(if generation == GENERATION { &mut old } else { &mut new }) += 1;
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

/// A volume of one faulty device.
fn faulty() -> (Volume, Superblock, Arc<FaultyDevice>) {
    let device = Arc::new(FaultyDevice::new(device_with(&superblock(GENERATION, 1, LEN), 1, LEN)));
    let (volume, sb, _) = Volume::open(vec![device.clone()]).unwrap();
    (volume, sb, device)
}

#[test]
fn a_secondary_that_cannot_be_written_is_told() {
    let (volume, sb, device) = faulty();
    device.add_rule(FaultRule::always(Operation::Write, Fault::Fail).within(64 << 20..LEN));
    volume.write_superblock(&next(&sb)).unwrap();
    assert!(volume.take_messages()[0].starts_with("cannot write the superblock at 67108864 of disk1: "));
    assert_eq!(volume.device_stats()[0].1.write_errors, 1);
    assert_eq!(volume.read_superblock().unwrap().generation.get(), GENERATION + 1);
}

#[test]
fn everything_else_that_fails_is_an_error() {
    let rules = [
        FaultRule::always(Operation::Write, Fault::Fail).within(0..1 << 20),
        FaultRule::always(Operation::Flush, Fault::Fail).after(0, 1),
        FaultRule::always(Operation::Flush, Fault::Fail).after(1, 1),
    ];
    for rule in rules {
        let (volume, sb, device) = faulty();
        device.add_rule(rule.clone());
        assert!(volume.write_superblock(&next(&sb)).is_err(), "{rule:?}");
    }
}

#[test]
fn one_device_that_takes_its_superblock_is_enough() {
    let disk = |id| Arc::new(FaultyDevice::new(device_with(&superblock(GENERATION, 2, LEN), id, LEN)));
    let disks = [disk(1), disk(2)];
    let open = || Volume::open(disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect()).unwrap();
    let (volume, sb, _) = open();
    disks[0].add_rule(FaultRule::always(Operation::Write, Fault::Fail));
    volume.write_superblock(&next(&sb)).unwrap();
    assert!(volume.take_messages().iter().any(|told| told.ends_with("the other devices go on")));
    assert_eq!(open().1.generation.get(), GENERATION + 1);
    disks[1].add_rule(FaultRule::always(Operation::Write, Fault::Fail));
    assert!(volume.write_superblock(&next(&sb)).is_err());
}

#[test]
fn an_invalid_superblock_is_never_written() {
    let (volume, sb, device) = faulty();
    let mut wrong = next(&sb);
    wrong.nodesize = 1.into();
    let error = volume.write_primary_superblock(&wrong).unwrap_err().to_string();
    assert!(error.contains("invalid nodesize 1"), "{error}");
    assert!(volume.write_superblock(&wrong).is_err());
    assert_eq!(volume.read_superblock().unwrap().generation.get(), GENERATION);
    assert_eq!(device.counts().writes, 0);
}
