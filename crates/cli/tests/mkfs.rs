//! `butterfs mkfs`: what a user sees, and what `btrfs check`, the kernel and `mkfs.btrfs` say about the result.

mod common;

use butterfs_testkit::kernel::{KernelMount, LoopDevice, can_make, check_all, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok, ran};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// The kernel says this of every filesystem without a free space tree.
const OLD_CACHE: &str = "space cache v1 is being deprecated";

/// A path of a test's own files as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Makes a filesystem, lets the kernel work in it, and has it checked before and after.
fn kernel_accepts(image: &Path, options: &[&str]) {
    butterfs_ok(&[&["mkfs", "--quiet", "--force"], options, &[text(image)]].concat());
    check_all(image);
    let mount = KernelMount::new(image, "noatime");
    let folder = mount.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..300 {
        std::fs::write(folder.join(format!("small {number}")), vec![b'x'; number * 7]).unwrap();
    }
    std::fs::write(mount.path().join("large"), vec![7; 3 << 20]).unwrap();
    run_ok(60, "sync", &["-f", text(mount.path())]);
    std::fs::remove_file(mount.path().join("large")).unwrap();
    let complaints: Vec<String> = mount.finish().into_iter().filter(|line| !line.contains(OLD_CACHE)).collect();
    assert!(complaints.is_empty(), "{options:?}: {complaints:#?}");
    check_all(image);
}

#[test]
fn the_kernel_accepts_every_combination_of_options() {
    if !requirement::kernel_btrfs("the_kernel_accepts_every_combination_of_options") {
        return;
    }
    let scratch = Scratch::new("mkfs-matrix");
    let table: &[(u64, &[&str])] = &[
        (1024, &[]),
        (300 * 1024, &[]),
        (200, &["-L", "a label", "-U", "6f3a0e5c-0d5a-4a43-9d28-2a0a1b1f9d11"]),
        (200, &["--csum", "xxhash"]),
        (200, &["--csum", "sha256", "-n", "4k"]),
        (200, &["--csum", "blake2", "-n", "64k"]),
        (300, &["-n", "4096"]),
        (300, &["-n", "8k", "-O", "^skinny-metadata"]),
        (300, &["-n", "32k", "-m", "single"]),
        (300, &["-n", "65536", "-O", "^skinny-metadata,^extref"]),
        (200, &["-O", "^no-holes"]),
        (200, &["-O", "^free-space-tree"]),
        (200, &["-O", "^block-group-tree"]),
        (200, &["-O", "^block-group-tree", "-n", "4k", "-O", "^skinny-metadata"]),
        (300, &["-d", "dup"]),
        (300, &["-m", "single", "-d", "dup"]),
        (100, &["-M"]),
        (300, &["-M", "-m", "dup", "-d", "dup"]),
        (100, &["-O", "mixed-bg,^block-group-tree"]),
        (300, &["-b", "150m"]),
        (300, &["-K"]),
    ];
    for (mib, options) in table {
        let image = scratch.sparse_file("image", mib * MIB);
        kernel_accepts(&image, options);
    }
}

/// The sizes around what is named as the minimum, and those that mkfs.btrfs names: either refused with the minimum, or
/// the kernel can work in the result.
#[test]
fn the_kernel_can_work_in_the_smallest_filesystems() {
    if !requirement::kernel_btrfs("the_kernel_can_work_in_the_smallest_filesystems") {
        return;
    }
    let scratch = Scratch::new("mkfs-small");
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    println!("SEED={seed}");
    let mut rng = Rng::new(seed);
    let table: &[(&[&str], u64)] = &[
        (&[], 114294784),
        (&["-n", "64k"], 114294784),
        (&["-m", "single"], 47185920),
        (&["-m", "single", "-n", "4k"], 47185920),
        (&["-d", "dup"], 240123904),
        (&["-M"], 16777216),
    ];
    for (options, theirs) in table {
        let minimum = named_minimum(&scratch, options);
        assert!(minimum <= *theirs, "{options:?}: mkfs.btrfs makes filesystems of {theirs} bytes, we of {minimum}");
        let refused = scratch.sparse_file("image", minimum - 1);
        let said = butterfs(&[&["mkfs", "-f"], *options, &[text(&refused)]].concat());
        assert!(said.code == Some(1) && said.stderr.contains(&minimum.to_string()), "{options:?}: {said:?}");
        let random = minimum + rng.below(128 * 1024) * 512;
        for size in [minimum, *theirs, random] {
            println!("{options:?} in {size} bytes");
            kernel_accepts(&scratch.sparse_file("image", size), options);
        }
    }
}

/// The minimum that the refusal of a tiny file names.
fn named_minimum(scratch: &Scratch, options: &[&str]) -> u64 {
    let tiny = scratch.sparse_file("tiny", MIB);
    let said = butterfs(&[&["mkfs"], options, &[text(&tiny)]].concat());
    assert_eq!(said.code, Some(1), "{said:?}");
    let number = said.stderr.split("the minimum is ").nth(1).and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no minimum in {said:?}"))
}

#[test]
fn a_loop_device_gets_a_filesystem_unless_it_is_mounted() {
    if !requirement::kernel_btrfs("a_loop_device_gets_a_filesystem_unless_it_is_mounted") {
        return;
    }
    let scratch = Scratch::new("mkfs-loop");
    let image = scratch.sparse_file("image", 200 * MIB);
    let device = LoopDevice::attach(&image, false);
    butterfs_ok(&["mkfs", "-q", text(device.path())]);
    drop(device);
    check_all(&image);
    let mount = KernelMount::new(&image, "ro");
    let refused = butterfs(&["mkfs", "-f", text(&image)]);
    assert!(refused.code == Some(1) && refused.stderr.contains("mounted at"), "{refused:?}");
    assert_eq!(mount.finish(), Vec::<String>::new());
    check_all(&image);
}

/// Fields of the superblock that depend on the options alone.
const SUPER_FIELDS: &[&str] = &[
    "csum_type",
    "csum_size",
    "flags",
    "magic",
    "label",
    "root_level",
    "chunk_root_level",
    "log_root",
    "log_root_level",
    "total_bytes",
    "sectorsize",
    "nodesize",
    "stripesize",
    "root_dir",
    "num_devices",
    "compat_flags",
    "compat_ro_flags",
    "incompat_flags",
    "cache_generation",
    "dev_item.type",
    "dev_item.total_bytes",
    "dev_item.io_align",
    "dev_item.io_width",
    "dev_item.sector_size",
    "dev_item.devid",
    "dev_item.dev_group",
    "dev_item.seek_speed",
    "dev_item.bandwidth",
    "dev_item.generation",
];

/// The fields as `btrfs inspect-internal dump-super` prints them. The feature bit for large nodes is left out: the
/// kernel sets it at the first mount, and not every version of mkfs.btrfs sets it before.
fn super_fields(image: &Path) -> BTreeMap<String, String> {
    let dump = run_ok(60, "btrfs", &["inspect-internal", "dump-super", text(image)]);
    let mut fields = BTreeMap::new();
    for line in dump.lines() {
        let Some((name, value)) = line.split_once('\t') else { continue };
        let mut value = value.trim().to_owned();
        if name == "incompat_flags" {
            let bits = u64::from_str_radix(value.trim_start_matches("0x"), 16).expect("flags are hexadecimal");
            value = format!("{:#x}", bits & !0x20);
        }
        if SUPER_FIELDS.contains(&name) {
            fields.insert(name.to_owned(), value);
        }
    }
    assert_eq!(fields.len(), SUPER_FIELDS.len(), "{dump}");
    fields
}

/// Keys and sizes of the items of some trees whose items do not depend on where things lie.
fn items(image: &Path) -> Vec<String> {
    let mut items = Vec::new();
    for tree in ["root", "fs", "csum", "data_reloc"] {
        let dump = run_ok(60, "btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)]);
        let keys = dump.lines().filter_map(|line| line.trim().strip_prefix("item "));
        items.extend(keys.map(|line| {
            let key = line.split_once(" key ").map_or(line, |(_, rest)| rest);
            let (key, size) = (key.split(" itemoff").next(), line.split("itemsize ").nth(1));
            format!("{tree} {} {}", key.unwrap_or_default(), size.unwrap_or_default())
        }));
    }
    items
}

#[test]
fn superblock_and_items_are_those_of_mkfs_btrfs() {
    let test = "superblock_and_items_are_those_of_mkfs_btrfs";
    if !requirement::programs(test, &["mkfs.btrfs", "btrfs"]) {
        return;
    }
    let scratch = Scratch::new("mkfs-compare");
    let table: &[&[&str]] = &[
        &[],
        &["-L", "Überschrift", "-U", "6f3a0e5c-0d5a-4a43-9d28-2a0a1b1f9d11"],
        &["-n", "4096"],
        &["-n", "65536", "--csum", "blake2"],
        &["--csum", "xxhash"],
        &["--csum", "sha256", "-m", "single"],
        &["-O", "^no-holes"],
        &["-O", "^free-space-tree"],
        &["-O", "^skinny-metadata,^extref"],
        &["-M"],
        &["-b", "200000000"],
    ];
    for options in table {
        let theirs = scratch.sparse_file("theirs", 300 * MIB);
        let ours = scratch.sparse_file("ours", 300 * MIB);
        butterfs_ok(&[&["mkfs", "-q"], *options, &[text(&ours)]].concat());
        mkfs(&theirs, &[*options, &[block_group_tree(options)]].concat());
        assert_eq!(super_fields(&ours), super_fields(&theirs), "{options:?}");
        assert_eq!(items(&ours), items(&theirs), "{options:?}");
    }
}

/// The option that makes every version of mkfs.btrfs that knows the block group tree agree with our default.
fn block_group_tree(options: &[&str]) -> &'static str {
    let possible = !options.iter().any(|option| matches!(*option, "^no-holes" | "^free-space-tree"));
    match (can_make("block-group-tree"), possible) {
        (true, true) => "-Oblock-group-tree",
        (true, false) => "-O^block-group-tree",
        (false, _) => panic!("this mkfs.btrfs does not know the block group tree; cargo xtask test fetches one"),
    }
}

#[test]
fn the_summary_tells_what_was_made() {
    let scratch = Scratch::new("mkfs-summary");
    let image = scratch.join("disk.img");
    let uuid = "6f3a0e5c-0d5a-4a43-9d28-2a0a1b1f9d11";
    let said = butterfs_ok(&["mkfs", "-L", "tiny", "-U", uuid, "-b", "1G", text(&image)]);
    let expected = format!(
        "\
Label:              tiny
UUID:               {uuid}
Node size:          16384
Sector size:        4096
Filesystem size:    1.00GiB
Block group profiles:
  Data:             single            8.00MiB
  Metadata:         DUP              51.19MiB
  System:           DUP               8.00MiB
Features:           extref, skinny-metadata, no-holes, free-space-tree, block-group-tree
Checksum:           crc32c
Number of devices:  1
Devices:
   ID        SIZE  PATH
    1     1.00GiB  {}
",
        image.display()
    );
    assert_eq!(said, expected);
    let metadata = image.metadata().unwrap();
    assert_eq!(metadata.len(), 1024 * MIB);
    assert!(metadata.blocks() * 512 < MIB, "the file is sparse, {} blocks", metadata.blocks());
    assert_eq!(butterfs_ok(&["mkfs", "-q", "-f", text(&image)]), "");
}

#[test]
fn refusals_are_one_sentence_with_the_right_code() {
    let scratch = Scratch::new("mkfs-refusals");
    let image = scratch.sparse_file("image", 300 * MIB);
    let taken = scratch.sparse_file("taken", 300 * MIB);
    butterfs_ok(&["mkfs", "-q", text(&taken)]);
    let (image, taken, absent) = (text(&image), text(&taken), scratch.join("absent"));
    let (folder, absent) = (text(scratch.path()), text(&absent));
    let table: &[(&[&str], i32, &str)] = &[
        (&["mkfs"], 2, "no device"),
        (&["mkfs", "--nosuch", image], 2, "'--nosuch'"),
        (&["mkfs", "-n", "5000", image], 2, "invalid node size 5000"),
        (&["mkfs", "-s", "16k", image], 2, "sector size 16384 is not supported"),
        (&["mkfs", "-M", "-n", "16k", image], 2, "mixed block groups"),
        (&["mkfs", "-O", "frob", image], 2, "unrecognized filesystem feature 'frob'"),
        (&["mkfs", "-O", "zoned", image], 2, "filesystem feature 'zoned' is not supported"),
        (&["mkfs", "-m", "raid7", image], 2, "'raid7'"),
        (&["mkfs", "-m", "raid1", image], 2, "metadata profile RAID1 needs at least 2 devices"),
        (&["mkfs", "--csum", "md5", image], 2, "'md5'"),
        (&["mkfs", "-U", "xyz", image], 2, "'xyz'"),
        (&["mkfs", "-b", "1x", image], 2, "suffix 'x'"),
        (&["mkfs", absent], 1, "does not exist"),
        (&["mkfs", "-b", "1m", absent], 1, "too small"),
        (&["mkfs", "-b", "1g", image], 1, "smaller than the requested size"),
        (&["mkfs", folder], 1, "is a directory"),
        (&["mkfs", "/dev/null"], 1, "is a character device"),
        (&["mkfs", taken], 1, "existing filesystem (btrfs)"),
        (&["mkfs", image, taken], 1, "taken appears to contain an existing filesystem (btrfs)"),
    ];
    for (arguments, code, part) in table {
        let said = butterfs(arguments);
        assert_eq!(said.code, Some(*code), "{arguments:?}: {said:?}");
        assert!(said.stdout.is_empty(), "{arguments:?}: {said:?}");
        let mut lines = said.stderr.lines();
        let sentence = lines.next().unwrap_or_default();
        assert!(sentence.starts_with("ERROR: ") && sentence.contains(part), "{arguments:?}: {said:?}");
        assert!(lines.all(|line| line.starts_with("hint: ")), "{arguments:?}: {said:?}");
    }
    assert!(!Path::new(absent).exists(), "a file that was created for nothing is removed");
}

#[test]
fn the_program_is_known_by_other_names() {
    let scratch = Scratch::new("mkfs-names");
    let link = scratch.join("mkfs.butterfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butterfs"), &link).unwrap();
    let image = scratch.sparse_file("image", 300 * MIB);
    let said = ran(Command::new(&link).args(["-q", text(&image)]).output().unwrap());
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "", ""));
    let said = ran(Command::new(&link).arg("--version").output().unwrap());
    assert!(said.code == Some(0) && said.stdout.starts_with("mkfs.butterfs "), "{said:?}");
}

#[test]
fn features_are_listed() {
    let list = butterfs_ok(&["mkfs", "-O", "list-all"]);
    for feature in ["mixed-bg", "extref", "skinny-metadata", "no-holes", "free-space-tree", "block-group-tree"] {
        assert!(list.lines().any(|line| line.starts_with(feature)), "{list}");
    }
}
