//! Quotas that the kernel left: what we write is not accounted, so the first transaction says that the numbers are
//! wrong, and the kernel counts anew when it is asked. What no rescan could repair is not written at all.

use butterfs_fs::{Caller, Filesystem, Options};
use butterfs_testkit::engine::{device, open};
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{self, Scratch};
use butterfs_testkit::watchdog::Watchdog;
use std::path::{Path, PathBuf};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// The newest `btrfs` there is: old ones do not know simple quotas.
fn btrfs() -> PathBuf {
    let fetched = scratch::tools().join("btrfs-progs/bin/btrfs");
    if fetched.is_file() { fetched } else { requirement::program("btrfs").expect("btrfs was required") }
}

fn btrfs_ok(words: &[&str]) -> String {
    run_ok(60, btrfs(), words)
}

/// A filesystem with two subvolumes in one group of a higher level, limits, and a snapshot; quotas are right.
fn make(image: &Path, simple: bool) {
    mkfs(image, &[]);
    let mount = KernelMount::new(image, "");
    let at = |name: &str| mount.path().join(name).to_string_lossy().into_owned();
    let top = at("");
    btrfs_ok(&[&["quota", "enable"][..], if simple { &["-s"][..] } else { &[] }, &[top.as_str()]].concat());
    btrfs_ok(&["subvolume", "create", &at("one")]);
    btrfs_ok(&["subvolume", "create", &at("two")]);
    btrfs_ok(&["qgroup", "create", "1/7", &top]);
    for subvolume in ["one", "two"] {
        let id = btrfs_ok(&["inspect-internal", "rootid", &at(subvolume)]);
        run(60, btrfs(), &["qgroup", "assign", &format!("0/{}", id.trim()), "1/7", &top]);
        std::fs::write(at(subvolume) + "/large", vec![7; 3 << 20]).expect("room");
        std::fs::write(at(subvolume) + "/small", "small").expect("room");
    }
    btrfs_ok(&["qgroup", "limit", "64M", "1/7", &top]);
    btrfs_ok(&["subvolume", "snapshot", "-r", &at("one"), &at("snapshot")]);
    if !simple {
        btrfs_ok(&["quota", "rescan", "-w", &top]);
    }
    mount.finish();
}

/// The flags that the status item has on disk.
fn flags(image: &Path) -> String {
    let dump = btrfs_ok(&["inspect-internal", "dump-tree", "-t", "quota", &image.to_string_lossy()]);
    let status = dump.split_once("QGROUP_STATUS").and_then(|(_, rest)| rest.split_once(" flags "));
    let (_, flags) = status.unwrap_or_else(|| panic!("no status item: {dump}"));
    flags.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Writes, overwrites, deletes, makes and deletes subvolumes.
fn work(filesystem: &Filesystem) {
    let root = filesystem.root();
    let one = filesystem.lookup(root, b"one").expect("one").id;
    let large = filesystem.lookup(one, b"large").expect("large").id;
    filesystem.write(large, 1 << 20, &vec![9; 5 << 20], false).expect("room");
    filesystem.unlink(one, b"small").expect("it is there");
    filesystem.sync().expect("room");
    filesystem.snapshot(one.tree, root, b"ours", false).expect("a snapshot");
    filesystem.delete_subvolume(root, b"two").expect("it is there");
    filesystem.create_subvolume(&ROOT, root, b"new").expect("a subvolume");
    let new = filesystem.lookup(root, b"new").expect("new").id;
    let file = filesystem.create(&ROOT, new, b"file", 0o644).expect("a name").id;
    filesystem.write(file, 0, &vec![1; 2 << 20], false).expect("room");
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn quotas_that_are_not_kept_say_so_and_can_be_counted_again() {
    const TEST: &str = "quotas_that_are_not_kept_say_so_and_can_be_counted_again";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 512 << 20);
    make(&image, false);
    assert_eq!(flags(&image), "ON");
    let filesystem = open(&image, Options { read_only: true, ..Options::default() });
    filesystem.shutdown().expect("nothing to do");
    drop(filesystem);
    assert_eq!(flags(&image), "ON", "reading changes nothing");
    let filesystem = open(&image, Options::default());
    println!("{:?}", filesystem.notes());
    assert!(filesystem.notes().iter().any(|note| note.contains("quota")), "{:?}", filesystem.notes());
    work(&filesystem);
    drop(filesystem);
    assert_eq!(flags(&image), "ON|INCONSISTENT");
    check_all(&image);
    let mount = KernelMount::new(&image, "");
    let top = mount.path().to_string_lossy().into_owned();
    let shown = run(60, btrfs(), &["qgroup", "show", "-re", &top]).output;
    println!("before the rescan: {shown}");
    assert!(shown.contains("inconsistent"), "{shown}");
    btrfs_ok(&["quota", "rescan", "-w", &top]);
    let shown = run(60, btrfs(), &["qgroup", "show", "-re", "--raw", &top]).output;
    println!("after it: {shown}");
    assert!(!shown.contains("inconsistent"), "{shown}");
    let line = |prefix: &str| shown.lines().find(|line| line.starts_with(prefix)).unwrap_or_default().to_owned();
    let numbers = |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    assert_eq!(numbers(&line("1/7")).get(2), Some(&(64 << 20)), "the limit is as it was: {shown}");
    assert!(numbers(&line("1/7"))[0] > 5 << 20, "{shown}");
    for subvolume in ["new", "ours"] {
        let id = btrfs_ok(&["inspect-internal", "rootid", &mount.path().join(subvolume).to_string_lossy()]);
        let line = line(&format!("0/{} ", id.trim()));
        assert!(numbers(&line)[0] > 2 << 20, "{subvolume} is counted: {shown}");
    }
    mount.finish();
    assert_eq!(flags(&image), "ON");
    check_all(&image);
}

#[test]
fn simple_quotas_are_read_and_never_written() {
    const TEST: &str = "simple_quotas_are_read_and_never_written";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    if !run(20, btrfs(), &["quota", "enable", "--help"]).output.contains("--simple") {
        return requirement::skip(TEST, "btrfs-progs does not know simple quotas");
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 512 << 20);
    make(&image, true);
    let before = std::fs::read(&image).expect("an image");
    let refused = Filesystem::open(vec![device(&image)], Options::default(), butterfs_fs::Env::system());
    let said = refused.err().expect("writing would spoil them").to_string();
    assert!(said.contains("SIMPLE_QUOTA") && said.contains("-o ro"), "{said}");
    let filesystem = open(&image, Options { read_only: true, ..Options::default() });
    let one = filesystem.lookup(filesystem.root(), b"one").expect("one").id;
    let large = filesystem.lookup(one, b"large").expect("large").id;
    let mut content = Vec::new();
    filesystem.read(large, 0, 4 << 20, &mut content).expect("it can be read");
    assert!(content == vec![7; 3 << 20]);
    filesystem.shutdown().expect("nothing to do");
    drop(filesystem);
    assert!(std::fs::read(&image).expect("an image") == before, "nothing was written");
}
