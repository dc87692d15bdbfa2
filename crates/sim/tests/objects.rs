//! The filesystem on a volume in an object store: hosts take it over from each other, and stores crash.

use butterfs_sim::campaign::{Campaign, Totals};
use butterfs_sim::objects::journal::StoreCanary;
use butterfs_sim::plan::Plan;
use butterfs_sim::run::Manner;
use butterfs_testkit::scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::ops::Range;

/// Seeds of the short form.
const SEEDS: u64 = 40;
/// From here on, more hosts meet than there are seeds: threads change the count by a few from run to run.
const FIRST: u64 = 1000;

fn campaign(seeds: Range<u64>) -> Campaign {
    Campaign { seeds, until: None, manner: Manner::default(), threads: 2 }
}

/// `BUTTERFS_SIMULATED_VOLUMES` seeds in long runs.
#[test]
fn hosts_take_a_volume_over_and_no_state_mixes_them() {
    let seeds = std::env::var("BUTTERFS_SIMULATED_VOLUMES").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let _watchdog = Watchdog::new("hosts_take_a_volume_over_and_no_state_mixes_them", 120 + 30 * seeds);
    let progress = |totals: &Totals| {
        if totals.runs.is_multiple_of(200) {
            println!("{} runs, {} crash states", totals.runs, totals.states);
        }
    };
    let totals = campaign(FIRST..FIRST + seeds).run(Plan::with_objects, progress);
    let Totals { runs, states, log_states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {log_states} with a log, {struck:?}");
    if let Some(failure) = &totals.failure {
        panic!("{failure:?}\nthe disk: {:?}", failure.export(&scratch::root()));
    }
    assert!(states as u64 >= 20 * seeds && log_states as u64 >= seeds / 2, "{states} states, {log_states} with a log");
    assert!(struck.takeovers as u64 >= seeds && struck.fenced as u64 >= seeds / 5, "{struck:?}");
    assert!(struck.tables as u64 >= 2 * seeds && struck.looks as u64 >= seeds, "{struck:?}");
    assert!(struck.segments_deleted as u64 >= 3 * seeds, "{struck:?}");
}

fn caught_in(canary: StoreCanary, runs: u64) {
    let totals = campaign(1..runs + 1).run(|seed| Plan::with_objects(seed).with_store_canary(Some(canary)), |_| {});
    let failure = totals.failure.unwrap_or_else(|| panic!("{canary:?} was not found in {runs} runs"));
    println!("{canary:?}: found in {} runs: {}", totals.runs, failure.what);
}

#[test]
fn a_store_that_ignores_conditions_is_found() {
    caught_in(StoreCanary::ConditionIgnored, 10);
}

#[test]
fn a_record_acknowledged_before_it_is_there_is_found() {
    caught_in(StoreCanary::RecordEarly, 10);
}

#[test]
fn a_record_in_front_of_its_segments_is_found() {
    caught_in(StoreCanary::SegmentEarly, 10);
}
