//! `butterfs stream`: from a mount and the kernel into a store and back; killed, on a server that fails; the reader of
//! docs/objects.md.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::object_server::{CREDENTIALS, Fate, Server};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, shell, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// Two snapshots in an image, made without a mount: `s1`, and `s2` with a renamed folder and a changed file.
fn image_with_snapshots(scratch: &Scratch, seed: u64, megabytes: u64) -> std::path::PathBuf {
    let (image, tree) = (scratch.sparse_file(&format!("source{seed}.img"), 1 << 30), scratch.folder("tree"));
    fs::create_dir_all(tree.join("d/e")).unwrap();
    let mut rng = Rng::new(seed);
    for number in 0..megabytes {
        let mut content = vec![0; (1 << 20) + number as usize];
        rng.fill(&mut content);
        fs::write(tree.join(format!("d/file{number}")), content).unwrap();
    }
    fs::write(tree.join("d/e/small"), "small\n").unwrap();
    let (path, tree) = (text(&image), text(&tree));
    butterfs_ok(&["mkfs", "-q", path]);
    butterfs_ok(&["subvolume", "create", "--image", path, "/w"]);
    butterfs_ok(&["image", "cp-in", path, &format!("{tree}/d"), "/w/d"]);
    butterfs_ok(&["subvolume", "snapshot", "-r", "--image", path, "/w", "/s1"]);
    butterfs_ok(&["image", "mv", path, "/w/d", "/w/D"]);
    butterfs_ok(&["image", "rm", path, "/w/D/file0"]);
    butterfs_ok(&["image", "cp-in", path, &format!("{tree}/d/file1"), "/w/new"]);
    butterfs_ok(&["subvolume", "snapshot", "-r", "--image", path, "/w", "/s2"]);
    image
}

/// The digest of everything in a subvolume.
fn digest(image: &Path, subvolume: &str) -> String {
    let tar = Command::new(BINARY).args(["image", "tar-out", text(image), subvolume]).output().unwrap();
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    format!("{} bytes, {:?}", tar.stdout.len(), {
        use std::hash::{Hash as _, Hasher as _};
        let mut hash = std::collections::hash_map::DefaultHasher::new();
        tar.stdout.hash(&mut hash);
        hash.finish()
    })
}

/// Fails where a received tree is not the one that was put. GNU tar sets no times of access.
fn same_tree(what: &str, put: &Fingerprint, got: &Fingerprint) {
    let atime = what != "archive";
    let travels = Compare { atime, ctime: false, btime: false, blocks: false, holes: false, ..Compare::ALL };
    let found = differences(put, got, travels);
    assert!(found.is_empty(), "{what}: {found:#?}");
}

#[test]
fn a_mount_and_the_kernel_put_and_get() {
    const TEST: &str = "a_mount_and_the_kernel_put_and_get";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST).map(Bed::with_image) else { return };
    bed.mount_ok("noatime");
    let script = r#"
cd "$at"; "$butterfs" subvolume create w; mkdir w/d; seq 1 300000 > w/d/text; echo small > w/small; ln w/small w/d/hard
ln -s small w/link; mkfifo w/fifo; truncate -s 1G w/sparse; echo end >> w/sparse; setfattr -n user.x -v y w/small
chmod 4711 w/d/text; chown 5:6 w/small; mknod w/device c 5 1; fallocate -l 1M w/reserved; chattr +C w/d
"$butterfs" subvolume snapshot -r w s1
mv w/d w/D; echo more >> w/small; rm w/D/hard; mkdir w/d; for n in $(seq 50); do echo $n > w/d/$n; done
"$butterfs" subvolume snapshot -r w s2
"#;
    shell(script, &[("at", &bed.at), ("butterfs", Path::new(BINARY))]);
    let prints = ["s1", "s2"].map(|name| Fingerprint::of_tree(&bed.path(name)));
    let store = bed.scratch.join("store");
    let url = text(&store);
    let put = butterfs_ok(&["stream", "put", text(&bed.path("s1")), text(&bed.path("s2")), url]);
    assert_eq!(put.lines().count(), 2, "{put}");
    // Once more from anywhere: it is there.
    let again = butterfs_ok(&["stream", "put", text(&bed.path("s2")), url]);
    assert!(again.contains("has it already"), "{again}");
    assert_eq!(butterfs_ok(&["stream", "diff", url, "s1", "s2"]), "+ /D\n- /d\n+ /d\n- /d/hard\nM /small\n");
    assert_eq!(butterfs_ok(&["stream", "cat", url, "s2", "small"]), "small\nmore\n");
    assert_eq!(butterfs_ok(&["stream", "cat", url, "s1", "/small", "--offset", "2", "--length", "2"]), "al");
    assert!(butterfs_ok(&["stream", "ls", "-l", url, "s1", "d"]).contains("-rws--x--x   1"));
    let refused = butterfs(&["stream", "cat", url, "s1", "link"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("not a regular file"), "{refused:?}");

    // To a mount, a directory, and the kernel.
    fs::create_dir(bed.path("back")).unwrap();
    butterfs_ok(&["stream", "get", "-q", url, "s1", "s2", text(&bed.path("back"))]);
    let target = bed.scratch.sparse_file("target.img", 1 << 30);
    mkfs(&target, &[]);
    let kernel = KernelMount::new(&target, "rw");
    let [folder, unpacked] = ["folder", "unpacked"].map(|name| kernel.path().join(name));
    [&folder, &unpacked].iter().for_each(|path| fs::create_dir(path).unwrap());
    butterfs_ok(&["stream", "get", "-q", "--into-directory", url, "s2", text(&folder)]);
    let line = format!(
        "set -e -o pipefail; '{BINARY}' stream get -f - '{url}' s1 s2 | btrfs -q receive '{}'",
        kernel.path().display()
    );
    run_ok(60, "bash", &["-c", &line]);
    // And the archive of the same.
    let archive = bed.scratch.join("s2.tar");
    butterfs_ok(&["stream", "tar", url, "s2", "-f", text(&archive)]);
    run_ok(60, "tar", &["-C", text(&unpacked), "--xattrs", "--xattrs-include=*", "-xf", text(&archive)]);
    for (what, found, print) in [
        ("mount, s1", bed.path("back/s1"), &prints[0]),
        ("mount, s2", bed.path("back/s2"), &prints[1]),
        ("folder", folder.join("s2"), &prints[1]),
        ("kernel, s1", kernel.path().join("s1"), &prints[0]),
        ("kernel, s2", kernel.path().join("s2"), &prints[1]),
        ("archive", unpacked, &prints[1]),
    ] {
        same_tree(what, print, &Fingerprint::of_tree(&found));
    }
    // A stream of the kernel is put.
    run_ok(
        60,
        "btrfs",
        &["-q", "subvolume", "snapshot", "-r", text(&kernel.path().join("s2")), text(&kernel.path().join("k"))],
    );
    let line = format!(
        "set -e -o pipefail; btrfs -q send '{}' | '{BINARY}' stream put - '{url}'",
        kernel.path().join("k").display()
    );
    run_ok(60, "bash", &["-c", &line]);
    assert!(butterfs_ok(&["stream", "verify", "--deep", url]).contains("0 errors"));
    butterfs_ok(&["stream", "get", "-q", url, "k", text(&bed.path("back"))]);
    same_tree("from the kernel", &prints[1], &Fingerprint::of_tree(&bed.path("back/k")));
    assert!(kernel.finish().is_empty());
    bed.umount_ok();

    // The reader that stands in the document.
    let document = include_str!("../../../docs/objects.md");
    let program =
        document.split_once("```python\n").and_then(|(_, rest)| rest.split_once("```")).expect("it is there").0;
    let script = bed.scratch.join("reader.py");
    fs::write(&script, program).unwrap();
    let read = Command::new("python3").args([text(&script), url, "s2", "D/text"]).output().unwrap();
    let right: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(read.status.success() && read.stdout == right.as_bytes(), "{}", String::from_utf8_lossy(&read.stderr));
}

#[test]
fn a_put_that_is_refused_makes_no_store() {
    let scratch = Scratch::new("put-refused");
    let image = image_with_snapshots(&scratch, 1, 2);
    let store = scratch.join("store");
    for words in [
        &["stream", "put", "/no/such/snapshot", text(&store)][..],
        &["stream", "put", "--image", text(&image), "--encrypt-to", "nobody", "/s1", text(&store)],
        &["stream", "put", "--image", text(&image), "/s1", "s3:///x"],
    ] {
        assert_ne!(butterfs(words).code, Some(0), "{words:?}");
        assert!(!store.exists(), "{words:?} made {}", store.display());
    }
}

#[test]
fn a_stream_that_is_none_makes_no_store() {
    let scratch = Scratch::new("stream-refused");
    let image = image_with_snapshots(&scratch, 1, 2);
    let sent = |words: &[&str]| {
        let file = scratch.join("stream");
        let words = [&["send", "-q", "--image", text(&image), "-f", text(&file)], words].concat();
        butterfs_ok(&words);
        fs::read(file).unwrap()
    };
    let (whole, difference) = (sent(&["/s1"]), sent(&["-p", "/s1", "/s2"]));
    let mut damaged = whole.clone();
    damaged[40] ^= 1;
    let server = Server::start(|_| Fate::Served);
    let folder = scratch.join("store");
    let put = |url: &str, stream: &[u8]| {
        let file = scratch.join("input");
        fs::write(&file, stream).unwrap();
        let mut put = on(&server, &["put", "-", url]);
        let put = put.stdin(fs::File::open(file).unwrap()).output().unwrap();
        (put.status.code(), String::from_utf8(put.stderr).unwrap())
    };
    let (noise, missing) = (vec![0x5a; 100_000], "put the snapshot before it first");
    let cases: [(&str, &[u8], &str); 5] = [
        ("noise", &noise, "this is no send stream"),
        ("nothing", &[], "empty stream"),
        ("a header", &whole[..17], "it has no end command"),
        ("a damaged command", &damaged, "crc32 mismatch"),
        ("a difference", &difference, missing),
    ];
    for (what, stream, words) in cases {
        for url in [text(&folder), "s3://bucket/prefix"] {
            let (code, stderr) = put(url, stream);
            assert!(code == Some(1) && stderr.starts_with("ERROR: ") && stderr.contains(words), "{what}: {stderr}");
        }
        assert!(!folder.exists(), "{what} made a folder");
        let made = on(&server, &["ls", "s3://bucket/prefix"]).output().unwrap();
        let sentence = String::from_utf8(made.stderr).unwrap();
        assert!(sentence.contains("has no snapshots of butterfs"), "{what} made a store: {sentence}");
    }
    for url in [text(&folder), "s3://bucket/prefix"] {
        for stream in [&whole, &difference] {
            assert_eq!(put(url, stream), (Some(0), String::new()));
        }
    }
}

/// A command on the server's bucket.
fn on(server: &Server, words: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["stream", words[0], "--endpoint", &server.endpoint, "--give-up-after", "60"]).args(&words[1..]);
    command.envs(CREDENTIALS).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn ok(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the command until it is killed after a while; says whether it has ended before.
fn killed(mut command: Command, after: Duration) -> bool {
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    let has_ended = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    child.wait().unwrap();
    has_ended
}

#[test]
fn puts_and_gets_that_are_killed_continue() {
    let rounds: u64 = std::env::var("BUTTERFS_OBJECT_ROUNDS").ok().and_then(|count| count.parse().ok()).unwrap_or(2);
    let scratch = Scratch::new("puts_and_gets_that_are_killed");
    let image = image_with_snapshots(&scratch, 1, 40);
    let source = text(&image);
    let digests = ["/s1", "/s2"].map(|name| digest(&image, name));
    let (mut cut_puts, mut cut_gets) = (0, 0);
    for round in 0..rounds {
        let server = Server::start(move |number| match Rng::new(round << 32 | number).below(25) {
            0 => Fate::Throttled,
            1 => Fate::Failed,
            2 => Fate::Lost,
            3 => Fate::Cut,
            _ => Fate::Served,
        });
        let mut rng = Rng::new(round);
        let url = "s3://bucket/prefix";
        for _ in 0..3 {
            let put = on(&server, &["put", "--image", source, "/s1", "/s2", url]);
            cut_puts += u64::from(!killed(put, Duration::from_millis(100 + rng.below(1200))));
            // Nothing that is listed is only a part.
            let verify = on(&server, &["verify", "--deep", url]).output().unwrap();
            let sentence = String::from_utf8_lossy(&verify.stderr);
            assert!(
                verify.status.success() || sentence.contains("no object 'repository'"),
                "round {round}: {sentence}"
            );
        }
        ok(on(&server, &["put", "--image", source, "/s1", "/s2", url]));
        let target = scratch.sparse_file("target.img", 1 << 30);
        butterfs_ok(&["mkfs", "-q", "-f", text(&target)]);
        let get = || on(&server, &["get", "-q", "--image", text(&target), url, "s1", "s2", "/"]);
        if killed(get(), Duration::from_millis(50 + rng.below(900))) {
            // Both are complete.
        } else {
            cut_gets += 1;
            let names = butterfs_ok(&["image", "ls", text(&target)]);
            let first_is_there = names.lines().any(|name| name == "s1");
            let rest: &[&str] = if names.lines().any(|name| name == "s2") {
                &[]
            } else if first_is_there {
                &["get", "-q", "--have", "s1", "--image", text(&target), url, "s2", "/"]
            } else {
                &["get", "-q", "--image", text(&target), url, "s1", "s2", "/"]
            };
            if !rest.is_empty() {
                ok(on(&server, rest));
            }
        }
        let got = ["/s1", "/s2"].map(|name| digest(&target, name));
        assert_eq!(got, digests, "round {round}");
        assert!(butterfs(&["check", text(&target)]).code == Some(0), "round {round}");
        let _ = fs::remove_file(&target);
    }
    assert!(cut_puts + cut_gets > 0, "{cut_puts} puts and {cut_gets} gets were killed");
}
