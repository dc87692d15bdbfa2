//! One entry of a queue of FUSE over io_uring: the two buffers that a request comes in and its reply goes out by, and
//! the commands that hand them over.
//!
//! ```text
//! page 0   Headers ......................... header, operation    (a request is put together at the end of this page)
//! page 1.. names and data, MAX_DATA_BYTES
//! ```
//!
//! The kernel leaves a request in three parts. Header and operation are copied to just before the data, so that the
//! request is in one piece, as over `/dev/fuse`, without its data being copied.
//!
//! # Invariants
//! 1. Between [`RingEntry::register`] or [`RingEntry::commit`] and the completion of that command the memory is the
//!    kernel's; nothing here touches it. In between it is this process's alone.
//! 2. The memory outlives the ring that the commands are in: an entry is dropped after its ring.

#![allow(unsafe_code)]

use super::MAX_DATA_BYTES;
use crate::protocol::ring::{COMMIT_AND_FETCH, CommandRequest, EntryInOut, Headers, REGISTER};
use crate::protocol::wire::{InHeader, OutHeader};
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use zerocopy::{FromBytes, IntoBytes};

/// The position at which the data begins. No page of the kernel's is smaller, and none has to be larger.
const DATA_AT: usize = 4096;
const REGION_BYTES: usize = DATA_AT + MAX_DATA_BYTES;
/// Memory beyond this much data is given back now and then.
const KEPT_DATA_BYTES: usize = 64 << 10;
/// After so many requests.
const SHRINK_EVERY: u32 = 256;

/// See the [module](self).
pub struct RingEntry {
    region: NonNull<u8>,
    /// Read by the kernel when the entry is registered.
    parts: Box<[libc::iovec; 2]>,
    queue: u16,
    commit_id: u64,
    /// Bytes of data that came or went since memory was last given back, and in how many requests.
    most_used: usize,
    requests: u32,
}

// SAFETY: the region belongs to this value alone; nothing in it is tied to a thread.
unsafe impl Send for RingEntry {}

impl RingEntry {
    /// Buffers for an entry of `queue`. Only what is used of them takes memory.
    pub fn new(queue: u16) -> io::Result<RingEntry> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping where the kernel likes overlaps nothing.
        let region = unsafe { mmap_anonymous(std::ptr::null_mut(), REGION_BYTES, protection, flags) }?;
        let region = NonNull::new(region.cast::<u8>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        let part = |at: usize, iov_len: usize| libc::iovec {
            // Within the region or at its end.
            iov_base: region.as_ptr().wrapping_add(at).cast::<c_void>(),
            iov_len,
        };
        let parts = Box::new([part(0, size_of::<Headers>()), part(DATA_AT, MAX_DATA_BYTES)]);
        Ok(RingEntry { region, parts, queue, commit_id: 0, most_used: 0, requests: 0 })
    }

    /// The command that hands this entry over for the first time.
    pub fn register(&self, device: RawFd) -> Entry128 {
        let mut command = self.command(device, REGISTER, 0);
        // The crate's command has no field for how many parts `addr` names: bytes 24 to 27 of every submission.
        const LEN_AT: usize = 24;
        let bytes = (&raw mut command).cast::<u8>();
        let parts = self.parts.len() as u32;
        // SAFETY: `Entry128` is the 128 bytes of a submission, `repr(C)`, all of them plain numbers; the place is in
        // it.
        unsafe { bytes.add(LEN_AT).cast::<[u8; 4]>().write(parts.to_ne_bytes()) };
        command
    }

    /// The command that sends what [`RingEntry::answer`] left, and hands the entry over for the next request.
    pub fn commit(&self, device: RawFd) -> Entry128 {
        self.command(device, COMMIT_AND_FETCH, self.commit_id)
    }

    fn command(&self, device: RawFd, operation: u32, commit_id: u64) -> Entry128 {
        let mut bytes = [0; 80];
        let request = CommandRequest { commit_id, queue: self.queue, ..CommandRequest::default() };
        bytes[..size_of::<CommandRequest>()].copy_from_slice(request.as_bytes());
        let parts = self.parts.as_ptr() as u64;
        opcode::UringCmd80::new(types::Fd(device), operation).cmd(bytes).addr(Some(parts)).build()
    }

    /// The request that a completed command brought, in one piece. `None`: it is none.
    pub fn request(&mut self) -> Option<&[u8]> {
        // SAFETY: invariant 1; the region is mapped whole, and borrowed for as long as this value is.
        let region = unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr(), REGION_BYTES) };
        let (headers, _) = Headers::read_from_prefix(region).ok()?;
        self.commit_id = headers.entry.commit_id;
        let (header, _) = InHeader::read_from_prefix(&headers.in_out).ok()?;
        let data_bytes = headers.entry.payload_bytes as usize;
        self.most_used = self.most_used.max(data_bytes);
        let operation_bytes = (header.len as usize).checked_sub(size_of::<InHeader>())?.checked_sub(data_bytes)?;
        let operation = headers.operation.get(..operation_bytes)?;
        let end = DATA_AT.checked_add(data_bytes).filter(|end| *end <= REGION_BYTES)?;
        let begin = DATA_AT - operation_bytes - size_of::<InHeader>();
        region[begin..][..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        region[DATA_AT - operation_bytes..DATA_AT].copy_from_slice(operation);
        Some(&region[begin..end])
    }

    /// Puts a reply where [`RingEntry::commit`] sends it from. One that has no room is not put there.
    pub fn answer(&mut self, header: &OutHeader, payload: &[u8]) -> Result<(), NoRoom> {
        if payload.len() > MAX_DATA_BYTES {
            return Err(NoRoom);
        }
        self.most_used = self.most_used.max(payload.len());
        // SAFETY: as in `request`.
        let region = unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr(), REGION_BYTES) };
        region[DATA_AT..][..payload.len()].copy_from_slice(payload);
        let (headers, _) = Headers::mut_from_prefix(region).map_err(|_| NoRoom)?;
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        let payload_bytes = payload.len() as u32;
        headers.entry = EntryInOut { commit_id: self.commit_id, payload_bytes, ..EntryInOut::default() };
        Ok(())
    }

    /// The queue it belongs to.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Now and then gives memory back that large requests have used. What is in the entry goes with it where that is
    /// large, so it comes between a request and its reply.
    pub fn shrink(&mut self) {
        self.requests += 1;
        if self.requests < SHRINK_EVERY {
            return;
        }
        self.requests = 0;
        if std::mem::take(&mut self.most_used) <= KEPT_DATA_BYTES {
            return;
        }
        let at = self.region.as_ptr().wrapping_add(DATA_AT + KEPT_DATA_BYTES).cast::<c_void>();
        // SAFETY: a range of our own mapping; what was there is not read again. An error keeps the memory.
        let _ = unsafe { madvise(at, MAX_DATA_BYTES - KEPT_DATA_BYTES, Advice::LinuxDontNeed) };
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and by invariant 2 nobody else has its address. An error leaks it.
        let _ = unsafe { munmap(self.region.as_ptr().cast::<c_void>(), REGION_BYTES) };
    }
}

/// A reply that is longer than any request allows.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves in the entry what the kernel would.
    fn arrive(entry: &mut RingEntry, len: u32, operation: &[u8], data: &[u8], claimed: u32) {
        // SAFETY: no kernel knows of this entry.
        let region = unsafe { std::slice::from_raw_parts_mut(entry.region.as_ptr(), REGION_BYTES) };
        region[DATA_AT..][..data.len()].copy_from_slice(data);
        let (headers, _) = Headers::mut_from_prefix(region).unwrap();
        let header = InHeader { len, opcode: 16, unique: 7, ..InHeader::default() };
        headers.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        headers.operation[..operation.len()].copy_from_slice(operation);
        headers.entry = EntryInOut { commit_id: 9, payload_bytes: claimed, ..EntryInOut::default() };
    }

    #[test]
    fn a_request_is_put_together_and_its_reply_left() {
        let mut entry = RingEntry::new(0).unwrap();
        for (operation, data) in [(&b"operation!"[..], &b"some data"[..]), (b"", b"name"), (b"only", b""), (b"", b"")] {
            let len = 40 + operation.len() + data.len();
            arrive(&mut entry, len as u32, operation, data, data.len() as u32);
            let request = entry.request().unwrap().to_vec();
            assert_eq!(request.len(), len);
            assert_eq!(request[40..], [operation, data].concat());
            let header = OutHeader { len: 20, error: 0, unique: 7 };
            assert_eq!(entry.answer(&header, b"body"), Ok(()));
            // SAFETY: as above.
            let region = unsafe { std::slice::from_raw_parts(entry.region.as_ptr(), REGION_BYTES) };
            let (headers, _) = Headers::read_from_prefix(region).unwrap();
            assert_eq!(headers.in_out[..16], *header.as_bytes());
            assert_eq!((headers.entry.commit_id, headers.entry.payload_bytes), (9, 4));
            assert_eq!(region[DATA_AT..][..4], *b"body");
        }
    }

    #[test]
    fn malformed_entries_are_no_requests() {
        let mut entry = RingEntry::new(0).unwrap();
        let too_much = MAX_DATA_BYTES as u32 + 1;
        for (len, claimed) in [(39, 0), (40, 1), (40 + 129, 0), (u32::MAX, 0), (40 + too_much, too_much), (0, u32::MAX)]
        {
            arrive(&mut entry, len, b"", b"", claimed);
            assert!(entry.request().is_none(), "{len} {claimed}");
        }
        assert_eq!(entry.answer(&OutHeader::default(), &vec![0; MAX_DATA_BYTES + 1]), Err(NoRoom));
        assert_eq!(entry.answer(&OutHeader::default(), &vec![0; MAX_DATA_BYTES]), Ok(()));
        (0..SHRINK_EVERY).for_each(|_| entry.shrink());
    }
}
