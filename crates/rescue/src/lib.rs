//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Saves what can be saved from a filesystem that does not mount: finds superblocks, chunks and roots, reads trees that
//! have holes, and restores files.
//!
//! - [`superblocks`]: every copy on every device, and which one to believe
//! - [`scan`]: reads devices once and writes down every tree block that is there
//! - [`index`]: what a scan has found, in order
//! - [`chunks`]: where the logical space lies, from whatever still says so
//! - [`wreck`]: a filesystem opened without trust: tree blocks and data, the best copy that there is
//! - [`tree`]: items of a tree that may have holes
//! - [`roots`]: roots of all trees by generation, and what each one yields
//! - [`subvolume`]: files and directories as a tree has them
//! - [`trust`]: how far what was read can be believed
//! - [`data`]: contents, compared with their checksums
//! - [`restore`]: from trees to a [`sink`]: a directory, a tar stream, a new image
//! - [`undelete`]: what older trees have and the last one does not
//! - [`mapped`], [`overlay`]: devices of which parts are bad, and whose changes stay in memory
//! - [`patch`]: the commands that write, by name
//!
//! # Invariants
//! 1. Nothing but [`patch`] writes to a device of the filesystem; all else opens them for reading.
//! 2. Any bytes may be on the devices: no panic, and memory and time are bounded by what was really found there. A tree
//!    block is visited at most once in a walk of its tree.
//! 3. What is handed out says how sure it is ([`Quality`] of blocks, [`Trust`] of statements, [`Grade`](data::Grade) of
//!    files); what is missing is counted, not invented.
//!
//! # Not here
//! Transactions, consistency (`check`), mounting.

#![forbid(unsafe_code)]

mod back_references;
mod block;
mod cache;
pub mod chunks;
pub mod data;
pub mod index;
pub mod key;
mod live;
mod log_layer;
pub mod mapped;
mod order;
pub mod overlay;
pub mod patch;
pub mod restore;
mod root_level;
pub mod roots;
pub mod scan;
mod seeds;
pub mod sink;
mod stripes;
pub mod subvolume;
pub mod superblocks;
pub mod tree;
pub mod trust;
pub mod undelete;
pub mod wreck;

pub use block::{Block, Expect, Quality};
pub use index::{Found, Index};
pub use trust::{Doubts, Trust};
pub use wreck::{Opening, Wreck};

/// Why something could not be done: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub String);

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// An error of this sentence.
pub(crate) fn error<T>(sentence: impl Into<String>) -> Result<T> {
    Err(Error(sentence.into()))
}
