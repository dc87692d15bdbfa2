//! One planted corruption per finding: each must be found, under its own id, and the sound image must be clean.
//!
//! A plant changes fields, items or blocks of an image that the kernel made, and stamps the checksums anew.

#[path = "../support/mod.rs"]
mod support;

#[path = "plants.rs"]
mod plants;

use butterfs_check::{Options, TABLE};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::ExtentItem;
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::judge::judge_memory;
use plants::{Plant, all, is_data_extent, logs, space_cache};
use std::collections::BTreeSet;
use std::sync::Arc;
use support::{cached, filled, judge_with, logged};

fn base(test: &str) -> Option<Arc<MemoryDevice>> {
    filled(test, 160 << 20, &["-n", "4096", "-O", "^no-holes"])
}

/// The number of images that are made until one has room for every plant: how full the kernel leaves a leaf is chance.
const IMAGES: usize = 5;

/// Plants each in a copy of an image, and says which were not found, or could not be planted in any image.
fn missed<'a>(make: impl Fn() -> Option<Arc<MemoryDevice>>, plants: impl Iterator<Item = &'a Plant>) -> Vec<String> {
    let (mut missed, mut left) = (Vec::new(), plants.collect::<Vec<_>>());
    for _ in 0..IMAGES {
        if left.is_empty() {
            break;
        }
        let Some(image) = make() else { break };
        left = missed_in(&image, left, &mut missed);
    }
    missed.extend(left.into_iter().map(|(id, _)| format!("{id}: could not be planted in {IMAGES} images")));
    missed
}

/// As above for one image; returns those for which it has no room.
fn missed_in<'a>(image: &Arc<MemoryDevice>, plants: Vec<&'a Plant>, missed: &mut Vec<String>) -> Vec<&'a Plant> {
    let sound = judge_memory(image);
    assert!(sound.is_clean(), "{:#?}", sound.findings);
    let mut left = Vec::new();
    for planted @ (id, plant) in plants {
        let (editor, copy) = Editor::of_copy(image);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plant(&editor))).is_err() {
            left.push(planted);
            continue;
        }
        let report = judge_memory(&copy);
        if !report.findings.iter().any(|finding| finding.id() == *id) {
            let found: BTreeSet<String> =
                report.findings.iter().map(|finding| format!("{}: {finding}", finding.id())).collect();
            missed.push(format!("{id}: found {:#?}", found.iter().take(6).collect::<Vec<_>>()));
        }
    }
    left
}

#[test]
fn every_finding_is_found_where_it_was_planted() {
    if !support::kernel("planted") {
        return;
    }
    let missed = missed(|| base("planted"), all());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_finding_of_a_log_is_found_where_it_was_planted() {
    if !support::kernel("planted-log") {
        return;
    }
    let missed = missed(|| logged("planted-log"), logs::PLANTS.iter());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_finding_of_a_space_cache_is_found_where_it_was_planted() {
    if !support::kernel("planted-cache") {
        return;
    }
    let missed = missed(|| cached("planted-cache"), space_cache::PLANTS.iter());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_finding_of_the_table_is_planted() {
    let planted: BTreeSet<&str> = all().chain(logs::PLANTS).chain(space_cache::PLANTS).map(|(id, _)| *id).collect();
    let table: BTreeSet<&str> = TABLE.iter().map(|info| info.id).collect();
    assert_eq!(planted, table);
}

#[test]
fn windows_and_threads_do_not_change_the_verdict() {
    let Some(image) = base("windows") else { return };
    let (editor, copy) = Editor::of_copy(&image);
    editor
        .change(TreeId::EXTENT, is_data_extent, |extent: &mut ExtentItem| extent.refs = (extent.refs.get() + 1).into());
    let is_shared = |extent: &ExtentItem| extent.refs.get() > 1;
    editor.remove(TreeId::EXTENT, |item| item.is_inner(KeyType::METADATA_ITEM) && item.head().is_some_and(is_shared));
    let sorted = |options: &Options| {
        let mut lines: Vec<String> =
            judge_with(&copy, options).findings.iter().map(|finding| finding.to_string()).collect();
        lines.sort();
        lines
    };
    let small = Options { reference_budget: 100, cache_bytes: 1 << 16, threads: 1, ..Default::default() };
    let (one, many) = (sorted(&Options::default()), sorted(&small));
    assert!(!one.is_empty());
    assert_eq!(one, many);
}
