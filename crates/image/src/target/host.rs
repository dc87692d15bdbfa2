//! A folder of this machine as a target. Owners are set, and devices made, where the caller may. Until something has
//! its owner, nobody else can read it.

use crate::assembly::Target;
use crate::descent::Descent;
use crate::entry::{Attributes, Content, Special, Time};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{LONG_PATH, open_folder, through};
use crate::path::{components, joined};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A folder, below which everything goes. What exists is not replaced, except folders, which take new entries.
pub struct HostTarget {
    top: PathBuf,
    folders: Vec<(Vec<u8>, Attributes)>,
    is_root: bool,
    /// Devices that only root can make.
    left_out: Vec<Vec<u8>>,
    /// The way to folders below `top`, once that exists.
    way: Option<Descent<OwnedFd>>,
}

/// A name in a folder.
struct Place {
    /// `None`: the target's own folder.
    folder: Option<OwnedFd>,
    name: Vec<u8>,
    /// For messages, and for calls that take no descriptor.
    path: PathBuf,
}

impl Place {
    fn at(&self) -> (std::os::fd::BorrowedFd<'_>, &OsStr) {
        match &self.folder {
            Some(folder) => (folder.as_fd(), OsStr::from_bytes(&self.name)),
            None => (CWD, self.path.as_os_str()),
        }
    }

    /// A path that is short enough for the kernel.
    fn short_path(&self) -> PathBuf {
        match &self.folder {
            Some(folder) if self.path.as_os_str().len() >= LONG_PATH => {
                through(folder).join(OsStr::from_bytes(&self.name))
            }
            _ => self.path.clone(),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::new(ErrorKind::Output, format!("cannot write {}: {error}", self.path.display()))
    }
}

impl HostTarget {
    /// A target at `top`, which is made if it does not exist.
    pub fn new(top: impl Into<PathBuf>) -> HostTarget {
        let is_root = rustix::process::geteuid().is_root();
        HostTarget { top: top.into(), folders: Vec::new(), is_root, left_out: Vec::new(), way: None }
    }

    /// Sets the attributes of folders. Returns the paths of devices that were left out: only root can make them.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        std::mem::take(&mut self.folders).iter().rev().try_for_each(|(path, attributes)| {
            let place = self.place(path)?;
            self.set(&place, attributes, true).map_err(|error| place.failed(error))
        })?;
        Ok(self.left_out)
    }

    /// The place of a path: below `top`, through folders only.
    fn place(&mut self, path: &[u8]) -> Result<Place> {
        let names = components(path)?;
        let Some((name, above)) = names.split_last() else {
            return Ok(Place { folder: None, name: Vec::new(), path: self.top.clone() });
        };
        let whole = self.top.join(OsStr::from_bytes(&joined(&names)));
        let failed = |error: io::Error| {
            let folder = whole.parent().unwrap_or(&whole).display();
            Error::new(ErrorKind::Output, format!("cannot open the folder {folder}: {error}"))
        };
        if self.way.is_none() {
            self.way = Some(Descent::new(File::open(&self.top).map_err(failed)?.into()));
        }
        let way = self.way.as_mut().expect("just made");
        let folder = way.enter(&joined(above), |above, _, name| open_folder(above, name)).map_err(failed)?;
        Ok(Place { folder: Some(folder.try_clone().map_err(failed)?), name: name.to_vec(), path: whole })
    }

    fn set(&self, place: &Place, attributes: &Attributes, has_mode: bool) -> io::Result<()> {
        let (folder, name) = place.at();
        if self.is_root {
            let (user, group) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            rustix::fs::chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        for (key, value) in &attributes.xattrs {
            let set = rustix::fs::lsetxattr(place.short_path(), key.as_slice(), value, XattrFlags::empty());
            if self.is_root || key.starts_with(b"user.") {
                set?;
            }
        }
        if has_mode {
            rustix::fs::chmodat(folder, name, Mode::from_raw_mode(attributes.mode & 0o7777), AtFlags::empty())?;
        }
        let Time { sec, nsec } = attributes.mtime;
        let time = Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn write(place: &Place, content: Content<'_>) -> io::Result<()> {
    let (folder, name) = place.at();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file: File = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600))?.into();
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

fn make(place: &Place, special: &Special) -> io::Result<()> {
    let (folder, name) = place.at();
    let node = |kind, major, minor| {
        rustix::fs::mknodat(folder, name, kind, Mode::from_raw_mode(0o600), rustix::fs::makedev(major, minor))
    };
    Ok(match special {
        Special::Symlink(target) => rustix::fs::symlinkat(OsStr::from_bytes(target), folder, name),
        Special::CharacterDevice(major, minor) => node(FileType::CharacterDevice, *major, *minor),
        Special::BlockDevice(major, minor) => node(FileType::BlockDevice, *major, *minor),
        Special::Fifo => node(FileType::Fifo, 0, 0),
        Special::Socket => node(FileType::Socket, 0, 0),
    }?)
}

/// Makes a folder, unless there is one.
fn make_folder(place: &Place) -> io::Result<()> {
    let (folder, name) = place.at();
    match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)) {
        Err(rustix::io::Errno::EXIST) => {
            let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => Ok(()),
                _ => Err(rustix::io::Errno::EXIST.into()),
            }
        }
        made => Ok(made?),
    }
}

impl Target for HostTarget {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let place = self.place(path)?;
        make_folder(&place).map_err(|error| place.failed(error))?;
        self.folders.push((path.to_vec(), attributes));
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let place = self.place(path)?;
        let done = write(&place, content).and_then(|()| self.set(&place, &attributes, true));
        done.map_err(|error| place.failed(error))
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let place = self.place(path)?;
        if matches!(special, Special::CharacterDevice(..) | Special::BlockDevice(..)) && !self.is_root {
            self.left_out.push(path.to_vec());
            return Ok(());
        }
        let has_mode = !matches!(special, Special::Symlink(_));
        let done = make(&place, &special).and_then(|()| self.set(&place, &attributes, has_mode));
        done.map_err(|error| place.failed(error))
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        if self.left_out.iter().any(|left_out| left_out == original) {
            return Ok(());
        }
        let (original, place) = (self.place(original)?, self.place(path)?);
        let ((from, from_name), (to, name)) = (original.at(), place.at());
        let made = rustix::fs::linkat(from, from_name, to, name, AtFlags::empty());
        made.map_err(|error| place.failed(error.into()))
    }
}
