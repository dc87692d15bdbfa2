//! Cost has a bound through a mount, too: what the serving process does for one user who works by system calls and by
//! questions over the control socket.
//!
//! A scene (`scene`) has `n` of one thing that a user can make many of, in three sizes, each four times the one before.
//! Each operation (`operations`) runs in each of them, and then a sync. Compared are:
//!
//! 1. Steps: tree blocks and items that the engine looked at, by the server's own count. An operation on one thing may
//!    take twice as many in the largest scene as in the smallest, one on all of them `n log n`.
//! 2. The server's time on processors, with wide margins, for what happens in memory, in four tries.
//! 3. Steps for which everybody waited in one go, and its descriptors afterwards.
//! 4. By `cargo xtask soak growth`, also the longest wait of another user's small operation, and the server's memory
//!    once everything is removed again.
//!
//! Every request of the kernel that is served, and every question, has an operation, which two tests see to.

#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../mounted/mod.rs"]
mod mounted;

mod commands;
mod judge;
mod operations;
mod scene;
mod server;

use butterfs_control::{Message, Question, StreamQuestion};
use judge::{Row, faults};
use operations::{Operation, all};
use scene::{Kind, Scene};
use std::collections::BTreeSet;
use std::time::Duration;

/// Another user's longest wait in a long run, in each of four tries.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// The factor by which scenes are larger than in a test run.
fn factor() -> usize {
    std::env::var("BUTTERFS_COSTS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// The scenes of a long run: the one whose name is `BUTTERFS_COSTS_SCENE`, or all.
fn kinds() -> Vec<Kind> {
    let asked = std::env::var("BUTTERFS_COSTS_SCENE");
    Kind::ALL.into_iter().filter(|kind| asked.as_ref().map_or(true, |name| *name == format!("{kind:?}"))).collect()
}

fn sizes(kind: Kind) -> [usize; 3] {
    let least = kind.least() * factor();
    [least, 4 * least, 16 * least]
}

/// The rows of all operations in the scenes of a kind.
fn rows(kind: Kind, operations: &[Operation]) -> Option<[Vec<Row>; 3]> {
    let [small, middle, large] = sizes(kind).map(|size| Scene::new(kind, size).map(|scene| scene.measure(operations)));
    Some([small?, middle?, large?])
}

fn expect_none(kinds: &[Kind]) {
    let operations = all();
    let mut found = Vec::new();
    for kind in kinds {
        let Some(first) = rows(*kind, &operations) else { return };
        let mut report = faults(*kind, sizes(*kind), &first);
        for _ in 0..3 {
            if report.slow.is_empty() {
                break;
            }
            let Some(again) = rows(*kind, &operations) else { return };
            let again = faults(*kind, sizes(*kind), &again).slow;
            report.slow.retain(|(name, _)| again.iter().any(|(other, _)| other == name));
        }
        if std::env::var_os("BUTTERFS_COSTS_SHOW").is_some() {
            report.table.iter().for_each(|line| println!("{line}"));
        }
        found.extend(report.steps.into_iter().chain(report.slow.into_iter().map(|(_, sentence)| sentence)));
    }
    assert!(found.is_empty(), "{} costs are too high:\n{}", found.len(), found.join("\n"));
}

#[test]
fn through_a_mount() {
    expect_none(&[Kind::Entries, Kind::References]);
}

#[test]
#[ignore = "long: cargo xtask soak growth"]
fn through_a_mount_beside_everything() {
    expect_none(&kinds());
}

/// The longest wait of another user, and the memory that stays.
#[test]
#[ignore = "long: cargo xtask soak growth-waits"]
fn others_do_not_wait_and_memory_comes_back() {
    let mut found = Vec::new();
    for kind in kinds() {
        let Some(scene) = Scene::new(kind, sizes(kind)[2]) else { return };
        for operation in all() {
            let tries = (0..4).map(|_| scene.longest_wait(&operation));
            let long: Vec<_> = tries.map_while(|wait| (wait > LONGEST_WAIT).then_some(wait)).collect();
            if long.len() == 4 {
                found.push(format!(
                    "{} beside {} {kind:?}: others waited for {long:?}",
                    operation.name,
                    sizes(kind)[2]
                ));
            }
        }
        found.extend(scene.end());
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn source(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../fuse/src/{path}", env!("CARGO_MANIFEST_DIR"))).expect("a source file")
}

fn must_be_measured(found: &[String], exempt: &[(&str, &str)]) {
    let measured: BTreeSet<&str> = operations::TABLES
        .iter()
        .flat_map(|table| table.iter())
        .flat_map(|operation| operation.covers)
        .copied()
        .collect();
    let known = |name: &String| measured.contains(name.as_str()) || exempt.iter().any(|(other, _)| other == name);
    let missing: Vec<_> = found.iter().filter(|name| !known(name)).collect();
    assert!(found.len() > 20 && missing.is_empty(), "no operation for {missing:?}");
}

#[test]
fn every_question_is_measured() {
    let questions = Question::VARIANTS.iter().chain(StreamQuestion::VARIANTS).map(|verb| verb.to_string());
    let numbers = ["ListDevices", "DescribeReplace", "DescribeFilesystem", "ListChunks", "ListMembers", "GetBalance"];
    let whole = ["ResizeDevice", "AddDevice", "RemoveDevice", "StartReplace", "StartBalance", "ResumeBalance"];
    let switches = ["StoreData", "CancelDeviceWork", "StopBalance"];
    let groups = [
        (&numbers[..], "it looks at chunks and devices in memory"),
        (&whole[..], "it moves whole chunks, in steps of bounded size"),
        (&switches[..], "it turns a switch"),
        (&["MeasureFile"][..], "it looks at all extents of a file, as ListExtents"),
        (&["CountWork"][..], "it is what this test asks"),
    ];
    let exempt: Vec<_> = groups.iter().flat_map(|(names, why)| names.iter().map(|name| (*name, *why))).collect();
    must_be_measured(&questions.collect::<Vec<_>>(), &exempt);
}

#[test]
fn every_request_is_measured() {
    let text = source("protocol/request.rs");
    let arms = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(" => {"));
    let requests = arms.filter_map(|(head, _)| head.split_once(" = ")).map(|(name, _)| name.to_owned());
    let requests: Vec<String> = requests.filter(|name| name.chars().all(char::is_alphanumeric)).collect();
    must_be_measured(&requests, &operations::NOT_MEASURED);
}
