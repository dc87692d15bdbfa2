//! Sending and receiving.

use crate::callbacks::{StreamEnd, butterfs_read_fn, butterfs_write_fn};
use crate::error::{Failure, code, object, path};
use crate::filesystem::FilesystemHandle;
use butterfs::{SendErrorKind, SubvolumeId};
use libc::{c_char, c_int, c_void};
use std::error::Error;
use std::io;

/// Sends a read-only snapshot, or with a `parent` that is not 0 its difference from that snapshot. `write` is called
/// from another thread, which has ended when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_send(
    fs: *const FilesystemHandle,
    snapshot: u64,
    parent: u64,
    write: butterfs_write_fn,
    user: *mut c_void,
) -> c_int {
    code(|| {
        let mut send = object(fs)?.send(SubvolumeId::new(snapshot));
        if parent != 0 {
            send = send.parent(SubvolumeId::new(parent));
        }
        send.write_to(&mut StreamEnd { function: write, user }).map(drop).map_err(|error| {
            let output = error.source().and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
            let errno = match error.kind() {
                SendErrorKind::Output => output.unwrap_or(libc::EIO),
                _ => error.filesystem().map_or(libc::EIO, |cause| cause.errno().raw()),
            };
            Failure::new(errno, error.to_string())
        })
    })
}

/// Receives streams as subvolumes in the directory `at`, until `read` returns 0. Everything is durable when this
/// returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_receive(
    fs: *const FilesystemHandle,
    at: *const c_char,
    read: butterfs_read_fn,
    user: *mut c_void,
) -> c_int {
    code(|| {
        let directory = object(fs)?.root().open_dir(path(at)?)?;
        let received = directory.receive().read_from(StreamEnd { function: read, user });
        received.map(drop).map_err(|error| Failure::new(error.errno().raw(), error.to_string()))
    })
}
