//! Random damage in classes: ours saves at least as many files as `btrfs restore` and the kernel's rescue mounts, class
//! by class.

use crate::opened::{plain, scanned};
use crate::saved::{below, by_btrfs_restore, by_kernel, by_us};
use crate::{LEN, in_memory, made_by_kernel};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::TreeId;
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Places of the image that are overwritten: offset and bytes.
type Damage = Vec<(u64, Vec<u8>)>;

const CLASSES: [&str; 9] = [
    "bytes of tree blocks",
    "tree blocks lost",
    "a root lost",
    "one of two copies rotten",
    "stale tree blocks",
    "data sectors",
    "the first 64 MiB",
    "all superblocks but the last",
    "the chunk tree",
];

struct Ground {
    base: MemoryDevice,
    earlier: MemoryDevice,
    /// Places of the copies of all tree blocks.
    blocks: Vec<Vec<u64>>,
    chunk_blocks: Vec<Vec<u64>>,
    roots: Vec<Vec<u64>>,
    data: Vec<u64>,
    nodesize: usize,
}

impl Ground {
    fn of(image: &Path, earlier: &Path) -> Ground {
        let base = in_memory(image);
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
                data.extend((0..sectors).filter_map(|n| {
                    editor.copies(butterfs_ondisk::Logical(key.offset + n * 4096)).first().map(|c| c.1)
                }));
            }
            false
        });
        let nodesize = editor.sb.nodesize.get() as usize;
        Ground { base: in_memory(image), earlier: in_memory(earlier), blocks, chunk_blocks, roots, data, nodesize }
    }

    fn read(&self, device: &MemoryDevice, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.nodesize];
        device.read_at(at, &mut bytes).unwrap();
        bytes
    }

    fn damage(&self, class: usize, rng: &mut Rng) -> Damage {
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
            _ => damage.extend(self.chunk_blocks.iter().flatten().map(|at| (*at, vec![0; self.nodesize]))),
        }
        damage
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
    let damaged = scratch.sparse_file("damaged.img", LEN);
    ground.base.copy_to(&*writable(&damaged)).unwrap();
    let mut sums: BTreeMap<usize, [u64; 4]> = BTreeMap::new();
    for number in first..first + images {
        let class = (number % CLASSES.len() as u64) as usize;
        let mut rng = Rng::new(number);
        let damage = ground.damage(class, &mut rng);
        let copy = Arc::new(ground.base.snapshot());
        let handle = fs::OpenOptions::new().read(true).write(true).open(&damaged).unwrap();
        for (at, bytes) in &damage {
            copy.write_at(*at, bytes).unwrap();
            handle.write_all_at(bytes, *at).unwrap();
        }
        let devices: Vec<Arc<dyn BlockDevice>> = vec![copy.clone()];
        let ours = match scanned(&devices, &scratch) {
            Ok(wreck) => by_us(&wreck).0.contents.intersection(&all).count() as u64,
            Err(_) => 0,
        };
        if number < first + CLASSES.len() as u64 {
            let again = ground.base.snapshot();
            damage.iter().for_each(|(at, bytes)| again.write_at(*at, bytes).unwrap());
            assert!(copy.to_bytes() == again.to_bytes(), "nothing is written");
        }
        let kept = |found: crate::saved::Contents| found.intersection(&all).count() as u64;
        let (theirs, kernel) = (kept(by_btrfs_restore(&damaged, &scratch)), kept(by_kernel(&damaged)));
        let sum = sums.entry(class).or_default();
        [ours, theirs, kernel, all.len() as u64].iter().zip(sum.iter_mut()).for_each(|(one, sum)| *sum += one);
        if std::env::var_os("BUTTERFS_RESCUE_SEED").is_some() {
            let block = ground.read(&ground.base, damage[0].0);
            println!("owner {:?} level {}", &block[88..96], block[100]);
            let wreck = scanned(&devices, &scratch).unwrap();
            for (id, root) in butterfs_rescue::roots::Roots::assemble(&wreck).trees {
                println!("{id} {:?} {:?}", root.root, root.source);
            }
            let sound = by_us(&plain(&[Arc::new(ground.base.snapshot()) as Arc<dyn BlockDevice>]).unwrap()).0;
            let found = by_us(&wreck).0;
            for (path, what) in sound.paths.iter().filter(|(_, what)| !found.contents.contains(what)) {
                println!("missing {} {what:?}, there {:?}", String::from_utf8_lossy(path), found.paths.get(path));
            }
        }
        if ours < theirs.max(kernel) {
            println!("seed {number}, {}: ours {ours}, btrfs restore {theirs}, kernel {kernel}", CLASSES[class]);
        }
        for (at, bytes) in &damage {
            let mut good = vec![0; bytes.len()];
            ground.base.read_at(*at, &mut good).unwrap();
            handle.write_all_at(&good, *at).unwrap();
        }
    }
    println!("{:<30} {:>8} {:>14} {:>8} {:>8}", "class", "ours", "btrfs restore", "kernel", "of");
    for (class, [ours, theirs, kernel, of]) in &sums {
        println!("{:<30} {ours:>8} {theirs:>14} {kernel:>8} {of:>8}", CLASSES[*class]);
    }
    for (class, [ours, theirs, kernel, of]) in sums {
        assert!(ours >= theirs.max(kernel), "{}: ours {ours}, btrfs restore {theirs}, kernel {kernel}", CLASSES[class]);
        if [2, 3, 7, 8].contains(&class) {
            assert_eq!(ours, of, "{}: everything is there", CLASSES[class]);
        }
    }
}

fn writable(path: &Path) -> Arc<dyn BlockDevice> {
    use butterfs_device::{FileDevice, FileOptions};
    Arc::new(FileDevice::open(path, &FileOptions::read_write()).unwrap())
}

#[test]
fn at_least_as_many_files_are_saved() {
    let images = std::env::var("BUTTERFS_RESCUES").ok().and_then(|text| text.parse().ok()).unwrap_or(9);
    let first = std::env::var("BUTTERFS_RESCUE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    table(images, first);
}

#[test]
#[ignore = "long: cargo xtask soak rescue"]
fn at_least_as_many_files_are_saved_from_many() {
    let images = std::env::var("BUTTERFS_RESCUES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    table(images, 1_000_000 / 9 * 9);
}
