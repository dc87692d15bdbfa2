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

/// The partitions of a device, in the order of their places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partitions {
    ranges: Vec<Range<u64>>,
    /// The space for partitions: from the end of the table to its copy at the end of the device.
    usable: Range<u64>,
}

impl Partitions {
    /// The partitions of a device; `None` if it has no table of them.
    pub fn of(device: &dyn BlockDevice) -> Result<Option<Partitions>> {
        let mut first = [0; 512];
        if device.len() < 512 {
            return Ok(None);
        }
        read(device, 0, &mut first)?;
        // The boot sector of something else has no entries.
        if first[510..] != [0x55, 0xaa] || (1..=4).all(|number| in_mbr(&first, number).is_none()) {
            return Ok(None);
        }
        let usable = match first[450] == PROTECTIVE {
            true => usable_by_gpt(device)?,
            false => 512..device.len(),
        };
        let mut ranges: Vec<_> = (1..=MAX_ENTRIES).filter_map(|number| partition(device, number).ok()).collect();
        ranges.sort_by_key(|range| range.start);
        Ok(Some(Partitions { ranges, usable }))
    }

    /// The one that begins at this byte.
    pub fn beginning_at(&self, start: u64) -> Option<Range<u64>> {
        self.ranges.iter().find(|range| range.start == start).cloned()
    }

    /// Whether these bytes belong to one partition alone, or to none and not to the table.
    pub fn are_of_one(&self, bytes: &Range<u64>) -> bool {
        let overlaps = |it: &&Range<u64>| it.start < bytes.end && bytes.start < it.end;
        let is_inside = |it: &Range<u64>| it.start <= bytes.start && bytes.end <= it.end;
        let mut found = self.ranges.iter().filter(overlaps);
        match (found.next(), found.next()) {
            (None, _) => is_inside(&self.usable),
            (Some(one), None) => is_inside(one),
            (Some(_), Some(_)) => false,
        }
    }
}

/// The bytes between the table of a GPT and its copy.
fn usable_by_gpt(device: &dyn BlockDevice) -> Result<Range<u64>> {
    let (sector, header) = gpt_header(device)?;
    let byte = |at: u64| at.saturating_mul(sector).min(device.len());
    Ok(byte(u64_at(&header, 40))..byte(u64_at(&header, 48).saturating_add(1)))
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

/// The header of a GPT, and the bytes of a sector.
fn gpt_header(device: &dyn BlockDevice) -> Result<(u64, [u8; 92])> {
    for sector in [512, 4096] {
        let mut header = [0; 92];
        if device.len() < sector + header.len() as u64 {
            break;
        }
        read(device, sector, &mut header)?;
        if &header[..8] == b"EFI PART" {
            return Ok((sector, header));
        }
    }
    Err(Error::content(format!("{} should have a GPT, but has no header of one", device.name())))
}

fn in_gpt(device: &dyn BlockDevice, number: u32) -> Result<Option<Range<u64>>> {
    let (sector, header) = gpt_header(device)?;
    let (table, count, size) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    let index = number.checked_sub(1).filter(|index| *index < count.min(MAX_ENTRIES) && size >= 128);
    let Some(index) = index else { return Ok(None) };
    let at = table.checked_mul(sector).and_then(|at| at.checked_add(u64::from(index) * u64::from(size)));
    let Some(at) = at else { return Ok(None) };
    let mut entry = [0; 128];
    read(device, at, &mut entry)?;
    let (start, last) = (u64_at(&entry, 32), u64_at(&entry, 40));
    let end = last.checked_add(1).and_then(|end| end.checked_mul(sector));
    let range = start.checked_mul(sector).zip(end).filter(|_| entry[..16] != [0; 16]);
    Ok(range.map(|(start, end)| start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_device::MemoryDevice;

    const SECTORS: u64 = 4096;

    /// A disk with partitions at these sectors, in an MBR or a GPT.
    fn disk(ranges: &[Range<u64>], is_gpt: bool) -> MemoryDevice {
        let device = MemoryDevice::new(SECTORS * 512);
        let mut first = [0; 512];
        first[510..].copy_from_slice(&[0x55, 0xaa]);
        let entries = if is_gpt { std::slice::from_ref(&(1..SECTORS)) } else { ranges };
        for (number, range) in entries.iter().enumerate() {
            let entry = &mut first[446 + 16 * number..][..16];
            entry[4] = if is_gpt { PROTECTIVE } else { 0x83 };
            entry[8..12].copy_from_slice(&(range.start as u32).to_le_bytes());
            entry[12..].copy_from_slice(&((range.end - range.start) as u32).to_le_bytes());
        }
        device.write_at(0, &first).unwrap();
        if is_gpt {
            let mut header = [0; 92];
            header[..8].copy_from_slice(b"EFI PART");
            for (at, value) in [(40, 34), (48, SECTORS - 34), (72, 2)] {
                header[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            }
            header[80..84].copy_from_slice(&128u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            device.write_at(512, &header).unwrap();
            for (number, range) in (0..).zip(ranges) {
                let mut entry = [1; 128];
                entry[32..40].copy_from_slice(&range.start.to_le_bytes());
                entry[40..48].copy_from_slice(&(range.end - 1).to_le_bytes());
                device.write_at(1024 + number * 128, &entry).unwrap();
            }
        }
        device
    }

    #[test]
    fn a_filesystem_gets_one_partition_or_what_belongs_to_none() {
        let bytes = |range: Range<u64>| range.start * 512..range.end * 512;
        for is_gpt in [false, true] {
            let device = disk(&[2048..3000, 3000..3500], is_gpt);
            let found = Partitions::of(&device).unwrap().unwrap();
            assert_eq!(found.beginning_at(2048 * 512), Some(bytes(2048..3000)));
            assert_eq!((found.beginning_at(3000 * 512), found.beginning_at(512)), (Some(bytes(3000..3500)), None));
            for (range, is_free) in [
                (2048..3000, true),
                (2100..2900, true),
                (2048..3001, false),
                (2000..2100, false),
                (2000..2048, true),
                (3500..SECTORS - 34, true),
                // The table's copy, and the table.
                (3500..SECTORS, !is_gpt),
                (0..2000, false),
            ] {
                assert_eq!(found.are_of_one(&bytes(range.clone())), is_free, "{range:?}, GPT: {is_gpt}");
            }
        }
    }

    #[test]
    fn what_has_no_table_has_no_partitions() {
        for device in [MemoryDevice::new(1 << 20), MemoryDevice::new(100), disk(&[], false)] {
            assert_eq!(Partitions::of(&device).unwrap(), None);
        }
        // A protective entry, and no GPT behind it.
        let device = disk(&[], true);
        device.write_at(512, &[0; 8]).unwrap();
        assert!(Partitions::of(&device).is_err());
    }
}
