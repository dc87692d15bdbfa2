//! One run of scrub over some devices: what workers take from, and what they bring.

use super::damage::{Cause, Content, Damage, Finding, Outcome};
use super::lane::{End, Lane, LaneProgress};
use super::names::Namer;
use super::plan::Window;
use super::window::{Order, WindowResult};
use super::{Counters, Selection, superblocks};
use crate::transaction::Core;
use butterfs_device::AlignedBuffer;
use butterfs_device::priority::IoClass;
use butterfs_ondisk::DeviceId;
use butterfs_sync::{Condvar, Mutex, order};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Descriptions of damage that are kept; what is beyond is only counted.
pub const MOST_DAMAGES: usize = 64 << 10;
/// The interval at which a waiting worker checks whether it is still wanted.
const NAP: Duration = Duration::from_millis(50);

/// The I/O priority of the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The class.
    pub class: IoClass,
    /// From 0, the first, to 7.
    pub level: u8,
}

impl Default for Priority {
    /// Only when nobody else uses the disk.
    fn default() -> Priority {
        Priority { class: IoClass::Idle, level: 0 }
    }
}

/// The settings of a scrub.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Damage is only reported.
    pub read_only: bool,
    /// The devices; all where none is named.
    pub devices: Vec<DeviceId>,
    /// The priority of its threads.
    pub priority: Priority,
    /// The selection to verify; everything if there is none.
    pub only: Option<Selection>,
}

/// The position at which an earlier run of a device ended.
pub type Resumed = LaneProgress;

/// The progress of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Each device, ascending by number.
    pub devices: Vec<LaneProgress>,
    /// Damage is only reported.
    pub read_only: bool,
    /// Damage that has been named so far.
    pub findings: u64,
    /// Damage that is only counted, because there is too much.
    pub omitted: u64,
    /// Nothing more comes.
    pub is_over: bool,
}

/// See the [module](self).
pub struct Scrub {
    settings: Settings,
    lanes: Vec<Lane>,
    /// Lanes that ended in an earlier run.
    ended: Vec<LaneProgress>,
    cancelled: AtomicBool,
    /// Bytes that this run has read.
    bytes_read: AtomicU64,
    has_bad_superblocks: AtomicBool,
    /// Rows to be checked when all data has been repaired, by lane.
    deferred: Mutex<Vec<(usize, Window)>, { order::SCRUB_FOUND }>,
    found: Mutex<Found, { order::SCRUB_FOUND }>,
    news: Condvar,
}

#[derive(Default)]
struct Found {
    /// Workers that have not ended.
    workers: usize,
    waiting: VecDeque<Damage>,
    named: Vec<Arc<Finding>>,
    taken: usize,
    omitted: u64,
    is_over: bool,
}

impl Scrub {
    /// A run over the devices that `settings` name, from where `earlier` left them. Devices that had finished then are
    /// not scrubbed again.
    pub fn new(core: &Core, settings: Settings, earlier: Vec<Resumed>) -> Scrub {
        let (now, uptime) = (core.env().now().sec, core.env().uptime());
        let (mut lanes, mut ended) = (Vec::new(), Vec::new());
        let volume = core.volume();
        for (device, name) in volume.devices() {
            let is_wanted = settings.devices.is_empty() || settings.devices.contains(&device);
            let before = earlier.iter().find(|before| before.device == device);
            match before.filter(|before| before.end == Some(End::Finished)) {
                Some(before) => ended.push(LaneProgress { name, ..before.clone() }),
                None if is_wanted => {
                    let fresh = fresh(device);
                    lanes.push(Lane::new(name, before.unwrap_or(&fresh), (now, uptime)));
                }
                None => {}
            }
        }
        let (cancelled, bytes_read, has_bad_superblocks, deferred, found, news) = Default::default();
        Scrub { settings, lanes, ended, cancelled, bytes_read, has_bad_superblocks, deferred, found, news }
    }

    /// Devices that are scrubbed.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// How it was started.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Stops it at the next window.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.news.notify_all();
    }

    /// Whether somebody has stopped it.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Sets the limit of a device, in bytes per second; 0 for none.
    pub fn set_limit(&self, device: DeviceId, limit: u64) {
        self.lanes.iter().filter(|lane| lane.device == device).for_each(|lane| lane.set_limit(limit));
    }

    /// Verifies the superblocks of a lane's device, unless it was resumed.
    pub(crate) fn check_superblocks(&self, core: &Core, lane: usize) {
        let lane = &self.lanes[lane];
        if lane.progress(Duration::ZERO).resumed != 0 || self.settings.only.is_some() {
            return;
        }
        let repaired = superblocks::repaired_copies(core, lane.device);
        let mut bad = superblocks::bad_copies(core, lane.device);
        lane.count_superblocks((repaired.len() + bad.len()) as u64);
        self.bring(repaired);
        if self.repairs(core) {
            self.has_bad_superblocks.fetch_or(!bad.is_empty(), Ordering::Relaxed);
        } else {
            bad.iter_mut().for_each(|bad| bad.outcome = Outcome::Lost("nothing is written".to_owned()));
        }
        self.bring(bad);
    }

    /// Whether it writes.
    pub(crate) fn repairs(&self, core: &Core) -> bool {
        !self.settings.read_only && !core.is_read_only()
    }

    /// Scrubs the next window of a lane. `None` when nothing is left for this worker; else how long it is to wait
    /// before the next one.
    pub(crate) fn step(&self, core: &Arc<Core>, lane: usize, buffer: &mut AlignedBuffer) -> Option<Duration> {
        let (number, lane) = (lane, &self.lanes[lane]);
        let uptime = || core.env().uptime();
        if let Some(end) = self.must_end(core, lane) {
            lane.end(end, uptime());
            return None;
        }
        let Some(window) = lane.take(core.volume()) else {
            if lane.is_idle() {
                lane.end(End::Finished, uptime());
            }
            return None;
        };
        let only = self.settings.only.as_ref();
        let order = Order { core, device: lane.device, only, repairs: self.repairs(core), is_last: false };
        let mut result =
            order.carry_out(&window, buffer).unwrap_or_else(|error| self.unplanned(core, lane, &window, &error));
        let bytes = result.bytes_read;
        let deferred = std::mem::take(&mut result.deferred);
        self.deferred.lock().extend(deferred.into_iter().map(|row| (number, row)));
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        self.bring(lane.done(&window, result));
        Some(lane.pay(bytes, uptime()))
    }

    /// Checks the rows with parity whose data had to be repaired before. All lanes have ended.
    pub(crate) fn check_deferred(&self, core: &Arc<Core>) {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        for (lane, row) in deferred {
            let lane = &self.lanes[lane];
            let order = Order { core, device: lane.device, only: None, repairs: self.repairs(core), is_last: true };
            // It counts itself where it cannot be planned any more.
            let result = order.carry_out(&row, &mut AlignedBuffer::new(row.len())).unwrap_or_default();
            lane.count(&result.counters);
            self.bring(result.damages);
        }
    }

    fn must_end(&self, core: &Core, lane: &Lane) -> Option<End> {
        if self.is_cancelled() {
            return Some(End::Cancelled);
        }
        if let Some(aborted) = core.aborted() {
            return Some(End::Failed(aborted.to_string()));
        }
        let is_there = core.volume().is_scrubbable(lane.device);
        (!is_there).then(|| End::Failed("the device is missing or has failed".to_owned()))
    }

    /// The trees that say what is in a window cannot be read.
    fn unplanned(&self, core: &Core, lane: &Lane, window: &Window, error: &crate::error::Error) -> WindowResult {
        let len = window.len() as u64;
        let damage = Damage {
            device: lane.device,
            device_name: lane.name.clone(),
            physical: window.start(),
            at: Some(window.extent.chunk),
            len,
            content: Content::Data,
            cause: Cause::Header(format!("nothing says what is here: {error}")),
            outcome: Outcome::Lost("the trees that lead here are damaged".to_owned()),
        };
        let uncorrectable = len / u64::from(core.sectorsize());
        let counters = Counters { uncorrectable, last_physical: window.start().0 + len, ..Counters::default() };
        WindowResult { counters, damages: vec![damage], ..WindowResult::default() }
    }

    /// Waits as long as the limit of a lane asks for, unless the run ends before, or the limit becomes another one.
    pub(crate) fn rest(&self, lane: usize, mut time: Duration) {
        let limit = || self.lanes[lane].limit.load(Ordering::Relaxed);
        let own = limit();
        while time > Duration::ZERO && !self.is_cancelled() && limit() == own {
            let nap = time.min(NAP);
            std::thread::sleep(nap);
            time -= nap;
        }
    }

    fn bring(&self, damages: Vec<Damage>) {
        if damages.is_empty() {
            return;
        }
        let mut found = self.found.lock();
        for damage in damages {
            if found.taken < MOST_DAMAGES {
                found.taken += 1;
                found.waiting.push_back(damage);
            } else {
                found.omitted += 1;
            }
        }
        drop(found);
        self.news.notify_all();
    }

    /// Names damage that waits for it. Says whether there was any.
    pub(crate) fn name_next(&self, core: &Core, namer: &mut Namer) -> Option<Arc<Finding>> {
        loop {
            let damage = self.found.lock().waiting.pop_front()?;
            let finding = namer.name(core, damage);
            // Copies of what nobody reads may differ.
            if finding.damage.cause == Cause::CopiesDiffer && finding.files.is_empty() {
                continue;
            }
            let finding = Arc::new(finding);
            self.found.lock().named.push(Arc::clone(&finding));
            self.news.notify_all();
            return Some(finding);
        }
    }

    /// A worker begins.
    pub(crate) fn worker_begins(&self) {
        self.found.lock().workers += 1;
    }

    /// A worker ends.
    pub(crate) fn worker_ends(&self) {
        self.found.lock().workers -= 1;
        self.news.notify_all();
    }

    /// Whether workers are at work.
    pub(crate) fn has_workers(&self) -> bool {
        self.found.lock().workers > 0
    }

    /// Whether commits have superblock copies to put right.
    pub(crate) fn has_bad_superblocks(&self) -> bool {
        self.has_bad_superblocks.load(Ordering::Relaxed)
    }

    /// Nothing more comes.
    pub(crate) fn finish(&self) {
        self.found.lock().is_over = true;
        self.news.notify_all();
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.found.lock().is_over
    }

    /// Waits until there is something to name or no worker is left, at most so long.
    pub(crate) fn wait_for_workers(&self, most: Duration) {
        let mut found = self.found.lock();
        if found.waiting.is_empty() && found.workers > 0 {
            self.news.wait_for(&mut found, most);
        }
    }

    /// Waits until something happens, at most so long.
    pub fn wait_for_news(&self, most: Duration) {
        let mut found = self.found.lock();
        if !found.is_over {
            self.news.wait_for(&mut found, most);
        }
    }

    /// The findings from the one with this index on, in the order in which they were made.
    pub fn findings(&self, from: usize) -> Vec<Arc<Finding>> {
        self.found.lock().named.get(from..).unwrap_or_default().to_vec()
    }

    /// The progress.
    pub fn progress(&self, uptime: Duration) -> Progress {
        let mut devices: Vec<LaneProgress> = self.lanes.iter().map(|lane| lane.progress(uptime)).collect();
        devices.extend(self.ended.iter().cloned());
        devices.sort_by_key(|device| device.device);
        let found = self.found.lock();
        let (findings, omitted) = (found.named.len() as u64, found.omitted);
        Progress { devices, read_only: self.settings.read_only, findings, omitted, is_over: found.is_over }
    }
}

fn fresh(device: DeviceId) -> LaneProgress {
    let counters = Counters::default();
    LaneProgress { device, name: String::new(), counters, started: 0, resumed: 0, duration: 0, end: None, limit: 0 }
}
