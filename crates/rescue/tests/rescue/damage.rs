//! Random damage in classes: ours saves at least as many files as `btrfs restore` and the kernel's rescue mounts, class
//! by class, and claims of no file, with a scan or without, what is not so.

use crate::claims::{Kind, false_claims};
use crate::made_by_kernel;
use crate::opened::{plain, scanned};
use crate::saved::{Contents, Hashing, Restored, below, by_btrfs_restore, by_kernel, by_us};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::{KeyType, Logical, TreeId};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::progress::Progress;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::{Scratch, load};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_tree::Node;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Places of the image that are overwritten: offset and bytes.
pub type Damage = Vec<(u64, Vec<u8>)>;

pub const CLASSES: [&str; 13] = [
    "bytes of tree blocks",
    "tree blocks lost",
    "a root lost",
    "one of two copies rotten",
    "stale tree blocks",
    "data sectors",
    "the first 64 MiB",
    "all superblocks but the last",
    "the chunk tree",
    "names of subvolumes",
    "items lost, good checksums",
    "places of items, good checksums",
    "leaves of files, one byte",
];

/// Longest time that all ways together may take for one image. Each program has a limit of its own below that.
pub const LONGEST_S: u64 = 900;

/// Classes in which everything is there.
const WHOLE: [usize; 5] = [2, 3, 7, 8, 9];
/// Classes whose damage has good checksums.
const SEALED: [usize; 3] = [9, 10, 11];

pub struct Ground {
    pub base: MemoryDevice,
    earlier: MemoryDevice,
    /// Places of the copies of all tree blocks.
    blocks: Vec<Vec<u64>>,
    /// Addresses of leaves of subvolumes and the root tree.
    leaves: Vec<Logical>,
    /// Addresses of leaves with entries of subvolumes, or references to them, each with the items.
    names: Vec<(Logical, Vec<usize>)>,
    chunk_blocks: Vec<Vec<u64>>,
    roots: Vec<Vec<u64>>,
    data: Vec<u64>,
    nodesize: usize,
}

impl Ground {
    pub fn of(image: &Path, earlier: &Path) -> Ground {
        let base = load(image);
        let (editor, _) = Editor::of_copy(&base);
        let copies = |at| editor.copies(at).into_iter().map(|(_, offset)| offset).collect::<Vec<u64>>();
        let mut trees = vec![TreeId::ROOT, TreeId::FS, TreeId::CSUM, TreeId::EXTENT, TreeId::DEV];
        trees.extend([256, 257, 258, 259].map(TreeId));
        let blocks = trees.iter().flat_map(|tree| editor.blocks(*tree)).map(copies).collect();
        // What a root that is a leaf has is nowhere else.
        let is_node = |tree: &&TreeId| !tree.is_subvolume() || !editor.node(editor.root(**tree)).is_leaf();
        let roots = trees.iter().filter(is_node).map(|tree| copies(editor.root(*tree))).collect();
        let chunk_blocks = editor.blocks(TreeId::CHUNK).into_iter().map(copies).collect();
        let mut data = Vec::new();
        editor.each_leaf(TreeId::CSUM, &mut |leaf| {
            for (key, item) in leaf.items() {
                let sectors = (item.len() / 4) as u64;
                data.extend(
                    (0..sectors).filter_map(|n| editor.copies(Logical(key.offset + n * 4096)).first().map(|c| c.1)),
                );
            }
            false
        });
        let nodesize = editor.sb.nodesize.get() as usize;
        let (mut leaves, mut names) = (Vec::new(), Vec::new());
        for at in trees
            .iter()
            .filter(|tree| tree.is_subvolume() || **tree == TreeId::ROOT)
            .flat_map(|tree| editor.blocks(*tree))
        {
            let node = editor.node(at);
            if !node.is_leaf() || node.nritems() == 0 {
                continue;
            }
            leaves.push(at);
            let found: Vec<usize> = (0..node.nritems()).filter(|slot| names_subvolume(&node, *slot)).collect();
            names.extend((!found.is_empty()).then_some((at, found)));
        }
        let (base, earlier) = (load(image), load(earlier));
        Ground { base, earlier, blocks, leaves, names, chunk_blocks, roots, data, nodesize }
    }

    fn read(&self, device: &MemoryDevice, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.nodesize];
        device.read_at(at, &mut bytes).unwrap();
        bytes
    }

    /// A changed leaf with a good checksum, on all its copies.
    fn sealed(&self, at: Logical, change: impl FnOnce(&mut Vec<u8>, &Node)) -> Damage {
        let (editor, _) = Editor::of_copy(&self.base);
        let node = editor.node(at);
        let mut bytes = node.bytes().to_vec();
        change(&mut bytes, &node);
        let digest = editor.sb.checksum_kind().unwrap().digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        editor.copies(at).into_iter().map(|(_, offset)| (offset, bytes.clone())).collect()
    }

    /// One item is gone, for whatever reason.
    fn without_item(&self, at: Logical, slot: usize) -> Damage {
        self.sealed(at, |bytes, node| {
            let mut node = node.clone();
            node.remove_items(slot..slot + 1);
            bytes.copy_from_slice(node.bytes());
        })
    }

    pub fn damage(&self, class: usize, rng: &mut Rng) -> Damage {
        let pick = |rng: &mut Rng, from: &[Vec<u64>]| from[rng.below(from.len() as u64) as usize].clone();
        let garbage = |rng: &mut Rng, len: usize| -> Vec<u8> { (0..len).map(|_| rng.below(256) as u8).collect() };
        let mut damage = Damage::new();
        match class {
            0 => (0..20).for_each(|_| {
                let (places, inside) = (pick(rng, &self.blocks), rng.below(self.nodesize as u64));
                let len = 1 + rng.below(16) as usize;
                let bytes = garbage(rng, len);
                damage.extend(places.iter().map(|at| (at + inside.min(self.nodesize as u64 - 16), bytes.clone())));
            }),
            1 => (0..5)
                .for_each(|_| damage.extend(pick(rng, &self.blocks).iter().map(|at| (*at, vec![0; self.nodesize])))),
            2 => damage.extend(pick(rng, &self.roots).iter().map(|at| (*at, vec![0x5a; self.nodesize]))),
            3 => {
                let copy = rng.below(2) as usize;
                for _ in 0..60 {
                    let at = pick(rng, &self.blocks)[copy] + rng.below(self.nodesize as u64);
                    damage.push((at, vec![0xff]));
                }
            }
            4 => (0..10).for_each(|_| {
                for at in pick(rng, &self.blocks) {
                    damage.push((at, self.read(&self.earlier, at)));
                }
            }),
            5 => (0..40).for_each(|_| {
                let at = self.data[rng.below(self.data.len() as u64) as usize];
                damage.push((at + rng.below(4000), garbage(rng, 8)));
            }),
            6 => damage.push((0, vec![0; 64 << 20])),
            7 => damage.push((64 << 10, vec![0; 4096])),
            8 => damage.extend(self.chunk_blocks.iter().flatten().map(|at| (*at, vec![0; self.nodesize]))),
            9 => {
                let (at, slots) = &self.names[rng.below(self.names.len() as u64) as usize];
                let slot = slots[rng.below(slots.len() as u64) as usize];
                damage.extend(match rng.below(2) {
                    0 => self.without_item(*at, slot),
                    // The last letter of its name.
                    _ => self.sealed(*at, |bytes, node| {
                        let mut node = node.clone();
                        let item = node.item_mut(slot);
                        let end = item.len() - 1;
                        item[end] ^= 0x20;
                        bytes.copy_from_slice(node.bytes());
                    }),
                });
            }
            10 => {
                let at = self.leaves[rng.below(self.leaves.len() as u64) as usize];
                let count = Editor::of_copy(&self.base).0.node(at).nritems() as u64;
                damage.extend(self.without_item(at, rng.below(count) as usize));
            }
            11 => {
                let at = self.leaves[rng.below(self.leaves.len() as u64) as usize];
                let (field, by) = (17 + 4 * rng.below(2) as usize, [1, 255][rng.below(2) as usize]);
                let random = rng.below(u64::MAX);
                damage.extend(self.sealed(at, |bytes, node| {
                    let slot = (random % node.nritems() as u64) as usize;
                    let place = 101 + 25 * slot + field;
                    bytes[place] = bytes[place].wrapping_add(by);
                }));
            }
            _ => (0..3).for_each(|_| {
                let at = self.leaves[rng.below(self.leaves.len() as u64) as usize];
                let (editor, _) = Editor::of_copy(&self.base);
                let (inside, byte) = (rng.below(self.nodesize as u64), rng.below(255) as u8);
                damage.extend(editor.copies(at).into_iter().map(|(_, offset)| (offset + inside, vec![byte])));
            }),
        }
        damage
    }

    /// The sound bytes of a damaged place, the item that they belong to, and the bytes that are there now.
    fn describe(&self, at: u64, bytes: &[u8]) -> String {
        let begin = at - at % self.nodesize as u64;
        let inside = (at - begin) as usize;
        let mut block = self.read(&self.base, begin);
        let old: Vec<u8> = block[inside..].iter().take(bytes.len().min(16)).copied().collect();
        let new = &bytes[..bytes.len().min(16)];
        let is_block = self.blocks.iter().flatten().any(|place| *place == begin);
        if !is_block {
            return format!("{at}: {old:02x?} is {new:02x?}");
        }
        let node = Node::from_checked(std::mem::take(&mut block).into());
        let place = format!("block {} of tree {:?}, byte {inside}", node.at(), node.owner());
        let slot = (0..node.nritems()).find(|slot| {
            let head = 101 + 25 * slot;
            let data = node.is_leaf().then(|| node.item(*slot).as_ptr() as usize - node.bytes().as_ptr() as usize);
            let is_of_data = data.is_some_and(|data| (data..data + node.item(*slot).len()).contains(&inside));
            is_of_data || (head..head + 25).contains(&inside)
        });
        let item = slot.map(|slot| format!("item {slot} of {}, {:?}", node.nritems(), node.key(slot)));
        format!("{place}, {}: {old:02x?} is {new:02x?}", item.unwrap_or_else(|| "no item".to_owned()))
    }

    /// A file with the sound image.
    pub fn file(&self, scratch: &Scratch) -> PathBuf {
        scratch.image("damaged.img", &self.base)
    }

    /// Damages the file; returns the same image in memory.
    pub fn strike(&self, damage: &[(u64, Vec<u8>)], file: &Path) -> MemoryDevice {
        let (copy, file) = (self.base.snapshot(), fs::OpenOptions::new().write(true).open(file).unwrap());
        for (at, bytes) in damage {
            copy.write_at(*at, bytes).unwrap();
            file.write_all_at(bytes, *at).unwrap();
        }
        copy
    }

    /// Takes the damage back.
    pub fn mend(&self, damage: &[(u64, Vec<u8>)], file: &Path) {
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        for (at, bytes) in damage {
            let mut good = vec![0; bytes.len()];
            self.base.read_at(*at, &mut good).unwrap();
            file.write_all_at(&good, *at).unwrap();
        }
    }
}

/// Whether an item is an entry of a subvolume, or one of its references.
fn names_subvolume(node: &Node, slot: usize) -> bool {
    let leads_to_root = || node.item(slot).get(8) == Some(&KeyType::ROOT_ITEM.0);
    match node.key(slot).kind {
        KeyType::DIR_ITEM | KeyType::DIR_INDEX => leads_to_root(),
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => true,
        _ => false,
    }
}

/// The false claims of restores from a damaged image, with a scan and without.
fn wrong_claims(class: usize, truth: &Hashing, plain: Option<&Restored>, scanned: Option<&Restored>) -> Vec<String> {
    let kind = if SEALED.contains(&class) { Kind::Sealed } else { Kind::Seen };
    let ways = [(plain, "without a scan"), (scanned, "with a scan")];
    let ways = ways.into_iter().filter_map(|(restored, how)| Some((restored?, how)));
    ways.flat_map(|((found, summary), how)| {
        let wrong = match summary {
            Ok(summary) => false_claims(truth, found, summary, kind),
            Err(error) => vec![error.to_string()],
        };
        wrong.into_iter().map(move |claim| format!("{how}: {claim}"))
    })
    .collect()
}

/// The class that the environment names, to take it alone.
pub fn only_class() -> Option<usize> {
    std::env::var("BUTTERFS_RESCUE_CLASS").ok().map(|text| text.parse().expect("the number of a class"))
}

/// The numbers of files that each way has saved, and of all files.
type Saved = [u64; 4];

fn show(sums: &BTreeMap<usize, Saved>) {
    println!("{:<30} {:>8} {:>14} {:>8} {:>8}", "class", "ours", "btrfs restore", "kernel", "of");
    for (class, [ours, theirs, kernel, of]) in sums {
        println!("{:<30} {ours:>8} {theirs:>14} {kernel:>8} {of:>8}", CLASSES[*class]);
    }
}

/// Prints the damage, and the files that are lost. Images differ from run to run, so a finding must say all of it.
pub fn explain(ground: &Ground, damage: &[(u64, Vec<u8>)], truth: &Hashing, ours: &Contents, others: &Contents) {
    damage.iter().take(12).for_each(|(at, bytes)| println!("  {}", ground.describe(*at, bytes)));
    for (path, what) in truth.paths.iter().filter(|(_, what)| !ours.contains(what)) {
        let by_others = if others.contains(what) { "saved by others" } else { "lost to others too" };
        println!("  {} of {} bytes, {by_others}", String::from_utf8_lossy(path), what.0);
    }
}

fn table(images: u64, first: u64) {
    const TEST: &str = "table_of_what_is_saved";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, earlier) = made_by_kernel(&scratch);
    let mount = KernelMount::new(&image, "ro");
    let all = below(mount.path());
    mount.finish();
    assert!(all.len() > 350, "{}", all.len());
    let ground = Ground::of(&image, &earlier);
    let sound = plain(&[Arc::new(ground.base.snapshot()) as Arc<dyn BlockDevice>]).unwrap();
    let (truth, summary) = by_us(&sound);
    assert!(truth.contents == all && summary.unwrap().complete);
    let damaged = ground.file(&scratch);
    let only = only_class();
    let mut progress = Progress::new(TEST, images);
    let (mut sums, mut false_ones): (BTreeMap<usize, Saved>, Vec<String>) = Default::default();
    for number in first..first + images {
        let _watchdog = Watchdog::new(&format!("{TEST}, seed {number}"), LONGEST_S);
        let class = only.unwrap_or((number % CLASSES.len() as u64) as usize);
        let seed = format!("seed {number}, {}", CLASSES[class]);
        let damage = ground.damage(class, &mut Rng::new(number));
        let copy = Arc::new(ground.strike(&damage, &damaged));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![copy.clone()];
        let wreck = scanned(&devices, &scratch).ok();
        let with_scan = wreck.as_ref().map(by_us);
        let without_scan = plain(&devices).ok().as_ref().map(by_us);
        for claim in wrong_claims(class, &truth, without_scan.as_ref(), with_scan.as_ref()) {
            progress.finding(&format!("{seed}, {claim}"));
            false_ones.push(format!("{seed}, {claim}"));
        }
        if number < first + CLASSES.len() as u64 {
            let again = ground.base.snapshot();
            damage.iter().for_each(|(at, bytes)| again.write_at(*at, bytes).unwrap());
            assert!(copy.to_bytes() == again.to_bytes(), "nothing is written");
        }
        let kept = |found: &Contents| found.intersection(&all).count() as u64;
        let ours = with_scan.as_ref().map_or(0, |(found, _)| kept(&found.contents));
        let (by_restore, by_kernel) = (by_btrfs_restore(&damaged, &scratch), by_kernel(&damaged));
        let (theirs, kernel) = (kept(&by_restore), kept(&by_kernel));
        let sum = sums.entry(class).or_default();
        [ours, theirs, kernel, all.len() as u64].iter().zip(sum).for_each(|(one, sum)| *sum += one);
        if ours < theirs.max(kernel) {
            progress.finding(&format!("{seed}: ours {ours}, btrfs restore {theirs}, kernel {kernel}"));
            let ours = with_scan.map(|(found, _)| found.contents).unwrap_or_default();
            explain(&ground, &damage, &truth, &ours, &by_restore.union(&by_kernel).copied().collect());
        }
        ground.mend(&damage, &damaged);
        progress.step();
    }
    show(&sums);
    assert!(false_ones.is_empty(), "{} false claims: {false_ones:#?}", false_ones.len());
    for (class, [ours, theirs, kernel, of]) in sums {
        assert!(ours >= theirs.max(kernel), "{}: ours {ours}, btrfs restore {theirs}, kernel {kernel}", CLASSES[class]);
        if WHOLE.contains(&class) {
            assert_eq!(ours, of, "{}: everything is there", CLASSES[class]);
        }
    }
}

#[test]
fn at_least_as_many_files_are_saved() {
    let images = std::env::var("BUTTERFS_RESCUES").ok().and_then(|text| text.parse().ok()).unwrap_or(13);
    let first = std::env::var("BUTTERFS_RESCUE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    table(images, first);
}

#[test]
#[ignore = "long: cargo xtask soak rescue"]
fn at_least_as_many_files_are_saved_from_many() {
    let images = std::env::var("BUTTERFS_RESCUES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let first = std::env::var("BUTTERFS_RESCUE_SEED").ok().and_then(|text| text.parse().ok());
    table(images, first.unwrap_or(1_000_000 / 13 * 13));
}
