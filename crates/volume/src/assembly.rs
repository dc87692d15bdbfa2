//! From devices to a volume: which superblock counts, and whether the devices belong together.
//!
//! 1. A device's primary superblock counts. The secondary copies count only when the primary is damaged: then the
//!    valid one with the highest generation, and the notes say so.
//! 2. Of several devices the one with the highest generation rules. The others may be behind: by one generation after a
//!    power cut between two devices' superblocks, by any number after they were away. Both are stale: only what
//!    checksum and generation confirm is believed of them.
//! 3. Devices that were written without each other are refused: of each block both have a version that looks right.
//!    Here only what superblocks remember is compared; whoever has read the trees compares those
//!    (`fs::mount::histories`).
//! 4. Devices of a seed filesystem (flag SEEDING) beside one that has sprouted from it are members that are only read.
//!    The trees say whether they are the right ones.
//! 5. Foreign, doubled and truncated devices are refused by name; missing ones too, unless the caller wants to do
//!    without.

use crate::chunk_map::ChunkMap;
use crate::error::VolumeError;
use crate::member::{Condition, Seed};
use crate::signatures;
use crate::twins::Target;
use crate::volume::Volume;
use butterfs_device::{BlockDevice, is_zero};
use butterfs_ondisk::chunk;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, SuperblockError, super_flags};
use butterfs_ondisk::{DeviceId, Physical};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Messages about an opened volume, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenNotes {
    /// The sentences, without full stop.
    pub lines: Vec<String>,
}

/// Advice about devices that were written without each other.
pub const SPLIT_HINT: &str = "look at each side alone (-o ro,degraded), save what only one of them has, and then open \
                              all of them giving up what the devices of one side have (-o stale=DEVID)";

/// A device and the superblock that counts on it.
struct Candidate {
    device: Arc<dyn BlockDevice>,
    sb: Superblock,
}

impl Candidate {
    fn id(&self) -> DeviceId {
        DeviceId(self.sb.dev_item.devid.get())
    }

    fn generation(&self) -> u64 {
        self.sb.generation.get()
    }

    /// A commit, or a log.
    fn has_missed_something(&self, newest: &Superblock) -> bool {
        self.generation() < newest.generation.get() || self.sb.log_root != newest.log_root
    }

    fn is_seeding(&self) -> bool {
        self.sb.flags.get() & super_flags::SEEDING != 0
    }

    fn as_seed(&self) -> (DeviceId, Seed) {
        (self.id(), Seed { fsid: self.sb.block_fsid(), generation: Some(self.generation()) })
    }

    /// The name of the device in messages.
    fn name(&self) -> String {
        format!("{} (devid {})", self.device.name(), self.id())
    }
}

impl Volume {
    /// Opens the filesystem on `devices`, which are all of its devices, in any order. Its chunk map has the system
    /// chunks of the superblock only; with them the chunk tree can be read, and then
    /// [`set_chunk_map`](Self::set_chunk_map) completes it.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>) -> Result<(Volume, Superblock, OpenNotes), VolumeError> {
        Volume::open_some(devices, false)
    }

    /// Like [`open`](Self::open). With `degraded` some devices may be missing; whether what is there is enough is seen
    /// when the chunk map is complete ([`check_survivable`](Self::check_survivable)).
    pub fn open_some(
        devices: Vec<Arc<dyn BlockDevice>>,
        degraded: bool,
    ) -> Result<(Volume, Superblock, OpenNotes), VolumeError> {
        Volume::open_without(devices, degraded, &[])
    }

    /// Like [`open_some`](Self::open_some). What the devices `foreign` have is given up: the others rule, and nothing
    /// on these is believed until they have been brought up to date.
    pub fn open_without(
        devices: Vec<Arc<dyn BlockDevice>>,
        degraded: bool,
        foreign: &[DeviceId],
    ) -> Result<(Volume, Superblock, OpenNotes), VolumeError> {
        let mut notes = OpenNotes::default();
        let mut candidates = Vec::new();
        for device in devices {
            let sb = choose_copy(&*device, &mut notes)?;
            candidates.push(Candidate { device, sb });
        }
        candidates.sort_by_key(Candidate::id);
        let target = take_target(&mut candidates)?;
        let is_foreign = |candidate: &Candidate| foreign.contains(&candidate.id());
        let sb = *ruling(candidates.iter().filter(|candidate| !is_foreign(candidate)))?;
        let seeds = take_seeds(&mut candidates, &sb)?;
        let expected = (sb.num_devices.get() as usize).saturating_sub(seeds.len());
        leave_departed(&mut candidates, &sb, expected, &mut notes);
        check_members(&candidates, &sb, (expected, degraded), foreign, &mut notes)?;
        let stale: Vec<DeviceId> =
            candidates.iter().filter(|other| other.has_missed_something(&sb)).map(Candidate::id).collect();
        let absent = expected.saturating_sub(candidates.len()) as u64;
        let primaries: Vec<Superblock> = candidates.iter().map(|candidate| candidate.sb).collect();
        let sprouted_from: Vec<(DeviceId, Seed)> = seeds.iter().map(Candidate::as_seed).collect();
        let given = candidates.into_iter().chain(seeds);
        let members = given.map(|candidate| (candidate.sb.dev_item, candidate.device)).collect();
        let volume = Volume::of_devices(members).with_absent(absent);
        if let Some(target) = target {
            check_target(&target, &sb)?;
            let (item, generation) = (target.sb.dev_item, target.generation());
            let target = Target { item, generation, device: target.device };
            volume.change_devices(|set| set.with_target(Some(target)));
        }
        let members = volume.members();
        for (id, seed) in sprouted_from {
            members.get(id).into_iter().for_each(|member| member.make_seed(seed));
        }
        let own = || members.iter().filter(|member| member.seed().is_none());
        for (member, sb) in own().zip(&primaries).filter(|(_, sb)| sb.bytenr.get() == OFFSETS[0].0) {
            member.know_superblock(sb.as_bytes());
        }
        own().zip(&primaries).for_each(|(member, sb)| member.set_opened_as(*sb));
        volume.set_foreign(&|id| foreign.contains(&id));
        volume.check_not_mounted(&sb)?;
        for member in members.iter().filter(|member| stale.contains(&member.id)) {
            member.worsen(Condition::Stale);
            member.count_generation();
        }
        volume.set_chunk_map(bootstrap_map(&volume, &sb)?);
        Ok((volume, sb, notes))
    }
}

/// Takes out the device with number 0, which takes over from another one.
fn take_target(candidates: &mut Vec<Candidate>) -> Result<Option<Candidate>, VolumeError> {
    let is_target = candidates.first().is_some_and(|first| first.id() == DeviceId(0));
    let target = is_target.then(|| candidates.remove(0));
    match candidates.first() {
        Some(second) if second.id() == DeviceId(0) => {
            Err(VolumeError::refused(format!("{} is a second device with number 0", second.name())))
        }
        _ => Ok(target),
    }
}

/// Takes out the devices of filesystems from which the one with this superblock may have sprouted.
fn take_seeds(candidates: &mut Vec<Candidate>, sb: &Superblock) -> Result<Vec<Candidate>, VolumeError> {
    let (seeds, own): (Vec<_>, Vec<_>) =
        std::mem::take(candidates).into_iter().partition(|other| other.is_seeding() && other.sb.fsid != sb.fsid);
    *candidates = own;
    for seed in &seeds {
        let name = seed.name();
        if candidates.iter().chain(&seeds).filter(|other| other.id() == seed.id()).count() > 1 {
            return Err(VolumeError::refused(format!("{name} has the number of another device that was given")));
        }
        let (len, total) = (seed.device.len(), seed.sb.dev_item.total_bytes.get());
        if len < total {
            let sentence = format!("{name} is truncated: it has {len} bytes, the filesystem uses {total}");
            return Err(VolumeError::refused_with(sentence, "copy it again, whole"));
        }
    }
    Ok(seeds)
}

/// Leaves devices alone that a power cut kept from being wiped after they were replaced or removed: what is older than
/// another one with the same number, and, where there are too many, just as many that are older than the rest. Where
/// these are more, whoever reads the chunk tree learns which ones are left.
fn leave_departed(candidates: &mut Vec<Candidate>, sb: &Superblock, expected: usize, notes: &mut OpenNotes) {
    let is_older = |old: &Candidate, new: &Candidate| {
        // The number of a device that was removed serves again.
        old.id() == new.id() && old.sb.fsid == new.sb.fsid && old.generation() < new.generation()
    };
    let replaced = |index: usize| candidates.iter().any(|other| is_older(&candidates[index], other));
    let mut left: Vec<usize> = (0..candidates.len()).filter(|index| replaced(*index)).collect();
    let surplus = (candidates.len() - left.len()).saturating_sub(expected);
    let is_behind = |index: &usize| candidates[*index].generation() < sb.generation.get() && !left.contains(index);
    let behind: Vec<usize> = (0..candidates.len()).filter(is_behind).collect();
    if surplus > 0 && behind.len() == surplus {
        left.extend(behind);
    }
    left.sort_unstable();
    for index in left.into_iter().rev() {
        let name = candidates.remove(index).name();
        notes.lines.push(format!("{name} is not a device of the filesystem any more: it is left alone"));
    }
}

fn check_target(target: &Candidate, sb: &Superblock) -> Result<(), VolumeError> {
    let name = target.name();
    if target.sb.fsid != sb.fsid {
        return Err(VolumeError::refused(format!("{name} belongs to another filesystem than the other devices")));
    }
    if target.device.len() < target.sb.dev_item.total_bytes.get() {
        return Err(VolumeError::refused(format!("{name} is truncated: it has {} bytes", target.device.len())));
    }
    Ok(())
}

fn bootstrap_map(volume: &Volume, sb: &Superblock) -> Result<ChunkMap, VolumeError> {
    let wrap = |rule: String| VolumeError::refused(format!("corrupt superblock: sys_chunk_array: {rule}"));
    let map = ChunkMap::from_chunks(chunk::parse_sys_chunk_array(sb).map_err(wrap)?);
    let map = map.map_err(|error| wrap(error.to_string()))?;
    volume.check_chunk_map(&map).map_err(|error| wrap(error.to_string()))?;
    Ok(map)
}

/// The superblock that rules: one that is no seed's, highest generation, then one with a log, then the device that is
/// written first.
fn ruling<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Result<&'a Superblock, VolumeError> {
    let rank = |candidate: &&Candidate| {
        let has_log = candidate.sb.log_root.get() != 0;
        (!candidate.is_seeding(), candidate.generation(), has_log, std::cmp::Reverse(candidate.id()))
    };
    let best = candidates.max_by_key(rank);
    best.map(|candidate| &candidate.sb).ok_or_else(|| VolumeError::refused("no device was given"))
}

fn check_members(
    candidates: &[Candidate],
    sb: &Superblock,
    (expected, degraded): (usize, bool),
    foreign: &[DeviceId],
    notes: &mut OpenNotes,
) -> Result<(), VolumeError> {
    candidates.iter().try_for_each(|candidate| check_member(candidate, sb, foreign, notes))?;
    if let Some(pair) = candidates.windows(2).find(|pair| pair[0].id() == pair[1].id()) {
        let (a, b) = (pair[0].device.name(), pair[1].device.name());
        let sentence = format!("{a} and {b} are both device {} of one filesystem", pair[0].id());
        return Err(VolumeError::refused_with(sentence, "one is a copy of the other; give only one of them"));
    }
    check_count(candidates, sb, (expected as u64, degraded), notes)
}

fn check_member(
    candidate: &Candidate,
    sb: &Superblock,
    foreign: &[DeviceId],
    notes: &mut OpenNotes,
) -> Result<(), VolumeError> {
    let (name, own) = (candidate.name(), &candidate.sb);
    if own.fsid != sb.fsid || own.block_fsid() != sb.block_fsid() {
        return Err(VolumeError::refused(format!("{name} belongs to another filesystem than the other devices")));
    }
    let is_foreign = foreign.contains(&candidate.id());
    if is_foreign {
        notes.lines.push(format!("what {name} has is given up; it is brought up to date from the other devices"));
    } else {
        check_history(candidate, sb)?;
    }
    let (has, newest) = (candidate.generation(), sb.generation.get());
    if has < newest && !is_foreign {
        notes.lines.push(format!(
            "{name} has missed commits: its generation is {has}, the newest is {newest}; what it lacks is copied from \
             the other devices"
        ));
    }
    let (len, total) = (candidate.device.len(), own.dev_item.total_bytes.get());
    if len < total {
        let sentence = format!("{name} is truncated: it has {len} bytes, the filesystem uses {total}");
        return Err(VolumeError::refused_with(sentence, "copy it again, whole"));
    }
    Ok(())
}

/// Checks that the newest superblock agrees with the device about the device's generation.
fn check_history(candidate: &Candidate, sb: &Superblock) -> Result<(), VolumeError> {
    let own = &candidate.sb;
    let known: Vec<_> = if own.generation == sb.generation {
        vec![sb.root]
    } else {
        // A commit of the kernel may name, as its backup root, the one that the next transaction has at that moment: so
        // there can be two of one generation, of which one was never committed.
        let slots = sb.super_roots.iter().filter(|slot| slot.tree_root_gen == own.generation);
        slots.map(|slot| slot.tree_root).collect()
    };
    if known.is_empty() || known.contains(&own.root) {
        return Ok(());
    }
    let sentence = format!(
        "{} was written without the other devices, and they without it: both have a generation {}, and they differ",
        candidate.name(),
        own.generation
    );
    Err(VolumeError::refused_with(sentence, SPLIT_HINT))
}

fn check_count(
    candidates: &[Candidate],
    sb: &Superblock,
    (expected, degraded): (u64, bool),
    notes: &mut OpenNotes,
) -> Result<(), VolumeError> {
    let given = candidates.len() as u64;
    // One of those that are behind may have left: the chunk tree says which.
    let behind = candidates.iter().filter(|candidate| candidate.generation() < sb.generation.get()).count() as u64;
    if given == expected || given > expected && given - behind <= expected {
        return Ok(());
    }
    let names: Vec<String> = candidates.iter().map(Candidate::name).collect();
    let names = names.join(", ");
    if given < expected {
        let sentence = format!("the filesystem has {expected} devices, but only {given} were given: {names}");
        if degraded {
            notes.lines.push(sentence);
            return Ok(());
        }
        return Err(VolumeError::Incomplete { sentence });
    }
    Err(VolumeError::refused(format!("the filesystem has {expected} devices, but {given} were given: {names}")))
}

/// The superblock that counts on one device.
fn choose_copy(device: &dyn BlockDevice, notes: &mut OpenNotes) -> Result<Superblock, VolumeError> {
    let name = device.name();
    let damage = match read_copy(device, OFFSETS[0]) {
        Ok(sb) => {
            note_newer_copy(device, &sb, notes);
            return Ok(sb);
        }
        Err(Damage::Parsed(error @ SuperblockError::Invalid { .. })) => {
            return Err(VolumeError::refused(format!("{name}: {error}")));
        }
        Err(damage) => damage,
    };
    let Some((at, sb)) = newest_secondary(device) else {
        return Err(match damage {
            Damage::Parsed(SuperblockError::NotBtrfs) => not_btrfs(device),
            damage => VolumeError::refused(format!("{name}: {damage}, and no other copy is valid")),
        });
    };
    check_not_reused(device, &damage, at)?;
    let generation = sb.generation.get();
    let loss = if sb.log_root.get() == 0 { "; what was only synced to the log since then is lost" } else { "" };
    notes.lines.push(format!(
        "{name}: the primary superblock is damaged ({damage}); using the copy at {at}, generation {generation}{loss}"
    ));
    Ok(sb)
}

/// The refusal of a device with something else on it, by its name where that is known.
fn not_btrfs(device: &dyn BlockDevice) -> VolumeError {
    let sentence = format!("{} is not a btrfs filesystem", device.name());
    match signatures::recognise(device) {
        Ok(Some(found)) if found.contains("partition table") => {
            let hint = "give one of its partitions: 'losetup --find --show --partscan IMAGE' shows those of an image";
            VolumeError::refused_with(format!("{sentence}: it holds a {found}"), hint)
        }
        Ok(Some(found)) => VolumeError::refused(format!("{sentence}: it holds {found}")),
        Ok(None) | Err(_) => VolumeError::refused(sentence),
    }
}

/// Why a copy does not count.
enum Damage {
    Unreadable(std::io::Error),
    Parsed(SuperblockError),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Damage::Parsed(error) => error.fmt(f),
        }
    }
}

fn read_copy(device: &dyn BlockDevice, at: Physical) -> Result<Superblock, Damage> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    if device.len() < at.0 + SUPERBLOCK_LEN as u64 {
        return Err(Damage::Parsed(SuperblockError::NotBtrfs));
    }
    device.read_at(at.0, &mut bytes).map_err(Damage::Unreadable)?;
    Superblock::parse(&bytes, at).map_err(Damage::Parsed)
}

/// The valid secondary copies that writers keep up to date.
fn secondaries(device: &dyn BlockDevice) -> impl Iterator<Item = (Physical, Superblock)> {
    OFFSETS[1..].iter().filter_map(|&at| {
        let sb = read_copy(device, at).ok()?;
        let is_maintained = Superblock::copies_on(sb.dev_item.total_bytes.get()).any(|copy| copy == at);
        is_maintained.then_some((at, sb))
    })
}

fn newest_secondary(device: &dyn BlockDevice) -> Option<(Physical, Superblock)> {
    secondaries(device).max_by_key(|(_, sb)| (sb.generation.get(), sb.log_root.get() != 0))
}

/// A copy that is newer than its primary is left by a power cut between the two. The primary still counts.
fn note_newer_copy(device: &dyn BlockDevice, sb: &Superblock, notes: &mut OpenNotes) {
    let newer = newest_secondary(device)
        .filter(|(_, copy)| copy.fsid == sb.fsid && copy.generation.get() > sb.generation.get());
    if let Some((at, copy)) = newer {
        let (name, generation) = (device.name(), copy.generation.get());
        notes.lines.push(format!(
            "{name}: the superblock copy at {at} has generation {generation}, the primary {}; the \
                                  commit between them did not finish",
            sb.generation
        ));
    }
}

/// A device without the magic may have been given to somebody else since, who left our copies alone. For writing it
/// is only taken back when its whole beginning is blank, where every other format has its mark.
fn check_not_reused(device: &dyn BlockDevice, damage: &Damage, copy: Physical) -> Result<(), VolumeError> {
    let has_magic = !matches!(damage, Damage::Parsed(SuperblockError::NotBtrfs));
    if has_magic || device.is_read_only() {
        return Ok(());
    }
    let mut start = vec![0; OFFSETS[0].0 as usize + SUPERBLOCK_LEN];
    let is_blank = device.read_at(0, &mut start).is_ok() && is_zero(&start);
    if is_blank {
        return Ok(());
    }
    let name = device.name();
    let sentence =
        format!("{name} has no btrfs superblock at its place, only a copy at {copy}: something else may use it now");
    Err(VolumeError::refused_with(sentence, "open it read-only to look at what is left"))
}

#[cfg(test)]
mod tests;
