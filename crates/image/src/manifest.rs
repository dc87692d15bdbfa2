//! Everything that a tree shows, as lines, and a digest of them: the same for the same tree, however it is stored.
//!
//! A line has a path and what is there: type, mode, owner, group, size, time of the last change, the SHA-256 of a
//! file's content (in which holes are zeros), the target of a link, the numbers of a device, the attributes. Inode
//! numbers, places, compression, access and birth times are not in it.

use crate::assembly::Target;
use crate::entry::{Attributes, Content, Special};
use crate::error::{Error, Result, shown};
use crate::source::Source;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

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
        self.lines.iter().map(|(path, line)| format!("{} {line}", shown(path)))
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
        let line = |sign, path: &[u8], line: Option<&str>| line.map(|line| format!("{sign} {} {line}", shown(path)));
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
            line.push_str(&format!(" {}={}", name.escape_ascii(), hex(value)));
        }
        self.lines.insert(path.to_vec(), line);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes so many zeros.
fn zeros(hasher: &mut Sha256, mut count: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while count > 0 {
        let part = count.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..part as usize]);
        count -= part;
    }
}

impl Target for Manifest {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.add(path, "dir", &attributes, "");
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 18];
        let mut at = 0;
        for range in &content.data {
            zeros(&mut hasher, range.start - at);
            at = range.start;
            while at < range.end {
                let wanted = buffer.len().min((range.end - at) as usize);
                let failed = |error| Error::source(format!("{}: cannot read the content: {error}", shown(path)));
                content.reader.read_exact(&mut buffer[..wanted]).map_err(failed)?;
                hasher.update(&buffer[..wanted]);
                at += wanted as u64;
            }
        }
        zeros(&mut hasher, content.size - at);
        let rest = format!(" size={} sha256={}", content.size, hex(&hasher.finalize()));
        self.add(path, "file", &attributes, &rest);
        Ok(())
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let (kind, rest) = match special {
            Special::Symlink(target) => ("link", format!(" target={}", target.escape_ascii())),
            Special::CharacterDevice(major, minor) => ("char", format!(" device={major}:{minor}")),
            Special::BlockDevice(major, minor) => ("block", format!(" device={major}:{minor}")),
            Special::Fifo => ("fifo", String::new()),
            Special::Socket => ("socket", String::new()),
        };
        self.add(path, kind, &attributes, &rest);
        Ok(())
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        self.lines.insert(path.to_vec(), format!("same as {}", shown(original)));
        Ok(())
    }
}
