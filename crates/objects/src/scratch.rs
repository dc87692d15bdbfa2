//! Nodes that are not sent yet: in a local file that has no name.
//!
//! A put edits its index many times when it is large, and most nodes of the versions between are never needed by
//! anybody else. Their references have a segment that no digest is: [`MARK`], then a number.

use crate::archive::Archive;
use crate::digest::Digest;
use crate::node::Node;
use crate::piece::PieceRef;
use crate::tree::{NewNodes, Nodes};
use butterfs_store::{Error, Kind, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The first bytes of the segment of a node in the file.
const MARK: [u8; 24] = [0xfd; 24];

/// See the [module](self).
pub struct Scratch {
    /// Everything that is not in the file.
    pub archive: Archive,
    file: File,
    /// Offset and length of each node.
    places: Vec<(u64, u32)>,
    end: u64,
}

impl Scratch {
    /// A file in this folder.
    pub fn new(archive: Archive, folder: &Path) -> Result<Scratch> {
        Ok(Scratch { archive, file: nameless(folder)?, places: Vec::new(), end: 0 })
    }

    /// The number of a node that is in the file.
    pub fn number(at: &PieceRef) -> Option<usize> {
        let (mark, number) = at.segment.0.split_at(MARK.len());
        (mark == MARK).then(|| u64::from_le_bytes(number.try_into().expect("8 bytes")) as usize)
    }
}

/// A file without a name in a folder.
fn nameless(folder: &Path) -> Result<File> {
    let path = folder.join(format!("butterfs-objects-{:016x}", getrandom::u64().unwrap_or_default()));
    let opened = File::options().read(true).write(true).create_new(true).open(&path);
    let file = opened.and_then(|file| std::fs::remove_file(&path).map(|()| file));
    file.map_err(|error| failed(&format!("cannot create a file in {}", folder.display()), &error))
}

/// A list of bytes that grows in a local file without a name.
pub struct Spill {
    file: File,
    end: u64,
    waiting: Vec<u8>,
}

impl Spill {
    /// An empty list.
    pub fn new(folder: &Path) -> Result<Spill> {
        Ok(Spill { file: nameless(folder)?, end: 0, waiting: Vec::new() })
    }

    /// Appends.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= 1 << 18 { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let wrote = self.file.write_all_at(&self.waiting, self.end);
        wrote.map_err(|error| failed("cannot write a local file", &error))?;
        self.end += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Shows everything in parts of this length, the last one shorter.
    pub fn chunks(mut self, len: usize, mut visit: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.write()?;
        let mut at = 0;
        while at < self.end {
            let mut chunk = vec![0; len.min((self.end - at) as usize)];
            let read = self.file.read_exact_at(&mut chunk, at);
            read.map_err(|error| failed("cannot read a local file", &error))?;
            at += chunk.len() as u64;
            visit(&chunk)?;
        }
        Ok(())
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Unreachable, format!("{what}: {error}"))
}

impl Nodes for Scratch {
    fn read(&self, at: &PieceRef) -> Result<Arc<Node>> {
        let Some(number) = Scratch::number(at) else { return self.archive.read(at) };
        // No store has such a reference, so the same cache serves.
        if let Some(node) = self.archive.cached(at) {
            return Ok(node);
        }
        let (offset, len) = *self.places.get(number).ok_or_else(|| self.damaged(at, "there is no such node"))?;
        let mut bytes = vec![0; len as usize];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| failed("cannot read the local file of nodes", &error))?;
        let node = Node::decode(&bytes).ok_or_else(|| self.damaged(at, "the local file of nodes was changed"))?;
        Ok(self.archive.cache(at, node, bytes.len()))
    }

    fn damaged(&self, at: &PieceRef, rule: &str) -> Error {
        self.archive.damaged(at, rule)
    }
}

impl NewNodes for Scratch {
    fn write(&mut self, node: Node) -> Result<PieceRef> {
        let bytes = node.encode();
        let wrote = self.file.write_all_at(&bytes, self.end);
        wrote.map_err(|error| failed("cannot write the local file of nodes", &error))?;
        let mut segment = [0xfd; 32];
        segment[MARK.len()..].copy_from_slice(&(self.places.len() as u64).to_le_bytes());
        self.places.push((self.end, bytes.len() as u32));
        self.end += bytes.len() as u64;
        Ok(PieceRef { segment: Digest(segment), offset: 0, stored: 1, raw: 0, digest: Digest::default() })
    }
}
