//! Memory for what is read: buffers of a few sizes that are used again.
//!
//! The heaps of the C library, one for each few threads, would take half as much again as is kept for bytes that come
//! and go in no order. Buffers that nobody uses wait for the next bytes of their size.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of the smallest size, as a power of two; each size is twice the one before.
const LEAST: u32 = 12;
const SIZES: usize = 9;
/// Bytes of the largest size. What is longer has memory of its own.
const MOST: usize = 1 << (LEAST as usize + SIZES - 1);
/// Bytes of buffers of one size that are not used.
const MOST_FREE: usize = 2 * MOST;
/// Bytes that an announced length reserves; what is longer grows as it comes.
const MOST_RESERVED: usize = 16 << 20;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Buffers {
    /// Those that are not used, of each size.
    free: [Mutex<Vec<Vec<u8>>>; SIZES],
}

/// A buffer, which goes back when its bytes are not needed any more.
pub struct Buffer {
    owner: Arc<Buffers>,
    bytes: Vec<u8>,
}

impl Buffers {
    /// An empty buffer for so many bytes.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let unused = size_of(len).and_then(|size| self.free[size].lock().pop());
        let capacity = size_of(len).map_or(len.min(MOST_RESERVED), bytes_of);
        Buffer { owner: self.clone(), bytes: unused.unwrap_or_else(|| Vec::with_capacity(capacity)) }
    }
}

/// The size, by its number, of buffers for so many bytes.
fn size_of(len: usize) -> Option<usize> {
    (1..=MOST).contains(&len).then(|| len.next_power_of_two().trailing_zeros().saturating_sub(LEAST) as usize)
}

fn bytes_of(size: usize) -> usize {
    1 << (LEAST as usize + size)
}

impl Buffer {
    /// The bytes, to be filled.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes as they are now.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let Some(size) = size_of(bytes.capacity()).filter(|size| bytes_of(*size) == bytes.capacity()) else { return };
        bytes.clear();
        let mut free = self.owner.free[size].lock();
        if (free.len() + 1) * bytes_of(size) <= MOST_FREE {
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &Arc<Buffers>, byte: u8, len: usize) -> Bytes {
        let mut buffer = buffers.take(len);
        buffer.bytes().resize(len, byte);
        buffer.freeze()
    }

    #[test]
    fn buffers_are_used_again() {
        let buffers = Arc::new(Buffers::default());
        for (len, same) in [(1, 4096), (65536, 40_000), (MOST, MOST - 1)] {
            let first = filled(&buffers, 1, len);
            let (at, part) = (first.as_ptr(), first.slice(len / 2..));
            drop(first);
            assert_ne!(filled(&buffers, 2, same).as_ptr(), at, "a part of it is still read");
            assert!(part.iter().all(|byte| *byte == 1));
            drop(part);
            let second = filled(&buffers, 3, same);
            assert!(second.as_ptr() == at && second == vec![3; same], "{len}");
        }
    }

    #[test]
    fn few_buffers_are_kept_for_later() {
        let buffers = Arc::new(Buffers::default());
        for len in [0, 65536, MOST + 1] {
            drop((0..100).map(|_| filled(&buffers, 1, len)).collect::<Vec<Bytes>>());
        }
        let kept: usize = buffers.free.iter().map(|free| free.lock().iter().map(Vec::capacity).sum::<usize>()).sum();
        assert_eq!(kept, MOST_FREE);
    }
}
