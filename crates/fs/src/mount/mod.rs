//! Opening a filesystem: from the superblock to trees that can be used.
//!
//! ```text
//! superblock ─► system chunks ─► chunk tree: all chunks, devices ─► tree of tree roots ─► global trees
//!            ─► block groups, device extents checked against the chunks ─► admission for writing
//! ```
//!
//! Nothing is written here, except that quotas which we do not keep are marked inconsistent in the first transaction.

mod admission;
mod chunks;
mod groups;

use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::node_io::NodeCache;
use crate::options::Options;
use crate::transaction::{Core, GlobalTrees, Tree};
use butterfs_device::BlockDevice;
use butterfs_ondisk::TreeId;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::superblock::Superblock;
use butterfs_tree::BlockIdentity;
use butterfs_volume::Volume;
use std::sync::Arc;

/// Opens the filesystem on `devices`. The strings are what a user should be told about the way it was opened.
pub fn open(devices: Vec<Arc<dyn BlockDevice>>, mut options: Options, env: Env) -> Result<(Arc<Core>, Vec<String>)> {
    let (volume, superblock, notes) = Volume::open(devices)?;
    let mut notes: Vec<String> = notes.lines;
    admission::admit(&superblock, &mut options, &mut notes)?;
    let volume = Arc::new(volume);
    let mut identity = identity_of(&superblock, !options.read_only);
    let bootstrap = NodeCache::new(Arc::clone(&volume), identity, 0);
    identity.chunk_tree_uuid = chunks::chunk_tree_uuid(&bootstrap, &superblock)?;
    let nodes = NodeCache::new(Arc::clone(&volume), identity, options.node_cache_bytes);
    let core = Arc::new(Core::new(volume, superblock, nodes, options, env));
    let chunk = Arc::new(Tree::from_superblock(TreeId::CHUNK, superblock.chunk_tree_root()));
    chunks::load(&core, &chunk, &superblock)?;
    open_global_trees(&core, chunk, &superblock)?;
    groups::load(&core)?;
    if !core.is_read_only() {
        admission::refuse_unfinished_work(&core)?;
        admission::give_up_quotas(&core)?;
    }
    Ok((core, notes))
}

fn identity_of(superblock: &Superblock, writable: bool) -> BlockIdentity {
    BlockIdentity {
        fsid: superblock.block_fsid(),
        chunk_tree_uuid: [0; 16],
        checksum: superblock.checksum_kind().expect("the superblock was validated"),
        nodesize: superblock.nodesize.get(),
        sectorsize: superblock.sectorsize.get(),
        incompat: superblock.incompat_flags.get(),
        super_generation: superblock.generation(),
        writable,
    }
}

fn open_global_trees(core: &Core, chunk: Arc<Tree>, superblock: &Superblock) -> Result<()> {
    let root = Arc::new(Tree::from_superblock(TreeId::ROOT, superblock.tree_root()));
    let open = |id: TreeId, name: &str| -> Result<Arc<Tree>> {
        core.open_tree(&root, id).map(Arc::new).map_err(|error| match error.is(Errno::ENOENT) {
            true => Error::corrupt(format!("the filesystem has no {name} tree (tree {id})")),
            false => error,
        })
    };
    let optional = |bit: u64, id: TreeId, name: &str| -> Result<Option<Arc<Tree>>> {
        if core.has_compat_ro(bit) { open(id, name).map(Some) } else { Ok(None) }
    };
    let globals = GlobalTrees {
        extent: open(TreeId::EXTENT, "extent")?,
        dev: open(TreeId::DEV, "device")?,
        csum: open(TreeId::CSUM, "checksum")?,
        free_space: optional(compat_ro::FREE_SPACE_TREE, TreeId::FREE_SPACE, "free space")?,
        block_group: optional(compat_ro::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP, "block group")?,
        root: Arc::clone(&root),
        chunk,
    };
    for tree in [&globals.root, &globals.extent, &globals.dev, &globals.csum] {
        core.nodes.load(&tree.root())?;
    }
    core.set_globals(globals);
    Ok(())
}
