//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Block devices elsewhere: volumes made of objects, and raw images that are read by ranges.
//!
//! - [`ObjectDevice`]: a volume in an object store, with one writer at a time and any number of readers
//! - [`RangedImage`]: an object, or a file of an HTTP server, as a device that is only read
//! - [`manage`]: volumes made, listed, cloned, removed; objects that none of them needs
//!
//! A volume is a root, a log, and segments; `docs/volumes.md` has every byte.
//!
//! ```
//! use butterfs_device::BlockDevice;
//! use butterfs_remote::{ObjectDevice, Options, make};
//! use butterfs_store::Store;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::in_memory();
//! make(&store, "main", 1 << 30)?;
//! let device = ObjectDevice::open(&store, &Options::default())?;
//! device.write_at(4096, &[7; 4096])?;
//! device.flush()?; // one conditional put
//! device.close()?;
//! let mut block = [0; 4096];
//! ObjectDevice::open_read_only(&store, &Options::default())?.read_at(4096, &mut block)?;
//! assert_eq!(block, [7; 4096]);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! 1. A flush makes everything durable that was written before it, as of one moment, or nothing: one object, the
//!    record, holds or names all of it. So writes need no order between flushes.
//! 2. A flush is acknowledged only by the put of a key that did not exist, in the epoch of this writer. A writer whose
//!    epoch was ended gets an error for its next flush, and nothing of it appears.
//! 3. Objects are never changed, but for the root and the sign of life. No object that a root, its log, or a root of
//!    the last hour names is deleted.
//! 4. Every byte that is read fits the digest in the map or the log, or is an error that names the object.
//! 5. Memory is bounded by [`Limits`] (64 MiB of written blocks where those are of a file), the part of the map that
//!    changed since the last table, 64 MiB of the map, and 32 MiB that are on their way from the store.
//! 6. A device that is dropped waits for no answer to what it reads ahead.
//!
//! # Not here
//! Objects of snapshots (`butterfs-objects`), clients and retries (`butterfs-store`).

#![forbid(unsafe_code)]

mod ahead;
mod bytes_of;
mod checkpoint;
mod device;
mod failures;
mod local;
pub mod manage;
mod open;
mod pieces;
mod ranged;
mod ranges;
mod record;
mod room;
mod root;
mod segment;
mod state;
mod table;
mod volume;

pub use device::ObjectDevice;
pub use local::LocalFile;
pub use open::{Options, check_name, make};
pub use ranged::RangedImage;
pub use root::{DEFAULT_VOLUME, Writer};
pub use volume::Limits;
