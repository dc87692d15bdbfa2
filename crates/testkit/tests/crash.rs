//! Crashes: after each the image checks clean, the kernel mounts it, and it shows a state that was allowed.
//!
//! The serving process is killed at random moments of a workload on the mount, fifty times on one image. What `promise`
//! allows is said there. Crashes of the engine without a mount are the simulator's (`crates/sim`).

use butterfs_fs::Options;
use butterfs_testkit::engine::open;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::operation::{Target, agree};
use butterfs_testkit::promise::{History, Promise, through};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

const KILLS: u64 = 50;
/// More than any workload runs before it is killed.
const OPERATIONS: usize = 1_000_000;

/// Runs operations in `folder` of a mount until its server is dead. `None` when the server did something wrong.
fn run_until_killed(seed: u64, folder: &Path, kill: impl FnOnce() + Send) -> Result<History, String> {
    let mut model = ModelFs::default();
    let mut history = History::new(&model);
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
            let promise = Promise::of(&op, &model);
            let expected = model.apply(&op);
            history.push(&model);
            let actual = mounted.apply(&op);
            if !agree(&expected, &actual) {
                // That the server was alive until then, its end by the signal shows.
                if !matches!(actual, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::IO)) {
                    return Err(format!("seed {seed}: {op:?}: expected {expected:?}, actual {actual:?}"));
                }
                killer.join().expect("it only waits and kills");
                return Ok(history);
            }
            if let Some(promise) = promise {
                history.promise(promise);
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
    let mut before = Fingerprint::default();
    for number in 0..KILLS {
        let served = Served::mount(&image, &at, "noatime,commit=1");
        let name = format!("run-{number}");
        let folder = at.join(&name);
        std::fs::create_dir(&folder).expect("a new name");
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own mount");
        rustix::fs::fsync(std::fs::File::open(&folder).expect("it was made")).expect("a good device");
        let process = served.id();
        let history =
            run_until_killed(9000 + number, &folder, move || kill(process)).unwrap_or_else(|error| panic!("{error}"));
        served.dead();
        check_all(&image);
        let mount = KernelMount::new(&image, "ro,noatime");
        let (shown, mut rest) = split_off(Fingerprint::of_tree(mount.path()), &name);
        let read = through(Mounted::new(&mount.path().join(&name)));
        let found = history.explain(&shown, &read);
        found.unwrap_or_else(|error| panic!("kill {number}, seed {}: {error}", 9000 + number));
        // What earlier kills left does not change any more; the root folder has one more name.
        rest.entries.remove(&b""[..]);
        let changed = differences(&before, &rest, Compare::ALL);
        assert!(changed.is_empty(), "kill {number}: {changed:#?}");
        (_, before) = (0, Fingerprint::of_tree(mount.path()));
        before.entries.remove(&b""[..]);
        assert_eq!(mount.finish(), [""; 0]);
    }
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
    file.sync_all().expect("a good device");
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
