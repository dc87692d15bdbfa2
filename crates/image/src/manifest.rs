//! Everything that a tree shows, as lines, and a digest of them: the same for the same tree, however it is stored.
//!
//! A line has a path and what is there: type, mode, owner, group, size, time of the last change, the SHA-256 of a
//! file's content (in which holes are zeros), the target of a link, the numbers of a device, the attributes. Inode
//! numbers, places, compression, access and birth times are not in it.

use crate::assembly::Target;
use crate::data::Bytes;
use crate::entry::{Attributes, Content, Special};
use crate::error::{Result, shown};
use crate::source::Source;
use butterfs_device::is_zero;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The lines of a tree, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    lines: BTreeMap<Vec<u8>, String>,
}

impl Manifest {
    /// The manifest of what a source has.
    pub fn of(source: &mut dyn Source) -> Result<Manifest> {
        let mut manifest = Manifest::default();
        source.read(&mut manifest)?;
        Ok(manifest)
    }

    /// The lines, sorted by path.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.lines.iter().map(|(path, line)| format!("/{} {line}", word(path)))
    }

    /// The SHA-256 of all lines, in hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for line in self.lines() {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
        hex(&hasher.finalize())
    }

    /// The paths that differ, in their order, with the line that each tree has there.
    pub fn changed<'a>(
        &'a self,
        other: &'a Manifest,
    ) -> impl Iterator<Item = (&'a [u8], Option<&'a str>, Option<&'a str>)> {
        let paths: BTreeSet<&[u8]> = self.lines.keys().chain(other.lines.keys()).map(Vec::as_slice).collect();
        let pair = |path| (path, self.lines.get(path).map(String::as_str), other.lines.get(path).map(String::as_str));
        paths.into_iter().map(pair).filter(|(_, here, there)| here != there)
    }

    /// The differences: a line each, with `-` before lines of this tree, `+` before lines of the other one.
    pub fn differences(&self, other: &Manifest) -> Vec<String> {
        let line = |sign, path: &[u8], line: Option<&str>| line.map(|line| format!("{sign} /{} {line}", word(path)));
        let both = |(path, here, there)| [line('-', path, here), line('+', path, there)];
        self.changed(other).flat_map(both).flatten().collect()
    }

    fn add(&mut self, path: &[u8], kind: &str, attributes: &Attributes, rest: &str) {
        let Attributes { mode, uid, gid, mtime, xattrs, .. } = attributes;
        let mut line =
            format!("{kind} mode={mode:04o} uid={uid} gid={gid} mtime={}.{:09}{rest}", mtime.sec, mtime.nsec);
        let mut xattrs: Vec<_> = xattrs.iter().collect();
        xattrs.sort();
        for (name, value) in xattrs {
            line.push_str(&format!(" {}={}", word(name), hex(value)));
        }
        self.lines.insert(path.to_vec(), line);
    }
}

/// Bytes in a line, whose fields blanks separate, and `=` names from values.
fn word(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace(' ', "\\x20").replace('=', "\\x3d")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of a block of zeros that is noted instead of hashed, if it begins at a multiple of this.
const BLOCK: u64 = 1 << 20;

/// The digest of a content: its bytes, without blocks of zeros, which are hashed by their places. A content without
/// such a block has its SHA-256. Holes, and zeros that are stored, are the same.
#[derive(Default)]
struct ContentDigest {
    bytes: Sha256,
    zeros: Sha256,
    /// The blocks of zeros that have come last.
    run: Range<u64>,
}

impl ContentDigest {
    fn of(path: &[u8], content: Content<'_>) -> Result<String> {
        let Content { size, data, reader, .. } = content;
        let mut digest = ContentDigest::default();
        let mut block = vec![0; BLOCK.min(size) as usize];
        let (mut at, mut next) = (0, 0);
        let starts: Vec<Range<u64>> = data.clone();
        let mut bytes = Bytes::new(data, reader);
        while at < size {
            while starts.get(next).is_some_and(|range| range.end <= at) {
                next += 1;
            }
            // Whole blocks in a hole.
            let start = starts.get(next).map_or(size, |range| range.start.max(at)) / BLOCK * BLOCK;
            if start > at {
                digest.add_zeros(at..start);
                at = start;
                continue;
            }
            let block = &mut block[..BLOCK.min(size - at) as usize];
            block.fill(0);
            bytes.fill(at, block).map_err(|error| error.of(&shown(path)))?;
            digest.add_block(at, block);
            at += block.len() as u64;
        }
        Ok(digest.finish())
    }

    fn add_block(&mut self, at: u64, block: &[u8]) {
        if block.len() as u64 == BLOCK && is_zero(block) {
            self.add_zeros(at..at + BLOCK);
        } else {
            self.bytes.update(block);
        }
    }

    fn add_zeros(&mut self, blocks: Range<u64>) {
        if self.run.end == blocks.start && !self.run.is_empty() {
            self.run.end = blocks.end;
        } else {
            self.end_run();
            self.run = blocks;
        }
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.zeros.update(self.run.start.to_le_bytes());
            self.zeros.update(self.run.end.to_le_bytes());
        }
    }

    fn finish(mut self) -> String {
        let bytes = format!("sha256={}", hex(&self.bytes.finalize_reset()));
        if self.run.is_empty() {
            return bytes;
        }
        self.end_run();
        format!("{bytes} zeros={}", hex(&self.zeros.finalize()))
    }
}

impl Target for Manifest {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.add(path, "dir", &attributes, "");
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let size = content.size;
        let rest = format!(" size={size} {}", ContentDigest::of(path, content)?);
        self.add(path, "file", &attributes, &rest);
        Ok(())
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let (kind, rest) = match special {
            Special::Symlink(target) => ("link", format!(" target={}", word(&target))),
            Special::CharacterDevice(major, minor) => ("char", format!(" device={major}:{minor}")),
            Special::BlockDevice(major, minor) => ("block", format!(" device={major}:{minor}")),
            Special::Fifo => ("fifo", String::new()),
            Special::Socket => ("socket", String::new()),
        };
        self.add(path, kind, &attributes, &rest);
        Ok(())
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        self.lines.insert(path.to_vec(), format!("same as /{}", word(original)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(size: u64, data: &[(u64, &[u8])]) -> String {
        let ranges = data.iter().map(|(at, bytes)| *at..at + bytes.len() as u64).collect();
        let bytes: Vec<u8> = data.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        ContentDigest::of(b"x", Content { size, data: ranges, reader: &mut bytes.as_slice(), file: None }).unwrap()
    }

    #[test]
    fn holes_are_zeros_and_cost_nothing() {
        let zeros = vec![0; 3 << 20];
        assert_eq!(digest(3 << 20, &[(0, &zeros)]), digest(3 << 20, &[]));
        let one = [7; 5000];
        let mut whole = vec![0; (5 << 20) + 77];
        whole[(2 << 20) + 100..][..5000].copy_from_slice(&one);
        let end = whole.len() as u64;
        assert_eq!(digest(end, &[(0, &whole)]), digest(end, &[((2 << 20) + 100, &one)]));
        // The same bytes elsewhere.
        assert_ne!(digest(end, &[((3 << 20) + 100, &one)]), digest(end, &[((2 << 20) + 100, &one)]));
        assert_ne!(digest(end, &[((2 << 20) + 100, &one)]), digest(end + 1, &[((2 << 20) + 100, &one)]));
        // The largest file there can be, twice.
        let most = i64::MAX as u64;
        assert_eq!(digest(most, &[]), digest(most, &[(1 << 40, &[0])]));
    }

    #[test]
    fn lines_of_different_trees_differ() {
        let link = |target: &[u8], xattrs: &[(&[u8], &[u8])]| {
            let xattrs = xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            let mut manifest = Manifest::default();
            let attributes = Attributes { xattrs, ..Attributes::default() };
            manifest.special(b"l", attributes, Special::Symlink(target.to_vec())).unwrap();
            manifest.digest()
        };
        assert_ne!(link(b"x security.selinux=6161", &[]), link(b"x", &[(b"security.selinux", b"aa")]));
        assert_ne!(link(b"x", &[(b"user.a= user.b", b"B")]), link(b"x", &[(b"user.a", b""), (b"user.b", b"B")]));
    }

    #[test]
    fn a_content_without_blocks_of_zeros_has_its_sha256() {
        for content in [&b""[..], b"abc", &[0; 100_000]] {
            let want = format!("sha256={}", hex(&Sha256::digest(content)));
            assert_eq!(digest(content.len() as u64, &[(0, content)][..usize::from(!content.is_empty())]), want);
        }
    }
}
