//! Opening for reading what does not open otherwise: an older commit, or without what reading files does not need.
//!
//! Invariant: nothing is written, no log is replayed, and the filesystem never becomes writable.

use super::{Opened, open_knowing};
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::options::{Commit, Options};
use crate::space::GroupInfo;
use crate::transaction::{Core, Tree};
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::superblock::{RootBackup, Superblock, super_flags};
use butterfs_ondisk::{Logical, TreeId};
use std::sync::Arc;

/// Refuses rescue where something could be written.
pub(super) fn must_be_read_only(options: &Options) -> Result<()> {
    if options.rescue.is_any() && !options.read_only {
        let shown = options.rescue.shown().join(",");
        return Err(Error::refused_at(Errno::EINVAL, format!("{shown} is only possible with ro")));
    }
    Ok(())
}

/// The superblock without flags that do not count.
pub(super) fn without_flags(mut superblock: Superblock, options: &Options) -> Superblock {
    if options.rescue.ignore_superblock_flags {
        let kept = super_flags::WRITTEN | super_flags::RELOC | super_flags::SEEDING;
        let dumps = super_flags::METADUMP | super_flags::METADUMP_V2;
        /// A change of the UUID, in which devices and blocks may differ: the kernel does not ignore it either.
        const CHANGING_UUID: u64 = 3 << 35;
        superblock.flags = (superblock.flags.get() & (kept | dumps | super_flags::ERROR | CHANGING_UUID)).into();
    }
    superblock
}

/// The superblock as the commit left it that is to be shown.
pub(super) fn as_of(superblock: &Superblock, commit: Commit) -> Result<Superblock> {
    let slots = &superblock.super_roots;
    let slot = match commit {
        Commit::Last | Commit::LastReadable => return Ok(*superblock),
        Commit::Generation(generation) if generation == superblock.generation.get() => return Ok(*superblock),
        Commit::Slot(slot) => slots.get(slot).filter(|slot| slot.tree_root.get() != 0),
        Commit::Generation(generation) => slots.iter().find(|slot| slot.tree_root_gen.get() == generation),
    };
    let slot = slot.ok_or_else(|| {
        let known = known(superblock).iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let what = format!("the superblock does not remember this commit, only those of the generations {known}");
        Error::refused_at(Errno::EINVAL, what)
    })?;
    Ok(of_backup(superblock, slot))
}

fn of_backup(superblock: &Superblock, slot: &RootBackup) -> Superblock {
    let mut older = *superblock;
    older.root = slot.tree_root;
    older.generation = slot.tree_root_gen;
    older.root_level = slot.tree_root_level;
    older.bytes_used = slot.bytes_used;
    older.log_root = 0.into();
    older.log_root_level = 0;
    older
}

/// The generations that the superblock remembers, newest first.
fn known(superblock: &Superblock) -> Vec<u64> {
    let slots = superblock.super_roots.iter().filter(|slot| slot.tree_root.get() != 0);
    let mut all: Vec<u64> = slots.map(|slot| slot.tree_root_gen.get()).chain([superblock.generation.get()]).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// Tries the commits that the superblock remembers, newest first, after the last one could not be opened.
pub(super) fn open_last_readable(
    error: Error,
    superblock: &Superblock,
    devices: &[Arc<dyn BlockDevice>],
    options: &Options,
    env: &Env,
) -> Result<Opened> {
    for generation in known(superblock).into_iter().filter(|generation| *generation < superblock.generation.get()) {
        let mut options = options.clone();
        options.rescue.commit = Commit::Generation(generation);
        if let Ok(Opened::Whole(engine, mut notes)) = open_knowing(&[], devices.to_vec(), options, env.clone(), None) {
            notes.push(format!("the last commit cannot be read ({error}); generation {generation} is shown"));
            return Ok(Opened::Whole(engine, notes));
        }
    }
    Err(error)
}

/// A tree that is not needed for reading files: where it cannot be opened, one that nothing is found in.
pub(super) fn spare(id: TreeId, opened: Result<Arc<Tree>>, core: &Core) -> Result<Arc<Tree>> {
    let readable = opened.and_then(|tree| core.nodes.load(&tree.root()).map(|_| tree));
    match readable {
        Err(_) if core.options().rescue.ignore_bad_roots => {
            let (at, level, generation) = core.superblock().tree_root();
            // Whoever reads it all the same gets an error: the block there is another tree's.
            Ok(Arc::new(Tree::from_superblock(id, (Logical(at.0 + 1), level, generation))))
        }
        outcome => outcome,
    }
}

/// A block group of which nothing is known but its chunk: full, as for the kernel.
pub(super) fn group_of_chunk(chunk: &Chunk) -> GroupInfo {
    GroupInfo { start: chunk.start, length: chunk.length, flags: chunk.kind, used: chunk.length }
}
