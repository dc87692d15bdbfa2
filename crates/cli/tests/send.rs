//! `butterfs send` on a mount and on an image.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, mkfs, run};
use butterfs_testkit::requirement;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, shell, text};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// A mount with the subvolume `w` and its snapshots `s1` and `s2`.
fn prepared(test: &str) -> Option<Bed> {
    let bed = Bed::for_root(test)?.with_image();
    bed.mount_ok("noatime");
    let script = r#"
cd "$at"; "$butterfs" subvolume create w; mkdir w/d; seq 1 1200000 > w/d/text; echo small > w/small; ln w/small w/d/hard
"$butterfs" subvolume snapshot -r w s1
mv w/d w/D; echo more >> w/small; rm w/D/hard; mkdir w/d; for n in $(seq 50); do echo $n > w/d/$n; done
"$butterfs" subvolume snapshot -r w s2
"#;
    shell(script, &[("at", &bed.at), ("butterfs", Path::new(BINARY))]);
    Some(bed)
}

#[test]
fn a_mount_and_an_image_send_the_same_and_the_kernel_receives_it() {
    const TEST: &str = "send_mounted";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let Some(bed) = prepared(TEST) else { return };
    let (s1, s2) = (bed.path("s1"), bed.path("s2"));
    let file = |name: &str| bed.scratch.join(name);
    let sent = butterfs(&["send", "-f", text(&file("full")), text(&s1)]);
    assert_eq!((sent.code, sent.stderr), (Some(0), format!("At subvol {}\n", s1.display())));
    let incremental = Command::new(BINARY).args(["send", "-q", "-p", text(&s1), text(&s2)]).output().unwrap();
    assert!(incremental.status.success() && incremental.stderr.is_empty());
    // Into a file of the mount itself.
    butterfs_ok(&["send", "-q", "-e", "-c", text(&s1), "-f", text(&bed.path("on-the-mount")), text(&s2)]);
    assert_eq!(fs::read(bed.path("on-the-mount")).unwrap(), incremental.stdout);
    let prints = [&s1, &s2].map(|path| Fingerprint::of_tree(path));
    bed.umount_ok();

    let image = text(&bed.image);
    butterfs_ok(&["send", "-q", "--image", image, "-f", text(&file("again")), "/s1"]);
    assert_eq!(fs::read(file("again")).unwrap(), fs::read(file("full")).unwrap());
    butterfs_ok(&["send", "-q", "--image", image, "-p", "/s1", "-f", text(&file("again")), "/s2"]);
    assert_eq!(fs::read(file("again")).unwrap(), incremental.stdout);

    fs::write(file("stream"), [fs::read(file("full")).unwrap(), incremental.stdout].concat()).unwrap();
    let target = bed.scratch.sparse_file("target.img", 1 << 30);
    mkfs(&target, &[]);
    let mount = KernelMount::new(&target, "noatime");
    let received = run(60, "btrfs", &["receive", "-f", text(&file("stream")), text(mount.path())]);
    assert_eq!(received.code, Some(0), "{received:?}");
    for (print, name) in prints.iter().zip(["s1", "s2"]) {
        let travels = Compare { ctime: false, btime: false, blocks: false, holes: false, ..Compare::ALL };
        let found = differences(print, &Fingerprint::of_tree(&mount.path().join(name)), travels);
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
    assert_eq!(mount.finish(), [""; 0]);
}

#[test]
fn a_snapshot_stays_until_it_is_sent() {
    let Some(bed) = prepared("send_holds") else { return };
    let s1 = bed.path("s1");
    let mut sending = Command::new(BINARY).args(["send", "-q", text(&s1)]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stream = sending.stdout.take().unwrap();
    let mut begun = [0; 13];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"btrfs-stream\0");
    // More than a pipe holds is still to come.
    for refused in [vec!["subvolume", "delete", text(&s1)], vec!["property", "set", text(&s1), "ro", "false"]] {
        let ran = butterfs(&refused);
        assert!(ran.code == Some(1) && ran.stderr.contains("being sent"), "{refused:?}: {ran:?}");
    }
    drop(stream);
    assert_eq!(sending.wait().unwrap().code(), Some(1), "nobody reads the stream");
    mounted::eventually(|| butterfs(&["subvolume", "delete", text(&s1)]).code == Some(0));
    bed.umount_ok();
}

#[test]
fn subvolumes_that_cannot_be_sent_are_refused_by_name() {
    let Some(bed) = prepared("send_refusals") else { return };
    let (w, s1, s2, d) = (bed.path("w"), bed.path("s1"), bed.path("s2"), bed.path("s2/d"));
    let (w, s1, s2, d) = (text(&w), text(&s1), text(&s2), text(&d));
    for (arguments, sentence) in [
        (vec![w], format!("subvolume {w} is not read-only")),
        (vec!["-p", w, s2], format!("parent subvolume {w} is not read-only")),
        (vec!["-c", w, s2], format!("cloned subvolume {w} is not read-only")),
        (vec![d], "not a subvolume".to_owned()),
        (vec!["-c", s2, s2], "parent determination failed".to_owned()),
        (vec!["--proto", "1", "--compressed-data", s1], "requires protocol version >= 2 (requested 1)".to_owned()),
    ] {
        let ran = butterfs(&[&["send", "-f", "/dev/null"][..], &arguments].concat());
        assert!(ran.code == Some(1) && ran.stderr.contains(&sentence), "{arguments:?}: {ran:?}");
    }
    let ran = butterfs(&["send", "-f", "/dev/full", s1]);
    assert!(ran.code == Some(1) && ran.stderr.contains("No space left on device"), "{ran:?}");
    bed.umount_ok();
}
