//! Send streams as sources: the kernel's streams, a full one and those that go on from it, become subvolumes and
//! snapshots whose content is that of the sent ones.

use crate::build;
use butterfs::{Access, Device, Filesystem, Mkfs};
use butterfs_image::{Builder, FilesystemSource, Manifest, Owners, Size, StreamSource};
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn manifest(filesystem: &Filesystem, folder: &str) -> Manifest {
    let top = filesystem.root().open_dir(folder).unwrap();
    Manifest::of(&mut FilesystemSource::new(folder, top)).unwrap()
}

/// Panics unless the subvolumes have what `source` has in the folders of the same names.
fn assert_same(image: &Path, source: &Filesystem, names: &[&str]) {
    let made = Filesystem::open(Device::path(image)).unwrap();
    for name in names {
        let found = manifest(source, name).differences(&manifest(&made, name));
        assert!(found.is_empty(), "{name}: {}", found.join("\n"));
    }
    let subvolumes = made.subvolumes().unwrap();
    let of = |name: &str| subvolumes.iter().find(|it| it.path == Path::new(name)).expect("it is a subvolume");
    for pair in names.windows(2) {
        assert_eq!(of(pair[1]).parent_uuid, of(pair[0]).uuid, "{pair:?}");
    }
    assert!(names.iter().all(|name| of(name).access == Access::ReadOnly));
    made.close().unwrap();
}

/// Three states of a subvolume in a filesystem of our own, and their streams.
fn streams(scratch: &Scratch) -> (Filesystem, Vec<PathBuf>) {
    let disk = Device::memory(512 << 20);
    Mkfs::new().device(disk.clone()).run().unwrap();
    let filesystem = Filesystem::open(disk).unwrap();
    let root = filesystem.root();
    root.create_subvolume("work").unwrap();
    let noise: Vec<u8> = (0..9_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    root.write("work/large", &noise).unwrap();
    root.write("work/changed", &noise[..300_000]).unwrap();
    root.write("work/small", "text").unwrap();
    root.hard_link("work/large", "work/link").unwrap();
    let mut streams = Vec::new();
    let mut snapshots = Vec::new();
    for (index, name) in ["one", "two", "three"].into_iter().enumerate() {
        match index {
            1 => {
                root.create_dir("work/folder").unwrap();
                root.rename("work/large", "work/folder/moved", butterfs::Rename::Replace).unwrap();
                root.open_with("work/changed", &butterfs::OpenOptions::read_write())
                    .unwrap()
                    .write_all_at(b"changed", 100_000)
                    .unwrap();
            }
            2 => {
                root.remove_file("work/small").unwrap();
                root.symlink("folder/moved", "work/symlink").unwrap();
            }
            _ => {}
        }
        let id = root.snapshot("work", name, Access::ReadOnly).unwrap();
        let path = scratch.join(&format!("{name}.send"));
        let request = filesystem.send(id);
        let request = match snapshots.last() {
            Some(parent) => request.parent(*parent),
            None => request,
        };
        request.write_to(std::fs::File::create(&path).unwrap()).unwrap();
        snapshots.push(id);
        streams.push(path);
    }
    (filesystem, streams)
}

#[test]
fn streams_become_subvolumes_that_share_what_is_unchanged() {
    let scratch = Scratch::new("image-streams");
    let (source, streams) = streams(&scratch);
    let image = scratch.join("disk.img");
    let builder = || Builder::new().source("/", StreamSource::new(&streams)).unwrap().epoch(4_000_000_000).keep_times();
    let report = build(builder(), &image);
    assert_eq!(report.subvolumes.len(), 3);
    assert_same(&image, &source, &["one", "two", "three"]);
    // The large file is there once; the changed one twice.
    let used = Filesystem::open(Device::path(&image)).unwrap().usage().data.1;
    assert!((9_600_000..9_700_000).contains(&used), "{used}");
    let again = scratch.join("again.img");
    builder().threads(3).build(&again).unwrap();
    assert!(std::fs::read(&image).unwrap() == std::fs::read(&again).unwrap(), "the same bytes");
    // Streams that go on from it can be received on top.
    let (first, larger) = (scratch.join("first.img"), Size::AtLeast(300 << 20));
    let only_one = || Builder::new().source("/", StreamSource::new(&streams[..1])).unwrap().size(larger);
    build(only_one(), &first);
    let filesystem = Filesystem::open(Device::path(&first)).unwrap();
    filesystem.root().receive().read_from(std::fs::File::open(&streams[1]).unwrap()).unwrap();
    let found = manifest(&source, "two").differences(&manifest(&filesystem, "two"));
    assert!(found.is_empty(), "{found:?}");
    filesystem.close().unwrap();
    // Not where something else than was sent is there.
    for builder in [only_one().epoch(5), only_one().owners(Owners::all_root())] {
        build(builder, &first);
        let filesystem = Filesystem::open(Device::path(&first)).unwrap();
        filesystem.root().receive().read_from(std::fs::File::open(&streams[1]).unwrap()).unwrap_err();
    }
    // Below a folder, and from one file with all streams.
    let all = scratch.join("all.send");
    let bytes: Vec<u8> = streams.iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
    std::fs::write(&all, bytes).unwrap();
    let report = build(Builder::new().source("backups", StreamSource::new([all])).unwrap(), &image);
    assert!(report.subvolumes.iter().any(|(_, path)| path == b"backups/three"), "{report:?}");
}

#[test]
fn streams_of_the_kernel_become_images_that_it_mounts() {
    let test = "streams_of_the_kernel_become_images_that_it_mounts";
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["btrfs"]) {
        return;
    }
    let scratch = Scratch::new("image-streams-kernel");
    let host = scratch.sparse_file("host.img", 300 << 20);
    mkfs(&host, &[]);
    let mount = KernelMount::new(&host, "rw");
    let at = |name: &str| mount.path().join(name).to_str().unwrap().to_owned();
    run_ok(20, "btrfs", &["subvolume", "create", &at("work")]);
    let file = std::fs::File::create(at("work/file")).unwrap();
    file.write_all_at(&vec![3; 700_000], 1 << 20).unwrap();
    std::os::unix::fs::chown(at("work/file"), Some(5), Some(6)).unwrap();
    run_ok(20, "btrfs", &["subvolume", "snapshot", "-r", &at("work"), &at("one")]);
    file.write_all_at(b"more", 5).unwrap();
    std::fs::create_dir(at("work/new")).unwrap();
    run_ok(20, "btrfs", &["subvolume", "snapshot", "-r", &at("work"), &at("two")]);
    let streams = [scratch.join("one.send"), scratch.join("two.send")];
    run_ok(20, "btrfs", &["send", "-q", "-f", streams[0].to_str().unwrap(), &at("one")]);
    run_ok(20, "btrfs", &["send", "-q", "-p", &at("one"), "-f", streams[1].to_str().unwrap(), &at("two")]);
    drop(file);
    assert!(mount.finish().is_empty());
    let image = scratch.join("disk.img");
    build(Builder::new().source("/", StreamSource::new(&streams)).unwrap().keep_times(), &image);
    let source = butterfs::Builder::new().device(Device::path(&host)).access(Access::ReadOnly).open().unwrap();
    assert_same(&image, &source, &["one", "two"]);
    // The kernel goes on from it too.
    let first = scratch.join("first.img");
    let builder = Builder::new().source("/", StreamSource::new(&streams[..1])).unwrap().size(Size::AtLeast(300 << 20));
    build(builder, &first);
    let mount = KernelMount::new(&first, "rw");
    run_ok(20, "btrfs", &["receive", "-f", streams[1].to_str().unwrap(), mount.path().to_str().unwrap()]);
    assert_eq!(std::fs::read(mount.path().join("two/file")).unwrap()[5..9], *b"more");
    assert!(mount.finish().is_empty());
    butterfs_testkit::judge::assert_clean(&first);
    let mount = KernelMount::new(&image, "ro");
    assert_eq!(std::fs::read(mount.path().join("two/file")).unwrap()[5..9], *b"more");
    assert_eq!(std::fs::read(mount.path().join("one/file")).unwrap().len(), (1 << 20) + 700_000);
    assert!(mount.finish().is_empty());
}

#[test]
fn streams_that_cannot_be_received_end_in_a_sentence() {
    let scratch = Scratch::new("image-streams-hostile");
    let (_, streams) = streams(&scratch);
    let image = scratch.join("disk.img");
    let build = |streams: &[PathBuf]| {
        let error = Builder::new().source("/", StreamSource::new(streams)).unwrap().build(&image).unwrap_err();
        assert!(!image.exists());
        error.to_string()
    };
    // Without the one that it goes on from.
    let error = build(&streams[1..2]);
    assert!(error.contains("two.send"), "{error}");
    let whole = std::fs::read(&streams[0]).unwrap();
    assert!(StreamSource::begins(&whole));
    let cut = scratch.join("cut.send");
    for bytes in [&whole[..whole.len() / 2], &whole[..13], &[]] {
        std::fs::write(&cut, bytes).unwrap();
        let error = build(std::slice::from_ref(&cut));
        assert!(error.contains("cut.send"), "{error}");
    }
    let mut damaged = whole;
    damaged[1000] ^= 1;
    std::fs::write(&cut, damaged).unwrap();
    assert!(build(&[cut]).contains("cut.send"));
    assert!(build(&[scratch.join("missing")]).contains("cannot open"));
}
