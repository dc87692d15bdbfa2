//! One seed, run: lives, crashes, verdicts; and what is done about a failure.

use crate::choice::{Choose, Given, Seeded};
use crate::cut::{Cut, Disks};
use crate::faults::{Damaged, Struck};
use crate::kernel;
use crate::left::Left;
use crate::life::{Life, Start};
use crate::meanwhile::environment;
use crate::members::{Attendance, Devices};
use crate::plan::Plan;
use crate::state::{self, Thorough};
use crate::step::Planned;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice, copy_content};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::workload::shrink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh64::xxh64;

/// How runs are done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Of so many states, one is shown to the kernel; 0 is none.
    pub kernel_every: usize,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Crash states that were checked.
    pub states: usize,
    /// Of them, by the kernel too.
    pub kernel_states: usize,
    /// Of them, with a log to be replayed.
    pub log_states: usize,
    /// Writes and flushes.
    pub events: usize,
    /// Steps.
    pub steps: usize,
    /// Faults that struck.
    pub struck: Struck,
    /// Equal for equal runs.
    pub digest: u64,
    /// The first failure.
    pub failure: Option<Box<Failure>>,
}

/// A failure, with all that is needed to repeat it.
#[derive(Clone)]
pub struct Failure {
    /// The plan, with the seed.
    pub plan: Plan,
    /// Which life, counted from 0.
    pub life: usize,
    /// The cut; none when something was wrong before.
    pub cut: Option<Cut>,
    /// The fault.
    pub what: String,
    /// The life's steps.
    pub steps: Vec<Planned>,
    beginning: Beginning,
    disk: Option<Arc<MemoryDevice>>,
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.plan.seed, self.what)?;
        writeln!(f, "  {:?}", self.plan)?;
        let Beginning { attendance, behind, forked, .. } = &self.beginning;
        if self.plan.members || self.plan.maintenance {
            writeln!(f, "  {attendance:?}, behind {behind:?}, forked {forked:?}")?;
        }
        writeln!(f, "  life {}, {:?}, {} steps:", self.life, self.cut, self.steps.len())?;
        for Planned { step, meanwhile } in &self.steps {
            writeln!(f, "    {step:?}")?;
            meanwhile.iter().try_for_each(|step| writeln!(f, "        meanwhile {step:?}"))?;
        }
        Ok(())
    }
}

/// The start of a life.
#[derive(Clone)]
pub(crate) struct Beginning {
    pub base: Arc<MemoryDevice>,
    pub model: ModelFs,
    pub damaged: Damaged,
    /// Devices that are given, and what happens to them.
    pub attendance: Attendance,
    /// Devices that lack something.
    pub behind: Devices,
    /// Devices that have something that the others never had, which nobody was promised: a crash cut a commit off.
    pub forked: Devices,
}

impl Beginning {
    pub(crate) fn of(plan: &Plan, base: MemoryDevice, model: ModelFs) -> Beginning {
        let (attendance, base) = (plan.attendance(0), Arc::new(base));
        let (damaged, behind, forked) = Default::default();
        Beginning { base, model, damaged, attendance, behind, forked }
    }
}

/// Runs a plan until the first failure.
pub fn run(plan: &Plan, manner: Manner) -> Outcome {
    if plan.split {
        return crate::split::run(plan, manner);
    }
    if plan.objects.is_some() {
        return crate::objects::run(plan, manner);
    }
    let mut outcome = Outcome::default();
    let env = environment(plan.seed);
    let mut beginning = Beginning::of(plan, plan.make(&env), ModelFs::default());
    for life in 0..plan.lives {
        let chooser = Box::new(Seeded::new(plan, life));
        match one_life(plan, manner, life, beginning, chooser, &mut outcome) {
            Ok(Some(next)) => beginning = next,
            Ok(None) => break,
            Err(failure) => {
                outcome.failure = Some(failure);
                break;
            }
        }
    }
    outcome
}

/// Runs one life and checks the states its cuts leave; returns what the next one begins with.
pub(crate) fn one_life(
    plan: &Plan,
    manner: Manner,
    number: usize,
    beginning: Beginning,
    chooser: Box<dyn Choose>,
    outcome: &mut Outcome,
) -> Result<Option<Beginning>, Box<Failure>> {
    let failed = |what: String, steps: &[Planned], cut: Option<Cut>, disk: Option<MemoryDevice>| {
        let (plan, steps, beginning) = (plan.clone(), steps.to_vec(), beginning.clone());
        Box::new(Failure { plan, life: number, cut, what, steps, beginning, disk: disk.map(Arc::new) })
    };
    let beginning_lost = beginning.attendance.given.lost;
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let Beginning { base, model, attendance, behind, .. } = &beginning;
        Life::live(
            plan,
            Start { life: number, base: base.snapshot(), model, attendance, behind, volume: None },
            chooser,
        )
    }));
    let life = lived.map_err(|panic| failed(format!("panic in a step: {}", words(&*panic)), &[], None, None))?;
    outcome.digest = outcome.digest.rotate_left(1) ^ life.digest;
    outcome.events += life.events.len();
    outcome.steps += life.steps.len();
    outcome.struck.add(life.struck);
    let mut damaged = beginning.damaged.clone();
    damaged.add(&life.damaged);
    if let Some(what) = life.disagreement.clone() {
        return Err(failed(what, &life.steps, None, None));
    }
    let seed = plan.seed.wrapping_mul(31).wrapping_add(number as u64);
    let cuts = Cut::choose(&life.events, plan.cuts, seed);
    let going_on = goes_on(plan, number, cuts.len(), seed);
    let mut disks = Disks::new(&life.base, plan.devices, &life.events);
    let mut next = None;
    for (index, cut) in cuts.iter().enumerate() {
        let for_kernel = is_for_kernel(plan, manner, &damaged, outcome);
        let disk = disks.at(cut, for_kernel || !plan.tears_superblocks());
        let left = Left::new(plan, &life, &beginning, &damaged, (cut, &disk));
        // The life before may have ended with a torn primary, which only a commit of this one replaces.
        let for_kernel = for_kernel && kernel::can_judge(plan, &disk, &beginning.attendance.given);
        let verdict = judge_cut((index, cut, seed), &left, for_kernel, outcome);
        verdict.map_err(|what| failed(what, &life.steps, Some(*cut), Some(disk.snapshot())))?;
        outcome.log_states += usize::from(state::has_log(plan, &disk));
        if index == going_on && number + 1 < plan.lives {
            let begun = catch_unwind(AssertUnwindSafe(|| left.begin_again(plan.attendance(number + 1), seed)));
            let begun = begun.unwrap_or_else(|panic| Err(format!("panic while going on: {}", words(&*panic))));
            let begun = begun.inspect(|begun| count_lost(outcome, beginning_lost, begun));
            next = begun.map_err(|what| failed(what, &life.steps, Some(*cut), Some(disk.snapshot())))?;
        }
    }
    Ok(next)
}

/// Whether the next state is one that the kernel shall see.
pub(crate) fn is_for_kernel(plan: &Plan, manner: Manner, damaged: &Damaged, outcome: &Outcome) -> bool {
    let turn = outcome.states + plan.seed as usize;
    manner.kernel_every > 0 && damaged.is_empty() && turn.is_multiple_of(manner.kernel_every)
}

/// Checks what a cut left, and counts it.
pub(crate) fn judge_cut(
    (index, cut, seed): (usize, &Cut, u64),
    left: &Left<'_>,
    for_kernel: bool,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let how = Thorough { recovered: index.is_multiple_of(4) };
    let judged = catch_unwind(AssertUnwindSafe(|| {
        outcome.struck.refusals += left.judge(how)?;
        if index.is_multiple_of(3) {
            outcome.struck.refusals += left.judge_some(seed ^ cut.prefix as u64)?;
        }
        if for_kernel { left.judge_by_kernel() } else { Ok(()) }
    }));
    judged.unwrap_or_else(|panic| Err(format!("panic while judging: {}", words(&*panic))))?;
    outcome.states += 1;
    outcome.kernel_states += usize::from(for_kernel);
    Ok(())
}

fn count_lost(outcome: &mut Outcome, was_lost: bool, begun: &Option<Beginning>) {
    let is_lost = begun.as_ref().is_some_and(|begun| begun.attendance.given.lost);
    outcome.struck.lost += usize::from(is_lost && !was_lost);
}

/// The cut from which the next life goes on. A side of a split mostly ends when it has done all that it does.
fn goes_on(plan: &Plan, life: usize, cuts: usize, seed: u64) -> usize {
    let mut rng = Rng::new(seed ^ 0x90e5);
    let any = rng.index(cuts.max(1));
    let is_side = plan.split && life > 0;
    if is_side && rng.chance(90) { cuts.saturating_sub(1) } else { any }
}

pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

impl Failure {
    /// A failure of steps on a filesystem that was made for them: what is wrong, where it was cut, and the disk then.
    pub(crate) fn of_base(
        plan: &Plan,
        base: &MemoryDevice,
        model: &ModelFs,
        (what, cut, disk): (String, Option<Cut>, Option<MemoryDevice>),
        steps: &[Planned],
    ) -> Failure {
        let beginning = Beginning::of(plan, base.snapshot(), model.clone());
        let (plan, steps, disk) = (plan.clone(), steps.to_vec(), disk.map(Arc::new));
        Failure { plan, life: 0, cut, what, steps, beginning, disk }
    }

    /// The same failure with as few steps as were found to be enough: leaving out any more, nothing fails.
    /// On volumes in object stores all steps stay, because the order of requests is another one each time.
    pub fn shrunk(&self) -> Failure {
        let mut smallest = self.clone();
        if self.plan.objects.is_some() {
            return smallest;
        }
        let mut fails = |steps: &[Planned]| {
            let (beginning, chooser) = (self.beginning.clone(), Box::new(Given::new(steps)));
            let ended = one_life(&self.plan, Manner::default(), self.life, beginning, chooser, &mut Outcome::default());
            ended.is_err_and(|failure| {
                let same = failure.cut.is_some() == self.cut.is_some();
                if same {
                    smallest = *failure;
                }
                same
            })
        };
        if fails(&self.steps) {
            shrink(self.steps.clone(), &mut fails);
        }
        smallest
    }

    /// Writes the disk that the crash left, or that the life began with, into a file of `folder`; returns its path.
    /// Several devices lie in it one behind the other.
    pub fn export(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let path = folder.join(format!("sim-{}.img", self.plan.seed));
        let disk = self.disk.as_ref().unwrap_or(&self.beginning.base);
        std::fs::create_dir_all(folder)?;
        std::fs::File::create(&path)?.set_len(disk.len())?;
        let file = FileDevice::open(&path, &FileOptions::read_write()).map_err(std::io::Error::other)?;
        copy_content(&**disk, &file)?;
        Ok(path)
    }
}

/// A number for a whole campaign.
pub fn digest_of(digests: &[u64]) -> u64 {
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
    xxh64(&bytes, 0)
}
