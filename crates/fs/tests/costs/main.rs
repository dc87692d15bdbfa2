//! Cost has a bound: each public operation beside many of the things that a user can make many of.
//!
//! A scene has `n` of one thing (`scene`): references to an extent, entries, extents, snapshots, links, levels,
//! attributes, open files, unwritten files, block groups, pieces of free space. Every operation (`names`, `contents`,
//! `subvolumes`, `whole`) runs in every scene in three sizes, each four times the one before. The checker (`judge`)
//! compares:
//!
//! 1. Steps: tree blocks and items that were looked at. The same calls make the same count, so a machine's load changes
//!    nothing. An operation on one thing may cost as much in the largest scene as in the smallest, and twice that for a
//!    deeper tree; an operation on all of them may cost `n log n`.
//! 2. Time on the processor, for what happens in memory: wide margins, and several tries.
//! 3. The most steps, and reads of tree blocks, for which everybody waited in one go.
//!
//! Two bugs on purpose must be found: `Canary::ReferencesScanned` and `Canary::BookedAtOnce`. `BUTTERFS_COSTS` is a
//! factor for all sizes.

mod cold;
mod contents;
mod judge;
mod meter;
mod names;
mod scene;
mod subvolumes;
mod waits;
mod whole;
#[allow(dead_code)]
#[path = "../contents/world.rs"]
mod world;
mod written;

use butterfs_fs::options::Canary;
use judge::{Report, judge};
use meter::{Operation, measure};
use scene::{Kind, Scene};
use std::collections::BTreeSet;

/// Public functions that do nothing but look at single values or turn a switch, and those that end a filesystem.
const WITHOUT_COST: &[&str] = &[
    "root",
    "notes",
    "options",
    "superblock",
    "is_read_only",
    "take_messages",
    "info",
    "sectorsize",
    "halt_switch",
    "abort",
    "chunks",
    "bytes",
    "data_policy",
    "set_data_policy",
    "log_stats",
    "go_down",
    "last_scrub",
    "scrub_progress",
    "cancel_scrub",
    "limit_scrub",
    "scrub_limits",
    "scrub_totals",
    "device_conditions",
    "missing_devices",
    "stopped",
    // The same as functions of the table, with one difference that is decided at once.
    "copy_range_as",
    "readdir_until",
    "start_scrub",
    "add_done",
    "balance_ask_to_cancel",
    "balance_cancel",
    "balance_pause",
    "balance_status",
    "become_operation",
    "begin_exclusive",
    "cancel",
    "cancel_exclusive",
    "chunk_usage",
    "device_at",
    "device_usage",
    "discard_mode",
    "exclusive_operation",
    "freed_waiting",
    "global_reserve",
    "is_cancelled",
    "must_go_on",
    "progress",
    "replace_status",
    "set_discard_mode",
    "set_total",
    "space_usage",
    "wait_until_stopped",
    // A path lookup, and what `referrers_of` answers, with the same rows.
    "find_subvolume",
    "has_other_users",
    // Work on whole chunks and devices: it grows with their bytes, in steps of bounded size; tests of devices, balance
    // and discards.
    "add_device",
    "add_device_at",
    "is_seed",
    "sprouted",
    "balance_begin",
    "balance_begin_again",
    "balance_drive",
    "balance_resume",
    "balance_start",
    "balance_step",
    "begin_replace",
    "begin_replace_at",
    "cancel_replace",
    "continue_replace",
    "discard_freed",
    "migrate_chunk",
    "remove_device",
    "resize_device",
    "run",
    "run_in_background",
    "trim",
];

fn all_operations() -> Vec<Operation> {
    [names::OPERATIONS, contents::OPERATIONS, subvolumes::OPERATIONS, whole::OPERATIONS].concat()
}

/// The factor by which scenes are larger than in a test run.
fn factor() -> usize {
    std::env::var("BUTTERFS_COSTS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// The scenes of a long run: those whose name is `BUTTERFS_COSTS_SCENE`, or all.
fn kinds() -> Vec<Kind> {
    let asked = std::env::var("BUTTERFS_COSTS_SCENE");
    Kind::ALL.into_iter().filter(|kind| asked.as_ref().map_or(true, |name| *name == format!("{kind:?}"))).collect()
}

/// The three sizes of a scene.
fn sizes(kind: Kind) -> [usize; 3] {
    let least = kind.least() * factor();
    [least, 4 * least, 16 * least]
}

/// Runs all `operations` in the scenes of one kind.
fn run(kind: Kind, operations: &[Operation]) -> Report {
    let rows = sizes(kind).map(|size| measure(&Scene::new(kind, size, None), operations));
    judge(kind, sizes(kind), &rows)
}

/// The same, again where only time on the processor was too long: others need the caches too.
fn faults(kind: Kind, operations: &[Operation]) -> Vec<String> {
    let mut report = run(kind, operations);
    for _ in 0..3 {
        if report.slow.is_empty() {
            break;
        }
        let again = run(kind, operations).slow;
        report.slow.retain(|(what, _)| again.iter().any(|(other, _)| other == what));
    }
    if std::env::var_os("BUTTERFS_COSTS_SHOW").is_some() {
        report.table.iter().for_each(|line| println!("{line}"));
    }
    report.faults.into_iter().chain(report.slow.into_iter().map(|(_, sentence)| sentence)).collect()
}

fn expect_none(kinds: &[Kind]) {
    let operations = all_operations();
    let found: Vec<String> = kinds.iter().flat_map(|kind| faults(*kind, &operations)).collect();
    assert!(found.is_empty(), "{} costs are too high:\n{}", found.len(), found.join("\n"));
}

/// All scenes, in sizes that `BUTTERFS_COSTS` says.
#[test]
#[ignore = "long: cargo xtask soak costs"]
fn beside_everything() {
    expect_none(&kinds());
}

#[test]
fn beside_many_names() {
    expect_none(&[Kind::Entries, Kind::Links, Kind::Levels, Kind::Attributes]);
}

#[test]
fn beside_much_content() {
    expect_none(&[Kind::References, Kind::Extents, Kind::Groups, Kind::Fragments]);
}

#[test]
fn beside_many_files() {
    expect_none(&[Kind::Open, Kind::Changed]);
}

#[test]
fn beside_many_snapshots() {
    expect_none(&[Kind::Snapshots]);
}

/// The findings about one operation beside many references, with a bug on purpose.
fn found_with(canary: Canary, (function, how): (&str, &str), size: usize) -> Vec<String> {
    let all = all_operations().into_iter();
    let operations: Vec<Operation> =
        all.filter(|operation| (operation.function, operation.how) == (function, how)).collect();
    assert_eq!(operations.len(), 1);
    let sizes = [size / 16, size / 4, size];
    let rows = sizes.map(|size| measure(&Scene::new(Kind::References, size, Some(canary)), &operations));
    judge(Kind::References, sizes, &rows).faults
}

#[test]
fn references_that_are_all_looked_at_are_found() {
    let found = found_with(Canary::ReferencesScanned, ("clone_range", "all"), 2400);
    assert!(found.iter().any(|line| line.contains("(all)") && line.contains("n log n")), "{found:?}");
}

#[test]
fn a_commit_that_books_everything_is_found() {
    let found = found_with(Canary::BookedAtOnce, ("unlink", "of a whole copy"), 20_000);
    assert!(found.iter().any(|line| line.contains("everybody waited")), "{found:?}");
}

/// The names of the public functions. Steps in the background are there for tests.
fn public_functions() -> BTreeSet<String> {
    let all = butterfs_testkit::public_functions::all().into_iter();
    all.filter(|function| function.file != "steps.rs").map(|function| function.name).collect()
}

#[test]
fn every_public_function_is_measured() {
    let measured: BTreeSet<String> = all_operations().iter().map(|operation| operation.function.to_owned()).collect();
    let exempt: BTreeSet<String> = WITHOUT_COST.iter().map(|name| (*name).to_owned()).collect();
    let functions = public_functions();
    let missing: Vec<_> =
        functions.iter().filter(|name| !measured.contains(*name) && !exempt.contains(*name)).collect();
    assert!(functions.len() > 80 && missing.is_empty(), "no row in the tables of costs for {missing:?}");
    let unknown: Vec<_> = measured.union(&exempt).filter(|name| !functions.contains(*name)).collect();
    assert!(unknown.is_empty(), "the tables of costs have rows for {unknown:?}, which do not exist");
}
