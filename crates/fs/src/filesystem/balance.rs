//! Balance: chunks that filters choose are emptied one after the other, into chunks of another profile where that is
//! wanted.
//!
//! ```text
//!            start                    pause
//! (nothing) ───────► Running ───────────────► Paused ──┐ cancel, or the end: the item on disk goes
//!     ▲                 │ ▲        resume        │     │
//!     └─────────────────┘ └──────────────────────┘     └─► (nothing)
//! ```
//!
//! # Invariants
//! 1. From before the first chunk is touched until the end the root tree has a BALANCE item: after a crash whoever
//!    mounts the filesystem for writing, Linux or butterfs, resumes.
//! 2. While a conversion runs or is paused, new chunks get the new profile.
//! 3. One state, under one lock, says whether a balance runs, is paused, or is asked to stop; who asks waits until it
//!    has stopped.
//! 4. Chunks are taken from the highest address downwards, so that none is taken that the balance itself has added.
//! 5. A chunk for which there is no room is counted, and the next one is tried.
//! 6. A run that is dropped before its end, by a panic for example, leaves a paused balance ([`Turn`]): nobody waits
//!    for a run that is gone.

use super::courtesy::Courtesy;
use super::relocate::{Emptied, Emptying};
use super::{Exclusive, ExclusiveOperation, Filesystem};
use crate::error::{Errno, Error, Result};
use crate::migration::{Keep, Migration, MigrationTarget};
use crate::space::Class;
use crate::transaction::Reserve;
use butterfs_ondisk::balance::{args_flags, balance_flags};
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::items::{BalanceArgs, BalanceItem, block_group_flags as bits};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::{Key, KeyType, Logical};
use butterfs_sync::{Condvar, Mutex, order};
use std::sync::Arc;
use std::thread::JoinHandle;
use zerocopy::{FromBytes, IntoBytes};

/// A chunk of which so much is in use is as it would be after a balance.
const PACKED_PERCENT: u64 = 90;

const ITEM_KEY: Key = Key::new(objectid::BALANCE, KeyType::TEMPORARY_ITEM, 0);

/// The progress of a balance, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceProgress {
    /// The number of chunks that the filters selected when it began.
    pub expected: u64,
    /// The number of chunks that it has looked at.
    pub considered: u64,
    /// The number of chunks that it has emptied.
    pub completed: u64,
}

/// The state of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceState {
    /// It works.
    Running,
    /// It is about to stop, to be resumed.
    PauseRequested,
    /// It is about to end.
    CancelRequested,
    /// It waits to be resumed.
    Paused,
}

/// A balance, for whoever asks.
#[derive(Clone, Copy, Debug)]
pub struct BalanceStatus {
    /// The state.
    pub state: BalanceState,
    /// The requested parameters.
    pub control: BalanceItem,
    /// The progress.
    pub progress: BalanceProgress,
}

/// How a balance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceEnd {
    /// It went through all chunks.
    Completed {
        /// How many there were.
        progress: BalanceProgress,
        /// Chunks that stayed as they are, because there was no room for what is in them.
        no_space: u64,
    },
    /// Somebody paused it, or the filesystem is being closed.
    Paused,
    /// Somebody ended it.
    Cancelled,
}

/// See [`Filesystem::balance_status`].
struct Current {
    control: BalanceItem,
    state: BalanceState,
    progress: BalanceProgress,
    exclusive: Exclusive,
}

/// The balance of a filesystem, if there is one.
#[derive(Default)]
pub(super) struct Balance {
    current: Mutex<Option<Current>, { order::BALANCE }>,
    changed: Condvar,
    /// Resumes what an earlier mount left.
    pub thread: Mutex<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Balance {
    fn with<R>(&self, work: impl FnOnce(&mut Current) -> R) -> Option<R> {
        self.current.lock().as_mut().map(work)
    }

    fn change(&self, work: impl FnOnce(&mut Option<Current>)) {
        let mut current = self.current.lock();
        work(&mut current);
        // What it gives up may end an exclusive operation, which has a lock of its own.
        drop(current);
        self.changed.notify_all();
    }

    /// Waits until a balance that runs has stopped.
    pub fn wait_until_stopped(&self) {
        let mut current = self.current.lock();
        while current.as_ref().is_some_and(|current| current.state != BalanceState::Paused) {
            self.changed.wait(&mut current);
        }
    }

    fn is_asked_to_stop(&self) -> bool {
        let stops = |state| matches!(state, BalanceState::PauseRequested | BalanceState::CancelRequested);
        self.with(|current| stops(current.state)).unwrap_or(false)
    }

    /// Asks a balance that runs to stop. False when none does.
    fn ask(&self, state: BalanceState) -> bool {
        let mut asked = false;
        self.change(|current| {
            if let Some(current) = current.as_mut().filter(|current| current.state != BalanceState::Paused) {
                asked = true;
                // Nobody takes a cancellation back.
                if current.state != BalanceState::CancelRequested {
                    current.state = state;
                }
            }
        });
        asked
    }
}

/// The one run that may work on a balance. Dropping it before the balance has stopped pauses the balance.
struct Turn {
    balance: Arc<Balance>,
    is_over: bool,
}

impl Turn {
    /// The balance is paused, to be resumed.
    fn pause(&mut self) {
        self.is_over = true;
        self.balance.change(|current| {
            let Some(current) = current else { return };
            current.state = BalanceState::Paused;
            // A paused balance may always take the place of the one that runs.
            let _ = current.exclusive.become_operation(ExclusiveOperation::BalancePaused);
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.pause();
        }
    }
}

/// A balance that is being carried out, a step at a time. Dropping it pauses the balance.
#[doc(hidden)]
pub struct BalanceRun {
    control: BalanceItem,
    /// Chunks below it are still to be looked at.
    below: Logical,
    limits: Limits,
    work: Option<Work>,
    no_space: u64,
    progress: BalanceProgress,
    courtesy: Courtesy,
    /// Dropped last: what waits for the balance finds no chunk half-moved.
    turn: Turn,
}

impl BalanceRun {
    /// The progress after the last step.
    #[doc(hidden)]
    pub fn progress(&self) -> BalanceProgress {
        self.progress
    }
}

/// The treatment of a chunk.
enum Work {
    /// Its content moves to other addresses.
    Empty(Emptying),
    /// It gets other stripes beneath its addresses: the profiles lay it out alike.
    Migrate(Box<Migration>),
}

/// How many more chunks of each type may be taken: data, system, metadata.
#[derive(Clone, Copy)]
struct Limits([u64; 3]);

impl Limits {
    fn of(control: &BalanceItem) -> Limits {
        Limits([&control.data, &control.system, &control.metadata].map(|args| args.limits().0))
    }

    /// Whether one more chunk of this kind may be taken, which counts.
    fn take(&mut self, kind: u64) -> bool {
        let left = &mut self.0[index_of(kind)];
        let any = *left > 0;
        *left = left.saturating_sub(1);
        any
    }
}

fn index_of(kind: u64) -> usize {
    [bits::DATA, bits::SYSTEM, bits::METADATA].iter().position(|bit| kind & bit != 0).unwrap_or(2)
}

impl Filesystem {
    /// Balances as `control` says, until it is done, paused or cancelled. `EINPROGRESS` while another exclusive
    /// operation runs.
    pub fn balance_start(&self, control: BalanceItem) -> Result<BalanceEnd> {
        let _alarm = self.0.engine.alarm();
        let run = self.balance_begin(control)?;
        self.balance_drive(run)
    }

    /// Begins a balance; [`balance_drive`](Self::balance_drive) does the work.
    #[doc(hidden)]
    pub fn balance_begin(&self, mut control: BalanceItem) -> Result<BalanceRun> {
        let _alarm = self.0.engine.alarm();
        self.0.engine.must_not_be_read_only()?;
        control.flags &= balance_flags::TYPES | balance_flags::FORCE;
        let exclusive = self.begin_exclusive(ExclusiveOperation::Balance)?;
        self.check_balance(&control)?;
        self.put_balance_item(Some(&control))?;
        self.set_targets(Some(&control));
        self.enter_balance(control, exclusive, BalanceState::Running);
        Ok(self.balance_run(control))
    }

    fn enter_balance(&self, control: BalanceItem, exclusive: Exclusive, state: BalanceState) {
        let progress = BalanceProgress::default();
        self.0.balance.change(|current| *current = Some(Current { control, state, progress, exclusive }));
    }

    /// The balance is running since a moment ago.
    fn balance_run(&self, control: BalanceItem) -> BalanceRun {
        let turn = Turn { balance: Arc::clone(&self.0.balance), is_over: false };
        let mut run = BalanceRun {
            turn,
            control,
            below: Logical(u64::MAX),
            limits: Limits::of(&control),
            work: None,
            no_space: 0,
            progress: BalanceProgress::default(),
            courtesy: Courtesy::new(self),
        };
        let progress = self.count_chunks(&mut run);
        self.0.balance.with(|current| current.progress = progress);
        run
    }

    /// Goes on with a paused balance; what is finished is not repeated. `ENOTCONN` when none is paused.
    pub fn balance_resume(&self) -> Result<BalanceEnd> {
        let _alarm = self.0.engine.alarm();
        let run = self.balance_begin_again()?;
        self.balance_drive(run)
    }

    #[doc(hidden)]
    pub fn balance_begin_again(&self) -> Result<BalanceRun> {
        let _alarm = self.0.engine.alarm();
        self.0.engine.must_not_be_read_only()?;
        let mut resumed = Err(Error::refused(Errno::ENOTCONN, "no balance is paused"));
        self.0.balance.change(|current| match current {
            Some(current) if current.state == BalanceState::Paused => {
                resumed = current.exclusive.become_operation(ExclusiveOperation::Balance).map(|()| {
                    current.control = current.control.resumed();
                    current.state = BalanceState::Running;
                    current.control
                });
            }
            Some(_) => resumed = Err(Error::refused(Errno::EINPROGRESS, "the balance is running")),
            None => {}
        });
        Ok(self.balance_run(resumed?))
    }

    /// Stops a balance that runs after the chunk that it is at, to be resumed. `ENOTCONN` when none runs.
    pub fn balance_pause(&self) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        if !self.0.balance.ask(BalanceState::PauseRequested) {
            return Err(Error::refused(Errno::ENOTCONN, "no balance is running"));
        }
        self.0.balance.wait_until_stopped();
        Ok(())
    }

    /// Ends a balance that runs or is paused. `ENOTCONN` when there is none.
    pub fn balance_cancel(&self) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        self.0.engine.must_not_be_read_only()?;
        let asked = self.0.balance.ask(BalanceState::CancelRequested);
        if asked {
            self.0.balance.wait_until_stopped();
        }
        let paused = self.0.balance.with(|current| current.state == BalanceState::Paused);
        match paused {
            Some(true) => self.end_balance(),
            // It ended while we waited.
            _ if asked => Ok(()),
            _ => Err(Error::refused(Errno::ENOTCONN, "there is no balance")),
        }
    }

    /// Asks a balance that runs to end, and does not wait: for whoever carries it out.
    #[doc(hidden)]
    pub fn balance_ask_to_cancel(&self) {
        let _alarm = self.0.engine.alarm();
        self.0.balance.ask(BalanceState::CancelRequested);
    }

    /// The balance that runs or is paused.
    pub fn balance_status(&self) -> Option<BalanceStatus> {
        let _alarm = self.0.engine.alarm();
        self.0.balance.with(|current| BalanceStatus {
            state: current.state,
            control: current.control,
            progress: current.progress,
        })
    }

    /// Carries a balance out.
    #[doc(hidden)]
    pub fn balance_drive(&self, mut run: BalanceRun) -> Result<BalanceEnd> {
        let _alarm = self.0.engine.alarm();
        loop {
            if let Some(end) = self.balance_step(&mut run)? {
                return Ok(end);
            }
        }
    }

    /// Does one step of it; how it ended, if it did.
    #[doc(hidden)]
    pub fn balance_step(&self, run: &mut BalanceRun) -> Result<Option<BalanceEnd>> {
        let _alarm = self.0.engine.alarm();
        let asked = self.0.balance.with(|current| {
            run.progress = current.progress;
            current.state
        });
        let end = match asked {
            Some(BalanceState::CancelRequested) => Some(BalanceEnd::Cancelled),
            Some(BalanceState::PauseRequested) if run.work.is_none() => Some(BalanceEnd::Paused),
            _ if self.is_stopping() => Some(BalanceEnd::Paused),
            _ => match self.work_on_chunks(run) {
                Ok(true) => None,
                Ok(false) => {
                    let progress = self.0.balance.with(|current| current.progress).unwrap_or_default();
                    Some(BalanceEnd::Completed { progress, no_space: run.no_space })
                }
                Err(error) => {
                    run.work = None;
                    // The first error counts.
                    let _ = self.end_run(run);
                    return Err(error);
                }
            },
        };
        let Some(end) = end else {
            run.courtesy.let_others_work(self, &|| self.is_stopping() || self.0.balance.is_asked_to_stop());
            return Ok(None);
        };
        run.work = None;
        match end {
            BalanceEnd::Paused => run.turn.pause(),
            BalanceEnd::Completed { .. } | BalanceEnd::Cancelled => self.end_run(run)?,
        }
        Ok(Some(end))
    }

    /// Ends the balance of a run, which is over even where the item could not be removed.
    fn end_run(&self, run: &mut BalanceRun) -> Result<()> {
        let ended = self.end_balance();
        run.turn.is_over = true;
        ended
    }

    /// Works on the chunk that is being emptied, or looks for the next one. False when there is none.
    fn work_on_chunks(&self, run: &mut BalanceRun) -> Result<bool> {
        let Some(work) = &mut run.work else { return self.next_chunk(run) };
        let done = match work {
            Work::Empty(emptying) => self.empty_some(emptying).map(|emptied| emptied == Emptied::Gone),
            Work::Migrate(migration) => {
                let _operation = self.begin();
                migration.step().map(|copied| copied.is_none())
            }
        };
        match done {
            Ok(false) => {}
            Ok(true) => self.finish_chunk(run)?,
            Err(error) => {
                run.work = None;
                self.count_no_space(run, error)?;
            }
        }
        Ok(true)
    }

    fn finish_chunk(&self, run: &mut BalanceRun) -> Result<()> {
        if let Some(Work::Migrate(migration)) = run.work.take() {
            let _operation = self.begin();
            migration.finish()?;
        }
        self.0.balance.with(|current| current.progress.completed += 1);
        Ok(())
    }

    fn count_no_space(&self, run: &mut BalanceRun, error: Error) -> Result<()> {
        if !error.is(Errno::ENOSPC) || self.0.engine.aborted().is_some() {
            return Err(error);
        }
        run.no_space += 1;
        self.0.engine.volume().report(None, format!("balance: {error}"));
        Ok(())
    }

    fn next_chunk(&self, run: &mut BalanceRun) -> Result<bool> {
        let map = self.0.engine.volume().chunk_map();
        let Some(chunk) = map.iter().filter(|chunk| chunk.start < run.below).max_by_key(|chunk| chunk.start) else {
            return Ok(false);
        };
        run.below = chunk.start;
        self.0.balance.with(|current| current.progress.considered += 1);
        if self.is_taken(&run.control, chunk) && run.limits.take(chunk.kind) {
            match self.begin_chunk(&run.control, chunk) {
                Ok(work) => run.work = Some(work),
                Err(error) => self.count_no_space(run, error)?,
            }
        }
        Ok(true)
    }

    /// Moving a chunk beneath its addresses needs no walk over trees, but room for all of it at once.
    fn begin_chunk(&self, control: &BalanceItem, chunk: &Chunk) -> Result<Work> {
        if let Some(target) = self.target_of_whole(control, chunk) {
            let _operation = self.begin();
            match Migration::begin(&self.0.engine, chunk.start, &target) {
                Ok(Some(migration)) => return Ok(Work::Migrate(Box::new(migration))),
                Err(error) if self.0.engine.aborted().is_some() => return Err(error),
                // Other layouts, or no such hole on the devices.
                Ok(None) | Err(_) => {}
            }
        }
        self.begin_emptying(chunk.start).map(Work::Empty)
    }

    /// The target of a chunk that moves whole: another profile, or the place where a new chunk would lie. `None` for a
    /// chunk whose content moves, because a filter by usage or by address asks for that, or because it is worth it.
    fn target_of_whole(&self, control: &BalanceItem, chunk: &Chunk) -> Option<MigrationTarget> {
        use args_flags::{USAGE, USAGE_RANGE, VRANGE};
        let args = control.args_of(chunk.kind)?;
        if let Some(target) = args.target_profile().filter(|target| target.bit != chunk.kind & bits::PROFILE_MASK) {
            return Some(MigrationTarget { profile: Some(target), ..MigrationTarget::default() });
        }
        let wants_content_moved = [USAGE, USAGE_RANGE, VRANGE].into_iter().any(|filter| args.has(filter));
        // On more devices than it lies on now, a striped chunk is made anew.
        let is_plain = chunk.stripe_length() == chunk.length && chunk.profile().parity == 0;
        (is_plain && !wants_content_moved && !self.is_worth_emptying(chunk))
            .then(|| MigrationTarget { keep: Keep::Nothing, ..MigrationTarget::default() })
    }

    /// Whether the other groups of its kind have room for the content of a chunk, so that there is a chunk less.
    fn is_worth_emptying(&self, chunk: &Chunk) -> bool {
        let groups = self.0.engine.space.groups();
        let used = groups.iter().find(|group| group.start == chunk.start).map_or(0, |group| group.used);
        let others = groups.iter().filter(|group| group.start != chunk.start && group.flags == chunk.kind);
        let room: u64 = others.map(|group| group.length - group.used).sum();
        used < chunk.length / 100 * PACKED_PERCENT && used <= room
    }

    /// Whether all filters but the limit let a chunk pass now.
    fn is_taken(&self, control: &BalanceItem, chunk: &Chunk) -> bool {
        let used = self.0.engine.space.group(chunk.start).map(|group| group.used);
        let args = control.args_of(chunk.kind);
        used.zip(args).is_some_and(|(used, args)| args.takes(chunk, used))
    }

    /// Counts the chunks that will be taken. Of a type of which there are fewer than its filters ask for, none will be.
    fn count_chunks(&self, run: &mut BalanceRun) -> BalanceProgress {
        let map = self.0.engine.volume().chunk_map();
        let (mut limits, mut counts) = (run.limits, [0; 3]);
        for chunk in map.iter().filter(|chunk| self.is_taken(&run.control, chunk)) {
            if limits.take(chunk.kind) {
                counts[index_of(chunk.kind)] += 1;
            }
        }
        let least = [&run.control.data, &run.control.system, &run.control.metadata].map(|args| args.limits().1);
        for (index, least) in least.into_iter().enumerate() {
            if counts[index] < least {
                run.limits.0[index] = 0;
            }
        }
        BalanceProgress { expected: counts.iter().sum(), ..BalanceProgress::default() }
    }

    /// It is over: the item goes, and the profiles of new chunks are those that there are.
    fn end_balance(&self) -> Result<()> {
        self.0.engine.clear_unused_features();
        let removed = self.put_balance_item(None);
        self.set_targets(None);
        self.0.balance.change(|current| *current = None);
        removed
    }

    /// Inserts the BALANCE item, or removes it, with a commit.
    fn put_balance_item(&self, control: Option<&BalanceItem>) -> Result<()> {
        let _operation = self.begin();
        let engine = &self.0.engine;
        engine.must_not_be_together()?;
        let handle = engine.start(if control.is_some() { Reserve::items(1) } else { Reserve::removal(1) })?;
        let root = &engine.globals().root;
        match control {
            Some(control) => root.put(&handle, ITEM_KEY, control.as_bytes())?,
            None => drop(root.remove(&handle, ITEM_KEY)?),
        }
        drop(handle);
        engine.commit()
    }

    /// Sets the profiles of new chunks, or takes them back.
    fn set_targets(&self, control: Option<&BalanceItem>) {
        let space = &self.0.engine.space;
        for (class, kind) in
            [(Class::Data, bits::DATA), (Class::Metadata, bits::METADATA), (Class::System, bits::SYSTEM)]
        {
            if space.is_mixed() && class == Class::Metadata {
                continue;
            }
            let args = control.and_then(|control| control.args_of(kind));
            space.set_target(class, args.and_then(BalanceArgs::target_profile).map(|profile| profile.bit));
        }
    }

    /// Refuses a balance that cannot be carried out, or that reduces redundancy without being forced to.
    fn check_balance(&self, control: &BalanceItem) -> Result<()> {
        let refused = |what: String| Err(Error::refused_at(Errno::EINVAL, what));
        let space = &self.0.engine.space;
        let flags = control.flags.get();
        if flags & balance_flags::TYPES == 0 {
            return refused("a balance of no type of chunks".to_owned());
        }
        if space.is_mixed() {
            let both = balance_flags::DATA | balance_flags::METADATA;
            if flags & both != 0 && (flags & both != both || control.data != control.metadata) {
                return refused("mixed groups data and metadata options must be the same".to_owned());
            }
        }
        let all = [
            (bits::DATA, "data", &control.data),
            (bits::METADATA, "metadata", &control.metadata),
            (bits::SYSTEM, "system", &control.system),
        ];
        for (kind, name, args) in all {
            let is_asked_for = control.args_of(kind).is_some();
            if is_asked_for && args.flags.get() & !args_flags::KNOWN != 0 {
                return refused(format!("the {name} filters have flags that are not known"));
            }
            // The kernel refuses a profile also where the balance is not of this type, and would not resume it.
            self.check_target(args, kind, name, !is_asked_for || flags & balance_flags::FORCE != 0)?;
        }
        Ok(())
    }

    fn check_target(&self, args: &BalanceArgs, kind: u64, name: &str, force: bool) -> Result<()> {
        if !args.has(args_flags::CONVERT) {
            return Ok(());
        }
        let devices = self.0.engine.volume().devices().len();
        let target = args.target_profile().filter(|target| target.min_devices <= devices);
        let Some(target) = target else {
            let wanted =
                args.target_profile().map_or("that is unknown".to_owned(), |target| target.name.to_lowercase());
            return Err(Error::refused_at(Errno::EINVAL, format!("invalid convert {name} profile {wanted}")));
        };
        let is_redundant = |profile: &Profile| profile.copies >= 2 || profile.tolerated_failures > 0;
        let groups = self.0.engine.space.groups();
        let of_kind = groups.iter().filter(|group| group.flags & kind != 0);
        let reduces = !is_redundant(target)
            && of_kind.filter_map(|group| Profile::of(group.flags)).any(is_redundant)
            && kind & (bits::METADATA | bits::SYSTEM) != 0;
        if reduces && !force {
            let what = format!("balance: reduces {name} redundancy, use --force if you want this");
            return Err(Error::refused_at(Errno::EINVAL, what));
        }
        Ok(())
    }

    /// Takes over the balance of an earlier mount as paused; a thread resumes it when the filesystem can be written,
    /// unless `skip_balance` says no.
    pub(super) fn take_over_balance(&self) -> Result<()> {
        let engine = &self.0.engine;
        let Some(item) = engine.globals().root.get(engine.core(), ITEM_KEY)? else { return Ok(()) };
        let control = BalanceItem::read_from_bytes(&item)
            .map_err(|_| Error::corrupt(format!("the balance item has {} bytes", item.len())))?;
        if let Err(error) = self.check_balance(&control) {
            engine.volume().report(None, format!("balance: not resumed: {error}"));
            return if engine.is_read_only() { Ok(()) } else { self.put_balance_item(None) };
        }
        self.set_targets(Some(&control));
        let exclusive = self.begin_exclusive(ExclusiveOperation::BalancePaused)?;
        self.enter_balance(control, exclusive, BalanceState::Paused);
        self.resume_left_balance();
        Ok(())
    }

    /// Goes on with what an earlier mount left, where that is wanted and possible.
    pub(super) fn resume_left_balance(&self) {
        let engine = &self.0.engine;
        if !engine.is_read_only() && !self.options().skip_balance && engine.env().background() {
            self.resume_in_background();
        }
    }

    fn resume_in_background(&self) {
        let Ok(mut run) = self.balance_begin_again() else { return };
        let weak = Arc::downgrade(&self.0);
        let work = move || {
            // Nothing is held from one step to the next: whoever drops the filesystem is not kept waiting.
            while let Some(inner) = weak.upgrade() {
                let filesystem = Filesystem(inner);
                match filesystem.balance_step(&mut run) {
                    Ok(None) => {}
                    Ok(Some(_)) => return,
                    Err(error) => return filesystem.0.engine.volume().report(None, format!("balance: {error}")),
                }
            }
        };
        let spawned = std::thread::Builder::new().name("balance".to_owned()).spawn(work);
        *self.0.balance.thread.lock() = spawned.ok();
    }
}
