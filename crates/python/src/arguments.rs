//! Arguments that Python programs pass in several types: paths and bytes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A path: str, bytes, or an object with `__fspath__` that returns one of them.
pub struct PathArgument(pub PathBuf);

impl AsRef<Path> for PathArgument {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for PathArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<PathArgument> {
        let path = object.py().import("os")?.call_method1("fspath", (object,))?;
        if let Ok(bytes) = path.cast::<PyBytes>() {
            return Ok(PathArgument(OsString::from_vec(bytes.as_bytes().to_vec()).into()));
        }
        Ok(PathArgument(path.extract()?))
    }
}

/// The bytes of an object: bytes, bytearray or memoryview.
pub struct BytesArgument<'a>(pub Cow<'a, [u8]>);

impl<'a, 'py> FromPyObject<'a, 'py> for BytesArgument<'a> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<BytesArgument<'a>> {
        if let Ok(bytes) = object.extract::<&'a [u8]>() {
            return Ok(BytesArgument(Cow::Borrowed(bytes)));
        }
        if !object.is_instance_of::<PyByteArray>() && !object.is_instance_of::<PyMemoryView>() {
            let found = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("bytes, a bytearray or a memoryview is needed, not {found}")));
        }
        // The stable interface for all versions since 3.9 has no buffers.
        let copy = object.py().get_type::<PyBytes>().call1((object,))?;
        Ok(BytesArgument(Cow::Owned(copy.cast::<PyBytes>()?.as_bytes().to_vec())))
    }
}
