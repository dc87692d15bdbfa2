//! VMDK in one file: `monolithicSparse` and `streamOptimized`. Directories of tables of little-endian numbers, in
//! sectors of 512 bytes, lead to grains.

use super::decoding::{Codec, MAX_PIECE, Packed};
use super::fields::{bytes, header, le_u16, le_u32, le_u64};
use super::{Layout, Part, Place, damaged};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

const MAGIC: &[u8; 4] = b"KDMV";
/// The text with which a description begins that stands in a file of its own.
const DESCRIPTION: &[u8] = b"# Disk DescriptorFile";
const SECTOR: u64 = 512;
/// Most bytes of a description that are looked at.
const MAX_DESCRIPTION: u64 = 64 << 10;
/// The place of a directory that says: see the footer.
const IN_FOOTER: u64 = u64::MAX;
const HAS_ZERO_GRAINS: u32 = 1 << 2;
const IS_COMPRESSED: u32 = 1 << 16;

#[derive(Debug)]
struct Vmdk {
    len: u64,
    grain: u64,
    /// Grains of a table.
    table_entries: u64,
    directory: u64,
    has_zero_grains: bool,
    is_compressed: bool,
}

/// Whether a file begins as a VMDK does.
pub fn begins(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || head.starts_with(DESCRIPTION)
}

/// Reads the header.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    if header::<4>(file, 0)? != *MAGIC {
        let sentence = "it describes a disk in other files, and no file is read because an image names it; for a flat \
            one, give the file with the data";
        return Err(Error::content(sentence));
    }
    let mut head: [u8; 512] = header(file, 0)?;
    refuse_parents(file, &head)?;
    if le_u64(&head, 56) == IN_FOOTER {
        head = header(file, file.len().saturating_sub(1024))?;
        if !head.starts_with(MAGIC) {
            return Err(Error::content("it has no footer"));
        }
    }
    let (version, flags) = (le_u32(&head, 4), le_u32(&head, 8));
    if !(1..=3).contains(&version) {
        return Err(Error::content(format!("version {version} is not known")));
    }
    let is_compressed = flags & IS_COMPRESSED != 0;
    if is_compressed && le_u16(&head, 77) != 1 {
        return Err(Error::content(format!("compression {} is not known", le_u16(&head, 77))));
    }
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR);
    let (grain, table_entries) = (le_u64(&head, 20), u64::from(le_u32(&head, 44)));
    let impossible = || Error::content("the sizes in its header are impossible");
    if !grain.is_power_of_two() || grain > MAX_PIECE / SECTOR || table_entries == 0 {
        return Err(impossible());
    }
    Ok(Box::new(Vmdk {
        len: bytes(le_u64(&head, 12)).ok_or_else(impossible)?,
        grain: grain * SECTOR,
        table_entries,
        directory: bytes(le_u64(&head, 56)).ok_or_else(impossible)?,
        has_zero_grains: flags & HAS_ZERO_GRAINS != 0,
        is_compressed,
    }))
}

/// Refuses a disk that needs the one that it was made from.
fn refuse_parents(file: &dyn BlockDevice, head: &[u8; 512]) -> Result<()> {
    let (at, len) = (le_u64(head, 28).saturating_mul(SECTOR), le_u64(head, 36).saturating_mul(SECTOR));
    if at == 0 {
        return Ok(());
    }
    let mut text = vec![0; len.min(MAX_DESCRIPTION).min(file.len().saturating_sub(at)) as usize];
    let failed = |error| Error::content(format!("its description cannot be read: {error}"));
    file.read_at(at, &mut text).map_err(failed)?;
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    let parent = text.lines().find_map(|line| line.trim().strip_prefix("parentcid"));
    let parent = parent.map(|rest| rest.trim_start_matches([' ', '=']).trim_end_matches('\0').trim());
    if parent.is_some_and(|id| id != "ffffffff") || text.contains("parentfilenamehint") {
        return Err(Error::content(
            "it needs the disk that it was made from, and no file is read because an image names it",
        ));
    }
    Ok(())
}

impl Vmdk {
    fn entry(&self, file: &dyn BlockDevice, table: u64, index: u64, at: u64) -> io::Result<u64> {
        let place = index.checked_mul(4).and_then(|index| index.checked_add(table));
        let place = place.ok_or_else(|| damaged("a table is nowhere", at))?;
        Ok(u64::from(u32::from_le_bytes(bytes(file, place)?)))
    }

    fn compressed(&self, file: &dyn BlockDevice, place: u64, at: u64) -> io::Result<Packed> {
        let head: [u8; 12] = bytes(file, place)?;
        if le_u64(&head, 0) != at / self.grain * (self.grain / SECTOR) {
            return Err(damaged(format_args!("the grain at {place} is another one"), at));
        }
        let len = u64::from(le_u32(&head, 8));
        // The last grain may be shorter than the others.
        let decoded = self.grain.min(self.len - at / self.grain * self.grain);
        Ok(Packed { at: place + 12, len, decoded, skip: at % self.grain, codec: Codec::Zlib })
    }
}

impl Layout for Vmdk {
    fn len(&self) -> u64 {
        self.len
    }

    fn find(&self, file: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        let index = at / self.grain;
        let len = self.grain - at % self.grain;
        let zeros = Part { len, place: Place::Zeros };
        let table = self.entry(file, self.directory, index / self.table_entries, at)? * SECTOR;
        if table == 0 {
            return Ok(zeros);
        }
        let place = match self.entry(file, table, index % self.table_entries, at)? {
            0 => return Ok(zeros),
            1 if self.has_zero_grains => return Ok(zeros),
            sector => sector * SECTOR,
        };
        let place = match self.is_compressed {
            true => Place::Packed(self.compressed(file, place, at)?),
            false => Place::At(place + at % self.grain),
        };
        Ok(Part { len, place })
    }
}
