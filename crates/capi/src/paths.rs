//! Operations by path.

use crate::error::{Failure, code, count, fill, object, path, store};
use crate::filesystem::FilesystemHandle;
use butterfs::{Follow, Metadata, Mode, Node, Owner, Rename, Times, Timestamp};
use libc::{c_char, c_int, ssize_t};
use std::os::unix::ffi::OsStrExt;

/// butterfs_stat, butterfs_chown and others: a symbolic link at the end of the path stands for itself.
pub const BUTTERFS_NOFOLLOW: u32 = 1;
/// butterfs_rename: fail with -EEXIST if the new name exists.
pub const BUTTERFS_NOREPLACE: u32 = 1;
/// butterfs_rename: both names exist, and change places.
pub const BUTTERFS_EXCHANGE: u32 = 2;

/// Seconds since 1970 and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct butterfs_time {
    /// Negative before 1970.
    pub sec: i64,
    /// Below 1000000000.
    pub nsec: u32,
}

/// Attributes of an inode.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct butterfs_stat {
    /// The subvolume's id. Inode numbers are unique within a subvolume only.
    pub subvolume: u64,
    /// The inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of the disk that the content takes, before compression.
    pub allocated: u64,
    /// Type and permissions, as in struct stat.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The last access.
    pub atime: butterfs_time,
    /// The last change of the content.
    pub mtime: butterfs_time,
    /// The last change of the inode.
    pub ctime: butterfs_time,
    /// The time when it was made.
    pub btime: butterfs_time,
}

/// The bits of struct stat's mode for a type.
pub fn type_bits(kind: butterfs::FileType) -> u32 {
    use butterfs::FileType;
    match kind {
        FileType::File => libc::S_IFREG,
        FileType::Directory => libc::S_IFDIR,
        FileType::Symlink => libc::S_IFLNK,
        FileType::BlockDevice => libc::S_IFBLK,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::Fifo => libc::S_IFIFO,
        FileType::Socket => libc::S_IFSOCK,
        _ => 0,
    }
}

pub fn stat_of(metadata: &Metadata) -> butterfs_stat {
    let time = |time: Timestamp| butterfs_time { sec: time.secs(), nsec: time.nanos() };
    let owner = metadata.owner();
    butterfs_stat {
        subvolume: metadata.id().subvolume.get(),
        ino: metadata.id().number,
        size: metadata.len(),
        allocated: metadata.allocated_bytes(),
        mode: type_bits(metadata.file_type()) | metadata.mode().bits(),
        nlink: metadata.links(),
        uid: owner.uid,
        gid: owner.gid,
        atime: time(metadata.accessed()),
        mtime: time(metadata.modified()),
        ctime: time(metadata.changed()),
        btime: time(metadata.created()),
    }
}

fn node(fs: *const FilesystemHandle, at: *const c_char, flags: u32) -> Result<Node, Failure> {
    let follow = match flags {
        0 => Follow::Links,
        BUTTERFS_NOFOLLOW => Follow::Nothing,
        _ => return Err(Failure::new(libc::EINVAL, format!("unknown flags {flags:#x}"))),
    };
    Ok(object(fs)?.root().node(path(at)?, follow)?)
}

/// Attributes. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_get_stat(
    fs: *const FilesystemHandle,
    at: *const c_char,
    flags: u32,
    out: *mut butterfs_stat,
) -> c_int {
    code(|| store(out, stat_of(&node(fs, at, flags)?.metadata()?)))
}

/// Makes a directory.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_mkdir(fs: *const FilesystemHandle, at: *const c_char, mode: u32) -> c_int {
    code(|| Ok(object(fs)?.root().create_dir_with(path(at)?, Mode::new(mode))?))
}

/// Makes a symbolic link at `at` that leads to `target`.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_symlink(fs: *const FilesystemHandle, target: *const c_char, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().symlink(path(target)?, path(at)?)?))
}

/// The target of a symbolic link, without NUL; returns its length. With `len` 0 only the length; -ERANGE if `len` is
/// too small.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_readlink(
    fs: *const FilesystemHandle,
    at: *const c_char,
    data: *mut u8,
    len: usize,
) -> ssize_t {
    count(|| fill(object(fs)?.root().read_link(path(at)?)?.as_os_str().as_bytes(), data, len))
}

/// Gives an inode another name.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_link(fs: *const FilesystemHandle, original: *const c_char, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().hard_link(path(original)?, path(at)?)?))
}

/// Renames. `flags`: 0, BUTTERFS_NOREPLACE or BUTTERFS_EXCHANGE.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_rename(
    fs: *const FilesystemHandle,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    code(|| {
        let how = match flags {
            0 => Rename::Replace,
            BUTTERFS_NOREPLACE => Rename::KeepExisting,
            BUTTERFS_EXCHANGE => Rename::Exchange,
            _ => return Err(Failure::new(libc::EINVAL, format!("unknown flags {flags:#x}"))),
        };
        Ok(object(fs)?.root().rename(path(from)?, path(to)?, how)?)
    })
}

/// Removes a name of something that is not a directory.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_unlink(fs: *const FilesystemHandle, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().remove_file(path(at)?)?))
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_rmdir(fs: *const FilesystemHandle, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().remove_dir(path(at)?)?))
}

/// Removes a directory and everything in it. Symbolic links are not followed.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_remove_tree(fs: *const FilesystemHandle, at: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().remove_dir_all(path(at)?)?))
}

/// Sets the permissions. Follows symbolic links.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_chmod(fs: *const FilesystemHandle, at: *const c_char, mode: u32) -> c_int {
    code(|| Ok(node(fs, at, 0)?.set_mode(Mode::new(mode))?))
}

/// Sets user and group. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_chown(
    fs: *const FilesystemHandle,
    at: *const c_char,
    uid: u32,
    gid: u32,
    flags: u32,
) -> c_int {
    code(|| Ok(node(fs, at, flags)?.set_owner(Owner::new(uid, gid))?))
}

/// Sets the times of the last access and of the last change; a NULL one stays. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_set_times(
    fs: *const FilesystemHandle,
    at: *const c_char,
    atime: *const butterfs_time,
    mtime: *const butterfs_time,
    flags: u32,
) -> c_int {
    let time = |time: *const butterfs_time| {
        // SAFETY: by the header's rules the pointer is NULL or leads to a time.
        let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
        let wrong = || Failure::new(libc::EINVAL, "a time has 1000000000 nanoseconds or more");
        Timestamp::new(time.sec, time.nsec).ok_or_else(wrong).map(Some)
    };
    code(|| Ok(node(fs, at, flags)?.set_times(Times { accessed: time(atime)?, modified: time(mtime)? })?))
}

/// The value of an extended attribute; returns its length. With `len` 0 only the length; -ENODATA if there is none;
/// -ERANGE if `len` is too small. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_getxattr(
    fs: *const FilesystemHandle,
    at: *const c_char,
    name: *const c_char,
    data: *mut u8,
    len: usize,
    flags: u32,
) -> ssize_t {
    count(|| {
        let value = node(fs, at, flags)?.xattr(path(name)?)?;
        let value = value.ok_or_else(|| Failure::new(libc::ENODATA, "there is no such attribute"))?;
        fill(&value, data, len)
    })
}

/// Sets an extended attribute. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_setxattr(
    fs: *const FilesystemHandle,
    at: *const c_char,
    name: *const c_char,
    data: *const u8,
    len: usize,
    flags: u32,
) -> c_int {
    code(|| Ok(node(fs, at, flags)?.set_xattr(path(name)?, crate::error::bytes(data, len)?)?))
}

/// Removes an extended attribute. `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_removexattr(
    fs: *const FilesystemHandle,
    at: *const c_char,
    name: *const c_char,
    flags: u32,
) -> c_int {
    code(|| Ok(node(fs, at, flags)?.remove_xattr(path(name)?)?))
}

/// The names of all extended attributes, each followed by NUL; returns the length of the list, as listxattr(2) does.
/// `flags`: BUTTERFS_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_listxattr(
    fs: *const FilesystemHandle,
    at: *const c_char,
    data: *mut u8,
    len: usize,
    flags: u32,
) -> ssize_t {
    count(|| {
        let mut list = Vec::new();
        for name in node(fs, at, flags)?.xattrs()? {
            list.extend_from_slice(name.as_bytes());
            list.push(0);
        }
        fill(&list, data, len)
    })
}

/// Makes a file at `to` that shares the content of the file at `from`.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_reflink(fs: *const FilesystemHandle, from: *const c_char, to: *const c_char) -> c_int {
    code(|| Ok(object(fs)?.root().reflink(path(from)?, path(to)?)?))
}
