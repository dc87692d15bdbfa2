//! Listing a directory.

use crate::error::{Failure, code, count, free, object, path, store};
use crate::filesystem::FilesystemHandle;
use crate::paths::type_bits;
use butterfs::ReadDir;
use libc::{c_char, c_int, ssize_t};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// A directory that is being listed.
pub struct DirHandle(Mutex<ReadDir>);

/// An entry of a directory.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct butterfs_dirent {
    /// The subvolume and the number of its inode.
    pub subvolume: u64,
    /// The inode number.
    pub ino: u64,
    /// The type, as in struct stat's mode.
    pub mode: u32,
    /// Bytes of the name.
    pub name_len: u32,
    /// The name, which ends with NUL.
    pub name: [c_char; 256],
}

/// Opens a directory for listing. Close it with butterfs_dir_close.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_dir_open(fs: *const FilesystemHandle, at: *const c_char, out: *mut *mut DirHandle) -> c_int {
    code(|| {
        let entries = object(fs)?.root().read_dir(path(at)?)?;
        store(out, Box::into_raw(Box::new(DirHandle(Mutex::new(entries)))))
    })
}

/// The next entry, without "." and "..": returns 1, 0 at the end, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_dir_next(dir: *const DirHandle, out: *mut butterfs_dirent) -> c_int {
    let next: ssize_t = count(|| {
        let mut entries = object(dir)?.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(entry) = entries.next().transpose()? else { return Ok(0) };
        let bytes = entry.file_name().as_bytes();
        let mut name = [0; 256];
        if bytes.len() >= name.len() {
            return Err(Failure::new(libc::ENAMETOOLONG, "a name has more than 255 bytes"));
        }
        name.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as c_char);
        let (id, mode) = (entry.id(), type_bits(entry.file_type()));
        let name_len = bytes.len() as u32;
        store(out, butterfs_dirent { subvolume: id.subvolume.get(), ino: id.number, mode, name_len, name })?;
        Ok(1)
    });
    next as c_int
}

/// Closes a directory and frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_dir_close(dir: *mut DirHandle) {
    free(dir);
}
