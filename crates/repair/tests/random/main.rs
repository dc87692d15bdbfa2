//! Random damage: whole tree blocks of any tree are lost, on all copies, in several formats. A repair ends, without a
//! panic, and leaves a filesystem that both checkers accept; or it says why not.

#[path = "../../../check/tests/support/mod.rs"]
mod support;

use butterfs_device::{BlockDevice, FileDevice, MemoryDevice, copy_content};
use butterfs_ondisk::TreeId;
use butterfs_repair::{Options, apply, plan, undo};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::judge_all;
use butterfs_testkit::progress::Progress;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const TREES: &[TreeId] = &[
    TreeId::ROOT,
    TreeId::EXTENT,
    TreeId::DEV,
    TreeId::FS,
    TreeId::CSUM,
    TreeId::UUID,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
    TreeId(256),
    TreeId(257),
];

/// Formats, as options of mkfs.btrfs.
const FORMATS: &[&[&str]] =
    &[&["-n", "4096", "-O", "^no-holes"], &["--csum", "xxhash"], &["-M", "-n", "4096", "-R", "^free-space-tree"]];

/// A number that looks random, from a few.
fn mixed(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9, |sum, number| (sum ^ number).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29))
}

fn wipe(editor: &Editor, seed: u64) -> String {
    let mut wiped = String::new();
    for number in 0..1 + seed % 3 {
        let chance = mixed(&[seed, number]);
        let tree = TREES[(chance % TREES.len() as u64) as usize];
        let Ok(blocks) = catch_unwind(AssertUnwindSafe(|| editor.blocks(tree))) else { continue };
        let at = blocks[(chance / 16 % blocks.len() as u64) as usize];
        editor.write_raw(at, &[0x5a; 4096]);
        wiped += &format!(" {} of tree {}", at, tree.get() as i64);
    }
    wiped
}

/// Wipes blocks of a copy and repairs it; returns what went wrong.
fn check(base: &Arc<MemoryDevice>, seed: u64) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    let wiped = wipe(&editor, seed);
    let before = damaged.snapshot();
    let devices: Vec<Arc<dyn BlockDevice>> = vec![damaged.clone()];
    let options = Options { accept_data: true, now: 1_700_000_000, ..Options::default() };
    let made = plan(&devices, &options, &|_, _| {}).map_err(|trouble| format!("{wiped}: {trouble}"))?;
    // Where the root tree and the extent tree are lost together, nothing is written.
    let is_too_much = |trouble: &butterfs_repair::Trouble| trouble.to_string().contains("nothing says what is in use");
    if made.is_empty() && wiped.contains("of tree 1") && made.trouble.as_ref().is_some_and(is_too_much) {
        return Ok(());
    }
    if !made.is_clean() {
        let left: Vec<String> = made.after.findings.iter().take(5).map(|finding| finding.to_string()).collect();
        let steps: Vec<String> = made.actions.iter().take(8).map(|action| action.what.clone()).collect();
        return Err(format!("{wiped}: {:?} rounds {} left {left:#?} steps {steps:#?}", made.trouble, made.rounds));
    }
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &devices, &file).map_err(|trouble| format!("{wiped}: {trouble}"))?;
    let scratch = support::Scratch::new(&format!("repair-random-{seed}"));
    let path = scratch.0.join("image");
    let image = FileDevice::create(&path, damaged.len()).expect("an image can be made");
    copy_content(&*damaged, &image).expect("the image can be written");
    drop(image);
    for verdict in judge_all(&path) {
        if !verdict.clean {
            return Err(format!("{wiped}: btrfs check: {:#?}\n{}", verdict.findings, verdict.output));
        }
    }
    undo(&devices, &file).map_err(|trouble| format!("{wiped}: {trouble}"))?;
    if damaged.to_bytes() != before.to_bytes() { Err(format!("{wiped}: not undone")) } else { Ok(()) }
}

fn campaign(formats: &[&[&str]], seeds: u64) {
    let mut failures = Vec::new();
    let mut progress = Progress::new("lost_blocks", formats.len() as u64 * seeds);
    for (number, format) in formats.iter().enumerate() {
        let Some(base) = support::filled(&format!("repair-random-{number}"), 192 << 20, format) else { return };
        for seed in 0..seeds {
            let seed = mixed(&[number as u64, seed]);
            let outcome = catch_unwind(AssertUnwindSafe(|| check(&base, seed)));
            if let Err(reason) = outcome.unwrap_or_else(|_| Err("panic".into())) {
                failures.push(format!("format {number}, seed {seed}: {reason}"));
                progress.finding(&failures[failures.len() - 1]);
            }
            progress.step();
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn lost_blocks_of_any_tree() {
    campaign(&FORMATS[..1], 3);
}

#[test]
#[ignore = "long: cargo xtask soak lost-blocks"]
fn lost_blocks_of_any_tree_for_long() {
    let factor: u64 = std::env::var("BUTTERFS_TORTURE").ok().and_then(|count| count.parse().ok()).unwrap_or(30);
    campaign(FORMATS, factor);
}
