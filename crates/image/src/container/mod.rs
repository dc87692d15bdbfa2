//! Files that contain a disk: qcow2, VMDK, VHD, VHDX, Android's sparse images, and zstd with a table of its frames.
//! They are read, not written.
//!
//! A layout says where the bytes of the disk are; [`Container`] reads and decodes them.
//!
//! # Invariants
//! 1. A container never names another file that is read: backing files, parents and external data are refused.
//! 2. Memory is bounded whatever the container says: layouts read their tables as they are asked, decoded pieces have a
//!    largest size, and few are kept.
//! 3. Bytes that contradict a layout are an error with the place, never other data.

mod android;
mod decoding;
mod fields;
mod nbd;
mod qcow2;
mod seekable;
mod vhd;
mod vhdx;
mod vmdk;

pub use nbd::NbdDevice;
pub(crate) use seekable::{FRAME_BYTES, MAGIC as SEEKABLE_MAGIC, MAX_FRAMES, TABLE_MAGIC};

use crate::error::{Error, Result};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use decoding::{Decoded, Packed};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The source of the bytes of a part of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: zeros.
    Zeros,
    /// These bytes, again and again, from a multiple of their number on.
    Fill([u8; 4]),
    /// In the file from this byte on.
    At(u64),
    /// Compressed.
    Packed(Packed),
}

/// A part of the disk that begins at the byte that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Its bytes, at least one.
    len: u64,
    place: Place,
}

/// The form of a container: tells where the bytes of the disk are.
trait Layout: Send + Sync + std::fmt::Debug {
    /// Bytes of the disk.
    fn len(&self) -> u64;

    /// The part that begins at `at`, which lies inside of the disk.
    fn find(&self, file: &dyn BlockDevice, at: u64) -> io::Result<Part>;
}

/// A kind of container.
struct Kind {
    name: &'static str,
    begins: fn(&[u8]) -> bool,
    open: fn(&dyn BlockDevice) -> Result<Box<dyn Layout>>,
}

/// Every kind, by the bytes with which it begins.
const KINDS: &[Kind] = &[
    Kind { name: "qcow2", begins: |head| head.starts_with(b"QFI\xfb"), open: qcow2::open },
    Kind { name: "VMDK", begins: vmdk::begins, open: vmdk::open },
    Kind { name: "VHDX", begins: |head| head.starts_with(b"vhdxfile"), open: vhdx::open },
    Kind { name: "VHD", begins: |head| head.starts_with(b"conectix"), open: vhd::open },
    Kind { name: "Android sparse", begins: |head| head.starts_with(&android::MAGIC), open: android::open },
    Kind { name: "zstd", begins: seekable::begins, open: seekable::open },
];

/// Bytes of the head by which kinds are recognised.
const HEAD_LEN: usize = 512;

/// The disk in a container. See the [module](self).
#[derive(Debug)]
pub struct Container {
    file: FileDevice,
    kind: &'static str,
    layout: Box<dyn Layout>,
    decoded: Decoded,
}

/// Opens the container at `path`; `None` for everything that is none, also for what cannot be opened.
pub fn open_container(path: impl AsRef<Path>) -> Result<Option<Arc<Container>>> {
    let Ok(file) = FileDevice::open(&path, &FileOptions::inspect()) else { return Ok(None) };
    let Some(kind) = recognised(&file) else { return Ok(None) };
    drop(file);
    let file = FileDevice::open(&path, &FileOptions::read_only()).map_err(|error| Error::source(error.to_string()))?;
    let named = |error: Error| Error::new(error.kind(), format!("{} ({}): {error}", file.name(), kind.name));
    let layout = (kind.open)(&file).map_err(named)?;
    Ok(Some(Arc::new(Container { file, kind: kind.name, layout, decoded: Decoded::default() })))
}

fn recognised(file: &dyn BlockDevice) -> Option<&'static Kind> {
    let mut head = vec![0; HEAD_LEN.min(usize::try_from(file.len()).unwrap_or(HEAD_LEN))];
    file.read_at(0, &mut head).ok()?;
    KINDS.iter().find(|kind| (kind.begins)(&head))
}

impl Container {
    /// The name of the form.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    fn fill(&self, at: u64, out: &mut [u8], place: Place) -> io::Result<()> {
        match place {
            Place::Zeros => out.fill(0),
            Place::Fill(bytes) => (at..).zip(out).for_each(|(at, byte)| *byte = bytes[at as usize % 4]),
            Place::At(at) => self.file.read_at(at, out)?,
            Place::Packed(packed) => self.decoded.read(&self.file, packed, out)?,
        }
        Ok(())
    }
}

impl BlockDevice for Container {
    fn len(&self) -> u64 {
        self.layout.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let Some(end) = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len()) else {
            let message = format!("read of {} bytes at {offset} is outside of {}", buf.len(), self.name());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        };
        let mut at = offset;
        while at < end {
            let part = self.layout.find(&self.file, at)?;
            let len = part.len.clamp(1, end - at);
            let Range { start, end } = (at - offset) as usize..(at - offset + len) as usize;
            self.fill(at, &mut buf[start..end], part.place)?;
            at += len;
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        let message = format!("{} is a container ({}), which is only read", self.name(), self.kind);
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, message))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        self.file.name()
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// The error of a container that contradicts itself.
fn damaged(what: impl std::fmt::Display, at: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the container is damaged: {what}, for the byte {at} of its disk"),
    )
}
