//! Errors as Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::error::Error as _;
use std::io;

create_exception!(_butterfs, FilesystemError, PyOSError, "A filesystem operation failed; see errno, kind, place.");
create_exception!(_butterfs, StreamError, PyOSError, "A stream cannot be made or received; see errno, kind.");

/// An `io::Error` that carries a Python exception out of a callback.
pub fn carried(error: PyErr) -> io::Error {
    io::Error::other(error)
}

/// The Python exception that an error carries, if a callback raised it.
fn exception_in(error: &(dyn std::error::Error + 'static), py: Python<'_>) -> Option<PyErr> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(exception) = error.downcast_ref::<PyErr>() {
            return Some(exception.clone_ref(py));
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        at = inner.map(|inner| inner as _).or_else(|| error.source());
    }
    None
}

fn made<E: pyo3::PyTypeInfo>(py: Python<'_>, errno: i32, kind: String, sentence: String) -> PyErr {
    // Two arguments make OSError set errno and strerror.
    let exception = PyErr::from_type(py.get_type::<E>(), (errno, sentence));
    // Setting an attribute of our own exception fails only without memory.
    let _ = exception.value(py).setattr("kind", kind);
    exception
}

/// The exception for an error of the library.
pub fn raised(error: butterfs::Error) -> PyErr {
    Python::attach(|py| {
        if let Some(exception) = exception_in(&error, py) {
            return exception;
        }
        if error.kind() == butterfs::ErrorKind::Closed {
            // As Python's own files do.
            return PyValueError::new_err(error.to_string());
        }
        let (errno, kind) = (error.errno().raw(), format!("{:?}", error.kind()));
        let exception = made::<FilesystemError>(py, errno, kind, error.to_string());
        let place = error.place();
        let value = exception.value(py);
        let _ = value.setattr("device", place.device.as_deref());
        let _ = value.setattr("physical", place.physical);
        let _ = value.setattr("logical", place.logical);
        exception
    })
}

pub fn raised_by_send(error: butterfs::SendError) -> PyErr {
    Python::attach(|py| {
        let carried = error.source().and_then(|source| exception_in(source, py));
        let errno = error.filesystem().map_or(5, |cause| cause.errno().raw());
        carried.unwrap_or_else(|| made::<StreamError>(py, errno, format!("{:?}", error.kind()), error.to_string()))
    })
}

pub fn raised_by_receive(error: butterfs::ReceiveError) -> PyErr {
    let (errno, kind) = (error.errno().raw(), format!("{:?}", error.kind()));
    Python::attach(|py| made::<StreamError>(py, errno, kind, error.to_string()))
}
