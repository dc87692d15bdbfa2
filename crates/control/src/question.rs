//! The questions. Each is a type of its own, which says what its records are; [`Question`] and [`StreamQuestion`] are
//! any of them.
//!
//! An [`InodeRef`] proves that whoever asks could get to the inode, and says through which mount. Where an id says what
//! is changed, `through` says through which mount. A question of someone who is not privileged comes with at least one
//! descriptor, also where it names no inode. Work that can take long is asked for in pieces ([`MOST_DEDUPED`],
//! [`MOST_DEFRAGMENTED`]), so that it ends with who asks.
//!
//! A new question comes to the end of its table: its number is its place there.

use crate::record::{
    BalanceRecord, ChunkRecord, Comparison, CompressionMethod, DeletedSubvolume, DeviceRecord, DeviceSize, ExtentUser,
    FileExtentRecord, FilesystemRecord, HealthRecord, InodePath, Label, MayShare, MeasuredExtent, MemberRecord,
    NewSince, Nothing, ReadOnly, ReceiveStatus, ReceiveSummary, Record, ReplaceRecord, Report, Rewritten, ScrubEarlier,
    ScrubNews, ScrubState, SendStatus, SendSummary, SubvolumeId, SubvolumeRecord, WorkCounts, WorkProgress,
};
use crate::{Message, QUESTION_BYTES};
use serde::{Deserialize, Serialize};

/// Bytes that one [`Dedupe`] is about, so that work goes on only while somebody asks for more.
pub const MOST_DEDUPED: u64 = 64 << 20;
/// The same for [`Defragment`].
pub const MOST_DEFRAGMENTED: u64 = 1 << 30;
/// Ranges that one [`StartScrub`] is limited to.
pub const MOST_SCRUB_RANGES: usize = 128;

/// An inode that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InodeRef {
    /// The one behind the descriptor with this index, of those that come with the question; a stream's own does not
    /// count.
    Descriptor(u8),
    /// By subvolume and inode number, where nobody has mounted the filesystem.
    Number {
        /// The subvolume's id.
        tree: u64,
        /// The inode number.
        ino: u64,
    },
}

/// A question that is answered with records of one type.
pub trait Ask: Into<Question> {
    /// The type of the records of the answer.
    type Record: Into<Record> + TryFrom<Record>;
}

/// A question about a stream, answered with reports, and one record at the end.
pub trait AskStream: Into<StreamQuestion> {
    /// The progress of the work.
    type Report: Into<Report> + TryFrom<Report>;
    /// The type of the answer.
    type Record: Into<Record> + TryFrom<Record>;
}

/// The part of a file's use of an extent that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserScope {
    /// Those that use the very address.
    Address,
    /// Those that use any part of the extent.
    WholeExtent,
}

/// How the contents of files are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SentContents {
    /// As files show them.
    Plain,
    /// Compressed ones as they are stored.
    Compressed,
    /// Contents are omitted; the stream only says that they changed.
    Omitted,
}

/// How several subvolumes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SentStreams {
    /// Each with a header and an end of its own.
    Separate,
    /// One header and one end for all.
    Joined,
}

/// The point at which receiving ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceivedStreams {
    /// With the input.
    All,
    /// With the first end command.
    First,
}

/// How a balance stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalanceStop {
    /// After the chunk that it is at, to be resumed.
    Pause,
    /// For good.
    Cancel,
}

/// The treatment of data that a stream has compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EncodedData {
    /// It is stored as it comes, where that can be.
    Keep,
    /// It is decompressed before.
    Decompress,
}

/// The requested size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeChange {
    /// This many bytes.
    Bytes(u64),
    /// An increase, in bytes.
    More(u64),
    /// A decrease, in bytes.
    Less(u64),
    /// All that the device has.
    Max,
}

/// Which device of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceName {
    /// By its number.
    Id(u64),
    /// By its path.
    Path(#[serde(with = "crate::bytes")] Vec<u8>),
    /// The first one that is missing.
    Missing,
}

/// Work on devices that can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceWork {
    /// A device gets another size.
    Resize,
    /// A device is removed.
    Remove,
    /// A device is replaced.
    Replace,
}

/// Defines the questions of a table and the enum of all of them.
macro_rules! questions {
    (
        $(#[$about:meta])*
        $all:ident is $kind:literal, asked by $asks:ident
        $(
            $(#[$doc:meta])*
            $verb:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } -> $($answers:ident = $answer:ty),*;
        )*
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $verb { $($(#[$field_doc])* pub $field: $type,)* }

            questions!(@answers $asks, $verb, $($answers = $answer),*);

            impl From<$verb> for $all {
                fn from(question: $verb) -> $all {
                    $all::$verb(question)
                }
            }
        )*

        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $all { $($(#[$doc])* $verb($verb),)* }

        impl Message for $all {
            const KIND: &'static str = $kind;
            const VARIANTS: &'static [&'static str] = &[$(stringify!($verb)),*];
            const MOST_BYTES: usize = QUESTION_BYTES;
        }
    };
    (@answers $asks:ident, $verb:ident, $($name:ident = $answer:ty),*) => {
        impl $asks for $verb { $(type $name = $answer;)* }
    };
}

questions! {
    /// A question.
    Question is "question", asked by Ask

    /// Makes a subvolume.
    CreateSubvolume {
        /// The directory that gets it.
        directory: InodeRef,
        /// Permissions that it does not get.
        umask: u32,
        /// Its name.
        #[serde(with = "crate::bytes")]
        name: Vec<u8>,
    } -> Record = SubvolumeId;
    /// Makes a snapshot.
    Snapshot {
        /// The subvolume.
        source: InodeRef,
        /// The directory that gets the snapshot.
        directory: InodeRef,
        /// Its name.
        #[serde(with = "crate::bytes")]
        name: Vec<u8>,
        /// Whether it can only be read.
        read_only: bool,
    } -> Record = SubvolumeId;
    /// Deletes a subvolume.
    DeleteSubvolume {
        /// The directory that holds it.
        directory: InodeRef,
        /// Its name there.
        #[serde(with = "crate::bytes")]
        name: Vec<u8>,
    } -> Record = SubvolumeId;
    /// Deletes the subvolume with an id.
    DeleteSubvolumeById {
        /// Shows the mount.
        through: InodeRef,
        /// The id.
        id: u64,
    } -> Record = SubvolumeId;
    /// All subvolumes.
    ListSubvolumes {} -> Record = SubvolumeRecord;
    /// Deleted subvolumes whose space has not all come back.
    ListDeleted {} -> Record = DeletedSubvolume;
    /// One subvolume.
    DescribeSubvolume {
        /// Its top directory.
        subvolume: InodeRef,
    } -> Record = SubvolumeRecord;
    /// The subvolume with an id.
    DescribeSubvolumeById {
        /// The id.
        id: u64,
    } -> Record = SubvolumeRecord;
    /// The subvolume with a UUID.
    DescribeSubvolumeByUuid {
        /// The UUID.
        uuid: [u8; 16],
    } -> Record = SubvolumeRecord;
    /// The paths of a subvolume's snapshots, from the top level.
    ListSnapshots {
        /// The id of the subvolume.
        of: u64,
    } -> Record = InodePath;
    /// The subvolume that an inode lies in.
    FindSubvolume {
        /// The inode.
        inode: InodeRef,
    } -> Record = SubvolumeId;
    /// The subvolume that is mounted where none is named.
    GetDefault {} -> Record = SubvolumeId;
    /// Chooses that one.
    SetDefault {
        /// Shows the mount.
        through: InodeRef,
        /// The id of the subvolume.
        id: u64,
    } -> Record = SubvolumeId;
    /// Whether a subvolume can only be read.
    GetReadOnly {
        /// The subvolume.
        subvolume: InodeRef,
    } -> Record = ReadOnly;
    /// Changes that.
    SetReadOnly {
        /// The subvolume.
        subvolume: InodeRef,
        /// The requested state.
        read_only: bool,
    } -> Record = Nothing;
    /// Lists the extents that were written to files, after the generation up to which it looked.
    FindNew {
        /// The subvolume.
        subvolume: InodeRef,
        /// The generation after which it was written.
        since: u64,
    } -> Record = NewSince;
    /// The path of a subvolume, from the top level.
    FindSubvolumePath {
        /// The id of the subvolume.
        id: u64,
    } -> Record = InodePath;
    /// The paths of an inode inside its subvolume.
    FindPaths {
        /// Something in the subvolume.
        within: InodeRef,
        /// The inode number.
        ino: u64,
    } -> Record = InodePath;
    /// The same, in the subvolume with an id.
    FindPathsById {
        /// The id.
        subvolume: u64,
        /// The inode number.
        ino: u64,
    } -> Record = InodePath;
    /// The files that use an address.
    FindUsers {
        /// The address.
        address: u64,
        /// Which use counts.
        scope: UserScope,
    } -> Record = ExtentUser;
    /// The extents of a file.
    ListExtents {
        /// The file.
        file: InodeRef,
    } -> Record = FileExtentRecord;
    /// Whether extents of a file may be shared with another one.
    AskToShare {
        /// The file that has them.
        source: InodeRef,
        /// The other one.
        into: InodeRef,
    } -> Record = MayShare;
    /// Lets a range share the extents of an equal one.
    Dedupe {
        /// The file whose extents are kept.
        source: InodeRef,
        /// The position at which the range begins there.
        source_start: u64,
        /// The file that gets them.
        into: InodeRef,
        /// The position at which the range begins there.
        into_start: u64,
        /// Its length, at most [`MOST_DEDUPED`].
        len: u64,
    } -> Record = Comparison;
    /// Writes fragments anew, as one.
    Defragment {
        /// The file.
        file: InodeRef,
        /// The offset at which to start.
        start: u64,
        /// How much of it, at most [`MOST_DEFRAGMENTED`].
        len: u64,
        /// Extents of at least so many bytes stay.
        threshold: u64,
        /// How it is compressed, where it is.
        compress: Option<CompressionMethod>,
    } -> Record = Rewritten;
    /// The label of the filesystem.
    GetLabel {} -> Record = Label;
    /// Changes it.
    SetLabel {
        /// Shows the mount.
        through: InodeRef,
        /// The label.
        #[serde(with = "crate::bytes")]
        label: Vec<u8>,
    } -> Record = Nothing;
    /// Says how new data is stored.
    StoreData {
        /// Mount options.
        options: Vec<String>,
    } -> Record = Nothing;
    /// The error counters of each device.
    CountDeviceErrors {} -> Record = DeviceRecord;
    /// Makes everything durable.
    SyncAll {} -> Record = Nothing;
    /// Counts for tests of the cost.
    CountWork {} -> Record = WorkCounts;
    /// Scrubs, and tells how far it is until it ends. It is cancelled when whoever asks is gone.
    StartScrub {
        /// Shows the mount.
        through: InodeRef,
        /// Damage is only reported.
        read_only: bool,
        /// The devices; all where none is named.
        devices: Vec<u64>,
        /// The class of the I/O priority, as `ioprio_set(2)` numbers it.
        priority_class: u8,
        /// The level in it.
        priority_level: u8,
        /// Bytes per second of each device, as long as this run lasts; none for the limits that are set.
        limit: Option<u64>,
        /// Files, and subvolumes by their top directories, that it is limited to.
        only: Vec<InodeRef>,
        /// Addresses that it is limited to: where they begin and end. At most [`MOST_SCRUB_RANGES`].
        ranges: Vec<(u64, u64)>,
        /// The position at which an earlier run ended.
        earlier: Vec<ScrubEarlier>,
    } -> Record = ScrubNews;
    /// The progress of a scrub, or how the last one since the mount ended.
    GetScrub {} -> Record = ScrubState;
    /// Stops it.
    CancelScrub {
        /// Shows the mount.
        through: InodeRef,
    } -> Record = Nothing;
    /// Limits scrubs of a device, or of all.
    LimitScrub {
        /// Shows the mount.
        through: InodeRef,
        /// The device.
        device: Option<u64>,
        /// Bytes per second; 0 for no limit.
        bytes_per_sec: u64,
    } -> Record = Nothing;
    /// Sets the error counters of all devices, or of one, to zero. The answer is what they were.
    ResetDeviceErrors {
        /// Shows the mount.
        through: InodeRef,
        /// The device.
        device: Option<u64>,
    } -> Record = DeviceRecord;
    /// How the filesystem and its devices are.
    GetHealth {} -> Record = HealthRecord;
    /// The devices and their sizes. [`ListMembers`] says more; this one stays because the numbers of questions do.
    ListDevices {} -> Record = DeviceSize;
    /// Gives a device another size. The answer says from time to time how far that is.
    ResizeDevice {
        /// Shows the mount.
        through: InodeRef,
        /// Its number.
        id: u64,
        /// The size.
        size: SizeChange,
        /// An image file is to have that size, too.
        with_file: bool,
    } -> Record = WorkProgress;
    /// Adds a device.
    AddDevice {
        /// Shows the mount.
        through: InodeRef,
        /// The path by which the serving process finds it.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
        /// Also where something is recognised on it.
        force: bool,
        /// Its content is discarded before.
        discard: bool,
    } -> Record = WorkProgress;
    /// Removes a device; its content moves to the others.
    RemoveDevice {
        /// Shows the mount.
        through: InodeRef,
        /// Which one.
        device: DeviceName,
    } -> Record = WorkProgress;
    /// Stops what changes the devices.
    CancelDeviceWork {
        /// Shows the mount.
        through: InodeRef,
        /// The work to stop.
        work: DeviceWork,
    } -> Record = Nothing;
    /// Begins to replace a device; that goes on after the answer.
    StartReplace {
        /// Shows the mount.
        through: InodeRef,
        /// The device.
        source: DeviceName,
        /// The path by which the serving process finds the new one.
        #[serde(with = "crate::bytes")]
        target: Vec<u8>,
        /// The old one is only read where no other copy is good.
        avoid_source: bool,
        /// Also where something is recognised on the new one.
        force: bool,
        /// The content of the new one is discarded before.
        discard: bool,
    } -> Record = Nothing;
    /// The last replacement of a device.
    DescribeReplace {} -> Record = ReplaceRecord;
    /// The filesystem as a whole.
    DescribeFilesystem {} -> Record = FilesystemRecord;
    /// Its chunks.
    ListChunks {} -> Record = ChunkRecord;
    /// Its devices.
    ListMembers {} -> Record = MemberRecord;
    /// The extents of a file that take space, without those that are inline, and whether other files use their data.
    MeasureFile {
        /// The file.
        file: InodeRef,
    } -> Record = MeasuredExtent;
    /// Balances; a record now and then says how far it is, the last one how it ended. It is cancelled when nobody
    /// listens any more.
    StartBalance {
        /// Shows the mount.
        through: InodeRef,
        /// The balance parameters, as on disk: `btrfs_balance_item`, 448 bytes.
        #[serde(with = "crate::bytes")]
        control: Vec<u8>,
    } -> Record = BalanceRecord;
    /// Goes on with a paused balance; answered like [`StartBalance`].
    ResumeBalance {
        /// Shows the mount.
        through: InodeRef,
    } -> Record = BalanceRecord;
    /// Has a balance stop, and answers when it has.
    StopBalance {
        /// Shows the mount.
        through: InodeRef,
        /// Whether it can be resumed.
        how: BalanceStop,
    } -> Record = Nothing;
    /// The balance that runs or is paused, if there is one.
    GetBalance {} -> Record = BalanceRecord;
}

questions! {
    /// A question about a stream, which goes through a descriptor that comes with it.
    StreamQuestion is "question about a stream", asked by AskStream

    /// Sends subvolumes. The descriptor is written to.
    SendSubvolumes {
        /// The version of the stream.
        version: u32,
        /// How contents are sent.
        contents: SentContents,
        /// How several subvolumes are sent.
        streams: SentStreams,
        /// The parent of all of them.
        parent: Option<InodeRef>,
        /// Other subvolumes that the receiver has.
        clone_sources: Vec<InodeRef>,
        /// The subvolumes.
        subvolumes: Vec<InodeRef>,
    } -> Report = SendStatus, Record = SendSummary;
    /// Receives subvolumes. The descriptor is read from.
    ReceiveSubvolumes {
        /// The directory that gets them.
        directory: InodeRef,
        /// The position at which it ends.
        streams: ReceivedStreams,
        /// The treatment of compressed data.
        encoded: EncodedData,
        /// After how many errors to stop; 0 for never.
        max_errors: u64,
        /// How much is told: −1, 0, 1 or 2.
        verbosity: i32,
    } -> Report = ReceiveStatus, Record = ReceiveSummary;
}
