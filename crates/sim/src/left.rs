//! The state after a crash: checked with all devices and with some, and what the next life begins with.

use crate::cut::Cut;
use crate::faults::Damaged;
use crate::life::Life;
use crate::maintenance;
use crate::members::{Attendance, Devices, Given, can_show, must_open, some_away, tolerance};
use crate::plan::Plan;
use crate::run::Beginning;
use crate::state::{self, Expected, Thorough, Verdict};
use butterfs_device::MemoryDevice;
use butterfs_fs::Options;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::promise::History;
use butterfs_testkit::rng::Rng;
use std::sync::Arc;

/// The disk of a cut, and what is known about it.
pub(crate) struct Left<'a> {
    plan: &'a Plan,
    life: &'a Life,
    disk: &'a MemoryDevice,
    allowed: History,
    damaged: Damaged,
    /// Devices that lack something.
    behind: Devices,
    /// See [`Beginning`].
    forked: Devices,
    /// Devices that were not there in the life.
    away: Devices,
    /// The devices that led when it began.
    led: Given,
}

impl<'a> Left<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        life: &'a Life,
        beginning: &Beginning,
        damaged: &Damaged,
        (cut, disk): (&Cut, &'a MemoryDevice),
    ) -> Left<'a> {
        let behind = if plan.members { life.behind(cut.prefix) } else { Devices::new() };
        let damaged = if plan.members { Damaged::of_stale(&behind) } else { damaged.clone() };
        let forked = beginning.forked.intersection(&behind).copied().collect();
        let led = beginning.attendance.given.clone();
        Left {
            plan,
            life,
            disk,
            allowed: life.allowed(cut.prefix),
            damaged,
            behind,
            forked,
            away: beginning.attendance.given.away.clone(),
            led,
        }
    }

    /// The same of a look at the disk that began after so many events, beside whoever writes.
    pub(crate) fn seen_from(self, from: usize, until: usize) -> Left<'a> {
        Left { allowed: self.life.allowed_between(from, until), ..self }
    }

    /// Devices that may have something that the others do not know.
    fn doubtful(&self) -> Devices {
        self.forked.union(&self.away).copied().collect()
    }

    /// Checks the state with all devices; how often it was refused.
    pub(crate) fn judge(&self, how: Thorough) -> Result<usize, String> {
        if self.plan.maintenance {
            return self.judge_maintained(&self.led, how).map(|verdict| usize::from(verdict == Verdict::Refused));
        }
        if self.judge_given(&Given::default(), how)? == Verdict::Shown {
            return Ok(0);
        }
        // What refuses says how to go on.
        let given = Given { given_up: self.doubtful(), ..Given::default() };
        match self.judge_given(&given, how)? {
            Verdict::Shown => Ok(1),
            Verdict::Refused => Err("it is refused although one side is given up".to_owned()),
        }
    }

    /// Checks it with some devices away, if that can be; how often it was refused.
    pub(crate) fn judge_some(&self, seed: u64) -> Result<usize, String> {
        if self.plan.maintenance {
            return self.judge_without_one(seed).map(|()| 0);
        }
        if !self.plan.members || tolerance(self.plan) == 0 {
            return Ok(0);
        }
        let given = Given::without(&some_away(self.plan, &mut Rng::new(seed ^ 0xa3a1)));
        if !can_show(self.plan, &given, &self.behind) {
            return Ok(0);
        }
        let verdict = self.judge_given(&given, Thorough::default());
        let verdict = verdict.map_err(|what| format!("without {:?}: {what}", given.away))?;
        Ok(usize::from(verdict == Verdict::Refused))
    }

    /// Checks what work on chunks and devices left. Where a device was lost, a crash between the superblocks of the
    /// others may be refused: nothing in the format tells the blocks of the last commit from those of one that was cut
    /// off.
    fn judge_maintained(&self, given: &Given, how: Thorough) -> Result<Verdict, String> {
        let all_count =
            || maintenance::agree(self.plan, self.disk) && maintenance::counts_all(self.plan, self.disk, given);
        let (unreadable, may_refuse) = (Damaged::default(), given.lost && !all_count());
        state::judge(self.plan, self.disk, self.expected(given, &unreadable, may_refuse), how)
    }

    /// The slots one of which may be taken away without anybody noticing.
    fn spares(&self) -> Result<Vec<usize>, String> {
        let is_spare = !self.led.lost
            && maintenance::agree(self.plan, self.disk)
            && maintenance::survivable(self.plan, self.disk, &self.led)? > 0;
        Ok(if is_spare { maintenance::slots(self.plan, self.disk) } else { Vec::new() })
    }

    fn judge_without_one(&self, seed: u64) -> Result<(), String> {
        let slots = self.spares()?;
        if slots.is_empty() {
            return Ok(());
        }
        let given = Given::without(&[*Rng::new(seed ^ 0xa3a1).pick(&slots)].into());
        let unreadable = Damaged::default();
        let judged = state::judge(self.plan, self.disk, self.expected(&given, &unreadable, false), Thorough::default());
        judged.map(drop).map_err(|what| format!("without {:?}: {what}", given.away))
    }

    /// The same as [`begin_again`](Self::begin_again), where a device may be lost meanwhile.
    fn begin_again_maintained(&self, attendance: Attendance, seed: u64) -> Result<Option<Beginning>, String> {
        let mut given = self.led.clone();
        if self.judge_maintained(&given, Thorough::default())? == Verdict::Refused {
            return Ok(None);
        }
        let (disk, slots, mut rng) = (self.disk.snapshot(), self.spares()?, Rng::new(seed ^ 0x1057));
        let look = |given: &Given, disk: &MemoryDevice| {
            let filesystem = state::open(disk, state::recovering(self.plan), self.plan, given)?;
            let shown = Fingerprint::of_damaged_library(&filesystem)?;
            Ok::<_, String>((ModelFs::of_library(&filesystem).map_err(|error| error.to_string())?, shown))
        };
        if self.plan.in_place {
            // Mirrors of what was on its way may differ, and either may be shown.
            if slots.is_empty() && maintenance::survivable(self.plan, self.disk, &given)? > 0 {
                return Ok(None);
            }
            let (_, whole) = look(&given, &disk)?;
            for slot in &slots {
                let (_, shown) = look(&Given::without(&[*slot].into()), &disk)?;
                if !differences(&whole, &shown, Compare::MODEL).is_empty() {
                    return Ok(None);
                }
            }
        }
        if !slots.is_empty() && rng.chance(30) {
            maintenance::lose(self.plan, &disk, *rng.pick(&slots));
            given.lost = true;
        }
        let (model, _) = look(&given, &disk)?;
        Ok(Some(Beginning {
            base: Arc::new(disk),
            model,
            damaged: Damaged::default(),
            attendance: Attendance { given, ..attendance },
            behind: Devices::new(),
            forked: Devices::new(),
        }))
    }

    fn judge_given(&self, given: &Given, how: Thorough) -> Result<Verdict, String> {
        let lacking: Devices = given.away.union(&self.behind).copied().collect();
        let must_open = must_open(self.plan, given, &self.behind);
        let unreadable = match (self.plan.members, must_open) {
            (false, _) => self.damaged.clone(),
            (true, true) => Damaged::default(),
            (true, false) => Damaged::of_stale(&lacking),
        };
        let is_forked = self.forked.iter().any(|device| given.believes(*device));
        if self.is_undecided(given) || self.is_masked(given) {
            return Ok(Verdict::Refused);
        }
        state::judge(
            self.plan,
            self.disk,
            self.expected(given, &unreadable, !must_open || is_forked || self.is_torn(given)),
            how,
        )
    }

    /// Whether a crash came between the superblocks of devices while others were away, or are now: nothing tells the
    /// blocks of the last commit from those of one that was cut off, on a device that lacks the superblock.
    fn is_torn(&self, given: &Given) -> bool {
        let (there, away): (Devices, Devices) = (0..self.plan.devices)
            .filter(|device| given.believes(*device))
            .partition(|device| !self.away.contains(device) && !self.forked.contains(device));
        let lagging = lagging(self.plan, self.disk, given);
        let some_away = !away.is_empty() || !given.away.is_empty();
        some_away && !there.is_disjoint(&lagging)
    }

    /// Whether none of the given devices took part in a commit of the life, and they do not agree with those that led
    /// when it began: then they show something else, and nobody was promised anything since.
    fn is_undecided(&self, given: &Given) -> bool {
        let lived = Given::without(&given.away.union(&self.forked).copied().collect());
        let ruling = |disk: &MemoryDevice, given: &Given| state::ruling(self.plan, disk, given);
        let at_first = ruling(&self.life.base, &lived);
        let has_committed = ruling(self.disk, &lived) != at_first;
        let agreed = at_first == ruling(&self.life.base, &self.led);
        let is_forked = self.forked.iter().any(|device| given.believes(*device));
        !has_committed && (is_forked || !agreed)
    }

    /// Whether a device that has something of a commit that was cut off is given, and one is not that may hold the only
    /// other copies: blocks of that commit have the addresses and generations of those that were written without it, so
    /// where each is on some devices only, those that are left may look right and be of two commits.
    fn is_masked(&self, given: &Given) -> bool {
        let is_forked = self.forked.iter().any(|device| given.believes(*device));
        let is_everywhere = tolerance(self.plan) + 1 == self.plan.devices;
        is_forked && !given.away.is_empty() && !is_everywhere
    }

    fn expected<'b>(&'b self, given: &'b Given, unreadable: &'b Damaged, may_refuse: bool) -> Expected<'b> {
        Expected {
            allowed: &self.allowed,
            numbers: &self.life.numbers,
            beginning: (&self.life.base, &self.life.first),
            damaged: &self.damaged,
            unreadable,
            given,
            may_refuse,
        }
    }

    pub(crate) fn judge_by_kernel(&self) -> Result<(), String> {
        let given = self.led.clone();
        crate::kernel::judge(self.plan, self.disk, self.expected(&given, &self.damaged, false))
    }

    /// A life on what a crash left: the disk, and the model of what it shows; none when that is not known any more.
    /// Where the devices that should come are refused, all of them come.
    pub(crate) fn begin_again(&self, attendance: Attendance, seed: u64) -> Result<Option<Beginning>, String> {
        if self.plan.maintenance {
            return self.begin_again_maintained(attendance, seed);
        }
        let all = Given::default();
        let without_forked = Given { given_up: self.doubtful(), ..Given::default() };
        let wanted = attendance.given.clone();
        let usable = |given: &&Given| given.away.is_empty() || can_show(self.plan, given, &self.behind);
        for given in [&wanted, &all, &without_forked].into_iter().filter(usable) {
            if self.judge_given(given, Thorough::default())? == Verdict::Refused {
                continue;
            }
            let filesystem = state::open(self.disk, state::recovering(self.plan), self.plan, given)?;
            let model = match ModelFs::of_library(&filesystem) {
                Ok(model) => model,
                Err(error) if error.errno() == butterfs_fs::Errno::EIO && !self.damaged.is_empty() => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            if self.plan.members && !self.mirrors_agree(given, &Fingerprint::of_damaged_library(&filesystem)?)? {
                return Ok(None);
            }
            return Ok(Some(Beginning {
                base: Arc::new(self.disk.snapshot()),
                model,
                damaged: self.damaged.clone(),
                attendance: Attendance { given: given.clone(), ..attendance },
                behind: self.behind.clone(),
                forked: self.forked_without(given),
            }));
        }
        Ok(None)
    }

    /// Whether it does not matter which device is read, of the given ones and of all: data without checksums that was
    /// on its way at a crash may differ from mirror to mirror, and nothing in the format tells which is newer.
    fn mirrors_agree(&self, given: &Given, shown: &Fingerprint) -> Result<bool, String> {
        let some = |device: usize| {
            let also_away = |mut less: Given| {
                less.away.insert(device);
                less
            };
            [also_away(Given::default()), also_away(given.clone()), Given::only(self.plan, device)]
        };
        let some = |device: usize| some(device).map(|less| Given { given_up: given.given_up.clone(), ..less });
        // A device that is behind by what was written in place since the last commit is not known to be.
        let newest = state::ruling(self.plan, self.disk, given);
        let is_told =
            |device: &&usize| state::ruling(self.plan, self.disk, &Given::only(self.plan, **device)) != newest;
        let known: Devices = self.behind.iter().filter(is_told).copied().collect();
        for less in (0..self.plan.devices).flat_map(some) {
            let is_forked = self.forked_without(given).iter().any(|device| less.believes(*device));
            let too_few = less.away.len() > tolerance(self.plan);
            if too_few || is_forked || self.is_torn(&less) || !can_show(self.plan, &less, &known) {
                continue;
            }
            // Where too few devices are left to write, reading is possible.
            let must_open = must_open(self.plan, &less, &self.behind);
            let options = Options { read_only: !must_open, ..state::recovering(self.plan) };
            let opened = state::open(self.disk, options, self.plan, &less);
            if opened.is_err() && !must_open {
                continue;
            }
            let found = match Fingerprint::of_damaged_library(&opened?) {
                Err(_) if !must_open => continue,
                found => found?,
            };
            if !differences(shown, &found, Compare::MODEL).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Devices that the next life forks off, and those that were forked before.
    fn forked_without(&self, given: &Given) -> Devices {
        forked(self.plan, self.disk, given).union(&self.forked).copied().collect()
    }
}

/// Devices of those given that lead to something else than the one that rules. Where those of the last commit lead to
/// different logs, all of them: a crash came between the superblocks of a log, or a device did not take one, and
/// nothing in the format tells which log is the newer. The one that is not replayed may be overwritten before its
/// superblock is.
pub(crate) fn lagging(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Devices {
    let own = |device: usize| state::ruling(plan, disk, &Given::only(plan, device));
    let Some(newest) = state::ruling(plan, disk, given) else { return Devices::new() };
    let believed = || (0..plan.devices).filter(|device| given.believes(*device));
    let is_of_last_commit = |device: usize| own(device).is_some_and(|own| (own.0, own.2) == (newest.0, newest.2));
    let agree = believed().filter(|device| is_of_last_commit(*device)).all(|device| own(device) == Some(newest));
    believed().filter(|device| !agree || own(*device) != Some(newest)).collect()
}

/// Devices that are as new as those that go on without them, and lead to something else.
pub(crate) fn forked(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Devices {
    let newest = state::ruling(plan, disk, given);
    let is_forked = |device: &&usize| {
        let own = state::ruling(plan, disk, &Given::only(plan, **device));
        own.is_some()
            && own != newest
            && own.map(|(generation, ..)| generation) >= newest.map(|(generation, ..)| generation)
    };
    given.away.iter().filter(is_forked).copied().collect()
}
