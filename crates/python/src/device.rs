//! Devices: paths, memory, windows, and Python objects that read and write bytes at offsets.

use crate::arguments::{BytesArgument, PathArgument};
use crate::detached::Detached;
use crate::error::{carried, raised};
use butterfs::BlockDevice;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;

/// Storage that holds a filesystem: Device.path, Device.create, Device.memory or Device.custom.
#[pyclass(frozen, module = "butterfs")]
pub struct Device(Detached<butterfs::Device>);

impl Device {
    fn of(device: butterfs::Device) -> Device {
        Device(Detached::new(device))
    }
}

#[pymethods]
impl Device {
    /// A file or block device; it is opened, and locked, when it is used.
    #[staticmethod]
    fn path(path: PathArgument) -> Device {
        Device::of(butterfs::Device::path(path.0))
    }

    /// A new, sparse file of `size` bytes.
    #[staticmethod]
    fn create(path: PathArgument, size: u64) -> PyResult<Device> {
        Ok(Device::of(butterfs::Device::create(path, size).map_err(raised)?))
    }

    /// `size` bytes of memory, all zero.
    #[staticmethod]
    fn memory(size: u64) -> Device {
        Device::of(butterfs::Device::memory(size))
    }

    /// An object with the methods size() and read(offset, length), and perhaps write(offset, data) and flush().
    #[staticmethod]
    fn custom(object: Py<PyAny>) -> PyResult<Device> {
        Python::attach(|py| {
            let bound = object.bind(py);
            let size = bound.call_method0("size")?.extract()?;
            let (can_write, can_flush) = (bound.hasattr("write")?, bound.hasattr("flush")?);
            Ok(Device::of(butterfs::Device::custom(PythonDevice { object, size, can_write, can_flush })))
        })
    }

    /// The bytes from `start` on, `size` of them: a partition of a disk image, for example.
    fn window(&self, start: u64, size: u64) -> PyResult<Device> {
        let end = start.checked_add(size).ok_or_else(|| PyValueError::new_err("the window is too long"))?;
        Ok(Device::of(butterfs::Device::clone(&self.0).window(start..end)))
    }
}

/// Devices as arguments: one or several, each a `Device` or a path.
pub fn devices(argument: &Bound<'_, PyAny>) -> PyResult<Vec<butterfs::Device>> {
    if let Ok(one) = device(argument) {
        return Ok(vec![one]);
    }
    argument.try_iter()?.map(|item| device(&item?)).collect()
}

fn device(argument: &Bound<'_, PyAny>) -> PyResult<butterfs::Device> {
    if let Ok(device) = argument.cast::<Device>() {
        return Ok(butterfs::Device::clone(&device.get().0));
    }
    let PathArgument(path) = argument.extract().map_err(|_| PyTypeError::new_err("a device is a Device or a path"))?;
    Ok(butterfs::Device::path(path))
}

#[derive(Debug)]
struct PythonDevice {
    object: Py<PyAny>,
    size: u64,
    can_write: bool,
    can_flush: bool,
}

impl BlockDevice for PythonDevice {
    /// The program has no function for it.
    fn supports_discard(&self) -> bool {
        false
    }

    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "outside of the device"));
        }
        Python::attach(|py| {
            let read = self.object.call_method1(py, "read", (offset, buf.len())).map_err(carried)?;
            let BytesArgument(bytes) = read.bind(py).extract().map_err(carried)?;
            if bytes.len() != buf.len() {
                let sentence = format!("read() returned {} of {} bytes", bytes.len(), buf.len());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, sentence));
            }
            buf.copy_from_slice(&bytes);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.can_write {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "outside of the device"));
        }
        Python::attach(|py| {
            let written = self.object.call_method1(py, "write", (offset, PyBytes::new(py, data)));
            written.map(drop).map_err(carried)
        })
    }

    fn flush(&self) -> io::Result<()> {
        if !self.can_flush {
            return Ok(());
        }
        Python::attach(|py| self.object.call_method0(py, "flush").map(drop).map_err(carried))
    }

    fn name(&self) -> String {
        "the program's device".to_owned()
    }

    fn is_read_only(&self) -> bool {
        !self.can_write
    }
}
