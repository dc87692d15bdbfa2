//! An open file.

use crate::arguments::BytesArgument;
use crate::detached::Detached;
use crate::error::raised;
use crate::node::Node;
use crate::values::Stat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

/// An open file, read and written at offsets. Use it in a `with` block, or call close().
#[pyclass(frozen, module = "butterfs")]
pub struct File(Detached<RwLock<Option<butterfs::File>>>);

impl File {
    pub fn of(file: butterfs::File) -> File {
        File(Detached::new(RwLock::new(Some(file))))
    }

    fn work<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&butterfs::File) -> butterfs::Result<R> + Send,
    ) -> PyResult<R> {
        py.detach(|| {
            let file = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let file = file.as_ref().ok_or_else(|| PyValueError::new_err("the file is closed"))?;
            work(file).map_err(raised)
        })
    }
}

#[pymethods]
impl File {
    /// Reads `size` bytes at an offset, fewer only at the end of the file.
    fn read(&self, py: Python<'_>, size: usize, offset: u64) -> PyResult<Cow<'static, [u8]>> {
        self.work(py, |file| {
            // No more memory than the file has bytes.
            let left = file.metadata()?.len().saturating_sub(offset);
            let mut data = vec![0; usize::try_from(left).map_or(size, |left| left.min(size))];
            let read = file.read_at(&mut data, offset)?;
            data.truncate(read);
            Ok(Cow::Owned(data))
        })
    }

    /// Writes all bytes at an offset, or at the end if the file was opened for appending.
    fn write(&self, py: Python<'_>, data: BytesArgument<'_>, offset: u64) -> PyResult<usize> {
        self.work(py, |file| file.write_at(&data.0, offset))
    }

    /// Sets the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.work(py, |file| file.set_len(size))
    }

    /// Size, permissions, owner and times.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.work(py, |file| Ok(file.metadata()?.into()))
    }

    /// The file's attributes.
    fn node(&self, py: Python<'_>) -> PyResult<Node> {
        self.work(py, |file| Ok(Node::of(file.as_node().clone())))
    }

    /// Makes content, attributes and names durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |file| file.sync_all())
    }

    /// Closes it. Makes nothing durable.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take()));
    }

    fn __enter__(this: Py<File>) -> Py<File> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close(py);
    }
}
