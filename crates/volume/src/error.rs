//! Errors below the logical space, with place and values.

use butterfs_ondisk::{DeviceId, Logical, Physical};
use std::fmt;
use std::io;

/// An error of a [`Volume`](crate::Volume). `Display` is one sentence without a full stop.
#[derive(Debug)]
pub enum VolumeError {
    /// Not all devices were given, and nobody said that it may be opened without some.
    Incomplete {
        /// How many there are, and which were given.
        sentence: String,
    },
    /// The devices do not make a filesystem that can be opened.
    Refused {
        /// Why not, with the device's name.
        sentence: String,
        /// Advice about it.
        hint: Option<&'static str>,
    },
    /// No chunk, or no single chunk, holds these bytes.
    Unmapped {
        /// First byte.
        at: Logical,
        /// Bytes.
        len: u64,
    },
    /// No copy is good.
    NoGoodCopy {
        /// First byte.
        at: Logical,
        /// Bytes.
        len: u64,
        /// The fault of each copy that was tried.
        failures: Vec<CopyFailure>,
    },
    /// A part of a row was to be written, and its parity does not fit its data: some of it is wrong.
    RowInconsistent {
        /// The first byte of the row.
        row: Logical,
    },
    /// A device could not be written. The other copies may have been.
    Write {
        /// First logical byte, or `None` for a superblock.
        at: Option<Logical>,
        /// The device.
        device: String,
        /// The address on it.
        physical: Physical,
        /// How it failed.
        error: io::Error,
    },
    /// A device could not make durable what it was given.
    Flush {
        /// The device.
        device: String,
        /// How it failed.
        error: io::Error,
    },
    /// A device is open read-only.
    ReadOnly {
        /// The device.
        device: String,
    },
}

/// The fault of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// Which copy, from 0.
    pub copy: usize,
    /// The device, of the first part if the range lies on several.
    pub device: DeviceId,
    /// The device's name, or that it is missing.
    pub name: String,
    /// The address on it.
    pub physical: Physical,
    /// The fault.
    pub reason: FailureReason,
}

/// Why a copy is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The device could not be read.
    Unreadable(String),
    /// The reader's check refused the bytes: the rule that they break.
    Rejected(String),
}

impl VolumeError {
    pub(crate) fn refused(sentence: impl Into<String>) -> VolumeError {
        VolumeError::Refused { sentence: sentence.into(), hint: None }
    }

    pub(crate) fn refused_with(sentence: impl Into<String>, hint: &'static str) -> VolumeError {
        VolumeError::Refused { sentence: sentence.into(), hint: Some(hint) }
    }

    /// Whether it says no more than that a device is missing or failed.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, VolumeError::Write { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// Advice to the user, if there is any.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            VolumeError::Refused { hint, .. } => *hint,
            VolumeError::Incomplete { .. } => Some("give all of its devices, or open it without (-o degraded)"),
            VolumeError::Write { error, .. } | VolumeError::Flush { error, .. } if is_full(error) => {
                Some("make room on the filesystem that the image is on")
            }
            VolumeError::ReadOnly { .. } => Some("open it read-write"),
            _ => None,
        }
    }
}

/// Whether the device is a sparse file whose own filesystem is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeError::Refused { sentence, .. } | VolumeError::Incomplete { sentence } => f.write_str(sentence),
            VolumeError::Unmapped { at, len } => write!(f, "no chunk holds {len} bytes at logical {at}"),
            VolumeError::NoGoodCopy { at, len, failures } => {
                write!(f, "no good copy of {len} bytes at logical {at}")?;
                failures
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, failure)| write!(f, "{}{failure}", if i == 0 { ": " } else { "; " }))
            }
            VolumeError::RowInconsistent { row } => {
                write!(f, "the parity of the row at logical {row} does not fit its data")
            }
            VolumeError::Write { at: Some(at), device, physical, error } => {
                write!(f, "cannot write logical {at} to {device} at {physical}: {error}")
            }
            VolumeError::Write { at: None, device, physical, error } => {
                write!(f, "cannot write the superblock at {physical} of {device}: {error}")
            }
            VolumeError::Flush { device, error } => write!(f, "cannot flush {device}: {error}"),
            VolumeError::ReadOnly { device } => write!(f, "{device} is open read-only"),
        }
    }
}

impl fmt::Display for CopyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CopyFailure { copy, device, name, physical, reason } = self;
        write!(f, "copy {copy} on {name} (devid {device}) at {physical}: ")?;
        match reason {
            FailureReason::Unreadable(error) => write!(f, "cannot be read: {error}"),
            FailureReason::Rejected(rule) => f.write_str(rule),
        }
    }
}

impl std::error::Error for VolumeError {}
