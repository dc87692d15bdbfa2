//! A tar stream: ustar headers, and pax records for what those have no room for: long names, times to the nanosecond,
//! extended attributes (`SCHILY.xattr`, as GNU tar and bsdtar read them), sparse files (`GNU.sparse` 1.0).
//!
//! Invariants: (1) the stream is written in one go, and a file has exactly as many bytes as its header says, whatever
//! its source gives; (2) it has each path once, and nothing below what is no directory: nothing is replaced or led
//! elsewhere where it is unpacked.

use super::written::{Kind, Written};
use super::{Attributes, Incoming, Made, Moment, Path, Sink};
use std::io::{self, Write};
use std::ops::Range;
use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// The largest owner that a field of seven octal digits holds.
const LARGEST_ID: u32 = 0o7_777_777;
/// The largest size that a field of eleven octal digits holds.
const LARGEST_SIZE: u64 = 0o77_777_777_777;

/// See the [module](self).
#[derive(Debug)]
pub struct Tar<W: Write> {
    out: W,
    complaints: Vec<String>,
    lacking: Vec<String>,
    written: Written,
}

impl<W: Write> Tar<W> {
    /// A stream that goes to `out`.
    pub fn new(out: W) -> Tar<W> {
        Tar { out, complaints: Vec::new(), lacking: Vec::new(), written: Written::default() }
    }

    /// Notes a path of something that is no directory; `false`: it is taken.
    fn take(&mut self, path: &Path) -> io::Result<bool> {
        let is_free = self.written.kind(path).is_none();
        if is_free {
            self.written.add(path, Kind::Other)?;
        }
        Ok(is_free)
    }

    fn begin(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let left_out = entry.xattrs_left_out();
        self.lacking.extend(
            left_out.map(|name| {
                format!("extended attribute {} has no place in a tar stream", String::from_utf8_lossy(name))
            }),
        );
        let records = entry.records();
        if !records.is_empty() {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::XHeader);
            header.set_size(records.len() as u64);
            header.set_mode(0o644);
            set_name(&mut header, b"pax");
            header.set_cksum();
            self.out.write_all(header.as_bytes())?;
            self.out.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.out.write_all(entry.header().as_bytes())
    }

    fn pad(&mut self, len: u64) -> io::Result<()> {
        let rest = (len.next_multiple_of(BLOCK as u64) - len) as usize;
        self.out.write_all(&[0; BLOCK][..rest])
    }

    fn zeros(&mut self, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let now = len.min(1 << 16) as usize;
            self.out.write_all(&ZEROS[..now])?;
            len -= now as u64;
        }
        Ok(())
    }

    /// Writes the bytes of all ranges, zeros for those that the source leaves out.
    fn content(
        &mut self,
        ranges: &[Range<u64>],
        fill: &mut dyn FnMut(&mut super::Take<'_>) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut cursor = Cursor { ranges, index: 0, at: ranges.first().map_or(0, |range| range.start) };
        let mut written = 0;
        let filled = fill(&mut |offset, bytes| {
            let (gap, len) = cursor.take(offset, bytes.len() as u64);
            self.zeros(gap)?;
            self.out.write_all(&bytes[..len as usize])?;
            written += gap + len;
            Ok(())
        });
        let rest = cursor.rest();
        self.zeros(rest)?;
        filled.map(|()| written + rest)
    }
}

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Where in the ranges the stream is.
struct Cursor<'a> {
    ranges: &'a [Range<u64>],
    index: usize,
    at: u64,
}

impl Cursor<'_> {
    /// Goes to `offset` and behind `len` bytes, which lie in one range: bytes that were left out before, and bytes that
    /// fit.
    fn take(&mut self, offset: u64, len: u64) -> (u64, u64) {
        let mut gap = 0;
        while let Some(range) = self.ranges.get(self.index) {
            if offset < range.end {
                gap += offset.saturating_sub(self.at);
                let len = len.min(range.end - offset.max(self.at).min(range.end));
                self.at = (offset + len).max(self.at);
                return (gap, if offset < range.start { 0 } else { len });
            }
            gap += range.end - self.at;
            self.index += 1;
            self.at = self.ranges.get(self.index).map_or(range.end, |next| next.start);
        }
        (gap, 0)
    }

    fn rest(&mut self) -> u64 {
        let mut rest = 0;
        while let Some(range) = self.ranges.get(self.index) {
            rest += range.end - self.at;
            self.index += 1;
            self.at = self.ranges.get(self.index).map_or(0, |next| next.start);
        }
        rest
    }
}

/// An entry of the stream.
struct Entry<'a> {
    kind: EntryType,
    path: Vec<u8>,
    target: Option<Vec<u8>>,
    size: u64,
    /// The real size of a sparse file.
    sparse: Option<u64>,
    attributes: &'a Attributes,
}

fn joined(path: &Path) -> Vec<u8> {
    path.join(&b'/')
}

impl<'a> Entry<'a> {
    fn new(kind: EntryType, path: &Path, attributes: &'a Attributes) -> Entry<'a> {
        let mut path = joined(path);
        if kind == EntryType::Directory {
            path.push(b'/');
        }
        Entry { kind, path, target: None, size: 0, sparse: None, attributes }
    }

    fn header(&self) -> Header {
        let mut header = Header::new_ustar();
        let Attributes { mode, uid, gid, mtime, device, .. } = *self.attributes;
        header.set_entry_type(self.kind);
        header.set_mode(mode & 0o7777);
        header.set_uid(u64::from(if uid <= LARGEST_ID { uid } else { 0 }));
        header.set_gid(u64::from(if gid <= LARGEST_ID { gid } else { 0 }));
        header.set_size(if self.size <= LARGEST_SIZE { self.size } else { 0 });
        header.set_mtime(u64::try_from(mtime.0).unwrap_or(0).min(LARGEST_SIZE));
        if matches!(self.kind, EntryType::Char | EntryType::Block) {
            // Numbers of seven digits always fit: there are 20 bits at most.
            let _ = header.set_device_major(device.0 & 0xf_ffff);
            let _ = header.set_device_minor(device.1 & 0xf_ffff);
        }
        let name =
            if self.sparse.is_some() { [b"GNUSparseFile.0/", &self.path[..]].concat() } else { self.path.clone() };
        set_name(&mut header, &name);
        if let Some(target) = &self.target {
            let field = &mut header.as_ustar_mut().expect("it is one").linkname;
            let len = target.len().min(field.len());
            field[..len].copy_from_slice(&target[..len]);
        }
        header.set_cksum();
        header
    }

    /// Extended attributes whose names no record can have.
    fn xattrs_left_out(&self) -> impl Iterator<Item = &'a Vec<u8>> + use<'a> {
        self.attributes.xattrs.keys().filter(|name| !fits_record(name))
    }

    /// The records for values that the header has no room for.
    fn records(&self) -> Vec<u8> {
        let mut records = Vec::new();
        let Attributes { uid, gid, atime, mtime, ctime, .. } = *self.attributes;
        if let Some(size) = self.sparse {
            record(&mut records, b"GNU.sparse.major", b"1");
            record(&mut records, b"GNU.sparse.minor", b"0");
            record(&mut records, b"GNU.sparse.name", &self.path);
            record(&mut records, b"GNU.sparse.realsize", size.to_string().as_bytes());
        } else if self.path.len() > 100 || !self.path.is_ascii() {
            record(&mut records, b"path", &self.path);
        }
        if let Some(target) = self.target.as_ref().filter(|target| target.len() > 100 || !target.is_ascii()) {
            record(&mut records, b"linkpath", target);
        }
        if self.size > LARGEST_SIZE {
            record(&mut records, b"size", self.size.to_string().as_bytes());
        }
        for (name, id) in [(b"uid", uid), (b"gid", gid)] {
            if id > LARGEST_ID {
                record(&mut records, name, id.to_string().as_bytes());
            }
        }
        if self.kind != EntryType::Link {
            for (name, time) in [(b"mtime", mtime), (b"atime", atime), (b"ctime", ctime)] {
                record(&mut records, name, decimal(time).as_bytes());
            }
            for (name, value) in self.attributes.xattrs.iter().filter(|(name, _)| fits_record(name)) {
                record(&mut records, &[b"SCHILY.xattr.", &name[..]].concat(), value);
            }
        }
        records
    }
}

/// Seconds with nine digits, the way that rounds to no other side for times before 1970.
fn decimal((sec, nsec): Moment) -> String {
    let nsec = nsec.min(999_999_999);
    if sec < 0 && nsec > 0 {
        let whole = (sec + 1).unsigned_abs();
        return format!("-{whole}.{:09}", 1_000_000_000 - nsec);
    }
    format!("{sec}.{nsec:09}")
}

fn fits_record(name: &[u8]) -> bool {
    !name.contains(&b'=')
}

/// Appends `LEN KEY=VALUE\n`, whose length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(format!("{len} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The end of a name that does not fit: the record has all of it.
fn set_name(header: &mut Header, name: &[u8]) {
    let field = &mut header.as_ustar_mut().expect("it is one").name;
    let len = name.len().min(field.len());
    field[..len].copy_from_slice(&name[..len]);
}

impl<W: Write> Sink for Tar<W> {
    fn directory(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        let mut entry = Entry::new(EntryType::Directory, path, attributes);
        if path.is_empty() {
            entry.path = b"./".to_vec();
        }
        let kind = if attributes.is_wanted { Kind::Folder } else { Kind::PlainFolder };
        match (self.written.kind(path), kind) {
            (Some(Kind::Other), _) => {
                let message = "something else has the name of this directory";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            (Some(Kind::PlainFolder), Kind::Folder) => {
                self.lacking.push("the stream has the directory already, without owner, mode and times".to_owned());
                self.written.note(path, kind);
                return Ok(());
            }
            (Some(_), _) => return Ok(()),
            (None, _) => self.written.add(path, kind)?,
        }
        self.begin(&entry)
    }

    fn leave(&mut self, _: &Path, _: &Attributes) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, path: &Path, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        if !self.take(path)? {
            return Ok(Made::Taken);
        }
        let mut entry = Entry::new(EntryType::Regular, path, attributes);
        let data: u64 = incoming.ranges.iter().map(|range| range.end - range.start).sum();
        let map = map_of(incoming.ranges, incoming.size);
        if data + map.len() as u64 >= incoming.size {
            let all = 0..incoming.size;
            let whole = std::slice::from_ref(&all);
            entry.size = incoming.size;
            self.begin(&entry)?;
            let ranges = if incoming.size == 0 { &[][..] } else { whole };
            let written = self.content(ranges, incoming.fill)?;
            self.pad(written)?;
            return Ok(Made::Yes);
        }
        entry.sparse = Some(incoming.size);
        entry.size = map.len() as u64 + data;
        self.begin(&entry)?;
        self.out.write_all(&map)?;
        let written = self.content(incoming.ranges, incoming.fill)?;
        self.pad(written)?;
        Ok(Made::Yes)
    }

    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        if !self.take(path)? {
            return Ok(Made::Taken);
        }
        let mut entry = Entry::new(EntryType::Symlink, path, attributes);
        entry.target = Some(target.to_vec());
        self.begin(&entry).map(|()| Made::Yes)
    }

    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made> {
        let kind = match attributes.mode & crate::subvolume::TYPE_MASK {
            0o020000 => EntryType::Char,
            0o060000 => EntryType::Block,
            0o010000 => EntryType::Fifo,
            _ => {
                self.complaints.push(format!("{}: a socket has no place in a tar stream", super::shown(path)));
                return Ok(Made::LeftOut);
            }
        };
        if !self.take(path)? {
            return Ok(Made::Taken);
        }
        self.begin(&Entry::new(kind, path, attributes)).map(|()| Made::Yes)
    }

    fn link(&mut self, path: &Path, first: &Path) -> io::Result<Made> {
        if !self.take(path)? {
            return Ok(Made::Taken);
        }
        let attributes = Attributes { mode: 0o644, ..Attributes::default() };
        let mut entry = Entry::new(EntryType::Link, path, &attributes);
        entry.target = Some(joined(first));
        self.begin(&entry).map(|()| Made::Yes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()
    }

    fn lacking(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lacking)
    }

    fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }
}

/// The map of a sparse file: how many ranges, then offset and length of each, and the end; whole blocks.
fn map_of(ranges: &[Range<u64>], size: u64) -> Vec<u8> {
    let ends_in_hole = ranges.last().is_none_or(|last| last.end < size);
    let count = ranges.len() + usize::from(ends_in_hole);
    let mut map = format!("{count}\n");
    for range in ranges {
        map.push_str(&format!("{}\n{}\n", range.start, range.end - range.start));
    }
    if ends_in_hole {
        map.push_str(&format!("{size}\n0\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_themselves() {
        for len in [1, 90, 91, 92, 93, 94, 95, 990, 991, 992] {
            let mut records = Vec::new();
            record(&mut records, b"path", &vec![b'a'; len]);
            let said: usize = String::from_utf8_lossy(&records).split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, records.len(), "{len}");
        }
        assert_eq!(decimal((-2, 750_000_000)), "-1.250000000");
        assert_eq!(decimal((7, 5)), "7.000000005");
    }

    #[test]
    fn what_is_left_out_is_zero_and_what_is_too_much_is_cut() {
        let written = |pieces: &[(u64, usize)]| {
            let mut tar = Tar::new(Vec::new());
            let ranges = [4..8, 20..30];
            tar.content(&ranges, &mut |take| pieces.iter().try_for_each(|(at, len)| take(*at, &vec![b'x'; *len])))
                .unwrap();
            String::from_utf8(tar.out).unwrap().replace('\0', ".")
        };
        assert_eq!(written(&[(4, 4), (20, 10)]), "xxxxxxxxxxxxxx");
        assert_eq!(written(&[]), "..............");
        assert_eq!(written(&[(6, 2), (22, 3)]), "..xx..xxx.....");
        assert_eq!(written(&[(20, 100)]), "....xxxxxxxxxx");
        assert_eq!(written(&[(40, 5)]), "..............");
    }
}
