//! Reading and writing through every profile, with lost devices, bad copies, and races.

use super::*;
use crate::fixture::{Rig, SHAPES, START, noise, rig};
use crate::member::Condition;
use crate::repair::Rewritten;
use crate::resync::Confirmed;
use crate::row_check::RowRepair;
use butterfs_device::{Fault, FaultRule, MemoryDevice, Operation, ReadOnlyDevice};
use butterfs_ondisk::Physical;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::OFFSETS;

fn any(_: &[u8]) -> Result<(), String> {
    Ok(())
}

fn equal_to(expected: &[u8]) -> impl FnMut(&[u8]) -> Result<(), String> {
    move |found| if found == expected { Ok(()) } else { Err("checksum mismatch".to_owned()) }
}

fn is_good(rewritten: &Rewritten) -> bool {
    matches!(rewritten, Rewritten::From(_) | Rewritten::WasGood)
}

/// A rig whose chunk is full of noise, and the noise.
fn filled(profile: &str, stripes: usize) -> (Rig, Vec<u8>) {
    let rig = rig(profile, stripes);
    let content = noise(stripes as u64, rig.chunk.length as usize);
    rig.volume.write(START, &content).unwrap();
    (rig, content)
}

fn at(offset: u64) -> Logical {
    START.plus(offset)
}

#[test]
fn every_copy_shows_what_was_written() {
    for (profile, stripes) in SHAPES {
        let (rig, mut content) = filled(profile, stripes);
        let length = content.len();
        for step in 0..40u64 {
            let numbers = noise(step, 16);
            let offset = u64::from_le_bytes(numbers[..8].try_into().unwrap()) as usize % length;
            let len = (u64::from_le_bytes(numbers[8..].try_into().unwrap()) as usize % 150_000).min(length - offset);
            let data = noise(step + 100, len);
            rig.volume.write(at(offset as u64), &data).unwrap();
            content[offset..offset + len].copy_from_slice(&data);
            check_all_copies(&rig, &content, &format!("{profile} x{stripes} step {step}"));
        }
    }
}

fn check_all_copies(rig: &Rig, content: &[u8], what: &str) {
    let mut found = vec![0; content.len()];
    for copy in 0..rig.volume.copies(START) {
        // The last copies of RAID6 are computed without another column, which is each column's own business.
        rig.volume.read_copy(START, copy, &mut found).unwrap();
        assert!(found == content, "{what}: copy {copy}");
    }
}

#[test]
fn copies_are_counted() {
    let expected = [1, 2, 2, 3, 4, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 4, 6];
    for ((profile, stripes), expected) in SHAPES.into_iter().zip(expected) {
        assert_eq!(rig(profile, stripes).volume.copies(START), expected, "{profile} x{stripes}");
    }
    assert_eq!(rig("single", 1).volume.copies(Logical(0)), 0);
}

/// A device that remembers which bytes were asked for, and which were read.
#[derive(Debug)]
struct Asked {
    inner: Arc<dyn BlockDevice>,
    asked: Mutex<Vec<(u64, u64)>>,
    read: Mutex<Vec<(u64, u64)>>,
    /// Bytes that were read past the cache.
    read_past: Mutex<u64>,
    /// Bytes that were written past the cache.
    uncached: Mutex<u64>,
}

impl Asked {
    fn over(device: &Arc<butterfs_device::MemoryDevice>) -> Arc<Asked> {
        let inner = Arc::clone(device) as Arc<dyn BlockDevice>;
        let (asked, read, read_past, uncached) = Default::default();
        Arc::new(Asked { inner, asked, read, read_past, uncached })
    }

    /// A volume over these devices, with the chunk of `rig`.
    fn volume(devices: &[Arc<Asked>], rig: &Rig) -> Volume {
        let item = |id| crate::fixture::dev_item(id, crate::fixture::DEVICE_LEN);
        let members =
            devices.iter().zip(1..).map(|(device, id)| (item(id), Arc::clone(device) as Arc<dyn BlockDevice>));
        let volume = Volume::of_devices(members.collect());
        volume.set_chunk_map(ChunkMap::from_chunks([rig.chunk.clone()]).unwrap());
        volume
    }
}

impl BlockDevice for Asked {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.read.lock().push((offset, buf.len() as u64));
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }
    fn write_uncached(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        *self.uncached.lock() += data.len() as u64;
        self.write_at(offset, data)
    }
    fn has_uncached_reads(&self) -> bool {
        true
    }
    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        *self.read_past.lock() += buf.len() as u64;
        self.inner.read_at(offset, buf)
    }
    fn begin_read(&self, offset: u64, len: u64) {
        self.asked.lock().push((offset, len));
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

/// Copies and parity too, and nothing of other writes.
#[test]
fn writes_past_the_cache_reach_every_device_as_such() {
    for (profile, stripes) in SHAPES {
        let (rig, mut content) = filled(profile, stripes);
        let devices: Vec<_> = rig.memory.iter().map(Asked::over).collect();
        let volume = Asked::volume(&devices, &rig);
        let uncached = || devices.iter().map(|device| *device.uncached.lock()).sum::<u64>();
        volume.write(at(4096), &content[..4096]).unwrap();
        assert_eq!(uncached(), 0, "{profile} x{stripes}");
        content.reverse();
        volume.write_uncached(at(0), &content).unwrap();
        let all = rig.chunk.stripe_length() * rig.chunk.stripes.len() as u64;
        assert_eq!(uncached(), all, "{profile} x{stripes}");
        check_all_copies(&rig, &content, profile);
    }
}

#[test]
fn long_reads_go_past_caches_where_the_bytes_lie_in_one_piece() {
    for (profile, stripes) in SHAPES {
        let (rig, content) = filled(profile, stripes);
        assert_eq!(rig.volume.caching_of_long_reads(START), Caching::Kept, "memory has no cache");
        let devices: Vec<_> = rig.memory.iter().map(Asked::over).collect();
        let volume = Asked::volume(&devices, &rig);
        let caching = volume.caching_of_long_reads(START);
        let is_striped = ["RAID0", "RAID10", "RAID5", "RAID6"].contains(&profile);
        assert_eq!(caching == Caching::Kept, is_striped, "{profile} x{stripes}");
        for caching in [Caching::Kept, Caching::Avoided] {
            let mut found = vec![0; content.len()];
            volume.read_as(START, &mut found, caching, &mut any).unwrap();
            assert!(found == content, "{profile} x{stripes}");
            let past: u64 = devices.iter().map(|device| std::mem::take(&mut *device.read_past.lock())).sum();
            let expected = if caching == Caching::Avoided { content.len() as u64 } else { 0 };
            assert_eq!(past, expected, "{profile} x{stripes}");
        }
        assert_eq!(volume.caching_of_long_reads(at(1 << 40)), Caching::Kept, "nothing is there");
    }
}

#[test]
fn reads_ahead_show_the_same_bytes() {
    for (profile, stripes) in SHAPES {
        let (rig, content) = filled(profile, stripes);
        let devices: Vec<_> = rig.memory.iter().map(Asked::over).collect();
        let volume = Asked::volume(&devices, &rig);
        let first = 4096;
        volume.begin_read(at(first), 1 << 40);
        volume.begin_read(at(content.len() as u64), 4096);
        let mut found = vec![0; content.len() - first as usize];
        for (index, part) in found.chunks_mut(64 << 10).enumerate() {
            volume.read(at(first + (index as u64 * (64 << 10))), part, &mut any).unwrap();
        }
        assert!(found == content[first as usize..], "{profile} x{stripes}");
        let mut total = 0;
        for device in &devices {
            let asked = device.asked.lock();
            total += asked.iter().map(|(_, len)| len).sum::<u64>();
            assert!(asked.iter().all(|(_, len)| *len <= READ_AHEAD_UNIT));
            let was_asked = |at: u64| asked.iter().any(|(start, len)| (*start..start + len).contains(&at));
            for (offset, len) in device.read.lock().iter() {
                let all = (*offset..offset + len).step_by(4096).all(was_asked);
                assert!(all, "{profile} x{stripes}: {offset}+{len} was read, {asked:?} was asked for");
            }
        }
        assert_eq!(total, found.len() as u64, "{profile} x{stripes}");
    }
}

/// Whether the bytes at `offset` can be read when these devices are lost.
fn survives(rig: &Rig, offset: u64, lost: &[bool]) -> bool {
    let layout = Layout::of(&rig.chunk).unwrap();
    let piece = layout.pieces(at(offset), 1).next().unwrap();
    let is_lost = |address: StripeAddress| lost[(rig.chunk.stripes[address.stripe].device.0 - 1) as usize];
    match layout.parity() {
        0 => (0..layout.mirrors()).any(|mirror| !is_lost(layout.stripe_address(&piece, mirror))),
        parity => lost.iter().filter(|lost| **lost).count() <= parity || !is_lost(layout.stripe_address(&piece, 0)),
    }
}

#[test]
fn every_set_of_lost_devices() {
    for (profile, stripes) in SHAPES {
        let count = rig(profile, stripes).devices.len();
        let tolerated = Profile::named(profile).unwrap().tolerated_failures;
        for set in 0..1u32 << count {
            let lost: Vec<bool> = (0..count).map(|device| set >> device & 1 == 1).collect();
            let readable = read_with_lost_devices(profile, stripes, &lost);
            let within = set.count_ones() as usize <= tolerated;
            assert!(!within || readable, "{profile} x{stripes} without {lost:?}");
        }
    }
}

/// Reads every element; each succeeds exactly when the profile says so. Says whether all did.
fn read_with_lost_devices(profile: &str, stripes: usize, lost: &[bool]) -> bool {
    let (rig, content) = filled(profile, stripes);
    for (device, lost) in rig.devices.iter().zip(lost) {
        if *lost {
            device.fail_reads();
            device.fail_writes();
        }
    }
    let mut all = true;
    for (element, expected) in content.chunks(STRIPE_LEN as usize).enumerate() {
        let offset = element as u64 * STRIPE_LEN;
        let mut found = vec![0; expected.len()];
        let result = rig.volume.read(at(offset), &mut found, &mut equal_to(expected));
        assert_eq!(result.is_ok(), survives(&rig, offset, lost), "{profile} x{stripes} {lost:?}: {result:?}");
        all &= result.is_ok();
    }
    all
}

/// Devices that refuse writes are survived like lost ones; what they lack then is found by reading, and repaired.
#[test]
fn writes_survive_as_many_failing_devices_as_the_profile() {
    for (profile, stripes) in SHAPES {
        let count = rig(profile, stripes).devices.len();
        let tolerated = Profile::named(profile).unwrap().tolerated_failures;
        for set in 1..1u32 << count {
            let (rig, old) = filled(profile, stripes);
            let failing = || rig.devices.iter().enumerate().filter(|(device, _)| set >> device & 1 == 1);
            failing().for_each(|(_, device)| device.fail_writes());
            let new = noise(77, old.len());
            let written = rig.volume.write(START, &new);
            let what = format!("{profile} x{stripes}, failing {set:b}: {written:?}");
            assert!(written.is_ok() || set.count_ones() as usize > tolerated, "{what}");
            assert!(written.is_err() || set.count_ones() < count as u32, "{what}");
            if written.is_err() {
                continue;
            }
            let told = rig.volume.take_messages();
            assert!(told.iter().any(|message| message.ends_with("; the other devices go on")), "{what}: {told:?}");
            failing().for_each(|(_, device)| device.clear());
            for (element, expected) in new.chunks(STRIPE_LEN as usize).enumerate() {
                let mut found = vec![0; expected.len()];
                let read = rig.volume.read(at(element as u64 * STRIPE_LEN), &mut found, &mut equal_to(expected));
                assert!(read.is_ok(), "{what}: {read:?}");
            }
        }
    }
}

#[test]
fn flushes_survive_what_every_chunk_survives() {
    for (profile, stripes) in SHAPES {
        let rig = rig(profile, stripes);
        rig.devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
        let tolerated = Profile::named(profile).unwrap().tolerated_failures;
        assert_eq!(rig.volume.flush().is_ok(), tolerated > 0, "{profile} x{stripes}");
        assert_eq!(rig.volume.is_incomplete(), tolerated > 0, "{profile} x{stripes}");
    }
}

#[test]
fn a_device_with_a_chunk_of_its_own_is_not_marked_failed() {
    for (profile, stripes) in SHAPES {
        let rig = rig(profile, stripes);
        rig.devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
        let mut map = (*rig.volume.chunk_map()).clone();
        let stripe = ChunkStripe { physical: Physical(3 << 20), ..rig.chunk.stripes[0] };
        let kind = butterfs_ondisk::items::block_group_flags::METADATA;
        map.insert(Chunk::new(Logical(1 << 30), 1 << 20, kind, 4096, vec![stripe])).unwrap();
        rig.volume.set_chunk_map(map);
        assert!(rig.volume.flush().is_err() && !rig.volume.is_incomplete(), "{profile} x{stripes}");
    }
}

/// The content of a failed device counts as absent: it is neither written nor read.
#[test]
fn a_failed_device_is_out_of_use() {
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID10", 4), ("RAID5", 3), ("RAID6", 4)] {
        let (rig, _) = filled(profile, stripes);
        rig.devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail).after(0, 1));
        rig.volume.flush().unwrap();
        let told = rig.volume.take_messages();
        assert!(told.len() == 1 && told[0].contains("devid 1 is not used any more"), "{profile}: {told:?}");
        let before = rig.memory[0].to_bytes();
        let new = noise(78, rig.chunk.length as usize);
        rig.volume.write(START, &new).unwrap();
        rig.volume.flush().unwrap();
        assert!(rig.memory[0].to_bytes() == before, "{profile}");
        let mut found = vec![0; new.len()];
        rig.volume.read_unverified(START, &mut found).unwrap();
        assert!(found == new, "{profile}");
        rig.volume.read(START, &mut found, &mut equal_to(&new)).unwrap();
        assert_eq!(rig.volume.take_messages(), [""; 0], "{profile}: nothing is told twice");
    }
}

/// Bytes that nothing confirms never come from a device that has missed something, whatever else fails.
#[test]
fn a_stale_device_is_not_believed_blindly() {
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID10", 4), ("RAID5", 3), ("RAID6", 4)] {
        let (rig, content) = filled(profile, stripes);
        let all = rig.memory[0].len() as usize;
        rig.memory[0].write_at(1 << 20, &vec![0xee; all - (1 << 20)]).unwrap();
        rig.volume.members()[0].worsen(Condition::Stale);
        let mut found = vec![0; content.len()];
        rig.volume.read_unverified(START, &mut found).unwrap();
        assert!(found == content, "{profile}");
        // What is confirmed may come from there, and what is not is repaired.
        for (element, expected) in content.chunks(STRIPE_LEN as usize).enumerate() {
            let mut found = vec![0; expected.len()];
            rig.volume.read(at(element as u64 * STRIPE_LEN), &mut found, &mut equal_to(expected)).unwrap();
        }
        if profile == "RAID1" {
            rig.devices[1].fail_reads();
            assert!(rig.volume.read_unverified(START, &mut found[..4096]).is_err());
        }
    }
}

/// A copy on a device that is not there comes from one that has missed nothing, where there is one: blocks of a commit
/// that a crash cut off pass every check.
#[test]
fn a_missing_copy_comes_from_a_whole_device() {
    for (missing, stale) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let (rig, content) = filled("RAID1C3", 3);
        let all = rig.memory[stale].len() as usize;
        rig.memory[stale].write_at(1 << 20, &vec![0xee; all - (1 << 20)]).unwrap();
        rig.volume.members()[stale].worsen(Condition::Stale);
        rig.volume.members()[missing].worsen(Condition::Failed);
        for copy in (0..3).filter(|copy| *copy != stale) {
            let mut found = vec![0; content.len()];
            rig.volume.read_copy(START, copy, &mut found).unwrap();
            assert!(found == content, "without {missing}, {stale} is stale: copy {copy}");
        }
        let mut found = vec![0; content.len()];
        rig.volume.read(START, &mut found, &mut any).unwrap();
        assert!(found == content, "without {missing}, {stale} is stale");
    }
}

/// Superblock copies lie inside of chunks, and differ from device to device.
#[test]
fn a_resync_leaves_superblock_copies_alone() {
    let rig = rig("RAID1", 2);
    let mut chunk = rig.chunk.clone();
    chunk.stripes.iter_mut().for_each(|stripe| stripe.physical = Physical(0));
    let len = chunk.length as usize;
    rig.volume.set_chunk_map(ChunkMap::from_chunks([chunk]).unwrap());
    for (number, memory) in rig.memory.iter().enumerate() {
        memory.write_at(0, &vec![number as u8 + 1; len]).unwrap();
    }
    rig.volume.set_stale(&|id| id.0 == 1);
    let done = rig.volume.resync(DeviceId(1), START, len, 4096, &|_, _| Confirmed::Unknown).unwrap();
    assert_eq!((done.written, done.unreadable), (len as u64 - 4096, 0));
    let found = rig.memory[0].to_bytes();
    let differs = (0..len).step_by(4096).filter(|at| found[*at] != 2).collect::<Vec<_>>();
    assert_eq!(differs, [OFFSETS[0].0 as usize]);
}

/// Unconfirmed data is an error when only a stale device can be read, and the stale bytes go nowhere.
#[test]
fn stale_bytes_are_never_written_over_good_ones() {
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID10", 4)] {
        let (rig, content) = filled(profile, stripes);
        let mirrors = Layout::of(&rig.chunk).unwrap().mirrors();
        rig.memory[0].write_at(1 << 20, &vec![0xee; (rig.memory[0].len() - (1 << 20)) as usize]).unwrap();
        rig.volume.members()[0].worsen(Condition::Stale);
        let others: Vec<_> = (1..mirrors).collect();
        let before: Vec<_> = others.iter().map(|&other| rig.memory[other].to_bytes()).collect();
        others.iter().for_each(|&other| rig.devices[other].fail_reads());
        let mut found = vec![0; 4096];
        let error = rig.volume.read_unverified(START, &mut found).unwrap_err().to_string();
        assert!(error.contains("cannot be read") && !error.contains("disk1"), "{profile}: {error}");
        others.iter().for_each(|&other| rig.devices[other].clear());
        rig.volume.read_unverified(START, &mut found).unwrap();
        assert!(found == content[..4096], "{profile}");
        for (&other, before) in others.iter().zip(&before) {
            assert!(rig.memory[other].to_bytes() == *before, "{profile}: disk {} was written", other + 1);
        }
    }
}

/// Where a checksum says that the stale device's copy is right, it is shown, and not copied to a device that is whole.
#[test]
fn confirmed_content_of_a_stale_device_is_shown() {
    let (rig, content) = filled("RAID1", 2);
    rig.volume.members()[0].worsen(Condition::Stale);
    damage(&rig, 0, 1);
    let mut found = vec![0; 4096];
    for _ in 0..2 {
        rig.volume.read(START, &mut found, &mut equal_to(&content[..4096])).unwrap();
        assert!(found == content[..4096]);
    }
    rig.volume.read_copy(START, 1, &mut found).unwrap();
    assert_eq!(found, [0xee; 4096]);
    let told = rig.volume.take_messages();
    assert!(told.iter().all(|message| message.contains("not repaired")), "{told:?}");
}

#[test]
fn a_stale_device_does_not_count_for_what_a_profile_survives() {
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID1C4", 4), ("RAID10", 4)] {
        let tolerated = Profile::named(profile).unwrap().tolerated_failures;
        for fault in [Operation::Flush, Operation::Write] {
            let (rig, _) = filled(profile, stripes);
            rig.volume.set_stale(&|id| id.0 <= tolerated as u64);
            rig.devices[tolerated].add_rule(FaultRule::always(fault, Fault::Fail).after(0, 1));
            let new = noise(79, rig.chunk.length as usize);
            let done = rig.volume.write(START, &new).and_then(|()| rig.volume.flush());
            assert!(done.is_err(), "{profile}: the last whole device failed to {fault:?}");
            // One that is stale already may fail.
            let (rig, _) = filled(profile, stripes);
            rig.volume.set_stale(&|id| id.0 <= tolerated as u64);
            rig.devices[0].add_rule(FaultRule::always(fault, Fault::Fail).after(0, 1));
            rig.volume.write(START, &new).and_then(|()| rig.volume.flush()).unwrap();
        }
    }
}

/// A device that misses a write is not read blindly from then on, and its superblock stays as old as what it has.
#[test]
fn a_device_that_misses_a_write_is_stale() {
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID10", 4)] {
        let (rig, _) = filled(profile, stripes);
        rig.devices[0].add_rule(FaultRule::always(Operation::Write, Fault::Fail).after(0, 1));
        let new = noise(80, rig.chunk.length as usize);
        rig.volume.write(START, &new).unwrap();
        assert!(rig.volume.is_stale(DeviceId(1)) && !rig.volume.is_whole() && rig.volume.losses() == 1, "{profile}");
        let mut found = vec![0; new.len()];
        rig.volume.read_unverified(START, &mut found).unwrap();
        assert!(found == new, "{profile}");
        assert!(!rig.volume.members()[0].takes_superblocks() && rig.volume.members()[1].takes_superblocks());
        rig.volume.set_recorded_stale(&|id| id == DeviceId(1));
        assert!(rig.volume.members()[0].takes_superblocks());
    }
}

/// Where nothing says which mirror is right, one of them is shown, not a mixture.
#[test]
fn mirrors_that_counted_errors_do_not_take_turns() {
    let total = 4 * MIRROR_TURN;
    let at = Logical(100 << 20);
    for doubts in [[1, 1], [1, 2], [2, 1], [0, 1]] {
        let devices = [0xaa, 0xbb].map(|byte| butterfs_device::MemoryDevice::from_bytes(&vec![byte; 8 << 20]));
        let members = devices
            .into_iter()
            .zip(1..)
            .map(|(device, id)| (crate::fixture::dev_item(id, 8 << 20), Arc::new(device) as Arc<dyn BlockDevice>));
        let volume = Volume::of_devices(members.collect());
        let stripe = |id| ChunkStripe {
            device: DeviceId(id),
            physical: Physical(1 << 20),
            dev_uuid: crate::fixture::uuid_of(id),
        };
        let kind = butterfs_ondisk::items::block_group_flags::DATA | Profile::named("RAID1").unwrap().bit;
        let chunk = Chunk::new(at, total, kind, 4096, vec![stripe(1), stripe(2)]);
        volume.set_chunk_map(ChunkMap::from_chunks([chunk]).unwrap());
        for (id, doubt) in [1, 2].into_iter().zip(doubts) {
            volume.set_device_stats(DeviceId(id), DeviceStats { write_errors: doubt, ..DeviceStats::default() });
        }
        let mut found = vec![0; 4096];
        let read = (0..4).map(|turn| {
            volume.read_unverified(at.plus(turn * MIRROR_TURN), &mut found).unwrap();
            found[0]
        });
        let expected = if doubts[0] <= doubts[1] { 0xaa } else { 0xbb };
        assert_eq!(read.collect::<Vec<_>>(), [expected; 4], "{doubts:?}");
    }
}

/// Damages stored copy `copy` of the 4 KiB at `offset`.
fn damage(rig: &Rig, offset: u64, copy: usize) {
    let layout = Layout::of(&rig.chunk).unwrap();
    for piece in layout.pieces(at(offset), 4096) {
        let address = layout.stripe_address(&piece, copy);
        let device = &rig.memory[(rig.chunk.stripes[address.stripe].device.0 - 1) as usize];
        device.write_at(address.physical.0, &vec![0xee; piece.range.len()]).unwrap();
    }
}

#[test]
fn bad_copies_are_repaired_from_good_ones() {
    for (profile, stripes) in SHAPES {
        let (rig, content) = filled(profile, stripes);
        let mirrors = Layout::of(&rig.chunk).unwrap().mirrors();
        if rig.volume.copies(START) == 1 {
            continue;
        }
        for offset in (0..rig.chunk.length).step_by(STRIPE_LEN as usize).map(|element| element + 8192) {
            // All stored copies but one; with parity the only one.
            for copy in 0..if mirrors == 1 { 1 } else { mirrors - 1 } {
                damage(&rig, offset, copy);
            }
            let mut found = vec![0; 4096];
            let expected = &content[offset as usize..][..4096];
            rig.volume.read(at(offset), &mut found, &mut equal_to(expected)).unwrap();
            assert_eq!(found, expected);
        }
        let (messages, stats) = (rig.volume.take_messages(), rig.volume.device_stats());
        assert!(messages.iter().all(|message| message.ends_with("repaired from another copy")), "{messages:?}");
        let counted: u64 = stats.iter().map(|(_, stats)| stats.corruption_errors).sum();
        assert!(counted as usize == messages.len() && counted > 0, "{profile}: {stats:?}");
        // Read order passes over some damaged mirrors; scrub's way through `rewrite` repairs those.
        for offset in (0..rig.chunk.length).step_by(STRIPE_LEN as usize).map(|element| element + 8192) {
            let good = &content[offset as usize..][..4096];
            (0..mirrors).for_each(|copy| assert!(is_good(&rig.volume.rewrite(at(offset), copy, good).unwrap())));
        }
        check_all_copies(&rig, &content, &format!("{profile} x{stripes}"));
    }
}

#[test]
fn an_unreadable_sector_is_repaired_by_writing_it() {
    let (rig, content) = filled("DUP", 2);
    let address = rig.chunk.stripes[0].physical.0;
    rig.devices[0].break_range(address..address + 4096);
    let mut found = vec![0; 16384];
    rig.volume.read(START, &mut found, &mut equal_to(&content[..16384])).unwrap();
    assert_eq!(rig.volume.device_stats()[0].1, DeviceStats { read_errors: 1, ..DeviceStats::default() });
    rig.volume.read_copy(START, 0, &mut found).unwrap();
    assert_eq!(found, content[..16384]);
}

#[test]
fn the_error_names_every_copy_and_no_bytes_escape() {
    let (rig, _) = filled("DUP", 2);
    let address = rig.chunk.stripes[1].physical.0;
    rig.devices[0].break_range(address + 4096..address + 8192);
    let mut found = vec![0xaa; 4096];
    let error = rig.volume.read(at(4096), &mut found, &mut |_| Err("wrong colour".to_owned())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no good copy of 4096 bytes at logical 10489856: copy 0 on disk1 (devid 1) at 1118208: wrong colour; \
         copy 1 on disk1 (devid 1) at 2166784: cannot be read: injected fault: read of disk1 failed"
    );
    assert_eq!(found, [0; 4096]);
}

#[test]
fn nothing_is_repaired_with_bytes_that_no_copy_holds_any_more() {
    let (rig, content) = filled("DUP", 2);
    let old = content[..4096].to_vec();
    rig.volume.write(START, &[1; 4096]).unwrap();
    damage(&rig, 0, 0);
    assert_eq!(rig.volume.rewrite(START, 0, &old).unwrap(), Rewritten::NoSource);
    let mut found = vec![0; 4096];
    rig.volume.read_copy(START, 0, &mut found).unwrap();
    assert_eq!(found, [0xee; 4096], "left alone");
    assert!(matches!(rig.volume.rewrite(START, 0, &[1; 4096]).unwrap(), Rewritten::From(place) if place.copy == 1));
}

/// A device whose cache holds everything: what befalls the storage shows only in reads past it.
#[derive(Debug)]
struct Hiding {
    cache: Arc<MemoryDevice>,
    storage: Arc<MemoryDevice>,
}

impl BlockDevice for Hiding {
    fn len(&self) -> u64 {
        self.cache.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.cache.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.cache.write_at(offset, data)?;
        self.storage.write_at(offset, data)
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn has_uncached_reads(&self) -> bool {
        true
    }
    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.storage.read_at(offset, buf)
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.storage.discard(offset, len)
    }
    fn name(&self) -> String {
        self.storage.name()
    }
}

#[test]
fn caches_hide_no_damage_of_the_storage() {
    for (profile, stripes) in SHAPES {
        let rig = rig(profile, stripes);
        let cache = |storage: &Arc<MemoryDevice>| Arc::new(MemoryDevice::named(&storage.name(), storage.len()));
        let hiding = |storage: &Arc<MemoryDevice>| Hiding { cache: cache(storage), storage: Arc::clone(storage) };
        let devices: Vec<Arc<dyn BlockDevice>> =
            rig.memory.iter().map(|storage| Arc::new(hiding(storage)) as Arc<dyn BlockDevice>).collect();
        let item = |id| crate::fixture::dev_item(id, crate::fixture::DEVICE_LEN);
        let volume = Volume::of_devices((1..).map(item).zip(devices).collect());
        volume.set_chunk_map(ChunkMap::from_chunks([rig.chunk.clone()]).unwrap());
        let content = noise(3, rig.chunk.length as usize);
        volume.write(START, &content).unwrap();
        let layout = Layout::of(&rig.chunk).unwrap();
        let what = format!("{profile} x{stripes}");
        for (offset, copy) in [(4096, 0), (STRIPE_LEN + 8192, layout.mirrors() - 1)] {
            damage(&rig, offset, copy);
            let good = &content[offset as usize..][..4096];
            let mut found = vec![0; 4096];
            volume.read_copy(at(offset), copy, &mut found).unwrap();
            assert_eq!(found, good, "{what}: the cache hides it");
            volume.read_copy_as(at(offset), copy, Caching::Avoided, &mut found).unwrap();
            assert_eq!(found, [0xee; 4096], "{what}");
            assert_eq!(volume.copies_agree(at(offset), 4096).unwrap(), layout.mirrors() == 1, "{what}");
            let other = (volume.copies(START) > 1).then(|| volume.rewrite(at(offset), copy, good).unwrap());
            assert!(other.is_none_or(|rewritten| matches!(rewritten, Rewritten::From(_))), "{what}");
        }
        if volume.copies(START) > 1 {
            check_all_copies(&rig, &content, &what);
        }
        if layout.parity() > 0 {
            let piece = layout.pieces(START, 4096).next().unwrap();
            let address = layout.parity_address(&piece, 0);
            rig.memory[address.stripe].write_at(address.physical.0, &[0xee; 4096]).unwrap();
            let confirm = |_: Logical, _: &[u8]| Confirmed::Unknown;
            let checked = volume.check_parity(START, 4096, RowRepair::Write, &|_| true, &confirm).unwrap();
            assert_eq!((checked.data, checked.parity), (0, 4096), "{what}");
            check_all_copies(&rig, &content, &what);
        }
    }
}

/// Runs something when a certain place is about to be written, and gives it time.
#[derive(Debug)]
struct Interrupted {
    inner: Arc<dyn BlockDevice>,
    at: u64,
    reached: std::sync::mpsc::SyncSender<()>,
    go_on: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl BlockDevice for Interrupted {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        if offset == self.at && self.reached.try_send(()).is_ok() {
            // Nobody says to go on while a reader waits for this write.
            let _ = self.go_on.lock().recv_timeout(std::time::Duration::from_millis(300));
        }
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// A late reader still wants old content while a write has reached one copy and not the other one yet. It must not
/// "repair" the new copy with the old one.
#[test]
fn late_readers_do_not_undo_writes() {
    let (rig, content) = filled("DUP", 2);
    let (reached, is_reached) = std::sync::mpsc::sync_channel(1);
    let (done, go_on) = std::sync::mpsc::channel();
    let at_copy_1 = rig.chunk.stripes[1].physical.0;
    let device = Interrupted { inner: rig.devices[0].clone(), at: at_copy_1, reached, go_on: Mutex::new(go_on) };
    let volume = Volume::of_devices(vec![(crate::fixture::dev_item(1, crate::fixture::DEVICE_LEN), Arc::new(device))]);
    volume.set_chunk_map((*rig.volume.chunk_map()).clone());
    std::thread::scope(|scope| {
        scope.spawn(|| volume.write(START, &[1; 4096]).unwrap());
        is_reached.recv().unwrap();
        volume.read(START, &mut [0; 4096], &mut equal_to(&content[..4096])).unwrap();
        // Without anyone to hear it if the write did not wait.
        let _ = done.send(());
    });
    for copy in 0..2 {
        let mut found = vec![0; 4096];
        volume.read_copy(START, copy, &mut found).unwrap();
        assert_eq!(found, [1; 4096], "copy {copy}");
    }
}

/// Scrub repairs a copy while its chunk moves away: the place is somebody else's only afterwards.
#[test]
fn a_place_is_given_back_after_repairs_of_it() {
    let (rig, content) = filled("DUP", 2);
    let place = rig.chunk.stripes[1].physical.0;
    rig.memory[0].write_at(place, &[7; 4096]).unwrap();
    let (reached, is_reached) = std::sync::mpsc::sync_channel(1);
    let (done, go_on) = std::sync::mpsc::channel();
    let device = Interrupted { inner: rig.devices[0].clone(), at: place, reached, go_on: Mutex::new(go_on) };
    let volume = Volume::of_devices(vec![(crate::fixture::dev_item(1, crate::fixture::DEVICE_LEN), Arc::new(device))]);
    volume.set_chunk_map((*rig.volume.chunk_map()).clone());
    let is_given_back = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let repairs = scope.spawn(|| volume.rewrite(START, 1, &content[..4096]).unwrap());
        is_reached.recv().unwrap();
        scope.spawn(|| {
            volume.end_move(START);
            is_given_back.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!is_given_back.load(Ordering::SeqCst), "the repair is still on its way");
        let _ = done.send(());
        assert!(matches!(repairs.join().unwrap(), crate::Rewritten::From(_)));
    });
}

/// Reads of the devices of a rig.
fn reads(rig: &Rig) -> Vec<u64> {
    rig.devices.iter().map(|device| device.counts().reads).collect()
}

#[test]
fn a_device_to_be_spared_is_read_only_where_no_other_copy_is_good() {
    use crate::{CopyTo, SourceReads};
    const LEN: usize = 4096;
    for (profile, stripes) in [("RAID1", 2), ("RAID1C3", 3), ("RAID10", 4)] {
        let (rig, content) = filled(profile, stripes);
        // Counted, and nothing else.
        let counted = FaultRule::always(Operation::Read, Fault::Misdirect { distance: 0 });
        rig.devices.iter().for_each(|device| device.add_rule(counted.clone()));
        let places = (0..rig.chunk.length).step_by(STRIPE_LEN as usize).map(at).collect::<Vec<_>>();
        let mut any_reads = 0;
        for (number, id) in (1..=rig.devices.len() as u64).map(DeviceId).enumerate() {
            let twin = Arc::new(MemoryDevice::new(crate::fixture::DEVICE_LEN));
            rig.volume.begin_twin(id, crate::fixture::dev_item(0, crate::fixture::DEVICE_LEN), twin.clone());
            let copy = |reads, at: Logical| {
                let from = (at.0 - START.0) as usize;
                let good = &content[from..from + LEN];
                let rank = &mut |found: &[u8]| if found == good { Confirmed::Yes(0) } else { Confirmed::No };
                rig.volume.copy_moving(CopyTo::Twin(id, reads), (at, LEN), false, rank).unwrap()
            };
            let own: Vec<Logical> = places.iter().copied().filter(|at| rig.volume.lies_on(*at, id)).collect();
            let before = reads(&rig)[number];
            assert!(own.iter().all(|at| copy(SourceReads::Avoided, *at) == Confirmed::Yes(0)));
            assert_eq!(reads(&rig)[number], before, "{profile}: device {id} is read");
            assert!(own.iter().all(|at| copy(SourceReads::Allowed, *at) == Confirmed::Yes(0)));
            any_reads += reads(&rig)[number] - before;
            // The others are wrong at the first place.
            let place = rig.chunk.stripes.iter().find(|stripe| stripe.device == id).unwrap().physical.0;
            let at = own[0];
            for (index, memory) in rig.memory.iter().enumerate().filter(|(index, _)| *index != number) {
                let other = rig.chunk.stripes.iter().find(|stripe| stripe.device.0 == index as u64 + 1).unwrap();
                memory.write_at(other.physical.0, &[9; LEN]).unwrap();
            }
            let before = reads(&rig)[number];
            assert_eq!(copy(SourceReads::Avoided, at), Confirmed::Yes(0));
            assert!(reads(&rig)[number] > before);
            let mut found = vec![0; LEN];
            twin.read_at(place, &mut found).unwrap();
            assert!(found == content[(at.0 - START.0) as usize..][..LEN], "{profile}: device {id}");
            rig.volume.cancel_twin(id);
            rig.volume.write(START, &content).unwrap();
        }
        assert!(any_reads > 0, "{profile}: the counters count");
    }
}

#[test]
fn requests_outside_of_one_chunk_are_refused() {
    let rig = rig("RAID0", 2);
    let length = rig.chunk.length;
    for (offset, len) in [(length, 1), (length - 1, 2), (0, length as usize + 1)] {
        let read = rig.volume.read(at(offset), &mut vec![0; len], &mut any);
        assert!(matches!(read, Err(VolumeError::Unmapped { .. })));
        assert!(rig.volume.write(at(offset), &vec![0; len]).is_err());
        assert!(rig.volume.read_copy(at(offset), 0, &mut vec![0; len]).is_err());
        assert!(rig.volume.rewrite(at(offset), 0, &vec![0; len]).is_err());
    }
    assert!(rig.volume.read(Logical(0), &mut [0], &mut any).is_err());
    assert!(rig.volume.read_copy(START, 1, &mut [0]).is_err(), "RAID0 has one copy");
}

#[test]
fn a_failed_write_or_flush_names_the_device() {
    let rig = rig("DUP", 2);
    rig.devices[0].add_rule(FaultRule::always(Operation::Write, Fault::Fail).after(1, 1));
    rig.devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail).after(0, 1));
    let error = rig.volume.write(START, &[1; 4096]).unwrap_err().to_string();
    assert!(error.starts_with("cannot write logical 10485760 to disk1 at 2162688: "), "{error}");
    let error = rig.volume.flush().unwrap_err().to_string();
    assert!(error.starts_with("cannot flush disk1: "), "{error}");
    let stats = rig.volume.device_stats()[0].1;
    assert_eq!((stats.write_errors, stats.flush_errors), (1, 1));
    assert!(rig.volume.write(START, &[1; 4096]).is_ok() && rig.volume.flush().is_ok());
}

#[test]
fn every_device_is_flushed_even_after_one_failed() {
    let rig = rig("RAID0", 3);
    rig.devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    rig.devices[2].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    assert!(rig.volume.flush().unwrap_err().to_string().contains("disk1"));
    assert_eq!([0, 1, 2].map(|device: usize| rig.devices[device].counts().flushes), [1, 0, 1]);
}

/// A volume with one single chunk whose device extent covers the superblock copy at 64 MiB.
fn over_a_superblock() -> (Volume, Arc<butterfs_device::MemoryDevice>) {
    let memory = Arc::new(butterfs_device::MemoryDevice::named("disk", 100 << 20));
    let volume = Volume::of_devices(vec![(crate::fixture::dev_item(1, 100 << 20), memory.clone())]);
    let stripe =
        ChunkStripe { device: DeviceId(1), physical: Physical(60 << 20), dev_uuid: crate::fixture::uuid_of(1) };
    let chunk = Chunk::new(START, 8 << 20, 1, 4096, vec![stripe]);
    volume.set_chunk_map(ChunkMap::from_chunks([chunk]).unwrap());
    (volume, memory)
}

#[test]
fn no_write_or_discard_touches_a_superblock_copy() {
    let (volume, memory) = over_a_superblock();
    let copy = at(OFFSETS[1].0 - (60 << 20));
    memory.write_at(OFFSETS[1].0, &[9; 4096]).unwrap();
    for (start, len) in [(copy, 4096), (Logical(copy.0 - 4096), 8192), (copy.plus(4095), 1)] {
        let error = volume.write(start, &vec![0; len]).unwrap_err().to_string();
        assert!(error.contains("superblock copy at 67108864"), "{error}");
    }
    volume.discard(START, 8 << 20);
    assert_eq!(memory.to_bytes()[64 << 20..][..4096], [9; 4096]);
    volume.write(Logical(copy.0 - 4096), &[1; 4096]).unwrap();
    volume.write(copy.plus(4096), &[1; 4096]).unwrap();
}

#[test]
fn discard_reaches_every_mirror_and_no_parity() {
    for (profile, stripes, freed) in [("DUP", 2, 6), ("RAID10", 4, 12), ("RAID5", 3, 0)] {
        let (rig, _) = filled(profile, stripes);
        let allocated = |rig: &Rig| rig.memory.iter().map(|memory| memory.allocated_bytes()).sum::<u64>();
        let before = allocated(&rig);
        rig.volume.discard(START, rig.chunk.length);
        rig.volume.discard(START, u64::MAX);
        rig.volume.discard(Logical(0), 4096);
        assert_eq!(before - allocated(&rig), freed * STRIPE_LEN, "{profile}");
    }
}

#[test]
fn a_read_only_device_is_never_written() {
    let (rig, content) = filled("DUP", 2);
    damage(&rig, 0, 0);
    let device = Arc::new(ReadOnlyDevice::new(rig.memory[0].clone()));
    let volume = Volume::of_devices(vec![(crate::fixture::dev_item(1, crate::fixture::DEVICE_LEN), device)]);
    volume.set_chunk_map((*rig.volume.chunk_map()).clone());
    let before = rig.memory[0].to_bytes();
    let mut found = vec![0; 4096];
    volume.read(START, &mut found, &mut equal_to(&content[..4096])).unwrap();
    assert!(!volume.is_writable());
    assert!(volume.take_messages()[0].ends_with("not repaired: disk1 is open read-only"));
    assert!(matches!(volume.write(START, &[0]), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(volume.rewrite(START, 0, &[0]), Err(VolumeError::ReadOnly { .. })));
    assert_eq!(rig.memory[0].to_bytes(), before);
}

#[test]
fn maps_that_do_not_fit_the_devices_are_refused() {
    let rig = rig("RAID1", 2);
    let check = |change: fn(&mut Chunk)| {
        let mut chunk = rig.chunk.clone();
        change(&mut chunk);
        let map = ChunkMap::from_chunks([chunk]).unwrap();
        rig.volume.check_chunk_map(&map).map_err(|error| error.to_string())
    };
    assert_eq!(check(|_| ()), Ok(()));
    let missing = check(|chunk| chunk.stripes[1].device = DeviceId(7)).unwrap_err();
    assert_eq!(missing, "chunk 10485760: device 7 is missing");
    assert!(check(|chunk| chunk.stripes[1].dev_uuid = [9; 16]).unwrap_err().contains("UUID of device 2"));
    assert!(check(|chunk| chunk.stripes[0].physical = Physical(4 << 20)).unwrap_err().contains("4194304 bytes"));
}

/// A chunk on a device that is not there is read and written where the others are.
#[test]
fn a_missing_device_is_done_without() {
    let rig = rig("RAID1", 2);
    let mut chunk = rig.chunk.clone();
    chunk.stripes[1].device = DeviceId(7);
    rig.volume.set_chunk_map(ChunkMap::from_chunks([chunk]).unwrap());
    rig.volume.write(START, &[1; 4096]).unwrap();
    assert_eq!(rig.volume.take_messages(), [""; 0]);
    rig.volume.read(START, &mut [0; 4096], &mut any).unwrap();
    let error = rig.volume.read(START, &mut [0; 4096], &mut |_| Err("no".to_owned())).unwrap_err();
    assert!(error.to_string().contains("a missing device (devid 7)"), "{error}");
}

#[test]
fn messages_are_bounded() {
    let rig = rig("single", 1);
    (0..1000).for_each(|n| rig.volume.tell(n.to_string()));
    let messages = rig.volume.take_messages();
    assert_eq!((messages.len(), messages[0].as_str()), (MAX_MESSAGES, "744"));
    assert!(rig.volume.take_messages().is_empty());
}
