//! Scrub on an open filesystem: its threads, and who may run one when.
//!
//! One run at a time, and none while a device is replaced. Each device has its own threads, enough for all processors;
//! one more thread names what they find. They hold the filesystem only while they work on a window, so that dropping it
//! or unmounting ends them.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::extent;
use crate::inode::InodeId;
use crate::scrub::{Finding, Namer, Outcome, Progress, Resumed, Scrub, Selection, Settings};
use butterfs_device::{AlignedBuffer, priority};
use butterfs_ondisk::{DeviceId, Ino, Logical};
use butterfs_sync::{Mutex, order};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the naming thread waits for something to name.
const LOOK: Duration = Duration::from_millis(200);
/// Files that a message names.
const NAMED_IN_MESSAGE: usize = 3;
/// Workers for each processor: while some wait for a device, others verify.
const WORKERS_FOR_PROCESSOR: usize = 2;
/// Workers on one device at most.
const MOST_WORKERS: usize = 8;

/// The last run, and the limits of the devices, in bytes per second.
#[derive(Default)]
pub(super) struct Scrubs {
    last: Mutex<Option<Arc<Scrub>>, { order::SCRUBS }>,
    threads: Mutex<Vec<JoinHandle<()>>, { order::SCRUB_THREADS }>,
    limits: Mutex<FxHashMap<DeviceId, u64>, { order::SCRUB_LIMITS }>,
}

impl Filesystem {
    /// Starts a scrub in the background, which goes on where `earlier` ended. `EINPROGRESS` while another one runs,
    /// `ENODEV` where a device is not there.
    pub fn start_scrub(&self, settings: Settings, earlier: Vec<Resumed>) -> Result<Arc<Scrub>> {
        let _operation = self.begin();
        let scrub = self.enter_scrub(settings, earlier)?;
        let workers = (WORKERS_FOR_PROCESSOR * self.0.engine.env().threads()).div_ceil(scrub.lanes().max(1));
        let workers = workers.clamp(2, MOST_WORKERS);
        let mut threads = self.0.scrubs.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        // One counts from the start, so that the end is not taken for reached before all have begun.
        scrub.worker_begins();
        for lane in 0..scrub.lanes() {
            for first in (0..workers).map(|worker| worker == 0) {
                scrub.worker_begins();
                let (weak, of_worker) = (Arc::downgrade(&self.0), Arc::clone(&scrub));
                let work = move || work(&weak, &of_worker, lane, first);
                match std::thread::Builder::new().name("scrub".to_owned()).spawn(work) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => scrub.worker_ends(),
                }
            }
        }
        scrub.worker_ends();
        let (weak, of_namer) = (Arc::downgrade(&self.0), Arc::clone(&scrub));
        let naming = std::thread::Builder::new().name("scrub-names".to_owned());
        match naming.spawn(move || name(&weak, &of_namer)) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                scrub.cancel();
                scrub.finish();
                return Err(Error::refused_at(Errno::EAGAIN, format!("no thread can be started: {error}")));
            }
        }
        Ok(scrub)
    }

    /// Scrubs on the calling thread, and returns when everything is done.
    pub fn scrub(&self, settings: Settings, earlier: Vec<Resumed>) -> Result<Arc<Scrub>> {
        let _alarm = self.0.engine.alarm();
        let scrub = self.enter_scrub(settings, earlier)?;
        let mut buffer = AlignedBuffer::new(crate::scrub::WINDOW as usize);
        for lane in 0..scrub.lanes() {
            scrub.check_superblocks(&self.0.engine, lane);
            while let Some(rest) = self.scrub_step(&scrub, lane, &mut buffer) {
                scrub.rest(lane, rest);
            }
        }
        self.check_deferred(&scrub);
        let mut namer = Namer::default();
        while self.name_next(&scrub, &mut namer) {}
        self.finish_scrub(&scrub);
        Ok(scrub)
    }

    fn enter_scrub(&self, settings: Settings, earlier: Vec<Resumed>) -> Result<Arc<Scrub>> {
        let core = &self.0.engine;
        let volume = core.volume();
        if let Some(missing) = settings.devices.iter().find(|id| !volume.is_scrubbable(**id)) {
            return Err(Error::refused_at(Errno::ENODEV, format!("there is no device {missing}")));
        }
        if !settings.read_only && self.is_read_only() {
            let sentence = "the filesystem is read-only: only a read-only scrub (-r) is possible";
            return Err(Error::refused(Errno::EROFS, sentence));
        }
        self.while_none_is_replaced(|| self.begin_scrub(settings, earlier))
    }

    fn begin_scrub(&self, settings: Settings, earlier: Vec<Resumed>) -> Result<Arc<Scrub>> {
        let mut last = self.0.scrubs.last.lock();
        if last.as_ref().is_some_and(|last| !last.is_over()) {
            return Err(Error::refused(Errno::EINPROGRESS, "a scrub is already running"));
        }
        let scrub = Arc::new(Scrub::new(&self.0.engine, settings, earlier));
        for (id, limit) in self.0.scrubs.limits.lock().iter() {
            scrub.set_limit(*id, *limit);
        }
        *last = Some(Arc::clone(&scrub));
        Ok(scrub)
    }

    /// The run that is under way, or the last one since the filesystem was opened.
    pub fn last_scrub(&self) -> Option<Arc<Scrub>> {
        let _operation = self.begin();
        self.0.scrubs.last.lock().clone()
    }

    pub(super) fn has_running_scrub(&self) -> bool {
        self.0.scrubs.last.lock().as_ref().is_some_and(|last| !last.is_over())
    }

    /// The progress of that.
    pub fn scrub_progress(&self) -> Option<Progress> {
        let _operation = self.begin();
        Some(self.last_scrub()?.progress(self.0.engine.env().uptime()))
    }

    /// Stops the scrub that is under way and waits for its end. `ENOTCONN` where none is.
    pub fn cancel_scrub(&self) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        let running = self.last_scrub().filter(|scrub| !scrub.is_over());
        let Some(scrub) = running else { return Err(Error::refused(Errno::ENOTCONN, "not running")) };
        scrub.cancel();
        while !scrub.is_over() {
            scrub.wait_for_news(LOOK);
        }
        Ok(())
    }

    /// Limits the scrubs of a device, that which is under way among them, to so many bytes per second; 0 for no limit.
    pub fn limit_scrub(&self, device: DeviceId, bytes_per_sec: u64) -> Result<()> {
        let _operation = self.begin();
        if !self.0.engine.volume().devices().iter().any(|(id, _)| *id == device) {
            return Err(Error::refused_at(Errno::ENODEV, format!("there is no device {device}")));
        }
        self.0.scrubs.limits.lock().insert(device, bytes_per_sec);
        if let Some(scrub) = self.last_scrub() {
            scrub.set_limit(device, bytes_per_sec);
        }
        Ok(())
    }

    /// The limit of each device, ascending by number; 0 for none.
    pub fn scrub_limits(&self) -> Vec<(DeviceId, String, u64)> {
        let _operation = self.begin();
        let limits = self.0.scrubs.limits.lock();
        let devices = self.0.engine.volume().devices().into_iter();
        devices.map(|(id, name)| (id, name, limits.get(&id).copied().unwrap_or(0))).collect()
    }

    /// The selection for a scrub of these files; the top directory of a subvolume stands for all of it. What is not in
    /// the trees yet is committed first.
    pub fn scrub_selection(&self, ids: &[InodeId]) -> Result<Selection> {
        let _alarm = self.0.engine.alarm();
        if !self.is_read_only() {
            self.sync()?;
        }
        let _operation = self.begin();
        let mut ranges = Vec::new();
        for id in ids {
            let selection = match id.ino {
                Ino::ROOT_DIR => Selection::of_subvolume(&self.0.engine, id.tree)?,
                ino => Selection::of_file(&self.0.engine, id.tree, ino)?,
            };
            ranges.extend(selection.into_ranges());
        }
        Ok(Selection::of(ranges))
    }

    /// Bytes that a scrub of each device has to verify, ascending by number.
    pub fn scrub_totals(&self) -> Vec<(DeviceId, u64)> {
        let _operation = self.begin();
        let volume = self.0.engine.volume();
        let used: FxHashMap<Logical, u64> =
            self.0.engine.space.groups().into_iter().map(|group| (group.start, group.used)).collect();
        let map = volume.chunk_map();
        let total = |id: DeviceId| -> u64 {
            let stripes = map.iter().flat_map(|chunk| {
                let own = chunk.stripes.iter().filter(|stripe| stripe.device == id).count() as u64;
                let columns = chunk.profile().data_stripes(chunk.stripes.len()).max(1) as u64;
                let used = used.get(&chunk.start).copied().unwrap_or(0);
                (own > 0).then(|| used / columns * own)
            });
            stripes.sum()
        };
        volume.devices().into_iter().map(|(id, _)| (id, total(id))).collect()
    }

    fn scrub_step(&self, scrub: &Scrub, lane: usize, buffer: &mut AlignedBuffer) -> Option<Duration> {
        let _operation = self.begin();
        scrub.step(&self.0.engine, lane, buffer)
    }

    fn check_deferred(&self, scrub: &Scrub) {
        let _operation = self.begin();
        scrub.check_deferred(&self.0.engine);
    }

    /// Names what waits for it and passes it on; false when nothing waits.
    fn name_next(&self, scrub: &Scrub, namer: &mut Namer) -> bool {
        let _operation = self.begin();
        let finding = scrub.name_next(&self.0.engine, namer);
        finding.inspect(|finding| self.tell_finding(finding)).is_some()
    }

    /// The system log learns at once of what is repaired and what is lost.
    fn tell_finding(&self, finding: &Finding) {
        let Finding { damage, files, trees, .. } = finding;
        if matches!(damage.outcome, Outcome::Noticed) {
            return;
        }
        let mut text = format!("scrub: {damage}");
        let mut named: Vec<String> = files.iter().take(NAMED_IN_MESSAGE).map(ToString::to_string).collect();
        named.extend(trees.iter().take(NAMED_IN_MESSAGE).map(|tree| format!("tree {tree}")));
        let more = (files.len() + trees.len()).saturating_sub(named.len());
        if !named.is_empty() {
            text.push_str(&format!("; used by {}", named.join(", ")));
        }
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        self.0.engine.volume().tell(text);
    }

    /// Makes repairs and the counted errors durable, and rewrites bad superblock copies.
    fn finish_scrub(&self, scrub: &Scrub) {
        let core = &self.0.engine;
        let (repairs, has_counted) = (scrub.repairs(core), extent::has_counted_errors(core) && !self.is_read_only());
        if (repairs || has_counted) && core.aborted().is_none() {
            let _operation = self.begin();
            let made_durable = match repairs && scrub.has_bad_superblocks() {
                true => core.commit_anyway().and_then(|()| core.commit_anyway()),
                false if has_counted => core.commit_anyway(),
                false => core.volume().flush().map_err(Error::from),
            };
            if let Err(error) = made_durable {
                core.volume().tell(format!("scrub: repairs may not be durable: {error}"));
            }
        }
        scrub.finish();
    }

    /// Ends the scrub that is under way, and waits for its threads. No operation may be under way here.
    pub(super) fn stop_scrub(&self) {
        let last = self.0.scrubs.last.lock().clone();
        last.inspect(|scrub| scrub.cancel());
        let threads = std::mem::take(&mut *self.0.scrubs.threads.lock());
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// One worker of a lane. The first one verifies the superblocks.
fn work(weak: &Weak<super::Inner>, scrub: &Scrub, lane: usize, is_first: bool) {
    let _ending = Ending(scrub);
    let settings = scrub.settings();
    // Without the privilege for it, it works as the others do.
    let _ = priority::set_io_priority(settings.priority.class, settings.priority.level);
    let _ = priority::yield_processor_to_others();
    // Two in turn: reading into what was just read into is slower by a third on fast disks.
    let mut buffers = [(); 2].map(|()| AlignedBuffer::new(crate::scrub::WINDOW as usize));
    if let Some(filesystem) = weak.upgrade().map(Filesystem).filter(|_| is_first) {
        let _operation = filesystem.begin();
        scrub.check_superblocks(&filesystem.0.engine, lane);
    }
    while let Some(filesystem) = weak.upgrade().map(Filesystem) {
        let rest = filesystem.scrub_step(scrub, lane, &mut buffers[0]);
        drop(filesystem);
        buffers.swap(0, 1);
        let Some(rest) = rest else { break };
        scrub.rest(lane, rest);
    }
}

/// A worker has ended, also by a panic.
struct Ending<'a>(&'a Scrub);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.worker_ends();
    }
}

/// Names what the workers find, and ends the run when they have ended.
fn name(weak: &Weak<super::Inner>, scrub: &Scrub) {
    let _over = Over(scrub);
    let mut namer = Namer::default();
    while let Some(filesystem) = weak.upgrade().map(Filesystem) {
        // Looked at first: what the last worker has brought is named after that.
        let has_workers = scrub.has_workers();
        if filesystem.name_next(scrub, &mut namer) {
            continue;
        }
        if !has_workers {
            filesystem.check_deferred(scrub);
            while filesystem.name_next(scrub, &mut namer) {}
            filesystem.finish_scrub(scrub);
            return;
        }
        drop(filesystem);
        scrub.wait_for_workers(LOOK);
    }
}

/// Nothing more comes, also after a panic.
struct Over<'a>(&'a Scrub);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
