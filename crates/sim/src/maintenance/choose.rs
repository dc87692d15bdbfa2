//! Which work is done next.

use super::{Failing, Filters, Maintenance};
use crate::plan::Plan;
use butterfs_ondisk::balance::{SINGLE, balance_flags};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::rng::Rng;

/// Filesystems: devices, spare slots, metadata, data.
pub fn kinds() -> &'static [(usize, usize, &'static str, &'static str)] {
    &[
        (1, 1, "single", "single"),
        (1, 2, "dup", "single"),
        (1, 1, "dup", "dup"),
        (2, 1, "raid1", "raid1"),
        (2, 1, "raid1", "single"),
        (2, 2, "dup", "raid0"),
        (3, 1, "raid1", "raid1"),
        (3, 1, "raid1c3", "raid1c3"),
        (3, 1, "raid1", "raid0"),
        (4, 1, "raid10", "raid10"),
        (4, 1, "raid1c4", "raid1c3"),
        (2, 1, "raid5", "raid5"),
        (3, 1, "raid5", "raid5"),
        (3, 1, "raid1", "raid5"),
        (4, 1, "raid6", "raid6"),
    ]
}

const PROFILES: &[&str] =
    &["single", "dup", "raid0", "raid1", "raid1", "raid1c3", "raid1c4", "raid10", "raid5", "raid5", "raid6"];

/// Some work.
pub fn choose(plan: &Plan, rng: &mut Rng) -> Maintenance {
    let slot = rng.index(plan.devices);
    match rng.below(24) {
        0..4 => Maintenance::Balance(filters(plan, rng)),
        4..9 => Maintenance::BalanceSteps(1 + rng.index(60)),
        9 => Maintenance::BalancePause,
        10 => Maintenance::BalanceCancel,
        11..13 => Maintenance::Resize { slot, mib: 256 + rng.below((plan.bytes >> 20) - 255) },
        13..15 => Maintenance::Add { slot },
        15..17 => Maintenance::Remove { slot },
        17 => Maintenance::RemoveMissing,
        18 => Maintenance::ContinueReplace,
        19 => Maintenance::Cancel,
        _ => Maintenance::Replace {
            slot: rng.chance(75).then_some(slot),
            target: rng.index(plan.devices),
            spares_source: rng.chance(30),
            fails: rng.chance(20).then(|| failing(rng)),
        },
    }
}

fn failing(rng: &mut Rng) -> Failing {
    if rng.chance(70) { Failing::Write(rng.below(40)) } else { Failing::Flush(rng.below(4)) }
}

fn filters(plan: &Plan, rng: &mut Rng) -> Filters {
    let types = *rng.pick(&[
        balance_flags::TYPES,
        balance_flags::DATA,
        balance_flags::METADATA,
        balance_flags::METADATA | balance_flags::SYSTEM,
    ]);
    let possible = |name: &&str, is_data: bool| {
        let fits = Profile::named(name).is_some_and(|profile| profile.min_devices <= plan.devices);
        // Mirrors of what is written in place differ after a crash, and nobody can look at one of two on one device.
        fits && !(is_data && plan.in_place && *name == "dup")
    };
    let mut target = |is_data: bool| {
        let wanted = rng.chance(40).then(|| *rng.pick(PROFILES)).filter(|name| possible(name, is_data));
        wanted.and_then(Profile::named).map(|profile| if profile.bit == 0 { SINGLE } else { profile.bit })
    };
    let (data, metadata) = (target(true), target(false));
    Filters {
        types,
        data,
        metadata,
        // Without it most chunks move whole; with 100 the content of each moves.
        usage: rng.chance(50).then(|| *rng.pick(&[0, 30, 70, 100, 100, 100])),
        limit: rng.chance(15).then(|| 1 + rng.below(3)),
        soft: rng.chance(30),
    }
}
