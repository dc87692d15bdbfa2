//! A folder of a btrfs filesystem that is open in this program, as a target.

use crate::assembly::Target;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::owners::Owners;
use crate::path::{components, joined};
use crate::source::as_path;
use butterfs::{Create, Dir, FileType, Follow, Mode, Node, OpenOptions, Owner, Times, Timestamp};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that are written at once.
const AT_ONCE: usize = 1 << 20;

/// A folder of a filesystem, below which everything goes.
pub struct FilesystemTarget<'a> {
    top: &'a Dir,
    owners: &'a Owners,
    /// Folders and their times, which are set when nothing more is made in them.
    folders: Vec<(Vec<u8>, Time)>,
}

impl<'a> FilesystemTarget<'a> {
    /// A target in `top`.
    pub fn new(top: &'a Dir, owners: &'a Owners) -> FilesystemTarget<'a> {
        FilesystemTarget { top, owners, folders: Vec::new() }
    }

    /// Sets the times of folders. Nothing may be added after it.
    pub fn finish(self) -> Result<()> {
        self.folders.iter().rev().try_for_each(|(path, time)| {
            let node = self.node(path)?;
            node.set_times(times(*time)).map_err(|error| failed(path, &error))
        })
    }

    fn node(&self, path: &[u8]) -> Result<Node> {
        self.top.node(as_path(path), Follow::Nothing).map_err(|error| failed(path, &error))
    }

    /// Makes the folders above `path`, and takes away what is there, unless it is a folder that is not empty.
    fn clear(&self, path: &[u8]) -> Result<()> {
        let report = |error: butterfs::Error| failed(path, &error);
        if let Some(parent) = as_path(path).parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.top.create_dir_all(parent).map_err(report)?;
        }
        match self.top.symlink_metadata(as_path(path)) {
            Ok(metadata) if metadata.is_dir() => self.top.remove_dir(as_path(path)).map_err(report),
            Ok(_) => self.top.remove_file(as_path(path)).map_err(report),
            Err(error) if error.kind() == butterfs::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(report(error)),
        }
    }

    fn set(&self, path: &[u8], mut attributes: Attributes, kind: Kind) -> Result<()> {
        self.owners.apply(&mut attributes)?;
        let report = |error: butterfs::Error| failed(path, &error);
        let node = self.node(path)?;
        node.set_owner(Owner::new(attributes.uid, attributes.gid)).map_err(report)?;
        if kind != Kind::Symlink {
            node.set_mode(Mode::new(attributes.mode & 0o7777)).map_err(report)?;
        }
        for (name, value) in &attributes.xattrs {
            node.set_xattr(OsStr::from_bytes(name), value).map_err(report)?;
        }
        node.set_times(times(attributes.mtime)).map_err(report)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Symlink,
    Other,
}

fn times(time: Time) -> Times {
    let time = Timestamp::new(time.sec, time.nsec.min(999_999_999));
    Times { accessed: time, modified: time }
}

fn failed(path: &[u8], error: &butterfs::Error) -> Error {
    Error::new(ErrorKind::Output, format!("cannot write {}: {error}", shown(path)))
}

/// The path without superfluous components.
fn tidy(path: &[u8]) -> Result<Vec<u8>> {
    Ok(joined(&components(path)?))
}

impl Target for FilesystemTarget<'_> {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let path = tidy(path)?;
        let is_there = self.top.symlink_metadata(as_path(&path)).is_ok_and(|metadata| metadata.is_dir());
        if !is_there {
            self.clear(&path)?;
            self.top.create_dir(as_path(&path)).map_err(|error| failed(&path, &error))?;
        }
        let mtime = attributes.mtime;
        self.set(&path, attributes, Kind::Other)?;
        self.folders.push((path, mtime));
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let path = tidy(path)?;
        let report = |error: butterfs::Error| failed(&path, &error);
        self.clear(&path)?;
        let options = OpenOptions::read_write().create(Create::New);
        let file = self.top.open_with(as_path(&path), &options).map_err(report)?;
        let mut buffer = vec![0; AT_ONCE];
        for range in content.data {
            let mut at = range.start;
            while at < range.end {
                let wanted = AT_ONCE.min((range.end - at) as usize);
                content
                    .reader
                    .read_exact(&mut buffer[..wanted])
                    .map_err(|error| Error::source(format!("{}: cannot read the content: {error}", shown(&path))))?;
                file.write_all_at(&buffer[..wanted], at).map_err(report)?;
                at += wanted as u64;
            }
        }
        file.set_len(content.size).map_err(report)?;
        drop(file);
        self.set(&path, attributes, Kind::Other)
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let path = tidy(path)?;
        self.clear(&path)?;
        let mode = Mode::new(attributes.mode & 0o7777);
        let make = |kind, numbers| self.top.make_special(as_path(&path), kind, mode, numbers);
        let made = match &special {
            Special::Symlink(target) => self.top.symlink(Path::new(OsStr::from_bytes(target)), as_path(&path)),
            Special::CharacterDevice(major, minor) => make(FileType::CharDevice, (*major, *minor)),
            Special::BlockDevice(major, minor) => make(FileType::BlockDevice, (*major, *minor)),
            Special::Fifo => make(FileType::Fifo, (0, 0)),
            Special::Socket => make(FileType::Socket, (0, 0)),
        };
        made.map_err(|error| failed(&path, &error))?;
        let kind = if matches!(special, Special::Symlink(_)) { Kind::Symlink } else { Kind::Other };
        self.set(&path, attributes, kind)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let (path, original) = (tidy(path)?, tidy(original)?);
        if path == original {
            return Ok(());
        }
        self.clear(&path)?;
        self.top.hard_link(as_path(&original), as_path(&path)).map_err(|error| failed(&path, &error))
    }
}
