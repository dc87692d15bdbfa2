//! Messages of a command that mounts to a process that may serve the same filesystem already. One question, one answer;
//! a mount comes with its descriptor.
//!
//! Only root and the user who serves are answered, and only in their own version.

use crate::{Message, QUESTION_BYTES, REPLY_BYTES, Refusal};
use serde::{Deserialize, Serialize};

/// A question about the mounts of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountQuestion {
    /// Asks for the storage of the filesystem.
    Locate,
    /// One more mount.
    Join {
        /// Mount options, as `-o` has them.
        options: Vec<String>,
    },
    /// The options in force.
    ShowOptions,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountAnswer {
    /// One for each device.
    Located(Vec<Storage>),
    /// The mount is the descriptor that comes with this: it is nowhere yet, and has no flags of its own. These options
    /// belong to the filesystem and have no effect.
    Joined(Vec<String>),
    /// The options in force, comma-separated.
    Options(String),
    /// Why not.
    Refused(Refusal),
}

/// The storage of some bytes, below all loop devices and partitions, and their offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// Device number of the file's filesystem, or of the block device.
    pub device: u64,
    /// The file's inode number; none of a block device.
    pub inode: Option<u64>,
    /// The position at which they begin, in bytes.
    pub start: u64,
}

impl Message for MountQuestion {
    const KIND: &'static str = "question about mounts";
    const VARIANTS: &'static [&'static str] = &["Locate", "Join", "ShowOptions"];
    const MOST_BYTES: usize = QUESTION_BYTES;
}

impl Message for MountAnswer {
    const KIND: &'static str = "answer about mounts";
    const VARIANTS: &'static [&'static str] = &["Located", "Joined", "Options", "Refused"];
    const MOST_BYTES: usize = REPLY_BYTES;
}
