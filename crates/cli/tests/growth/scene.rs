//! Mounts with many of one thing.

use crate::judge::{Reach, Row};
use crate::mounted::Bed;
use crate::operations::Operation;
use crate::server::{Counts, Server, connection};
use butterfs_control::{Ask, InodeRef, question};
use butterfs_fuse::control::ControlClient;
use rustix::fs::{CWD, Mode, OFlags, XattrFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const BLOCK: u64 = 4096;
/// The paths that a question is about.
pub const ONE: InodeRef = InodeRef::Descriptor(0);
pub const OTHER: InodeRef = InodeRef::Descriptor(1);

/// Memory that may stay: 32 MiB of tree blocks, 16 MiB that the allocator keeps, 16 MiB for a scene's inodes that are
/// unused and still remembered.
const MAY_STAY_KIB: u64 = 64 << 10;
/// Caches are given up after a minute in which nobody asks.
const PATIENCE: Duration = Duration::from_secs(100);

/// The objects that a scene has many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Entries,
    References,
    Extents,
    Snapshots,
    Links,
    Levels,
    Attributes,
    Open,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Entries,
        Kind::References,
        Kind::Extents,
        Kind::Snapshots,
        Kind::Links,
        Kind::Levels,
        Kind::Attributes,
        Kind::Open,
    ];

    /// How many there are in the smallest scene of a test run.
    pub fn least(self) -> usize {
        match self {
            Kind::Entries | Kind::References | Kind::Extents | Kind::Links => 125,
            Kind::Open | Kind::Attributes => 50,
            Kind::Levels => 15,
            Kind::Snapshots => 8,
        }
    }
}

/// See the [module](self). Operations work in `dir` and on `file` in it; `snapshot` is a read-only one of all.
pub struct Scene {
    bed: Bed,
    pub dir: PathBuf,
    pub file: PathBuf,
    pub snapshot: PathBuf,
    kind: Kind,
    size: usize,
    server: Server,
    client: RefCell<ControlClient>,
    before: (u64, usize),
    names: Cell<usize>,
    open: Vec<File>,
}

impl Scene {
    /// `None`, said: this machine cannot do it.
    pub fn new(kind: Kind, size: usize) -> Option<Scene> {
        let bed = Bed::for_root("growth")?.with_image();
        // A scene of open files has more than the usual limit allows.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("within the limit");
        fs::File::options().write(true).open(&bed.image).and_then(|file| file.set_len(4 << 30)).expect("scratch space");
        crate::common::butterfs_ok(&["mkfs", "-q", "-f", crate::mounted::text(&bed.image)]);
        bed.mount_ok("noatime,commit=300");
        let server = Server::new(bed.serving_process().expect("it is mounted"), &bed.at);
        let levels = if kind == Kind::Levels { size } else { 1 };
        let dir = (0..levels).fold(bed.at.clone(), |at, _| at.join("d"));
        fs::create_dir_all(&dir).expect("room");
        let (file, snapshot, client) = (dir.join("file"), bed.at.join("snapshot"), RefCell::new(connection(&bed.at)));
        let before = (server.resident_kib(), server.descriptors());
        let names = Cell::new(0);
        let mut scene = Scene { bed, dir, file, snapshot, kind, size, server, client, before, names, open: Vec::new() };
        fs::write(&scene.file, vec![1; BLOCK as usize]).expect("room");
        scene.sync();
        (0..size).for_each(|n| scene.one_more(n));
        scene.sync();
        scene.snapshot(&scene.bed.at, "snapshot");
        Some(scene)
    }

    /// The folder that the filesystem is mounted on.
    pub fn at(&self) -> &Path {
        &self.bed.at
    }

    fn one_more(&mut self, n: usize) {
        let name = format!("thing-{n}");
        let offset = 2 * (n as u64 + 1) * BLOCK;
        match self.kind {
            Kind::Levels => {}
            Kind::Entries => drop(File::create(self.dir.join(name)).expect("room")),
            Kind::Links => fs::hard_link(&self.file, self.bed.at.join(name)).expect("room"),
            Kind::References => copy(&self.file, 0, &self.file, offset),
            Kind::Extents => open(&self.file).write_all_at(&[n as u8; BLOCK as usize], offset).expect("room"),
            Kind::Attributes => [&self.file, &self.dir].into_iter().for_each(|path| {
                rustix::fs::setxattr(path, format!("user.{name}"), b"value", XattrFlags::empty()).expect("room");
            }),
            Kind::Open => {
                let path = self.bed.at.join(&name);
                self.open.push(File::create(&path).expect("room"));
                if n.is_multiple_of(2) {
                    fs::remove_file(path).expect("it is there");
                }
            }
            Kind::Snapshots => {
                // In a subvolume of their own, so that the tree that they share stays as small as it is.
                if n == 0 {
                    let question = question::CreateSubvolume { directory: ONE, umask: 0, name: b"shelf".to_vec() };
                    self.ask(question, &[&self.bed.at]);
                }
                fs::write(&self.file, vec![n as u8; BLOCK as usize]).expect("room");
                self.snapshot(&self.bed.at.join("shelf"), &name);
            }
        }
    }

    /// A path in the directory that nothing has yet.
    pub fn name(&self) -> PathBuf {
        self.names.set(self.names.get() + 1);
        self.dir.join(format!("new-{}", self.names.get()))
    }

    /// A new file of a block.
    pub fn another(&self) -> PathBuf {
        let path = self.name();
        fs::write(&path, vec![2; BLOCK as usize]).expect("room");
        path
    }

    pub fn sync(&self) {
        rustix::fs::syncfs(File::open(&self.bed.at).expect("the mount")).expect("a good device");
    }

    /// Asks a question over the control socket, which must be answered; returns the records.
    pub fn ask<Q: Ask>(&self, question: Q, about: &[&Path]) -> Vec<Q::Record> {
        let reach = |path: &&Path| rustix::fs::openat(CWD, *path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let descriptors: Vec<OwnedFd> = about.iter().map(|path| reach(path).expect("a path")).collect();
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let answer = self.client.borrow_mut().ask(question, &descriptors).expect("the server answers");
        answer.unwrap_or_else(|refusal| panic!("{about:?}: {refusal:?}"))
    }

    /// Makes a read-only snapshot of all in a folder.
    fn snapshot(&self, folder: &Path, name: &str) {
        let question =
            question::Snapshot { source: ONE, directory: OTHER, name: name.as_bytes().to_vec(), read_only: true };
        self.ask(question, &[&self.bed.at, folder]);
    }

    /// The costs of all operations.
    pub fn measure(&self, operations: &[Operation]) -> Vec<Row> {
        operations.iter().map(|operation| self.one(operation)).collect()
    }

    fn one(&self, operation: &Operation) -> Row {
        let (mut call, mut sync): (Option<Counts>, Option<Counts>) = (None, None);
        let descriptors = self.server.descriptors();
        for _ in 0..2 {
            let act = (operation.prepare)(self);
            self.sync();
            let before = self.server.quiet();
            act();
            let between = self.server.quiet();
            self.sync();
            let after = self.server.quiet();
            call = Some(less(call, difference(before, between)));
            sync = Some(less(sync, difference(between, after)));
        }
        let end = Instant::now() + Duration::from_secs(2);
        while self.server.descriptors() > descriptors && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Row {
            name: operation.name,
            reach: operation.reach,
            call: call.expect("rounds"),
            sync: sync.expect("rounds"),
            left_open: self.server.descriptors().saturating_sub(descriptors),
        }
    }

    /// The longest wait of another user's small operation while an operation and the sync after it run.
    pub fn longest_wait(&self, operation: &Operation) -> Duration {
        let act = (operation.prepare)(self);
        let folder = self.bed.at.join("other");
        fs::create_dir_all(&folder).expect("room");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !is_done.load(Ordering::Relaxed) {
                    longest = longest.max(small_operations(&folder));
                }
                longest
            });
            act();
            self.sync();
            is_done.store(true, Ordering::Relaxed);
            other.join().expect("the other user's work")
        })
    }

    /// Removes everything; says what the server still holds then.
    pub fn end(mut self) -> Option<String> {
        self.open.clear();
        let script = "cd \"$1\"; \"$2\" subvolume delete snapshot $(ls -d shelf/* 2>/dev/null) $(ls -d shelf \
                      2>/dev/null) > /dev/null; \"$2\" subvolume sync . > /dev/null; rm -rf ./*";
        let words = ["-c", script, "end", crate::mounted::text(&self.bed.at), env!("CARGO_BIN_EXE_butterfs")];
        butterfs_testkit::kernel::run(300, "bash", &words);
        self.sync();
        let end = Instant::now() + PATIENCE;
        loop {
            let now = (self.server.resident_kib(), self.server.descriptors());
            // The connection of this scene came after the first look.
            if now.0 <= self.before.0 + MAY_STAY_KIB && now.1 <= self.before.1 {
                return None;
            }
            if Instant::now() > end {
                let (kind, size, before) = (self.kind, self.size, self.before);
                return Some(format!(
                    "{size} {kind:?} made and removed: the server holds {now:?} KiB and descriptors, {before:?} before"
                ));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn less(known: Option<Counts>, new: Counts) -> Counts {
    let Some(known) = known else { return new };
    Counts {
        steps: known.steps.min(new.steps),
        busy: known.busy.min(new.busy),
        stop_steps: known.stop_steps.min(new.stop_steps),
        stop_reads: known.stop_reads.min(new.stop_reads),
    }
}

fn difference(before: Counts, after: Counts) -> Counts {
    // A thread that has ended takes its time along.
    Counts { steps: after.steps - before.steps, busy: after.busy.saturating_sub(before.busy), ..after }
}

/// Another user: makes a file, writes into it, syncs it, looks it up, removes it. The longest of these.
fn small_operations(folder: &Path) -> Duration {
    let path = folder.join("small");
    let mut longest = Duration::ZERO;
    let mut timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        longest = longest.max(start.elapsed());
    };
    let mut file = None;
    timed(&mut || file = Some(File::create(&path).expect("room")));
    let file = file.expect("made");
    timed(&mut || file.write_all_at(&[3; 4096], 0).expect("room"));
    timed(&mut || file.sync_all().expect("a good device"));
    timed(&mut || assert!(fs::metadata(&path).is_ok()));
    timed(&mut || fs::remove_file(&path).expect("it is there"));
    longest
}

/// A file, open for both.
pub fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("a file")
}

/// Shares a block.
pub fn copy(from: &Path, offset: u64, to: &Path, into: u64) {
    let (mut offset, mut into) = (offset, into);
    let done = rustix::fs::copy_file_range(open(from), Some(&mut offset), open(to), Some(&mut into), BLOCK as usize);
    assert_eq!(done, Ok(BLOCK as usize));
}

/// Reach of operations whose cost may grow.
pub const ALL: Reach = Reach::All;
