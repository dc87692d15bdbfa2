//! The states of a transaction and of an `fsync`, under the schedulers of shuttle: commits, logs, snapshots and
//! transactions of several operations in several threads on one real filesystem, checked as in `interleave`, with every
//! crash.
//!
//! The engine's threads are threads of the system, as its checks of their locks want, and run in turns. For each of
//! them shuttle has one of its own, which does nothing but give it the next turn: so shuttle decides, at every lock,
//! condition and device request.
//!
//! `BUTTERFS_STATES_RUNS=20000` makes more runs of each team than CI.

use butterfs_fs::options::Canary;
use butterfs_sim::interleave::attempt::{Attempt, Judged, Programs, attempt};
use butterfs_sim::interleave::operations::Operations;
use butterfs_sim::interleave::scene::Base;
use butterfs_sim::interleave::turns::Decide;
use butterfs_testkit::watchdog::Watchdog;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::{Config, Runner, hint, thread};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Runs of each team with each scheduler.
const RUNS: usize = 30;
/// Threads that shuttle decides to interrupt at unlikely moments, at most so often.
const DEPTH: usize = 4;

/// The work of threads beside each other.
const TEAMS: &[&[&[&str]]] = &[
    &[&["fsync A/bar"], &["commit", "write A/foo", "fsync A/foo"], &["sync"]],
    &[&["write S/pre", "fsync S/pre"], &["create A/new", "fsync A"], &["fsync A/bar"]],
    &[&["two together"], &["write A/foo", "fsync A/foo"], &["commit"]],
    &[&["two together"], &["unlink A/foo", "fsync A"], &["snapshot T A/C/copy"]],
    &[&["snapshot S A/new", "fsync A"], &["write S/pre", "fsync S/pre"], &["sync"]],
    &[&["delete_subvolume S", "clean"], &["create B/fill", "write B/fill", "fsync B/fill"], &["commit"]],
];

/// The filesystem that runs begin with, and what can be done to it.
struct World {
    base: Base,
    operations: Arc<Operations>,
}

impl World {
    fn new(canary: Option<Canary>) -> Arc<World> {
        let base = Base::new(canary);
        let operations = Arc::new(Operations::new(&base));
        Arc::new(World { base, operations })
    }

    fn programs(&self, team: &[&[&str]]) -> Programs {
        let number_of = |name: &&str| self.operations.number(name);
        team.iter().map(|program| program.iter().map(number_of).collect()).collect()
    }
}

/// The engine's side: which of these threads, a bit for each, has the next turn.
struct Asking {
    ask: Sender<Option<u64>>,
    answer: Receiver<usize>,
}

impl Decide for Asking {
    fn next(&mut self, _at: usize, _current: Option<usize>, ready: u64) -> usize {
        if ready.is_power_of_two() {
            return ready.trailing_zeros() as usize;
        }
        self.ask.send(Some(ready)).expect("somebody answers until the run is over");
        self.answer.recv().expect("somebody answers until the run is over")
    }
}

/// Shuttle's side: the question that is open, none when the run is over.
struct Answering {
    open: Option<u64>,
    questions: Receiver<Option<u64>>,
    answer: Sender<usize>,
}

impl Answering {
    /// Gives the turn to a thread; none where the run is over, else whether it could have it.
    fn give(&mut self, to: usize) -> Option<bool> {
        let ready = self.open?;
        let can = ready & 1 << to != 0;
        if can {
            self.answer.send(to).expect("it has asked");
            self.open = self.questions.recv().expect("the end is said");
        }
        Some(can)
    }
}

fn run(world: &Arc<World>, programs: &Programs, judged: &Arc<Mutex<Judged>>) -> Attempt {
    let ((ask, questions), (answer, answers)) = (channel(), channel());
    let (world, programs, judged, count) = (Arc::clone(world), programs.clone(), Arc::clone(judged), programs.len());
    let engine = std::thread::spawn(move || {
        let asking = Asking { ask: ask.clone(), answer: answers };
        let judged = &mut judged.lock().expect("one run at a time");
        let attempt = attempt(&world.base, &world.operations, &programs, Box::new(asking), judged);
        ask.send(None).expect("somebody waits for the end");
        attempt
    });
    let open = questions.recv().expect("the end is said");
    let answering = Arc::new(Mutex::new(Answering { open, questions, answer }));
    let moment = Arc::new(AtomicBool::new(false));
    let turns = |to: usize| {
        let (answering, moment) = (Arc::clone(&answering), Arc::clone(&moment));
        thread::spawn(move || {
            loop {
                // Here shuttle decides.
                moment.load(Ordering::SeqCst);
                let given = answering.lock().expect("shuttle's threads are of one thread").give(to);
                match given {
                    None => break,
                    Some(true) => {}
                    Some(false) => hint::spin_loop(),
                }
            }
        })
    };
    let threads: Vec<_> = (0..count).map(turns).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it only gives turns"));
    engine.join().expect("an attempt catches panics")
}

fn runs() -> usize {
    std::env::var("BUTTERFS_STATES_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

fn all_teams<S: Scheduler + 'static>(name: &str, scheduler: impl Fn(u64) -> S) {
    let _watchdog = Watchdog::new("states of transactions", 600 + runs() as u64);
    let (world, states) = (World::new(None), Arc::new(Mutex::new(0)));
    for (number, team) in TEAMS.iter().enumerate() {
        let (programs, judged) = (world.programs(team), Arc::default());
        let (world, states, name) = (Arc::clone(&world), Arc::clone(&states), name.to_owned());
        Runner::new(scheduler(number as u64), Config::new()).run(move || {
            let attempt = run(&world, &programs, &judged);
            *states.lock().expect("one run at a time") += attempt.states;
            attempt.verdict.unwrap_or_else(|what| panic!("{name}, {team:?}: {what}"));
        });
    }
    let states = *states.lock().expect("nobody runs any more");
    println!("{name}: {} runs, {states} crash states", runs() * TEAMS.len());
    assert!(states as usize > 4 * runs(), "{states} crash states");
}

#[test]
fn any_thread_at_any_moment() {
    all_teams("random", |seed| RandomScheduler::new_from_seed(seed, runs()));
}

#[test]
fn few_interruptions_at_unlikely_moments() {
    all_teams("few interruptions", |seed| PctScheduler::new_from_seed(seed, DEPTH, runs()));
}

/// Bugs on purpose, in a team that meets them.
#[test]
fn bugs_are_found() {
    let _watchdog = Watchdog::new("bugs on purpose", 600);
    for (canary, team) in [
        (Canary::TogetherSeparated, &[&["two together"][..], &["write A/foo", "fsync A/foo"]]),
        (Canary::LoggedItemLeftOut, &[&["write S/pre", "fsync S/pre"], &["fsync A/bar"]]),
    ] {
        let (world, found) = (World::new(Some(canary)), Arc::new(Mutex::new(0)));
        let (programs, judged, failed) = (world.programs(team), Arc::default(), Arc::clone(&found));
        Runner::new(RandomScheduler::new_from_seed(1, RUNS), Config::new()).run(move || {
            *failed.lock().expect("one run at a time") += usize::from(run(&world, &programs, &judged).verdict.is_err());
        });
        assert!(*found.lock().expect("nobody runs any more") > 0, "{canary:?} is not found");
    }
}
