//! Functions of the caller: a device of their own, and the two ends of a stream.

use butterfs::BlockDevice;
use libc::{c_int, c_void, ssize_t};
use std::fmt;
use std::io::{self, Read, Write};

/// Storage of the caller's own. The functions are called from many threads at once. They return 0 or a negative errno.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct butterfs_device_ops {
    /// Passed to every function.
    pub user: *mut c_void,
    /// Bytes of the device.
    pub len: u64,
    /// Fills the buffer with the bytes at an offset. The range always lies inside of the device.
    pub read: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, data: *mut u8, len: usize) -> c_int>,
    /// Writes the bytes at an offset. NULL: the device is read-only.
    pub write: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, data: *const u8, len: usize) -> c_int>,
    /// Makes everything durable that was written before. NULL: nothing has to be done for that.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    /// Called once, when the device is not used any more. May be NULL.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// Takes bytes of a stream; returns 0 or a negative errno, which ends the stream.
#[allow(non_camel_case_types)]
pub type butterfs_write_fn = Option<unsafe extern "C" fn(user: *mut c_void, data: *const u8, len: usize) -> c_int>;

/// Gives bytes of a stream: how many, 0 at its end, or a negative errno.
#[allow(non_camel_case_types)]
pub type butterfs_read_fn = Option<unsafe extern "C" fn(user: *mut c_void, data: *mut u8, len: usize) -> ssize_t>;

fn result(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) }
}

pub struct CallbackDevice(pub butterfs_device_ops);

// SAFETY: the header says that the functions are called from many threads at once; `user` is passed on and never
// followed.
unsafe impl Send for CallbackDevice {}
// SAFETY: as above.
unsafe impl Sync for CallbackDevice {}

impl Drop for CallbackDevice {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the caller gave the function for this pointer, and it is called once.
            unsafe { release(self.0.user) };
        }
    }
}

impl fmt::Debug for CallbackDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackDevice").field("len", &self.0.len).finish_non_exhaustive()
    }
}

impl CallbackDevice {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.0.len => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "outside of the device")),
        }
    }
}

impl BlockDevice for CallbackDevice {
    /// The program has no function for it.
    fn supports_discard(&self) -> bool {
        false
    }

    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        let read = self.0.read.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the caller gave the function for this pointer; the buffer is ours and as long as we say.
        result(unsafe { read(self.0.user, offset, buf.as_mut_ptr(), buf.len()) })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        let write = self.0.write.ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        // SAFETY: as for reading.
        result(unsafe { write(self.0.user, offset, data.as_ptr(), data.len()) })
    }

    fn flush(&self) -> io::Result<()> {
        // SAFETY: the caller gave the function for this pointer.
        self.0.flush.map_or(Ok(()), |flush| result(unsafe { flush(self.0.user) }))
    }

    fn name(&self) -> String {
        "the program's device".to_owned()
    }

    fn is_read_only(&self) -> bool {
        self.0.write.is_none()
    }
}

/// The end of a stream that the caller reads or writes.
pub struct StreamEnd<F> {
    pub function: F,
    pub user: *mut c_void,
}

// SAFETY: a stream is written from one other thread, which has ended when the call returns; `user` is passed on and
// never followed. The header says so.
unsafe impl<F> Send for StreamEnd<F> {}

impl Write for StreamEnd<butterfs_write_fn> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let write = self.function.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the caller gave the function for this pointer; the bytes are ours during the call.
        result(unsafe { write(self.user, data.as_ptr(), data.len()) }).map(|()| data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for StreamEnd<butterfs_read_fn> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.function.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the caller gave the function for this pointer; the buffer is ours and as long as we say.
        let got = unsafe { read(self.user, buf.as_mut_ptr(), buf.len()) };
        match usize::try_from(got) {
            Ok(count) if count <= buf.len() => Ok(count),
            Ok(_) => Err(io::Error::other("the read function returned more than it was asked for")),
            Err(_) => Err(io::Error::from_raw_os_error(i32::try_from(got.saturating_neg()).unwrap_or(libc::EIO))),
        }
    }
}
