//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! One logical space over one or more devices: the chunk map, the profiles, mirrors and parity, read repair, and the
//! only place that writes superblocks.
//!
//! - [`Volume`]: reads, writes, flushes; superblocks
//! - [`ChunkMap`]: an immutable value that says where each chunk lies, swapped whole
//! - [`Layout`]: where the bytes of one chunk are, by its profile
//!
//! # Invariants
//! 1. [`Volume::read`] returns only bytes that its caller's `verify` accepted.
//! 2. A write goes to every copy, or is an error, or failed on no more devices than the profile survives, which is
//!    told.
//! 3. A bad copy is overwritten only with bytes that another copy holds at that moment, and never while a write is on
//!    its way to any place: what a reader calls good may have been freed and written anew since.
//! 4. No write to a logical address touches a superblock copy.
//! 5. A device that has missed writes is never believed without a checksum or a generation that confirms it.
//! 6. New parity is never computed from data that the parity on disk contradicts, unless the writer has had the row
//!    repaired.
//! 7. Superblocks go out in the order secondaries, flush, primary, flush, so that one valid set is always on disk.
//!
//! # Not here
//! Checksums (the reader brings `verify`), trees, allocation.

#![forbid(unsafe_code)]

mod assembly;
mod chunk_map;
mod device_set;
mod error;
mod exclusion;
#[cfg(test)]
mod fixture;
mod layout;
mod member;
mod migration;
mod ownership;
mod parity;
mod parity_write;
mod repair;
mod resync;
mod resync_rows;
mod row;
mod row_check;
mod row_locks;
mod scrub;
mod seeds;
mod signatures;
mod staleness;
mod stripe_read;
mod stripe_write;
mod superblocks;
mod twin_rows;
mod twins;
mod volume;
mod windows;
mod witnesses;

pub use assembly::{OpenNotes, SPLIT_HINT};
pub use chunk_map::{ChunkMap, ChunkMapError};
pub use error::{CopyFailure, FailureReason, VolumeError};
pub use layout::{Layout, Piece, StripeAddress};
pub use member::{Caching, DeviceStats, Seed};
pub use migration::{CopyTo, SourceReads, can_move, is_kept};
pub use repair::Rewritten;
pub use resync::{Confirmed, Resynced};
pub use row_check::{RowChecked, RowRepair};
pub use scrub::{CopyPlace, DeviceExtent, FoundErrors, Run};
pub use signatures::recognise;
pub use staleness::Bug;
pub use twin_rows::BadRow;
pub use twins::Target;
pub use volume::{MIRROR_TURN, Report, Volume};
pub use witnesses::{Kind, Place, Witnesses, claimed_start, lenient_chunk};

pub use butterfs_ondisk::chunk::{Chunk, ChunkStripe};
