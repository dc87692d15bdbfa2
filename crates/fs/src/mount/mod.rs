//! Opening a filesystem: from the superblock to trees that can be used.
//!
//! ```text
//! superblock ─► system chunks ─► chunk tree: all chunks, devices ─► root tree ─► global trees ─► stale devices
//!            ─► block groups, device extents checked against the chunks ─► admission for writing ─► replay of the log
//! ```
//!
//! Writing: a log is replayed, which is a transaction of its own, for a read-only mount too, as the kernel
//! does; and quotas that we do not keep are marked inconsistent in the first transaction.

mod admission;
mod chunks;
mod groups;
mod histories;
mod replacement;
mod rescue;
mod sprout;
mod zoned;

use crate::commit::Engine;
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::extent;
use crate::mkfs::wipe_superblocks;
use crate::node_io::NodeCache;
use crate::options::{Canary, Commit, Options};
use crate::replay;
use crate::subvolume;
use crate::transaction::{Core, GlobalTrees, Tree};
use admission::Log;
use butterfs_device::BlockDevice;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{DeviceId, TreeId};
use butterfs_tree::BlockIdentity;
use butterfs_volume::{Bug, Volume};
use std::sync::Arc;

/// Opens the filesystem on `devices`. The strings are what a user should be told about the way it was opened.
pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: Options, env: Env) -> Result<(Engine, Vec<String>)> {
    let mut stale = Vec::new();
    loop {
        let opened = open_knowing(&stale, devices.clone(), options.clone(), env.clone(), None);
        let opened = match opened {
            Err(error) if options.rescue.commit == Commit::LastReadable => {
                let (_, superblock, _) = Volume::open_without(devices.clone(), options.degraded, &options.stale)?;
                rescue::open_last_readable(error, &superblock, &devices, &options, &env)?
            }
            opened => opened?,
        };
        match opened {
            Opened::Whole(engine, notes) => return Ok((engine, notes)),
            Opened::FoundStale(found) => stale = found,
        }
    }
}

/// Makes a new filesystem on `new`, which has the content of the seed filesystem on `devices`, and opens it for
/// writing.
pub fn sprout(
    devices: Vec<Arc<dyn BlockDevice>>,
    new: Arc<dyn BlockDevice>,
    options: Options,
    env: Env,
) -> Result<(Engine, Vec<String>)> {
    match open_knowing(&[], devices, options, env, Some(new))? {
        Opened::Whole(engine, notes) => Ok((engine, notes)),
        Opened::FoundStale(_) => Err(Error::refused(Errno::EIO, "a seed device has missed writes")),
    }
}

pub use sprout::new_item;

enum Opened {
    Whole(Engine, Vec<String>),
    /// The device tree says that these devices have missed writes, so what was read so far may come from them.
    FoundStale(Vec<DeviceId>),
}

/// Opens the filesystem, knowing that the devices `stale` have missed writes.
fn open_knowing(
    stale: &[DeviceId],
    devices: Vec<Arc<dyn BlockDevice>>,
    options: Options,
    env: Env,
    new: Option<Arc<dyn BlockDevice>>,
) -> Result<Opened> {
    let given = devices.clone();
    let (volume, superblock, notes) = Volume::open_without(devices, options.degraded, &options.stale)?;
    let superblock = if new.is_some() { sprout::leave_seed(&volume, &superblock, &env)? } else { superblock };
    volume.set_stale(&|id| stale.contains(&id));
    // Until it is known that the devices belong together.
    volume.hold_repairs(true);
    let mut notes: Vec<String> = notes.lines;
    rescue::must_be_read_only(&options)?;
    zoned::must_have_superblocks_in_place(&superblock, &given)?;
    let newest = rescue::without_flags(superblock, &options);
    // No block is newer than the superblock on disk, whatever is shown.
    let shown = match options.rescue.commit {
        Commit::Root(at) => rescue::asked_root(at, &newest, &given, &options, &env)?,
        Commit::Moment(moment) => rescue::as_of_moment(moment, &newest, &given, &options, &env)?.into(),
        commit => rescue::as_of(&newest, commit)?.into(),
    };
    let superblock = shown.superblock;
    if superblock.generation() < newest.generation() {
        notes.push(format!(
            "generation {} is shown, the last commit is {}",
            superblock.generation(),
            newest.generation()
        ));
    }
    notes.extend(shown.note);
    let log = admission::admit(&superblock, &options, &mut notes)?;
    let seeds = sprout::seeds(&volume)?;
    let mut identity = BlockIdentity::of(&newest, !options.read_only || log == Log::Replay).with_seeds(&seeds);
    identity.ignores_checksums = options.rescue.ignore_metadata_checksums;
    let is_rescue = options.rescue.is_any();
    let (core, chunk) = open_chunks(volume, &superblock, identity, options, env)?;
    shown.top.into_iter().for_each(|top| core.show_another_root(top));
    let engine = Engine::new(Arc::new(core));
    let core = engine.core();
    let bug = match core.options().policies.canary {
        Some(Canary::StaleBelieved) => Some(Bug::StaleBelieved),
        Some(Canary::MirrorsTakeTurns) => Some(Bug::MirrorsTakeTurns),
        Some(Canary::RepairsFromStale) => Some(Bug::RepairsFromStale),
        Some(Canary::InterruptedForgiven) => Some(Bug::InterruptedForgiven),
        Some(Canary::MoveNotFollowed) => Some(Bug::MoveNotFollowed),
        Some(Canary::ParityNotUpdated) => Some(Bug::ParityNotUpdated),
        _ => None,
    };
    bug.into_iter().for_each(|bug| core.volume.plant(bug));
    core.volume.forgive_interrupted(&core.volume.chunk_map(), &newest, stale);
    let known = core.volume.stale_devices();
    if !core.is_read_only() || log == Log::Replay {
        admission::refuse_unwritable_chunks(core)?;
    }
    open_global_trees(core, chunk, &superblock)?;
    let device_tree = extent::load_stale_devices(core).and_then(|()| extent::load_device_stats(core));
    if !core.options().rescue.ignore_bad_roots {
        device_tree?;
    }
    let found = core.volume.stale_devices();
    if found.iter().any(|id| !known.contains(id)) {
        return Ok(Opened::FoundStale(found));
    }
    let left_target = match replacement::load(core, core.options().degraded, &mut notes) {
        Err(error) if !core.options().rescue.ignore_bad_roots => return Err(error),
        loaded => loaded.ok().flatten(),
    };
    groups::load(core)?;
    if let Some(new) = new {
        sprout::begin(&engine, new)?;
    }
    if !core.is_read_only() || log == Log::Replay {
        admission::refuse_unwritable_chunks(core)?;
    }
    if !core.has_canary(Canary::HistoriesNotCompared) && !is_rescue {
        histories::check(core, &superblock)?;
    }
    core.volume.hold_repairs(is_rescue);
    if log == Log::Replay {
        admission::must_be_writable(core)?;
        core.volume.repair_superblocks(&superblock)?;
        replay::run(&engine, admission::mark_quotas).map_err(|error| admission::not_replayed(&error))?;
        notes.push("what was fsynced before a crash was recovered from the log tree".to_owned());
    } else if !core.is_read_only() {
        core.volume.repair_superblocks(&superblock)?;
    }
    // Linux mounts nothing beside it. With devices missing, one of them may know more.
    if let Some(target) = left_target.filter(|_| !core.is_read_only() && !core.options().degraded) {
        wipe_superblocks(&*target);
    }
    if !core.is_read_only() && admission::give_up_quotas(&engine)? {
        notes.push("quotas are not kept: they are marked inconsistent, no limit holds (btrfs quota rescan)".to_owned());
    }
    if !core.is_read_only() && subvolume::recover_relocations(&engine)? {
        notes.push("what a balance of the kernel had left half-done was taken back; the balance goes on".to_owned());
    }
    Ok(Opened::Whole(engine, notes))
}

/// From the superblock to the chunk tree, which is returned too.
fn open_chunks(
    volume: Volume,
    superblock: &Superblock,
    mut identity: BlockIdentity,
    options: Options,
    env: Env,
) -> Result<(Core, Arc<Tree>)> {
    let volume = Arc::new(volume);
    let bootstrap = NodeCache::new(Arc::clone(&volume), identity, 0);
    identity.chunk_tree_uuid = chunks::chunk_tree_uuid(&bootstrap, superblock)?;
    let nodes = NodeCache::new(Arc::clone(&volume), identity, options.node_cache_bytes);
    let core = Core::new(volume, *superblock, nodes, options, env);
    let chunk = Arc::new(Tree::from_superblock(TreeId::CHUNK, superblock.chunk_tree_root()));
    chunks::load(&core, &chunk, superblock)?;
    Ok((core, chunk))
}

/// Whether the filesystem on `devices` has a log.
pub fn has_log(devices: Vec<Arc<dyn BlockDevice>>) -> Result<bool> {
    // Whether devices may be missing is asked when it is opened.
    let (_, superblock, _) = Volume::open_some(devices, true)?;
    Ok(superblock.log_root.get() != 0)
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
    let spare = |id, opened| rescue::spare(id, opened, core);
    let is_forgiving = core.options().rescue.ignore_bad_roots;
    let forgiven = |opened: Result<Option<Arc<Tree>>>| if is_forgiving { Ok(opened.ok().flatten()) } else { opened };
    core.nodes.load(&root.root())?;
    let globals = GlobalTrees {
        extent: spare(TreeId::EXTENT, open(TreeId::EXTENT, "extent"))?,
        dev: spare(TreeId::DEV, open(TreeId::DEV, "device"))?,
        csum: spare(TreeId::CSUM, open(TreeId::CSUM, "checksum"))?,
        free_space: forgiven(optional(compat_ro::FREE_SPACE_TREE, TreeId::FREE_SPACE, "free space"))?,
        block_group: forgiven(optional(compat_ro::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP, "block group"))?,
        root: Arc::clone(&root),
        chunk,
    };
    core.trees.set_globals(globals);
    Ok(())
}
