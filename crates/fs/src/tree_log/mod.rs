//! The tree log: what `fsync` writes instead of a commit, and what a mount after a crash replays.
//!
//! ```text
//! superblock.log_root ─► log root tree: (TREE_LOG, ROOT_ITEM, subvolume) ─► log tree of one subvolume
//! ```
//! A log belongs to the transaction after the one that the superblock names: all its blocks are of that generation, and
//! owned by the log, not by the subvolume. Its items have the keys and payloads of the subvolume's own ones; only the
//! ranges of [`range_key`] and the checksums, which stand behind all inodes, are the log's.
//!
//! Writing: [`plan`] says what is to be logged, `entries` and `contents` what of a directory and a file; [`store`]
//! holds the log's blocks; [`writer`] brings it together; [`group`] lets one write for many.
//!
//! This file has the facts of the format that writing and replaying share.

mod batch;
mod contents;
mod entries;
mod group;
mod lead;
mod names;
mod plan;
mod store;
mod writer;

pub use writer::LogStats;
pub(crate) use writer::{Changed, Logs, Request, Synced, Ticket};

use crate::sync_primitives;

use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use butterfs_tree::NodePtr;
use rustc_hash::FxHashMap;

/// The part of an inode that a log contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Logged {
    /// Everything, not only that it exists and its names.
    whole: bool,
    /// The inode's last change that is logged, 0 if unknown.
    change: u64,
    /// The point of the log at which it is.
    point: u64,
}

/// The log of one subvolume in one transaction.
struct TreeLog {
    root: NodePtr,
    logged: FxHashMap<Ino, Logged>,
    /// No inode of the last commit has a higher number.
    last_committed: Ino,
    /// The root that the log root tree names.
    recorded: Option<NodePtr>,
}

/// The owner of every block of every log.
pub const OWNER: TreeId = TreeId::TREE_LOG;

/// The key in the log root tree under which a subvolume's log tree is found.
pub const fn root_key(subvolume: TreeId) -> Key {
    Key::new(objectid::TREE_LOG, KeyType::ROOT_ITEM, subvolume.0)
}

/// The key of a range of directory indexes from `first` on for which a log is authoritative: an entry of the subvolume
/// whose index lies in it, and which the log does not have, was removed.
pub const fn range_key(directory: Ino, first: u64) -> Key {
    Key::new(directory.0, KeyType::DIR_LOG_INDEX, first)
}

/// The payload of such a range: its last index, which belongs to it.
pub const fn range_payload(last: u64) -> [u8; 8] {
    last.to_le_bytes()
}

/// The last index of a range; `None` when the payload is not one.
pub fn range_end(payload: &[u8]) -> Option<u64> {
    payload.try_into().map(u64::from_le_bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_the_round_trip() {
        for last in [2, 1 << 40, u64::MAX] {
            assert_eq!(range_end(&range_payload(last)), Some(last));
        }
        assert_eq!((range_end(&[0; 7]), range_end(&[0; 9])), (None, None));
        assert_eq!(range_key(Ino(257), 9), Key::new(257, KeyType(72), 9));
        assert_eq!(root_key(TreeId::FS), Key::new((-6i64) as u64, KeyType(132), 5));
    }
}
