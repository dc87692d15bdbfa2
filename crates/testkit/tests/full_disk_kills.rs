//! Writers that fill the disk and make room again, while the serving process is killed at random moments: whatever is
//! left is clean, no fsynced file has lost a byte, and in the end all space comes back.
//!
//! `BUTTERFS_TORTURE=N` kills N times instead of a few times.

use butterfs_fs::{Options, StatFs};
use butterfs_testkit::engine::open;
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use butterfs_testkit::watchdog::Watchdog;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WRITERS: u64 = 3;
const KILLS: u64 = 5;

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
    refusals: usize,
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
    fn run(mut self) -> (Known, usize) {
        loop {
            let failed = if self.rng.chance(70) { self.write().err() } else { self.remove(1).err() };
            let Some(error) = failed else { continue };
            let refused = error.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
            if refused {
                self.refusals += 1;
            }
            let room = if refused { self.remove(self.known.len() / 2 + 1) } else { Err(error) };
            if let Err(error) = room {
                assert!(self.killed.load(Ordering::SeqCst), "{}: {error}", self.folder.display());
                return (self.known, self.refusals);
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

    /// Removes `count` files that were fsynced and as many others. It must work however full the disk is.
    fn remove(&mut self, count: usize) -> std::io::Result<()> {
        for _ in 0..count {
            let known = self.known.keys().nth(self.rng.index(self.known.len().max(1))).copied();
            let victims = [known, self.others.pop()];
            victims[0].map(|number| self.known.remove(&number));
            for number in victims.into_iter().flatten() {
                match std::fs::remove_file(self.path(number)) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}

/// Mounts, has writers work, kills the server. What they know to be there, by writer.
fn life(image: &Path, at: &Path, number: u64, rng: &mut Rng, before: Vec<Known>) -> (Vec<Known>, usize) {
    let served = Served::mount(image, at, "commit=1");
    let killed = AtomicBool::new(false);
    let process = rustix::process::Pid::from_raw(served.id() as i32).expect("a process id");
    let delay = Duration::from_millis(400 + rng.below(1500));
    let results = std::thread::scope(|scope| {
        let start = |(writer, known): (usize, Known)| {
            let folder = at.join(writer.to_string());
            std::fs::create_dir_all(&folder).expect("room for a folder");
            let here = std::fs::read_dir(&folder).expect("it is there").filter_map(Result::ok);
            let numbers = here.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let others = numbers.filter(|number| !known.contains_key(number)).collect();
            let rng = Rng::new(number * 100 + writer as u64);
            let next = (number + 1) * 1_000_000;
            let writer = Writer { folder, rng, known, others, next, killed: &killed, refusals: 0 };
            scope.spawn(move || writer.run())
        };
        let writers: Vec<_> = before.into_iter().enumerate().map(start).collect();
        std::thread::sleep(delay);
        killed.store(true, Ordering::SeqCst);
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("our own child");
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect::<Vec<_>>()
    });
    served.dead();
    let refusals = results.iter().map(|(_, refusals)| refusals).sum();
    (results.into_iter().map(|(known, _)| known).collect(), refusals)
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
    let (mut rng, mut refused) = (Rng::new(77), 0);
    let mut known = vec![Known::new(); WRITERS as usize];
    for kill in 0..kills {
        let refusals;
        (known, refusals) = life(&image, &at, kill, &mut rng, known);
        refused += refusals;
        check_all(&image);
        let mount = KernelMount::new(&image, "ro");
        for (writer, files) in known.iter().enumerate() {
            for (number, len) in files {
                let path = mount.path().join(format!("{writer}/{number}"));
                let found =
                    std::fs::read(&path).unwrap_or_else(|error| panic!("kill {kill}: {writer}/{number}: {error}"));
                assert!(found == content(*number, *len), "kill {kill}: {writer}/{number} is not what was fsynced");
            }
        }
        assert_eq!(mount.finish(), [""; 0]);
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
