//! The referrers of an address, compared with a walk of every tree from its root.

use super::Filesystem;
use crate::backref::{self, Referrers};
use crate::error::Errno;
use crate::file_extent::FileExtent;
use crate::inode::InodeId;
use crate::inode::attr::Caller;
use crate::options::Options;
use crate::transaction::BlockSource;
use crate::{Env, mkfs};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use butterfs_testkit::rng::Rng;
use butterfs_tree::{NodePtr, Walk};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const SECTOR: u64 = 4096;

/// The inode of a large file.
const LARGE: u64 = 300;
const LARGE_SECTORS: u64 = 600;

type Places = Vec<(TreeId, Key, Level)>;

fn new_filesystem() -> Filesystem {
    let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(MemoryDevice::new(512 << 20))];
    let options = mkfs::MkfsOptions { nodesize: Some(4096), ..Default::default() };
    mkfs::mkfs(&devices, &options, &Env::system()).unwrap();
    Filesystem::open(devices, Options::default(), Env::system()).unwrap()
}

/// The roots of the last commit, those of deleted subvolumes included.
fn roots(fs: &Filesystem) -> Vec<NodePtr> {
    let core = &fs.0.engine;
    let superblock = core.superblock();
    let root = |tree, at: u64, level, generation: u64| NodePtr {
        at: Logical(at),
        generation: Generation(generation),
        level: Level(level),
        tree,
        first_key: None,
    };
    let s = &superblock;
    let mut roots = vec![
        root(TreeId::ROOT, s.root.get(), s.root_level, s.generation.get()),
        root(TreeId::CHUNK, s.chunk_root.get(), s.chunk_root_level, s.chunk_root_generation.get()),
    ];
    let (from, to) = (Key::new(0, KeyType(0), 0), Key::new(u64::MAX, KeyType(255), u64::MAX));
    let tree_root = roots[0];
    butterfs_tree::scan(&BlockSource::loading(core), &tree_root, &from, &to, &mut |key, payload| {
        if key.kind == KeyType::ROOT_ITEM {
            let item = RootItem::parse(payload).unwrap();
            roots.push(root(TreeId(key.objectid), item.bytenr.get(), item.level, item.generation.get()));
        }
        Ok::<_, crate::Error>(ControlFlow::Continue(()))
    })
    .unwrap();
    roots
}

/// Every place that leads to each extent.
fn all_places(fs: &Filesystem) -> BTreeMap<Logical, Places> {
    let mut found: BTreeMap<Logical, Places> = BTreeMap::new();
    for root in roots(fs) {
        butterfs_tree::walk(&BlockSource::loading(&fs.0.engine), &root, &mut |ptr, node| {
            if let Some(key) = node.first_key() {
                found.entry(ptr.at).or_default().push((root.tree, key, ptr.level));
            }
            if node.is_leaf() {
                for (key, payload) in node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
                    let extent = FileExtent::parse(key, payload, SECTOR)?;
                    if extent.is_on_disk() {
                        found.entry(extent.at).or_default().push((root.tree, key, Level(0)));
                    }
                }
            }
            Ok::<_, crate::Error>(Walk::Into)
        })
        .unwrap();
    }
    found.values_mut().for_each(|referrers| referrers.sort_unstable());
    found
}

fn assert_all_are_found(fs: &Filesystem) -> usize {
    fs.sync().unwrap();
    let expected = all_places(fs);
    for (at, expected) in &expected {
        let found = fs
            .referrers_of(*at)
            .unwrap()
            .map(|referrer| referrer.map(|referrer| (referrer.tree, referrer.key, referrer.level)));
        let mut found: Places = found.collect::<Result<_, _>>().unwrap();
        found.sort_unstable();
        assert_eq!(found, *expected, "{at}");
    }
    expected.values().map(Vec::len).sum()
}

/// A filesystem that random work changes.
struct Work {
    fs: Filesystem,
    rng: Rng,
    subvolumes: Vec<(TreeId, Vec<u8>)>,
    made: u32,
}

impl Work {
    fn new(seed: u64) -> Work {
        let fs = new_filesystem();
        let top = fs.create_subvolume(&CALLER, TOP, b"first").unwrap();
        let work = Work { fs, rng: Rng::new(seed), subvolumes: vec![(top, b"first".to_vec())], made: 0 };
        for number in 0..120 {
            let name = format!("file-{number}");
            let file = work.fs.create(&CALLER, InodeId::root_of(top), name.as_bytes(), 0o644).unwrap().id;
            work.fs.write(file, 0, &vec![number as u8; 12 << 10], false).unwrap();
        }
        // One extent whose items fill several leaves.
        let large = InodeId { tree: top, ino: Ino(LARGE) };
        work.fs.write(large, 0, &vec![1; (LARGE_SECTORS * SECTOR) as usize], false).unwrap();
        work.fs.sync().unwrap();
        for sector in (1..LARGE_SECTORS).step_by(2) {
            work.fs.fallocate(large, 3, sector * SECTOR, SECTOR, false).unwrap();
        }
        work
    }

    fn some_file(&mut self) -> InodeId {
        let tree = self.rng.pick(&self.subvolumes).0;
        InodeId { tree, ino: Ino(257 + self.rng.below(120)) }
    }

    fn step(&mut self) {
        let (one, other) = (self.some_file(), self.some_file());
        let (from, to) = (self.rng.below(3) * SECTOR, self.rng.below(8) * SECTOR);
        match self.rng.below(20) {
            0 | 1 => {
                let (source, _) = self.rng.pick(&self.subvolumes).clone();
                self.made += 1;
                let name = format!("snapshot-{}", self.made).into_bytes();
                let id = self.fs.snapshot(source, TOP, &name, false).unwrap();
                self.subvolumes.push((id, name));
            }
            2 if self.subvolumes.len() > 3 => {
                let victim = self.rng.index(self.subvolumes.len());
                let (_, name) = self.subvolumes.swap_remove(victim);
                self.fs.delete_subvolume(TOP, &name).unwrap();
            }
            // A part of what a deleted subvolume was may be left.
            3 => drop(self.fs.clean_once().unwrap()),
            4..8 => {
                let cloned = self.fs.clone_range((one, from), (other, to), SECTOR);
                cloned.or_else(|error| if error.is(Errno::EINVAL) { Ok(()) } else { Err(error) }).unwrap();
            }
            8..14 => drop(self.fs.write(one, to, &[7; 4096], false).unwrap()),
            14 => self.fs.sync().unwrap(),
            15..18 => {
                let large = InodeId { ino: Ino(LARGE), ..one };
                let at = self.rng.below(LARGE_SECTORS) * SECTOR;
                self.fs.write(large, at, &[9; 4096], false).unwrap();
            }
            _ => self.fs.fallocate(one, 3, to, SECTOR, false).unwrap(),
        }
    }
}

#[test]
fn every_place_is_found_and_none_twice() {
    let mut referrers = 0;
    for seed in 0..4 {
        let mut work = Work::new(seed);
        for step in 0..160 {
            work.step();
            if step % 40 == 39 {
                referrers += assert_all_are_found(&work.fs);
            }
        }
    }
    assert!(referrers > 50_000, "{referrers}");
}

#[test]
fn a_place_with_nothing_says_so() {
    let fs = new_filesystem();
    assert!(fs.referrers_of(Logical(1 << 60)).err().unwrap().is(Errno::ENOENT));
    assert!(fs.users_of(Logical(1 << 60), true).err().unwrap().is(Errno::ENOENT));
    let root = fs.0.engine.globals().root.root().at;
    assert!(fs.users_of(root, true).err().unwrap().is(Errno::ENOENT), "a tree block has no users");
}

#[test]
fn unchanged_references_are_found_beside_changes() {
    let fs = new_filesystem();
    let first = fs.create_subvolume(&CALLER, TOP, b"first").unwrap();
    let file = fs.create(&CALLER, InodeId::root_of(first), b"file", 0o644).unwrap().id;
    let sectors = 1200;
    fs.write(file, 0, &vec![1; (sectors * SECTOR) as usize], false).unwrap();
    fs.sync().unwrap();
    let at = fs.extents(file, 0..1).unwrap()[0].at;
    // Every other sector is another extent from now on.
    let change = |sector: u64| fs.write(file, sector * SECTOR, &[2; 4096], false).map(drop).unwrap();
    (1..sectors).step_by(2).for_each(change);
    fs.snapshot(first, TOP, b"snapshot", false).unwrap();
    fs.sync().unwrap();
    let core = &fs.0.engine;
    let mut referrers = Referrers::new(backref::extent_at(core, at).unwrap());
    let mut found = std::collections::BTreeSet::new();
    let mut rng = Rng::new(5);
    loop {
        let batch = referrers.next(core, 100).unwrap();
        if batch.is_empty() {
            break;
        }
        found.extend(batch.iter().map(|referrer| (referrer.tree, referrer.key)));
        // Copies leaves of both trees.
        let snapshot = fs.lookup(TOP, b"snapshot").unwrap().id.tree;
        for tree in [first, snapshot] {
            let sector = 1 + 2 * rng.below(sectors / 2);
            fs.write(InodeId { tree, ino: file.ino }, sector * SECTOR, &[3; 4096], false).unwrap();
        }
        fs.sync().unwrap();
    }
    assert_eq!(found.len() as u64, sectors);
}

#[test]
fn an_answer_goes_on_while_the_trees_change() {
    let fs = new_filesystem();
    let first = fs.create_subvolume(&CALLER, TOP, b"first").unwrap();
    let file = fs.create(&CALLER, InodeId::root_of(first), b"file", 0o644).unwrap().id;
    fs.write(file, 0, &[1; 4096], false).unwrap();
    for number in 0..200 {
        fs.snapshot(first, TOP, format!("s{number}").as_bytes(), true).unwrap();
    }
    let at = fs.extents(file, 0..1).unwrap()[0].at;
    let mut users = fs.users_of(at, true).unwrap();
    let mut found: Vec<TreeId> = users.by_ref().take(70).map(|user| user.unwrap().tree).collect();
    // The blocks that the answer began with are used again.
    for round in 0..30_u8 {
        for number in 0..20 {
            let name = format!("{round}-{number}");
            fs.create(&CALLER, InodeId::root_of(first), name.as_bytes(), 0o644).unwrap();
        }
        fs.sync().unwrap();
    }
    found.extend(users.map(|user| user.unwrap().tree));
    let mut expected: Vec<TreeId> = fs.subvolumes().unwrap().iter().map(|info| info.id).collect();
    expected.retain(|id| *id != TreeId::FS);
    found.sort_unstable();
    assert_eq!(found, expected);
}
