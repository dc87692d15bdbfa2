//! The repaired images before the other checkers: `btrfs check`, and the kernel, which mounts, shows, writes, and is
//! checked again.

use super::{devices, options, plants, support};
use butterfs_device::{BlockDevice, FileDevice, MemoryDevice, copy_content};
use butterfs_ondisk::TreeId;
use butterfs_repair::{apply, plan};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, judge_all};
use butterfs_testkit::progress::Progress;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Repairs that lose or add something, by their nature: the paths that may differ afterwards, at most.
const LOSSES: &[(&str, usize)] = &[
    // A leaf with its files, and what was found without a name.
    ("tree-block", 400),
    // Mode, owner and times, at each name of the file.
    ("inode-missing", 400),
    ("inode-without-name", 4),
    // The planted damage itself: flags and bytes of one file.
    ("data-checksum", 12),
    ("checksum-odd", 1),
    ("file-extent-gap", 1),
    // The target: type, mode and size too, in the subvolume and the snapshots that share its leaf.
    ("symlink-target", 12),
    ("snapshot-orphans", 1),
    // The plant makes a file's extent show less or more than it did.
    ("file-extent-overlap", 1),
    ("file-extent-bounds", 1),
    ("entries-in-no-directory", 1),
];

pub fn write_image(device: &MemoryDevice, path: &Path) {
    let _ = std::fs::remove_file(path);
    let file = FileDevice::create(path, device.len()).expect("an image can be made");
    copy_content(device, &file).expect("the image can be written");
    file.flush().expect("the image can be flushed");
}

pub fn shown(image: &Path) -> Result<Fingerprint, String> {
    let mount = KernelMount::try_new(image, "ro,noatime")?;
    let shown = Fingerprint::of_tree(mount.path());
    match mount.finish() {
        complaints if complaints.is_empty() => Ok(shown),
        complaints => Err(format!("the kernel complains: {complaints:#?}")),
    }
}

pub fn judged(image: &Path, when: &str) -> Result<(), String> {
    match judge_all(image).into_iter().find(|verdict| !verdict.clean) {
        None => Ok(()),
        Some(verdict) => Err(format!("btrfs check {when}: {:#?}\n{}", verdict.findings, verdict.output)),
    }
}

/// The repaired image is checked, compared with the undamaged one, written by the kernel, and checked again.
fn compare(damaged: &Arc<MemoryDevice>, id: &str, sound: &Fingerprint, image: &Path) -> Result<(), String> {
    let device = Arc::new(damaged.snapshot());
    let made = plan(&devices(&device), &options(id), &|_, _| {}).map_err(|trouble| trouble.to_string())?;
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&device), &undo).map_err(|trouble| trouble.to_string())?;
    write_image(&device, image);
    judged(image, "after the repair")?;
    let found = differences(sound, &shown(image)?, Compare { blocks: false, ..Compare::ALL });
    let allowed = LOSSES.iter().find(|(other, _)| *other == id).map_or(0, |(_, most)| *most);
    if found.len() > allowed {
        return Err(format!("{} differences: {:#?}", found.len(), &found[..found.len().min(12)]));
    }
    let mount = KernelMount::try_new(image, "noatime")?;
    for number in 0..200 {
        std::fs::write(mount.path().join(format!("written-{number}")), vec![7; 9000])
            .map_err(|error| error.to_string())?;
    }
    let complaints = mount.finish();
    if !complaints.is_empty() {
        return Err(format!("the kernel complains after writing: {complaints:#?}"));
    }
    judged(image, "after the kernel's writes")
}

#[test]
#[ignore = "long: cargo xtask soak repairs"]
fn every_repair_is_judged_by_the_kernel() {
    if !support::kernel("repair-kernel") {
        return;
    }
    let Some(base) = support::filled("repair-kernel", 160 << 20, &["-n", "4096", "-O", "^no-holes"]) else { return };
    let scratch = support::Scratch::new("repair-kernel-images");
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let sound = shown(&image).expect("the sound image can be mounted");
    let only = std::env::var("PLANT").unwrap_or_default();
    let (mut failures, mut judged) = (Vec::new(), 0);
    let chosen: Vec<_> = plants::all().filter(|(id, _)| *id != "cannot-open" && id.contains(&only)).collect();
    let mut progress = Progress::new("repairs", chosen.len() as u64);
    for (id, plant) in chosen {
        let (editor, copy) = Editor::of_copy(&base);
        if catch_unwind(AssertUnwindSafe(|| plant(&editor))).is_err() {
            println!("{id}: cannot be planted here");
            progress.step();
            continue;
        }
        judged += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| compare(&copy, id, &sound, &image)));
        if let Err(reason) = outcome.unwrap_or_else(|_| Err("panic".into())) {
            failures.push(format!("{id}: {reason}"));
            progress.finding(&failures[failures.len() - 1]);
        }
        progress.step();
    }
    println!("{judged} repairs judged");
    assert!(failures.is_empty(), "{} of {judged}:\n{}", failures.len(), failures.join("\n"));
}

/// Of a lost node above the leaves nothing is lost: its children are found by their references.
#[test]
fn a_lost_node_loses_nothing() {
    if !support::kernel("repair-nodes") {
        return;
    }
    let Some(base) = support::filled("repair-nodes", 160 << 20, &["-n", "4096"]) else { return };
    let scratch = support::Scratch::new("repair-nodes-images");
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let sound = shown(&image).expect("the sound image can be mounted");
    let (mut failures, mut lost) = (Vec::new(), 0);
    for tree in [TreeId(256), TreeId(257), TreeId::CSUM] {
        let (editor, _) = Editor::of_copy(&base);
        let nodes: Vec<_> = editor.blocks(tree).into_iter().filter(|at| !editor.node(*at).is_leaf()).collect();
        // The root, and the last one of those below it.
        let chosen: BTreeSet<_> = nodes.iter().take(1).chain(nodes.iter().next_back()).copied().collect();
        for at in chosen {
            let (editor, damaged) = Editor::of_copy(&base);
            editor.write_raw(at, &[0x33; 4096]);
            lost += 1;
            let device = Arc::new(damaged.snapshot());
            let made = plan(&devices(&device), &options("tree-block"), &|_, _| {}).expect("there is a plan");
            let undo = MemoryDevice::new(made.undo_len());
            apply(&made, &devices(&device), &undo).expect("it can be written");
            write_image(&device, &image);
            let found = judged(&image, "after the repair").and_then(|()| shown(&image));
            match found.map(|shown| differences(&sound, &shown, Compare { blocks: false, ..Compare::ALL })) {
                Ok(found) if found.is_empty() => {}
                Ok(found) => failures.push(format!("tree {tree}, block {at}: {:#?}", &found[..found.len().min(4)])),
                Err(reason) => failures.push(format!("tree {tree}, block {at}: {reason}")),
            }
        }
    }
    assert!(lost >= 3 && failures.is_empty(), "{} of {lost}:\n{}", failures.len(), failures.join("\n"));
}
