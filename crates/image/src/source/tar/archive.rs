//! Entries of an archive, one after the other.

use super::header::{BLOCK, Header};
use super::pax::{self, Records};
use super::sparse::{self, Map};
use crate::entry::{Attributes, Time};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Longest name in an entry of its own, as GNU writes them.
const MAX_NAME: u64 = 64 << 10;
/// Most bytes behind the end of an archive.
const MAX_BEHIND: u64 = 1 << 30;

/// An entry.
pub struct Entry {
    /// Its path, as the archive has it.
    pub path: Vec<u8>,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its kind.
    pub kind: EntryKind,
}

/// The kind of an entry.
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A file; its data is read from the archive before the next entry.
    File {
        /// Bytes of the file.
        size: u64,
        /// Where it has data.
        data: Vec<Range<u64>>,
    },
    /// Another name of an earlier entry.
    HardLink(Vec<u8>),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A device.
    CharacterDevice(u32, u32),
    /// A device.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
}

/// An archive that is read from its beginning to its end.
pub struct Archive<'a> {
    reader: Box<dyn Read + 'a>,
    /// Bytes of the entry's data that have not been read.
    left: u64,
    /// Bytes that fill its last block.
    padding: u64,
    globals: Records,
    /// The file, and where in it the reader is.
    seekable: Option<Seekable<'a>>,
}

/// A file whose data can be passed over without reading it.
struct Seekable<'a> {
    file: &'a File,
    at: u64,
    len: u64,
}

impl Read for Seekable<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The extended headers before an entry.
#[derive(Default)]
struct Before {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Option<Records>,
}

impl<'a> Archive<'a> {
    /// The archive that `reader` gives, without compression.
    pub fn new(reader: Box<dyn Read + 'a>) -> Archive<'a> {
        Archive { reader, left: 0, padding: 0, globals: Records::default(), seekable: None }
    }

    /// The archive in a file of `len` bytes: data is passed over without reading it.
    pub fn seekable(file: &'a File, len: u64) -> Archive<'a> {
        let seekable = Some(Seekable { file, at: 0, len });
        Archive { seekable, ..Archive::new(Box::new(io::empty())) }
    }

    /// The place in the file.
    pub fn position(&self) -> u64 {
        self.seekable.as_ref().map_or(0, |seekable| seekable.at)
    }

    /// Reads what follows the archive, to the end of the file. Programs fill the last record, not more.
    pub fn drain(&mut self) -> Result<()> {
        self.skip()?;
        let read = io::copy(&mut self.source().take(MAX_BEHIND), &mut io::sink()).map_err(ends_early)?;
        match read {
            MAX_BEHIND => Err(Error::content(format!("more than {MAX_BEHIND} bytes follow the end of the archive"))),
            _ => Ok(()),
        }
    }

    fn source(&mut self) -> &mut dyn Read {
        match &mut self.seekable {
            Some(seekable) => seekable,
            None => &mut self.reader,
        }
    }

    /// The next entry; what of the last one's data was not read is passed over.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        let mut before = Before::default();
        let mut zeros = 0;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            if header.is_zero() {
                zeros += 1;
                if zeros == 2 {
                    return Ok(None);
                }
                continue;
            }
            zeros = 0;
            header.check()?;
            let size = header.size(124, 12, "size")?;
            match header.kind() {
                b'x' | b'X' => {
                    let bytes = self.small(size, pax::MAX_LEN, "an extended header")?;
                    before.records.get_or_insert_with(|| self.globals.clone()).add(&bytes, pax::MAX_LEN)?;
                }
                b'g' => {
                    let bytes = self.small(size, pax::MAX_GLOBAL_LEN, "a global header")?;
                    self.globals.add(&bytes, pax::MAX_GLOBAL_LEN)?;
                }
                b'L' => before.path = Some(until_nul(self.small(size, MAX_NAME, "a name")?)),
                b'K' => before.target = Some(until_nul(self.small(size, MAX_NAME, "a link's target")?)),
                // A volume's label, a directory's list of names in incremental archives, the rest of a file that began
                // in another volume.
                b'V' => self.begin(size),
                b'M' => return Err(Error::content("the archive is the second volume of several")),
                _ => return self.entry(&header, size, before).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, size: u64, before: Before) -> Result<Entry> {
        let records = before.records.unwrap_or_else(|| self.globals.clone());
        let named = |key: &str| records.get(key).map(<[u8]>::to_vec);
        let name = named("GNU.sparse.name").or_else(|| named("path")).or(before.path);
        let path = name.unwrap_or_else(|| header.path());
        let target = named("linkpath").or(before.target).unwrap_or_else(|| header.text(157, 100).to_vec());
        let about = |error: Error| error.of(&format!("'{}'", path.escape_ascii()));
        let size = records.number("size").map_err(about)?.unwrap_or(size);
        let attributes = attributes(header, &records).map_err(about)?;
        let kind = self.kind(header, &records, size, &path, target).map_err(about)?;
        Ok(Entry { path, attributes, kind })
    }

    fn kind(
        &mut self,
        header: &Header,
        records: &Records,
        size: u64,
        path: &[u8],
        target: Vec<u8>,
    ) -> Result<EntryKind> {
        let numbers = || Ok((number(header, 329, "major number")?, number(header, 337, "minor number")?));
        let kind = match header.kind() {
            // The old form has no type for folders; their names end with a slash, and other programs do likewise.
            b'0' | 0 | b'7' if path.ends_with(b"/") => {
                self.begin(size);
                return Ok(EntryKind::Folder);
            }
            b'0' | 0 | b'7' | b'S' => return self.file(header, records, size),
            // Some programs write the size of the file, but no data.
            b'1' => EntryKind::HardLink(target),
            b'2' => EntryKind::Symlink(target),
            b'3' => numbers().map(|(major, minor)| EntryKind::CharacterDevice(major, minor))?,
            b'4' => numbers().map(|(major, minor)| EntryKind::BlockDevice(major, minor))?,
            b'5' => EntryKind::Folder,
            b'D' => {
                self.begin(size);
                return Ok(EntryKind::Folder);
            }
            b'6' => EntryKind::Fifo,
            kind => {
                return Err(Error::content(format!("an entry of the type '{}' is not known", [kind].escape_ascii())));
            }
        };
        // Sizes of these mean nothing, and no data follows.
        Ok(kind)
    }

    fn file(&mut self, header: &Header, records: &Records, size: u64) -> Result<EntryKind> {
        self.begin(size);
        let (map, real) = if header.kind() == b'S' {
            (self.old_map(header)?, Some(header.size(483, 12, "size")?))
        } else if records.get("GNU.sparse.major") == Some(b"1") {
            let (map, taken) = Map::from_blocks(|block| self.source().read_exact(block).map_err(ends_early))?;
            self.left = self
                .left
                .checked_sub(taken)
                .ok_or_else(|| Error::content("a sparse file's map is longer than the file"))?;
            (map, records.number("GNU.sparse.realsize")?)
        } else if let Some(text) = records.get("GNU.sparse.map") {
            (Map::from_text(text)?, records.number("GNU.sparse.size")?)
        } else if records.get("GNU.sparse.size").is_some() {
            (Map::from_numbers(&records.sparse_map)?, records.number("GNU.sparse.size")?)
        } else {
            let data = if size > 0 { std::iter::once(0..size).collect() } else { Vec::new() };
            return Ok(EntryKind::File { size, data });
        };
        let real = real.ok_or_else(|| Error::content("a sparse file has no size"))?;
        if map.len() != self.left {
            let sentence = format!("a sparse file's map has {} bytes of data, the archive {}", map.len(), self.left);
            return Err(Error::content(sentence));
        }
        Ok(EntryKind::File { size: real, data: map.ranges })
    }

    /// The map of an old sparse file, which goes on in blocks behind the header.
    fn old_map(&mut self, header: &Header) -> Result<Map> {
        let (mut map, mut is_continued) = sparse::old_header(header)?;
        while is_continued {
            let mut block = [0; BLOCK];
            self.source().read_exact(&mut block).map_err(ends_early)?;
            map.add_fields(&block[..504])?;
            is_continued = block[504] != 0;
        }
        Ok(map)
    }

    /// Data of so many bytes follows.
    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    /// Passes over what is left of the data.
    fn skip(&mut self) -> Result<()> {
        let wanted = self.left.saturating_add(self.padding);
        let passed = match &mut self.seekable {
            Some(seekable) => {
                let passed = wanted.min(seekable.len.saturating_sub(seekable.at));
                seekable.at += passed;
                passed
            }
            None => io::copy(&mut self.reader.by_ref().take(wanted), &mut io::sink()).map_err(ends_early)?,
        };
        // Some programs do not fill the last block.
        if passed < self.left {
            return Err(Error::source("the archive ends in the middle of a file"));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; `None` at the end of the file.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut block = Box::new([0; BLOCK]);
        let mut filled = 0;
        while filled < BLOCK {
            match self.source().read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Error::source("the archive ends in the middle of a header")),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ends_early(error)),
            }
        }
        Ok(Some(Header(block)))
    }

    /// Data that is held in memory.
    fn small(&mut self, size: u64, most: u64, what: &str) -> Result<Vec<u8>> {
        if size > most {
            return Err(Error::content(format!("{what} has {size} bytes, at most {most} are possible")));
        }
        self.begin(size);
        let mut bytes = vec![0; size as usize];
        self.read_exact(&mut bytes).map_err(ends_early)?;
        Ok(bytes)
    }
}

impl Read for Archive<'_> {
    /// Reads the data of the entry.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wanted = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.source().read(&mut out[..wanted])?;
        self.left -= read as u64;
        Ok(read)
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(len);
    bytes
}

fn ends_early(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::source("the archive ends early"),
        _ => Error::source(format!("cannot read the archive: {error}")),
    }
}

fn number(header: &Header, at: usize, what: &str) -> Result<u32> {
    u32::try_from(header.number(at, 8, what)?).map_err(|_| Error::content(format!("the {what} is too large")))
}

fn attributes(header: &Header, records: &Records) -> Result<Attributes> {
    let id = |key: &str, at, what: &str| -> Result<u32> {
        let value = match records.number(key)? {
            Some(value) => value,
            None => header.size(at, 8, what)?,
        };
        u32::try_from(value).map_err(|_| Error::content(format!("the {what} {value} is too large")))
    };
    let mtime = match records.time("mtime")? {
        Some(time) => time,
        None => Time { sec: header.number(136, 12, "time")?, nsec: 0 },
    };
    Ok(Attributes {
        mode: header.number(100, 8, "mode")? as u32 & 0o7777,
        uid: id("uid", 108, "user")?,
        gid: id("gid", 116, "group")?,
        mtime,
        atime: records.time("atime")?,
        ctime: records.time("ctime")?,
        btime: records.time("LIBARCHIVE.creationtime")?,
        xattrs: records.xattrs()?,
    })
}
