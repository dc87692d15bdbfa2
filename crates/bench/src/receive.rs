//! Receiving streams: many small files, large ones, and what changed between two snapshots.
//!
//! Both sides read the same stream from a file, into a new filesystem on a new backing file each; the time ends when
//! everything is durable. Ours is the library; the kernel's is `btrfs receive` and a sync.

use crate::Scale;
use crate::subject::Sides;
use crate::table::Table;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, RenameMode, Subvolume, TreeId, mkfs};
use butterfs_send::apply::{self, Engine, Error, Observer};
use butterfs_send::generate::{self, Job};
use butterfs_send::wire::Version;
use butterfs_testkit::kernel::{self, KernelMount, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::{requirement, rng::Rng};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const IMAGE_BYTES: u64 = 8 << 30;
const CHUNK: usize = 1 << 20;

/// Runs everything on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    let folder = Scratch::new("bench-receive");
    let small = folder.join("small");
    let changed = folder.join("changed");
    let large = folder.join("large");
    small_files(&folder, scale.library_files, &small, &changed);
    let times = measure(&folder, &[&small, &changed]);
    add(table, &format!("receive of {} small files", scale.library_files), &times, 0);
    add(table, "receive of what changed: a tenth written, a tenth renamed", &times, 1);
    let _ = (std::fs::remove_file(&small), std::fs::remove_file(&changed));
    // The stream and its source lie on the disk together.
    let bytes = scale.large_bytes / 4;
    large_file(&folder, bytes, &large);
    let times = measure(&folder, &[&large]);
    add(table, &format!("receive of one file of {} MiB", bytes >> 20), &times, 0);
}

/// Times of ours and of the kernel's, stream by stream.
type Times = (Vec<Duration>, Option<Vec<Duration>>);

fn add(table: &mut Table, what: &str, (ours, kernel): &Times, number: usize) {
    let times = Sides::two(ours[number], kernel.as_ref().map(|times| times[number]));
    table.times(what, times, "<= 1.00x");
}

fn made(image: &Path) -> Filesystem {
    let device: Arc<dyn BlockDevice> =
        Arc::new(FileDevice::open(image, &FileOptions::read_write()).expect("our own file"));
    mkfs::mkfs(&[Arc::clone(&device)], &mkfs::MkfsOptions::default(), &Env::system()).expect("room for a filesystem");
    let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).expect("a good filesystem")
}

fn send(fs: &Filesystem, subvolume: TreeId, parent: Option<TreeId>, stream: &Path) {
    let job = Job { subvolumes: vec![subvolume], parent, version: Version::V1, ..Job::default() };
    let mut file = File::create(stream).expect("a new file");
    generate::run(fs, &job, &mut file, &mut |_| true, &mut |_| {}).expect("it can be sent");
}

/// Files of a few bytes, a thousand in each directory; then some are written, some renamed.
fn small_files(folder: &Scratch, count: u64, small: &Path, changed: &Path) {
    let fs = made(&folder.sparse_file("source", IMAGE_BYTES));
    let work = InodeId::root_of(fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let mut directories = Vec::new();
    let name = |number: u64| format!("file_{number}").into_bytes();
    for number in 0..count {
        if number % 1000 == 0 {
            let name = format!("directory_{}", number / 1000);
            directories.push(fs.mkdir(&ROOT, work, name.as_bytes(), 0o755).expect("a free name").id);
        }
        let directory = directories[directories.len() - 1];
        let id = fs.create(&ROOT, directory, &name(number), 0o644).expect("a free name").id;
        fs.write(id, 0, format!("content of file {number}").as_bytes(), false).expect("room");
        fs.forget(id, 1);
    }
    let old = fs.snapshot(work.tree, TOP, b"old", true).expect("a free name");
    for number in (0..count).step_by(10) {
        let directory = directories[(number / 1000) as usize];
        let id = fs.lookup(directory, &name(number)).expect("it was made").id;
        fs.write(id, 0, b"something else", false).expect("room");
        fs.forget(id, 1);
        if number + 1 < count {
            let to = [&name(number + 1)[..], b"_renamed"].concat();
            fs.rename(directory, &name(number + 1), directory, &to, RenameMode::Replace).expect("it was made");
        }
    }
    let new = fs.snapshot(work.tree, TOP, b"new", true).expect("a free name");
    send(&fs, old, None, small);
    send(&fs, new, Some(old), changed);
    fs.shutdown().expect("a good device");
    let _ = std::fs::remove_file(folder.join("source"));
}

fn large_file(folder: &Scratch, bytes: u64, stream: &Path) {
    let fs = made(&folder.sparse_file("source", IMAGE_BYTES + bytes));
    let work = InodeId::root_of(fs.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let id = fs.create(&ROOT, work, b"large", 0o644).expect("a free name").id;
    let (mut rng, mut chunk) = (Rng::new(7), vec![0; CHUNK]);
    for number in 0..bytes / CHUNK as u64 {
        rng.fill(&mut chunk);
        fs.write(id, number * CHUNK as u64, &chunk, false).expect("room");
    }
    fs.forget(id, 1);
    let snapshot = fs.snapshot(work.tree, TOP, b"large", true).expect("a free name");
    send(&fs, snapshot, None, stream);
    fs.shutdown().expect("a good device");
    let _ = std::fs::remove_file(folder.join("source"));
}

struct Fail;

impl Observer for Fail {
    fn error(&mut self, error: &Error) {
        panic!("{error}");
    }
}

fn measure(folder: &Scratch, streams: &[&PathBuf]) -> Times {
    let image = folder.sparse_file("image", IMAGE_BYTES);
    let fs = made(&image);
    let ours = streams.iter().map(|stream| {
        let started = Instant::now();
        let mut engine = Engine::new(fs.clone(), TOP);
        let input = File::open(stream).expect("it was made");
        apply::receive(input, &mut engine, &apply::Options::default(), &mut Fail);
        started.elapsed()
    });
    let ours: Vec<Duration> = ours.collect();
    fs.shutdown().expect("a good device");
    drop(fs);
    let _ = std::fs::remove_file(&image);
    if !requirement::kernel_btrfs("bench: receive beside the kernel") {
        return (ours, None);
    }
    let image = folder.sparse_file("image", IMAGE_BYTES);
    kernel::mkfs(&image, &[]);
    let mount = KernelMount::direct(&[&image], "noatime");
    let at = mount.path().to_str().expect("test paths are text").to_owned();
    let kernel = streams.iter().map(|stream| {
        let started = Instant::now();
        run_ok(1800, "btrfs", &["receive", "-q", "-f", stream.to_str().expect("test paths are text"), &at]);
        run_ok(600, "sync", &["-f", &at]);
        started.elapsed()
    });
    let kernel = kernel.collect();
    mount.finish();
    let _ = std::fs::remove_file(&image);
    (ours, Some(kernel))
}
