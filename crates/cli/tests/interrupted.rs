//! Streams that are interrupted, and streams that are watched: what a killed receive leaves gives way to the next one,
//! on all three targets, and nothing else is touched; a terminal shows how far it is.

mod common;
#[allow(dead_code)] // what other tests of mounts need
mod mounted;

use butterfs_send::wire::{Command as Do, Version, encode, encode_header};
use butterfs_testkit::kernel::{check_all, run};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use common::{Ran, butterfs, butterfs_ok};
use mounted::{Bed, eventually, text};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");
/// More commands than are left uncommitted.
const COMMANDS: u64 = 60_000;

fn put(command: Do<'_>, stream: &mut Vec<u8>) {
    encode(&command, Version::V1, stream).unwrap();
}

fn begin(name: &str, uuid: u8) -> Vec<u8> {
    let mut stream = Vec::new();
    encode_header(Version::V1, &mut stream);
    put(Do::Subvol { path: name.as_bytes(), uuid: [uuid; 16], transid: 1 }, &mut stream);
    stream
}

/// A stream in two halves.
fn halves() -> [Vec<u8>; 2] {
    let mut first = begin("s", 1);
    put(Do::Mkfile { path: b"f", ino: 257 }, &mut first);
    for number in 0..COMMANDS {
        put(Do::Truncate { path: b"f", size: number }, &mut first);
    }
    put(Do::Mkfile { path: b"last", ino: 258 }, &mut first);
    let mut second = Vec::new();
    put(Do::Write { path: b"last", offset: 0, data: b"whole" }, &mut second);
    put(Do::End {}, &mut second);
    [first, second]
}

/// A receive that has read the first half and waits for the rest.
fn hanging(arguments: &[&str], first: &[u8]) -> Child {
    let mut command = Command::new(BINARY);
    command.args(["receive", "-q"]).args(arguments).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The pipe holds little of it, so most was read when this returns; the rest is waited for.
    child.stdin.as_mut().unwrap().write_all(first).unwrap();
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn receive(arguments: &[&str], stream: &Path) -> Ran {
    butterfs(&[&["receive", "-q", "-f", text(stream)], arguments].concat())
}

/// The remains give way to the next receive, which says so.
fn gives_way(arguments: &[&str], stream: &Path) {
    let again = butterfs(&[&["receive", "-f", text(stream)], arguments].concat());
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains("deleted s.partial, which an interrupted receive had left\n"), "{again:?}");
}

/// While a receive is at work, its name is refused to another one.
fn refused(arguments: &[&str], stream: &Path) {
    let refused = receive(arguments, stream);
    assert!(
        refused.code == Some(1) && refused.stderr.contains("another receive is at work on s.partial"),
        "{refused:?}"
    );
}

fn assert_whole(root: &Path) {
    assert_eq!(fs::read(root.join("s/last")).unwrap(), b"whole");
    assert_eq!(fs::metadata(root.join("s/f")).unwrap().len(), COMMANDS - 1);
    assert!(!fs::read_dir(root).unwrap().any(|entry| entry.unwrap().file_name() == "s.partial"));
}

/// The stream in a file, and what was there before.
fn prepared(scratch: &Scratch) -> (Vec<u8>, std::path::PathBuf, std::path::PathBuf) {
    let [first, second] = halves();
    let (stream, before) = (scratch.join("stream"), scratch.join("before"));
    fs::write(&stream, [&first[..], &second].concat()).unwrap();
    let mut other = begin("other", 2);
    put(Do::Mkfile { path: b"mine", ino: 257 }, &mut other);
    put(Do::Write { path: b"mine", offset: 0, data: b"precious" }, &mut other);
    put(Do::End {}, &mut other);
    fs::write(&before, other).unwrap();
    (first, stream, before)
}

#[test]
fn a_receive_killed_in_a_directory() {
    const TEST: &str = "a_receive_killed_in_a_directory";
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let (first, stream, before) = prepared(&scratch);
    let at = scratch.folder("at");
    let arguments = ["--into-directory", text(&at)];
    assert_eq!(receive(&arguments, &before).code, Some(0));
    let child = hanging(&arguments, &first);
    eventually(|| at.join("s.partial/tree/last").exists());
    refused(&arguments, &stream);
    kill(child);
    gives_way(&arguments, &stream);
    assert_whole(&at);
    assert_eq!(fs::read(at.join("other/mine")).unwrap(), b"precious");
}

#[test]
fn a_receive_killed_in_an_image() {
    const TEST: &str = "a_receive_killed_in_an_image";
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let (first, stream, before) = prepared(&scratch);
    let image = scratch.join("image");
    butterfs_ok(&["mkfs", "-q", "-b", "512M", text(&image)]);
    let arguments = ["--image", text(&image), "/"];
    assert_eq!(receive(&arguments, &before).code, Some(0));
    let changed = || fs::metadata(&image).unwrap().modified().unwrap();
    let written = changed();
    let child = hanging(&arguments, &first);
    // It has committed, which begins with data and blocks; killed in there, or later, the subvolume is not whole.
    eventually(|| changed() != written);
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill(child);
    butterfs_ok(&["check", "-q", text(&image)]);
    let left = butterfs_ok(&["subvolume", "list", "--image", text(&image), "/"]);
    if left.contains("s.partial") {
        gives_way(&arguments, &stream);
    } else {
        let again = receive(&arguments, &stream);
        assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""), "{again:?}");
    }
    let left = butterfs_ok(&["subvolume", "list", "--image", text(&image), "/"]);
    assert!(left.contains("other") && !left.contains("partial"), "{left}");
    if butterfs_testkit::requirement::kernel_btrfs(TEST) {
        check_all(&image);
        let mount = butterfs_testkit::kernel::KernelMount::new(&image, "ro");
        assert_whole(mount.path());
        assert_eq!(fs::read(mount.path().join("other/mine")).unwrap(), b"precious");
        assert_eq!(mount.finish(), [""; 0]);
    }
}

#[test]
fn a_receive_killed_on_a_mount() {
    const TEST: &str = "a_receive_killed_on_a_mount";
    let Some(bed) = Bed::for_root(TEST).map(Bed::with_image) else { return };
    let (first, stream, before) = prepared(&bed.scratch);
    let at = bed.at.clone();
    let there = || fs::read_dir(&at).unwrap().any(|entry| entry.unwrap().file_name() == "s.partial");
    bed.mount_ok("noatime");
    assert_eq!(receive(&[text(&at)], &before).code, Some(0));
    // First the command dies and the mount goes on, then the process that serves it.
    let mut child = hanging(&[text(&at)], &first);
    eventually(there);
    refused(&[text(&at)], &stream);
    // Whoever sends hangs, and keeps the pipe open: that does not keep the name.
    let sender = child.stdin.take();
    kill(child);
    gives_way(&[text(&at)], &stream);
    drop(sender);
    assert_whole(&at);
    butterfs_ok(&["subvolume", "delete", text(&at.join("s"))]);
    let child = hanging(&[text(&at)], &first);
    eventually(there);
    butterfs_ok(&["filesystem", "sync", text(&at)]);
    bed.kill();
    kill(child);
    bed.mount_ok("noatime");
    assert!(there(), "the sync kept it");
    gives_way(&[text(&at)], &stream);
    bed.umount_ok();
    bed.judge(|root| {
        assert_whole(root);
        assert_eq!(fs::read(root.join("other/mine")).unwrap(), b"precious");
    });
}

/// Runs a shell script whose terminal is a new one; what it shows.
fn on_a_terminal(script: &str) -> String {
    let shown = run(100, "script", &["-qec", script, "/dev/null"]);
    assert_eq!(shown.code, Some(0), "{}", shown.output);
    shown.output
}

#[test]
fn a_terminal_shows_how_far_it_is() {
    const TEST: &str = "a_terminal_shows_how_far_it_is";
    if !butterfs_testkit::requirement::programs(TEST, &["script"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let (image, stream) = (scratch.join("image"), scratch.join("stream"));
    butterfs_ok(&["mkfs", "-q", "-b", "1G", text(&image)]);
    let mut bytes = begin("s", 1);
    for number in 0..200u64 {
        let path = format!("file_{number}");
        put(Do::Mkfile { path: path.as_bytes(), ino: 257 + number }, &mut bytes);
        for offset in 0..8 {
            put(
                Do::Write { path: path.as_bytes(), offset: offset * 40_000, data: &[number as u8; 40_000] },
                &mut bytes,
            );
        }
    }
    put(Do::End {}, &mut bytes);
    fs::write(&stream, &bytes).unwrap();
    let (image, stream) = (image.display(), stream.display());
    // Both ends of the stream pause in the middle for longer than two seconds, after which progress is shown.
    let half = bytes.len() / 2;
    let fill = format!("(head -c {half} '{stream}'; sleep 3; tail -c +{} '{stream}')", half + 1);
    let shown = on_a_terminal(&format!("{fill} | '{BINARY}' receive --image '{image}' /"));
    let line = |shown: &str, words: &[&str]| {
        shown.split(['\r', '\n']).any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(line(&shown, &["MiB", " commands, ", "/s"]), "{shown}");
    assert!(shown.contains("At subvol s"), "{shown}");
    let drain = "(head -c 20000000 > /dev/null; sleep 3; cat > /dev/null)";
    let shown = on_a_terminal(&format!("'{BINARY}' send --image '{image}' /s | {drain}"));
    assert!(line(&shown, &["sent: ", " %, ", "s left, ", " MiB in ", " commands, ", "/s"]), "{shown}");
    // Where nobody looks, nothing is shown.
    let quiet = on_a_terminal(&format!("'{BINARY}' send -q --image '{image}' /s | {drain}"));
    assert_eq!(quiet.trim(), "");
}

/// The sender is killed while the reader of the stream hangs: the serving process lets go of the subvolume, and closes.
#[test]
fn a_killed_send_ends_although_nobody_reads() {
    let Some(bed) = Bed::for_root("killed_send") else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    // More than the pipe and all buffers hold, and more than a socket holds while it is less than a buffer.
    for (name, len) in [("large", 16 << 20), ("small", 400 << 10)] {
        let path = bed.path(name);
        butterfs_ok(&["subvolume", "create", "-q", text(&path)]);
        fs::write(path.join("f"), vec![7; len]).unwrap();
        butterfs_ok(&["property", "set", "-t", "subvol", text(&path), "ro", "true"]);
    }
    let pipe = || {
        let (reader, writer) = std::io::pipe().unwrap();
        (OwnedFd::from(reader), OwnedFd::from(writer))
    };
    let socket = || {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        (OwnedFd::from(reader), OwnedFd::from(writer))
    };
    for (name, (reader, writer)) in [("large", pipe()), ("small", socket())] {
        let path = bed.path(name);
        let mut command = Command::new(BINARY);
        let child = command.args(["send", "-q", text(&path)]).stdout(writer).spawn().unwrap();
        // The command's own copy of the writing end is not needed.
        drop(command);
        eventually(|| is_full(&reader));
        let delete = ["subvolume", "delete", "-q", text(&path)];
        let refused = butterfs(&delete);
        // The small one has been read to its end, and only waits to be written.
        assert_eq!(refused.code, Some(if name == "large" { 1 } else { 0 }), "{refused:?}");
        assert!(!is_left(&reader));
        kill(child);
        eventually(|| is_left(&reader));
        assert!(name == "small" || butterfs(&delete).code == Some(0));
    }
    bed.umount_ok();
    check_all(&bed.image);
}

/// Whether nobody has the other end of a pipe or socket any more, whatever still lies in it.
fn is_left(reader: &OwnedFd) -> bool {
    let mut state = [PollFd::new(reader, PollFlags::empty())];
    poll(&mut state, Some(&Default::default())).unwrap() > 0
}

/// Whether much lies in a pipe or socket, and no more comes.
fn is_full(reader: &OwnedFd) -> bool {
    let waiting = || rustix::io::ioctl_fionread(reader).unwrap();
    let before = waiting();
    std::thread::sleep(std::time::Duration::from_millis(100));
    before > 0 && waiting() == before
}
