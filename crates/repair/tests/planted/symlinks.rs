//! Symbolic links whose target or size is damaged.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_repair::{Plan, apply, plan};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::KernelMount;
use std::fs::symlink_metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const SUBVOLUME: TreeId = TreeId(256);

/// A damage, and whether the target is lost by it.
type Case = (&'static str, fn(&Editor), bool);

/// The item of the link that has two names.
fn link(editor: &Editor) -> ItemPosition {
    editor.find(SUBVOLUME, |item| {
        let is_it = |inode: &InodeItem| inode.mode.get() >> 12 == 0o12 && inode.nlink.get() == 2;
        item.is(KeyType::INODE_ITEM) && item.head().is_some_and(is_it)
    })
}

fn change(editor: &Editor, with: impl FnOnce(&mut InodeItem)) {
    editor.edit_item(link(editor), with);
}

fn take_extent(editor: &Editor) {
    let ItemPosition { leaf, slot } = link(editor);
    let inode = editor.node(leaf).key(slot).objectid;
    editor.remove(SUBVOLUME, |item: Item<'_>| item.is(KeyType::EXTENT_DATA) && item.key().objectid == inode);
}

const CASES: &[Case] = &[
    ("no target", take_extent, true),
    (
        "no target, and no bytes",
        |editor| {
            change(editor, |inode| inode.nbytes = 0.into());
            take_extent(editor);
        },
        true,
    ),
    (
        "no target, and size 0",
        |editor| {
            change(editor, |inode| (inode.size, inode.nbytes) = (0.into(), 0.into()));
            take_extent(editor);
        },
        true,
    ),
    ("size 0", |editor| change(editor, |inode| inode.size = 0.into()), false),
    ("a size that is too large", |editor| change(editor, |inode| inode.size = (6 | 1 << 9).into()), false),
];

/// Repairs a damaged image; `btrfs check` must call it clean.
fn repaired(damaged: &Arc<MemoryDevice>, image: &Path) -> Result<Plan, String> {
    let made = plan(&devices(damaged), &options(""), &|_, _| {}).map_err(|trouble| trouble.to_string())?;
    if !made.is_clean() || made.after.warnings > 0 {
        let (before, after) = (text(&made.before), text(&made.after));
        return Err(format!("{:?}, before:{before}\n  steps:{}\n  after:{after}", made.trouble, actions(&made)));
    }
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(damaged), &undo).map_err(|trouble| trouble.to_string())?;
    write_image(damaged, image);
    judged(image, "after the repair")?;
    Ok(made)
}

fn settle(
    base: &Arc<MemoryDevice>,
    (name, damage, is_lost): &Case,
    before: &Fingerprint,
    image: &Path,
) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(&editor);
    let found = support::judge_with(&damaged, &butterfs_check::Options::default());
    if !found.findings.iter().any(|finding| finding.id() == "symlink-target") {
        return Err(format!("{name}: the check finds{}", text(&found)));
    }
    let made = repaired(&damaged, image).map_err(|reason| format!("{name}: {reason}"))?;
    let after = shown(image).map_err(|reason| format!("{name}: {reason}"))?;
    let is_link = |line: &String| line.contains("/dir/link\"") || line.contains("/again\"");
    let mut found = differences(before, &after, Compare { blocks: false, ..Compare::ALL });
    if *is_lost {
        found.retain(|line| !is_link(line));
        let lost: Vec<&str> = made.actions.iter().filter_map(|action| action.lost.as_deref()).collect();
        let says = |name: &str| lost.iter().any(|lost| lost.starts_with("the target of ") && lost.contains(name));
        if !says("link in directory") || !says("again in directory") {
            return Err(format!("{name}: the plan says {lost:?}"));
        }
        is_empty_file(image).map_err(|reason| format!("{name}: {reason}"))?;
    }
    if found.is_empty() { Ok(()) } else { Err(format!("{name}: {found:#?}\n  steps:{}", actions(&made))) }
}

/// Both names of the link are those of one empty file, which its owner alone can read.
fn is_empty_file(image: &Path) -> Result<(), String> {
    let mount = KernelMount::try_new(image, "ro,noatime")?;
    let of = |name: &str| symlink_metadata(mount.path().join("sv").join(name)).map_err(|error| error.to_string());
    let (one, other) = (of("dir/link")?, of("again")?);
    let found = (one.mode(), one.len(), one.nlink(), one.ino() == other.ino());
    match mount.finish() {
        complaints if !complaints.is_empty() => Err(format!("the kernel complains: {complaints:#?}")),
        _ if found != (0o100_600, 0, 2, true) => Err(format!("the link is now {found:?}")),
        _ => Ok(()),
    }
}

#[test]
fn a_link_without_a_target_becomes_an_empty_file() {
    for holes in ["no-holes", "^no-holes"] {
        let Some(base) = support::symlinks("repair-symlinks", &["-O", holes]) else { return };
        let scratch = support::Scratch::new("repair-symlinks-images");
        let image = scratch.0.join("image");
        write_image(&base, &image);
        let before = shown(&image).expect("the sound image can be mounted");
        let failures: Vec<String> =
            CASES.iter().filter_map(|case| settle(&base, case, &before, &image).err()).collect();
        assert!(failures.is_empty(), "{holes}:\n{}", failures.join("\n"));
    }
}

/// The links below a folder that the kernel cannot read.
fn unreadable(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("it is a folder").flatten() {
        let kind = entry.file_type().expect("it has a type");
        if kind.is_dir() {
            found.extend(unreadable(&entry.path()));
        } else if kind.is_symlink()
            && std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str().is_empty())
        {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

/// Whichever leaf is lost, the repair leaves no link without its target.
#[test]
fn a_lost_leaf_leaves_no_link_without_a_target() {
    let Some(base) = support::symlinks("repair-symlink-leaves", &["-O", "^no-holes"]) else { return };
    let scratch = support::Scratch::new("repair-symlink-leaves-images");
    let image = scratch.0.join("image");
    let (editor, _) = Editor::of_copy(&base);
    let leaves: Vec<_> = editor.blocks(SUBVOLUME).into_iter().filter(|at| editor.node(*at).is_leaf()).collect();
    assert!(leaves.len() > 4, "the links fill some leaves");
    for at in leaves {
        let (editor, damaged) = Editor::of_copy(&base);
        editor.write_raw(at, &[0x33; 4096]);
        repaired(&damaged, &image).unwrap_or_else(|reason| panic!("leaf {at}: {reason}"));
        let mount = KernelMount::new(&image, "ro");
        let found = unreadable(mount.path());
        mount.finish();
        assert!(found.is_empty(), "leaf {at}: {found:?}");
    }
}
