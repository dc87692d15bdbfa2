//! Additions of the protocol for io_uring: where the parts of a request and of its reply lie, and the commands that
//! carry them.
//!
//! A ring entry is two buffers that the server registers once: [`Headers`], and one for names and data. A request comes
//! in three parts: its header in `in_out`, the structure of its operation in `operation`, and the rest in the other
//! buffer. A reply leaves its header in `in_out`, and everything after that in the other buffer.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Room for the header of a request or a reply.
pub const HEADER_ROOM: usize = 128;
/// Room for the structure of an operation.
pub const OPERATION_ROOM: usize = 128;

/// fuse_uring_req_header.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Headers {
    /// fuse_in_header on the way in, fuse_out_header on the way out.
    pub in_out: [u8; HEADER_ROOM],
    /// The first structure of the request.
    pub operation: [u8; OPERATION_ROOM],
    /// The header of the transport itself.
    pub entry: EntryInOut,
}
const _: () = assert!(size_of::<Headers>() == 288);

/// fuse_uring_ent_in_out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct EntryInOut {
    pub flags: u64,
    /// Names the request in the command that sends the reply.
    pub commit_id: u64,
    /// Bytes used of the other buffer, in either direction.
    pub payload_bytes: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// fuse_uring_cmd_req, at the start of a command's own 80 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[allow(missing_docs)]
pub struct CommandRequest {
    pub flags: u64,
    pub commit_id: u64,
    /// The queue: the number of a processor.
    pub queue: u16,
    pub padding: [u8; 6],
}
const _: () = assert!(size_of::<CommandRequest>() == 24);

/// Hands an entry to the kernel for the first time.
pub const REGISTER: u32 = 1;
/// Sends the reply in an entry, and hands the entry to the kernel for the next request.
pub const COMMIT_AND_FETCH: u32 = 2;
