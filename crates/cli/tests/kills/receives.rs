//! A receive, or the server that it works on, is killed at any moment, again and again, as by a backup tool's lost
//! runs.
//!
//! 1. Nothing has the name of a received tree that is not whole.
//! 2. The next receive of the same stream succeeds, its result equals that of a receive that nobody disturbed, and
//!    nothing else is left.
//! 3. The parent of an increment, and what else lies there, stays as it was.

use super::common::{butterfs, butterfs_ok};
use super::mounted::{Bed, shell, text};
use super::{BINARY, factor};
use butterfs_send::wire::{Command as Do, Version, encode, encode_header};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FOLDERS: u64 = 12;
const FILES: u64 = 180;
/// Kills of each kind of stream.
const KILLS: u64 = 4;

fn stream(begin: Do<'_>, fill: impl FnOnce(&mut dyn FnMut(Do<'_>))) -> Vec<u8> {
    let mut stream = Vec::new();
    encode_header(Version::V1, &mut stream);
    let mut put = |command: Do<'_>| encode(&command, Version::V1, &mut stream).unwrap();
    put(begin);
    fill(&mut put);
    put(Do::End {});
    stream
}

fn file(number: u64) -> String {
    format!("d{}/f{number}", number % FOLDERS)
}

fn write(put: &mut dyn FnMut(Do<'_>), path: &str, seed: u64) {
    let mut data = vec![0; 3000 + 211 * (seed as usize % 200)];
    Rng::new(seed).fill(&mut data);
    put(Do::Write { path: path.as_bytes(), offset: 0, data: &data });
}

/// A tree of files with links, attributes and permissions; everything is made under another name first, as by `send`.
fn full() -> Vec<u8> {
    stream(Do::Subvol { path: b"base", uuid: [1; 16], transid: 1 }, |put| {
        for number in 0..FOLDERS {
            let (orphan, name) = (format!("o{number}-1-0"), format!("d{number}"));
            put(Do::Mkdir { path: orphan.as_bytes(), ino: 300 + number });
            put(Do::Rename { path: orphan.as_bytes(), to: name.as_bytes() });
        }
        for number in 0..FILES {
            let (orphan, name, link) = (format!("o{number}-2-0"), file(number), format!("link{number}"));
            put(Do::Mkfile { path: orphan.as_bytes(), ino: 400 + number });
            put(Do::Rename { path: orphan.as_bytes(), to: name.as_bytes() });
            write(put, &name, number);
            put(Do::SetXattr { path: name.as_bytes(), name: b"user.n", value: name.as_bytes() });
            put(Do::Chmod { path: name.as_bytes(), mode: 0o600 + number % 8 });
            if number % 5 == 0 {
                put(Do::Link { path: link.as_bytes(), existing: name.as_bytes() });
            }
        }
    })
}

/// Changes of all kinds to it.
fn increment() -> Vec<u8> {
    let begin = Do::Snapshot { path: b"more", uuid: [2; 16], transid: 2, parent_uuid: [1; 16], parent_transid: 1 };
    stream(begin, |put| {
        for number in 0..FILES {
            let (name, moved) = (file(number), format!("d{}/moved{number}", (number + 1) % FOLDERS));
            match number % 4 {
                0 => put(Do::Unlink { path: name.as_bytes() }),
                1 => put(Do::Rename { path: name.as_bytes(), to: moved.as_bytes() }),
                2 => write(put, &name, 1000 + number),
                _ => put(Do::Truncate { path: name.as_bytes(), size: 100 }),
            }
        }
    })
}

/// Everything about a tree that a stream says.
fn tree(root: &Path) -> String {
    let script = r#"cd "$root"
find . -type d -printf '%P %y %m\n' -o -printf '%P %y %m %n %s %l\n' | sort
find . -type f -print0 | sort -z | xargs -0 sha256sum
find . -type f -print0 | sort -z | xargs -0 getfattr -d"#;
    shell(script, &[("root", root)])
}

/// The process that is killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Victim {
    Command,
    Server,
}

/// The destination of streams: a folder, or the mount of a bed.
struct ReceiveDirectory<'a> {
    folder: PathBuf,
    bed: Option<&'a Bed>,
}

impl ReceiveDirectory<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["receive", "-q"]);
        if self.bed.is_none() {
            command.arg("--into-directory");
        }
        command.arg(&self.folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    /// Begins to receive and gives it the first `len` bytes, or what it takes of them. Whoever sends hangs then, except
    /// at the end.
    fn begin(&self, stream: &[u8], len: usize) -> Child {
        let mut receive = self.command().spawn().unwrap();
        let mut sender = receive.stdin.take().unwrap();
        let _ = sender.write_all(&stream[..len]);
        receive.stdin = (len < stream.len()).then_some(sender);
        receive
    }

    /// Receives without kills; how long it took from the end of the stream.
    fn receive_calmly(&self, stream: &[u8]) -> Duration {
        let receive = self.begin(stream, stream.len());
        let start = Instant::now();
        let output = receive.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        start.elapsed()
    }

    /// Receives again after a kill. False: the killed command's receive has become complete before the server noticed.
    fn receive_again(&self, stream: &[u8]) -> bool {
        let output = self.begin(stream, stream.len()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let is_late = self.bed.is_some() && said.contains("File exists");
        assert!(output.status.success() || is_late, "{said}");
        output.status.success()
    }

    fn delete(&self, name: &str) {
        if self.bed.is_some() {
            // Durably: a server that is killed would bring it back whole.
            butterfs_ok(&["subvolume", "delete", "-q", "-c", text(&self.folder.join(name))]);
        } else {
            fs::remove_dir_all(self.folder.join(name)).unwrap();
            fs::remove_file(self.folder.join(format!(".{name}.butterfs-received"))).unwrap();
        }
    }

    fn kill(&self, mut receive: Child, victim: Victim) {
        if let (Victim::Server, Some(bed)) = (victim, self.bed) {
            bed.kill();
            receive.wait().unwrap();
            bed.mount_after_kill("commit=1");
            return;
        }
        receive.kill().unwrap();
        receive.wait().unwrap();
    }

    /// Receives a stream that makes `name`, with kills in the middle of the stream and behind its end; leaves it
    /// received. How many of the receives came to nothing.
    fn receive_with_kills(&self, stream: &[u8], name: &str, victim: Victim) -> u64 {
        let before = self.names();
        let parent = || before.first().map(|parent| tree(&self.folder.join(parent)));
        let parent_before = parent();
        let ends_in = self.receive_calmly(stream);
        let right = tree(&self.folder.join(name));
        let (mut rng, mut interrupted) = (Rng::new(9), 0);
        for number in 0..KILLS * factor() {
            self.delete(name);
            let len = if number % 2 == 0 { rng.index(stream.len()) } else { stream.len() };
            let receive = self.begin(stream, len);
            std::thread::sleep(ends_in * rng.below(100) as u32 / 100);
            self.kill(receive, victim);
            let what = format!("{name}, {victim:?}, killed at {len} of {}", stream.len());
            if self.folder.join(name).exists() {
                assert!(tree(&self.folder.join(name)) == right, "{what}: it has its name, and is not whole");
                continue;
            }
            interrupted += u64::from(self.receive_again(stream));
            assert!(tree(&self.folder.join(name)) == right, "{what}");
            let mut expected = [&before[..], &[name.to_owned()]].concat();
            expected.sort();
            assert_eq!(self.names(), expected, "{what}");
            assert!(parent() == parent_before, "{what}");
        }
        interrupted
    }

    fn both_streams(&self, victim: Victim) {
        let interrupted = self.receive_with_kills(&full(), "base", victim);
        let interrupted = interrupted + self.receive_with_kills(&increment(), "more", victim);
        println!("{interrupted} of {} were interrupted", 2 * KILLS * factor());
        assert!(interrupted >= KILLS / 2);
    }
}

#[test]
fn receives_into_a_directory_are_killed() {
    const TEST: &str = "kills_receive_directory";
    let _watchdog = Watchdog::new(TEST, 120 * factor());
    let scratch = Scratch::new(TEST);
    ReceiveDirectory { folder: scratch.folder("at"), bed: None }.both_streams(Victim::Command);
}

fn on_a_mount(test: &str, victim: Victim) {
    let Some(bed) = Bed::for_root(test).map(|bed| bed.slow(test).with_image()) else { return };
    bed.mount_ok("commit=1");
    ReceiveDirectory { folder: bed.at.clone(), bed: Some(&bed) }.both_streams(victim);
    for name in ["base", "more"] {
        let shown = butterfs(&["property", "get", "-t", "subvol", text(&bed.path(name)), "ro"]);
        assert_eq!(shown.stdout.trim(), "ro=true", "{shown:?}");
    }
    bed.umount_ok();
    check_all(&bed.image);
}

#[test]
fn receives_on_a_mount_are_killed() {
    on_a_mount("kills_receive_command", Victim::Command);
}

#[test]
fn servers_of_receives_are_killed() {
    on_a_mount("kills_receive_server", Victim::Server);
}
