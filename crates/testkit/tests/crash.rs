//! Crashes: after each the image checks clean, the kernel mounts it, and it shows a state that was allowed.
//!
//! The serving process is killed at random moments of a workload on the mount, fifty times on one image; every fifth
//! time an `fsync` is a commit, otherwise it may be a log. What `promise` allows is said there. Crashes of the engine
//! without a mount are the simulator's (`crates/sim`).

use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::engine::{device, open};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::operation::{OperationTarget, RelPath, agree};
use butterfs_testkit::promise::logged::Numbers;
use butterfs_testkit::promise::{History, Promise, through};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const KILLS: u64 = 50;
/// More than any workload runs before it is killed.
const OPERATIONS: usize = 1_000_000;

/// The operations in a folder of a mount until its server was dead.
struct Lived {
    history: History,
    numbers: Numbers,
}

fn number(folder: &Path, path: &RelPath) -> Option<u64> {
    let path = folder.join(std::ffi::OsStr::from_bytes(&path.0));
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// Runs operations in `folder` of a mount until its server is dead.
fn run_until_killed(seed: u64, folder: &Path, logs: bool, kill: impl FnOnce() + Send) -> Result<Lived, String> {
    let mut model = ModelFs::default();
    let mut history = History::new(&model);
    let mut numbers = Numbers::default();
    let mut mounted = Mounted::new(folder);
    let mut generator = Generator::new(seed, Shape { inodes_max: 150, ..Shape::SMALL });
    let delay = Duration::from_millis(10 + Rng::new(seed).below(200));
    std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            std::thread::sleep(delay);
            kill();
        });
        for _ in 0..OPERATIONS {
            let op = generator.next_op(&model);
            let promise = match Promise::of(&op, &model) {
                Some(Promise::File(id)) if logs => Some(Promise::Logged(id)),
                promise => promise,
            };
            let expected = model.apply(&op);
            history.push(&model);
            let actual = mounted.apply(&op);
            if !agree(&expected, &actual) {
                // That the server was alive until then, its end by the signal shows.
                // Over io_uring the kernel ends what is under way with ECANCELED.
                if !matches!(actual, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::IO)) {
                    return Err(format!("seed {seed}: {op:?}: expected {expected:?}, actual {actual:?}"));
                }
                killer.join().expect("it only waits and kills");
                return Ok(Lived { history, numbers });
            }
            if let Some(promise) = promise {
                history.promise(promise);
            }
            if logs {
                numbers.learn(&model, &mut |path| number(folder, path));
            }
        }
        Err("the workload ended before the kill".to_owned())
    })
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process as i32).expect("a process id");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("our own child");
}

/// Splits what is shown into the folder `name`, relative to it, and the rest.
fn split_off(mut print: Fingerprint, name: &str) -> (Fingerprint, Fingerprint) {
    let prefix = format!("{name}/").into_bytes();
    let mut inside = Fingerprint::default();
    let numbers = std::mem::take(&mut print.numbers);
    let own = |(path, number): (Vec<u8>, u64)| Some((path.strip_prefix(&prefix[..])?.to_vec(), number));
    inside.numbers = numbers.into_iter().filter_map(own).collect();
    let all = std::mem::take(&mut print.entries);
    for (path, mut entry) in all {
        if path == name.as_bytes() {
            inside.entries.insert(Vec::new(), entry);
        } else if let Some(rest) = path.strip_prefix(&prefix[..]) {
            entry.first_path = entry.first_path.map(|first| first[prefix.len()..].to_vec());
            inside.entries.insert(rest.to_vec(), entry);
        } else {
            print.entries.insert(path, entry);
        }
    }
    (inside, print)
}

#[test]
fn killed_server() {
    const TEST: &str = "killed_server";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 600);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 1 << 30);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let (mut before, mut logged) = (Fingerprint::default(), 0);
    for number in 0..KILLS {
        let logs = number % 5 != 4;
        let served = Served::mount(&image, &at, if logs { "noatime,commit=1" } else { "noatime,commit=1,notreelog" });
        let name = format!("run-{number}");
        let folder = at.join(&name);
        std::fs::create_dir(&folder).expect("a new name");
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own mount");
        rustix::fs::syncfs(std::fs::File::open(&folder).expect("it was made")).expect("a good device");
        let process = served.id();
        let lived = run_until_killed(9000 + number, &folder, logs, move || kill(process));
        let Lived { history, numbers } = lived.unwrap_or_else(|error| panic!("{error}"));
        served.dead();
        check_all(&image);
        let base = logs.then(|| split_off(without_log(&image), &name).0);
        logged += u32::from(has_log(&image));
        let mount = KernelMount::new(&image, "noatime");
        let (shown, mut rest) = split_off(Fingerprint::of_tree(mount.path()), &name);
        let read = through(Mounted::new(&mount.path().join(&name)));
        let found = match base {
            Some(base) => history.explain_logged(&base, &shown, &numbers, &read),
            None => history.explain(&shown, &read).map(drop),
        };
        found.unwrap_or_else(|error| panic!("kill {number}, seed {}: {error}", 9000 + number));
        // What earlier kills left does not change any more; the root folder has one more name.
        rest.entries.remove(&b""[..]);
        let changed = differences(&before, &rest, Compare::ALL);
        assert!(changed.is_empty(), "kill {number}: {changed:#?}");
        (_, before) = (0, Fingerprint::of_tree(mount.path()));
        before.entries.remove(&b""[..]);
        assert_eq!(mount.finish(), [""; 0]);
    }
    println!("{logged} of {KILLS} kills left a log");
}

/// The fingerprint of an image whose log is ignored.
fn without_log(image: &Path) -> Fingerprint {
    let filesystem = open(image, Options { read_only: true, no_log_replay: true, ..Options::default() });
    Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

fn has_log(image: &Path) -> bool {
    Filesystem::has_log(vec![device(image)]).unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// After a cut with an unlinked open file, the next mount frees it.
#[test]
fn unlinked_open_files_are_cleaned_up() {
    const TEST: &str = "unlinked_open_files_are_cleaned_up";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 512 << 20);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "");
    let path = at.join("file");
    let file = std::fs::File::create(&path).expect("a new name");
    std::io::Write::write_all(&mut &file, &vec![7; 20 << 20]).expect("room");
    std::fs::remove_file(&path).expect("it is there");
    rustix::fs::syncfs(&file).expect("a good device");
    served.kill();
    drop(file);
    check_all(&image);
    let orphans = || {
        butterfs_testkit::kernel::run_ok(
            60,
            "btrfs",
            &["inspect-internal", "dump-tree", "-t", "5", &image.display().to_string()],
        )
    };
    assert!(orphans().contains("ORPHAN_ITEM"), "an orphan item was committed");
    open(&image, Options::default()).shutdown().unwrap_or_else(|error| panic!("{error}"));
    assert!(!orphans().contains("ORPHAN_ITEM"), "the next mount removes it");
    check_all(&image);
}
