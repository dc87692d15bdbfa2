//! The system calls that have no safe wrapper. The only `unsafe` code of this crate beside the rings of
//! [`transport`](crate::transport).
//!
//! Not here: anything that decides.

#![allow(unsafe_code)]

use rustix::ioctl::{NoArg, Opcode, Setter, Updater, ioctl, opcode};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const FUSE_DEV_IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);
/// BTRFS_IOC_SYNC.
const BTRFS_SYNC: Opcode = opcode::none(0x94, 8);
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;

/// Makes `fresh`, a new descriptor of `/dev/fuse`, one more channel of the connection of `connected`.
pub fn join_connection(fresh: BorrowedFd<'_>, connected: BorrowedFd<'_>) -> io::Result<()> {
    let mut source = connected.as_raw_fd() as u32;
    // SAFETY: the command reads a u32, which `source` is for the duration of the call.
    Ok(unsafe { ioctl(fresh, Updater::<FUSE_DEV_IOC_CLONE, u32>::new(&mut source)) }?)
}

/// Gives the calling thread a mount namespace of its own.
pub fn leave_mount_namespace() -> io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: only sharing the table of descriptors matters to memory safety, and that stays shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }?)
}

/// Sets flags of a mount that is given by its descriptor.
pub fn set_mount_attributes(mount: BorrowedFd<'_>, flags: rustix::mount::MountAttrFlags) -> io::Result<()> {
    /// MOUNT_ATTR__ATIME, the bits of which one is set.
    const ACCESS_TIMES: u64 = 0x70;
    let set = u64::from(flags.bits());
    let clear = if set & ACCESS_TIMES != 0 { ACCESS_TIMES } else { 0 };
    // mount_attr: what to set, what to clear, propagation, user namespace.
    let attributes = [set, clear, 0, 0];
    // SAFETY: the call reads the empty path and as many bytes of the structure as it is told.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps descriptors other than the standard three from programs that this process starts.
pub fn keep_descriptors() -> io::Result<()> {
    // SAFETY: only a flag of each descriptor changes, and only exec(2) looks at it.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a write beyond the limit of a file's size (`RLIMIT_FSIZE`) an error instead of the end of this process.
pub fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN runs no code, and the signal is used for nothing else.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// loop_info64.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LoopInfo {
    pub device: u64,
    pub inode: u64,
    pub rdevice: u64,
    pub offset: u64,
    pub sizelimit: u64,
    pub number: u32,
    pub encrypt_type: u32,
    pub encrypt_key_size: u32,
    pub flags: u32,
    pub file_name: [u8; 64],
    pub crypt_name: [u8; 64],
    pub encrypt_key: [u8; 32],
    pub init: [u64; 2],
}

/// loop_config.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LoopConfig {
    pub fd: u32,
    pub block_size: u32,
    pub info: LoopInfo,
    pub reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// The number of a loop device that nobody uses.
pub fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    /// The command takes nothing and returns the number.
    struct GetFree;
    // SAFETY: the opcode takes no argument, and the output is the call's return value.
    unsafe impl rustix::ioctl::Ioctl for GetFree {
        type Output = u32;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> Opcode {
            LOOP_CTL_GET_FREE
        }
        fn as_ptr(&mut self) -> *mut c_void {
            std::ptr::null_mut()
        }
        unsafe fn output_from_ptr(out: rustix::ioctl::IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
            Ok(out as c_int as u32)
        }
    }
    // SAFETY: see above.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

/// Attaches a loop device to a file.
pub fn configure_loop_device(device: BorrowedFd<'_>, config: LoopConfig) -> io::Result<()> {
    // SAFETY: the command reads a loop_config, and `config.fd` is only looked up.
    Ok(unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }?)
}

/// Signals that ask a process to end.
const TERMINATION: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

fn termination_set() -> libc::sigset_t {
    // SAFETY: an all-zero set is a value of the type, and both calls only write into it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in TERMINATION {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Keeps the signals that ask this process to end for [`wait_for_termination`]. Threads started later inherit it, so
/// this comes before the first one.
pub fn hold_termination() {
    // SAFETY: the set is initialised, and no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &termination_set(), std::ptr::null_mut()) };
}

/// Waits until the process is asked to end.
pub fn wait_for_termination() {
    let mut signal = 0;
    // SAFETY: both point to initialised values of their types.
    unsafe { libc::sigwait(&termination_set(), &mut signal) };
}

/// Gives memory that was freed back to the system. The C library keeps it otherwise: what is freed here and there is
/// not at the end of its heaps.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only changes what the C library keeps beyond what is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the filesystem that `file` is on commit, if it is a btrfs.
pub fn sync_btrfs(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the command takes and returns nothing.
    Ok(unsafe { ioctl(file, NoArg::<BTRFS_SYNC>::new()) }?)
}

/// The process at the other end of a socket, as it was when it connected.
#[derive(Clone, Copy, Debug)]
pub struct PeerCredentials {
    /// Its number; 0 where it is not visible in the process namespace of this one.
    pub process: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The credentials of a socket's peer. (That of `rustix` cannot express that there is no process number.)
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let out = (&raw mut credentials).cast::<c_void>();
    // SAFETY: `out` has room for the `bytes` bytes of the structure.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, out, &mut bytes) };
    match result {
        0 => Ok(PeerCredentials { process: credentials.pid, uid: credentials.uid, gid: credentials.gid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor of the process at the other end of a socket, as it was when it connected. Linux 6.5 and later.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: c_int = 77;
    let (mut process, mut bytes): (c_int, _) = (-1, size_of::<c_int>() as libc::socklen_t);
    let out = (&raw mut process).cast::<c_void>();
    // SAFETY: `out` has room for the `bytes` bytes of a descriptor's number.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, out, &mut bytes) };
    match result {
        // SAFETY: the call has made the descriptor, and nobody else has it.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(process) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel refuse descriptors that others want to send to a socket, or accept them again; connections begin like
/// the socket that took them. Linux 6.16 and later, elsewhere nothing happens.
pub fn refuse_descriptors(socket: BorrowedFd<'_>, is_refused: bool) {
    const SO_PASSRIGHTS: c_int = 83;
    let (accepts, bytes) = (c_int::from(!is_refused), size_of::<c_int>() as libc::socklen_t);
    let value = (&raw const accepts).cast::<c_void>();
    // SAFETY: `value` is the number of `bytes` bytes that the call reads.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, bytes) };
}

/// The supplementary groups that the process at the other end of a socket had when it connected.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        let out = groups.as_mut_ptr().cast::<c_void>();
        // SAFETY: `out` has room for `bytes` bytes of group numbers, and the call writes no more and says how many.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, out, &mut bytes) };
        let len = bytes as usize / size_of::<u32>();
        match io::Error::last_os_error() {
            _ if result == 0 => {
                groups.truncate(len);
                return Ok(groups);
            }
            error if error.raw_os_error() == Some(libc::ERANGE) && len > groups.len() => groups.resize(len, 0),
            error => return Err(error),
        }
    }
}
