//! Reading the ranges of a file that have data.

use std::io::{self, Read};
use std::ops::Range;

/// The bytes of a file's ranges, one after the other.
pub(super) struct RangeReader<F> {
    read_at: F,
    ranges: std::vec::IntoIter<Range<u64>>,
    at: u64,
    end: u64,
}

impl<F: FnMut(&mut [u8], u64) -> io::Result<usize>> RangeReader<F> {
    /// Reads `ranges` by `read_at`, which fills a buffer from an offset of the file on.
    pub fn new(ranges: Vec<Range<u64>>, read_at: F) -> RangeReader<F> {
        RangeReader { read_at, ranges: ranges.into_iter(), at: 0, end: 0 }
    }
}

impl<F: FnMut(&mut [u8], u64) -> io::Result<usize>> Read for RangeReader<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.end {
            let Some(range) = self.ranges.next() else { return Ok(0) };
            (self.at, self.end) = (range.start, range.end);
        }
        let wanted = out.len().min((self.end - self.at) as usize);
        let read = (self.read_at)(&mut out[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
