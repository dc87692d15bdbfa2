//! The memory of an open filesystem, and its release.
//!
//! | what | at most |
//! |---|---|
//! | tree blocks that are as on disk | `Options::node_cache_bytes`; those that no tree has any more go with the commit |
//! | tree blocks that are changed | 160 MiB until a commit is asked for, 320 MiB until everybody waits for it |
//! | file data that is not written yet | `Options::dirty_data_bytes` |
//! | inodes | [`UNUSED_INODES`](super::UNUSED_INODES) beside those in use, somewhat less than 1 KiB each |
//! | places of inodes | about 50 bytes for each that is in memory or that somebody outside remembers |
//! | reference changes | some thousands beyond those that one operation makes |

use super::Filesystem;

/// Clean tree blocks that stay although nobody asks for them.
const KEPT_NODE_BYTES: usize = 32 << 20;
/// An inode in memory with its places in tables, about.
const INODE_BYTES: u64 = 900;
/// The place of an inode that is in memory or that somebody outside remembers, about.
const SLOT_BYTES: u64 = 50;

/// See [`Filesystem::memory_held`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryHeld {
    /// Bytes of tree blocks.
    pub nodes: u64,
    /// Bytes of file data that is not written yet.
    pub data: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Inodes in memory or remembered outside that there is room for.
    pub inode_slots: u64,
    /// Places in the order of eviction of inodes that there is room for.
    pub queue_slots: u64,
}

impl MemoryHeld {
    /// All of it in bytes, about.
    pub fn bytes(&self) -> u64 {
        self.nodes + self.data + self.inodes * INODE_BYTES + self.inode_slots * SLOT_BYTES + self.queue_slots * 16
    }
}

impl Filesystem {
    /// The memory that the tables and caches hold now.
    pub fn memory_held(&self) -> MemoryHeld {
        let _operation = self.begin();
        let (inode_slots, queue_slots) = self.0.inodes.room();
        let nodes = &self.0.engine.nodes;
        MemoryHeld {
            nodes: nodes.count() as u64 * u64::from(nodes.nodesize()),
            data: self.0.files.buffered(),
            inodes: self.0.inodes.len() as u64,
            inode_slots: inode_slots as u64,
            queue_slots: queue_slots as u64,
        }
    }

    /// Gives up what was read and nobody has asked for since the last call. For whoever calls now and then.
    pub fn age_caches(&self) {
        let _operation = self.begin();
        self.0.engine.nodes.age(KEPT_NODE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use crate::inode::attr::Caller;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::options::Options;
    use butterfs_device::{BlockDevice, MemoryDevice};
    use std::sync::Arc;

    /// Many files made, listed and deleted: afterwards there is nearly as little as before.
    #[test]
    fn memory_of_deleted_files_is_returned() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        let env = Env::system();
        mkfs(&[Arc::clone(&device)], &MkfsOptions::default(), &env).unwrap();
        let fs = Filesystem::open(vec![device], Options::default(), env).unwrap();
        let caller = Caller::default();
        let before = fs.memory_held();
        for round in 0..2 {
            let name = |number: u32| format!("{round}-{number}").into_bytes();
            let made: Vec<_> =
                (0..30_000).map(|number| fs.create(&caller, fs.root(), &name(number), 0o644).unwrap().id).collect();
            fs.sync().unwrap();
            assert!(fs.memory_held().inode_slots >= 30_000);
            for (number, id) in made.into_iter().enumerate() {
                fs.unlink(fs.root(), &name(number as u32)).unwrap();
                fs.forget(id, 1);
            }
            fs.sync().unwrap();
            // The tree blocks of the commit before are gone with this one.
            let held = fs.memory_held();
            assert!(held.nodes < before.nodes + (1 << 20), "{held:?}, {before:?} before");
            assert!(held.inode_slots < 16_384 && held.inodes < 100, "{held:?}");
        }
        // One file after another: what remembers their order does not grow with their number.
        for number in 0..100_000 {
            let id = fs.create(&caller, fs.root(), b"file", 0o644).unwrap().id;
            fs.unlink(fs.root(), b"file").unwrap();
            fs.forget(id, 1);
            if number % 20_000 == 0 {
                fs.sync().unwrap();
            }
        }
        let held = fs.memory_held();
        assert!(held.queue_slots < 100_000, "{held:?}");
        fs.shutdown().unwrap();
    }
}
