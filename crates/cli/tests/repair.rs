//! `butterfs check --repair` and `--undo`: what a user and a script see, refusals, and kills.

mod common;

use butterfs_ondisk::items::{ExtentItem, FileExtent, InodeItem};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::kernel::{KernelMount, check_all, run, run_ok};
use butterfs_testkit::progress::Progress;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// An image with files, made by the kernel.
fn made(scratch: &Scratch, options: &[&str]) -> PathBuf {
    let image = scratch.sparse_file("image", 256 << 20);
    butterfs_testkit::kernel::mkfs(&image, options);
    let mount = KernelMount::new(&image, "noatime");
    let fill = "btrfs subvolume create sv >/dev/null; for i in $(seq 300); do echo $i > sv/f$i; done; \
                for i in $(seq 40); do head -c 20000 /dev/urandom > sv/d$i; done; \
                btrfs subvolume snapshot sv snap >/dev/null; for i in $(seq 20); do echo new > sv/f$i; done";
    run_ok(60, "bash", &["-c", &format!("cd {} && {fill}", text(mount.path()))]);
    assert!(mount.finish().is_empty());
    image
}

/// A wrong link count, a wrong size of the top directory, and an extent that is counted once too often.
fn damage(image: &Path) {
    let options = butterfs_device::FileOptions::read_write();
    let device = butterfs_device::FileDevice::open(image, &options).expect("nobody uses it");
    let editor = Editor::open(vec![Arc::new(device)]);
    let is_file = |item: Item<'_>| {
        item.is_inner(KeyType::INODE_ITEM)
            && item.head().is_some_and(|inode: &InodeItem| inode.mode.get() >> 12 == 0o10)
    };
    editor.change(TreeId(256), is_file, |inode: &mut InodeItem| inode.nlink = 9.into());
    let is_extent = |item: Item<'_>| item.is_inner(KeyType::EXTENT_ITEM);
    editor.change(TreeId::EXTENT, is_extent, |extent: &mut ExtentItem| extent.refs = (extent.refs.get() + 1).into());
}

fn bytes(image: &Path) -> Vec<u8> {
    std::fs::read(image).expect("it can be read")
}

#[test]
fn planned_applied_and_taken_back() {
    const TEST: &str = "planned_applied_and_taken_back";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair");
    let image = made(&scratch, &[]);
    // Older releases of mkfs.btrfs leave items to which no block group belongs.
    let first = scratch.join("undo-of-mkfs");
    butterfs_ok(&["check", "--repair", "--force", "--undo-file", text(&first), text(&image)]);
    let nothing = butterfs_ok(&["check", "--repair", "--force", text(&image)]);
    assert!(nothing.contains("nothing to repair"), "{nothing}");
    damage(&image);
    let damaged = bytes(&image);
    let plan = butterfs_ok(&["check", "--repair", "--plan", text(&image)]);
    for part in [
        "[inode-link-count]",
        "repair (inodes): set to the number of its names",
        "steps:",
        "afterwards a check finds no error",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    let json = butterfs_ok(&["check", "--repair", "--plan", "--json", text(&image)]);
    assert!(
        json.contains("\"clean\":true") && json.contains("\"pass\":\"extents\"") && json.lines().count() == 1,
        "{json}"
    );
    let asked = butterfs(&["check", "--repair", text(&image)]);
    assert!(asked.code == Some(1) && asked.stderr.contains("--force"), "{asked:?}");
    assert!(bytes(&image) == damaged, "a plan writes nothing");
    let file = scratch.join("undo");
    let repaired = butterfs_ok(&["check", "--repair", "--force", "--undo-file", text(&file), text(&image)]);
    assert!(repaired.contains("takes it back"), "{repaired}");
    check_all(&image);
    let again = butterfs_ok(&["check", "--repair", "--force", "--undo-file", text(&file), text(&image)]);
    assert!(
        again.contains("the repair of this undo file is complete") && again.contains("nothing to repair"),
        "{again}"
    );
    butterfs_ok(&["check", "--undo", text(&file), text(&image)]);
    assert!(bytes(&image) == damaged, "bit for bit");
    assert!(butterfs_ok(&["check", "--undo", text(&file), text(&image)]).contains("nothing to take back"));
}

#[test]
fn what_is_mounted_is_not_repaired() {
    const TEST: &str = "what_is_mounted_is_not_repaired";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-mounted");
    let image = made(&scratch, &[]);
    damage(&image);
    let before = bytes(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    let undo = scratch.join("undo");
    let refused = butterfs(&["check", "--repair", "--force", "--undo-file", text(&undo), text(&image)]);
    assert!(refused.code == Some(1) && refused.stderr.contains("mounted"), "{refused:?}");
    drop(mount);
    assert!(bytes(&image) == before && !undo.exists());
}

/// A repair whose undo file finds no room, or whose device is write-protected, writes nothing and says how to go on.
#[test]
fn what_cannot_be_written_is_named() {
    const TEST: &str = "what_cannot_be_written_is_named";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-full");
    let image = made(&scratch, &[]);
    damage(&image);
    let before = bytes(&image);
    let script = "mount -t tmpfs -o size=16k none \"$2\"; \
                  \"$0\" check --repair --force --undo-file \"$2/undo\" \"$1\"; code=$?; ls -A \"$2\"; exit $code";
    let mut shell = Command::new("unshare");
    shell.args(["-m", "bash", "-c", script, env!("CARGO_BIN_EXE_butterfs"), text(&image)]);
    let full = common::ran(shell.arg(scratch.folder("full")).output().expect("unshare starts"));
    assert!(full.code == Some(1) && !full.stdout.contains("undo.part"), "nothing stays there: {full:?}");
    for part in ["cannot write the undo file", "No space left", "nothing was written", "--undo-file names a place"] {
        assert!(full.stderr.contains(part), "{part}: {full:?}");
    }
    let device = run_ok(30, "losetup", &["--read-only", "--show", "-f", text(&image)]);
    let refused = butterfs(&["check", "--repair", "--force", device.trim()]);
    run_ok(30, "losetup", &["-d", device.trim()]);
    let says = |part| refused.stderr.contains(part);
    assert!(refused.code == Some(1) && says("write-protected") && says("--plan"), "{refused:?}");
    assert!(bytes(&image) == before);
}

#[test]
fn trees_are_made_anew() {
    const TEST: &str = "trees_are_made_anew";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-anew");
    let options =
        if butterfs_testkit::kernel::can_make("block-group-tree") { &["-O", "block-group-tree"][..] } else { &[] };
    let image = made(&scratch, options);
    let orders =
        [&["--init-csum-tree"][..], &["--init-extent-tree"], &["--clear-space-cache", "v2"], &["--repair", "-b"]];
    for (number, order) in orders.into_iter().enumerate() {
        let undo = scratch.join(&format!("undo-{number}"));
        let mut arguments = vec!["check", "--force", "--undo-file", text(&undo)];
        arguments.extend(order);
        arguments.push(text(&image));
        butterfs_ok(&arguments);
        check_all(&image);
        let mount = KernelMount::new(&image, "noatime");
        if order != ["--repair", "-b"] {
            let count = run_ok(20, "bash", &["-c", &format!("cat {}/snap/f* {0}/sv/d* | wc -c", text(mount.path()))]);
            assert!(count.trim().parse::<u64>().is_ok_and(|bytes| bytes > 800_000), "{order:?}: {count}");
        }
        std::fs::write(mount.path().join(format!("written-{number}")), vec![1; 100_000]).expect("it can be written");
        assert!(mount.finish().is_empty(), "{order:?}");
        check_all(&image);
    }
}

#[test]
fn mirrors_on_two_devices() {
    const TEST: &str = "mirrors_on_two_devices";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-mirrors");
    let images = ["one", "two"].map(|name| scratch.sparse_file(name, 256 << 20));
    let [one, two] = [text(&images[0]), text(&images[1])];
    run_ok(60, "mkfs.btrfs", &["-q", "-f", "-d", "raid1", "-m", "raid1", one, two]);
    let mount = KernelMount::several(&images, "noatime");
    run_ok(
        60,
        "bash",
        &["-c", &format!("cd {}; for i in $(seq 30); do head -c 1M /dev/urandom > f$i; done", text(mount.path()))],
    );
    assert!(mount.finish().is_empty());
    let whole = images.each_ref().map(|image| bytes(image));
    // Everything behind the first superblock of one device is gone, but for what makes it a device of the filesystem.
    let file = std::fs::File::options().write(true).open(&images[1]).expect("it was made");
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; 62 << 20], 1 << 20).expect("it can be written");
    drop(file);
    let damaged = bytes(&images[1]);
    let undo = scratch.join("undo");
    let order = ["check", "--repair", "--force", "--check-data-csum", "--undo-file", text(&undo), one, two];
    butterfs_ok(&order);
    butterfs_ok(&["check", "--check-data-csum", one, two]);
    butterfs_testkit::kernel::check_several(&images);
    butterfs_ok(&["check", "--undo", text(&undo), two, one]);
    assert!(bytes(&images[1]) == damaged && bytes(&images[0]) == whole[0], "bit for bit, in any order of the devices");
}

/// The lines of a quota report that are about groups.
/// A repair makes another chunk where those of trees are nearly full, and counts quota groups as the kernel does.
#[test]
fn room_is_made_and_quota_groups_are_counted() {
    const TEST: &str = "room_is_made";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-room");
    let image = scratch.sparse_file("image", 256 << 20);
    butterfs_testkit::kernel::mkfs(&image, &["-m", "single"]);
    let mount = KernelMount::new(&image, "noatime");
    let fill = "btrfs quota enable . ; btrfs subvolume create sv >/dev/null; for i in $(seq 40); do head -c 20000 \
                /dev/urandom > sv/d$i; done; head -c 3200000 /dev/urandom | split -b 1900 - sv/x; btrfs subvolume \
                snapshot sv snap >/dev/null; sync; btrfs quota rescan -w . >/dev/null";
    run_ok(60, "bash", &["-c", &format!("cd {} && {fill}", text(mount.path()))]);
    mount.finish();
    damage(&image);
    let lost = |item: Item<'_>| item.is_inner(KeyType::EXTENT_DATA) && item.data()[20] == 1;
    let device = butterfs_device::FileDevice::open(&image, &butterfs_device::FileOptions::read_write());
    let editor = Editor::open(vec![Arc::new(device.expect("nobody uses it"))]);
    // Of a file without checksums nothing says that the extent was its own.
    let inode = editor.find(TreeId(256), lost);
    let number = editor.node(inode.leaf).key(inode.slot).objectid;
    editor.remove_at(inode);
    let of_file = |item: Item<'_>| item.is(KeyType::INODE_ITEM) && item.key().objectid == number;
    editor.change(TreeId(256), of_file, |item: &mut InodeItem| item.nbytes = 0.into());
    drop(editor);
    let undo = scratch.join("undo");
    let said = butterfs(&["check", "--repair", "--force", "--undo-file", text(&undo), text(&image)]);
    assert!(said.code == Some(0) && said.stdout.contains("bytes for trees"), "{said:?}");
    assert!(said.stdout.contains("quota groups those that are counted"), "{said:?}");
    check_all(&image);
    let mount = KernelMount::new(&image, "noatime");
    let shown = || run_ok(20, "btrfs", &["qgroup", "show", "--raw", text(mount.path())]);
    let counted = shown();
    run_ok(60, "btrfs", &["quota", "rescan", "-w", text(mount.path())]);
    assert_eq!(counted, shown());
    std::fs::write(mount.path().join("more"), vec![7; 1 << 20]).expect("room");
    assert!(mount.finish().is_empty());
    check_all(&image);
}

/// The UUID tree goes, also where its root cannot be read, and the kernel makes it anew.
#[test]
fn the_uuid_tree_is_cleared() {
    const TEST: &str = "the_uuid_tree_is_cleared";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("clear-uuids");
    let image = made(&scratch, &[]);
    let trees = |image: &Path| run_ok(60, "btrfs", &["inspect-internal", "dump-tree", "-r", text(image)]);
    for is_damaged in [false, true] {
        if is_damaged {
            let options = butterfs_device::FileOptions::read_write();
            let device = butterfs_device::FileDevice::open(&image, &options).expect("nobody uses it");
            let editor = Editor::open(vec![Arc::new(device)]);
            editor.write_raw(editor.root(TreeId::UUID), &[0x5a; 4096]);
        }
        if !is_damaged {
            let mount = KernelMount::new(&image, "ro");
            let busy = butterfs(&["rescue", "clear-uuid-tree", text(&image)]);
            assert!(busy.code == Some(1) && busy.stderr.contains("mounted"), "{busy:?}");
            mount.finish();
        }
        assert_eq!(butterfs_ok(&["rescue", "clear-uuid-tree", text(&image)]), "");
        assert!(!trees(&image).contains("UUID_TREE"), "{}", trees(&image));
        check_all(&image);
        assert!(KernelMount::new(&image, "noatime").finish().is_empty());
        assert!(trees(&image).contains("UUID_TREE"));
        check_all(&image);
    }
    let usage = butterfs(&["rescue", "clear-uuid-tree"]);
    assert!(usage.code != Some(0) && !usage.stderr.is_empty());
}

/// The cache of old kernels goes with its extents, in every subvolume, in the words of btrfs-progs.
#[test]
fn the_inode_number_cache_is_cleared() {
    const TEST: &str = "the_inode_number_cache_is_cleared";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("clear-inodes");
    let image = made(&scratch, &[]);
    let key = |kind, offset| Key::new(objectid::FREE_INO, kind, offset);
    let open = || {
        let device = butterfs_device::FileDevice::open(&image, &butterfs_device::FileOptions::read_write());
        Editor::open(vec![Arc::new(device.expect("nobody uses it"))])
    };
    let editor = open();
    let mut inode = InodeItem::new_zeroed();
    (inode.generation, inode.nlink, inode.mode) = (7.into(), 1.into(), 0o100_600.into());
    (inode.size, inode.flags) = (65536.into(), 0b11.into());
    let mut extent = FileExtent::new_zeroed();
    (extent.head.generation, extent.head.ram_bytes, extent.head.kind) = (7.into(), 65536.into(), 1);
    extent.body.num_bytes = 65536.into();
    editor.insert(TreeId::FS, key(KeyType::INODE_ITEM, 0), inode.as_bytes());
    drop(editor);
    // The other program takes every extent for one that has data.
    let theirs = scratch.join("theirs");
    run_ok(60, "cp", &[text(&image), text(&theirs)]);
    open().insert(TreeId::FS, key(KeyType::EXTENT_DATA, 0), extent.as_bytes());
    let has_cache = || open().try_find(TreeId::FS, |item| item.key().objectid == objectid::FREE_INO).is_some();
    assert!(has_cache());
    let said = butterfs_ok(&["rescue", "clear-ino-cache", text(&image)]);
    let by_btrfs = run_ok(60, "btrfs", &["check", "--clear-ino-cache", text(&theirs)]);
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("Successfully")).map(str::to_owned).collect()
    };
    assert!(lines(&said).len() == 3 && lines(&said) == lines(&by_btrfs), "{said}{by_btrfs}");
    assert!(!has_cache());
    check_all(&image);
    assert!(KernelMount::new(&image, "noatime").finish().is_empty());
}

/// As btrfs-progs: where the device is there already, that is an error.
#[test]
fn the_control_device_is_made_once() {
    if !Path::new("/dev/btrfs-control").exists() || !requirement::programs("control device", &["btrfs"]) {
        return;
    }
    let ours = butterfs(&["rescue", "create-control-device"]);
    let theirs = run(20, "btrfs", &["rescue", "create-control-device"]);
    assert_eq!((ours.code, ours.stderr.as_str()), (theirs.code, theirs.output.as_str()));
}

fn groups(text: &str) -> Vec<String> {
    let is_one = |line: &&str| line.starts_with("Counts") || line.starts_with("our") || line.starts_with("disk");
    text.lines().filter(is_one).map(str::to_owned).collect()
}

#[test]
fn quota_groups_are_counted_as_btrfs_check_counts_them() {
    const TEST: &str = "quota_groups_are_counted_as_btrfs_check_counts_them";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-quotas");
    let image = scratch.sparse_file("image", 256 << 20);
    butterfs_testkit::kernel::mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let fill = "btrfs quota enable .; btrfs subvolume create sv; head -c 3M /dev/urandom > sv/f; sync; \
                btrfs subvolume snapshot sv snap; head -c 1M /dev/urandom > snap/g; cp --reflink sv/f h; \
                btrfs qgroup create 1/7 .; btrfs qgroup assign 0/256 1/7 .; btrfs qgroup assign 0/257 1/7 .; \
                btrfs quota rescan -W . && btrfs quota rescan -w . && sync";
    run_ok(60, "bash", &["-c", &format!("cd {} && {fill}", text(mount.path()))]);
    assert!(mount.finish().is_empty());
    let theirs = groups(&run_ok(60, "btrfs", &["check", "-Q", text(&image)]));
    let ours = groups(&butterfs_ok(&["check", "-Q", text(&image)]));
    assert!(ours.len() >= 20, "{ours:#?}");
    assert_eq!(ours, theirs);
}

/// Kills, unless the environment says otherwise.
fn kills() -> u64 {
    std::env::var("BUTTERFS_TORTURE").ok().and_then(|count| count.parse().ok()).unwrap_or(2)
}

#[test]
fn killed_and_run_again_as_if_never_killed() {
    const TEST: &str = "killed_and_run_again_as_if_never_killed";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new("repair-kills");
    let image = made(&scratch, &[]);
    damage(&image);
    let damaged = bytes(&image);
    let undo = scratch.join("undo");
    let arguments = ["check", "--repair", "--force", "--init-extent-tree", "--undo-file", text(&undo), text(&image)];
    let begun = std::time::Instant::now();
    butterfs_ok(&arguments);
    let whole = begun.elapsed();
    let mut progress = Progress::new(TEST, kills());
    for number in 0..kills() {
        std::fs::write(&image, &damaged).expect("it can be written");
        let _ = std::fs::remove_file(&undo);
        let mut child = Command::new(env!("CARGO_BIN_EXE_butterfs"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command was built");
        // Most of the time is the plan, in which nothing can go wrong: the kills lie towards the end.
        let share = 0.6 + 0.4 * (number as f64 + 0.5) / kills() as f64;
        std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * share));
        let _ = child.kill();
        child.wait().expect("it was started");
        butterfs_ok(&arguments);
        let report = butterfs(&["check", text(&image)]);
        assert!(
            report.code == Some(0) && report.stdout.contains("0 errors") || report.stdout.contains("no error"),
            "{report:?}"
        );
        butterfs_ok(&["check", "--undo", text(&undo), text(&image)]);
        assert!(bytes(&image) == damaged, "kill {number}: undo brings the damaged image back");
        progress.step();
    }
}
