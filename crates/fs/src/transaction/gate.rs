//! The gate to the running transaction: who is in it, who waits, which one is being written, and whether it all has
//! stopped.
//!
//! # Invariants
//! 1. At most one transaction is being written and one is running.
//! 2. A transaction ends only while no handle is left; new ones wait meanwhile.
//! 3. After it is aborted nobody is let in any more, and nobody waits.

use super::running::{Books, Ended, Traces, Transaction};
use crate::error::{Error, Result};
use crate::space::Space;
use butterfs_ondisk::{Generation, Logical, TreeId};
use butterfs_sync::{Condvar, Mutex, order};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of the transactions.
struct Progress {
    running: Arc<Transaction>,
    /// Those that have ended and are not durable: the one that is being written, and before it those that got no
    /// superblock.
    writing: Vec<(Generation, Arc<Traces>)>,
    durable: Generation,
    handles: usize,
    freezing: bool,
    /// How many wait for the end of freezing to join.
    waiting: usize,
    aborted: Option<Box<str>>,
}

/// See the [module](self).
pub(crate) struct Gate {
    progress: Mutex<Progress, { order::PROGRESS }>,
    changed: Condvar,
    generation: AtomicU64,
}

impl Gate {
    /// In front of the first transaction after `durable`.
    pub fn new(durable: Generation) -> Gate {
        let running = Arc::new(Transaction::after(durable));
        Gate {
            generation: AtomicU64::new(running.generation().0),
            progress: Mutex::new(Progress {
                running,
                writing: Vec::new(),
                durable,
                handles: 0,
                freezing: false,
                waiting: 0,
                aborted: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// The number of the running transaction.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// The running transaction, to look at: it may end at any moment.
    pub fn running(&self) -> Arc<Transaction> {
        Arc::clone(&self.progress.lock().running)
    }

    /// Works in the books of the running transaction, and says which one that was.
    pub fn with_books<R>(&self, work: impl FnOnce(&mut Books) -> R) -> (R, Generation) {
        loop {
            let running = self.running();
            if let Some(mut books) = running.open_books() {
                return (work(&mut books), running.generation());
            }
        }
    }

    /// The last durable transaction.
    pub fn durable(&self) -> Generation {
        self.progress.lock().durable
    }

    /// Lets a handle in. Waits while a transaction freezes.
    pub(super) fn enter(&self) -> Result<Arc<Transaction>> {
        let mut progress = self.progress.lock();
        if progress.freezing && progress.aborted.is_none() {
            progress.waiting += 1;
            while progress.freezing && progress.aborted.is_none() {
                self.changed.wait(&mut progress);
            }
            progress.waiting -= 1;
            if progress.waiting == 0 {
                self.changed.notify_all();
            }
        }
        if let Some(reason) = &progress.aborted {
            return Err(Error::Aborted(reason.clone()));
        }
        progress.handles += 1;
        Ok(Arc::clone(&progress.running))
    }

    /// A handle has ended.
    pub(super) fn leave(&self) {
        let mut progress = self.progress.lock();
        progress.handles -= 1;
        if progress.handles == 0 && progress.freezing {
            drop(progress);
            self.changed.notify_all();
        }
    }

    /// Has new handles wait, and waits for the ones that are open; with `in_turn` after all who wait to join have
    /// joined. Not longer than until everything is aborted.
    pub(super) fn close(&self, in_turn: bool) -> Result<Arc<Transaction>> {
        let mut progress = self.progress.lock();
        let aborted = |progress: &Progress| progress.aborted.clone().map_or(Ok(()), |why| Err(Error::Aborted(why)));
        while (progress.freezing || in_turn && progress.waiting > 0) && progress.aborted.is_none() {
            self.changed.wait(&mut progress);
        }
        aborted(&progress)?;
        progress.freezing = true;
        while progress.handles > 0 && progress.aborted.is_none() {
            self.changed.wait(&mut progress);
        }
        if let Err(error) = aborted(&progress) {
            progress.freezing = false;
            return Err(error);
        }
        Ok(Arc::clone(&progress.running))
    }

    /// Lets handles in again.
    pub(super) fn open(&self) {
        self.progress.lock().freezing = false;
        self.changed.notify_all();
    }

    /// Ends the running transaction, of which no handle is left, and begins the next one.
    pub(super) fn advance(&self, space: &Space, nodesize: u32) -> Ended {
        let old = self.running();
        let reusable = old.end_logs(space, nodesize);
        // Whoever waits for the books finds them closed, and those of the next transaction open.
        let mut books = old.books();
        let (next, ended) = old.end(&mut books, reusable);
        let mut progress = self.progress.lock();
        self.generation.store(next.generation().0, Ordering::Release);
        progress.writing.push((old.generation(), Arc::clone(&ended.traces)));
        progress.running = Arc::new(next);
        ended
    }

    /// Begins the running transaction again, of which no handle is left.
    pub(super) fn start_again(&self) {
        let mut progress = self.progress.lock();
        progress.running = Arc::new(Transaction::after(progress.durable));
    }

    /// The transaction that was being written is durable.
    pub fn note_durable(&self, generation: Generation) {
        self.progress.lock().durable = generation;
    }

    /// Releases the space that it freed for new use.
    pub fn forget_written(&self) {
        self.progress.lock().writing.clear();
    }

    /// Stops everything for good; says the reason, and whether it is the first one.
    pub(super) fn abort(&self, reason: &dyn Fn() -> String) -> (Box<str>, bool) {
        let mut progress = self.progress.lock();
        let first = progress.aborted.is_none();
        let reason = progress.aborted.get_or_insert_with(|| reason().into_boxed_str()).clone();
        drop(progress);
        self.changed.notify_all();
        (reason, first)
    }

    /// Why everything stopped, if it did.
    pub fn aborted(&self) -> Option<Box<str>> {
        self.progress.lock().aborted.clone()
    }

    /// The newest transaction that is not durable and of which `look` finds something.
    fn not_durable(&self, look: impl Fn(&Traces) -> bool) -> Option<Generation> {
        let mut all = {
            let progress = self.progress.lock();
            let running = (progress.running.generation(), Arc::clone(&progress.running.traces));
            [progress.writing.clone(), vec![running]].concat()
        };
        all.reverse();
        all.into_iter().find(|(_, traces)| look(traces)).map(|(generation, _)| generation)
    }

    /// Whether the last commit may show the extent at `at` to somebody whom the trees in memory do not show it to.
    pub fn was_unshared(&self, at: Logical) -> bool {
        self.not_durable(|traces| traces.has_unshared(at)).is_some()
    }

    /// The transaction in which a subvolume got its place, unless that is durable.
    pub fn placed_in(&self, subvolume: TreeId) -> Option<Generation> {
        self.not_durable(|traces| traces.has_placed(subvolume))
    }

    /// Whether a transaction that is not durable gives block groups back.
    pub fn deletes_groups(&self) -> bool {
        self.not_durable(Traces::deletes_groups).is_some()
    }
}
