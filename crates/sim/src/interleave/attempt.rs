//! One run of some programs under one schedule, and the verdict about it.

use super::operations::{Operation, Operations, said};
use super::orders::{Call, Order, orders, told_in_orders};
use super::scene::{Base, Scene, Stage, Uses, View};
use super::turns::{self, Decide, Ended, TraceEntry, Work};
use crate::cut::{Cut, Disks};
use crate::faults::Damaged;
use crate::life::{digest_event, forget_placeholders};
use crate::members::Given;
use crate::state::{self, Expected, Thorough};
use butterfs_device::{Event, MemoryDevice};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::promise::logged::Numbers;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh64::Xxh64;

/// Cuts besides those at flushes.
const CUTS: usize = 4;

/// The programs: for each thread the numbers of its operations.
pub type Programs = Vec<Vec<usize>>;

/// Disks that were checked before, with the same outcomes: they need not be checked again.
pub type Judged = HashSet<u64>;

/// The numbers of inodes, for orders of all calls.
type NumbersOf = BTreeMap<Vec<usize>, Numbers>;

/// A run that was checked.
pub struct Attempt {
    /// The events.
    pub trace: Vec<TraceEntry>,
    /// The fault.
    pub verdict: Result<(), String>,
    /// Crash states that were checked.
    pub states: u64,
}

/// Runs programs and checks what came of it.
pub fn attempt(
    base: &Base,
    operations: &Arc<Operations>,
    programs: &Programs,
    decide: Box<dyn Decide>,
    judged: &mut Judged,
) -> Attempt {
    let uses: Vec<Uses> = programs.iter().map(|program| operations.uses(program)).collect();
    let (stage, first) = base.open(&uses);
    let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
    let moments = Arc::new(AtomicUsize::new(0));
    let works = programs.iter().zip(uses).enumerate().map(|(thread, (program, uses))| {
        let (stage, calls, moments) = (stage.clone(), Arc::clone(&calls), Arc::clone(&moments));
        let (program, operations) = (program.clone(), Arc::clone(operations));
        let work: Work = Box::new(move || play(&stage, (thread, &program, &uses), &operations.list, &calls, &moments));
        work
    });
    let ran = turns::run(works.collect(), decide);
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut attempt = Attempt { trace: ran.trace, verdict: Ok(()), states: 0 };
    attempt.verdict = match ran.ended {
        Ended::Well => {
            let judge = Judge { base, operations, stage: &stage, first: &first, calls: &calls };
            let judging = AssertUnwindSafe(|| judge.all(judged, &mut attempt.states));
            catch_unwind(judging).unwrap_or_else(|panic| Err(format!("panic: {}", crate::run::words(&*panic))))
        }
        ended => {
            // Threads of it hold locks for good.
            std::mem::forget(stage);
            Err(format!("{ended:?}"))
        }
    };
    attempt
}

/// The work of one thread.
fn play(
    stage: &Stage,
    (thread, program, uses): (usize, &[usize], &Uses),
    operations: &[Operation],
    calls: &Mutex<Vec<Call>>,
    moments: &AtomicUsize,
) {
    let scene = Scene::new(stage);
    for operation in program {
        let moment = || moments.fetch_add(1, Ordering::Relaxed);
        let number = {
            let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
            let (began, began_events) = (moment(), stage.recorder.len());
            let (ended, ended_events, outcome) = (None, None, None);
            calls.push(Call {
                operation: *operation,
                thread,
                began,
                ended,
                began_events,
                ended_events,
                outcome,
                said: String::new(),
            });
            calls.len() - 1
        };
        let outcome = (operations[*operation].run)(&scene);
        let call = &mut calls.lock().unwrap_or_else(PoisonError::into_inner)[number];
        (call.ended, call.ended_events) = (Some(moment()), Some(stage.recorder.len()));
        (call.outcome, call.said) = (Some(outcome), said());
    }
    scene.forget_all(uses);
}

/// The input of a verdict.
struct Judge<'a> {
    base: &'a Base,
    operations: &'a Operations,
    stage: &'a Stage,
    first: &'a View,
    calls: &'a [Call],
}

impl Judge<'_> {
    fn all(&self, judged: &mut Judged, states: &mut u64) -> Result<(), String> {
        for call in self.calls {
            if let Some(Err(Errno::IO | Errno::UCLEAN)) = call.outcome {
                return Err(format!("{:#?}\n  an error: {}", self.outcomes(), call.said));
            }
        }
        let events = self.stage.recorder.len();
        let numbers = self.shown()?;
        self.end().map_err(|error| format!("it cannot be ended: {error}"))?;
        let all = self.stage.recorder.events(0..self.stage.recorder.len());
        let mut digest = Xxh64::new(0);
        digest.update(format!("{:?}", self.outcomes()).as_bytes());
        all.iter().for_each(|event| digest_event(&mut digest, event));
        if !judged.insert(digest.digest()) {
            return Ok(());
        }
        let disk = Disks::new(&self.base.disk, 1, &all).at(&Cut { prefix: all.len(), seed: 0 }, true);
        state::clean(&disk, 1).map_err(|what| format!("after it was closed: {what}"))?;
        self.crashes(&all[..events], &numbers, states)
    }

    fn outcomes(&self) -> Vec<String> {
        let show = |call: &Call| {
            let name = self.operations.list[call.operation].name;
            let Call { thread, began, ended, outcome, said, .. } = call;
            format!("{name} (thread {thread}, {began} to {ended:?}): {outcome:?} {said}")
        };
        self.calls.iter().map(show).collect()
    }

    /// The orders of the operations that explain what they said and what is shown now, each with the numbers of its
    /// inodes. There must be one.
    fn shown(&self) -> Result<NumbersOf, String> {
        let mut shown = Fingerprint::of_library(&self.stage.filesystem).map_err(|what| format!("reading: {what}"))?;
        let (mut nearest, mut explaining): (Option<Vec<String>>, _) = (None, NumbersOf::new());
        for order in orders(&self.operations.list, self.first, self.calls) {
            let last = order.last(self.first);
            if last.unknown {
                return Ok(NumbersOf::new());
            }
            let model = &last.model;
            forget_placeholders(&mut shown, model);
            let found = differences(&Fingerprint::of_model(model), &shown, Compare::MODEL);
            if found.is_empty() {
                explaining.insert(order.calls.clone(), self.numbers(&order));
            } else if nearest.as_ref().is_none_or(|other| found.len() < other.len()) {
                nearest = Some(found);
            }
        }
        if !explaining.is_empty() {
            return Ok(explaining);
        }
        let orders = told_in_orders(&self.operations.list, self.first, self.calls);
        let differs = nearest.map_or("no order gives these answers".to_owned(), |found| format!("{found:#?}"));
        Err(format!("{:#?}\n  no order explains it: {differs}; orders:\n{orders}", self.outcomes()))
    }

    /// The numbers of inodes in an order that explains what is shown now.
    fn numbers(&self, order: &Order) -> Numbers {
        let (mut numbers, library) = (self.base.numbers.clone(), Library::new(&self.stage.filesystem));
        numbers.learn(&order.last(self.first).model, &mut |path| library.find(path).ok().map(|id| id.ino.0));
        numbers
    }

    /// Gives everything back, cleans and closes.
    fn end(&self) -> butterfs_fs::Result<()> {
        let scene = Scene::new(self.stage);
        self.stage.filesystem.release(scene.id("S/gone"));
        while self.stage.filesystem.clean_once()? {}
        self.stage.filesystem.shutdown()
    }

    /// Every state that a crash leaves is one that some order explains.
    fn crashes(&self, events: &[Event], numbers: &NumbersOf, states: &mut u64) -> Result<(), String> {
        let cuts = Cut::choose(events, CUTS, events.len() as u64);
        let mut disks = Disks::new(&self.base.disk, 1, events);
        for cut in cuts {
            // What is not copied on write would be of no state, sector by sector.
            let disk = disks.untorn_at(&cut);
            *states += 1;
            self.crash(&disk, cut.prefix, numbers).map_err(|what| {
                format!("{:#?}\n  a crash after {} of {} events: {what}", self.outcomes(), cut.prefix, events.len())
            })?;
        }
        Ok(())
    }

    fn crash(&self, disk: &MemoryDevice, prefix: usize, numbers: &NumbersOf) -> Result<(), String> {
        let begun = self.calls.iter().filter(|call| call.began_events <= prefix);
        // What had not answered yet can still be answered otherwise by what begins later.
        let so_far = |call: &Call| match call.ended_events {
            Some(ended) if ended <= prefix => call.clone(),
            _ => Call { outcome: None, ..call.clone() },
        };
        let begun: Vec<Call> = begun.map(so_far).collect();
        let mut wrong = Vec::new();
        for order in orders(&self.operations.list, self.first, &begun) {
            if order.last(self.first).unknown {
                return state::clean(disk, 1);
            }
            let allowed = order.history(&self.base.states, &begun, prefix);
            let damaged = Damaged::default();
            let beginning = (&self.base.disk, &self.base.states[0]);
            let numbers = numbers.get(&order.calls).unwrap_or(&self.base.numbers);
            let expected = Expected {
                allowed: &allowed,
                numbers,
                beginning,
                damaged: &damaged,
                unreadable: &damaged,
                given: &Given::default(),
                may_refuse: false,
            };
            match state::judge(&self.base.plan, disk, expected, Thorough::default()) {
                Ok(_) => return Ok(()),
                Err(what) => wrong.push(format!("in the order {:?}: {what}", order.calls)),
            }
        }
        wrong.sort();
        wrong.dedup();
        Err(format!("no order explains it: {}", wrong.join("\n")))
    }
}
