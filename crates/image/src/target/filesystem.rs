//! A folder of a btrfs filesystem that is open in this program, as a target.

use crate::assembly::Target;
use crate::descent::Descent;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::owners::{ACCESS_ACL, DEFAULT_ACL, Owners};
use crate::path::{components, joined};
use crate::source::as_path;
use butterfs::{Create, Dir, FileType, Follow, Mode, Node, OpenOptions, Owner, Times, Timestamp};
use rustc_hash::FxHashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that are written at once.
const AT_ONCE: usize = 1 << 20;

/// A folder of a filesystem, below which everything goes. Symbolic links that were there are followed inside of it,
/// those that the source has made are not.
pub struct FilesystemTarget<'a> {
    top: &'a Dir,
    owners: &'a Owners,
    way: Descent<Dir>,
    /// The symbolic links that the source has made.
    links: FxHashSet<butterfs::InodeId>,
    /// Folders and their times, which are set when nothing more is made in them.
    folders: Vec<(Vec<u8>, Time)>,
}

impl<'a> FilesystemTarget<'a> {
    /// A target in `top`.
    pub fn new(top: &'a Dir, owners: &'a Owners) -> FilesystemTarget<'a> {
        FilesystemTarget {
            top,
            owners,
            way: Descent::new(top.clone()),
            links: FxHashSet::default(),
            folders: Vec::new(),
        }
    }

    /// Sets the times of folders. Nothing may be added after it.
    pub fn finish(mut self) -> Result<()> {
        std::mem::take(&mut self.folders).iter().rev().try_for_each(|(path, time)| {
            let (folder, name) = self.place(path)?;
            let node = folder.node(as_path(name), Follow::Nothing).map_err(|error| failed(path, &error))?;
            node.set_times(times(*time)).map_err(|error| failed(path, &error))
        })
    }

    /// The folder above `path`, which is made with those above it, and the name in it. The top has no name.
    fn place<'p>(&mut self, path: &'p [u8]) -> Result<(Dir, &'p [u8])> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let (top, links) = (self.top, &self.links);
        let mut own_link = None;
        let mut open = |above: &Dir, path: &[u8], name: &[u8]| match above.symlink_metadata(as_path(name)) {
            Ok(found) if found.is_dir() => above.open_dir(as_path(name)),
            Ok(found) if links.contains(&found.id()) => {
                own_link = Some(path.to_vec());
                above.open_dir(".")
            }
            // From the top, so that an absolute target means something in it.
            Ok(_) => top.open_dir(as_path(path)),
            Err(error) if error.kind() == butterfs::ErrorKind::NotFound => {
                above.create_dir(as_path(name)).and_then(|()| above.open_dir(as_path(name)))
            }
            Err(error) => Err(error),
        };
        let folder = self.way.enter(above, &mut open).map_err(|error| failed(path, &error))?.clone();
        match own_link {
            Some(link) => {
                self.way.forget(&link);
                Err(Error::content(format!("{} is no folder, but something lies below it", shown(&link))))
            }
            None => Ok((folder, name)),
        }
    }

    /// The place for something new at `path`: what is there is taken away, unless it is a folder that is not empty.
    fn cleared<'p>(&mut self, path: &'p [u8]) -> Result<(Dir, &'p [u8])> {
        let report = |error: butterfs::Error| failed(path, &error);
        let (folder, name) = self.place(path)?;
        match folder.symlink_metadata(as_path(name)) {
            Ok(metadata) if metadata.is_dir() => folder.remove_dir(as_path(name)).map_err(report)?,
            Ok(_) => folder.remove_file(as_path(name)).map_err(report)?,
            Err(error) if error.kind() == butterfs::ErrorKind::NotFound => {}
            Err(error) => return Err(report(error)),
        }
        self.way.forget(path);
        Ok((folder, name))
    }

    fn set(&self, path: &[u8], node: &Node, mut attributes: Attributes, kind: Kind) -> Result<()> {
        self.owners.apply(&mut attributes)?;
        let report = |error: butterfs::Error| failed(path, &error);
        node.set_owner(Owner::new(attributes.uid, attributes.gid)).map_err(report)?;
        if kind != Kind::Symlink {
            drop_acls(node, &attributes).map_err(report)?;
            node.set_mode(Mode::new(attributes.mode & 0o7777)).map_err(report)?;
        }
        for (name, value) in &attributes.xattrs {
            node.set_xattr(OsStr::from_bytes(name), value).map_err(report)?;
        }
        node.set_times(times(attributes.mtime)).map_err(report)
    }
}

/// Takes away ACLs that a source does not have: a new file inherits those of its folder.
fn drop_acls(node: &Node, attributes: &Attributes) -> butterfs::Result<()> {
    for name in [ACCESS_ACL, DEFAULT_ACL].into_iter().filter(|name| attributes.xattrs.iter().all(|it| it.0 != *name)) {
        match node.remove_xattr(OsStr::from_bytes(name)) {
            Err(error) if error.kind() != butterfs::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
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

/// The node that has this name in a folder.
fn node(path: &[u8], folder: &Dir, name: &[u8]) -> Result<Node> {
    folder.node(as_path(name), Follow::Nothing).map_err(|error| failed(path, &error))
}

impl Target for FilesystemTarget<'_> {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let path = tidy(path)?;
        let (mut folder, mut name) = self.place(&path)?;
        let is_there = folder.symlink_metadata(as_path(name)).is_ok_and(|metadata| metadata.is_dir());
        if !is_there {
            (folder, name) = self.cleared(&path)?;
            folder.create_dir(as_path(name)).map_err(|error| failed(&path, &error))?;
        }
        let mtime = attributes.mtime;
        self.set(&path, &node(&path, &folder, name)?, attributes, Kind::Other)?;
        self.folders.push((path, mtime));
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let path = tidy(path)?;
        let report = |error: butterfs::Error| failed(&path, &error);
        let (folder, name) = self.cleared(&path)?;
        let options = OpenOptions::read_write().create(Create::New);
        let file = folder.open_with(as_path(name), &options).map_err(report)?;
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
        self.set(&path, &node(&path, &folder, name)?, attributes, Kind::Other)
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let path = tidy(path)?;
        let (folder, name) = self.cleared(&path)?;
        let mode = Mode::new(attributes.mode & 0o7777);
        let make = |kind, numbers| folder.make_special(as_path(name), kind, mode, numbers);
        let made = match &special {
            Special::Symlink(target) => folder.symlink(Path::new(OsStr::from_bytes(target)), as_path(name)),
            Special::CharacterDevice(major, minor) => make(FileType::CharDevice, (*major, *minor)),
            Special::BlockDevice(major, minor) => make(FileType::BlockDevice, (*major, *minor)),
            Special::Fifo => make(FileType::Fifo, (0, 0)),
            Special::Socket => make(FileType::Socket, (0, 0)),
        };
        made.map_err(|error| failed(&path, &error))?;
        let kind = if matches!(special, Special::Symlink(_)) { Kind::Symlink } else { Kind::Other };
        let node = node(&path, &folder, name)?;
        if kind == Kind::Symlink {
            self.links.insert(node.metadata().map_err(|error| failed(&path, &error))?.id());
        }
        self.set(&path, &node, attributes, kind)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let (path, original) = (tidy(path)?, tidy(original)?);
        if path == original {
            return Ok(());
        }
        let (from, from_name) = self.place(&original)?;
        let original = node(&original, &from, from_name)?;
        let (folder, name) = self.cleared(&path)?;
        folder.link_node(&original, as_path(name)).map_err(|error| failed(&path, &error))
    }
}
