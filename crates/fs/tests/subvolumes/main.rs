//! Subvolumes and snapshots through the library, on images in memory; `btrfs check` checks the result on disk.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Caller, Env, Errno, Filesystem, InodeId, Options, mkfs};
use butterfs_ondisk::TreeId;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: InodeId = InodeId::root_of(TreeId::FS);

mod races;

struct World {
    device: Arc<MemoryDevice>,
    fs: Filesystem,
}

fn caller() -> Caller {
    Caller { uid: 0, gid: 0, umask: 0o022, privileged: true }
}

impl World {
    fn new(nodesize: u32) -> World {
        let device = Arc::new(MemoryDevice::new(512 << 20));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        let options = mkfs::MkfsOptions { nodesize: Some(nodesize), ..Default::default() };
        mkfs::mkfs(&devices, &options, &Env::system()).unwrap();
        let fs = open(&device);
        World { device, fs }
    }

    fn file(&self, parent: InodeId, name: &str, content: &[u8]) -> InodeId {
        let id = match self.fs.create(&caller(), parent, name.as_bytes(), 0o644) {
            Ok(attr) => attr.id,
            Err(_) => self.fs.lookup(parent, name.as_bytes()).unwrap().id,
        };
        self.fs.write(id, 0, content, false).unwrap();
        self.fs.forget(id, 1);
        id
    }

    fn content(&self, parent: InodeId, name: &str) -> Vec<u8> {
        let attr = self.fs.lookup(parent, name.as_bytes()).unwrap();
        let mut out = Vec::new();
        self.fs.read(attr.id, 0, attr.size as usize, &mut out).unwrap();
        self.fs.forget(attr.id, 1);
        out
    }

    fn remount(self) -> World {
        self.fs.shutdown().unwrap();
        let device = self.device;
        let fs = open(&device);
        World { device, fs }
    }

    /// Closes the filesystem and runs `btrfs check` on it.
    fn check(self, what: &str) {
        self.fs.shutdown().unwrap();
        let path = std::env::temp_dir().join(format!("butterfs-subvolumes-{}-{what}.img", std::process::id()));
        std::fs::write(&path, self.device.to_bytes()).unwrap();
        let output = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(&path).output().unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {text}");
    }
}

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open(vec![device.clone()], Options::default(), Env::system()).unwrap()
}

#[test]
fn a_snapshot_keeps_what_was_written_before_it() {
    for nodesize in [4096, 16384] {
        let world = World::new(nodesize);
        let sub = InodeId::root_of(world.fs.create_subvolume(&caller(), ROOT, b"sub").unwrap());
        for i in 0..600 {
            world.file(sub, &format!("file{i}"), format!("before {i}").repeat(1 + i % 700).as_bytes());
        }
        let snap = InodeId::root_of(world.fs.snapshot(sub.tree, ROOT, b"snap", true).unwrap());
        let copy = InodeId::root_of(world.fs.snapshot(sub.tree, sub, b"copy", false).unwrap());
        for i in (0..600).step_by(7) {
            world.file(sub, &format!("file{i}"), b"after");
            world.file(copy, &format!("file{i}"), b"copied");
        }
        let world = world.remount();
        for i in 0..600 {
            let before = format!("before {i}").repeat(1 + i % 700).into_bytes();
            assert_eq!(world.content(snap, &format!("file{i}")), before);
            if i % 7 == 0 {
                assert_eq!(&world.content(sub, &format!("file{i}"))[..5], b"after");
                assert_eq!(&world.content(copy, &format!("file{i}"))[..6], b"copied");
            } else {
                assert_eq!(world.content(copy, &format!("file{i}")), before);
            }
        }
        let refusal = world.fs.create(&caller(), snap, b"new", 0o644).unwrap_err();
        assert_eq!(refusal.errno(), Errno::EROFS);
        world.check(&format!("snapshot-{nodesize}"));
    }
}

#[test]
fn deleting_gives_all_space_back_and_survives_a_remount_in_the_middle() {
    for (nodesize, order) in [(4096, [0, 1, 2, 3]), (4096, [3, 1, 0, 2]), (16384, [2, 0, 3, 1])] {
        let world = World::new(nodesize);
        world.fs.sync().unwrap();
        let empty = world.fs.statfs().blocks_free;
        let sub = InodeId::root_of(world.fs.create_subvolume(&caller(), ROOT, b"0").unwrap());
        for i in 0..1500 {
            world.file(sub, &format!("file{i}"), &vec![i as u8; 10 + i * 5]);
        }
        for generation in 1..4 {
            let snap = world.fs.snapshot(sub.tree, ROOT, generation.to_string().as_bytes(), generation == 1).unwrap();
            for i in (generation..1500).step_by(97) {
                world.file(sub, &format!("file{i}"), b"changed");
                if generation != 1 {
                    world.file(InodeId::root_of(snap), &format!("file{}", i + 1), b"changed in the snapshot");
                }
            }
        }
        let mut world = world.remount();
        for name in order {
            world.fs.delete_subvolume(ROOT, name.to_string().as_bytes()).unwrap();
            world = world.remount();
        }
        world.fs.clean_subvolumes().unwrap();
        world.fs.sync().unwrap();
        assert_eq!(world.fs.deleted_subvolumes().unwrap(), []);
        assert_eq!(world.fs.subvolumes().unwrap().len(), 1);
        let now = world.fs.statfs().blocks_free;
        assert!(empty - now < 64, "{} blocks did not come back", empty - now);
        world.check(&format!("delete-{nodesize}-{order:?}"));
    }
}

#[test]
fn uuids_lead_to_subvolumes() {
    let world = World::new(16384);
    let sub = world.fs.create_subvolume(&caller(), ROOT, b"sub").unwrap();
    let snap = world.fs.snapshot(sub, ROOT, b"snap", false).unwrap();
    for id in [TreeId::FS, sub, snap] {
        let info = world.fs.subvolume_info(id).unwrap();
        assert_eq!(world.fs.subvolumes_by_uuid(UuidKind::Subvolume, &info.uuid).unwrap(), [id]);
    }
    assert_eq!(world.fs.subvolume_info(snap).unwrap().parent_uuid, world.fs.subvolume_info(sub).unwrap().uuid);
    let uuid = world.fs.subvolume_info(snap).unwrap().uuid;
    world.fs.delete_subvolume(ROOT, b"snap").unwrap();
    assert_eq!(world.fs.subvolumes_by_uuid(UuidKind::Subvolume, &uuid).unwrap(), []);
    assert_eq!(world.fs.repair_uuid_tree().unwrap(), 0);
    world.check("uuids");
}

#[test]
fn protected_subvolumes_are_not_deleted() {
    let world = World::new(16384);
    let outer = world.fs.create_subvolume(&caller(), ROOT, b"outer").unwrap();
    world.fs.create_subvolume(&caller(), InodeId::root_of(outer), b"inner").unwrap();
    let refused = |name: &[u8]| world.fs.delete_subvolume(ROOT, name).unwrap_err().errno();
    assert_eq!(refused(b"outer"), Errno::ENOTEMPTY);
    assert_eq!(refused(b"missing"), Errno::ENOENT);
    world.fs.rmdir(InodeId::root_of(outer), b"inner").unwrap();
    world.fs.set_default_subvolume(outer).unwrap();
    assert_eq!(refused(b"outer"), Errno::EPERM);
    world.fs.mkdir(&caller(), ROOT, b"directory", 0o755).unwrap();
    assert_eq!(refused(b"directory"), Errno::EINVAL);
    let exists = world.fs.create_subvolume(&caller(), ROOT, b"directory").unwrap_err();
    assert_eq!(exists.errno(), Errno::EEXIST);
    world.check("refusals");
}

/// Says that it is over when it is dropped, by a panic too: whoever waits for that must not wait for ever.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn writes_during_the_deletion_of_a_subvolume_harm_nobody() {
    let world = World::new(4096);
    let kept = world.file(ROOT, "kept", b"kept");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (world, over) = (&world, &over);
        let _end = End(over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                world.fs.sync().unwrap();
            }
        });
        for round in 0..40u8 {
            let sub = world.fs.create_subvolume(&caller(), ROOT, b"sub").unwrap();
            let files: Vec<InodeId> =
                (0..60).map(|i| world.file(InodeId::root_of(sub), &format!("file{i}"), &[round; 9000])).collect();
            let writer = scope.spawn(move || {
                // Until the deletion is noticed, which may be at any of them.
                for (i, file) in files.iter().cycle().take(300).enumerate() {
                    if let Err(error) = world.fs.write(*file, i as u64 * 5000, &[round; 7000], false) {
                        assert!(matches!(error.errno(), Errno::ESTALE | Errno::ENOENT), "{error}");
                        break;
                    }
                }
            });
            world.fs.delete_subvolume(ROOT, b"sub").unwrap();
            writer.join().unwrap();
        }
    });
    world.fs.sync().unwrap();
    assert_eq!(world.content(ROOT, "kept"), b"kept");
    world.fs.write(kept, 0, b"more", false).unwrap();
    world.fs.clean_subvolumes().unwrap();
    assert_eq!(world.fs.deleted_subvolumes().unwrap(), []);
    world.check("deleted-while-written");
}

#[test]
fn the_number_of_a_deleted_subvolume_does_not_come_again() {
    let world = World::new(4096);
    let old = world.fs.create_subvolume(&caller(), ROOT, b"old").unwrap();
    let world = world.remount();
    world.file(InodeId::root_of(old), "file", b"unwritten when the subvolume goes");
    world.fs.delete_subvolume(ROOT, b"old").unwrap();
    world.fs.clean_subvolumes().unwrap();
    let new = world.fs.create_subvolume(&caller(), ROOT, b"new").unwrap();
    assert_ne!(new, old);
    world.file(InodeId::root_of(new), "file", b"new");
    world.fs.sync().unwrap();
    let world = World { fs: open(&Arc::new(world.device.snapshot())), device: world.device };
    assert_eq!(world.content(InodeId::root_of(new), "file"), b"new");
}
