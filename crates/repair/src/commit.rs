//! The end of a repair: blocks, then superblocks, onto the overlay.

use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::TreeId;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::superblock::{BACKUP_ROOTS, RootBackup};
use zerocopy::FromZeros;

/// Writes everything that the repair has made, and superblocks that lead to it.
pub(crate) fn run(forest: &mut Forest, bytes_used: u64) -> Result<()> {
    let rows = crate::rows::prepare(forest)?;
    forest.store.write_out(&rows)?;
    forest.store.volume.flush()?;
    let generation = forest.store.generation.get();
    let newest = forest.sb.super_roots.iter().enumerate().max_by_key(|(_, slot)| slot.tree_root_gen.get());
    let slot = newest.map_or(0, |(index, _)| (index + 1) % BACKUP_ROOTS);
    let sb = &mut forest.sb;
    sb.generation = generation.into();
    (sb.root, sb.root_level) = (forest.root.at.get().into(), forest.root.level.get());
    (sb.chunk_root, sb.chunk_root_level) = (forest.chunk.at.get().into(), forest.chunk.level.get());
    sb.chunk_root_generation = forest.chunk.generation.get().into();
    (sb.log_root, sb.log_root_level) = (0.into(), 0);
    sb.bytes_used = bytes_used.into();
    if sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE != 0 {
        sb.compat_ro_flags = (sb.compat_ro_flags.get() | compat_ro::FREE_SPACE_TREE_VALID).into();
    }
    let backup = backup(forest);
    forest.sb.super_roots[slot] = backup;
    let items = forest.store.volume.device_items();
    forest.store.volume.write_superblock_with(&forest.sb, &items)?;
    Ok(())
}

fn backup(forest: &Forest) -> RootBackup {
    let (sb, mut slot) = (&forest.sb, RootBackup::new_zeroed());
    let of = |id: TreeId| forest.ptr(id).map_or((0, 0, 0), |ptr| (ptr.at.get(), ptr.generation.get(), ptr.level.get()));
    let (at, generation, level) = of(TreeId::ROOT);
    (slot.tree_root, slot.tree_root_gen, slot.tree_root_level) = (at.into(), generation.into(), level);
    let (at, generation, level) = of(TreeId::CHUNK);
    (slot.chunk_root, slot.chunk_root_gen, slot.chunk_root_level) = (at.into(), generation.into(), level);
    let (at, generation, level) = of(TreeId::EXTENT);
    (slot.extent_root, slot.extent_root_gen, slot.extent_root_level) = (at.into(), generation.into(), level);
    let (at, generation, level) = of(TreeId::FS);
    (slot.fs_root, slot.fs_root_gen, slot.fs_root_level) = (at.into(), generation.into(), level);
    let (at, generation, level) = of(TreeId::DEV);
    (slot.dev_root, slot.dev_root_gen, slot.dev_root_level) = (at.into(), generation.into(), level);
    let (at, generation, level) = of(TreeId::CSUM);
    (slot.csum_root, slot.csum_root_gen, slot.csum_root_level) = (at.into(), generation.into(), level);
    (slot.total_bytes, slot.bytes_used, slot.num_devices) = (sb.total_bytes, sb.bytes_used, sb.num_devices);
    slot
}
