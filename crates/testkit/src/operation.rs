//! Operations on a filesystem as data: what to do, and what came of it.
//!
//! Invariants: (1) an operation names its objects by path or by an open handle, never by inode number, so that the same
//! list runs on every `OperationTarget`; (2) symbolic links are never followed; (3) contents are described, not
//! carried, so that a list of a hundred thousand operations is small and prints in one line each.

use crate::rng::Rng;
use rustix::io::Errno;
use std::fmt;

/// Bytes relative to the root, without a leading slash; the root itself is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelPath(pub Vec<u8>);

impl RelPath {
    /// The path of `name` in this folder.
    pub fn join(&self, name: &[u8]) -> RelPath {
        let separator: &[u8] = if self.0.is_empty() { b"" } else { b"/" };
        RelPath([&self.0, separator, name].concat())
    }

    /// The folder and the last name; none for the root.
    pub fn split(&self) -> Option<(RelPath, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Some((RelPath(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((RelPath::default(), &self.0)),
        }
    }

    /// True when `other` lies below this.
    pub fn is_above(&self, other: &RelPath) -> bool {
        let inside = other.0.strip_prefix(&self.0[..]);
        inside.is_some_and(|rest| !rest.is_empty() && (self.0.is_empty() || rest[0] == b'/'))
    }

    /// The names from the root down.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

impl From<&str> for RelPath {
    fn from(path: &str) -> RelPath {
        RelPath(path.as_bytes().to_vec())
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"")?;
        for (number, name) in self.names().enumerate() {
            write!(f, "{}", if number > 0 { "/" } else { "" })?;
            match name.len() {
                0..=60 => write!(f, "{}", name.escape_ascii())?,
                len => write!(f, "{}..({len} bytes)", name[..12].escape_ascii())?,
            }
        }
        write!(f, "\"")
    }
}

/// Bytes that print as text, shortened.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..=60 => write!(f, "\"{}\"", self.0.escape_ascii()),
            len => write!(f, "\"{}\"..({len} bytes)", self.0[..12].escape_ascii()),
        }
    }
}

/// The object of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// The last name is not followed when it is a symbolic link.
    Path(RelPath),
    /// A number that an earlier `Open` or `Tmpfile` gave to an open file.
    Handle(u32),
}

/// Bytes to write, made from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The seed of the bytes.
    pub seed: u64,
    /// The number.
    pub len: usize,
}

impl Content {
    /// The bytes: noise, one repeated byte, or short repeated words, chosen by the seed.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        let mut rng = Rng::new(self.seed);
        match self.seed % 4 {
            0 => bytes.fill(rng.bits() as u8),
            1 => {
                let word = format!("{} ", rng.below(1000));
                bytes.iter_mut().zip(word.bytes().cycle()).for_each(|(byte, from)| *byte = from);
            }
            _ => rng.fill(&mut bytes),
        }
        bytes
    }
}

/// A moment since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds after that second.
    pub nsec: u32,
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Folder,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
}

impl Kind {
    /// The kind in the upper bits of `st_mode`.
    pub fn of_mode(mode: u32) -> Kind {
        match mode & 0o170000 {
            0o040000 => Kind::Folder,
            0o120000 => Kind::Symlink,
            0o010000 => Kind::Fifo,
            0o140000 => Kind::Socket,
            0o060000 => Kind::BlockDevice,
            0o020000 => Kind::CharDevice,
            _ => Kind::File,
        }
    }

    /// The upper bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::File => 0o100000,
            Kind::Folder => 0o040000,
            Kind::Symlink => 0o120000,
            Kind::Fifo => 0o010000,
            Kind::Socket => 0o140000,
            Kind::BlockDevice => 0o060000,
            Kind::CharDevice => 0o020000,
        }
    }
}

/// How a rename treats what stands at the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
}

/// The mode of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AllocateHow {
    Extend,
    KeepSize,
    PunchHole,
    ZeroRange,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Create { path: RelPath, mode: u32 },
    Mkdir { path: RelPath, mode: u32 },
    Mknod { path: RelPath, kind: Kind, mode: u32, major: u32, minor: u32 },
    Symlink { path: RelPath, target: Text },
    Link { from: RelPath, to: RelPath },
    Unlink { path: RelPath },
    Rmdir { path: RelPath },
    Rename { from: RelPath, to: RelPath, how: RenameHow },
    Open { path: RelPath, handle: u32 },
    Tmpfile { folder: RelPath, mode: u32, handle: u32 },
    Close { handle: u32 },
    Read { object: Object, offset: u64, len: usize },
    Write { object: Object, offset: u64, content: Content },
    Truncate { object: Object, size: u64 },
    Allocate { object: Object, how: AllocateHow, offset: u64, len: u64 },
    CopyRange { from: RelPath, from_offset: u64, to: RelPath, to_offset: u64, len: u64 },
    Chmod { object: Object, mode: u32 },
    Chown { path: RelPath, uid: u32, gid: u32 },
    SetTimes { path: RelPath, atime: Moment, mtime: Moment },
    GetXattr { path: RelPath, name: String },
    SetXattr { path: RelPath, name: String, value: Content, create: bool, replace: bool },
    RemoveXattr { path: RelPath, name: String },
    ListXattrs { path: RelPath },
    Stat { object: Object },
    ReadFolder { path: RelPath },
    ReadLink { path: RelPath },
    Fsync { object: Object, data_only: bool },
    Sync,
}

/// The attributes that `stat` shows. A field that a side cannot know is `None` and agrees with everything.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    pub kind: Kind,
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    pub mtime: Option<Moment>,
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attributes { kind, mode, links, uid, gid, size, device, mtime } = self;
        write!(f, "{kind:?} {mode:04o} links {links} owner {uid}:{gid} size {size} device {device:?} mtime {mtime:?}")
    }
}

/// The reply of a successful operation.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reply {
    Done,
    Count(u64),
    Bytes(Vec<u8>),
    /// Sorted.
    Names(Vec<Vec<u8>>),
    /// Names and kinds, sorted, without `.` and `..`.
    Entries(Vec<(Vec<u8>, Kind)>),
    Attributes(Attributes),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Done => write!(f, "done"),
            Reply::Count(count) => write!(f, "{count}"),
            Reply::Bytes(bytes) if bytes.len() > 64 => {
                let hash = xxhash_rust::xxh64::xxh64(bytes, 0);
                write!(f, "{} bytes {hash:016x}, first \"{}\"", bytes.len(), bytes[..32].escape_ascii())
            }
            Reply::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Reply::Names(names) => {
                f.debug_list().entries(names.iter().map(|name| name.escape_ascii().to_string())).finish()
            }
            Reply::Entries(entries) => f
                .debug_list()
                .entries(entries.iter().map(|(name, kind)| (name.escape_ascii().to_string(), kind)))
                .finish(),
            Reply::Attributes(attributes) => attributes.fmt(f),
        }
    }
}

/// The outcome of an operation.
pub type Outcome = Result<Reply, Errno>;

/// Something that operations can be run on.
pub trait OperationTarget {
    /// Runs one operation.
    fn apply(&mut self, op: &Op) -> Outcome;
}

/// True when two outcomes tell the same, as far as both sides know.
pub fn agree(expected: &Outcome, actual: &Outcome) -> bool {
    match (expected, actual) {
        (Ok(Reply::Attributes(expected)), Ok(Reply::Attributes(actual))) => {
            let known = expected.mtime.is_some() && actual.mtime.is_some();
            let without = |attributes: &Attributes| Attributes { mtime: None, ..attributes.clone() };
            without(expected) == without(actual) && (!known || expected.mtime == actual.mtime)
        }
        _ => expected == actual,
    }
}
