//! The btrfs on-disk format, as declarations and pure functions.
//!
//! One declaration per structure (little-endian field types, a size assertion), one table of key types, the
//! checksums and hashes, the tree checker, and the dump text. Nothing here does I/O and nothing here knows how
//! trees are edited.
//!
//! - [`units`]: the domain's quantities as types
//! - [`key`]: keys and key types
//! - [`header`]: tree block header, item headers, key pointers
//! - [`items`]: item payloads
//! - [`superblock`]: the superblock and where its copies are
//! - [`checksum`]: checksums and name hashes
//! - [`features`]: feature bits and which of them we can read or write

#![forbid(unsafe_code)]

pub mod checksum;
pub mod features;
pub mod header;
pub mod items;
pub mod key;
pub mod superblock;
pub mod units;

pub use checksum::ChecksumKind;
pub use key::{Key, KeyType};
pub use units::{DeviceId, Generation, Ino, Level, Logical, Physical, TreeId};
