//! Long reads below a mount, which go past the caches of devices that can do that.

use super::world::{World, pattern};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Filesystem, InodeId, Options};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that counts what is read past its cache.
#[derive(Debug)]
struct Cached {
    inner: Arc<MemoryDevice>,
    read_past: AtomicU64,
}

impl Cached {
    fn take(&self) -> u64 {
        self.read_past.swap(0, Ordering::Relaxed)
    }
}

impl BlockDevice for Cached {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn has_uncached_reads(&self) -> bool {
        true
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_past.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }
}

const LEN: usize = 3 << 20;
const LONG: usize = 1 << 20;

fn read(fs: &Filesystem, id: InodeId, piece: usize) -> Vec<u8> {
    let (mut whole, mut out) = (Vec::new(), Vec::new());
    while fs.read(id, whole.len() as u64, piece, &mut out).unwrap() > 0 {
        whole.extend_from_slice(&out);
    }
    whole
}

#[test]
fn long_reads_go_past_the_cache_if_readers_keep_what_they_read() {
    for readers_keep in [true, false] {
        let made = World::new();
        made.fs.shutdown().unwrap();
        let device = Arc::new(Cached { inner: made.device.clone(), read_past: AtomicU64::new(0) });
        let world = made.over(device.clone(), Options { readers_keep, ..Options::default() });
        let file = world.file("file");
        let content = pattern(1, LEN);
        world.write(file, 0, &content);
        world.fs.sync().unwrap();
        device.take();
        assert!(read(&world.fs, file, 64 << 10) == content && device.take() == 0, "short reads");
        assert!(read(&world.fs, file, LONG) == content);
        assert_eq!(device.take(), if readers_keep { LEN as u64 } else { 0 });
    }
}

#[test]
fn what_was_written_since_is_read_and_what_is_bad_is_told() {
    let made = World::new();
    made.fs.shutdown().unwrap();
    let device = Arc::new(Cached { inner: made.device.clone(), read_past: AtomicU64::new(0) });
    let world = made.over(device.clone(), Options { readers_keep: true, ..Options::default() });
    let file = world.file("file");
    let mut content = pattern(1, LEN);
    world.write(file, 0, &content);
    world.fs.sync().unwrap();
    for (at, len) in [(0, 5000), (LONG - 10, 20), (LEN - 1, 1), (LONG, LONG)] {
        let news = pattern(at as u64 + 2, len);
        content[at..at + len].copy_from_slice(&news);
        world.write(file, at as u64, &news);
        assert!(read(&world.fs, file, LONG) == content, "{len} bytes at {at}, buffered");
        world.fs.sync().unwrap();
        assert!(read(&world.fs, file, LONG) == content, "{len} bytes at {at}");
    }
    assert!(device.take() > 0);
    let at = content[LEN / 2..][..4096].to_vec();
    let mut whole = vec![0; device.len() as usize];
    device.read_at(0, &mut whole).unwrap();
    let found: Vec<usize> = (0..whole.len()).step_by(4096).filter(|from| whole[*from..*from + 4096] == at).collect();
    for from in found {
        device.write_at(from as u64, &[whole[from] ^ 1]).unwrap();
    }
    let mut out = Vec::new();
    assert!(world.fs.read(file, LONG as u64, LONG, &mut out).is_err());
    assert!(world.fs.read(file, 0, LONG, &mut out).is_ok());
}
