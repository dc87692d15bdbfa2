//! A deleted subvolume that is dropped in part, and whose tree is damaged: no other subvolume loses anything, and the
//! kernel drops the rest.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::{DirItem, RootItem};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_repair::{apply, plan};
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, run_ok};
use std::path::Path;
use std::sync::Arc;

/// A snapshot that shares blocks with its source.
const DELETED: TreeId = TreeId(257);

/// Makes the subvolume a deleted one, without names, that is dropped up to `slot` of its root.
fn drop_up_to(editor: &Editor, slot: usize) {
    let root = editor.node(editor.root(DELETED));
    let (key, level) = (root.key(slot), root.level().get());
    let of_tree = |item: Item<'_>| item.is(KeyType::ROOT_ITEM) && item.key().objectid == DELETED.get();
    editor.change(TreeId::ROOT, of_tree, |item: &mut RootItem| {
        item.refs = 0.into();
        item.drop_progress = key.into();
        item.drop_level = level;
    });
    let is_reference = |item: Item<'_>| item.is(KeyType::ROOT_REF) && item.key().offset == DELETED.get();
    editor.remove(TreeId::ROOT, is_reference);
    editor.remove(TreeId::ROOT, |item| item.is(KeyType::ROOT_BACKREF) && item.key().objectid == DELETED.get());
    for kind in [KeyType::DIR_ITEM, KeyType::DIR_INDEX] {
        let leads = |entry: &DirItem| Key::from(entry.location).objectid == DELETED.get();
        editor.remove(TreeId::FS, |item| item.is(kind) && item.head().is_some_and(leads));
    }
    editor.insert(TreeId::ROOT, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, DELETED.get()), &[]);
}

/// Repairs a copy; what it is afterwards.
fn repaired(damaged: &Arc<MemoryDevice>) -> Result<(), String> {
    let made = plan(&devices(damaged), &options("tree-block"), &|_, _| {}).map_err(|trouble| trouble.to_string())?;
    if !made.is_clean() {
        let (before, after) = (text(&made.before), text(&made.after));
        return Err(format!("{:?}, before:{before}\n  steps:{}\n  after:{after}", made.trouble, actions(&made)));
    }
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(damaged), &undo).map_err(|trouble| trouble.to_string()).map(drop)
}

/// The other subvolumes are as before, and after the kernel has dropped the rest of this one both checkers agree.
fn others_are_whole(damaged: &MemoryDevice, image: &Path, before: &Fingerprint) -> Result<(), String> {
    write_image(damaged, image);
    let found = judged(image, "after the repair").and_then(|()| shown(image))?;
    if let Some(line) = differences(before, &found, Compare { blocks: false, ..Compare::ALL }).first() {
        return Err(format!("not as before: {line}"));
    }
    let mount = KernelMount::new(image, "rw");
    run_ok(60, "btrfs", &["subvolume", "sync", mount.path().to_str().unwrap(), &DELETED.get().to_string()]);
    mount.finish();
    judged(image, "after the kernel has dropped it")?;
    let found = shown(image)?;
    match differences(before, &found, Compare { blocks: false, ..Compare::ALL }).first() {
        Some(line) => Err(format!("not as before once it is dropped: {line}")),
        None => Ok(()),
    }
}

#[test]
fn a_damaged_half_deleted_subvolume_costs_no_other_one_anything() {
    if !support::kernel("half-deleted") {
        return;
    }
    let Some(base) = support::filled("half-deleted", 160 << 20, &["-n", "4096"]) else { return };
    let scratch = support::Scratch::new("half-deleted-images");
    let image = scratch.0.join("image");
    let (editor, half) = Editor::of_copy(&base);
    let root = editor.node(editor.root(DELETED));
    let middle = root.nritems() / 2;
    assert!(middle > 0, "the tree has several levels");
    let alive = own_blocks(&editor, (middle..root.nritems()).map(|slot| root.child(slot).0).collect());
    let dropped = own_blocks(&editor, (0..middle).map(|slot| root.child(slot).0).collect());
    drop_up_to(&editor, middle);
    repaired(&half).expect("it becomes a half-deleted one");
    // Dropped blocks are free for others.
    dropped.iter().for_each(|at| editor.write_raw(*at, &[0x44; 4096]));
    write_image(&half, &image);
    judged(&image, "half deleted").expect("it is clean");
    let before = shown(&image).expect("it can be mounted");
    others_are_whole(&half, &image, &before).expect("without damage");
    let (editor, _) = Editor::of_copy(&half);
    let other = *editor.blocks(TreeId(256)).last().expect("a tree has blocks");
    let damages: Vec<Vec<Logical>> = [editor.root(DELETED)].iter().chain(&alive).take(8).map(|at| vec![*at]).collect();
    let mut failures: Vec<String> = Vec::new();
    for damage in damages.iter().chain([&alive]) {
        let (editor, damaged) = Editor::of_copy(&half);
        damage.iter().for_each(|at| editor.write_raw(*at, &[0x33; 4096]));
        let outcome = repaired(&damaged).and_then(|()| others_are_whole(&damaged, &image, &before));
        failures.extend(outcome.err().map(|reason| format!("blocks {damage:?}: {reason}")));
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), damages.len() + 1, failures.join("\n"));
    // Damage of another subvolume has the repair look at all of them.
    let (editor, damaged) = Editor::of_copy(&half);
    editor.write_raw(other, &[0x33; 4096]);
    repaired(&damaged).expect("the dropped blocks are not looked at");
}

/// The blocks below these that no other subvolume has.
fn own_blocks(editor: &Editor, mut blocks: Vec<Logical>) -> Vec<Logical> {
    let others: Vec<Logical> =
        [TreeId::FS, TreeId(256), TreeId(258)].iter().flat_map(|tree| editor.blocks(*tree)).collect();
    blocks.retain(|at| !others.contains(at));
    let mut next = 0;
    while let Some(at) = blocks.get(next) {
        let node = editor.node(*at);
        let children = (0..node.nritems()).filter(|_| !node.is_leaf()).map(|slot| node.child(slot).0);
        blocks.extend(children.filter(|at| !others.contains(at)).collect::<Vec<_>>());
        next += 1;
    }
    blocks
}
