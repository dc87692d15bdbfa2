//! Rows with parity: parts of them, without devices, with damage, with stale devices, and several writers at once.

use crate::fixture::{Rig, START, noise, rig};
use crate::member::Condition;
use crate::row_check::{RowChecked, RowRepair};
use crate::{Confirmed, VolumeError};
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_testkit::rng::Rng;

const SECTOR: usize = 4096;
const SHAPES: [(&str, usize); 6] = [("RAID5", 2), ("RAID5", 3), ("RAID5", 5), ("RAID6", 3), ("RAID6", 4), ("RAID6", 6)];

fn filled(profile: &str, stripes: usize) -> (Rig, Vec<u8>) {
    let rig = rig(profile, stripes);
    let content = noise(7, rig.chunk.length as usize);
    rig.volume.write(START, &content).unwrap();
    (rig, content)
}

fn at(offset: usize) -> Logical {
    START.plus(offset as u64)
}

/// Every way to read every element shows the content.
fn all_copies_are(rig: &Rig, content: &[u8], what: &str) {
    for (element, expected) in content.chunks(STRIPE_LEN as usize).enumerate() {
        let offset = element * STRIPE_LEN as usize;
        let mut found = vec![0; expected.len()];
        for copy in 0..rig.volume.copies(at(offset)) {
            // The last copies of RAID6 are without another column, which not every column has.
            if rig.volume.read_copy(at(offset), copy, &mut found).is_ok() {
                assert!(found == expected, "{what}: copy {copy} of element {element}");
            }
        }
    }
}

/// Writes sectors at random places, into the content too.
fn write_somewhere(rig: &Rig, content: &mut [u8], random: &mut Rng) {
    let sectors = content.len() / SECTOR;
    let start = random.index(sectors);
    let most = if random.chance(25) { sectors } else { 6 };
    let end = (start + 1 + random.index(most)).min(sectors);
    let data = noise(random.bits(), (end - start) * SECTOR);
    rig.volume.write(at(start * SECTOR), &data).unwrap();
    content[start * SECTOR..end * SECTOR].copy_from_slice(&data);
}

#[test]
fn parity_follows_random_writes() {
    for (profile, stripes) in SHAPES {
        let ((rig, mut content), mut random) = (filled(profile, stripes), Rng::new(5));
        for _ in 0..30 {
            write_somewhere(&rig, &mut content, &mut random);
        }
        all_copies_are(&rig, &content, profile);
        assert_eq!(rig.volume.take_messages(), [""; 0]);
    }
}

/// Without as many devices as the profile survives, whichever they are, and with them back after a resync.
#[test]
fn writes_without_devices_reach_the_others() {
    for (profile, stripes) in SHAPES {
        let tolerated = if profile == "RAID6" { 2 } else { 1 };
        for lost in (1..1u32 << stripes).filter(|lost| lost.count_ones() <= tolerated) {
            let ((rig, mut content), mut random) = (filled(profile, stripes), Rng::new(lost.into()));
            let is_lost = |device: &usize| lost >> device & 1 == 1;
            (0..stripes).filter(is_lost).for_each(|device| rig.devices[device].fail_writes());
            for _ in 0..6 {
                write_somewhere(&rig, &mut content, &mut random);
            }
            (0..stripes).filter(is_lost).for_each(|device| rig.devices[device].clear());
            let what = format!("{profile} x{stripes} without {lost:b}");
            let stale = rig.volume.stale_devices();
            // Nothing of a stale device is believed, and more is written.
            for _ in 0..3 {
                write_somewhere(&rig, &mut content, &mut random);
            }
            let mut found = vec![0; content.len()];
            rig.volume.read_unverified(START, &mut found).unwrap();
            assert!(found == content, "{what}");
            for id in stale {
                let unknown = |_: Logical, _: &[u8]| Confirmed::Unknown;
                let done = rig.volume.resync(id, START, content.len(), SECTOR, &unknown).unwrap();
                assert_eq!(done.unreadable, 0, "{what}");
            }
            rig.volume.stale_devices().into_iter().for_each(|id| {
                assert!(rig.volume.recover(id, rig.volume.missed_writes(id)), "{what}");
            });
            all_copies_are(&rig, &content, &what);
        }
    }
}

/// Confirms what is the content.
fn confirm(content: &[u8]) -> impl Fn(Logical, &[u8]) -> Confirmed + '_ {
    |at, bytes| {
        let offset = (at.0 - START.0) as usize;
        if content[offset..offset + bytes.len()] == *bytes { Confirmed::Yes(0) } else { Confirmed::No }
    }
}

fn damage(rig: &Rig, device: usize, row: u64, depth: u64) {
    let place = rig.chunk.stripes[device].physical.0 + row * STRIPE_LEN + depth;
    let mut sector = vec![0; SECTOR];
    rig.memory[device].read_at(place, &mut sector).unwrap();
    sector[99 + device] ^= 0x40;
    rig.memory[device].write_at(place, &sector).unwrap();
}

#[test]
fn silent_corruption_is_repaired_before_parity_hides_it() {
    for (profile, stripes) in
        SHAPES.into_iter().filter(|(profile, stripes)| *stripes > if *profile == "RAID5" { 2 } else { 3 })
    {
        for device in 0..stripes {
            let (rig, mut content) = filled(profile, stripes);
            let row_len = content.len() / 3;
            damage(&rig, device, 1, 8192);
            let new = noise(9, SECTOR);
            // Beside the damage nobody sees it.
            rig.volume.write(at(row_len + 4096), &new).unwrap();
            content[row_len + 4096..row_len + 8192].copy_from_slice(&new);
            let refused = rig.volume.write(at(row_len + 8192), &new);
            let what = format!("{profile} x{stripes}, device {device}");
            let row = at(row_len);
            assert!(
                matches!(refused, Err(VolumeError::RowInconsistent { row: found }) if found == row),
                "{what}: {refused:?}"
            );
            let counted = rig.volume.check_row(row, SECTOR, RowRepair::Count, &confirm(&content)).unwrap();
            let repaired = rig.volume.check_row(row, SECTOR, RowRepair::Write, &confirm(&content)).unwrap();
            assert!(
                counted == repaired && counted.data + counted.parity == SECTOR as u64,
                "{what}: {counted:?} {repaired:?}"
            );
            all_copies_are(&rig, &content, &what);
            rig.volume.write(at(row_len + 8192), &new).unwrap();
            content[row_len + 8192..row_len + 12288].copy_from_slice(&new);
            all_copies_are(&rig, &content, &what);
            let clean = rig.volume.check_row(row, SECTOR, RowRepair::Write, &confirm(&content)).unwrap();
            assert_eq!(clean, RowChecked::default());
        }
    }
}

#[test]
fn raid6_repairs_two_bad_elements() {
    let (profile, stripes) = ("RAID6", 5);
    for first in 0..stripes {
        for second in first + 1..stripes {
            let (rig, content) = filled(profile, stripes);
            [first, second].into_iter().for_each(|device| damage(&rig, device, 2, 0));
            let found =
                rig.volume.check_row(at(content.len() - 1), SECTOR, RowRepair::Write, &confirm(&content)).unwrap();
            assert_eq!((found.data + found.parity, found.lost), (2 * SECTOR as u64, 0), "{first} and {second}");
            all_copies_are(&rig, &content, &format!("{first} and {second}"));
        }
    }
}

#[test]
fn unrecoverable_bytes_stay_and_do_not_stop_writing() {
    let (rig, content) = filled("RAID5", 3);
    [0, 1].into_iter().for_each(|device| damage(&rig, device, 0, 0));
    let refused = rig.volume.write(START, &content[..SECTOR]);
    assert!(matches!(refused, Err(VolumeError::RowInconsistent { .. })), "{refused:?}");
    let found = rig.volume.check_row(START, SECTOR, RowRepair::Write, &confirm(&content)).unwrap();
    assert_eq!((found.data, found.parity, found.lost), (0, 0, 2 * SECTOR as u64));
    rig.volume.write_again(START, &content[..SECTOR], &[START]).unwrap();
    let mut sector = vec![0; SECTOR];
    rig.volume.read_copy(START, 1, &mut sector).unwrap();
    assert!(sector == content[..SECTOR], "its parity is that of what is there");
}

/// Each thread has sectors of its own, in the same rows.
#[test]
fn writers_of_one_row_take_turns() {
    for (profile, stripes) in [("RAID5", 3), ("RAID6", 5)] {
        let (rig, mut content) = filled(profile, stripes);
        let sectors = content.len() / SECTOR;
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let volume = &rig.volume;
                scope.spawn(move || {
                    for sector in (thread..sectors).step_by(4) {
                        volume.write(at(sector * SECTOR), &noise(sector as u64, SECTOR)).unwrap();
                    }
                });
            }
        });
        content
            .chunks_mut(SECTOR)
            .enumerate()
            .for_each(|(sector, part)| part.copy_from_slice(&noise(sector as u64, SECTOR)));
        all_copies_are(&rig, &content, profile);
    }
}

/// Parity computed from a stale device's element would spread the writes that it missed.
#[test]
fn a_stale_element_is_computed_before_parity_is() {
    for (profile, stripes) in [("RAID5", 3), ("RAID6", 4)] {
        for stale in 0..stripes {
            let (rig, mut content) = filled(profile, stripes);
            let garbage = vec![0xee; rig.chunk.stripe_length() as usize];
            rig.memory[stale].write_at(rig.chunk.stripes[stale].physical.0, &garbage).unwrap();
            rig.volume.members()[stale].worsen(Condition::Stale);
            let mut random = Rng::new(3);
            for _ in 0..20 {
                write_somewhere(&rig, &mut content, &mut random);
            }
            let mut found = vec![0; content.len()];
            rig.volume.read_unverified(START, &mut found).unwrap();
            assert!(found == content, "{profile} x{stripes}, {stale} is stale");
            assert!(rig.volume.is_stale(DeviceId(stale as u64 + 1)));
        }
    }
}

/// As after a crash between the superblocks of the devices: two are behind, and one of them only by its superblock.
#[test]
fn more_stale_devices_than_parity_makes_up_for_are_read_where_something_confirms_it() {
    for lost in 0..3 {
        for other in (0..3).filter(|other| *other != lost) {
            let (rig, content) = filled("RAID5", 3);
            let zeros = vec![0; rig.chunk.stripe_length() as usize];
            rig.memory[lost].write_at(rig.chunk.stripes[lost].physical.0, &zeros).unwrap();
            [lost, other].into_iter().for_each(|device| {
                rig.volume.members()[device].worsen(Condition::Stale);
            });
            for (element, expected) in content.chunks(STRIPE_LEN as usize).enumerate() {
                let mut found = vec![0; expected.len()];
                let mut verify = |bytes: &[u8]| if bytes == expected { Ok(()) } else { Err("wrong".to_owned()) };
                let read = rig.volume.read(at(element * STRIPE_LEN as usize), &mut found, &mut verify);
                assert!(read.is_ok(), "without {lost}, {other} is behind, element {element}: {read:?}");
            }
        }
    }
}
