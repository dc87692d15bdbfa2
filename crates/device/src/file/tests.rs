//! Files and their locks; with root also loop devices and what the kernel has mounted.

use super::*;
use crate::file::FileOptions;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU32;

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("butterfs-device-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file of a mebibyte.
    fn image(&self) -> PathBuf {
        let path = self.path("image");
        FileDevice::create(&path, 1 << 20).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// With time for a child of another test, between fork and exec, to let go of the descriptors it inherited.
fn patient(options: FileOptions) -> FileOptions {
    FileOptions { wait: Duration::from_secs(20), ..options }
}

fn refusal(path: &Path, options: FileOptions) -> String {
    FileDevice::open(path, &options).unwrap_err().to_string()
}

#[test]
fn a_new_file_is_sparse_and_keeps_what_is_written() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    let device = FileDevice::create(&path, 1 << 40).unwrap();
    assert_eq!((device.len(), device.is_read_only(), device.is_block_device()), (1 << 40, false, false));
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
    device.write_at((1 << 40) - 5, b"bytes").unwrap();
    device.flush().unwrap();
    drop(device);
    let device = FileDevice::open(&path, &patient(FileOptions::read_only())).unwrap();
    let mut found = [0; 6];
    device.read_at((1 << 40) - 6, &mut found).unwrap();
    assert_eq!(&found, b"\0bytes");
    assert_eq!(device.name(), path.display().to_string());
}

#[test]
fn holes_of_a_file_are_known() {
    let scratch = Scratch::new();
    let device = FileDevice::create(scratch.path("holes.img"), 8 << 20).unwrap();
    assert_eq!(device.next_data(100), 8 << 20);
    device.write_at(5 << 20, &[1]).unwrap();
    assert_eq!(device.next_data(0), 5 << 20);
    assert_eq!(device.next_data((5 << 20) + 1), (5 << 20) + 1);
    assert_eq!(device.next_data(6 << 20), 8 << 20);
    assert_eq!(device.next_data(8 << 20), 8 << 20);
}

#[test]
fn an_existing_file_is_not_created_again() {
    let scratch = Scratch::new();
    let path = scratch.image();
    assert!(matches!(FileDevice::create(&path, 5).unwrap_err().kind, OpenErrorKind::Exists));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn a_path_that_is_no_device_is_named() {
    let scratch = Scratch::new();
    let dir = &scratch.0;
    let cases = [
        (scratch.path("nothing"), format!("{}/nothing does not exist", dir.display())),
        (dir.clone(), format!("{} is a directory, not a file or block device", dir.display())),
        ("/dev/null".into(), "/dev/null is a character device, not a file or block device".to_owned()),
    ];
    for (path, expected) in cases {
        assert_eq!(refusal(&path, FileOptions::read_write()), expected);
        assert_eq!(refusal(&path, FileOptions::inspect()), expected);
    }
}

#[test]
fn ranges_outside_and_writes_to_read_only_devices_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let device = FileDevice::open(&path, &patient(FileOptions::read_write())).unwrap();
    assert_eq!(device.write_at((1 << 20) - 1, b"ab").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(device.read_at(1 << 20, &mut [0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    drop(device);
    let device = FileDevice::open(&path, &patient(FileOptions::read_only())).unwrap();
    assert_eq!(device.write_at(0, b"a").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert!(device.discard(0, 4096).is_err());
    assert!(device.flush().is_ok());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn discard_gives_blocks_back() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let device = FileDevice::open(&path, &patient(FileOptions::read_write())).unwrap();
    device.write_at(0, &[1; 1 << 20]).unwrap();
    device.flush().unwrap();
    let before = std::fs::metadata(&path).unwrap().blocks();
    device.discard(4096, 512 << 10).unwrap();
    device.discard(0, 0).unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert!(after.blocks() < before && after.len() == 1 << 20);
    let mut found = [9; 2];
    device.read_at(4095, &mut found).unwrap();
    assert_eq!(found, [1, 0]);
}

/// The openers that are admitted while another one has the file open.
#[test]
fn locks() {
    type Options = fn() -> FileOptions;
    let (rw, ro, look): (Options, Options, Options) =
        (FileOptions::read_write, FileOptions::read_only, FileOptions::inspect);
    let cases = [
        (rw, rw, false),
        (rw, ro, false),
        (rw, look, true),
        (ro, rw, false),
        (ro, ro, true),
        (look, rw, true),
        (look, look, true),
    ];
    for (index, (first, second, allowed)) in cases.into_iter().enumerate() {
        let scratch = Scratch::new();
        let path = scratch.image();
        let held = FileDevice::open(&path, &patient(first())).unwrap();
        let result = FileDevice::open(&path, &second());
        assert_eq!(result.is_ok(), allowed, "case {index}");
        match result {
            Ok(device) => drop(device),
            Err(error) => {
                assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
                assert!(error.is_in_use() && error.hint().is_some());
            }
        }
        drop(held);
        assert!(FileDevice::open(&path, &patient(second())).is_ok(), "case {index} after the first is closed");
    }
}

/// A child of another thread has copies of all descriptors until it runs its program.
#[test]
fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
    let scratch = Scratch::new();
    for options in [FileOptions::read_write(), FileOptions::read_only()] {
        let path = scratch.path("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        let device = FileDevice::open(&path, &options).unwrap();
        let _copy = device.file.try_clone().unwrap();
        drop(device);
        FileDevice::open(&path, &FileOptions::read_write()).unwrap();
    }
}

#[test]
fn a_created_file_is_locked_at_once() {
    let scratch = Scratch::new();
    let _device = FileDevice::create(scratch.path("image"), 4096).unwrap();
    assert!(refusal(&scratch.path("image"), FileOptions::read_write()).ends_with("in use by another process"));
}

#[test]
fn waiting_for_the_one_before() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let held = FileDevice::open(&path, &patient(FileOptions::read_write())).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| FileDevice::open(&path, &patient(FileOptions::read_write())).is_ok());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished());
        drop(held);
        assert!(waiting.join().unwrap());
    });
}

/// A pipe takes writes nowhere and cannot be flushed: the only failing flush that needs no special hardware.
#[test]
fn the_first_failed_flush_is_final() {
    let (read_end, _write_end) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(read_end));
    let device = FileDevice::assemble(file, Path::new("pipe"), 4096, false, false, None);
    let first = device.flush().unwrap_err().to_string();
    for later in [device.flush(), device.write_at(0, b"x"), device.discard(0, 1)] {
        let later = later.unwrap_err().to_string();
        assert_eq!(later, format!("pipe cannot be written any more: an earlier flush failed: {first}"));
    }
}

/// Says why a test cannot run here; where everything must run, that is a failure.
fn skip(why: &str) {
    println!("SKIPPED: loop devices: {why}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "skipped where nothing may be: {why}");
}

/// A loop device over a file, with a btrfs in it if asked, detached at the end.
struct Loop {
    node: PathBuf,
    mounted: Option<PathBuf>,
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Loop {
    fn over(image: &Path) -> Option<Loop> {
        let node = run("losetup", &["--find", "--show", image.to_str()?])?;
        Some(Loop { node: node.into(), mounted: None })
    }

    fn mount(&mut self, at: PathBuf) -> bool {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = run("mount", &["-t", "btrfs", self.node.to_str().unwrap(), at.to_str().unwrap()]).is_some();
        self.mounted = mounted.then_some(at);
        mounted
    }

    fn unmount(&mut self) {
        if let Some(at) = self.mounted.take() {
            run("umount", &[at.to_str().unwrap()]);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.unmount();
        run("losetup", &["--detach", self.node.to_str().unwrap()]);
    }
}

/// A file with a btrfs in it and a loop device over it, or the reason why not.
fn kernel_filesystem(scratch: &Scratch) -> Result<(PathBuf, Loop), &'static str> {
    if !rustix::process::geteuid().is_root() {
        return Err("loop devices need root");
    }
    let image = scratch.path("image");
    drop(FileDevice::create(&image, 128 << 20).unwrap());
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]).ok_or("no mkfs.btrfs")?;
    let device = Loop::over(&image).ok_or("no loop device")?;
    Ok((image, device))
}

#[test]
fn block_devices_have_a_size_and_keep_what_is_written() {
    let scratch = Scratch::new();
    let (image, node) = match kernel_filesystem(&scratch) {
        Ok((image, device)) => (image, device),
        Err(why) => return skip(why),
    };
    let device = FileDevice::open(&node.node, &FileOptions::read_write()).unwrap();
    assert_eq!((device.len(), device.is_block_device()), (128 << 20, true));
    device.write_at(100 << 20, &[5; 8192]).unwrap();
    device.flush().unwrap();
    device.discard(100 << 20, 4096).unwrap();
    let mut found = [9; 2];
    device.read_at((100 << 20) + 4095, &mut found).unwrap();
    assert_eq!(found, [0, 5]);
    // The file beneath is taken too.
    assert!(refusal(&image, FileOptions::read_write()).ends_with("in use by another process"));
    assert!(refusal(&node.node, FileOptions::read_write()).ends_with("in use by another process"));
    drop(device);
    let beneath = FileDevice::open(&image, &patient(FileOptions::read_write())).unwrap();
    assert!(refusal(&node.node, FileOptions::read_write()).ends_with("in use by another process"));
    drop(beneath);
}

#[test]
fn devices_mounted_by_the_kernel_are_refused_by_name() {
    let scratch = Scratch::new();
    let (image, mut device) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    let at = scratch.path("mount point");
    if !device.mount(at.clone()) {
        return skip("the kernel has no btrfs");
    }
    let node = device.node.display().to_string();
    let unclaimed = FileOptions { exclusive: false, ..FileOptions::read_write() };
    for options in [FileOptions::read_write(), unclaimed.clone()] {
        assert_eq!(refusal(&device.node, options), format!("{node} is mounted at {}", at.display()));
    }
    let through = format!("{} is mounted at {} through {node}", image.display(), at.display());
    assert_eq!(refusal(&image, FileOptions::read_write()), through);
    assert!(FileDevice::open(&image, &FileOptions::inspect()).is_ok());
    device.unmount();
    let claimed = FileDevice::open(&device.node, &patient(FileOptions::read_write())).unwrap();
    assert!(!device.mount(at.clone()), "the claim keeps the kernel out");
    drop(claimed);
    let unclaimed = FileDevice::open(&device.node, &patient(unclaimed)).unwrap();
    assert!(device.mount(at), "without a claim the kernel can take it, as for fuseblk");
    drop(unclaimed);
}

fn fsid_of(image: &Path) -> [u8; 16] {
    let mut fsid = [0; 16];
    std::fs::File::open(image).unwrap().read_exact_at(&mut fsid, (64 << 10) + 32).unwrap();
    fsid
}

#[test]
fn a_mount_through_one_loop_device_is_refused_through_another() {
    let scratch = Scratch::new();
    let (image, mut device) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    let (Some(second), Some(third)) = (Loop::over(&image), Loop::over(&device.node)) else {
        return skip("no loop device");
    };
    let copy = scratch.path("copy");
    std::fs::copy(&image, &copy).unwrap();
    if !device.mount(scratch.path("mnt")) {
        return skip("the kernel has no btrfs");
    }
    let through = format!("mounted at {} through {}", scratch.path("mnt").display(), device.node.display());
    for other in [&second.node, &third.node] {
        assert_eq!(refusal(other, FileOptions::read_write()), format!("{} is {through}", other.display()));
        // A reader becomes a writer only if the filesystem is nobody else's.
        let reader = FileDevice::open(other, &patient(FileOptions::read_only())).unwrap();
        let usage = reader.kernel_use(&fsid_of(&image)).unwrap();
        assert_eq!(usage, format!("part of a btrfs that the kernel has mounted from {}", device.node.display()));
        assert_eq!(reader.kernel_use(&[7; 16]), None);
    }
    // The same UUID, but none of the bytes.
    let copied = FileDevice::open(&copy, &patient(FileOptions::read_write())).unwrap();
    assert_eq!(copied.kernel_use(&fsid_of(&copy)), None);
    let over_copy = Loop::over(&copy).unwrap();
    let reader = FileDevice::open(&over_copy.node, &FileOptions::inspect()).unwrap();
    assert_eq!(reader.kernel_use(&fsid_of(&copy)), None);
    drop((copied, reader));
    device.unmount();
    drop(FileDevice::open(&second.node, &patient(FileOptions::read_write())).unwrap());
    drop((third, second, over_copy));
}

#[test]
fn parts_of_one_file_do_not_stand_in_each_others_way() {
    let scratch = Scratch::new();
    let (image, mut device) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(256 << 20).unwrap();
    if !device.mount(scratch.path("mnt")) {
        return skip("the kernel has no btrfs");
    }
    let image = image.to_str().unwrap();
    for (offset, expected) in [("128M", true), ("127M", false)] {
        let node = run("losetup", &["--find", "--show", "--offset", offset, image]).unwrap();
        let part = Loop { node: node.into(), mounted: None };
        let options = FileOptions { wait: Duration::from_secs(2), ..FileOptions::read_write() };
        let opened = FileDevice::open(&part.node, &options);
        assert_eq!(opened.is_ok(), expected, "{offset}: {:?}", opened.err());
    }
}

#[test]
fn a_write_protected_block_device_is_not_opened_for_writing() {
    let scratch = Scratch::new();
    let (_, device) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    let node = device.node.to_str().unwrap();
    run("blockdev", &["--setro", node]).unwrap();
    assert_eq!(refusal(&device.node, FileOptions::read_write()), format!("{node} is write-protected"));
    let reader = FileDevice::open(&device.node, &patient(FileOptions::read_only())).unwrap();
    assert_eq!(reader.open_for_writing().unwrap_err().to_string(), format!("{node} is write-protected"));
    drop(reader);
    run("blockdev", &["--setrw", node]).unwrap();
    FileDevice::open(&device.node, &patient(FileOptions::read_write())).unwrap();
}

#[test]
fn writes_beneath_a_block_device_are_seen() {
    let scratch = Scratch::new();
    let (image, node) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    let device = FileDevice::open(&node.node, &patient(FileOptions::read_write())).unwrap();
    let mut found = [0; 4096];
    device.read_at(65536, &mut found).unwrap();
    let beneath = OpenOptions::new().write(true).open(&image).unwrap();
    beneath.write_all_at(&[5; 4096], 65536).unwrap();
    device.read_fresh(65536, &mut found).unwrap();
    assert_eq!(found, [5; 4096]);
    beneath.set_len(64 << 20).unwrap();
    run("losetup", &["--set-capacity", node.node.to_str().unwrap()]).unwrap();
    assert_eq!((device.len(), device.current_len().unwrap()), (128 << 20, 64 << 20));
}

#[test]
fn a_reader_becomes_the_writer_when_it_is_alone() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let reader = FileDevice::open(&path, &patient(FileOptions::read_only())).unwrap();
    let other = FileDevice::open(&path, &patient(FileOptions::read_only())).unwrap();
    assert!(reader.open_for_writing().unwrap_err().is_in_use());
    assert!(FileDevice::open(&path, &FileOptions::read_write()).unwrap_err().is_in_use(), "the lock is still there");
    drop(other);
    let writer = reader.open_for_writing().unwrap();
    writer.write_at(5, b"bytes").unwrap();
    writer.flush().unwrap();
    let mut found = [0; 5];
    reader.read_at(5, &mut found).unwrap();
    assert_eq!(&found, b"bytes");
    assert!(FileDevice::open(&path, &FileOptions::read_only()).unwrap_err().is_in_use());
}

#[test]
fn a_file_that_was_cut_off_is_not_written_any_more() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let device = FileDevice::open(&path, &patient(FileOptions::read_write())).unwrap();
    device.write_at(0, b"before").unwrap();
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(65536).unwrap();
    assert_eq!(device.current_len().unwrap(), 65536);
    let error = device.write_at((1 << 20) - 4096, &[1; 4096]).unwrap_err().to_string();
    assert!(error.ends_with("was truncated while it was in use: it had 1048576 bytes, now 65536"), "{error}");
    // Whoever gives it its length back does not give its content back.
    other.set_len(1 << 20).unwrap();
    device.write_at(0, b"after").unwrap_err();
    device.flush().unwrap_err();
}

/// Bytes that say where they belong, and which write brought them.
fn pattern(offset: u64, len: usize, turn: u64) -> Vec<u8> {
    (0..len as u64).map(|index| ((offset + index) / 512 * 31 + turn * 7 + index % 512) as u8).collect()
}

/// Writes past the cache and through it, over each other, of all alignments: a read shows the last one.
fn check_mixed_writes(device: &FileDevice) {
    let mut expected = vec![0; 8 << 20];
    device.write_at(0, &expected).unwrap();
    let mut random = crate::random::Random::new(7);
    let mut below = |limit: u64| random.below(limit);
    for turn in 0..400 {
        let unit = [4096, 4096, 4096, 512, 1][below(5) as usize];
        // Up to three of the parts that a long write consists of.
        let most = [16, 100, 800][below(3) as usize];
        let len = (1 + below(most)) as usize * unit as usize;
        let offset = below((expected.len() - len) as u64 / unit) * unit;
        let data = pattern(offset, len, turn);
        expected[offset as usize..][..len].copy_from_slice(&data);
        match below(3) {
            0 => device.write_at(offset, &data).unwrap(),
            _ => device.write_uncached(offset, &data).unwrap(),
        }
        let (from, most) = (below(expected.len() as u64 - 1), 1 << 16);
        let mut found = vec![0; most.min(expected.len() - from as usize)];
        device.read_at(from, &mut found).unwrap();
        assert!(found == expected[from as usize..][..found.len()], "after write {turn}, at {from}");
    }
    device.flush().unwrap();
    let mut found = vec![0; expected.len()];
    device.read_at(0, &mut found).unwrap();
    assert!(found == expected);
}

#[test]
fn direct_writes_are_read_back() {
    let scratch = Scratch::new();
    let mut device = FileDevice::create(scratch.path("mixed"), 8 << 20).unwrap();
    check_mixed_writes(&device);
    device.direct = None;
    check_mixed_writes(&device);
    let node = match kernel_filesystem(&scratch) {
        Ok((_, node)) => node,
        Err(why) => return skip(why),
    };
    let device = FileDevice::open(&node.node, &patient(FileOptions::read_write())).unwrap();
    assert!(device.direct.is_some());
    check_mixed_writes(&device);
}

/// The file beneath a loop device has at once what goes past the device's cache; what is written through it only later.
#[test]
fn a_direct_write_reaches_the_storage() {
    let scratch = Scratch::new();
    let (image, node) = match kernel_filesystem(&scratch) {
        Ok(both) => both,
        Err(why) => return skip(why),
    };
    let device = FileDevice::open(&node.node, &patient(FileOptions::read_write())).unwrap();
    let beneath = File::open(&image).unwrap();
    let mut found = vec![0; 3 << 20];
    device.write_uncached(64 << 20, &vec![7; found.len()]).unwrap();
    beneath.read_exact_at(&mut found, 64 << 20).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    // What the storage does not take directly goes through the cache from then on.
    let direct = device.direct.as_ref().expect("a block device has direct I/O");
    assert!(!direct.write(1, &[8; 4096]).unwrap() && !direct.takes(0, 4096));
    device.write_uncached(64 << 20, &[9; 4096]).unwrap();
    device.flush().unwrap();
    beneath.read_exact_at(&mut found, 64 << 20).unwrap();
    assert!(found.iter().zip(0..).all(|(byte, index)| *byte == if index < 4096 { 9 } else { 7 }));
}

#[test]
fn writes_past_the_cache_are_refused_as_others_are() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let device = FileDevice::open(&path, &patient(FileOptions::read_write())).unwrap();
    let page = [1; 4096];
    assert_eq!(device.write_uncached(1 << 20, &page).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(65536).unwrap();
    assert!(device.write_uncached((1 << 20) - 4096, &page).unwrap_err().to_string().contains("was truncated"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 65536);
    assert!(device.write_uncached(0, &page).unwrap_err().to_string().contains("cannot be written any more"));
    drop(device);
    let device = FileDevice::open(&path, &patient(FileOptions::read_only())).unwrap();
    assert_eq!(device.write_uncached(0, &page).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
}
