//! Scripts of operations that end with a power cut, and what must be there afterwards.
//!
//! ```text
//! mkdir d; write d/f 0 4096; sync; mv d/f d/g; fsync d/g      then      same d/g; gone d/f
//! ```
//! The model runs along. `same P`: what is at P after the cut is what the model has there, with content, attributes
//! but times, extended attributes and links. `gone P`: nothing is there. `all`: everything is the model's. `size P n`,
//! `links P n`: only that. `log` and `commit` say how the last `fsync` must have been done.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::options::Policies;
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::engine::Format;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{
    AllocateHow, Content, Kind, Object, Op, OperationTarget, RelPath, RenameHow, Text, agree,
};
use butterfs_testkit::scratch::Scratch;
use std::sync::Arc;

const BYTES: u64 = 256 << 20;
const COMPARE: Compare = Compare { mtime: false, ..Compare::MODEL };

/// Logs are written whenever they can be.
pub fn options() -> Options {
    let policies = Policies { log_at_any_cost: true, ..Policies::default() };
    Options { commit_interval_secs: 3600, policies, ..Options::default() }
}

/// A filesystem in memory, and the model of it.
pub struct World {
    pub device: Arc<MemoryDevice>,
    filesystem: Filesystem,
    library: Library,
    pub model: ModelFs,
}

impl World {
    pub fn new(format: &Format, options: Options) -> World {
        let device = Arc::new(MemoryDevice::new(BYTES));
        format.make(&(device.clone() as Arc<dyn BlockDevice>));
        let filesystem = Filesystem::open(vec![device.clone()], options, Env::system()).expect("just made");
        let library = Library::new(&filesystem);
        let mut world = World { device, filesystem, library, model: ModelFs::default() };
        // Chunks that a first write adds are there before anything is logged.
        for step in ["create warm", "write warm 0 65536", "sync", "rm warm", "sync"] {
            world.step(step);
        }
        world
    }

    /// Runs one line of a script on both sides.
    pub fn step(&mut self, line: &str) {
        if let ["linkfd", handle, to] = line.split(' ').collect::<Vec<_>>()[..] {
            return self.link_handle(handle.parse().expect("a number"), &RelPath::from(to));
        }
        let op = parse(line);
        let (expected, actual) = (self.model.apply(&op), self.library.apply(&op));
        assert!(agree(&expected, &actual), "{line}: expected {expected:?}, actual {actual:?} {}", self.library.said());
        assert!(actual.is_ok(), "{line}: {actual:?}");
    }

    /// A name for what was opened without one.
    fn link_handle(&mut self, handle: u32, to: &RelPath) {
        self.model.link_handle(handle, to).expect("a new name");
        let file = self.library.find_object(&Object::Handle(handle)).expect("it is open");
        let (folder, name) = to.split().expect("not the root");
        let folder = self.library.find(&folder).expect("it is there");
        let linked = self.filesystem.link(file, folder, name).unwrap_or_else(|error| panic!("{to:?}: {error}"));
        self.filesystem.forget(linked.id, 1);
    }

    pub fn run(&mut self, script: &str) {
        script.split(';').map(str::trim).filter(|line| !line.is_empty()).for_each(|line| self.step(line));
    }

    /// Whether the superblock on disk leads to a log.
    pub fn has_log(&self) -> bool {
        let mut field = [0; 8];
        self.device.read_at(65536 + 0x60, &mut field).expect("memory does not fail");
        field != [0; 8]
    }

    /// The expectations that what is shown does not meet.
    pub fn unmet(&self, expected: &str, shown: &Fingerprint) -> Vec<String> {
        let model = Fingerprint::of_model(&self.model);
        let mut unmet = Vec::new();
        for line in expected.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            let only = |print: &Fingerprint, path: &str| {
                let entry = print.entries.get(path.as_bytes()).cloned();
                let entries = entry.map(|entry| (path.as_bytes().to_vec(), entry)).into_iter().collect();
                Fingerprint { entries, ..Fingerprint::default() }
            };
            let number = |word: &str| word.parse::<u64>().expect("a number");
            let at = |path: &str| shown.entries.get(path.as_bytes());
            match words[..] {
                ["same", path] => {
                    let wanted = only(&model, path);
                    assert!(!wanted.entries.is_empty(), "{line}: the model has no such path");
                    unmet.extend(differences(&wanted, &only(shown, path), COMPARE));
                }
                ["all"] => unmet.extend(differences(&model, shown, COMPARE)),
                ["gone", path] => unmet.extend(at(path).map(|_| format!("{line}: it is there"))),
                ["size", path, size] if at(path).is_some_and(|entry| entry.size == number(size)) => {}
                ["links", path, links] if at(path).is_some_and(|entry| u64::from(entry.links) == number(links)) => {}
                ["empty", path] if !shown.entries.keys().any(|other| below(path, other)) && at(path).is_some() => {}
                ["one", ref paths @ ..] if paths.iter().filter(|path| at(path).is_some()).count() == 1 => {}
                ["log"] if self.has_log() => {}
                ["commit"] if !self.has_log() => {}
                _ => unmet.push(format!("{line}: not so")),
            }
        }
        unmet
    }

    /// The disk as a power cut now leaves it, checked after our own replay.
    pub fn judge_by_us(&self, what: &str, expected: &str) {
        let device = Arc::new(self.device.snapshot());
        let filesystem = Filesystem::open(vec![device.clone()], Options::default(), Env::system());
        let filesystem = filesystem.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{what}: {error}"));
        filesystem.shutdown().unwrap_or_else(|error| panic!("{what}: {error}"));
        let unmet = self.unmet(expected, &shown);
        let (shown, stats) = (short(&shown), self.filesystem.log_stats());
        assert!(unmet.is_empty(), "{what}, after our replay: {unmet:#?}\nshown: {shown:#?}\n{stats:?}");
    }

    /// The disk as a power cut now leaves it, checked after the kernel's replay.
    pub fn judge_by_kernel(&self, what: &str, expected: &str) {
        let scratch = Scratch::new("log");
        let image = scratch.image("image", &self.device.snapshot());
        let mount = KernelMount::try_new(&image, "noatime").unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = Fingerprint::of_tree(mount.path());
        assert_eq!(mount.finish(), [""; 0], "{what}");
        let unmet = self.unmet(expected, &shown);
        let stats = self.filesystem.log_stats();
        let shown = short(&shown);
        assert!(unmet.is_empty(), "{what}, after the kernel's replay: {unmet:#?}\nshown: {shown:#?}\n{stats:?}");
        check_all(&image);
    }
}

fn below(folder: &str, path: &[u8]) -> bool {
    path.strip_prefix(folder.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

fn short(print: &Fingerprint) -> Vec<String> {
    let line = |(path, entry): (&Vec<u8>, &butterfs_testkit::fingerprint::PathFingerprint)| {
        format!("{} {:?} size {} links {}", path.escape_ascii(), entry.kind, entry.size, entry.links)
    };
    print.entries.iter().map(line).collect()
}

fn parse(line: &str) -> Op {
    let words: Vec<&str> = line.split(' ').collect();
    let path = |word: &str| RelPath::from(if word == "/" { "" } else { word });
    let object = |word: &str| Object::Path(path(word));
    let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("{line}: {word} is no number"));
    let allocate = |file: &str, how, offset: &str, len: &str| Op::Allocate {
        object: object(file),
        how,
        offset: number(offset),
        len: number(len),
    };
    match words[..] {
        ["create", file] => Op::Create { path: path(file), mode: 0o644 },
        ["mkdir", folder] => Op::Mkdir { path: path(folder), mode: 0o755 },
        ["symlink", link, target] => Op::Symlink { path: path(link), target: Text(target.into()) },
        ["fifo", at] => Op::Mknod { path: path(at), kind: Kind::Fifo, mode: 0o600, major: 0, minor: 0 },
        ["link", from, to] => Op::Link { from: path(from), to: path(to) },
        ["mv", from, to] => Op::Rename { from: path(from), to: path(to), how: RenameHow::Replace },
        ["swap", from, to] => Op::Rename { from: path(from), to: path(to), how: RenameHow::Exchange },
        ["whiteout", from, to] => Op::Rename { from: path(from), to: path(to), how: RenameHow::Whiteout },
        ["rm", file] => Op::Unlink { path: path(file) },
        ["rmdir", folder] => Op::Rmdir { path: path(folder) },
        ["open", file, handle] => Op::Open { path: path(file), handle: number(handle) as u32 },
        ["close", handle] => Op::Close { handle: number(handle) as u32 },
        ["tmp", folder, handle] => Op::Tmpfile { folder: path(folder), mode: 0o600, handle: number(handle) as u32 },
        ["write", file, offset, len] => Op::Write {
            object: file.parse().map_or_else(|_| object(file), Object::Handle),
            offset: number(offset),
            // Noise that differs from place to place.
            content: Content { seed: 4 * (number(offset) + number(len)) + 2, len: number(len) as usize },
        },
        ["write", file, offset, len, seed] => Op::Write {
            object: object(file),
            offset: number(offset),
            content: Content { seed: number(seed), len: number(len) as usize },
        },
        ["trunc", file, size] => Op::Truncate { object: object(file), size: number(size) },
        ["falloc", file, offset, len] => allocate(file, AllocateHow::Extend, offset, len),
        ["keep", file, offset, len] => allocate(file, AllocateHow::KeepSize, offset, len),
        ["punch", file, offset, len] => allocate(file, AllocateHow::PunchHole, offset, len),
        ["zero", file, offset, len] => allocate(file, AllocateHow::ZeroRange, offset, len),
        ["clone", from, from_offset, to, to_offset, len] => Op::CopyRange {
            from: path(from),
            from_offset: number(from_offset),
            to: path(to),
            to_offset: number(to_offset),
            len: number(len),
        },
        ["chmod", file, mode] => {
            Op::Chmod { object: object(file), mode: u32::from_str_radix(mode, 8).expect("an octal number") }
        }
        ["chown", file, uid, gid] => Op::Chown { path: path(file), uid: number(uid) as u32, gid: number(gid) as u32 },
        ["setx", file, name, len] => Op::SetXattr {
            path: path(file),
            name: name.to_owned(),
            value: Content { seed: number(len) + 6, len: number(len) as usize },
            create: false,
            replace: false,
        },
        ["rmx", file, name] => Op::RemoveXattr { path: path(file), name: name.to_owned() },
        ["sync"] => Op::Sync,
        ["fsync", file] => {
            Op::Fsync { object: file.parse().map_or_else(|_| object(file), Object::Handle), data_only: false }
        }
        ["fdatasync", file] => Op::Fsync { object: object(file), data_only: true },
        _ => panic!("{line:?} is no operation"),
    }
}
