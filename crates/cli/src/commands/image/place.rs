//! The place of an image: a file or device, also one that contains a disk in another form, a disk that `qemu-nbd`
//! exports, and perhaps a partition in it.

use crate::error::CliError;
use butterfs::{Access, Device, Filesystem};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_image::{Container, NbdDevice, open_container};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The beginning of a place that is the socket of a server of NBD.
const NBD: &str = "nbd:unix:";

/// A file or device, and perhaps a partition of it: `disk.img@2`.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    partition: Option<u32>,
}

impl Place {
    /// Reads `FILE` or `FILE@NUMBER`; a file whose name is the whole text is that file.
    pub fn parse(text: &str) -> Place {
        let whole = Place { path: text.into(), partition: None };
        match text.rsplit_once('@').and_then(|(path, number)| Some((path, number.parse().ok()?))) {
            Some((path, number)) if !Path::new(text).exists() => Place { path: path.into(), partition: Some(number) },
            _ => whole,
        }
    }

    /// Opens the filesystem there.
    pub fn open(&self, access: Access) -> Result<Filesystem, CliError> {
        let opened = self.opened()?;
        if let Some(Opened::Container(container)) = opened.as_ref().filter(|_| access == Access::ReadWrite) {
            return Err(self.is_only_read(container));
        }
        let opened = opened.map(Opened::device);
        let device = match &opened {
            Some(device) => Device::from(Arc::clone(device)),
            None => Device::path(&self.path),
        };
        let device = match self.partition {
            Some(number) => device.window(self.range(number, opened.as_deref())?),
            None => device,
        };
        butterfs::Builder::new().device(device).access(access).open().map_err(said)
    }

    /// The disk in a container, or behind a socket; `None` for a file or device that is one itself.
    fn opened(&self) -> Result<Option<Opened>, CliError> {
        if let Some(socket) = self.path.to_str().and_then(|text| text.strip_prefix(NBD)) {
            return Ok(Some(Opened::Exported(Arc::new(NbdDevice::connect(socket)?))));
        }
        Ok(open_container(&self.path)?.map(Opened::Container))
    }

    /// An error if the image is in a form that cannot be changed.
    pub fn check_writable(&self) -> Result<(), CliError> {
        open_container(&self.path)?.map_or(Ok(()), |container| Err(self.is_only_read(&container)))
    }

    /// The error for a container, which cannot be changed.
    fn is_only_read(&self, container: &Container) -> CliError {
        let (path, kind) = (self.path.display(), container.kind());
        CliError::failed(format!("{path} is a container of the kind {kind}, and containers are only read"))
            .hint(format!("'qemu-img convert -O raw {path} NEW' makes an image that can be changed (zstd: 'zstd -d')"))
    }

    fn range(&self, number: u32, opened: Option<&dyn BlockDevice>) -> Result<std::ops::Range<u64>, CliError> {
        Ok(match opened {
            Some(device) => butterfs_image::partition(device, number)?,
            None => {
                let device = FileDevice::open(&self.path, &FileOptions::inspect())?;
                butterfs_image::partition(&device, number)?
            }
        })
    }
}

/// A disk that is no file or device of its own.
enum Opened {
    Container(Arc<Container>),
    Exported(Arc<NbdDevice>),
}

impl Opened {
    fn device(self) -> Arc<dyn BlockDevice> {
        match self {
            Opened::Container(container) => container,
            Opened::Exported(device) => device,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.partition.map_or(Ok(()), |number| write!(f, "@{number}"))
    }
}

/// An error of the library as the user sees it.
pub fn said(error: butterfs::Error) -> CliError {
    CliError::failed(error.to_string())
}
