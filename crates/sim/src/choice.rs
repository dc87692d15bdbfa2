//! The source of the next step: a seed, or a list of steps from an earlier run.

use crate::maintenance::{self, Maintenance};
use crate::members::Aim;
use crate::plan::Plan;
use crate::step::{Planned, Step};
use butterfs_fs::DiscardMode;
use butterfs_testkit::model::{ModelFs, ROOT};
use butterfs_testkit::operation::{Kind, Op, RelPath};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::workload::Generator;
use std::collections::VecDeque;

/// Chooses steps.
pub trait Choose {
    /// The next step of the main thread; none when the life is over.
    fn next(&mut self, model: &ModelFs) -> Option<Step>;
    /// The next step of another thread while the last step's commit writes, or between the pieces that move: then it
    /// `may_commit`.
    fn meanwhile(&mut self, model: &ModelFs, may_commit: bool) -> Option<Step>;
}

/// Subvolumes at one time, the top level included.
const SUBVOLUMES_MAX: usize = 7;
/// Steps of other threads beside one commit.
const MEANWHILE_MAX: u64 = 6;
/// Steps of one transaction.
const TOGETHER_MAX: usize = 8;
const SECTOR: u64 = 4096;

/// Steps that follow from a seed.
pub struct Seeded {
    plan: Plan,
    generator: Generator,
    rng: Rng,
    left: usize,
    beside: u64,
}

impl Seeded {
    /// The steps of the life with this number.
    pub fn new(plan: &Plan, life: usize) -> Seeded {
        let seed = plan.seed.wrapping_mul(0x9e37_79b9).wrapping_add(life as u64);
        let (generator, rng) = (Generator::new(seed, plan.shape), Rng::new(seed ^ 0xc401ce));
        Seeded { plan: plan.clone(), generator, rng, left: plan.steps, beside: 0 }
    }

    fn choose(&mut self, model: &ModelFs) -> Step {
        loop {
            let copies = |step: &Step| matches!(step, Step::Op(Op::CopyRange { .. }));
            let plan = &self.plan;
            let whole = !plan.fills && plan.faults.is_none() && !plan.members && !plan.maintenance;
            let step = self.propose(model).filter(|step| step.is_certain(model));
            // A copy that fails half-way has copied half.
            if let Some(step) = step.filter(|step| whole || !copies(step)) {
                return step;
            }
        }
    }

    /// Several steps that the model does, to become durable together.
    fn together(&mut self, model: &ModelFs) -> Step {
        let (mut after, mut steps) = (model.clone(), Vec::new());
        let fails = self.rng.chance(40);
        for _ in 0..4 * TOGETHER_MAX {
            // Handles belong to whoever opened them: closing one is not taken back.
            let belongs =
                |step: &Step| !step.commits() && !step.is_about_handles() || matches!(step, Step::Snapshot { .. });
            let step = self.propose(&after).filter(|step| belongs(step) && step.is_certain(&after));
            let mut then = after.clone();
            if let Some(step) = step.filter(|step| step.apply(&mut then).is_ok()) {
                (after, steps) = (then, [steps, vec![step]].concat());
            }
            if steps.len() == TOGETHER_MAX {
                break;
            }
        }
        Step::Together { steps, fails }
    }

    fn propose(&mut self, model: &ModelFs) -> Option<Step> {
        if self.rng.chance(self.plan.subvolume_percent) {
            return self.about_subvolumes(model);
        }
        if self.plan.maintenance && self.rng.chance(30) {
            return Some(Step::Maintain(maintenance::choose(&self.plan, &mut self.rng)));
        }
        if self.plan.members && self.rng.chance(4) {
            return Some(Step::Resync);
        }
        if self.plan.discard != DiscardMode::Off && self.rng.chance(5) {
            return Some(if self.rng.chance(50) { Step::Trim } else { Step::DiscardFreed });
        }
        if self.plan.aim == Some(Aim::Logs) && self.rng.chance(30) {
            let object = self.generator.object_of_kind(model, Kind::File)?;
            return Some(Step::Op(Op::Fsync { object, data_only: false }));
        }
        match self.rng.below(100) {
            0..8 => self.generator.object_of_kind(model, Kind::File).map(|object| Step::WriteBack { object }),
            8..12 => Some(Step::Commit),
            // A copy that finds the disk full half-way has copied half.
            12..15 if !self.plan.fills => self.clone_range(model),
            15..17 => self.link_handle(model),
            17..19 if self.plan.subvolume_percent > 0 => Some(Step::Clean),
            19..27 if self.plan.logs => {
                let kind = *self.rng.pick(&[Kind::File, Kind::File, Kind::Folder]);
                let object = self.generator.object_of_kind(model, kind)?;
                Some(Step::Op(Op::Fsync { object, data_only: self.rng.chance(20) }))
            }
            _ => Some(Step::Op(self.generator.next_op(model))),
        }
    }

    fn about_subvolumes(&mut self, model: &ModelFs) -> Option<Step> {
        let roots: Vec<u64> = model.subvolumes().collect();
        let path = |id: u64| model.path_of_folder(id);
        let room = roots.len() < SUBVOLUMES_MAX && model.len() < 3 * self.plan.shape.inodes_max;
        match self.rng.below(10) {
            0..2 if room => Some(Step::Subvolume { path: self.generator.any_path(model) }),
            2..6 if room => {
                let from = path(*self.rng.pick(&roots));
                let (to, read_only) = (self.generator.any_path(model), self.rng.chance(30));
                Some(Step::Snapshot { from, to, read_only })
            }
            6..8 => Some(Step::Clean),
            _ => {
                let id = *self.rng.pick(&roots);
                (id != ROOT).then(|| Step::DeleteSubvolume { path: path(id) })
            }
        }
    }

    fn clone_range(&mut self, model: &ModelFs) -> Option<Step> {
        let from = self.generator.path_of_kind(model, Kind::File)?;
        let to = self.generator.path_of_kind(model, Kind::File)?;
        let size = |path: &RelPath| model.resolve(path).map_or(0, |id| model.node(id).size()).min(1 << 20);
        let sectors = size(&from) / SECTOR;
        if sectors == 0 || from == to || model.resolve(&from) == model.resolve(&to) {
            return None;
        }
        let first = self.rng.below(sectors);
        let len = (1 + self.rng.below(sectors - first)) * SECTOR;
        let to_offset = self.rng.below(size(&to) / SECTOR + 2) * SECTOR;
        Some(Step::CloneRange { from, from_offset: first * SECTOR, to, to_offset, len })
    }

    fn link_handle(&mut self, model: &ModelFs) -> Option<Step> {
        let handle = model.handles().iter().find(|(_, id)| model.node(**id).linkable)?.0;
        Some(Step::LinkHandle { handle: *handle, to: self.generator.any_path(model) })
    }
}

impl Choose for Seeded {
    fn next(&mut self, model: &ModelFs) -> Option<Step> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.plan.maintenance && self.left + 1 == self.plan.steps {
            // A mount goes on with what the last one left.
            self.beside = self.rng.below(MEANWHILE_MAX);
            return Some(Step::Maintain(Maintenance::ContinueReplace));
        }
        // What is left at the end is durable in most lives, so that the last crash has something to keep.
        let step = if self.left == 0 && (self.plan.split || self.rng.chance(70)) {
            Step::Op(Op::Sync)
        } else if self.plan.together && self.rng.chance(15) {
            self.together(model)
        } else {
            self.choose(model)
        };
        let beside = match step {
            Step::Maintain(_) => self.rng.chance(80),
            _ => step.commits() && !self.plan.fills && self.rng.chance(self.plan.meanwhile_percent),
        };
        self.beside = if beside { 1 + self.rng.below(MEANWHILE_MAX) } else { 0 };
        Some(step)
    }

    fn meanwhile(&mut self, model: &ModelFs, may_commit: bool) -> Option<Step> {
        self.beside = self.beside.checked_sub(1)?;
        loop {
            // Data that is written beside a commit is what reuses space too early if anything does.
            let step = match self.rng.below(4) {
                0 => self.generator.object_of_kind(model, Kind::File).map(|object| Step::WriteBack { object }),
                _ => Some(self.choose(model)),
            };
            let step = step.filter(|step| step.is_certain(model));
            // Of work on chunks only what ends it comes inside of other such work.
            let fits = |step: &Step| match step {
                Step::Maintain(what) => may_commit && matches!(what, Maintenance::Cancel | Maintenance::BalanceCancel),
                step => may_commit || !step.commits(),
            };
            if let Some(step) = step.filter(fits) {
                return Some(step);
            }
        }
    }
}

/// Steps that were chosen before.
pub struct Given {
    steps: VecDeque<Planned>,
    meanwhile: VecDeque<Step>,
}

impl Given {
    /// These steps.
    pub fn new(steps: &[Planned]) -> Given {
        Given { steps: steps.to_vec().into(), meanwhile: VecDeque::new() }
    }
}

impl Choose for Given {
    fn next(&mut self, model: &ModelFs) -> Option<Step> {
        // A shortened list may have steps whose outcome is not known any more.
        while let Some(planned) = self.steps.pop_front() {
            if planned.step.is_certain(model) {
                self.meanwhile = planned.meanwhile.into();
                return Some(planned.step);
            }
        }
        None
    }

    fn meanwhile(&mut self, model: &ModelFs, may_commit: bool) -> Option<Step> {
        while let Some(step) = self.meanwhile.pop_front() {
            if step.is_certain(model) && (may_commit || !step.commits()) {
                return Some(step);
            }
        }
        None
    }
}
