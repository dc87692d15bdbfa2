//! An archive of tar as a target: PAX, with extended headers only where they are needed, so that the same content gives
//! the same bytes. Holes are kept in GNU's form of version 1.0.

use crate::assembly::Target;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::source::tar::{MAX_LEN, RECORD_COST, encoded_name};
use std::io::{self, Read, Write};

const BLOCK: usize = 512;

/// An archive that is being written.
pub struct TarTarget<W: Write> {
    out: W,
    /// Names of sockets, which archives cannot have.
    left_out: Vec<Vec<u8>>,
}

impl<W: Write> TarTarget<W> {
    /// An archive that goes to `out`.
    pub fn new(out: W) -> TarTarget<W> {
        TarTarget { out, left_out: Vec::new() }
    }

    /// Ends the archive. Returns the paths of sockets, which it cannot hold.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        self.out.write_all(&[0; 2 * BLOCK]).and_then(|()| self.out.flush()).map_err(failed)?;
        Ok(self.left_out)
    }

    fn entry(&mut self, entry: &Header<'_>) -> Result<()> {
        let records = entry.records();
        let memory = records.len() as u64 + RECORD_COST * (entry.xattrs.len() as u64 + 16);
        if memory > MAX_LEN {
            let sentence = format!("{} has more attributes than the {MAX_LEN} bytes that are read", shown(&entry.path));
            return Err(Error::new(ErrorKind::Output, sentence));
        }
        if !records.is_empty() {
            let mut head =
                Header { path: b"PaxHeaders/x".to_vec(), kind: b'x', size: records.len() as u64, ..Header::default() };
            head.mode = 0o644;
            self.out.write_all(&head.block()).map_err(failed)?;
            self.padded(&records)?;
        }
        self.out.write_all(&entry.block()).map_err(failed)
    }

    /// Writes bytes and fills their last block.
    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        let rest = bytes.len().next_multiple_of(BLOCK) - bytes.len();
        self.out.write_all(bytes).and_then(|()| self.out.write_all(&[0; BLOCK][..rest])).map_err(failed)
    }
}

fn failed(error: io::Error) -> Error {
    Error::new(ErrorKind::Output, format!("cannot write the archive: {error}"))
}

/// The fields of a header.
#[derive(Default)]
struct Header<'a> {
    path: Vec<u8>,
    kind: u8,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Time,
    target: &'a [u8],
    device: (u32, u32),
    xattrs: &'a [(Vec<u8>, Vec<u8>)],
    /// The size with holes, of a sparse file.
    real_size: Option<u64>,
}

const MOST_OCTAL: u32 = 0o7777777;
const MOST_SIZE: u64 = 0o77777777777;

impl<'a> Header<'a> {
    fn of(path: &[u8], kind: u8, attributes: &'a Attributes) -> Header<'a> {
        let mut path = if path.is_empty() { b".".to_vec() } else { path.to_vec() };
        if kind == b'5' {
            path.push(b'/');
        }
        Header {
            path,
            kind,
            mode: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: attributes.mtime,
            xattrs: &attributes.xattrs,
            ..Header::default()
        }
    }

    /// The records of the extended header.
    fn records(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut add = |key: &[u8], value: &[u8]| out.extend_from_slice(&record(key, value));
        if let Some(real) = self.real_size {
            add(b"GNU.sparse.major", b"1");
            add(b"GNU.sparse.minor", b"0");
            add(b"GNU.sparse.name", &self.path);
            add(b"GNU.sparse.realsize", real.to_string().as_bytes());
        } else if self.path.len() > 100 {
            add(b"path", &self.path);
        }
        if self.target.len() > 100 {
            add(b"linkpath", self.target);
        }
        for (key, value, most) in [
            (&b"size"[..], self.size, MOST_SIZE),
            (b"uid", self.uid.into(), MOST_OCTAL.into()),
            (b"gid", self.gid.into(), MOST_OCTAL.into()),
        ] {
            if value > most {
                add(key, value.to_string().as_bytes());
            }
        }
        if self.mtime.nsec != 0 || self.mtime.sec < 0 || self.mtime.sec as u64 > MOST_SIZE {
            add(b"mtime", decimal(self.mtime).as_bytes());
        }
        for (name, value) in self.xattrs {
            add(&[b"SCHILY.xattr.", encoded_name(name).as_slice()].concat(), value);
        }
        out
    }

    fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, len: usize, bytes: &[u8]| {
            block[at..at + bytes.len().min(len)].copy_from_slice(&bytes[..bytes.len().min(len)])
        };
        put(0, 100, &self.path);
        put(100, 8, format!("{:07o}", self.mode).as_bytes());
        put(108, 8, format!("{:07o}", self.uid.min(MOST_OCTAL)).as_bytes());
        put(116, 8, format!("{:07o}", self.gid.min(MOST_OCTAL)).as_bytes());
        put(124, 12, format!("{:011o}", self.size.min(MOST_SIZE)).as_bytes());
        let seconds = self.mtime.sec.clamp(0, MOST_SIZE as i64);
        put(136, 12, format!("{seconds:011o}").as_bytes());
        put(148, 8, b"        ");
        put(156, 1, &[self.kind]);
        put(157, 100, self.target);
        put(257, 8, b"ustar\x0000");
        put(329, 8, format!("{:07o}", self.device.0.min(MOST_OCTAL)).as_bytes());
        put(337, 8, format!("{:07o}", self.device.1.min(MOST_OCTAL)).as_bytes());
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// A time in decimal digits: before 1970 the whole and the fraction count backwards together.
fn decimal(time: Time) -> String {
    let text = match (time.sec < 0, time.nsec) {
        (_, 0) => return time.sec.to_string(),
        (false, nsec) => format!("{}.{nsec:09}", time.sec),
        (true, nsec) => format!("-{}.{:09}", -(time.sec + 1), 1_000_000_000 - nsec),
    };
    text.trim_end_matches('0').to_owned()
}

impl<W: Write> Target for TarTarget<W> {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.entry(&Header::of(path, b'5', &attributes))
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let stored: u64 = content.data.iter().map(|range| range.end - range.start).sum();
        let mut header = Header { size: stored, ..Header::of(path, b'0', &attributes) };
        let mut map = Vec::new();
        if stored < content.size {
            header.real_size = Some(content.size);
            let mut lines = format!("{}\n", content.data.len() + 1);
            for range in &content.data {
                lines.push_str(&format!("{}\n{}\n", range.start, range.end - range.start));
            }
            lines.push_str(&format!("{}\n0\n", content.size));
            map = lines.into_bytes();
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            header.size += map.len() as u64;
        }
        self.entry(&header)?;
        self.out.write_all(&map).map_err(failed)?;
        let copied = io::copy(&mut content.reader.take(stored), &mut self.out).map_err(failed)?;
        if copied < stored {
            return Err(Error::source("the content ends early"));
        }
        let rest = stored.next_multiple_of(BLOCK as u64) - stored;
        self.out.write_all(&[0; BLOCK][..rest as usize]).map_err(failed)
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let header = |kind| Header::of(path, kind, &attributes);
        let header = match &special {
            Special::Symlink(target) => Header { target, ..header(b'2') },
            Special::CharacterDevice(major, minor) => Header { device: (*major, *minor), ..header(b'3') },
            Special::BlockDevice(major, minor) => Header { device: (*major, *minor), ..header(b'4') },
            Special::Fifo => header(b'6'),
            Special::Socket => {
                self.left_out.push(path.to_vec());
                return Ok(());
            }
        };
        self.entry(&header)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let attributes = Attributes::default();
        self.entry(&Header { target: original, ..Header::of(path, b'1', &attributes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_backwards_before_1970() {
        for (sec, nsec, want) in
            [(1, 500_000_000, "1.5"), (-2, 750_000_000, "-1.25"), (-1, 900_000_000, "-0.1"), (-5, 0, "-5")]
        {
            assert_eq!(decimal(Time { sec, nsec }), want);
        }
    }
}
