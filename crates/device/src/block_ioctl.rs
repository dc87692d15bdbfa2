//! The requests to a block device that no safe function offers: its size, whether it is write-protected, discarding a
//! range, and the file beneath a loop device.

#![allow(unsafe_code, reason = "ioctl is untyped; each request's argument is fixed here, next to its number")]

use rustix::ioctl::{self, Getter, Setter, opcode};
use std::io;
use std::os::fd::AsFd;

/// `BLKGETSIZE64`.
const SIZE_BYTES: ioctl::Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKDISCARD`.
const DISCARD: ioctl::Opcode = opcode::none(0x12, 119);

/// `BLKROGET`.
const WRITE_PROTECTED: ioctl::Opcode = opcode::none(0x12, 94);
/// `LOOP_GET_STATUS64`, whose number says nothing about its argument.
const LOOP_STATUS: ioctl::Opcode = 0x4c05;
/// `struct loop_info64` in units of eight bytes.
const LOOP_STATUS_WORDS: usize = 29;

/// The storage beneath a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// Device number of the filesystem that the file is on.
    pub device: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Number of the block device that the file is, or 0.
    pub block_device: u64,
    /// First byte of the file that the loop device shows.
    pub offset_bytes: u64,
}

/// Bytes of a block device; `stat` says 0.
pub fn size_bytes(device: impl AsFd) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 stores one u64 through its argument, which is what `Getter` with `u64` passes.
    let size: u64 = unsafe { ioctl::ioctl(device, Getter::<SIZE_BYTES, u64>::new()) }?;
    Ok(size)
}

/// Discards `len` bytes at `offset` of a block device.
pub fn discard(device: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64 (start, length) through its argument, which is what `Setter` passes; it
    // keeps no reference to them.
    unsafe { ioctl::ioctl(device, Setter::<DISCARD, [u64; 2]>::new([offset, len])) }?;
    Ok(())
}

/// Whether a block device refuses to be written (`blockdev --setro`). It can be opened for writing nevertheless.
pub fn is_write_protected(device: impl AsFd) -> io::Result<bool> {
    // SAFETY: BLKROGET stores one int through its argument, which is what `Getter` with `i32` passes.
    let protected: i32 = unsafe { ioctl::ioctl(device, Getter::<WRITE_PROTECTED, i32>::new()) }?;
    Ok(protected != 0)
}

/// The storage beneath a loop device; an error for other devices and for loop devices without a file.
pub fn loop_status(device: impl AsFd) -> io::Result<LoopStatus> {
    // SAFETY: LOOP_GET_STATUS64 stores one `struct loop_info64` through its argument, and the array that `Getter`
    // passes has its size and alignment.
    let words: [u64; LOOP_STATUS_WORDS] =
        unsafe { ioctl::ioctl(device, Getter::<LOOP_STATUS, [u64; LOOP_STATUS_WORDS]>::new()) }?;
    let [device, inode, block_device, offset_bytes, ..] = words;
    Ok(LoopStatus { device, inode, block_device, offset_bytes })
}
