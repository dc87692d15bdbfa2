//! Errors at the border: a negative errno as the result, and a sentence that the thread keeps.

use butterfs::Error;
use libc::{c_char, c_int, ssize_t};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A failure on its way to the caller.
pub struct Failure {
    errno: c_int,
    sentence: String,
}

/// A result on its way to the caller.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, sentence: impl Into<String>) -> Failure {
        Failure { errno, sentence: sentence.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.errno().raw(), error.to_string())
    }
}

fn note(failure: Failure) -> c_int {
    // A sentence never contains NUL: control characters of names are escaped.
    let text = CString::new(failure.sentence).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
    // What is no errno must not look like success.
    if failure.errno > 0 { -failure.errno } else { -libc::EIO }
}

/// Runs `work`, which may panic.
fn caught<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
        Err(Failure::new(libc::ENOTRECOVERABLE, format!("a bug in butterfs: {text}")))
    })
}

/// 0, or a negative errno.
pub fn code(work: impl FnOnce() -> Outcome<()>) -> c_int {
    caught(work).map_or_else(note, |()| 0)
}

/// A count, or a negative errno.
pub fn count(work: impl FnOnce() -> Outcome<usize>) -> ssize_t {
    caught(work).map_or_else(|failure| note(failure) as ssize_t, |count| count as ssize_t)
}

/// An object for the caller, or NULL.
pub fn pointer<T>(work: impl FnOnce() -> Outcome<T>) -> *mut T {
    match caught(work) {
        Ok(object) => Box::into_raw(Box::new(object)),
        Err(failure) => {
            note(failure);
            std::ptr::null_mut()
        }
    }
}

/// Frees an object; NULL is allowed.
pub fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: by the header's rules the pointer came from `pointer` and was not freed.
        let object = unsafe { Box::from_raw(object) };
        let _ = caught(|| {
            drop(object);
            Ok(())
        });
    }
}

/// An object of the caller.
pub fn object<'a, T>(object: *const T) -> Outcome<&'a T> {
    // SAFETY: by the header's rules the pointer came from this library and was not freed.
    unsafe { object.as_ref() }.ok_or_else(|| Failure::new(libc::EINVAL, "an object is NULL"))
}

/// Stores a result for the caller.
pub fn store<T>(out: *mut T, value: T) -> Outcome<()> {
    if out.is_null() {
        return Err(Failure::new(libc::EINVAL, "an output pointer is NULL"));
    }
    // SAFETY: by the header's rules an output pointer can be written. The old value, if any, needs no drop.
    unsafe { out.write(value) };
    Ok(())
}

/// A string of the caller; none for NULL.
pub fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by the header's rules a string ends with NUL.
    Some(unsafe { CStr::from_ptr(text) })
}

/// A path or name of the caller.
pub fn path<'a>(path: *const c_char) -> Outcome<&'a Path> {
    let path = text(path).ok_or_else(|| Failure::new(libc::EINVAL, "a string is NULL"))?;
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Bytes of the caller.
pub fn bytes<'a>(data: *const u8, len: usize) -> Outcome<&'a [u8]> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::new(libc::EINVAL, "a buffer is NULL")),
        // SAFETY: by the header's rules the buffer has `len` bytes that nobody writes during the call.
        _ => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// A buffer of the caller, to be filled.
pub fn buffer<'a>(data: *mut u8, len: usize) -> Outcome<&'a mut [u8]> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Failure::new(libc::EINVAL, "a buffer is NULL")),
        // SAFETY: by the header's rules the buffer has `len` bytes that nobody else uses during the call.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(data, len) }),
    }
}

/// Puts bytes into a buffer of the caller and returns how many there are, as `getxattr(2)` does: with a length of 0 it
/// only returns the count, and a buffer that is too small is `-ERANGE`.
pub fn fill(value: &[u8], data: *mut u8, len: usize) -> Outcome<usize> {
    if len == 0 {
        return Ok(value.len());
    }
    let Some(part) = buffer(data, len)?.get_mut(..value.len()) else {
        return Err(Failure::new(libc::ERANGE, format!("the buffer has {len} bytes, {} are needed", value.len())));
    };
    part.copy_from_slice(value);
    Ok(value.len())
}

/// Describes the last error of the calling thread in one sentence; empty if there was none. Valid until the thread's
/// next call into the library.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
