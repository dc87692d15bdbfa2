//! Errors as Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileExistsError, PyFileNotFoundError, PyIsADirectoryError, PyNotADirectoryError, PyOSError, PyPermissionError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict as _, PyType};
use std::io;

create_exception!(butterfs, Error, PyOSError, "A filesystem operation failed; see errno, kind, place.");
create_exception!(butterfs, StreamError, PyOSError, "A stream cannot be made or received; see errno, kind.");

/// `Error`s that are also Python's class for their errno, so that `except FileNotFoundError` catches them.
static SPECIFIC: PyOnceLock<Vec<Specific>> = PyOnceLock::new();

struct Specific {
    errors: &'static [i32],
    class: Py<PyType>,
}

fn specific(py: Python<'_>) -> PyResult<&'static [Specific]> {
    let made = SPECIFIC.get_or_try_init(py, || {
        let with = |name: &str, errors: &'static [i32], base: Bound<'_, PyType>| -> PyResult<Specific> {
            let contents = [("__module__", "butterfs._butterfs")].into_py_dict(py)?;
            let class = py.get_type::<PyType>().call1((name, (py.get_type::<Error>(), base), contents))?;
            Ok(Specific { errors, class: class.cast_into::<PyType>()?.unbind() })
        };
        Ok::<_, PyErr>(vec![
            with("FileNotFoundError", &[2], py.get_type::<PyFileNotFoundError>())?,
            with("FileExistsError", &[17], py.get_type::<PyFileExistsError>())?,
            with("PermissionError", &[1, 13], py.get_type::<PyPermissionError>())?,
            with("NotADirectoryError", &[20], py.get_type::<PyNotADirectoryError>())?,
            with("IsADirectoryError", &[21], py.get_type::<PyIsADirectoryError>())?,
        ])
    })?;
    Ok(made)
}

/// Adds the classes to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("StreamError", py.get_type::<StreamError>())?;
    for one in specific(py)? {
        let class = one.class.bind(py);
        module.add(class.name()?, class)?;
    }
    Ok(())
}

/// An `io::Error` that carries a Python exception out of a callback.
pub fn carried(error: PyErr) -> io::Error {
    io::Error::other(error)
}

/// The Python exception that an error stands for: what a callback raised, or `ValueError` for a closed filesystem.
fn exception_in(error: &(dyn std::error::Error + 'static), py: Python<'_>) -> Option<PyErr> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(exception) = error.downcast_ref::<PyErr>() {
            return Some(exception.clone_ref(py));
        }
        if error.downcast_ref::<butterfs::Error>().is_some_and(|error| error.kind() == butterfs::ErrorKind::Closed) {
            // As Python's own files do.
            return Some(PyValueError::new_err(error.to_string()));
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        at = inner.map(|inner| inner as _).or_else(|| error.source());
    }
    None
}

fn made(class: Bound<'_, PyType>, errno: i32, kind: String, sentence: String) -> PyErr {
    // Two arguments make OSError set errno and strerror.
    let py = class.py();
    let exception = PyErr::from_type(class, (errno, sentence));
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
        let (errno, kind) = (error.errno().raw(), format!("{:?}", error.kind()));
        let specific = match specific(py) {
            Ok(classes) => classes.iter().find(|one| one.errors.contains(&errno)),
            Err(exception) => return exception,
        };
        let class = specific.map_or_else(|| py.get_type::<Error>(), |one| one.class.bind(py).clone());
        let exception = made(class, errno, kind, error.to_string());
        let place = error.place();
        let value = exception.value(py);
        let _ = value.setattr("device", place.device.as_deref());
        let _ = value.setattr("physical", place.physical);
        let _ = value.setattr("logical", place.logical);
        exception
    })
}

pub fn raised_by_send(error: butterfs::SendError) -> PyErr {
    let errno = error.filesystem().map_or(5, |cause| cause.errno().raw());
    raised_by_stream(&error, errno, format!("{:?}", error.kind()))
}

pub fn raised_by_receive(error: butterfs::ReceiveError) -> PyErr {
    let (errno, kind) = (error.errno().raw(), format!("{:?}", error.kind()));
    raised_by_stream(&error, errno, kind)
}

fn raised_by_stream(error: &(dyn std::error::Error + 'static), errno: i32, kind: String) -> PyErr {
    Python::attach(|py| {
        exception_in(error, py).unwrap_or_else(|| made(py.get_type::<StreamError>(), errno, kind, error.to_string()))
    })
}
