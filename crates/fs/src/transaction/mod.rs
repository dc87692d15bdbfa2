//! Transactions: who may change what now, and what the changes wait for.
//!
//! ```text
//! Running ──► Freezing ──► Writing ──► Durable
//!              │             └ generation+1 is already Running: it edits and allocates
//!              └ new handles wait: CPU only. References that many have queued are booked in slices before
//! ```
//! A [`Transaction`] is what belongs to one generation; the [`Gate`] lets [handles](Handle) into the running one.
//! [`Core`] is what an open filesystem keeps from one to the next, below inodes.
//!
//! # Invariants
//! 1. At most one transaction is Writing and one Running.
//! 2. Trees change only under a [`Handle`]; Freezing begins when no handle is left.
//! 3. Locks are taken in the order of one table ([`butterfs_sync::order`]), which a debug build checks.
//! 4. A failed commit, an edit that fails half-way, or a panic anywhere aborts ([`abort`]): reads go on, writes return
//!    `EROFS`, and what is on disk is the last durable transaction.
//! 5. Nothing here commits: where space or memory is short, starting says so.
//!
//! Freezing and writing are done in `commit`.

mod abort;
mod block_source;
mod chunk_allocation;
mod core;
mod devices;
mod difference;
mod dirty_inodes;
mod discards;
mod editor;
pub mod extent_item;
mod free_space_load;
mod gate;
mod handle;
mod held_data;
mod in_place;
mod log_space;
mod lookup;
mod moved;
mod preload;
mod ref_changes;
pub mod refs;
mod reserve;
mod running;
mod subvolume_table;
mod tree;
mod tree_table;
mod unallocated;
mod watch;

pub use self::core::Core;
pub(crate) use abort::Alarm;
pub(crate) use block_source::without_waiting;
pub use block_source::{BlockSource, Misses};
pub(crate) use chunk_allocation::system_array_len;
pub use chunk_allocation::{DeviceExtents, DeviceSpace, Keep};
pub(crate) use devices::StaleItem;
pub(crate) use difference::{Committed, merge_leaves};
pub use dirty_inodes::{InodeRecord, InodeState, Known, Orphan, item_key, orphan_key};
pub(crate) use discards::{Discarded, MOST_AT_ONCE, Place};
pub(crate) use handle::Stopped;
pub use handle::{DataRef, Handle};
pub(crate) use held_data::HeldData;
pub(crate) use in_place::InPlaceWrite;
pub(crate) use moved::CommittedReader;
pub(crate) use preload::Copied;
pub(crate) use reserve::MetadataReservation;
pub use reserve::{DataReservation, Reserve};
pub(crate) use running::{Books, DeviceChange, Ended, MovedChunk, Transaction};
pub(crate) use subvolume_table::Readers;
pub(crate) use tree::Fetched;
pub use tree::{ItemRef, Tree};
pub use tree_table::GlobalTrees;
pub(crate) use unallocated::Again;
pub(crate) use watch::{Changes, Watch};
