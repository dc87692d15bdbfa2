//! Choosing superblocks and members: what is used, what is refused, and in which words.

use super::*;
use crate::fixture::{copy_on, device_with, noise, superblock};
use butterfs_device::{FaultyDevice, MemoryDevice, ReadOnlyDevice};
use butterfs_ondisk::Logical;
use zerocopy::{FromZeros, IntoBytes};

const LEN: u64 = 100 << 20;

fn open(devices: &[Arc<MemoryDevice>]) -> Result<(Volume, Superblock, OpenNotes), VolumeError> {
    Volume::open(devices.iter().map(|device| device.clone() as Arc<dyn BlockDevice>).collect())
}

fn refusal(devices: &[Arc<MemoryDevice>]) -> String {
    open(devices).unwrap_err().to_string()
}

#[test]
fn a_healthy_device_opens_without_notes() {
    let device = device_with(&superblock(8, 1, LEN), 1, LEN);
    let (volume, sb, notes) = open(&[device]).unwrap();
    assert_eq!((sb.generation.get(), notes), (8, OpenNotes::default()));
    assert_eq!(volume.chunk_map().iter().map(|chunk| chunk.start).collect::<Vec<_>>(), [Logical(22 << 20)]);
    assert_eq!(volume.devices(), [(DeviceId(1), "disk1".to_owned())]);
}

/// The effect of damage to the primary copy, opened for writing and for reading.
#[test]
fn damage_to_the_primary() {
    type Damage = fn(&MemoryDevice);
    let primary = OFFSETS[0].0;
    // Damage, opens for writing, opens for reading, a word of the note or error.
    let cases: [(&str, Damage, bool, bool, &str); 8] = [
        ("zeroed", |disk| disk.write_at(OFFSETS[0].0, &[0; 4096]).unwrap(), true, true, "magic is missing"),
        ("bit flip", |disk| disk.write_at(OFFSETS[0].0 + 300, &[0xaa]).unwrap(), true, true, "checksum mismatch"),
        ("torn", |disk| disk.write_at(OFFSETS[0].0 + 512, &[7; 3584]).unwrap(), true, true, "checksum mismatch"),
        ("checksum kind", |disk| disk.write_at(OFFSETS[0].0 + 0xc4, &[9]).unwrap(), true, true, "checksum type 9"),
        ("magic wiped", |disk| disk.write_at(OFFSETS[0].0 + 0x40, &[0; 8]).unwrap(), false, true, "something else"),
        (
            "other format",
            |disk| {
                disk.write_at(OFFSETS[0].0, &[0; 4096]).unwrap();
                disk.write_at(1080, &[0x53, 0xef]).unwrap()
            },
            false,
            true,
            "something else",
        ),
        (
            "all copies zeroed",
            |disk| OFFSETS[..2].iter().for_each(|at| disk.write_at(at.0, &[0; 4096]).unwrap()),
            false,
            false,
            "not a btrfs",
        ),
        (
            "all copies flipped",
            |disk| OFFSETS[..2].iter().for_each(|at| disk.write_at(at.0 + 300, &[1]).unwrap()),
            false,
            false,
            "no other copy is valid",
        ),
    ];
    for (what, damage, writing, reading, word) in cases {
        let disk = device_with(&superblock(8, 1, LEN), 1, LEN);
        damage(&disk);
        let result = open(std::slice::from_ref(&disk));
        let read_only = Volume::open(vec![Arc::new(ReadOnlyDevice::new(disk))]);
        assert_eq!((result.is_ok(), read_only.is_ok()), (writing, reading), "{what}");
        let text = result.map_or_else(|error| error.to_string(), |(_, _, notes)| notes.lines.join("\n"));
        assert!(text.contains(word), "{what}: {text}");
        assert!(!writing || text.contains("using the copy at 67108864, generation 8"), "{what}: {text}");
    }
    assert_eq!(primary, 65536);
}

#[test]
fn an_unreadable_primary_is_replaced_by_a_copy() {
    let device = FaultyDevice::new(device_with(&superblock(8, 1, LEN), 1, LEN));
    device.break_range(65536..66000);
    let (_, sb, notes) = Volume::open(vec![Arc::new(device)]).unwrap();
    assert_eq!(sb.bytenr.get(), OFFSETS[1].0);
    assert!(notes.lines[0].contains("it cannot be read: injected fault"), "{notes:?}");
}

#[test]
fn a_broken_rule_with_a_right_checksum_is_refused_not_papered_over() {
    let disk = device_with(&superblock(8, 1, LEN), 1, LEN);
    let mut sb = copy_on(&superblock(9, 1, LEN), 1, LEN, OFFSETS[0]);
    sb.nodesize = 12345.into();
    sb.seal();
    disk.write_at(65536, sb.as_bytes()).unwrap();
    assert_eq!(refusal(&[disk]), "disk1: corrupt superblock: sizes: invalid nodesize 12345, with sectorsize 4096");
}

#[test]
fn the_newest_maintained_copy_replaces_the_primary() {
    let len = (256 << 30) + (1 << 20);
    let disk = device_with(&superblock(8, 1, len), 1, len);
    disk.write_at(OFFSETS[2].0, copy_on(&superblock(9, 1, len), 1, len, OFFSETS[2]).as_bytes()).unwrap();
    let (_, sb, notes) = open(std::slice::from_ref(&disk)).unwrap();
    assert_eq!((sb.generation.get(), notes.lines.len()), (8, 1), "the primary counts: {notes:?}");
    assert!(notes.lines[0].contains("has generation 9, the primary 8"), "{notes:?}");
    disk.write_at(65536 + 200, &[1]).unwrap();
    assert_eq!(open(&[disk]).unwrap().1.generation.get(), 9);
}

/// A copy that ends exactly where the device does is written by mkfs and then never again.
#[test]
fn a_copy_that_nobody_maintains_does_not_count() {
    let len = (64 << 20) + 4096;
    let disk = device_with(&superblock(8, 1, len), 1, len);
    disk.write_at(65536 + 200, &[1]).unwrap();
    assert!(refusal(&[disk]).contains("no other copy is valid"));
}

#[test]
fn devices_that_are_too_small_are_not_btrfs() {
    for len in [0, 1, 65536, 65536 + 4095] {
        assert_eq!(refusal(&[Arc::new(MemoryDevice::named("tiny", len))]), "tiny is not a btrfs filesystem");
    }
    assert_eq!(refusal(&[]), "no device was given");
}

/// `count` devices of one filesystem with these generations.
fn members(generations: &[u64]) -> Vec<Arc<MemoryDevice>> {
    let count = generations.len() as u64;
    let device = |(id, &generation): (u64, &u64)| device_with(&superblock(generation, count, LEN), id, LEN);
    (1..).zip(generations).map(device).collect()
}

#[test]
fn all_members_in_any_order() {
    let mut devices = members(&[8, 8, 8]);
    devices.rotate_left(1);
    let (volume, _, notes) = open(&devices).unwrap();
    assert_eq!(volume.devices().iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(notes.lines.is_empty());
}

#[test]
fn missing_and_surplus_members_are_counted_and_named() {
    let devices = members(&[8, 8, 8]);
    assert_eq!(
        refusal(&[devices[2].clone(), devices[0].clone()]),
        "the filesystem has 3 devices, but only 2 were given: disk1 (devid 1), disk3 (devid 3)"
    );
    let fourth = device_with(&superblock(8, 3, LEN), 4, LEN);
    let all = [&devices[..], &[fourth]].concat();
    assert!(refusal(&all).starts_with("the filesystem has 3 devices, but 4 were given: "));
}

#[test]
fn a_copy_of_a_member_is_refused() {
    let devices = members(&[8, 8]);
    let clone = Arc::new(MemoryDevice::named("clone", LEN));
    clone.restore(&devices[0]);
    let all = [devices[0].clone(), clone, devices[1].clone()];
    assert_eq!(refusal(&all), "disk1 and clone are both device 1 of one filesystem");
}

#[test]
fn a_foreign_member_is_refused() {
    let mut sb = superblock(7, 2, LEN);
    sb.fsid = [0xaa; 16];
    let devices = [members(&[8, 8])[0].clone(), device_with(&sb, 2, LEN)];
    assert_eq!(refusal(&devices), "disk2 (devid 2) belongs to another filesystem than the other devices");
}

#[test]
fn members_behind_are_noted_and_stale() {
    let (volume, sb, notes) = open(&members(&[8, 9, 3])).unwrap();
    assert_eq!((sb.generation.get(), notes.lines.len()), (9, 2));
    assert!(notes.lines[1].starts_with("disk3 (devid 3) has missed commits: its generation is 3, the newest is 9"));
    assert_eq!([1, 2, 3].map(|id| volume.is_stale(DeviceId(id))), [true, false, true]);
    let errors: Vec<u64> = volume.device_stats().iter().map(|(_, stats)| stats.generation_errors).collect();
    assert_eq!(errors, [1, 0, 1]);
    assert!(!volume.is_incomplete());
}

#[test]
fn members_that_were_written_without_each_other_are_refused() {
    let (one, mut other) = (superblock(8, 2, LEN), superblock(8, 2, LEN));
    other.root = (31 << 20).into();
    let devices = [device_with(&one, 1, LEN), device_with(&other, 2, LEN)];
    assert!(refusal(&devices).contains("was written without the other devices"), "{}", refusal(&devices));
    // The newer side remembers another generation 8 than the older one is of.
    let mut newer = superblock(10, 2, LEN);
    newer.super_roots[2].tree_root_gen = 8.into();
    newer.super_roots[2].tree_root = (32 << 20).into();
    let devices = [device_with(&one, 1, LEN), device_with(&newer, 2, LEN)];
    assert!(refusal(&devices).contains("disk1 (devid 1) was written without the other devices"));
    newer.super_roots[2].tree_root = one.root;
    // What the kernel's commit before that took for its own root.
    newer.super_roots[1].tree_root_gen = 8.into();
    newer.super_roots[1].tree_root = (33 << 20).into();
    assert!(open(&[device_with(&one, 1, LEN), device_with(&newer, 2, LEN)]).is_ok());
}

#[test]
fn members_may_be_missing_where_that_is_wanted() {
    let devices = members(&[8, 8, 8]);
    let some =
        |indexes: &[usize]| indexes.iter().map(|index| devices[*index].clone() as Arc<dyn BlockDevice>).collect();
    let error = Volume::open_some(some(&[0, 2]), false).unwrap_err();
    assert!(matches!(error, VolumeError::Incomplete { .. }) && error.hint().unwrap().contains("degraded"));
    let (volume, _, notes) = Volume::open_some(some(&[0, 2]), true).unwrap();
    assert!(volume.is_incomplete() && notes.lines[0].contains("only 2 were given"), "{notes:?}");
    // The only system chunk is on the device that is missing.
    let (volume, ..) = Volume::open_some(some(&[1, 2]), true).unwrap();
    let error = volume.check_survivable(&volume.chunk_map()).unwrap_err().to_string();
    assert_eq!(error, "chunk 23068672 lacks 1 of its devices, and single survives 0; only reading is possible");
}

#[test]
fn of_equal_generations_the_one_with_a_log_rules() {
    let (first, mut second) = (superblock(8, 2, LEN), superblock(8, 2, LEN));
    second.log_root = (40 << 20).into();
    let devices = [device_with(&first, 1, LEN), device_with(&second, 2, LEN)];
    assert_eq!(open(&devices).unwrap().1.log_root.get(), 40 << 20);
}

#[test]
fn a_truncated_device_is_refused() {
    let device = device_with(&superblock(8, 1, LEN), 1, LEN);
    let half = MemoryDevice::from_bytes(&device.to_bytes()[..LEN as usize / 2]);
    let expected = "memory (devid 1) is truncated: it has 52428800 bytes, the filesystem uses 104857600";
    assert_eq!(refusal(&[Arc::new(half)]), expected);
}

#[test]
fn a_system_chunk_outside_of_the_device_is_refused() {
    let mut sb = superblock(8, 1, LEN);
    assert!(chunk::remove_sys_chunk(&mut sb, Logical(22 << 20)));
    let stripe = crate::ChunkStripe { device: DeviceId(1), physical: Physical(99 << 20), dev_uuid: [1; 16] };
    let outside = crate::Chunk::new(Logical(22 << 20), 8 << 20, 2, 4096, vec![stripe]);
    assert!(chunk::append_sys_chunk(&mut sb, &outside));
    assert!(refusal(&[device_with(&sb, 1, LEN)]).contains("it ends at 112197632 of disk1"));
}

/// Superblocks with random bytes in them and a right checksum are opened or refused, and reads end as well.
#[test]
fn mutated_superblocks_never_panic() {
    let good = copy_on(&superblock(8, 1, LEN), 1, LEN, OFFSETS[0]);
    let mut opened = 0;
    for seed in 0..20_000 {
        let numbers = noise(seed, 64);
        let mut bytes = good.as_bytes().to_vec();
        for change in numbers[1..].chunks_exact(4).take(1 + usize::from(numbers[0] % 4)) {
            // Mostly where fields are: the head, and the used part of the system chunk array.
            let area = if change[0] & 1 == 0 { 0x20..0x130 } else { 0x32b..0x32b + 97 };
            let offset = area.start + (usize::from(change[1]) | usize::from(change[2]) << 8) % area.len();
            bytes[offset] = change[3];
        }
        let mut sb = Superblock::new_zeroed();
        sb.as_mut_bytes().copy_from_slice(&bytes);
        sb.seal();
        let device = MemoryDevice::new(LEN);
        device.write_at(65536, sb.as_bytes()).unwrap();
        if let Ok((volume, sb, _)) = open(&[Arc::new(device)]) {
            let mut buf = vec![0; 4096];
            let _ = volume.read(Logical(sb.chunk_root.get()), &mut buf, &mut |_| Err("nothing is there".to_owned()));
            volume.chunk_map().iter().for_each(|chunk| drop(volume.chunk_map().superblock_exclusions(chunk)));
            opened += 1;
        }
    }
    assert!((1000..19_000).contains(&opened), "some open, some do not: {opened}");
}
