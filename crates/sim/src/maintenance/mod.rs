//! Work on chunks and devices as steps: balance, resize, add, remove and replace, beside everything else.
//!
//! # The model
//! 1. A disk has slots for devices; some are spare when the filesystem is made. A slot belongs to the filesystem when
//!    it has a valid superblock of it, which is all that whoever looks for devices sees: these slots are given, all of
//!    them.
//! 2. Other steps run between the pieces that move ([`Point::PieceMoved`](butterfs_fs::env::Point)), `fsync` and `sync`
//!    among them, and between the steps of a balance.
//! 3. Work that is refused changes nothing. Its content is never another one: to the model it does nothing at all.
//! 4. A device that takes over may fail once before it has. Then the replacement ends with `EIO`, and nobody else
//!    notices.
//! 5. Between two lives a device may be lost for ever, where the profiles survive it; its slot is spare then. From then
//!    on the filesystem may be opened without all devices.
//! 6. Of some states one more device is taken away, which must not be noticed where the profiles survive it and all
//!    superblocks are of one moment.

mod choose;
mod look;
mod perform;
mod target;

pub use choose::{choose, kinds};
pub(crate) use look::{agree, belongs, counts_all, has_target, lose, slots, survivable};
pub(crate) use perform::{Slots, is_refusal};

/// A step of such work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Maintenance {
    /// A balance begins; its steps are steps of their own.
    Balance(Filters),
    /// So many steps of the balance that runs, or that is paused.
    BalanceSteps(usize),
    /// The balance waits to be resumed.
    BalancePause,
    BalanceCancel,
    /// The device in this slot gets so many MiB.
    Resize {
        slot: usize,
        mib: u64,
    },
    Add {
        slot: usize,
    },
    Remove {
        slot: usize,
    },
    RemoveMissing,
    /// The device in `slot`, or one that is missing, is replaced by the one in `target`.
    Replace {
        slot: Option<usize>,
        target: usize,
        spares_source: bool,
        fails: Option<Failing>,
    },
    /// A replacement that an earlier life left goes on.
    ContinueReplace,
    /// Asks the running work to end early.
    Cancel,
}

/// The one operation of a new device that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Failing {
    Write(u64),
    Flush(u64),
}

/// The filters of a balance, and its target profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Filters {
    /// Flags of the types.
    pub types: u64,
    /// Bits of the profiles of data and of trees.
    pub data: Option<u64>,
    pub metadata: Option<u64>,
    pub usage: Option<u64>,
    pub limit: Option<u64>,
    pub soft: bool,
}
