//! The records of answers.

use serde::{Deserialize, Serialize};

/// Defines an enum of types, each of which can be had back.
macro_rules! one_of {
    ($(#[$about:meta])* $all:ident { $($(#[$doc:meta])* $variant:ident($type:ty),)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $all { $($(#[$doc])* $variant(Box<$type>),)* }

        $(
            impl From<$type> for $all {
                fn from(value: $type) -> $all {
                    $all::$variant(Box::new(value))
                }
            }

            /// The error is what it is instead.
            impl TryFrom<$all> for $type {
                type Error = $all;
                fn try_from(value: $all) -> Result<$type, $all> {
                    match value {
                        $all::$variant(value) => Ok(*value),
                        other => Err(other),
                    }
                }
            }
        )*
    };
}

one_of! {
    /// A record of any question's answer.
    Record {
        /// See [`SubvolumeId`].
        SubvolumeId(SubvolumeId),
        /// See [`SubvolumeRecord`].
        Subvolume(SubvolumeRecord),
        /// See [`DeletedSubvolume`].
        DeletedSubvolume(DeletedSubvolume),
        /// See [`ReadOnly`].
        ReadOnly(ReadOnly),
        /// See [`NewSince`].
        New(NewSince),
        /// See [`InodePath`].
        Path(InodePath),
        /// See [`ExtentUser`].
        ExtentUser(ExtentUser),
        /// See [`FileExtentRecord`].
        FileExtent(FileExtentRecord),
        /// See [`MayShare`].
        MayShare(MayShare),
        /// See [`Comparison`].
        Comparison(Comparison),
        /// See [`Rewritten`].
        Rewritten(Rewritten),
        /// See [`Label`].
        Label(Label),
        /// See [`DeviceRecord`].
        Device(DeviceRecord),
        /// See [`WorkCounts`].
        Work(WorkCounts),
        /// See [`SendSummary`].
        Sent(SendSummary),
        /// See [`ReceiveSummary`].
        Received(ReceiveSummary),
        /// See [`ScrubNews`].
        ScrubNews(ScrubNews),
        /// See [`ScrubState`].
        Scrub(ScrubState),
        /// See [`HealthRecord`].
        Health(HealthRecord),
        /// See [`DeviceSize`].
        DeviceSize(DeviceSize),
        /// See [`WorkProgress`].
        WorkProgress(WorkProgress),
        /// See [`ReplaceRecord`].
        Replace(ReplaceRecord),
        /// See [`FilesystemRecord`].
        Filesystem(FilesystemRecord),
        /// See [`ChunkRecord`].
        Chunk(ChunkRecord),
        /// See [`MemberRecord`].
        Member(MemberRecord),
        /// See [`MeasuredExtent`].
        Measured(MeasuredExtent),
        /// See [`BalanceRecord`].
        Balance(BalanceRecord),
    }
}

one_of! {
    /// A report of any question about a stream.
    Report {
        /// See [`SendStatus`].
        Send(SendStatus),
        /// See [`ReceiveStatus`].
        Receive(ReceiveStatus),
    }
}

/// The record of an answer without records: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {}

impl From<Nothing> for Record {
    fn from(nothing: Nothing) -> Record {
        match nothing {}
    }
}

impl TryFrom<Record> for Nothing {
    type Error = Record;
    fn try_from(record: Record) -> Result<Nothing, Record> {
        Err(record)
    }
}

/// The state of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalancePhase {
    /// It works.
    Running,
    /// It is about to stop, to be resumed.
    PauseRequested,
    /// It is about to end.
    CancelRequested,
    /// It waits to be resumed.
    Paused,
    /// It went through all chunks.
    Completed,
    /// Somebody ended it.
    Cancelled,
}

/// A balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceRecord {
    /// The state.
    pub phase: BalancePhase,
    /// The balance parameters, as on disk: `btrfs_balance_item`, 448 bytes; nothing where the asker knows.
    #[serde(with = "crate::bytes")]
    pub control: Vec<u8>,
    /// Chunks that the filters took when it began.
    pub expected: u64,
    /// Chunks that it has looked at.
    pub considered: u64,
    /// Chunks that it has emptied.
    pub completed: u64,
    /// Chunks for whose content there was no room.
    pub no_space: u64,
}

/// The id of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubvolumeId(pub u64);

/// A transaction, and when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Its generation.
    pub transid: u64,
    /// Seconds since 1970.
    pub seconds: i64,
}

/// A subvolume and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubvolumeRecord {
    /// Its id.
    pub id: u64,
    /// The subvolume that holds its entry; 0 for the top level, and when it is deleted.
    pub parent: u64,
    /// The directory there.
    pub directory: u64,
    /// The directory's path inside its subvolume.
    #[serde(with = "crate::bytes")]
    pub directory_path: Vec<u8>,
    /// Its name.
    #[serde(with = "crate::bytes")]
    pub name: Vec<u8>,
    /// Generation of its root node.
    pub generation: u64,
    /// Its root item's flags.
    pub flags: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The UUID of what it is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// The UUID it was received as.
    pub received_uuid: [u8; 16],
    /// The last change.
    pub changed: Stamp,
    /// When it was made.
    pub created: Stamp,
    /// When what it was received from was sent.
    pub sent: Stamp,
    /// When it was received.
    pub received: Stamp,
}

impl SubvolumeRecord {
    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// A subvolume that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedSubvolume {
    /// Its id.
    pub id: u64,
    /// Generation of its root node.
    pub generation: u64,
}

/// Whether a subvolume can only be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnly(pub bool);

/// Extents that were written since a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewSince {
    /// Comes first: up to which generation the answer goes.
    UpTo(u64),
    /// An extent.
    Extent(NewExtent),
}

/// A file extent that is new, and its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewExtent {
    /// Inode number of the file.
    pub ino: u64,
    /// The offset in the file at which it begins.
    pub start: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Address on disk; 0 where there is none.
    pub address: u64,
    /// The offset of the used part in the extent on disk.
    pub offset: u64,
    /// When it was written.
    pub generation: u64,
    /// How it is stored.
    pub kind: ExtentKind,
    /// Whether it is compressed, by whatever.
    pub compressed: bool,
    /// A path of the file inside its subvolume; none when it is unlinked.
    #[serde(with = "crate::bytes")]
    pub path: Vec<u8>,
}

/// How an extent of a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentKind {
    /// In the tree.
    Inline,
    /// As data of its own.
    Data,
    /// A hole, which is not stored.
    Hole,
    /// As space that nothing was written to.
    Preallocated,
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    /// RFC 1950.
    Zlib,
    /// LZO1X.
    Lzo,
    /// Zstandard.
    Zstd,
}

/// An algorithm and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressionMethod {
    /// The algorithm.
    pub algorithm: Compression,
    /// As users count; 0 for the usual one.
    pub level: i32,
}

/// A path inside a subvolume, or from the top level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodePath(#[serde(with = "crate::bytes")] pub Vec<u8>);

/// A file that uses an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentUser {
    /// The id of its subvolume.
    pub subvolume: u64,
    /// Its inode number.
    pub ino: u64,
    /// The offset in the file.
    pub offset: u64,
}

/// An extent of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileExtentRecord {
    /// The offset in the file at which it begins.
    pub start: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Address on disk.
    pub address: u64,
    /// Its bytes on disk.
    pub disk_len: u64,
    /// Uncompressed bytes of the whole extent.
    pub ram_bytes: u64,
    /// The offset of the used part in the extent.
    pub offset: u64,
    /// When it was written.
    pub generation: u64,
    /// How it is stored.
    pub kind: ExtentKind,
    /// How it is compressed.
    pub compression: Option<Compression>,
    /// Whether others may use the same data.
    pub shared: bool,
}

/// Whether extents may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MayShare(pub bool);

/// How two ranges compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    /// They are equal, and share extents.
    Same,
    /// They are not.
    Differs,
}

/// Bytes that were written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewritten(pub u64);

/// The label of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label(#[serde(with = "crate::bytes")] pub Vec<u8>);

/// The error counters of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Its number.
    pub id: u64,
    /// Its path, or what else it is called.
    pub name: String,
    /// Writes that failed.
    pub write_errors: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Copies that were wrong.
    pub corruption_errors: u64,
    /// Commits that it had missed.
    pub generation_errors: u64,
}

/// A device and its size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSize {
    /// Its number.
    pub id: u64,
    /// Its path, or what else it is called; `None` where it is missing.
    pub name: Option<String>,
    /// Bytes that the filesystem uses of it.
    pub total_bytes: u64,
    /// Bytes in chunks.
    pub used_bytes: u64,
}

/// The last replacement of a device, as the kernel describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceRecord {
    /// 0 never started, 1 started, 2 finished, 3 canceled, 4 suspended.
    pub state: u64,
    /// Thousandths that are done.
    pub permille: u64,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970.
    pub stopped: i64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Bytes of which no copy could be read.
    pub read_errors: u64,
}

/// The progress of work on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkProgress {
    /// Bytes that have moved.
    pub done_bytes: u64,
    /// Bytes that are to move.
    pub total_bytes: u64,
}

/// A filesystem as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemRecord {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its label.
    #[serde(with = "crate::bytes")]
    pub label: Vec<u8>,
    /// The generation of the last commit.
    pub generation: u64,
    /// Bytes allocated in all block groups.
    pub bytes_used: u64,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes that file data can still take, as `statfs` says.
    pub available: u64,
    /// Bytes of metadata that are kept for operations that must not fail.
    pub global_reserve: u64,
    /// Devices, missing ones too.
    pub devices: u64,
    /// Bytes that the filesystem uses of all of them.
    pub device_bytes: u64,
    /// Of them, on missing devices.
    pub missing_bytes: u64,
    /// Bytes of devices that the filesystem leaves alone.
    pub slack_bytes: u64,
    /// The space of each type and profile.
    pub spaces: Vec<SpaceRecord>,
    /// When freed space is discarded, as the mount option says it.
    pub discard: String,
}

/// All block groups of one type and profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// Type and profile.
    pub flags: u64,
    /// Their bytes.
    pub total: u64,
    /// Bytes allocated in them.
    pub used: u64,
    /// Their bytes on all devices.
    pub raw: u64,
}

/// A chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// Its address.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Bytes allocated in it.
    pub used: u64,
    /// Type and profile.
    pub flags: u64,
    /// Its bytes on each device, for each stripe.
    pub stripe_length: u64,
    /// Device and address of each stripe.
    pub stripes: Vec<(u64, u64)>,
}

/// A device of a filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Its number.
    pub id: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its path, and its bytes; none where it is missing.
    pub storage: Option<(String, u64)>,
    /// Bytes that the filesystem uses of it.
    pub total_bytes: u64,
    /// Bytes of it that are in chunks.
    pub allocated: u64,
}

/// An extent of a file that takes space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredExtent {
    /// The logical address of its data.
    pub address: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Another file, or another subvolume, uses the data.
    pub shared: bool,
}

/// Counters of the engine's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCounts {
    /// Tree blocks that were asked for.
    pub nodes: u64,
    /// Items that were looked at.
    pub items: u64,
    /// Tree blocks that were read.
    pub reads: u64,
    /// The most of the first two for which everybody waited in one go, since the last such question.
    pub longest_stop_steps: u64,
    /// The most of the third.
    pub longest_stop_reads: u64,
}

/// The progress of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SendStatus {
    /// A subvolume begins, by its number in the question.
    Begun(u32),
    /// Some of the stream is written.
    Progress {
        /// Bytes of the stream.
        bytes: u64,
        /// Commands.
        commands: u64,
        /// Thousandths of the whole, about.
        permille: u32,
    },
}

/// A stream that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSummary {
    /// Its bytes.
    pub bytes: u64,
    /// Its commands.
    pub commands: u64,
}

/// The progress of a receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiveStatus {
    /// No stream comes.
    Waiting,
    /// A line for the standard output.
    Out(String),
    /// A line for the standard error.
    Err(String),
    /// An error, without the word that says so.
    Error(String),
    /// Some of the stream is read.
    Progress {
        /// Bytes of the input.
        bytes: u64,
        /// Commands.
        commands: u64,
    },
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveSummary {
    /// Complete streams.
    pub streams: u64,
    /// Complete sections.
    pub sections: u64,
    /// Commands that were read.
    pub commands: u64,
    /// Bytes of the input that were read.
    pub bytes: u64,
    /// Errors. With any, something is missing.
    pub errors: u64,
}

/// How the scrub of a device ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubEnd {
    /// It has not.
    #[default]
    Running,
    /// Everything was verified.
    Finished,
    /// Somebody cancelled it.
    Cancelled,
    /// It could not go on, for this reason.
    Failed(String),
}

/// The progress of the scrub of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubDevice {
    /// The device's number.
    pub id: u64,
    /// The name.
    pub name: String,
    /// Bytes that a scrub of all of it verifies.
    pub total_bytes: u64,
    /// Counters by the names of btrfs; those that are zero may be left out.
    pub counters: Vec<(String, u64)>,
    /// When it was started, in seconds since 1970; 0 for never.
    pub started: i64,
    /// When it was resumed; 0 if it was not.
    pub resumed: i64,
    /// Seconds that it has run.
    pub duration_secs: u64,
    /// Bytes per second; 0 for no limit.
    pub limit: u64,
    /// How it ended.
    pub end: ScrubEnd,
}

/// The position at which an earlier scrub of a device ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubEarlier {
    /// The device's number.
    pub id: u64,
    /// When it was started, in seconds since 1970.
    pub started: i64,
    /// Seconds that it has run.
    pub duration_secs: u64,
    /// Whether everything was verified.
    pub is_finished: bool,
    /// The counters in the order of `btrfs_scrub_progress`.
    pub counters: Vec<u64>,
}

/// The scrub of a filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubState {
    /// The filesystem.
    pub fsid: [u8; 16],
    /// Whether one is under way.
    pub is_running: bool,
    /// Damage is only reported.
    pub read_only: bool,
    /// Findings so far.
    pub findings: u64,
    /// Damage that was only counted, because there is too much.
    pub omitted: u64,
    /// The devices, also when there was no scrub.
    pub devices: Vec<ScrubDevice>,
}

/// Reports of a running scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubNews {
    /// The progress, at least once a second.
    State(ScrubState),
    /// Something that it has found.
    Finding(ScrubFinding),
}

/// Damage, and the files that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// The device.
    pub device: u64,
    /// The name.
    pub device_name: String,
    /// The address on it.
    pub physical: u64,
    /// The address; none of a superblock.
    pub logical: Option<u64>,
    /// Bytes.
    pub len: u64,
    /// `data`, `tree block` or `superblock`.
    pub content: String,
    /// The fault.
    pub cause: String,
    /// The outcome.
    pub outcome: ScrubOutcome,
    /// The same as a sentence.
    pub outcome_text: String,
    /// The files, in every subvolume and snapshot.
    pub files: Vec<DamagedFile>,
    /// Trees that reach a tree block.
    pub trees: Vec<u64>,
    /// Not everything is listed.
    pub is_cut: bool,
}

/// The outcome for a damaged place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubOutcome {
    /// It is good again.
    Repaired,
    /// It could be repaired, but nothing is written.
    Repairable,
    /// Nothing holds what was there.
    Lost,
    /// Nobody can say which copy is right.
    Noticed,
}

/// A range of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// The subvolume.
    pub tree: u64,
    /// The inode.
    pub ino: u64,
    /// The offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The path from the top level; none where none was found.
    #[serde(with = "crate::bytes")]
    pub path: Vec<u8>,
}

/// How well something is, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Health {
    /// Everything is as it should be.
    #[default]
    Online,
    /// It works, and something needs attention.
    Degraded,
    /// Something is lost, or it does not work.
    Faulted,
}

/// How a filesystem is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRecord {
    /// The filesystem.
    pub fsid: [u8; 16],
    /// Its label.
    #[serde(with = "crate::bytes")]
    pub label: Vec<u8>,
    /// All in all.
    pub state: Health,
    /// The problems, one sentence each.
    pub meaning: Vec<String>,
    /// The advice, one sentence each.
    pub action: Vec<String>,
    /// The devices.
    pub devices: Vec<DeviceHealth>,
    /// Devices that are missing.
    pub missing: u64,
    /// Why nothing is written any more.
    pub stopped: Option<String>,
    /// The last scrub since the mount, or the one that runs.
    pub scrub: Option<ScrubState>,
}

/// How a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHealth {
    /// Its counters.
    pub errors: DeviceRecord,
    /// How it is.
    pub state: Health,
    /// `whole`, `stale` or `failed`.
    pub condition: String,
}
