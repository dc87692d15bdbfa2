//! Discarding: on request (`fstrim`), and what was freed, in the background.
//!
//! Every piece is an operation of its own: whoever wants the filesystem for itself waits for one piece at most.

use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::options::DiscardMode;
use crate::space::TrimRange;
use crate::transaction::{Again, Discarded, MOST_AT_ONCE, Place};
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Discards in the background: at most so many in one go, then a rest. Together a thousand in a second, as in the
/// kernel.
const BURST: u32 = 10;
const REST: Duration = Duration::from_millis(10);

/// The time limit for discards that still wait when the filesystem is closed.
const LAST: Duration = Duration::from_secs(1);

/// The request of `FITRIM`. Start and length are logical addresses. As in the kernel, a block group that begins before
/// the first address is left alone, and unallocated space of the devices is always meant too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The first address.
    pub start: u64,
    /// How many addresses; the largest number means all that follow.
    pub len: u64,
    /// Shorter free runs are left alone.
    pub least: u64,
}

impl Trim {
    /// Everything.
    pub const ALL: Trim = Trim { start: 0, len: u64::MAX, least: 0 };

    fn range(&self) -> Result<Range<u64>> {
        let end = match self.len {
            u64::MAX => Some(u64::MAX),
            len => self.start.checked_add(len),
        };
        let end = end.ok_or_else(|| Error::refused(Errno::EINVAL, "the range to trim ends behind the last address"))?;
        Ok(self.start..end)
    }
}

/// The progress of a trim of one kind of space.
struct Walk {
    wanted: TrimRange,
    from: u64,
    /// The end of a run of which a part is done: the rest of it is discarded however short it is.
    rest: Option<u64>,
}

impl Walk {
    fn new(range: Range<u64>, least: u64) -> Walk {
        Walk { from: range.start, wanted: TrimRange { range, least, most: MOST_AT_ONCE }, rest: None }
    }

    fn next(&self) -> TrimRange {
        match self.rest {
            Some(end) => TrimRange { range: self.from..end, least: 0, ..self.wanted.clone() },
            None => TrimRange { range: self.from..self.wanted.range.end, ..self.wanted.clone() },
        }
    }

    /// Goes on behind what was discarded. False when there is nothing more.
    fn advance(&mut self, done: Option<Discarded>) -> bool {
        match done {
            Some(done) => {
                self.from = done.next;
                self.rest = (done.next < done.run_end).then_some(done.run_end);
            }
            None => match self.rest.take() {
                Some(end) => self.from = end,
                None => return false,
            },
        }
        true
    }
}

impl Filesystem {
    /// Discards free space, until `stop` says so. Returns the bytes that the devices took, of all copies together.
    /// `EOPNOTSUPP` when no device supports discard, `EINVAL` for a range of less than a sector.
    pub fn trim(&self, request: &Trim, stop: &dyn Fn() -> bool) -> Result<u64> {
        let _alarm = self.0.engine.alarm();
        let core = &self.0.engine;
        core.must_not_be_read_only()?;
        self.must_support_discard()?;
        let range = request.range()?;
        if request.len < u64::from(core.sectorsize()) {
            return Err(Error::refused(Errno::EINVAL, "less than a sector is to be trimmed"));
        }
        let groups = core.space.groups().into_iter().map(|group| group.start.0);
        let first = groups.filter(|start| *start >= range.start).min().unwrap_or(u64::MAX);
        let range = first.min(range.end)..range.end;
        let mut bytes = 0;
        let trimmed = self.trim_groups(Walk::new(range, request.least), stop, &mut bytes);
        for (id, _) in core.volume().devices() {
            self.trim_device(id, Walk::new(0..u64::MAX, request.least), stop, &mut bytes)?;
        }
        self.must_support_discard()?;
        trimmed.map(|()| bytes)
    }

    fn must_support_discard(&self) -> Result<()> {
        match self.0.engine.volume().supports_discard() {
            true => Ok(()),
            false => Err(Error::refused(Errno::EOPNOTSUPP, "no device supports discard")),
        }
    }

    fn must_go_on(&self, stop: &dyn Fn() -> bool) -> Result<()> {
        self.0.engine.must_not_be_read_only()?;
        if let Some(aborted) = self.0.engine.aborted() {
            return Err(aborted);
        }
        if stop() || self.is_stopping() {
            return Err(Error::refused(Errno::EINTR, "trimming was interrupted"));
        }
        Ok(())
    }

    /// A group whose free space cannot be read is passed over; its error is returned in the end.
    fn trim_groups(&self, mut walk: Walk, stop: &dyn Fn() -> bool, bytes: &mut u64) -> Result<()> {
        let mut outcome = Ok(());
        loop {
            self.must_go_on(stop)?;
            let _operation = self.begin();
            match self.0.engine.discard_free(&walk.next()) {
                Ok(done) => {
                    *bytes += done.map_or(0, |done| done.bytes);
                    if !walk.advance(done) {
                        return outcome;
                    }
                }
                Err(error) => {
                    let Some(end) = self.end_of_unreadable_group(walk.from) else { return Err(error) };
                    (walk.from, walk.rest) = (end, None);
                    outcome = outcome.and(Err(error));
                }
            }
        }
    }

    fn end_of_unreadable_group(&self, from: u64) -> Option<u64> {
        let space = &self.0.engine.space;
        let mut groups = space.groups().into_iter();
        let group = groups.find(|group| group.start.0 + group.length > from && !space.is_loaded(group.start))?;
        Some(group.start.0 + group.length)
    }

    fn trim_device(
        &self,
        id: butterfs_ondisk::DeviceId,
        mut walk: Walk,
        stop: &dyn Fn() -> bool,
        bytes: &mut u64,
    ) -> Result<()> {
        loop {
            self.must_go_on(stop)?;
            let _operation = self.begin();
            let done = self.0.engine.discard_unallocated(id, &walk.next(), Again::No);
            *bytes += done.map_or(0, |done| done.bytes);
            if !walk.advance(done) {
                return Ok(());
            }
        }
    }

    /// How freed space is discarded.
    pub fn discard_mode(&self) -> DiscardMode {
        let _alarm = self.0.engine.alarm();
        self.0.engine.discards.mode()
    }

    /// Discards freed space another way from now on (remount).
    pub fn set_discard_mode(&self, mode: DiscardMode) {
        let _alarm = self.0.engine.alarm();
        self.0.engine.discards.set_mode(mode);
    }

    /// Discards now what waits for the background, as far as it is still free. Returns the bytes that the devices took.
    #[doc(hidden)]
    pub fn discard_freed(&self) -> u64 {
        let _alarm = self.0.engine.alarm();
        let mut bytes = 0;
        for (place, range) in self.0.engine.discards.take_freed() {
            self.discard_range(place, range, &mut |done| {
                bytes += done;
                true
            });
        }
        bytes
    }

    /// Bytes that wait for the background.
    #[doc(hidden)]
    pub fn freed_waiting(&self) -> u64 {
        let _alarm = self.0.engine.alarm();
        self.0.engine.discards.waiting_bytes()
    }

    /// The same when the filesystem is closed, for a short while.
    pub(super) fn discard_last(&self) {
        let env = self.0.engine.env();
        let end = env.uptime() + LAST;
        for (place, range) in self.0.engine.discards.take_freed() {
            if env.uptime() >= end {
                return;
            }
            self.discard_range(place, range, &mut |_| env.uptime() < end);
        }
    }

    /// Discards what is free in a range, as long as `more` says; it is given the bytes that the devices took.
    fn discard_range(&self, place: Place, range: Range<u64>, more: &mut dyn FnMut(u64) -> bool) {
        let core = &self.0.engine;
        let mut walk = Walk::new(range, 0);
        loop {
            let is_wanted = core.discards.mode() == DiscardMode::Async && core.volume().supports_discard();
            if !is_wanted || core.is_read_only() || core.aborted().is_some() {
                return;
            }
            let operation = self.begin();
            let done = match place {
                // What cannot be read is for whoever needs it to report.
                Place::Groups => core.discard_free(&walk.next()).unwrap_or(None),
                Place::Device(id) => core.discard_unallocated(id, &walk.next(), Again::Yes),
            };
            drop(operation);
            let bytes = done.map_or(0, |done| done.bytes);
            if !walk.advance(done) || !more(bytes) {
                return;
            }
        }
    }

    /// Discards in the background what was freed.
    pub(super) fn start_discarder(&self) {
        if self.is_read_only() || !self.0.engine.env().background() {
            return;
        }
        let (weak, engine) = (std::sync::Arc::downgrade(&self.0), std::sync::Arc::clone(&self.0.engine));
        let work = move || {
            let _alarm = engine.alarm();
            loop {
                let is_due = engine.discards.wait_for_freed(engine.env());
                match stopping(&weak) {
                    true => return,
                    false if is_due => discard_in_background(&weak),
                    false => {}
                }
            }
        };
        let spawned = std::thread::Builder::new().name("discard".to_owned()).spawn(work);
        *self.0.discarder.lock() = spawned.ok();
    }
}

fn stopping(weak: &Weak<Inner>) -> bool {
    weak.upgrade().is_none_or(|inner| inner.stopping.load(Ordering::Relaxed))
}

/// Nothing is held during a rest: whoever drops the filesystem is not kept waiting.
fn discard_in_background(weak: &Weak<Inner>) {
    let Some(inner) = weak.upgrade() else { return };
    let (engine, freed) = (std::sync::Arc::clone(&inner.engine), inner.engine.discards.take_freed());
    drop(inner);
    let mut count = 0;
    for (place, range) in freed {
        let mut from = range.start;
        while from < range.end {
            let Some(inner) = weak.upgrade().filter(|inner| !inner.stopping.load(Ordering::Relaxed)) else { return };
            let until = range.end.min(from.saturating_add(MOST_AT_ONCE));
            Filesystem(inner).discard_range(place, from..until, &mut |_| {
                count += 1;
                true
            });
            from = until;
            if count >= BURST {
                count = 0;
                engine.discards.rest(REST);
            }
        }
    }
}
