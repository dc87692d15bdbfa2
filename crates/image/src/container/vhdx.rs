//! VHDX: a table of regions leads to a table of blocks and to the sizes of the disk.

use super::fields::{bytes, header, le_u16, le_u32, le_u64};
use super::{Layout, Part, Place, damaged};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

type Guid = [u8; 16];

const fn guid(text: u128) -> Guid {
    // The first three fields are little-endian.
    let b = text.to_be_bytes();
    [b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]
}

const BLOCKS: Guid = guid(0x2dc27766_f623_4200_9d64_115e9bfd4a08);
const METADATA: Guid = guid(0x8b7ca206_4790_4b9a_b8fe_575f050f886e);
const FILE_PARAMETERS: Guid = guid(0xcaa16737_fa36_4d43_b3b6_33f0aa44e76b);
const DISK_SIZE: Guid = guid(0x2fa54224_cd1b_4876_b211_5dbed83bf4b8);
const SECTOR_SIZE: Guid = guid(0x8141bf1d_a96f_4709_ba47_f233a8faab5f);

/// Places of the two headers, of which the one with the higher number counts.
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
/// Places of the two tables of regions, which are the same.
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const REGIONS_LEN: usize = 64 << 10;
const MAX_REGIONS: usize = 2047;
const MIB: u64 = 1 << 20;
/// States of a block.
const FULLY_PRESENT: u64 = 6;
const PARTIALLY_PRESENT: u64 = 7;

#[derive(Debug)]
struct Vhdx {
    len: u64,
    block: u64,
    /// Blocks before an entry of the table that is about none.
    chunk: u64,
    table: u64,
    table_len: u64,
}

/// Reads headers, regions and sizes.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    check_log(file)?;
    let regions = regions(file)?;
    let region = |id: Guid, what: &str| {
        let found = entries(&*regions, 16, le_u32(&*regions, 8) as usize).find(|entry| entry[..16] == id);
        let found = found.map(|entry| (le_u64(entry, 16), u64::from(le_u32(entry, 24))));
        found.ok_or_else(|| Error::content(format!("it has no {what}")))
    };
    let (table, table_len) = region(BLOCKS, "table of blocks")?;
    let (metadata, _) = region(METADATA, "region of metadata")?;
    let items: [u8; REGIONS_LEN] = header(file, metadata)?;
    if !items.starts_with(b"metadata") {
        return Err(Error::content("its metadata is not where the table of regions says"));
    }
    let item = |id: Guid| {
        let found = entries(&items, 32, usize::from(le_u16(&items, 10))).find(|entry| entry[..16] == id);
        let at = found.and_then(|entry| metadata.checked_add(u64::from(le_u32(entry, 16))));
        let at = at.ok_or_else(|| Error::content("its metadata is not complete"))?;
        header::<8>(file, at)
    };
    let parameters = item(FILE_PARAMETERS)?;
    if le_u32(&parameters, 4) & 2 != 0 {
        let sentence = "it needs the disk that it was made from, and no file is read because an image names it";
        return Err(Error::content(sentence));
    }
    let (block, len) = (u64::from(le_u32(&parameters, 0)), u64::from_le_bytes(item(DISK_SIZE)?));
    let sector = u64::from(le_u32(&item(SECTOR_SIZE)?, 0));
    if !block.is_power_of_two() || !(MIB..=256 * MIB).contains(&block) || !matches!(sector, 512 | 4096) {
        return Err(Error::content("the sizes in its metadata are impossible"));
    }
    Ok(Box::new(Vhdx { len, block, chunk: (sector << 23) / block, table, table_len }))
}

/// The entries of 32 bytes of a table, as many as it says and has.
fn entries(table: &[u8], start: usize, count: usize) -> impl Iterator<Item = &[u8]> {
    table[start..].chunks_exact(32).take(count.min(MAX_REGIONS))
}

/// Refuses a disk whose last changes are in its log.
fn check_log(file: &dyn BlockDevice) -> Result<()> {
    let mut newest: Option<[u8; 4096]> = None;
    for at in HEADERS {
        let head: [u8; 4096] = header(file, at)?;
        let is_sound = head.starts_with(b"head") && has_checksum(&head);
        if is_sound && newest.is_none_or(|other| le_u64(&other, 8) < le_u64(&head, 8)) {
            newest = Some(head);
        }
    }
    let head = newest.ok_or_else(|| Error::content("neither of its headers is sound"))?;
    if le_u16(&head, 66) != 1 {
        return Err(Error::content(format!("version {} is not known", le_u16(&head, 66))));
    }
    match head[48..64] == [0; 16] {
        true => Ok(()),
        false => Err(Error::content("its last changes are in its log; 'qemu-img check -r all' brings them in")),
    }
}

fn regions(file: &dyn BlockDevice) -> Result<Box<[u8; REGIONS_LEN]>> {
    for at in REGIONS {
        let table: Box<[u8; REGIONS_LEN]> = Box::new(header(file, at)?);
        if table.starts_with(b"regi") && has_checksum(&*table) {
            return Ok(table);
        }
    }
    Err(Error::content("neither of its tables of regions is sound"))
}

/// Whether the CRC-32C at byte 4, which counts as zero, is right.
fn has_checksum(bytes: &[u8]) -> bool {
    let sum = crc32c::crc32c(&bytes[..4]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[8..]) == le_u32(bytes, 4)
}

impl Layout for Vhdx {
    fn len(&self) -> u64 {
        self.len
    }

    fn find(&self, file: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        let block = at / self.block;
        let index = block + block / self.chunk;
        let place = self.table.checked_add(index * 8).filter(|_| index < self.table_len / 8);
        let place = place.ok_or_else(|| damaged("the table of blocks is too short", at))?;
        let entry = u64::from_le_bytes(bytes(file, place)?);
        let place = match entry & 7 {
            FULLY_PRESENT => {
                let place = ((entry >> 20) * MIB).checked_add(at % self.block);
                Place::At(place.ok_or_else(|| damaged("a block is nowhere", at))?)
            }
            PARTIALLY_PRESENT => return Err(damaged("a block is only there in part", at)),
            _ => Place::Zeros,
        };
        Ok(Part { len: self.block - at % self.block, place })
    }
}
