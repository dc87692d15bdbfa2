//! The table of everything that the checker can find. A finding is a value with named fields; its id, its severity, its
//! sentence, whether it could be repaired, its text and its JSON all come from one declaration here.
//!
//! Invariants: (1) ids never change their meaning; (2) nothing is reported that is not in this table.

use butterfs_ondisk::{DeviceId, Generation, Ino, Key, Logical, TreeId};
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The filesystem works, and the kernel or the next commit puts it right; the verdict stays clean.
    Warning,
    /// The filesystem is inconsistent or has lost something.
    Error,
}

/// One row of the table of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindingInfo {
    /// Stable, in kebab case.
    pub id: &'static str,
    /// See [`Severity`].
    pub severity: Severity,
    /// Whether the right state follows from the rest of the filesystem, so that a repair could restore it.
    pub repairable: bool,
    /// The sentence, with the names of its fields in braces.
    pub sentence: &'static str,
}

/// A field's value, as JSON has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A quantity.
    Number(u64),
    /// The id of a tree; those of the format's own trees may be negative.
    Signed(i64),
    /// Words.
    Text(String),
}

macro_rules! numbers {
    ($($unit:ident)*) => { $(impl From<$unit> for Value {
        fn from(unit: $unit) -> Value { Value::Number(unit.get()) }
    })* };
}
numbers! { Logical Generation Ino DeviceId }

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number)
    }
}

impl From<Tree> for Value {
    fn from(tree: Tree) -> Value {
        Value::Signed(tree.0.get() as i64)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Key> for Value {
    fn from(key: Key) -> Value {
        Value::Text(key.to_string())
    }
}

/// A tree's id, shown as people know it: -9 and not 18446744073709551607.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tree(pub TreeId);

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0.get() as i64).fmt(f)
    }
}

macro_rules! findings {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* } $id:literal, $severity:ident, $repairable:literal,
        $sentence:literal;)*) => {
        /// One thing that is wrong.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the fields are named by the sentences
        pub enum Finding { $($(#[$doc])* $name { $($field: $kind),* },)* }

        /// Every kind of finding.
        pub const TABLE: &[FindingInfo] = &[$(FindingInfo {
            id: $id, severity: Severity::$severity, repairable: $repairable, sentence: $sentence,
        },)*];

        impl Finding {
            /// The kind's stable id.
            pub fn id(&self) -> &'static str {
                match self { $(Finding::$name { .. } => $id,)* }
            }

            /// The values, by name.
            pub fn fields(&self) -> Vec<(&'static str, Value)> {
                match self {
                    $(Finding::$name { $($field),* } => vec![$((stringify!($field), $field.clone().into())),*],)*
                }
            }
        }

        impl fmt::Display for Finding {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Finding::$name { $($field),* } => write!(f, $sentence),)* }
            }
        }
    };
}

findings! {
    /// The devices do not make a filesystem.
    CannotOpen { reason: String } "cannot-open", Error, false, "cannot open the filesystem: {reason}";
    /// A first copy that is not a superblock: the kernel does not look further.
    SuperblockPrimary { device: String, rule: String } "superblock-primary", Error, true,
        "the primary superblock of {device} is not valid: {rule}";
    /// A secondary copy that is not a superblock.
    SuperblockCopy { device: String, copy: u64, rule: String } "superblock-copy", Warning, true,
        "superblock copy {copy} of {device} is not valid: {rule}";
    /// The sum of the groups is not what the superblock says.
    SuperblockUsed { stored: u64, found: u64 } "superblock-bytes-used", Error, true,
        "superblock bytes_used is {stored}, the extents have {found} bytes";
    /// Devices are larger than the superblock says.
    SuperblockTotal { stored: u64, found: u64 } "superblock-total-bytes", Error, true,
        "superblock total_bytes is {stored}, the devices have {found}";
    /// No copy of a tree block is good.
    BlockBad { tree: Tree, at: Logical, reason: String } "tree-block", Error, false,
        "tree {tree}: block {at} cannot be used: {reason}";
    /// One copy of a tree block is bad, another one good.
    BlockCopyBad { tree: Tree, at: Logical, copy: u64, reason: String } "tree-block-copy", Error, true,
        "tree {tree}: copy {copy} of block {at} is bad: {reason}";
    /// Keys that belong behind the next block.
    KeyOrder { tree: Tree, at: Logical, last: Key, next: Key } "key-order-across-blocks", Error, false,
        "tree {tree}: block {at} ends with key {last}, which is not before {next} of the next block";
    /// A tree that every filesystem has.
    RootMissing { tree: Tree } "root-missing", Error, false, "there is no root item of tree {tree}";
    /// Two root items of one tree.
    RootDoubled { tree: Tree } "root-doubled", Error, false, "there are several root items of tree {tree}";
    /// A root item under a key by which nobody looks for it.
    RootOffset { tree: Tree, stored: u64 } "root-offset", Error, true,
        "the key of the root item of tree {tree} ends in {stored}, not in 0";
    /// A subvolume whose root directory has another number than all others have: the kernel does not enter it.
    RootDirectory { tree: Tree, stored: u64 } "root-directory", Error, true,
        "the root item of tree {tree} says that {stored} is the root directory, which is 256";
    /// An item of a type that does not exist: a damaged key, or one of a later format.
    ItemUnknown { tree: Tree, key: Key } "item-unknown", Warning, true,
        "tree {tree}: item {key} is of a type that is not known";
    /// A system chunk that is not in the chunk tree.
    SystemChunk { chunk: Logical } "system-chunk", Error, true,
        "the system chunk {chunk} of the superblock is not as the chunk tree has it";
    /// Chunks that cannot be mapped.
    ChunkBad { chunk: Logical, rule: String } "chunk", Error, false, "chunk {chunk}: {rule}";
    /// A chunk's stripe without device extent.
    DeviceExtentMissing { chunk: Logical, device: DeviceId, physical: u64 } "device-extent-missing", Error, true,
        "chunk {chunk}: there is no matching device extent at {physical} of device {device}";
    /// A device extent without chunk.
    DeviceExtentExtra { chunk: Logical, device: DeviceId, physical: u64 } "device-extent-extra", Error, true,
        "the device extent at {physical} of device {device} belongs to no stripe of chunk {chunk}";
    /// Stripes on each other.
    DeviceExtentOverlap { device: DeviceId, physical: u64 } "stripe-overlap", Error, false,
        "the stripe at {physical} of device {device} overlaps another one";
    /// A device that only its extents know.
    DeviceItemMissing { device: DeviceId } "device-item-missing", Error, true,
        "device {device} has extents and no item in the chunk tree";
    /// A device item about another device.
    DeviceIdentity { device: DeviceId } "device-identity", Error, true,
        "device {device} of the chunk tree is not the device that was given, by its UUIDs";
    /// A device item with a wrong sum.
    DeviceUsed { device: DeviceId, stored: u64, found: u64 } "device-bytes-used", Error, true,
        "device {device}: bytes_used is {stored}, its extents have {found} bytes";
    /// A chunk without block group.
    GroupMissing { chunk: Logical } "block-group-missing", Error, true, "chunk {chunk} has no block group";
    /// A block group without chunk.
    GroupExtra { group: Logical } "block-group-extra", Error, true, "block group {group} has no chunk like it";
    /// A group with another type than its chunk.
    GroupKind { group: Logical, stored: u64, chunk: u64 } "block-group-type", Error, true,
        "block group {group}: flags are {stored}, those of the chunk {chunk}";
    /// A group with a wrong sum.
    GroupUsed { group: Logical, stored: u64, found: u64 } "block-group-used", Error, true,
        "block group {group}: used is {stored}, its extents have {found} bytes";
    /// Extents on each other.
    ExtentOverlap { at: Logical } "extent-overlap", Error, false, "extent {at} overlaps the extent before";
    /// An extent that is not within one chunk.
    ExtentOutside { at: Logical, length: u64 } "extent-outside-chunk", Error, false,
        "extent {at} of {length} bytes does not lie in one chunk";
    /// Data among metadata, or the other way round.
    ExtentPlace { at: Logical } "extent-in-wrong-group", Error, false,
        "extent {at} lies in a block group of another type";
    /// Something that is in use has no extent item.
    ExtentMissing { at: Logical, reference: String } "extent-missing", Error, true,
        "there is no extent item for {at}, which {reference} uses";
    /// An extent that nothing uses.
    ExtentUnused { at: Logical, length: u64 } "extent-unused", Error, true,
        "nothing uses the extent {at} of {length} bytes";
    /// A reference count that its references do not make up.
    ExtentRefs { at: Logical, stored: u64, found: u64 } "extent-refs", Error, true,
        "extent {at}: the reference count is {stored}, its references count {found}";
    /// A reference that should be in the extent tree.
    ReferenceMissing { at: Logical, reference: String, found: u64 } "reference-missing", Error, true,
        "extent {at}: {reference} uses it {found} times, which is not recorded";
    /// A reference that nothing makes.
    ReferenceExtra { at: Logical, reference: String, stored: u64 } "reference-extra", Error, true,
        "extent {at}: {reference} is recorded {stored} times, and does not use it";
    /// A reference with another count.
    ReferenceCount { at: Logical, reference: String, stored: u64, found: u64 } "reference-count", Error, true,
        "extent {at}: {reference} is recorded {stored} times, and uses it {found} times";
    /// A keyed reference behind no extent item.
    ReferenceStray { at: Logical, key: Key } "reference-without-extent", Error, true,
        "there is no extent item of {at} before the reference {key}";
    /// A tree block's level in the extent tree.
    ExtentLevel { at: Logical, stored: u64, found: u64 } "extent-level", Error, true,
        "extent {at}: the level is recorded as {stored}, the block has {found}";
    /// A tree block's generation in the extent tree.
    ExtentGeneration { at: Logical, stored: u64, found: u64 } "extent-generation", Error, true,
        "extent {at}: the generation is recorded as {stored}, the block has {found}";
    /// A file item that is not about the whole extent.
    ExtentLength { at: Logical, stored: u64, found: u64 } "extent-length", Error, false,
        "extent {at} has {stored} bytes, a file takes it for one of {found}";
    /// A shared block whose owner is gone, without the flag for it.
    FullBackrefMissing { at: Logical, owner: Tree } "full-backref-missing", Error, true,
        "block {at} is not marked FULL_BACKREF, and its owner {owner} does not refer to it";
    /// A block that nothing can share, with the flag of shared ones: a writer of its tree does not look for it.
    FullBackrefExtra { at: Logical, owner: Tree } "full-backref-extra", Error, true,
        "block {at} is marked FULL_BACKREF, and no snapshot of its owner {owner} was taken since it was written";
    /// A group that the free space tree does not know.
    FreeSpaceInfoMissing { group: Logical } "free-space-info-missing", Error, true,
        "the free space tree has no summary of block group {group}";
    /// An item of no group. Older releases of mkfs.btrfs leave some, and nothing reads them.
    FreeSpaceStray { key: Key } "free-space-stray", Warning, true,
        "the free space item {key} belongs to no block group";
    /// A wrong number of runs.
    FreeSpaceCount { group: Logical, stored: u64, found: u64 } "free-space-count", Error, true,
        "block group {group}: the free space tree counts {stored} runs and lists {found}";
    /// Runs where bitmaps were announced, or the other way round.
    FreeSpaceForm { group: Logical } "free-space-form", Error, true,
        "block group {group}: the free space tree lists it in another form (runs or bitmaps) than its summary says";
    /// Free space that is not listed as it is.
    FreeSpaceWrong { group: Logical, at: Logical, length: u64, listed: String } "free-space-wrong", Error, true,
        "block group {group}: {length} bytes at {at} are {listed} in the free space tree, and are not";
    /// A version 1 cache that nobody would use.
    SpaceCacheUnusable { group: Logical, reason: String } "space-cache-unusable", Warning, true,
        "the space cache of block group {group} cannot be used: {reason}";
    /// A version 1 cache that would be believed, and is wrong.
    SpaceCacheWrong { group: Logical, at: Logical, length: u64, listed: String } "space-cache-wrong", Error, true,
        "block group {group}: {length} bytes at {at} are {listed} in the space cache, and are not";
    /// A subvolume that nobody names.
    RootUnreferenced { tree: Tree } "root-unreferenced", Error, true, "no directory has the subvolume {tree}";
    /// Only one of a pair.
    RootRefUnpaired { parent: Tree, child: Tree } "root-ref-unpaired", Error, true,
        "ROOT_REF and ROOT_BACKREF of subvolume {child} in {parent} are not alike";
    /// A name of a subvolume that no directory has.
    RootRefNameless { parent: Tree, child: Tree, directory: Ino } "root-ref-without-entry", Error, true,
        "directory {directory} of tree {parent} has no entry for subvolume {child}";
    /// A deleted tree that nobody will clean.
    RootDeadWithoutOrphan { tree: Tree } "root-dead-without-orphan", Error, true,
        "the deleted subvolume {tree} has no orphan item, so nothing cleans it away";
    /// A deleted tree whose name stayed: deleting takes it away in the same commit, and a mount would drop the tree.
    RootDeadNamed { tree: Tree } "root-dead-with-name", Error, true,
        "subvolume {tree} is marked as deleted, and still has its name; the next mount would drop what it has";
    /// An orphan item of a tree that is alive or gone. The next mount removes it.
    RootOrphanStale { tree: Tree } "root-orphan-stale", Warning, true,
        "there is an orphan item of tree {tree}, which is no deleted subvolume; the next mount removes it";
    /// Items of no inode.
    InodeMissing { tree: Tree, inode: Ino } "inode-missing", Error, false,
        "tree {tree}: inode {inode} has items, but no inode item";
    /// A wrong link count.
    InodeLinks { tree: Tree, inode: Ino, stored: u64, found: u64 } "inode-link-count", Error, true,
        "tree {tree}: inode {inode} has link count {stored} and {found} names";
    /// An inode that nothing names and nothing cleans.
    InodeNameless { tree: Tree, inode: Ino } "inode-without-name", Error, true,
        "tree {tree}: inode {inode} has neither name nor orphan item";
    /// Orphans that a snapshot took over from its source and should have lost.
    SnapshotOrphans { tree: Tree, count: u64 } "snapshot-orphans", Warning, true,
        "the read-only subvolume {tree} keeps {count} inodes without a name; its next use deletes them";
    /// An orphan item of an inode that has names or is gone, as a cut off change of fs-verity leaves it.
    OrphanStale { tree: Tree, inode: Ino } "orphan-stale", Warning, true,
        "tree {tree}: there is an orphan item of inode {inode}, which is no deleted inode; the next use removes it";
    /// A wrong directory size.
    DirectorySize { tree: Tree, inode: Ino, stored: u64, found: u64 } "directory-size", Error, true,
        "tree {tree}: directory {inode} has size {stored}, its names need {found}";
    /// The two kinds of entries are not alike.
    DirectoryEntries { tree: Tree, inode: Ino } "directory-item-index", Error, true,
        "tree {tree}: DIR_ITEM and DIR_INDEX entries of directory {inode} are not alike";
    /// Entries below a file.
    DirectoryNot { tree: Tree, inode: Ino } "entries-in-no-directory", Error, false,
        "tree {tree}: inode {inode} has entries and is not a directory";
    /// An entry whose inode does not know it.
    EntryWithoutRef { tree: Tree, directory: Ino, index: u64, inode: Ino, name: String }
        "entry-without-reference", Error, true,
        "tree {tree}: entry {name} (index {index}) of directory {directory} is not known to inode {inode} as such";
    /// A name that its directory does not have.
    RefWithoutEntry { tree: Tree, directory: Ino, index: u64, inode: Ino, name: String }
        "reference-without-entry", Error, true,
        "tree {tree}: inode {inode} is {name} (index {index}) in directory {directory}, which has no such entry";
    /// An EXTREF under a wrong hash.
    ExtrefHash { tree: Tree, inode: Ino, stored: u64, found: u64 } "extref-hash", Error, true,
        "tree {tree}: inode {inode} has a name under hash {stored}, its hash is {found}";
    /// A name with a slash or a zero byte, or that of the directory itself or its parent.
    NameImpossible { tree: Tree, key: Key, name: String } "name-impossible", Error, true,
        "tree {tree}: item {key} has the name {name}, which no program can use";
    /// File extents on each other.
    FileOverlap { tree: Tree, inode: Ino, offset: u64 } "file-extent-overlap", Error, false,
        "tree {tree}: inode {inode} has overlapping extents at {offset}";
    /// A file extent from the future.
    FileExtentGeneration { tree: Tree, inode: Ino, offset: u64, stored: u64 } "file-extent-generation", Error, false,
        "tree {tree}: the extent at {offset} of inode {inode} has generation {stored}, which is still to come";
    /// A file extent that shows more than it has.
    FileExtentBounds { tree: Tree, inode: Ino, offset: u64 } "file-extent-bounds", Error, false,
        "tree {tree}: the extent at {offset} of inode {inode} shows more bytes than the extent has";
    /// A file extent that shows nothing: no writer leaves one.
    FileExtentEmpty { tree: Tree, inode: Ino, offset: u64 } "file-extent-empty", Error, false,
        "tree {tree}: the extent at {offset} of inode {inode} shows no bytes";
    /// A file extent that cannot be packed as it is marked: nobody could read it.
    FilePacking { tree: Tree, inode: Ino, offset: u64, marked: String, rule: String }
        "file-extent-packing", Error, false,
        "tree {tree}: the extent at {offset} of inode {inode} is marked as {marked}, but {rule}";
    /// A gap where holes have items.
    FileGap { tree: Tree, inode: Ino, offset: u64 } "file-extent-gap", Error, true,
        "tree {tree}: inode {inode} has neither extent nor hole at {offset}";
    /// A wrong number of bytes.
    InodeBytes { tree: Tree, inode: Ino, stored: u64, found: u64 } "inode-nbytes", Error, true,
        "tree {tree}: inode {inode} has nbytes {stored}, its extents have {found}";
    /// A symbolic link that leads nowhere, because its content is lost.
    SymlinkTarget { tree: Tree, inode: Ino, stored: u64, found: u64 } "symlink-target", Error, false,
        "tree {tree}: the target of symbolic link {inode} has {stored} bytes, of which {found} are there";
    /// Data without checksums.
    ChecksumMissing { tree: Tree, inode: Ino, offset: u64 } "checksum-missing", Error, false,
        "tree {tree}: data at {offset} of inode {inode} has no checksums";
    /// Checksums where there must be none.
    ChecksumOdd { tree: Tree, inode: Ino, offset: u64 } "checksum-odd", Error, true,
        "tree {tree}: data at {offset} of inode {inode} has checksums, which its inode is not to have";
    /// Checksums of space that is only allocated, and so is read as zeros.
    ChecksumUnwritten { tree: Tree, inode: Ino, offset: u64 } "checksum-unwritten", Error, true,
        "tree {tree}: the extent at {offset} of inode {inode} is marked as not written yet, and has checksums";
    /// Checksums of nothing.
    ChecksumStray { at: Logical, length: u64 } "checksum-stray", Error, true,
        "{length} bytes at {at} have checksums and are no data extent";
    /// Checksum items on each other.
    ChecksumOverlap { at: Logical } "checksum-overlap", Error, false,
        "the checksum item of {at} overlaps the one before";
    /// Data that is not what its checksum says.
    DataBad { at: Logical, copy: u64, reason: String } "data-checksum", Error, false,
        "copy {copy} of the data at {at} is bad: {reason}";
    /// A subvolume that cannot be found by its UUID.
    UuidMissing { tree: Tree, uuid: String } "uuid-entry-missing", Error, true,
        "the UUID tree does not have {uuid} of subvolume {tree}";
    /// A UUID of nothing.
    UuidStale { tree: Tree, key: Key } "uuid-entry-stale", Error, true,
        "the UUID tree has subvolume {tree} under {key}, which is not its UUID";
    /// A block of a log that is not its own.
    LogBlock { tree: Tree, at: Logical, reason: String } "log-block", Error, false,
        "log of tree {tree}: block {at} {reason}";
    /// An item that replay ignores.
    LogItem { tree: Tree, key: Key } "log-item", Warning, true, "log of tree {tree}: item {key} does not belong there";
    /// A log that replay ignores.
    LogOrphan { tree: Tree } "log-without-subvolume", Warning, true,
        "there is a log of subvolume {tree}, which does not exist";
    /// Items of an inode that the log does not have.
    LogInode { tree: Tree, inode: Ino } "log-inode-missing", Error, false,
        "log of tree {tree}: inode {inode} has items, but no inode item";
    /// A range of entries that ends before it begins, or lies on another one.
    LogRange { tree: Tree, inode: Ino, first: u64 } "log-range", Error, false,
        "log of tree {tree}: the range of entries at {first} of directory {inode} is not valid";
    /// A file extent that cannot be replayed.
    LogExtent { tree: Tree, inode: Ino, offset: u64, reason: String } "log-extent", Error, false,
        "log of tree {tree}: the extent at {offset} of inode {inode} {reason}";
    /// Data without checksums, after replay.
    LogChecksum { tree: Tree, inode: Ino, offset: u64 } "log-checksum-missing", Error, false,
        "log of tree {tree}: data at {offset} of inode {inode} has no checksums";
    /// A UUID tree that the kernel will rebuild.
    UuidLags { missing: u64, stale: u64 } "uuid-tree-lags", Warning, true,
        "the UUID tree is out of date ({missing} entries missing, {stale} stale); the next mount puts it right";
}

impl Finding {
    /// The kind's line of the table.
    pub fn info(&self) -> &'static FindingInfo {
        TABLE.iter().find(|info| info.id == self.id()).expect("the table has every kind")
    }

    /// See [`Severity`].
    pub fn severity(&self) -> Severity {
        self.info().severity
    }

    /// One JSON object.
    pub fn to_json(&self) -> String {
        let info = self.info();
        let severity = if info.severity == Severity::Error { "error" } else { "warning" };
        let fields: Vec<String> =
            self.fields().into_iter().map(|(name, value)| format!("\"{name}\":{}", json_value(&value))).collect();
        format!(
            "{{\"id\":\"{}\",\"severity\":\"{severity}\",\"repairable\":{},\"message\":{},\"fields\":{{{}}}}}",
            info.id,
            info.repairable,
            json_text(&self.to_string()),
            fields.join(",")
        )
    }
}

fn json_value(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Text(text) => json_text(text),
    }
}

/// A JSON string.
pub fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut ids: Vec<&str> = TABLE.iter().map(|info| info.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), TABLE.len(), "an id is there twice");
        assert!(ids.iter().all(|id| id.bytes().all(|c| c.is_ascii_lowercase() || c == b'-')), "{ids:?}");
    }

    #[test]
    fn text_and_json_have_the_same_values() {
        let finding = Finding::RootRefUnpaired { parent: Tree(TreeId(5)), child: Tree(TreeId::DATA_RELOC) };
        assert_eq!(finding.to_string(), "ROOT_REF and ROOT_BACKREF of subvolume -9 in 5 are not alike");
        assert!(finding.to_json().ends_with("\"fields\":{\"parent\":5,\"child\":-9}}"), "{}", finding.to_json());
        assert_eq!(json_text("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
    }
}
