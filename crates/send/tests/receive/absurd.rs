//! Streams that ask for more than they bring: what they take of a disk, and of time, is bounded by what they bring.

use crate::world::{Stream, World, receive_into};
use butterfs_fs::Errno;
use butterfs_send::apply::Directory;
use butterfs_send::wire::Command;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const HUGE: u64 = 1 << 62;
/// The disk space that a small stream may use.
const LITTLE: u64 = 1 << 20;

/// Commands for the file `f`, which holds `content`, and whether each must be refused everywhere.
fn cases() -> Vec<(Command<'static>, bool)> {
    let range = |mode, offset, len| Command::Fallocate { path: b"f", mode, offset, len };
    let encoded = |unencoded_len, unencoded_offset, unencoded_file_len| Command::EncodedWrite {
        path: b"f",
        offset: 0,
        unencoded_file_len,
        unencoded_len,
        unencoded_offset,
        compression: 2,
        encryption: 0,
        data: b"x",
    };
    let clone = |offset, len, source_offset| Command::Clone {
        offset,
        len,
        path: b"f",
        source_uuid: [1; 16],
        source_transid: 7,
        source: b"sparse",
        source_offset,
    };
    vec![
        (range(16, HUGE, 4096), false),
        (range(16, 0, HUGE), false),
        (range(17, 0, HUGE), false),
        (range(3, 0, HUGE), false),
        (range(0, 0, HUGE), true),
        (range(1, 0, HUGE), true),
        (range(0, HUGE, 1 << 50), true),
        (range(16, u64::MAX - 4095, 8192), true),
        (range(16, i64::MAX as u64, 1), true),
        (range(3, 0, 0), true),
        (range(0, 5, 0), true),
        (range(0x40, 0, HUGE), true),
        (Command::Truncate { path: b"f", size: HUGE }, false),
        (Command::Truncate { path: b"f", size: u64::MAX }, true),
        (Command::Truncate { path: b"f", size: 1 << 63 }, true),
        (Command::Write { path: b"f", offset: HUGE, data: b"far" }, false),
        (Command::Write { path: b"f", offset: u64::MAX - 1, data: b"far" }, true),
        (encoded(1 << 40, 0, 1), true),
        (encoded(u64::MAX, u64::MAX - 1, 1), true),
        (encoded(4096, 0, u64::MAX), true),
        (clone(0, HUGE, 0), false),
        (clone(4096, 0, 0), false),
        (clone(0, u64::MAX, 4096), true),
        (clone(u64::MAX - 4095, 4096, 0), true),
        (Command::UpdateExtent { path: b"f", offset: 0, len: HUGE }, true),
        (Command::Utimes { path: b"f", atime: FAR, mtime: FAR, ctime: FAR, otime: None }, false),
    ]
}

const FAR: butterfs_send::wire::Timespec = butterfs_send::wire::Timespec { sec: i64::MAX, nsec: 0 };

fn stream_of(command: Command<'_>) -> Vec<u8> {
    Stream::subvol("s", 1)
        .file("sparse")
        .write("sparse", 0, &[7; 4096])
        .add(Command::Truncate { path: b"sparse", size: HUGE })
        .file("f")
        .write("f", 0, b"content")
        .add(command)
        .end()
}

fn blocks(path: &Path) -> u64 {
    let inside = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| blocks(&entry.path()));
    fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512) + inside.sum::<u64>()
}

/// In memory, because there zero ranges are not supported and nothing is shared; and where tests work.
#[test]
fn a_directory_takes_no_more_than_a_stream_brings() {
    const TEST: &str = "a_directory_takes_no_more";
    let _watchdog = Watchdog::new(TEST, 60);
    let scratch = Scratch::new(TEST);
    let memory = PathBuf::from(format!("/dev/shm/butterfs-{TEST}-{}", std::process::id()));
    let in_memory = fs::create_dir(&memory).is_ok();
    for at in [Some(scratch.path()), in_memory.then_some(memory.as_path())].into_iter().flatten() {
        for (command, is_refused) in cases() {
            let received = receive_into(&stream_of(command), &mut Directory::open(at).unwrap());
            // Some filesystems have smaller files, and then refuse more.
            assert!(!is_refused || received.errors.len() == 1, "{command:?}: {received:?}");
            let taken = blocks(at);
            assert!(taken < LITTLE, "{command:?} takes {taken} bytes");
            let in_tree = at.join("s/f");
            match command {
                _ if !received.errors.is_empty() => {}
                Command::Fallocate { mode: 3 | 16 | 17, offset: 0, .. } => {
                    let begin = fs::File::open(&in_tree).map(|file| {
                        let mut begin = [1; 7];
                        std::os::unix::fs::FileExt::read_exact_at(&file, &mut begin, 0).map(|()| begin)
                    });
                    assert_eq!(begin.unwrap().unwrap(), [0; 7], "{command:?}");
                }
                Command::Clone { offset: 0, .. } => {
                    let found = fs::metadata(&in_tree).unwrap();
                    assert_eq!(found.len(), HUGE, "{command:?}");
                }
                _ => {}
            }
            for name in ["s", "s.partial"] {
                let _ = fs::remove_dir_all(at.join(name));
            }
        }
    }
    let _ = fs::remove_dir_all(&memory);
}

#[test]
fn a_filesystem_of_ours_takes_no_more_than_a_stream_brings() {
    const TEST: &str = "a_filesystem_of_ours_takes_no_more";
    let _watchdog = Watchdog::new(TEST, 60);
    let world = World::new();
    for (command, is_refused) in cases() {
        let received = world.receive(&stream_of(command));
        // The engine gives a zero range space, as the kernel does, and refuses what it has not.
        let is_refused = is_refused || matches!(command, Command::Fallocate { mode: 16 | 17, offset: 0, .. });
        assert_eq!(received.errors.len(), usize::from(is_refused), "{command:?}: {received:?}");
        let tree = if received.errors.is_empty() { "s" } else { "s.partial" };
        let taken: u64 = ["f", "sparse"].iter().map(|name| world.attr(&format!("{tree}/{name}")).blocks * 512).sum();
        assert!(taken < LITTLE, "{command:?} takes {taken} bytes");
        world.fs.delete_subvolume(crate::world::TOP, tree.as_bytes()).unwrap();
    }
    world.check(TEST);
}

#[test]
fn capabilities_are_taken_as_the_kernel_takes_them() {
    const TEST: &str = "capabilities_are_taken";
    let world = World::new();
    let scratch = Scratch::new(TEST);
    // What the kernel's btrfs takes, asked of it here.
    let image = scratch.sparse_file("image", 256 << 20);
    let mount = requirement::kernel_btrfs(TEST).then(|| {
        mkfs(&image, &[]);
        KernelMount::new(&image, "noatime")
    });
    let file = mount.as_ref().map(|mount| mount.path().join("f"));
    file.iter().for_each(|file| fs::write(file, b"").unwrap());
    let value = |magic: u32, len: usize| [&magic.to_le_bytes()[..], &vec![0; len - 4]].concat();
    let mut values: Vec<Vec<u8>> = [0, 0x0100_0000, 0x0200_0000, 0x0200_0001, 0x0200_0003, 0x0300_0000, 0x0300_0001]
        .iter()
        .flat_map(|magic| [12, 20, 24, 28].map(|len| value(*magic, len)))
        .collect();
    values.extend([vec![], b"nonsense".to_vec(), [&value(0x0300_0000, 20)[..], &[0xff; 4]].concat()]);
    let name = "security.capability";
    let mut taken = 0;
    for value in values {
        let ours = world.receive(&Stream::subvol("s", 1).file("f").xattr("f", name, &value).end()).errors;
        let left = if ours.is_empty() { "s" } else { "s.partial" };
        world.fs.delete_subvolume(crate::world::TOP, left.as_bytes()).unwrap();
        assert!(ours.iter().all(|error| error.contains("no set of file capabilities")), "{ours:?}");
        taken += usize::from(ours.is_empty());
        let Some(file) = &file else { continue };
        match rustix::fs::setxattr(file, name, &value, rustix::fs::XattrFlags::empty()) {
            Ok(()) => assert_eq!(ours, [""; 0], "{value:02x?}"),
            Err(error) => assert_eq!((error, ours.len()), (rustix::io::Errno::INVAL, 1), "{value:02x?}"),
        }
    }
    assert_eq!(taken, 5);
    mount.into_iter().for_each(|mount| assert_eq!(mount.finish(), [""; 0]));
}

/// An attribute for which there is no room could have been kept, and one that the filesystem refuses could not.
#[test]
fn an_attribute_that_finds_no_room_is_an_error() {
    const TEST: &str = "an_attribute_that_finds_no_room";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let stream = |len: usize| Stream::subvol("s", 1).file("f").xattr("f", "user.large", &vec![1; len]).end();
    let image = scratch.sparse_file("btrfs", 256 << 20);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    // The kernel's btrfs says so of a value that no item can hold.
    let mut target = Directory::open(mount.path()).unwrap();
    let received = receive_into(&stream(16_300), &mut target);
    assert!(received.errors[0].contains("No space left on device"), "{received:?}");
    assert!(target.losses().is_empty() && !mount.path().join("s").exists());
    drop(target);
    assert_eq!(mount.finish(), [""; 0]);
    // ext4 says the same of a value that its one block cannot hold, where the disk is not full.
    let (image, at) = (scratch.sparse_file("ext4", 16 << 20), scratch.folder("mnt"));
    let [image, folder] = [&image, &at].map(|path| path.to_str().unwrap());
    run_ok(20, "mkfs.ext4", &["-q", "-m", "0", image]);
    run_ok(20, "mount", &["-o", "loop", image, folder]);
    let received = std::panic::catch_unwind(|| {
        let mut target = Directory::open(&at).unwrap();
        let limited = receive_into(&stream(5000), &mut target).errors;
        let losses = target.losses().len();
        fs::remove_dir_all(at.join("s")).unwrap();
        // Inside the inode there is room for some bytes, and then there is none.
        receive_into(&Stream::subvol("a", 2).end(), &mut target);
        let full = fs::File::create(at.join("fill")).unwrap();
        let mut written = 0;
        while std::os::unix::fs::FileExt::write_all_at(&full, &[1; 4096], written).is_ok() {
            written += 4096;
        }
        full.sync_all().unwrap_or(());
        let full = receive_into(&stream(3000), &mut target).errors;
        (limited, losses, full)
    });
    run_ok(20, "umount", &[folder]);
    let (limited, losses, full) = received.unwrap();
    assert_eq!((limited, losses), (vec![], 1));
    assert!(full[0].contains("No space left on device"), "{full:?}");
}

#[test]
fn numbers_of_errors_are_the_systems() {
    let scratch = Scratch::new("numbers_of_errors");
    let mut target = Directory::open(scratch.path()).unwrap();
    let section = butterfs_send::apply::Section { name: b"s", uuid: [1; 16], transid: 7, parent: None };
    use butterfs_send::apply::StreamTarget;
    target.begin(&section).unwrap();
    target.command(&Command::Mkfile { path: b"f", ino: 257 }).unwrap();
    let mut errno = |mode, offset, len| target.command(&Command::Fallocate { path: b"f", mode, offset, len });
    assert_eq!(errno(16, HUGE, HUGE).unwrap_err().errno, Errno::EFBIG.0);
    assert_eq!(errno(0, 0, 0).unwrap_err().errno, Errno::EINVAL.0);
    assert_eq!(errno(8, 0, 1).unwrap_err().errno, Errno::EOPNOTSUPP.0);
    assert_eq!(errno(1, 0, 1 << 60).unwrap_err().errno, Errno::ENOSPC.0);
}
