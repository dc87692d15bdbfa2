//! Contents of files: writing, sharing or copying ranges, and holes.
//!
//! The bytes written are bounded by existing content, not by the numbers in a stream: the holes of a source become
//! holes, and zeros are written only over content.

use super::super::{Failure, Outcome};
use super::system;
use butterfs_fs::Errno;
use rustix::fs::{
    FallocateFlags, SeekFrom, copy_file_range, fallocate, fstat, fstatvfs, ftruncate, ioctl_ficlone, seek,
};
use rustix::io::{Errno as Number, pread, pwrite};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that are copied at once where nothing can be shared.
const COPY_BYTES: usize = 1 << 20;
/// Bytes that are asked to be shared at once.
const SHARE_BYTES: u64 = 1 << 30;

pub(super) fn size_of(file: &OwnedFd) -> Result<u64, Failure> {
    Ok(fstat(file).map_err(system)?.st_size as u64)
}

/// Calls `each` with the parts of a range that hold data. Where the filesystem does not know, that is all of it.
fn each_data(file: &OwnedFd, range: &Range<u64>, each: &mut dyn FnMut(Range<u64>) -> Outcome) -> Outcome {
    let mut at = range.start;
    while at < range.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Number::NXIO) => return Ok(()),
            Err(Number::INVAL | Number::OPNOTSUPP) => return each(at..range.end),
            Err(error) => return Err(system(error)),
        };
        if start >= range.end {
            return Ok(());
        }
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end).min(range.end);
        if end <= start {
            return Ok(());
        }
        each(start..end)?;
        at = end;
    }
    Ok(())
}

/// Copies `len` bytes; the ranges do not overlap, and the source has them. Holes become holes.
pub(super) fn range(source: &OwnedFd, from: u64, target: &OwnedFd, to: u64, len: u64) -> Outcome {
    let mut done = from;
    each_data(source, &(from..from + len), &mut |data| {
        empty(target, to + (done - from)..to + (data.start - from))?;
        done = data.end;
        data_range(source, data.start, target, to + (data.start - from), data.end - data.start)
    })?;
    empty(target, to + (done - from)..to + len)?;
    if size_of(target)? < to + len { ftruncate(target, to + len).map_err(system) } else { Ok(()) }
}

fn data_range(source: &OwnedFd, from: u64, target: &OwnedFd, to: u64, len: u64) -> Outcome {
    let mut done = 0;
    while done < len {
        let (mut read_at, mut write_at) = (from + done, to + done);
        let wanted = (len - done).min(SHARE_BYTES) as usize;
        match copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), wanted) {
            Ok(0) => return Err(ends_after(done)),
            Ok(copied) => done += copied as u64,
            Err(Number::INTR) => {}
            Err(Number::XDEV | Number::INVAL | Number::OPNOTSUPP | Number::NOSYS | Number::PERM) => {
                return plain(source, from + done, target, to + done, len - done);
            }
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

fn ends_after(bytes: u64) -> Failure {
    Failure::new(Errno::EIO, format!("the source ends after {bytes} bytes"))
}

fn plain(source: &OwnedFd, from: u64, target: &OwnedFd, to: u64, len: u64) -> Outcome {
    let mut buffer = vec![0; COPY_BYTES.min(len as usize)];
    let mut done = 0;
    while done < len {
        let wanted = buffer.len().min((len - done) as usize);
        match pread(source, &mut buffer[..wanted], from + done) {
            Ok(0) => return Err(ends_after(done)),
            Ok(read) => {
                write_all(target, &buffer[..read], to + done)?;
                done += read as u64;
            }
            Err(Number::INTR) => {}
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

/// Writes everything.
pub(super) fn write_all(target: &OwnedFd, mut data: &[u8], mut offset: u64) -> Outcome {
    while !data.is_empty() {
        match pwrite(target, data, offset) {
            Ok(0) => return Err(Failure::new(Errno::EIO, "nothing could be written")),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Number::INTR) => {}
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

/// Makes a range read as zeros, as far as it lies inside the file: a hole where the filesystem has such, and zeros over
/// what is there otherwise.
pub(super) fn empty(file: &OwnedFd, range: Range<u64>) -> Outcome {
    let range = range.start..range.end.min(size_of(file)?);
    if range.is_empty() {
        return Ok(());
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, punch, range.start, range.end - range.start) {
        Err(Number::OPNOTSUPP | Number::NOSYS) => {}
        other => return other.map_err(system),
    }
    let zeros = vec![0; 1 << 16];
    each_data(file, &range, &mut |data| {
        let mut at = data.start;
        while at < data.end {
            let piece = zeros.len().min((data.end - at) as usize);
            write_all(file, &zeros[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    })
}

/// Gives a range space where the filesystem can. It is refused before anything is taken when there is not as much: some
/// filesystems would fill the disk first.
pub(super) fn preallocate(file: &OwnedFd, range: Range<u64>, keep_size: bool) -> Outcome {
    let mut wanted = range.end - range.start;
    each_data(file, &(range.start..range.end.min(size_of(file)?)), &mut |data| {
        wanted = wanted.saturating_sub(data.end - data.start);
        Ok(())
    })?;
    let disk = fstatvfs(file).map_err(system)?;
    if wanted > disk.f_bfree.saturating_mul(disk.f_frsize) {
        return Err(Failure::new(Errno::ENOSPC, format!("there is no room for {wanted} preallocated bytes")));
    }
    let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    match fallocate(file, flags, range.start, range.end - range.start) {
        Err(Number::OPNOTSUPP | Number::NOSYS) if keep_size || range.end <= size_of(file)? => Ok(()),
        Err(Number::OPNOTSUPP | Number::NOSYS) => ftruncate(file, range.end).map_err(system),
        other => other.map_err(system),
    }
}

/// Copies a regular file's content to a new file.
pub(super) fn whole(source: &OwnedFd, target: &OwnedFd, size: u64) -> Outcome {
    if size == 0 || ioctl_ficlone(target.as_fd(), source.as_fd()).is_ok() {
        return Ok(());
    }
    range(source, 0, target, 0, size)?;
    // Nobody may have written to the source, or the copy is nothing.
    match size_of(source)? == size {
        true => Ok(()),
        false => Err(Failure::new(Errno::EAGAIN, "the source changes while it is copied")),
    }
}
