//! `butterfs receive`: the text of a dump is that of btrfs-progs, and streams arrive in images.

mod common;

use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use common::{butterfs, butterfs_ok};
use std::fs;
use std::path::{Path, PathBuf};

/// A tree with something of everything, and what changes in it.
const FIRST: &str = r#"
mkdir d1 d1/d2 d3 'sp ace'; echo hello > d1/f; seq 20000 > big; cp --reflink=always big clone; ln d1/f d1/d2/hard
ln -s ../x d3/sym; mknod c c 5 1; mkfifo p; truncate -s 1M sparse; printf x | dd of=sparse bs=1 seek=500000 conv=notrunc status=none
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
        "set -eu; cd {at}; b() {{ btrfs -q \"$@\"; }}; b subvolume create s; (cd s; {FIRST}); b subvolume snapshot -r s A\n\
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

#[test]
fn streams_arrive_in_an_image() {
    const TEST: &str = "receive_image";
    let _watchdog = Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    let Some((source, files)) = streams(TEST, &scratch) else { return };
    let fingerprint = |root: &Path| butterfs_testkit::fingerprint::Fingerprint::of_tree(root);
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
        for name in ["A", "B"] {
            let compare =
                butterfs_testkit::fingerprint::Compare { atime: true, ..butterfs_testkit::fingerprint::Compare::MODEL };
            let (ours, theirs) = (fingerprint(&target.path().join(name)), fingerprint(&source.path().join(name)));
            let found = butterfs_testkit::fingerprint::differences(&theirs, &ours, compare);
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
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
