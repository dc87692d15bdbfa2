//! Tests that plant what no caller could make: wrong UUID trees, old root items, loops.

use super::Filesystem;
use crate::error::Errno;
use crate::inode::{InodeId, attr::Caller};
use crate::options::Options;
use crate::subvolume::uuid_tree::{self, UuidKind, key_of};
use crate::subvolume::{self, paths};
use crate::transaction::{Handle, Reserve, Tree};
use crate::{Env, mkfs};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::items::{RootItem, RootRef};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::sync::Arc;
use zerocopy::IntoBytes;

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

struct World {
    device: Arc<MemoryDevice>,
    fs: Filesystem,
}

impl World {
    fn new() -> World {
        let device = Arc::new(MemoryDevice::new(512 << 20));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        let options = mkfs::MkfsOptions { nodesize: Some(4096), ..Default::default() };
        mkfs::mkfs(&devices, &options, &Env::system()).unwrap();
        World { fs: open(&device, Options::default()), device }
    }

    fn create(&self, name: &str) -> TreeId {
        self.fs.create_subvolume(&CALLER, TOP, name.as_bytes()).unwrap()
    }

    fn edit(&self, change: impl FnOnce(&Handle)) {
        let handle = self.fs.0.engine.start(Reserve::items(600)).unwrap();
        change(&handle);
    }

    fn uuids(&self) -> Arc<Tree> {
        uuid_tree::tree(&self.fs.0.engine).unwrap().unwrap()
    }

    fn uuid(&self, id: TreeId) -> [u8; 16] {
        self.fs.subvolume_info(id).unwrap().uuid
    }

    fn assert_right(&self) {
        for info in self.fs.subvolumes().unwrap() {
            let found = self.fs.subvolumes_by_uuid(UuidKind::Subvolume, &info.uuid).unwrap();
            assert_eq!(found, [info.id]);
        }
    }

    fn reopen(self, options: Options) -> World {
        self.fs.shutdown().unwrap();
        World { fs: open(&self.device, options), device: self.device }
    }

    fn check(self, name: &str) {
        self.fs.shutdown().unwrap();
        if !requirement::programs(name, &["btrfs"]) {
            return;
        }
        let scratch = Scratch::new(name);
        let image = scratch.join("image");
        std::fs::write(&image, self.device.to_bytes()).unwrap();
        check_all(&image);
    }
}

fn open(device: &Arc<MemoryDevice>, options: Options) -> Filesystem {
    Filesystem::open(vec![device.clone()], options, Env::system()).unwrap()
}

/// Makes the tree wrong in every way that a leaf can hold.
fn plant(world: &World, ids: &[TreeId]) -> usize {
    let tree = world.uuids();
    let (first, second, third) = (world.uuid(ids[0]), world.uuid(ids[1]), world.uuid(ids[2]));
    world.edit(|handle| {
        let words = |ids: &[u64]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        // Missing; wrong; one of two wrong.
        assert!(tree.remove(handle, key_of(UuidKind::Subvolume, &first)).unwrap());
        assert!(tree.replace(handle, key_of(UuidKind::Subvolume, &second), &words(&[ids[0].0])).unwrap());
        assert!(tree.replace(handle, key_of(UuidKind::Subvolume, &third), &words(&[999, ids[2].0, 1, 5])).unwrap());
        // Stale, of a kind that nobody has, the same twice, no UUID, no subvolume, no entry at all.
        assert!(tree.insert(handle, key_of(UuidKind::Subvolume, &[7; 16]), &words(&[ids[0].0])).unwrap());
        assert!(tree.insert(handle, key_of(UuidKind::Received, &first), &words(&[ids[0].0])).unwrap());
        assert!(tree.insert(handle, key_of(UuidKind::Received, &[8; 16]), &words(&[300, 300])).unwrap());
        assert!(tree.insert(handle, key_of(UuidKind::Subvolume, &[0; 16]), &words(&[ids[0].0])).unwrap());
        assert!(tree.insert(handle, key_of(UuidKind::Subvolume, &[9; 16]), &words(&[2, u64::MAX])).unwrap());
        assert!(tree.insert(handle, Key::new(1, KeyType(99), 3), b"nonsense").unwrap());
        for number in 0..500u64 {
            let mut uuid = [0xee; 16];
            uuid[..8].copy_from_slice(&number.to_le_bytes());
            assert!(tree.insert(handle, key_of(UuidKind::Subvolume, &uuid), &words(&[ids[0].0])).unwrap());
        }
    });
    510
}

#[test]
fn planted_entries_are_repaired() {
    let world = World::new();
    let ids: Vec<TreeId> = (0..20).map(|number| world.create(&format!("s{number}"))).collect();
    world.fs.repair_uuid_tree().unwrap();
    let flaws = plant(&world, &ids);
    let repaired = world.fs.repair_uuid_tree().unwrap();
    assert!(repaired >= flaws, "{repaired} of {flaws}");
    world.assert_right();
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.check("planted_entries_are_repaired");
}

#[test]
fn rescanning_at_mount_repairs_in_the_background() {
    let world = World::new();
    let ids: Vec<TreeId> = (0..20).map(|number| world.create(&format!("s{number}"))).collect();
    world.fs.repair_uuid_tree().unwrap();
    plant(&world, &ids);
    // The superblock says that the tree is right, and nobody looks.
    let world = world.reopen(Options::default());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(world.fs.subvolumes_by_uuid(UuidKind::Subvolume, &[7; 16]).unwrap(), [ids[0]]);
    let world = world.reopen(Options { rescan_uuid_tree: true, ..Options::default() });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !world.fs.subvolumes_by_uuid(UuidKind::Subvolume, &[7; 16]).unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "nobody repairs");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.assert_right();
    world.check("rescanning_at_mount_repairs_in_the_background");
}

#[test]
fn a_filesystem_without_the_tree_gets_it() {
    let world = World::new();
    for number in 0..300 {
        world.create(&format!("s{number}"));
    }
    world.fs.repair_uuid_tree().unwrap();
    let core = &world.fs.0.engine;
    let tree = world.uuids();
    world.edit(|handle| {
        while !matches!(subvolume::drop_for_test(handle, &tree).unwrap(), subvolume::DropStop::Gone) {}
        core.trees.forget(TreeId::UUID);
        assert!(core.globals().root.remove(handle, tree.root_item_key()).unwrap());
    });
    world.fs.sync().unwrap();
    assert!(uuid_tree::tree(core).unwrap().is_none());
    // Everything else works without it.
    let made = world.create("without");
    world.fs.snapshot(made, TOP, b"snapshot without", true).unwrap();
    world.fs.delete_subvolume(TOP, b"s7").unwrap();
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 302);
    world.assert_right();
    let world = world.reopen(Options::default());
    world.assert_right();
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.check("a_filesystem_without_the_tree_gets_it");
}

#[test]
fn many_subvolumes_with_one_received_uuid() {
    let world = World::new();
    let received = [0x5a; 16];
    let first = world.create("received");
    let tree = world.fs.0.engine.tree(first).unwrap();
    world.edit(|handle| {
        tree.change_root_item(handle, |item| {
            item.received_uuid = received;
            item.stransid = 7.into();
            item.flags = RootItem::RDONLY.into();
        });
        uuid_tree::add(handle, UuidKind::Received, &received, first).unwrap();
    });
    let writable = world.fs.snapshot(first, TOP, b"writable", false).unwrap();
    assert_eq!(world.fs.subvolume_info(writable).unwrap().received_uuid, [0; 16]);
    let mut ids = vec![first];
    for number in 0..500 {
        ids.push(world.fs.snapshot(first, TOP, format!("r{number}").as_bytes(), true).unwrap());
    }
    // The item is full; the snapshots are made all the same.
    let found = world.fs.subvolumes_by_uuid(UuidKind::Received, &received).unwrap();
    assert_eq!(found, ids[..found.len()]);
    assert!((400..ids.len()).contains(&found.len()), "{}", found.len());
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.fs.set_subvolume_readonly(ids[3], false).unwrap();
    let info = world.fs.subvolume_info(ids[3]).unwrap();
    assert_eq!((info.received_uuid, info.transids[2]), ([0; 16], 0));
    world.fs.delete_subvolume(TOP, b"r0").unwrap();
    let left = world.fs.subvolumes_by_uuid(UuidKind::Received, &received).unwrap();
    assert!(!left.contains(&ids[3]) && !left.contains(&ids[1]) && left.len() == found.len() - 2);
    // Now there is room for two of those that found none.
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 2);
    world.check("many_subvolumes_with_one_received_uuid");
}

#[test]
fn snapshots_are_known_by_their_source() {
    let world = World::new();
    let sources = [world.create("a"), world.create("b")];
    let stop = std::sync::atomic::AtomicBool::new(false);
    // Who asks while they are made and deleted must not make a later answer wrong.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sources.iter().for_each(|&id| drop(world.fs.snapshots_of(&world.uuid(id)).unwrap()));
            }
        });
        let makers: Vec<_> = sources
            .iter()
            .map(|&source| {
                let world = &world;
                scope.spawn(move || {
                    for number in 0..20 {
                        let name = format!("{source}-{number}");
                        world.create(&format!("plain-{name}"));
                        world.fs.snapshot(source, TOP, name.as_bytes(), true).unwrap();
                        if number % 3 == 0 {
                            world.fs.delete_subvolume(TOP, name.as_bytes()).unwrap();
                        }
                    }
                })
            })
            .collect();
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        asking.join().unwrap();
    });
    for source in sources {
        let uuid = world.uuid(source);
        let mut all = world.fs.subvolumes().unwrap();
        all.retain(|info| info.parent_uuid == uuid);
        let all: Vec<TreeId> = all.iter().map(|info| info.id).collect();
        assert_eq!((all.len(), world.fs.snapshots_of(&uuid).unwrap()), (13, all));
    }
    assert_eq!(world.fs.snapshots_of(&[0; 16]).unwrap(), [] as [TreeId; 0]);
    assert_eq!(world.fs.snapshots_of(&[9; 16]).unwrap(), [] as [TreeId; 0]);
    world.check("snapshots_are_known_by_their_source");
}

#[test]
fn old_root_items_are_read_and_grow() {
    let world = World::new();
    let id = world.create("old");
    let file = world.fs.create(&CALLER, InodeId::root_of(id), b"file", 0o644).unwrap().id;
    world.fs.write(file, 0, b"content", false).unwrap();
    world.fs.forget(file, 1);
    let still = world.create("still");
    world.fs.sync().unwrap();
    let core = &world.fs.0.engine;
    let shorten = |handle: &Handle, id: TreeId| {
        let tree = core.tree(id).unwrap();
        let item = tree.root_item();
        uuid_tree::remove(handle, UuidKind::Subvolume, &item.uuid, id).unwrap();
        let short = &item.as_bytes()[..RootItem::LEGACY_LEN];
        assert!(core.globals().root.replace(handle, tree.root_item_key(), short).unwrap());
    };
    world.edit(|handle| [id, still].into_iter().for_each(|id| shorten(handle, id)));
    let world = world.reopen(Options::default());
    let core = &world.fs.0.engine;
    let item_len = |id: TreeId| {
        core.globals().root.get(core.core(), Key::new(id.0, KeyType::ROOT_ITEM, 0)).unwrap().unwrap().len()
    };
    assert_eq!((item_len(id), item_len(still)), (RootItem::LEGACY_LEN, RootItem::LEGACY_LEN));
    assert_eq!(world.fs.subvolume_info(id).unwrap().uuid, [0; 16]);
    let found = world.fs.lookup(InodeId::root_of(id), b"file").unwrap();
    assert_eq!(found.size, 7);
    world.fs.write(found.id, 7, b" and more", false).unwrap();
    world.fs.forget(found.id, 1);
    world.fs.sync().unwrap();
    assert_eq!((item_len(id), item_len(still)), (RootItem::LEN, RootItem::LEGACY_LEN));
    world.fs.snapshot(still, TOP, b"snapshot of still", true).unwrap();
    world.fs.delete_subvolume(TOP, b"old").unwrap();
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.check("old_root_items_are_read_and_grow");
}

#[test]
fn loops_of_places_end() {
    let world = World::new();
    let (a, b) = (world.create("a"), world.create("b"));
    let core = &world.fs.0.engine;
    let root_ref = |dirid: u64, name: &[u8]| {
        let head = RootRef { dirid: dirid.into(), sequence: 2.into(), name_len: (name.len() as u16).into() };
        [head.as_bytes(), name].concat()
    };
    let root = &core.globals().root;
    world.edit(|handle| {
        for (inner, outer) in [(a, b), (b, a)] {
            root.remove(handle, Key::new(inner.0, KeyType::ROOT_BACKREF, TreeId::FS.0)).unwrap();
            root.insert(handle, Key::new(inner.0, KeyType::ROOT_BACKREF, outer.0), &root_ref(256, b"x")).unwrap();
        }
    });
    for id in [a, b] {
        assert_eq!(world.fs.subvolume_path(id).unwrap_err().errno(), Errno::EIO);
    }
    assert_eq!(world.fs.subvolumes().unwrap().len(), 3);
    assert_eq!(paths::joined(Vec::new(), b"a"), b"a");
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
}
