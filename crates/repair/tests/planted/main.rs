//! Every finding of the checker's table, planted, repaired, and taken back.

mod chunk_items;
mod crowded;
mod file_extents;
mod half_deleted;
mod headers;
mod kernel;
mod keys;
mod lost_leaves;
mod misnamed;
mod parity;
mod parted;
#[path = "../../../check/tests/planted/plants.rs"]
mod plants;
mod relocation_tree;
#[path = "../../../check/tests/support/mod.rs"]
mod support;
mod symlinks;
mod witnesses;

use butterfs_check::Report;
use butterfs_device::{BlockDevice, MemoryDevice, ReadOnlyDevice};
use butterfs_repair::{Applied, Options, Plan, apply, plan, resume, undo};
use butterfs_testkit::editor::Editor;
use plants::{Plant, logs, space_cache};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn devices(device: &Arc<MemoryDevice>) -> Vec<Arc<dyn BlockDevice>> {
    vec![device.clone()]
}

/// The options that this finding needs.
fn options(id: &str) -> Options {
    let mut options = Options { now: 1_700_000_000, ..Options::default() };
    options.check.check_data = id.contains("checksum");
    options.accept_data = id == "checksum-missing" || id == "log-checksum-missing";
    options.init_csum_tree = id == "data-checksum";
    options.drop_log = id.starts_with("log-");
    options
}

fn text(report: &Report) -> String {
    report.findings.iter().take(8).map(|finding| format!("\n    {finding} [{}]", finding.id())).collect()
}

fn actions(plan: &Plan) -> String {
    plan.actions.iter().take(12).map(|action| format!("\n    {}: {}", action.pass, action.what)).collect()
}

/// Repairs a damaged image in every way that matters; the error says what went wrong.
fn repair(damaged: &Arc<MemoryDevice>, id: &str) -> Result<(), String> {
    let device = Arc::new(damaged.snapshot());
    let options = options(id);
    // A plan writes nothing: it is made on devices that refuse to be written.
    let read_only: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(ReadOnlyDevice::new(device.clone()))];
    let made = plan(&read_only, &options, &|_, _| {}).map_err(|trouble| format!("no plan: {trouble}"))?;
    if !made.is_clean() || made.after.warnings > 0 {
        let trouble = made.trouble.as_ref().map_or(String::new(), |trouble| format!("\n  trouble: {trouble}"));
        return Err(format!(
            "rounds {}{trouble}\n  before:{}\n  actions:{}\n  after:{}",
            made.rounds,
            text(&made.before),
            actions(&made),
            text(&made.after)
        ));
    }
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&device), &file).map_err(|trouble| format!("not applied: {trouble}"))?;
    assert_eq!(resume(&devices(&device), &file).unwrap(), Some(Applied::Already));
    let mut again = options.clone();
    again.init_csum_tree = false;
    again.drop_log = false;
    let again = plan(&devices(&device), &again, &|_, _| {}).map_err(|trouble| format!("no second plan: {trouble}"))?;
    if again.before.errors + again.before.warnings > 0 || !again.is_empty() {
        return Err(format!("a second run finds:{}\n  and would:{}", text(&again.before), actions(&again)));
    }
    undo(&devices(&device), &file).map_err(|trouble| format!("not undone: {trouble}"))?;
    if !support::same(&device, damaged) {
        return Err("undo does not bring the damaged image back".to_owned());
    }
    Ok(())
}

fn failures<'a>(make: impl Fn() -> Option<Arc<MemoryDevice>>, plants: impl Iterator<Item = &'a Plant>) -> Vec<String> {
    let only = std::env::var("PLANT").ok();
    let plants: Vec<&Plant> = plants
        .filter(|(id, _)| *id != "cannot-open" && only.as_ref().is_none_or(|only| id.contains(only.as_str())))
        .collect();
    let Some(image) = make() else { return Vec::new() };
    let mut failures = Vec::new();
    for (id, plant) in plants {
        let (editor, copy) = Editor::of_copy(&image);
        if catch_unwind(AssertUnwindSafe(|| plant(&editor))).is_err() {
            continue;
        }
        match catch_unwind(AssertUnwindSafe(|| repair(&copy, id))) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => failures.push(format!("{id}: {reason}")),
            Err(_) => failures.push(format!("{id}: panic")),
        }
    }
    failures
}

#[test]
fn every_finding_is_repaired_and_taken_back() {
    if !support::kernel("repair-planted") {
        return;
    }
    let make = || support::filled("repair-planted", 160 << 20, &["-n", "4096", "-O", "^no-holes"]);
    let failures = failures(make, plants::all());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_finding_of_a_log_is_repaired_and_taken_back() {
    if !support::kernel("repair-log") {
        return;
    }
    let failures = failures(|| support::logged("repair-log"), logs::PLANTS.iter());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_finding_of_a_space_cache_is_repaired_and_taken_back() {
    if !support::kernel("repair-cache") {
        return;
    }
    let failures = failures(|| support::cached("repair-cache"), space_cache::PLANTS.iter());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
