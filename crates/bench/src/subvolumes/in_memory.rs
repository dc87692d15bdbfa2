//! Subvolumes by the thousand, by the library on 4 KiB nodes in memory: the script of the UUID tree's first
//! measurements (a subvolume and a read-only snapshot of it, again and again), a lookup by UUID at each size, opening,
//! snapshots of large subvolumes, and deletion of snapshots that share everything or nothing.

use crate::subject::Sides;
use crate::table::{Table, seconds};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_testkit::rng::Rng;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const LOOKUPS: u32 = 20_000;
/// Subvolumes of one directory, as in the script.
const IN_ONE_DIRECTORY: usize = 1_000;

fn new(gibibytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(gibibytes << 30));
    let devices: [Arc<dyn BlockDevice>; 1] = [device.clone()];
    let options = MkfsOptions { nodesize: Some(4096), ..MkfsOptions::default() };
    mkfs(&devices, &options, &Env::system()).expect("an empty device");
    device
}

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open(vec![device.clone()], Options::default(), Env::system()).expect("a good filesystem")
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = work();
    (result, started.elapsed())
}

/// The script, and the questions at each size.
pub fn many(most: usize, table: &mut Table) {
    let device = new(64);
    let mut filesystem = open(&device);
    let mut uuids: Vec<([u8; 16], TreeId)> = Vec::new();
    let mut directory = TOP;
    let mut rng = Rng::new(4);
    for size in super::sizes(most) {
        let before = uuids.len();
        let (_, time) = timed(|| {
            while uuids.len() < size {
                if uuids.len().is_multiple_of(IN_ONE_DIRECTORY) {
                    directory = made(&filesystem, TOP, &format!("{}", uuids.len()), &mut uuids);
                    continue;
                }
                let name = format!("{}", uuids.len());
                let id = made(&filesystem, directory, &name, &mut uuids);
                if uuids.len() < size {
                    let snapshot = filesystem.snapshot(id.tree, directory, format!("{name}ro").as_bytes(), true);
                    note(&filesystem, snapshot.expect("room"), &mut uuids);
                }
            }
            filesystem.sync().expect("a good device");
        });
        let each = time.as_secs_f64() * 1e6 / (size - before).max(1) as f64;
        let made = format!("library: {size} subvolumes made, each of the last {}", size - before);
        own(table, &made, each / 1e6, "");
        filesystem.shutdown().expect("a good device");
        let (again, opening) = timed(|| open(&device));
        filesystem = again;
        own(table, &format!("library: {size} subvolumes, opening"), opening.as_secs_f64(), "does not grow");
        lookups(&filesystem, &uuids, &mut rng, table);
    }
    let (listed, time) = timed(|| filesystem.subvolumes().expect("a good device").len());
    own(table, &format!("library: {listed} subvolumes listed"), time.as_secs_f64(), "");
    let (_, time) = timed(|| filesystem.repair_uuid_tree().expect("a good device"));
    own(table, &format!("library: UUID tree of {listed} subvolumes checked"), time.as_secs_f64(), "");
}

fn made(filesystem: &Filesystem, parent: InodeId, name: &str, uuids: &mut Vec<([u8; 16], TreeId)>) -> InodeId {
    let id = filesystem.create_subvolume(&CALLER, parent, name.as_bytes()).expect("room");
    note(filesystem, id, uuids);
    InodeId::root_of(id)
}

fn note(filesystem: &Filesystem, id: TreeId, uuids: &mut Vec<([u8; 16], TreeId)>) {
    uuids.push((filesystem.subvolume_info(id).expect("it was made").uuid, id));
}

fn own(table: &mut Table, what: &str, time: f64, bar: &'static str) {
    table.compared(what, Sides::two(time, None), seconds, true, bar);
}

fn lookups(filesystem: &Filesystem, uuids: &[([u8; 16], TreeId)], rng: &mut Rng, table: &mut Table) {
    let look = |uuid: &[u8; 16]| filesystem.subvolumes_by_uuid(UuidKind::Subvolume, uuid).expect("a good device");
    let what = format!("library: lookup by UUID among {}", uuids.len());
    own(table, &what, each(uuids, rng, |uuid, id| look(uuid) == [id]), "<= 50 us, flat");
    // The cost of the processor's caches alone, because each lookup is of another UUID.
    let hashed: HashMap<[u8; 16], TreeId> = uuids.iter().copied().collect();
    let what = format!("library: the same in a hash table of {}", uuids.len());
    own(table, &what, each(uuids, rng, |uuid, id| hashed.get(uuid) == Some(&id)), "");
}

/// Seconds of one lookup that must be `right`, of any UUID, after each has been looked up once.
fn each(uuids: &[([u8; 16], TreeId)], rng: &mut Rng, right: impl Fn(&[u8; 16], TreeId) -> bool) -> f64 {
    uuids.iter().for_each(|(uuid, id)| assert!(right(uuid, *id)));
    let (_, warm) = timed(|| {
        for _ in 0..LOOKUPS {
            let (uuid, id) = &uuids[rng.index(uuids.len())];
            assert!(right(uuid, *id));
        }
    });
    warm.as_secs_f64() / f64::from(LOOKUPS)
}

/// Snapshots of a subvolume with many files, and how long their deletion takes.
pub fn large(files: u64, table: &mut Table) {
    let device = new(64);
    let filesystem = open(&device);
    let id = filesystem.create_subvolume(&CALLER, TOP, b"large").expect("room");
    let root = InodeId::root_of(id);
    {
        for number in 0..files {
            let name = format!("file{number:08}");
            let made = filesystem.create(&CALLER, root, name.as_bytes(), 0o644).expect("room");
            filesystem.write(made.id, 0, name.as_bytes(), false).expect("room");
            filesystem.forget(made.id, 1);
        }
        filesystem.sync().expect("a good device");
    }
    let mut longest = Duration::ZERO;
    for number in 0..20 {
        let name = format!("snapshot{number}");
        let (made, time) = timed(|| filesystem.snapshot(id, TOP, name.as_bytes(), number % 2 == 0));
        made.expect("room");
        longest = longest.max(time);
    }
    let slowest = format!("library: snapshot of {files} files, slowest of 20");
    own(table, &slowest, longest.as_secs_f64(), "<= 10 ms");
    for number in 0..19 {
        let time = delete(&filesystem, &format!("snapshot{number}"));
        if number == 18 {
            own(table, "library: deletion of a snapshot that shares everything", time, "the unshared part");
        }
    }
    for number in (0..files).step_by(100) {
        let file = filesystem.lookup(root, format!("file{number:08}").as_bytes()).expect("it is there").id;
        filesystem.write(file, 0, b"changed", false).expect("room");
        filesystem.forget(file, 1);
    }
    filesystem.sync().expect("a good device");
    let time = delete(&filesystem, "large");
    own(table, "library: deletion where a hundredth of the files changed", time, "the unshared part");
    let time = delete(&filesystem, "snapshot19");
    own(table, "library: deletion of a snapshot that shares nothing", time, "");
    filesystem.shutdown().expect("a good device");
}

fn delete(filesystem: &Filesystem, name: &str) -> f64 {
    let (_, time) = timed(|| {
        filesystem.delete_subvolume(TOP, name.as_bytes()).expect("it is there");
        filesystem.clean_subvolumes().expect("a good device");
        while !filesystem.deleted_subvolumes().expect("a good device").is_empty() {
            std::thread::yield_now();
        }
        filesystem.sync().expect("a good device");
    });
    time.as_secs_f64()
}
