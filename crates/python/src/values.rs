//! Plain values: attributes, entries, findings, statistics.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Attributes of an inode. Times are nanoseconds since 1970.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct Stat {
    subvolume: u64,
    ino: u64,
    kind: &'static str,
    size: u64,
    allocated: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime_ns: i128,
    mtime_ns: i128,
    ctime_ns: i128,
    btime_ns: i128,
}

/// The word for a type.
pub fn kind(kind: butterfs::FileType) -> &'static str {
    use butterfs::FileType;
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::BlockDevice => "block",
        FileType::CharDevice => "char",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "unknown",
    }
}

pub fn nanoseconds(time: butterfs::Timestamp) -> i128 {
    i128::from(time.secs()) * 1_000_000_000 + i128::from(time.nanos())
}

impl From<butterfs::Metadata> for Stat {
    fn from(metadata: butterfs::Metadata) -> Stat {
        let (id, owner) = (metadata.id(), metadata.owner());
        Stat {
            subvolume: id.subvolume.get(),
            ino: id.number,
            kind: kind(metadata.file_type()),
            size: metadata.len(),
            allocated: metadata.allocated_bytes(),
            mode: metadata.mode().bits(),
            nlink: metadata.links(),
            uid: owner.uid,
            gid: owner.gid,
            atime_ns: nanoseconds(metadata.accessed()),
            mtime_ns: nanoseconds(metadata.modified()),
            ctime_ns: nanoseconds(metadata.changed()),
            btime_ns: nanoseconds(metadata.created()),
        }
    }
}

#[pymethods]
impl Stat {
    fn __repr__(&self) -> String {
        format!(
            "Stat(kind={:?}, size={}, mode={:#o}, uid={}, gid={})",
            self.kind, self.size, self.mode, self.uid, self.gid
        )
    }
}

/// An entry of a directory.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct DirEntry {
    /// The name. Bytes that are not UTF-8 appear as surrogates, as in os.listdir.
    pub name: OsString,
    /// "file", "directory", "symlink", "block", "char", "fifo", "socket" or "unknown".
    pub kind: &'static str,
    /// The subvolume of its inode.
    pub subvolume: u64,
    /// The number of its inode.
    pub ino: u64,
}

#[pymethods]
impl DirEntry {
    fn __repr__(&self) -> String {
        format!("DirEntry(name={:?}, kind={:?})", self.name, self.kind)
    }
}

/// A subvolume or snapshot.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct Subvolume {
    id: u64,
    path: PathBuf,
    read_only: bool,
    uuid: Option<String>,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    generation: u64,
}

impl From<butterfs::SubvolumeInfo> for Subvolume {
    fn from(info: butterfs::SubvolumeInfo) -> Subvolume {
        let text = |uuid: Option<butterfs::Uuid>| uuid.map(|uuid| uuid.to_string());
        Subvolume {
            id: info.id.get(),
            read_only: info.access == butterfs::Access::ReadOnly,
            uuid: text(info.uuid),
            parent_uuid: text(info.parent_uuid),
            received_uuid: text(info.received_uuid),
            generation: info.generation,
            path: info.path,
        }
    }
}

#[pymethods]
impl Subvolume {
    fn __repr__(&self) -> String {
        format!("Subvolume(id={}, path={:?})", self.id, self.path)
    }
}

/// The space of a filesystem, in bytes.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct Usage {
    total: u64,
    used: u64,
    available: u64,
}

impl From<butterfs::Usage> for Usage {
    fn from(usage: butterfs::Usage) -> Usage {
        Usage { total: usage.total, used: usage.used, available: usage.available }
    }
}

/// Something that the checker found.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct Finding {
    /// A word that names the kind and never changes its meaning.
    pub id: &'static str,
    /// True for an error, false for a warning.
    pub is_error: bool,
    /// One sentence with place and values.
    pub message: String,
}

#[pymethods]
impl Finding {
    fn __str__(&self) -> &str {
        &self.message
    }

    fn __repr__(&self) -> String {
        format!("Finding(id={:?}, is_error={}, message={:?})", self.id, self.is_error, self.message)
    }
}

/// The result of a check.
#[pyclass(frozen, get_all, module = "butterfs")]
pub struct Report {
    pub findings: Vec<Py<Finding>>,
    pub errors: u64,
    pub warnings: u64,
    pub notes: Vec<String>,
    pub is_clean: bool,
}
