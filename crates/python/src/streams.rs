//! Streams from and to Python's file objects.

use crate::arguments::BytesArgument;
use crate::error::{carried, raised_by_receive, raised_by_send};
use butterfs::{SendProgress, StreamVersion, SubvolumeId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// An exception of a callback, kept until the work has ended.
type Raised = Arc<Mutex<Option<PyErr>>>;

fn keep(raised: &Raised, error: PyErr) -> io::Error {
    let text = error.to_string();
    raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    io::Error::other(text)
}

fn kept(raised: &Raised) -> Option<PyErr> {
    raised.lock().unwrap_or_else(PoisonError::into_inner).take()
}

struct Output<'a>(&'a Py<PyAny>);

impl Write for Output<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let mut left = data;
            while !left.is_empty() {
                let written = self.0.call_method1(py, "write", (PyBytes::new(py, left),)).map_err(carried)?;
                // Raw files may write less; objects that return nothing have written all.
                let count = written.extract::<usize>(py).unwrap_or(left.len()).min(left.len());
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                left = &left[count..];
            }
            Ok(data.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Input<'a>(&'a Py<PyAny>, &'a Raised);

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let read = self.0.call_method1(py, "read", (buf.len(),)).map_err(|error| keep(self.1, error))?;
            let BytesArgument(bytes) = read.bind(py).extract().map_err(|error| keep(self.1, error))?;
            let Some(part) = buf.get_mut(..bytes.len()) else {
                return Err(io::Error::other("read() returned more than it was asked for"));
            };
            part.copy_from_slice(&bytes);
            Ok(bytes.len())
        })
    }
}

/// Tells a callback how far it is; only False and an exception end the work.
fn tell(progress: &Option<Py<PyAny>>, raised: &Raised, bytes: u64) -> ControlFlow<()> {
    let Some(progress) = progress else { return ControlFlow::Continue(()) };
    Python::attach(|py| match progress.call1(py, (bytes,)) {
        Ok(answer) if answer.extract::<bool>(py).is_ok_and(|goes_on| !goes_on) => ControlFlow::Break(()),
        Ok(_) => ControlFlow::Continue(()),
        Err(error) => {
            keep(raised, error);
            ControlFlow::Break(())
        }
    })
}

pub fn receive(
    py: Python<'_>,
    directory: &butterfs::Dir,
    stream: Py<PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<OsString>> {
    let raised = Raised::default();
    let received = py.detach(|| {
        let told = |progress_now: &butterfs::ReceiveProgress| tell(&progress, &raised, progress_now.bytes);
        directory.receive().on_progress(told).read_from(Input(&stream, &raised))
    });
    match (kept(&raised), received) {
        (Some(exception), _) => Err(exception),
        (None, Err(error)) => Err(raised_by_receive(error)),
        (None, Ok(received)) => Ok(received.subvolumes.into_iter().map(|subvolume| subvolume.name).collect()),
    }
}

/// The subvolumes to send, and the options.
pub struct Sending {
    pub snapshot: u64,
    pub parent: Option<u64>,
    pub version: u32,
    pub compressed: bool,
}

pub fn send(
    py: Python<'_>,
    filesystem: &butterfs::Filesystem,
    sending: Sending,
    stream: Py<PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let raised = Raised::default();
    let version = match sending.version {
        1 => StreamVersion::V1,
        2 => StreamVersion::V2,
        _ => return Err(PyValueError::new_err("the version is 1 or 2")),
    };
    let sent = py.detach(|| {
        let mut send = filesystem.send(SubvolumeId::new(sending.snapshot)).version(version);
        if let Some(parent) = sending.parent {
            send = send.parent(SubvolumeId::new(parent));
        }
        if sending.compressed {
            send = send.compressed();
        }
        let told = |now: &SendProgress| tell(&progress, &raised, now.bytes);
        send.on_progress(told).write_to(Output(&stream))
    });
    match (kept(&raised), sent) {
        (Some(exception), _) => Err(exception),
        (None, sent) => sent.map(|sent| sent.bytes).map_err(raised_by_send),
    }
}
