//! How a filesystem is opened.

mod data;
mod rescue;

pub use butterfs_codec::{Algorithm, Method};
pub use data::DataPolicy;
pub use rescue::{Commit, Rescue};

use butterfs_ondisk::{DeviceId, TreeId};
use std::time::Duration;

/// Which subvolume is shown.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Subvolume {
    /// The default subvolume.
    #[default]
    Default,
    /// By id (`subvolid=`); 0 means 5.
    Id(TreeId),
    /// By path from the top level (`subvol=`).
    Path(Vec<u8>),
}

/// When an access moves the time of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// Never (`noatime`).
    Never,
    /// With the first access after a change, and once a day (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
}

/// The treatment of writes into space that a file has already (`NODATACOW`, preallocated) in chunks with parity
/// (`raid56=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ParityWrites {
    /// They go where the space is, as in the kernel. A crash meanwhile leaves parity that does not fit other data of
    /// such files, which the loss of a device before the row is repaired then takes.
    #[default]
    InPlace,
    /// They go to new places, so no crash endangers what is there. They can fail for want of space.
    Copied,
}

/// Policies with a "before" and an "after" that benchmarks compare; users never set them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Policies {
    /// A bug on purpose, for tests of the tests.
    #[doc(hidden)]
    pub canary: Option<Canary>,
    /// Directories are logged by DIR_ITEMs too, as by kernels before 5.17.
    pub log_dir_items: bool,
    /// Every `fsync` of a file logs all its extended attributes, as by kernels before 5.14.
    pub log_all_xattrs: bool,
    /// Nothing is logged while a commit is being written, as by kernels before 5.12.
    pub log_behind_commit: bool,
    /// A log is written even where a commit is cheaper.
    pub log_at_any_cost: bool,
    /// The number of reference changes that may wait for this.
    #[doc(hidden)]
    pub booking: Booking,
    /// Seconds that freed space waits before the background discards it; 120 where nothing is said, as in the kernel.
    #[doc(hidden)]
    pub discard_delay_secs: Option<u64>,
}

impl Policies {
    /// How long freed space waits before the background discards it.
    pub(crate) fn discard_delay(&self) -> Duration {
        Duration::from_secs(self.discard_delay_secs.unwrap_or(120))
    }
}

/// When freed space is discarded (`discard=`, `nodiscard`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DiscardMode {
    /// Never, but on request.
    #[default]
    Off,
    /// By the commit that frees it.
    Sync,
    /// Later, in the background.
    Async,
}

impl DiscardMode {
    /// The mode that a mount option selects (`discard`, `discard=sync`, `discard=async`, `nodiscard`); `None` for other
    /// options. Without a value it is `sync`, as in the kernel.
    pub fn parse(option: &str) -> Option<DiscardMode> {
        match option {
            "discard" | "discard=sync" => Some(DiscardMode::Sync),
            "discard=async" => Some(DiscardMode::Async),
            "nodiscard" => Some(DiscardMode::Off),
            _ => None,
        }
    }

    /// The mount option that says it.
    pub fn option(self) -> &'static str {
        match self {
            DiscardMode::Off => "nodiscard",
            DiscardMode::Sync => "discard=sync",
            DiscardMode::Async => "discard=async",
        }
    }
}

/// When reference changes are booked ahead of the commit, which books the rest while everybody waits.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Beyond so many that wait, whoever begins an operation books some.
    pub early: usize,
    /// The number at once.
    pub slice: usize,
    /// A commit begins with so many at most.
    pub left: usize,
}

impl Default for Booking {
    fn default() -> Booking {
        Booking { early: 4096, slice: 512, left: 1024 }
    }
}

/// Bugs that the simulator must find.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A commit writes its superblock without a flush after its tree blocks.
    NoBarrier,
    /// Some references to data that are given up are not counted.
    ReferenceMiscounted,
    /// Space that a generation freed is used again before its superblock is durable.
    PinnedReusedEarly,
    /// Some file extents are not logged.
    LoggedItemLeftOut,
    /// The superblock leads to a log without a flush after the log's blocks.
    LogSuperblockEarly,
    /// A commit replaces primary superblocks that lead to a log while the secondary ones do not.
    CopiesBehind,
    /// Data is not compared with its checksums when it is read.
    ChecksumIgnored,
    /// A commit goes on although some of its tree blocks could not be written.
    WriteErrorIgnored,
    /// Operations on subvolumes check before they lock, and do not look again.
    SubvolumeCheckedEarly,
    /// A device that has missed writes counts as one that has everything.
    StaleBelieved,
    /// Devices that were written without each other are told by what superblocks remember alone.
    HistoriesNotCompared,
    /// Data without checksums is read from all mirrors in turn, stale or not.
    MirrorsTakeTurns,
    /// Nothing remembers which devices are stale.
    StaleForgotten,
    /// A log is written although devices lack something.
    LogOnTooFew,
    /// A device that lacks the last superblock counts as whole although another one is missing.
    InterruptedForgiven,
    /// A superblock leads to trees that do not name a device that has lost some of their blocks.
    LossUnnamed,
    /// Data is overwritten in place although the last commit shows it to a file that has lost it since.
    UnsharedEarly,
    /// A commit comes between operations that are to be durable together.
    TogetherSeparated,
    /// Inodes in memory stay as an operation left them that was taken back.
    LeftBehind,
    /// A bad copy is overwritten with what only a stale device holds, without a checksum that confirms it.
    RepairsFromStale,
    /// An extent that is being written in place can be freed and used again meanwhile.
    InPlaceUnprotected,
    /// All references of an extent are looked at for each change of one.
    ReferencesScanned,
    /// All reference changes are booked by the commit, while everybody waits.
    BookedAtOnce,
    /// Space that a generation freed is discarded before its superblock is durable.
    DiscardedEarly,
    /// A panic aborts nothing.
    PanicForgiven,
    /// Blocks that a balance copies do not say that they may be shared.
    RelocationUnmarked,
    /// Only files of the top level are led to data that a balance has copied; others still lead to where it was.
    RelocationInOneTree,
    /// Data that a balance copies loses its checksums.
    RelocationWithoutChecksums,
    /// The stripes of a chunk that moves are swapped before the last of it is copied.
    StripesSwappedEarly,
    /// Some pieces of a chunk that moves are not copied.
    PieceNotCopied,
    /// Writes to a chunk that moves do not go to its new stripes.
    MoveNotFollowed,
    /// Threads that wait for a superblock are not woken when writing stops.
    SuperblockAwaitedForEver,
    /// Filesystems that have no numbers for new transactions are opened for writing.
    LastGenerationsAccepted,
    /// A part of a row is written without its new parity.
    ParityNotUpdated,
    /// New data shares parity with data that is needed although there is room elsewhere.
    RowsShared,
    /// Scrub reads extents that can be freed and used again meanwhile.
    ScrubUnheld,
}

impl Canary {
    /// Whether a filesystem that is only looked at shows the bug.
    pub fn is_about_opening(self) -> bool {
        matches!(
            self,
            Canary::StaleBelieved
                | Canary::HistoriesNotCompared
                | Canary::MirrorsTakeTurns
                | Canary::StaleForgotten
                | Canary::InterruptedForgiven
        )
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// No writes at all (`ro`).
    pub read_only: bool,
    /// Which subvolume is shown.
    pub subvolume: Subvolume,
    /// Seconds between commits (`commit=`).
    pub commit_interval_secs: u64,
    /// Largest inline extent in bytes (`max_inline=`).
    pub max_inline: u32,
    /// How new data is stored; `Filesystem::set_data_policy` changes it later.
    pub data: DataPolicy,
    /// When access times move (`relatime`, `strictatime`, `noatime`).
    pub access_times: AccessTimes,
    /// Do not replay or look at a log tree; only with `read_only` (`rescue=nologreplay`, `nologreplay`).
    pub no_log_replay: bool,
    /// The parts that may be missing, and the commit that is shown; only with `read_only` (`rescue=`, `at=`).
    pub rescue: Rescue,
    /// Devices may be missing, as far as the profiles survive it (`degraded`).
    pub degraded: bool,
    /// Devices whose content is given up for that of the others (`stale=`): they were written without each other, or
    /// nothing tells whether they were.
    pub stale: Vec<DeviceId>,
    /// Overwriting on RAID5 and RAID6 (`raid56=inplace`, `raid56=cow`).
    pub parity_writes: ParityWrites,
    /// fsync by commit (`notreelog`).
    pub no_tree_log: bool,
    /// Every commit covers all data that was written before it (`flushoncommit`).
    pub flush_on_commit: bool,
    /// A balance that an earlier mount left is not resumed (`skip_balance`).
    pub skip_balance: bool,
    /// The UUID tree is checked after opening, whatever the superblock says about it (`rescan_uuid_tree`).
    pub rescan_uuid_tree: bool,
    /// Users may delete subvolumes of their own (`user_subvol_rm_allowed`); for whoever checks permissions.
    pub user_subvol_rm_allowed: bool,
    /// Clean tree blocks kept in memory, in bytes.
    pub node_cache_bytes: usize,
    /// Unwritten file data kept in memory, in bytes.
    pub dirty_data_bytes: usize,
    /// Readers keep what they have read, as the kernel does above a mount: long reads go past the page cache of the
    /// devices.
    pub readers_keep: bool,
    /// When freed space is discarded; `Filesystem::set_discard_mode` changes it later.
    pub discard: DiscardMode,
    /// Test and benchmark policies.
    pub policies: Policies,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            subvolume: Subvolume::Default,
            commit_interval_secs: 30,
            max_inline: 2048,
            data: DataPolicy::default(),
            access_times: AccessTimes::Relative,
            no_log_replay: false,
            rescue: Rescue::default(),
            degraded: false,
            stale: Vec::new(),
            parity_writes: ParityWrites::default(),
            no_tree_log: false,
            flush_on_commit: false,
            skip_balance: false,
            rescan_uuid_tree: false,
            user_subvol_rm_allowed: false,
            node_cache_bytes: 256 << 20,
            dirty_data_bytes: 256 << 20,
            readers_keep: false,
            discard: DiscardMode::Off,
            policies: Policies::default(),
        }
    }
}
