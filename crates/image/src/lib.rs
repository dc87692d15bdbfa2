//! Internal to butterfs: this crate promises no stability.
//!
//! Images of btrfs from folders, archives and containers: without root, without the kernel, the same bytes every time.
//!
//! - [`source`]: where content comes from; the trait [`Source`] is open to everybody
//! - [`assembly`]: where sources put it
//! - [`owners`], [`rules`]: whose it is, and how it is stored
//! - [`builder`]: what the image is to be
//!
//! Data is written while sources are read; its place is known when its compressed size is. The trees are written when
//! everything is known, bottom up and full, in one generation, without transactions.
//!
//! ```
//! use butterfs_image::{Builder, FolderSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("butterfs-image-example-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let out = folder.with_extension("img");
//! Builder::new().source("/", FolderSource::new(&folder))?.epoch(1_700_000_000).build(&out)?;
//! # std::fs::remove_file(out)?;
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod assembly;
mod blocks;
pub mod builder;
mod compressed;
pub mod container;
mod data;
pub mod descent;
mod entry;
mod error;
mod host;
pub mod manifest;
mod output;
pub mod owners;
mod partition;
mod path;
mod plan;
mod pool;
mod reflink;
pub mod rules;
mod seed;
pub mod source;
mod spool;
mod subvolumes;
pub mod target;
mod tree;

pub use assembly::{Assembly, Target};
pub use builder::{Builder, Form, Limits, Report, Size};
pub use container::{Container, NbdDevice, open_container};
pub use entry::{Attributes, Content, Sent, Special, Time};
pub use error::{Error, ErrorKind, Result};
pub use manifest::Manifest;
pub use owners::{IdRange, Owners};
pub use partition::{Partitions, partition};
pub use rules::Rule;
pub use source::{ComposefsSource, FilesystemSource, FolderSource, Layers, OciSource, Source, StreamSource, TarSource};
pub use target::{FilesystemTarget, HostTarget, TarTarget};
pub use tree::Replace;
