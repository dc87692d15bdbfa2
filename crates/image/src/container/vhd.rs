//! VHD with blocks that are there when they were written ("dynamic"). A fixed one needs no reader: the disk is the file
//! up to its last 512 bytes.

use super::fields::{be_u32, be_u64, bytes, header};
use super::{Layout, Part, Place, damaged};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

const SECTOR: u64 = 512;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
/// The entry of a block that is not there.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
struct Vhd {
    len: u64,
    block: u64,
    /// Bytes before a block that say which of its sectors were written.
    bitmap: u64,
    table: u64,
}

/// Reads the copy of the footer with which the file begins.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    let foot: [u8; 512] = header(file, 0)?;
    check_sum(&foot, 64)?;
    match be_u32(&foot, 60) {
        DYNAMIC => {}
        DIFFERENCING => {
            return Err(Error::content(
                "it needs the disk that it was made from, and no file is read because an image names it",
            ));
        }
        kind => return Err(Error::content(format!("the type {kind} is not known"))),
    }
    let head: [u8; 1024] = header(file, be_u64(&foot, 16))?;
    if !head.starts_with(b"cxsparse") {
        return Err(Error::content("its header is not where the footer says"));
    }
    check_sum(&head, 36)?;
    let (len, block, entries) = (be_u64(&foot, 48), u64::from(be_u32(&head, 32)), u64::from(be_u32(&head, 28)));
    if !block.is_power_of_two() || block < SECTOR || len.div_ceil(block) > entries {
        return Err(Error::content("the sizes in its header are impossible"));
    }
    let bitmap = (block / SECTOR).div_ceil(8).next_multiple_of(SECTOR);
    Ok(Box::new(Vhd { len, block, bitmap, table: be_u64(&head, 16) }))
}

/// Compares the sum of all bytes with the one at `at`.
fn check_sum(bytes: &[u8], at: usize) -> Result<()> {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let sum = !sum(&bytes[..at]).wrapping_add(sum(&bytes[at + 4..]));
    match sum == be_u32(bytes, at) {
        true => Ok(()),
        false => Err(Error::content("the checksum of its header or footer does not match")),
    }
}

impl Layout for Vhd {
    fn len(&self) -> u64 {
        self.len
    }

    fn find(&self, file: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        let place = self.table.checked_add(at / self.block * 4).ok_or_else(|| damaged("the table is nowhere", at))?;
        let sector = u32::from_be_bytes(bytes(file, place)?);
        if sector == NOWHERE {
            return Ok(Part { len: self.block - at % self.block, place: Place::Zeros });
        }
        let start = u64::from(sector) * SECTOR;
        let inside = at % self.block;
        // Sectors that were never written are zero whatever stands there.
        let (len, is_written) = self.run(file, start, inside)?;
        let place = if is_written { Place::At(start + self.bitmap + inside) } else { Place::Zeros };
        Ok(Part { len, place })
    }
}

impl Vhd {
    /// Bytes from `inside` of the block at `start` on that were written, or were not, all alike.
    fn run(&self, file: &dyn BlockDevice, start: u64, inside: u64) -> io::Result<(u64, bool)> {
        let first = inside / SECTOR;
        let mut bitmap = [0; 64];
        let part = &mut bitmap[..(self.bitmap - first / 8).min(64) as usize];
        file.read_at(start + first / 8, part)?;
        let bit =
            |sector: u64| part.get((sector / 8 - first / 8) as usize).map(|byte| byte << (sector % 8) & 0x80 != 0);
        let is_written = bit(first) == Some(true);
        let end = (first + 1..self.block / SECTOR).find(|sector| bit(*sector) != Some(is_written));
        Ok((end.unwrap_or(self.block / SECTOR) * SECTOR - inside, is_written))
    }
}
