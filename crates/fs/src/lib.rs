//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The engine: a btrfs filesystem that is read and written.
//!
//! Modules stand in a fixed order, each using only those of earlier ranks (checked by `cargo xtask layering`):
//!
//! `error env options sync_primitives | node_io mkfs parallel superblock_order | space | transaction | file_extent
//! extent | backref | commit | migration relocation | tree_log | file_buffer | inode | file | namespace | subvolume |
//! scrub | replay | mount | filesystem`

#![forbid(unsafe_code)]

pub mod backref;
pub mod commit;
pub mod env;
pub mod error;
pub mod extent;
pub mod file;
pub mod file_buffer;
pub mod file_extent;
pub mod filesystem;
pub mod inode;
pub mod migration;
pub mod mkfs;
pub mod mount;
pub mod namespace;
pub mod node_io;
pub mod options;
mod parallel;
pub mod relocation;
mod replay;
pub mod scrub;
pub mod space;
pub mod subvolume;
mod superblock_order;
mod sync_primitives;
pub mod transaction;
pub mod tree_log;

pub use butterfs_ondisk::items::{BalanceArgs, BalanceItem, inode_flags};
pub use butterfs_ondisk::{DeviceId, Generation, Ino, Logical, TreeId};
pub use butterfs_tree::{Difference, Position};
pub use butterfs_volume::DeviceStats;
pub use env::Env;
pub use error::{Errno, Error, Result};
pub use filesystem::{
    BalanceEnd, BalanceProgress, BalanceRun, BalanceState, BalanceStatus, ChunkUsage, Claim, DeviceUsage, Exclusive,
    ExclusiveOperation, Filesystem, GoingDown, Listed, Listing, OperationProgress, SnapshotReader, SpaceUsage, StatFs,
    Together, Trim,
};
pub use inode::attr::{Attr, Caller, SetAttr, SetTime};
pub use inode::{InodeId, References};
pub use namespace::{DirEntry, RenameMode};
pub use options::{AccessTimes, Algorithm, Commit, DataPolicy, DiscardMode, Method, Options, Rescue, Subvolume};
