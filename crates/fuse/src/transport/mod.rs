//! The source of requests and the destination of replies: the classic `/dev/fuse`, read by a pool of threads
//! ([`workers`]), and beside it io_uring where the kernel offers it ([`rings`]).
//!
//! A transport moves bytes; what they mean is [`session`](crate::session)'s. Both call the same [`Exchange`].
//!
//! # Invariants
//! 1. A reply goes out through the descriptor that its request came in by: the kernel keeps the requests of each
//!    apart.
//! 2. The buffer holds the largest request that was negotiated, so that no request is lost for want of room.
//! 3. When the kernel has ended the connection, every thread ends; nothing is left to answer.

mod affinity;
mod carriers;
pub mod dev_fuse;
mod ring_entry;
pub mod rings;
mod workers;

pub use dev_fuse::DevFuse;
pub use workers::Pool;

use crate::protocol::wire::OutHeader;

/// Most bytes of data in one READ or WRITE.
pub const MAX_DATA_BYTES: usize = 1 << 20;
/// Room for one request: data, header, arguments, and what the kernel asks to be spare.
pub const REQUEST_BUFFER_BYTES: usize = MAX_DATA_BYTES + 4096;

/// Stack of a thread; the engine's recursion is bounded by the height of trees.
const STACK_BYTES: usize = 1 << 20;

/// Which transport a mount is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel offers it and it can be set up, the classic one elsewhere.
    #[default]
    Auto,
    /// `/dev/fuse` alone.
    Classic,
    /// io_uring, or no mount.
    Uring,
}

/// The outcome of a request.
pub enum Served {
    /// The reply is this header with what is in the payload.
    Reply(OutHeader),
    /// Nobody waits for a reply.
    Silent,
    /// The reply takes requests of the kernel that only other threads can serve.
    Later(Later),
}

/// Finishes a reply; its argument is the payload, which comes empty. Runs on a thread of its own, one after the other.
pub type Later = Box<dyn FnOnce(&mut Vec<u8>) -> OutHeader + Send>;

/// One request in, one reply out.
pub trait Exchange: Send + Sync + 'static {
    /// Serves the request `bytes`. `payload` comes empty.
    fn serve(&self, bytes: &[u8], payload: &mut Vec<u8>) -> Served;
    /// The kernel refused the reply to the request `bytes` because the caller was interrupted.
    fn reply_refused(&self, bytes: &[u8], payload: &[u8]);
}
