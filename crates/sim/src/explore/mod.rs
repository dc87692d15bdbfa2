//! The explorer: every sequence of one and of two operations from a set, with everything that can make them durable,
//! and the states that a crash leaves then.
//!
//! The set is that of the best-known explorer of crash consistency, over two names in four folders: create, mkdir,
//! preallocation in its ways, writes that append and overlap, aligned and not, and as of mappings, links, unlink,
//! rename, extended attributes, truncation, symbolic links; and subvolumes and snapshots made and deleted, shared
//! extents, exchange, whiteouts, and files that get their first name.
//!
//! # Invariants
//! 1. Of one operation: the state after every write and flush is checked, with what is in flight kept, and with some of
//!    it. Of two: the state after the last fsync or sync, because those before are states of one.
//! 2. An fsync writes a log wherever it can, whatever it costs. States are checked as after any crash
//!    ([`crate::state`]).
//! 3. Nothing is left to chance: a unit of work (an operation, or a pair) has a number, by which work is shared and
//!    resumed.

pub mod operations;
pub mod workload;

use crate::choice::Given;
use crate::cut::{Cut, Disks};
use crate::faults::Damaged;
use crate::life::{Life, Start};
use crate::meanwhile::environment;
use crate::plan::Plan;
use crate::run::Failure;
use crate::state::{self, Expected, Thorough};
use crate::step::{Planned, Step};
use crate::subject::Subject;
use butterfs_device::MemoryDevice;
use butterfs_fs::Filesystem;
use butterfs_fs::options::Canary;
use butterfs_testkit::model::ModelFs;
use operations::{Operation, operations};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use workload::Workload;

/// The configuration of an exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Operations in a row: 1 or 2.
    pub length: usize,
    /// This part of so many.
    pub shard: (u64, u64),
    /// The first unit.
    pub from: u64,
    /// No unit is begun after this moment.
    pub until: Option<Instant>,
    /// Of so many states, one is shown to the kernel; 0 is none.
    pub kernel_every: u64,
    /// Threads.
    pub threads: usize,
    /// A bug on purpose.
    pub canary: Option<Canary>,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Units that there are.
    pub units: u64,
    /// All units below this one, of this part, are done.
    pub done: u64,
    /// Workloads that were run.
    pub workloads: u64,
    /// States that were checked.
    pub states: u64,
    /// Of them, with a log.
    pub log_states: u64,
    /// Of them, by the kernel too.
    pub kernel_states: u64,
    /// The first workloads that failed.
    pub failures: Vec<Failure>,
}

/// The number of failures after which it stops.
const FAILURES_MAX: usize = 8;

/// A committed filesystem that workloads begin with.
type Base = Arc<(MemoryDevice, ModelFs)>;

struct Explorer<'a> {
    what: &'a Exploration,
    plan: Plan,
    empty: MemoryDevice,
    first: Vec<Operation>,
    second: Vec<Operation>,
    bases: Mutex<BTreeMap<String, Base>>,
    explored: Mutex<Explored>,
    judged: AtomicU64,
    enough: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The filesystem that all workloads begin with.
pub(crate) fn plan(canary: Option<Canary>) -> Plan {
    Plan {
        nodesize: 16384,
        checksum: butterfs_ondisk::ChecksumKind::Crc32c,
        features: "",
        metadata: "single",
        data: "single",
        bytes: 48 << 20,
        lives: 1,
        meanwhile_percent: 0,
        fills: false,
        logs: true,
        canary,
        ..Plan::of(1)
    }
}

impl Exploration {
    /// Explores; `progress` is told after each unit.
    pub fn run(&self, progress: impl Fn(&Explored) + Sync) -> Explored {
        let plan = plan(self.canary);
        let empty = plan.make(&environment(1));
        let (first, second) = match self.length {
            1 => (operations(false), Vec::new()),
            _ => (operations(true), operations(false)),
        };
        let units = (first.len() * second.len().max(1)) as u64;
        let explored = Mutex::new(Explored { units, ..Explored::default() });
        let (bases, judged, enough) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        let explorer = Explorer { what: self, plan, empty, first, second, bases, explored, judged, enough };
        // The next unit, and those that are being worked on.
        let under_way: Mutex<(u64, BTreeSet<u64>)> = Mutex::new((self.from, BTreeSet::new()));
        let take = || {
            let (next, under_way) = &mut *locked(&under_way);
            let unit = (*next..units).find(|unit| unit % self.shard.1 == self.shard.0);
            *next = unit.map_or(units, |unit| unit + 1);
            under_way.extend(unit);
            unit
        };
        let finish = |unit| {
            let (next, under_way) = &mut *locked(&under_way);
            under_way.remove(&unit);
            under_way.first().copied().unwrap_or(*next)
        };
        let work = || {
            while !explorer.enough.load(Ordering::Relaxed) && self.until.is_none_or(|until| Instant::now() < until) {
                let Some(unit) = take() else { return };
                explorer.unit(unit);
                let done = finish(unit);
                let mut explored = locked(&explorer.explored);
                explored.done = explored.done.max(done);
                progress(&explored);
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        if take().is_none() && !explorer.enough.load(Ordering::Relaxed) {
            locked(&explorer.explored).done = units;
        }
        explorer.explored.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Explorer<'_> {
    fn unit(&self, unit: u64) {
        let unit = unit as usize;
        let workloads = match self.second.len() {
            0 => workload::of_one(&self.first[unit]),
            count => workload::of_two(&self.first[unit / count], &self.second[unit % count]),
        };
        for workload in workloads {
            if self.enough.load(Ordering::Relaxed) {
                return;
            }
            let tried = self.attempt(&workload);
            let mut explored = locked(&self.explored);
            explored.workloads += 1;
            if let Err(failure) = tried {
                explored.failures.push(*failure);
                self.enough.store(explored.failures.len() >= FAILURES_MAX, Ordering::Relaxed);
            }
        }
    }

    /// The disk on which these steps were done, committed and closed.
    fn base(&self, steps: &[Step]) -> Base {
        let key = format!("{steps:?}");
        if let Some(known) = locked(&self.bases).get(&key) {
            return Arc::clone(known);
        }
        let disk = Arc::new(self.empty.snapshot());
        let open = || {
            Filesystem::open(self.plan.parts(&disk), state::recovering(&self.plan), environment(2))
                .expect("a good disk")
        };
        let filesystem = open();
        let subject = Subject::new(&filesystem);
        for step in steps {
            subject.apply(step).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
        filesystem.shutdown().expect("a good disk");
        drop((subject, filesystem));
        let model = ModelFs::of_library(&open()).expect("a good disk");
        let base = Arc::new((disk.snapshot(), model));
        locked(&self.bases).insert(key, Arc::clone(&base));
        base
    }

    fn attempt(&self, workload: &Workload) -> Result<(), Box<Failure>> {
        let base = self.base(&workload.base);
        let planned = |step: &Step| Planned { step: step.clone(), meanwhile: Vec::new() };
        let steps: Vec<Planned> = workload.steps.iter().map(planned).collect();
        let failed = |what: String, cut, disk| {
            let what = format!("{what}\nafter {:?}", workload.base);
            Box::new(Failure::of_base(&self.plan, &base.0, &base.1, (what, cut, disk), &steps))
        };
        let chooser = Box::new(Given::new(&steps));
        let (attendance, behind) = Default::default();
        let (base_disk, model) = (base.0.snapshot(), &base.1);
        let (attendance, behind) = (&attendance, &behind);
        let start = Start { life: 0, base: base_disk, model, attendance, behind, volume: None };
        let live = || Life::live(&self.plan, start, chooser);
        let lived = catch_unwind(AssertUnwindSafe(live));
        let life = lived.map_err(|panic| failed(format!("panic: {}", crate::run::words(&*panic)), None, None))?;
        if let Some(what) = life.disagreement.clone() {
            return Err(failed(what, None, None));
        }
        let mut disks = Disks::new(&life.base, self.plan.devices, &life.events);
        for cut in self.cuts(&life) {
            let number = self.judged.fetch_add(1, Ordering::Relaxed);
            let for_kernel = self.what.kernel_every > 0 && number.is_multiple_of(self.what.kernel_every);
            let disk = disks.at(&cut, true);
            let judged = catch_unwind(AssertUnwindSafe(|| {
                let (allowed, damaged, given) = (life.allowed(cut.prefix), Damaged::default(), Default::default());
                let expected = Expected {
                    allowed: &allowed,
                    numbers: &life.numbers,
                    beginning: (&life.base, &life.first),
                    damaged: &damaged,
                    unreadable: &damaged,
                    given: &given,
                    may_refuse: false,
                };
                state::judge(&self.plan, &disk, expected, Thorough { recovered: number.is_multiple_of(4) })?;
                if for_kernel { crate::kernel::judge(&self.plan, &disk, expected) } else { Ok(()) }
            }));
            let verdict = judged.unwrap_or_else(|panic| Err(format!("panic: {}", crate::run::words(&*panic))));
            verdict.map_err(|what| failed(what, Some(cut), Some(disk.snapshot())))?;
            let mut explored = locked(&self.explored);
            explored.states += 1;
            explored.log_states += u64::from(state::has_log(&self.plan, &disk));
            explored.kernel_states += u64::from(for_kernel);
        }
        Ok(())
    }

    fn cuts(&self, life: &Life) -> Vec<Cut> {
        let all = life.events.len();
        if self.what.length > 1 {
            return vec![Cut { prefix: all, seed: 0 }];
        }
        let whole = (1..=all).map(|prefix| Cut { prefix, seed: 0 });
        let part = (1..=all).map(|prefix| Cut { prefix, seed: prefix as u64 * 2 + 1 });
        let mut cuts: Vec<Cut> = whole.chain(part).collect();
        cuts.sort_unstable();
        cuts
    }
}
