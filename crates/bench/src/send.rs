//! Sending snapshots: the document's script (files renamed and made between two snapshots), many small files, large
//! ones.
//!
//! Both sides send from the same image, which the library has made. Streams go to `/dev/null`; the measurement is the
//! command on a mount, from its start to its end.

use crate::Scale;
use crate::subject::{Sides, Usage};
use crate::table::Table;
use butterfs_device::{FileDevice, FileOptions};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, RenameMode, Subvolume, TreeId, mkfs};
use butterfs_send::generate::{self, Job, Policies};
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, binary};
use butterfs_testkit::{requirement, rng::Rng};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const IMAGE_BYTES: u64 = 8 << 30;
/// Times that a command runs that is soon done; the fastest counts.
const ROUNDS: usize = 3;

/// Runs everything on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench: send") {
        return;
    }
    for fifths in 1..=3 {
        script(scale.files * fifths / 5, table);
    }
    small_files(scale.library_files, table);
    large_files(scale.large_bytes, table);
    empty(table);
}

/// How often a command runs, and whether its input is cached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Some rounds with warm caches, and one to count the stream's bytes.
    Rounds,
    /// Once, as long as it takes.
    Once,
    /// Once, with cold caches.
    Cold,
}

/// An image that is made for one experiment.
struct Made {
    folder: Scratch,
    filesystem: Option<Filesystem>,
    /// The resources that our mounts of it used.
    usage: Usage,
}

impl Made {
    fn new() -> Made {
        Made::with_room_for(0)
    }

    fn with_room_for(bytes: u64) -> Made {
        let folder = Scratch::new("bench-send");
        let image = folder.sparse_file("image", IMAGE_BYTES + bytes);
        let device = FileDevice::open(&image, &FileOptions::read_write()).expect("our own file");
        let device: Arc<dyn butterfs_device::BlockDevice> = Arc::new(device);
        mkfs::mkfs(&[device], &mkfs::MkfsOptions::default(), &Env::system()).expect("room for a filesystem");
        let mut made = Made { folder, filesystem: None, usage: Usage::default() };
        made.open();
        made
    }

    fn open(&mut self) {
        let device = FileDevice::open(self.folder.join("image"), &FileOptions::read_write()).expect("our own file");
        let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
        let opened = Filesystem::open(vec![Arc::new(device)], options, Env::system());
        self.filesystem = Some(opened.expect("a good filesystem"));
    }

    fn fs(&self) -> &Filesystem {
        self.filesystem.as_ref().expect("it is open")
    }

    fn close(&mut self) {
        if let Some(filesystem) = self.filesystem.take() {
            filesystem.shutdown().expect("a good device");
        }
    }

    fn make(&self, directory: InodeId, name: &str) -> InodeId {
        let id = self.fs().create(&ROOT, directory, name.as_bytes(), 0o644).expect("a free name").id;
        self.fs().forget(id, 1);
        id
    }

    /// The commands of both sides, ours first: the fastest of some rounds, and how long the stream is.
    fn measure(&mut self, arguments: &[&str], how: How) -> ((Duration, u64), Option<(Duration, u64)>) {
        self.close();
        let image = self.folder.join("image");
        let at = self.folder.folder("mnt");
        if how == How::Cold {
            // Or the first reader pays for the part that the host of a virtual machine has not cached.
            let mut file = std::fs::File::open(&image).expect("our own file");
            std::io::copy(&mut file, &mut std::io::sink()).expect("a good device");
        }
        let ours = {
            let mount = Served::mount(&image, &at, "noatime");
            let measured = best(&binary(), arguments, mount.path(), how);
            self.usage = self.usage.and(Usage::of(&mount));
            mount.unmount();
            measured
        };
        let kernel = requirement::kernel_btrfs("bench beside the kernel").then(|| {
            let mount = KernelMount::direct(&[&image], "noatime");
            let measured = best(Path::new("btrfs"), arguments, mount.path(), how);
            mount.finish();
            measured
        });
        (ours, kernel)
    }
}

fn best(program: &Path, arguments: &[&str], root: &Path, how: How) -> (Duration, u64) {
    let command = |sink: Stdio| {
        let mut command = Command::new(program);
        command.arg("send").arg("-q").args(arguments).current_dir(root).stdout(sink);
        command
    };
    let once = || {
        if how == How::Cold {
            run_ok(300, "sync", &[]);
            // Without root the caches stay, on both sides alike.
            let _ = std::fs::write("/proc/sys/vm/drop_caches", "3\n");
        }
        let started = Instant::now();
        let status = command(Stdio::null()).status().expect("the program is there");
        assert!(status.success(), "{program:?} {arguments:?}: {status}");
        started.elapsed()
    };
    if how != How::Rounds {
        return (once(), 0);
    }
    let fastest = (0..ROUNDS).map(|_| once()).min().expect("some rounds");
    let shown = format!("'{}' send -q {} | wc -c", program.display(), arguments.join(" "));
    let counted = run_ok(600, "sh", &["-c", &format!("cd '{}' && {shown}", root.display())]);
    (fastest, counted.trim().parse().expect("wc prints a number"))
}

fn add(
    table: &mut Table,
    what: &str,
    measured: ((Duration, u64), Option<(Duration, u64)>),
    bars: (&'static str, &'static str),
) {
    let ((ours, bytes), kernel) = measured;
    table.times(what, Sides::two(ours, kernel.map(|(time, _)| time)), bars.0);
    if !bars.1.is_empty() {
        let sizes = Sides::two(bytes as f64, kernel.map(|(_, bytes)| bytes as f64));
        table.compared(&format!("{what}: stream"), sizes, |bytes| format!("{:.2} MB", bytes / 1e6), true, bars.1);
    }
}

/// Half of `count` empty files; a snapshot; the other half, and the first half moved into the same directory.
fn script(count: u64, table: &mut Table) {
    let mut made = Made::new();
    let fs = made.fs().clone();
    let work = InodeId::root_of(fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let a = fs.mkdir(&ROOT, work, b"A", 0o755).expect("a free name").id;
    for number in 1..=count / 2 {
        made.make(a, &format!("file_{number}"));
    }
    let old = fs.snapshot(work.tree, TOP, b"snap1", true).expect("a free name");
    let b = fs.mkdir(&ROOT, work, b"B", 0o755).expect("a free name").id;
    for number in count / 2..=count {
        made.make(b, &format!("file_{number}"));
    }
    for number in 1..=count / 2 {
        let name = format!("file_{number}");
        fs.rename(a, name.as_bytes(), b, name.as_bytes(), RenameMode::Replace).expect("it exists");
    }
    let new = fs.snapshot(work.tree, TOP, b"snap2", true).expect("a free name");
    let alone = |remember_paths: bool| {
        let mut job = Job { subvolumes: vec![new], parent: Some(old), ..Job::default() };
        job.options.policies = Policies { remember_paths };
        (0..ROUNDS).map(|_| library(&fs, &job)).min().expect("some rounds")
    };
    let (before, after) = (alone(false), alone(true));
    drop(fs);
    let measured = made.measure(&["-p", "snap1", "snap2"], How::Rounds);
    let what = format!("incremental send, {count} files");
    add(table, &what, measured, ("<= 0.05x", "<= 0.75x"));
    Sides::two(made.usage, None).enter_memory(&what, table);
    table.times(&format!("the same in the library, {count} files"), Sides::two(after, None), "");
    table.times(&format!("the same without remembered paths, {count} files"), Sides::two(before, None), "");
}

fn library(fs: &Filesystem, job: &Job) -> Duration {
    let started = Instant::now();
    generate::run(fs, job, &mut std::io::sink(), &mut |_| true, &mut |_| {}).expect("it can be sent");
    started.elapsed()
}

fn small_files(count: u64, table: &mut Table) {
    let mut made = Made::new();
    let fs = made.fs().clone();
    let work = InodeId::root_of(fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let mut directory = work;
    for number in 0..count {
        if number % 1000 == 0 {
            let name = format!("directory_{}", number / 1000);
            directory = fs.mkdir(&ROOT, work, name.as_bytes(), 0o755).expect("a free name").id;
        }
        let id = fs.create(&ROOT, directory, format!("file_{number}").as_bytes(), 0o644).expect("a free name").id;
        fs.write(id, 0, format!("content of file {number}").as_bytes(), false).expect("room");
        fs.forget(id, 1);
    }
    fs.snapshot(work.tree, TOP, b"snap", true).expect("a free name");
    drop(fs);
    let measured = made.measure(&["snap"], How::Rounds);
    let what = format!("full send, {count} small files");
    add(table, &what, measured, ("<= 0.30x", "<= 0.75x"));
    Sides::two(made.usage, None).enter_memory(&what, table);
}

fn large_files(bytes: u64, table: &mut Table) {
    let mut made = Made::with_room_for(bytes);
    let fs = made.fs().clone();
    let work = InodeId::root_of(fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let mut buffer = vec![0; 1 << 20];
    Rng::new(1).fill(&mut buffer);
    for number in 0..4u64 {
        let id = fs.create(&ROOT, work, format!("large_{number}").as_bytes(), 0o644).expect("a free name").id;
        for at in 0..(bytes / 4) >> 20 {
            buffer[..8].copy_from_slice(&(number << 32 | at).to_le_bytes());
            fs.write(id, at << 20, &buffer, false).expect("room");
        }
        fs.forget(id, 1);
    }
    fs.snapshot(work.tree, TOP, b"snap", true).expect("a free name");
    drop(fs);
    for (how, word) in [(How::Once, "warm"), (How::Cold, "cold")] {
        let ((ours, _), kernel) = made.measure(&["--proto", "2", "snap"], how);
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64();
        let rates = Sides::two(rate(ours), kernel.map(|(time, _)| rate(time)));
        let what = format!("full send, {} MiB of large files, {word}", bytes >> 20);
        table.compared(&what, rates, |rate| format!("{:.0} MB/s", rate / 1e6), false, ">= 1.00x");
    }
    Sides::two(made.usage, None).enter_memory("full send of large files", table);
}

fn empty(table: &mut Table) {
    let made = Made::new();
    let fs = made.fs();
    let work = fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name");
    let snapshot = fs.snapshot(work, TOP, b"snap", true).expect("a free name");
    let job = Job { subvolumes: vec![snapshot], ..Job::default() };
    let fastest = (0..100).map(|_| library(fs, &job)).min().expect("some rounds");
    table.times("full send of an empty subvolume, library", Sides::two(fastest, None), "microseconds");
}
