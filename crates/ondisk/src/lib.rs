//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The btrfs on-disk format, as declarations and pure functions.
//!
//! One declaration per structure (little-endian field types, a size assertion), one table of key types, the
//! checksums and hashes, the tree checker, and the dump text. Nothing here does I/O and nothing here knows how
//! trees are edited.
//!
//! - [`units`]: the domain's quantities as types
//! - [`key`]: keys and key types
//! - [`leaf_keys`]: the keys of a leaf's items, where some have wrong bits
//! - [`header`]: tree block header, item headers, key pointers
//! - [`items`]: item payloads
//! - [`layout`]: the fields of every structure, as a table
//! - [`superblock`]: the superblock and where its copies are
//! - [`checksum`]: checksums and name hashes
//! - [`features`]: feature bits, and what a filesystem that has them allows us to do
//! - [`admission`]: whether a filesystem may be read and written
//! - [`profile`]: the block group profiles
//! - [`chunk`]: chunk items and the system chunk array
//! - [`packing`]: how packed data begins
//! - [`tree_checker`]: every rule that a tree block must obey
//! - [`dump`]: superblocks and tree blocks as text

#![forbid(unsafe_code)]

/// Returns the broken rule, formatted, from a function whose error is a `String`, unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($rule:tt)+) => {
        if !$holds {
            return Err(format!($($rule)+));
        }
    };
}

#[macro_use]
pub mod layout;

pub mod admission;
pub mod balance;
pub mod checksum;
pub mod chunk;
pub mod dump;
pub mod features;
pub mod header;
pub mod items;
pub mod key;
pub mod leaf_keys;
pub mod packing;
pub mod profile;
pub mod superblock;
pub mod tree_checker;
pub mod units;

pub use admission::{Admission, admission};
pub use checksum::ChecksumKind;
pub use chunk::{Chunk, ChunkStripe};
pub use key::{Key, KeyType};
pub use profile::Profile;
pub use superblock::{Superblock, SuperblockError};
pub use tree_checker::{CheckContext, Violation};
pub use units::{DeviceId, Generation, Ino, Level, Logical, Physical, TreeId};
