//! The scenarios of what an fsync promises, run by the kernel on a mount that loses its power: the logs that it leaves
//! are replayed by us and by the kernel, from two copies of one image.
//!
//! Several scenarios share an image, each in a subvolume of its own, so that each has a log of its own.

use butterfs_fs::{AccessTimes, Options};
use butterfs_testkit::engine::open;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, PathFingerprint, differences};
use butterfs_testkit::fsync_scenarios::{SCENARIOS, Scenario};
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run_ok};
use butterfs_testkit::library::Library;
use butterfs_testkit::operation::{Op, OperationTarget, RelPath};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::script::Script;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Nothing is committed but by the scenarios.
const OPTIONS: &str = "noatime,commit=300";
/// Scenarios on one image.
const TOGETHER: usize = 16;

fn copy(from: &Path, to: &Path) {
    run_ok(60, "cp", &["--sparse=always", &from.to_string_lossy(), &to.to_string_lossy()]);
}

/// A filesystem of the scenarios' format, with chunks that have room for what they write: a new chunk means a commit.
fn make(format: &str, scratch: &Scratch) -> PathBuf {
    let image = scratch.sparse_file("live", 2 << 30);
    let mut words = format.split(' ').filter(|word| !word.is_empty()).peekable();
    let nodesize = words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit())).unwrap_or("16384");
    let features = words.next().unwrap_or("no-holes");
    mkfs(&image, &["-n", nodesize, "-O", features]);
    image
}

/// A scenario's subvolume.
fn folder(number: usize) -> String {
    format!("s{number}")
}

/// Runs the scenarios under the kernel; returns what was there before the cut. The image at `cut` is what the cut left.
fn cut(scenarios: &[&Scenario], scratch: &Scratch, cut: &Path) -> Fingerprint {
    let image = make(scenarios[0].format, scratch);
    let mount = KernelMount::new(&image, OPTIONS);
    Script::new(mount.path()).run("fill large 0 64M 1");
    let mut scripts = Vec::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        Script::new(mount.path()).run(&format!("subvol {}", folder(number)));
        let mut script = Script::new(&mount.path().join(folder(number)));
        let (before, after) = scenario.script.rsplit_once("sync;").unwrap_or(("", scenario.script));
        // A word that ends in it is an fsync.
        let (before, after) = if before.ends_with("; ") { (before, after) } else { ("", scenario.script) };
        script.run(before);
        scripts.push((script, after));
    }
    Script::new(mount.path()).run("sync; rm large");
    for (script, after) in &mut scripts {
        script.run(after);
    }
    copy(&image, cut);
    let live = Fingerprint::of_tree(mount.path());
    drop(scripts);
    assert_eq!(mount.finish(), [""; 0]);
    live
}

/// The fingerprint of one scenario's subvolume.
pub fn part(print: &Fingerprint, number: usize) -> BTreeMap<Vec<u8>, PathFingerprint> {
    let prefix = format!("{}/", folder(number)).into_bytes();
    let inside = print.entries.iter().filter_map(|(path, entry)| {
        let path = path.strip_prefix(&prefix[..])?.to_vec();
        // Other names of the inode may not be promised.
        Some((path, PathFingerprint { first_path: None, ..entry.clone() }))
    });
    inside.collect()
}

/// The part of the promise that is broken.
pub fn broken(
    scenario: &Scenario,
    live: &BTreeMap<Vec<u8>, PathFingerprint>,
    shown: &BTreeMap<Vec<u8>, PathFingerprint>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let there = |path: &str| shown.contains_key(path.as_bytes());
    for path in scenario.keep.split_whitespace() {
        let one = |print: &BTreeMap<Vec<u8>, PathFingerprint>| {
            let mut one = Fingerprint::default();
            one.entries.extend(print.get_key_value(path.as_bytes()).map(|(path, entry)| (path.clone(), entry.clone())));
            one
        };
        assert_eq!(one(live).entries.len(), 1, "{}: {path} is there before the cut", scenario.name);
        wrong.extend(differences(&one(live), &one(shown), Compare { ctime: false, mtime: false, ..Compare::ALL }));
    }
    let gone = scenario.gone.split_whitespace().filter(|path| there(path));
    wrong.extend(gone.map(|path| format!("{path} is still there")));
    let exists = scenario.exists.split_whitespace().filter(|path| !there(path));
    wrong.extend(exists.map(|path| format!("{path} leads nowhere")));
    for path in scenario.survives.split_whitespace() {
        let content = live[path.as_bytes()].content;
        let found = shown.values().any(|entry| entry.content == content);
        wrong.extend((!found).then(|| format!("what was in {path} is nowhere")));
    }
    let either: Vec<bool> = scenario.either.split_whitespace().map(there).collect();
    if !either.is_empty() && either.iter().filter(|there| **there).count() != 1 {
        wrong.push(format!("of {} there are {either:?}", scenario.either));
    }
    wrong
}

/// Replays by us, and by the kernel for comparison. Returns what is not as it should be.
fn judge(scenarios: &[&Scenario], live: &Fingerprint, image: &Path, scratch: &Scratch, logs: usize) -> Vec<String> {
    let theirs = scratch.join("theirs");
    copy(image, &theirs);
    let expected = super::kernels_replay(&theirs);
    let shown = our_replay(image);
    check_all(image);
    let mut wrong = Vec::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        let (live, ours, kernels) = (part(live, number), part(&shown, number), part(&expected, number));
        let found = broken(scenario, &live, &ours);
        let (kernel, ours) =
            (broken(scenario, &live, &kernels), Fingerprint { entries: ours, ..Fingerprint::default() });
        let kernels = Fingerprint { entries: kernels, ..Fingerprint::default() };
        let mut found: Vec<String> = found.into_iter().map(|what| format!("ours: {what}")).collect();
        match scenario.kernel_loses {
            None => {
                found.extend(kernel.into_iter().map(|what| format!("kernel: {what}")));
                let differ = differences(&kernels, &ours, Compare::ALL);
                found.extend(differ.into_iter().map(|what| format!("differs: {what}")));
            }
            // Without this the scenario would prove nothing.
            Some(what) if kernel.is_empty() && logs >= scenarios.len() => {
                found.push(format!("the kernel does not lose {what}"))
            }
            Some(_) => {}
        }
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", scenario.name)));
    }
    wrong
}

/// The fingerprint after our replay. Afterwards there is room for new inodes and names.
fn our_replay(image: &Path) -> Fingerprint {
    let filesystem = open(image, Options { access_times: AccessTimes::Never, ..Options::default() });
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{error}"));
    let folders = shown.entries.iter().filter(|(path, _)| path.len() < 4 && path.starts_with(b"s"));
    for path in folders.map(|(path, _)| RelPath([path, &b"/new"[..]].concat())) {
        let made = Library::new(&filesystem).apply(&Op::Create { path: path.clone(), mode: 0o600 });
        made.unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    shown
}

#[test]
fn kernel_logs_of_scenarios() {
    const TEST: &str = "kernel_logs_of_scenarios";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let watchdog = Watchdog::new(TEST, 600);
    let mut by_format: BTreeMap<&str, Vec<&Scenario>> = BTreeMap::new();
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.commits) {
        by_format.entry(scenario.format).or_default().push(scenario);
    }
    let (mut wrong, mut logs) = (Vec::new(), 0);
    for scenarios in by_format.values().flat_map(|scenarios| scenarios.chunks(TOGETHER)) {
        watchdog.note(scenarios[0].name);
        let mut left = 0;
        // Somebody else's sync(2) can end the logs.
        for _ in 0..3 {
            let scratch = Scratch::new("scenario");
            let image = scratch.join("cut");
            let live = cut(scenarios, &scratch, &image);
            left = super::logs_in(&image);
            println!("{} scenarios, {left} logs", scenarios.len());
            wrong.extend(judge(scenarios, &live, &image, &scratch, left));
            if left >= scenarios.len() {
                break;
            }
        }
        logs += left;
    }
    let count = SCENARIOS.iter().filter(|scenario| !scenario.commits).count();
    assert!(logs * 2 > count, "{count} scenarios left {logs} logs");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
