//! Handles, closing, transactions, and what threads may do.

use butterfs::{
    Access, Allocate, Builder, Check, Create, DataCheck, Device, Dir, Error, ErrorKind, File, FileType, Filesystem,
    Follow, InodeFlags, Mkfs, Mode, Node, OpenOptions, Owner, ReadDir, Rename, Times, Timestamp,
};
use std::io::{Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn disk() -> Device {
    let disk = Device::memory(256 << 20);
    Mkfs::new().device(disk.clone()).run().unwrap();
    disk
}

fn is_clean(disk: &Device) -> bool {
    let report = Check::new().device(disk.clone()).data(DataCheck::Verify).run().unwrap();
    report.findings().iter().for_each(|finding| println!("{finding}"));
    report.is_clean()
}

#[test]
fn handles_go_from_thread_to_thread() {
    fn shared<T: Send + Sync>() {}
    fn cheap<T: Clone>() {}
    shared::<(Filesystem, Dir, File, Node, ReadDir)>();
    shared::<(Error, Device, butterfs::SendError, butterfs::ReceiveError)>();
    cheap::<(Filesystem, Dir, Node, Device, Error)>();
}

#[test]
fn dropping_closes() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let file = filesystem.root().create_file("kept").unwrap();
    drop(filesystem);
    // The file keeps the filesystem open.
    file.write_all_at(b"content", 0).unwrap();
    drop(file);
    assert!(is_clean(&disk));
    assert_eq!(Filesystem::open(disk).unwrap().root().read("kept").unwrap(), b"content");
}

#[test]
fn a_panic_of_the_caller_loses_nothing() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        filesystem.root().write("kept", "content").unwrap();
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(Filesystem::open(disk).unwrap().root().read("kept").unwrap(), b"content");
}

#[test]
fn closing_gives_the_device_back_and_ends_all_handles() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let (root, clone) = (filesystem.root(), filesystem.clone());
    root.write("file", "content").unwrap();
    let file = root.open_with("file", &OpenOptions::read_write()).unwrap();
    let mut entries = root.read_dir(".").unwrap();
    filesystem.close().unwrap();
    let closed = |error: Error| assert_eq!((error.kind(), error.errno().name()), (ErrorKind::Closed, "EBADF"));
    closed(root.read("file").unwrap_err());
    closed(file.write_all_at(b"x", 0).unwrap_err());
    closed(file.metadata().unwrap_err());
    closed(root.create_dir("new").unwrap_err());
    closed(entries.next().unwrap().unwrap_err());
    closed(clone.sync().unwrap_err());
    closed(clone.transaction(|_| Ok::<_, Error>(())).unwrap_err());
    assert!(clone.send(butterfs::SubvolumeId::new(5)).write_to(std::io::sink()).is_err());
    assert!(is_clean(&disk));
    // The old handles do not show what the next one does.
    let next = Filesystem::open(disk.clone()).unwrap();
    next.root().write("file", "other").unwrap();
    closed(root.read("file").unwrap_err());
    drop((root, file, entries));
    clone.close().unwrap();
    next.close().unwrap();
    assert!(is_clean(&disk));
}

#[test]
fn closing_while_threads_work_keeps_all_that_they_made_durable() {
    for round in 0..8 {
        let disk = disk();
        let filesystem = Filesystem::open(disk.clone()).unwrap();
        filesystem.root().create_subvolume("source").unwrap();
        let work = |thread: u32| {
            let (root, mut durable) = (filesystem.root(), Vec::new());
            for number in 0.. {
                let name = format!("{thread}-{number}");
                let made = match number % 3 {
                    0 => root.write(&name, &name).and_then(|()| filesystem.sync()),
                    1 => root.snapshot("source", &name, Access::ReadOnly).map(drop),
                    _ => filesystem.transaction(|tx| tx.root().write(&name, &name)),
                };
                match made {
                    Ok(()) => durable.push(name),
                    Err(_) => break,
                }
            }
            durable
        };
        let durable = std::thread::scope(|scope| {
            let threads = [0, 1, 2].map(|thread| scope.spawn(move || work(thread)));
            std::thread::sleep(std::time::Duration::from_millis(5 * round));
            filesystem.clone().close().unwrap();
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(is_clean(&disk));
        let again = Filesystem::open(disk).unwrap();
        for name in durable.iter().flatten() {
            assert!(again.root().exists(name).unwrap(), "{name}");
        }
    }
}

#[test]
fn closing_ends_the_lock_of_a_file() {
    let image = std::env::temp_dir().join(format!("butterfs-handles-{}", std::process::id()));
    Mkfs::new().device(Device::create(&image, 256 << 20).unwrap()).run().unwrap();
    let filesystem = Filesystem::open(&image).unwrap();
    let root = filesystem.root();
    assert_eq!(Filesystem::open(&image).unwrap_err().kind(), ErrorKind::Busy);
    filesystem.close().unwrap();
    Filesystem::open(&image).unwrap().close().unwrap();
    assert_eq!(root.exists("x").unwrap_err().kind(), ErrorKind::Closed);
    std::fs::remove_file(&image).unwrap();
}

#[test]
fn a_device_has_one_writer_or_any_number_of_readers() {
    let disk = disk();
    let read_only = || Builder::new().device(disk.clone()).access(Access::ReadOnly).open();
    let writer = Filesystem::open(disk.clone()).unwrap();
    assert_eq!(Filesystem::open(disk.clone()).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(read_only().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(Check::new().device(disk.clone()).run().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(Mkfs::new().device(disk.clone()).run().unwrap_err().kind(), ErrorKind::Busy);
    let added = writer.add_device(disk.clone(), butterfs::Existing::Overwrite);
    assert_eq!(added.unwrap_err().kind(), ErrorKind::Busy);
    drop(writer);
    let (first, second) = (read_only().unwrap(), read_only().unwrap());
    assert_eq!(Filesystem::open(disk.clone()).unwrap_err().kind(), ErrorKind::Busy);
    drop((first, second));
    Filesystem::open(disk).unwrap();
}

#[test]
fn closing_within_a_transaction_is_refused_and_changes_nothing() {
    let filesystem = Filesystem::open(disk()).unwrap();
    filesystem
        .transaction(|tx| {
            tx.root().write("file", "content")?;
            assert_eq!(Filesystem::clone(tx).close().unwrap_err().kind(), ErrorKind::Busy);
            tx.root().write("other", "content")
        })
        .unwrap();
    assert!(filesystem.root().exists("other").unwrap());
    filesystem.close().unwrap();
}

#[test]
fn a_file_without_a_name_lives_as_long_as_its_handle() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let root = filesystem.root();
    let free = filesystem.usage().available;
    let mut file = root.create_file("gone").unwrap();
    file.write_all(&vec![7; 8 << 20]).unwrap();
    filesystem.sync().unwrap();
    root.remove_file("gone").unwrap();
    assert!(!root.exists("gone").unwrap());
    let other = file.reopen();
    drop(file);
    assert_eq!(other.read_all().unwrap(), vec![7; 8 << 20]);
    assert_eq!(other.metadata().unwrap().links(), 0);
    drop(other);
    filesystem.sync().unwrap();
    filesystem.sync().unwrap();
    assert!(filesystem.usage().available + (1 << 20) >= free, "the space comes back");
    filesystem.close().unwrap();
    assert!(is_clean(&disk));
}

#[test]
fn files_read_write_and_seek() {
    let filesystem = Filesystem::open(disk()).unwrap();
    let root = filesystem.root();
    let mut file = root.create_file("file").unwrap();
    file.write_all(b"0123456789").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), 6);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "6789");
    assert!(file.seek(SeekFrom::Current(-11)).is_err());
    assert_eq!(file.stream_position().unwrap(), 10);
    let mut buf = [0; 20];
    assert_eq!(file.read_at(&mut buf, 8).unwrap(), 2);
    assert_eq!(file.read_at(&mut buf, u64::MAX).unwrap(), 0);
    file.allocate(1 << 20..2 << 20, Allocate::Reserve).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    file.set_len(4096 * 3).unwrap();
    file.write_all_at(&[1; 4096], 8192).unwrap();
    file.allocate(4096..8192, Allocate::PunchHole).unwrap();
    assert_eq!(file.next_hole(0).unwrap(), Some(4096));
    assert_eq!(file.next_data(4096).unwrap(), Some(8192));
    assert_eq!(file.next_data(12288).unwrap(), None);
    let read_only = root.open_file("file").unwrap();
    assert_eq!(read_only.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::BadHandle);
    assert_eq!(root.open_file(".").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(root.open_file("file/").unwrap_err().kind(), ErrorKind::NotADirectory);
}

#[test]
fn two_appending_handles_lose_nothing() {
    let filesystem = Filesystem::open(disk()).unwrap();
    let root = filesystem.root();
    let append = OpenOptions::read_write().create(Create::IfMissing).append();
    let mut handles = [root.open_with("log", &append).unwrap(), root.open_with("log", &append).unwrap()];
    for round in 0..50 {
        writeln!(handles[round % 2], "{round}").unwrap();
    }
    let want: String = (0..50).map(|round| format!("{round}\n")).collect();
    assert_eq!(String::from_utf8(root.read("log").unwrap()).unwrap(), want);
}

#[test]
fn threads_that_append_lose_nothing() {
    let filesystem = Filesystem::open(disk()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let root = filesystem.root();
            scope.spawn(move || {
                let append = OpenOptions::read_write().create(Create::IfMissing).append();
                let mut log = root.open_with("log", &append).unwrap();
                // `writeln!` would write a line in pieces, and others write between them.
                (0..200).for_each(|line| log.write_all(format!("{thread} {line:03}\n").as_bytes()).unwrap());
            });
        }
    });
    let content = String::from_utf8(filesystem.root().read("log").unwrap()).unwrap();
    let mut lines: Vec<&str> = content.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 800);
}

#[test]
fn attributes_are_as_they_were_set() {
    let filesystem = Builder::new().device(disk()).owner(Owner::new(5, 6)).open().unwrap();
    let root = filesystem.root();
    root.write("file", "x").unwrap();
    root.symlink("file", "link").unwrap();
    let node = root.node("link", Follow::Links).unwrap();
    assert_eq!(node.metadata().unwrap().owner(), Owner::new(5, 6));
    node.set_mode(Mode::new(0o4755)).unwrap();
    node.set_owner(Owner::new(7, 8)).unwrap();
    assert_eq!(root.metadata("file").unwrap().mode(), Mode::new(0o755), "as with chown(2)");
    node.set_mode(Mode::new(0o4711)).unwrap();
    let time = Timestamp::new(-77, 5).unwrap();
    node.set_times(Times { accessed: None, modified: Some(time) }).unwrap();
    node.set_flags(InodeFlags::NO_ATIME, InodeFlags::NO_ATIME | InodeFlags::NO_COMPRESS).unwrap();
    node.set_xattr("user.one", b"1").unwrap();
    let metadata = root.metadata("file").unwrap();
    assert_eq!((metadata.mode(), metadata.owner(), metadata.modified()), (Mode::new(0o4711), Owner::new(7, 8), time));
    assert!(metadata.flags().contains(InodeFlags::NO_ATIME) && !metadata.flags().contains(InodeFlags::NO_COMPRESS));
    assert_eq!(node.xattrs().unwrap(), ["user.one"]);
    assert_eq!((node.xattr("user.one").unwrap(), node.xattr("user.two").unwrap()), (Some(b"1".to_vec()), None));
    node.remove_xattr("user.one").unwrap();
    assert_eq!(node.remove_xattr("user.one").unwrap_err().kind(), ErrorKind::NotFound);
    let link = root.symlink_metadata("link").unwrap();
    assert_eq!((link.file_type(), link.owner()), (FileType::Symlink, Owner::new(5, 6)));
    root.make_special("null", FileType::CharDevice, Mode::new(0o666), (1, 3)).unwrap();
    assert_eq!(root.metadata("null").unwrap().device_numbers(), (1, 3));
    assert_eq!(root.open_file("null").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn shared_content_is_independent() {
    let filesystem = Filesystem::open(disk()).unwrap();
    let root = filesystem.root();
    root.write("one", vec![1; 3 << 20]).unwrap();
    root.reflink("one", "two").unwrap();
    root.open_with("two", &OpenOptions::read_write()).unwrap().write_all_at(&[2; 10], 5).unwrap();
    assert_eq!(root.read("one").unwrap(), vec![1; 3 << 20]);
    assert_eq!(root.read("two").unwrap()[4..16], [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert_eq!(root.reflink("one", "two").unwrap_err().kind(), ErrorKind::AlreadyExists);
    root.write("empty", "").unwrap();
    root.reflink("empty", "empty-too").unwrap();
    let other = Filesystem::open(disk()).unwrap();
    let foreign = other.root().create_file("x").unwrap();
    assert_eq!(foreign.clone_from(&root.open_file("one").unwrap()).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_tree_deeper_than_the_stack_is_removed() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let root = filesystem.root();
    root.create_dir("top").unwrap();
    let mut at = root.open_dir("top").unwrap();
    for depth in 0..3000 {
        at.write("file", "x").unwrap();
        match depth % 100 {
            50 => drop(at.create_subvolume("d").unwrap()),
            _ => at.create_dir("d").unwrap(),
        }
        at = at.open_dir("d").unwrap();
    }
    drop(at);
    root.symlink("..", "top/out").unwrap();
    root.write("beside", "stays").unwrap();
    root.remove_dir_all("top").unwrap();
    let left: Vec<_> = root.read_dir(".").unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(left, ["beside"]);
    filesystem.close().unwrap();
    assert!(is_clean(&disk));
}

#[test]
fn a_panic_in_a_transaction_takes_everything_back() {
    let disk = disk();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let root = filesystem.root();
    root.write("one", "old").unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        filesystem.transaction(|tx| -> Result<(), Error> {
            tx.root().write("one", "new")?;
            let _open = tx.root().create_file("two")?;
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(root.read("one").unwrap(), b"old");
    assert!(!root.exists("two").unwrap());
    root.rename("one", "three", Rename::KeepExisting).unwrap();
    filesystem.close().unwrap();
    assert!(is_clean(&disk));
}

#[test]
fn a_transaction_refuses_what_it_could_not_take_back() {
    let filesystem = Filesystem::open(disk()).unwrap();
    let root = filesystem.root();
    root.create_subvolume("home").unwrap();
    let snapshot = root.snapshot("home", "snapshot", Access::ReadOnly).unwrap();
    let tried = filesystem.transaction(|tx| {
        assert_eq!(tx.sync().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(tx.transaction(|_| Ok::<(), Error>(())).unwrap_err().kind(), ErrorKind::Busy);
        let error = tx.send(snapshot).write_to(std::io::sink()).unwrap_err();
        assert_eq!(error.filesystem().unwrap().kind(), ErrorKind::Busy);
        tx.root().write("file", "x")
    });
    tried.unwrap();
    assert_eq!(root.read("file").unwrap(), b"x");
}

#[test]
fn an_error_names_its_place() {
    let image = std::sync::Arc::new(butterfs::MemoryDevice::new(256 << 20));
    let device = Device::from(image.clone() as std::sync::Arc<dyn butterfs::BlockDevice>);
    Mkfs::new().device(device.clone()).run().unwrap();
    let filesystem = Filesystem::open(device.clone()).unwrap();
    filesystem.root().write("file", "a mark that is nowhere else ".repeat(400)).unwrap();
    filesystem.close().unwrap();
    let at = image.to_bytes().windows(20).position(|part| part == b"a mark that is nowhe").unwrap() as u64;
    butterfs::BlockDevice::write_at(&*image, at, b"A").unwrap();
    let filesystem = Builder::new().device(device).access(Access::ReadOnly).open().unwrap();
    let error = filesystem.root().read("file").unwrap_err();
    assert_eq!((error.kind(), error.errno().name()), (ErrorKind::Device, "EIO"));
    assert_eq!(error.path(), Some("file".as_ref()));
    assert_eq!((error.place().device.as_deref(), error.place().physical), (Some("memory"), Some(at)));
    assert!(error.place().logical.is_some());
    let error = std::io::Error::from(error);
    assert!(error.get_ref().unwrap().is::<Error>());
}

#[test]
fn a_device_in_use_is_refused() {
    let folder = std::env::temp_dir().join(format!("butterfs-in-use-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let image = folder.join("disk.img");
    Mkfs::new().device(Device::create(&image, 256 << 20).unwrap()).run().unwrap();
    assert_eq!(Device::create(&image, 1).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(Mkfs::new().device(&image).run().unwrap_err().kind(), ErrorKind::AlreadyExists);
    let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    let filesystem = Filesystem::open(Device::file(file).unwrap()).unwrap();
    assert_eq!(Filesystem::open(&image).unwrap_err().kind(), ErrorKind::Busy);
    filesystem.close().unwrap();
    let file = std::fs::File::open(&image).unwrap();
    let read_only = Builder::new().device(Device::file(file).unwrap()).access(Access::ReadOnly).open().unwrap();
    assert_eq!(read_only.root().create_dir("x").unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(read_only);
    assert_eq!(Filesystem::open("/nowhere").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Builder::new().open().unwrap_err().kind(), ErrorKind::InvalidInput);
    std::fs::remove_dir_all(folder).unwrap();
}
