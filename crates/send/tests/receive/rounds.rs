//! Streams of our own: what `generate` makes of random work, `apply` makes again, in a filesystem and in a directory.

use crate::kernel::assert_same;
use crate::world::{TOP, World, receive_into};
use butterfs_fs::TreeId;
use butterfs_send::apply::Directory;
use butterfs_send::generate::{self, Job};
use butterfs_send::wire::Version;
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{OperationTarget, RelPath};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};

/// Work whose attributes every filesystem can keep.
const SHAPE: Shape = Shape { xattr_max: 100, sync_percent: 0, ..Shape::SMALL };

fn stream(world: &World, subvolume: TreeId, parent: Option<TreeId>, version: Version) -> Vec<u8> {
    let mut job = Job { subvolumes: vec![subvolume], parent, version, ..Job::default() };
    job.options.compressed_data = version >= Version::V2;
    let mut stream = Vec::new();
    generate::run(&world.fs, &job, &mut stream, &mut |_| true, &mut |_| {}).unwrap();
    stream
}

fn round(seed: u64, version: Version, with_directory: bool) {
    let (source, target) = (World::new(), World::new());
    let scratch = Scratch::new("round");
    let id = source.fs.create_subvolume(&ROOT, TOP, b"s").unwrap();
    let mut library = Library::below(&source.fs, &RelPath::from("s"));
    let (mut generator, mut model) = (Generator::new(seed, SHAPE), ModelFs::default());
    let mut parent = None;
    for name in ["a", "b", "c"] {
        for _ in 0..120 {
            let op = generator.next_op(&model);
            let _ = (model.apply(&op), library.apply(&op));
        }
        let snapshot = source.fs.snapshot(id, TOP, name.as_bytes(), true).unwrap();
        let bytes = stream(&source, snapshot, parent.replace(snapshot), version);
        target.receive_ok(&bytes);
        let expected = source.fingerprint(name);
        assert_same(&format!("seed {seed}, {name}"), &expected, &target.fingerprint(name));
        if with_directory {
            let mut directory = Directory::open(scratch.path()).unwrap();
            assert_eq!(receive_into(&bytes, &mut directory).errors, [""; 0], "seed {seed}, {name}");
        }
    }
    if seed.is_multiple_of(8) {
        target.check("round");
    }
}

#[test]
fn random_work_of_ours_travels() {
    let watchdog = Watchdog::new("random_work_of_ours_travels", 100);
    for seed in 0..24 {
        watchdog.note(&format!("seed {seed}"));
        round(seed, [Version::V1, Version::V2][seed as usize % 2], rustix::process::geteuid().is_root());
    }
}
