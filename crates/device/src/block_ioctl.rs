//! The two requests to a block device that no safe function offers: its size and discarding a range.

#![allow(unsafe_code, reason = "ioctl is untyped; each request's argument is fixed here, next to its number")]

use rustix::ioctl::{self, Getter, Setter, opcode};
use std::io;
use std::os::fd::AsFd;

/// `BLKGETSIZE64`.
const SIZE_BYTES: ioctl::Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKDISCARD`.
const DISCARD: ioctl::Opcode = opcode::none(0x12, 119);

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
