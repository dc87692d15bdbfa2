//! The checker beside `btrfs check`: time and memory on the same image, made here, with many files and snapshots.

use crate::Scale;
use crate::subject::Sides;
use crate::table::Table;
use butterfs_device::FileDevice;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::{requirement, scratch, serve};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BAR: &str = "<= 0.10x";
const FILES_PER_FOLDER: u64 = 1000;
/// Every so manyth file is changed between two snapshots, but no more than [`MOST_CHANGED`].
const CHANGED: u64 = 211;
const MOST_CHANGED: u64 = 5000;
/// Every so manyth file has an extent of data, which begins with [`MARK`] and its number.
pub const DATA_EACH: u64 = 10;
const MARK: &[u8] = b"file of the bench";
const IMAGE_BYTES: u64 = 32 << 30;
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

/// Checks images of several sizes with both, and the largest with ours alone.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::programs("bench of check", &["btrfs"]) || !serve::binary().is_file() {
        return;
    }
    let files = scale.library_files;
    for (files, snapshots) in [(files / 10, 20), (files, 100)] {
        beside(files, snapshots, table);
    }
    if scale == crate::FULL {
        alone(5 * files, 200, table);
    }
}

/// Checks an image with so many files and snapshots with both.
fn beside(files: u64, snapshots: u64, table: &mut Table) {
    let folder = scratch::Scratch::new("bench-check");
    let image = folder.join("image");
    make(&image, files, snapshots, "DUP");
    let name = image.to_str().expect("a text path");
    let theirs = requirement::program("btrfs").expect("it was required");
    // The first run of either finds the image in the page cache, where making it has left it.
    let (ours, our_peak) = measure(&serve::binary(), &["check", "-q", name]);
    let (kernel, their_peak) = measure(&theirs, &["check", name]);
    let what = format!("check: {files} files, {snapshots} snapshots");
    table.times(&what, Sides::two(ours, Some(kernel)), BAR);
    let peaks = Sides::two(our_peak as f64, Some(their_peak as f64));
    table.compared(&format!("{what}: peak memory"), peaks, mebibytes, true, "");
}

/// Checks an image that is too large for `btrfs check` on such a machine.
fn alone(files: u64, snapshots: u64, table: &mut Table) {
    let folder = scratch::Scratch::new("bench-check");
    let image = folder.join("image");
    make(&image, files, snapshots, "single");
    let (ours, peak) = measure(&serve::binary(), &["check", "-q", image.to_str().expect("a text path")]);
    let what = format!("check: {files} files, {snapshots} snapshots");
    table.times(&what, Sides::two(ours, None), "");
    table.compared(&format!("{what}: peak memory"), Sides::two(peak as f64, None), mebibytes, true, "");
}

/// A number of KiB, as people read it.
pub fn mebibytes(kib: f64) -> String {
    format!("{:.0} MiB", kib / 1024.0)
}

/// Small files in folders, one in ten with data in an extent, and snapshots between changes. The largest image has no
/// room for trees that are stored twice.
pub fn make(image: &Path, files: u64, snapshots: u64, metadata: &str) {
    let device: Arc<dyn butterfs_device::BlockDevice> =
        Arc::new(FileDevice::create(image, IMAGE_BYTES).expect("room for a sparse file"));
    let env = Env::system();
    let options = MkfsOptions { metadata: Profile::named(metadata), ..MkfsOptions::default() };
    mkfs(std::slice::from_ref(&device), &options, &env).expect("an empty device");
    let filesystem = Filesystem::open(vec![device], Options::default(), env).expect("a new filesystem");
    let top = InodeId::root_of(TreeId::FS);
    let tree = filesystem.create_subvolume(&CALLER, top, b"files").expect("room");
    let root = InodeId::root_of(tree);
    let mut parent = root;
    for number in 0..files {
        if number % FILES_PER_FOLDER == 0 {
            let name = format!("folder-{}", number / FILES_PER_FOLDER);
            parent = filesystem.mkdir(&CALLER, root, name.as_bytes(), 0o755).expect("room").id;
        }
        let mut content = vec![number as u8; if number % DATA_EACH == 0 { 6000 } else { (number % 200) as usize }];
        if number % DATA_EACH == 0 {
            content[..MARK.len()].copy_from_slice(MARK);
            content[MARK.len()..][..8].copy_from_slice(&number.to_le_bytes());
        }
        write(&filesystem, parent, number, &content);
    }
    let each = CHANGED.max(files / MOST_CHANGED);
    for snapshot in 0..snapshots {
        filesystem.snapshot(tree, top, format!("snapshot-{snapshot}").as_bytes(), true).expect("room");
        for number in (snapshot % each..files).step_by(each as usize) {
            let name = format!("folder-{}", number / FILES_PER_FOLDER);
            let parent = filesystem.lookup(root, name.as_bytes()).expect("it was made").id;
            write(&filesystem, parent, number, &[snapshot as u8; 100]);
            filesystem.forget(parent, 1);
        }
    }
    filesystem.shutdown().expect("a good device");
}

/// The number of the file whose extent begins with these bytes.
pub fn marked(sector: &[u8]) -> Option<u64> {
    let number = sector.strip_prefix(MARK)?.first_chunk()?;
    Some(u64::from_le_bytes(*number))
}

fn write(filesystem: &Filesystem, parent: InodeId, number: u64, content: &[u8]) {
    let name = format!("file-{number}").into_bytes();
    let made = filesystem.create(&CALLER, parent, &name, 0o644).or_else(|_| filesystem.lookup(parent, &name));
    let file = made.expect("made or there").id;
    filesystem.write(file, 0, content, false).expect("room");
    filesystem.forget(file, 1);
}

/// Time and peak memory in KiB of a program that must find nothing.
pub fn measure(program: &Path, arguments: &[&str]) -> (Duration, u64) {
    let start = Instant::now();
    let mut child =
        Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut peak = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(now.unwrap_or(0));
        if let Some(status) = child.try_wait().expect("it was started") {
            assert!(status.success(), "{} {}: {status}", program.display(), arguments.join(" "));
            return (start.elapsed(), peak);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
