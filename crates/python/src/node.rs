//! A handle on any inode, for its attributes.

use crate::arguments::BytesArgument;
use crate::detached::Detached;
use crate::error::raised;
use crate::values::Stat;
use butterfs::{Mode, Owner, Times, Timestamp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// A file, directory, symbolic link or special file: its attributes, not its content. See Dir.node.
#[pyclass(frozen, module = "butterfs")]
pub struct Node(Detached<butterfs::Node>);

impl Node {
    pub fn of(node: butterfs::Node) -> Node {
        Node(Detached::new(node))
    }
}

fn time(nanoseconds: Option<i128>) -> PyResult<Option<Timestamp>> {
    let Some(nanoseconds) = nanoseconds else { return Ok(None) };
    let secs = i64::try_from(nanoseconds.div_euclid(1_000_000_000));
    let secs = secs.map_err(|_| PyValueError::new_err("the time does not fit into 64 bits"))?;
    Ok(Timestamp::new(secs, nanoseconds.rem_euclid(1_000_000_000) as u32))
}

#[pymethods]
impl Node {
    /// Type, size, permissions, owner and times.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        Ok(py.detach(|| self.0.metadata()).map_err(raised)?.into())
    }

    /// Sets the permissions.
    fn chmod(&self, py: Python<'_>, mode: u32) -> PyResult<()> {
        py.detach(|| self.0.set_mode(Mode::new(mode))).map_err(raised)
    }

    /// Sets user and group. A file loses its set-user-id bit.
    fn chown(&self, py: Python<'_>, uid: u32, gid: u32) -> PyResult<()> {
        py.detach(|| self.0.set_owner(Owner::new(uid, gid))).map_err(raised)
    }

    /// Sets the times of the last access and the last change, in nanoseconds since 1970; None leaves one as it is.
    #[pyo3(signature = (*, atime_ns=None, mtime_ns=None))]
    fn utime(&self, py: Python<'_>, atime_ns: Option<i128>, mtime_ns: Option<i128>) -> PyResult<()> {
        let times = Times { accessed: time(atime_ns)?, modified: time(mtime_ns)? };
        py.detach(|| self.0.set_times(times)).map_err(raised)
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>) -> PyResult<PathBuf> {
        py.detach(|| self.0.read_link()).map_err(raised)
    }

    /// The value of an extended attribute; None if there is none.
    fn getxattr(&self, py: Python<'_>, name: OsString) -> PyResult<Option<std::borrow::Cow<'static, [u8]>>> {
        Ok(py.detach(|| self.0.xattr(name)).map_err(raised)?.map(Into::into))
    }

    /// Sets an extended attribute.
    fn setxattr(&self, py: Python<'_>, name: OsString, value: BytesArgument<'_>) -> PyResult<()> {
        py.detach(|| self.0.set_xattr(name, &value.0)).map_err(raised)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, name: OsString) -> PyResult<()> {
        py.detach(|| self.0.remove_xattr(name)).map_err(raised)
    }

    /// The names of all extended attributes.
    fn listxattr(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        py.detach(|| self.0.xattrs()).map_err(raised)
    }

    /// Makes the inode durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.sync()).map_err(raised)
    }
}
