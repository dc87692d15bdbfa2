//! A filesystem in memory that streams are applied to, and streams made by hand.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Attr, Env, Filesystem, InodeId, Options, Subvolume, TreeId};
use butterfs_send::apply::{self, Engine, Error, Observer, StreamTarget, Summary};
use butterfs_send::wire::{Command, Timespec, Version, encode, encode_header};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::sync::Arc;

pub const TOP: InodeId = InodeId::root_of(TreeId::FS);

/// See the [module](self).
pub struct World {
    pub device: Arc<MemoryDevice>,
    pub fs: Filesystem,
}

/// The result of a stream: the summary and the sentences of errors.
#[derive(Debug)]
pub struct Received {
    pub summary: Summary,
    pub errors: Vec<String>,
}

#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn error(&mut self, error: &Error) {
        self.0.push(error.to_string());
    }
}

/// Applies a stream that stops at the first error.
pub fn receive_into(stream: &[u8], target: &mut dyn StreamTarget) -> Received {
    let mut notes = Notes::default();
    let summary = apply::receive(stream, target, &apply::Options::default(), &mut notes);
    assert_eq!(summary.errors as usize, notes.0.len());
    Received { summary, errors: notes.0 }
}

impl World {
    pub fn new() -> World {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        mkfs(&devices, &MkfsOptions::default(), &Env::system()).unwrap();
        let fs = open(&device, Subvolume::Id(TreeId::FS), false);
        World { device, fs }
    }

    pub fn engine(&self) -> Engine<'static> {
        Engine::new(self.fs.clone(), TOP)
    }

    /// Applies a stream that stops at the first error.
    pub fn receive(&self, stream: &[u8]) -> Received {
        self.receive_with(stream, &mut self.engine(), &apply::Options::default())
    }

    pub fn receive_with(&self, stream: &[u8], engine: &mut Engine<'_>, options: &apply::Options) -> Received {
        let mut notes = Notes::default();
        let summary = apply::receive(stream, engine, options, &mut notes);
        assert_eq!(summary.errors as usize, notes.0.len());
        Received { summary, errors: notes.0 }
    }

    /// Applies a stream that has no error.
    pub fn receive_ok(&self, stream: &[u8]) {
        let received = self.receive(stream);
        assert_eq!(received.errors, [""; 0]);
    }

    /// The only error of a stream that stops there.
    pub fn refusal(&self, stream: &[u8]) -> String {
        let mut received = self.receive(stream);
        assert_eq!(received.errors.len(), 1, "{received:?}");
        received.errors.remove(0)
    }

    pub fn find(&self, path: &str) -> Option<Attr> {
        let mut at = self.fs.getattr(TOP).unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs.lookup(at.id, name.as_bytes()).ok()?;
            self.fs.forget(at.id, 1);
        }
        Some(at)
    }

    pub fn attr(&self, path: &str) -> Attr {
        self.find(path).unwrap_or_else(|| panic!("{path} is missing"))
    }

    pub fn content(&self, path: &str) -> Vec<u8> {
        let (attr, mut out) = (self.attr(path), Vec::new());
        self.fs.read(attr.id, 0, attr.size as usize, &mut out).unwrap();
        out
    }

    pub fn xattr(&self, path: &str, name: &str) -> Option<Vec<u8>> {
        self.fs.get_xattr(self.attr(path).id, name.as_bytes()).ok()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut show = |entry: butterfs_fs::DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        self.fs.readdir(TOP, 2, &mut show).unwrap();
        names
    }

    /// How the subvolume looks to who opens the filesystem now.
    pub fn fingerprint(&self, subvolume: &str) -> Fingerprint {
        self.fs.sync().unwrap();
        let other = open(&self.device, Subvolume::Path(subvolume.as_bytes().to_vec()), true);
        Fingerprint::of_library(&other).unwrap()
    }

    /// The checkers find it clean.
    pub fn check(self, test: &str) {
        self.fs.shutdown().unwrap();
        if !requirement::programs(test, &["btrfs"]) {
            return;
        }
        let scratch = Scratch::new(test);
        check_all(&scratch.image("image", &*self.device));
    }
}

fn open(device: &Arc<MemoryDevice>, subvolume: Subvolume, read_only: bool) -> Filesystem {
    let options = Options { subvolume, read_only, ..Options::default() };
    Filesystem::open(vec![device.clone()], options, Env::system()).unwrap()
}

/// A stream being made.
pub struct Stream {
    version: Version,
    bytes: Vec<u8>,
}

/// A time that is told apart from all others.
pub const fn time(sec: i64) -> Timespec {
    Timespec { sec, nsec: 123_456_789 }
}

impl Stream {
    pub fn new(version: Version) -> Stream {
        let mut bytes = Vec::new();
        encode_header(version, &mut bytes);
        Stream { version, bytes }
    }

    /// A stream with a new subvolume.
    pub fn subvol(name: &str, uuid: u8) -> Stream {
        Stream::new(Version::V2).add(Command::Subvol { path: name.as_bytes(), uuid: [uuid; 16], transid: 7 })
    }

    /// A stream with a snapshot of what was received as `parent`.
    pub fn snapshot(name: &str, uuid: u8, parent: u8) -> Stream {
        Stream::new(Version::V2).add(Command::Snapshot {
            path: name.as_bytes(),
            uuid: [uuid; 16],
            transid: 8,
            parent_uuid: [parent; 16],
            parent_transid: 7,
        })
    }

    pub fn add(mut self, command: Command<'_>) -> Stream {
        encode(&command, self.version, &mut self.bytes).unwrap();
        self
    }

    pub fn file(self, path: &str) -> Stream {
        self.add(Command::Mkfile { path: path.as_bytes(), ino: 257 })
    }

    pub fn dir(self, path: &str) -> Stream {
        self.add(Command::Mkdir { path: path.as_bytes(), ino: 257 })
    }

    pub fn write(self, path: &str, offset: u64, data: &[u8]) -> Stream {
        self.add(Command::Write { path: path.as_bytes(), offset, data })
    }

    pub fn rename(self, path: &str, to: &str) -> Stream {
        self.add(Command::Rename { path: path.as_bytes(), to: to.as_bytes() })
    }

    pub fn unlink(self, path: &str) -> Stream {
        self.add(Command::Unlink { path: path.as_bytes() })
    }

    pub fn chmod(self, path: &str, mode: u64) -> Stream {
        self.add(Command::Chmod { path: path.as_bytes(), mode })
    }

    pub fn chown(self, path: &str, uid: u64, gid: u64) -> Stream {
        self.add(Command::Chown { path: path.as_bytes(), uid, gid })
    }

    pub fn xattr(self, path: &str, name: &str, value: &[u8]) -> Stream {
        self.add(Command::SetXattr { path: path.as_bytes(), name: name.as_bytes(), value })
    }

    pub fn utimes(self, path: &str, mtime: i64) -> Stream {
        let (atime, mtime, ctime) = (time(mtime + 1), time(mtime), time(0));
        self.add(Command::Utimes { path: path.as_bytes(), atime, mtime, ctime, otime: None })
    }

    /// Clones from a file of what is known as `uuid`.
    pub fn clone_from(self, uuid: u8, source: &str, source_offset: u64, len: u64, path: &str, offset: u64) -> Stream {
        self.add(Command::Clone {
            offset,
            len,
            path: path.as_bytes(),
            source_uuid: [uuid; 16],
            source_transid: 7,
            source: source.as_bytes(),
            source_offset,
        })
    }

    /// As it is, without an end.
    pub fn open_end(self) -> Vec<u8> {
        self.bytes
    }

    pub fn end(self) -> Vec<u8> {
        self.add(Command::End {}).bytes
    }
}
