//! Items whose keys have one wrong bit: nothing of them is lost.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::{DirItem, FileExtentHead, InodeItem};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_repair::{apply, plan, undo};
use butterfs_testkit::editor::{Editor, Item, ItemPosition};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

pub const SUBVOLUME: TreeId = TreeId(256);

/// Files of each kind, with gaps, attributes and several names.
pub const FILES: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; mkdir sv/dir; cd sv
for i in $(seq 24); do
    printf 'inline content %0*d' $((i * 3)) $i > f$i; setfattr -n user.note -v "note $i" f$i
    chmod 751 f$i; chown 7:8 f$i
done
for i in $(seq 12); do head -c $((i * 5000)) /dev/urandom > dir/plain$i; ln dir/plain$i link$i; done
for i in 0 2 3 7; do dd if=/dev/urandom of=sparse bs=8k seek=$i count=1 conv=notrunc status=none; done
head -c 64K /dev/urandom > cut; sync; cp --reflink cut clone; truncate -s 16K clone
dd if=/dev/urandom of=cut bs=4k seek=3 count=1 conv=notrunc status=none
fallocate -l 64K pre; for i in 1 2 3; do ln -s "$(printf 'some/target-%0*d' $((i * 9)) $i)" sym$i; done
mkfifo fifo; mkdir empty; cd ..; sync
"#;

/// The items of a tree; the transactions that made entries do not count, nor how checksums are cut into items.
pub fn items(editor: &Editor, tree: TreeId) -> BTreeMap<Key, Vec<u8>> {
    let mut items = BTreeMap::new();
    let len = editor.sb.checksum_kind().expect("a known checksum").len();
    editor.each_leaf(tree, &mut |leaf| {
        for (key, data) in leaf.items() {
            let mut data = data.to_vec();
            match key.kind {
                KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
                    DirItem::mut_from_prefix(&mut data).expect("an entry").0.transid = 0.into();
                }
                KeyType::EXTENT_CSUM => {
                    let sums = data.chunks(len).zip((key.offset..).step_by(4096));
                    items.extend(sums.map(|(sum, offset)| (Key { offset, ..key }, sum.to_vec())));
                    continue;
                }
                _ => {}
            }
            items.insert(key, data);
        }
        false
    });
    items
}

/// Flips a bit of the key of an item.
fn flip(editor: &Editor, position: ItemPosition, bit: usize) -> String {
    let (mut old, mut new) = (Key::MIN, Key::MIN);
    editor.edit(position.leaf, |leaf| {
        old = leaf.key(position.slot);
        let mut key = DiskKey::from(old);
        key.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        new = key.into();
        leaf.set_key(position.slot, new);
    });
    format!("{old} to {new}")
}

/// A repaired image, with the damaged one and the file that takes the repair back.
pub struct Repaired {
    device: Arc<MemoryDevice>,
    damaged: MemoryDevice,
    undo: MemoryDevice,
}

/// Damages an image and repairs it; the error says what is not as before. `None` where the check sees no damage.
fn settle(
    base: &MemoryDevice,
    trees: &[TreeId],
    damage: &dyn Fn(&Editor) -> String,
) -> Result<Option<Repaired>, String> {
    let (editor, device) = Editor::of_copy(base);
    let before: Vec<_> = trees.iter().map(|tree| items(&editor, *tree)).collect();
    let name = damage(&editor);
    let damaged = device.snapshot();
    let made = plan(&devices(&device), &options(""), &|_, _| {}).map_err(|trouble| format!("{name}: {trouble}"))?;
    let said = || format!("\n  before:{}\n  steps:{}", text(&made.before), actions(&made));
    if !made.is_clean() || made.after.warnings > 0 {
        return Err(format!("{name}: {:?}{}\n  after:{}", made.trouble, said(), text(&made.after)));
    }
    if made.before.is_clean() {
        return Ok(None);
    }
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&device), &undo).map_err(|trouble| format!("{name}: {trouble}"))?;
    let editor = Editor::open(vec![device.clone()]);
    for (tree, before) in trees.iter().zip(before) {
        let after = items(&editor, *tree);
        let lacks = |one: &BTreeMap<Key, Vec<u8>>, other: &BTreeMap<Key, Vec<u8>>| {
            let keys = one.iter().filter(|(key, data)| other.get(key) != Some(data)).map(|(key, _)| *key);
            keys.take(9).collect::<Vec<Key>>()
        };
        let (gone, come) = (lacks(&before, &after), lacks(&after, &before));
        if !(gone.is_empty() && come.is_empty()) {
            return Err(format!("{name}: tree {tree}: gone {gone:?}, come {come:?}{}", said()));
        }
    }
    Ok(Some(Repaired { device, damaged, undo }))
}

/// The items of each kind, by what they are.
fn samples(editor: &Editor, tree: TreeId) -> Vec<(String, KeyType, ItemPosition)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    editor.each_leaf(tree, &mut |leaf| {
        for slot in 0..leaf.nritems() {
            let item = Item { leaf, slot };
            let place = match slot {
                0 => "first",
                _ if item.is_last() => "last",
                _ => "inner",
            };
            let detail = match item.key().kind {
                KeyType::EXTENT_DATA => item.head::<FileExtentHead>().map_or(9, |head| u32::from(head.kind)),
                KeyType::INODE_ITEM => item.head::<InodeItem>().map_or(0, |inode| inode.mode.get() >> 12),
                _ => 0,
            };
            let name = format!("{place} {:?} {detail:o}", item.key().kind);
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            if *count == 2 || place != "inner" && *count == 1 {
                found.push((name, item.key().kind, ItemPosition { leaf: leaf.at(), slot }));
            }
        }
        false
    });
    found
}

/// A damage with its name, and whether a check has to see it.
pub struct Damage<'a> {
    pub name: String,
    pub is_seen: bool,
    pub plant: Box<dyn Fn(&Editor) -> String + 'a>,
}

/// One repair of this many is checked by the kernel, and taken back.
const JUDGED: usize = 60;

/// Settles every damage of an image.
pub fn all(test: &str, base: &MemoryDevice, trees: &[TreeId], damages: Vec<Damage<'_>>) {
    let scratch = support::Scratch::new(&format!("{test}-images"));
    let image = scratch.0.join("image");
    write_image(base, &image);
    let sound = shown(&image).expect("the sound image can be mounted");
    let only = std::env::var("PLANT").unwrap_or_default();
    let (mut failures, mut judged) = (Vec::new(), 0);
    for (index, Damage { name, is_seen, plant }) in damages.iter().enumerate() {
        if !name.contains(&only) {
            continue;
        }
        let settled =
            catch_unwind(AssertUnwindSafe(|| settle(base, trees, plant))).unwrap_or_else(|_| Err("panic".into()));
        let outcome = settled.and_then(|repaired| match repaired {
            Some(repaired) if index % JUDGED == 0 => {
                judged += 1;
                judge(&repaired, &sound, &image)
            }
            None if *is_seen => Err("the check sees nothing".to_owned()),
            _ => Ok(()),
        });
        failures.extend(outcome.err().map(|reason| format!("{name}: {reason}")));
    }
    assert!(failures.is_empty(), "{test}: {} of {}:\n{}", failures.len(), damages.len(), failures.join("\n\n"));
    assert!(judged > 0 || !only.is_empty(), "{test}: no repair was judged");
}

/// The kernel and `btrfs check` find nothing, the files are as before, and undo brings the damage back.
fn judge(repaired: &Repaired, sound: &Fingerprint, image: &Path) -> Result<(), String> {
    write_image(&repaired.device, image);
    judged(image, "after the repair")?;
    let found = differences(sound, &shown(image)?, Compare { blocks: false, ..Compare::ALL });
    undo(&devices(&repaired.device), &repaired.undo).map_err(|trouble| trouble.to_string())?;
    if !support::same(&repaired.device, &repaired.damaged) {
        return Err("undo does not bring the damaged image back".to_owned());
    }
    if found.is_empty() { Ok(()) } else { Err(format!("{found:#?}")) }
}

/// Each bit in so many is flipped; all of them with `STEP=1`.
pub fn step() -> usize {
    std::env::var("STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(17)
}

/// Bits of the keys of these items, other ones for each item.
fn flips(samples: Vec<(String, KeyType, ItemPosition)>) -> Vec<Damage<'static>> {
    let step = step();
    let bits = |(name, kind, position): (String, KeyType, ItemPosition)| {
        let bits = (0..136).filter(move |bit| bit % step == position.slot % step);
        bits.map(move |bit| Damage {
            name: format!("{name}, bit {bit}"),
            // No number counts the attributes of an inode: one of an unknown type is not missed.
            is_seen: kind != KeyType::XATTR_ITEM,
            plant: Box::new(move |editor: &Editor| flip(editor, position, bit)),
        })
    };
    samples.into_iter().flat_map(bits).collect()
}

/// Files in several leaves of checksums, and a snapshot that shares all leaves.
pub fn shared() -> String {
    let more = "for i in $(seq 9); do head -c 1M /dev/urandom > sv/big$i; sync; done";
    format!("{FILES}\n{more}\nbtrfs subvolume snapshot sv snap > /dev/null; sync")
}

#[test]
fn an_item_with_a_wrong_key_is_not_lost() {
    let Some(base) = support::made("keys", FILES) else { return };
    let (editor, _) = Editor::of_copy(&base);
    let samples = [samples(&editor, SUBVOLUME), samples(&editor, TreeId::CSUM)].concat();
    all("keys", &base, &[SUBVOLUME, TreeId::CSUM], flips(samples));
}

#[test]
fn an_item_with_a_wrong_key_in_a_shared_leaf_is_not_lost() {
    let Some(base) = support::made("keys-shared", &shared()) else { return };
    let (editor, _) = Editor::of_copy(&base);
    let samples = [samples(&editor, SUBVOLUME), samples(&editor, TreeId::CSUM)].concat();
    all("keys-shared", &base, &[SUBVOLUME, TreeId(257), TreeId::CSUM], flips(samples));
}
