//! A directory, and everything that can be done by path below it.

use crate::arguments::{BytesArgument, PathArgument};
use crate::detached::Detached;
use crate::error::raised;
use crate::file::File;
use crate::node::Node;
use crate::streams;
use crate::values::{DirEntry, Stat, kind};
use butterfs::{Access, Create, Follow, Mode, OpenOptions, Rename};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A directory of a filesystem. Paths begin at it and never lead out of it.
#[pyclass(frozen, module = "butterfs")]
pub struct Dir(Detached<butterfs::Dir>);

impl Dir {
    pub fn of(directory: butterfs::Dir) -> Dir {
        Dir(Detached::new(directory))
    }
}

/// The entries of a directory, one by one.
#[pyclass(frozen, module = "butterfs")]
pub struct Entries(Detached<Mutex<butterfs::ReadDir>>);

#[pymethods]
impl Entries {
    fn __iter__(this: Py<Entries>) -> Py<Entries> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DirEntry>> {
        py.detach(|| {
            let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(entry) = next.transpose().map_err(raised)? else { return Ok(None) };
            let id = entry.id();
            Ok(Some(DirEntry {
                name: entry.file_name().to_owned(),
                kind: kind(entry.file_type()),
                subvolume: id.subvolume.get(),
                ino: id.number,
            }))
        })
    }
}

fn options(mode: &str, permissions: u32) -> PyResult<OpenOptions> {
    let read_write = OpenOptions::read_write();
    let options = match mode {
        "r" => OpenOptions::read_only(),
        "r+" => read_write,
        "w" => read_write.create(Create::IfMissing).truncate(),
        "a" => read_write.create(Create::IfMissing).append(),
        "x" => read_write.create(Create::New),
        _ => return Err(PyValueError::new_err("the mode is 'r', 'r+', 'w', 'a' or 'x'")),
    };
    Ok(options.mode(Mode::new(permissions)))
}

fn follow(follow: bool) -> Follow {
    if follow { Follow::Links } else { Follow::Nothing }
}

#[pymethods]
impl Dir {
    /// A directory below this one, as the root of its own paths.
    fn open_dir(&self, py: Python<'_>, path: PathArgument) -> PyResult<Dir> {
        Ok(Dir::of(py.detach(|| self.0.open_dir(path)).map_err(raised)?))
    }

    /// The entries of a directory, without "." and "..".
    #[pyo3(signature = (path=PathArgument(".".into())))]
    fn scandir(&self, py: Python<'_>, path: PathArgument) -> PyResult<Entries> {
        let entries = py.detach(|| self.0.read_dir(path)).map_err(raised)?;
        Ok(Entries(Detached::new(Mutex::new(entries))))
    }

    /// Opens a file: 'r' reads, 'r+' reads and writes, 'w' makes or empties, 'a' appends, 'x' makes a new one.
    #[pyo3(signature = (path, mode="r", permissions=0o644))]
    fn open(&self, py: Python<'_>, path: PathArgument, mode: &str, permissions: u32) -> PyResult<File> {
        let options = options(mode, permissions)?;
        Ok(File::of(py.detach(|| self.0.open_with(path, &options)).map_err(raised)?))
    }

    /// The content of a file.
    fn read(&self, py: Python<'_>, path: PathArgument) -> PyResult<Cow<'static, [u8]>> {
        Ok(Cow::Owned(py.detach(|| self.0.read(path)).map_err(raised)?))
    }

    /// Makes a file with this content, or replaces the content of one that exists.
    fn write(&self, py: Python<'_>, path: PathArgument, data: BytesArgument<'_>) -> PyResult<()> {
        py.detach(|| self.0.write(path, &data.0)).map_err(raised)
    }

    /// Makes a directory; with `parents` also those above it, and it may exist.
    #[pyo3(signature = (path, mode=0o755, *, parents=false))]
    fn mkdir(&self, py: Python<'_>, path: PathArgument, mode: u32, parents: bool) -> PyResult<()> {
        py.detach(|| match parents {
            true => self.0.create_dir_all(path),
            false => self.0.create_dir_with(path, Mode::new(mode)),
        })
        .map_err(raised)
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    fn symlink(&self, py: Python<'_>, target: PathArgument, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.symlink(target, path)).map_err(raised)
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathArgument) -> PyResult<PathBuf> {
        py.detach(|| self.0.read_link(path)).map_err(raised)
    }

    /// Gives a file another name.
    fn link(&self, py: Python<'_>, original: PathArgument, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.hard_link(original, path)).map_err(raised)
    }

    /// Renames. `how`: "replace", "keep" (fails if the new name exists) or "exchange".
    #[pyo3(signature = (old, new, how="replace"))]
    fn rename(&self, py: Python<'_>, old: PathArgument, new: PathArgument, how: &str) -> PyResult<()> {
        let how = match how {
            "replace" => Rename::Replace,
            "keep" => Rename::KeepExisting,
            "exchange" => Rename::Exchange,
            _ => return Err(PyValueError::new_err("how is 'replace', 'keep' or 'exchange'")),
        };
        py.detach(|| self.0.rename(old, new, how)).map_err(raised)
    }

    /// Removes a name of something that is not a directory.
    fn unlink(&self, py: Python<'_>, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.remove_file(path)).map_err(raised)
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.remove_dir(path)).map_err(raised)
    }

    /// Removes a directory and everything in it. Symbolic links are not followed.
    fn rmtree(&self, py: Python<'_>, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.remove_dir_all(path)).map_err(raised)
    }

    /// Returns true if a path leads to something.
    fn exists(&self, py: Python<'_>, path: PathArgument) -> PyResult<bool> {
        py.detach(|| self.0.exists(path)).map_err(raised)
    }

    /// Attributes of what a path leads to.
    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat(&self, py: Python<'_>, path: PathArgument, follow_symlinks: bool) -> PyResult<Stat> {
        let node = py.detach(|| self.0.node(path, follow(follow_symlinks))?.metadata());
        Ok(node.map_err(raised)?.into())
    }

    /// The node that a path leads to, for its attributes.
    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn node(&self, py: Python<'_>, path: PathArgument, follow_symlinks: bool) -> PyResult<Node> {
        Ok(Node::of(py.detach(|| self.0.node(path, follow(follow_symlinks))).map_err(raised)?))
    }

    /// Makes a file at `new` that shares the content of the file at `old`.
    fn reflink(&self, py: Python<'_>, old: PathArgument, new: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.reflink(old, new)).map_err(raised)
    }

    /// Makes an empty subvolume and returns its id.
    fn create_subvolume(&self, py: Python<'_>, path: PathArgument) -> PyResult<u64> {
        Ok(py.detach(|| self.0.create_subvolume(path)).map_err(raised)?.get())
    }

    /// Makes a snapshot of the subvolume at `source` and returns its id. It is durable then.
    #[pyo3(signature = (source, path, *, read_only=false))]
    fn snapshot(&self, py: Python<'_>, source: PathArgument, path: PathArgument, read_only: bool) -> PyResult<u64> {
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        Ok(py.detach(|| self.0.snapshot(source, path, access)).map_err(raised)?.get())
    }

    /// Deletes a subvolume with everything in it.
    fn delete_subvolume(&self, py: Python<'_>, path: PathArgument) -> PyResult<()> {
        py.detach(|| self.0.delete_subvolume(path)).map_err(raised)
    }

    /// The id of the subvolume whose root a path is.
    fn subvolume_id(&self, py: Python<'_>, path: PathArgument) -> PyResult<u64> {
        Ok(py.detach(|| self.0.subvolume_at(path)).map_err(raised)?.get())
    }

    /// Receives streams from an object with read(size) as subvolumes in this directory, and returns their names.
    /// `progress` is called with the bytes read so far; if it returns False, or raises, the receive ends.
    #[pyo3(signature = (stream, *, progress=None))]
    fn receive(
        &self,
        py: Python<'_>,
        stream: Py<PyAny>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<std::ffi::OsString>> {
        streams::receive(py, &self.0, stream, progress)
    }
}
