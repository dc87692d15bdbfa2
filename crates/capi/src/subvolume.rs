//! Subvolumes.

use crate::error::{Failure, code, object, path, store};
use crate::filesystem::{BUTTERFS_READ_ONLY, FilesystemHandle};
use butterfs::{Access, SubvolumeId};
use libc::{c_char, c_int};

/// Makes an empty subvolume; `id` gets its id.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_subvolume_create(fs: *const FilesystemHandle, at: *const c_char, id: *mut u64) -> c_int {
    code(|| store(id, object(fs)?.root().create_subvolume(path(at)?)?.get()))
}

/// Makes a snapshot at `at` of the subvolume at `source`; it is durable when this returns. `flags`: BUTTERFS_READ_ONLY.
/// `id` gets its id.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_snapshot(
    fs: *const FilesystemHandle,
    source: *const c_char,
    at: *const c_char,
    flags: u32,
    id: *mut u64,
) -> c_int {
    code(|| {
        let access = match flags {
            0 => Access::ReadWrite,
            BUTTERFS_READ_ONLY => Access::ReadOnly,
            _ => return Err(Failure::new(libc::EINVAL, format!("unknown flags {flags:#x}"))),
        };
        store(id, object(fs)?.root().snapshot(path(source)?, path(at)?, access)?.get())
    })
}

/// Deletes a subvolume with everything in it.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_subvolume_delete(fs: *const FilesystemHandle, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().delete_subvolume(path(at)?)?))
}

/// The id of the subvolume whose root `at` is.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_subvolume_id(fs: *const FilesystemHandle, at: *const c_char, id: *mut u64) -> c_int {
    code(|| store(id, object(fs)?.root().subvolume_at(path(at)?)?.get()))
}

/// Chooses the subvolume that is opened and mounted if none is named.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_set_default_subvolume(fs: *const FilesystemHandle, id: u64) -> c_int {
    code(|| Ok(object(fs)?.set_default_subvolume(SubvolumeId::new(id))?))
}
