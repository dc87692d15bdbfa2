//! Sharing extents: clones of compressed and small files, within one file, dedupe; and defragmenting, which ends it.

use super::world::{ROOT, World, pattern, text};
use butterfs_fs::file::Defragment;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{DataPolicy, Errno, InodeId, Method, Options, SetAttr, TreeId};
use butterfs_testkit::watchdog::Watchdog;

fn extents(world: &World, id: InodeId) -> Vec<FileExtent> {
    world.fs.extents(id, 0..u64::MAX / 2).unwrap()
}

fn addresses(world: &World, id: InodeId) -> Vec<(u64, u64)> {
    extents(world, id).iter().map(|extent| (extent.at.0, extent.offset)).collect()
}

fn used(world: &World) -> u64 {
    world.fs.sync().unwrap();
    world.fs.sync().unwrap();
    world.fs.superblock().bytes_used.get()
}

fn compressing() -> World {
    let mut data = DataPolicy::default();
    data.apply("compress=zstd").expect("an option").expect("a value");
    World::with(&MkfsOptions::default(), Options { data, ..Options::default() }, 256 << 20)
}

#[test]
fn parts_of_compressed_extents_are_shared() {
    let world = compressing();
    let (file, clone) = (world.file("file"), world.file("clone"));
    let content = text(1, 500_000);
    world.write(file, 0, &content);
    // Out of the middle of one extent into the middle of another file, and to another place in the same one.
    world.fs.clone_range((file, 40_960), (clone, 8192), 200_704).unwrap();
    world.fs.clone_range((file, 4096), (file, 524_288), 131_072).unwrap();
    let mut expected = vec![0; 8192];
    expected.extend_from_slice(&content[40_960..241_664]);
    assert!(world.content(clone) == expected);
    let mut whole = content.clone();
    whole.resize(524_288, 0);
    whole.extend_from_slice(&content[4096..135_168]);
    assert!(world.content(file) == whole);
    assert!(extents(&world, clone).iter().all(|extent| extent.compression == 3 && extent.ram_bytes == 131_072));
    // What is shared outlives its first owner.
    world.fs.unlink(world.fs.root(), b"file").unwrap();
    world.fs.forget(file, 1);
    let world = world.reopen();
    assert!(world.content(world.id("clone")) == expected);
    world.finish("clone-compressed");
}

#[test]
fn small_files_are_copied() {
    for world in [World::new(), compressing()] {
        let (small, empty, large) = (world.file("small"), world.file("empty"), world.file("large"));
        let content = text(2, 1500);
        world.write(small, 0, &content);
        world.write(large, 0, &pattern(3, 20_000));
        world.fs.sync().unwrap();
        assert_eq!(extents(&world, small)[0].kind, ExtentKind::Inline);
        world.fs.clone_range((small, 0), (empty, 0), 0).unwrap();
        assert!(world.content(empty) == content);
        // At the end of another file, behind a part of a sector.
        world.fs.clone_range((small, 0), (large, 20_480), 0).unwrap();
        let mut expected = pattern(3, 20_000);
        expected.resize(20_480, 0);
        expected.extend_from_slice(&content);
        assert!(world.content(large) == expected);
        // Not over the beginning of a longer one: the rest of the sector would go.
        let refused = world.fs.clone_range((small, 0), (large, 0), 0);
        assert!(refused.is_err_and(|error| error.is(Errno::EINVAL)));
        world.finish("clone-small");
    }
}

fn truncate(world: &World, id: InodeId, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    world.fs.setattr(&super::world::ROOT, id, &set).unwrap();
}

/// A short file whose extent has old data behind the end: that goes before the end moves, but not into the item.
#[test]
fn a_short_file_that_grows_does_not_move_into_its_item() {
    for world in [World::new(), compressing()] {
        let files = ["cloned", "grown"].map(|name| world.file(name));
        let content = text(4, 5000);
        for id in files {
            world.write(id, 0, &content);
            world.fs.sync().unwrap();
            truncate(&world, id, 1000);
            world.fs.sync().unwrap();
            assert_eq!(extents(&world, id)[0].kind, ExtentKind::Regular);
        }
        world.fs.clone_range((files[0], 0), (files[0], 8192), 1000).unwrap();
        truncate(&world, files[1], 20_000);
        for (id, len) in files.into_iter().zip([9192, 20_000]) {
            let mut expected = content[..1000].to_vec();
            expected.resize(len, 0);
            if len == 9192 {
                expected[8192..].copy_from_slice(&content[..1000]);
            }
            assert!(world.content(id) == expected);
            world.fs.sync().unwrap();
            assert!(extents(&world, id).iter().all(|extent| extent.kind != ExtentKind::Inline));
        }
        world.finish("short-grows");
    }
}

#[test]
fn only_equal_content_becomes_shared() {
    let world = World::new();
    let (first, second, other) = (world.file("first"), world.file("second"), world.file("other"));
    let content = pattern(4, 3_000_001);
    world.write(first, 0, &content);
    world.write(second, 0, &content);
    let mut different = content.clone();
    different[2_500_000] ^= 1;
    world.write(other, 0, &different);
    let before = used(&world);
    let times = |id| world.fs.getattr(id).map(|attr| (attr.mtime, attr.ctime)).unwrap();
    let untouched = times(second);
    assert!(world.fs.dedupe_range((first, 0), (second, 0), content.len() as u64).unwrap());
    assert_eq!(addresses(&world, first), addresses(&world, second));
    assert!(world.content(second) == content);
    assert_eq!(times(second), untouched);
    assert!(used(&world) < before - 2_900_000);
    assert!(!world.fs.dedupe_range((first, 0), (other, 0), content.len() as u64).unwrap());
    assert!(world.content(other) == different);
    // What is shared already stays as it is; what was just written is compared as it is now.
    assert!(world.fs.dedupe_range((first, 0), (second, 0), content.len() as u64).unwrap());
    world.write(second, 10, b"now it differs");
    assert!(!world.fs.dedupe_range((first, 0), (second, 0), 1 << 20).unwrap());
    assert!(world.content(second)[10..24] == *b"now it differs");
    for (from, to, len) in [(1, 0, 4096), (0, 100, 4096), (0, 0, 5000), (0, 0, 1 << 40), (2_998_272, 0, 4096)] {
        let refused = world.fs.dedupe_range((first, from), (second, to), len);
        assert!(refused.is_err_and(|error| error.is(Errno::EINVAL)), "{from} {to} {len}");
    }
    assert!(world.fs.dedupe_range((first, 0), (first, 4096), 8192).is_err_and(|error| error.is(Errno::EINVAL)));
    let world = world.reopen();
    assert!(world.content(world.id("first")) == content);
    world.finish("dedupe");
}

/// Writers that come in between win, and nothing of them is lost.
#[test]
fn dedupe_beside_writers_loses_nothing() {
    let world = World::of_env(Options::default(), 512 << 20, butterfs_fs::Env::system());
    let (first, second) = (world.file("first"), world.file("second"));
    let content = pattern(5, 4 << 20);
    world.write(first, 0, &content);
    world.write(second, 0, &content);
    let (fs, writer) = (world.fs.clone(), world.fs.clone());
    let offsets: Vec<u64> = (0..200).map(|i| i * 20_971 % (4 << 20)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            offsets.iter().for_each(|at| assert_eq!(writer.write(second, *at, &[0xee; 10], false).unwrap(), 10))
        });
        for _ in 0..5 {
            match fs.dedupe_range((first, 0), (second, 0), 4 << 20) {
                Ok(_) => {}
                Err(error) => assert!(error.is(Errno::EAGAIN), "{error}"),
            }
        }
    });
    let mut expected = content.clone();
    expected.resize(expected.len().max(offsets.iter().max().map_or(0, |at| *at as usize + 10)), 0);
    offsets.iter().for_each(|at| expected[*at as usize..*at as usize + 10].fill(0xee));
    assert!(world.content(second) == expected);
    assert!(world.content(first) == content);
    world.finish("dedupe-writers");
}

#[test]
fn fragments_become_one_extent() {
    let world = World::new();
    let id = world.file("file");
    let mut content = Vec::new();
    for number in 0..64 {
        content.extend_from_slice(&text(number, 8192));
        world.write(id, number * 8192, &content[number as usize * 8192..]);
        world.fs.sync().unwrap();
    }
    assert!(extents(&world, id).len() >= 64);
    let snapshot = world.fs.snapshot(TreeId::FS, world.fs.root(), b"snapshot", true).unwrap();
    let times = world.fs.getattr(id).unwrap();
    assert_eq!(world.fs.defragment(id, &Defragment::default()).unwrap(), content.len() as u64);
    assert_eq!(extents(&world, id).len(), 1);
    assert_eq!(world.fs.getattr(id).unwrap().mtime, times.mtime);
    assert!(world.content(id) == content && world.content(InodeId::new(snapshot, id.ino)) == content);
    assert_eq!(world.fs.defragment(id, &Defragment::default()).unwrap(), 0, "there is nothing left to do");
    let compress = Defragment { compress: Method::parse("lzo"), ..Defragment::default() };
    assert_eq!(world.fs.defragment(id, &compress).unwrap(), content.len() as u64);
    assert!(extents(&world, id).iter().all(|extent| extent.compression == 2));
    assert_eq!(world.fs.defragment(id, &compress).unwrap(), 0);
    assert!(world.content(id) == content);
    let world = world.reopen();
    assert!(world.content(world.id("file")) == content);
    assert!(world.content(world.id("snapshot/file")) == content);
    world.finish("defragment");
}

#[test]
fn holes_and_preallocated_space_stay() {
    let world = World::new();
    let id = world.file("file");
    for at in [0u64, 4096, 1 << 20, (1 << 20) + 4096, 3 << 20] {
        world.write(id, at, &pattern(at, 4096));
        world.fs.sync().unwrap();
    }
    world.fs.fallocate(id, 0, 2 << 20, 65_536, false).unwrap();
    let content = world.content(id);
    assert_eq!(world.fs.defragment(id, &Defragment::default()).unwrap(), 4 * 4096);
    let shape: Vec<_> = extents(&world, id).iter().map(|extent| (extent.start, extent.len, extent.kind)).collect();
    let (data, prealloc) = (ExtentKind::Regular, ExtentKind::Prealloc);
    let mib = 1 << 20;
    let expected = [(0, 8192, data), (mib, 8192, data), (2 * mib, 65_536, prealloc), (3 * mib, 4096, data)];
    assert_eq!(shape, expected);
    assert!(world.content(id) == content);
    world.finish("defragment-holes");
}

#[test]
fn a_label_is_durable_when_it_is_set() {
    let world = World::new();
    world.fs.set_label(b"another").unwrap();
    let cut = world.after_power_cut();
    assert_eq!(cut.fs.superblock().label(), b"another");
    assert!(world.fs.set_label(&[b'x'; 256]).is_err_and(|error| error.is(Errno::EINVAL)));
    world.fs.set_label(b"").unwrap();
    assert_eq!(world.reopen().fs.superblock().label(), b"");
}

/// Nobody waits for holes: the file is as long as files can be.
#[test]
fn defragmenting_a_long_sparse_file_ends() {
    let _watchdog = Watchdog::new("defragmenting_a_long_sparse_file_ends", 60);
    let world = World::new();
    let id = world.file("long");
    world.fs.write(id, 1 << 61, &[7; 9000], false).unwrap();
    let size = SetAttr { size: Some(i64::MAX as u64), ..SetAttr::default() };
    world.fs.setattr(&ROOT, id, &size).unwrap();
    assert_eq!(world.fs.defragment(id, &Defragment::default()).unwrap(), 0);
}
