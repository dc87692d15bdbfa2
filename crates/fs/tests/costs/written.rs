//! The writes of a small change: a device that counts tree blocks by the tree they belong to, superblocks, data,
//! flushes.

use crate::scene::BLOCK;
use crate::world::{World, pattern, quiet_env};
use butterfs_device::BlockDevice;
use butterfs_fs::{InodeId, Options};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const NODESIZE: usize = 16 << 10;

/// The counts of writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub bytes: u64,
    pub flushes: u64,
    pub superblocks: u64,
    pub data: u64,
    /// Tree blocks by tree and level, each copy counted.
    pub blocks: BTreeMap<(u64, u8), u64>,
}

/// See the [module](self).
pub struct Counting {
    inner: Arc<dyn BlockDevice>,
    fsid: [u8; 16],
    written: Mutex<Written>,
}

impl Counting {
    pub fn new(inner: Arc<dyn BlockDevice>, fsid: [u8; 16]) -> Counting {
        Counting { inner, fsid, written: Mutex::default() }
    }

    /// The counts of writes since the last call.
    pub fn take(&self) -> Written {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    fn note(&self, offset: u64, data: &[u8]) {
        let mut written = self.written.lock().unwrap();
        written.bytes += data.len() as u64;
        if OFFSETS.iter().any(|at| at.0 == offset) && data.len() == SUPERBLOCK_LEN {
            written.superblocks += 1;
            return;
        }
        let is_block = |block: &[u8]| {
            let header = Header::read_from_prefix(block).ok().map(|(header, _)| header)?;
            (header.fsid == self.fsid).then_some((header.owner.get(), header.level))
        };
        if !data.len().is_multiple_of(NODESIZE) || is_block(data).is_none() {
            written.data += data.len() as u64;
            return;
        }
        for block in data.chunks_exact(NODESIZE) {
            let of = is_block(block).expect("blocks are written beside blocks");
            *written.blocks.entry(of).or_default() += 1;
        }
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl BlockDevice for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(offset, data);
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.written.lock().unwrap().flushes += 1;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} KiB, {} flushes, {} superblocks, {} KiB data;",
            self.bytes >> 10,
            self.flushes,
            self.superblocks,
            self.data >> 10
        )?;
        for ((owner, level), count) in &self.blocks {
            let owner = if *owner >= 256 && *owner < 1 << 60 { "sub".to_owned() } else { (*owner as i64).to_string() };
            write!(f, " {owner}/{level}:{count}")?;
        }
        Ok(())
    }
}

/// A filesystem in memory behind a device that counts, and one file of two blocks on it.
struct Counted {
    world: World,
    counting: Arc<Counting>,
    file: InodeId,
}

impl Counted {
    /// With `fill` in it.
    fn new(fill: impl FnOnce(&World)) -> Counted {
        let world = World::of_env(Options::default(), 16 << 30, quiet_env());
        fill(&world);
        world.fs.shutdown().expect("shutdown");
        let counting = Arc::new(Counting::new(world.device.clone(), world.fs.superblock().fsid));
        let world = world.over(counting.clone(), Options::default());
        let file = world.file("file");
        world.write(file, 0, &pattern(1, 2 * BLOCK as usize));
        world.fs.sync().expect("sync");
        world.write(file, 0, &pattern(2, BLOCK as usize));
        world.fs.sync().expect("sync");
        Counted { world, counting, file }
    }

    /// The writes of `work`.
    fn by(&self, work: impl FnOnce(&World)) -> Written {
        self.counting.take();
        work(&self.world);
        self.counting.take()
    }

    fn change(&self, round: u64) {
        self.world.write(self.file, 0, &pattern(round, BLOCK as usize));
    }
}

/// As many as the kernel's.
#[test]
fn a_commit_and_an_fsync_flush_twice() {
    let counted = Counted::new(|_| {});
    for round in 0..4 {
        let commit = counted.by(|world| {
            counted.change(2 * round);
            world.fs.sync().expect("sync");
        });
        assert_eq!((commit.flushes, commit.superblocks), (2, 2), "{commit}");
        let fsync = counted.by(|world| {
            counted.change(2 * round + 1);
            world.fs.fsync(counted.file, false).expect("fsync");
        });
        assert_eq!((fsync.flushes, fsync.superblocks), (2, 1), "{fsync}");
        // The secondary superblock leads to the log before the primary one is replaced, and follows it.
        let commit = counted.by(|world| world.fs.sync().expect("sync"));
        assert_eq!((commit.flushes, commit.superblocks), (2, 3), "{commit}");
        if round == 2 {
            let snapshot = counted.by(|world| {
                world.fs.snapshot(counted.file.tree, world.fs.root(), b"snapshot", true).expect("snapshot");
            });
            assert_eq!((snapshot.flushes, snapshot.superblocks), (2, 2), "{snapshot}");
        }
    }
}
