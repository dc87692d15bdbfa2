//! The maps of sparse files, in the four forms that GNU tar has had.

use super::header::{BLOCK, Header, number};
use super::pax::decimal;
use crate::error::{Error, Result};
use std::ops::Range;

/// Most ranges of a file.
const MAX_RANGES: usize = 1 << 20;

/// A map that is being read.
#[derive(Default)]
pub struct Map {
    /// Where data is.
    pub ranges: Vec<Range<u64>>,
}

impl Map {
    /// Adds a range of `len` bytes; empty ones only mark the end of the file.
    fn add(&mut self, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or_else(damaged)?;
        if self.ranges.len() >= MAX_RANGES {
            return Err(Error::content(format!("a sparse file has more than {MAX_RANGES} ranges of data")));
        }
        if len > 0 {
            self.ranges.push(offset..end);
        }
        Ok(())
    }

    /// Adds the pairs of an old header, or of a block that follows it: 12 bytes for each number.
    pub fn add_fields(&mut self, fields: &[u8]) -> Result<()> {
        for pair in fields.chunks_exact(24) {
            if pair[0] == 0 && pair[12] == 0 {
                break;
            }
            let value = |field| number(field).and_then(|value| u64::try_from(value).ok()).ok_or_else(damaged);
            self.add(value(&pair[..12])?, value(&pair[12..])?)?;
        }
        Ok(())
    }

    /// The map of version 0.0 or 0.1: offsets and lengths in turn.
    pub fn from_numbers(numbers: &[u64]) -> Result<Map> {
        let mut map = Map::default();
        numbers.chunks(2).try_for_each(|pair| match pair {
            [offset, len] => map.add(*offset, *len),
            _ => Err(damaged()),
        })?;
        Ok(map)
    }

    /// The map of version 0.1: numbers with commas.
    pub fn from_text(text: &[u8]) -> Result<Map> {
        let numbers: Vec<u64> = text.split(|byte| *byte == b',').map(decimal).collect::<Result<_>>()?;
        Map::from_numbers(&numbers)
    }

    /// The map of version 1.0, which stands in lines before the data, in whole blocks that `block` reads. Returns how
    /// many bytes it took.
    pub fn from_blocks(mut block: impl FnMut(&mut [u8; BLOCK]) -> Result<()>) -> Result<(Map, u64)> {
        let mut bytes = [0; BLOCK];
        let (mut at, mut taken) = (BLOCK, 0);
        let mut line = || -> Result<u64> {
            let mut digits = Vec::new();
            loop {
                if at == BLOCK {
                    block(&mut bytes)?;
                    (at, taken) = (0, taken + BLOCK as u64);
                }
                let byte = bytes[at];
                at += 1;
                match byte {
                    b'\n' => return decimal(&digits),
                    _ if digits.len() < 20 => digits.push(byte),
                    _ => return Err(damaged()),
                }
            }
        };
        let count = line()?;
        let mut map = Map::default();
        for _ in 0..count {
            map.add(line()?, line()?)?;
        }
        Ok((map, taken))
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.end - range.start))
    }
}

/// The pairs in an old header, and whether blocks with more follow.
pub fn old_header(header: &Header) -> Result<(Map, bool)> {
    let mut map = Map::default();
    map.add_fields(&header.0[386..482])?;
    Ok((map, header.0[482] != 0))
}

fn damaged() -> Error {
    Error::content("the map of a sparse file is damaged")
}
