//! Leaves that are lost in the middle of an inode's items.

use crate::kernel::{judged, write_image};
use crate::{devices, options, support};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::{KeyType, Logical, TreeId};
use butterfs_repair::{apply, plan};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::KernelMount;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// A subvolume's tree in which the second leaf begins with items of an inode whose own item stands in the first leaf:
/// its leaves.
fn parted_inode(editor: &Editor, tree: TreeId) -> Option<Vec<Logical>> {
    let leaves: Vec<Logical> = editor.blocks(tree).into_iter().filter(|at| editor.node(*at).is_leaf()).collect();
    let second = editor.node(*leaves.get(1)?).first_key()?;
    (second.objectid > 256 && second.kind > KeyType::INODE_ITEM).then_some(leaves)
}

/// The contents of the files whose items all stand in these leaves.
fn whole_files(editor: &Editor, leaves: &[Logical]) -> BTreeSet<Vec<u8>> {
    let (mut inodes, mut contents) = (BTreeSet::new(), BTreeSet::new());
    for leaf in leaves.iter().map(|at| editor.node(*at)) {
        for (key, data) in leaf.items() {
            inodes.extend((key.kind == KeyType::INODE_ITEM).then_some(key.objectid));
            let is_whole = key.kind == KeyType::EXTENT_DATA && inodes.contains(&key.objectid);
            contents.extend(is_whole.then(|| data[21..].to_vec()));
        }
    }
    contents
}

fn contents_below(folder: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("it is a folder").flatten() {
        match entry.file_type().expect("it has a type") {
            kind if kind.is_dir() => found.extend(contents_below(&entry.path())),
            _ => found.extend(std::fs::read(entry.path()).ok()),
        }
    }
    found
}

/// The kernel's mount of an image that was repaired, after both checkers have called it clean.
fn repaired(damaged: &Arc<MemoryDevice>, image: &Path, tree: TreeId) -> KernelMount {
    let made = plan(&devices(damaged), &options("tree-block"), &|_, _| {}).expect("there is a plan");
    assert!(made.is_clean(), "tree {tree}: {:?}", made.trouble);
    apply(&made, &devices(damaged), &MemoryDevice::new(made.undo_len())).expect("it can be written");
    write_image(damaged, image);
    judged(image, "after the repair").expect("it is clean");
    KernelMount::new(image, "ro")
}

/// The root of a subvolume and its first leaf are lost, and the next leaf begins in the middle of an inode: its other
/// files stay. The new root directory gets into that leaf, in front of an inode without an item.
#[test]
fn a_lost_root_directory_before_a_parted_inode_costs_no_other_file() {
    let Some(base) = support::stairs("repair-parted") else { return };
    let scratch = support::Scratch::new("repair-parted-images");
    let (image, mut parted) = (scratch.0.join("image"), 0);
    for tree in (256..280).map(TreeId) {
        let (editor, damaged) = Editor::of_copy(&base);
        let Some(leaves) = parted_inode(&editor, tree) else { continue };
        let expected = whole_files(&editor, &leaves[1..]);
        editor.write_raw(editor.root(tree), &[0x33; 4096]);
        editor.write_raw(leaves[0], &[0x33; 4096]);
        let mount = repaired(&damaged, &image, tree);
        let found = contents_below(mount.path());
        mount.finish();
        assert!(expected.is_subset(&found), "tree {tree}: {:?}", expected.difference(&found).next());
        parted += 1;
    }
    assert!(parted > 1, "leaves end within inodes");
}

/// The lost leaf begins with the links of an inode whose own item and entries are in others: entry and inode say which
/// name it has, and it gets no second one.
#[test]
fn a_lost_link_comes_back_from_its_entries() {
    let Some(base) = support::stairs("repair-links") else { return };
    let scratch = support::Scratch::new("repair-links-images");
    let (image, mut parted) = (scratch.0.join("image"), 0);
    for tree in (256..280).map(TreeId) {
        let (editor, _) = Editor::of_copy(&base);
        let leaves: Vec<Logical> = editor.blocks(tree).into_iter().filter(|at| editor.node(*at).is_leaf()).collect();
        for pair in leaves.windows(2) {
            let (before, lost) = (editor.node(pair[0]), editor.node(pair[1]));
            let (Some(last), Some(first)) = (before.last_key(), lost.first_key()) else { continue };
            let is_parted =
                (last.objectid, last.kind, first.kind) == (first.objectid, KeyType::INODE_ITEM, KeyType::INODE_REF);
            if !is_parted || first.objectid == 256 {
                continue;
            }
            parted += 1;
            let name = String::from_utf8(lost.item(0)[10..].to_vec()).expect("a name");
            let (editor, damaged) = Editor::of_copy(&base);
            editor.write_raw(pair[1], &[0x33; 4096]);
            let mount = repaired(&damaged, &image, tree);
            let subvolume = mount.path().join(format!("sv{}", tree.get() - 255));
            let found = std::fs::metadata(subvolume.join(&name)).map(|found| (found.ino(), found.nlink()));
            let has_lost = subvolume.join("lost+found").exists();
            mount.finish();
            assert_eq!(found.ok(), Some((first.objectid, 1)), "tree {tree}, {name}");
            assert!(!has_lost, "tree {tree}, {name}: something is in lost+found");
        }
    }
    assert!(parted > 0, "leaves begin with links");
}
