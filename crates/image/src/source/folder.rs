//! A folder of this machine as a source: names, contents with their holes, owners, modes, times, attributes, links,
//! devices.
//!
//! Entries are read in the order of their names, the files of a folder before what is in its folders, so that nothing
//! depends on the host's filesystem. Status comes through the standard library, which calls libc: programs that fake
//! owners by preloading (fakeroot) are believed.

use super::Source;
use super::ranges::RangeReader;
use crate::assembly::Target;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, Result};
use rustc_hash::FxHashMap;
use rustix::fs::SeekFrom;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Attributes that say something about the filesystem they are on, not about the file.
const OF_THE_HOST: &[&[u8]] = &[b"trusted.overlay.", b"user.overlay.", b"btrfs."];

/// See the [module](self).
pub struct FolderSource {
    top: PathBuf,
    /// The image's path of each file that has several names, by device and inode.
    links: FxHashMap<(u64, u64), Vec<u8>>,
}

impl FolderSource {
    /// Everything in `top`, and its own attributes.
    pub fn new(top: impl Into<PathBuf>) -> FolderSource {
        FolderSource { top: top.into(), links: FxHashMap::default() }
    }

    /// Puts one file, link or device of this machine at `path` of a target.
    pub fn read_one(host: &Path, path: &[u8], into: &mut dyn Target) -> Result<()> {
        let metadata = std::fs::symlink_metadata(host).map_err(|error| cannot_read(host, &error))?;
        FolderSource::new(host).read_entry(path, host, &metadata, into)
    }

    fn host_path(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.top.clone() } else { self.top.join(std::ffi::OsStr::from_bytes(path)) }
    }

    /// Puts a folder's entries into the assembly; returns the folders among them.
    fn read_folder(&mut self, folder: &[u8], into: &mut dyn Target) -> Result<Vec<Vec<u8>>> {
        let host = self.host_path(folder);
        let mut names: Vec<Vec<u8>> = std::fs::read_dir(&host)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name().into_vec())).collect())
            .map_err(|error| cannot_read(&host, &error))?;
        names.sort_unstable();
        let mut folders = Vec::new();
        for name in names {
            let path = if folder.is_empty() { name } else { [folder, b"/", &name].concat() };
            let host = self.host_path(&path);
            let metadata = std::fs::symlink_metadata(&host).map_err(|error| cannot_read(&host, &error))?;
            let is_folder = metadata.is_dir();
            self.read_entry(&path, &host, &metadata, into)?;
            folders.extend(is_folder.then_some(path));
        }
        Ok(folders)
    }

    fn read_entry(&mut self, path: &[u8], host: &Path, metadata: &Metadata, into: &mut dyn Target) -> Result<()> {
        let attributes = attributes(host, metadata).map_err(|error| cannot_read(host, &error))?;
        if metadata.is_dir() {
            return into.folder(path, attributes);
        }
        if metadata.nlink() > 1 {
            match self.links.entry((metadata.dev(), metadata.ino())) {
                std::collections::hash_map::Entry::Occupied(first) => return into.hard_link(path, first.get()),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(path.to_vec()),
            };
        }
        if metadata.is_file() {
            return read_file(path, host, metadata.len(), attributes, into);
        }
        into.special(path, attributes, special(host, metadata).map_err(|error| cannot_read(host, &error))?)
    }
}

impl Source for FolderSource {
    fn name(&self) -> String {
        self.top.display().to_string()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let host = self.top.clone();
        let metadata = std::fs::metadata(&host).map_err(|error| cannot_read(&host, &error))?;
        if !metadata.is_dir() {
            return Err(Error::source(format!("{} is no folder", host.display())));
        }
        into.folder(b"", attributes(&host, &metadata).map_err(|error| cannot_read(&host, &error))?)?;
        let mut waiting = vec![Vec::new()];
        while let Some(folder) = waiting.pop() {
            let folders = self.read_folder(&folder, into)?;
            waiting.extend(folders.into_iter().rev());
        }
        Ok(())
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Error {
    Error::source(format!("cannot read {}: {error}", path.display()))
}

fn attributes(host: &Path, metadata: &Metadata) -> io::Result<Attributes> {
    Ok(Attributes {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: Time { sec: metadata.mtime(), nsec: metadata.mtime_nsec() as u32 },
        // Reading a source changes access times, and no tool can set those of changes: both would differ from build to
        // build.
        atime: None,
        ctime: None,
        btime: None,
        xattrs: xattrs(host)?,
    })
}

fn xattrs(host: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none.
    let mut list = vec![0; 1024];
    let len = match rustix::fs::llistxattr(host, &mut list) {
        Ok(len) => len,
        Err(rustix::io::Errno::RANGE) => {
            list.resize(64 << 10, 0);
            rustix::fs::llistxattr(host, &mut list)?
        }
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if OF_THE_HOST.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(host, name, &mut value)?;
        value.truncate(len);
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

fn special(host: &Path, metadata: &Metadata) -> io::Result<Special> {
    let kind = metadata.file_type();
    let rdev = metadata.rdev();
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    Ok(if kind.is_symlink() {
        Special::Symlink(std::fs::read_link(host)?.into_os_string().into_vec())
    } else if kind.is_char_device() {
        Special::CharacterDevice(major, minor)
    } else if kind.is_block_device() {
        Special::BlockDevice(major, minor)
    } else if kind.is_fifo() {
        Special::Fifo
    } else {
        Special::Socket
    })
}

fn read_file(path: &[u8], host: &Path, size: u64, attributes: Attributes, into: &mut dyn Target) -> Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(flags.bits() as i32).open(host);
    let file = opened.map_err(|error| cannot_read(host, &error))?;
    let data = data_ranges(&file, size, blocks_of(&file)).map_err(|error| cannot_read(host, &error))?;
    let mut reader = RangeReader::new(data.clone(), |out, at| file.read_at(out, at));
    into.file(path, attributes, Content { size, data, reader: &mut reader, file: Some(&file) })
}

/// Blocks of 512 bytes that a file takes.
fn blocks_of(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.blocks())
}

/// Files up to this size that take as much as they are long have no holes.
const SMALL: u64 = 64 << 10;

/// Where a file has data.
fn data_ranges(file: &File, size: u64, blocks: u64) -> io::Result<Vec<Range<u64>>> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if blocks * 512 >= size && size <= SMALL {
        return Ok(std::iter::once(0..size).collect());
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file.as_fd(), SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) if ranges.is_empty() => return Ok(std::iter::once(0..size).collect()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file.as_fd(), SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}
