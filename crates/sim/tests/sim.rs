//! The simulator in CI: the same seeds every time, so that a failure is a change of the code and never chance.

use butterfs_fs::options::Canary;
use butterfs_sim::campaign::{Campaign, Totals};
use butterfs_sim::plan::Plan;
use butterfs_sim::run::{Manner, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::ops::Range;

const SEEDS: Range<u64> = 1..121;
const FAULTY_SEEDS: Range<u64> = 81..201;
const MEMBER_SEEDS: Range<u64> = 1..25;
const SPLIT_SEEDS: Range<u64> = 1..41;
const TOGETHER_SEEDS: Range<u64> = 1..26;
const MIN_SPLITS: usize = 14;
const STATES: usize = 7_500;
const KERNEL_STATES: usize = 190;
const MAINTAINED_SEEDS: Range<u64> = 1..11;
const PARITY_SEEDS: Range<u64> = 1..17;
const LOG_STATES: usize = 380;

fn campaign(seeds: Range<u64>, kernel_every: usize) -> Campaign {
    Campaign { seeds, until: None, manner: Manner { kernel_every }, threads: 2 }
}

fn expect_none_failed(totals: &Totals) {
    let Some(failure) = &totals.failure else { return };
    println!("{failure:?}");
    let smallest = failure.shrunk();
    let image = smallest.export(&scratch::root());
    panic!("with as few steps as possible:\n{smallest:?}\nthe disk: {image:?}");
}

#[test]
fn every_state_that_a_crash_leaves_is_good() {
    const TEST: &str = "every_state_that_a_crash_leaves_is_good";
    let _watchdog = Watchdog::new(TEST, 500);
    let kernel = requirement::kernel_btrfs(TEST);
    let totals = campaign(SEEDS, if kernel { 36 } else { 0 }).run(Plan::of, |_| {});
    let Totals { runs, states, kernel_states, log_states, .. } = totals;
    println!("{runs} runs, {states} crash states, {log_states} with a log, {kernel_states} by the kernel too");
    expect_none_failed(&totals);
    assert!(states >= STATES, "{states} crash states");
    assert!(log_states >= LOG_STATES, "{log_states} with a log");
    assert!(kernel_states >= KERNEL_STATES || !kernel, "{kernel_states} by the kernel");
}

#[test]
fn every_fault_is_survived() {
    let _watchdog = Watchdog::new("every_fault_is_survived", 500);
    let totals = campaign(FAULTY_SEEDS, 0).run(Plan::with_faults, |_| {});
    let Totals { runs, states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {struck:?}");
    expect_none_failed(&totals);
    // A bit that nothing protects, behind the checksum of a block.
    expect_none_failed(&campaign(8_000_006..8_000_007, 0).run(Plan::with_faults, |_| {}));
    assert!(struck.mirrors >= 180 && struck.data >= 22 && struck.told >= 28, "{struck:?}");
}

#[test]
fn members_leave_return_and_fail() {
    let _watchdog = Watchdog::new("members_leave_return_and_fail", 500);
    let totals = campaign(MEMBER_SEEDS, 0).run(Plan::with_members, |_| {});
    let Totals { runs, states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {struck:?}");
    expect_none_failed(&totals);
    assert!(states >= 1500 && struck.absences >= 10 && struck.resyncs >= 50, "{states} states, {struck:?}");
    assert!(struck.mirrors >= 3 && struck.told >= 1 && struck.panics >= 4 && struck.refusals >= 20, "{struck:?}");
    // Two logs of one generation; a commit that a crash cut off, and another one with the same addresses.
    for seed in [5_100_370, 6_001_186] {
        expect_none_failed(&campaign(seed..seed + 1, 0).run(Plan::with_members, |_| {}));
    }
}

#[test]
fn sides_that_lived_apart_are_told_apart() {
    let _watchdog = Watchdog::new("sides_that_lived_apart_are_told_apart", 500);
    let totals = campaign(SPLIT_SEEDS, 0).run(Plan::with_split, |_| {});
    let Totals { runs, states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {struck:?}");
    expect_none_failed(&totals);
    // A third of the runs.
    assert!(struck.splits >= MIN_SPLITS && struck.joined >= 10, "{struck:?}");
    // Both sides wrote one leaf alike.
    expect_none_failed(&campaign(2008..2009, 0).run(Plan::with_split, |_| {}));
}

/// Nothing that was committed or fsynced is lost, whichever devices are taken from whatever a crash leaves.
#[test]
fn rows_with_parity_survive_crashes_and_lost_devices() {
    let _watchdog = Watchdog::new("rows_with_parity_survive_crashes_and_lost_devices", 500);
    let totals = campaign(PARITY_SEEDS, 0).run(Plan::with_parity, |_| {});
    let Totals { runs, states, log_states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {log_states} with a log, {struck:?}");
    expect_none_failed(&totals);
    assert!(states >= 400 && log_states >= 20, "{states} crash states, {log_states} with a log");
}

#[test]
fn parity_that_is_not_updated_is_found() {
    caught_in(Canary::ParityNotUpdated, 10, Plan::with_parity);
}

#[test]
fn data_beside_what_is_needed_is_found() {
    caught_in(Canary::RowsShared, 10, Plan::with_parity);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let _watchdog = Watchdog::new("the_same_seed_is_the_same_run", 300);
    let plan = |seed: u64| match seed % 4 {
        0 => Plan::with_faults(seed),
        1 => Plan::with_members(seed),
        2 => Plan::with_split(seed),
        _ => Plan::of(seed),
    };
    let once = || (1000..1012).map(|seed| run(&plan(seed), Manner::default()).digest).collect::<Vec<_>>();
    let first = once();
    // On another thread too.
    let second = std::thread::scope(|scope| scope.spawn(once).join().expect("nothing panics"));
    assert_eq!(first, second);
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:x?}");
}

#[test]
fn several_steps_are_one() {
    const TEST: &str = "several_steps_are_one";
    let _watchdog = Watchdog::new(TEST, 300);
    let kernel = requirement::kernel_btrfs(TEST);
    let totals = campaign(TOGETHER_SEEDS, if kernel { 40 } else { 0 }).run(Plan::with_together, |_| {});
    let Totals { runs, states, kernel_states, .. } = totals;
    println!("{runs} runs, {states} crash states, {kernel_states} by the kernel too");
    expect_none_failed(&totals);
    assert!(states >= 2000, "{states} states");
}

#[test]
fn steps_that_a_crash_separates_are_found() {
    caught_in(Canary::TogetherSeparated, 5, Plan::with_together);
}

#[test]
fn remains_of_a_transaction_are_found() {
    caught_in(Canary::LeftBehind, 5, Plan::with_together);
}

/// A bug on purpose is found within so many runs.
fn caught(canary: Canary, runs: u64) {
    // Much beside each commit: that is when space is reused.
    caught_in(canary, runs, |seed| Plan { meanwhile_percent: 90, ..Plan::of(seed) });
}

fn caught_in(canary: Canary, runs: u64, plan: impl Fn(u64) -> Plan + Sync) {
    caught_among(canary, 1..runs + 1, plan);
}

fn caught_among(canary: Canary, seeds: Range<u64>, plan: impl Fn(u64) -> Plan + Sync) {
    let _watchdog = Watchdog::new("canary", 300);
    let plan = |seed| Plan { canary: Some(canary), ..plan(seed) };
    let totals = campaign(seeds.clone(), 0).run(plan, |_| {});
    let failure = totals.failure.unwrap_or_else(|| panic!("{canary:?} was not found by seeds {seeds:?}"));
    println!("{canary:?}: seed {}, {}", failure.plan.seed, failure.what);
}

#[test]
fn a_barrier_left_out_is_found() {
    caught(Canary::NoBarrier, 10);
}

#[test]
fn a_reference_miscounted_is_found() {
    caught(Canary::ReferenceMiscounted, 10);
}

#[test]
fn a_logged_item_left_out_is_found() {
    caught(Canary::LoggedItemLeftOut, 30);
}

#[test]
fn a_log_superblock_too_early_is_found() {
    caught(Canary::LogSuperblockEarly, 30);
}

#[test]
fn secondary_superblocks_without_the_log_are_found() {
    caught(Canary::CopiesBehind, 100);
}

#[test]
fn space_reused_too_early_is_found() {
    caught(Canary::PinnedReusedEarly, 200);
}

#[test]
fn a_checksum_ignored_is_found() {
    caught_in(Canary::ChecksumIgnored, 30, Plan::with_faults);
}

#[test]
fn a_failed_write_ignored_is_found() {
    caught_in(Canary::WriteErrorIgnored, 80, Plan::with_faults);
}

#[test]
fn a_stale_member_believed_is_found() {
    caught_in(Canary::StaleBelieved, 20, Plan::with_members);
}

#[test]
fn an_interrupted_member_forgiven_is_found() {
    // One of a thousand seeds finds it.
    caught_among(Canary::InterruptedForgiven, 1046..1056, Plan::with_members);
}

#[test]
fn a_loss_that_no_tree_names_is_found() {
    caught_among(Canary::LossUnnamed, 7386..7396, Plan::with_members);
}

#[test]
fn histories_not_compared_are_found() {
    caught_in(Canary::HistoriesNotCompared, 40, Plan::with_split);
}

#[test]
fn a_stale_member_forgotten_is_found() {
    caught_in(Canary::StaleForgotten, 20, Plan::with_members);
}

#[test]
fn mirrors_that_take_turns_are_found() {
    caught_in(Canary::MirrorsTakeTurns, 10, Plan::with_members);
}

#[test]
fn a_log_on_too_few_devices_is_found() {
    caught_in(Canary::LogOnTooFew, 40, Plan::with_members);
}

#[test]
fn a_repair_from_a_stale_member_is_found() {
    caught_in(Canary::RepairsFromStale, 40, Plan::with_members);
}

#[test]
fn a_panic_that_aborts_nothing_is_found() {
    caught_in(Canary::PanicForgiven, 20, Plan::with_members);
}

#[test]
fn data_overwritten_before_its_loss_is_durable_is_found() {
    // The first one that finds it is 347.
    caught_among(Canary::UnsharedEarly, 340..350, Plan::with_members);
}

/// Chunks that are balanced, and devices that are added, removed, resized, replaced and lost, beside everything else.
#[test]
fn work_on_chunks_and_devices_survives_crashes() {
    let _watchdog = Watchdog::new("work_on_chunks_and_devices_survives_crashes", 500);
    let totals = campaign(MAINTAINED_SEEDS, 0).run(Plan::with_maintenance, |_| {});
    let Totals { runs, states, log_states, struck, .. } = totals;
    println!("{runs} runs, {states} crash states, {log_states} with a log, {struck:?}");
    expect_none_failed(&totals);
    assert!(states >= 400 && struck.maintained >= 50 && struck.lost >= 1, "{states} states, {struck:?}");
}

#[test]
fn stripes_swapped_before_their_copy_is_durable_are_found() {
    caught_in(Canary::StripesSwappedEarly, 12, Plan::with_maintenance);
}

#[test]
fn a_reference_rewritten_in_one_tree_only_is_found() {
    // The first one that finds it is 37.
    caught_among(Canary::RelocationInOneTree, 35..40, Plan::with_maintenance);
}
