//! The kernel's streams: what is received from them equals the snapshots that they were made of.

use crate::world::{World, receive_into};
use butterfs_send::apply::Directory;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run};
use std::path::{Path, PathBuf};

/// The properties that a stream carries: everything except times of creation and change, and holes.
const SENT: Compare =
    Compare { atime: true, mtime: true, ctime: false, btime: false, blocks: false, holes: false, slack_ns: 0 };

/// A filesystem of the kernel's with a subvolume `s` to work in.
struct Source {
    mount: KernelMount,
    scratch: Scratch,
}

impl Source {
    fn new(test: &str, options: &str) -> Option<Source> {
        if !requirement::kernel_btrfs(test) {
            return None;
        }
        let scratch = Scratch::new(test);
        let image = scratch.sparse_file("source", 512 << 20);
        mkfs(&image, &[]);
        let source = Source { mount: KernelMount::new(&image, options), scratch };
        btrfs(&["subvolume", "create", text(&source.path("s"))]);
        Some(source)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    fn snapshot(&self, name: &str) -> Fingerprint {
        btrfs(&["subvolume", "snapshot", "-r", text(&self.path("s")), text(&self.path(name))]);
        Fingerprint::of_tree(&self.path(name))
    }

    /// The stream of a snapshot, made with these options of `btrfs send`.
    fn send(&self, name: &str, options: &[&str]) -> Vec<u8> {
        let (file, snapshot) = (self.scratch.join("stream"), self.path(name));
        btrfs(&[&["send", "-q", "-f", text(&file)], options, &[text(&snapshot)]].concat());
        std::fs::read(&file).unwrap()
    }

    fn finish(self) {
        assert_eq!(self.mount.finish(), [""; 0]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn btrfs(arguments: &[&str]) -> String {
    run_ok(60, requirement::program("btrfs").expect("it was required"), arguments)
}

/// The properties that a stream carries are the same on both sides.
pub fn assert_same(what: &str, expected: &Fingerprint, actual: &Fingerprint) {
    let found = differences(expected, actual, SENT);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(12)]);
}

/// Works `operations` at a time, sends after each, and receives.
fn random(test: &str, seed: u64, options: &str, generations: usize, operations: usize, send: &[&str]) {
    let _watchdog = Watchdog::new(test, 120);
    let Some(source) = Source::new(test, options) else { return };
    println!("{test}: seed {seed}");
    let shape = Shape {
        inodes_max: 250,
        data_max: 8 << 20,
        write_max: 200 << 10,
        file_max: 1 << 20,
        sync_percent: 0,
        ..Shape::ORDINARY
    };
    let (mut generator, mut model) = (Generator::new(seed, shape), ModelFs::default());
    let mut mounted = Mounted::new(&source.path("s"));
    let world = World::new();
    let beside = source.path("beside");
    std::fs::create_dir(&beside).unwrap();
    for generation in 0..generations {
        run(&mut generator, operations, &mut model, &mut mounted).unwrap_or_else(|found| panic!("{found:?}"));
        let (name, before) = (format!("g{generation}"), source.path(&format!("g{}", generation.wrapping_sub(1))));
        let expected = source.snapshot(&name);
        let parent = ["-p", text(&before)];
        let incremental = if generation > 0 { &parent[..] } else { &[] };
        let stream = source.send(&name, &[send, incremental].concat());
        world.receive_ok(&stream);
        assert_same(&format!("seed {seed}, {name}"), &expected, &world.fingerprint(&name));
        let mut directory = Directory::open(&beside).unwrap();
        assert_eq!(receive_into(&stream, &mut directory).errors, [""; 0]);
        assert_eq!(directory.losses(), []);
        assert_same(&format!("seed {seed}, directory {name}"), &expected, &Fingerprint::of_tree(&beside.join(&name)));
    }
    drop(mounted);
    source.finish();
    world.check(test);
}

#[test]
fn random_work_in_version_1() {
    random("random_work_in_version_1", 101, "noatime", 5, 250, &[]);
}

#[test]
fn random_work_in_version_2() {
    random("random_work_in_version_2", 102, "noatime", 5, 250, &["--proto", "2"]);
}

#[test]
fn random_work_sent_compressed() {
    random("random_work_sent_compressed", 103, "noatime,compress-force=zstd", 4, 250, &["--compressed-data"]);
}

#[test]
fn random_work_sent_compressed_with_lzo() {
    random("random_work_sent_compressed_with_lzo", 104, "noatime,compress-force=lzo", 3, 200, &["--compressed-data"]);
}
