//! The kernel to us: everything that the kernel shows of images it made, we show too; then we work in them.
//!
//! For each way of storing: the engine's view and the mount's equal the kernel's, in names, types, modes, owners,
//! times, links, xattrs, contents, holes and blocks. After a workload of ours in a new folder the image checks clean,
//! the workload is what the model holds, and everything else is as it was.

use butterfs_fs::Options;
use butterfs_testkit::engine::{open, tight};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, can_make, check_all};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Op, OperationTarget, RelPath};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run};
use butterfs_testkit::{images, requirement};
use std::path::Path;

const OPERATIONS: usize = 1500;

fn same(what: &str, expected: &Fingerprint, actual: &Fingerprint, compare: Compare) {
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
}

fn kernels_view(image: &Path) -> Fingerprint {
    let mount = KernelMount::new(image, "ro,noatime");
    let print = Fingerprint::of_tree(mount.path());
    assert_eq!(mount.finish(), [""; 0]);
    print
}

fn reads_the_same(image: &Path, scratch: &Scratch, kernel: &Fingerprint) {
    let filesystem = open(image, Options { read_only: true, ..Options::default() });
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{error}"));
    same("engine against kernel", kernel, &shown, Compare::ALL);
    drop(filesystem);
    let served = Served::mount(image, &scratch.folder("mnt"), "ro,noatime");
    same("mount against kernel", kernel, &Fingerprint::of_tree(served.path()), Compare::ALL);
    served.unmount();
}

fn works_in_it(image: &Path, seed: u64, kernel: &Fingerprint) {
    let work = RelPath::from("work");
    let filesystem = open(image, tight());
    let made = Library::new(&filesystem).apply(&Op::Mkdir { path: work.clone(), mode: 0o755 });
    made.expect("a new name");
    let (mut model, mut library) = (ModelFs::default(), Library::below(&filesystem, &work));
    let shape = Shape { data_max: 16 << 20, ..Shape::ORDINARY };
    let done = run(&mut Generator::new(seed, shape), OPERATIONS, &mut model, &mut library);
    done.unwrap_or_else(|found| panic!("{found:?}"));
    for handle in model.handles().keys().copied().collect::<Vec<u32>>() {
        assert_eq!(model.apply(&Op::Close { handle }), library.apply(&Op::Close { handle }));
    }
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    check_all(image);
    let mut after = kernels_view(image);
    let mut ours = Fingerprint::default();
    let inside = |path: &Vec<u8>| path == b"work" || path.starts_with(b"work/");
    let (work, rest) = after.entries.into_iter().partition(|(path, _)| inside(path));
    (after.entries, ours.entries) = (rest, work);
    let strip = |path: Vec<u8>| path[b"work".len()..].strip_prefix(b"/").unwrap_or_default().to_vec();
    ours.entries = ours
        .entries
        .into_iter()
        .map(|(path, mut entry)| {
            entry.first_path = entry.first_path.map(strip);
            (strip(path), entry)
        })
        .collect();
    same("our work", &Fingerprint::of_model(&model), &ours, Compare::MODEL);
    let mut before = kernel.clone();
    // The root folder has one more name and with it a new size and time.
    before.entries.remove(&b""[..]);
    after.entries.remove(&b""[..]);
    same("what was there before", &before, &after, Compare::ALL);
}

fn variant(name: &str, seed: u64) {
    let variant = images::VARIANTS.iter().find(|variant| variant.name == name).expect("a known variant");
    if !requirement::kernel_btrfs(name) || !requirement::fuse(name) {
        return;
    }
    if variant.feature.is_some_and(|feature| !can_make(feature)) {
        return requirement::skip(name, "mkfs.btrfs cannot make it");
    }
    let _watchdog = Watchdog::new(name, 300);
    let scratch = Scratch::new(name);
    let image = images::make(variant, &scratch);
    let kernel = kernels_view(&image);
    reads_the_same(&image, &scratch, &kernel);
    works_in_it(&image, seed, &kernel);
}

macro_rules! variants {
    ($($test:ident: $name:literal, $seed:literal;)*) => {
        $(#[test] fn $test() { variant($name, $seed); })*

        #[test]
        fn every_variant_has_a_test() {
            let listed = [$($name),*];
            assert!(images::VARIANTS.iter().map(|variant| variant.name).eq(listed));
        }
    };
}

variants! {
    default: "default", 1;
    xxhash_4k: "xxhash-4k", 2;
    sha256_16k: "sha256-16k", 3;
    blake2_64k: "blake2-64k", 4;
    crc32c_64k_holes: "crc32c-64k-holes", 5;
    crc32c_4k_full: "crc32c-4k-full", 6;
    no_extref: "no-extref", 7;
    mixed: "mixed", 8;
    metadata_single: "metadata-single", 9;
    data_dup: "data-dup", 10;
    cache_v1: "cache-v1", 11;
    no_cache_4k: "no-cache-4k", 12;
    bgt: "bgt", 13;
    bgt_4k_sha256: "bgt-4k-sha256", 14;
}
