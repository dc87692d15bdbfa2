//! The ways in which programs hand a write or an fsync to the kernel: system calls, libaio, io_uring.
//!
//! Each call returns when the kernel has reported completion, and panics on an error.

#![allow(unsafe_code, dead_code)]

use io_uring::{IoUring, opcode, types};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Bytes of a write; as many as O_DIRECT asks for, several sectors.
pub const LEN: usize = 16 << 10;

/// A buffer that O_DIRECT accepts.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct Block(pub [u8; LEN]);

impl Block {
    pub fn of(byte: u8) -> Box<Block> {
        Box::new(Block([byte; LEN]))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Calls,
    Libaio,
    IoUring,
}

impl Engine {
    pub const ALL: [Engine; 3] = [Engine::Calls, Engine::Libaio, Engine::IoUring];

    /// Writes a block; `flags` are those of pwritev2(2).
    pub fn write(self, file: &File, block: &Block, offset: u64, flags: i32) {
        let written = match self {
            Engine::Calls => {
                let part = libc::iovec { iov_base: block.0.as_ptr() as *mut c_void, iov_len: LEN };
                // SAFETY: `part` describes `block`, which the call only reads.
                checked(unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, offset as i64, flags) } as i64)
            }
            Engine::Libaio => {
                let control = IoControl {
                    opcode: PWRITE,
                    buffer: block.0.as_ptr() as u64,
                    bytes: LEN as u64,
                    offset: offset as i64,
                    flags,
                    descriptor: file.as_raw_fd() as u32,
                    ..IoControl::default()
                };
                // SAFETY: it completes before the call returns, and `block` outlives that.
                unsafe { run_aio(control) }
            }
            Engine::IoUring => {
                let write = opcode::Write::new(types::Fd(file.as_raw_fd()), block.0.as_ptr(), LEN as u32);
                run_ring(&write.offset(offset).rw_flags(flags).build())
            }
        };
        assert_eq!(written, LEN as i64, "a short write by {self:?}");
    }

    /// fsync(2) or fdatasync(2).
    pub fn sync(self, file: &File, data_only: bool) {
        match self {
            Engine::Calls if data_only => file.sync_data().unwrap(),
            Engine::Calls => file.sync_all().unwrap(),
            Engine::Libaio => {
                let opcode = if data_only { FDSYNC } else { FSYNC };
                let control = IoControl { opcode, descriptor: file.as_raw_fd() as u32, ..IoControl::default() };
                // SAFETY: it refers to no memory.
                assert_eq!(unsafe { run_aio(control) }, 0);
            }
            Engine::IoUring => {
                let flags = if data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
                assert_eq!(run_ring(&opcode::Fsync::new(types::Fd(file.as_raw_fd())).flags(flags).build()), 0);
            }
        }
    }
}

/// Writes a block through a mapping, and has msync(2) write it back with `MS_SYNC`.
pub fn write_mapped(file: &File, block: &Block, offset: u64) {
    // SAFETY: the mapping is new, as long as the block, and gone before the function returns.
    unsafe {
        let (access, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        let mapping = libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, descriptor, offset as i64);
        assert_ne!(mapping, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(block.0.as_ptr(), mapping.cast(), LEN);
        checked(libc::msync(mapping, LEN, libc::MS_SYNC).into());
        checked(libc::munmap(mapping, LEN).into());
    }
}

/// sync_file_range(2) with everything it can be asked to wait for.
pub fn sync_file_range(file: &File, offset: u64) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it refers to no memory.
    checked(unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, LEN as i64, flags) }.into());
}

fn checked(result: i64) -> i64 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;

/// struct iocb, little-endian.
#[repr(C)]
#[derive(Default)]
struct IoControl {
    data: u64,
    key: u32,
    flags: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    control_flags: u32,
    event_descriptor: u32,
}
const _: () = assert!(size_of::<IoControl>() == 64);

/// struct io_event.
#[repr(C)]
#[derive(Default)]
struct IoEvent {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

/// # Safety
/// What `control` refers to lives until the function returns.
unsafe fn run_aio(mut control: IoControl) -> i64 {
    let (mut context, mut event) = (0usize, IoEvent::default());
    let mut list = [&raw mut control];
    // SAFETY: the structures are those of io_submit(2); all of them outlive the calls.
    unsafe {
        checked(libc::syscall(libc::SYS_io_setup, 1, &raw mut context));
        assert_eq!(checked(libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr())), 1);
        let none = std::ptr::null_mut::<c_void>();
        assert_eq!(checked(libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, none)), 1);
        checked(libc::syscall(libc::SYS_io_destroy, context));
    }
    assert!(event.result >= 0, "{}", std::io::Error::from_raw_os_error(-event.result as i32));
    event.result
}

fn run_ring(entry: &io_uring::squeue::Entry) -> i64 {
    let mut ring = IoUring::new(2).expect("the kernel has io_uring");
    // SAFETY: what the entry refers to outlives this function, and the operation completes before it returns.
    unsafe { ring.submission().push(entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    let result = ring.completion().next().unwrap().result();
    assert!(result >= 0, "{}", std::io::Error::from_raw_os_error(-result));
    result.into()
}
