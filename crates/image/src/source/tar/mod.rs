//! An archive of tar as a source: ustar, GNU with long names and sparse files, PAX with attributes, ACLs and
//! capabilities; plain, or compressed with gzip, zstd or xz.
//!
//! # Invariants
//! 1. Memory is bounded whatever the archive says: extended headers, maps of sparse files and decoders have limits.
//! 2. Owners are numbers; names of users in an archive mean nothing here.
//! 3. An archive that breaks a rule ends in an error that names the entry.
//! 4. An archive is read to the end of its file, so that what its compression says about damage is heard.

mod acl;
mod archive;
mod compression;
mod header;
mod pax;
mod sparse;

pub(crate) use archive::{Archive, Entry, EntryKind};
pub(crate) use compression::decoded;
pub(crate) use pax::{MAX_LEN, RECORD_COST, encoded_name};

use super::Source;
use crate::assembly::Target;
use crate::entry::{Content, Special};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// See the [module](self).
pub struct TarSource {
    name: String,
    reader: Box<dyn Read + Send>,
}

impl TarSource {
    /// The archive in a file; `-` stands for the standard input.
    pub fn open(path: impl AsRef<Path>) -> Result<TarSource> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Ok(TarSource::new("standard input", std::io::stdin()));
        }
        let file =
            File::open(path).map_err(|error| Error::source(format!("cannot open {}: {error}", path.display())))?;
        Ok(TarSource::new(path.display().to_string(), file))
    }

    /// An archive that a reader gives.
    pub fn new(name: impl Into<String>, reader: impl Read + Send + 'static) -> TarSource {
        TarSource { name: name.into(), reader: Box::new(reader) }
    }
}

impl Source for TarSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let reader = BufReader::with_capacity(1 << 20, std::mem::replace(&mut self.reader, Box::new(std::io::empty())));
        let mut archive = Archive::new(decoded(Box::new(reader))?);
        while let Some(entry) = archive.next()? {
            put(entry, &mut archive, into)?;
        }
        // The checksums of compressed archives stand at their end.
        archive.drain()
    }
}

/// Puts an entry of an archive, with its content, into the assembly.
pub(crate) fn put(entry: Entry, archive: &mut Archive<'_>, into: &mut dyn Target) -> Result<()> {
    let Entry { path, attributes, kind } = entry;
    match kind {
        EntryKind::Folder => into.folder(&path, attributes),
        EntryKind::File { size, data } => {
            into.file(&path, attributes, Content { size, data, reader: archive, file: None })
        }
        EntryKind::HardLink(original) => into.hard_link(&path, &original),
        EntryKind::Symlink(target) => into.special(&path, attributes, Special::Symlink(target)),
        EntryKind::CharacterDevice(major, minor) => {
            into.special(&path, attributes, Special::CharacterDevice(major, minor))
        }
        EntryKind::BlockDevice(major, minor) => into.special(&path, attributes, Special::BlockDevice(major, minor)),
        EntryKind::Fifo => into.special(&path, attributes, Special::Fifo),
    }
}
