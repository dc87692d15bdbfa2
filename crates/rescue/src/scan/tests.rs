//! Scans of devices in memory.

use super::{OVERLAP, PIECE, Settings, scan};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::{ChecksumKind, Generation, Level, Logical, TreeId};
use butterfs_testkit::scratch::Scratch;
use butterfs_tree::{BlockIdentity, MOST_SEEDS, Node};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NODESIZE: u64 = 16384;

/// Counts the bytes that are read from a sparse device.
#[derive(Debug)]
struct Counted {
    inner: MemoryDevice,
    read: AtomicU64,
}

impl BlockDevice for Counted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn name(&self) -> String {
        "counted".into()
    }
    fn next_data(&self, offset: u64) -> u64 {
        self.inner.next_data(offset)
    }
}

/// A sound block.
fn block(at: u64) -> Vec<u8> {
    let identity = BlockIdentity {
        fsid: [7; 16],
        seeds: [[0; 16]; MOST_SEEDS],
        chunk_tree_uuid: [8; 16],
        checksum: ChecksumKind::Crc32c,
        nodesize: NODESIZE as u32,
        sectorsize: 4096,
        incompat: 0,
        super_generation: Generation(9),
        ignores_checksums: false,
        writable: true,
    };
    let node = Node::new_empty(&identity, Logical(at), Level(0), Generation(9), TreeId::CSUM);
    let mut bytes = vec![0; NODESIZE as usize];
    node.seal_into(&mut bytes, &identity).expect("an empty leaf is sound");
    bytes
}

#[test]
fn holes_are_not_read_and_blocks_between_them_are_found() {
    const LEN: u64 = 1 << 30;
    // Behind a hole, at the end of a piece, across its border, at the end of the device.
    let places = [20 * PIECE + 8192, 70 * PIECE - NODESIZE, 90 * PIECE - 4096, LEN - NODESIZE];
    let device = Arc::new(Counted { inner: MemoryDevice::new(LEN), read: AtomicU64::new(0) });
    for at in places {
        device.write_at(at, &block(at)).expect("it is inside");
    }
    let scratch = Scratch::new("scan-holes");
    let scanned = |path: PathBuf| {
        let devices = [device.clone() as Arc<dyn BlockDevice>];
        scan(&devices, &path, &Settings::default(), &mut |_| ()).expect("it can be scanned")
    };
    let map = scanned(scratch.join("map"));
    let mut found: Vec<u64> = map.collection().iter().map(|found| found.physical).collect();
    found.sort_unstable();
    assert_eq!(found, places);
    assert!(map.is_complete());
    let read = device.read.load(Ordering::Relaxed);
    assert!(read < 10 * (PIECE + OVERLAP), "{read} bytes read");
    // Nothing at all, up to the end.
    let empty: [Arc<dyn BlockDevice>; 1] = [Arc::new(MemoryDevice::new(LEN))];
    assert!(scan(&empty, &scratch.join("empty"), &Settings::default(), &mut |_| ()).expect("it is read").is_complete());
}
