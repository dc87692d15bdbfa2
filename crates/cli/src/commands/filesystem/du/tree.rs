//! Files and directories, on a mount and in an image.

use crate::error::CliError;
use crate::open_filesystem::{OpenFilesystem, cannot_access};
use butterfs_fs::{Filesystem, InodeId};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// The target of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    /// It takes no space for data.
    Other,
}

impl Kind {
    fn of(mode: u32) -> Kind {
        match mode & KIND {
            DIRECTORY => Kind::Directory,
            FILE => Kind::File,
            _ => Kind::Other,
        }
    }
}

/// A file or directory.
#[derive(Clone, Debug)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: Kind,
    pub links: u64,
    /// Its subvolume, where that is known, and its number.
    pub id: (u64, u64),
    /// The filesystem that it is on.
    pub device: u64,
}

/// The object that a path refers to that somebody has named.
pub fn argument(opened: &OpenFilesystem, path: &Path) -> Result<Entry, CliError> {
    look(opened, path, |path| std::fs::metadata(path))
}

/// The entries of a directory; a symbolic link is not followed.
fn entry(opened: &OpenFilesystem, path: &Path) -> Result<Entry, CliError> {
    look(opened, path, |path| std::fs::symlink_metadata(path))
}

fn look(
    opened: &OpenFilesystem,
    path: &Path,
    metadata: impl FnOnce(&Path) -> std::io::Result<std::fs::Metadata>,
) -> Result<Entry, CliError> {
    match opened {
        OpenFilesystem::Mount(_) => {
            let found = metadata(path).map_err(|error| cannot_access(path, error))?;
            let id = (found.dev(), found.ino());
            Ok(Entry {
                path: path.to_owned(),
                kind: Kind::of(found.mode()),
                links: found.nlink(),
                id,
                device: found.dev(),
            })
        }
        OpenFilesystem::Image(filesystem) => of_inode(filesystem, path, opened.id_in_image(path)?),
    }
}

fn of_inode(filesystem: &Filesystem, path: &Path, id: InodeId) -> Result<Entry, CliError> {
    let attr = filesystem.getattr(id)?;
    let (kind, links) = (Kind::of(attr.mode), u64::from(attr.nlink));
    Ok(Entry { path: path.to_owned(), kind, links, id: (id.tree.0, id.ino.0), device: 0 })
}

/// The entries of a directory.
pub fn entries(opened: &OpenFilesystem, path: &Path) -> Result<Vec<Entry>, CliError> {
    let names = match opened {
        OpenFilesystem::Mount(_) => names_on_mount(path)?,
        OpenFilesystem::Image(filesystem) => names_in_image(filesystem, opened.id_in_image(path)?)?,
    };
    let mut found = Vec::new();
    for name in names {
        match entry(opened, &path.join(name)) {
            Ok(entry) => found.push(entry),
            Err(CliError::Failed { sentence, .. }) => crate::report::warn(&sentence),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn names_on_mount(path: &Path) -> Result<Vec<OsString>, CliError> {
    let wrap = |error| cannot_access(path, error);
    std::fs::read_dir(path).map_err(wrap)?.map(|entry| entry.map(|entry| entry.file_name()).map_err(wrap)).collect()
}

fn names_in_image(filesystem: &Filesystem, id: InodeId) -> Result<Vec<OsString>, CliError> {
    let mut names = Vec::new();
    filesystem.readdir(id, 0, &mut |entry| {
        if ![b".".as_slice(), b".."].contains(&entry.name) {
            names.push(OsString::from_vec(entry.name.to_vec()));
        }
        true
    })?;
    Ok(names)
}
