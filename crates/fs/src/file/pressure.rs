//! Bounds on buffered data: per file and in total, and the thread that writes back before writers have to.

use super::Files;
use super::unpacked::UnpackedExtents;
use crate::error::{Error, Result};
use crate::inode::Inode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// A file with more buffered bytes is handed to the thread.
const HAND_OVER_BYTES: u64 = 16 << 20;
/// The bytes that a writer writes back above the limit, for each byte that it adds.
const SHARE: u64 = 2;
/// Inodes that a writer looks at together.
const BATCH: usize = 64;

/// The thread that writes back large files and the oldest data. Ends when stopped, or when its files are dropped.
pub struct WriteBackThread {
    files: Arc<Files>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBackThread {
    /// Starts the thread, if there may be one.
    pub fn start(files: &Arc<Files>) -> WriteBackThread {
        let working = Arc::clone(files);
        let spawn = || std::thread::Builder::new().name("write-back".to_owned()).spawn(move || working.serve());
        let thread = files.engine.env().background().then(spawn).and_then(Result::ok);
        WriteBackThread { files: Arc::clone(files), thread }
    }

    /// Ends the thread and waits for it.
    pub fn stop(&mut self) {
        self.files.pressure.lock().stopping = true;
        self.files.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for WriteBackThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The requests to the thread.
#[derive(Default)]
pub(super) struct Pressure {
    large: Vec<Arc<Inode>>,
    total: bool,
    stopping: bool,
    /// The thread is at work.
    is_busy: bool,
}

impl Files {
    fn budget(&self) -> u64 {
        (self.engine.options().dirty_data_bytes as u64).max(1 << 20)
    }

    /// Bytes that wait to be written back.
    pub(crate) fn buffered(&self) -> u64 {
        self.buffered_bytes.load(Ordering::Relaxed)
    }

    /// Makes room in memory for another write of `len` bytes: wakes the write-back thread early, and writes back itself
    /// if the thread is late. No lock is held.
    pub(super) fn make_room(&self, inode: &Arc<Inode>, len: u64) -> Result<()> {
        let (own, total, budget) = (inode.data.dirty_bytes(), self.buffered(), self.budget());
        if own > budget / 4 {
            return self.write_back(inode);
        }
        if own > HAND_OVER_BYTES.min(budget / 16) {
            self.ask(|pressure| {
                if !pressure.large.iter().any(|other| Arc::ptr_eq(other, inode)) {
                    pressure.large.push(Arc::clone(inode));
                }
            });
        }
        if total > budget / 2 {
            self.ask(|pressure| pressure.total = true);
        }
        if total > budget { self.write_back_share(len.saturating_mul(SHARE)) } else { Ok(()) }
    }

    /// Writes back about `share` bytes while there is too much, of the inodes that wait longest. So a writer waits as
    /// long as its write is large, and not until there is room for everybody. Errors as in
    /// [`write_back_oldest`](Self::write_back_oldest).
    fn write_back_share(&self, share: u64) -> Result<()> {
        let mut done = 0;
        loop {
            let before = done;
            let result = self.write_back_some(share, &mut done);
            if done >= share || self.buffered() <= self.budget() {
                return Ok(());
            }
            if done == before {
                return if done > 0 { Ok(()) } else { result };
            }
        }
    }

    /// The same for the next few inodes; `done` grows by what was written back. Writers that come at once take
    /// different inodes, and wait for each other's only when there are no more.
    fn write_back_some(&self, share: u64, done: &mut u64) -> Result<()> {
        let mut first = Ok(());
        let (oldest, mut busy) = (self.oldest(BATCH), Vec::new());
        let mut take = |inode: &Arc<Inode>, wait: bool| {
            if *done >= share || self.buffered() <= self.budget() {
                return true;
            }
            let bytes = inode.data.dirty_bytes();
            let lock = if wait { Some(inode.data.lock_mapping()) } else { inode.data.mapping.try_lock() };
            let Some(_mapping) = lock else { return false };
            match self.write_back_locked(inode) {
                Ok(()) => *done += bytes,
                // A write that a device refuses is an error of its file and stops no others; but operations of one
                // transaction are done as a whole.
                Err(error @ Error::Device(_)) if !self.engine.is_together() => {
                    self.drop_unwritable(inode, &error);
                    *done += bytes;
                }
                failed => first = std::mem::replace(&mut first, Ok(())).and(failed),
            }
            true
        };
        for inode in &oldest {
            if !take(inode, false) {
                busy.push(inode);
            }
        }
        for inode in busy {
            take(inode, true);
        }
        first
    }

    /// At most `count` of the inodes with buffered data, the oldest first.
    pub(super) fn oldest(&self, count: usize) -> Vec<Arc<Inode>> {
        let waiting = self.waiting.lock();
        waiting.order.iter().filter_map(|id| waiting.inodes.get(id)).take(count).cloned().collect()
    }

    fn ask(&self, what: impl FnOnce(&mut Pressure)) {
        what(&mut self.pressure.lock());
        self.wake.notify_one();
    }

    /// Writes back the inodes that wait longest, until at most `target` bytes are buffered. Errors stay with their
    /// inodes; one is returned only when nothing could be written back.
    fn write_back_oldest(&self, target: u64) -> Result<()> {
        let before = self.buffered();
        let mut first = Ok(());
        for inode in self.oldest(usize::MAX) {
            if self.buffered() <= target {
                return Ok(());
            }
            first = first.and(self.write_back(&inode));
        }
        if self.buffered() < before { Ok(()) } else { first }
    }

    /// Forgets everything that is buffered, and what was unpacked: it is taken back. Nobody writes meanwhile.
    pub(crate) fn abandon(&self) {
        let mut pressure = self.pressure.lock();
        pressure.large.clear();
        pressure.total = false;
        while pressure.is_busy {
            self.idle.wait(&mut pressure);
        }
        drop(pressure);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.inodes.values().for_each(|inode| inode.data.discard());
        *self.unpacked.lock() = UnpackedExtents::default();
    }

    /// The thread's work.
    fn serve(&self) {
        let _alarm = self.engine.alarm();
        loop {
            let (large, total) = {
                let mut pressure = self.pressure.lock();
                while pressure.large.is_empty() && !pressure.total && !pressure.stopping {
                    self.wake.wait(&mut pressure);
                }
                if pressure.stopping {
                    return;
                }
                pressure.is_busy = true;
                (std::mem::take(&mut pressure.large), std::mem::take(&mut pressure.total))
            };
            // Errors stay with their inodes, for whoever syncs them.
            large.iter().for_each(|inode| drop(self.write_back(inode)));
            if total {
                let _ = self.write_back_oldest(self.budget() / 4);
            }
            self.pressure.lock().is_busy = false;
            self.idle.notify_all();
        }
    }
}
