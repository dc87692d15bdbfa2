//! Damage that scrub has found: where, why, what became of it, and which files it is in.

use butterfs_ondisk::{DeviceId, Ino, Level, Logical, Physical, TreeId};
use butterfs_volume::CopyPlace;
use std::fmt;

/// Damaged bytes of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The device.
    pub device: DeviceId,
    /// The name.
    pub device_name: String,
    /// The address on it.
    pub physical: Physical,
    /// The address; none of a superblock.
    pub at: Option<Logical>,
    /// Bytes.
    pub len: u64,
    /// The content there.
    pub content: Content,
    /// The fault.
    pub cause: Cause,
    /// The outcome.
    pub outcome: Outcome,
}

/// The content of damaged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Data of files.
    Data,
    /// A tree block.
    TreeBlock(Level),
    /// A superblock copy.
    Superblock,
    /// Parity of a row.
    Parity,
}

/// The fault of bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The device cannot read them.
    Unreadable,
    /// Their checksum is another one.
    Checksum,
    /// The header of a tree block or superblock breaks this rule.
    Header(String),
    /// A tree block of another generation.
    Generation {
        /// The value in the block.
        found: u64,
        /// The value in the extent item.
        expected: u64,
    },
    /// Parity that does not fit the data of its row.
    Contradiction,
    /// They have no checksum, and the copies are not the same. Nothing says which one is right.
    CopiesDiffer,
}

/// The outcome for a damaged place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was rewritten from this copy, and the device has it now.
    Repaired(CopyPlace),
    /// It could be, but nothing is written in this run.
    Repairable(CopyPlace),
    /// It was rewritten from what this process knows; superblocks only.
    Rewritten,
    /// It was computed anew from good data.
    Recomputed,
    /// It could be, but nothing is written in this run.
    Recomputable,
    /// It is as it was, for this reason.
    Lost(String),
    /// Nobody can say that it is wrong.
    Noticed,
}

impl Outcome {
    /// Whether a good copy was found.
    pub fn is_corrected(&self) -> bool {
        matches!(
            self,
            Outcome::Repaired(_)
                | Outcome::Repairable(_)
                | Outcome::Rewritten
                | Outcome::Recomputed
                | Outcome::Recomputable
        )
    }
}

/// A range of a file that damaged bytes belong to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileRange {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub ino: Ino,
    /// The offset in the file.
    pub offset: u64,
    /// Bytes of the file: all that a compressed extent shows, because nothing less can be said of it.
    pub len: u64,
    /// Its path from the top level, without a slash at the front; one range for each hard link. None where none was
    /// found.
    pub path: Option<Vec<u8>>,
}

/// Damage with the files that it is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The damage.
    pub damage: Damage,
    /// The files, in every subvolume and snapshot.
    pub files: Vec<FileRange>,
    /// The trees that reach a tree block.
    pub trees: Vec<TreeId>,
    /// There are more than are listed.
    pub is_cut: bool,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unreadable => f.write_str("unreadable"),
            Cause::Checksum => f.write_str("checksum error"),
            Cause::Header(rule) => write!(f, "header error: {rule}"),
            Cause::Generation { found, expected } => write!(f, "generation error: {found} instead of {expected}"),
            Cause::Contradiction => f.write_str("it does not fit the data"),
            Cause::CopiesDiffer => f.write_str("the copies differ, and no checksum says which one is right"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = |f: &mut fmt::Formatter<'_>, how: &str, place: &CopyPlace| {
            let kind = if place.is_computed { "parity" } else { "copy" };
            let CopyPlace { copy, name, physical, .. } = place;
            write!(f, "{how} from {kind} {copy} on {name} at {physical}")
        };
        match self {
            Outcome::Repaired(place) => from(f, "repaired", place),
            Outcome::Repairable(place) => from(f, "can be repaired", place),
            Outcome::Rewritten => f.write_str("rewritten"),
            Outcome::Recomputed => f.write_str("computed anew"),
            Outcome::Recomputable => f.write_str("can be computed anew"),
            Outcome::Lost(why) => write!(f, "not repaired: {why}"),
            Outcome::Noticed => f.write_str("left as it is"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { device_name, device, physical, len, cause, outcome, .. } = self;
        match (self.content, self.at) {
            (Content::Data, Some(at)) => write!(f, "{len} bytes of data at logical {at}")?,
            (Content::TreeBlock(level), Some(at)) => write!(f, "tree block (level {level}) at logical {at}")?,
            (Content::Parity, Some(at)) => write!(f, "{len} bytes of parity of the row at logical {at}")?,
            _ => f.write_str("superblock copy")?,
        }
        write!(f, " on {device_name} (devid {device}) at {physical}: {cause}; {outcome}")
    }
}

impl fmt::Display for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileRange { tree, ino, offset, len, path } = self;
        match path {
            Some(path) => write!(f, "'/{}' (inode {ino} of tree {tree})", String::from_utf8_lossy(path))?,
            None => write!(f, "inode {ino} of tree {tree}")?,
        }
        write!(f, " at offset {offset} length {len}")
    }
}
