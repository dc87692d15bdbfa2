//! The file that a scan leaves: what it has found, in the order in which it was found, so that a killed scan goes on.
//!
//! ```text
//! "butterfs scan 1\n"
//! batch: length of the payload u32, crc32c of the payload u32, payload
//!   devices    0, count u16, each: length u64, name (u16, bytes)
//!   identity   1, fsid, nodesize u32, checksum u16
//!   progress   2, device u16, done u64, bad ranges (u32, each start u64, end u64), blocks (u32, each 84 bytes)
//! ```
//!
//! Invariant: a batch counts when its checksum is right; reading ends at the first one that is not, and writing goes on
//! there.

use crate::index::{Collection, Found, Limit};
use crate::wreck::Identity;
use crate::{Error, Result, error};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{ChecksumKind, Key};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

const MAGIC: &[u8] = b"butterfs scan 1\n";
/// Bytes of a found block.
const BLOCK: usize = 84;
/// Bytes of a batch at most: a piece of a device has fewer blocks than that.
const LONGEST: usize = 8 << 20;
/// Bad ranges that are kept.
const MOST_BAD: usize = 1 << 20;

/// A device, and how far it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Its name when the scan began.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// Bytes that were read.
    pub done: u64,
    /// Ranges that could not be read, or were not touched.
    pub bad: Vec<Range<u64>>,
}

/// The findings of a scan so far.
#[derive(Debug)]
pub struct Map {
    devices: Vec<DeviceState>,
    identities: Vec<Identity>,
    collection: Collection,
}

/// Appends to the file.
#[derive(Debug)]
pub struct Writer {
    out: BufWriter<File>,
    path: String,
    identities: usize,
}

fn io<T>(path: &str, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Error(format!("{path}: {error}")))
}

impl Map {
    /// The map at `path`.
    pub fn load(path: &Path, limit: Limit) -> Result<Map> {
        let shown = path.display().to_string();
        let file = io(&shown, File::open(path))?;
        let mut map = Map { devices: Vec::new(), identities: Vec::new(), collection: Collection::new(limit) };
        map.read(&shown, file)?;
        if map.devices.is_empty() {
            return error(format!("{shown} says nothing about any device"));
        }
        Ok(map)
    }

    /// The map at `path`, of the same devices, and the place to go on; or a new one.
    pub(super) fn resume(path: &Path, devices: Vec<DeviceState>, limit: Limit) -> Result<(Map, Writer)> {
        let shown = path.display().to_string();
        let mut file = io(&shown, OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path))?;
        let mut map = Map { devices: Vec::new(), identities: Vec::new(), collection: Collection::new(limit) };
        let mut end = 0;
        if io(&shown, file.metadata())?.len() > 0 {
            end = map.read(&shown, io(&shown, file.try_clone())?)?;
        }
        if !map.devices.is_empty() {
            let lengths = |devices: &[DeviceState]| devices.iter().map(|device| device.len).collect::<Vec<_>>();
            if lengths(&map.devices) != lengths(&devices) {
                return error(format!("{shown} is a map of other devices; give another file, or remove it"));
            }
        }
        let is_new = map.devices.is_empty();
        let end = if is_new { 0 } else { end };
        io(&shown, file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)).map(drop)))?;
        let mut writer = Writer { out: BufWriter::new(file), path: shown, identities: map.identities.len() };
        if is_new {
            map.devices = devices;
            writer.begin(&map.devices)?;
        }
        Ok((map, writer))
    }

    /// Reads batches as far as they are whole; returns where they end.
    fn read(&mut self, shown: &str, mut file: File) -> Result<u64> {
        io(shown, file.seek(SeekFrom::Start(0)))?;
        let mut file = BufReader::new(file);
        let mut magic = [0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return error(format!("{shown} is no map of a scan"));
        }
        let (mut end, mut head, mut payload) = (MAGIC.len() as u64, [0; 8], Vec::new());
        while file.read_exact(&mut head).is_ok() {
            let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (len, sum) = (number(0) as usize, number(4));
            payload.resize(len.min(LONGEST), 0);
            let is_whole = len <= LONGEST && file.read_exact(&mut payload).is_ok() && crc32c::crc32c(&payload) == sum;
            if !is_whole || self.batch(&payload).is_none() {
                break;
            }
            end += (head.len() + len) as u64;
        }
        Ok(end)
    }

    fn batch(&mut self, payload: &[u8]) -> Option<()> {
        let mut rest = Cursor(payload);
        match rest.u8()? {
            0 => {
                for _ in 0..rest.u16()? {
                    let (len, name) = (rest.u64()?, rest.u16()?);
                    let name = String::from_utf8_lossy(rest.bytes(usize::from(name))?).into_owned();
                    self.devices.push(DeviceState { name, len, done: 0, bad: Vec::new() });
                }
            }
            1 => {
                let fsid = rest.bytes(16)?.try_into().ok()?;
                let (nodesize, checksum) = (rest.u32()?, ChecksumKind::from_raw(rest.u16()?)?);
                let legal =
                    nodesize.is_power_of_two() && (4096..=65536).contains(&nodesize) && self.identities.len() < 255;
                legal.then(|| self.identities.push(Identity { fsid, nodesize, checksum }))?;
            }
            2 => {
                let (number, done) = (rest.u16()?, rest.u64()?);
                let mut bad = Vec::new();
                for _ in 0..rest.u32()? {
                    bad.push(rest.u64()?..rest.u64()?);
                }
                let device = self.devices.get_mut(usize::from(number))?;
                device.done = done.min(device.len);
                extend(&mut device.bad, &bad);
                for _ in 0..rest.u32()? {
                    let found = decode(rest.bytes(BLOCK)?, number)?;
                    (usize::from(found.family) < self.identities.len()).then(|| self.collection.add(found))?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    pub(super) fn add(
        &mut self,
        device: usize,
        done: u64,
        found: &[Found],
        bad: &[Range<u64>],
        identities: &[Identity],
    ) {
        self.identities = identities.to_vec();
        self.devices[device].done = done;
        extend(&mut self.devices[device].bad, bad);
        found.iter().for_each(|found| self.collection.add(*found));
    }

    /// The devices.
    pub fn devices(&self) -> &[DeviceState] {
        &self.devices
    }

    /// Whether all devices were read to their ends.
    pub fn is_complete(&self) -> bool {
        self.devices.iter().all(|device| device.done >= device.len)
    }

    /// The filesystems that blocks belong to.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// The blocks.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// The blocks.
    pub fn into_collection(self) -> Collection {
        self.collection
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.collection.len()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.collection.is_empty()
    }
}

/// Adds ranges that follow those that are there.
fn extend(all: &mut Vec<Range<u64>>, more: &[Range<u64>]) {
    for range in more {
        // Of more than are kept nobody tells one from the other: all behind the last one is bad.
        let is_full = all.len() >= MOST_BAD;
        match all.last_mut().filter(|last| is_full || (last.end >= range.start && last.start <= range.start)) {
            Some(last) => last.end = last.end.max(range.end),
            None => all.push(range.clone()),
        }
    }
}

impl Writer {
    fn begin(&mut self, devices: &[DeviceState]) -> Result<()> {
        io(&self.path, self.out.write_all(MAGIC))?;
        let mut payload = vec![0];
        payload.extend((devices.len() as u16).to_le_bytes());
        for device in devices {
            let name = &device.name.as_bytes()[..device.name.len().min(usize::from(u16::MAX))];
            payload.extend(device.len.to_le_bytes());
            payload.extend((name.len() as u16).to_le_bytes());
            payload.extend_from_slice(name);
        }
        self.batch(&payload)
    }

    fn batch(&mut self, payload: &[u8]) -> Result<()> {
        let head = [(payload.len() as u32).to_le_bytes(), crc32c::crc32c(payload).to_le_bytes()].concat();
        io(&self.path, self.out.write_all(&head).and_then(|()| self.out.write_all(payload)))
    }

    /// Writes down what a piece of a device has, up to `done`.
    pub(super) fn append(
        &mut self,
        device: usize,
        done: u64,
        found: &[Found],
        bad: &[Range<u64>],
        identities: &[Identity],
    ) -> Result<()> {
        for identity in &identities[self.identities..] {
            let (nodesize, checksum) = (identity.nodesize.to_le_bytes(), (identity.checksum as u16).to_le_bytes());
            self.batch(&[&[1][..], &identity.fsid, &nodesize, &checksum].concat())?;
        }
        self.identities = identities.len();
        let mut payload = vec![2];
        payload.extend((device as u16).to_le_bytes());
        payload.extend(done.to_le_bytes());
        payload.extend((bad.len() as u32).to_le_bytes());
        bad.iter().for_each(|range| payload.extend([range.start.to_le_bytes(), range.end.to_le_bytes()].concat()));
        payload.extend((found.len() as u32).to_le_bytes());
        found.iter().for_each(|found| encode(found, &mut payload));
        self.batch(&payload)?;
        io(&self.path, self.out.flush())
    }

    /// Makes it durable.
    pub(super) fn finish(mut self) -> Result<()> {
        io(&self.path, self.out.flush().and_then(|()| self.out.get_ref().sync_data()))
    }
}

fn encode(found: &Found, into: &mut Vec<u8>) {
    let Found { owner, logical, generation, physical, first, last, bytes, files, items, level, family, device: _ } =
        *found;
    [owner, logical, generation, physical].iter().for_each(|number| into.extend(number.to_le_bytes()));
    into.extend_from_slice(DiskKey::from(first).as_bytes());
    into.extend_from_slice(DiskKey::from(last).as_bytes());
    into.extend(bytes.to_le_bytes());
    into.extend(files.to_le_bytes());
    into.extend(items.to_le_bytes());
    into.extend([level, family]);
}

fn decode(bytes: &[u8], device: u16) -> Option<Found> {
    let mut rest = Cursor(bytes);
    Some(Found {
        owner: rest.u64()?,
        logical: rest.u64()?,
        generation: rest.u64()?,
        physical: rest.u64()?,
        first: rest.key()?,
        last: rest.key()?,
        bytes: rest.u64()?,
        files: rest.u32()?,
        items: rest.u32()?,
        device,
        level: rest.u8()?,
        family: rest.u8()?,
    })
}

/// The unread rest of a payload.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn key(&mut self) -> Option<Key> {
        DiskKey::read_from_bytes(self.bytes(17)?).ok().map(Key::from)
    }
}
