//! Opening for reading what does not open otherwise: an older commit, or without what reading files does not need.
//!
//! Invariant: nothing is written, no log is replayed, and the filesystem never becomes writable.

use super::{Opened, open_chunks, open_knowing};
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::options::{Commit, Options};
use crate::space::GroupInfo;
use crate::transaction::{Core, Tree};
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::superblock::{RootBackup, Superblock, super_flags};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{BlockIdentity, NodePtr};
use butterfs_volume::Volume;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The beginning of the filesystem that is shown.
pub(super) struct Shown {
    /// The superblock as that commit left it.
    pub superblock: Superblock,
    /// The root that stands for a subvolume's own, which is the default one then.
    pub top: Option<NodePtr>,
    /// A sentence for the user.
    pub note: Option<String>,
}

impl From<Superblock> for Shown {
    fn from(superblock: Superblock) -> Shown {
        Shown { superblock, top: None, note: None }
    }
}

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
        Commit::Last | Commit::LastReadable | Commit::Root(_) | Commit::Moment(_) => return Ok(*superblock),
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

/// The commit or subvolume whose root is at an address: a root tree, or a subvolume's tree, which is then shown in the
/// commit that has it, else in the last one that has the subvolume.
pub(super) fn asked_root(
    at: Logical,
    newest: &Superblock,
    devices: &[Arc<dyn BlockDevice>],
    options: &Options,
    env: &Env,
) -> Result<Shown> {
    let core = chunks(newest, devices, options, env)?;
    let root = root_at(&core, at)?;
    if root.tree == TreeId::ROOT {
        let (level, generation) = (root.level.get(), root.generation.0.into());
        let own = Superblock { root: at.0.into(), root_level: level, generation, ..without_log(newest) };
        return Ok(own.into());
    }
    if !root.tree.is_subvolume() {
        let what = format!("the block at {at} belongs to tree {}: only roots of subvolumes and root trees", root.tree);
        return Err(Error::refused_at(Errno::EINVAL, format!("{what} are shown")));
    }
    let commits = commits(newest);
    let stored = |superblock: &Superblock| {
        let tree = Tree::from_superblock(TreeId::ROOT, superblock.tree_root());
        core.stored_tree(&tree, root.tree).ok().flatten().filter(|tree| !tree.is_deleted())
    };
    let is_it = |tree: Tree| (tree.root().at, tree.root().generation) == (at, root.generation);
    let own = commits.iter().find(|commit| stored(commit).is_some_and(is_it));
    let commit = own.or_else(|| commits.iter().find(|commit| stored(commit).is_some())).ok_or_else(|| {
        let what = format!("the block at {at} is the root of subvolume {}, which no commit has any more", root.tree);
        Error::refused_at(Errno::ENOENT, format!("{what}: 'butterfs restore -f {at}' restores it"))
    })?;
    let mut note = format!("subvolume {} is shown as generation {} left it", root.tree, root.generation);
    if own.is_none() {
        note.push_str("; checksums are those of another commit, so data may need rescue=ignoredatacsums");
    }
    Ok(Shown { superblock: *commit, top: Some(root), note: Some(note) })
}

/// The newest commit of which no subvolume was changed after `moment`. A commit that cannot be read is passed over.
pub(super) fn as_of_moment(
    moment: i64,
    newest: &Superblock,
    devices: &[Arc<dyn BlockDevice>],
    options: &Options,
    env: &Env,
) -> Result<Superblock> {
    let core = chunks(newest, devices, options, env)?;
    let mut commits = commits(newest);
    commits.sort_unstable_by_key(|commit| std::cmp::Reverse(commit.generation()));
    let known: Vec<(Superblock, i64)> =
        commits.into_iter().filter_map(|commit| Some((commit, last_change(&core, &commit).ok()?))).collect();
    let asked = known.iter().find(|(_, changed)| *changed <= moment);
    asked.map(|(commit, _)| *commit).ok_or_else(|| {
        let oldest = known.last().map_or("none can be read".to_owned(), |(commit, changed)| {
            let time = jiff::Timestamp::from_second(*changed).map(|time| time.to_string()).unwrap_or_default();
            format!("the oldest one is generation {} of {time}", commit.generation())
        });
        Error::refused_at(Errno::EINVAL, format!("the superblock remembers no commit of that time: {oldest}"))
    })
}

/// The time of the last change of any subvolume, in seconds since 1970.
fn last_change(core: &Core, commit: &Superblock) -> Result<i64> {
    let mut last = 0i64;
    let tree = Tree::from_superblock(TreeId::ROOT, commit.tree_root());
    tree.scan(core, Key::MIN, Key::MAX, &mut |key, item| {
        let is_subvolume = key.kind == KeyType::ROOT_ITEM && TreeId(key.objectid).is_subvolume();
        if let Some(item) = is_subvolume.then(|| RootItem::parse(item)).flatten() {
            last = last.max(item.ctime.sec.get());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(last)
}

/// The commits that the superblock remembers, the last one first.
fn commits(newest: &Superblock) -> Vec<Superblock> {
    let slots = newest.super_roots.iter().filter(|slot| slot.tree_root.get() != 0);
    [without_log(newest)].into_iter().chain(slots.map(|slot| of_backup(newest, slot))).collect()
}

/// The tree of chunks, by which all others are found.
fn chunks(newest: &Superblock, devices: &[Arc<dyn BlockDevice>], options: &Options, env: &Env) -> Result<Core> {
    let (volume, ..) = Volume::open_without(devices.to_vec(), options.degraded, &options.stale)?;
    volume.hold_repairs(true);
    let mut identity = BlockIdentity::of(newest, false);
    identity.ignores_checksums = options.rescue.ignore_metadata_checksums;
    let (core, _) = open_chunks(volume, newest, identity, options.clone(), env.clone())?;
    Ok(core)
}

fn without_log(superblock: &Superblock) -> Superblock {
    Superblock { log_root: 0.into(), log_root_level: 0, ..*superblock }
}

/// The block at an address, from whatever copy is good, as a root.
fn root_at(core: &Core, at: Logical) -> Result<NodePtr> {
    let superblock = core.superblock();
    let mut bytes = vec![0; superblock.nodesize.get() as usize];
    let mut refusal = Error::refused_at(Errno::EINVAL, format!("there is no tree block at {at}"));
    for copy in core.volume.preferred_copies(at, bytes.len()) {
        if core.volume.read_copy(at, copy, &mut bytes).is_err() {
            continue;
        }
        let Ok((header, _)) = Header::read_from_prefix(&bytes) else { continue };
        if header.bytenr.get() != at.0 || header.fsid != superblock.block_fsid() {
            continue;
        }
        let (generation, level, tree) =
            (Generation(header.generation.get()), Level(header.level), TreeId(header.owner.get()));
        let root = NodePtr { at, generation, level, tree, first_key: None };
        match core.nodes.load(&root) {
            Ok(_) => return Ok(root),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
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
