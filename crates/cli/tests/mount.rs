//! `butterfs mount`, `umount`, `filesystem sync` and `mount.butterfs`, on real mounts.

mod common;
mod mounted;

use butterfs_testkit::{requirement, transport};
use common::{butterfs, butterfs_ok};
use mounted::{Bed, eventually, shell, text};
use rustix::fs::Dir;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

#[test]
fn an_image_is_made_mounted_filled_and_unmounted() {
    const TEST: &str = "mount_create";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    butterfs_ok(&["mount", "--create", "300M", text(&bed.image), text(&bed.at)]);
    let shown = bed.mountinfo().unwrap();
    assert!(shown.contains(&format!(" - fuseblk.butterfs {} ", text(&bed.image))), "{shown}");
    assert!(shown.contains("default_permissions,allow_other"), "{shown}");
    fs::create_dir(bed.path("dir")).unwrap();
    fs::write(bed.path("dir/file"), b"content").unwrap();
    assert!(fs::metadata(bed.path("dir/file")).unwrap().created().is_ok(), "times of birth are shown");
    bed.umount_ok();
    bed.judge(|root| assert_eq!(fs::read(root.join("dir/file")).unwrap(), b"content"));

    butterfs_ok(&["mount", "--create", "300M", text(&bed.image), text(&bed.at)]);
    assert_eq!(fs::read(bed.path("dir/file")).unwrap(), b"content", "an image that exists is left alone");
    bed.umount_ok();
}

#[test]
fn every_way_of_unmounting_makes_everything_durable() {
    const TEST: &str = "unmount_durably";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let unmount = |how: &str| match how {
        "butterfs umount" => bed.umount_ok(),
        "umount" => drop(shell("umount \"$at\"", &[("at", &bed.at)])),
        "umount of the image" => drop(shell("umount \"$image\"", &[("image", &bed.image)])),
        _ => drop(shell(&format!("kill -TERM {}", bed.serving_process().unwrap()), &[])),
    };
    for how in ["butterfs umount", "umount", "umount of the image", "SIGTERM"] {
        bed.mount_ok("rw");
        fs::write(bed.path(how), how).unwrap();
        unmount(how);
        eventually(|| !bed.is_mounted());
        // Meets the lock of the process that is just ending.
        bed.mount_ok("ro");
        assert_eq!(fs::read_to_string(bed.path(how)).unwrap(), how);
        bed.umount_ok();
    }
}

#[test]
fn synced_data_survives_the_serving_process() {
    const TEST: &str = "sync_durably";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    type Sync = fn(&Bed, &File);
    let ways: [(&str, Sync); 4] = [
        ("fsync", |_, file| file.sync_all().unwrap()),
        ("syncfs", |_, file| rustix::fs::syncfs(file).unwrap()),
        ("sync", |_, _| rustix::fs::sync()),
        ("filesystem sync", |bed, _| drop(butterfs_ok(&["filesystem", "sync", text(&bed.at)]))),
    ];
    for (name, sync) in ways {
        bed.mount_ok("rw");
        let mut file = File::create(bed.path(name)).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        sync(&bed, &file);
        drop(file);
        bed.kill();
        // A new file of this size is logged: a commit would write more.
        let ran = bed.mount("rw");
        let recovered = ran.stderr.contains("recovered from the log tree");
        assert!(ran.code == Some(0) && recovered == (name == "fsync"), "{name}: {ran:?}");
        assert!(fs::read(bed.path(name)).unwrap() == [7; 1 << 20], "{name}");
        bed.umount_ok();
    }
}

/// In a mount namespace of its own, where the helper can be put where mount(8) looks for it.
#[test]
fn the_system_s_mount_finds_the_helper() {
    const TEST: &str = "mount_type_butterfs";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let script = r#"
        mount -t tmpfs none /usr/sbin && ln -s "$binary" /usr/sbin/mount.butterfs
        mount -t butterfs -o rw,nosuid,noatime,x-mine,nofail "$image" "$at"
        findmnt -n -o SOURCE,FSTYPE,OPTIONS "$at"
        echo content > "$at/file"
        mount -o remount,ro "$at"
        ! touch "$at/refused" 2> /dev/null
        mount -o remount,rw "$at"
        echo more >> "$at/file"
        mount -t butterfs -o remount,ro "$image" "$at"
        ! touch "$at/refused" 2> /dev/null
        umount "$at"
        echo "$image $at butterfs defaults,ro,noauto,subvolid=5 0 0" > "$fstab"
        mount -T "$fstab" "$at"
        cat "$at/file"
        mount -o remount,rw "$at"
        touch "$at/now-writable"
        umount "$image"
        mount -t butterfs -o frobnicate "$image" "$at" 2>&1 || true
    "#;
    let script_file = bed.scratch.join("script");
    fs::write(&script_file, script).unwrap();
    let variables: [(&str, &Path); 5] = [
        ("script", &script_file),
        ("binary", Path::new(BINARY)),
        ("image", &bed.image),
        ("at", &bed.at),
        ("fstab", &bed.scratch.join("fstab")),
    ];
    let output = shell(
        "export binary image at fstab; unshare -m --propagation slave bash -euo pipefail \"$script\"",
        &variables,
    );
    let lines: Vec<&str> = output.lines().collect();
    let shown = format!("{} fuseblk.butterfs rw,nosuid,noatime,", text(&bed.image));
    assert!(lines[0].starts_with(&shown), "{output}");
    assert_eq!(lines[1..3], ["content", "more"], "{output}");
    assert!(lines[3].contains("unknown mount option 'frobnicate'"), "{output}");
    bed.mount_ok("ro");
    assert!(bed.path("now-writable").exists() && !bed.path("refused").exists());
    bed.umount_ok();
}

#[test]
fn a_mount_waits_for_a_lock_but_not_for_ever() {
    const TEST: &str = "mount_lock";
    let Some(bed) = Bed::new(TEST) else { return };
    let bed = bed.with_image();
    let lock = File::open(&bed.image).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    let refused = bed.mount("rw");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is in use"), "{refused:?}");
    assert!(start.elapsed() >= Duration::from_secs(4) && !bed.is_mounted());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            drop(lock);
        });
        bed.mount_ok("rw");
    });
    bed.umount_ok();
}

#[test]
fn the_serving_process_keeps_nothing_of_its_caller_open() {
    const TEST: &str = "mount_descriptors";
    let Some(bed) = Bed::new(TEST) else { return };
    let bed = bed.with_image();
    let script = r#"exec 9> "$3.lock"; flock 9; "$1" mount "$2" "$3""#;
    let arguments = ["-ec", script, "sh", BINARY, text(&bed.image), text(&bed.at)];
    assert!(Command::new("sh").args(arguments).status().unwrap().success());
    let lock = File::open(bed.at.with_extension("lock")).unwrap();
    let locked = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Ok(()), "the caller's lock is gone with it");
    bed.umount_ok();
}

#[test]
fn refusals_are_sentences() {
    const TEST: &str = "mount_refusals";
    let Some(bed) = Bed::new(TEST) else { return };
    let bed = bed.with_image();
    let (image, at, zeros) = (text(&bed.image), text(&bed.at), bed.scratch.sparse_file("zeros", 1 << 20));
    let missing = bed.scratch.join("missing");
    let table: &[(&[&str], i32, &str)] = &[
        (&["mount", text(&missing), at], 1, "does not exist"),
        (&["mount", image, text(&missing)], 1, "does not exist"),
        (&["mount", image, image], 1, "is not a directory"),
        (&["mount", "/dev/null", at], 1, "is a character device"),
        (&["mount", text(&zeros), at], 1, "is not a btrfs filesystem"),
        (&["mount", "-o", "ro,frob", image, at], 2, "unknown mount option 'frob'"),
        (&["mount", "-o", "subvolid=999", image, at], 1, "no subvolume with id 999"),
        (&["mount", "-o", "subvol=nowhere", image, at], 1, "nowhere"),
        (&["mount", "--create", "1M", text(&missing), at], 1, "too small"),
        (&["mount", "-o", "remount,ro", image, at], 1, "is not a mount point"),
        (&["umount", at], 1, "is not a mount point"),
        (&["umount", "/proc"], 1, "is not a butterfs mount but proc"),
        (&["umount", text(&missing)], 1, "missing"),
        (&["filesystem", "sync", "/proc"], 1, "is not on a btrfs filesystem"),
    ];
    for (arguments, code, part) in table {
        let ran = butterfs(arguments);
        let sentences = ran.stderr.lines().filter(|line| line.starts_with("ERROR: ")).count();
        assert!(ran.code == Some(*code) && sentences == 1 && ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(part), "{arguments:?}: {ran:?}");
    }
    assert!(!missing.exists() && !bed.is_mounted());
}

#[test]
fn a_mount_in_use_is_not_unmounted_and_one_in_two_places_goes_on() {
    const TEST: &str = "umount_in_use";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let file = File::create(bed.path("file")).unwrap();
    let refused = butterfs(&["umount", text(&bed.at)]);
    assert!(refused.code == Some(1) && refused.stderr.contains("is in use"), "{refused:?}");
    drop(file);
    let second = bed.scratch.folder("second").canonicalize().unwrap();
    shell("mount --bind \"$at\" \"$second\"", &[("at", &bed.at), ("second", &second)]);
    butterfs_ok(&["umount", text(&bed.at)]);
    assert!(second.join("file").exists());
    butterfs_ok(&["umount", text(&second)]);
    assert_eq!(bed.serving_process(), None);
}

/// A folder that any user can enter, with our program in it, because the build output may lie in root's home.
fn public_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("butterfs-{name}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    fs::copy(BINARY, folder.join("butterfs")).unwrap();
    folder
}

#[test]
fn a_user_needs_only_fusermount3() {
    const TEST: &str = "mount_as_user";
    if !requirement::programs(TEST, &["fusermount3", "setpriv"]) {
        return;
    }
    if Bed::for_root(TEST).is_none() {
        return;
    }
    let folder = public_folder(TEST);
    let script = r#"
        cd "$folder" && mkdir home && chown nobody home && cd home && mkdir mnt && chown nobody mnt
        as_user() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
        as_user ../butterfs mount --create 300M "$folder/home/disk.img" mnt
        grep " $folder/home/mnt " /proc/self/mountinfo | sed 's/.* - //'
        as_user sh -c 'echo content > mnt/file; dd if=/dev/zero of=mnt/large bs=1M count=16 status=none'
        as_user ../butterfs filesystem sync mnt
        kill -9 $(pgrep -f -- "--serve .*$folder/home/disk.img"); as_user fusermount3 -u -z mnt
        as_user ../butterfs mount "$folder/home/disk.img" mnt
        as_user cat mnt/file
        as_user sh -c 'echo more > mnt/second'
        for round in $(seq 20); do
            as_user fusermount3 -u mnt
            as_user ../butterfs mount "$folder/home/disk.img" mnt
        done
        as_user cat mnt/second
        as_user ../butterfs umount mnt
        ! pgrep -f -- "--serve .*$folder/home/disk.img"
    "#;
    let output = shell(script, &[("folder", &folder)]);
    let lines: Vec<&str> = output.lines().collect();
    let shown = format!("fuse.butterfs {}/home/disk.img rw,user_id=65534,", text(&folder));
    assert!(lines[0].starts_with(&shown) && lines[0].contains("default_permissions"), "{output}");
    assert_eq!(lines[1..], ["content", "more"], "{output}");
    butterfs_testkit::kernel::check_all(&folder.join("home/disk.img"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn subvolumes_have_inode_numbers_of_their_own_and_read_only_ones_are() {
    const TEST: &str = "inode_numbers";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let bed = bed.with_image();
    let script = r#"
        mount -o loop -t btrfs "$image" "$at"
        trap 'umount "$at"' EXIT
        btrfs subvolume create "$at/one" && echo 1 > "$at/one/file" && echo 2 > "$at/file" && mkdir "$at/dir"
        btrfs subvolume snapshot "$at/one" "$at/two" && btrfs subvolume snapshot -r "$at/one" "$at/dir/three"
        btrfs subvolume snapshot "$at" "$at/four"
    "#;
    shell(script, &[("image", &bed.image), ("at", &bed.at)]);
    bed.mount_ok("rw");
    let listing = shell("find \"$at\" -printf '%i %p\\n'", &[("at", &bed.at)]);
    let mut numbers: Vec<&str> = listing.lines().filter_map(|line| line.split(' ').next()).collect();
    let all = numbers.len();
    assert_eq!(all, 15, "{listing}");
    // The three entries in the snapshot of the top level that lead nowhere are all inode 2, as in the kernel.
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all - 2, "{listing}");
    let number = |name: &str| fs::metadata(bed.path(name)).unwrap().ino();
    assert_eq!(number(""), 256);
    assert_ne!(number("one/file"), number("two/file"));
    let refused = OpenOptions::new().append(true).open(bed.path("dir/three/file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(bed.path("dir/three/file")).unwrap(), "1\n");
    fs::write(bed.path("two/file"), "changed").unwrap();
    bed.umount_ok();
    bed.mount_ok("subvol=/two");
    assert_eq!(fs::read_to_string(bed.path("file")).unwrap(), "changed");
    bed.umount_ok();
    bed.judge(|root| assert_eq!(fs::read_to_string(root.join("one/file")).unwrap(), "1\n"));
}

#[test]
fn a_directory_that_is_renamed_while_it_is_read_has_an_end() {
    const TEST: &str = "readdir_renaming";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    for number in 0..2000 {
        File::create(bed.path(&format!("file{number}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(&bed.at).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, bed.path("away")).unwrap();
        fs::rename(bed.path("away"), &path).unwrap();
        seen += 1;
        assert!(seen <= 2000, "it does not end");
    }
    assert_eq!(seen, 2000);
    bed.umount_ok();
}

/// The names that reading goes on to, each with where it goes on behind it.
fn read_on(directory: &mut Dir, most: usize) -> Vec<(String, i64)> {
    let entries = std::iter::from_fn(|| directory.read()).take(most).map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().to_str().unwrap().to_owned(), entry.offset())).collect()
}

#[test]
fn directories_are_read_from_any_place_by_several() {
    const TEST: &str = "readdir_places";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    fs::create_dir(bed.path("dir")).unwrap();
    let open = || Dir::new(File::open(bed.path("dir")).unwrap()).unwrap();
    for number in 0..3000 {
        File::create(bed.path(&format!("dir/file{number}"))).unwrap();
    }
    let (mut first, mut second) = (open(), open());
    let begun = read_on(&mut first, 1000);
    assert_eq!(read_on(&mut second, usize::MAX).len(), 3002, "with . and ..");
    // While one is in the middle, another has come to the end, and what is behind the first changes.
    fs::remove_file(bed.path("dir/file0")).unwrap();
    fs::remove_file(bed.path("dir/file2999")).unwrap();
    File::create(bed.path("dir/new")).unwrap();
    let rest = read_on(&mut first, usize::MAX);
    let shown = |entries: &[(String, i64)], name: &str| entries.iter().filter(|(known, _)| known == name).count();
    for number in 0..2999 {
        let name = format!("file{number}");
        assert_eq!(shown(&begun, &name) + shown(&rest, &name), 1, "{name}");
    }
    second.rewind();
    let again = read_on(&mut second, usize::MAX);
    assert_eq!((again.len(), shown(&again, "new"), shown(&again, "file0")), (3001, 1, 0));
    for at in [3, 500, 998] {
        first.seek(begun[at].1).unwrap();
        assert_eq!(read_on(&mut first, 1)[0].0, begun[at + 1].0, "behind entry {at}");
    }
    drop((first, second));
    bed.umount_ok();
}

#[test]
fn writes_through_a_mapping_are_there_after_a_sync() {
    const TEST: &str = "mapping_sync";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::programs(TEST, &["xfs_io"]) {
        return;
    }
    let bed = bed.with_image();
    bed.mount_ok("rw");
    for name in ["closed", "held"] {
        fs::write(bed.path(name), [b'-'; 65536]).unwrap();
    }
    let before = fs::metadata(bed.path("closed")).unwrap().modified().unwrap();
    shell("xfs_io -c 'mmap -w 0 64k' -c 'mwrite -S 0x61 0 64k' \"$at/closed\"", &[("at", &bed.at)]);
    let mut holder = Command::new("xfs_io");
    let mut holder = holder.arg(bed.path("held")).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    holder.stdin.as_mut().unwrap().write_all(b"mmap -w 0 64k\nmwrite -S 0x62 0 64k\n").unwrap();
    eventually(|| fs::read(bed.path("held")).unwrap() == [b'b'; 65536]);
    butterfs_ok(&["filesystem", "sync", text(&bed.at)]);
    assert!(fs::metadata(bed.path("closed")).unwrap().modified().unwrap() > before, "it was written to");
    holder.kill().and_then(|()| holder.wait()).unwrap();
    bed.kill();
    bed.mount_ok("rw");
    assert!(fs::read(bed.path("closed")).unwrap() == [b'a'; 65536]);
    assert!(fs::read(bed.path("held")).unwrap() == [b'b'; 65536]);
    bed.umount_ok();
}

/// Flushes that a block device has seen.
fn flushes(node: &Path) -> u64 {
    let name = node.file_name().and_then(|name| name.to_str()).expect("a device's name");
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("it is attached");
    stat.split_whitespace().nth(15).and_then(|number| number.parse().ok()).expect("the kernel counts flushes")
}

#[test]
fn a_snapshot_by_command_is_one_commit_with_what_mappings_hold() {
    const TEST: &str = "snapshot_once";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::programs(TEST, &["python3"]) {
        return;
    }
    let bed = bed.with_image();
    let node = shell("losetup --find --show \"$image\"", &[("image", &bed.image)]);
    let node = PathBuf::from(node.trim());
    butterfs_ok(&["mount", text(&node), text(&bed.at)]);
    fs::write(bed.path("held"), [b'-'; 65536]).unwrap();
    butterfs_ok(&["filesystem", "sync", text(&bed.at)]);
    let hold = "import mmap, sys; file = open(sys.argv[1], 'r+b'); mapping = mmap.mmap(file.fileno(), 65536); \
                mapping[:] = b'b' * 65536; sys.stdin.read()";
    let mut holder = Command::new("python3");
    let mut holder = holder.args(["-c", hold, text(&bed.path("held"))]).stdin(Stdio::piped()).spawn().unwrap();
    eventually(|| fs::read(bed.path("held")).unwrap() == [b'b'; 65536]);
    let before = flushes(&node);
    butterfs_ok(&["subvolume", "snapshot", text(&bed.at), text(&bed.path("snapshot"))]);
    let flushed = flushes(&node) - before;
    let held = fs::read(bed.path("snapshot/held")).unwrap();
    holder.kill().and_then(|()| holder.wait()).unwrap();
    butterfs_ok(&["umount", text(&bed.at)]);
    shell("losetup --detach \"$node\"", &[("node", &node)]);
    assert!(held == [b'b'; 65536]);
    assert_eq!(flushed, 2);
}

#[test]
fn default_acls_count_instead_of_the_umask() {
    const TEST: &str = "default_acl";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::programs(TEST, &["setfacl", "getfacl"]) {
        return;
    }
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let script = r#"
        cd "$at" && umask 077 && mkdir plain acl && chmod 755 acl && setfacl -d -m u:nobody:rwx,g::rwx,o::rx acl
        touch plain/file acl/file && mkdir acl/dir && stat -c '%a %n' plain/file acl/file acl/dir
        getfacl -cE acl/file
        chmod 640 acl/file && getfacl -cE acl/file
        setfacl -m u::rwx,g::-,o::-,m::rwx acl/file && stat -c %a acl/file
        setpriv --reuid=nobody --clear-groups sh -c 'echo allowed > acl/file'
    "#;
    let output = shell(script, &[("at", &bed.at)]);
    let expected = "600 plain/file\n664 acl/file\n775 acl/dir\n\
        user::rw-\nuser:nobody:rwx\ngroup::rwx\nmask::rw-\nother::r--\n\n\
        user::rw-\nuser:nobody:rwx\ngroup::rwx\nmask::r--\nother::---\n\n770\n";
    assert_eq!(output, expected);
    bed.umount_ok();
}

#[test]
fn chattr_works_and_what_it_forbids_is_forbidden() {
    const TEST: &str = "chattr";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::programs(TEST, &["chattr", "lsattr"]) || !requirement::kernel_btrfs(TEST) {
        return;
    }
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let script = r#"
        cd "$at" && echo 1 > fixed && echo 1 > log && mkdir dir && chattr +i fixed && chattr +ad log && chattr +A dir
        lsattr -d fixed log dir | tr -d -- -
        ! sh -c 'echo 2 > fixed' 2> /dev/null
        ! sh -c 'echo 2 > log' 2> /dev/null
        ! rm -f fixed 2> /dev/null
        echo 2 >> log
        chattr +C dir && lsattr -d dir | tr -d -- -
    "#;
    let output = shell(script, &[("at", &bed.at)]);
    assert_eq!(output, "i fixed\nad log\nA dir\nAC dir\n");
    assert_eq!(fs::read_to_string(bed.path("fixed")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(bed.path("log")).unwrap(), "1\n2\n");
    bed.umount_ok();
    bed.judge(|root| {
        let output = shell("lsattr -d \"$root/fixed\" \"$root/log\" | cut -d' ' -f1 | tr -d -- -", &[("root", root)]);
        assert_eq!(output, "i\nad\n");
    });
    bed.mount_ok("rw");
    shell("chattr -ia \"$at/fixed\" \"$at/log\" && rm \"$at/fixed\" \"$at/log\"", &[("at", &bed.at)]);
    bed.umount_ok();
}

#[test]
fn files_without_names_live_and_get_names() {
    const TEST: &str = "tmpfile";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let bed = bed.with_image();
    bed.mount_ok("rw");
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let nameless = || {
        let fd = rustix::fs::open(&bed.at, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
        let file = File::from(fd);
        file.write_all_at(b"was nameless", 0).unwrap();
        file
    };
    let (named, _forgotten) = (nameless(), nameless());
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&named));
    rustix::fs::linkat(CWD, link.as_str(), CWD, bed.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(named);
    assert_eq!(fs::read(bed.path("named")).unwrap(), b"was nameless");
    rustix::fs::sync();
    bed.kill();
    // The next mount removes what no name leads to.
    bed.mount_ok("rw");
    assert_eq!(fs::read(bed.path("named")).unwrap(), b"was nameless");
    bed.umount_ok();
    bed.judge(|root| assert_eq!(fs::read_dir(root).unwrap().count(), 1));
}

#[test]
fn in_the_foreground_it_serves_until_it_is_unmounted() {
    const TEST: &str = "foreground";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let mut command = Command::new(BINARY);
    command.args(["mount", "-f", text(&bed.image), text(&bed.at)]).stdin(Stdio::null());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually(|| bed.is_mounted());
    fs::write(bed.path("file"), "content").unwrap();
    butterfs_ok(&["umount", text(&bed.at)]);
    assert!(process.try_wait().unwrap().is_some_and(|status| status.success()), "umount waited for it");
    let output = process.wait_with_output().unwrap();
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// Whether a thread of the process serves a queue of io_uring.
fn serves_rings(process: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads
        .into_iter()
        .any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.starts_with("fuse-ring")))
}

#[test]
fn the_transport_can_be_chosen() {
    const TEST: &str = "mount_transport";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let has_rings = transport::io_uring(TEST);
    for option in ["transport=classic", "transport=auto", "transport=uring", "rw"] {
        let ran = butterfs(&["mount", "-o", option, text(&bed.image), text(&bed.at)]);
        if option == "transport=uring" && !has_rings {
            assert!(ran.code == Some(1) && ran.stderr.contains("FUSE over io_uring"), "{ran:?}");
            assert!(!bed.is_mounted(), "nothing is left of a mount that is refused");
            continue;
        }
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{option}: {ran:?}");
        let expected = has_rings && option != "transport=classic";
        assert_eq!(serves_rings(bed.serving_process().unwrap()), expected, "{option}");
        fs::write(bed.path("file"), option).unwrap();
        assert_eq!(fs::read_to_string(bed.path("file")).unwrap(), option);
        bed.umount_ok();
    }
    let ran = butterfs(&["mount", "-o", "transport=pigeon", text(&bed.image), text(&bed.at)]);
    assert!(ran.stderr.contains("'pigeon' is not supported"), "{ran:?}");
}

#[test]
fn mounts_hold_over_dev_fuse() {
    let filters = [
        "every_way_of_unmounting",
        "what_was_synced_survives",
        "subvolumes_have_inode_numbers",
        "a_directory_that_is_renamed",
        "directories_are_read",
        "what_is_written_through_a_mapping",
        "default_acls",
        "chattr_works",
        "files_without_names",
    ];
    transport::again_over_dev_fuse("mounts_hold_over_dev_fuse", &filters, 100);
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    const TEST: &str = "mount_write_protected";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let node = shell("losetup --find --show --read-only \"$image\"", &[("image", &bed.image)]);
    let node = PathBuf::from(node.trim());
    let ran = butterfs(&["mount", text(&node), text(&bed.at)]);
    let mounted = bed.mountinfo();
    let written = fs::write(bed.path("file"), b"content");
    let remounted = butterfs(&["mount", "-o", "remount,rw", text(&node), text(&bed.at)]);
    butterfs_ok(&["umount", text(&bed.at)]);
    shell("losetup --detach \"$node\"", &[("node", &node)]);
    let warning = format!("WARNING: {} is write-protected, mounted read-only\n", node.display());
    assert_eq!((ran.code, ran.stderr), (Some(0), warning));
    assert!(mounted.unwrap().contains(" ro,"), "the kernel knows");
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert!(remounted.code != Some(0) && remounted.stderr.contains("write-protected"), "{remounted:?}");
}

/// Intrusions into an image that is served, and the server's word for each.
const INTRUSIONS: [(&str, &str); 3] = [
    ("mkfs.btrfs -q -f \"$image\"", "another program or machine"),
    ("truncate -s 100M \"$image\"", "now 104857600"),
    (
        "node=$(losetup --find --show \"$image\"); mount \"$node\" \"$other\"; head -c 5000000 /dev/urandom \
         > \"$other/kernel\"; sync -f \"$other\"; umount \"$other\"; losetup -d \"$node\"",
        "another program or machine",
    ),
];

#[test]
fn nothing_is_written_over_what_somebody_else_has_written_to_a_served_image() {
    const TEST: &str = "mount_intrusion";
    let Some(bed) = Bed::for_root(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let other = bed.scratch.folder("other");
    for (intrusion, word) in INTRUSIONS {
        let _ = fs::remove_file(&bed.image);
        butterfs_ok(&["mkfs", "-q", "-b", "512M", text(&bed.image)]);
        bed.mount_ok("commit=300");
        let file = File::create(bed.path("file")).unwrap();
        file.sync_all().unwrap();
        drop(file);
        shell(intrusion, &[("image", &bed.image), ("other", &other)]);
        let after = fs::read(&bed.image).unwrap();
        // Refused where a sync(2) of another test has noticed already.
        let _ = fs::write(bed.path("late"), vec![1; 100]);
        let synced = butterfs(&["filesystem", "sync", text(&bed.at)]);
        assert!(synced.code != Some(0), "{intrusion}: {synced:?}");
        assert!(fs::write(bed.path("later"), b"x").is_err(), "{intrusion}: writing has stopped");
        let unmounted = butterfs(&["umount", text(&bed.at)]);
        assert!(unmounted.code != Some(0) && unmounted.stderr.contains(word), "{intrusion}: {unmounted:?}");
        eventually(|| bed.serving_process().is_none());
        let now = fs::read(&bed.image).unwrap();
        let superblock = 65536..65536 + 4096;
        assert!(now.len() == after.len() && now[superblock.clone()] == after[superblock], "{intrusion}");
        if word != "now 104857600" {
            butterfs_testkit::kernel::check_all(&bed.image);
        }
    }
}

/// Changes a byte of the first copy of `pattern` on an image.
fn spoil(image: &Path, pattern: &[u8]) {
    let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut block = vec![0; 4096];
    let found = (1 << 20..file.metadata().unwrap().len()).step_by(4096).find(|at| {
        file.read_exact_at(&mut block, *at).unwrap();
        block == pattern
    });
    file.write_all_at(b"X", found.unwrap() + 100).unwrap();
}

#[test]
fn bad_data_is_told_with_device_and_file() {
    const TEST: &str = "mount_bad_data";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let pattern: Vec<u8> = (0..4096u32).map(|index| (index * 7 + index / 256) as u8).collect();
    // What is repaired is a whole request, named by its beginning; what is lost, a sector.
    let cases = [("single", "no good copy of 4096 bytes", 8192), ("dup", "repaired from another copy", 0)];
    for (profile, outcome, offset) in cases {
        let _ = fs::remove_file(&bed.image);
        butterfs_ok(&["mkfs", "-q", "-b", "256M", "-d", profile, text(&bed.image)]);
        bed.mount_ok("rw");
        fs::create_dir(bed.path("folder")).unwrap();
        let mut content = vec![1; 64 << 10];
        content[8192..12288].copy_from_slice(&pattern);
        fs::write(bed.path("folder/file"), &content).unwrap();
        bed.umount_ok();
        spoil(&bed.image, &pattern);
        let mut command = Command::new(BINARY);
        command.args(["mount", "-f", text(&bed.image), text(&bed.at)]).stdin(Stdio::null());
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually(|| bed.is_mounted());
        for _ in 0..3 {
            let read = fs::read(bed.path("folder/file"));
            assert_eq!(read.is_ok(), profile == "dup", "{profile}: {:?}", read.err());
        }
        butterfs_ok(&["umount", text(&bed.at)]);
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let line = said.lines().find(|line| line.contains(outcome)).unwrap_or_else(|| panic!("{profile}: {said}"));
        assert!(line.contains(&format!("on {} (devid 1) at ", bed.image.display())), "{line}");
        let file = format!("; used by '/folder/file' (inode 258 of tree 5) at offset {offset}");
        assert!(line.ends_with(&file), "{line}");
        assert_eq!(said.matches(outcome).count(), 1, "{profile}: not for each read: {said}");
    }
}

/// The memory of many files is returned to the system soon after they are gone.
#[test]
fn memory_is_given_back() {
    const TEST: &str = "memory_given_back";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let server = bed.serving_process().unwrap();
    let resident = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    let before = resident();
    let names: Vec<PathBuf> = (0..30_000).map(|number| bed.path(&format!("file-number-{number}"))).collect();
    names.iter().for_each(|name| drop(File::create(name).unwrap()));
    let most = resident();
    assert!(most > before + 18, "{before} MiB before, {most} with many files");
    names.iter().for_each(|name| fs::remove_file(name).unwrap());
    butterfs_ok(&["filesystem", "sync", text(&bed.at)]);
    eventually(|| resident() < before + 16);
    bed.umount_ok();
}

#[test]
fn mount_helpers_are_found_by_their_names() {
    const TEST: &str = "mount_helper_names";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    let ext4 = bed.scratch.sparse_file("ext4", 16 << 20);
    shell("mkfs.ext4 -q \"$image\"", &[("image", &ext4)]);
    let helper = |name: &str, arguments: &[&str]| {
        let link = bed.scratch.join(name);
        let _ = std::os::unix::fs::symlink(BINARY, &link);
        common::ran(Command::new(link).args(arguments).output().unwrap())
    };
    let (image, at) = (text(&bed.image), text(&bed.at));
    let failed = helper("mount.butterfs", &[text(&ext4), at, "-o", "rw"]);
    assert_eq!(failed.code, Some(32), "{failed:?}");
    assert!(failed.stderr.contains("is not a btrfs filesystem: it holds ext2, ext3 or ext4"), "{failed:?}");
    assert_eq!(helper("mount.butterfs", &[image, at, "-o", "frob"]).code, Some(1));
    assert_eq!(helper("mount.butterfs", &[image, at, "-o", "rw"]).code, Some(0));
    // As the kernel's: the subvolume of a mount stays.
    for options in ["remount,subvol=elsewhere,compress=zstd", "remount,ro,subvolid=999", "remount,rw"] {
        let ran = helper("mount.fuseblk.butterfs", &[image, at, "-o", options]);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{options}: {ran:?}");
    }
    bed.umount_ok();
    let checked = butterfs(&["check", text(&ext4)]);
    assert!(checked.code == Some(1) && !checked.stdout.contains("[1/"), "{checked:?}");
}

#[test]
fn a_mount_without_a_server_says_what_helps() {
    const TEST: &str = "mount_left_alone";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let process = rustix::process::Pid::from_raw(bed.serving_process().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    eventually(|| bed.serving_process().is_none());
    let (image, at, new) = (text(&bed.image), text(&bed.at), bed.path("new"));
    let commands: [&[&str]; 5] = [
        &["subvolume", "list", at],
        &["subvolume", "create", text(&new)],
        &["filesystem", "sync", at],
        &["device", "stats", at],
        &["mount", image, at],
    ];
    for command in commands {
        let ran = butterfs(command);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("'butterfs umount' takes the mount away"),
            "{command:?}: {ran:?}"
        );
    }
    let unmounted = butterfs(&["umount", at]);
    assert!(
        unmounted.code == Some(1) && !bed.is_mounted(),
        "nobody knows whether everything is durable: {unmounted:?}"
    );
}

/// As when the file system beneath the image is full: an error of what is written, not the end of the serving process.
#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    const TEST: &str = "file_size_limit";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    // Units of 512 bytes: 100 MiB, which is less than the image has.
    assert!(fs::metadata(&bed.image).unwrap().len() > 110 << 20);
    let script = "ulimit -f 204800; exec \"$butterfs\" mount \"$image\" \"$at\"";
    shell(script, &[("butterfs", Path::new(BINARY)), ("image", &bed.image), ("at", &bed.at)]);
    let server = bed.serving_process().unwrap();
    let mut kept = File::create(bed.path("kept")).unwrap();
    kept.write_all(b"kept").and_then(|()| kept.sync_all()).unwrap();
    let mut large = File::create(bed.path("large")).unwrap();
    let piece = vec![7; 1 << 20];
    let written = (0..300).try_for_each(|_| large.write_all(&piece)).and_then(|()| large.sync_all());
    assert!(written.is_err());
    drop((kept, large));
    assert_eq!(bed.serving_process(), Some(server), "it serves on");
    assert_eq!(fs::read(bed.path("kept")).unwrap(), b"kept");
    // It says that not everything is durable.
    let _ = butterfs(&["umount", text(&bed.at)]);
    eventually(|| !bed.is_mounted());
    bed.judge(|root| assert_eq!(fs::read(root.join("kept")).unwrap(), b"kept"));
}
