//! The explorer in CI: all of one operation, and a part of two.

use butterfs_fs::options::Canary;
use butterfs_sim::explore::{Exploration, Explored};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch;
use butterfs_testkit::watchdog::Watchdog;

const ALL: Exploration =
    Exploration { length: 1, shard: (0, 1), from: 0, until: None, kernel_every: 0, threads: 2, canary: None };

fn expect_none_failed(explored: &Explored) {
    let Some(failure) = explored.failures.first() else { return };
    let image = failure.export(&scratch::root());
    panic!("{} workloads failed, first\n{failure:?}\nthe disk: {image:?}", explored.failures.len());
}

#[test]
fn every_sequence_of_one_operation() {
    const TEST: &str = "every_sequence_of_one_operation";
    let _watchdog = Watchdog::new(TEST, 300);
    let kernel = requirement::kernel_btrfs(TEST);
    let explored = Exploration { kernel_every: if kernel { 700 } else { 0 }, ..ALL }.run(|_| {});
    let Explored { units, done, workloads, states, log_states, kernel_states, .. } = explored;
    println!("{workloads} workloads, {states} states, {log_states} with a log, {kernel_states} by the kernel too");
    expect_none_failed(&explored);
    assert_eq!(done, units);
    assert!(workloads >= 3_000 && states >= 25_000 && log_states >= 4_000, "{workloads} {states} {log_states}");
    assert!(kernel_states >= 30 || !kernel, "{kernel_states} by the kernel");
}

/// Every 800th pair; all of them are `cargo xtask sim --explore 2`.
#[test]
fn some_sequences_of_two_operations() {
    let _watchdog = Watchdog::new("some_sequences_of_two_operations", 300);
    let explored = Exploration { length: 2, shard: (7, 800), ..ALL }.run(|_| {});
    println!("{} workloads, {} states, {} with a log", explored.workloads, explored.states, explored.log_states);
    expect_none_failed(&explored);
    assert!(explored.workloads >= 1_500 && explored.log_states >= 800, "{explored:?}");
}

#[test]
fn bugs_on_purpose_are_found() {
    let _watchdog = Watchdog::new("bugs_on_purpose_are_found", 300);
    for canary in [Canary::LoggedItemLeftOut, Canary::LogSuperblockEarly] {
        let explored = Exploration { canary: Some(canary), ..ALL }.run(|_| {});
        assert!(!explored.failures.is_empty(), "{canary:?} was not found in {} workloads", explored.workloads);
    }
}
