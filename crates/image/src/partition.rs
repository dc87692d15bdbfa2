//! The partitions of a disk image: where one begins and ends, by its number in a GPT or an MBR.

use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::ops::Range;

/// Most entries of a GPT that are looked at.
const MAX_ENTRIES: u32 = 1024;
const PROTECTIVE: u8 = 0xee;

/// The bytes of partition `number`, from 1.
pub fn partition(device: &dyn BlockDevice, number: u32) -> Result<Range<u64>> {
    let missing = || Error::content(format!("{} has no partition {number}", device.name()));
    let mut first = [0; 512];
    read(device, 0, &mut first)?;
    if first[510..] != [0x55, 0xaa] {
        return Err(Error::content(format!("{} has no table of partitions", device.name())));
    }
    let range = match first[450] == PROTECTIVE {
        true => in_gpt(device, number)?,
        false => in_mbr(&first, number),
    };
    range.filter(|range| range.start < range.end && range.end <= device.len()).ok_or_else(missing)
}

fn read(device: &dyn BlockDevice, at: u64, out: &mut [u8]) -> Result<()> {
    device.read_at(at, out).map_err(|error| Error::source(format!("cannot read {}: {error}", device.name())))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn in_mbr(first: &[u8; 512], number: u32) -> Option<Range<u64>> {
    let at = 446 + 16 * usize::try_from(number.checked_sub(1)?).ok().filter(|index| *index < 4)?;
    let (start, count) = (u64::from(u32_at(first, at + 8)), u64::from(u32_at(first, at + 12)));
    (first[at + 4] != 0).then_some(start * 512..(start + count) * 512)
}

fn in_gpt(device: &dyn BlockDevice, number: u32) -> Result<Option<Range<u64>>> {
    for sector in [512, 4096] {
        let mut header = [0; 92];
        read(device, sector, &mut header)?;
        if &header[..8] != b"EFI PART" {
            continue;
        }
        let (table, count, size) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
        let index = number.checked_sub(1).filter(|index| *index < count.min(MAX_ENTRIES) && size >= 128);
        let Some(index) = index else { return Ok(None) };
        let at = table.checked_mul(sector).and_then(|at| at.checked_add(u64::from(index) * u64::from(size)));
        let Some(at) = at else { return Ok(None) };
        let mut entry = [0; 128];
        read(device, at, &mut entry)?;
        let (start, last) = (u64_at(&entry, 32), u64_at(&entry, 40));
        let end = last.checked_add(1).and_then(|end| end.checked_mul(sector));
        return Ok(start
            .checked_mul(sector)
            .zip(end)
            .filter(|_| entry[..16] != [0; 16])
            .map(|(start, end)| start..end));
    }
    Err(Error::content(format!("{} should have a GPT, but has no header of one", device.name())))
}
