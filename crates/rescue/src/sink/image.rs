//! Into a new filesystem, through the engine.

use super::{Attributes, Incoming, Made, Moment, Path, Sink, is_safe};
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_fs::env::Time;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Errno, Error, Filesystem, InodeId, Options, SetAttr, SetTime};
use std::io;
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// See the [module](self).
pub struct Image {
    filesystem: Filesystem,
    /// The directory that was used last.
    last: Option<(Vec<Vec<u8>>, InodeId)>,
    lacking: Vec<String>,
}

fn time((sec, nsec): Moment) -> SetTime {
    SetTime::At(Time { sec, nsec: nsec.min(999_999_999) })
}

impl Image {
    /// A new image file of `len` bytes at `path`, which must not exist.
    pub fn create(path: &std::path::Path, len: u64) -> Result<Image, String> {
        let device = FileDevice::create(path, len).map_err(|error| error.to_string())?;
        Image::on(Arc::new(device))
    }

    /// A new filesystem on a device.
    pub fn on(device: Arc<dyn BlockDevice>) -> Result<Image, String> {
        let env = Env::system();
        let devices = vec![device];
        mkfs(&devices, &MkfsOptions::default(), &env).map_err(|error| error.to_string())?;
        let opened = Filesystem::open(devices, Options::default(), env).map_err(|error| error.to_string())?;
        Ok(Image { filesystem: opened, last: None, lacking: Vec::new() })
    }

    /// The engine's error; where it writes nothing any more, the reason of that.
    fn failed(&self, error: Error) -> io::Error {
        match self.filesystem.stopped() {
            Some(why) => io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why),
            None => io::Error::from_raw_os_error(error.errno().0),
        }
    }

    fn directory_at(&mut self, path: &Path) -> io::Result<InodeId> {
        if path.is_empty() {
            return Ok(self.filesystem.root());
        }
        if let Some((known, id)) = &self.last
            && known == path
        {
            return Ok(*id);
        }
        let id = self.find(path)?;
        self.last = Some((path.to_vec(), id));
        Ok(id)
    }

    fn find(&self, path: &Path) -> io::Result<InodeId> {
        let mut at = self.filesystem.root();
        for name in path {
            let found = self.filesystem.lookup(at, name).map_err(|error| self.failed(error))?;
            // Nobody else uses it, and nothing is deleted.
            self.filesystem.forget(found.id, 1);
            at = found.id;
        }
        Ok(at)
    }

    /// Makes an inode with a name that nothing has.
    fn make(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Option<InodeId>> {
        let Some((name, parent)) = path.split_last().filter(|(name, _)| is_safe(name)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that leads elsewhere"));
        };
        let parent = self.directory_at(parent)?;
        match self.filesystem.make_bare(parent, name, attributes.mode, attributes.device, target) {
            Ok(made) => {
                self.filesystem.forget(made.id, 1);
                Ok(Some(made.id))
            }
            Err(error) if error.errno() == Errno::EEXIST => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Owners first: they take set-id bits and capabilities away.
    fn apply(&mut self, id: InodeId, attributes: &Attributes) -> io::Result<()> {
        let (uid, gid) = (attributes.uid, attributes.gid);
        let owners = SetAttr {
            uid: Some(uid).filter(|uid| *uid != u32::MAX),
            gid: Some(gid).filter(|gid| *gid != u32::MAX),
            ..SetAttr::default()
        };
        self.filesystem.setattr(&ROOT, id, &owners).map_err(|error| self.failed(error))?;
        for (name, value) in &attributes.xattrs {
            if let Err(error) = self.filesystem.set_xattr(&ROOT, id, name, value, 0) {
                let name = String::from_utf8_lossy(name);
                self.lacking.push(format!("extended attribute {name} could not be set: {error}"));
            }
        }
        let set = SetAttr {
            mode: Some(attributes.mode & 0o7777),
            atime: Some(time(attributes.atime)),
            mtime: Some(time(attributes.mtime)),
            ..SetAttr::default()
        };
        self.filesystem.setattr(&ROOT, id, &set).map(drop).map_err(|error| self.failed(error))
    }

    fn made(&mut self, attributes: &Attributes, made: Option<InodeId>) -> io::Result<Made> {
        // The image is new: what is there was made before.
        let Some(id) = made else { return Ok(Made::Taken) };
        self.apply(id, attributes)?;
        Ok(Made::Yes)
    }
}

impl Sink for Image {
    fn directory(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        if !path.is_empty() {
            let plain = Attributes { mode: crate::subvolume::DIRECTORY | 0o700, ..Attributes::default() };
            let _ = attributes;
            self.make(path, &plain, &[])?;
        }
        Ok(())
    }

    fn leave(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        let id = self.directory_at(path)?;
        self.apply(id, attributes)
    }

    fn file(&mut self, path: &Path, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        let Some(id) = self.make(path, attributes, &[])? else { return Ok(Made::Taken) };
        let size = SetAttr { size: Some(incoming.size), ..SetAttr::default() };
        self.filesystem.setattr(&ROOT, id, &size).map_err(|error| self.failed(error))?;
        (incoming.fill)(&mut |offset, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let written = self.filesystem.write(id, offset + done as u64, &bytes[done..], false);
                done += written.map_err(|error| self.failed(error))?;
            }
            Ok(())
        })?;
        self.made(attributes, Some(id))
    }

    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        let made = self.make(path, attributes, target)?;
        self.made(attributes, made)
    }

    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made> {
        let made = self.make(path, attributes, &[])?;
        self.made(attributes, made)
    }

    fn link(&mut self, path: &Path, first: &Path) -> io::Result<Made> {
        let id = self.find(first)?;
        let Some((name, parent)) = path.split_last().filter(|(name, _)| is_safe(name)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that leads elsewhere"));
        };
        let parent = self.directory_at(parent)?;
        match self.filesystem.link(id, parent, name) {
            Ok(made) => {
                self.filesystem.forget(made.id, 1);
                Ok(Made::Yes)
            }
            Err(error) if error.errno() == Errno::EEXIST => Ok(Made::Taken),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.filesystem.shutdown().map_err(|error| self.failed(error))
    }

    fn lacking(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lacking)
    }
}
