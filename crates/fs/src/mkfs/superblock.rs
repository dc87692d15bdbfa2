//! The superblock of a new filesystem.

use super::blocks::PlacedTree;
use super::trees::{FilesystemSpec, GENERATION};
use butterfs_ondisk::chunk::append_sys_chunk;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::items::block_group_flags;
use butterfs_ondisk::superblock::{MAGIC, RootBackup, Superblock};
use butterfs_ondisk::{Ino, TreeId};
use zerocopy::FromZeros;

/// Without a free space tree, the kernel takes this generation as leave to make a version 1 space cache.
const CACHE_WANTED: u64 = u64::MAX;

/// The superblock, without the fields that differ from copy to copy or device to device, and without its checksum.
pub fn superblock(spec: &FilesystemSpec, placed: &[PlacedTree]) -> Superblock {
    let settings = &spec.settings;
    let mut sb = Superblock::new_zeroed();
    sb.fsid = spec.fsid;
    sb.magic = MAGIC;
    sb.generation = GENERATION.0.into();
    sb.chunk_root_generation = GENERATION.0.into();
    set_roots(&mut sb, placed);
    sb.total_bytes = spec.total_bytes().into();
    sb.bytes_used = (block_count(placed) * u64::from(settings.nodesize)).into();
    sb.root_dir_objectid = Ino::TREE_ROOT_DIR.0.into();
    sb.num_devices = (spec.devices.len() as u64).into();
    sb.sectorsize = settings.sectorsize.into();
    sb.nodesize = settings.nodesize.into();
    sb.leafsize = settings.nodesize.into();
    sb.stripesize = settings.sectorsize.into();
    sb.compat_ro_flags = settings.compat_ro.into();
    sb.incompat_flags = settings.incompat.into();
    sb.csum_type = (settings.checksum as u16).into();
    sb.label[..settings.label.len()].copy_from_slice(&settings.label);
    if settings.compat_ro & compat_ro::FREE_SPACE_TREE == 0 {
        sb.cache_generation = CACHE_WANTED.into();
    }
    // The UUID tree has every subvolume there is.
    sb.uuid_tree_generation = GENERATION.0.into();
    for chunk in spec.chunks.iter().filter(|chunk| chunk.kind & block_group_flags::SYSTEM != 0) {
        assert!(append_sys_chunk(&mut sb, chunk), "an empty array has room for the first chunk");
    }
    sb.super_roots = [backup(&sb, placed); 4];
    sb
}

fn block_count(placed: &[PlacedTree]) -> u64 {
    placed.iter().map(|tree| tree.blocks().count() as u64).sum()
}

fn tree(placed: &[PlacedTree], id: TreeId) -> &PlacedTree {
    placed.iter().find(|tree| tree.id == id).expect("every filesystem has this tree")
}

fn set_roots(sb: &mut Superblock, placed: &[PlacedTree]) {
    let (root, chunk) = (tree(placed, TreeId::ROOT), tree(placed, TreeId::CHUNK));
    sb.root = root.root().0.into();
    sb.root_level = root.height().0;
    sb.chunk_root = chunk.root().0.into();
    sb.chunk_root_level = chunk.height().0;
}

/// The entry of the ring of backup roots. All four slots hold it, so that a reader that falls back finds these roots
/// whichever slot it tries.
fn backup(sb: &Superblock, placed: &[PlacedTree]) -> RootBackup {
    let [root, chunk, extent, fs, dev, csum] =
        [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::FS, TreeId::DEV, TreeId::CSUM].map(|id| tree(placed, id));
    let generation = GENERATION.0.into();
    RootBackup {
        tree_root: root.root().0.into(),
        tree_root_gen: generation,
        chunk_root: chunk.root().0.into(),
        chunk_root_gen: generation,
        extent_root: extent.root().0.into(),
        extent_root_gen: generation,
        fs_root: fs.root().0.into(),
        fs_root_gen: generation,
        dev_root: dev.root().0.into(),
        dev_root_gen: generation,
        csum_root: csum.root().0.into(),
        csum_root_gen: generation,
        total_bytes: sb.total_bytes,
        bytes_used: sb.bytes_used,
        num_devices: sb.num_devices,
        tree_root_level: root.height().0,
        chunk_root_level: chunk.height().0,
        extent_root_level: extent.height().0,
        fs_root_level: fs.height().0,
        dev_root_level: dev.height().0,
        csum_root_level: csum.height().0,
        ..RootBackup::new_zeroed()
    }
}
