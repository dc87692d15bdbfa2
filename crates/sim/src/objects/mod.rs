//! The filesystem on a volume in an object store: hosts that take it over from each other at any moment, and every
//! store that a crash could leave.
//!
//! # The fault model
//! 1. A crash keeps every change of the store that was answered or whose effect another request has met, and of those
//!    that were asked for any subset, in any order, where their conditions hold then.
//! 2. A change that the crash did not keep may arrive later, when the next host has become the writer.
//! 3. A host stands still at one of its requests, before it takes effect or before it is answered, while the next one
//!    becomes the writer and works; and then goes on beside it. A third one takes the volume over from the second one
//!    in the same way. A host may stand still while it becomes the writer.
//! 4. Answers get lost, so that clients ask again for what is done already.
//! 5. Readers open the volume at any moment.
//!
//! # What must hold
//! After each crash the volume opens for reading and for writing, with the same content, and whatever arrives late
//! changes nothing. Its filesystem is clean and shows what the last host that became the writer may show: no state
//! mixes two of them. Each host begins with a state that has every promise that the one before it ever made, then or
//! later. A host that was replaced gets an error for every later flush.
//!
//! The steps of each host follow from the seed. The order of requests does not: the volume's threads are real ones, and
//! the same seed may pass again: a failure is its sentence, its steps and the disk.

pub mod journal;
pub mod shelf;

use crate::choice::{Choose, Seeded};
use crate::cut::Cut;
use crate::faults::Damaged;
use crate::left::Left;
use crate::life::clock::Clock;
use crate::life::{Life, Start};
use crate::meanwhile::environment;
use crate::members::Given;
use crate::plan::Plan;
use crate::run::{Beginning, Failure, Manner, Outcome, is_for_kernel, judge_cut, words};
use crate::state::{self, Thorough};
use crate::step::{Planned, Step};
use butterfs_device::{BlockDevice, MemoryDevice, is_zero};
use butterfs_remote::{Limits, ObjectDevice, Options, make};
use butterfs_store::{Kind, Store};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::rng::Rng;
use journal::{Event, Hold, Journal, ROOT, Recorded, StoreCanary};
use shelf::{Remains, Shelf, Shelves};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use xxhash_rust::xxh64::Xxh64;

/// Bytes that are copied at once from a volume.
const COPIED: u64 = 64 << 10;
/// Looks at a volume beside its writers, at most.
const LOOKS: usize = 6;
/// The number of the host that only looks.
const READER: usize = 100;

/// How a volume is used. The limits are so small that tables, segments and deletions are frequent.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Objects {
    /// Hosts that become the writer, one after the other.
    pub hosts: usize,
    pub records_per_table: u64,
    pub write_back: u64,
    pub cache: u64,
    /// For how long objects are kept that only older roots need.
    pub keep: Duration,
    /// Percent of the answers to changes that get lost.
    pub lost: u64,
    /// Somebody looks at the volume beside its writers.
    pub looks: bool,
    /// Crash states at moments when a record or a root became certain.
    pub anchors: usize,
    pub canary: Option<StoreCanary>,
}

impl Objects {
    /// At random.
    pub fn of(rng: &mut Rng) -> Objects {
        Objects {
            hosts: *rng.pick(&[1, 2, 2, 2, 3, 3]),
            records_per_table: *rng.pick(&[1, 2, 3, 5]),
            write_back: *rng.pick(&[16 << 10, 64 << 10, 256 << 10, 2 << 20]),
            cache: *rng.pick(&[64 << 10, 1 << 20]),
            keep: if rng.chance(60) { Duration::ZERO } else { Duration::from_secs(3600) },
            lost: *rng.pick(&[0, 0, 0, 3]),
            looks: rng.chance(50),
            anchors: 10,
            canary: None,
        }
    }

    fn options(&self) -> Options {
        let Objects { write_back, cache, keep, records_per_table: records, .. } = *self;
        let limits = Limits { write_back, cache, keep, records };
        Options { limits, takeover: true, gone_after: Duration::ZERO, ..Options::default() }
    }
}

/// A host that became the writer and worked, and the beginning of that.
struct Worked {
    beginning: Beginning,
    life: Life,
    /// Another one replaced it before it ended.
    was_replaced: bool,
}

/// A look at the volume beside its writers: the events when it began and ended.
struct Look {
    from: usize,
    until: usize,
    disk: MemoryDevice,
}

/// A failure: the sentence, and the host and the disk that it is about.
struct Wrong {
    what: String,
    host: Option<usize>,
    cut: Option<Cut>,
    disk: Option<MemoryDevice>,
    /// The host's steps, where it did not come to the end of its work.
    steps: Vec<Planned>,
}

impl From<String> for Wrong {
    fn from(what: String) -> Wrong {
        Wrong { what, host: None, cut: None, disk: None, steps: Vec::new() }
    }
}

/// Runs a plan until the first failure.
pub(crate) fn run(plan: &Plan, manner: Manner) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.failure = run_to(plan, manner, &mut outcome).err();
    outcome
}

fn run_to(plan: &Plan, manner: Manner, outcome: &mut Outcome) -> Result<(), Box<Failure>> {
    let objects = plan.objects.expect("a plan with objects");
    let made = made(plan, &objects);
    let failed = |what: String| {
        Box::new(Failure::of_base(plan, &MemoryDevice::new(4096), &ModelFs::default(), (what, None, None), &[]))
    };
    let (shelf, disk) = made.map_err(failed)?;
    let beginning = Beginning::of(plan, disk, ModelFs::default());
    let mut now = Some((shelf, beginning));
    for number in 0..plan.lives {
        let Some((shelf, beginning)) = now.take() else { break };
        let era = Era { plan, objects, number, shelf, beginning };
        now = era.run(manner, outcome)?;
    }
    Ok(())
}

/// A store with a volume that has an empty filesystem, and the volume's content.
fn made(plan: &Plan, objects: &Objects) -> Result<(Shelf, MemoryDevice), String> {
    let journal = Journal::quick(Shelf::default());
    let store = journal.store(0);
    make(&store, "main", plan.bytes).map_err(|error| error.to_string())?;
    let device = Arc::new(ObjectDevice::open(&store, &objects.options()).map_err(|error| error.to_string())?);
    plan.make_on(&[Arc::clone(&device) as Arc<dyn BlockDevice>], &environment(plan.seed));
    device.flush().map_err(|error| error.to_string())?;
    let (disk, _) = copied(&device).map_err(|error| error.to_string())?;
    drop(device);
    Ok((journal.shelf(), disk))
}

/// The content of a volume, and its digest.
fn copied(device: &ObjectDevice) -> std::io::Result<(MemoryDevice, u64)> {
    let disk = MemoryDevice::new(device.len());
    let (mut at, mut digest) = (device.next_data(0), Xxh64::new(0));
    let mut buf = vec![0; COPIED as usize];
    while at < device.len() {
        let start = at - at % COPIED;
        let part = &mut buf[..COPIED.min(device.len() - start) as usize];
        device.read_at(start, part)?;
        if !is_zero(part) {
            disk.write_at(start, part)?;
            digest.update(&start.to_le_bytes());
            digest.update(part);
        }
        at = device.next_data(start + COPIED);
    }
    Ok((disk, digest.digest()))
}

/// Hosts on a store, from one crash to the next.
struct Era<'a> {
    plan: &'a Plan,
    objects: Objects,
    number: usize,
    shelf: Shelf,
    beginning: Beginning,
}

/// Steps after whose first ones the host before goes on.
struct Releasing {
    steps: Seeded,
    left: usize,
    journal: Arc<Journal>,
    before: Option<usize>,
}

impl Choose for Releasing {
    fn next(&mut self, model: &ModelFs) -> Option<Step> {
        if self.left == 0 {
            self.before.take().into_iter().for_each(|host| self.journal.release(host));
        }
        self.left = self.left.saturating_sub(1);
        self.steps.next(model)
    }

    fn meanwhile(&mut self, model: &ModelFs, may_commit: bool) -> Option<Step> {
        self.steps.meanwhile(model, may_commit)
    }
}

/// Lets others know, and go on, when a host ends, however that is.
struct Ends<'a> {
    journal: &'a Journal,
    host: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.host.checked_sub(1) {
            self.journal.release(before);
        }
        self.journal.end(self.host);
    }
}

impl Era<'_> {
    fn rng(&self, salt: u64) -> Rng {
        Rng::new(self.plan.seed.rotate_left(11) ^ (self.number as u64) << 8 ^ salt << 40)
    }

    /// Runs all hosts, checks everything, and returns the store that a crash left, and what it shows.
    fn run(&self, manner: Manner, outcome: &mut Outcome) -> Result<Option<(Shelf, Beginning)>, Box<Failure>> {
        let objects = &self.objects;
        let journal = Journal::slow(self.shelf.clone(), self.rng(1), objects.lost, objects.canary);
        let mut rng = self.rng(2);
        for host in 0..objects.hosts - 1 {
            // A host that becomes the writer has about ten requests, and one that works some more for each table.
            let most = *rng.pick(&[12, 30, 60, 100]);
            journal.hold(host, Hold { request: 1 + rng.below(most), answer: rng.chance(50) });
        }
        let is_over = AtomicBool::new(false);
        let (hosts, looks) = std::thread::scope(|scope| {
            let hosts: Vec<_> = (0..objects.hosts)
                .map(|host| {
                    let journal = &journal;
                    scope.spawn(move || {
                        let _ends = Ends { journal, host };
                        let worked = catch_unwind(AssertUnwindSafe(|| self.work(journal, host)));
                        worked.unwrap_or_else(|panic| Err(format!("panic: {}", words(&*panic)).into()))
                    })
                })
                .collect();
            let looks = scope.spawn(|| self.look(&journal, &is_over));
            let hosts: Vec<_> = hosts.into_iter().map(|host| host.join().expect("panics are caught")).collect();
            is_over.store(true, Ordering::Relaxed);
            (hosts, looks.join().expect("it has no panics"))
        });
        let recorded = journal.recorded();
        let mut wrong = None;
        let mut worked: Vec<Option<Worked>> = Vec::new();
        for (host, ended) in hosts.into_iter().enumerate() {
            match ended {
                Ok(ended) => worked.push(ended),
                Err(failure) => {
                    wrong.get_or_insert(Wrong { host: Some(host), ..failure });
                    worked.push(None);
                }
            }
        }
        let reigns = Reigns::new(self, &recorded, worked);
        let judged = match wrong {
            Some(wrong) => Err(wrong),
            None => reigns.judge(looks, manner, outcome),
        };
        judged.map_err(|wrong| self.failure(&reigns, wrong))
    }

    fn failure(&self, reigns: &Reigns<'_>, wrong: Wrong) -> Box<Failure> {
        let Wrong { what, host, cut, disk, steps } = wrong;
        let worked = host.and_then(|host| reigns.worked[host].as_ref());
        let steps = worked.map_or(steps, |worked| worked.life.steps.clone());
        let Beginning { base, model, .. } = worked.map_or(&self.beginning, |worked| &worked.beginning);
        let host = host.map(|host| format!("host {host}: ")).unwrap_or_default();
        let what = format!("{host}{what}");
        let mut failure = Failure::of_base(self.plan, base, model, (what, cut, disk), &steps);
        failure.life = self.number;
        Box::new(failure)
    }

    /// The work of a host; none when another one was faster.
    fn work(&self, journal: &Arc<Journal>, host: usize) -> Result<Option<Worked>, Wrong> {
        let Era { plan, objects, number, beginning, .. } = self;
        let stands_still = host > 0 && journal.await_hold(host - 1);
        let began = journal.len();
        let store = journal.store(host);
        let device = match ObjectDevice::open(&store, &objects.options()) {
            Ok(device) => Arc::new(device),
            Err(_) if journal.others_since(host, began) => return Ok(None),
            Err(error) => return Err(format!("it cannot become the writer: {error}").into()),
        };
        let base = match copied(&device) {
            Ok((base, _)) => base,
            // Its objects may be gone.
            Err(_) if journal.has_rival(host) => return Ok(None),
            Err(error) => return Err(format!("it cannot read the volume: {error}").into()),
        };
        let model = self.shown(&base).map_err(|what| Wrong { disk: Some(base.snapshot()), ..what.into() })?;
        let begun = Beginning { base: Arc::new(base.snapshot()), model, ..beginning.clone() };
        let mut rng = self.rng(16 + host as u64);
        let mut plan = Plan::clone(plan);
        plan.steps = if host == 0 { plan.steps } else { 3 + rng.index(plan.steps) };
        let chooser = Releasing {
            steps: Seeded::new(&plan, 8 * number + host),
            left: rng.index(plan.steps),
            journal: Arc::clone(journal),
            before: host.checked_sub(1).filter(|_| stands_still),
        };
        let clock = Clock::Store { journal: Arc::clone(journal), host };
        let Beginning { model, attendance, behind, .. } = &begun;
        let volume = Some((Arc::clone(&device) as Arc<dyn BlockDevice>, clock));
        let start = Start { life: 8 * number + host, base, model, attendance, behind, volume };
        let life = Life::live(&plan, start, Box::new(chooser));
        let closes = rng.chance(25);
        let was_replaced = journal.has_rival(host);
        let ended = self.end(journal, host, &device, closes);
        drop(device);
        let wrong = life.disagreement.clone().map_or(ended, Err);
        wrong.map_err(|what| Wrong { steps: life.steps.clone(), ..what.into() })?;
        Ok(Some(Worked { beginning: begun, life, was_replaced }))
    }

    /// The last acts of a host: one that was replaced cannot make anything durable.
    fn end(&self, journal: &Journal, host: usize, device: &ObjectDevice, closes: bool) -> Result<(), String> {
        if !journal.has_rival(host) {
            if !closes {
                return Ok(());
            }
            let closed = device.close();
            let closed = closed.or_else(|error| if journal.has_rival(host) { Ok(()) } else { Err(error) });
            return closed.map_err(|error| format!("it cannot close the volume: {error}"));
        }
        let last = device.len() - COPIED;
        let flushed = device.write_at(last, &[0xee; 4096]).and_then(|()| device.flush());
        if flushed.is_ok() {
            return Err(format!("it was replaced, and can flush: {:#?}", journal.about_writers()));
        }
        if device.close().is_ok() {
            return Err("it was replaced, and can close the volume".to_owned());
        }
        Ok(())
    }

    /// The model of what a disk shows.
    fn shown(&self, disk: &MemoryDevice) -> Result<ModelFs, String> {
        let filesystem = state::open(disk, state::recovering(self.plan), self.plan, &Given::default())?;
        ModelFs::of_library(&filesystem).map_err(|error| error.to_string())
    }

    /// Opens the volume again and again beside its writers.
    fn look(&self, journal: &Arc<Journal>, is_over: &AtomicBool) -> Result<Vec<Look>, String> {
        let (mut looks, mut rng) = (Vec::new(), self.rng(3));
        if !self.objects.looks {
            return Ok(looks);
        }
        let store = journal.store(READER);
        while looks.len() < LOOKS && !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(rng.below(20_000)));
            let from = journal.len();
            let looked = match ObjectDevice::open_read_only(&store, &self.objects.options()) {
                Ok(device) => copied(&device),
                // The root changes faster than it can be read.
                Err(error) if error.kind() == Kind::Conflict => continue,
                Err(error) => return Err(format!("a reader cannot open the volume: {error}")),
            };
            match looked {
                Ok((disk, _)) => looks.push(Look { from, until: journal.len(), disk }),
                Err(_) if self.objects.keep.is_zero() => {}
                Err(error) => return Err(format!("a reader cannot read the volume: {error}")),
            }
        }
        Ok(looks)
    }
}

/// The hosts in the order in which they became the writer.
struct Reigns<'a> {
    era: &'a Era<'a>,
    recorded: &'a Recorded,
    worked: Vec<Option<Worked>>,
    /// Before the first one.
    before: Worked,
    /// The event by which a host became the writer, its change, and the host.
    takeovers: Vec<(usize, usize, usize)>,
}

impl<'a> Reigns<'a> {
    fn new(era: &'a Era<'a>, recorded: &'a Recorded, worked: Vec<Option<Worked>>) -> Reigns<'a> {
        let Beginning { base, model, .. } = &era.beginning;
        let life = Life::without_steps(era.plan, base.snapshot(), model);
        let before = Worked { beginning: era.beginning.clone(), life, was_replaced: false };
        let first = era.shelf.first_number();
        let mut takeovers: Vec<(usize, usize, usize)> = Vec::new();
        for (at, event) in recorded.events.iter().enumerate() {
            let Event::Applied(number) = *event else { continue };
            let mutation = &recorded.mutations[number - first];
            if *mutation.key == *ROOT && takeovers.iter().all(|(.., host)| *host != mutation.host) {
                takeovers.push((at, number, mutation.host));
            }
        }
        Reigns { era, recorded, worked, before, takeovers }
    }

    /// The last host of the first `count` ones that did work, and its number.
    fn last_of(&self, count: usize) -> (&Worked, Option<usize>) {
        let hosts = self.takeovers[..count].iter().rev().map(|(.., host)| *host);
        let worked = hosts.filter_map(|host| self.worked[host].as_ref().map(|worked| (worked, Some(host)))).next();
        worked.unwrap_or((&self.before, None))
    }

    fn left<'b>(&'b self, worked: &'b Worked, damaged: &'b Damaged, (cut, disk): (&Cut, &'b MemoryDevice)) -> Left<'b> {
        Left::new(self.era.plan, &worked.life, &worked.beginning, damaged, (cut, disk))
    }

    fn judge(
        &self,
        looks: Result<Vec<Look>, String>,
        manner: Manner,
        outcome: &mut Outcome,
    ) -> Result<Option<(Shelf, Beginning)>, Wrong> {
        for Worked { life, .. } in self.worked.iter().flatten() {
            outcome.digest = outcome.digest.rotate_left(1) ^ life.digest;
            outcome.steps += life.steps.len();
        }
        outcome.events += self.recorded.events.len();
        self.count(outcome);
        self.judge_beginnings()?;
        for look in &looks? {
            self.judge_look(look)?;
            outcome.struck.looks += 1;
        }
        self.judge_cuts(manner, outcome)
    }

    fn count(&self, outcome: &mut Outcome) {
        let first = self.era.shelf.first_number();
        let of = |event: &Event| match event {
            Event::Applied(number) => Some(&self.recorded.mutations[number - first]),
            _ => None,
        };
        let applied = || self.recorded.events.iter().filter_map(of);
        let roots = applied().filter(|mutation| *mutation.key == *ROOT).count();
        outcome.struck.tables += roots - self.takeovers.len();
        outcome.struck.segments_deleted += applied().filter(|mutation| mutation.deletes_segment()).count();
        outcome.struck.fenced += self.worked.iter().flatten().filter(|worked| worked.was_replaced).count();
        outcome.struck.takeovers += self.takeovers.len().saturating_sub(1);
    }

    /// Each host begins with a state that keeps every promise that the one before it ever made.
    fn judge_beginnings(&self) -> Result<(), Wrong> {
        let damaged = Damaged::default();
        let end = Cut { prefix: self.recorded.events.len(), seed: 0 };
        for (count, (.., host)) in self.takeovers.iter().enumerate() {
            let Some(Worked { beginning, .. }) = &self.worked[*host] else { continue };
            let (before, other) = self.last_of(count);
            let judged = self.left(before, &damaged, (&end, &beginning.base)).judge(Thorough::default());
            judged.map_err(|what| {
                let what = format!("host {host} begins with something else than host {other:?} left: {what}");
                Wrong { host: other, disk: Some(beginning.base.snapshot()), ..what.into() }
            })?;
        }
        Ok(())
    }

    /// A look shows what one of the hosts may show that were the writer meanwhile.
    fn judge_look(&self, look: &Look) -> Result<(), Wrong> {
        let count = |prefix: usize| self.takeovers.iter().take_while(|(at, ..)| *at < prefix).count();
        let damaged = Damaged::default();
        let cut = Cut { prefix: look.until, seed: 0 };
        let mut said = Vec::new();
        for count in count(look.from)..=count(look.until) {
            let (worked, host) = self.last_of(count);
            let left = self.left(worked, &damaged, (&cut, &look.disk)).seen_from(look.from, look.until);
            match left.judge(Thorough::default()) {
                Ok(_) => return Ok(()),
                Err(what) => said.push(format!("host {host:?}: {what}")),
            }
        }
        let what = format!("events {} to {}, a reader sees something else: {said:#?}", look.from, look.until);
        Err(Wrong { cut: Some(cut), disk: Some(look.disk.snapshot()), ..what.into() })
    }

    fn judge_cuts(&self, manner: Manner, outcome: &mut Outcome) -> Result<Option<(Shelf, Beginning)>, Wrong> {
        let Era { plan, objects, number, .. } = self.era;
        let (damaged, mut rng) = (Damaged::default(), self.era.rng(4));
        let cuts = shelf::cuts(self.recorded, objects.anchors, plan.cuts, plan.seed ^ (*number as u64) << 32);
        let going_on = rng.index(cuts.len());
        let mut shelves = Shelves::new(&self.era.shelf, self.recorded);
        let mut next = None;
        for (index, cut) in cuts.iter().enumerate() {
            let remains = shelves.at(cut);
            // With a takeover everything counts that was written down before it.
            let last = self.takeovers.iter().rposition(|(_, number, _)| remains.kept.contains(number));
            let (worked, host) = self.last_of(last.map_or(0, |last| last + 1));
            let wrong = |what: String, disk| Wrong { host, cut: Some(*cut), disk, ..what.into() };
            let disk = opened(objects, &remains, index.is_multiple_of(2)).map_err(|what| wrong(what, None))?;
            let left = self.left(worked, &damaged, (cut, &disk));
            let for_kernel = is_for_kernel(plan, manner, &damaged, outcome);
            let judged = judge_cut((index, cut, plan.seed), &left, for_kernel, outcome);
            judged.map_err(|what| wrong(what, Some(disk.snapshot())))?;
            outcome.log_states += usize::from(state::has_log(plan, &disk));
            if index == going_on && number + 1 < plan.lives {
                let begun = left.begin_again(plan.attendance(0), plan.seed);
                let begun = begun.map_err(|what| wrong(what, Some(disk.snapshot())))?;
                next = begun.map(|begun| (remains.shelf.clone(), begun));
            }
        }
        Ok(next)
    }
}

/// Opens what a crash left, for reading and for writing; both show the same, whatever arrives late.
fn opened(objects: &Objects, remains: &Remains, looks_again: bool) -> Result<MemoryDevice, String> {
    let journal = Journal::quick(remains.shelf.clone());
    let store = journal.store(0);
    let options = objects.options();
    let look = |when: &str| {
        let reader = ObjectDevice::open_read_only(&store, &options);
        let reader = reader.map_err(|error| format!("{when} it does not open for reading: {error}"))?;
        copied(&reader).map_err(|error| format!("{when} it cannot be read: {error}"))
    };
    let (disk, digest) = look("as the crash left it,")?;
    let writer = ObjectDevice::open(&store, &options);
    let writer = writer.map_err(|error| format!("it does not open for writing: {error}"))?;
    journal.arrive(&remains.late);
    let (_, taken) = copied(&writer).map_err(|error| format!("its writer cannot read it: {error}"))?;
    if taken != digest {
        return Err("its writer sees something else than a reader before".to_owned());
    }
    if looks_again && look("after a takeover,")?.1 != digest {
        return Err("a reader sees something else after a takeover".to_owned());
    }
    used(&store, &writer, digest, &options)?;
    Ok(disk)
}

/// The next writer can write.
fn used(store: &Store, writer: &ObjectDevice, before: u64, options: &Options) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the next writer cannot write: {error}");
    let last = writer.len() - COPIED;
    let mut was = vec![0; 4096];
    writer.read_at(last, &mut was).map_err(|error| failed(&error))?;
    let other: Vec<u8> = was.iter().map(|byte| byte ^ 0x5a).collect();
    let put = |bytes: &[u8]| writer.write_at(last, bytes).and_then(|()| writer.flush()).map_err(|error| failed(&error));
    put(&other)?;
    put(&was)?;
    let reader = ObjectDevice::open_read_only(store, options).map_err(|error| failed(&error))?;
    let (_, now) = copied(&reader).map_err(|error| failed(&error))?;
    if now == before { Ok(()) } else { Err("the next writer's writes are not there".to_owned()) }
}
