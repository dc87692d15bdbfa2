//! Starting to write out what the page cache has of a range, for which there is no safe function.
//!
//! Not here: waiting for it, and its errors. They stay with the file until it is synced.

#![allow(unsafe_code, reason = "the system call takes nothing but numbers")]

use std::os::fd::{AsFd, AsRawFd};

/// Starts to write out `len` bytes at `offset`, and waits for none of them.
pub fn begin(file: impl AsFd, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else { return };
    let fd = file.as_fd();
    // SAFETY: no memory is passed, and the borrowed descriptor is open.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
