//! Filesystems whose transactions run out of numbers, beside the kernel: here they are read-only. The kernel writes to
//! them until every commit fails.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Caller, Env, Errno, Error, Filesystem, Options};
use butterfs_ondisk::TreeId;
use butterfs_testkit::editor::Editor;
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const LAST: u64 = 1 << 63;
/// The offset of the generation in the header of a tree block.
const HEADER_GENERATION: usize = 80;

fn open(disk: &Arc<MemoryDevice>, read_only: bool, canary: Option<Canary>) -> Result<Filesystem, Error> {
    let policies = Policies { canary, ..Policies::default() };
    let options = Options { read_only, commit_interval_secs: 3600, policies, ..Options::default() };
    Filesystem::open(vec![disk.clone()], options, Env::system())
}

/// A filesystem with a file, whose last transaction has this number.
fn image(generation: u64) -> Arc<MemoryDevice> {
    let disk = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&(disk.clone() as Arc<dyn BlockDevice>));
    let filesystem = open(&disk, false, None).expect("a new filesystem");
    let file = filesystem.create(&ROOT, filesystem.root(), b"old", 0o644).expect("room").id;
    filesystem.write(file, 0, b"content", false).expect("room");
    filesystem.shutdown().expect("a good device");
    drop(filesystem);
    let (editor, disk) = Editor::of_copy(&disk);
    let root = editor.root(TreeId::ROOT);
    let mut bytes = editor.node(root).bytes().to_vec();
    bytes[HEADER_GENERATION..][..8].copy_from_slice(&generation.to_le_bytes());
    editor.stamp(root, bytes);
    editor.superblock(|sb| sb.generation = generation.into());
    disk
}

fn content(filesystem: &Filesystem, name: &[u8]) -> Result<Vec<u8>, Error> {
    let file = filesystem.lookup(filesystem.root(), name)?.id;
    let mut content = Vec::new();
    filesystem.read(file, 0, 100, &mut content)?;
    Ok(content)
}

/// On a file, for the kernel.
fn on_a_file(disk: &MemoryDevice, scratch: &Scratch) -> PathBuf {
    let path = scratch.join("image");
    fs::write(&path, disk.to_bytes()).expect("room");
    path
}

/// The number on an image's superblock, and whether the file with the name is shown by us.
fn shown(path: &Path, name: &[u8]) -> bool {
    let disk = Arc::new(MemoryDevice::from_bytes(&fs::read(path).expect("the image")));
    open(&disk, true, None).is_ok_and(|filesystem| content(&filesystem, name).is_ok())
}

/// The kernel's answers to three times a new file and `fsync` of everything.
fn kernel_syncs(mount: &KernelMount) -> [Option<i32>; 3] {
    [0, 1, 2].map(|number| {
        let write = || -> std::io::Result<()> {
            fs::write(mount.path().join(format!("new{number}")), b"new")?;
            rustix::fs::syncfs(File::open(mount.path())?)?;
            Ok(())
        };
        write().err().and_then(|error| error.raw_os_error())
    })
}

#[test]
fn here_they_are_read_only() {
    let _watchdog = Watchdog::new("here_they_are_read_only", 60);
    for generation in [LAST, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let disk = image(generation);
        let before = disk.to_bytes();
        let refused = open(&disk, false, None).err().expect("no numbers are left");
        assert!(refused.is(Errno::EROFS), "{refused}");
        assert!(refused.to_string().contains(&format!("generation {generation}")), "{refused}");
        let reader = open(&disk, true, None).unwrap_or_else(|error| panic!("{generation}: {error}"));
        assert_eq!(content(&reader, b"old").expect("it can be read"), b"content");
        drop(reader);
        assert!(disk.to_bytes() == before, "{generation}: something was written");
    }
    let disk = image(LAST - 1);
    let writer = open(&disk, false, None).expect("one number is left, and nothing stops behind it");
    writer.create(&ROOT, writer.root(), b"new", 0o644).expect("room");
    writer.shutdown().expect("a good device");
    drop(writer);
    assert!(open(&disk, true, None).is_ok_and(|reader| content(&reader, b"new").is_ok()));
}

/// How often a sync was acknowledged where the last generations are accepted, how much of that is lost, and whether the
/// engine panicked.
fn accepted(generation: u64) -> (usize, usize, bool) {
    let disk = image(generation);
    let mut acknowledged = Vec::new();
    let writer = open(&disk, false, Some(Canary::LastGenerationsAccepted)).expect("the canary accepts it");
    let worked = catch_unwind(AssertUnwindSafe(|| {
        for number in 0..4 {
            let name = format!("new{number}").into_bytes();
            if writer.create(&ROOT, writer.root(), &name, 0o644).is_ok() && writer.sync().is_ok() {
                acknowledged.push(name);
            }
        }
    }));
    drop(writer);
    let reader = open(&disk, true, None);
    let is_there = |name: &Vec<u8>| reader.as_ref().is_ok_and(|reader| content(reader, name).is_ok());
    let lost = acknowledged.iter().filter(|name| !is_there(name)).count();
    (acknowledged.len(), lost, worked.is_err())
}

#[test]
fn accepted_last_generations_are_found() {
    let _watchdog = Watchdog::new("accepted_last_generations_are_found", 60);
    for generation in [u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let (acknowledged, lost, panicked) = accepted(generation);
        println!("{generation}: {acknowledged} acknowledged, {lost} lost, panicked: {panicked}");
        assert!(lost > 0 || panicked, "{generation}");
    }
}

#[test]
fn the_kernel_goes_on_until_it_fails() {
    const TEST: &str = "the_kernel_goes_on_until_it_fails";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let path = on_a_file(&image(LAST), &scratch);
    let mount = KernelMount::new(&path, "rw");
    assert_eq!(kernel_syncs(&mount), [None; 3]);
    mount.finish();
    assert!(shown(&path, b"old") && shown(&path, b"new2"), "what the kernel has made can be read");

    let path = on_a_file(&image(u64::MAX - 2), &scratch);
    let mount = KernelMount::new(&path, "rw");
    let [first, second, third] = kernel_syncs(&mount);
    println!("2^64 - 3: {first:?}, {second:?}, {third:?}");
    assert_eq!(first, None);
    assert!(second.or(third).is_some());
    mount.finish();

    let path = on_a_file(&image(u64::MAX), &scratch);
    assert!(KernelMount::try_new(&path, "rw").is_err());
}
