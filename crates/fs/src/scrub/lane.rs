//! The progress of the scrub of one device, and which window comes next.
//!
//! Several workers may work on windows of a lane at once. Their results are merged in the order of the device, so the
//! counters always cover everything before `last_physical`, and nothing behind it.

use super::plan::Window;
use super::window::WindowResult;
use super::{Counters, Damage, WINDOW};
use butterfs_ondisk::{DeviceId, Physical};
use butterfs_sync::{Mutex, order};
use butterfs_volume::{ChunkMap, DeviceExtent, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How the scrub of a device ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Everything was verified.
    Finished,
    /// Somebody cancelled it.
    Cancelled,
    /// It cannot go on, for this reason.
    Failed(String),
}

/// The progress of the scrub of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneProgress {
    /// The device.
    pub device: DeviceId,
    /// The name.
    pub name: String,
    /// The counters.
    pub counters: Counters,
    /// When it was started, in seconds since 1970.
    pub started: i64,
    /// When it was resumed; 0 if it was not.
    pub resumed: i64,
    /// For how many seconds it ran, all runs together.
    pub duration: u64,
    /// How it ended; `None` as long as it runs.
    pub end: Option<End>,
    /// Bytes per second; 0 for no limit.
    pub limit: u64,
}

/// See the [module](self).
pub(super) struct Lane {
    pub device: DeviceId,
    pub name: String,
    /// Bytes per second; 0 for no limit.
    pub limit: AtomicU64,
    state: Mutex<State, { order::SCRUB_LANE }>,
}

struct State {
    counters: Counters,
    /// The address from which the next window is searched.
    next: Physical,
    /// Windows that are being worked on, and finished ones that wait for them, by where they begin.
    begun: BTreeMap<u64, Option<WindowResult>>,
    extents: Option<(Arc<ChunkMap>, Arc<Vec<DeviceExtent>>)>,
    /// When as many bytes as the limit allows have been read.
    paid_until: Duration,
    started: i64,
    resumed: i64,
    earlier_secs: u64,
    begun_at: Duration,
    ended: Option<(End, Duration)>,
}

impl Lane {
    /// A lane that begins where `earlier` ends.
    pub fn new(name: String, earlier: &LaneProgress, (now, uptime): (i64, Duration)) -> Lane {
        let is_resumed = earlier.started != 0;
        let state = State {
            counters: earlier.counters,
            next: Physical(earlier.counters.last_physical),
            begun: BTreeMap::new(),
            extents: None,
            paid_until: uptime,
            started: if is_resumed { earlier.started } else { now },
            resumed: if is_resumed { now } else { 0 },
            earlier_secs: earlier.duration,
            begun_at: uptime,
            ended: None,
        };
        Lane { device: earlier.device, name, limit: AtomicU64::new(earlier.limit), state: Mutex::new(state) }
    }

    /// The next window for a worker. `None` when all have been taken.
    pub fn take(&self, volume: &Volume) -> Option<Window> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return None;
        }
        let map = volume.chunk_map();
        if state.extents.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, &map)) {
            state.extents = Some((map, Arc::new(volume.device_extents(self.device))));
        }
        let extents = Arc::clone(&state.extents.as_ref()?.1);
        let index = extents.partition_point(|extent| extent.physical.0 + extent.len <= state.next.0);
        let extent = *extents.get(index)?;
        let from = state.next.0.saturating_sub(extent.physical.0) / super::UNIT * super::UNIT;
        let window = Window { extent, depths: from..(from + WINDOW).min(extent.len) };
        state.next = Physical(extent.physical.0 + window.depths.end);
        state.begun.insert(window.start().0, None);
        Some(window)
    }

    /// A window is done. Returns the damage in all windows up to the first that is not, in the order of the device.
    pub fn done(&self, window: &Window, result: WindowResult) -> Vec<Damage> {
        let mut state = self.state.lock();
        state.begun.insert(window.start().0, Some(result));
        let mut damages = Vec::new();
        while let Some(first) = state.begun.first_entry().filter(|first| first.get().is_some()) {
            let result = first.remove().unwrap_or_default();
            state.counters.add(&result.counters);
            damages.extend(result.damages);
        }
        damages
    }

    /// Adds errors of superblock copies.
    pub fn count_superblocks(&self, errors: u64) {
        self.state.lock().counters.super_errors += errors;
    }

    /// Adds what was counted behind the last window.
    pub fn count(&self, counters: &Counters) {
        self.state.lock().counters.add(counters);
    }

    /// Ends the lane, unless it has ended.
    pub fn end(&self, end: End, uptime: Duration) {
        self.state.lock().ended.get_or_insert((end, uptime));
    }

    /// Whether no window is being worked on.
    pub fn is_idle(&self) -> bool {
        self.state.lock().begun.is_empty()
    }

    /// Sets the limit, in bytes per second. What was read before counts no more.
    pub fn set_limit(&self, limit: u64) {
        let mut state = self.state.lock();
        self.limit.store(limit, Ordering::Relaxed);
        state.paid_until = Duration::ZERO;
    }

    /// Bytes were read. Returns how long the next read has to wait.
    pub fn pay(&self, bytes: u64, uptime: Duration) -> Duration {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        if limit == 0 {
            state.paid_until = uptime;
            return Duration::ZERO;
        }
        let begin = state.paid_until.max(uptime);
        state.paid_until = begin + Duration::from_secs_f64(bytes as f64 / limit as f64);
        state.paid_until.saturating_sub(uptime)
    }

    /// The progress.
    pub fn progress(&self, uptime: Duration) -> LaneProgress {
        let state = self.state.lock();
        let until = state.ended.as_ref().map_or(uptime, |(_, at)| *at);
        LaneProgress {
            device: self.device,
            name: self.name.clone(),
            counters: state.counters,
            started: state.started,
            resumed: state.resumed,
            duration: state.earlier_secs + until.saturating_sub(state.begun_at).as_secs(),
            end: state.ended.as_ref().map(|(end, _)| end.clone()),
            limit: self.limit.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        let fresh = LaneProgress {
            device: DeviceId(1),
            name: String::new(),
            counters: Counters::default(),
            started: 0,
            resumed: 0,
            duration: 0,
            end: None,
            limit: 0,
        };
        Lane::new("disk".to_owned(), &fresh, (1000, Duration::ZERO))
    }

    fn window(start: u64) -> Window {
        let extent =
            DeviceExtent { physical: Physical(0), len: 64 * WINDOW, chunk: butterfs_ondisk::Logical(0), stripe: 0 };
        Window { extent, depths: start..start + WINDOW }
    }

    fn result(end: u64) -> WindowResult {
        let counters = Counters { data_bytes: WINDOW, last_physical: end, ..Counters::default() };
        WindowResult { counters, ..WindowResult::default() }
    }

    #[test]
    fn results_are_merged_in_the_order_of_the_device() {
        let lane = lane();
        for start in [0, WINDOW, 2 * WINDOW] {
            lane.state.lock().begun.insert(start, None);
        }
        lane.done(&window(WINDOW), result(2 * WINDOW));
        assert_eq!(lane.progress(Duration::ZERO).counters, Counters::default(), "the first one is still read");
        lane.done(&window(0), result(WINDOW));
        let counters = lane.progress(Duration::ZERO).counters;
        assert_eq!((counters.data_bytes, counters.last_physical), (2 * WINDOW, 2 * WINDOW));
        assert!(!lane.is_idle());
    }

    #[test]
    fn a_limit_spreads_reads() {
        let lane = lane();
        assert_eq!(lane.pay(1 << 30, Duration::from_secs(5)), Duration::ZERO);
        lane.set_limit(1 << 20);
        assert_eq!(lane.pay(1 << 20, Duration::from_secs(5)), Duration::from_secs(1));
        assert_eq!(lane.pay(1 << 20, Duration::from_secs(5)), Duration::from_secs(2));
        assert_eq!(lane.pay(1 << 20, Duration::from_secs(9)), Duration::from_secs(1), "idle time is not saved up");
        lane.pay(1 << 30, Duration::from_secs(9));
        lane.set_limit(2 << 20);
        assert_eq!(lane.pay(2 << 20, Duration::from_secs(9)), Duration::from_secs(1), "the debt is forgiven");
    }
}
