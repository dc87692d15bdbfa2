//! The undo file, and writing a plan: what is overwritten is saved first, with what comes there, so that an interrupted
//! repair can be finished and a finished one taken back.
//!
//! ```text
//! 0      header: magic 16, digest 32, fsid 16, generation 8, devices 4, entries 4, length of the file 8, 0 …
//! 4096   devices: length 8, uuid 16 each; entries: device 4, stage 4, offset 8, length 8, digest 32 each
//! …      of each entry what was there, and what comes there
//! ```
//! The header is written last, when everything else is durable; its digest is that of devices and entries. Without a
//! good header nothing has been written to the devices.
//!
//! # Stages
//! Blocks go first, then the superblock copies that do not count, then those that do, with a flush after each: so at
//! every moment the copy that counts leads to something whole. Undoing goes the other way.

use crate::overlay::Change;
use crate::plan::Plan;
use crate::start;
use crate::trouble::{Result, Trouble};
use butterfs_device::{BlockDevice, SECTOR};
use butterfs_ondisk::checksum::ChecksumKind;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{Physical, Superblock};
use std::io;
use std::sync::Arc;

const MAGIC: &[u8; 16] = b"butterfs undo 1\n";
const HEADER: u64 = 4096;
const DEVICE_LEN: usize = 24;
const ENTRY_LEN: usize = 56;
/// Bytes of one entry at most.
const MOST_BYTES: usize = 1 << 20;
/// Entries at most: a file that says more is not one of ours.
const MOST_ENTRIES: u32 = 1 << 24;
const STAGES: u32 = 3;

/// The outcome of applying or undoing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// All of it is written now.
    Written,
    /// It was there already.
    Already,
}

/// A range of a device: what was there and what comes there.
#[derive(Clone, Debug)]
struct Entry {
    device: usize,
    stage: u32,
    offset: u64,
    length: usize,
    digest: [u8; 32],
    /// Where its bytes are in the file.
    at: u64,
}

/// An undo file that is complete.
struct Journal<'a> {
    file: &'a dyn BlockDevice,
    entries: Vec<Entry>,
    devices: Vec<([u8; 16], u64)>,
}

impl Plan {
    /// Bytes of the undo file that [`apply`] needs.
    pub fn undo_len(&self) -> u64 {
        let entries = joined(&self.changes);
        let index = self.changes.len() * DEVICE_LEN + entries.len() * ENTRY_LEN;
        HEADER + index as u64 + entries.iter().map(|(_, _, change)| 2 * change.new.len() as u64).sum::<u64>()
    }
}

/// Writes a plan. `devices` are those of the plan, in its order; `undo` is an empty file of [`Plan::undo_len`] bytes.
pub fn apply(plan: &Plan, devices: &[Arc<dyn BlockDevice>], undo: &dyn BlockDevice) -> Result<Applied> {
    save(plan, devices, undo)?;
    write_all(&open(undo)?, devices, false)
}

/// The first half of [`apply`]: makes the undo file complete and durable, and writes nothing else. [`resume`] is the
/// second half.
pub fn save(plan: &Plan, devices: &[Arc<dyn BlockDevice>], undo: &dyn BlockDevice) -> Result<()> {
    for (device, changes) in devices.iter().zip(&plan.changes) {
        for change in changes {
            if read(&**device, change.offset, change.old.len())? != change.old {
                return Err(Trouble::new(format!("{} has changed since the plan was made", device.name())));
            }
        }
    }
    write_journal(plan, devices, undo).map_err(cannot("write the undo file", undo))
}

/// Finishes what an interrupted [`apply`] has begun. `None` where the file was not complete: then nothing has been
/// written to the devices, and the plan is made again.
pub fn resume(devices: &[Arc<dyn BlockDevice>], undo: &dyn BlockDevice) -> Result<Option<Applied>> {
    let Ok(journal) = open(undo) else { return Ok(None) };
    let devices = arranged(&journal, devices)?;
    if holds(&journal, &devices, true)? {
        return Ok(Some(Applied::Already));
    }
    check_between(&journal, &devices)?;
    write_all(&journal, &devices, false).map(Some)
}

/// Brings back what was there before a repair.
pub fn undo(devices: &[Arc<dyn BlockDevice>], undo: &dyn BlockDevice) -> Result<Applied> {
    let journal = open(undo)?;
    let devices = arranged(&journal, devices)?;
    if holds(&journal, &devices, false)? {
        return Ok(Applied::Already);
    }
    check_between(&journal, &devices)?;
    write_all(&journal, &devices, true)
}

/// Neighbouring pages of one stage as one change: device, stage, change.
fn joined(changes: &[Vec<Change>]) -> Vec<(usize, u32, Change)> {
    let mut all: Vec<(usize, u32, Change)> = Vec::new();
    for (device, changes) in changes.iter().enumerate() {
        let primary = changes.iter().find(|change| change.offset == OFFSETS[0].get());
        let counts = primary.is_none_or(|change| is_superblock(&change.old));
        for change in changes {
            let stage = stage_of(change.offset, counts);
            match all.last_mut() {
                Some((other, last_stage, last))
                    if (*other, *last_stage) == (device, stage)
                        && last.offset + last.new.len() as u64 == change.offset
                        && last.new.len() + change.new.len() <= MOST_BYTES =>
                {
                    last.old.extend(&change.old);
                    last.new.extend(&change.new);
                }
                _ => all.push((device, stage, change.clone())),
            }
        }
    }
    all
}

fn is_superblock(bytes: &[u8]) -> bool {
    bytes.len() == SUPERBLOCK_LEN && Superblock::parse(bytes, Physical(OFFSETS[0].get())).is_ok()
}

fn stage_of(offset: u64, primary_counts: bool) -> u32 {
    match OFFSETS.iter().position(|at| at.get() == offset) {
        None => 0,
        Some(0) => 1 + u32::from(primary_counts),
        Some(_) => 2 - u32::from(primary_counts),
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    ChecksumKind::Blake2b.digest(bytes)
}

/// The sentence for an error of a device or of the undo file.
fn cannot(what: &str, file: &dyn BlockDevice) -> impl Fn(io::Error) -> Trouble {
    move |error| Trouble::new(format!("cannot {what} {}: {error}", file.name()))
}

/// Bytes of a device or of the undo file.
fn read(file: &dyn BlockDevice, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_at(offset, &mut bytes).map_err(cannot("read", file))?;
    Ok(bytes)
}

fn write_journal(plan: &Plan, devices: &[Arc<dyn BlockDevice>], undo: &dyn BlockDevice) -> io::Result<()> {
    let entries = joined(&plan.changes);
    let mut index = Vec::new();
    for device in devices {
        let uuid = start::superblocks(std::slice::from_ref(device)).first().map_or([0; 16], |sb| sb.dev_item.uuid);
        index.extend(device.len().to_le_bytes());
        index.extend(uuid);
    }
    let mut at = HEADER + (index.len() + entries.len() * ENTRY_LEN) as u64;
    for (device, stage, change) in &entries {
        let both = [&change.old[..], &change.new[..]].concat();
        index.extend((*device as u32).to_le_bytes());
        index.extend(stage.to_le_bytes());
        index.extend(change.offset.to_le_bytes());
        index.extend((change.new.len() as u64).to_le_bytes());
        index.extend(digest(&both));
        undo.write_at(at, &both)?;
        at += both.len() as u64;
    }
    undo.write_at(HEADER, &index)?;
    undo.flush()?;
    let mut header = Vec::new();
    header.extend(MAGIC);
    header.extend(digest(&index));
    header.extend(plan.before.fsid);
    header.extend(plan.old.generation.get().to_le_bytes());
    header.extend((devices.len() as u32).to_le_bytes());
    header.extend((entries.len() as u32).to_le_bytes());
    header.extend(at.to_le_bytes());
    undo.write_at(0, &header)?;
    undo.flush()
}

/// Reads and verifies an undo file.
fn open(file: &dyn BlockDevice) -> Result<Journal<'_>> {
    let bad = |what: &str| Trouble::new(format!("{} is not a complete undo file: {what}", file.name()));
    let mut header = [0; 88];
    file.read_at(0, &mut header).map_err(|_| bad("it is too short"))?;
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let (devices, entries) = (number(72), number(76));
    if header[..16] != *MAGIC || devices > 1 << 16 || entries > MOST_ENTRIES {
        return Err(bad("its header is not one"));
    }
    let index_len = u64::from(devices) * DEVICE_LEN as u64 + u64::from(entries) * ENTRY_LEN as u64;
    if HEADER + index_len > file.len() {
        return Err(bad("it is too short"));
    }
    let index = read(file, HEADER, index_len as usize)?;
    if digest(&index) != header[16..48] {
        return Err(bad("the checksum of its index is wrong"));
    }
    let (of_devices, of_entries) = index.split_at(devices as usize * DEVICE_LEN);
    let device = |bytes: &[u8]| {
        let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        (bytes[8..24].try_into().expect("16 bytes"), len)
    };
    let mut journal =
        Journal { file, entries: Vec::new(), devices: of_devices.chunks(DEVICE_LEN).map(device).collect() };
    let mut at = HEADER + index_len;
    for bytes in of_entries.chunks(ENTRY_LEN) {
        let entry = parse_entry(bytes, at).filter(|entry| entry.device < devices as usize);
        let entry = entry.ok_or_else(|| bad("an entry makes no sense"))?;
        at += 2 * entry.length as u64;
        journal.entries.push(entry);
    }
    Ok(journal)
}

fn parse_entry(bytes: &[u8], at: u64) -> Option<Entry> {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let length = usize::try_from(long(16)).ok().filter(|length| *length <= MOST_BYTES)?;
    let digest = bytes[24..56].try_into().expect("32 bytes");
    Some(Entry { device: number(0) as usize, stage: number(4), offset: long(8), length, digest, at })
}

impl Journal<'_> {
    /// The old bytes and the new ones.
    fn both(&self, entry: &Entry) -> Result<(Vec<u8>, Vec<u8>)> {
        let mut old = read(self.file, entry.at, 2 * entry.length)?;
        if digest(&old) != entry.digest {
            return Err(Trouble::new(format!("{}: the bytes at {} are damaged", self.file.name(), entry.at)));
        }
        let new = old.split_off(entry.length);
        Ok((old, new))
    }
}

/// The devices in the order of the undo file.
fn arranged(journal: &Journal<'_>, devices: &[Arc<dyn BlockDevice>]) -> Result<Vec<Arc<dyn BlockDevice>>> {
    if devices.len() != journal.devices.len() {
        let (given, wanted) = (devices.len(), journal.devices.len());
        return Err(Trouble::new(format!("the undo file is of {wanted} devices, {given} were given")));
    }
    let mut left: Vec<Arc<dyn BlockDevice>> = devices.to_vec();
    let mut arranged = Vec::new();
    for (uuid, len) in &journal.devices {
        let is_it = |device: &Arc<dyn BlockDevice>| {
            let found = start::superblocks(std::slice::from_ref(device));
            device.len() == *len && found.iter().any(|sb| sb.dev_item.uuid == *uuid)
        };
        // Where no superblock can be read, the order counts; what the device holds decides then.
        let position = left.iter().position(is_it).unwrap_or(0);
        let device = left.remove(position);
        if device.len() != *len {
            return Err(Trouble::new(format!("{} is not a device of the undo file", device.name())));
        }
        arranged.push(device);
    }
    Ok(arranged)
}

/// Whether the devices hold one side of all entries.
fn holds(journal: &Journal<'_>, devices: &[Arc<dyn BlockDevice>], new: bool) -> Result<bool> {
    for entry in &journal.entries {
        let both = journal.both(entry)?;
        let now = read(&*devices[entry.device], entry.offset, entry.length)?;
        if now != *(if new { &both.1 } else { &both.0 }) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Each sector of the devices is as it was or as it comes: nobody else has written since.
fn check_between(journal: &Journal<'_>, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    for entry in &journal.entries {
        let (old, new) = journal.both(entry)?;
        let device = &devices[entry.device];
        let now = read(&**device, entry.offset, entry.length)?;
        let sectors = now.chunks(SECTOR as usize).zip(old.chunks(SECTOR as usize)).zip(new.chunks(SECTOR as usize));
        if sectors.into_iter().any(|((now, old), new)| now != old && now != new) {
            let sentence = format!(
                "{} has been written since at {}: the undo file does not belong to what it holds now",
                device.name(),
                entry.offset
            );
            return Err(Trouble::new(sentence));
        }
    }
    Ok(())
}

/// Writes one side of all entries, stage by stage.
fn write_all(journal: &Journal<'_>, devices: &[Arc<dyn BlockDevice>], backwards: bool) -> Result<Applied> {
    for step in 0..STAGES {
        let stage = if backwards { STAGES - 1 - step } else { step };
        for entry in journal.entries.iter().filter(|entry| entry.stage == stage) {
            let (old, new) = journal.both(entry)?;
            let (device, bytes) = (&devices[entry.device], if backwards { &old } else { &new });
            device.write_at(entry.offset, bytes).map_err(cannot("write", &**device))?;
        }
        for device in devices {
            device.flush().map_err(cannot("write", &**device))?;
        }
    }
    Ok(Applied::Written)
}
