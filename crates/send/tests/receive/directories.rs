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
fn what_was_interrupted_is_refused_or_removed() {
    let scratch = Scratch::new("what_was_interrupted");
    let at = scratch.path();
    let whole = Stream::subvol("a", 1).dir("d").dir("d/e").file("d/e/f").end();
    assert_eq!(receive(at, &whole[..whole.len() - 10]).errors.len(), 1);
    assert_eq!(names(at), ["a.partial"]);
    let refusal = receive(at, &whole).errors.remove(0);
    assert!(refusal.contains("was left by an interrupted receive"), "{refusal}");
    let removed = receive_into(&whole, &mut Directory::open(at).unwrap().remove_partial(true));
    assert_eq!(removed.errors, [""; 0]);
    assert_eq!(names(at), [".a.butterfs-received", "a"]);
    assert!(receive(at, &whole).errors[0].contains("File exists"));
    fs::create_dir(at.join("b.partial")).unwrap();
    fs::write(at.join("b.partial/mine"), b"").unwrap();
    let other = Stream::subvol("b", 2).end();
    let refused = receive_into(&other, &mut Directory::open(at).unwrap().remove_partial(true));
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
            let mut target = Directory::open(&at).unwrap().remove_partial(true);
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
        let mut target = Directory::open(scratch.path()).unwrap().remove_partial(true);
        let received = receive_into(&stream, &mut target);
        let as_root = rustix::process::geteuid().is_root();
        assert!(!as_root || received.errors[0].contains("not a regular file"), "{received:?}");
        assert!(as_root || target.lost().1 == 1, "{:?}", target.lost());
        if received.errors.is_empty() {
            fs::remove_dir_all(scratch.join("s")).unwrap();
        }
    }
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
