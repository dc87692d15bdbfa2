//! Names that one or more of their witnesses have otherwise, and names that no program can use.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{DirItem, dir_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_repair::{Plan, apply, plan};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::KernelMount;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const SUBVOLUME: TreeId = TreeId(256);

/// The witnesses of a name, and the bytes before it in their items.
const INDEX: (TreeId, KeyType, usize) = (SUBVOLUME, KeyType::DIR_INDEX, DIR_ITEM_LEN);
const ITEM: (TreeId, KeyType, usize) = (SUBVOLUME, KeyType::DIR_ITEM, DIR_ITEM_LEN);
const REF: (TreeId, KeyType, usize) = (SUBVOLUME, KeyType::INODE_REF, 10);
const ROOT_REF: (TreeId, KeyType, usize) = (TreeId::ROOT, KeyType::ROOT_REF, 18);
const BACKREF: (TreeId, KeyType, usize) = (TreeId::ROOT, KeyType::ROOT_BACKREF, 18);
const DIR_ITEM_LEN: usize = size_of::<DirItem>();

type Witness = (TreeId, KeyType, usize);

/// The name of a case, and what it damages.
struct Case {
    witnesses: &'static [Witness],
    old: &'static str,
    new: &'static str,
}

const fn case(witnesses: &'static [Witness], old: &'static str, new: &'static str) -> Case {
    Case { witnesses, old, new }
}

const CASES: &[Case] = &[
    case(&[INDEX], "file-007", "Wile-007"),
    case(&[INDEX], "file-007", "/ile-007"),
    case(&[INDEX], "subdir", "Wubdir"),
    case(&[INDEX], "subdir", "/ubdir"),
    case(&[INDEX], "symlink", "syml\0nk"),
    case(&[REF], "file-007", "Wile-007"),
    case(&[REF], "file-007", "/ile-007"),
    case(&[REF], "subdir", "Wubdir"),
    case(&[REF], "subdir", "/ubdir"),
    case(&[ITEM], "file-007", "/ile-007"),
    case(&[ITEM], "subdir", "/ubdir"),
    // The name of another link in the same directory.
    case(&[INDEX], "hard-a", "hard-b"),
    case(&[REF], "hard-a", "hard-b"),
    // The name of another file.
    case(&[INDEX], "file-007", "file-008"),
    case(&[REF], "file-007", "file-008"),
    case(&[REF], "subdir", "file-0"),
    // One possible name is left.
    case(&[INDEX, REF], "file-007", "/ile-007"),
    case(&[INDEX, REF], "subdir", "/ubdir"),
    case(&[INDEX, ITEM], "file-007", "/ile-007"),
    case(&[INDEX, ITEM], "subdir", "/ubdir"),
    case(&[ITEM, REF], "file-007", "/ile-007"),
    case(&[ITEM, REF], "subdir", "/ubdir"),
    // None is left: the name that is made up is the old one here.
    case(&[INDEX, ITEM, REF], "_lash", "/lash"),
    case(&[INDEX, ITEM, REF], "_irs", "/irs"),
    case(&[INDEX, ITEM, REF], "_", "."),
    case(&[INDEX, ITEM, REF], "__", ".."),
    case(&[INDEX, ITEM, REF], "nu_l", "nu\0l"),
    // Names of subvolumes.
    case(&[INDEX], "nested", "Wested"),
    case(&[INDEX], "nested", "/ested"),
    case(&[ITEM], "nested", "/ested"),
    case(&[INDEX, ITEM], "nested", "/ested"),
    case(&[ROOT_REF], "nested", "/ested"),
    case(&[BACKREF], "nested", "/ested"),
    case(&[ROOT_REF, BACKREF], "nested", "/ested"),
    case(&[INDEX, ITEM, ROOT_REF, BACKREF], "_ested", "/ested"),
];

/// The item of a witness that has a name.
fn find(editor: &Editor, (tree, kind, before): Witness, name: &[u8]) -> ItemPosition {
    editor.find(tree, |item: Item<'_>| item.is(kind) && holds(item.data(), before, name).is_some())
}

/// The place of a name in an item, of which links may share one.
fn holds(data: &[u8], before: usize, name: &[u8]) -> Option<usize> {
    if before != REF.2 {
        return (data.get(before..)? == name).then_some(before);
    }
    let mut at = before;
    while at < data.len() {
        let len = usize::from(data[at - 2]);
        if data.get(at..at + len)? == name {
            return Some(at);
        }
        at += len + before;
    }
    None
}

fn damage(editor: &Editor, Case { witnesses, old, new }: &Case) {
    for &witness in *witnesses {
        let position @ ItemPosition { leaf, slot } = find(editor, witness, old.as_bytes());
        if witness.1 != KeyType::DIR_ITEM {
            let at = holds(editor.node(leaf).item(slot), witness.2, old.as_bytes()).expect("it has the name");
            editor.edit(leaf, |leaf| leaf.item_mut(slot)[at..at + new.len()].copy_from_slice(new.as_bytes()));
            continue;
        }
        let key = Key { offset: name_hash(new.as_bytes()), ..editor.node(leaf).key(slot) };
        let data = [&editor.node(leaf).item(slot)[..DIR_ITEM_LEN], new.as_bytes()].concat();
        assert!(slot > 0, "the parent of the leaf does not have the key");
        editor.remove_at(position);
        editor.insert(SUBVOLUME, key, &data);
    }
}

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

/// Repairs a damage, after which everything must be as before.
fn settle(damaged: &Arc<MemoryDevice>, before: &Fingerprint, image: &Path, is_impossible: bool) -> Result<(), String> {
    let found = support::judge_with(damaged, &butterfs_check::Options::default());
    let is_known = found.findings.iter().any(|finding| finding.id() == "name-impossible");
    if found.is_clean() || is_impossible != is_known {
        return Err(format!("the check finds{}", text(&found)));
    }
    let made = repaired(damaged, image)?;
    let said = || format!("\n  before:{}\n  steps:{}", text(&made.before), actions(&made));
    let after = shown(image).map_err(|reason| format!("{reason}{}", said()))?;
    let found = differences(before, &after, Compare { blocks: false, ..Compare::ALL });
    if found.is_empty() { Ok(()) } else { Err(format!("{found:#?}{}", said())) }
}

/// The numbers of removed files: how full the kernel leaves a leaf, and where it begins, is chance.
const REMOVED: [usize; 6] = [60, 66, 73, 81, 90, 100];

/// A damage with its name, and whether it makes a name that no program can use.
type Damage<'a> = (String, bool, Box<dyn Fn(&Editor) + 'a>);

/// Repairs each damage, in the first image in which it can be planted.
fn all(test: &str, damages: Vec<Damage<'_>>) {
    let scratch = support::Scratch::new(&format!("{test}-images"));
    let image = scratch.0.join("image");
    let only = std::env::var("PLANT").unwrap_or_default();
    let (mut left, mut failures) = (damages, Vec::new());
    left.retain(|(name, ..)| name.contains(&only));
    for removed in REMOVED {
        if left.is_empty() {
            break;
        }
        let Some(base) = support::names(test, removed) else { return };
        write_image(&base, &image);
        let before = shown(&image).expect("the sound image can be mounted");
        left.retain(|(name, is_impossible, damage)| {
            let (editor, damaged) = Editor::of_copy(&base);
            if catch_unwind(AssertUnwindSafe(|| damage(&editor))).is_err() {
                return true;
            }
            let settled = settle(&damaged, &before, &image, *is_impossible);
            failures.extend(settled.err().map(|reason| format!("{name}: {reason}")));
            false
        });
    }
    let left: Vec<&String> = left.iter().map(|(name, ..)| name).collect();
    assert!(failures.is_empty() && left.is_empty(), "not planted: {left:#?}\n{}", failures.join("\n\n"));
}

#[test]
fn a_name_is_the_one_that_most_witnesses_have() {
    let damages = CASES.iter().map(|case| {
        let kinds: Vec<KeyType> = case.witnesses.iter().map(|witness| witness.1).collect();
        // References to subvolumes are compared with the entries, which have the right name.
        let in_entries = case.witnesses.iter().any(|witness| witness.0 == SUBVOLUME);
        let is_impossible = in_entries && !butterfs_check::is_possible_name(case.new.as_bytes());
        let damage: Box<dyn Fn(&Editor)> = Box::new(|editor| damage(editor, case));
        (format!("{kinds:?} of {} {:?}", case.old, case.new), is_impossible, damage)
    });
    all("misnamed", damages.collect());
}

/// The number of the inode that an entry of the subvolume leads to.
fn inode_of(editor: &Editor, name: &str) -> u64 {
    let ItemPosition { leaf, slot } = find(editor, INDEX, name.as_bytes());
    let node = editor.node(leaf);
    let (head, _) = DirItem::ref_from_prefix(node.item(slot)).expect("an entry");
    Key::from(head.location).objectid
}

/// Adds an index of a file that has all of its names elsewhere.
fn add_stray(editor: &Editor, name: &[u8]) {
    let location = Key::new(inode_of(editor, "file-007"), KeyType::INODE_ITEM, 0);
    let name_len = (name.len() as u16).into();
    let (transid, data_len, kind) = (7.into(), 0.into(), dir_type::REG_FILE);
    let head = DirItem { location: location.into(), transid, data_len, name_len, kind };
    let key = Key::new(inode_of(editor, "other"), KeyType::DIR_INDEX, 900);
    editor.insert(SUBVOLUME, key, &[head.as_bytes(), name].concat());
}

/// Makes a directory say that it is in another one.
fn move_reference(editor: &Editor) {
    let (other, position) = (inode_of(editor, "other"), find(editor, REF, b"subdir"));
    assert!(position.slot > 0, "the parent of the leaf does not have the key");
    editor.set_key(position, |key| Key { offset: other, ..key });
}

#[test]
fn one_witness_against_the_others_loses() {
    let damages: Vec<Damage<'_>> = vec![
        ("a stray index".into(), false, Box::new(|editor| add_stray(editor, b"stray"))),
        ("a stray index with a slash".into(), true, Box::new(|editor| add_stray(editor, b"st/ay"))),
        ("another parent".into(), false, Box::new(move_reference)),
    ];
    all("outvoted", damages);
}

/// The name that would replace an impossible one is taken: the inode gets `inode-` and its number.
#[test]
fn a_name_that_is_taken_is_not_given_again() {
    let scratch = support::Scratch::new("taken-name-images");
    let image = scratch.0.join("image");
    let mut planted = None;
    for removed in REMOVED {
        let Some(base) = support::names("taken-name", removed) else { return };
        let (editor, damaged) = Editor::of_copy(&base);
        let both = || {
            damage(&editor, &case(&[INDEX, ITEM, REF], "file-009", "_lash/09"));
            damage(&editor, &case(&[INDEX, ITEM, REF], "file-010", "_lash_09"));
            inode_of(&editor, "_lash/09")
        };
        planted = catch_unwind(AssertUnwindSafe(both)).ok().map(|ninth| (damaged, ninth));
        if planted.is_some() {
            break;
        }
    }
    let (damaged, ninth) = planted.expect("an image has room");
    let made = repaired(&damaged, &image).expect("it is repaired");
    let mount = KernelMount::new(&image, "ro");
    let content = |name: &str| std::fs::read_to_string(mount.path().join("sv/tree").join(name)).unwrap_or_default();
    let found = (content(&format!("inode-{ninth}")), content("_lash_09"));
    assert!(mount.finish().is_empty());
    assert_eq!(found, ("file 9\n".into(), "file 10\n".into()), "{}", actions(&made));
    let lost: Vec<&str> = made.actions.iter().filter_map(|action| action.lost.as_deref()).collect();
    assert!(lost.iter().any(|lost| lost.contains("_lash/09")), "{lost:?}");
}
