//! `butterfs receive`: the text of a dump is that of btrfs-progs, and streams arrive in images.

mod common;
#[allow(dead_code)] // what other tests of mounts need
mod mounted;

use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run};
use butterfs_testkit::operation::Kind;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, eventually};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A tree with something of everything, and what changes in it.
const FIRST: &str = r#"
mkdir d1 d1/d2 d3 'sp ace'; echo hello > d1/f; seq 20000 > big; cp --reflink=always big clone; ln d1/f d1/d2/hard
ln -s ../x d3/sym; mknod c c 5 1; mkfifo p; truncate -s 1M sparse
printf x | dd of=sparse bs=1 seek=500000 conv=notrunc status=none
setfattr -n user.a -v 'b c' big; setfattr -n trusted.x -v 0x000102 d3; touch 'sp ace/new
line'; chown 12:34 big; chmod 4755 big; chown 5:6 d1/d2; chmod 2755 d1/d2; touch -d 1969-12-31 d3/old
"#;
const SECOND: &str = r#"
mv d1/d2 d3/moved; mv d1 d9; rm clone c; echo new > n; echo more >> d9/f; mkdir k; mv n k/; truncate -s 100 sparse
fallocate -p -o 4096 -l 8192 big; setfattr -x user.a big; rmdir 'sp ace' 2>/dev/null || mv 'sp ace' spaceless
"#;

/// The kernel's streams of two snapshots, in versions 1 and 2.
fn streams(test: &str, scratch: &Scratch) -> Option<(KernelMount, Vec<PathBuf>)> {
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["setfattr"]) {
        return None;
    }
    let image = scratch.sparse_file("source", 512 << 20);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let script = format!(
        "set -eu; cd {at}; b() {{ btrfs -q \"$@\"; }}; b subvolume create s; (cd s; {FIRST}); b subvolume snapshot -r \
         s A\n\
         (cd s; {SECOND}); b subvolume snapshot -r s B\n\
         b send -f {to}/A1 A; b send -p A -f {to}/B1 B\n\
         b send --compressed-data -f {to}/A2 A; b send --proto 2 -p A -f {to}/B2 B",
        at = mount.path().display(),
        to = scratch.path().display(),
    );
    let done = run(60, "bash", &["-c", &script]);
    assert_eq!(done.code, Some(0), "{}", done.output);
    let files = ["A1", "B1", "A2", "B2"].iter().map(|name| scratch.join(name)).collect();
    Some((mount, files))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

#[test]
fn a_dump_is_that_of_btrfs_progs() {
    const TEST: &str = "receive_dump";
    let _watchdog = Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    let Some((_mount, files)) = streams(TEST, &scratch) else { return };
    let newer = butterfs_testkit::scratch::tools().join("btrfs-progs/bin/btrfs");
    let oracle = if newer.is_file() { newer } else { requirement::program("btrfs").expect("it was required") };
    for file in &files {
        let wanted = run(20, &oracle, &["receive", "--dump", "-f", text(file)]);
        assert_eq!(wanted.code, Some(0), "{}", wanted.output);
        let ours = butterfs_ok(&["receive", "--dump", "-f", text(file)]);
        // Before 6.19 or so, values of attributes stood there as they are, behind a word.
        let comparable = |text: &str| -> Vec<String> {
            let odd = |line: &&str| !line.starts_with("set_xattr");
            text.lines().filter(odd).map(|line| line.replace(", ", " ")).collect()
        };
        assert_eq!(comparable(&ours), comparable(&wanted.output));
        assert!(ours.lines().count() > 10);
    }
    let ours = butterfs_ok(&["receive", "--dump", "-f", text(&files[0])]);
    assert!(ours.contains("set_xattr       ./A/big                         name=user.a b\\ c len=3\n"), "{ours}");
    assert!(ours.contains("name=trusted.x \\000\\001\\002 len=3\n"), "{ours}");
}

/// The properties that a stream carries are the same on both sides.
fn assert_same(expected: &Path, actual: &Path, name: &str) {
    let compare = Compare { atime: true, ..Compare::MODEL };
    let print = |root: &Path| Fingerprint::of_tree(&root.join(name));
    let found = differences(&print(expected), &print(actual), compare);
    assert!(found.is_empty(), "{name}: {found:#?}");
}

#[test]
fn streams_arrive_in_a_directory() {
    const TEST: &str = "receive_directory";
    let _watchdog = Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    let Some((source, files)) = streams(TEST, &scratch) else { return };
    for pair in files.chunks(2) {
        let at = scratch.folder("at");
        for file in pair {
            let ran = butterfs(&["receive", "-q", "--into-directory", "-f", text(file), text(&at)]);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        }
        ["A", "B"].iter().for_each(|name| assert_same_but_size(source.path(), &at, name));
        fs::remove_dir_all(&at).unwrap();
    }
}

/// The same where directories have another size, and reading changes times.
fn assert_same_but_size(expected: &Path, actual: &Path, name: &str) {
    let print = |root: &Path| {
        let mut print = Fingerprint::of_tree(&root.join(name));
        for entry in print.entries.values_mut().filter(|entry| entry.kind == Kind::Folder) {
            (entry.size, entry.links) = (0, 0);
        }
        print
    };
    let found = differences(&print(expected), &print(actual), Compare::MODEL);
    assert!(found.is_empty(), "{name}: {found:#?}");
}

#[test]
fn streams_arrive_on_a_mount() {
    const TEST: &str = "receive_mount";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let Some((source, files)) = streams(TEST, &bed.scratch) else { return };
    for (number, pair) in files.chunks(2).enumerate() {
        butterfs_ok(&["mkfs", "-q", "-f", "-b", "512M", text(&bed.image)]);
        bed.mount_ok("rw");
        fs::create_dir(bed.path("into")).unwrap();
        let into = bed.path("into");
        let ran = butterfs(&["receive", "-v", "-f", text(&pair[0]), text(&into)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.starts_with("At subvol A\nreceiving subvol A uuid="), "{ran:?}");
        assert_same(source.path(), &into, "A");
        slowly(&bed, &into, &pair[1]);
        assert_same(source.path(), &into, "B");
        assert!(fs::write(into.join("B/new"), b"").is_err(), "what was received is read-only");
        let again = butterfs(&["receive", "-q", "-f", text(&pair[1]), text(&into)]);
        assert_eq!((again.code, again.stderr.contains("File exists")), (Some(1), true), "{again:?}");
        if number == 0 {
            // Durable when it returns.
            bed.kill();
        } else {
            bed.umount_ok();
        }
        bed.judge(|root| {
            ["A", "B"].iter().for_each(|name| assert_same(source.path(), &root.join("into"), name));
            assert_eq!(fs::read_dir(root.join("into")).unwrap().count(), 2);
        });
    }
    assert_eq!(source.finish(), [""; 0]);
}

/// Receives a stream from a pipe that stops half-way: meanwhile nobody gets into what is not complete.
fn slowly(bed: &Bed, into: &Path, stream: &Path) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_butterfs"))
        .args(["receive", "-q", text(into)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = fs::read(stream).unwrap();
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    let mut input = child.stdin.take().unwrap();
    input.write_all(first).unwrap();
    let partial = into.join("B.partial");
    let is_there = || fs::read_dir(into).unwrap().any(|entry| entry.unwrap().file_name() == "B.partial");
    eventually(is_there);
    for look in [fs::metadata(&partial).map(drop), fs::read(partial.join("d9/f")).map(drop)] {
        assert_eq!(look.map_err(|error| error.raw_os_error()), Err(Some(16)), "EBUSY");
    }
    input.write_all(rest).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    assert!(!is_there() && fs::metadata(&partial).is_err());
    assert_eq!(bed.mountinfo().map(|_| ()), Some(()));
}

#[test]
fn streams_arrive_in_an_image() {
    const TEST: &str = "receive_image";
    let _watchdog = Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    let Some((source, files)) = streams(TEST, &scratch) else { return };
    for pair in files.chunks(2) {
        let image = scratch.join("target");
        butterfs_ok(&["mkfs", "-q", "-f", "-b", "512M", text(&image)]);
        for (file, word) in pair.iter().zip(["At subvol A", "At snapshot B"]) {
            let ran = butterfs(&["receive", "--image", text(&image), "-f", text(file), "/"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert!(ran.stdout.contains(word) || ran.stderr.contains(word), "{ran:?}");
        }
        check_all(&image);
        let target = KernelMount::new(&image, "ro");
        ["A", "B"].iter().for_each(|name| assert_same(source.path(), target.path(), name));
        assert_eq!(target.finish(), [""; 0]);
        let ran = butterfs(&["receive", "--image", text(&image), "-f", text(&pair[0]), "/"]);
        assert_eq!(ran.code, Some(1));
        assert_eq!(ran.stderr, "At subvol A\nERROR: subvol A (byte 17 of the stream) failed: File exists\n");
        let nowhere = butterfs(&["receive", "--image", text(&image), "-f", text(&pair[0]), "/nowhere"]);
        assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    }
}

#[test]
fn mistakes_are_told() {
    let scratch = Scratch::new("receive_mistakes");
    let (missing, empty) = (scratch.join("missing"), scratch.join("empty"));
    fs::write(&empty, b"").unwrap();
    let ran = butterfs(&["receive", "--dump", "-f", text(&missing)]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot open"), "{ran:?}");
    let ran = butterfs(&["receive", "--dump", "-f", text(&empty)]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "ERROR: empty stream is not considered valid\n"));
    fs::write(&empty, b"btrfs-stream\0\x01\0\0\0\x05").unwrap();
    let ran = butterfs(&["receive", "--dump", "-f", text(&empty)]);
    assert_eq!(ran.stderr, "ERROR: byte 17 of the stream: send stream is truncated\n");
    assert_eq!(butterfs(&["receive"]).code, Some(2));
}
