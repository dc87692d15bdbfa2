//! Map files of ddrescue: which parts of a device were read well.
//!
//! ```text
//! # comment
//! CURRENT_POS  CURRENT_STATUS  [CURRENT_PASS]
//! POS  SIZE  STATUS        ? not tried, * not trimmed, / not scraped, - bad, + finished
//! ```

use crate::{Error, Result, error};
use std::ops::Range;

/// Lines of a map at most.
const MOST_LINES: usize = 4 << 20;
/// Bytes that are read together at least.
const PAGE: u64 = 4096;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ddrescue {
    /// Ascending, with good bytes between them, whole pages: a page is read as a whole.
    bad: Vec<Range<u64>>,
}

impl Ddrescue {
    /// Reads a map. Parts that were not tried at all may be read; parts whose reading failed may not.
    pub fn parse(text: &str) -> Result<Ddrescue> {
        let mut bad: Vec<Range<u64>> = Vec::new();
        let mut lines =
            text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#') && !line.trim().is_empty());
        let first = lines.next().ok_or_else(|| Error("the map has no status line".to_owned()))?;
        if first.1.split_whitespace().count() < 2 {
            return error(format!("line {}: a status line has a position and a status", first.0 + 1));
        }
        for (number, line) in lines {
            if bad.len() > MOST_LINES {
                return error("the map has too many lines");
            }
            let wrong = || Error(format!("line {} of the map is no 'POSITION SIZE STATUS'", number + 1));
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [position, size, status] = fields[..] else { return Err(wrong()) };
            let (start, size) = (number_of(position).ok_or_else(wrong)?, number_of(size).ok_or_else(wrong)?);
            let end = start.checked_add(size).ok_or_else(wrong)?;
            match status {
                "+" | "?" => {}
                "-" | "*" | "/" => bad.push(start..end),
                _ => return Err(wrong()),
            }
        }
        Ok(Ddrescue::of_bad(bad))
    }

    /// A map in which the pages with these ranges are bad.
    pub fn of_bad(mut bad: Vec<Range<u64>>) -> Ddrescue {
        bad.sort_by_key(|range| range.start);
        let mut pages: Vec<Range<u64>> = Vec::new();
        for range in bad.into_iter().filter(|range| !range.is_empty()) {
            let start = range.start / PAGE * PAGE;
            let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            match pages.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => pages.push(start..end),
            }
        }
        Ddrescue { bad: pages }
    }

    /// The bad ranges.
    pub fn bad(&self) -> &[Range<u64>] {
        &self.bad
    }

    /// The parts of a range, and whether each may be read.
    pub fn split(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let (mut parts, mut at) = (Vec::new(), range.start);
        let first = self.bad.partition_point(|bad| bad.end <= range.start);
        for bad in self.bad[first..].iter().take_while(|bad| bad.start < range.end) {
            let (start, end) = (bad.start.max(at), bad.end.min(range.end));
            if at < start {
                parts.push((at..start, true));
            }
            if start < end {
                parts.push((start..end, false));
                at = end;
            }
        }
        if at < range.end {
            parts.push((at..range.end, true));
        }
        parts
    }

    /// Whether all of a range may be read.
    pub fn is_good(&self, range: &Range<u64>) -> bool {
        self.split(range.clone()).iter().all(|(_, good)| *good)
    }

    /// The text of a map of `len` bytes, of which `done` were read.
    pub fn text(&self, len: u64, done: u64) -> String {
        let status = if done >= len { '+' } else { '?' };
        let mut text = format!(
            "# Mapfile. Created by butterfs rescue scan\n# current_pos  current_status  current_pass\n\
             0x{done:08X}     {status}               1\n#      pos        size  status\n"
        );
        let mut line = |range: Range<u64>, status: char| {
            if !range.is_empty() {
                text.push_str(&format!("0x{:08X}  0x{:08X}  {status}\n", range.start, range.end - range.start));
            }
        };
        for (range, good) in self.split(0..done.min(len)) {
            line(range, if good { '+' } else { '-' });
        }
        line(done.min(len)..len, '?');
        text
    }
}

fn number_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "# Mapfile. Created by GNU ddrescue version 1.26\n# Command line: ddrescue a b c\n\
        0x00120000     ?               1\n\
        #      pos        size  status\n0x00000000  0x00117000  +\n\
        0x00117000  0x00000200  -\n0x00117200  0x00001000  /\n\
        0x00118200  0x00007E00  *\n0x00120000  0x000E0000  ?\n";

    #[test]
    fn maps_of_ddrescue_are_read() {
        let map = Ddrescue::parse(MAP).unwrap();
        assert_eq!(map.bad(), std::slice::from_ref(&(0x117000..0x120000)));
        assert!(
            map.is_good(&(0..0x117000)) && !map.is_good(&(0x116000..0x117001)) && map.is_good(&(0x120000..0x200000))
        );
        for bad in ["", "0 +\n0 1\n", "0 +\nx 1 +\n", "0 +\n0 1 !\n", "0 +\n0xFFFFFFFFFFFFFFFF 2 -\n"] {
            assert!(Ddrescue::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pages_with_bad_bytes_are_bad_whatever_the_order() {
        let text = "0 + 1\n0x5e00 0x200 -\n0x1000 0x8000 *\n0x2000 0x1000 /\n0x20400 0x1 -\n0 0 -\n";
        let map = Ddrescue::parse(text).unwrap();
        assert_eq!(map.bad(), [0x1000..0x9000, 0x20000..0x21000]);
        assert_eq!(
            map.split(0x8000..0x20001),
            [(0x8000..0x9000, false), (0x9000..0x20000, true), (0x20000..0x20001, false)]
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let map = Ddrescue::of_bad(vec![4096..8192, 16384..20480]);
        let text = map.text(1 << 20, 65536);
        assert!(text.contains("0x00010000  0x000F0000  ?"), "{text}");
        assert_eq!(Ddrescue::parse(&text).unwrap(), map);
        let parts = map.split(0..12288);
        assert_eq!(parts, [(0..4096, true), (4096..8192, false), (8192..12288, true)]);
    }
}
