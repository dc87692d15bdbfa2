//! Compression on write, beside the kernel: the same files in the same order become the same extents.

use super::world::{World, pattern, text};
use butterfs_fs::file_extent::ExtentKind;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{DataPolicy, Options, inode_flags};
use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;

/// Names and contents; what the kernel does to each is known to depend on nothing else.
fn files() -> Vec<(String, Vec<u8>)> {
    let lengths = [0, 1, 10, 100, 2047, 2048, 2049, 4095, 4096, 4097, 5000, 8192, 131_072, 131_073, 700_001];
    let mut files: Vec<_> = lengths.iter().map(|&len| (format!("text-{len}"), text(len as u64, len))).collect();
    files.extend([100, 2048, 4096, 20_000, 300_000].map(|len| (format!("noise-{len}"), pattern(len as u64, len))));
    files.extend([4096, 400_000].map(|len| (format!("zeros-{len}"), vec![0; len])));
    files.push(("half".into(), [text(5, 262_144), pattern(5, 262_144)].concat()));
    files
}

/// Files in their items that do not become smaller. The kernel's lzo makes them larger, and after its other methods it
/// never tries such a file again, however it grows; we do.
const TINY: [&str; 5] = ["text-1", "text-10", "text-100", "noise-100", "noise-2048"];

/// The bounds and encoding of the extents, and the flags of the file.
type Shape = (Vec<(u64, u64, ExtentKind, u8)>, u64);

fn shape(world: &World, name: &str) -> Shape {
    let id = world.id(name);
    let extents = world.fs.extents(id, 0..1 << 40).unwrap();
    let shown = extents.iter().map(|extent| (extent.start, extent.len, extent.kind, extent.compression)).collect();
    let flags = world.fs.getattr(id).unwrap().flags;
    (shown, flags & (inode_flags::COMPRESS | inode_flags::NOCOMPRESS))
}

/// The kernel's image of the files, and the space that they take in it.
fn kernels(option: &str) -> (Vec<(String, Shape)>, u64) {
    let scratch = Scratch::new("compression-kernel");
    let image = scratch.sparse_file("image", 256 << 20);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, option);
    for (name, content) in files() {
        std::fs::write(mount.path().join(name), content).unwrap();
    }
    assert_eq!(mount.finish(), [""; 0]);
    let world = World::of_image(&image, Options { read_only: true, ..Options::default() });
    let shapes = files().into_iter().map(|(name, _)| (name.clone(), shape(&world, &name))).collect();
    (shapes, world.fs.superblock().bytes_used.get())
}

#[test]
fn the_same_files_become_the_same_extents_as_in_the_kernel() {
    const TEST: &str = "the_same_files_become_the_same_extents_as_in_the_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    for option in ["compress=zlib", "compress=lzo", "compress=zstd:5", "compress-force=zstd", "compress-force=lzo"] {
        let (theirs, their_space) = kernels(option);
        let mut data = DataPolicy::default();
        data.apply(option).expect("an option").expect("a value");
        let options = Options { data, ..Options::default() };
        let world = World::with(&MkfsOptions::default(), options, 256 << 20);
        for (name, content) in files() {
            let id = world.file(&name);
            world.write(id, 0, &content);
        }
        world.fs.sync().unwrap();
        for (name, shape_of_kernel) in &theirs {
            if !TINY.contains(&name.as_str()) {
                assert_eq!(shape(&world, name), *shape_of_kernel, "{option}: {name}");
            }
        }
        let our_space = world.fs.superblock().bytes_used.get();
        println!("{option}: {our_space} bytes, the kernel {their_space}");
        assert!(our_space < their_space + their_space / 8, "{option}: {our_space} bytes, the kernel {their_space}");
        let (_scratch, image) = world.finish("compression");
        let mount = KernelMount::new(&image, "ro");
        for (name, content) in files() {
            assert!(std::fs::read(mount.path().join(&name)).unwrap() == content, "{option}: {name}");
        }
        assert_eq!(mount.finish(), [""; 0]);
    }
}

/// By a commit or by a log, what `fsync` promised is there after a power cut, compressed as it was.
#[test]
fn compressed_data_is_durable_when_fsync_returns() {
    for no_tree_log in [true, false] {
        let mut data = DataPolicy::default();
        data.apply("compress=zstd").expect("an option").expect("a value");
        let options = Options { data, no_tree_log, ..Options::default() };
        let world = World::with(&MkfsOptions::default(), options, 256 << 20);
        world.fs.sync().unwrap();
        let (small, large) = (world.file("small"), world.file("large"));
        let (few, mut many) = (text(1, 900), text(2, 400_000));
        world.write(small, 0, &few);
        world.write(large, 0, &many);
        for patch in [0, 150_000, 399_000] {
            world.write(large, patch as u64, &pattern(9, 1000));
            many[patch..patch + 1000].copy_from_slice(&pattern(9, 1000));
            [small, large].iter().for_each(|id| world.fs.fsync(*id, false).unwrap());
            let cut = world.after_power_cut();
            assert!(
                cut.content(cut.id("small")) == few && cut.content(cut.id("large")) == many,
                "{no_tree_log} {patch}"
            );
            let extents = cut.fs.extents(cut.id("large"), 0..1 << 40).unwrap();
            assert!(extents.iter().any(|extent| extent.compression == 3));
            cut.finish("compression-fsync");
        }
    }
}
