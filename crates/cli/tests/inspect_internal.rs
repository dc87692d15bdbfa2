//! `butterfs inspect-internal` against the installed btrfs-progs: the same text for the same image.

mod common;

use butterfs_testkit::images::{self, VARIANTS, Variant};
use butterfs_testkit::kernel::{KernelMount, can_make, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The version whose text ours is. Others differ here and there.
const VERSION: &str = "btrfs-progs v6.2";

/// A path of a test's own files as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// True when there is a btrfs-progs to compare with.
fn btrfs_progs(test: &str) -> bool {
    if !requirement::programs(test, &["btrfs", "mkfs.btrfs"]) {
        return false;
    }
    let version = String::from_utf8_lossy(&installed(&["--version"]).stdout).into_owned();
    let fits = version.lines().next() == Some(VERSION);
    if !fits {
        requirement::skip(test, &format!("needs {VERSION}, has {}", version.trim()));
    }
    fits
}

fn installed(arguments: &[&str]) -> Output {
    let program = requirement::program("btrfs").expect("btrfs was required");
    Command::new(program).args(arguments).output().expect("btrfs runs")
}

fn ours(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_butterfs")).args(arguments).output().expect("the command was built")
}

/// Both programs print the same for one command line.
fn same_text(arguments: &[&str], devices: &[&Path]) {
    let devices: Vec<&str> = devices.iter().map(|path| text(path)).collect();
    let line = [&["inspect-internal"], arguments, &devices].concat();
    let (theirs, ours) = (installed(&line), ours(&line));
    if theirs.stdout == ours.stdout {
        return;
    }
    let lines = |output: &Output| -> Vec<String> {
        output.stdout.split(|&byte| byte == b'\n').map(|line| line.escape_ascii().to_string()).collect()
    };
    let (theirs, mine) = (lines(&theirs), lines(&ours));
    let at = theirs.iter().zip(&mine).position(|(a, b)| a != b).unwrap_or(theirs.len().min(mine.len()));
    let stderr = String::from_utf8_lossy(&ours.stderr);
    panic!("{}: line {at}: {:?}, ours {:?}\n{stderr}", line.join(" "), theirs.get(at), mine.get(at));
}

/// Every option of both commands that makes sense for any image.
fn same_text_for_everything(image: &Path) {
    let table: &[&[&str]] = &[
        &["dump-super"],
        &["dump-super", "-f", "-a"],
        &["dump-super", "--full", "--super", "1"],
        &["dump-super", "-s", "2"],
        &["dump-super", "--bytenr", "67108864"],
        &["dump-tree"],
        &["dump-tree", "--dfs"],
        &["dump-tree", "--hide-names", "--csum-headers", "--csum-items"],
        &["dump-tree", "-e"],
        &["dump-tree", "-d"],
        &["dump-tree", "-r"],
        &["dump-tree", "-R"],
        &["dump-tree", "-u"],
        &["dump-tree", "--extents", "--device"],
        &["dump-tree", "--roots", "--uuid"],
        &["dump-tree", "-R", "-d"],
        &["dump-tree", "-t", "5", "-e"],
        &["dump-tree", "-t", "chunk", "-t", "root"],
        &["dump-tree", "-t", "CHUNK_TREE"],
        &["dump-tree", "-t", "extent", "--bfs"],
        &["dump-tree", "-t", "BTRFS_FS_TREE_OBJECTID", "--noscan"],
        &["dump-tree", "-t", "256"],
        &["dump-tree", "-t", "block_group_tree"],
        &["dump-tree", "-t", "tree_log"],
        &["dump-tree", "-t", "99999"],
    ];
    for arguments in table {
        same_text(arguments, &[image]);
    }
    same_text_of_blocks(image);
}

/// --block, with the roots of the root tree and the chunk tree.
fn same_text_of_blocks(image: &Path) {
    let superblock = butterfs_ok(&["inspect-internal", "dump-super", text(image)]);
    let field = |name: &str| superblock.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned();
    let (root, chunk_root) = (field("root\t"), field("chunk_root\t"));
    same_text(&["dump-tree", "-b", &root], &[image]);
    same_text(&["dump-tree", "-b", &root, "-b", &chunk_root, "--follow"], &[image]);
    same_text(&["dump-tree", "--block", &chunk_root, "--block", &root, "--follow", "--dfs"], &[image]);
    let hexadecimal = format!("{:#x}", root.parse::<u64>().unwrap());
    same_text(&["dump-tree", "-b", &hexadecimal, "-b", "4096"], &[image]);
}

#[test]
fn new_filesystems() {
    if !btrfs_progs("new_filesystems") {
        return;
    }
    let scratch = Scratch::new("dump-new");
    let table: &[&[&str]] = &[
        &[],
        &["-L", "a label \"x\" \u{e4}", "-U", "6f3a0e5c-0d5a-4a43-9d28-2a0a1b1f9d11"],
        &["--csum", "xxhash", "-n", "4096"],
        &["--csum", "sha256", "-n", "65536"],
        &["--csum", "blake2"],
        &["-M"],
        &["-m", "single"],
        &["-O", "^no-holes,^skinny-metadata,^extref"],
        &["-R", "quota"],
    ];
    for (number, options) in table.iter().enumerate() {
        let image = scratch.sparse_file(&number.to_string(), 200 * MIB);
        mkfs(&image, options);
        same_text_for_everything(&image);
        std::fs::remove_file(image).unwrap();
    }
    let image = scratch.sparse_file("ours", 300 * MIB);
    butterfs_ok(&["mkfs", "-q", text(&image)]);
    same_text_for_everything(&image);
}

#[test]
fn filesystems_on_several_devices() {
    if !btrfs_progs("filesystems_on_several_devices") {
        return;
    }
    let scratch = Scratch::new("dump-several");
    for (metadata, data, count) in [("raid1", "raid0", 2), ("raid10", "raid10", 4), ("raid1c3", "raid5", 3)] {
        let image = |number| scratch.sparse_file(&format!("{metadata}-{number}"), 400 * MIB);
        let images: Vec<PathBuf> = (0..count).map(image).collect();
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let others: Vec<&str> = paths[..count - 1].iter().map(|path| text(path)).collect();
        mkfs(paths[count - 1], &[&["-m", metadata, "-d", data], &others[..]].concat());
        same_text(&["dump-tree", "--noscan"], &paths);
        same_text(&["dump-super", "-f"], &paths);
        // Without one device the others still show what mirrors have.
        let ran = butterfs(&["inspect-internal", "dump-tree", "--noscan", text(paths[0])]);
        assert!(ran.stderr.contains("devices are here"), "{ran:?}");
        assert_eq!(ran.code, Some(i32::from(metadata == "raid10" && ran.stderr.contains("not complete"))), "{ran:?}");
    }
}

/// The features that are named in a variant's options of mkfs.btrfs.
fn features(variant: &Variant) -> impl Iterator<Item = &str> {
    let lists = variant.mkfs.windows(2).filter(|pair| pair[0] == "-O").map(|pair| pair[1]);
    lists.flat_map(|list| list.split(',')).map(|name| name.trim_start_matches('^'))
}

#[test]
fn filesystems_that_the_kernel_filled() {
    let test = "filesystems_that_the_kernel_filled";
    if !requirement::kernel_btrfs(test) || !btrfs_progs(test) {
        return;
    }
    let scratch = Scratch::new("dump-filled");
    let wanted = ["default", "xxhash-4k", "blake2-64k", "crc32c-4k-full", "mixed", "cache-v1", "bgt"];
    for variant in VARIANTS.iter().filter(|variant| wanted.contains(&variant.name)) {
        if let Some(feature) = features(variant).find(|feature| !can_make(feature)) {
            requirement::skip(test, &format!("{}: needs a mkfs.btrfs that knows {feature}", variant.name));
            continue;
        }
        let image = images::make(variant, &scratch);
        same_text_for_everything(&image);
        std::fs::remove_file(image).unwrap();
    }
}

/// Quotas with limits and relations, a paused balance with half-done relocation, a subvolume being deleted, an inode
/// that is deleted but open: as the image is while it is still mounted.
#[test]
fn rare_items() {
    if !requirement::kernel_btrfs("rare_items") || !btrfs_progs("rare_items") {
        return;
    }
    let scratch = Scratch::new("dump-rare");
    let image = scratch.sparse_file("rare", 1024 * MIB);
    mkfs(&image, &["-m", "single"]);
    let mount = KernelMount::new(&image, "noatime");
    let path = |name: &str| mount.path().join(name).to_str().expect("test paths are text").to_owned();
    let root = path("");
    let btrfs = |arguments: &[&str]| run_ok(120, "btrfs", arguments);
    btrfs(&["quota", "enable", &root]);
    btrfs(&["subvolume", "create", &path("a")]);
    btrfs(&["subvolume", "create", &path("b")]);
    btrfs(&["qgroup", "create", "1/100", &root]);
    btrfs(&["qgroup", "assign", "--no-rescan", "0/256", "1/100", &root]);
    btrfs(&["qgroup", "limit", "-e", "500M", "1/100", &root]);
    for number in 0..2000 {
        std::fs::write(path(&format!("b/file {number}")), "small").unwrap();
    }
    for number in 0..40 {
        std::fs::write(path(&format!("large {number}")), vec![number; 4 << 20]).unwrap();
    }
    btrfs(&["subvolume", "snapshot", &path("b"), &path("c")]);
    btrfs(&["filesystem", "sync", &root]);
    let open = std::fs::File::open(path("large 0")).unwrap();
    std::fs::remove_file(path("large 0")).unwrap();
    let balance = std::thread::spawn({
        let root = root.clone();
        move || run(120, "btrfs", &["balance", "start", "--full-balance", &root])
    });
    // The balance may be over already; then there is one rare item less.
    std::thread::sleep(Duration::from_millis(200));
    run(60, "btrfs", &["balance", "pause", &root]);
    btrfs(&["subvolume", "delete", &path("b")]);
    btrfs(&["filesystem", "sync", &root]);
    let copy = scratch.join("copy");
    run_ok(120, "cp", &["--sparse=always", text(&image), text(&copy)]);
    same_text_for_everything(&copy);
    same_text(&["dump-tree", "-t", "quota"], &[&copy]);
    balance.join().unwrap();
    drop(open);
    mount.finish();
}

#[test]
fn dirty_logs() {
    if !btrfs_progs("dirty_logs") || !requirement::programs("dirty_logs", &["tar", "zstd"]) {
        return;
    }
    let Some(archive) = requirement::shared_data("dirty_logs", "corpus/kernel-dirty-logs.tar.zst") else { return };
    let scratch = Scratch::new("dump-logs");
    run_ok(120, "tar", &["-S", "--zstd", "-xf", text(&archive), "-C", text(scratch.path())]);
    let images: Vec<PathBuf> = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(images.len() > 30, "{images:?}");
    for image in images {
        same_text(&["dump-super", "-fa"], &[&image]);
        same_text(&["dump-tree"], &[&image]);
        same_text(&["dump-tree", "-r"], &[&image]);
        same_text(&["dump-tree", "-t", "tree_log", "--csum-headers"], &[&image]);
    }
}

#[test]
fn times_are_local() {
    if !btrfs_progs("times_are_local") {
        return;
    }
    let scratch = Scratch::new("dump-time");
    let image = scratch.sparse_file("image", 200 * MIB);
    mkfs(&image, &[]);
    let line = ["inspect-internal", "dump-tree", "-t", "fs", text(&image)];
    let mut texts = Vec::new();
    for zone in ["America/New_York", "Asia/Kathmandu", "UTC", "XYZ-3:30", "nonsense"] {
        let program = requirement::program("btrfs").unwrap();
        let theirs = Command::new(program).args(line).env("TZ", zone).output().unwrap();
        let ours = Command::new(env!("CARGO_BIN_EXE_butterfs")).args(line).env("TZ", zone).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&theirs.stdout), String::from_utf8_lossy(&ours.stdout), "{zone}");
        texts.push(ours.stdout);
    }
    assert_ne!(texts[0], texts[2], "the zone has an effect");
}

/// Runs a command that may succeed or fail, but neither crash nor take long.
fn survives(arguments: &[&str]) {
    let started = Instant::now();
    let output = ours(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {:?} {stderr}", output.status);
    assert!(output.status.success() || stderr.contains("ERROR: "), "{arguments:?}: fails without a sentence");
    assert!(started.elapsed() < Duration::from_secs(10), "{arguments:?} took {:?}", started.elapsed());
}

#[test]
fn damaged_metadata_is_survived() {
    let scratch = Scratch::new("dump-damage");
    let image = scratch.sparse_file("image", 200 * MIB);
    butterfs_ok(&["mkfs", "-q", "-m", "single", "--csum", "crc32c", text(&image)]);
    let chunk = butterfs_ok(&["inspect-internal", "dump-tree", "-t", "chunk", text(&image)]);
    let places: Vec<u64> = chunk
        .lines()
        .filter_map(|line| line.split("stripe 0 devid 1 offset ").nth(1)?.parse().ok())
        .chain([65536])
        .collect();
    let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    let mut rng = Rng::new(7);
    for _ in 0..150 {
        // A byte anywhere in the first blocks of a chunk, or in the superblock.
        let place = places[rng.below(places.len() as u64) as usize];
        let span = if place == 65536 { 4096 } else { 12 * 16384 };
        let at = place + rng.below(span);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at).unwrap();
        survives(&["inspect-internal", "dump-tree", text(&image)]);
        survives(&["inspect-internal", "dump-super", "-F", "-fa", text(&image)]);
        file.write_all_at(&byte, at).unwrap();
    }
    butterfs_ok(&["inspect-internal", "dump-tree", text(&image)]);
}

#[test]
fn hostile_images_are_survived() {
    let test = "hostile_images_are_survived";
    let Some(folder) = requirement::shared_data(test, "corpus/fuzz") else { return };
    if !requirement::programs(test, &["xz"]) {
        return;
    }
    let scratch = Scratch::new("dump-fuzz");
    let (image, mut count) = (scratch.join("image"), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let unpacked = Command::new("xz").args(["-dc", text(&entry.unwrap().path())]).output().unwrap();
        std::fs::write(&image, unpacked.stdout).unwrap();
        survives(&["inspect-internal", "dump-tree", text(&image)]);
        survives(&["inspect-internal", "dump-super", "-F", "-fa", text(&image)]);
        count += 1;
    }
    assert!(count > 30, "{count} images");
}

#[test]
fn a_bad_copy_is_not_noticed_and_a_bad_block_is() {
    let scratch = Scratch::new("dump-copies");
    let image = scratch.sparse_file("image", 300 * MIB);
    butterfs_ok(&["mkfs", "-q", text(&image)]);
    let line = ["inspect-internal", "dump-tree", "-t", "fs", text(&image)];
    let good = butterfs_ok(&line);
    let address = |text: &str, word: &str| -> u64 {
        text.split(word).nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let leaf = address(&good, "\nleaf ");
    let chunk = butterfs_ok(&["inspect-internal", "dump-tree", "-t", "chunk", text(&image)]);
    let metadata = chunk.split("item ").find(|item| item.contains("METADATA|DUP")).expect("metadata is there twice");
    let start: u64 = metadata.split("CHUNK_ITEM ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    let stripes = [address(metadata, "stripe 0 devid 1 offset "), address(metadata, "stripe 1 devid 1 offset ")];
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"bad", stripes[0] + leaf - start + 200).unwrap();
    assert_eq!(butterfs_ok(&line), good, "the other copy is read");
    file.write_all_at(b"bad", stripes[1] + leaf - start + 200).unwrap();
    let ran = butterfs(&line);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains(&format!("logical {leaf}")) && ran.stderr.contains("not complete"), "{ran:?}");
    assert!(ran.stdout.contains("total bytes"), "the rest is printed: {ran:?}");
}

#[test]
fn senseless_arguments_are_refused() {
    let scratch = Scratch::new("dump-refused");
    let image = scratch.sparse_file("image", 200 * MIB);
    let path = text(&image);
    let table: &[(&[&str], i32, &str)] = &[
        (&["dump-tree"], 2, "DEVICE"),
        (&["dump-super"], 2, "DEVICE"),
        (&["dump-tree", "-t", "nonsense", path], 2, "unrecognized tree id: nonsense"),
        (&["dump-tree", "-b", "20M", path], 2, "20M is not a valid numeric value"),
        (&["dump-super", "-s", "x", path], 2, "x is not a valid numeric value"),
        (&["dump-tree", "/nonexistent"], 1, "/nonexistent"),
        (&["dump-super", "/nonexistent"], 1, "/nonexistent"),
        (&["dump-tree", path], 1, "not a btrfs superblock"),
        (&["dump-super", path], 1, "bad magic on superblock"),
    ];
    for (arguments, code, word) in table {
        let ran = butterfs(&[&["inspect-internal"], *arguments].concat());
        assert!(ran.code == Some(*code) && ran.stderr.contains(word), "{arguments:?}: {ran:?}");
    }
    let forced = butterfs_ok(&["inspect-internal", "dump-super", "-F", path]);
    assert!(forced.contains("magic\t\t\t........ [DON'T MATCH]"), "{forced}");
}
