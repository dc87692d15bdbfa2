//! Real mounts of a filesystem in memory: what transport, session and mounting promise, without the engine.
//!
//! Over `/dev/fuse`. With io_uring a hang of a test that serves its own mount cannot be ended: the kernel then waits
//! for threads of the process, and they for the kernel. Mounts over io_uring are tested from outside, in `cli`.

mod engine;
mod memory;

use butterfs_fuse::mount::{self, Backing, Flags, Kind, Place, Superblock, mountinfo};
use butterfs_fuse::session::{End, Session, handshake};
use butterfs_testkit::requirement::skip;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use engine::{Block, Engine, LEN};
use memory::{MEETING, Memory};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A served mount. Taken away at the end, however it comes.
struct Mounted {
    memory: Memory,
    session: Session,
    kind: Kind,
    at: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
    superblock: Option<Superblock>,
    _watchdog: Watchdog,
}

impl Mounted {
    /// `None`, said: this machine has no FUSE for us.
    fn new(test: &str, scratch: &Scratch, source: &Path, backing: Backing) -> Option<Mounted> {
        if let Err(error) = File::open("/dev/fuse") {
            skip(test, &format!("/dev/fuse: {error}"));
            return None;
        }
        let watchdog = Watchdog::new(test, 60);
        let at = scratch.folder("mnt").canonicalize().unwrap();
        let request = mount::Request {
            source: source.into(),
            mountpoint: at.clone(),
            flags: Flags { nodev: true, ..Flags::default() },
            allow_other: false,
            backing,
            sector_bytes: 4096,
        };
        let mount::Mounted { device, kind, place } = mount::mount(&request).unwrap();
        let superblock = match place {
            Place::Detached(root, superblock) => {
                mount::place(root, &request.flags, &at).unwrap();
                Some(superblock)
            }
            Place::Mountpoint => None,
        };
        handshake(&device).unwrap();
        let memory = Memory::new();
        memory.connected(device.another().unwrap());
        let said = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&said);
        let log = Arc::new(move |line: &str| log.lock().push(line.to_owned()));
        let session = Session::start(device, Arc::new(memory.clone()), 2, log).unwrap();
        Some(Mounted { memory, session, kind, at, said, superblock, _watchdog: watchdog })
    }

    fn plain(test: &str, scratch: &Scratch) -> Option<Mounted> {
        Mounted::new(test, scratch, Path::new("what it is"), Backing::Unclaimed)
    }

    fn unmount(self) -> End {
        mount::unmount(&self.at, false).unwrap();
        self.session.wait()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = mount::unmount(&self.at, true);
        }
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Waits for what the kernel does when it gets around to it.
fn eventually(mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn files_directories_and_links_work_and_an_unmount_ends_the_session() {
    const TEST: &str = "plain_mount";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    let at = &mounted.at;
    let shown = mountinfo::at(at).unwrap().unwrap();
    assert_eq!((shown.kind.to_str(), shown.source.to_str()), (Some("fuse.butterfs"), Some("what it is")));
    assert!(shown.options.to_str().unwrap().contains("nodev"));
    assert!(shown.super_options.to_str().unwrap().contains("default_permissions"));

    fs::create_dir(at.join("dir")).unwrap();
    fs::write(at.join("dir/file"), b"content").unwrap();
    fs::hard_link(at.join("dir/file"), at.join("link")).unwrap();
    std::os::unix::fs::symlink("dir/file", at.join("symlink")).unwrap();
    fs::rename(at.join("dir"), at.join("renamed")).unwrap();
    assert_eq!(fs::read(at.join("link")).unwrap(), b"content");
    assert_eq!(fs::read_link(at.join("symlink")).unwrap(), Path::new("dir/file"));
    assert_eq!(fs::metadata(at.join("renamed/file")).unwrap().nlink(), 2);
    for number in 0..3000 {
        File::create(at.join(format!("renamed/{number:0>200}"))).unwrap();
    }
    assert_eq!(fs::read_dir(at.join("renamed")).unwrap().count(), 3001);
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn requests_carry_a_mebibyte() {
    const TEST: &str = "large_requests";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at / 4099) as u8).collect();
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(mounted.at.join("file")).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    assert_eq!(count(&mounted.memory.largest_write), MIB as u64);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file.rewind().unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found == data);
    drop(file);
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    const TEST: &str = "unlinked_open";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    let path = mounted.at.join("file");
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(mounted.memory.len(), 2);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"still here");
    drop(file);
    eventually(|| mounted.memory.len() == 1);
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn requests_that_wait_do_not_keep_others_from_being_served() {
    const TEST: &str = "waiting_requests";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    std::thread::scope(|scope| {
        for number in 0..MEETING {
            let path = mounted.at.join(format!("meet{number}"));
            scope.spawn(move || assert!(fs::metadata(path).is_err()));
        }
    });
    assert_eq!(mounted.unmount(), End::Unmounted);
}

/// As xfstests generic/451: what is read through the cache while a direct write is on its way does not stay there.
#[test]
fn no_page_that_was_read_beside_a_direct_write_stays() {
    const TEST: &str = "beside_direct_writes";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    let path = mounted.at.join("file");
    fs::write(&path, Block::of(b'-').0).unwrap();
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits() as i32).open(&path).unwrap()
    };
    let (direct, cached) = (open(OFlags::DIRECT), open(OFlags::empty()));
    let seen = move |file: &File| {
        let mut seen = [0; LEN];
        file.read_exact_at(&mut seen, 0).unwrap();
        char::from(*seen.iter().max().unwrap())
    };
    let mut before = '-';
    for (engine, byte) in Engine::ALL.into_iter().zip(['a', 'b', 'c']) {
        let (reader, (said, hear)) = (cached.try_clone().unwrap(), std::sync::mpsc::channel());
        *mounted.memory.before_write.lock() = Some(Box::new(move || said.send(seen(&reader)).unwrap()));
        engine.write(&direct, &Block::of(byte as u8), 0, 0);
        assert_eq!(hear.recv(), Ok(before), "{engine:?}: while the write is on its way");
        assert_eq!(seen(&cached), byte, "{engine:?}: after the write");
        before = byte;
    }
    drop((direct, cached));
    assert_eq!(mounted.unmount(), End::Unmounted);
}

/// Holes and data of a file of which nothing has been written back yet.
fn assert_data_is_found(path: &Path) {
    let file = rustix::fs::open(path, OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::fs::ftruncate(&file, MIB as u64).unwrap();
    rustix::io::pwrite(&file, &[7; 4096], 512 << 10).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(512 << 10));
    assert_eq!(seek(SeekFrom::Hole(512 << 10)), Ok((512 << 10) + 4096));
    assert_eq!(seek(SeekFrom::Data((512 << 10) + 4096)), Err(rustix::io::Errno::NXIO));
}

#[test]
fn data_that_the_kernel_still_caches_is_found_by_many_at_a_time() {
    const TEST: &str = "seek_data";
    const SEEKERS: usize = 100;
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    std::thread::scope(|scope| {
        for number in 0..SEEKERS {
            let path = mounted.at.join(format!("file{number}"));
            scope.spawn(move || assert_data_is_found(&path));
        }
    });
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn a_panic_is_an_error_and_the_end_of_service() {
    const TEST: &str = "panic";
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    fs::write(mounted.at.join("file"), b"content").unwrap();
    let io_error = |path: &str| {
        let error = fs::metadata(mounted.at.join(path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{path}");
    };
    io_error("panic");
    io_error("another");
    assert!(File::create(mounted.at.join("new")).is_err());
    let said = mounted.said.lock().join("\n");
    assert!(said.contains("asked for") && said.contains("panicked"), "{said}");
    assert_eq!(mounted.unmount(), End::Broken);
}

#[test]
fn over_an_image_sync_and_unmount_reach_the_server() {
    const TEST: &str = "fuseblk_over_image";
    let scratch = Scratch::new(TEST);
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "needs root");
    }
    let image = scratch.sparse_file("image, with \\ and spaces", MIB as u64).canonicalize().unwrap();
    let claimed = || OwnedFd::from(OpenOptions::new().read(true).write(true).open(&image).unwrap());
    let Some(mounted) = Mounted::new(TEST, &scratch, &image, Backing::ImageFile(claimed())) else { return };
    if mounted.kind != Kind::FuseBlock {
        return skip(TEST, "needs loop devices");
    }
    let shown = mountinfo::at(&mounted.at).unwrap().unwrap();
    assert_eq!((shown.kind.to_str(), shown.source.as_os_str()), (Some("fuseblk.butterfs"), image.as_os_str()));
    assert!(!loop_devices_over(&image).is_empty());

    let mut file = File::create(mounted.at.join("file")).unwrap();
    file.write_all(&[1; 3 * MIB]).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    assert_eq!(count(&mounted.memory.syncs), 1);
    drop(file);
    let memory = mounted.memory.clone();
    assert_eq!(mounted.unmount(), End::Unmounted);
    assert_eq!(count(&memory.destroyed), 1);
    eventually(|| loop_devices_over(&image).is_empty());
}

fn loop_devices_over(image: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let is_over = |dir: &PathBuf| {
        fs::read_to_string(dir.join("loop/backing_file")).is_ok_and(|path| Path::new(path.trim_end()) == image)
    };
    entries.map(|entry| entry.path()).filter(is_over).collect()
}

/// Writes through the kernel's cache, asks where data is, and makes it durable, over and over.
fn write_seek_and_sync(path: &Path, rounds: usize) {
    let file = rustix::fs::open(path, OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    for round in 0..rounds {
        let offset = (round as u64) << 16;
        rustix::io::pwrite(&file, &[round as u8 + 1; 64 << 10], offset).unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(offset)), Ok(offset));
        if round % 3 == 0 {
            rustix::fs::fsync(&file).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let mut found = vec![0; 64 << 10];
        rustix::io::pread(&file, &mut found, offset).unwrap();
        assert!(found.iter().all(|byte| *byte == round as u8 + 1), "round {round}");
    }
}

#[test]
fn cached_writes_syncs_and_reads_of_many_get_along() {
    const TEST: &str = "storm";
    const FILES: usize = 48;
    let scratch = Scratch::new(TEST);
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    std::thread::scope(|scope| {
        for number in 0..FILES {
            let path = mounted.at.join(format!("file{number}"));
            scope.spawn(move || write_seek_and_sync(&path, 12));
        }
        for reader in 0..8 {
            let at = &mounted.at;
            scope.spawn(move || {
                for round in 0..40 {
                    let _ = fs::read(at.join(format!("file{}", (reader * 7 + round) % FILES)));
                    let _ = fs::read_dir(at).unwrap().count();
                }
            });
        }
    });
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn an_aborted_connection_ends_the_session_and_every_call() {
    const TEST: &str = "aborted";
    let scratch = Scratch::new(TEST);
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "needs root");
    }
    let Some(mounted) = Mounted::plain(TEST, &scratch) else { return };
    let file = File::create(mounted.at.join("file")).unwrap();
    file.write_all_at(&[1; 256 << 10], 0).unwrap();
    let (_, minor) = mountinfo::at(&mounted.at).unwrap().unwrap().device;
    let control = scratch.folder("control");
    let control = control.canonicalize().unwrap();
    let unused: Option<&std::ffi::CStr> = None;
    rustix::mount::mount("fusectl", &control, "fusectl", rustix::mount::MountFlags::empty(), unused).unwrap();
    let aborted = fs::write(control.join(format!("{minor}/abort")), "1");
    rustix::mount::unmount(&control, rustix::mount::UnmountFlags::empty()).unwrap();
    aborted.unwrap();
    assert!(fs::metadata(mounted.at.join("anything")).is_err());
    drop(file);
    assert_eq!(mounted.session.wait(), End::Unmounted);
    mount::unmount(&mounted.at, true).unwrap();
}

/// A further mount of a directory in it, by either way there is; none once the last is gone.
#[test]
fn a_superblock_has_several_mounts() {
    const TEST: &str = "several_mounts";
    let scratch = Scratch::new(TEST);
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "needs root");
    }
    for backing in ["fuse", "fuseblk"] {
        let image = scratch.sparse_file(backing, 1 << 20);
        let claimed = File::options().read(true).write(true).open(&image).unwrap();
        let claimed = if backing == "fuse" { Backing::Unclaimed } else { Backing::ImageFile(claimed.into()) };
        let Some(mut mounted) = Mounted::new(TEST, &scratch, &image, claimed) else { return };
        fs::create_dir_all(mounted.at.join("one/two")).unwrap();
        fs::write(mounted.at.join("one/two/file"), backing).unwrap();
        let superblock = mounted.superblock.as_ref().expect("root mounts by system call");
        for (name, make) in [("a", mount::subtree as fn(_, &Path) -> _), ("b", mount::subtree_by_namespace)] {
            let at = scratch.folder(&format!("{backing}-{name}")).canonicalize().unwrap();
            assert!(make(superblock.another_mount().unwrap(), Path::new("one/nothing")).is_err());
            let further = make(superblock.another_mount().unwrap(), Path::new("one/two")).unwrap();
            mount::place(further, &Flags { read_only: true, ..Flags::default() }, &at).unwrap();
            assert_eq!(fs::read_to_string(at.join("file")).unwrap(), backing);
            assert_eq!(fs::write(at.join("file"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
            assert_eq!(mountinfo::at(&at).unwrap().unwrap().source, image);
            mount::unmount(&at, false).unwrap();
        }
        fs::write(mounted.at.join("one/two/file"), "goes on").unwrap();
        let superblock = mounted.superblock.take().expect("as above");
        assert_eq!(mounted.unmount(), End::Unmounted);
        let error = superblock.another_mount().unwrap_err().raw_os_error();
        assert!(matches!(error, Some(libc::EINVAL | libc::ENOTCONN)), "{error:?}");
    }
}
