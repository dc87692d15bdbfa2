//! Send streams as a source: a full one, and those that go on from it. Each subvolume of them is a read-only one of the
//! image; files that a snapshot has unchanged share their content.
//!
//! The streams are received into a filesystem of their own, in a file without a name in the folder for temporary files,
//! by the engine that receives everywhere. Then its subvolumes are read as other sources are.

use super::Source;
use super::filesystem::{Earlier, FilesystemSource};
use crate::assembly::Target;
use crate::entry::Sent;
use crate::error::{Error, Result};
use crate::spool::nameless;
use butterfs::{Device, Filesystem, Mkfs, Profile, Received, ReceivedSubvolume};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The bytes with which a stream begins.
const MAGIC: &[u8] = b"btrfs-stream\0";
/// Bytes of the filesystem that streams are received into: the file takes what is written.
const SCRATCH_BYTES: u64 = 1 << 40;

/// See the [module](self).
pub struct StreamSource {
    streams: Vec<PathBuf>,
}

impl StreamSource {
    /// The streams in these files, in their order; `-` stands for the standard input.
    pub fn new(streams: impl IntoIterator<Item = impl Into<PathBuf>>) -> StreamSource {
        StreamSource { streams: streams.into_iter().map(Into::into).collect() }
    }

    /// Whether a file begins as a stream does.
    pub fn begins(head: &[u8]) -> bool {
        head.starts_with(MAGIC)
    }
}

impl Source for StreamSource {
    fn name(&self) -> String {
        let names: Vec<String> = self.streams.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let filesystem = scratch()?;
        let mut received = Vec::new();
        for path in &self.streams {
            received.extend(receive(&filesystem, path)?.subvolumes);
        }
        put(&filesystem, &received, into)
    }
}

fn receive(filesystem: &Filesystem, path: &Path) -> Result<Received> {
    let input: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin()),
        false => {
            let failed = |error| Error::source(format!("cannot open {}: {error}", path.display()));
            Box::new(File::open(path).map_err(failed)?)
        }
    };
    let received = filesystem.root().receive().read_from(BufReader::with_capacity(1 << 20, input));
    received.map_err(|error| Error::content(format!("{}: {error}", path.display())))
}

/// An empty filesystem in a file without a name.
fn scratch() -> Result<Filesystem> {
    let folder = std::env::temp_dir();
    let shown = folder.display();
    let failed = |error: io::Error| Error::source(format!("cannot make a temporary file in {shown}: {error}"));
    let file = nameless(&folder).map_err(failed)?;
    // Some filesystems have smaller files.
    let lens = [SCRATCH_BYTES, SCRATCH_BYTES >> 4, SCRATCH_BYTES >> 8];
    let mut set = lens.iter().map(|len| file.set_len(*len));
    set.find(std::result::Result::is_ok).unwrap_or_else(|| file.set_len(SCRATCH_BYTES >> 8)).map_err(failed)?;
    let made = || -> butterfs::Result<Filesystem> {
        let device = Device::file(file)?;
        Mkfs::new().device(device.clone()).metadata(Profile::Single).run()?;
        Filesystem::open(device)
    };
    made().map_err(|error| Error::source(format!("cannot receive into a temporary file in {shown}: {error}")))
}

/// Puts the subvolumes, each behind the one that it is a snapshot of.
fn put(filesystem: &Filesystem, received: &[ReceivedSubvolume], into: &mut dyn Target) -> Result<()> {
    let failed = |error: butterfs::Error| Error::source(format!("cannot read what was received: {error}"));
    let mut subvolumes = Vec::new();
    for it in received {
        subvolumes.push(filesystem.subvolume(it.id).map_err(failed)?);
    }
    let mut earlier: FxHashMap<_, (Vec<u8>, Earlier)> = FxHashMap::default();
    for (subvolume, it) in subvolumes.iter().zip(received) {
        let name = subvolume.path.as_os_str().as_bytes().to_vec();
        let top = filesystem.subvolume_root(subvolume.id).map_err(failed)?;
        let parent = subvolume.parent_uuid.and_then(|uuid| earlier.get(&uuid));
        let mut source = FilesystemSource::received(&String::from_utf8_lossy(&name), top, &name);
        let is_parent =
            |other: &butterfs::SubvolumeInfo| other.parent_uuid == subvolume.uuid && subvolume.uuid.is_some();
        if subvolumes.iter().any(is_parent) {
            source = source.remembering();
        }
        if let Some((_, files)) = parent {
            source = source.after(files);
        }
        source.read(into)?;
        let sent = Sent { uuid: *it.uuid.as_bytes(), generation: it.generation };
        into.subvolume(&name, parent.map(|(name, _)| name.as_slice()), Some(sent))?;
        if let Some((uuid, files)) = subvolume.uuid.zip(source.remembered()) {
            earlier.insert(uuid, (name, files));
        }
    }
    Ok(())
}
