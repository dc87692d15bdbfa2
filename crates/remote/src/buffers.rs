//! Memory for what is kept: buffers of a few sizes that are used again.
//!
//! The heaps of the C library, one for each few threads, would take half as much again as is kept for bytes that come
//! and go in no order. Buffers that nobody uses wait for the next bytes of their size.

use crate::local::{MOST, SIZES, bytes_of_place, size_of_place};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of buffers of one size that are not used.
const MOST_FREE: u64 = 2 * MOST as u64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Buffers {
    /// Those that are not used, of each size.
    free: [Mutex<Vec<Vec<u8>>>; SIZES],
}

/// Bytes in a buffer, which goes back when they are not needed any more.
struct Filled {
    owner: Arc<Buffers>,
    buffer: Vec<u8>,
}

impl Buffers {
    /// A copy of up to [`MOST`] bytes.
    pub fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let size = size_of_place(bytes.len());
        let unused = self.free[size].lock().pop();
        let mut buffer = unused.unwrap_or_else(|| Vec::with_capacity(bytes_of_place(size) as usize));
        buffer.extend_from_slice(bytes);
        Bytes::from_owner(Filled { owner: self.clone(), buffer })
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let size = size_of_place(buffer.len());
        buffer.clear();
        let mut free = self.owner.free[size].lock();
        if (free.len() as u64 + 1) * bytes_of_place(size) <= MOST_FREE {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let buffers = Arc::new(Buffers::default());
        for (len, same) in [(1, 4096), (65536, 40_000), (MOST, MOST - 1)] {
            let first = buffers.copy(&vec![1; len]);
            let (at, part) = (first.as_ptr(), first.slice(len / 2..));
            drop(first);
            assert_ne!(buffers.copy(&vec![2; same]).as_ptr(), at, "a part of it is still read");
            assert!(part.iter().all(|byte| *byte == 1));
            drop(part);
            let second = buffers.copy(&vec![3; same]);
            assert!(second.as_ptr() == at && second == vec![3; same], "{len}");
        }
    }

    #[test]
    fn few_buffers_are_kept_for_later() {
        let buffers = Arc::new(Buffers::default());
        let many: Vec<Bytes> = (0..100).map(|_| buffers.copy(&[1; 65536])).collect();
        drop(many);
        let kept: usize = buffers.free.iter().map(|free| free.lock().iter().map(Vec::capacity).sum::<usize>()).sum();
        assert_eq!(kept as u64, MOST_FREE);
    }
}
