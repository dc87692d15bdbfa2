//! A folder of a btrfs filesystem that is open in this program, as a source: another image, or the same one.

use super::ranges::RangeReader;
use super::{Names, Source, child, in_order};
use crate::assembly::Target;
use crate::descent::Descent;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, Result, shown};
use butterfs::{Dir, File, FileType, Follow, Metadata, Node, Timestamp};
use rustc_hash::FxHashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

/// A folder of a filesystem.
pub struct FilesystemSource {
    name: String,
    top: Dir,
    way: Descent<Dir>,
    /// The first path of each file that has several names, by subvolume and inode.
    links: FxHashMap<(u64, u64), Vec<u8>>,
    /// The folder of the target below which everything goes, with a slash behind it, or nothing.
    at: Vec<u8>,
    /// Whether it was made just now: times of births and of changes of attributes say nothing.
    is_new: bool,
    /// The subvolume that this one is a snapshot of.
    parent: Option<Earlier>,
    /// The files of this one, if later ones are snapshots of it.
    files: Option<FxHashMap<u64, Vec<u8>>>,
}

/// A subvolume that has been read: where it is in the target, and its files by their inode.
#[derive(Clone)]
pub(super) struct Earlier {
    top: Dir,
    at: Vec<u8>,
    files: Arc<FxHashMap<u64, Vec<u8>>>,
}

/// Files up to this size lie inside of an item, where nothing is shared.
const MIN_SHARED: u64 = 2048;

impl FilesystemSource {
    /// Everything in `top`, which messages call `name`. Subvolumes below it are folders.
    pub fn new(name: impl Into<String>, top: Dir) -> FilesystemSource {
        let (name, links, way) = (name.into(), FxHashMap::default(), Descent::new(top.clone()));
        FilesystemSource { name, top, way, links, at: Vec::new(), is_new: false, parent: None, files: None }
    }

    /// A subvolume that was received just now; everything goes below the folder `at` of the target.
    pub(super) fn received(name: &str, top: Dir, at: &[u8]) -> FilesystemSource {
        FilesystemSource { at: [at, b"/"].concat(), is_new: true, ..FilesystemSource::new(name, top) }
    }

    fn attributes(&self, node: &Node, metadata: &Metadata) -> butterfs::Result<Attributes> {
        let attributes = attributes(node, metadata)?;
        Ok(if self.is_new { Attributes { ctime: None, btime: None, ..attributes } } else { attributes })
    }

    /// Remembers its files for snapshots of it.
    pub(super) fn remembering(self) -> FilesystemSource {
        FilesystemSource { files: Some(FxHashMap::default()), ..self }
    }

    /// The subvolume is a snapshot of another one: files with the same inode and content are the same there.
    pub(super) fn after(self, parent: &Earlier) -> FilesystemSource {
        FilesystemSource { parent: Some(parent.clone()), ..self }
    }

    /// The files that were remembered.
    pub(super) fn remembered(self) -> Option<Earlier> {
        let (top, at) = (self.top, self.at);
        self.files.map(|files| Earlier { top, at, files: Arc::new(files) })
    }

    /// The target's path of the file in the subvolume before that has the same inode and content.
    fn unchanged(&self, file: &File, metadata: &Metadata, data: &[Range<u64>]) -> butterfs::Result<Option<Vec<u8>>> {
        let Some(parent) = self.parent.as_ref().filter(|_| metadata.len() > MIN_SHARED) else { return Ok(None) };
        let Some(path) = parent.files.get(&metadata.id().number) else { return Ok(None) };
        let other = parent.top.open_file(as_path(path))?;
        let len = metadata.len();
        let is_same = other.metadata()?.len() == len
            && data_ranges(&other, len)? == data
            && data.iter().all(|range| matches!(same_bytes(file, &other, range), Ok(true)));
        Ok(is_same.then(|| [parent.at.as_slice(), path].concat()))
    }

    /// Puts one file, link or device below `top` at `to` of a target.
    pub fn read_one(&mut self, path: &Path, to: &[u8], into: &mut dyn Target) -> Result<()> {
        let top = self.top.clone();
        self.read_entry(&top, path, path.as_os_str().as_bytes(), to, into).map(drop)
    }

    /// Hands over what a folder has under a name; the names in it, if it is a folder.
    fn visit(&mut self, folder: &[u8], name: &[u8], into: &mut dyn Target) -> Result<Option<Names<()>>> {
        let path = child(folder, name)?;
        let to = [self.at.as_slice(), &path].concat();
        let open = |above: &Dir, _: &[u8], name: &[u8]| above.open_dir(as_path(name));
        let here = self.way.enter(folder, open).map_err(|error| cannot_read(folder, &error))?.clone();
        let is_folder = self.read_entry(&here, as_path(name), &path, &to, into)?;
        is_folder.then(|| names(&path, self.way.enter(&path, open))).transpose()
    }

    /// Hands over one entry of a folder, whose path is `path`, as `to`; true for a folder.
    fn read_entry(&mut self, folder: &Dir, name: &Path, path: &[u8], to: &[u8], into: &mut dyn Target) -> Result<bool> {
        let failed = |error: butterfs::Error| cannot_read(path, &error);
        let node = folder.node(name, Follow::Nothing).map_err(failed)?;
        let metadata = node.metadata().map_err(failed)?;
        let attributes = self.attributes(&node, &metadata).map_err(failed)?;
        if metadata.is_dir() {
            into.folder(to, attributes)?;
            return Ok(true);
        }
        if metadata.links() > 1 {
            let key = (metadata.id().subvolume.get(), metadata.id().number);
            if let Some(first) = self.links.get(&key) {
                into.hard_link(to, first)?;
                return Ok(false);
            }
            self.links.insert(key, to.to_vec());
        }
        if metadata.is_file() {
            let file = folder.open_file(name).map_err(failed)?;
            let data = data_ranges(&file, metadata.len()).map_err(failed)?;
            if let Some(files) = self.files.as_mut().filter(|_| metadata.len() > MIN_SHARED) {
                files.insert(metadata.id().number, path.to_vec());
            }
            if let Some(original) = self.unchanged(&file, &metadata, &data).map_err(failed)?
                && into.same_file(to, &attributes, &original)?
            {
                return Ok(false);
            }
            let mut reader = RangeReader::new(data.clone(), |out, at| file.read_at(out, at).map_err(io::Error::other));
            into.file(to, attributes, Content { size: metadata.len(), data, reader: &mut reader, file: None })?;
            return Ok(false);
        }
        into.special(to, attributes, special(&node, &metadata).map_err(failed)?)?;
        Ok(false)
    }
}

impl Source for FilesystemSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let failed = |error: butterfs::Error| cannot_read(b"", &error);
        let node = self.top.as_node();
        let metadata = node.metadata().map_err(failed)?;
        let top = self.at.strip_suffix(b"/").unwrap_or_default().to_vec();
        into.folder(&top, self.attributes(node, &metadata).map_err(failed)?)?;
        in_order(names(b"", Ok(&self.top))?, |folder, name, ()| self.visit(folder, name, into))
    }
}

/// The names in a folder.
fn names(path: &[u8], folder: butterfs::Result<&Dir>) -> Result<Names<()>> {
    let read = |folder: &Dir| {
        folder.read_dir(".")?.map(|entry| entry.map(|entry| (entry.file_name().as_bytes().to_vec(), ()))).collect()
    };
    folder.and_then(read).map_err(|error| cannot_read(path, &error))
}

/// A path of an image as the library takes it.
pub(crate) fn as_path(path: &[u8]) -> &Path {
    let path = if path.is_empty() { b"." } else { path };
    Path::new(OsStr::from_bytes(path))
}

fn cannot_read(path: &[u8], error: &butterfs::Error) -> Error {
    Error::source(format!("cannot read {}: {error}", shown(path)))
}

fn time(time: Timestamp) -> Time {
    Time { sec: time.secs(), nsec: time.nanos() }
}

fn attributes(node: &Node, metadata: &Metadata) -> butterfs::Result<Attributes> {
    let mut xattrs = Vec::new();
    for name in node.xattrs()? {
        if let Some(value) = node.xattr(&name)?.filter(|_| !name.as_bytes().starts_with(b"btrfs.")) {
            xattrs.push((name.into_vec(), value));
        }
    }
    Ok(Attributes {
        mode: metadata.mode().bits() & 0o7777,
        uid: metadata.owner().uid,
        gid: metadata.owner().gid,
        mtime: time(metadata.modified()),
        atime: Some(time(metadata.accessed())),
        ctime: Some(time(metadata.changed())),
        btime: Some(time(metadata.created())),
        xattrs,
    })
}

fn special(node: &Node, metadata: &Metadata) -> butterfs::Result<Special> {
    let (major, minor) = metadata.device_numbers();
    Ok(match metadata.file_type() {
        FileType::Symlink => Special::Symlink(node.read_link()?.into_os_string().into_vec()),
        FileType::CharDevice => Special::CharacterDevice(major, minor),
        FileType::BlockDevice => Special::BlockDevice(major, minor),
        FileType::Fifo => Special::Fifo,
        _ => Special::Socket,
    })
}

/// Whether two files have the same bytes in a range.
fn same_bytes(one: &File, other: &File, range: &Range<u64>) -> butterfs::Result<bool> {
    const AT_ONCE: usize = 256 << 10;
    let (mut here, mut there) = (vec![0; AT_ONCE], vec![0; AT_ONCE]);
    let mut at = range.start;
    while at < range.end {
        let len = AT_ONCE.min((range.end - at) as usize);
        let read = one.read_at(&mut here[..len], at)?;
        if read == 0 || other.read_at(&mut there[..read], at)? != read || here[..read] != there[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}

fn data_ranges(file: &File, size: u64) -> butterfs::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(start) = file.next_data(at)?.filter(|start| *start < size) {
        let end = file.next_hole(start)?.unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}
