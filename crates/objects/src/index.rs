//! The index while a put changes it: edits in memory above a tree. Memory is bounded: enough edits become nodes.

use crate::node::Entry;
use crate::scratch::Scratch;
use crate::tree::{self, Edits, Root, Scan};
use butterfs_store::Result;
use std::ops::Bound;

/// Edits of so many bytes become nodes.
const EDIT_BYTES: usize = 24 << 20;
/// Bytes of memory for an edit besides its own.
const OVERHEAD: usize = 100;

/// See the [module](self).
pub struct Index {
    /// The nodes.
    pub nodes: Scratch,
    /// The tree below the edits.
    pub root: Option<Root>,
    edits: Edits,
    bytes: usize,
}

impl Index {
    /// An index that begins as this tree.
    pub fn new(nodes: Scratch, root: Option<Root>) -> Index {
        Index { nodes, root, edits: Edits::new(), bytes: 0 }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.edits.get(key) {
            Some(edited) => Ok(edited.clone()),
            None => tree::get(&self.nodes, self.root, key),
        }
    }

    /// Sets or removes a key.
    pub fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<()> {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len) + OVERHEAD;
        self.edits.insert(key, value);
        if self.bytes >= EDIT_BYTES { self.settle() } else { Ok(()) }
    }

    /// Makes nodes of all edits.
    pub fn settle(&mut self) -> Result<()> {
        self.bytes = 0;
        let edits = std::mem::take(&mut self.edits);
        self.root = tree::edit(&mut self.nodes, self.root, edits)?;
        Ok(())
    }

    /// The first entry that is not below `key`.
    pub fn at_or_after(&self, key: &[u8]) -> Result<Option<Entry>> {
        let mut scan = self.root.map(|root| Scan::new(&self.nodes, root, key));
        let mut next = || scan.as_mut().map_or(Ok(None), Scan::next);
        let mut edits = self.edits.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).peekable();
        let mut there = next()?;
        loop {
            match (edits.peek(), &there) {
                (None, _) => return Ok(there),
                (Some((edited, _)), Some((key, _))) if key < *edited => return Ok(there),
                (Some((edited, _)), Some((key, _))) if key == *edited => there = next()?,
                _ => {
                    if let Some((key, Some(value))) = edits.next() {
                        return Ok(Some((key.clone(), value.clone())));
                    }
                }
            }
        }
    }

    /// The last entry that is below `key`.
    pub fn before(&self, key: &[u8]) -> Result<Option<Entry>> {
        let mut bound = key.to_vec();
        loop {
            let edited = self.edits.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&bound[..]))).next_back();
            let there = tree::before(&self.nodes, self.root, &bound)?;
            match (edited, there) {
                (Some((edited, value)), there) if there.as_ref().is_none_or(|(key, _)| key <= edited) => {
                    if let Some(value) = value {
                        return Ok(Some((edited.clone(), value.clone())));
                    }
                    bound = edited.clone();
                }
                (_, there) => return Ok(there),
            }
        }
    }
}
