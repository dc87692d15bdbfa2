//! Split brain: from one crash two sides live on without each other, and then all devices are given.
//!
//! # What must hold
//! 1. Where both sides have committed something that the other lacks, all devices together are refused.
//! 2. Where one side has committed nothing since, it was only away: together they show the other side.
//! 3. With one side given up (`-o stale=`) the other one is shown, exactly; and after a resync by any devices, and by a
//!    clean disk.
//!
//! A side has any number of commits: none when it was never opened or did nothing, one, or many, ended by a crash or
//! not. The crash before may have left logs, which both sides replay.

use crate::choice::Seeded;
use crate::faults::Damaged;
use crate::left::forked;
use crate::meanwhile::environment;
use crate::members::{Devices, Given, tolerance};
use crate::plan::Plan;
use crate::run::{Beginning, Failure, Manner, Outcome, one_life, words};
use crate::state;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::Filesystem;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::promise::History;
use butterfs_testkit::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Most lives of one side.
const LIVES: usize = 2;

/// The devices of both sides: each can live without the other.
pub(crate) fn sides(plan: &Plan) -> [Devices; 2] {
    let mut rng = Rng::new(plan.seed ^ 0x5b11_7000);
    let most = tolerance(plan);
    let fewest = plan.devices - most;
    let first = fewest + rng.index(most + 1 - fewest);
    let mut all: Vec<usize> = (0..plan.devices).collect();
    (1..all.len()).rev().for_each(|last| all.swap(last, rng.index(last + 1)));
    [all[..first].iter().copied().collect(), all[first..].iter().copied().collect()]
}

/// Which devices are given in the life with this number: first all, then those of one side, then those of the other.
pub(crate) fn given(plan: &Plan, life: usize) -> Given {
    let [one, other] = sides(plan);
    match life {
        0 => Given::default(),
        _ if life <= LIVES => Given::without(&other),
        _ => Given::without(&one),
    }
}

/// The state of a side.
struct Side {
    devices: Devices,
    disk: Arc<MemoryDevice>,
    model: ModelFs,
    /// It has committed something since the split.
    has_committed: bool,
    /// And more than what the log of before the split says, which both sides may commit alike.
    has_own: bool,
    /// It shows something else than before.
    has_changed: bool,
}

impl Side {
    /// Explains why a filesystem does not show this side, if it should.
    fn explain(&self, filesystem: &Filesystem) -> Result<(), String> {
        let shown = Fingerprint::of_damaged_library(filesystem)?;
        let damaged = Damaged::default();
        let read = state::tolerant(filesystem, &damaged, false);
        History::new(&self.model).explain(&shown, &read).map(drop)
    }
}

/// Runs a plan until the first failure.
pub(crate) fn run(plan: &Plan, manner: Manner) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.failure = run_to(plan, manner, &mut outcome).err();
    outcome
}

fn run_to(plan: &Plan, manner: Manner, outcome: &mut Outcome) -> Result<(), Box<Failure>> {
    let env = environment(plan.seed);
    let beginning = Beginning::of(plan, plan.make(&env), ModelFs::default());
    let chooser = Box::new(Seeded::new(plan, 0));
    let Some(common) = one_life(plan, manner, 0, beginning, chooser, outcome)? else { return Ok(()) };
    let Some(one) = live_apart(plan, manner, &common, 1, outcome)? else { return Ok(()) };
    let Some(other) = live_apart(plan, manner, &common, 1 + LIVES, outcome)? else { return Ok(()) };
    let joined = catch_unwind(AssertUnwindSafe(|| join(plan, &common, [&one, &other], outcome)));
    let joined = joined.unwrap_or_else(|panic| Err(format!("panic while joining: {}", words(&*panic))));
    joined.map_err(|what| {
        let (base, what) = (common.base.snapshot(), format!("{:?} and {:?}: {what}", one.devices, other.devices));
        Box::new(Failure::of_base(plan, &base, &common.model, (what, None, Some(one.disk.snapshot())), &[]))
    })
}

/// The state of a side after its lives, the first of which has this number; none if it is unknown.
fn live_apart(
    plan: &Plan,
    manner: Manner,
    common: &Beginning,
    first: usize,
    outcome: &mut Outcome,
) -> Result<Option<Side>, Box<Failure>> {
    let mut rng = Rng::new(plan.seed.rotate_left(5) ^ first as u64);
    let given = given(plan, first);
    let devices = (0..plan.devices).filter(|device| given.believes(*device)).collect();
    let opened = state::open(&common.base, state::recovering(plan), plan, &given);
    let model = opened.and_then(|filesystem| ModelFs::of_library(&filesystem).map_err(|error| error.to_string()));
    let failed = |what: String| {
        let what = format!("a side of a split: {what}");
        Box::new(Failure::of_base(plan, &common.base, &common.model, (what, None, None), &[]))
    };
    let mut now = Beginning { model: model.map_err(failed)?, attendance: plan.attendance(first), ..common.clone() };
    now.forked = forked(plan, &common.base, &given);
    let before = Fingerprint::of_model(&now.model);
    for life in 0..*rng.pick(&[0, 1, 1, 1, 1, 1, 1, LIVES]) {
        let plan = Plan { steps: *rng.pick(&[0, 2, 3, 5, 5, 10, 10, 25]), ..plan.clone() };
        let chooser = Box::new(Seeded::new(&plan, first + life));
        match one_life(&plan, manner, first + life, now, chooser, outcome)? {
            Some(next) => now = Beginning { attendance: plan.attendance(first), ..next },
            None => return Ok(None),
        }
    }
    let (ruling, led) = (state::ruling(plan, &now.base, &given), state::ruling(plan, &common.base, &given));
    let replayed = led.map(|(generation, log, _)| generation + u64::from(log != 0));
    Ok(Some(Side {
        devices,
        has_committed: ruling != led,
        has_own: ruling.map(|(generation, ..)| generation) > replayed,
        has_changed: !differences(&before, &Fingerprint::of_model(&now.model), Compare::MODEL).is_empty(),
        disk: now.base,
        model: now.model,
    }))
}

/// The devices of both sides, which can be written.
fn together(plan: &Plan, sides: [&Side; 2]) -> [Arc<MemoryDevice>; 2] {
    assert_eq!(sides.iter().map(|side| side.devices.len()).sum::<usize>(), plan.devices);
    sides.map(|side| Arc::new(side.disk.snapshot()))
}

fn devices(plan: &Plan, sides: [&Side; 2], disks: &[Arc<MemoryDevice>; 2]) -> Vec<Arc<dyn BlockDevice>> {
    let of = |disk: &Arc<MemoryDevice>| Given::default().devices(plan, disk);
    let (one, other) = (of(&disks[0]), of(&disks[1]));
    let pick = |(number, (one, other))| if sides[0].devices.contains(&number) { one } else { other };
    one.into_iter().zip(other).enumerate().map(pick).collect()
}

fn open(plan: &Plan, devices: Vec<Arc<dyn BlockDevice>>, given: &Given) -> Result<Filesystem, String> {
    let opened = Filesystem::open(devices, given.options(state::judging(plan)), environment(plan.seed));
    opened.map_err(|error| error.to_string())
}

fn join(plan: &Plan, common: &Beginning, sides: [&Side; 2], outcome: &mut Outcome) -> Result<(), String> {
    let agreed = |side: &Side| {
        let others = (0..plan.devices).filter(|device| !side.devices.contains(device)).collect();
        state::ruling(plan, &common.base, &Given::without(&others))
    };
    // A crash between superblocks splits, too, although nobody was promised anything.
    let was_one = agreed(sides[0]) == agreed(sides[1]);
    let disks = together(plan, sides);
    match open(plan, devices(plan, sides, &disks), &Given::default()) {
        Ok(filesystem) => {
            outcome.struck.joined += 1;
            accepted(sides, &filesystem)?;
        }
        Err(_) if !was_one || sides.iter().all(|side| side.has_committed) => outcome.struck.splits += 1,
        Err(what) => return Err(format!("one side was only away: {what}")),
    }
    give_up(plan, sides, 0)?;
    give_up(plan, sides, 1)
}

/// A filesystem that is accepted shows the side that has committed.
fn accepted(sides: [&Side; 2], filesystem: &Filesystem) -> Result<(), String> {
    if sides.iter().all(|side| side.has_own && side.has_changed) {
        return Err("both sides have something, and they are opened together".to_owned());
    }
    let shown = sides.map(|side| side.explain(filesystem));
    let is_shown = |side: usize| shown[side].is_ok();
    let good = match (sides[0].has_own, sides[1].has_own) {
        (true, false) => is_shown(0),
        (false, true) => is_shown(1),
        _ => is_shown(0) || is_shown(1),
    };
    if good { Ok(()) } else { Err(format!("they are opened together and show neither side: {shown:?}")) }
}

/// With a side given up, the other one is shown, and remembered.
fn give_up(plan: &Plan, sides: [&Side; 2], lost: usize) -> Result<(), String> {
    let kept = sides[1 - lost];
    let given = Given { given_up: sides[lost].devices.clone(), ..Given::default() };
    let wrong = |when: &str, what: String| format!("{:?} given up, {when}: {what}", sides[lost].devices);
    let disks = together(plan, sides);
    let all = || devices(plan, sides, &disks);
    let filesystem = open(plan, all(), &given).map_err(|what| wrong("opened", what))?;
    kept.explain(&filesystem).map_err(|what| wrong("shown", what))?;
    let is_whole = filesystem.resync().map_err(|error| wrong("resync", error.to_string()))?;
    let said = filesystem.take_messages();
    filesystem.shutdown().map_err(|error| wrong("shutdown", error.to_string()))?;
    drop(filesystem);
    let filesystem = open(plan, all(), &Given::default()).map_err(|what| wrong("opened again", what))?;
    kept.explain(&filesystem).map_err(|what| wrong("shown again", what))?;
    drop(filesystem);
    if !is_whole {
        return Err(wrong("resync", format!("some device is still stale: {said:#?}")));
    }
    state::clean_devices(all()).map_err(|what| wrong("after a resync", what))?;
    let alone: Vec<_> = all().into_iter().enumerate().filter(|(number, _)| !kept.devices.contains(number)).collect();
    let alone = alone.into_iter().map(|(_, device)| device).collect();
    let filesystem = open(plan, alone, &Given::without(&kept.devices)).map_err(|what| wrong("alone", what))?;
    kept.explain(&filesystem).map_err(|what| wrong("shown alone", what))
}
