//! Making, opening, closing; statistics; transactions; the checker.

use crate::device::{self, DeviceHandle};
use crate::error::{Failure, Outcome, code, free, object, path, store, text};
use butterfs::{Access, Builder, Check, DataCheck, Existing, Filesystem, Log, MissingDevices, Mkfs, Severity};
use butterfs::{DeviceId, DeviceSize, Repair, SubvolumeChoice, Transaction};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::ops::Deref;

/// butterfs_open: nothing may be changed.
pub const BUTTERFS_READ_ONLY: u32 = 1;
/// butterfs_open: do not replay the log of fsync; the devices are not written at all. Implies BUTTERFS_READ_ONLY.
pub const BUTTERFS_IGNORE_LOG: u32 = 2;
/// butterfs_open: devices may be missing, as far as the profiles survive that.
pub const BUTTERFS_ALLOW_MISSING: u32 = 4;
/// butterfs_mkfs: overwrite a filesystem that is recognised on a device.
pub const BUTTERFS_OVERWRITE: u32 = 1;
/// butterfs_check: read all data and compare it with its checksums.
pub const BUTTERFS_CHECK_DATA: u32 = 1;
/// butterfs_scrub: report damage, and write nothing.
pub const BUTTERFS_REPORT_ONLY: u32 = 1;

/// An open filesystem.
pub struct FilesystemHandle(Filesystem);

impl Deref for FilesystemHandle {
    type Target = Filesystem;

    fn deref(&self) -> &Filesystem {
        &self.0
    }
}

/// The space of a filesystem, in bytes.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct butterfs_usage {
    /// All devices, as far as the data profile can use them.
    pub total: u64,
    /// Used by data and metadata.
    pub used: u64,
    /// The least space that is available for file data.
    pub available: u64,
}

/// Called for each finding: whether it is an error (1) or a warning (0), a word that names its kind, and a sentence.
#[allow(non_camel_case_types)]
pub type butterfs_finding_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, is_error: c_int, id: *const c_char, sentence: *const c_char)>;

/// Does several operations on the filesystem that it gets; 0, or another number to take everything back.
#[allow(non_camel_case_types)]
pub type butterfs_work_fn = Option<unsafe extern "C" fn(fs: *const FilesystemHandle, user: *mut c_void) -> c_int>;

fn known(flags: u32, all: u32) -> Outcome<()> {
    match flags & !all {
        0 => Ok(()),
        unknown => Err(Failure::new(libc::EINVAL, format!("unknown flags {unknown:#x}"))),
    }
}

/// Makes a filesystem. `label` may be NULL. `flags`: BUTTERFS_OVERWRITE.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_mkfs(
    devices: *const *const DeviceHandle,
    count: usize,
    label: *const c_char,
    flags: u32,
) -> c_int {
    code(|| {
        known(flags, BUTTERFS_OVERWRITE)?;
        let mut mkfs = Mkfs::new().devices(device::all(devices, count)?);
        if let Some(label) = text(label) {
            mkfs = mkfs.label(label.to_bytes());
        }
        if flags & BUTTERFS_OVERWRITE != 0 {
            mkfs = mkfs.existing(Existing::Overwrite);
        }
        mkfs.run()?;
        Ok(())
    })
}

/// Opens the filesystem on these devices. `subvolume`: the path of the subvolume that is the root; NULL for the default
/// one. `flags`: BUTTERFS_READ_ONLY, BUTTERFS_IGNORE_LOG, BUTTERFS_ALLOW_MISSING. Close it with butterfs_close.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_open(
    devices: *const *const DeviceHandle,
    count: usize,
    subvolume: *const c_char,
    flags: u32,
    out: *mut *mut FilesystemHandle,
) -> c_int {
    code(|| {
        known(flags, BUTTERFS_READ_ONLY | BUTTERFS_IGNORE_LOG | BUTTERFS_ALLOW_MISSING)?;
        let mut builder = Builder::new().devices(device::all(devices, count)?);
        if !subvolume.is_null() {
            builder = builder.subvolume(SubvolumeChoice::Path(path(subvolume)?.to_owned()));
        }
        if flags & BUTTERFS_READ_ONLY != 0 {
            builder = builder.access(Access::ReadOnly);
        }
        if flags & BUTTERFS_IGNORE_LOG != 0 {
            builder = builder.log(Log::Ignore);
        }
        if flags & BUTTERFS_ALLOW_MISSING != 0 {
            builder = builder.missing_devices(MissingDevices::Allow);
        }
        let opened = builder.open()?;
        store(out, Box::into_raw(Box::new(FilesystemHandle(opened))))
    })
}

/// Makes everything durable that was done before the call.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_sync(fs: *const FilesystemHandle) -> c_int {
    code(|| Ok(object(fs)?.sync()?))
}

/// Makes everything durable, gives the devices back and frees the filesystem, also if it returns an error. Files and
/// directories that are still open fail with EBADF from then on; close them too. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_close(fs: *mut FilesystemHandle) -> c_int {
    if fs.is_null() {
        return 0;
    }
    let closed = code(|| Ok(object(fs)?.0.clone().close()?));
    free(fs);
    closed
}

/// The space of the filesystem.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_get_usage(fs: *const FilesystemHandle, out: *mut butterfs_usage) -> c_int {
    code(|| {
        let usage = object(fs)?.usage();
        store(out, butterfs_usage { total: usage.total, used: usage.used, available: usage.available })
    })
}

/// Runs `work`; everything that it changes is durable when this returns 0, and nothing of it is there otherwise. If
/// `work` returns a negative errno, so does this function. Other threads that use the filesystem wait meanwhile; `work`
/// must not wait for them.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_transaction(
    fs: *const FilesystemHandle,
    work: butterfs_work_fn,
    user: *mut c_void,
) -> c_int {
    code(|| {
        let work = work.ok_or_else(|| Failure::new(libc::EINVAL, "a transaction needs a function"))?;
        object(fs)?.transaction(|_: &Transaction<'_>| {
            // SAFETY: the caller gave the function for this pointer, and `fs` is the filesystem that was given.
            match unsafe { work(fs, user) } {
                0 => Ok(()),
                failed if failed < 0 => Err(Failure::new(failed.saturating_neg(), "the transaction was given up")),
                _ => Err(Failure::new(libc::ECANCELED, "the transaction was given up")),
            }
        })
    })
}

/// Checks the filesystem on these devices, which is not open. Returns 0 if it could be checked; `errors` gets the
/// number of errors. `found` may be NULL. `flags`: BUTTERFS_CHECK_DATA.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_check(
    devices: *const *const DeviceHandle,
    count: usize,
    flags: u32,
    found: butterfs_finding_fn,
    user: *mut c_void,
    errors: *mut u64,
) -> c_int {
    code(|| {
        known(flags, BUTTERFS_CHECK_DATA)?;
        let data = if flags & BUTTERFS_CHECK_DATA != 0 { DataCheck::Verify } else { DataCheck::Skip };
        let check = device::all(devices, count)?.into_iter().fold(Check::new(), Check::device);
        let report = check.data(data).run()?;
        for finding in report.findings() {
            let Some(found) = found else { break };
            let id = CString::new(finding.id()).unwrap_or_default();
            let sentence = CString::new(finding.to_string()).unwrap_or_default();
            let is_error = c_int::from(finding.severity() == Severity::Error);
            // SAFETY: the caller gave the function for this pointer; the strings live during the call.
            unsafe { found(user, is_error, id.as_ptr(), sentence.as_ptr()) };
        }
        store(errors, report.errors())
    })
}

/// Changes the label; durable when this returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_set_label(fs: *const FilesystemHandle, label: *const c_char) -> c_int {
    code(|| {
        let label = text(label).ok_or_else(|| Failure::new(libc::EINVAL, "the label is NULL"))?;
        Ok(object(fs)?.set_label(label.to_bytes())?)
    })
}

/// Resizes the device with this number (1 if there is only one) to so many bytes; UINT64_MAX: all that it has. Data
/// behind the new end moves first. Durable when this returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_resize_device(fs: *const FilesystemHandle, id: u64, bytes: u64) -> c_int {
    let size = if bytes == u64::MAX { DeviceSize::Max } else { DeviceSize::Bytes(bytes) };
    code(|| Ok(object(fs)?.resize_device(DeviceId::new(id), size).run()?))
}

/// Tells the devices which space is free, in runs of at least `least` bytes, so that image files shrink. `discarded`
/// gets the bytes that the devices discarded.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_discard_free_space(fs: *const FilesystemHandle, least: u64, discarded: *mut u64) -> c_int {
    code(|| store(discarded, object(fs)?.discard_free_space(least)?))
}

/// Verifies every block in use of an open filesystem, and repairs bad copies. `found` is called at the end for each
/// damaged place, with 1 if it cannot be repaired, "damage", and a sentence; it may be NULL. `lost` gets the number of
/// places that cannot be repaired. `flags`: BUTTERFS_REPORT_ONLY.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_scrub(
    fs: *const FilesystemHandle,
    flags: u32,
    found: butterfs_finding_fn,
    user: *mut c_void,
    lost: *mut u64,
) -> c_int {
    const KIND: &CStr = c"damage";
    code(|| {
        known(flags, BUTTERFS_REPORT_ONLY)?;
        let repair = if flags & BUTTERFS_REPORT_ONLY != 0 { Repair::ReportOnly } else { Repair::Rewrite };
        let report = object(fs)?.scrub().repair(repair).run()?;
        for damage in report.damage() {
            let Some(found) = found else { break };
            let sentence = CString::new(damage.to_string()).unwrap_or_default();
            // SAFETY: the caller gave the function for this pointer; the strings live during the call.
            unsafe { found(user, c_int::from(!damage.is_corrected()), KIND.as_ptr(), sentence.as_ptr()) };
        }
        store(lost, report.devices().iter().map(|device| device.uncorrectable).sum())
    })
}
