//! Making, opening and closing; subvolumes; transactions.

use crate::arguments::PathArgument;
use crate::detached::Detached;
use crate::device::devices;
use crate::directory::Dir;
use crate::error::raised;
use crate::streams::{self, Sending};
use crate::values::{Subvolume, Usage};
use butterfs::{
    Access, Builder, Compression, DeviceId, DeviceSize, ErrorKind, Existing, Log, MissingDevices, Mkfs, Owner, Repair,
    SubvolumeChoice, SubvolumeId,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::{PoisonError, RwLock};

/// An open filesystem. Use it in a `with` block, or call close(), which reports errors.
#[pyclass(frozen, module = "butterfs")]
pub struct Filesystem(Detached<RwLock<Option<butterfs::Filesystem>>>);

/// Makes a filesystem on one or several devices and returns its UUID.
#[pyfunction]
#[pyo3(signature = (devices_or_paths, *, label=None, overwrite=false))]
pub fn mkfs(
    py: Python<'_>,
    devices_or_paths: &Bound<'_, PyAny>,
    label: Option<OsString>,
    overwrite: bool,
) -> PyResult<String> {
    let mut mkfs = Mkfs::new().devices(devices(devices_or_paths)?);
    if let Some(label) = label {
        mkfs = mkfs.label(label.as_encoded_bytes());
    }
    if overwrite {
        mkfs = mkfs.existing(Existing::Overwrite);
    }
    Ok(py.detach(|| mkfs.run()).map_err(raised)?.uuid.to_string())
}

fn compression(text: &str) -> PyResult<Compression> {
    let (name, level) = text.split_once(':').unwrap_or((text, "0"));
    let level: i32 = level.parse().map_err(|_| PyValueError::new_err("the level of compression is a number"))?;
    match name {
        "none" => Ok(Compression::NONE),
        "zstd" => Ok(Compression::zstd(level)),
        "zlib" => Ok(Compression::zlib(level)),
        "lzo" => Ok(Compression::lzo()),
        _ => Err(PyValueError::new_err("compression is 'none', 'zstd', 'zlib' or 'lzo', perhaps with ':LEVEL'")),
    }
}

/// Opens the filesystem on one or several devices. `subvolume` is the path of the one that becomes the root.
/// `ignore_log` changes no byte and shows nothing that only a log has; `allow_missing` opens a filesystem that has lost
/// devices. New files belong to `uid` and `gid` and are compressed by `compression`: "none", "zstd", "zlib" or "lzo",
/// perhaps with ":LEVEL".
#[pyfunction]
#[pyo3(signature = (devices_or_paths, *, read_only=false, subvolume=None, ignore_log=false, allow_missing=false,
    compression="none", uid=0, gid=0))]
#[allow(clippy::too_many_arguments)] // keywords, each with a default
pub fn open(
    py: Python<'_>,
    devices_or_paths: &Bound<'_, PyAny>,
    read_only: bool,
    subvolume: Option<PathArgument>,
    ignore_log: bool,
    allow_missing: bool,
    compression: &str,
    uid: u32,
    gid: u32,
) -> PyResult<Filesystem> {
    let mut builder = Builder::new().devices(devices(devices_or_paths)?).owner(Owner::new(uid, gid));
    builder = builder.compression(self::compression(compression)?);
    if read_only {
        builder = builder.access(Access::ReadOnly);
    }
    if let Some(PathArgument(path)) = subvolume {
        builder = builder.subvolume(SubvolumeChoice::Path(path));
    }
    if ignore_log {
        builder = builder.log(Log::Ignore);
    }
    if allow_missing {
        builder = builder.missing_devices(MissingDevices::Allow);
    }
    let filesystem = py.detach(|| builder.open()).map_err(raised)?;
    Ok(Filesystem(Detached::new(RwLock::new(Some(filesystem)))))
}

impl Filesystem {
    /// The filesystem, if it is not closed. No lock is held afterwards: a callback may close it.
    fn opened(&self) -> PyResult<butterfs::Filesystem> {
        let filesystem = self.0.read().unwrap_or_else(PoisonError::into_inner);
        filesystem.clone().ok_or_else(|| PyValueError::new_err("the filesystem is closed"))
    }

    fn work<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&butterfs::Filesystem) -> butterfs::Result<R> + Send,
    ) -> PyResult<R> {
        let filesystem = self.opened()?;
        py.detach(move || work(&filesystem)).map_err(raised)
    }
}

#[pymethods]
impl Filesystem {
    /// The root directory of the subvolume that was opened.
    #[getter]
    fn root(&self) -> PyResult<Dir> {
        Ok(Dir::of(self.opened()?.root()))
    }

    /// The root directory of any subvolume.
    fn subvolume_root(&self, py: Python<'_>, id: u64) -> PyResult<Dir> {
        self.work(py, |filesystem| Ok(Dir::of(filesystem.subvolume_root(SubvolumeId::new(id))?)))
    }

    /// The UUID.
    #[getter]
    fn uuid(&self) -> PyResult<String> {
        Ok(self.opened()?.info().uuid.to_string())
    }

    /// The label.
    #[getter]
    fn label(&self) -> PyResult<OsString> {
        Ok(self.opened()?.info().label)
    }

    /// Sentences about the way it was opened that a user should see.
    #[getter]
    fn notes(&self) -> PyResult<Vec<String>> {
        Ok(self.opened()?.notes().to_vec())
    }

    /// The space of the filesystem.
    fn usage(&self, py: Python<'_>) -> PyResult<Usage> {
        self.work(py, |filesystem| Ok(filesystem.usage().into()))
    }

    /// Changes the label; durable when this returns.
    fn set_label(&self, py: Python<'_>, label: OsString) -> PyResult<()> {
        self.work(py, |filesystem| filesystem.set_label(label.as_encoded_bytes()))
    }

    /// Resizes a device, by its number, to so many bytes, or to all that it has. Data behind the new end moves first.
    #[pyo3(signature = (size=None, *, device=1))]
    fn resize(&self, py: Python<'_>, size: Option<u64>, device: u64) -> PyResult<()> {
        let size = size.map_or(DeviceSize::Max, DeviceSize::Bytes);
        self.work(py, |filesystem| filesystem.resize_device(DeviceId::new(device), size).run())
    }

    /// Tells the devices which space is free, in runs of at least `least` bytes, so that image files shrink. Returns
    /// the bytes that they discarded.
    #[pyo3(signature = (least=0))]
    fn discard_free_space(&self, py: Python<'_>, least: u64) -> PyResult<u64> {
        self.work(py, |filesystem| filesystem.discard_free_space(least))
    }

    /// Verifies every block in use, and repairs bad copies unless `repair` is False. Returns a sentence for each
    /// damaged place.
    #[pyo3(signature = (*, repair=true))]
    fn scrub(&self, py: Python<'_>, repair: bool) -> PyResult<Vec<String>> {
        let repair = if repair { Repair::Rewrite } else { Repair::ReportOnly };
        let report = self.work(py, |filesystem| filesystem.scrub().repair(repair).run())?;
        Ok(report.damage().iter().map(ToString::to_string).collect())
    }

    /// All subvolumes by id, the top level included.
    fn subvolumes(&self, py: Python<'_>) -> PyResult<Vec<Subvolume>> {
        self.work(py, |filesystem| Ok(filesystem.subvolumes()?.into_iter().map(Subvolume::from).collect()))
    }

    /// Makes a subvolume read-only or writable.
    fn set_read_only(&self, py: Python<'_>, id: u64, read_only: bool) -> PyResult<()> {
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        self.work(py, |filesystem| filesystem.set_subvolume_access(SubvolumeId::new(id), access))
    }

    /// Chooses the subvolume that is opened and mounted if none is named.
    fn set_default_subvolume(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.work(py, |filesystem| filesystem.set_default_subvolume(SubvolumeId::new(id)))
    }

    /// Sends a read-only snapshot to an object with write(data): as a whole, or as the difference from `parent`.
    /// Returns the bytes of the stream. `progress` is called with the bytes so far; if it returns False, or raises, the
    /// send ends.
    #[pyo3(signature = (snapshot, stream, *, parent=None, version=1, compressed=false, progress=None))]
    #[allow(clippy::too_many_arguments)] // keywords, each with a default
    fn send(
        &self,
        py: Python<'_>,
        snapshot: u64,
        stream: Py<PyAny>,
        parent: Option<u64>,
        version: u32,
        compressed: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let sending = Sending { snapshot, parent, version, compressed };
        streams::send(py, &self.opened()?, sending, stream, progress)
    }

    /// Calls `work` with this filesystem and returns its result. All changes that it makes are durable then; if it
    /// raises, none of them was made. Other threads that use the filesystem wait meanwhile, and `work` must not wait
    /// for them.
    fn transaction(this: Py<Filesystem>, py: Python<'_>, work: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let filesystem = this.get().opened()?;
        py.detach(|| {
            let done = filesystem
                .transaction(|_| Python::attach(|py| work.call1(py, (this.clone_ref(py),)).map_err(Failed::Raised)));
            done.map_err(|failed| match failed {
                Failed::Raised(error) => error,
                Failed::Filesystem(error) => raised(error),
            })
        })
    }

    /// Makes everything durable that was done before.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |filesystem| filesystem.sync())
    }

    /// Makes everything durable and closes it, with all files and directories that are still open. Within a transaction
    /// it is refused.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(filesystem) = self.opened() else { return Ok(()) };
        py.detach(|| {
            let closed = filesystem.close();
            if !closed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
                self.0.write().unwrap_or_else(PoisonError::into_inner).take();
            }
            closed
        })
        .map_err(raised)
    }

    fn __enter__(this: Py<Filesystem>) -> Py<Filesystem> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

/// Why a transaction was taken back.
enum Failed {
    Raised(PyErr),
    Filesystem(butterfs::Error),
}

impl From<butterfs::Error> for Failed {
    fn from(error: butterfs::Error) -> Failed {
        Failed::Filesystem(error)
    }
}
