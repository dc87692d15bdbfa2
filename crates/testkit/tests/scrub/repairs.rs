//! The treatment of damage, profile by profile.

use crate::rig::{ROOT, SECTOR, damage, make, noise, open_with, outcome, places, quiet, shared, write};
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, Operation};
use butterfs_fs::scrub::{Cause, End, Outcome, Settings};
use butterfs_fs::{Env, Options, inode_flags};
use std::sync::Arc;

fn look() -> Settings {
    Settings { read_only: true, ..Settings::default() }
}

/// Each profile, its devices, and whether one bad copy can be repaired.
const PROFILES: &[(usize, &str, bool)] = &[
    (1, "single", false),
    (1, "dup", true),
    (2, "raid0", false),
    (2, "raid1", true),
    (3, "raid1c3", true),
    (4, "raid1c4", true),
    (4, "raid10", true),
];

#[test]
fn one_bad_copy_is_repaired_where_there_is_another_and_named_everywhere() {
    for (count, profile, is_repaired) in PROFILES {
        let disks = make(*count, if *count == 1 { "dup" } else { "raid1" }, profile);
        let content = noise(7, 1 << 20);
        let filesystem = quiet(&disks);
        let file = write(&filesystem, "file", &content);
        filesystem.link(file, filesystem.root(), b"other name").unwrap();
        filesystem.snapshot(filesystem.root().tree, filesystem.root(), b"snapshot", true).unwrap();
        filesystem.shutdown().unwrap();
        drop(filesystem);
        // The seventh sector, and its neighbour.
        for sector in [7, 8] {
            let found = places(&disks, &content[sector * SECTOR..]);
            let (disk, at) = *found.last().expect("a place");
            damage(&disks[disk], at);
        }
        let filesystem = quiet(&disks);
        let (counters, lines) = outcome(&filesystem.scrub(look(), Vec::new()).unwrap());
        let expected = if *is_repaired { (2, 2, 0) } else { (2, 0, 2) };
        assert_eq!((counters.csum_errors, counters.corrected, counters.uncorrectable), expected, "{profile}");
        let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
        assert_eq!(outcome(&scrub).0, counters, "{profile}: a read-only run changes nothing");
        let findings = scrub.findings(0);
        assert_eq!(findings.len(), 1, "{profile}: {lines:?}");
        let damage = &findings[0].damage;
        assert_eq!((damage.len, &damage.cause), (2 * SECTOR as u64, &Cause::Checksum));
        assert_eq!(matches!(damage.outcome, Outcome::Repaired(_)), *is_repaired, "{profile}");
        let names: Vec<_> = findings[0]
            .files
            .iter()
            .map(|file| (String::from_utf8(file.path.clone().unwrap()).unwrap(), file.offset, file.len))
            .collect();
        for name in ["file", "other name", "snapshot/file", "snapshot/other name"] {
            assert!(names.contains(&(name.to_owned(), 7 * SECTOR as u64, 2 * SECTOR as u64)), "{profile}: {names:?}");
        }
        assert_eq!(names.len(), 4, "{profile}");
        // Whoever reads the log learns of it, too.
        let said = filesystem.take_messages();
        assert!(
            said.iter().any(|line| line.contains("scrub: 8192 bytes of data") && line.contains("snapshot")),
            "{said:?}"
        );
        let (counters, lines) = outcome(&filesystem.scrub(Settings::default(), Vec::new()).unwrap());
        assert_eq!(counters.csum_errors, if *is_repaired { 0 } else { 2 }, "{profile}: {lines:?}");
        let mut read = Vec::new();
        let file = filesystem.lookup(filesystem.root(), b"file").unwrap().id;
        assert_eq!(filesystem.read(file, 0, 1 << 20, &mut read).is_ok() && read == content, *is_repaired, "{profile}");
    }
}

/// Data, P and Q are damaged by turns, also in one row; afterwards each device holds what it held before.
#[test]
fn rows_with_parity_are_as_they_were() {
    for (count, profile) in [(3, "raid5"), (4, "raid6"), (5, "raid6")] {
        let disks = make(count, "raid1", profile);
        let content = noise(14, 3 << 20);
        let filesystem = quiet(&disks);
        write(&filesystem, "file", &content);
        filesystem.shutdown().unwrap();
        drop(filesystem);
        let filesystem = quiet(&disks);
        let id = filesystem.lookup(filesystem.root(), b"file").unwrap().id;
        let at = filesystem.extents(id, 0..3 << 20).unwrap()[0].at;
        let chunk = filesystem.chunks().get(at).unwrap().clone();
        drop(filesystem);
        let good: Vec<_> = disks.iter().map(|disk| disk.snapshot()).collect();
        // A stripe of each row in turn: data, P or Q.
        let depth = (at.0 - chunk.start.0) / (count as u64 - if profile == "raid5" { 1 } else { 2 });
        for row in 1..8u64 {
            let stripe = &chunk.stripes[row as usize % count];
            let depth = depth / 65536 * 65536 + row * 65536;
            damage(&disks[stripe.device.0 as usize - 1], stripe.physical.0 + depth + 4096 * row);
        }
        // Data and parity of one row, at different depths.
        let depth = depth / 65536 * 65536 + 9 * 65536;
        for (stripe, sector) in chunk.stripes.iter().zip([0, 5, 9, 12]) {
            damage(&disks[stripe.device.0 as usize - 1], stripe.physical.0 + depth + 4096 * sector);
        }
        let filesystem = quiet(&disks);
        let looked = filesystem.scrub(look(), Vec::new()).unwrap().progress(Default::default());
        let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
        let (counters, lines) = outcome(&scrub);
        let parity = counters.parity_errors;
        assert!(parity > 0 && counters.csum_errors > 0 && counters.uncorrectable == 0, "{profile}: {lines:#?}");
        assert_eq!(counters.csum_errors + parity, 7 + count.min(4) as u64, "{profile}: {lines:#?}");
        assert_eq!(crate::rig::sum(&looked).csum_errors, counters.csum_errors, "a read-only run sees the same data");
        let again = outcome(&filesystem.scrub(Settings::default(), Vec::new()).unwrap());
        assert_eq!((again.0.errors(), again.0.parity_errors), (0, 0), "{:?}", again.1);
        drop(filesystem);
        let end = chunk.stripe_length();
        for stripe in &chunk.stripes {
            let (mut before, mut after) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            for into in (0..end).step_by(1 << 20).take_while(|into| into + (1 << 20) <= end) {
                let (disk, place) = (stripe.device.0 as usize - 1, stripe.physical.0 + into);
                good[disk].read_at(place, &mut before).unwrap();
                disks[disk].read_at(place, &mut after).unwrap();
                assert!(before == after, "{profile}: device {} at {place}", disk + 1);
            }
        }
    }
}

#[test]
fn data_bad_on_all_copies_is_lost_and_stays_as_it_is() {
    let disks = make(2, "raid1", "raid1");
    let content = noise(8, 1 << 20);
    let filesystem = quiet(&disks);
    write(&filesystem, "file", &content);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let found = places(&disks, &content[40 * SECTOR..]);
    assert_eq!(found.len(), 2);
    found.iter().for_each(|(disk, at)| damage(&disks[*disk], *at));
    let before: Vec<_> = found.iter().map(|(disk, at)| sector(&*disks[*disk], *at)).collect();
    let filesystem = quiet(&disks);
    let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
    let (counters, lines) = outcome(&scrub);
    assert_eq!((counters.csum_errors, counters.corrected, counters.uncorrectable), (2, 0, 2), "{lines:?}");
    let lost = scrub.findings(0).iter().filter(|one| matches!(one.damage.outcome, Outcome::Lost(_))).count();
    assert_eq!(lost, 2, "one on each device");
    let after: Vec<_> = found.iter().map(|(disk, at)| sector(&*disks[*disk], *at)).collect();
    assert!(before == after);
}

fn sector(device: &dyn BlockDevice, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn copies_without_checksums_that_differ_are_noticed_and_left() {
    let disks = make(2, "raid1", "raid1");
    let (content, prealloc) = (noise(9, 1 << 20), noise(10, SECTOR));
    let filesystem = quiet(&disks);
    let made = filesystem.create(&ROOT, filesystem.root(), b"nocow", 0o644).unwrap().id;
    filesystem.set_flags(made, inode_flags::NODATACOW, inode_flags::NODATACOW).unwrap();
    filesystem.write(made, 0, &content, false).unwrap();
    let empty = filesystem.create(&ROOT, filesystem.root(), b"allocated", 0o644).unwrap().id;
    filesystem.fallocate(empty, 0, 0, 1 << 20, false).unwrap();
    filesystem.sync().unwrap();
    let found = places(&disks, &content[3 * SECTOR..]);
    damage(&disks[found[1].0], found[1].1);
    let before = sector(&*disks[found[1].0], found[1].1);
    // What is only allocated may differ.
    let extents = filesystem.extents(empty, 0..1 << 20).unwrap();
    let at = extents[0].at;
    let chunk = filesystem.chunks().get(at).unwrap().clone();
    let (disk, physical) = (chunk.stripes[1].device.0 as usize - 1, chunk.stripes[1].physical.0 + at.0 - chunk.start.0);
    disks[disk].write_at(physical, &prealloc).unwrap();
    let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
    let (counters, lines) = outcome(&scrub);
    assert_eq!((counters.errors(), counters.corrected, counters.uncorrectable), (0, 0, 0), "{lines:?}");
    assert_eq!(counters.no_csum, 2 * 512);
    let findings = scrub.findings(0);
    assert_eq!(findings.len(), 1, "{lines:?}");
    assert_eq!((&findings[0].damage.cause, &findings[0].damage.outcome), (&Cause::CopiesDiffer, &Outcome::Noticed));
    assert_eq!(findings[0].files[0].offset, 3 * SECTOR as u64);
    assert!(sector(&*disks[found[1].0], found[1].1) == before);
}

#[test]
fn sectors_that_cannot_be_read_are_counted_and_rewritten() {
    let disks = make(2, "raid1", "raid1");
    let content = noise(11, 1 << 20);
    let filesystem = quiet(&disks);
    write(&filesystem, "file", &content);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let place = places(&disks, &content[50 * SECTOR..])[1];
    let faulty = Arc::new(FaultyDevice::new(disks[place.0].clone()));
    faulty.add_rule(FaultRule::always(Operation::Read, Fault::Fail).within(place.1..place.1 + SECTOR as u64));
    let mut devices = shared(&disks);
    devices[place.0] = faulty.clone();
    let filesystem = open_with(&devices, Options::default(), Env::system());
    let scrub = filesystem.scrub(look(), Vec::new()).unwrap();
    let (counters, lines) = outcome(&scrub);
    assert_eq!((counters.read_errors, counters.corrected, counters.uncorrectable), (1, 1, 0), "{lines:?}");
    let stats = filesystem.device_stats();
    assert_eq!(stats[place.0].2.read_errors, 1);
}

#[test]
fn a_device_that_fails_ends_its_scrub_and_not_the_others() {
    let disks = make(2, "raid1", "raid1");
    let filesystem = quiet(&disks);
    write(&filesystem, "file", &noise(12, 8 << 20));
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let faulty = Arc::new(FaultyDevice::new(disks[1].clone()));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![disks[0].clone(), faulty.clone()];
    let filesystem = open_with(&devices, Options::default(), Env::system());
    write(&filesystem, "more", &noise(13, 1 << 20));
    faulty.add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    // The device is marked failed when its flush fails.
    filesystem.sync().unwrap();
    let scrub = filesystem.start_scrub(Settings::default(), Vec::new()).unwrap();
    while !scrub.is_over() {
        scrub.wait_for_news(std::time::Duration::from_millis(10));
    }
    let progress = scrub.progress(Default::default());
    assert_eq!(progress.devices[0].end, Some(End::Finished));
    assert!(matches!(progress.devices[1].end, Some(End::Failed(_))), "{progress:?}");
    assert!(progress.devices[0].counters.data_bytes >= 8 << 20);
}
