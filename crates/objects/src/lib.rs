//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Snapshots as objects: a repository in an object store holds snapshots as segments of data, an index of inodes and
//! extents for each, and a small manifest, which is written last. `docs/objects.md` describes the layout.
//!
//! ```text
//! Put          a target of send streams: commands become edits of an index, content becomes pieces in segments
//! View         one snapshot, read by ranges: names, inodes, content
//! generate     a snapshot as a send stream
//! verify, prune, copy
//! ```
//! # Invariants
//! 1. Objects never change: segments are named by the digest of their bytes, manifests by their snapshot.
//! 2. A manifest is there only if everything that it needs was acknowledged before.
//! 3. Nothing that a store returns is believed: pieces have digests, manifests have their own, lengths are bounded, and
//!    an error names the object.

#![forbid(unsafe_code)]

mod archive;
mod copy;
mod difference;
mod digest;
mod generate;
mod index;
pub mod items;
mod keys;
mod manifest;
mod node;
mod piece;
mod prune;
mod put;
mod repository;
mod scratch;
mod segment;
mod session;
mod tree;
mod verify;
mod view;

pub use archive::Archive;
pub use copy::copy;
pub use difference::{Change, differences};
pub use generate::{Written, stream};
pub use manifest::{Listing, Manifest};
pub use prune::{Keep, Pruned, prune};
pub use put::{Options, Put};
pub use repository::{Access, Repository};
pub use segment::Sent;
pub use verify::{Depth, Verified, verify};
pub use view::{Entry, View};
