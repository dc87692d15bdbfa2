//! Every copy of the superblock on every device, and which one to believe.
//!
//! Nothing is written here.

use butterfs_device::BlockDevice;
use butterfs_ondisk::Physical;
use butterfs_ondisk::superblock::{MAGIC, OFFSETS, SUPERBLOCK_LEN, Superblock, super_flags};
use std::sync::Arc;
use zerocopy::FromBytes;

/// A place for a copy of the superblock, and what is there.
#[derive(Clone, Debug)]
pub struct SuperblockCopy {
    /// The device, by its place on the command line.
    pub device: usize,
    /// Which copy.
    pub copy: usize,
    /// Where it is.
    pub at: Physical,
    /// The superblock, or what is wrong.
    pub content: Result<Box<Superblock>, String>,
    /// The readable fields of a copy that is not valid.
    pub remains: Option<Box<Superblock>>,
}

/// All places for copies on these devices.
pub fn copies(devices: &[Arc<dyn BlockDevice>]) -> Vec<SuperblockCopy> {
    let places = devices.iter().enumerate().flat_map(|(number, device)| {
        let len = device.len();
        let places =
            OFFSETS.iter().enumerate().filter(move |(_, at)| at.0.saturating_add(SUPERBLOCK_LEN as u64) <= len);
        places.map(move |(copy, at)| (number, copy, *at))
    });
    places.map(|(device, copy, at)| read_copy(&*devices[device], device, copy, at)).collect()
}

fn read_copy(device: &dyn BlockDevice, number: usize, copy: usize, at: Physical) -> SuperblockCopy {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    let read = device.read_at(at.0, &mut bytes).map_err(|error| format!("it cannot be read: {error}"));
    let content = read.and_then(|()| Superblock::parse(&bytes, at).map_err(|error| error.to_string()));
    let remains = content.is_err().then(|| remains(&bytes)).flatten();
    SuperblockCopy { device: number, copy, at, content: content.map(Box::new), remains }
}

/// A superblock that breaks rules, where sizes and checksum kind could be right.
fn remains(bytes: &[u8]) -> Option<Box<Superblock>> {
    let (sb, _) = Superblock::read_from_prefix(bytes).ok()?;
    let (sector, node) = (sb.sectorsize.get(), sb.nodesize.get());
    let sizes = sector.is_power_of_two() && (4096..=65536).contains(&sector) && node.is_power_of_two();
    let plausible = sb.magic == MAGIC && sb.checksum_kind().is_some() && sizes && (sector..=65536).contains(&node);
    plausible.then(|| Box::new(sb))
}

/// The superblock that counts: the newest valid one, of a tie the earliest copy. Else what remains of a damaged one,
/// also where only seeds have valid ones.
pub fn ruling(copies: &[SuperblockCopy]) -> Option<(&SuperblockCopy, &Superblock)> {
    let valid = copies.iter().filter_map(|copy| Some((copy, &**copy.content.as_ref().ok()?)));
    let newest =
        valid.max_by_key(|(copy, sb)| (sb.generation.get(), sb.log_root.get() != 0, std::cmp::Reverse(copy.copy)));
    let mut damaged = copies.iter().filter_map(|copy| Some((copy, &**copy.remains.as_ref()?)));
    let Some((_, seed)) = newest.filter(|(_, sb)| is_seeding(sb)) else { return newest.or_else(|| damaged.next()) };
    let has_sprouted = |sb: &Superblock| {
        !is_seeding(sb) && sb.fsid != seed.fsid && sb.fsid != [0; 16] && sb.generation.get() > seed.generation.get()
    };
    damaged.find(|(_, sb)| has_sprouted(sb)).or(newest)
}

/// The superblock of each device, as far as it has one of this filesystem.
pub fn by_device<'a>(copies: &'a [SuperblockCopy], devices: usize, fsid: &[u8; 16]) -> Vec<Option<&'a Superblock>> {
    let of = |device: usize| {
        let own = copies.iter().filter(move |copy| copy.device == device);
        let valid = own.clone().filter_map(|copy| copy.content.as_ref().ok().map(|sb| &**sb));
        let newest = valid.filter(|sb| sb.fsid == *fsid).max_by_key(|sb| sb.generation.get());
        newest.or_else(|| own.filter_map(|copy| copy.remains.as_deref()).find(|sb| sb.fsid == *fsid))
    };
    (0..devices).map(of).collect()
}

/// Whether it is that of a seed filesystem, from which others may have sprouted.
pub fn is_seeding(sb: &Superblock) -> bool {
    sb.flags.get() & super_flags::SEEDING != 0
}

/// The superblock of each device that has one of another filesystem than this one, but none of this one: from such a
/// filesystem this one may have sprouted. Its blocks are of the same kind, and older.
pub fn of_others<'a>(copies: &'a [SuperblockCopy], devices: usize, sb: &Superblock) -> Vec<Option<&'a Superblock>> {
    let is_other = |other: &&Superblock| {
        let kind = |sb: &Superblock| (sb.nodesize, sb.sectorsize, sb.csum_type);
        other.fsid != sb.fsid && kind(other) == kind(sb) && other.generation.get() <= sb.generation.get()
    };
    let of = |(device, own): (usize, Option<&Superblock>)| {
        let valid = copies.iter().filter(|copy| copy.device == device && own.is_none());
        let valid = valid.filter_map(|copy| copy.content.as_ref().ok().map(|sb| &**sb));
        valid.filter(is_other).max_by_key(|sb| sb.generation.get())
    };
    by_device(copies, devices, &sb.fsid).into_iter().enumerate().map(of).collect()
}

/// The UUIDs in the blocks of the filesystem that counts, and of the seeds beside it.
pub fn block_fsids(copies: &[SuperblockCopy], devices: usize) -> Option<([u8; 16], Vec<[u8; 16]>)> {
    let (_, sb) = ruling(copies)?;
    let seeds = of_others(copies, devices, sb).into_iter().flatten().filter(|other| is_seeding(other));
    Some((sb.block_fsid(), seeds.map(Superblock::block_fsid).collect()))
}

/// Whether a device has missed commits: no copy on it, a damaged primary one among them, is of the last generation.
pub fn is_behind(copies: &[SuperblockCopy], device: usize, newest: &Superblock) -> bool {
    let own = copies.iter().filter(|copy| copy.device == device);
    let known = own.filter_map(|copy| copy.content.as_ref().ok().or(copy.remains.as_ref()));
    let generation = known.filter(|sb| sb.fsid == newest.fsid).map(|sb| sb.generation.get()).max();
    generation.is_some_and(|generation| generation < newest.generation.get())
}

/// The sentence about a device that has missed commits.
pub fn behind_note(device: &dyn BlockDevice) -> String {
    format!(
        "{} has missed commits and is left as it is; a mount with all devices, and 'butterfs scrub start' on it, \
         bring it up to date",
        device.name()
    )
}
