//! The extents of a file in a snapshot, as a map without gaps.

use super::error::{Error, Result};
use butterfs_fs::SnapshotReader;
use butterfs_fs::file_extent::{ExtentKind, FileExtent, key_at};
use butterfs_ondisk::{Key, KeyType};
use std::ops::{ControlFlow, Range};

/// An extent, and the payload of its item where the data is in it.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The item.
    pub extent: FileExtent,
    /// Empty unless the data is inline.
    pub payload: Vec<u8>,
}

impl Extent {
    /// Reads an item.
    pub fn parse(key: Key, payload: &[u8], sector: u64) -> Result<Extent> {
        let extent = FileExtent::parse(key, payload, sector)?;
        let payload = if extent.kind == ExtentKind::Inline { payload.to_vec() } else { Vec::new() };
        Ok(Extent { extent, payload })
    }

    /// Whether it holds data.
    pub fn is_data(&self) -> bool {
        match self.extent.kind {
            ExtentKind::Inline => true,
            ExtentKind::Regular => self.extent.is_on_disk(),
            ExtentKind::Prealloc => false,
        }
    }

    /// Whether it is space without data.
    pub fn is_prealloc(&self) -> bool {
        self.extent.kind == ExtentKind::Prealloc
    }

    /// Whether two extents have the same content from `at` on, where both are.
    pub fn is_same(&self, other: &Extent, at: u64) -> bool {
        let (one, two) = (&self.extent, &other.extent);
        let stored =
            |extent: &FileExtent| (extent.kind, extent.at, extent.disk_len, extent.compression, extent.generation);
        match one.kind {
            ExtentKind::Inline => two.kind == ExtentKind::Inline && self.payload == other.payload,
            _ => stored(one) == stored(two) && one.offset + (at - one.start) == two.offset + (at - two.start),
        }
    }
}

fn is_extent_of(key: Key, ino: u64) -> bool {
    key.objectid == ino && key.kind == KeyType::EXTENT_DATA
}

/// The extent that covers a position, if one does and it is no hole.
pub fn covering(reader: &SnapshotReader, ino: u64, position: u64) -> Result<Option<Extent>> {
    let Some((key, payload)) = reader.last_before(key_at(ino, position).successor())? else { return Ok(None) };
    if !is_extent_of(key, ino) {
        return Ok(None);
    }
    let found = Extent::parse(key, &payload, reader.sectorsize().into())?;
    Ok(Some(found).filter(|found| found.extent.end() > position && !found.extent.is_hole()))
}

/// The extents of a file that overlap a range, without holes, in order.
pub fn overlapping(reader: &SnapshotReader, ino: u64, range: &Range<u64>) -> Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    let sector = u64::from(reader.sectorsize());
    found.extend(covering(reader, ino, range.start)?);
    let from = range.start.saturating_add(1);
    if from < range.end {
        reader.scan::<Error>(key_at(ino, from), key_at(ino, range.end - 1), &mut |key, payload| {
            let extent = Extent::parse(key, payload, sector)?;
            if !extent.extent.is_hole() {
                found.push(extent);
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(found)
}

/// The end of the last extent of a file that `counts`; 0 if none does.
pub fn last_end(reader: &SnapshotReader, ino: u64, counts: impl Fn(&Extent) -> bool) -> Result<u64> {
    let mut behind = Key::new(ino, KeyType(KeyType::EXTENT_DATA.0 + 1), 0);
    while let Some((key, payload)) = reader.last_before(behind)?.filter(|(key, _)| is_extent_of(*key, ino)) {
        let extent = Extent::parse(key, &payload, reader.sectorsize().into())?;
        if counts(&extent) {
            return Ok(extent.extent.end());
        }
        behind = key;
    }
    Ok(0)
}
