//! Single numbers of file extents that are damaged, and single items that are lost: all other structures say what was
//! there, so that nothing is lost. One kind of data says it too: an extent that is marked as not written, and has
//! checksums that it fits.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, compression, file_extent_type};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_repair::{Options, apply, plan, undo};
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use std::path::Path;
use std::sync::Arc;

const SUBVOLUME: TreeId = TreeId(256);
const SNAPSHOT: TreeId = TreeId(257);

/// A subvolume that is to be damaged.
#[derive(Clone, Copy)]
struct Target<'a> {
    editor: &'a Editor,
    tree: TreeId,
}

impl Target<'_> {
    fn change(self, wanted: fn(Item<'_>) -> bool, change: impl FnOnce(&mut FileExtent)) {
        self.editor.change(self.tree, wanted, change);
    }

    fn change_head(self, wanted: fn(Item<'_>) -> bool, change: impl FnOnce(&mut FileExtentHead)) {
        self.editor.change(self.tree, wanted, change);
    }

    fn remove(self, wanted: fn(Item<'_>) -> bool) {
        self.editor.remove(self.tree, wanted);
    }
}

/// A damage to an extent of a file.
type Case = (&'static str, fn(Target<'_>));

/// A packed extent in the middle of its file.
fn packed(item: Item<'_>) -> bool {
    let is_packed = |extent: &FileExtent| {
        let (kind, mark) = (extent.head.kind, extent.head.compression);
        kind == file_extent_type::REGULAR && mark == compression::ZSTD && extent.body.num_bytes.get() == 128 << 10
    };
    let goes_on = item.next().is_some_and(|next| next.is(KeyType::EXTENT_DATA));
    item.is_inner(KeyType::EXTENT_DATA) && goes_on && item.head().is_some_and(is_packed)
}

/// The only extent of a file, not packed and shown as a whole, of at least four sectors.
fn alone(item: Item<'_>) -> bool {
    let is_whole = |extent: &FileExtent| {
        let (kind, mark, length) = (extent.head.kind, extent.head.compression, extent.body.disk_num_bytes.get());
        (kind, mark) == (file_extent_type::REGULAR, 0)
            && extent.body.num_bytes.get() == length
            && length >= 16 << 10
            && extent.body.disk_bytenr.get() != 0
    };
    let ends = item.next().is_some_and(|next| !next.is(KeyType::EXTENT_DATA));
    item.is_inner(KeyType::EXTENT_DATA) && item.key().offset == 0 && ends && item.head().is_some_and(is_whole)
}

/// One of many short extents of a file.
fn short(item: Item<'_>) -> bool {
    let is_short =
        |extent: &FileExtent| extent.head.kind == file_extent_type::REGULAR && extent.body.disk_num_bytes.get() == 8192;
    let goes_on = item.next().is_some_and(|next| next.is(KeyType::EXTENT_DATA));
    item.is_inner(KeyType::EXTENT_DATA) && item.key().offset > 0 && goes_on && item.head().is_some_and(is_short)
}

/// A part of an extent, whose other parts the file does not show.
fn part(item: Item<'_>) -> bool {
    let is_part = |extent: &FileExtent| extent.body.offset.get() == 4096 && extent.head.compression == 0;
    item.is_inner(KeyType::EXTENT_DATA) && item.data().len() == 53 && item.head().is_some_and(is_part)
}

fn inline(item: Item<'_>) -> bool {
    let is_inline = |head: &FileExtentHead| (head.kind, head.compression) == (file_extent_type::INLINE, 0);
    item.is_inner(KeyType::EXTENT_DATA) && item.data().len() == 521 && item.head().is_some_and(is_inline)
}

/// Inline data that is as long as the fields of another kind of extent.
fn inline_of_32(item: Item<'_>) -> bool {
    let is_inline = |head: &FileExtentHead| (head.kind, head.compression) == (file_extent_type::INLINE, 0);
    item.is_inner(KeyType::EXTENT_DATA) && item.data().len() == 53 && item.head().is_some_and(is_inline)
}

fn unpacked<const BYTES: u64>(target: Target<'_>) {
    target.change(packed, |extent| extent.head.ram_bytes = BYTES.into());
}

fn show<const BYTES: u64>(target: Target<'_>, wanted: fn(Item<'_>) -> bool) {
    target.change(wanted, |extent| extent.body.num_bytes = BYTES.into());
}

fn inline_length(target: Target<'_>, wanted: fn(Item<'_>) -> bool, by: i64) {
    target.change_head(wanted, |head| {
        head.ram_bytes = head.ram_bytes.get().wrapping_add_signed(by).into();
    });
}

/// Moves an extent by some bytes.
fn displace(target: Target<'_>, wanted: fn(Item<'_>) -> bool, by: i64) {
    target.change(wanted, |extent| {
        extent.body.disk_bytenr = extent.body.disk_bytenr.get().wrapping_add_signed(by).into();
    });
}

/// Gives an extent the address of the next one of the same file.
fn address_of_another(target: Target<'_>) {
    let Target { editor, tree } = target;
    let place = editor.find(tree, short);
    let leaf = editor.node(place.leaf);
    let other = leaf.item(place.slot + 1);
    let address = <FileExtent as zerocopy::FromBytes>::ref_from_bytes(other).expect("an extent");
    let address = address.body.disk_bytenr;
    editor.edit_item(place, |extent: &mut FileExtent| extent.body.disk_bytenr = address);
}

fn unwritten(target: Target<'_>, wanted: fn(Item<'_>) -> bool) {
    target.change(wanted, |extent| extent.head.kind = file_extent_type::PREALLOC);
}

const CASES: &[Case] = &[
    ("unpacked length 4096", unpacked::<4096>),
    ("unpacked length 0", unpacked::<0>),
    ("unpacked length of 1 MiB", unpacked::<{ 1 << 20 }>),
    ("unpacked length within a sector", unpacked::<131_071>),
    ("inline length too large", |target| inline_length(target, inline, 1)),
    ("inline length too small", |target| inline_length(target, inline, -256)),
    ("inline length of what is as long as other kinds", |target| inline_length(target, inline_of_32, 1)),
    ("nothing shown of a packed extent", |target| show::<0>(target, packed)),
    ("nothing shown of an extent", |target| show::<0>(target, alone)),
    ("less shown of a packed extent", |target| show::<4096>(target, packed)),
    ("less shown of an extent", |target| show::<8192>(target, alone)),
    ("more shown of a packed extent", |target| show::<{ 256 << 10 }>(target, packed)),
    ("more shown of an extent", |target| show::<{ 1 << 30 }>(target, alone)),
    ("a part of a sector shown", |target| show::<131_073>(target, packed)),
    ("not written, says a whole extent", |target| unwritten(target, alone)),
    ("not written, says one of many", |target| unwritten(target, short)),
    ("the address of another extent of the file", address_of_another),
    ("the address of the packed extent before", |target| displace(target, packed, -4096)),
    ("the address of the packed extent behind", |target| displace(target, packed, 4096)),
    ("the address of something before", |target| displace(target, alone, -4096)),
    ("the offset within an extent", |target| {
        target.change(part, |extent| extent.body.offset = (extent.body.offset.get() + 4096).into());
    }),
    ("the item of a packed extent", |target| target.remove(packed)),
    ("the item of the last packed extent", |target| {
        target.remove(|item| {
            let is_packed = item.head().is_some_and(|extent: &FileExtent| extent.head.compression != 0);
            let ends = item.next().is_some_and(|next| !next.is(KeyType::EXTENT_DATA));
            item.is_inner(KeyType::EXTENT_DATA) && item.data().len() == 53 && item.key().offset > 0 && is_packed && ends
        });
    }),
    ("the items of two packed extents", |target| {
        target.remove(|item| packed(item) && item.key().offset > 0);
        target.remove(|item| packed(item) && item.key().offset > 0);
    }),
];

/// Makes files of all forms, several of each: leaves end somewhere.
const FILES: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; cd sv
for i in 1 2 3; do
    head -c 500 /dev/urandom > inline$i; head -c 32 /dev/urandom > short$i
    touch packed$i; btrfs property set packed$i compression zstd
    for line in $(seq 40000); do echo "hello $i, pack me"; done > packed$i
    head -c 600000 /dev/urandom > plain$i
    for place in $(seq 19 -1 0); do
        dd if=/dev/urandom of=frag$i bs=8k seek=$place count=1 conv=notrunc,fsync status=none
    done
    head -c 64K /dev/urandom > part$i; sync; truncate -s 48K part$i; fallocate -p -n -o 0 -l 4096 part$i
done
cd ..; sync
"#;

/// Clones refer to the same extents.
const CLONED: &str = r#"
for file in packed plain frag; do
    for i in 1 2 3; do cp --reflink=always sv/$file$i sv/clone-$file$i; done
done
sync
"#;

/// A snapshot shares the leaves.
const SHARED: &str = r#"
btrfs subvolume snapshot sv snap > /dev/null; sync
"#;

/// The leaves of the subvolume are written anew; those that the snapshot keeps refer by their addresses.
const PARTED: &str = r#"
btrfs subvolume snapshot sv snap > /dev/null; sync; for file in sv/*; do touch $file; done; sync
"#;

/// Only the snapshot has the files, in leaves that refer by their addresses.
const GONE: &str = r#"
btrfs subvolume snapshot sv snap > /dev/null; sync; rm sv/*; sync
"#;

/// The damages of which references by the address of a leaf say too little.
const UNSAID: &[&str] = &["the item", "the offset", "the address of another", "the address of the packed extent"];

fn settle(
    (base, tree): (&Arc<MemoryDevice>, TreeId),
    before: &Fingerprint,
    image: &Path,
    (name, damage): &Case,
) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(Target { editor: &editor, tree });
    let sound = Arc::new(damaged.snapshot());
    let options = Options { now: 1_700_000_000, ..Options::default() };
    let made = plan(&devices(&damaged), &options, &|_, _| {}).map_err(|trouble| format!("{name}: {trouble}"))?;
    let said = || format!("before:{}\n  steps:{}\n  after:{}", text(&made.before), actions(&made), text(&made.after));
    let lost: Vec<&str> = made.actions.iter().filter_map(|action| action.lost.as_deref()).collect();
    if !made.is_clean() || made.after.warnings > 0 || made.before.errors == 0 || lost.iter().any(|lost| is_loss(lost)) {
        return Err(format!("{name}: trouble {:?}\n  {}", made.trouble, said()));
    }
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&damaged), &file).map_err(|trouble| trouble.to_string())?;
    write_image(&damaged, image);
    let after = judged(image, "after the repair").and_then(|()| shown(image));
    let after = after.map_err(|reason| format!("{name}: {reason}\n  {}", said()))?;
    let found = differences(before, &after, Compare { blocks: false, ..Compare::ALL });
    if !found.is_empty() {
        let first = found.iter().take(6).cloned().collect::<Vec<_>>().join("\n    ");
        return Err(format!("{name}: not as before:\n    {first}\n  {}", said()));
    }
    undo(&devices(&damaged), &file).map_err(|trouble| format!("{name}: not undone: {trouble}"))?;
    if support::same(&damaged, &sound) { Ok(()) } else { Err(format!("{name}: undo does not bring the damage back")) }
}

/// A block that is copied because of wrong items loses nothing if all of them were put right, nor do those that share
/// it.
fn is_loss(lost: &str) -> bool {
    !lost.ends_with("that break a rule: none") && !lost.starts_with("nothing of its own")
}

fn all(test: &str, more: &str, tree: TreeId, is_wanted: fn(&str) -> bool) {
    if !support::kernel(test) {
        return;
    }
    let Some(base) = support::made(test, &(FILES.to_owned() + more)) else { return };
    let scratch = support::Scratch::new(&format!("{test}-images"));
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let before = shown(&image).expect("the sound image can be mounted");
    let sound = support::judge_with(&base, &butterfs_check::Options { check_data: true, ..Default::default() });
    assert!(sound.is_clean(), "the sound image: {}", text(&sound));
    let only = std::env::var("PLANT").ok();
    let is_chosen = |name: &str| only.as_ref().is_none_or(|only| name.contains(only.as_str())) && is_wanted(name);
    let cases = CASES.iter().filter(|(name, _)| is_chosen(name));
    let failures: Vec<String> = cases.filter_map(|case| settle((&base, tree), &before, &image, case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn numbers_of_file_extents_follow_from_all_others() {
    all("file-extents", "", SUBVOLUME, |_| true);
}

#[test]
fn numbers_of_cloned_file_extents_follow_from_all_others() {
    all("file-extents-cloned", CLONED, SUBVOLUME, |_| true);
}

#[test]
fn numbers_of_file_extents_in_shared_leaves_follow_from_all_others() {
    all("file-extents-shared", SHARED, SUBVOLUME, |_| true);
}

#[test]
fn a_snapshot_is_repaired_as_its_changed_source_says() {
    all("file-extents-parted", PARTED, SNAPSHOT, |name| !name.contains("offset"));
}

/// References by the address of a leaf say neither of which file an item is lost, nor where its extent began, nor which
/// of two items of the leaf has the wrong address.
#[test]
fn numbers_of_file_extents_in_leaves_with_full_references_follow_from_all_others() {
    all("file-extents-gone", GONE, SNAPSHOT, |name| !UNSAID.iter().any(|unsaid| name.starts_with(unsaid)));
}

/// Space in which nothing was written gets checksums that nothing fits: they go, and it is read as zeros, as before.
#[test]
fn checksums_of_space_that_is_only_allocated_go() {
    const TEST: &str = "file-extents-allocated";
    let Some(base) = support::made(TEST, "head -c 9000 /dev/urandom > other; sync; fallocate -l 64K file; sync") else {
        return;
    };
    let scratch = support::Scratch::new(&format!("{TEST}-images"));
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let before = shown(&image).expect("the sound image can be mounted");
    let (editor, damaged) = Editor::of_copy(&base);
    let is_allocated = |item: Item<'_>| {
        let is_it = |extent: &FileExtent| extent.head.kind == file_extent_type::PREALLOC;
        item.is(KeyType::EXTENT_DATA) && item.data().len() == 53 && item.head().is_some_and(is_it)
    };
    let place = editor.find(TreeId::FS, is_allocated);
    let leaf = editor.node(place.leaf);
    let extent = <FileExtent as zerocopy::FromBytes>::ref_from_bytes(leaf.item(place.slot)).expect("an extent");
    let sums = Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, extent.body.disk_bytenr.get());
    editor.insert(TreeId::CSUM, sums, &[7; 64]);
    let options = Options { now: 1_700_000_000, ..Options::default() };
    let made = plan(&devices(&damaged), &options, &|_, _| {}).expect("there is a plan");
    let found = |id: &str| made.before.findings.iter().any(|finding| finding.id() == id);
    assert!(found("checksum-unwritten") && made.is_clean(), "{}{}", text(&made.before), actions(&made));
    let lost: Vec<&str> = made.actions.iter().filter_map(|action| action.lost.as_deref()).collect();
    assert_eq!(lost, ["checksums of bytes that are read as zeros"]);
    apply(&made, &devices(&damaged), &MemoryDevice::new(made.undo_len())).expect("it can be written");
    write_image(&damaged, &image);
    judged(&image, "after the repair").expect("it is clean");
    let after = shown(&image).expect("it can be mounted");
    assert_eq!(differences(&before, &after, Compare { blocks: false, ..Compare::ALL }), [""; 0]);
}
