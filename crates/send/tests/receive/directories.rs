//! Ordinary directories as targets.

use crate::world::{Received, Stream, receive_into, time};
use butterfs_send::apply::{Directory, marker};
use butterfs_send::wire::Command;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

fn receive(at: &Path, stream: &[u8]) -> Received {
    receive_into(stream, &mut Directory::open(at).unwrap())
}

fn receive_ok(at: &Path, stream: &[u8]) {
    assert_eq!(receive(at, stream).errors, [""; 0]);
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn trees_grow_from_each_other() {
    let scratch = Scratch::new("trees_grow_from_each_other");
    let at = scratch.path();
    let first = Stream::subvol("a", 1)
        .dir("d")
        .file("d/f")
        .write("d/f", 0, b"content")
        .add(Command::Link { path: b"hard", existing: b"d/f" })
        .add(Command::Symlink { path: b"link", ino: 1, target: b"/etc/passwd" })
        .add(Command::Mkfifo { path: b"pipe", ino: 1, rdev: 0, mode: 0 })
        .chmod("d/f", 0o640)
        .utimes("d/f", 1000)
        .utimes("d", 2000)
        .utimes("", 3000)
        .end();
    receive_ok(at, &first);
    assert_eq!(names(at), [".a.butterfs-received", "a"]);
    let f = fs::metadata(at.join("a/d/f")).unwrap();
    assert_eq!((f.mode() & 0o7777, f.nlink(), f.mtime(), f.mtime_nsec()), (0o640, 2, 1000, 123_456_789));
    assert!(fs::symlink_metadata(at.join("a/pipe")).unwrap().file_type().is_fifo());
    // The next one leaves the first as it is, keeps links apart from it, and the root's times.
    let second = Stream::snapshot("b", 2, 1)
        .write("d/f", 3, b"TENT!")
        .file("o1")
        .rename("o1", "d/new")
        .clone_from(1, "d/f", 0, 7, "d/new", 0)
        .clone_from(2, "hard", 0, 8, "d/new", 7)
        .end();
    receive_ok(at, &second);
    assert_eq!(fs::read(at.join("a/hard")).unwrap(), b"content");
    assert_eq!(fs::read(at.join("b/hard")).unwrap(), b"conTENT!");
    assert_eq!(fs::read(at.join("b/d/new")).unwrap(), b"contentconTENT!");
    assert_eq!(fs::read_link(at.join("b/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::metadata(at.join("b/d/f")).unwrap().nlink(), 2);
    for tree in ["a", "b"] {
        assert_eq!(fs::metadata(at.join(tree)).unwrap().mtime(), time(3000).sec, "{tree}");
    }
    let marker = fs::read_to_string(at.join(".b.butterfs-received")).unwrap();
    assert!(marker.contains("uuid 02020202-0202-0202-0202-020202020202\ntransid 8\n"), "{marker}");
    let refusal = receive(at, &Stream::snapshot("c", 3, 9).end()).errors.remove(0);
    assert!(refusal.contains("cannot find the parent 09090909"), "{refusal}");
    // Names of every length, by which the next one is found as well.
    let long = "n".repeat(255);
    receive_ok(at, &Stream::snapshot(&long, 4, 2).end());
    receive_ok(at, &Stream::snapshot("after", 5, 4).end());
    assert_eq!(fs::read(at.join("after/hard")).unwrap(), b"conTENT!");
    assert!(at.join(String::from_utf8(marker::name_beside(long.as_bytes())).unwrap()).exists());
}

#[test]
fn an_interrupted_receive_gives_way_to_the_next() {
    let scratch = Scratch::new("what_was_interrupted");
    let at = scratch.path();
    let whole = Stream::subvol("a", 1).dir("d").dir("d/e").file("d/e/f").end();
    assert_eq!(receive(at, &whole[..whole.len() - 10]).errors.len(), 1);
    assert_eq!(names(at), ["a.partial"]);
    let mut target = Directory::open(at).unwrap();
    assert_eq!(receive_into(&whole, &mut target).errors, [""; 0]);
    assert_eq!(names(at), [".a.butterfs-received", "a"]);
    assert!(receive(at, &whole).errors[0].contains("File exists"));
    fs::create_dir(at.join("b.partial")).unwrap();
    fs::write(at.join("b.partial/mine"), b"").unwrap();
    let other = Stream::subvol("b", 2).end();
    let refused = receive_into(&other, &mut Directory::open(at).unwrap());
    assert!(refused.errors[0].contains("no interrupted receive has left it"), "{refused:?}");
    assert!(at.join("b.partial/mine").exists());
}

#[test]
fn no_path_leads_out_of_the_tree() {
    let scratch = Scratch::new("no_path_leads_out_of_the_tree");
    let at = scratch.folder("at");
    fs::create_dir(scratch.join("home")).unwrap();
    fs::write(scratch.join("home/victim"), b"precious").unwrap();
    let before = fs::metadata(scratch.join("home")).unwrap();
    let home = scratch.join("home");
    let home = home.to_str().unwrap().as_bytes();
    let victim = [home, b"/victim"].concat();
    for path in [&b"up/victim"[..], b"up/x", b"abs", b"../../home/victim", b"dir/../../../home/x", &victim] {
        for command in crate::hostile::everywhere(path) {
            let stream = Stream::subvol("s", 1)
                .dir("dir")
                .file("ok")
                .write("ok", 0, b"data")
                .add(Command::Symlink { path: b"up", ino: 9, target: home })
                .add(Command::Symlink { path: b"abs", ino: 9, target: &victim })
                .add(command)
                .end();
            let mut target = Directory::open(&at).unwrap();
            let received = receive_into(&stream, &mut target);
            assert!(received.errors.iter().all(|error| error.starts_with(command.name()) && error.contains("(byte ")));
            if received.errors.is_empty() {
                assert_eq!(path, b"abs", "{command:?}");
                fs::remove_dir_all(at.join("s")).unwrap();
            }
        }
    }
    assert_eq!(fs::read(scratch.join("home/victim")).unwrap(), b"precious");
    let after = fs::metadata(scratch.join("home")).unwrap();
    assert_eq!(
        (after.mtime_nsec(), after.ctime_nsec(), after.mode()),
        (before.mtime_nsec(), before.ctime_nsec(), before.mode())
    );
    assert_eq!(names(&scratch.join("home")), ["victim"]);
}

#[test]
fn a_device_that_a_stream_made_is_not_opened() {
    let scratch = Scratch::new("a_device_that_a_stream_made");
    for kind in [0o20666, 0o60666] {
        let stream = Stream::subvol("s", 1)
            .add(Command::Mknod { path: b"n", ino: 1, rdev: 0x103, mode: kind })
            .write("n", 0, b"x")
            .end();
        let mut target = Directory::open(scratch.path()).unwrap();
        let received = receive_into(&stream, &mut target);
        let as_root = rustix::process::geteuid().is_root();
        assert!(!as_root || received.errors[0].contains("not a regular file"), "{received:?}");
        assert!(as_root || target.losses().len() == 1, "{:?}", target.losses());
        if received.errors.is_empty() {
            fs::remove_dir_all(scratch.join("s")).unwrap();
        }
    }
}

/// The rights of a user who is not root, in a thread of its own: the others keep theirs.
fn unprivileged(work: impl FnOnce() + Send) {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let become_nobody = || {
        let (uid, gid) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work();
    };
    std::thread::scope(|scope| scope.spawn(become_nobody).join()).unwrap_or_else(|why| std::panic::resume_unwind(why));
}

/// Files that a user who is not root has made can be changed by the commands that follow, whatever their permissions
/// are; what such a user cannot keep is counted.
#[test]
fn a_user_receives_what_permissions_forbid() {
    const TEST: &str = "a_user_receives_what_permissions_forbid";
    if !rustix::process::geteuid().is_root() {
        return butterfs_testkit::requirement::skip(TEST, "needs root, to become another user");
    }
    let scratch = Scratch::new(TEST);
    let at = scratch.path();
    std::os::unix::fs::chown(at, Some(65_534), Some(65_534)).unwrap();
    let first = Stream::subvol("a", 1)
        .chown("", 0, 0)
        .dir("d")
        .dir("d/e")
        .chmod("d", 0o555)
        .chmod("d/e", 0)
        .file("d/f")
        .chown("d/f", 0, 0)
        .chmod("d/f", 0o444)
        .write("d/f", 0, b"content")
        .xattr("d/f", "user.a", b"b")
        .xattr("d/f", "trusted.a", b"b")
        .file("d/e/g")
        .write("d/e/g", 0, &[7; 5000])
        .chmod("d/e/g", 0)
        .utimes("d/e/g", 50)
        .add(Command::Symlink { path: b"d/e/link", ino: 1, target: b"nowhere" })
        .add(Command::Mknod { path: b"d/null", ino: 1, rdev: 0x103, mode: 0o20666 })
        .dir("moves")
        .chmod("moves", 0o500)
        .rename("moves", "d/e/moved")
        .add(Command::Link { path: b"d/e/hard", existing: b"d/f" })
        .chown("d", 1, 1)
        .utimes("d/e", 60)
        .utimes("d", 70)
        .chmod("", 0o555)
        .utimes("", 80)
        .end();
    let second = Stream::snapshot("b", 2, 1)
        .write("d/f", 3, b"TENT!")
        .clone_from(1, "d/e/g", 0, 4096, "d/f", 4096)
        .add(Command::RemoveXattr { path: b"d/f", name: b"user.a" })
        .unlink("d/e/link")
        .rename("d/e/g", "g")
        .add(Command::Rmdir { path: b"d/e/moved" })
        .chmod("d/e", 0o700)
        .end();
    // That user may not be able to walk there.
    let opened = fs::File::open(at).unwrap();
    let through = std::path::PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened)));
    let open = || Directory::open(&through).unwrap();
    unprivileged(|| {
        let mut target = open();
        assert_eq!(receive_into(&first, &mut target).errors, [""; 0]);
        let told: Vec<String> = target.losses().iter().map(ToString::to_string).collect();
        let reason = "Operation not permitted";
        assert_eq!(
            told,
            [
                format!("3 times chown, first  0:0: {reason}"),
                format!("set_xattr trusted.a of d/f: {reason}"),
                format!("mknod d/null CharacterDevice 1:3: {reason}")
            ]
        );
        assert_eq!(receive_into(&second, &mut open()).errors, [""; 0]);
    });
    // Every permission, time and content is what the streams say.
    let look = |path: &str| fs::symlink_metadata(at.join(path)).unwrap();
    for tree in ["a", "b"] {
        for (path, mode) in [("", 0o555), ("d", 0o555), ("d/f", 0o444)] {
            assert_eq!(look(&format!("{tree}/{path}")).mode() & 0o7777, mode, "{tree}/{path}");
        }
    }
    assert_eq!((look("a/d/e").mode() & 0o7777, look("a/d/e/g").mode() & 0o7777), (0, 0));
    assert_eq!((look("a/d/e/moved").mode() & 0o7777, look("b/g").mode() & 0o7777), (0o500, 0));
    assert_eq!((look("a").mtime(), look("a/d").mtime(), look("a/d/e").mtime(), look("b").mtime()), (80, 70, 60, 80));
    assert_eq!((look("a/d/e/g").mtime(), look("b/g").mtime()), (50, 50));
    assert_eq!(fs::read(at.join("a/d/e/hard")).unwrap(), b"content");
    let written = fs::read(at.join("b/d/f")).unwrap();
    assert_eq!((&written[..8], &written[4096..]), (&b"conTENT!"[..], &[7; 4096][..]));
    assert!(
        fs::symlink_metadata(at.join("b/d/e/moved")).is_err() && fs::symlink_metadata(at.join("b/d/e/link")).is_err()
    );
    // What was interrupted can be removed by the same user.
    let cut = [&Stream::subvol("c", 3).dir("d").file("d/f").chmod("d", 0).open_end()[..], b"junk"].concat();
    unprivileged(|| {
        assert_eq!(receive_into(&cut, &mut open()).errors.len(), 1);
        let whole = Stream::subvol("c", 3).file("f").end();
        let removed = receive_into(&whole, &mut open());
        assert_eq!(removed.errors, [""; 0]);
    });
    assert!(at.join("c/f").exists() && !at.join("c.partial").exists());
}

/// Flags of inodes on the kernel's btrfs: set before there is content, kept in copies, with the property as it was; and
/// no flag is in the way of removing what was interrupted.
#[test]
fn flags_live_in_directories_too() {
    const TEST: &str = "flags_live_in_directories_too";
    use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
    use butterfs_testkit::requirement;
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["lsattr", "chattr"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 256 << 20);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let at = mount.path();
    let flags = |path: &'static [u8], flags| Command::Fileattr { path, flags };
    let stream = Stream::subvol("a", 1)
        .file("nocow")
        .add(flags(b"nocow", 3))
        .write("nocow", 0, &[1; 9000])
        .file("late")
        .write("late", 0, &[1; 9000])
        .add(flags(b"late", 3 | 512))
        .file("packed")
        .xattr("packed", "btrfs.compression", b"lzo")
        .add(flags(b"packed", 512 | 2048))
        .dir("d")
        .add(flags(b"d", 2))
        .file("fixed")
        .add(flags(b"fixed", 64))
        .add(flags(b"", 128))
        .utimes("", 5);
    receive_ok(at, &stream.end());
    receive_ok(at, &Stream::snapshot("b", 2, 1).write("fixed", 0, b"x").utimes("", 6).end());
    let cut = Stream::snapshot("c", 3, 1).file("f").open_end();
    assert_eq!(receive(at, &cut).errors.len(), 1);
    fs::write(at.join("c.partial/tree/held"), b"").unwrap();
    run_ok(20, "chattr", &["+i", at.join("c.partial/tree/held").to_str().unwrap()]);
    let whole = Stream::subvol("c", 3).end();
    let removed = receive_into(&whole, &mut Directory::open(at).unwrap());
    assert_eq!(removed.errors, [""; 0]);
    for tree in ["a", "b"] {
        let shown = |name: &str| {
            let line = run_ok(20, "lsattr", &["-d", at.join(tree).join(name).to_str().unwrap()]);
            line.split(' ').next().unwrap().replace('-', "")
        };
        let all = ["nocow", "late", "packed", "d", "fixed", ""].map(shown);
        assert_eq!(all, ["C", "A", "Ac", "C", "i", "a"].map(str::to_owned), "{tree}");
        let mut value = [0; 16];
        let len = rustix::fs::lgetxattr(at.join(tree).join("packed"), "btrfs.compression", &mut value).unwrap();
        assert_eq!(&value[..len], b"lzo", "{tree}");
    }
    for (tree, name) in [("a", ""), ("b", ""), ("a", "fixed"), ("b", "fixed")] {
        run_ok(20, "chattr", &["-ia", at.join(tree).join(name).to_str().unwrap()]);
    }
    assert_eq!(mount.finish(), [""; 0]);
}

/// Everything below a folder that a stream could change.
fn untouched(at: &Path) -> Vec<(std::path::PathBuf, u32, i64, i64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(path) = waiting.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if stat.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, stat.mode(), stat.ctime(), stat.ctime_nsec(), content));
    }
    found.sort();
    found
}

/// Commands left out, repeated, exchanged and changed, and streams that end anywhere: errors that say where, and
/// nothing but the section's own tree is touched.
#[test]
fn hostile_streams_harm_nothing_beside_the_tree() {
    const TEST: &str = "hostile_streams_harm_nothing_beside_the_tree";
    let _watchdog = butterfs_testkit::watchdog::Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    // Where `../home` leads from the tree while it grows, when it is complete, and from the destination.
    let at = scratch.folder("at");
    for home in ["home", "at/home"] {
        fs::create_dir_all(scratch.join(home)).unwrap();
        fs::write(scratch.join(home).join("victim"), b"precious").unwrap();
    }
    let look = || [untouched(&scratch.join("home")), untouched(&at.join("home"))];
    let (before, parts) = (look(), crate::hostile::rich());
    let mut whole = b"btrfs-stream\0\x02\0\0\0".to_vec();
    parts.iter().for_each(|part| whole.extend_from_slice(part));
    for seed in 0..240 {
        let mut rng = butterfs_testkit::rng::Rng::new(seed);
        let stream = match seed % 4 {
            0 => whole[..rng.index(whole.len())].to_vec(),
            _ => butterfs_send::fuzz::mutated(&parts, &mut || rng.bits()),
        };
        let mut target = Directory::open(&at).unwrap();
        butterfs_send::fuzz::apply(&stream, &mut target, seed % 3);
        assert_eq!(look(), before, "seed {seed}");
        // Names are whatever bytes the stream had.
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != "home") {
            let path = entry.path();
            if path.is_file() {
                fs::remove_file(path).unwrap();
            } else if fs::remove_dir_all(&path).is_err() {
                // A complete tree may have immutable files.
                let others = "find \"$0\" -mindepth 1 -maxdepth 1 ! -name home -exec chattr -Rf -ia {} +";
                butterfs_testkit::kernel::run(20, "sh", &["-c", others, at.to_str().unwrap()]);
                fs::remove_dir_all(&path).unwrap();
            }
        }
    }
    assert_eq!(names(scratch.path()), ["at", "home"]);
}

/// Nothing pretends that a file is protected.
#[test]
fn verity_is_refused_by_name() {
    let scratch = Scratch::new("verity_is_refused_by_name");
    let verity = Command::EnableVerity { path: b"f", algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
    let refusal = receive(scratch.path(), &Stream::subvol("a", 1).file("f").add(verity).end()).errors.remove(0);
    assert!(
        refusal.starts_with("enable_verity f (byte ") && refusal.contains("fs-verity is not supported"),
        "{refusal}"
    );
}

#[test]
fn nothing_leaks_into_what_is_made() {
    let scratch = Scratch::new("nothing_leaks_into_what_is_made");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    let stream = Stream::subvol("a", 1)
        .xattr("", "system.posix_acl_default", crate::losses::DEFAULT_ACL)
        .chmod("", 0o2775)
        .file("f")
        .dir("d")
        .file("d/g")
        .add(Command::RemoveXattr { path: b"f", name: b"user.none" })
        .end();
    receive_ok(scratch.path(), &stream);
    for (path, mode) in [("a/f", 0o600), ("a/d", 0o700), ("a/d/g", 0o600)] {
        let path = scratch.join(path);
        let mut list = vec![0; 4096];
        let len = rustix::fs::llistxattr(&path, &mut list).unwrap_or_default();
        let named = String::from_utf8_lossy(&list[..len]).into_owned();
        assert!(!named.contains("posix_acl"), "{}: {named}", path.display());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode, "{}", path.display());
    }
}
