//! The events of the members of a life, and their visible effects.

use super::trouble::{Failing, Part};
use super::{Devices, Given, survived, tolerance};
use crate::faults::Struck;
use crate::plan::Plan;
use butterfs_device::Recorder;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The events of the members of a life so far.
#[derive(Debug, Default)]
struct Happened {
    /// Devices that the profiles cannot count on now.
    doubtful: Devices,
    /// When each struck device was struck first, in events of the recording.
    struck: BTreeMap<usize, usize>,
    /// Ends of resyncs, in events.
    resynced: Vec<usize>,
    /// Faults so far.
    count: usize,
    /// Operations may fail with `EIO`.
    may_fail: bool,
    /// The filesystem may stop writing.
    may_stop: bool,
    /// Some device is gone.
    gone: bool,
    /// Devices of which data could not be read for a moment.
    unread: Devices,
    /// Data could not be read of so many that it may have been unreadable.
    reads_failed: bool,
}

/// A watch on the members of a life; clones share it.
#[derive(Clone, Debug)]
pub struct Watch {
    recorder: Recorder,
    happened: Arc<Mutex<Happened>>,
    /// Devices that were behind when the life began, or are away in it.
    first: Devices,
    away: Devices,
    tolerated: (usize, usize),
}

impl Watch {
    /// Of a life that begins with these devices behind.
    pub fn new(plan: &Plan, recorder: &Recorder, given: &Given, behind: &Devices) -> Watch {
        let first: Devices = given.away.union(behind).chain(&given.given_up).copied().collect();
        let happened = Happened { doubtful: first.clone(), ..Happened::default() };
        Watch {
            recorder: recorder.clone(),
            happened: Arc::new(Mutex::new(happened)),
            first,
            away: given.away.clone(),
            tolerated: (survived(plan.data), tolerance(plan)),
        }
    }

    fn happened(&self) -> MutexGuard<'_, Happened> {
        self.happened.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A fault has struck.
    pub(super) fn strike(&self, device: usize, failing: Failing, part: Part) {
        let (now, mut happened) = (self.recorder.len(), self.happened());
        if failing == Failing::Read {
            happened.count += 1;
            happened.unread.insert(device);
            let without = happened.doubtful.union(&happened.unread).count();
            happened.reads_failed |= without > self.tolerated.0;
            happened.may_fail |= happened.reads_failed;
            return;
        }
        happened.struck.entry(device).or_insert(now);
        happened.doubtful.insert(device);
        happened.count += 1;
        happened.gone |= failing == Failing::Gone;
        let (of_data, of_all) = self.tolerated;
        let doubtful = happened.doubtful.len();
        happened.may_fail |= doubtful > if part == Part::Data { of_data } else { of_all };
        happened.may_stop |= part != Part::Data && doubtful > of_all;
    }

    /// All devices that are there have been brought up to date, as far as none of them was struck.
    pub fn resynced(&self) {
        let (now, mut happened) = (self.recorder.len(), self.happened());
        happened.resynced.push(now);
        let Happened { doubtful, struck, .. } = &mut *happened;
        doubtful.retain(|device| self.away.contains(device) || struck.contains_key(device));
    }

    /// The faults so far: those that nobody may notice are called mirrors'.
    pub fn struck(&self) -> Struck {
        let happened = self.happened();
        let is_told = happened.may_fail || happened.may_stop;
        let (told, mirrors) = if is_told { (happened.count, 0) } else { (0, happened.count) };
        Struck { told, mirrors, ..Struck::default() }
    }

    /// Whether operations may fail with `EIO`.
    pub fn may_fail(&self) -> bool {
        self.happened().may_fail
    }

    /// Whether nothing may be readable any more.
    pub fn may_be_unreadable(&self) -> bool {
        let happened = self.happened();
        happened.gone && happened.may_fail
    }

    /// Whether some data could not be read, of which nobody else had another copy.
    pub fn reads_failed(&self) -> bool {
        self.happened().reads_failed
    }

    /// Whether the filesystem may have stopped writing.
    pub fn may_stop(&self) -> bool {
        self.happened().may_stop
    }

    /// The devices that were behind after so many events.
    pub fn behind(&self, prefix: usize) -> Devices {
        let happened = self.happened();
        let resynced = happened.resynced.iter().any(|ended| *ended <= prefix);
        let still = self.first.iter().filter(|device| !resynced || self.away.contains(*device));
        let struck = happened.struck.iter().filter(|(_, at)| **at <= prefix).map(|(device, _)| device);
        still.chain(struck).copied().collect()
    }

    /// The number of resyncs that have ended.
    pub fn resyncs(&self) -> usize {
        self.happened().resynced.len()
    }
}
