//! One life of a filesystem: opened, worked in, and ended by a power cut; every write and flush is recorded.

pub mod clock;

use crate::choice::Choose;
use crate::faults::{Damaged, FaultyLife, Others, Struck};
use crate::left::lagging;
use crate::maintenance::{self, Maintenance};
use crate::meanwhile::{during_commits, hide_planted_panics, is_planted, panicking};
use crate::members::{Attendance, Devices, Given, Member, Watch};
use crate::parts;
use crate::plan::Plan;
use crate::state;
use crate::step::{Planned, Step};
use crate::subject::Subject;
use butterfs_device::{BlockDevice, Event, MemoryDevice, Recorder};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Op, Outcome, RelPath, Reply, agree};
use butterfs_testkit::promise::logged::Numbers;
use butterfs_testkit::promise::{History, ModelState, Promise};
use clock::Clock;
use rustix::io::Errno;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use xxhash_rust::xxh64::Xxh64;

/// A change of the model, or a promise, at a moment of the recording.
struct Mark {
    /// Events when the step began: from then on its result may be shown.
    began: usize,
    /// Events when it had returned; none when it never did, or failed.
    ended: Option<usize>,
    /// The state after it, when there is a new one.
    state: Option<Arc<ModelState>>,
    /// A promise about the state with this number.
    promise: Option<(usize, Promise)>,
}

/// The record of a life.
pub struct Life {
    /// The device before it.
    pub base: MemoryDevice,
    /// Everything that happened to the device.
    pub events: Vec<Event>,
    /// The steps that were done.
    pub steps: Vec<Planned>,
    /// Of events and outcomes: equal for equal runs.
    pub digest: u64,
    /// A disagreement between the engine and the model.
    pub disagreement: Option<String>,
    /// The numbers of all inodes that it had.
    pub numbers: Numbers,
    /// The first state.
    pub first: Arc<ModelState>,
    /// Sectors that faults damaged, where they are no [members](crate::members).
    pub damaged: Damaged,
    /// Faults.
    pub struck: Struck,
    watch: Watch,
    /// Some files are written in place.
    in_place: bool,
    marks: Vec<Mark>,
}

/// The start of a life.
pub struct Start<'a> {
    /// Which life, counted from 0.
    pub life: usize,
    /// The disk.
    pub base: MemoryDevice,
    /// The content.
    pub model: &'a ModelFs,
    /// Devices that are given, and what happens to them.
    pub attendance: &'a Attendance,
    /// Devices that lack something.
    pub behind: &'a Devices,
    /// A volume in an object store with the content of the disk, in the place of the disk, and the clock of its store.
    pub volume: Option<(Arc<dyn BlockDevice>, Clock)>,
}

/// The state that the main thread and the others share.
struct World {
    model: ModelFs,
    chooser: Box<dyn Choose>,
    clock: Clock,
    marks: Vec<Mark>,
    steps: Vec<Planned>,
    states: usize,
    digest: Xxh64,
    disagreement: Option<String>,
    over: bool,
    fills: bool,
    maintains: bool,
    logs: bool,
    faults: Option<Arc<FaultyLife>>,
    /// The events of members, if any.
    watch: Option<Watch>,
    /// Some files have no checksums.
    unsummed: bool,
    /// Steps that are under way: their marks, and what they would lead to.
    pending: Vec<(usize, ModelFs)>,
    /// The state that the failed steps would have produced.
    perhaps: Vec<ModelFs>,
    /// The content at the end is unknown.
    unknown: bool,
    numbers: Numbers,
    /// Work on chunks and devices that came to its end.
    maintained: usize,
}

type Shared = Rc<RefCell<World>>;

impl Life {
    /// Lives.
    pub fn live(plan: &Plan, start: Start<'_>, chooser: Box<dyn Choose>) -> Life {
        let Start { life, base, model, attendance, behind, volume } = start;
        let recorder = Recorder::new();
        let recorded = parts::devices(&base, plan.devices).into_iter();
        let mut devices: Vec<_> =
            recorded.map(|part| Arc::new(recorder.record(part)) as Arc<dyn BlockDevice>).collect();
        let clock = match volume {
            None => Clock::Device(recorder.clone()),
            Some((volume, clock)) => {
                devices = vec![volume];
                clock
            }
        };
        let given = &attendance.given;
        // A crash between superblocks left some devices without the last one: until a resync has compared them nothing
        // tells them from devices that were away, or that others went on with meanwhile.
        let lagging = if plan.devices > 1 { lagging(plan, &base, given) } else { Devices::new() };
        let watch = Watch::new(plan, &recorder, given, &behind.union(&lagging).copied().collect());
        if plan.members {
            let chunks = state::chunks(plan, &base, given).unwrap_or_default();
            let member = |(number, device)| -> Arc<dyn BlockDevice> {
                Arc::new(Member::new(device, number, &attendance.troubles, &chunks, &watch))
            };
            devices = devices.into_iter().enumerate().map(member).collect();
        }
        let faults = plan.faults.filter(|_| given.away.is_empty()).map(|faults| {
            let chunks = state::chunks(plan, &base, given).unwrap_or_default();
            // Beside a device that the crash left behind no failure is survived.
            let lags = lagging.iter().any(|device| *device != faults.device);
            let others = match plan.devices {
                1 => Others::None,
                _ if lags => Others::Behind,
                _ => Others::Whole,
            };
            let device = &mut devices[faults.device];
            let faulty = Arc::new(FaultyLife::new(Arc::clone(device), faults, (&chunks, others), plan, life as u64));
            *device = Arc::clone(&faulty) as Arc<dyn BlockDevice>;
            faulty
        });
        let env = panicking(plan.seed.rotate_left(17) ^ life as u64, attendance.panics_at);
        let first = ModelState::new(model);
        let world = World {
            model: model.clone(),
            chooser,
            clock,
            marks: Vec::new(),
            steps: Vec::new(),
            states: 1,
            digest: Xxh64::new(0),
            disagreement: None,
            over: false,
            fills: plan.fills,
            maintains: plan.maintenance,
            logs: plan.logs,
            faults: faults.clone(),
            watch: plan.members.then(|| watch.clone()),
            unsummed: plan.members || plan.in_place,
            pending: Vec::new(),
            perhaps: Vec::new(),
            unknown: false,
            numbers: Numbers::default(),
            maintained: 0,
        };
        let world: Shared = Rc::new(RefCell::new(world));
        let slots = if plan.maintenance { devices.clone() } else { Vec::new() };
        let mut number = 0..;
        devices.retain(|device| {
            let is_there = !plan.maintenance || maintenance::belongs(&**device);
            is_there & !given.away.contains(&number.next().expect("endless"))
        });
        let options = given.options(Options { data: attendance.data, ..plan.options() });
        let panics = live_through(&world, (devices, slots), options, env, attendance);
        let mut world = world.borrow_mut();
        let events = recorder.events(0..recorder.len());
        let mut digest = world.digest.clone();
        events.iter().for_each(|event| digest_event(&mut digest, event));
        Life {
            base,
            events,
            steps: std::mem::take(&mut world.steps),
            digest: digest.digest(),
            disagreement: world.disagreement.take(),
            numbers: std::mem::take(&mut world.numbers),
            first,
            damaged: faults.as_ref().map_or_else(|| Damaged::of_stale(&given.away), |faulty| faulty.damaged()),
            struck: Struck {
                absences: usize::from(plan.members && !given.away.is_empty()),
                resyncs: watch.resyncs(),
                panics,
                maintained: world.maintained,
                ..faults.as_ref().map(|faulty| faulty.struck()).unwrap_or_else(|| watch.struck())
            },
            watch,
            in_place: plan.members || plan.in_place,
            marks: std::mem::take(&mut world.marks),
        }
    }

    /// The devices that lacked something after so many events.
    pub fn behind(&self, prefix: usize) -> Devices {
        self.watch.behind(prefix)
    }

    /// A life in which nothing happened.
    pub fn without_steps(plan: &Plan, base: MemoryDevice, model: &ModelFs) -> Life {
        Life {
            base,
            events: Vec::new(),
            steps: Vec::new(),
            digest: 0,
            disagreement: None,
            numbers: Numbers::default(),
            first: ModelState::new(model),
            damaged: Damaged::default(),
            struck: Struck::default(),
            watch: Watch::new(plan, &Recorder::new(), &Given::default(), &Devices::new()),
            in_place: false,
            marks: Vec::new(),
        }
    }

    /// The states that a cut after `prefix` events may show.
    pub fn allowed(&self, prefix: usize) -> History {
        self.allowed_between(prefix, prefix)
    }

    /// The states that a look may show that began after `from` events and ended after `until`.
    pub fn allowed_between(&self, from: usize, until: usize) -> History {
        let mut history = History::of(Arc::clone(&self.first));
        if self.in_place {
            history.tears_blocks();
        }
        let begun = |mark: &&Mark| mark.began <= until;
        self.marks.iter().filter(begun).filter_map(|mark| mark.state.clone()).for_each(|state| history.add(state));
        let kept = self.marks.iter().filter(|mark| mark.ended.is_some_and(|ended| ended <= from));
        for (number, promise) in kept.filter_map(|mark| mark.promise) {
            history.promise_at(number, promise);
        }
        history
    }
}

/// Opens and runs; returns how many panics ended it.
fn live_through(
    world: &Shared,
    (devices, slots): (Vec<Arc<dyn BlockDevice>>, Vec<Arc<dyn BlockDevice>>),
    options: Options,
    env: Env,
    attendance: &Attendance,
) -> usize {
    if attendance.panics_at.is_some() {
        hide_planted_panics();
    }
    let opened = catch_unwind(AssertUnwindSafe(|| Filesystem::open(devices, options, env)));
    let filesystem = match opened {
        Ok(Ok(filesystem)) => filesystem,
        // Opening may write.
        Ok(Err(_)) if world.borrow().was_told() => return 0,
        Ok(Err(error)) => {
            world.borrow_mut().disagreement = Some(format!("cannot open: {error}"));
            return 0;
        }
        Err(panic) if is_planted(&*panic) => return 1,
        Err(panic) => resume_unwind(panic),
    };
    match catch_unwind(AssertUnwindSafe(|| run(world, &filesystem, slots, !attendance.resync_is_a_step))) {
        Ok(()) => 0,
        Err(panic) if is_planted(&*panic) => {
            world.borrow_mut().end_by_panic(&filesystem);
            1
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs until the chooser has no more steps or something is wrong. The filesystem is dropped as by a power cut.
fn run(world: &Shared, filesystem: &Filesystem, slots: Vec<Arc<dyn BlockDevice>>, resync: bool) {
    let subject = Subject::new(filesystem).watched(world.borrow().watch.clone()).with_slots(slots);
    if resync {
        // What a thread in the background does after opening. A device that fails meanwhile stays as it is.
        let _ = subject.resync();
    }
    world.borrow_mut().learn(&subject);
    let beside = (Rc::clone(world), subject.clone());
    let _meanwhile = during_commits(move |point| {
        let (world, subject) = &beside;
        // Where a group is closed or space is short, what runs inside a commit would wait for that commit.
        if point.is_in_commit() && (subject.is_balancing() || !subject.has_room_to_start()) {
            return;
        }
        // One or two at each of the points that a commit reaches.
        for _ in 0..2 {
            let step = {
                let World { chooser, model, over, .. } = &mut *world.borrow_mut();
                if *over { None } else { chooser.meanwhile(model, !point.is_in_commit()) }
            };
            let Some(step) = step else { return };
            if let Some(planned) = world.borrow_mut().steps.last_mut() {
                planned.meanwhile.push(step.clone());
            }
            perform(world, subject, &step);
        }
    });
    loop {
        let step = {
            let World { chooser, model, over, .. } = &mut *world.borrow_mut();
            if *over { None } else { chooser.next(model) }
        };
        let Some(step) = step else { break };
        world.borrow_mut().steps.push(Planned { step: step.clone(), meanwhile: Vec::new() });
        perform(world, &subject, &step);
    }
    let mut world = world.borrow_mut();
    world.maintained = subject.maintained();
    let goes_wrong = world.faults.is_some() || world.watch.is_some();
    let is_readable = !world.watch.as_ref().is_some_and(Watch::may_be_unreadable);
    if goes_wrong && is_readable && world.disagreement.is_none() && !world.unknown {
        world.disagreement = world.wrong_reading(filesystem).err();
    }
}

/// Does a step to both sides and writes down what it changed and promised.
fn perform(world: &Shared, subject: &Subject, step: &Step) {
    let begun = world.borrow_mut().begin(step);
    let actual = subject.apply(step);
    let mut world = world.borrow_mut();
    world.end(step, begun, &actual, &subject.said());
    if changes(step) {
        world.learn(subject);
    }
}

/// A step that is under way.
struct Begun {
    mark: usize,
    expected: Outcome,
    /// The model before the step where it already has its result, else after it.
    other: ModelFs,
}

impl World {
    /// Predicts the outcome. A step that commits has its result at once: steps that run beside it come after it.
    fn begin(&mut self, step: &Step) -> Begun {
        let promise = match step.promise(&self.model) {
            Some(Promise::File(id)) if self.logs => Some(Promise::Logged(id)),
            promise => promise,
        };
        let mut other = self.model.clone();
        let expected = step.apply(&mut other);
        let mut begun = Begun { mark: self.marks.len(), expected, other };
        if self.watch.is_some() && !step.commits() && begun.expected.is_ok() {
            self.pending.push((begun.mark, begun.other.clone()));
        }
        self.marks.push(Mark { began: self.clock.now(), ended: None, state: None, promise: None });
        if step.commits() && begun.expected.is_ok() {
            std::mem::swap(&mut self.model, &mut begun.other);
            if matches!(step, Step::Snapshot { .. }) {
                self.push_state(begun.mark);
            }
            self.marks[begun.mark].promise = promise.map(|promise| (self.states - 1, promise));
        }
        begun
    }

    /// Where an fsync may write a log, its promise is about one inode, which its number tells from others.
    fn learn(&mut self, subject: &Subject) {
        if self.logs {
            self.numbers.learn(&self.model, &mut |path| subject.number(path));
        }
    }

    /// The model's state is the result of the step with this mark.
    fn push_state(&mut self, mark: usize) {
        self.marks[mark].state = Some(ModelState::new(&self.model));
        self.states += 1;
    }

    fn end(&mut self, step: &Step, mut begun: Begun, actual: &Outcome, said: &str) {
        self.digest.update(format!("{step:?} {actual:?}").as_bytes());
        self.pending.retain(|(mark, _)| *mark != begun.mark);
        // Within a transaction of several operations no commit makes room.
        let may_be_full = self.fills || matches!(step, Step::Together { .. }) || self.is_short_of_space(step);
        if may_be_full && matches!(actual, Err(Errno::NOSPC)) {
            self.take_back(step, begun);
            return;
        }
        if (self.fills || self.maintains)
            && let Some(shorter) = shortened(step, &begun.expected, actual)
        {
            begun.other = self.model.clone();
            begun.expected = shorter.apply(&mut begun.other);
        }
        // A device that fails when it takes over may stop all writing.
        if matches!((step, actual), (Step::Maintain(Maintenance::Replace { fails: Some(_), .. }), Err(_))) {
            self.over = true;
            return;
        }
        // Extents with and without checksums are not shared.
        if self.unsummed && matches!((step, actual), (Step::CloneRange { .. }, Err(Errno::INVAL))) {
            return;
        }
        if self.may_fail(actual) && !agree(&begun.expected, actual) {
            self.fail(step, begun, actual);
            return;
        }
        if !agree(&begun.expected, actual) {
            let Begun { expected, .. } = &begun;
            let sentence =
                || format!("step {}: {step:?}: expected {expected:?}, actual {actual:?} ({said})", self.steps.len());
            self.disagreement.get_or_insert_with(sentence);
            self.over = true;
            return;
        }
        if !step.commits() && begun.expected.is_ok() && changes(step) {
            self.model = begun.other;
            self.push_state(begun.mark);
        }
        self.marks[begun.mark].ended = Some(self.clock.now());
    }

    /// Whether a group that is being emptied may leave too little room. What ran beside a step is not taken back with
    /// it.
    fn is_short_of_space(&self, step: &Step) -> bool {
        let has_company = self.steps.last().is_some_and(|planned| !planned.meanwhile.is_empty());
        self.maintains && !(step.commits() && has_company)
    }

    /// Whether faults that struck explain an error.
    fn may_fail(&self, actual: &Outcome) -> bool {
        let (watch, struck) = (self.watch.as_ref(), self.faults.as_ref().map(|faulty| faulty.struck()));
        match actual {
            Err(Errno::IO | Errno::STALE) if self.clock.has_rival() => true,
            Err(Errno::IO) => {
                watch.is_some_and(Watch::may_fail) || struck.is_some_and(|struck| struck.told > 0 || struck.data > 0)
            }
            Err(Errno::ROFS) => self.was_told(),
            _ => false,
        }
    }

    /// Whether told faults were more than the profiles survive, or another host writes now.
    fn was_told(&self) -> bool {
        let told = self.faults.as_ref().is_some_and(|faulty| faulty.struck().told > 0);
        told || self.clock.has_rival() || self.watch.as_ref().is_some_and(Watch::may_stop)
    }

    /// A panic has ended the life: what was under way may show, and nothing is written any more.
    fn end_by_panic(&mut self, filesystem: &Filesystem) {
        let before = self.clock.now();
        for (mark, model) in std::mem::take(&mut self.pending) {
            self.marks[mark].state = Some(ModelState::new(&model));
        }
        let synced = filesystem.sync();
        if synced.is_ok() || self.clock.now() != before {
            self.disagreement = Some(format!("after a panic: sync says {synced:?}"));
        }
    }

    /// The step failed: it changed nothing and promises nothing. When the filesystem has stopped, half of it may show.
    fn fail(&mut self, step: &Step, begun: Begun, actual: &Outcome) {
        self.over |= *actual == Err(Errno::ROFS);
        // A host that was replaced cannot roll a transaction back, so it shows a part of the steps until its life ends.
        self.over |= matches!(step, Step::Together { .. });
        if matches!(step, Step::Snapshot { .. }) && begun.expected.is_ok() {
            // Other threads went on from a state with the snapshot, which may be there or not.
            (self.over, self.unknown) = (true, true);
        }
        if !step.commits() {
            if self.clock.has_rival() {
                // The record that another host refused was in flight until then.
                self.marks[begun.mark].state = Some(ModelState::new(&begun.other));
                self.states += 1;
            }
            self.perhaps.push(begun.other);
        }
        let only_data = self.watch.as_ref().is_some_and(|watch| !watch.may_stop());
        if only_data && matches!(step, Step::Op(Op::Sync)) && *actual == Err(Errno::IO) {
            // What cannot be written is an error of its files: everything else is committed.
            let mark = &mut self.marks[begun.mark];
            mark.promise = mark.promise.map(|(state, _)| (state, Promise::Names));
            mark.ended = Some(self.clock.now());
        }
    }

    /// Reading goes on whatever happened, and shows what was done.
    fn wrong_reading(&self, filesystem: &Filesystem) -> Result<(), String> {
        let stopped = self.over || self.was_told();
        let mut shown =
            Fingerprint::of_damaged_library(filesystem).map_err(|what| format!("reading at the end: {what}"))?;
        forget_placeholders(&mut shown, &self.model);
        let mut allowed = History::new(&self.model);
        self.perhaps.iter().filter(|_| stopped).for_each(|perhaps| allowed.push(perhaps));
        let (damaged, reads_go_wrong) = match &self.faults {
            Some(faulty) => (faulty.damaged(), faulty.struck().data > 0),
            None => (Damaged::default(), self.watch.as_ref().is_some_and(Watch::reads_failed)),
        };
        let read = state::tolerant(filesystem, &damaged, reads_go_wrong);
        allowed.explain(&shown, &read).map(drop).map_err(|what| format!("reading at the end: {what}"))
    }

    /// The disk was full: nothing happened, and nothing is promised.
    fn take_back(&mut self, step: &Step, begun: Begun) {
        if step.commits() && begun.expected.is_ok() {
            self.model = begun.other;
            if self.marks[begun.mark].state.take().is_some() {
                self.states -= 1;
            }
        }
    }
}

/// A placeholder of a subvolume looks like its folder at the first lookup.
pub(crate) fn forget_placeholders(shown: &mut Fingerprint, model: &ModelFs) {
    for (path, entry) in &mut shown.entries {
        let path = RelPath(path.clone());
        let node = model.resolve(&path).ok().filter(|id| model.node(*id).placeholder);
        if let (Some(_), Some((folder, _))) = (node, path.split())
            && let Ok(folder) = model.resolve(&folder)
        {
            (entry.uid, entry.gid) = (model.node(folder).uid, model.node(folder).gid);
        }
    }
}

fn changes(step: &Step) -> bool {
    let asks = |op: &Op| {
        let reads = matches!(op, Op::Read { .. } | Op::Stat { .. } | Op::ReadFolder { .. } | Op::ReadLink { .. });
        reads || matches!(op, Op::GetXattr { .. } | Op::ListXattrs { .. })
    };
    match step {
        Step::Op(op) => !asks(op),
        other => {
            use Step::{Clean, DiscardFreed, Maintain, Resync, Trim, WriteBack};
            !matches!(other, WriteBack { .. } | Clean | Resync | Trim | DiscardFreed | Maintain(_))
        }
    }
}

/// A write that came to its end early, because the disk was full.
fn shortened(step: &Step, expected: &Outcome, actual: &Outcome) -> Option<Step> {
    let (Step::Op(op), Ok(Reply::Count(wanted)), Ok(Reply::Count(done))) = (step, expected, actual) else {
        return None;
    };
    match op {
        Op::Write { object, offset, content } if done < wanted => {
            let content = Content { len: *done as usize, ..*content };
            Some(Step::Op(Op::Write { object: object.clone(), offset: *offset, content }))
        }
        _ => None,
    }
}

pub(crate) fn digest_event(digest: &mut Xxh64, event: &Event) {
    match event {
        Event::Write { device, offset, data } => {
            digest.update(&[0, *device as u8]);
            digest.update(&offset.to_le_bytes());
            digest.update(data);
        }
        Event::Discard { device, offset, len } => {
            digest.update(&[1, *device as u8]);
            digest.update(&offset.to_le_bytes());
            digest.update(&len.to_le_bytes());
        }
        Event::Flush { device, covers } => {
            digest.update(&[2, *device as u8]);
            digest.update(&covers.to_le_bytes());
        }
    }
}
