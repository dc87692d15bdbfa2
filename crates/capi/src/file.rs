//! Files.

use crate::error::{Failure, buffer, bytes, code, count, free, object, path, store};
use crate::filesystem::FilesystemHandle;
use crate::paths::{butterfs_stat, stat_of};
use butterfs::{Create, File, Mode, OpenOptions};
use libc::{c_char, c_int, ssize_t};

/// An open file.
pub struct FileHandle(File);

/// Opens a file. `flags` as for open(2): O_RDONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND. `mode`:
/// permissions of a file that is made. Close it with butterfs_file_close.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_open(
    fs: *const FilesystemHandle,
    at: *const c_char,
    flags: c_int,
    mode: u32,
    out: *mut *mut FileHandle,
) -> c_int {
    code(|| {
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | libc::O_CLOEXEC;
        let mut options = match flags & libc::O_ACCMODE {
            _ if flags & !known != 0 => {
                return Err(Failure::new(libc::EINVAL, format!("unknown flags {:#x}", flags & !known)));
            }
            libc::O_RDONLY => OpenOptions::read_only(),
            libc::O_RDWR => OpenOptions::read_write(),
            _ => return Err(Failure::new(libc::EINVAL, "a file is opened with O_RDONLY or O_RDWR")),
        };
        options = match (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0) {
            (true, true) => options.create(Create::New),
            (true, false) => options.create(Create::IfMissing),
            _ => options,
        };
        if flags & libc::O_TRUNC != 0 {
            options = options.truncate();
        }
        if flags & libc::O_APPEND != 0 {
            options = options.append();
        }
        let file = object(fs)?.root().open_with(path(at)?, &options.mode(Mode::new(mode)))?;
        // Appending keeps the content; opening for both is truncating first.
        if flags & libc::O_TRUNC != 0 && flags & libc::O_APPEND != 0 {
            file.set_len(0)?;
        }
        store(out, Box::into_raw(Box::new(FileHandle(file))))
    })
}

/// Reads at an offset; returns how many bytes, fewer than `len` only at the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_read(file: *const FileHandle, data: *mut u8, len: usize, offset: u64) -> ssize_t {
    count(|| Ok(object(file)?.0.read_at(buffer(data, len)?, offset)?))
}

/// Writes all bytes at an offset, or at the end if the file was opened with O_APPEND; returns how many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_write(file: *const FileHandle, data: *const u8, len: usize, offset: u64) -> ssize_t {
    count(|| Ok(object(file)?.0.write_at(bytes(data, len)?, offset)?))
}

/// Sets the size.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_truncate(file: *const FileHandle, len: u64) -> c_int {
    code(|| Ok(object(file)?.0.set_len(len)?))
}

/// Attributes.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_stat(file: *const FileHandle, out: *mut butterfs_stat) -> c_int {
    code(|| store(out, stat_of(&object(file)?.0.metadata()?)))
}

/// Makes the file durable: content, attributes, names.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_sync(file: *const FileHandle) -> c_int {
    code(|| Ok(object(file)?.0.sync_all()?))
}

/// Closes a file and frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_file_close(file: *mut FileHandle) {
    free(file);
}
