//! Other people's torture on our mount: a short run of some stressors of stress-ng in every test run, and long runs by
//! `cargo xtask soak`.
//!
//! The kernel's btrfs on the same machine says what can be asked: a stressor that fails there, or finds nothing to do,
//! is not held against us.

use butterfs_testkit::kernel::{KernelMount, check_all, run};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{fsx, requirement};
use std::path::{Path, PathBuf};

/// The stressors of stress-ng's class `filesystem` that work in a folder.
const STRESSORS: &[&str] = &[
    "access",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "eventfd",
    "fallocate",
    "fanotify",
    "fcntl",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "io",
    "iomix",
    "ioprio",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "verity",
    "xattr",
];

/// Those that change names, attributes and contents most, all at once.
const TOGETHER: &[&str] = &[
    "chmod",
    "copy-file",
    "dentry",
    "dirdeep",
    "fallocate",
    "fpunch",
    "getdent",
    "hdd",
    "iomix",
    "link",
    "rename",
    "symlink",
    "utime",
    "xattr",
];

/// Calls that the kernel never passes on to a FUSE server: the stressor must find that it cannot work.
const NOT_THROUGH_FUSE: &[&str] = &["fiemap"];

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Verdict {
    Passed,
    Skipped,
    Failed,
}

/// Runs stressors at the same time in a folder for `seconds`.
fn stress(at: &Path, names: &[&str], seconds: u32) -> (Verdict, String) {
    let (time, folder) = (format!("{seconds}s"), at.display().to_string());
    let mut words = vec!["--verify", "--timeout", &time, "--temp-path", &folder, "--no-rand-seed"];
    let options: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
    options.iter().for_each(|option| words.extend([option.as_str(), "1"]));
    let finished = run(seconds + 100, "stress-ng", &words);
    let failed = finished.output.lines().any(|line| line.contains(" fail: ") || line.contains("unsuccessful"));
    let skipped = finished.output.lines().any(|line| line.contains("skipp"));
    let verdict = match finished.code {
        Some(0) if !failed && !skipped => Verdict::Passed,
        Some(0 | 3 | 4) if !failed => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    (verdict, format!("exit code {:?}: {}", finished.code, finished.output))
}

struct Fresh {
    scratch: Scratch,
    image: PathBuf,
}

fn fresh(test: &str) -> Fresh {
    let scratch = Scratch::new(test);
    // On 2 GiB stressors that run together find no room, on the kernel's btrfs too.
    let image = scratch.sparse_file("image", 8 << 30);
    mkfs(&image, &[]);
    Fresh { scratch, image }
}

fn judge(image: &Path) {
    check_all(image);
    assert_eq!(KernelMount::new(image, "ro").finish(), [""; 0]);
}

fn can_run(test: &str, programs: &[&str]) -> bool {
    requirement::kernel_btrfs(test) && requirement::fuse(test) && requirement::programs(test, programs)
}

#[test]
fn stressors_together() {
    const TEST: &str = "stressors_together";
    if !can_run(TEST, &["stress-ng"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let Fresh { scratch, image } = fresh(TEST);
    let served = Served::mount(&image, &scratch.folder("mnt"), "commit=1");
    let (verdict, said) = stress(served.path(), TOGETHER, 6);
    assert_eq!(verdict, Verdict::Passed, "{said}");
    served.unmount();
    judge(&image);
}

/// Each stressor alone, for `BUTTERFS_SOAK_SECONDS` (2), beside the kernel.
#[test]
#[ignore = "long: cargo xtask soak stress-ng"]
fn every_stressor_beside_the_kernel() {
    const TEST: &str = "every_stressor_beside_the_kernel";
    if !can_run(TEST, &["stress-ng"]) {
        return;
    }
    let seconds = std::env::var("BUTTERFS_SOAK_SECONDS").map_or(2, |text| text.parse().expect("a number of seconds"));
    let Fresh { scratch, image } = fresh(TEST);
    let theirs = fresh(TEST);
    let served = Served::mount(&image, &scratch.folder("mnt"), "");
    let kernel = KernelMount::new(&theirs.image, "");
    let (mut worse, mut passed) = (Vec::new(), 0);
    for name in STRESSORS {
        let (expected, _) = stress(kernel.path(), &[name], seconds);
        let (found, said) = stress(served.path(), &[name], seconds);
        println!("{name}: kernel {expected:?}, ours {found:?}");
        passed += usize::from(found == Verdict::Passed);
        let wanted = if NOT_THROUGH_FUSE.contains(name) { Verdict::Skipped } else { expected };
        if expected == Verdict::Passed && found != wanted {
            worse.push(format!("{name}: {said}"));
        }
    }
    println!("{passed} of {} pass", STRESSORS.len());
    kernel.finish();
    served.unmount();
    judge(&image);
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

/// Operations of one process of fsx: it never gives a mapping back, and each makes the next ones slower.
const OPERATIONS_AT_A_TIME: u64 = 1_000;

/// `BUTTERFS_FSX_OPS` operations (a million) in each way of storing.
#[test]
#[ignore = "long: cargo xtask soak fsx"]
fn fsx_in_each_mode() {
    const TEST: &str = "fsx_in_each_mode";
    const MODES: [(&str, &str, &str); 6] = [
        ("plain", "", "4"),
        ("zstd", "compress-force=zstd", "4"),
        ("lzo", "compress-force=lzo", "4"),
        ("zlib", "compress-force=zlib", "4"),
        ("nocow", "nodatacow", "4"),
        ("reflink", "", "40"),
    ];
    if !can_run(TEST, &["fsx"]) {
        return;
    }
    let operations =
        std::env::var("BUTTERFS_FSX_OPS").map_or(1_000_000u64, |text| text.parse().expect("a number of operations"));
    // Side by side: each waits for round trips most of its time.
    std::thread::scope(|scope| {
        for (mode, options, copies) in MODES {
            scope.spawn(move || fsx_on_a_mount(TEST, (mode, options, copies), operations));
        }
    });
}

/// `operations` of fsx in one mode: its name, options to mount with, the weight of copies.
fn fsx_on_a_mount(test: &str, (mode, options, copies): (&str, &str, &str), operations: u64) {
    let Fresh { scratch, image } = fresh(&format!("{test}-{mode}"));
    let settings = scratch.join("settings.toml");
    std::fs::write(&settings, fsx::settings("0.05", copies)).expect("scratch space");
    let served = Served::mount(&image, &scratch.folder("mnt"), options);
    let begun = std::time::Instant::now();
    for seed in 0..operations.div_ceil(OPERATIONS_AT_A_TIME) {
        let count = OPERATIONS_AT_A_TIME.min(operations - seed * OPERATIONS_AT_A_TIME);
        exercise(&served.path().join("file"), &scratch, count, seed);
        let done = seed * OPERATIONS_AT_A_TIME + count;
        if done.is_multiple_of(50 * OPERATIONS_AT_A_TIME) {
            println!("{mode}: {done} of {operations} operations after {:?}", begun.elapsed());
        }
    }
    served.unmount();
    judge(&image);
    println!("{mode}: {operations} operations in {:?}", begun.elapsed());
}

/// Runs fsx on a file, which it makes anew.
fn exercise(file: &Path, scratch: &Scratch, operations: u64, seed: u64) {
    let program = requirement::program("fsx").expect("it was required");
    let (artifacts, settings) = (scratch.folder("artifacts"), scratch.join("settings.toml"));
    let [file, artifacts, settings] = [file, &artifacts, &settings].map(|path| path.display().to_string());
    let (operations, seed) = (operations.to_string(), seed.to_string());
    let words = ["-q", "-q", "-N", &operations, "-S", &seed, "-P", &artifacts, "-f", &settings, &file];
    let finished = run(7200, &program, &words);
    assert_eq!(finished.code, Some(0), "seed {seed}: {}", finished.output);
}
