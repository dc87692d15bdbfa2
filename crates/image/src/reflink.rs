//! Contents that share their place on the host with the files that they come from.
//!
//! # Invariants
//! 1. Checksums are those of the bytes in the image, read back from it: a source that changes meanwhile cannot make
//!    them wrong.
//! 2. Bytes that cannot be shared, because they do not fill a block or the source keeps to other rules, are copied.

use crate::error::{Error, ErrorKind, Result};
use crate::pool::SECTOR;
use butterfs_device::clone_range;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The image as a file of the host that takes shared ranges.
#[derive(Debug)]
pub struct SharingFile(File);

impl SharingFile {
    /// An image.
    pub fn new(image: &File) -> Result<SharingFile> {
        let failed = |error| Error::new(ErrorKind::Output, format!("cannot share content with the image: {error}"));
        image.try_clone().map(SharingFile).map_err(failed)
    }

    /// Puts `len` bytes of a source at `address`, and zeros behind them up to the end of the sector. Returns what the
    /// image has there now.
    pub fn share(&self, source: &File, at: u64, len: usize, address: u64) -> Result<Vec<u8>> {
        let whole = len - len % SECTOR;
        let sharing = |error: &io::Error| {
            Error::source(format!(
                "the content cannot be shared with the image: {error}; both must be on one filesystem that shares \
                 blocks"
            ))
        };
        let shared = match clone_range(source, at..at + whole as u64, &self.0, address) {
            Ok(()) => whole,
            // Files without checksums share nothing with others, for example.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => 0,
            Err(error) => return Err(sharing(&error)),
        };
        let failed = |error: io::Error| Error::source(format!("cannot read the content: {error}"));
        let mut rest = vec![0; len - shared];
        source.read_exact_at(&mut rest, at + shared as u64).map_err(failed)?;
        rest.resize(len.next_multiple_of(SECTOR) - shared, 0);
        let written = |error: io::Error| Error::new(ErrorKind::Output, format!("cannot write the image: {error}"));
        self.0.write_all_at(&rest, address + shared as u64).map_err(written)?;
        let mut stored = vec![0; shared];
        self.0.read_exact_at(&mut stored, address).map_err(written)?;
        stored.extend_from_slice(&rest);
        Ok(stored)
    }
}
