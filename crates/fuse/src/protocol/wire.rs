//! The structures of the protocol, byte for byte, in the machine's byte order.
//!
//! Structures that the kernel sends are read by copy, so that no alignment is asked of a buffer. A `const` assertion
//! fixes the size of each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident [$size:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[allow(missing_docs)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

wire! {
    /// fuse_in_header: starts every request. `total_extlen` counts units of 8 bytes at the request's end.
    InHeader[40] {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// fuse_out_header: starts every reply. `error` is zero or a negative error number.
    OutHeader[16] { len: u32, error: i32, unique: u64, }
    /// fuse_init_in, the part that all versions have.
    InitIn[16] { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// fuse_init_out.
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// fuse_attr.
    AttrWire[88] {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// fuse_entry_out.
    EntryOut[128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: AttrWire,
    }
    /// fuse_attr_out.
    AttrOut[104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrWire, }
    /// fuse_forget_in.
    ForgetIn[8] { nlookup: u64, }
    /// fuse_forget_one.
    ForgetOne[16] { nodeid: u64, nlookup: u64, }
    /// fuse_batch_forget_in.
    BatchForgetIn[8] { count: u32, dummy: u32, }
    /// fuse_getattr_in.
    GetattrIn[16] { getattr_flags: u32, dummy: u32, fh: u64, }
    /// fuse_setattr_in.
    SetattrIn[88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// fuse_mknod_in.
    MknodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// fuse_mkdir_in.
    MkdirIn[8] { mode: u32, umask: u32, }
    /// fuse_rename_in.
    RenameIn[8] { newdir: u64, }
    /// fuse_rename2_in.
    Rename2In[16] { newdir: u64, flags: u32, padding: u32, }
    /// fuse_link_in.
    LinkIn[8] { oldnodeid: u64, }
    /// fuse_open_in.
    OpenIn[8] { flags: u32, open_flags: u32, }
    /// fuse_create_in.
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// fuse_open_out.
    OpenOut[16] { fh: u64, open_flags: u32, backing_id: i32, }
    /// fuse_release_in.
    ReleaseIn[24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// fuse_flush_in.
    FlushIn[24] { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// fuse_read_in.
    ReadIn[40] {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// fuse_write_in.
    WriteIn[40] {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// fuse_write_out.
    WriteOut[8] { size: u32, padding: u32, }
    /// fuse_statfs_out.
    StatfsOut[80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// fuse_fsync_in.
    FsyncIn[16] { fh: u64, fsync_flags: u32, padding: u32, }
    /// fuse_setxattr_in, in the form of SETXATTR_EXT.
    SetxattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// fuse_getxattr_in.
    GetxattrIn[8] { size: u32, padding: u32, }
    /// fuse_getxattr_out.
    GetxattrOut[8] { size: u32, padding: u32, }
    /// fuse_access_in.
    AccessIn[8] { mask: u32, padding: u32, }
    /// fuse_interrupt_in.
    InterruptIn[8] { unique: u64, }
    /// fuse_ioctl_in.
    IoctlIn[32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// fuse_ioctl_out.
    IoctlOut[16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// fuse_fallocate_in.
    FallocateIn[32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// fuse_lseek_in.
    LseekIn[24] { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// fuse_lseek_out.
    LseekOut[8] { offset: u64, }
    /// fuse_copy_file_range_in.
    CopyFileRangeIn[56] {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// fuse_copy_file_range_out, of the 64-bit operation.
    CopyFileRangeOut[8] { bytes_copied: u64, }
    /// fuse_statx_in.
    StatxIn[24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// fuse_sx_time.
    StatxTime[16] { sec: i64, nsec: u32, reserved: i32, }
    /// fuse_statx_out, with its fuse_statx.
    StatxOut[288] {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// fuse_dirent, followed by the name, padded to 8 bytes.
    Dirent[24] { ino: u64, off: u64, namelen: u32, kind: u32, }
}
