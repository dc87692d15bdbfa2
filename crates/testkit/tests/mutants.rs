//! Mutants by the thousand: see `butterfs_testkit::mutants` for what is asked of each.
//!
//! `BUTTERFS_FUZZ=100` makes a hundred times as many, `BUTTERFS_FUZZ_SEED` begins elsewhere; `BUTTERFS_MUTANT=7` runs
//! this one seed and says everything about it.

use butterfs_ondisk::layout::STRUCTURES;
use butterfs_testkit::mutants::operations::{ELSEWHERE, OPERATIONS};
use butterfs_testkit::mutants::{Outcome, campaign, run, run_in, shapes};
use butterfs_testkit::public_functions;
use butterfs_testkit::rng::Rng;
use std::collections::BTreeSet;
use std::time::Duration;

/// In a test run.
const IMAGES: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn mutants_are_worked_in() {
    if let Some(seed) = number("BUTTERFS_MUTANT") {
        let mut outcome = Outcome::default();
        let result = run(&mut Rng::new(seed), &mut outcome);
        let shape = shapes().iter().find(|shape| shape.name == outcome.shape).expect("it was chosen");
        println!("{outcome:#?}\nnotes of the shape: {:?}\n{result:?}", shape.notes);
        return assert!(result.is_ok());
    }
    let images = IMAGES * number("BUTTERFS_FUZZ").unwrap_or(1);
    many(images, number("BUTTERFS_SOAK_SECONDS").map(Duration::from_secs));
}

/// A commit that began a chunk while it booked references had no item for its block group. This seed changes nothing;
/// it means something as long as the table of operations stays as it is.
#[test]
fn a_commit_begins_a_chunk_while_it_books() {
    let shape = shapes().iter().find(|shape| shape.name == "mixed groups, full metadata items").expect("a known shape");
    let mut outcome = Outcome::default();
    run_in(shape, 0, &mut Rng::new(26_039), &mut outcome).unwrap_or_else(|what| panic!("{what}: {outcome:#?}"));
}

/// Millions: as many as there is time for.
#[test]
#[ignore = "takes as long as BUTTERFS_SOAK_SECONDS says, 20 minutes if it says nothing"]
fn soak() {
    many(u64::MAX >> 1, Some(Duration::from_secs(number("BUTTERFS_SOAK_SECONDS").unwrap_or(1200))));
}

fn many(images: u64, limit: Option<Duration>) {
    let first = number("BUTTERFS_FUZZ_SEED").unwrap_or(1);
    let tally = campaign(first..first + images, limit, &mut |failure| eprintln!("{failure}"));
    println!("{}", tally.summary());
    assert!(tally.failures.is_empty(), "{} failures, the first one:\n{}", tally.failures.len(), tally.failures[0]);
    if tally.images >= IMAGES {
        assert!(
            tally.clean > tally.images / 20 && tally.opened > tally.images / 4 && tally.noticed > tally.images / 20
        );
        every_operation_was_called(&tally.operations.keys().copied().collect());
        every_structure_was_changed(
            &tally.structures.keys().filter_map(|structure| structure.split(' ').nth(1)).collect(),
        );
    }
}

fn every_operation_was_called(called: &BTreeSet<&str>) {
    let missing: Vec<&str> = OPERATIONS
        .iter()
        .flat_map(|table| table.iter())
        .map(|(name, _)| *name)
        .filter(|name| !called.contains(name))
        .collect();
    assert!(missing.is_empty(), "never called: {missing:?}");
}

/// Structures that are parts of others, or lie in no tree, or only while chunks move or devices change.
const PARTS: [&str; 8] = [
    "RootBackup",
    "ItemHeader",
    "Timespec",
    "FileExtentBody",
    "LeftState",
    "BalanceArgs",
    "BalanceItem",
    "DevReplaceItem",
];
/// Only the kernel writes them, where it and its tools are there.
const OF_THE_KERNEL: [&str; 4] = ["FreeSpaceHeader", "QgroupStatus", "QgroupInfo", "QgroupLimit"];

fn every_structure_was_changed(changed: &BTreeSet<&str>) {
    let with_the_kernel = shapes().iter().any(|shape| shape.name.starts_with("kernel:"));
    let asked = |name: &str| !PARTS.contains(&name) && (with_the_kernel || !OF_THE_KERNEL.contains(&name));
    let missing: Vec<&str> =
        STRUCTURES.iter().map(|one| one.name).filter(|name| asked(name) && !changed.contains(name)).collect();
    assert!(missing.is_empty(), "never changed: {missing:?}");
}

#[test]
fn without_changes_nothing_speaks_of_damage() {
    for shape in shapes() {
        for seed in 0..6 {
            let mut outcome = Outcome::default();
            let result = run_in(shape, 0, &mut Rng::new(seed), &mut outcome);
            assert!(outcome.is_clean == shape.is_clean && outcome.is_opened, "{}: {outcome:?}", shape.name);
            assert!(
                result.is_ok() && outcome.noticed.is_empty(),
                "{}, seed {seed}: {result:?} {outcome:?}",
                shape.name
            );
        }
    }
}

#[test]
fn everything_that_can_be_called_is_called() {
    let mut known: BTreeSet<&str> = OPERATIONS.iter().flat_map(|table| table.iter()).map(|(name, _)| *name).collect();
    known.extend(ELSEWHERE);
    let mut functions = public_functions::all();
    functions.retain(|function| function.is_of("Filesystem") || function.is_of("SnapshotReader"));
    let missing: Vec<&str> =
        functions.iter().map(|function| &*function.name).filter(|name| !known.contains(name)).collect();
    assert!(functions.len() > 80 && missing.is_empty(), "not in the table of operations: {missing:?}");
}
