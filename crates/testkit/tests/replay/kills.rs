//! Replay in every format, and replay that is cut off: at every flush, and between flushes with any part of what was
//! not durable. Whatever the cut leaves, the next mount shows what an undisturbed replay shows, and the checker finds
//! it clean.
//!
//! One log for each format, written by the kernel: three subvolumes, each with a log.

use super::{kernels_replay, logs_in};
use butterfs_device::{BlockDevice, Event, Kept, MemoryDevice, Recorder};
use butterfs_fs::{AccessTimes, Env, Filesystem, Options};
use butterfs_testkit::engine::{self, FORMATS, Format};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::judge::{judge_memory, text};
use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::{Scratch, load};
use butterfs_testkit::script::Script;
use butterfs_testkit::watchdog::Watchdog;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Done in each subvolume, and committed.
const BEFORE: &str = "mkdir d; mkdir d/sub; touchs d/old 1 60; fill d/data 0 64K 1; fill d/small 0 50 2; fill \
                      d/prealloc 0 4K 3; fallock d/prealloc 64K 64K; fill d/victim 0 8K 4; setx d/data user.gone 1; \
                      setx d/data user.stays 2";
/// Done in each subvolume, and fsynced.
const AFTER: &str = "touchs d/new 1 40; rms d/old 5 20; mv d/old31 d/renamed; ln d/data d/sub/link; \
                     fill d/data 8K 4K 5; punch d/data 32K 8K; fill d/data 100K 12K 6; rmx d/data user.gone; \
                     fill d/small 50 9000 7; fill d/prealloc 70K 8K 8; clone d/data 0 8K d/clone 0; rm d/victim; fill \
                     d/victim 0 100 9; symlink target d/symlink; mkdir d/x; mkdir d/x/y; fill d/x/y/z 0 16K 10; fsync \
                     d/data; fsync d/small; fsync d/prealloc; fsync d/clone; fsync d/victim; fsync d/x/y/z; fsync \
                     d/renamed; fsync d/sub/link";

const LEN: u64 = 256 << 20;

/// An image with logs that the kernel wrote. Somebody else's sync(2) can end them, so it is tried again.
fn logged(format: &Format, scratch: &Scratch) -> PathBuf {
    for _ in 0..5 {
        let cut = cut(format, scratch);
        let logs = logs_in(&cut);
        println!("{format:?}: {logs} logs");
        if logs > 0 {
            return cut;
        }
    }
    panic!("{format:?}: the kernel leaves no log");
}

fn cut(format: &Format, scratch: &Scratch) -> PathBuf {
    let (live, cut) = (scratch.sparse_file("live", LEN), scratch.join("cut"));
    format.make(&engine::device(&live));
    let mount = KernelMount::new(&live, "noatime,commit=300");
    let folders = ["one", "two", "three"].map(|name| mount.path().join(name));
    for (folder, name) in folders.iter().zip(["one", "two", "three"]) {
        Script::new(mount.path()).run(&format!("subvol {name}"));
        Script::new(folder).run(BEFORE);
    }
    Script::new(mount.path()).run("fill large 0 4M 1; sync; snap one shared; sync");
    folders.iter().for_each(|folder| Script::new(folder).run(AFTER));
    run_ok(60, "cp", &["--sparse=always", &live.to_string_lossy(), &cut.to_string_lossy()]);
    assert_eq!(mount.finish(), [""; 0], "{format:?}");
    cut
}

fn open(device: Arc<dyn BlockDevice>) -> Filesystem {
    let options = Options { access_times: AccessTimes::Never, commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

fn shown(device: Arc<dyn BlockDevice>) -> Fingerprint {
    Fingerprint::of_library(&open(device)).unwrap_or_else(|error| panic!("{error}"))
}

/// The replay of `base`, recorded, and what it shows.
fn record(base: &MemoryDevice) -> (Recorder, Fingerprint) {
    let recorder = Recorder::new();
    let device = Arc::new(recorder.record(Arc::new(base.snapshot())));
    let shown = shown(device);
    (recorder, shown)
}

/// Cuts the recorded replay everywhere.
fn cut_everywhere(base: &MemoryDevice, recorder: &Recorder, expected: &Fingerprint, rng: &mut Rng) {
    let mut cuts: Vec<(usize, bool)> = recorder.flush_points().into_iter().map(|prefix| (prefix, false)).collect();
    assert!(cuts.len() >= 2, "{} flushes", cuts.len());
    cuts.extend((0..20).map(|_| (rng.index(recorder.len() + 1), true)));
    for (number, (prefix, any)) in cuts.into_iter().enumerate() {
        let disk = base.snapshot();
        let mut keep = |_: usize, event: &Event| if any { part(rng, event) } else { Kept::Whole };
        recorder.crash(prefix, &[&disk], &mut keep).expect("memory does not fail");
        let disk = Arc::new(disk);
        let found = differences(expected, &shown(disk.clone()), Compare::ALL);
        assert!(found.is_empty(), "cut {number} after {prefix} of {} events: {found:#?}", recorder.len());
        if number % 6 == 0 {
            let report = judge_memory(&disk);
            assert!(report.is_clean(), "cut {number} after {prefix} events: {}", text(&report));
        }
    }
}

/// The part of a write that is kept: the primary superblock in whole or not at all, since it alone knows of the log.
fn part(rng: &mut Rng, event: &Event) -> Kept {
    match (rng.below(3), event) {
        (0, _) => Kept::Whole,
        (1, Event::Write { offset, data, .. }) if *offset != 65536 => {
            let sectors = (data.len() as u64 / 512).max(1);
            let start = rng.below(sectors);
            Kept::Sectors(start..start + 1 + rng.below(sectors - start))
        }
        _ => Kept::Nothing,
    }
}

fn replays_alike(format: &Format, image: &Path, seed: u64) {
    let base = load(image);
    let expected = kernels_replay(image);
    let (recorder, ours) = record(&base);
    let found = differences(&expected, &ours, Compare::ALL);
    assert!(found.is_empty(), "{format:?}: {found:#?}");
    cut_everywhere(&base, &recorder, &ours, &mut Rng::new(seed));
}

macro_rules! formats {
    ($($name:ident: $number:literal;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 200);
            let scratch = Scratch::new("replayed");
            let image = logged(&FORMATS[$number], &scratch);
            let ours = scratch.join("ours");
            run_ok(60, "cp", &["--sparse=always", &image.to_string_lossy(), &ours.to_string_lossy()]);
            let filesystem = engine::open(&ours, Options { access_times: AccessTimes::Never, ..Options::default() });
            filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
            check_all(&ours);
            replays_alike(&FORMATS[$number], &image, 7000 + $number);
        }
    )* };
}

formats! {
    replayed_default: 0;
    replayed_small_nodes: 1;
    replayed_large_nodes_hole_items: 2;
    replayed_mixed_groups: 3;
    replayed_no_free_space_tree: 4;
    replayed_small_nodes_sha256: 5;
}
