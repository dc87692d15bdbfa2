//! Writers that fill the disk and make room again, while the serving process is killed at random moments: whatever is
//! left is clean, no fsynced file has lost a byte, and in the end all space comes back.
//!
//! `BUTTERFS_TORTURE=N` kills N times instead of a few times.

use butterfs_fs::{Options, StatFs};
use butterfs_testkit::engine::open;
use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use butterfs_testkit::watchdog::Watchdog;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
const KILLS: u64 = 3;
/// How long the writers may take until the disk is full for the first time.
const FULL_LIMIT: Duration = Duration::from_secs(30);

/// Files that are known to be there: their length.
type Known = BTreeMap<u64, usize>;

/// One writer's files, in a folder of its own.
struct Writer<'a> {
    folder: std::path::PathBuf,
    rng: Rng,
    /// Fsynced, and nobody has begun to remove them.
    known: Known,
    /// All others that may be there.
    others: Vec<u64>,
    next: u64,
    killed: &'a AtomicBool,
    refusals: &'a AtomicUsize,
}

fn content(number: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

impl Writer<'_> {
    fn path(&self, number: u64) -> std::path::PathBuf {
        self.folder.join(number.to_string())
    }

    /// Works until the server is dead.
    fn run(mut self) -> Known {
        loop {
            let failed = if self.rng.chance(70) { self.write().err() } else { self.remove(1, 1).err() };
            let Some(error) = failed else { continue };
            let refused = error.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
            if refused {
                self.refusals.fetch_add(1, Ordering::SeqCst);
            }
            let (known, others) = (self.known.len() / 2, self.others.len() / 2 + 1);
            let room = if refused { self.remove(known, others) } else { Err(error) };
            if let Err(error) = room {
                assert!(self.killed.load(Ordering::SeqCst), "{}: {error}", self.folder.display());
                return self.known;
            }
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let number = self.next;
        self.next += 1;
        let len = 1 + if self.rng.chance(60) { self.rng.index(6000) } else { self.rng.index(3 << 20) };
        self.others.push(number);
        let mut file = std::fs::File::create(self.path(number))?;
        file.write_all(&content(number, len))?;
        if self.rng.chance(40) {
            file.sync_all()?;
            self.others.pop();
            self.known.insert(number, len);
        }
        Ok(())
    }

    /// Removes so many files that were fsynced and so many others. It must work however full the disk is.
    fn remove(&mut self, known: usize, others: usize) -> std::io::Result<()> {
        let mut victims = self.others.split_off(self.others.len().saturating_sub(others));
        for _ in 0..known.min(self.known.len()) {
            let number = *self.known.keys().nth(self.rng.index(self.known.len())).expect("there are some");
            self.known.remove(&number);
            victims.push(number);
        }
        for number in victims {
            match std::fs::remove_file(self.path(number)) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Every file that was fsynced is there, whole.
fn must_hold(at: &Path, known: &[Known], who: &str) {
    for (writer, files) in known.iter().enumerate() {
        for (number, len) in files {
            let found = std::fs::read(at.join(format!("{writer}/{number}")));
            let found = found.unwrap_or_else(|error| panic!("{who}: {writer}/{number}: {error}"));
            assert!(found == content(*number, *len), "{who}: {writer}/{number} is not what was fsynced");
        }
    }
}

/// Mounts, has writers work, kills the server. What they know to be there, by writer.
fn life(image: &Path, at: &Path, number: u64, rng: &mut Rng, before: Vec<Known>) -> (Vec<Known>, usize) {
    let served = Served::mount(image, at, "commit=1");
    must_hold(at, &before, &format!("life {number}, our mount"));
    let (killed, refusals) = (AtomicBool::new(false), AtomicUsize::new(0));
    let process = rustix::process::Pid::from_raw(served.id() as i32).expect("a process id");
    let delay = Duration::from_millis(rng.below(1500));
    let results = std::thread::scope(|scope| {
        let start = |(writer, known): (usize, Known)| {
            let folder = at.join(writer.to_string());
            let here = std::fs::read_dir(&folder).expect("it is there").filter_map(Result::ok);
            let numbers = here.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let others = numbers.filter(|number| !known.contains_key(number)).collect();
            let rng = Rng::new(number * 100 + writer as u64);
            let next = (number + 1) * 1_000_000;
            let writer = Writer { folder, rng, known, others, next, killed: &killed, refusals: &refusals };
            scope.spawn(move || writer.run())
        };
        let writers: Vec<_> = before.into_iter().enumerate().map(start).collect();
        let begun = Instant::now();
        while refusals.load(Ordering::SeqCst) == 0 && begun.elapsed() < FULL_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(delay);
        killed.store(true, Ordering::SeqCst);
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("our own child");
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect::<Vec<_>>()
    });
    served.dead();
    (results, refusals.into_inner())
}

fn room(image: &Path) -> StatFs {
    open(image, Options { read_only: true, ..Options::default() }).statfs()
}

#[test]
fn killed_on_a_full_disk() {
    const TEST: &str = "killed_on_a_full_disk";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let kills = std::env::var("BUTTERFS_TORTURE").map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let _watchdog = Watchdog::new(TEST, 120 + 20 * kills);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 160 << 20);
    mkfs(&image, &[]);
    let at_first = room(&image);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "");
    (0..WRITERS).for_each(|writer| std::fs::create_dir(at.join(writer.to_string())).expect("room for a folder"));
    served.unmount();
    let (mut rng, mut refused) = (Rng::new(77), 0);
    let mut known = vec![Known::new(); WRITERS as usize];
    for kill in 0..kills {
        let refusals;
        (known, refusals) = life(&image, &at, kill, &mut rng, known);
        refused += refusals;
        check_all(&image);
        // A log is replayed by both, so the kernel gets a copy that it may write to.
        let copy = scratch.join("copy");
        run_ok(60, "cp", &["--sparse=always", &image.to_string_lossy(), &copy.to_string_lossy()]);
        let mount = KernelMount::new(&copy, "noatime");
        must_hold(mount.path(), &known, &format!("kill {kill}, the kernel's mount"));
        assert_eq!(mount.finish(), [""; 0]);
        check_all(&copy);
    }
    println!("{refused} times full, {} files known", known.iter().map(Known::len).sum::<usize>());
    assert!(refused > 0, "the disk never became full");
    let served = Served::mount(&image, &at, "");
    for writer in 0..WRITERS {
        std::fs::remove_dir_all(at.join(writer.to_string())).expect("removing always works");
    }
    served.unmount();
    check_all(&image);
    let now = room(&image);
    assert_eq!((now.blocks, now.blocks_free), (at_first.blocks, at_first.blocks_free), "space has leaked");
}
