//! Memory grows with the change, not with the filesystem or the stream: what `--help` of `send` and `receive` promises.
//! Each measurement is a process of its own, whose peak Linux tells.

use butterfs_fs::{Caller, InodeId, Options, RenameMode, TreeId};
use butterfs_send::apply::{self, Directory, Engine, Error, Observer};
use butterfs_send::generate::{self, Job};
use butterfs_send::wire::{Command, Timespec, Version, encode, encode_header};
use butterfs_testkit::engine::{FORMATS, device, open};
use butterfs_testkit::memory::peak_kib;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const TOP: InodeId = InodeId::root_of(TreeId::FS);
const WORK: &str = "BUTTERFS_MEASURED_WORK";
const IMAGE: &str = "BUTTERFS_MEASURED_IMAGE";
const FILES: &str = "BUTTERFS_MEASURED_FILES";
const CACHE: usize = 4 << 20;
/// The memory for buffers and caches according to `send --help`, and the engine's cache of blocks.
const SEND_KIB: u64 = (40 << 10) + 2 * (CACHE as u64 >> 10);
/// The memory for a renamed file according to `send --help`, with its two names of 20 bytes.
const RENAMED_BYTES: u64 = 150 + 40;
/// The memory according to `receive --help`: the largest command, what is not committed, and what the engine caches.
const RECEIVE_KIB: u64 = (17 << 10) + (100 << 10) + 2 * (CACHE as u64 >> 10);

fn options() -> Options {
    Options { node_cache_bytes: CACHE, dirty_data_bytes: CACHE, ..Options::default() }
}

/// Not a test of its own: what the others run in a process whose memory is its own.
#[test]
fn child() {
    let [Some(work), Some(image), Some(files)] = [WORK, IMAGE, FILES].map(std::env::var_os) else { return };
    let files = files.to_str().and_then(|files| files.parse().ok()).expect("a number");
    let before = peak_kib();
    let done = match work.to_str() {
        Some("full") => send(Path::new(&image), "old", None),
        Some("little") => send(Path::new(&image), "little", Some("old")),
        Some("renamed") => send(Path::new(&image), "renamed", Some("old")),
        Some("receive") => {
            let filesystem = open(Path::new(&image), options());
            let done = receive(files, &mut Engine::new(filesystem.clone(), TOP));
            filesystem.shutdown().expect("a good device");
            done
        }
        _ => receive(files, &mut Directory::open(Path::new(&image)).expect("it was made")),
    };
    println!("PEAK {} {done}", peak_kib() - before);
}

fn send(image: &Path, name: &str, parent: Option<&str>) -> u64 {
    let filesystem = open(image, Options { read_only: true, ..options() });
    let id = |name: &str| filesystem.lookup(TOP, name.as_bytes()).expect("it was made").id.tree;
    let job = Job { subvolumes: vec![id(name)], parent: parent.map(id), ..Job::default() };
    let sent = generate::run(&filesystem, &job, &mut std::io::sink(), &mut |_| true, &mut |_| {});
    sent.expect("it can be sent").commands
}

fn receive(files: u64, target: &mut dyn apply::StreamTarget) -> u64 {
    struct Fail;
    impl Observer for Fail {
        fn error(&mut self, error: &Error) {
            panic!("{error}");
        }
    }
    apply::receive(Endless::new(files), target, &apply::Options::default(), &mut Fail).commands
}

/// Kibibytes at the peak, and commands.
fn measure(work: &str, image: &Path, files: u64) -> [u64; 2] {
    let program = std::env::current_exe().expect("a program knows its own path");
    let mut command = std::process::Command::new("timeout");
    command.arg("200").arg(program).args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    let output = command.env(WORK, work).env(IMAGE, image).env(FILES, files.to_string()).output();
    let output = output.expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("PEAK ")).unwrap_or_else(|| panic!("{text}")).1;
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    println!("{work}, {files} files: {} KiB, {} commands", numbers[0], numbers[1]);
    numbers.try_into().expect("two numbers")
}

/// A stream of small files, made as it is read.
struct Endless {
    left: u64,
    number: u64,
    ready: VecDeque<u8>,
}

impl Endless {
    fn new(files: u64) -> Endless {
        let mut bytes = Vec::new();
        encode_header(Version::V1, &mut bytes);
        encode(&Command::Subvol { path: b"s", uuid: [1; 16], transid: 1 }, Version::V1, &mut bytes).expect("short");
        Endless { left: files, number: 0, ready: bytes.into() }
    }

    fn refill(&mut self) {
        let mut bytes = Vec::new();
        let mut put = |command: Command<'_>| encode(&command, Version::V1, &mut bytes).expect("short");
        match self.left {
            0 if self.number == u64::MAX => return,
            0 => {
                self.number = u64::MAX;
                put(Command::End {});
            }
            _ => {
                let (ino, number) = (257 + self.number, self.number);
                let directory = format!("d{}", number / 1000);
                if number.is_multiple_of(1000) {
                    put(Command::Mkdir { path: directory.as_bytes(), ino });
                }
                let path = format!("{directory}/file_{number}");
                let (path, time) = (path.as_bytes(), Timespec { sec: 1, nsec: 0 });
                put(Command::Mkfile { path, ino });
                put(Command::Write { path, offset: 0, data: &[number as u8; 3000] });
                put(Command::Chown { path, uid: 1, gid: 1 });
                put(Command::Chmod { path, mode: 0o644 });
                put(Command::Utimes { path, atime: time, mtime: time, ctime: time, otime: None });
                self.number += 1;
                self.left -= 1;
            }
        }
        self.ready.extend(bytes);
    }
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.ready.len() < buffer.len() && (self.left > 0 || self.number != u64::MAX) {
            self.refill();
        }
        self.ready.read(buffer)
    }
}

/// Files, a snapshot `old`, and two that grew from it: `little`, where three files changed, and `renamed`, where a
/// thousand have other names.
fn make(image: &Path, files: u64) {
    FORMATS[0].make(&device(image));
    let filesystem = open(image, Options::default());
    let work = InodeId::root_of(filesystem.create_subvolume(&ROOT, TOP, b"work").expect("a free name"));
    let mut directory = work;
    for number in 0..files {
        if number % 1000 == 0 {
            let name = format!("d{}", number / 1000);
            directory = filesystem.mkdir(&ROOT, work, name.as_bytes(), 0o755).expect("a free name").id;
        }
        let id = filesystem.create(&ROOT, directory, format!("file_{number:015}").as_bytes(), 0o644).expect("room").id;
        filesystem.write(id, 0, &[number as u8; 500], false).expect("room");
        filesystem.forget(id, 1);
    }
    let old = filesystem.snapshot(work.tree, TOP, b"old", true).expect("a free name");
    let change = |name: &str, change: &dyn Fn(u64, InodeId, &[u8])| {
        let id = filesystem.snapshot(old, TOP, name.as_bytes(), false).expect("a free name");
        for number in (0..files).step_by((files / 1000) as usize) {
            let found = filesystem.lookup(InodeId::root_of(id), format!("d{}", number / 1000).as_bytes());
            change(number, found.expect("it was made").id, format!("file_{number:015}").as_bytes());
        }
        filesystem.set_subvolume_readonly(id, true).expect("it exists");
    };
    change("little", &|number, directory, name| {
        if number < files / 300 {
            let id = filesystem.lookup(directory, name).expect("it was made").id;
            filesystem.write(id, 0, b"changed", false).expect("room");
            filesystem.forget(id, 1);
        }
    });
    change("renamed", &|number, directory, name| {
        let to = format!("name_{number:015}");
        filesystem.rename(directory, name, directory, to.as_bytes(), RenameMode::Replace).expect("it was made");
    });
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn sending_takes_what_the_change_is() {
    let _watchdog = Watchdog::new("sending_takes_what_the_change_is", 300);
    let scratch = Scratch::new("send-memory");
    let peaks = [15_000, 60_000].map(|files| {
        let image = scratch.sparse_file("image", 2 << 30);
        make(&image, files);
        let [full, little, renamed] = ["full", "little", "renamed"].map(|work| measure(work, &image, files));
        assert!(full[1] > 3 * files, "{full:?}");
        assert!(full[0] <= SEND_KIB && little[0] <= SEND_KIB, "{full:?} {little:?}, at most {SEND_KIB} KiB");
        assert!(renamed[0] <= SEND_KIB + ((1000 * RENAMED_BYTES) >> 10), "{renamed:?}");
        [full[0], little[0], renamed[0]]
    });
    // Four times the files take no more than what caches that were not yet full still take.
    for (small, large) in peaks[0].iter().zip(peaks[1]) {
        assert!(large <= small + (16 << 10), "{peaks:?}");
    }
}

#[test]
fn receiving_takes_what_a_command_is() {
    let _watchdog = Watchdog::new("receiving_takes_what_a_command_is", 300);
    let scratch = Scratch::new("receive-memory");
    let peaks = [30_000, 90_000].map(|files| {
        let image = scratch.sparse_file("image", 4 << 30);
        FORMATS[0].make(&device(&image));
        let [peak, commands] = measure("receive", &image, files);
        assert!(commands > 5 * files);
        assert!(peak <= RECEIVE_KIB, "{peak} KiB, at most {RECEIVE_KIB} KiB");
        peak
    });
    let [directory, _] = measure("directory", &scratch.folder("at"), 20_000);
    assert!(directory <= 17 << 10, "{directory} KiB into a directory");
    assert!(peaks[1] <= peaks[0] + (40 << 10), "{peaks:?}");
}
