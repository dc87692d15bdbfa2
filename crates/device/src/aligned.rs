//! Memory that direct I/O may use, of huge pages where there is much of it.
//!
//! Storage is given the addresses of the pages that a request reads or writes. 1 MiB are 256 pages of 4 KiB, scattered
//! over the machine, or a part of one huge page. To a virtual disk that makes a difference of two to three.
//!
//! Few buffers are worth a huge page of their own for long: [`MOST_SHARED`] of them serve the whole process in turn. A
//! buffer that finds them all in use has ordinary pages, unless it would fill most of a huge page itself.
//!
//! A system that has no huge pages left gives ordinary ones.

use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// An alignment that satisfies every storage: no block is larger than a page.
pub const ALIGNMENT: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// The shortest buffer that may have a huge page.
const LEAST: usize = 64 << 10;
/// A buffer from this length on has huge pages whoever else has some.
const OWN: usize = 1 << 20;
/// Huge pages that buffers share in turn.
const MOST_SHARED: usize = 4;

/// Huge pages that buffers have in turn and nobody has now.
static UNUSED: Mutex<Vec<HugePages>> = Mutex::new(Vec::new());
/// Huge pages that buffers have in turn, used or not.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// Bytes at an address that direct I/O accepts.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    memory: Memory,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Pages(Vec<Page>),
    /// Goes back to [`UNUSED`].
    Shared(HugePages),
    Own(HugePages),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Pages(Vec::new())
    }
}

#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Page")
    }
}

/// A mapping with room for whole huge pages.
#[derive(Debug)]
struct HugePages {
    mapping: MmapMut,
    /// The offset at which the first one begins.
    at: usize,
}

impl HugePages {
    /// Zeroed memory for `len` bytes.
    fn new(len: usize) -> io::Result<HugePages> {
        let mapping = MmapMut::map_anon(len.next_multiple_of(HUGE) + HUGE)?;
        // Without them, the memory is as good in ordinary pages.
        let _ = mapping.advise(Advice::HugePage);
        let at = mapping.as_ptr().align_offset(HUGE).min(HUGE);
        Ok(HugePages { mapping, at })
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.mapping[self.at..][..len]
    }

    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.mapping[self.at..][..len]
    }
}

impl Memory {
    /// Memory for `len` bytes, and whether somebody has used it before.
    fn take(len: usize) -> (Memory, bool) {
        let is_shared = (LEAST..=HUGE).contains(&len);
        if let Some(unused) = is_shared.then(|| UNUSED.lock().pop()).flatten() {
            return (Memory::Shared(unused), true);
        }
        let may_have_more = |count| (count < MOST_SHARED).then_some(count + 1);
        let is_new = is_shared && SHARED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, may_have_more).is_ok();
        let memory = match len {
            _ if is_new => HugePages::new(HUGE).map(Memory::Shared).inspect_err(|_| {
                SHARED.fetch_sub(1, Ordering::Relaxed);
            }),
            OWN.. => HugePages::new(len).map(Memory::Own),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        };
        (memory.unwrap_or_else(|_| Memory::Pages(vec![Page::new_zeroed(); len.div_ceil(ALIGNMENT)])), false)
    }
}

impl AlignedBuffer {
    /// A buffer of `len` zeros.
    pub fn new(len: usize) -> AlignedBuffer {
        let (memory, is_used) = Memory::take(len);
        let mut buffer = AlignedBuffer { memory, len };
        if is_used {
            buffer.fill(0);
        }
        buffer
    }

    /// A buffer of these bytes.
    pub fn of(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer { memory: Memory::take(bytes.len()).0, len: bytes.len() };
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Pages(pages) => &pages.as_bytes()[..self.len],
            Memory::Shared(pages) | Memory::Own(pages) => pages.bytes(self.len),
        }
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Pages(pages) => &mut pages.as_mut_bytes()[..self.len],
            Memory::Shared(pages) | Memory::Own(pages) => pages.bytes_mut(self.len),
        }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Memory::Shared(pages) = std::mem::take(&mut self.memory) {
            UNUSED.lock().push(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_huge(buffer: &AlignedBuffer) -> bool {
        matches!(buffer.memory, Memory::Shared(_) | Memory::Own(_))
    }

    #[test]
    fn every_buffer_is_zeros_at_an_aligned_address() {
        for _ in 0..2 {
            for len in [0, 1, 4096, LEAST - 1, LEAST, LEAST + 1, OWN, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 5] {
                let mut buffer = AlignedBuffer::new(len);
                assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 0), "{len}");
                let alignment = if is_huge(&buffer) { HUGE } else { ALIGNMENT };
                assert!(len == 0 || (buffer.as_ptr() as usize).is_multiple_of(alignment), "{len}");
                buffer.fill(7);
                drop(buffer);
                let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
                assert_eq!(*AlignedBuffer::of(&bytes), bytes[..]);
            }
        }
    }

    #[test]
    fn few_huge_pages_are_kept_whoever_wants_some() {
        let most = |len| (0..100).map(|_| AlignedBuffer::new(len)).collect::<Vec<_>>();
        assert!(most(LEAST).iter().filter(|buffer| is_huge(buffer)).count() <= MOST_SHARED);
        assert!(most(OWN).iter().all(is_huge));
        assert!(most(LEAST - 1).iter().all(|buffer| !is_huge(buffer)));
        assert!(UNUSED.lock().len() <= MOST_SHARED && SHARED.load(Ordering::Relaxed) <= MOST_SHARED);
    }
}
