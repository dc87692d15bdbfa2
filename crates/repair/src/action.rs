//! The passes of a repair by name, and what they did.

use std::fmt;

macro_rules! passes {
    ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
        /// A part of a repair; they run in this order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Pass { $($(#[$doc])* $name,)* }

        impl Pass {
            /// All, in order.
            pub const ALL: &[Pass] = &[$(Pass::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Pass::$name => $text,)* }
            }
        }
    };
}

passes! {
    /// Superblocks and their copies.
    Superblocks "superblocks";
    /// The log.
    Log "log";
    /// Chunks, device items and device extents.
    Chunks "chunks";
    /// Blocks of trees that cannot be read, or stand in a wrong place.
    Blocks "blocks";
    /// Root items.
    Roots "roots";
    /// Names of subvolumes.
    Subvolumes "subvolumes";
    /// Names of inodes.
    Names "names";
    /// Inodes and what they say of themselves.
    Inodes "inodes";
    /// File extents.
    Files "files";
    /// Checksums of data.
    Checksums "checksums";
    /// The UUID tree.
    Uuids "uuids";
    /// Extents and references, block groups.
    Extents "extents";
    /// The free space tree or cache.
    FreeSpace "free-space";
    /// Copies of blocks and of data.
    Copies "copies";
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that a pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The pass.
    pub pass: Pass,
    /// The deed, one sentence without full stop.
    pub what: String,
    /// The loss that it causes.
    pub lost: Option<String>,
}
