//! Members of a simulated filesystem that leave, return stale, fail, or keep data without checksums.
//!
//! # The fault model
//! 1. A device is *away* for a whole life, or from one moment of it on: every read, write and flush fails then.
//! 2. Writes of one device fail, of data alone, of everything else alone, of primary superblocks alone, or of both;
//!    once or for ever; with nothing or a part stored. Flushes fail; after that no write of the device succeeds,
//!    because nobody knows what it has. Reads of data fail, which says nothing about what is stored.
//! 3. This strikes any number of devices. As long as those that are away, behind or struck are no more than a profile
//!    survives, nobody may notice; beyond that operations fail, with `EIO` alone where only data was struck.
//! 4. A device that was away or struck is *behind* until a resync has ended with it. So long the profiles survive fewer
//!    others, and a filesystem that lacks too many whole devices may be refused. It never shows anything else than was
//!    promised.
//! 5. A life may end by a panic at any place of the engine, and everything that was written until then stays.
//!
//! # Invariants
//! 1. What is struck follows from the seed and the sequence of operations alone.
//! 2. What the engine may believe is checked from what happened to the devices, never from what the engine says.
//!
//! # Not here
//! Silent faults: nothing finds them in data without checksums. Slow devices: completions out of order and late are
//! what the cuts of a recording already show; how they meet other threads is the business of the interleaving harness.

mod device;
mod trouble;
mod watch;

pub use device::Member;
pub use trouble::{Aim, Failing, Part, Trouble};
pub use watch::Watch;

use crate::maintenance;
use crate::parts;
use crate::plan::Plan;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::options::DataPolicy;
use butterfs_fs::{DeviceId, Options};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::rng::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Devices by number, from 0.
pub type Devices = BTreeSet<usize>;

/// Which devices are given when a filesystem is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Devices that are not.
    pub away: Devices,
    /// Devices whose content is given up (`-o stale=`).
    pub given_up: Devices,
    /// A device was lost for ever, in a plan with [`maintenance`].
    pub lost: bool,
}

impl Given {
    /// All but these devices.
    pub fn without(away: &Devices) -> Given {
        Given { away: away.clone(), ..Given::default() }
    }

    /// One device alone.
    pub fn only(plan: &Plan, device: usize) -> Given {
        Given::without(&(0..plan.devices).filter(|other| *other != device).collect())
    }

    /// The same, with what is not given in the options.
    pub fn options(&self, options: Options) -> Options {
        let stale = self.given_up.iter().map(|device| DeviceId(*device as u64 + 1)).collect();
        Options { degraded: self.lost || !self.away.is_empty(), stale, ..options }
    }

    /// The given devices of a disk.
    pub fn devices(&self, plan: &Plan, disk: &Arc<MemoryDevice>) -> Vec<Arc<dyn BlockDevice>> {
        let all = parts::parts(Arc::clone(disk) as Arc<dyn BlockDevice>, plan.devices);
        let belongs = |device: &Arc<dyn BlockDevice>| !plan.maintenance || maintenance::belongs(&**device);
        let given = all.into_iter().enumerate();
        let given = given.filter(|(number, device)| !self.away.contains(number) && belongs(device));
        given.map(|(_, device)| device).collect()
    }

    /// Whether a device's superblock may rule.
    pub fn believes(&self, device: usize) -> bool {
        !self.away.contains(&device) && !self.given_up.contains(&device)
    }
}

/// The attendance of the members in one life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attendance {
    /// Which are given.
    pub given: Given,
    /// Their troubles.
    pub troubles: Vec<Trouble>,
    /// Nobody brings stale devices up to date but the steps of the workload.
    pub resync_is_a_step: bool,
    /// The engine panics at the place with this number, counted from 1.
    pub panics_at: Option<u64>,
    /// How new files are stored.
    pub data: DataPolicy,
}

impl Attendance {
    /// The attendance that follows from the seed for a life of a plan with [`maintenance`].
    pub fn of_maintenance(plan: &Plan, life: usize) -> Attendance {
        let mut rng = Rng::new(plan.seed.rotate_left(11) ^ 0x3a1f_e500 ^ ((life as u64) << 48));
        let points = 1 << (3 + rng.below(9));
        let in_place = DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() };
        Attendance {
            panics_at: rng.chance(15).then(|| 1 + rng.below(points)),
            data: if plan.in_place && rng.chance(70) { in_place } else { DataPolicy::default() },
            ..Attendance::default()
        }
    }

    /// The attendance that follows from the seed for a life of this plan.
    pub fn of(plan: &Plan, life: usize) -> Attendance {
        let mut rng = Rng::new(plan.seed.rotate_left(11) ^ 0x3e3b_e500 ^ ((life as u64) << 48));
        let most = tolerance(plan);
        let leave = if most > 0 && rng.chance(55) { 1 + rng.index(most) } else { 0 };
        let away: Devices = (0..leave).map(|_| rng.index(plan.devices)).collect();
        let (away, unsummed) = match plan.aim {
            // Away and back in turn, and what is written meanwhile has no checksums.
            Some(Aim::Repair) if life % 2 == 1 => (Devices::new(), true),
            Some(Aim::Repair) => ([rng.index(plan.devices)].into(), true),
            _ => (away, false),
        };
        let troubles = Trouble::some(plan, &away, &mut rng);
        let points = 1 << (3 + rng.below(9));
        let plain = DataPolicy { nodatasum: true, ..DataPolicy::default() };
        let in_place = DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() };
        Attendance {
            given: Given::without(&away),
            troubles,
            resync_is_a_step: rng.chance(60),
            panics_at: rng.chance(15).then(|| 1 + rng.below(points)),
            data: if unsummed { in_place } else { *rng.pick(&[DataPolicy::default(), plain, in_place, in_place]) },
        }
    }
}

/// The number of failed devices that all profiles of a plan survive.
pub fn tolerance(plan: &Plan) -> usize {
    survived(plan.metadata).min(survived(plan.data))
}

fn survived(profile: &str) -> usize {
    Profile::named(profile).map_or(0, |profile| profile.tolerated_failures)
}

/// Whether what was promised must be shown by these devices when those are behind; else they may be refused.
pub fn must_open(plan: &Plan, given: &Given, behind: &Devices) -> bool {
    given.away.is_empty() || given.away.union(behind).count() <= tolerance(plan)
}

/// Whether these devices can show what was promised: some device that has everything is among them.
pub fn can_show(plan: &Plan, given: &Given, behind: &Devices) -> bool {
    (0..plan.devices).any(|device| given.believes(device) && !behind.contains(&device))
}

/// Some set of devices to be without.
pub fn some_away(plan: &Plan, rng: &mut Rng) -> Devices {
    (0..1 + rng.index(tolerance(plan).max(1))).map(|_| rng.index(plan.devices)).collect()
}
