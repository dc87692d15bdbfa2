//! The table of repairs: for each finding of the checker the pass that sees to it, how, and what can be lost by it.

use crate::action::Pass;

/// The conditions of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The pass does it.
    Automatic,
    /// The pass does it where the data says which state is right; where not, the finding stays.
    WhereCertain,
    /// The user has to accept what the devices hold (`--accept-data`).
    Consent,
    /// Nothing can: the sentence says what to do instead.
    Instead,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Repair {
    /// The finding's id.
    pub finding: &'static str,
    /// The pass that sees to it.
    pub pass: Pass,
    /// See [`Means`].
    pub means: Means,
    /// How, or what has to be done instead.
    pub how: &'static str,
    /// The possible loss; empty where there is none.
    pub lost: &'static str,
}

macro_rules! repairs {
    ($($finding:literal, $pass:ident, $means:ident, $how:literal, $lost:literal;)*) => {
        /// All repairs, in the order of the checker's table.
        pub const REPAIRS: &[Repair] = &[$(Repair {
            finding: $finding, pass: Pass::$pass, means: Means::$means, how: $how, lost: $lost,
        },)*];
    };
}

repairs! {
    "cannot-open", Superblocks, Instead,
        "give all devices; try -s 1, -s 2 or -b; else copy the readable files out of it", "";
    "superblock-primary", Superblocks, Automatic,
        "written from the best valid copy; where its magic is gone, something else may use the device, and only -s 1 \
        or -s 2 writes it",
        "a log, which only the primary one leads to";
    "superblock-copy", Superblocks, Automatic, "written from the primary one", "";
    "superblock-bytes-used", Superblocks, Automatic, "set to the sum of the extents", "";
    "superblock-total-bytes", Superblocks, Automatic, "set to the sum of the device items", "";
    "tree-block", Blocks, Automatic,
        "put together from its copies, if each is damaged at another place; where only the level of a root, a \
         pointer or one field of the header is wrong, the block that fits the rest is taken; else a tree that follows \
         from others is made anew; of a lost node the children are found; of a leaf with wrong items the good ones are \
         saved, and keys with wrong bits are put right; a lost leaf is taken out, and its files are put together from \
         the extent tree and their names",
        "what only a lost leaf had (attributes, inline data): the plan names the range of items, of which \
         `restore --map` may find older versions";
    "tree-block-copy", Copies, Automatic, "overwritten by the good copy", "";
    "key-order-across-blocks", Blocks, Automatic,
        "items behind the range of their block get the right key, if it is known; else they go, and come back from \
        their other witnesses",
        "items that have no other witness";
    "root-missing", Roots, Automatic,
        "found by the reference that the extent tree has to it, or the backup root of the last commit, or made anew",
        "of the checksum tree and the top level: their content, if no root is found";
    "root-doubled", Roots, Automatic, "the newest one with a good block stays", "the other version";
    "root-offset", Roots, Automatic, "put under offset 0", "";
    "root-directory", Roots, Automatic, "made the number that all subvolumes have", "";
    "item-unknown", Roots, WhereCertain,
        "a root item and an item of an inode get the right type, if nothing else is possible", "";
    "system-chunk", Chunks, Automatic, "superblock and chunk tree get the chunk through which the tree was read", "";
    "chunk", Chunks, WhereCertain,
        "taken from its device extents and its block group, if one stripe is wrong or all are alike", "";
    "device-extent-missing", Chunks, Automatic,
        "made from the chunks; a chunk is taken from its device extents, if more of what it holds fits its checksums \
        where they say", "";
    "device-extent-extra", Chunks, Automatic,
        "with its block group made a chunk, if the order of stripes does not matter; else removed", "";
    "stripe-overlap", Chunks, WhereCertain, "the chunk without matching device extents is put right from them", "";
    "device-item-missing", Chunks, Automatic, "taken from the device's superblock", "";
    "device-identity", Chunks, WhereCertain,
        "taken from the device's superblock, if the chunks take the given device for theirs; else give the \
        right device", "";
    "device-bytes-used", Chunks, Automatic, "set to the sum of the device extents", "";
    "block-group-missing", Extents, Automatic, "made from the chunk", "";
    "block-group-extra", Extents, Automatic,
        "with its device extents made a chunk, if the order of stripes does not matter; else removed", "";
    "block-group-type", Extents, Automatic, "taken from the chunk", "";
    "block-group-used", Extents, Automatic, "set to the sum of the extents", "";
    "extent-overlap", Extents, WhereCertain,
        "the extent stays that a tree uses; if trees use both, copy the files out",
        "";
    "extent-outside-chunk", Extents, WhereCertain, "removed, if no tree uses it; else its files are lost", "";
    "extent-in-wrong-group", Extents, WhereCertain,
        "set to the type that the trees use it for; if that is wrong, balance", "";
    "extent-missing", Extents, Automatic,
        "a file's item gets the address that the extent tree has for its place; else made from the references of all \
        trees", "";
    "extent-unused", Extents, Automatic,
        "given back to the root item or the file that lacks it, if it is certain; else removed, once every tree can be \
        read whole", "";
    "extent-refs", Extents, Automatic, "made from the references of all trees", "";
    "reference-missing", Extents, Automatic,
        "a file's item gets the address that the extent tree has for its place; else made from the references of all \
        trees", "";
    "reference-extra", Extents, Automatic, "made from the references of all trees", "";
    "reference-count", Extents, Automatic, "made from the references of all trees", "";
    "reference-without-extent", Extents, Automatic, "made from the references of all trees", "";
    "extent-level", Extents, Automatic, "taken from the block", "";
    "extent-generation", Extents, Automatic, "taken from the block", "";
    "extent-length", Extents, WhereCertain,
        "neighbours, checksums and the length in memory say which one is right; else the one stays that most files \
        take it for", "";
    "full-backref-missing", Extents, Automatic, "derived from who leads to the block", "";
    "full-backref-extra", Extents, Automatic, "derived from who leads to the block", "";
    "free-space-info-missing", FreeSpace, Automatic, "made from the extents", "";
    "free-space-stray", FreeSpace, Automatic, "removed", "";
    "free-space-count", FreeSpace, Automatic, "made from the extents", "";
    "free-space-form", FreeSpace, Automatic, "made from the extents", "";
    "free-space-wrong", FreeSpace, Automatic, "made from the extents", "";
    "space-cache-unusable", FreeSpace, Automatic, "all caches are made invalid; the kernel makes them anew", "";
    "space-cache-wrong", FreeSpace, Automatic, "all caches are made invalid; the kernel makes them anew", "";
    "root-unreferenced", Subvolumes, Automatic,
        "named by the entry that leads to it, else lost+found of the top level",
        "its place";
    "root-ref-unpaired", Subvolumes, Automatic, "two of reference, back reference and entry decide", "";
    "root-ref-without-entry", Subvolumes, Automatic, "the directory gets the entry", "";
    "root-dead-without-orphan", Subvolumes, Automatic,
        "alive again where a directory has it and nothing is dropped yet, else it gets its orphan item", "";
    "root-dead-with-name", Subvolumes, Automatic,
        "alive again where a directory has it and nothing is dropped yet, else its names go", "";
    "root-orphan-stale", Subvolumes, Automatic, "removed", "";
    "inode-missing", Inodes, Automatic, "made from its names, entries and extents", "mode, owner, times, exact size";
    "inode-link-count", Inodes, Automatic, "set to the number of its names", "";
    "inode-without-name", Inodes, Automatic, "named in lost+found of its subvolume", "its name";
    "snapshot-orphans", Inodes, Automatic, "deleted, as the next use of the snapshot would", "";
    "orphan-stale", Inodes, Automatic, "removed, with what an interrupted change of fs-verity has left", "";
    "directory-size", Inodes, Automatic, "set to the value that its names need", "";
    "directory-item-index", Names, Automatic,
        "two of both entries and the inode's reference decide",
        "names of which no inode is there, or that one entry alone has";
    "entries-in-no-directory", Inodes, Automatic,
        "made a directory again, if its entries' inodes say so",
        "else the entries";
    "entry-without-reference", Names, Automatic,
        "two of both entries and the inode's reference decide",
        "names of which no inode is there, or that one entry alone has";
    "reference-without-entry", Names, Automatic, "two of both entries and the inode's reference decide", "";
    "extref-hash", Names, Automatic, "put under its hash", "";
    "name-impossible", Names, Automatic,
        "a possible name of the other witnesses stays; if there is none, a similar name in the same directory",
        "the name";
    "file-extent-overlap", Files, Automatic,
        "the newer extent stays whole, the other one is cut",
        "the older version of the range";
    "file-extent-generation", Files, Automatic, "taken from the extent", "";
    "file-extent-bounds", Files, Automatic,
        "its length follows from the extent, its other items or the inode's sum of bytes, its compression from its \
        data, its offset from its length; else the range beyond becomes a hole",
        "the range that is named";
    "file-extent-empty", Files, Automatic,
        "shows as much as makes the inode's sum of bytes right, if that fits; else removed", "";
    "file-extent-packing", Files, WhereCertain,
        "marked as its data is packed, if the data fits its checksum; else restore the file from a backup", "";
    "file-extent-gap", Files, Automatic, "a hole", "the data of the range, if it was no hole";
    "inode-nbytes", Inodes, Automatic,
        "extents that the extent tree has for it come back, or one of its extents shows more, if that makes up the \
        difference; else set to the sum",
        "content of which no extent is known";
    "symlink-target", Inodes, Automatic,
        "its size follows from its content, if there is some; else it becomes an empty file with the same name, owner \
        and times, and mode 0600", "its target";
    "checksum-missing", Checksums, Consent,
        "computed from the sectors that all copies hold alike; those that stand under a wrong key are moved, without \
        consent, to the data that they fit", "whether the bytes are right";
    "checksum-odd", Checksums, Automatic,
        "the inode is verified by them, if all of its data has some; else they go", "checksums that may not fit";
    "checksum-unwritten", Files, WhereCertain,
        "marked as written, if the data fits its checksums; else they go, if no other extent needs them",
        "checksums of bytes that are read as zeros";
    "checksum-stray", Checksums, Automatic, "removed, once the extents are right", "";
    "checksum-overlap", Checksums, Automatic, "of two checksums of a sector the one stays that the data has", "";
    "data-checksum", Copies, WhereCertain,
        "overwritten by a good copy, or rebuilt from parity; without either restore the file from a backup, or accept \
        it by --init-csum-tree", "";
    "uuid-entry-missing", Uuids, Automatic, "made from the root items", "";
    "uuid-entry-stale", Uuids, Automatic, "made from the root items", "";
    "log-block", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-item", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-without-subvolume", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-inode-missing", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-range", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-extent", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "log-checksum-missing", Log, Automatic, "the log is dropped", "changes that were fsynced since the last commit";
    "uuid-tree-lags", Uuids, Automatic, "made from the root items", "";
}

/// The line of a finding.
pub fn repair_of(finding: &str) -> Option<&'static Repair> {
    REPAIRS.iter().find(|repair| repair.finding == finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_of_the_checker_has_a_repair_or_says_what_to_do_instead() {
        let known: Vec<&str> = butterfs_check::TABLE.iter().map(|info| info.id).collect();
        let repaired: Vec<&str> = REPAIRS.iter().map(|repair| repair.finding).collect();
        assert_eq!(repaired, known);
        assert!(REPAIRS.iter().all(|repair| !repair.how.is_empty()));
    }
}
