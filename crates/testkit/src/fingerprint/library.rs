//! The fingerprint of an open filesystem, as the engine shows it.

use super::tree::READ_WHOLE_BYTES;
use super::{ContentHash, Fingerprint, PathFingerprint};
use crate::operation::{Kind, Moment};
use butterfs_fs::{Attr, Filesystem, InodeId, Result};
use std::collections::BTreeMap;

impl Fingerprint {
    /// Looks at everything below the shown root. An error says at which path.
    pub fn of_library(filesystem: &Filesystem) -> std::result::Result<Fingerprint, String> {
        Fingerprint::of_library_below(filesystem, filesystem.root())
    }

    /// Looks at everything below a folder, of which the caller holds a reference. An error says at which path.
    pub fn of_library_below(filesystem: &Filesystem, top: InodeId) -> std::result::Result<Fingerprint, String> {
        look(filesystem, top, Lost::IsAnError)
    }

    /// Looks at everything below the shown root, where the device may have lost the data of files: a content with data
    /// that cannot be read is unknown.
    pub fn of_damaged_library(filesystem: &Filesystem) -> std::result::Result<Fingerprint, String> {
        look(filesystem, filesystem.root(), Lost::IsUnknown)
    }
}

/// The treatment of data that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    IsAnError,
    IsUnknown,
}

fn look(filesystem: &Filesystem, top: InodeId, lost: Lost) -> std::result::Result<Fingerprint, String> {
    let mut print = Fingerprint::default();
    let mut inodes = Vec::new();
    let mut folders = BTreeMap::new();
    let at = |path: &[u8], error| format!("/{}: {error}", path.escape_ascii());
    let root = filesystem.getattr(top).map_err(|error| at(b"", error))?;
    let mut waiting = vec![(Vec::new(), root)];
    while let Some((path, attr)) = waiting.pop() {
        let entry = entry(filesystem, &attr, lost).map_err(|error| at(&path, error))?;
        if entry.kind == Kind::Folder {
            // A damaged disk may have a folder inside itself; the kernel's name cache refuses a second way to one.
            if let Some(other) = folders.insert(attr.id, path.clone()).filter(|_| !attr.id.is_placeholder()) {
                return Err(format!("/{}: this folder is also /{}", path.escape_ascii(), other.escape_ascii()));
            }
            let names = crate::library::entries(filesystem, attr.id).map_err(|error| at(&path, error))?;
            for (name, kind) in names {
                let inside = if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
                let child = filesystem.lookup(attr.id, &name).map_err(|error| at(&inside, error))?;
                if Kind::of_mode(child.mode) != kind {
                    return Err(format!("/{}: listed as {kind:?}, mode {:o}", inside.escape_ascii(), child.mode));
                }
                waiting.push((inside, child));
            }
        }
        if attr.id != top {
            filesystem.forget(attr.id, 1);
        }
        print.entries.insert(path.clone(), entry);
        print.numbers.insert(path.clone(), attr.id.ino.0);
        inodes.push((path, attr.id));
    }
    print.group_links(inodes);
    Ok(print)
}

fn entry(filesystem: &Filesystem, attr: &Attr, lost: Lost) -> Result<PathFingerprint> {
    let kind = Kind::of_mode(attr.mode);
    let mut entry = of_attr(attr, kind);
    for name in filesystem.list_xattrs(attr.id)?.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        entry.xattrs.insert(name.to_vec(), filesystem.get_xattr(attr.id, name)?);
    }
    match kind {
        Kind::Symlink => entry.target = Some(filesystem.readlink(attr.id)?),
        Kind::File => {
            let data = data_ranges(filesystem, attr.id, attr.size)?;
            entry.content = match content(filesystem, attr.id, attr.size, &data) {
                Err(error) if lost == Lost::IsUnknown && error.errno() == butterfs_fs::Errno::EIO => None,
                known => Some(known?),
            };
            entry.data = Some(data);
        }
        _ => {}
    }
    Ok(entry)
}

fn of_attr(attr: &Attr, kind: Kind) -> PathFingerprint {
    let stands_in = attr.id.is_placeholder();
    let time = |time: butterfs_fs::env::Time| (!stands_in).then_some(Moment { sec: time.sec, nsec: time.nsec });
    PathFingerprint {
        kind,
        mode: attr.mode & 0o7777,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        device: attr.rdev,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: time(attr.btime),
        blocks: Some(attr.blocks),
        xattrs: Default::default(),
        first_path: None,
        target: None,
        content: None,
        data: None,
    }
}

pub(crate) fn data_ranges(filesystem: &Filesystem, id: InodeId, size: u64) -> Result<Vec<(u64, u64)>> {
    const DATA: u32 = 3;
    const HOLE: u32 = 4;
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match filesystem.lseek(id, at, DATA) {
            Ok(start) => start,
            Err(error) if error.errno() == butterfs_fs::Errno::ENXIO => break,
            Err(error) => return Err(error),
        };
        let end = filesystem.lseek(id, start, HOLE)?;
        assert!(end > start && start >= at, "SEEK_HOLE({start}) = {end} after SEEK_DATA({at})");
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

fn content(filesystem: &Filesystem, id: InodeId, size: u64, data: &[(u64, u64)]) -> Result<u64> {
    const AT_ONCE: u64 = 1 << 20;
    let whole = [(0, size)];
    let ranges = if size <= READ_WHOLE_BYTES { &whole } else { data };
    let mut hash = ContentHash::default();
    let mut buffer = Vec::new();
    for (start, end) in ranges {
        let mut at = *start;
        while at < *end {
            buffer.clear();
            let len = filesystem.read(id, at, AT_ONCE.min(end - at) as usize, &mut buffer)?;
            if len == 0 {
                break;
            }
            hash.update(at, &buffer);
            at += len as u64;
        }
    }
    Ok(hash.finish())
}
