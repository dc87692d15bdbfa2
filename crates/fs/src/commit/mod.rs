//! The commit: book until nothing is left, write, flush, superblocks, flush.
//!
//! ```text
//! Transaction ─book, freeze─► Frozen ─write─► Written ─publish─► Durable ─release─► space, chunks, cleaner
//!                                                          └──────► left to the next one, where a device has failed
//! ```
//! # Order on disk
//! 1. Data of recorded file extents is written before it is recorded, by whoever records it.
//! 2. All tree blocks of the generation, all copies. 3. Flush. 4. Superblocks (see `Volume::write_superblock`).
//! 5. Only now what the generation freed may be used again.
//!
//! A device that fails before 4, when the trees are frozen and cannot name it any more, leaves the generation without a
//! superblock: the next generation, whose trees name the device, follows at once and has all of it. So whatever a power
//! cut between the superblocks of several devices leaves, the trees of the newest one name every device that lacks some
//! of them.
//!
//! # Invariants
//! 1. A generation without a dirty block writes nothing, and its number is used by the next one.
//! 2. Booking converges: a block is copied at most once in a generation, and every round only books what the
//!    round before changed.
//! 3. After an error nothing is written any more.
//!
//! [`Engine`] is also where an operation starts that may have to wait for a commit ([`relief`]).

mod ahead;
mod background_requests;
mod booking;
mod chunk_moves;
mod device_changes;
mod engine;
mod nodes;
mod relief;
mod states;
mod superblock;
mod together;
mod unused_groups;

pub(crate) use device_changes::join as join_device;
pub use engine::Engine;
pub(crate) use nodes::write_nodes;
pub(crate) use together::Before;
