//! A folder of this machine as a target. Owners and devices are set where the caller may.

use crate::assembly::Target;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, ErrorKind, Result};
use crate::path::components;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// A folder, below which everything goes. What exists is not replaced, except folders, which take new entries.
pub struct HostTarget {
    top: PathBuf,
    folders: Vec<(PathBuf, Attributes)>,
    is_root: bool,
}

impl HostTarget {
    /// A target at `top`, which is made if it does not exist.
    pub fn new(top: impl Into<PathBuf>) -> HostTarget {
        HostTarget { top: top.into(), folders: Vec::new(), is_root: rustix::process::geteuid().is_root() }
    }

    /// Sets the attributes of folders. Nothing may be added after it.
    pub fn finish(self) -> Result<()> {
        self.folders
            .iter()
            .rev()
            .try_for_each(|(path, attributes)| self.set(path, attributes, true).map_err(|error| failed(path, &error)))
    }

    /// The place of a path: below `top`, through folders only.
    fn place(&self, path: &[u8]) -> Result<PathBuf> {
        let mut place = self.top.clone();
        let names = components(path)?;
        for (index, name) in names.iter().enumerate() {
            place.push(OsStr::from_bytes(name));
            let is_last = index + 1 == names.len();
            if !is_last && !place.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                return Err(Error::new(ErrorKind::Output, format!("{} is no folder", place.display())));
            }
        }
        Ok(place)
    }

    fn set(&self, place: &Path, attributes: &Attributes, has_mode: bool) -> io::Result<()> {
        if self.is_root {
            let (user, group) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            rustix::fs::chownat(CWD, place, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        for (name, value) in &attributes.xattrs {
            let set = rustix::fs::lsetxattr(place, name.as_slice(), value, XattrFlags::empty());
            if self.is_root || name.starts_with(b"user.") {
                set?;
            }
        }
        if has_mode {
            rustix::fs::chmod(place, Mode::from_raw_mode(attributes.mode & 0o7777))?;
        }
        let Time { sec, nsec } = attributes.mtime;
        let time = Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Output, format!("cannot write {}: {error}", path.display()))
}

fn write(place: &Path, content: Content<'_>) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).open(place)?;
    let mut buffer = vec![0; 1 << 20];
    for range in content.data {
        let mut at = range.start;
        while at < range.end {
            let wanted = buffer.len().min((range.end - at) as usize);
            content.reader.read_exact(&mut buffer[..wanted])?;
            file.write_all_at(&buffer[..wanted], at)?;
            at += wanted as u64;
        }
    }
    file.set_len(content.size)
}

fn make(place: &Path, special: &Special) -> io::Result<()> {
    let node = |kind, major, minor| {
        let mode = Mode::from_raw_mode(0o600);
        Ok(rustix::fs::mknodat(CWD, place, kind, mode, rustix::fs::makedev(major, minor))?)
    };
    match special {
        Special::Symlink(target) => symlink(OsStr::from_bytes(target), place),
        Special::CharacterDevice(major, minor) => node(FileType::CharacterDevice, *major, *minor),
        Special::BlockDevice(major, minor) => node(FileType::BlockDevice, *major, *minor),
        Special::Fifo => node(FileType::Fifo, 0, 0),
        Special::Socket => node(FileType::Socket, 0, 0),
    }
}

impl Target for HostTarget {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let place = self.place(path)?;
        if !place.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            std::fs::create_dir(&place).map_err(|error| failed(&place, &error))?;
        }
        self.folders.push((place, attributes));
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let place = self.place(path)?;
        let done = write(&place, content).and_then(|()| self.set(&place, &attributes, true));
        done.map_err(|error| failed(&place, &error))
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let place = self.place(path)?;
        let has_mode = !matches!(special, Special::Symlink(_));
        let done = make(&place, &special).and_then(|()| self.set(&place, &attributes, has_mode));
        done.map_err(|error| failed(&place, &error))
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let (place, original) = (self.place(path)?, self.place(original)?);
        std::fs::hard_link(original, &place).map_err(|error| failed(&place, &error))
    }
}
