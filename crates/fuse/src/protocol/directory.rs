//! The answer to READDIR and READDIRPLUS: entries one after the other, each padded to 8 bytes, in a size that the
//! kernel sets.

use super::wire::{Dirent, EntryOut};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an entry with a name of `name_len`.
const fn entry_bytes(name_len: usize) -> usize {
    (size_of::<Dirent>() + name_len).next_multiple_of(8)
}

/// Appends entries to an answer while they fit.
pub struct Listing<'a> {
    payload: &'a mut Vec<u8>,
    limit: usize,
}

impl<'a> Listing<'a> {
    /// An empty listing of at most `limit` bytes.
    pub fn new(payload: &'a mut Vec<u8>, limit: u32) -> Listing<'a> {
        Listing { payload, limit: limit as usize }
    }

    /// Whether an entry fits.
    pub fn fits(&self, name: &[u8], plus: bool) -> bool {
        let attributes = if plus { size_of::<EntryOut>() } else { 0 };
        self.payload.len() + attributes + entry_bytes(name.len()) <= self.limit
    }

    /// Appends an entry of READDIR, or says that it does not fit.
    pub fn push(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        let fits = self.fits(name, false);
        if fits {
            self.append(ino, next, kind, name);
        }
        fits
    }

    /// Appends an entry of READDIRPLUS, or says that it does not fit. A zero node id says that nothing is known but
    /// the name.
    pub fn push_plus(&mut self, entry: &EntryOut, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        let fits = self.fits(name, true);
        if fits {
            self.payload.extend_from_slice(entry.as_bytes());
            self.append(ino, next, kind, name);
        }
        fits
    }

    fn append(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) {
        let dirent = Dirent { ino, off: next, namelen: name.len() as u32, kind: u32::from(kind) };
        self.payload.extend_from_slice(dirent.as_bytes());
        self.payload.extend_from_slice(name);
        let padding = entry_bytes(name.len()) - size_of::<Dirent>() - name.len();
        self.payload.extend_from_slice(&[0; 8][..padding]);
    }
}

/// The node ids that a READDIRPLUS answer hands over, for when it was not taken.
pub fn nodes_of_plus(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let (entry, tail) = EntryOut::read_from_prefix(rest).ok()?;
        let (dirent, _) = Dirent::read_from_prefix(tail).ok()?;
        rest = tail.get(entry_bytes(dirent.namelen as usize)..)?;
        Some(entry.nodeid)
    })
    .filter(|node| *node != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_at_the_limit() {
        let mut payload = Vec::new();
        let mut listing = Listing::new(&mut payload, 64);
        assert!(listing.push(7, 1, 8, b"name"));
        assert!(listing.push(8, 2, 8, b"12345678"));
        assert!(!listing.push(9, 3, 8, b""));
        assert_eq!(payload.len(), 64);
        assert_eq!(payload[24..32], *b"name\0\0\0\0");
    }

    #[test]
    fn handed_over_nodes_are_found() {
        let mut payload = Vec::new();
        let mut listing = Listing::new(&mut payload, 4096);
        for (node, name) in [(5, "a"), (0, ".."), (6, "123456789")] {
            let entry = EntryOut { nodeid: node, ..EntryOut::default() };
            assert!(listing.push_plus(&entry, 1, 1, 8, name.as_bytes()));
        }
        assert_eq!(nodes_of_plus(&payload).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(nodes_of_plus(&payload[..payload.len() - 1]).collect::<Vec<_>>(), [5]);
    }
}
