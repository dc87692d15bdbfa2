//! Balance: moves the content of chunks, or converts their profiles.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::mkfs::Profile;
use crate::types::DeviceId;
use butterfs_fs::{BalanceArgs, BalanceEnd, BalanceItem, BalanceRun};
use butterfs_ondisk::balance::{args_flags, balance_flags, extended_profile};
use std::fmt;
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::time::{Duration, Instant};

/// The interval of progress reports.
const INTERVAL: Duration = Duration::from_millis(250);

/// Selects chunks of one type for a balance, and says what they become. Without a filter it selects all.
#[derive(Clone, Copy, Debug, Default)]
pub struct BalanceFilter(BalanceArgs);

/// The progress of a balance, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BalanceProgress {
    /// Chunks that the filters selected when the balance began.
    pub expected: u64,
    /// Chunks that it has looked at.
    pub considered: u64,
    /// Chunks that it has moved.
    pub completed: u64,
}

/// The state of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BalanceState {
    /// It works, or is about to stop.
    Running,
    /// It waits for [`Filesystem::resume_balance`].
    Paused,
}

/// How a balance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BalanceOutcome {
    /// It went through all chunks; this many of them had no room elsewhere and stay as they are.
    Completed {
        /// Chunks without room.
        no_space: u64,
    },
    /// [`Filesystem::pause_balance`] or closing the filesystem paused it.
    Paused,
    /// [`Filesystem::cancel_balance`] or the progress callback ended it. Chunks that were moved stay moved.
    Cancelled,
}

/// A balance; made by [`Filesystem::balance`] and [`Filesystem::resume_balance`].
#[must_use = "nothing is balanced until `run` is called"]
pub struct BalanceRequest<'a> {
    filesystem: Filesystem,
    work: Work,
    watch: Box<dyn FnMut(&BalanceProgress) -> ControlFlow<()> + 'a>,
}

enum Work {
    Start(Box<Start>),
    Resume,
}

#[derive(Default)]
struct Start {
    data: Option<BalanceArgs>,
    metadata: Option<BalanceArgs>,
    force: bool,
}

impl BalanceFilter {
    /// All chunks of the type.
    pub fn new() -> BalanceFilter {
        BalanceFilter::default()
    }

    /// Only chunks of which this percentage is used, as in `0..=50`.
    pub fn usage(mut self, percent: RangeInclusive<u32>) -> BalanceFilter {
        (self.0.usage_min, self.0.usage_max) = ((*percent.start()).into(), (*percent.end()).into());
        self.with(args_flags::USAGE_RANGE)
    }

    /// At most this many chunks.
    pub fn limit(mut self, chunks: u32) -> BalanceFilter {
        self.0.limit_max = chunks.into();
        self.with(args_flags::LIMIT_RANGE)
    }

    /// Only chunks that have a part on this device.
    pub fn device(mut self, id: DeviceId) -> BalanceFilter {
        self.0.devid = id.get().into();
        self.with(args_flags::DEVID)
    }

    /// Only chunks of this profile, or of one named by another call.
    pub fn profile(mut self, profile: Profile) -> BalanceFilter {
        self.0.profiles = (self.0.profiles.get() | extended_profile(profile.bit())).into();
        self.with(args_flags::PROFILES)
    }

    /// Only chunks with an address in this range.
    pub fn addresses(mut self, range: Range<u64>) -> BalanceFilter {
        (self.0.vstart, self.0.vend) = (range.start.into(), range.end.into());
        self.with(args_flags::VRANGE)
    }

    /// Converts the chunks to this profile.
    pub fn convert(mut self, profile: Profile) -> BalanceFilter {
        self.0.target = extended_profile(profile.bit()).into();
        self.with(args_flags::CONVERT)
    }

    /// Leaves chunks alone that have the profile of [`convert`](BalanceFilter::convert) already (`soft`).
    pub fn skip_converted(self) -> BalanceFilter {
        self.with(args_flags::SOFT)
    }

    fn with(mut self, flag: u64) -> BalanceFilter {
        self.0.flags = (self.0.flags.get() | flag).into();
        self
    }
}

impl Filesystem {
    /// Balances the filesystem: all chunks, or those that [`data`](BalanceRequest::data) and
    /// [`metadata`](BalanceRequest::metadata) select.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::{BalanceFilter, Existing, Profile};
    ///
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(1 << 30);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// # filesystem.root().write("file", vec![1; 1 << 20])?;
    /// // A second device, and then two copies of everything.
    /// filesystem.add_device(Device::memory(1 << 30), Existing::Keep)?;
    /// let raid1 = BalanceFilter::new().convert(Profile::Raid1).skip_converted();
    /// filesystem.balance().data(raid1).metadata(raid1).run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn balance<'a>(&self) -> BalanceRequest<'a> {
        self.balance_request(Work::Start(Box::default()))
    }

    /// Continues a paused balance, also one that an earlier mount left.
    pub fn resume_balance<'a>(&self) -> BalanceRequest<'a> {
        self.balance_request(Work::Resume)
    }

    /// Pauses the balance that another thread runs, and waits until it has stopped.
    pub fn pause_balance(&self) -> Result<()> {
        Ok(self.shared.engine()?.balance_pause()?)
    }

    /// Ends the balance that another thread runs, or a paused one.
    pub fn cancel_balance(&self) -> Result<()> {
        Ok(self.shared.engine()?.balance_cancel()?)
    }

    /// The state and the progress of a balance that runs or is paused.
    pub fn balance_status(&self) -> Option<(BalanceState, BalanceProgress)> {
        let status = self.shared.memory().balance_status()?;
        let state = match status.state {
            butterfs_fs::BalanceState::Paused => BalanceState::Paused,
            _ => BalanceState::Running,
        };
        Some((state, BalanceProgress::of(status.progress)))
    }

    fn balance_request<'a>(&self, work: Work) -> BalanceRequest<'a> {
        BalanceRequest { filesystem: self.clone(), work, watch: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl<'a> BalanceRequest<'a> {
    /// Balances the data chunks that `filter` selects. Then metadata is balanced only if it is named too.
    pub fn data(mut self, filter: BalanceFilter) -> BalanceRequest<'a> {
        if let Work::Start(start) = &mut self.work {
            start.data = Some(filter.0);
        }
        self
    }

    /// Balances the metadata and system chunks that `filter` selects. Then data is balanced only if it is named too.
    pub fn metadata(mut self, filter: BalanceFilter) -> BalanceRequest<'a> {
        if let Work::Start(start) = &mut self.work {
            start.metadata = Some(filter.0);
        }
        self
    }

    /// Permits a conversion of metadata to a profile with fewer copies.
    pub fn allow_fewer_copies(mut self) -> BalanceRequest<'a> {
        if let Work::Start(start) = &mut self.work {
            start.force = true;
        }
        self
    }

    /// Calls `watch` several times a second; [`ControlFlow::Break`] cancels the balance.
    pub fn on_progress(mut self, watch: impl FnMut(&BalanceProgress) -> ControlFlow<()> + 'a) -> BalanceRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Balances on the calling thread. Other threads may use the filesystem meanwhile.
    pub fn run(mut self) -> Result<BalanceOutcome> {
        let engine = self.filesystem.shared.engine()?.clone();
        let mut run = match &self.work {
            Work::Start(start) => engine.balance_begin(control(start))?,
            Work::Resume => engine.balance_begin_again()?,
        };
        let mut told = Instant::now();
        loop {
            if let Some(end) = engine.balance_step(&mut run)? {
                return Ok(self.ended(end, &run));
            }
            if told.elapsed() >= INTERVAL {
                told = Instant::now();
                if (self.watch)(&BalanceProgress::of(run.progress())).is_break() {
                    engine.balance_ask_to_cancel();
                }
            }
        }
    }

    fn ended(&mut self, end: BalanceEnd, run: &BalanceRun) -> BalanceOutcome {
        let (outcome, progress) = match end {
            BalanceEnd::Completed { progress, no_space } => (BalanceOutcome::Completed { no_space }, progress),
            BalanceEnd::Paused => (BalanceOutcome::Paused, run.progress()),
            BalanceEnd::Cancelled => (BalanceOutcome::Cancelled, run.progress()),
        };
        // The last report: there is nothing left to cancel.
        let _ = (self.watch)(&BalanceProgress::of(progress));
        outcome
    }
}

impl BalanceProgress {
    fn of(progress: butterfs_fs::BalanceProgress) -> BalanceProgress {
        let butterfs_fs::BalanceProgress { expected, considered, completed } = progress;
        BalanceProgress { expected, considered, completed }
    }
}

/// System chunks follow metadata, as in the command.
fn control(start: &Start) -> BalanceItem {
    let Start { data, metadata, force } = *start;
    let all = (data.is_none() && metadata.is_none()).then(BalanceArgs::default);
    let (data, metadata) = (data.or(all), metadata.or(all));
    let mut flags = if force { balance_flags::FORCE } else { 0 };
    flags |= if data.is_some() { balance_flags::DATA } else { 0 };
    flags |= if metadata.is_some() { balance_flags::METADATA | balance_flags::SYSTEM } else { 0 };
    let (data, metadata) = (data.unwrap_or_default(), metadata.unwrap_or_default());
    BalanceItem { flags: flags.into(), data, metadata, system: metadata, ..BalanceItem::default() }
}

impl fmt::Debug for BalanceRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalanceRequest").finish_non_exhaustive()
    }
}
