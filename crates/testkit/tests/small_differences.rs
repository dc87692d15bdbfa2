//! Small differences from the kernel's btrfs: which calls move which times, access times, seeking from before
//! the beginning, the attributes of statx, the label and other ioctls that concern the whole filesystem.

use butterfs_testkit::kernel::{self, KernelMount, check_all, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use rustix::fs::{FallocateFlags, IFlags, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than a tick of the clock that file times are taken from.
const TICK: Duration = Duration::from_millis(12);

struct Pair {
    ours: Served,
    kernels: KernelMount,
    image: PathBuf,
    _scratch: Scratch,
    _watchdog: Watchdog,
}

impl Pair {
    fn new(test: &str, options: &str) -> Option<Pair> {
        if !requirement::kernel_btrfs(test) || !requirement::fuse(test) {
            return None;
        }
        let watchdog = Watchdog::new(test, 120);
        let scratch = Scratch::new(test);
        let (image, other) = (scratch.sparse_file("image", 512 << 20), scratch.sparse_file("other", 512 << 20));
        serve::mkfs(&image, &[]);
        kernel::mkfs(&other, &[]);
        let ours = Served::mount(&image, &scratch.folder("mnt"), options);
        let kernels = KernelMount::new(&other, options);
        Some(Pair { ours, kernels, image, _scratch: scratch, _watchdog: watchdog })
    }

    /// The answers of both sides, ours first.
    fn both<T>(&self, ask: impl Fn(&Path) -> T) -> [T; 2] {
        [self.ours.path(), self.kernels.path()].map(ask)
    }

    fn finish(self) {
        self.ours.unmount();
        check_all(&self.image);
        assert_eq!(self.kernels.finish(), [""; 0]);
    }
}

fn open(path: &Path, flags: OFlags) -> File {
    rustix::fs::open(path, flags | OFlags::CREATE, Mode::from_raw_mode(0o644)).expect("our own folder").into()
}

/// The first content of a file.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    Data,
    /// Data, then a hole up to a mebibyte.
    Holes,
    /// A tail that ends within a sector.
    Tail,
    Preallocated,
}

fn make(path: &Path, before: Before) -> File {
    let file = open(path, OFlags::RDWR);
    match before {
        Before::Nothing => {}
        Before::Data => file.write_all_at(&[1; 65536], 0).expect("room"),
        Before::Holes => file.write_all_at(&[1; 4096], 0).and_then(|()| file.set_len(1 << 20)).expect("room"),
        Before::Tail => file.write_all_at(&[1; 5000], 0).expect("room"),
        Before::Preallocated => {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).expect("room");
        }
    }
    file.sync_all().expect("room");
    file
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Ftruncate(u64),
    Truncate(u64),
    OpenTruncate,
    Punch(u64, u64),
    Allocate(u64, u64),
    KeepSize(u64, u64),
    Zero(u64, u64),
    Write(usize),
}

fn call(path: &Path, file: &File, call: Call) {
    let allocate = |flags, offset, len| rustix::fs::fallocate(file, flags, offset, len).expect("room");
    match call {
        Call::Ftruncate(size) => file.set_len(size).expect("room"),
        // There is no safe truncate(2) by path; coreutils' program opens the file.
        Call::Truncate(size) => {
            run_ok(
                10,
                "perl",
                &["-e", "truncate($ARGV[0], $ARGV[1]) or die", &path.to_string_lossy(), &size.to_string()],
            );
        }
        Call::OpenTruncate => drop(open(path, OFlags::WRONLY | OFlags::TRUNC)),
        Call::Punch(offset, len) => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len),
        Call::Allocate(offset, len) => allocate(FallocateFlags::empty(), offset, len),
        Call::KeepSize(offset, len) => allocate(FallocateFlags::KEEP_SIZE, offset, len),
        Call::Zero(offset, len) => allocate(FallocateFlags::ZERO_RANGE, offset, len),
        Call::Write(len) => {
            file.write_at(&vec![2; len], 0).expect("room");
        }
    }
}

const TIMED: [(Before, Call); 29] = [
    (Before::Data, Call::Ftruncate(65536)),
    (Before::Data, Call::Ftruncate(100)),
    (Before::Data, Call::Ftruncate(100_000)),
    (Before::Nothing, Call::Ftruncate(0)),
    (Before::Data, Call::Truncate(65536)),
    (Before::Nothing, Call::Truncate(0)),
    (Before::Preallocated, Call::Truncate(1 << 20)),
    (Before::Data, Call::Truncate(100)),
    (Before::Data, Call::Truncate(100_000)),
    (Before::Nothing, Call::OpenTruncate),
    (Before::Data, Call::OpenTruncate),
    (Before::Data, Call::Punch(0, 4096)),
    (Before::Data, Call::Punch(10, 100)),
    (Before::Data, Call::Punch(1 << 20, 4096)),
    (Before::Holes, Call::Punch(65536, 4096)),
    (Before::Holes, Call::Punch(65536, 100)),
    (Before::Holes, Call::Punch(65636, 10000)),
    (Before::Holes, Call::Punch(0, 65536)),
    (Before::Holes, Call::Punch(100, 65536)),
    (Before::Tail, Call::Punch(4096, 4096)),
    (Before::Preallocated, Call::Punch(0, 4096)),
    (Before::Nothing, Call::Punch(0, 4096)),
    (Before::Data, Call::Allocate(0, 65536)),
    (Before::Holes, Call::Allocate(65536, 4096)),
    (Before::Data, Call::KeepSize(1 << 20, 4096)),
    (Before::Holes, Call::Zero(65536, 4096)),
    (Before::Preallocated, Call::Zero(0, 4096)),
    (Before::Data, Call::Write(0)),
    (Before::Data, Call::Write(1)),
];

/// Whether the times of content and inode moved, and the size that came of it.
fn moved(root: &Path, number: usize, (before, what): (Before, Call)) -> (bool, bool, u64) {
    let path = root.join(format!("timed-{number}"));
    let file = make(&path, before);
    let times =
        || std::fs::metadata(&path).map(|seen| ((seen.mtime(), seen.mtime_nsec()), (seen.ctime(), seen.ctime_nsec())));
    let old = times().expect("there");
    std::thread::sleep(TICK);
    call(&path, &file, what);
    let new = times().expect("there");
    (new.0 != old.0, new.1 != old.1, file.metadata().expect("there").len())
}

#[test]
fn calls_move_times_as_in_the_kernel() {
    const TEST: &str = "calls_move_times";
    if !requirement::programs(TEST, &["perl"]) {
        return;
    }
    let Some(pair) = Pair::new(TEST, "") else { return };
    let mut wrong = Vec::new();
    for (number, timed) in TIMED.into_iter().enumerate() {
        let [ours, kernels] = pair.both(|root| moved(root, number, timed));
        if ours != kernels {
            wrong.push(format!("{timed:?}: {ours:?}, the kernel {kernels:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    pair.finish();
}

/// Access times after reading, as text: which of them moved.
fn accesses(root: &Path) -> String {
    let path = root.join("accessed");
    let file = make(&path, Before::Data);
    let atime = || std::fs::metadata(&path).map(|seen| (seen.atime(), seen.atime_nsec())).expect("there");
    let mut last = atime();
    let mut moved = |what: &str| {
        let now = atime();
        let line = format!("{what} {}\n", now != last);
        last = now;
        std::thread::sleep(TICK);
        line
    };
    let mut said = moved("nothing");
    let read = |flags: OFlags| open(&path, flags).read_at(&mut [0; 4096], 0).map(drop).expect("readable");
    let reaching = |flags: OFlags| {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a hint");
        read(flags);
    };
    read(OFlags::RDONLY | OFlags::NOATIME);
    said += &moved("unnoticed");
    read(OFlags::RDONLY);
    said += &moved("the first");
    reaching(OFlags::RDONLY);
    said += &moved("the second");
    reaching(OFlags::RDONLY | OFlags::NOATIME);
    said += &moved("unnoticed");
    file.write_all_at(b"changed", 0).expect("room");
    said += &moved("a write");
    read(OFlags::RDONLY);
    said + &moved("after it")
}

#[test]
fn reading_moves_access_times_as_in_the_kernel() {
    for options in ["", "strictatime", "noatime"] {
        let Some(pair) = Pair::new("access_times", options) else { return };
        let [ours, kernels] = pair.both(accesses);
        assert_eq!(ours, kernels, "'{options}'");
        assert_eq!(ours.contains("the second true"), options == "strictatime", "'{options}': {ours}");
        pair.finish();
    }
}

/// Data in the kernel's cache: of what is durable its btrfs says that there is no data behind an offset below zero.
fn sought(root: &Path) -> String {
    let path = root.join("sought");
    let file = open(&path, OFlags::RDWR);
    file.write_all_at(&[1; 65536], 1 << 20).expect("room");
    let offsets = ["-1", "-4096", "0", "1", "1048576", "1114112"];
    let seek = |offset: &&str| {
        let script = "open(F, '<', $ARGV[0]); print sysseek(F, $ARGV[1], $_) // $!+0, ' ' for 3, 4";
        run_ok(10, "perl", &["-e", script, &path.to_string_lossy(), offset])
    };
    offsets.iter().map(seek).collect()
}

#[test]
fn seeking_from_before_the_beginning_is_seeking_from_the_beginning() {
    const TEST: &str = "seeking";
    if !requirement::programs(TEST, &["perl"]) {
        return;
    }
    let Some(pair) = Pair::new(TEST, "") else { return };
    let [ours, kernels] = pair.both(sought);
    assert_eq!(ours, kernels);
    pair.finish();
}

#[test]
fn chattr_shows_in_the_time_of_the_inode_at_once() {
    let Some(pair) = Pair::new("chattr_times", "") else { return };
    let shown = pair.both(|root| {
        let path = root.join("flagged");
        let file = make(&path, Before::Data);
        let ctime = || std::fs::metadata(&path).map(|seen| (seen.ctime(), seen.ctime_nsec())).expect("there");
        let before = ctime();
        std::thread::sleep(TICK);
        rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).expect("our own file");
        ctime() != before
    });
    assert_eq!(shown, [true, true]);
    pair.finish();
}

/// The output of programs about ioctls of the whole filesystem.
fn of_the_filesystem(root: &Path) -> Vec<String> {
    let at = root.to_string_lossy();
    let file = root.join("versioned");
    drop(open(&file, OFlags::RDWR));
    let long = "x".repeat(255);
    let mut said = Vec::new();
    let mut ask = |program: &str, arguments: &[&str]| {
        let finished = run(10, program, arguments);
        said.push(format!("{arguments:?}: {:?} {}", finished.code, finished.output).replace(&*at, "AT"));
    };
    ask("xfs_io", &["-r", "-c", "label", &at]);
    ask("xfs_io", &["-r", "-c", "label -s new", "-c", "label", &at]);
    ask("btrfs", &["filesystem", "label", &at, &long]);
    ask("btrfs", &["filesystem", "label", &at]);
    ask("xfs_io", &["-r", "-c", "label -c", "-c", "label", &at]);
    let nobody = ["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"];
    ask("setpriv", &[&nobody[..], &["fstrim", &at]].concat());
    ask("chattr", &["+x", &file.to_string_lossy()]);
    said
}

#[test]
fn the_label_is_read_and_set_through_the_mount() {
    const TEST: &str = "ioctls_of_the_filesystem";
    if !requirement::programs(TEST, &["xfs_io", "setpriv", "fstrim", "chattr", "btrfs"]) {
        return;
    }
    let Some(pair) = Pair::new(TEST, "") else { return };
    let [ours, kernels] = pair.both(of_the_filesystem);
    assert_eq!(ours, kernels);
    pair.finish();
}

/// FS_IOC_SHUTDOWN in its modes, as xfs_io sends it: what was synced is there afterwards, what was not only where it is
/// asked for, and nothing is written in between.
#[test]
fn a_shut_down_filesystem_keeps_what_was_asked_for() {
    const TEST: &str = "shut_down";
    if !requirement::fuse(TEST) || !requirement::programs(TEST, &["xfs_io", "setpriv"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    for (command, keeps_names) in [("shutdown", false), ("shutdown -f", true)] {
        let scratch = Scratch::new(TEST);
        let (image, at) = (scratch.sparse_file("image", 512 << 20), scratch.folder("mnt"));
        serve::mkfs(&image, &[]);
        let served = Served::mount(&image, &at, "allow_other");
        std::fs::write(at.join("synced"), "synced").expect("room");
        rustix::fs::syncfs(File::open(&at).expect("ours")).expect("room");
        std::fs::write(at.join("new"), "new").expect("room");
        let shown = at.to_string_lossy();
        let nobody = ["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"];
        let refused = run(10, "setpriv", &[&nobody[..], &["xfs_io", "-r", "-x", "-c", command, &shown]].concat());
        assert!(refused.output.contains("not permitted"), "{}", refused.output);
        let down = run(10, "xfs_io", &["-r", "-x", "-c", command, &shown]);
        assert_eq!((down.code, down.output.as_str()), (Some(0), ""), "{command}");
        assert!(std::fs::write(at.join("later"), "later").is_err(), "{command}: nothing is written any more");
        assert_eq!(std::fs::read(at.join("synced")).expect("reading goes on"), b"synced");
        served.unmount();
        check_all(&image);
        let served = Served::mount(&image, &at, "");
        assert_eq!(std::fs::read(at.join("synced")).expect("it was synced"), b"synced");
        assert_eq!(at.join("new").exists(), keeps_names, "{command}");
        assert!(!at.join("later").exists());
        served.unmount();
    }
}

/// A read-only snapshot can be renamed where it is; another parent directory would change it.
#[test]
fn a_read_only_subvolume_keeps_its_parent_directory() {
    let Some(pair) = Pair::new("read-only-parent", "rw") else { return };
    let ours = serve::binary();
    let [our_path, kernels_path] = [pair.ours.path().to_owned(), pair.kernels.path().to_owned()];
    for (program, at) in [(&*ours.to_string_lossy(), &our_path), ("btrfs", &kernels_path)] {
        let path = |name: &str| at.join(name).to_string_lossy().into_owned();
        run_ok(20, program, &["subvolume", "create", &path("s")]);
        run_ok(20, program, &["subvolume", "snapshot", "-r", &path("s"), &path("r")]);
        run_ok(20, program, &["subvolume", "create", &path("t")]);
        std::fs::create_dir(at.join("d")).expect("room");
    }
    let rename = |from: &str, to: &str, flags| {
        let rename =
            |at: &Path| rustix::fs::renameat_with(rustix::fs::CWD, at.join(from), rustix::fs::CWD, at.join(to), flags);
        let [ours, kernels] = pair.both(rename);
        assert_eq!(ours, kernels, "{from} to {to}");
        kernels
    };
    use rustix::fs::RenameFlags;
    assert_eq!(rename("r", "d/r", RenameFlags::empty()), Err(rustix::io::Errno::ROFS));
    assert_eq!(rename("r", "r2", RenameFlags::empty()), Ok(()));
    assert_eq!(rename("t", "d/t", RenameFlags::empty()), Ok(()));
    assert_eq!(rename("r2", "d/t", RenameFlags::EXCHANGE), Err(rustix::io::Errno::ROFS));
    assert_eq!(rename("d/t", "r2", RenameFlags::EXCHANGE), Err(rustix::io::Errno::ROFS));
    pair.finish();
}
