//! The bytes of a set of ranges, each counted once, in bounded memory.
//!
//! Ranges are collected in memory; when there are many, they are sorted, those that touch become one, and if there are
//! still many, they go to a file without a name. In the end all sorted runs are read side by side.

use crate::error::{CliError, os_message};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Ranges in memory: 16 bytes each.
const MOST: usize = if cfg!(test) { 100 } else { 1 << 20 };
/// Bytes of a range in the file.
const RANGE: usize = 16;

type Range = (u64, u64);

/// See the [module](self).
#[derive(Default)]
pub struct Shared {
    /// Start and end.
    ranges: Vec<Range>,
    spilled: Option<Spilled>,
}

/// Sorted runs of ranges in a file: where each begins and ends.
struct Spilled {
    file: File,
    runs: Vec<Range>,
}

fn cannot_spill(error: io::Error) -> CliError {
    CliError::failed(format!("cannot use a temporary file: {}", os_message(&error)))
}

/// Sorts, and joins those that overlap or touch.
fn join(ranges: &mut Vec<Range>) {
    ranges.sort_unstable();
    let mut kept = 0;
    for at in 0..ranges.len() {
        let (start, end) = ranges[at];
        if kept > 0 && ranges[kept - 1].1 >= start {
            ranges[kept - 1].1 = ranges[kept - 1].1.max(end);
        } else {
            ranges[kept] = (start, end);
            kept += 1;
        }
    }
    ranges.truncate(kept);
}

impl Shared {
    /// Adds a range.
    pub fn add(&mut self, start: u64, len: u64) -> Result<(), CliError> {
        self.ranges.push((start, start.saturating_add(len)));
        if self.ranges.len() >= MOST {
            join(&mut self.ranges);
            if self.ranges.len() > MOST / 2 {
                self.spill().map_err(cannot_spill)?;
            }
        }
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled { file: unnamed_file()?, runs: Vec::new() }),
        };
        let begin = spilled.file.seek(SeekFrom::End(0))?;
        let bytes: Vec<u8> =
            self.ranges.drain(..).flat_map(|(start, end)| [start.to_le_bytes(), end.to_le_bytes()].concat()).collect();
        spilled.file.write_all(&bytes)?;
        spilled.runs.push((begin, begin + bytes.len() as u64));
        Ok(())
    }

    /// The bytes of all ranges together.
    pub fn bytes(mut self) -> Result<u64, CliError> {
        join(&mut self.ranges);
        let Some(spilled) = self.spilled else {
            return Ok(self.ranges.iter().map(|(start, end)| end - start).sum());
        };
        let in_file = spilled
            .runs
            .iter()
            .map(|&(at, end)| Run::File(Box::new(BufReader::new(Part { file: &spilled.file, at, end }))));
        let runs = in_file.chain([Run::Memory(self.ranges.into_iter())]).collect();
        sum(runs).map_err(cannot_spill)
    }
}

fn unnamed_file() -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// A part of a file, for reading.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min((self.end - self.at) as usize);
        let count = self.file.read_at(&mut buf[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// A sorted run.
enum Run<'a> {
    File(Box<BufReader<Part<'a>>>),
    Memory(std::vec::IntoIter<Range>),
}

impl Run<'_> {
    fn next(&mut self) -> io::Result<Option<Range>> {
        match self {
            Run::Memory(ranges) => Ok(ranges.next()),
            Run::File(reader) => {
                let mut bytes = [0; RANGE];
                match reader.read_exact(&mut bytes) {
                    Ok(()) => {
                        let half = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight"));
                        Ok(Some((half(0), half(8))))
                    }
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Reads all runs side by side.
fn sum(mut runs: Vec<Run<'_>>) -> io::Result<u64> {
    use std::cmp::Reverse;
    let mut heads = std::collections::BinaryHeap::new();
    for (number, run) in runs.iter_mut().enumerate() {
        heads.extend(run.next()?.map(|range| Reverse((range, number))));
    }
    let (mut bytes, mut covered) = (0, 0);
    while let Some(Reverse(((start, end), number))) = heads.pop() {
        bytes += end.saturating_sub(start.max(covered));
        covered = covered.max(end);
        heads.extend(runs[number].next()?.map(|range| Reverse((range, number))));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(ranges: &[Range]) -> u64 {
        let mut shared = Shared::default();
        ranges.iter().for_each(|(start, len)| shared.add(*start, *len).expect("there is a temporary folder"));
        shared.bytes().expect("what was written can be read")
    }

    #[test]
    fn each_byte_counts_once() {
        assert_eq!(counted(&[]), 0);
        assert_eq!(counted(&[(10, 10), (15, 10), (25, 5), (100, 1), (10, 10)]), 21);
    }

    #[test]
    fn many_ranges_go_through_a_file() {
        let mut covered = vec![false; 100_000];
        let ranges: Vec<Range> = (0..5000u64).map(|number| (number * 7919 % 99_000, number % 13)).collect();
        for (start, len) in &ranges {
            covered[*start as usize..(start + len) as usize].fill(true);
        }
        assert_eq!(counted(&ranges), covered.iter().filter(|is| **is).count() as u64);
    }
}
