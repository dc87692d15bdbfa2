//! A device in memory: sparse, and snapshots that share everything until one side writes.
//!
//! ```text
//! root ── table of 8 MiB ── block of 16 KiB      absent table or block = zeroes
//! ```
//! Each level is behind an `Arc`. A snapshot copies the pointer to the root; the first write after it copies the
//! root and one table (pointers) and the block that changes.

use crate::{BlockDevice, check_read, check_write};
use parking_lot::RwLock;
use std::fmt;
use std::io;
use std::sync::Arc;

const BLOCK: usize = 16 << 10;
/// The content of discarded bytes on a device that forgets them.
const GARBAGE: u8 = 0xd5;
const BLOCKS_PER_TABLE: usize = 512;
const TABLE: u64 = (BLOCK * BLOCKS_PER_TABLE) as u64;

type Block = Arc<[u8; BLOCK]>;
type Table = Vec<Option<Block>>;
type Root = Vec<Option<Arc<Table>>>;

/// A device in memory. All bytes are zero at first; nothing is ever lost, so `flush` does nothing.
pub struct MemoryDevice {
    name: String,
    len: u64,
    /// The content of every block of discarded bytes, if they do not become zeros.
    garbage: Option<Block>,
    root: RwLock<Arc<Root>>,
}

impl MemoryDevice {
    /// `len` bytes of zeroes.
    pub fn new(len: u64) -> MemoryDevice {
        MemoryDevice::named("memory", len)
    }

    /// `len` bytes of zeroes that messages call `name`.
    pub fn named(name: &str, len: u64) -> MemoryDevice {
        let tables = len.div_ceil(TABLE) as usize;
        MemoryDevice { name: name.to_owned(), len, garbage: None, root: RwLock::new(Arc::new(vec![None; tables])) }
    }

    /// The same device, on which bytes that are discarded from now on read as garbage: nobody may rely on zeros, and a
    /// discard of what is still needed shows. They cost no memory.
    pub fn with_garbage(self) -> MemoryDevice {
        MemoryDevice { garbage: Some(Arc::new([GARBAGE; BLOCK])), ..self }
    }

    /// A device that starts with these bytes.
    pub fn from_bytes(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(0, bytes).expect("the device is as long as its content");
        device
    }

    /// Another device with the content of this moment; later writes to either do not show in the other.
    pub fn snapshot(&self) -> MemoryDevice {
        let (name, garbage) = (self.name.clone(), self.garbage.clone());
        MemoryDevice { name, len: self.len, garbage, root: RwLock::new(self.root.read().clone()) }
    }

    /// Goes back to the content of `snapshot`, which has the same length.
    pub fn restore(&self, snapshot: &MemoryDevice) {
        assert_eq!(self.len, snapshot.len, "a snapshot of a device of another size");
        let content = snapshot.root.read().clone();
        *self.root.write() = content;
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read_at(0, &mut bytes).expect("the whole device lies inside of the device");
        bytes
    }

    /// Bytes of memory that hold content.
    pub fn allocated_bytes(&self) -> u64 {
        let root = self.root.read();
        let blocks: usize = root.iter().flatten().map(|table| table.iter().flatten().count()).sum();
        (blocks * BLOCK) as u64
    }
}

impl MemoryDevice {
    /// Makes whole blocks `filling`, which is shared, and copies it over the parts of others.
    fn fill_with(&self, filling: &Block, offset: u64, len: u64) {
        let mut root = self.root.write();
        let root = Arc::make_mut(&mut root);
        for (index, range) in pieces(offset, len as usize) {
            let block = &mut table_mut(root, index.table)[index.block];
            if range.len() == BLOCK {
                *block = Some(Arc::clone(filling));
            } else {
                let block = Arc::make_mut(block.get_or_insert_with(|| Arc::new([0; BLOCK])));
                block[index.byte..index.byte + range.len()].copy_from_slice(&filling[..range.len()]);
            }
        }
    }
}

/// The parts of `offset..offset + len` that lie in one block each: offset, and where in the caller's buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (RadixIndex, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let inside = (at % BLOCK as u64) as usize;
        let take = (BLOCK - inside).min(len - done);
        let range = done..done + take;
        done += take;
        (take != 0).then(|| (RadixIndex::of(at), range))
    })
}

/// A byte's address in the three levels.
struct RadixIndex {
    table: usize,
    block: usize,
    byte: usize,
}

impl RadixIndex {
    fn of(at: u64) -> RadixIndex {
        let inside = at % TABLE;
        let (block, byte) = ((inside / BLOCK as u64) as usize, (inside % BLOCK as u64) as usize);
        RadixIndex { table: (at / TABLE) as usize, block, byte }
    }
}

fn table_mut(root: &mut Root, table: usize) -> &mut Table {
    let table = root[table].get_or_insert_with(|| Arc::new(vec![None; BLOCKS_PER_TABLE]));
    Arc::make_mut(table)
}

impl BlockDevice for MemoryDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        let root = self.root.read();
        for (index, range) in pieces(offset, buf.len()) {
            let into = &mut buf[range];
            match root[index.table].as_ref().and_then(|table| table[index.block].as_ref()) {
                Some(block) => into.copy_from_slice(&block[index.byte..index.byte + into.len()]),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        check_write(self, offset, data.len() as u64)?;
        let mut root = self.root.write();
        let root = Arc::make_mut(&mut root);
        for (index, range) in pieces(offset, data.len()) {
            let from = &data[range];
            let block = table_mut(root, index.table)[index.block].get_or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[index.byte..index.byte + from.len()].copy_from_slice(from);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: u64) -> u64 {
        let root = self.root.read();
        let mut at = offset;
        while at < self.len {
            let index = RadixIndex::of(at);
            at = match &root[index.table] {
                None => (at / TABLE + 1) * TABLE,
                Some(table) if table[index.block].is_none() => (at / BLOCK as u64 + 1) * BLOCK as u64,
                Some(_) => return at,
            };
        }
        self.len.max(offset)
    }

    /// Whole blocks become zeroes, and the rest keeps its content; or all of it becomes garbage.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self, offset, len)?;
        if let Some(garbage) = &self.garbage {
            self.fill_with(garbage, offset, len);
            return Ok(());
        }
        let mut root = self.root.write();
        let root = Arc::make_mut(&mut root);
        let first = offset.div_ceil(BLOCK as u64);
        let end = (offset + len) / BLOCK as u64;
        for block in first..end {
            let index = RadixIndex::of(block * BLOCK as u64);
            if root[index.table].is_some() {
                table_mut(root, index.table)[index.block] = None;
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDevice({}, {} bytes)", self.name, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_show_writes_across_blocks_and_tables() {
        let device = MemoryDevice::new(3 * TABLE);
        for at in [0, 1, BLOCK as u64 - 3, TABLE - 5, 2 * TABLE - 1] {
            device.write_at(at, b"0123456789").unwrap();
            let mut found = [0xff; 12];
            device.read_at(at, &mut found).unwrap();
            assert_eq!(&found[..10], b"0123456789", "at {at}");
        }
        assert_eq!(device.to_bytes().iter().filter(|&&byte| byte != 0).count(), 41);
    }

    #[test]
    fn snapshots_are_independent_both_ways() {
        let device = MemoryDevice::new(100_000);
        device.write_at(50_000, b"old").unwrap();
        let snapshot = device.snapshot();
        device.write_at(50_000, b"new").unwrap();
        snapshot.write_at(10, b"own").unwrap();
        let mut found = [0; 3];
        snapshot.read_at(50_000, &mut found).unwrap();
        assert_eq!(&found, b"old");
        device.read_at(10, &mut found).unwrap();
        assert_eq!(found, [0; 3]);
        device.restore(&snapshot);
        assert_eq!(device.to_bytes(), snapshot.to_bytes());
    }

    #[test]
    fn ranges_past_the_end_are_refused() {
        let device = MemoryDevice::new(1000);
        for (offset, len) in [(999, 2), (1000, 1), (u64::MAX, 1), (u64::MAX - 1, 8)] {
            let read = device.read_at(offset, &mut vec![0; len]).unwrap_err();
            assert_eq!(read.kind(), io::ErrorKind::UnexpectedEof);
            let write = device.write_at(offset, &vec![0; len]).unwrap_err();
            assert_eq!(write.kind(), io::ErrorKind::InvalidInput);
            assert!(device.discard(offset, len as u64).is_err());
        }
        assert!(device.read_at(1000, &mut []).is_ok());
    }

    #[test]
    fn discarded_bytes_can_read_as_garbage() {
        let device = MemoryDevice::new(4 * BLOCK as u64).with_garbage();
        device.write_at(0, &[7; 4 * BLOCK]).unwrap();
        let before = device.snapshot();
        device.discard(10, 2 * BLOCK as u64).unwrap();
        let bytes = device.to_bytes();
        assert!(bytes[10..10 + 2 * BLOCK].iter().all(|&byte| byte == GARBAGE));
        assert!(bytes[..10].iter().chain(&bytes[10 + 2 * BLOCK..]).all(|&byte| byte == 7));
        device.write_at(BLOCK as u64 + 5, b"new").unwrap();
        assert_eq!(device.to_bytes()[BLOCK + 4..BLOCK + 9], [GARBAGE, b'n', b'e', b'w', GARBAGE]);
        assert!(before.to_bytes().iter().all(|&byte| byte == 7), "a snapshot keeps what it had");
        before.discard(0, BLOCK as u64).unwrap();
        assert_eq!(before.to_bytes()[0], GARBAGE, "and forgets in the same way");
    }

    #[test]
    fn discard_gives_back_whole_blocks_only() {
        let device = MemoryDevice::new(4 * BLOCK as u64);
        device.write_at(0, &[7; 4 * BLOCK]).unwrap();
        device.discard(1, 2 * BLOCK as u64).unwrap();
        assert_eq!(device.allocated_bytes(), 3 * BLOCK as u64);
        let bytes = device.to_bytes();
        assert!(bytes[BLOCK..2 * BLOCK].iter().all(|&byte| byte == 0));
        assert!(bytes[2 * BLOCK..].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_large_device_costs_nothing_until_written() {
        let device = MemoryDevice::new(1 << 40);
        assert_eq!(device.next_data(0), 1 << 40);
        device.write_at((1 << 40) - 1, &[1]).unwrap();
        assert_eq!(device.next_data(5), (1 << 40) - BLOCK as u64);
        assert_eq!(device.next_data((1 << 40) - 3), (1 << 40) - 3);
        assert_eq!(device.allocated_bytes(), BLOCK as u64);
    }
}
