//! The superblock of a commit.

use super::Engine;
use crate::transaction::{Books, Transaction, Tree};
use butterfs_ondisk::TreeId;
use butterfs_ondisk::chunk::append_sys_chunk;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::superblock::{BACKUP_ROOTS, RootBackup, Superblock, super_flags};
use zerocopy::FromZeros;

impl Engine {
    /// The superblock that makes `transaction` the last committed one. Everything is booked.
    pub(super) fn next_superblock(&self, transaction: &Transaction) -> Superblock {
        let generation = transaction.generation();
        let globals = self.globals();
        let last = self.superblock();
        let mut next = last;
        let (root, chunk) = (globals.root.root(), globals.chunk.root());
        next.generation = generation.0.into();
        next.root = root.at.0.into();
        next.root_level = root.level.0;
        next.chunk_root = chunk.at.0.into();
        next.chunk_root_level = chunk.level.0;
        next.chunk_root_generation = chunk.generation.0.into();
        next.log_root = 0.into();
        next.log_root_level = 0;
        next.flags = (last.flags.get() | super_flags::WRITTEN).into();
        next.bytes_used = self.space.bytes_used().into();
        next.incompat_flags = self.incompat().into();
        if self.uuid_tree_current() {
            next.uuid_tree_generation = generation.0.into();
        }
        let totals = {
            let devices = self.devices.space.lock();
            let total: u64 = devices.devices.values().map(|device| device.total_bytes).sum();
            ((devices.devices.len() as u64).into(), total.into())
        };
        let books = transaction.books();
        if let Some(label) = books.label {
            next.label = label;
        }
        if !books.changed_devices.is_empty() {
            (next.num_devices, next.total_bytes) = totals;
        }
        self.fill_system_chunks(&books, &mut next);
        drop(books);
        let newest = last.super_roots.iter().position(|slot| slot.tree_root_gen == last.generation);
        let slot = newest.map_or(0, |slot| (slot + 1) % BACKUP_ROOTS);
        next.super_roots[slot] = self.backup(&next);
        next
    }

    fn fill_system_chunks(&self, books: &Books, superblock: &mut Superblock) {
        let map = self.volume.chunk_map();
        // A chunk that was planned while this generation froze has its items in the next one, a removed one has none
        // any more.
        let later = books.new_chunks.iter().chain(&books.removed_chunks);
        let absent: Vec<_> = later.map(|chunk| chunk.start).collect();
        superblock.sys_chunk_array.fill(0);
        superblock.sys_chunk_array_size = 0.into();
        for chunk in map.iter().filter(|chunk| chunk.kind & bits::SYSTEM != 0 && !absent.contains(&chunk.start)) {
            // The map has the new stripes when this commit is durable.
            let moved = books.moved_chunks.iter().find(|moved| moved.to.start == chunk.start);
            let chunk = moved.map_or(chunk, |moved| &moved.to);
            assert!(append_sys_chunk(superblock, chunk), "a system chunk is only planned while the array has room");
        }
    }

    fn backup(&self, next: &Superblock) -> RootBackup {
        let globals = self.globals();
        let mut backup = RootBackup::new_zeroed();
        let of = |tree: &Tree| {
            let root = tree.root();
            (root.at.0.into(), root.generation.0.into(), root.level.0)
        };
        (backup.tree_root, backup.tree_root_gen, backup.tree_root_level) = of(&globals.root);
        (backup.chunk_root, backup.chunk_root_gen, backup.chunk_root_level) = of(&globals.chunk);
        (backup.extent_root, backup.extent_root_gen, backup.extent_root_level) = of(&globals.extent);
        (backup.dev_root, backup.dev_root_gen, backup.dev_root_level) = of(&globals.dev);
        (backup.csum_root, backup.csum_root_gen, backup.csum_root_level) = of(&globals.csum);
        if let Ok(fs) = self.tree(TreeId::FS) {
            (backup.fs_root, backup.fs_root_gen, backup.fs_root_level) = of(&fs);
        }
        backup.total_bytes = next.total_bytes;
        backup.bytes_used = next.bytes_used;
        backup.num_devices = next.num_devices;
        backup
    }
}
