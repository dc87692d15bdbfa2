//! Random operations with an fsync now and then under the kernel, and both replays of what a cut leaves compared.
//!
//! They differ only where ours is meant to be better: a moved file that the kernel shows in its old folder too, and
//! space preallocated behind the end that the kernel gives up.
//!
//! Longer runs: `BUTTERFS_REPLAY_SEEDS=1000..1100`.

use super::kernels_replay;
use butterfs_fs::{AccessTimes, Options};
use butterfs_testkit::engine::open;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, PathFingerprint, differences};
use butterfs_testkit::judge::assert_clean;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::operation::Kind;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::script::Script;
use butterfs_testkit::watchdog::Watchdog;
use std::ops::Range;
use std::path::Path;

/// Subvolumes on one image, each with its own operations and its own log.
const TOGETHER: usize = 10;
const BEFORE: usize = 14;
const AFTER: usize = 10;

fn path(rng: &mut Rng) -> String {
    let folder = ["", "", "d/", "d/s/", "g/"][rng.index(5)];
    format!("{folder}{}", ["a", "b", "c", "e", "f"][rng.index(5)])
}

fn folder(rng: &mut Rng) -> &'static str {
    ["d", "d/s", "g", "g/t", "d/a", "b"][rng.index(6)]
}

fn block(rng: &mut Rng) -> u64 {
    [0, 0, 4096, 8192, 100, 20000, 65536][rng.index(7)]
}

fn operation(rng: &mut Rng) -> String {
    let (one, two) = (path(rng), path(rng));
    let (at, len, byte) = (block(rng), 1 + rng.below(12000), 1 + rng.below(200));
    match rng.below(26) {
        0..=3 => format!("touch {one}"),
        4..=6 => format!("fill {one} {at} {len} {byte}"),
        7..=9 => format!("ln {one} {two}"),
        10..=13 => format!("mv {one} {two}"),
        14 | 15 => format!("rm {one}"),
        16 => format!("mkdir {}", folder(rng)),
        17 => format!("rmdir {}", folder(rng)),
        18 => format!("symlink somewhere {one}"),
        19 => format!("trunc {one} {}", rng.below(30000)),
        20 => format!("punch {one} {at} {len}"),
        21 => format!("fallock {one} {at} {len}"),
        22 => format!("setx {one} user.{} {byte}", rng.below(3)),
        23 => format!("rmx {one} user.{}", rng.below(3)),
        24 => format!("xchg {one} {two}"),
        _ => format!("mv {} {}", folder(rng), folder(rng)),
    }
}

fn sync(rng: &mut Rng) -> String {
    if rng.below(4) == 0 { format!("fsync {}", folder(rng)) } else { format!("fsync {}", path(rng)) }
}

/// The operations in each subvolume, for the message of a failure.
type Done = Vec<Vec<String>>;

fn cut(seed: u64, scratch: &Scratch, cut: &Path) -> (Done, Fingerprint) {
    let image = scratch.sparse_file("live", 1 << 30);
    mkfs(&image, &["-O", if seed.is_multiple_of(3) { "^no-holes" } else { "no-holes" }]);
    let mount = KernelMount::new(&image, "noatime,commit=300");
    Script::new(mount.path()).run("fill large 0 8M 1");
    let mut rng = Rng::new(seed);
    let mut done: Done = vec![Vec::new(); TOGETHER];
    let mut scripts = Vec::new();
    for (number, done) in done.iter_mut().enumerate() {
        Script::new(mount.path()).run(&format!("subvol s{number}"));
        let mut script = Script::new(&mount.path().join(format!("s{number}")));
        script.run("mkdir d; mkdir d/s; mkdir g");
        (0..BEFORE).for_each(|_| attempt(&mut script, operation(&mut rng), done));
        scripts.push(script);
    }
    Script::new(mount.path()).run("sync");
    for (script, done) in scripts.iter_mut().zip(&mut done) {
        done.push("sync".to_owned());
        for _ in 0..AFTER {
            attempt(script, operation(&mut rng), done);
            if rng.below(4) == 0 {
                attempt(script, sync(&mut rng), done);
            }
        }
        // Names that are there have the last word.
        (0..3).for_each(|_| attempt(script, sync(&mut rng), done));
    }
    run_ok(60, "cp", &["--sparse=always", &image.to_string_lossy(), &cut.to_string_lossy()]);
    let live = Fingerprint::of_tree(mount.path());
    drop(scripts);
    assert_eq!(mount.finish(), [""; 0], "seed {seed}");
    (done, live)
}

fn attempt(script: &mut Script, line: String, done: &mut Vec<String>) {
    // To sync is not to create.
    let missing = |path: &str| line.starts_with("fsync") && !script.exists(path);
    if line.split(' ').nth(1).is_some_and(missing) {
        return;
    }
    if script.attempt(&line).is_ok() {
        done.push(line);
    }
}

/// The differences between the two replays, with the operations there.
fn compare(seed: u64) -> Vec<String> {
    let scratch = Scratch::new("random-log");
    let (ours, theirs) = (scratch.join("cut"), scratch.join("theirs"));
    let (done, live) = cut(seed, &scratch, &ours);
    run_ok(60, "cp", &["--sparse=always", &ours.to_string_lossy(), &theirs.to_string_lossy()]);
    let logs = super::logs_in(&ours);
    println!("seed {seed}: {logs} logs");
    assert_clean(&ours);
    let expected = kernels_replay(&theirs);
    let filesystem = open(&ours, Options { access_times: AccessTimes::Never, ..Options::default() });
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    filesystem.shutdown().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_clean(&ours);
    let mut wrong = Vec::new();
    for (number, done) in done.iter().enumerate() {
        let own = |print: &Fingerprint| {
            let inside = |path: &[u8]| path.starts_with(format!("s{number}/").as_bytes());
            let entries = print.entries.iter().filter(|(path, _)| inside(path));
            let entries = entries.map(|(path, entry)| (path.clone(), entry.clone())).collect();
            Fingerprint { entries, ..Fingerprint::default() }
        };
        let found = unexplained(&own(&expected), &own(&shown), &live);
        if !found.is_empty() {
            wrong.push(format!("seed {seed}, s{number}: {}: {found:#?}", done.join("; ")));
        }
    }
    wrong
}

/// Differences between the kernel's replay and ours that have no good reason.
fn unexplained(kernels: &Fingerprint, ours: &Fingerprint, live: &Fingerprint) -> Vec<String> {
    let mut kernels = kernels.clone();
    // A name that the kernel has kept, that was gone before the cut, and whose inode has another name.
    let former: Vec<Vec<u8>> =
        kernels.entries.keys().filter(|path| !ours.entries.contains_key(*path)).cloned().collect();
    for path in former.iter().filter(|path| !live.entries.contains_key(*path)) {
        let entry = kernels.entries.remove(path).expect("it was just listed");
        let same =
            |other: &PathFingerprint| other.links > 1 && (other.mtime, other.content) == (entry.mtime, entry.content);
        let links = kernels.entries.values_mut().filter(|other| same(other));
        assert!(links.map(|other| other.links -= 1).count() > 0, "{:?} has no other name", path.escape_ascii());
        for (folder, entry) in &mut kernels.entries {
            let name = path.strip_prefix(&folder[..]).and_then(|rest| rest.strip_prefix(b"/"));
            if let Some(name) = name.filter(|name| !name.contains(&b'/') && entry.kind == Kind::Folder) {
                entry.size -= 2 * name.len() as u64;
            }
        }
    }
    let mut ours = ours.clone();
    for (path, entry) in &mut kernels.entries {
        let Some(own) = ours.entries.get_mut(path) else { continue };
        if own.blocks > entry.blocks {
            own.blocks = entry.blocks;
        }
        if !former.is_empty() {
            (own.first_path, entry.first_path) = (None, None);
        }
    }
    differences(&kernels, &ours, Compare::ALL)
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("BUTTERFS_REPLAY_SEEDS") else { return 102..104 };
    let (from, to) = text.split_once("..").expect("FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn random_operations_beside_the_kernel() {
    const TEST: &str = "random_operations_beside_the_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 3000);
    let wrong: Vec<String> = seeds().flat_map(compare).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// After several fsyncs of one directory within a transaction the kernel's log decides for ranges that overlap. That is
/// no damage: a repair would drop what was synced.
#[test]
fn ranges_of_a_directory_that_overlap_are_sound() {
    const TEST: &str = "overlapping_ranges";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, cut) = (scratch.sparse_file("live", 200 << 20), scratch.join("cut"));
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime,commit=300");
    let mut script = Script::new(mount.path());
    script.run("mkdir d; touch d/a; touch d/b; touch d/c; touch d/d; touch d/e; touch d/f; touch d/g; touch d/h; sync");
    script.run("mv d/g d/m0; fsync d/m0; mv d/f d/m1; fsync d/m1; rm d/e; fsync d/m1; mv d/m0 d/m3; fsync d/m3");
    script.run("rm d/d; mv d/m3 d/m5; fsync d; fill d/important 0 9 1; fsync d/important");
    run_ok(60, "cp", &["--sparse=always", &image.to_string_lossy(), &cut.to_string_lossy()]);
    drop(script);
    assert_eq!(mount.finish(), [""; 0]);
    assert_eq!(super::logs_in(&cut), 1);
    assert_clean(&cut);
}
