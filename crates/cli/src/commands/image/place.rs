//! The place of an image: a file or device, and perhaps a partition in it.

use crate::error::CliError;
use butterfs::{Access, Device, Filesystem};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use std::fmt;
use std::path::{Path, PathBuf};

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
        let device = Device::path(&self.path);
        let device = match self.partition {
            Some(number) => device.window(self.range(number)?),
            None => device,
        };
        butterfs::Builder::new().device(device).access(access).open().map_err(said)
    }

    fn range(&self, number: u32) -> Result<std::ops::Range<u64>, CliError> {
        let device = FileDevice::open(&self.path, &FileOptions::inspect())?;
        Ok(butterfs_image::partition(&device as &dyn BlockDevice, number)?)
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
