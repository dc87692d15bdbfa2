//! Us to the kernel: random operations, mirrored on the model, on the engine and through the mount; then the checkers.
//!
//! At least 100,000 operations in all. After each run `btrfs check` is clean, the kernel mounts the image without a
//! complaint, and what it shows equals what we showed and what the model holds.

use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::engine::{FORMATS, Format, device, open, tight};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::operation::{Op, OperationTarget, RelPath, Reply};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run};
use butterfs_testkit::{images, requirement};
use std::path::Path;

const IMAGE_BYTES: u64 = 1 << 30;
const LIBRARY_OPERATIONS: usize = 15_000;
const MOUNT_OPERATIONS: usize = 12_000;

fn same(what: &str, expected: &Fingerprint, actual: &Fingerprint, compare: Compare) {
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
}

/// Closes what the workload left open, on both sides.
fn close_all(model: &mut ModelFs, target: &mut dyn OperationTarget) {
    let open: Vec<u32> = model.handles().keys().copied().collect();
    for handle in open {
        let close = Op::Close { handle };
        assert_eq!(model.apply(&close), target.apply(&close));
    }
}

/// `btrfs check`, then the kernel's mount: what it shows is what we showed, and what the model holds.
fn judge(image: &Path, model: &ModelFs, shown: &Fingerprint, slack_ns: u64) {
    check_all(image);
    let mount = KernelMount::new(image, "ro,noatime");
    let kernel = Fingerprint::of_tree(mount.path());
    same("kernel against model", &Fingerprint::of_model(model), &kernel, Compare::MODEL);
    same("kernel against us", shown, &kernel, Compare { atime: false, slack_ns, ..Compare::ALL });
    assert_eq!(mount.finish(), [""; 0]);
}

/// A run on the engine, in three parts with a reopening between them.
fn library_run(seed: u64, format: &Format, options: &Options) {
    println!("seed {seed}, {format:?}");
    let scratch = Scratch::new("library");
    let image = scratch.sparse_file("image", IMAGE_BYTES);
    format.make(&device(&image));
    let mut model = ModelFs::default();
    let mut generator = Generator::new(seed, Shape::ORDINARY);
    let mut shown = Fingerprint::default();
    for _ in 0..3 {
        let filesystem = open(&image, options.clone());
        let mut library = Library::new(&filesystem);
        let done = run(&mut generator, LIBRARY_OPERATIONS / 3, &mut model, &mut library);
        done.unwrap_or_else(|found| panic!("{found:?}"));
        close_all(&mut model, &mut library);
        // So that the blocks are those on the disk.
        filesystem.sync().unwrap_or_else(|error| panic!("{error}"));
        shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{error}"));
        same("engine against model", &Fingerprint::of_model(&model), &shown, Compare::MODEL);
        filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    }
    judge(&image, &model, &shown, 0);
}

/// With a mount option that says how data is stored.
fn storing(mut options: Options, how: &str) -> Options {
    options.data.apply(how).expect("an option").expect("a value");
    options
}

macro_rules! library_runs {
    ($($name:ident: $format:literal, $options:expr;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 400);
            library_run(1000 + $format, &FORMATS[$format], &$options);
        }
    )* };
}

library_runs! {
    library_default: 0, Options::default();
    library_small_nodes: 1, tight();
    library_large_nodes_and_hole_items: 2, Options::default();
    library_mixed_groups: 3, tight();
    library_without_free_space_tree: 4, tight();
    library_small_nodes_block_group_tree: 5, storing(tight(), "compress-force=zstd");
    library_compressed: 0, storing(Options::default(), "compress=lzo");
    library_in_place: 2, storing(tight(), "nodatacow");
}

fn mount_run(seed: u64, options: &str) {
    println!("seed {seed}, mounted with {options}");
    let scratch = Scratch::new("mount");
    let image = scratch.sparse_file("image", IMAGE_BYTES);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let mut model = ModelFs::default();
    let mut generator = Generator::new(seed, Shape::ORDINARY);
    let mut shown = Fingerprint::default();
    for _ in 0..2 {
        let served = Served::mount(&image, &at, options);
        let mut mounted = Mounted::new(&at);
        let done = run(&mut generator, MOUNT_OPERATIONS / 2, &mut model, &mut mounted);
        done.unwrap_or_else(|found| panic!("{found:?}"));
        close_all(&mut model, &mut mounted);
        assert_eq!(mounted.apply(&Op::Sync), Ok(Reply::Done));
        shown = Fingerprint::of_tree(&at);
        same("mount against model", &Fingerprint::of_model(&model), &shown, Compare::MODEL);
        served.unmount();
    }
    // The kernel keeps the times of what its cache changes and does not send a change within one tick of its clock.
    judge(&image, &model, &shown, 20_000_000);
}

macro_rules! mount_runs {
    ($($name:ident: $seed:literal, $options:literal;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) || !requirement::fuse(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 400);
            mount_run($seed, $options);
        }
    )* };
}

mount_runs! {
    mount_first: 2001, "noatime";
    mount_second: 2002, "commit=1,compress-force=lzo";
    mount_third: 2003, "noatime,max_inline=0";
}

/// Threads that each have a folder and a model of their own: what one does must not show in another's.
#[test]
fn library_threads() {
    const TEST: &str = "library_threads";
    const THREADS: u64 = 6;
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 400);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", IMAGE_BYTES);
    FORMATS[0].make(&device(&image));
    let filesystem = open(&image, tight());
    let folder = |number: u64| RelPath(format!("thread-{number}").into_bytes());
    for number in 0..THREADS {
        let made = Library::new(&filesystem).apply(&Op::Mkdir { path: folder(number), mode: 0o755 });
        made.expect("an empty filesystem");
    }
    let one = |filesystem: Filesystem, number: u64| {
        let mut model = ModelFs::default();
        let mut library = Library::below(&filesystem, &folder(number));
        let shape = Shape { inodes_max: 400, data_max: 8 << 20, ..Shape::ORDINARY };
        let done = run(&mut Generator::new(3000 + number, shape), 3000, &mut model, &mut library);
        done.unwrap_or_else(|found| panic!("thread {number}: {found:?}"));
        close_all(&mut model, &mut library);
        model
    };
    let models: Vec<ModelFs> = std::thread::scope(|scope| {
        let start = |number| {
            let filesystem = filesystem.clone();
            scope.spawn(move || one(filesystem, number))
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that does not panic")).collect()
    });
    filesystem.sync().unwrap_or_else(|error| panic!("{error}"));
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{error}"));
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    check_all(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    same("kernel against us", &shown, &Fingerprint::of_tree(mount.path()), Compare { atime: false, ..Compare::ALL });
    for (number, model) in (0..).zip(&models) {
        let folder = mount.path().join(format!("thread-{number}"));
        let expected = Fingerprint::of_model(model);
        same(&format!("thread {number}"), &expected, &Fingerprint::of_tree(&folder), Compare::MODEL);
    }
    assert_eq!(mount.finish(), [""; 0]);
}

/// Snapshots that the kernel made stay as they are while we work in the subvolume they were made of.
#[test]
fn snapshots_stay() {
    const TEST: &str = "snapshots_stay";
    const OPERATIONS: usize = 4000;
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 500);
    for name in ["default", "xxhash-4k", "bgt-4k-sha256", "crc32c-64k-holes"] {
        let variant = images::VARIANTS.iter().find(|variant| variant.name == name).expect("a known variant");
        if variant.feature.is_some_and(|feature| !butterfs_testkit::kernel::can_make(feature)) {
            requirement::skip(TEST, &format!("mkfs.btrfs cannot make {name}"));
            continue;
        }
        let scratch = Scratch::new(TEST);
        let image = images::make(variant, &scratch);
        let before = other_than_volume(&image);
        let mut model = ModelFs::default();
        let work = RelPath::from("volume/work");
        let filesystem = open(&image, tight());
        let mut whole = Library::new(&filesystem);
        whole.apply(&Op::Mkdir { path: work.clone(), mode: 0o755 }).expect("a new name");
        let done = run(
            &mut Generator::new(4000, Shape::ORDINARY),
            OPERATIONS,
            &mut model,
            &mut Library::below(&filesystem, &work),
        );
        done.unwrap_or_else(|found| panic!("{name}: {found:?}"));
        filesystem.shutdown().unwrap_or_else(|error| panic!("{name}: {error}"));
        // The last of them closes the device.
        drop((whole, filesystem));
        check_all(&image);
        let at = scratch.folder("mnt");
        let served = Served::mount(&image, &at, "noatime");
        // The old files go too, most of them: that is what takes shared nodes apart.
        thin_out(&at.join("volume"));
        std::fs::create_dir(at.join("volume/again")).expect("a new name");
        let mut second = Generator::new(4001, Shape::ORDINARY);
        let mut other_model = ModelFs::new(0o777);
        let mut mounted = Mounted::new(&at.join("volume/again"));
        let done = run(&mut second, OPERATIONS / 2, &mut other_model, &mut mounted);
        done.unwrap_or_else(|found| panic!("{name}: {found:?}"));
        drop(mounted);
        served.unmount();
        check_all(&image);
        same(name, &before, &other_than_volume(&image), Compare::ALL);
    }
}

/// Removes two of three files below `folder`, and changes the third.
fn thin_out(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    let mut number = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("mounted").map(|entry| entry.expect("mounted")) {
            let kind = entry.file_type().expect("mounted");
            number += 1;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if number % 3 != 0 {
                std::fs::remove_file(entry.path()).expect("a file can be removed");
            } else if kind.is_file() {
                let longer = std::fs::OpenOptions::new().append(true).open(entry.path());
                std::io::Write::write_all(&mut longer.expect("root may"), &[7; 3000]).expect("room");
            }
        }
    }
}

/// Everything outside the subvolume that is worked in, as the kernel shows it.
fn other_than_volume(image: &Path) -> Fingerprint {
    let mount = KernelMount::new(image, "ro,noatime");
    let mut print = Fingerprint::of_tree(mount.path());
    print.entries.retain(|path, _| path != b"volume" && !path.starts_with(b"volume/"));
    assert_eq!(mount.finish(), [""; 0]);
    print
}
