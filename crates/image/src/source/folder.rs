//! A folder of this machine as a source: names, contents with their holes, owners, modes, times, attributes, links,
//! devices.
//!
//! # Invariants
//! 1. Entries are read in the order of their names, so that nothing depends on the host's filesystem.
//! 2. Everything is reached by a name in an open folder, and no symbolic link below the top is followed, also when
//!    somebody changes the folder meanwhile.
//! 3. Status comes through the standard library, which calls libc: programs that fake owners by preloading (fakeroot)
//!    are believed.

use super::ranges::RangeReader;
use super::{Source, child, in_order};
use crate::assembly::Target;
use crate::descent::Descent;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, Result};
use crate::host::{open_folder, through};
use rustc_hash::FxHashMap;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
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

/// The type of an entry, as far as its folder says it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    File,
    Folder,
    Other,
}

impl FolderSource {
    /// Everything in `top`, and its own attributes.
    pub fn new(top: impl Into<PathBuf>) -> FolderSource {
        FolderSource { top: top.into(), links: FxHashMap::default() }
    }

    /// Puts one file, link or device of this machine at `path` of a target.
    pub fn read_one(host: &Path, path: &[u8], into: &mut dyn Target) -> Result<()> {
        let failed = |error: io::Error| cannot_read(host, &error);
        let metadata = std::fs::symlink_metadata(host).map_err(failed)?;
        if metadata.is_file() {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
            let file = File::options().read(true).custom_flags(flags).open(host).map_err(failed)?;
            return FolderSource::new(host).read_file(path, host, &file, into);
        }
        FolderSource::new(host).read_special(path, host, host, into)
    }

    /// Puts what an open folder has under a name into the assembly; the entries in it, if it is a folder.
    fn visit(
        &mut self,
        above: &OwnedFd,
        path: &[u8],
        kind: Kind,
        into: &mut dyn Target,
    ) -> Result<Option<Vec<(Vec<u8>, Kind)>>> {
        let whole = self.top.join(OsStr::from_bytes(path));
        let failed = |error: io::Error| cannot_read(&whole, &error);
        let name = path.rsplit(|byte| *byte == b'/').next().expect("there is a last name");
        let open = |flags: OFlags| -> io::Result<File> {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(above, OsStr::from_bytes(name), flags, Mode::empty())?.into())
        };
        match kind {
            Kind::File => {
                let file = open(OFlags::NONBLOCK).map_err(failed)?;
                self.read_file(path, &whole, &file, into).map(|()| None)
            }
            Kind::Folder => {
                let folder = open(OFlags::DIRECTORY).map_err(failed)?;
                let attributes = attributes_of(&folder).map_err(failed)?;
                into.folder(path, attributes)?;
                entries(&folder).map(Some).map_err(failed)
            }
            Kind::Other => {
                self.read_special(path, &through(above).join(OsStr::from_bytes(name)), &whole, into).map(|()| None)
            }
        }
    }

    /// Hands over a file that is open, or a link to its first name.
    fn read_file(&mut self, path: &[u8], whole: &Path, file: &File, into: &mut dyn Target) -> Result<()> {
        let failed = |error: io::Error| cannot_read(whole, &error);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::source(format!("{} has changed while it was read", whole.display())));
        }
        if self.is_linked(path, &metadata, into)? {
            return Ok(());
        }
        let attributes = attributes(&metadata, xattrs(Place::File(file)).map_err(failed)?);
        let size = metadata.len();
        let data = data_ranges(file, size).map_err(failed)?;
        let mut reader = RangeReader::new(data.clone(), |out, at| file.read_at(out, at));
        into.file(path, attributes, Content { size, data, reader: &mut reader, file: Some(file) })
    }

    /// Hands over a link, a device, a FIFO or a socket, which is reached by the path `host`.
    fn read_special(&mut self, path: &[u8], host: &Path, whole: &Path, into: &mut dyn Target) -> Result<()> {
        let failed = |error: io::Error| cannot_read(whole, &error);
        let metadata = std::fs::symlink_metadata(host).map_err(failed)?;
        if metadata.is_dir() || metadata.is_file() {
            return Err(Error::source(format!("{} has changed while it was read", whole.display())));
        }
        if self.is_linked(path, &metadata, into)? {
            return Ok(());
        }
        let attributes = attributes(&metadata, xattrs(Place::Path(host)).map_err(failed)?);
        into.special(path, attributes, special(host, &metadata).map_err(failed)?)
    }

    /// Makes a link where the inode has been met under another name.
    fn is_linked(&mut self, path: &[u8], metadata: &Metadata, into: &mut dyn Target) -> Result<bool> {
        if metadata.nlink() > 1 {
            match self.links.entry((metadata.dev(), metadata.ino())) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    return into.hard_link(path, first.get()).map(|()| true);
                }
                std::collections::hash_map::Entry::Vacant(place) => place.insert(path.to_vec()),
            };
        }
        Ok(false)
    }
}

impl Source for FolderSource {
    fn name(&self) -> String {
        self.top.display().to_string()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let top = self.top.clone();
        let failed = |error: io::Error| cannot_read(&top, &error);
        let folder = File::open(&top).map_err(failed)?;
        if !folder.metadata().map_err(failed)?.is_dir() {
            return Err(Error::source(format!("{} is no folder", top.display())));
        }
        into.folder(b"", attributes_of(&folder).map_err(failed)?)?;
        let names = entries(&folder).map_err(failed)?;
        let mut way = Descent::new(OwnedFd::from(folder));
        in_order(names, |folder, name, kind| {
            let path = child(folder, name)?;
            let open = |above: &OwnedFd, _: &[u8], name: &[u8]| open_folder(above, name);
            let above =
                way.enter(folder, open).map_err(|error| cannot_read(&top.join(OsStr::from_bytes(folder)), &error))?;
            self.visit(above, &path, kind, into)
        })
    }
}

/// The entries of a folder.
fn entries(folder: &File) -> io::Result<Vec<(Vec<u8>, Kind)>> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some filesystems do not say it.
            FileType::Unknown => {
                let found = rustix::fs::statat(folder, entry.file_name(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            known => known,
        };
        let kind = match kind {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            _ => Kind::Other,
        };
        found.push((name.to_vec(), kind));
    }
    Ok(found)
}

fn cannot_read(path: &Path, error: &io::Error) -> Error {
    Error::source(format!("cannot read {}: {error}", path.display()))
}

fn attributes(metadata: &Metadata, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Attributes {
    Attributes {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: Time { sec: metadata.mtime(), nsec: metadata.mtime_nsec() as u32 },
        // Reading a source changes access times, and no tool can set those of changes: both would differ from build to
        // build.
        atime: None,
        ctime: None,
        btime: None,
        xattrs,
    }
}

fn attributes_of(folder: &File) -> io::Result<Attributes> {
    Ok(attributes(&folder.metadata()?, xattrs(Place::File(folder))?))
}

/// Something that has attributes.
#[derive(Clone, Copy)]
enum Place<'a> {
    File(&'a File),
    /// A path whose last name is not followed.
    Path(&'a Path),
}

impl Place<'_> {
    fn list(self, out: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Place::File(file) => rustix::fs::flistxattr(file, out),
            Place::Path(path) => rustix::fs::llistxattr(path, out),
        }
    }

    fn get(self, name: &[u8], out: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Place::File(file) => rustix::fs::fgetxattr(file, name, out),
            Place::Path(path) => rustix::fs::lgetxattr(path, name, out),
        }
    }
}

fn xattrs(place: Place<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none.
    let mut list = vec![0; 1024];
    let len = match place.list(&mut list) {
        Ok(len) => len,
        Err(rustix::io::Errno::RANGE) => {
            list.resize(64 << 10, 0);
            place.list(&mut list)?
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
        let len = place.get(name, &mut value)?;
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

/// Where a file has data. Most files have no hole, which one call says. The blocks that a file takes do not: attributes
/// and space that is set aside count there too.
fn data_ranges(file: &File, size: u64) -> io::Result<Vec<Range<u64>>> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if rustix::fs::seek(file.as_fd(), SeekFrom::Hole(0)).is_ok_and(|hole| hole >= size) {
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
