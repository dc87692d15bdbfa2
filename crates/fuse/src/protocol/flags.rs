//! Bits and numbers of the protocol, by the names that the kernel's interface header gives them (without `FUSE_`).

/// The protocol's major version.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version whose structures are known here.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Node id of the mount's root.
pub const ROOT_ID: u64 = 1;

/// Bits of INIT, `flags` below and `flags2` above.
pub mod init {
    /// Several reads of one file at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN truncates where O_TRUNC says so.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." by node id, for NFS.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The umask is the server's to apply.
    pub const DONT_MASK: u64 = 1 << 6;
    /// IOCTL on directories.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// READDIRPLUS is served.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct I/O of libaio and io_uring is asynchronous. Never agreed on, see [`crate::session::handshake`].
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// LOOKUP and READDIR of one directory run in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// ACLs decide about access, and are the server's to inherit.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` is meant.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// READLINK's answers are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// OPENDIR may be refused with ENOSYS: directories are read without, and READDIR's answers are kept.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The page cache is dropped only when the server says so.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The server clears set-id bits where a request says so.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has flags.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is meant.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests come over io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of SETATTR's `valid`.
pub mod setattr {
    /// Set the mode.
    pub const MODE: u32 = 1 << 0;
    /// Set the owner.
    pub const UID: u32 = 1 << 1;
    /// Set the group.
    pub const GID: u32 = 1 << 2;
    /// Set the size.
    pub const SIZE: u32 = 1 << 3;
    /// Set the time of access.
    pub const ATIME: u32 = 1 << 4;
    /// Set the time of modification.
    pub const MTIME: u32 = 1 << 5;
    /// The request is about an open file.
    pub const FH: u32 = 1 << 6;
    /// Set the time of access to now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// Set the time of modification to now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// The request names the owner of a lock.
    pub const LOCKOWNER: u32 = 1 << 9;
    /// Set the time of change.
    pub const CTIME: u32 = 1 << 10;
    /// With the size: clear set-id bits.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of OPEN's and CREATE's answer.
pub mod open {
    /// Keep what the page cache has.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// No FLUSH when a descriptor is closed.
    pub const NOFLUSH: u32 = 1 << 5;
}

/// Bit of OPEN's `open_flags`: the truncation clears set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// Bit of WRITE: from the kernel's cache, that is, from a mapping.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Bit of WRITE: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Bit of FSYNC: the content only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Bit of SETXATTR: an ACL whose mode loses its set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Bit of IOCTL: the file is a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
