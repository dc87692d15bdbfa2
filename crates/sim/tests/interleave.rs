//! Operations inside each other: all pairs with an interruption (a part of them here), random threads, and the races
//! that must be found when they are put back.

use butterfs_fs::options::Canary;
use butterfs_sim::interleave::operations::{LEFT_OUT, all};
use butterfs_sim::interleave::weaving::{Weaving, Woven, pair_of};
use butterfs_testkit::public_functions;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeSet;

fn weaving(pairs: Option<usize>) -> Weaving {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Weaving { pairs, shard: (0, 1), from: 0, most: u64::MAX, until: None, threads, canary: None }
}

fn must_be_good(woven: &Woven) {
    assert!(woven.failures.is_empty(), "{}", woven.failures.join("\n"));
}

#[test]
fn every_public_function_is_run_or_left_out_with_a_reason() {
    let functions = public_functions::all().into_iter().filter(|function| function.is_of("Filesystem"));
    let public: BTreeSet<String> = functions.map(|function| function.name).collect();
    assert!(public.len() > 90, "{public:?}");
    let operations = all();
    let run: BTreeSet<&str> = operations.iter().flat_map(|operation| operation.functions.iter().copied()).collect();
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let missing: Vec<&String> =
        public.iter().filter(|name| !run.contains(name.as_str()) && !left_out.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "no operation calls {missing:?}");
    let unknown: Vec<&&str> = run.union(&left_out).filter(|name| !public.contains(**name)).collect();
    assert!(unknown.is_empty(), "there is no function {unknown:?}");
}

#[test]
fn pairs_with_one_interruption() {
    let _watchdog = Watchdog::new("pairs_with_one_interruption", 600);
    let woven = Weaving { shard: (7, 60), ..weaving(Some(1)) }.run(|_| ());
    must_be_good(&woven);
    assert!(woven.done > 100 && woven.runs > 5_000 && woven.states > 2_000, "{woven:?}");
}

#[test]
fn pairs_with_two_interruptions() {
    let _watchdog = Watchdog::new("pairs_with_two_interruptions", 600);
    let from = pair_of(&["rename A/foo A/new"], &["readdir A"]);
    let woven = Weaving { from, most: 1, ..weaving(Some(2)) }.run(|_| ());
    must_be_good(&woven);
    assert!(woven.runs > 200, "{woven:?}");
}

#[test]
fn random_threads() {
    let _watchdog = Watchdog::new("random_threads", 600);
    let run = || Weaving { most: 1_500, ..weaving(None) }.run(|_| ());
    let woven = run();
    must_be_good(&woven);
    assert!(woven.done == 1_500 && woven.states > 4_000, "{woven:?}");
}

/// Pairs in which this harness has found faults.
#[test]
fn pairs_that_went_wrong() {
    let _watchdog = Watchdog::new("pairs_that_went_wrong", 600);
    let filling = ["delete_subvolume S", "clean", "commit", "create B/fill", "write B/fill", "fsync B/fill"];
    let refilling = ["truncate S/pre 4096", "commit", "create B/fill", "write B/fill", "fsync B/fill"];
    let pairs: &[(&[&str], &[&str])] = &[
        // A write between the two steps of a range that becomes zero.
        (&["write A/foo"], &["zero A/foo"]),
        // Directories and subvolumes that go while their paths are looked for.
        (&["rmdir A/C"], &["paths"]),
        (&["delete_subvolume T"], &["paths"]),
        // Moves of read-only subvolumes.
        (&["rename S A/moved"], &["set_readonly S"]),
        // A listing while a rename is between its two changes.
        (&["exchange A/foo A/bar"], &["readdir A"]),
        // The inode that a name referred to is gone when it is locked.
        (&["symlink A/new"], &["rename A/foo A/new"]),
        // An entry that is there before the subvolume says that it is right.
        (&["finish_received T"], &["repair_uuid_tree"]),
        // Blocks of a subvolume that are somebody else's by the time they are read.
        (&filling, &refilling),
    ];
    for (first, second) in pairs {
        must_be_good(&Weaving { from: pair_of(first, second), most: 1, ..weaving(Some(1)) }.run(|_| ()));
    }
}

/// The same programs and decisions are the same run.
#[test]
fn a_run_can_be_repeated() {
    let run = || Weaving { most: 60, threads: 1, ..weaving(None) }.run(|_| ());
    let counts = |woven: Woven| (woven.done, woven.runs, woven.states, woven.failures);
    assert_eq!(counts(run()), counts(run()));
}

/// One bug on purpose, found in the pair of two programs, which is good without.
fn is_found(canary: Canary, first: &[&str], second: &[&str]) {
    let _watchdog = Watchdog::new("a canary", 600);
    let from = pair_of(first, second);
    let run = |canary| Weaving { from, most: 1, canary, ..weaving(Some(1)) }.run(|_| ());
    must_be_good(&run(None));
    assert!(!run(Some(canary)).failures.is_empty(), "{canary:?} is not found in {first:?} beside {second:?}");
}

#[test]
fn a_write_in_place_over_a_new_owner_is_found() {
    let filling = ["delete_subvolume S", "clean", "commit", "create B/fill", "write B/fill", "fsync B/fill"];
    is_found(Canary::InPlaceUnprotected, &["write back S/pre"], &filling);
    is_found(
        Canary::InPlaceUnprotected,
        &["sync"],
        &["drop S/pre", "commit", "create B/fill", "write B/fill", "fsync B/fill"],
    );
}

#[test]
fn a_snapshot_of_a_deleted_source_is_found() {
    is_found(Canary::SubvolumeCheckedEarly, &["snapshot S A/new"], &["delete_subvolume S"]);
}

#[test]
fn a_deleted_default_is_found() {
    is_found(Canary::SubvolumeCheckedEarly, &["delete_subvolume S"], &["set_default S"]);
}

#[test]
fn a_deletion_of_another_subvolume_is_found() {
    is_found(Canary::SubvolumeCheckedEarly, &["delete_expected S"], &["exchange S T"]);
}
