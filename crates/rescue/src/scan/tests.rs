//! Scans of devices in memory.

use super::{OVERLAP, PIECE, Settings, scan};
use butterfs_device::{BlockDevice, FaultyDevice, MemoryDevice};
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
    // Behind a hole, into a hole, at the end of a piece, across its border, at the end of the device.
    let into_hole = 30 * PIECE - 4096;
    let places = [20 * PIECE + 8192, into_hole, 70 * PIECE - NODESIZE, 90 * PIECE - 4096, LEN - NODESIZE];
    let device = Arc::new(Counted { inner: MemoryDevice::new(LEN), read: AtomicU64::new(0) });
    for at in places {
        let len = if at == into_hole { 4096 } else { NODESIZE as usize };
        device.write_at(at, &block(at)[..len]).expect("it is inside");
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
    assert!(read <= 8 * PIECE, "{read} bytes read");
    // Nothing at all, up to the end.
    let empty: [Arc<dyn BlockDevice>; 1] = [Arc::new(MemoryDevice::new(LEN))];
    assert!(scan(&empty, &scratch.join("empty"), &Settings::default(), &mut |_| ()).expect("it is read").is_complete());
}

#[test]
fn what_cannot_be_read_is_told_once_also_across_pieces() {
    const LEN: u64 = 3 * PIECE;
    let memory = Arc::new(MemoryDevice::new(LEN));
    let places = [PIECE - 8192 - NODESIZE, PIECE + 8192, 2 * PIECE - OVERLAP as u64 - 4096];
    for at in places {
        memory.write_at(at, &block(at)).expect("it is inside");
    }
    let device = Arc::new(FaultyDevice::new(memory));
    let bad = [PIECE - 8192..PIECE + 8192, 2 * PIECE - 4096..2 * PIECE];
    bad.iter().for_each(|range| device.break_range(range.clone()));
    let scratch = Scratch::new("scan-bad");
    let path = scratch.join("map");
    let devices = [device as Arc<dyn BlockDevice>];
    scan(&devices, &path, &Settings::default(), &mut |_| ()).expect("it can be scanned");
    // A scan that was killed goes on at the end of any batch.
    let len = std::fs::metadata(&path).expect("it is there").len();
    for cut in [len, len - 1, len / 2, 100] {
        std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(cut)).expect("our own file");
        let map = scan(&devices, &path, &Settings::default(), &mut |_| ()).expect("it can be scanned");
        let mut found: Vec<u64> = map.collection().iter().map(|found| found.physical).collect();
        found.sort_unstable();
        assert_eq!((found, &map.devices()[0].bad[..]), (places.to_vec(), &bad[..]), "cut at {cut}");
    }
}
