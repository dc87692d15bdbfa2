//! Deleted files and subvolumes: what is listed, and how complete it is said to be.

use crate::file;
use crate::opened::scanned;
use crate::trust::Bed;
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_rescue::data::Grade;
use butterfs_rescue::roots::Roots;
use butterfs_rescue::tree::Tree;
use butterfs_rescue::undelete;
use butterfs_testkit::kernel::{self, KernelMount, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::ops::ControlFlow;

/// A subvolume that has been deleted, and not dropped yet, is listed among what is deleted.
#[test]
fn a_subvolume_that_is_being_deleted_is_listed() {
    let bed = Bed::new();
    let editor = bed.editor();
    let position = editor.find(TreeId::ROOT, |item| item.key().objectid == 256 && item.is(KeyType::ROOT_ITEM));
    // The number of references.
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[216..220].fill(0));
    let wreck = bed.wreck();
    let listed = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default()).unwrap();
    let inside = listed.iter().filter(|one| one.tree == TreeId(256) && one.is_subvolume_deleted);
    assert_eq!(inside.filter(|one| one.grade == Grade::Verified).count(), 60);
}

/// A file of a subvolume that is being dropped is not whole where an extent of it is in use again: the bytes and the
/// checksums of the last commit are those of the newer file then, and fit each other.
#[test]
fn an_extent_that_was_allocated_again_is_not_the_deleted_files() {
    let bed = Bed::new();
    let editor = bed.editor();
    let position = editor.find(TreeId::ROOT, |item| item.key().objectid == 256 && item.is(KeyType::ROOT_ITEM));
    // The number of references.
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[216..220].fill(0));
    let graded = |bed: &Bed| {
        let wreck = bed.wreck();
        let listed = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default()).unwrap();
        let count = |grade| listed.iter().filter(|one| one.tree == TreeId(256) && one.grade == grade).count();
        (count(Grade::Verified), count(Grade::Partial))
    };
    assert_eq!(graded(&bed), (60, 0));
    let wreck = bed.wreck();
    let files = Tree::new(&wreck, Roots::assemble(&wreck).trees[&TreeId(256)].root);
    let mut first = None;
    files.scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        let is_regular = key.kind == KeyType::EXTENT_DATA && data[20] == 1;
        first = is_regular.then(|| u64::from_le_bytes(data[21..29].try_into().unwrap()));
        if first.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let place = first.expect("the subvolume has a file that is not inline");
    let position = editor.find(TreeId::EXTENT, |item| item.key().objectid == place && item.is(KeyType::EXTENT_ITEM));
    // The generation.
    editor.edit(position.leaf, |leaf| leaf.item_mut(position.slot)[8..16].copy_from_slice(&(1u64 << 40).to_le_bytes()));
    assert_eq!(graded(&bed), (59, 1));
}

/// How many of the deleted files without checksums that are listed have their data still, and how many have lost their
/// place to newer ones; the grade of each is right. The newer ones are deleted again if asked for.
fn deleted_files_by_place(test: &str, deletes_newer: bool) -> Option<(usize, usize)> {
    const LEN: usize = 200 * 1024;
    if !requirement::kernel_btrfs(test) {
        return None;
    }
    let scratch = Scratch::new(test);
    let image = scratch.sparse_file("image", 140 << 20);
    kernel::mkfs(&image, &["-m", "single", "-d", "single", "-n", "4096"]);
    let mount = || KernelMount::new(&image, "noatime,nodatacow,nodiscard");
    let sync = |mounted: &KernelMount| run_ok(20, "btrfs", &["filesystem", "sync", mounted.path().to_str().unwrap()]);
    let mounted = mount();
    let old = |number: u8| mounted.path().join(format!("old{number}"));
    (1..=90).for_each(|number| fs::write(old(number), vec![number; LEN]).unwrap());
    sync(&mounted);
    (1..=90).for_each(|number| fs::remove_file(old(number)).unwrap());
    mounted.finish();
    let mounted = mount();
    fs::write(mounted.path().join("new"), vec![b'n'; 30 * LEN]).unwrap();
    if deletes_newer {
        sync(&mounted);
        fs::remove_file(mounted.path().join("new")).unwrap();
    }
    mounted.finish();
    let mut sectors = [0; 256];
    let bytes = fs::read(&image).unwrap();
    let filled = bytes.chunks(4096).filter(|sector| sector.iter().all(|byte| *byte == sector[0]));
    filled.for_each(|sector| sectors[usize::from(sector[0])] += 1);
    let wreck = scanned(&[file(&image)], &scratch).unwrap();
    let listed = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default()).unwrap();
    let (mut left, mut reused) = (0, 0);
    for one in listed {
        // The leaf with the extents of some is gone.
        let number = one.path.strip_prefix("old").filter(|_| one.grade != Grade::Lost);
        let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) else { continue };
        let is_left = sectors[number] == LEN / 4096;
        // Nothing confirms what is left: even a scan does not find all that was allocated since.
        assert_eq!(one.grade, if is_left { Grade::Doubtful } else { Grade::Partial }, "{one:?}");
        *(if is_left { &mut left } else { &mut reused }) += 1;
    }
    println!("{left} files are left, {reused} have lost their places");
    Some((left, reused))
}

/// A deleted file without checksums whose place has a newer file is partial, and the report says why.
#[test]
fn a_deleted_file_without_checksums_is_partial_where_a_newer_one_lies() {
    let Some((left, reused)) = deleted_files_by_place("deleted_and_reused", false) else { return };
    assert!(left >= 3 && reused >= 3, "{left} {reused}");
}

/// The same where the newer files have been deleted too: only older leaves of the extent tree tell of them.
#[test]
fn a_place_that_was_given_away_and_freed_is_told() {
    let Some((left, _)) = deleted_files_by_place("deleted_reused_and_freed", true) else { return };
    assert!(left >= 3, "{left}");
}
