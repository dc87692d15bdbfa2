//! Sharing a range of one file with another (`FICLONERANGE`).

#![allow(unsafe_code, reason = "ioctl is untyped; the argument is fixed here, next to its number")]

use rustix::ioctl::{self, Setter, opcode};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `FICLONERANGE`.
const CLONE_RANGE: ioctl::Opcode = opcode::write::<[u64; 4]>(0x94, 13);

/// Lets `target` share the bytes `range` of `source` from `offset` on. Both are on one filesystem that can do that, and
/// all numbers are multiples of its blocks; else it is an error, and nothing has changed.
pub fn clone_range(source: &File, range: Range<u64>, target: &File, offset: u64) -> io::Result<()> {
    if range.is_empty() {
        // To the kernel, no length means: to the end.
        return Ok(());
    }
    let argument = [source.as_raw_fd() as u64, range.start, range.end - range.start, offset];
    // SAFETY: FICLONERANGE reads one `struct file_clone_range`, four numbers of 64 bits (descriptor, place, length,
    // place in the target), through its argument, which is what `Setter` passes; it keeps no reference to them.
    unsafe { ioctl::ioctl(target, Setter::<CLONE_RANGE, [u64; 4]>::new(argument)) }?;
    Ok(())
}
