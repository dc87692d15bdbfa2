//! One round of a repair on the overlay: from the findings of a check to a new commit.
//!
//! The order of the passes is that of derivation: chunks, blocks, roots, names, inodes, files, checksums, and at the
//! end what follows from all trees. Everything is one commit; where a pass fails, nothing of the round counts.

use crate::action::{Action, Pass};
use crate::forest::{Forest, root_ptr};
use crate::names::{self, Doubts};
use crate::overlay::Overlay;
use crate::plan::Options;
use crate::store::Store;
use crate::trouble::{Result, Trouble};
use crate::{
    assembled, busy, checksums, chunks, commit, extents, files, headers, ino_cache, inodes, keys, lengths, levels,
    lost_extents, lost_files, lost_roots, misplaced_sums, prune, quotas, room, roots, rows, shared, subvolumes,
    symlinks, uuids,
};
use butterfs_check::Finding;
use butterfs_device::BlockDevice;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::items::DevReplaceItem;
use butterfs_ondisk::{Admission, Generation, Ino, Key, KeyType, Superblock, TreeId, admission};
use butterfs_volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::FromBytes;

/// The result of a round, and its cost.
pub(crate) struct Round {
    pub actions: Vec<Action>,
    pub references: u64,
    pub subvolumes: Vec<TreeId>,
}

/// Runs a round. `originals` are the superblocks that were there before the first one.
pub(crate) fn run(
    overlays: &[Arc<Overlay>],
    findings: &[Finding],
    options: &Options,
    originals: &[Superblock],
) -> Result<Round> {
    let mut rooms = room::FACTORS.into_iter();
    loop {
        let Some(room) = rooms.next() else { return Err(Trouble::no_room()) };
        match run_with_room(overlays, findings, options, originals, room) {
            Err(trouble) if trouble.wants_room => {}
            ended => return ended,
        }
    }
}

/// Runs a round for which as much room is made as usual, times `room`.
fn run_with_room(
    overlays: &[Arc<Overlay>],
    findings: &[Finding],
    options: &Options,
    originals: &[Superblock],
    room: u64,
) -> Result<Round> {
    let devices = overlays.iter().map(|overlay| Arc::clone(overlay) as Arc<dyn BlockDevice>).collect();
    let (volume, sb, _) = Volume::open(devices)?;
    if let Admission::Refused(reason) | Admission::ReadOnly(reason) = admission(&sb) {
        return Err(Trouble::new(reason));
    }
    if !volume.seeds().is_empty() {
        return Err(Trouble::new("filesystems that have sprouted from a seed are not repaired: remove the seed first"));
    }
    let newest = originals.iter().map(|sb| sb.generation.get()).fold(sb.generation.get(), u64::max);
    let mut store = Store::new(volume, &sb, Generation(newest + 1));
    let mut sb = sb;
    let chunk_level = levels::of_superblock(&store, &mut sb, TreeId::CHUNK);
    // The chunk tree says where all other blocks are.
    let mut assembled = assembled::restore(&store, findings)?;
    let mut chunk_tree = chunks::read(&store, &sb);
    if chunk_tree.state == chunks::State::Lost {
        return Err(Trouble::new("the chunk tree is damaged: nothing says where everything lies"));
    }
    assembled.extend(assembled::restore(&store, findings)?);
    store.identity.chunk_tree_uuid = chunk_tree_uuid(&store, &sb);
    let root_level = levels::of_superblock(&store, &mut sb, TreeId::ROOT);
    let mut forest = Forest::open(store, sb, options.now);
    forest.actions.extend(assembled);
    forest.actions.extend(chunk_level.into_iter().chain(root_level));
    forest.read_roots();
    levels::of_root_items(&mut forest);
    let knows_extents = busy::mark(&forest, originals);
    let mut wanted = Wanted::of(findings);
    if !forest.complete && !knows_extents {
        return Err(Trouble::new("neither the root tree nor an extent tree can be read: nothing says what is in use"));
    }
    refuse_unfinished(&forest)?;
    rows::repair(&mut forest, findings, options.check.check_data)?;
    room::make(&mut forest, &mut chunk_tree.edits, room);
    superblocks(&mut forest, findings);
    roots::strays(&mut forest)?;
    roots::directories(&mut forest);
    wanted.add_hidden(&forest, findings);
    let pruned = blocks(&mut forest, &wanted)?;
    roots::single(&mut forest)?;
    roots::complete(&mut forest)?;
    if wanted.has_odd_relocation {
        roots::renew_relocation(&mut forest)?;
    }
    chunks::write(&mut forest, &chunk_tree)?;
    if wanted.system_chunks || !chunk_tree.edits.is_empty() {
        chunks::write_system_array(&mut forest);
    }
    // Which subvolumes are deleted says whose names are wanted.
    for &tree in wanted.dead.iter().chain(&wanted.subvolumes) {
        subvolumes::settle_dead(&mut forest, tree)?;
    }
    subvolumes::place_all(&mut forest, &wanted.subvolumes)?;
    for &tree in &wanted.orphans {
        subvolumes::remove_orphan(&mut forest, tree)?;
    }
    let findings = &shared::complete(&forest, findings)[..];
    wanted.trees = Wanted::of(findings).trees;
    let has_moved = keys(&mut forest, findings, &wanted.trees)? | misplaced_sums::settle(&mut forest, findings)?;
    let has_moved = has_moved || pruned.has_shown;
    // The findings are about items that stand elsewhere now.
    let findings = if has_moved { &[] } else { findings };
    if has_moved {
        wanted.trees.clear();
    }
    lost_extents::correct(&mut forest, findings)?;
    lost_extents::restore(&mut forest, findings, &pruned)?;
    for &(tree, inode) in &pruned.without_item {
        forest.remove(tree, Key::new(inode, KeyType::INODE_ITEM, 0))?;
        wanted.trees.entry(tree).or_default().inodes.insert(inode);
    }
    for (tree, inode) in lost_files::restore(&mut forest, &pruned.subvolumes, &pruned.lost_keys)? {
        let doubts = wanted.trees.entry(tree).or_default();
        doubts.inodes.insert(inode);
        doubts.names.nameless.insert(inode);
    }
    for (tree, inode) in lengths::files(&forest, findings) {
        wanted.trees.entry(tree).or_default().files.insert(inode);
    }
    trees(&mut forest, wanted.trees)?;
    sums(&mut forest, findings, options)?;
    if options.clear_ino_cache {
        ino_cache::clear(&mut forest)?;
    }
    for (tree, inode) in pruned.without_start {
        inodes::complete_leaf(&mut forest, tree, inode)?;
    }
    let has_uuids = forest.trees.contains_key(&TreeId::UUID);
    if options.clear_uuid_tree {
        uuids::clear(&mut forest)?;
    } else if wanted.uuids || (has_uuids && !extents::is_readable(&forest, TreeId::UUID)) {
        uuids::write(&mut forest)?;
    } else if forest.sb.uuid_tree_generation == forest.sb.generation {
        forest.sb.uuid_tree_generation = forest.store.generation.get().into();
    }
    caches(&mut forest, findings, options)?;
    quotas::write(&mut forest)?;
    let anew = options.init_extent_tree || !extents::is_readable(&forest, TreeId::EXTENT);
    let booked = extents::run(&mut forest, anew)?;
    if booked.extents > 0 {
        forest.did(Pass::Extents, format!("makes the items of {} extents those of the trees", booked.extents));
    }
    commit::run(&mut forest, booked.bytes_used)?;
    copies(&mut forest, findings)?;
    let actions = std::mem::take(&mut forest.actions);
    Ok(Round { actions, references: booked.references, subvolumes: forest.subvolumes() })
}

fn chunk_tree_uuid(store: &Store, sb: &Superblock) -> [u8; 16] {
    let (at, generation) = (sb.chunk_root.get(), sb.chunk_root_generation.get());
    let chunks = root_ptr(TreeId::CHUNK, at, generation, sb.chunk_root_level);
    let root = root_ptr(TreeId::ROOT, sb.root.get(), sb.generation.get(), sb.root_level);
    let found = [chunks, root].iter().find_map(|ptr| store.read(ptr).ok());
    found.map_or([0; 16], |node| node.header().chunk_tree_uuid)
}

/// A balance or a replacement that is not at its end is finished first, by a mount.
fn refuse_unfinished(forest: &Forest) -> Result<()> {
    if !forest.relocations.is_empty() {
        return Err(Trouble::new("a balance has trees of its own here: mount the filesystem, which finishes it"));
    }
    let dev = forest.ptr(TreeId::DEV).ok();
    let key = Key::new(0, KeyType::DEV_REPLACE, 0);
    let item = dev.and_then(|_| forest.get(TreeId::DEV, key).ok().flatten());
    if item.is_some_and(|data| DevReplaceItem::read_from_prefix(&data).is_ok_and(|(item, _)| item.is_active())) {
        return Err(Trouble::new("a device is being replaced: mount the filesystem, which goes on with it"));
    }
    let quota = forest.sb.incompat_flags.get() & butterfs_ondisk::features::incompat::SIMPLE_QUOTA != 0;
    if quota { Err(Trouble::new("filesystems with simple quotas are not repaired")) } else { Ok(()) }
}

fn superblocks(forest: &mut Forest, findings: &[Finding]) {
    for finding in findings {
        match finding {
            Finding::SuperblockPrimary { device, .. } => {
                forest.did(Pass::Superblocks, format!("writes the primary superblock of {device} anew"));
                // A copy's log is never the current one.
                forest.sb.log_root = 0.into();
            }
            Finding::SuperblockCopy { device, copy, .. } => {
                forest.did(Pass::Superblocks, format!("writes superblock copy {copy} of {device} anew"));
            }
            Finding::SuperblockUsed { found, .. } => {
                forest.did(Pass::Superblocks, format!("sets bytes_used to the sum of the extents, now {found}"));
            }
            _ => {}
        }
    }
    if forest.sb.log_root.get() != 0 {
        forest.lose(Pass::Log, "drops the log", "changes that were fsynced since the last commit");
    }
}

/// Takes unusable blocks out of the trees that are not derived as a whole.
fn blocks(forest: &mut Forest, wanted: &Wanted) -> Result<prune::Pruned> {
    let is_root_damaged = wanted.damaged.contains(&TreeId::ROOT);
    if is_root_damaged {
        roots::find_in_backup(forest, TreeId::EXTENT);
        prune::run(forest, &[TreeId::ROOT])?;
        forest.read_roots();
        levels::of_root_items(forest);
    }
    if is_root_damaged || wanted.lost_roots {
        roots::single(forest)?;
        lost_roots::restore(forest, is_root_damaged)?;
    }
    let derived = [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::UUID, TreeId::DEV];
    let mut damaged: Vec<TreeId> = forest.trees.keys().copied().collect();
    damaged.retain(|id| {
        // Below a root tree that cannot be read no check has looked yet.
        let is_unknown = wanted.damaged.contains(&TreeId::ROOT);
        let is_blamed = is_unknown || wanted.damaged.contains(id) || (id.is_subvolume() && wanted.damages_subvolumes());
        is_blamed && !derived.contains(id)
    });
    let pruned = prune::run(forest, &damaged)?;
    for id in damaged.into_iter().filter(|id| id.is_subvolume() || *id == TreeId::DATA_RELOC) {
        // The root directory is the first that is dropped.
        if forest.drop_point(id).is_some() {
            continue;
        }
        if forest.get(id, Key::new(256, KeyType::INODE_ITEM, 0))?.is_none() {
            inodes::make_root_directory(forest, id)?;
        }
    }
    Ok(pruned)
}

/// The findings within one subvolume.
#[derive(Default)]
struct TreeDoubts {
    names: Doubts,
    inodes: BTreeSet<u64>,
    files: BTreeSet<u64>,
    symlinks: BTreeSet<u64>,
    orphans: bool,
}

impl TreeDoubts {
    /// Every inode that a finding names.
    fn all(&self) -> BTreeSet<u64> {
        let names = &self.names;
        let places = names.names.iter().flat_map(|(directory, _, inode)| [*directory, *inode]);
        let sets = [&self.inodes, &self.files, &self.symlinks, &names.directories, &names.nameless, &names.short];
        sets.into_iter().flatten().copied().chain(places).collect()
    }
}

/// The tasks that follow from the findings.
#[derive(Default)]
struct Wanted {
    damaged: BTreeSet<TreeId>,
    subvolumes: BTreeSet<TreeId>,
    dead: BTreeSet<TreeId>,
    /// Trees that have an orphan item and are not deleted.
    orphans: BTreeSet<TreeId>,
    trees: BTreeMap<TreeId, TreeDoubts>,
    uuids: bool,
    system_chunks: bool,
    /// Root items may be lost whose trees are there.
    lost_roots: bool,
    /// Something is wrong in the data relocation tree.
    has_odd_relocation: bool,
}

impl Wanted {
    fn of(findings: &[Finding]) -> Wanted {
        let mut wanted = Wanted::default();
        findings.iter().for_each(|finding| wanted.add(finding));
        wanted
    }

    /// Trees that lack something, and have blocks that may have more items than they say, are damaged.
    fn add_hidden(&mut self, forest: &Forest, findings: &[Finding]) {
        let lacks_sums = findings.iter().any(|finding| matches!(finding, Finding::ChecksumMissing { .. }));
        let trees = self.trees.keys().copied().chain(lacks_sums.then_some(TreeId::CSUM));
        self.damaged.extend(trees.filter(|tree| headers::may_hide_items(forest, *tree)));
    }

    fn damages_subvolumes(&self) -> bool {
        self.damaged.iter().any(|id| id.is_subvolume())
    }

    fn add(&mut self, finding: &Finding) {
        use Finding::*;
        match finding {
            BlockBad { tree, .. } | KeyOrder { tree, .. } => drop(self.damaged.insert(tree.0)),
            SystemChunk { .. } => self.system_chunks = true,
            RootMissing { .. } | ExtentUnused { .. } => self.lost_roots = true,
            RootUnreferenced { tree } => drop(self.subvolumes.insert(tree.0)),
            RootRefUnpaired { child, .. } | RootRefNameless { child, .. } => {
                self.lost_roots = true;
                self.subvolumes.insert(child.0);
            }
            RootDeadWithoutOrphan { tree } | RootDeadNamed { tree } => drop(self.dead.insert(tree.0)),
            RootOrphanStale { tree } => drop(self.orphans.insert(tree.0)),
            UuidMissing { .. } | UuidStale { .. } | UuidLags { .. } => self.uuids = true,
            _ => self.add_of_tree(finding),
        }
        if self.damaged.contains(&TreeId::UUID) {
            self.uuids = true;
        }
        // It is made anew, not repaired.
        self.has_odd_relocation |= self.damaged.remove(&TreeId::DATA_RELOC);
        self.has_odd_relocation |= self.trees.remove(&TreeId::DATA_RELOC).is_some();
    }

    fn add_of_tree(&mut self, finding: &Finding) {
        use Finding::*;
        let trees = &mut self.trees;
        match finding {
            InodeLinks { tree, inode, found: 0, .. } if inode.get() != Ino::ROOT_DIR.get() => {
                let doubts = trees.entry(tree.0).or_default();
                doubts.inodes.insert(inode.get());
                doubts.names.nameless.insert(inode.get());
            }
            InodeLinks { tree, inode, stored, found } if found < stored => {
                let doubts = trees.entry(tree.0).or_default();
                doubts.inodes.insert(inode.get());
                doubts.names.short.insert(inode.get());
            }
            InodeMissing { tree, inode }
            | InodeLinks { tree, inode, .. }
            | DirectorySize { tree, inode, .. }
            | DirectoryNot { tree, inode }
            | InodeBytes { tree, inode, .. } => drop(trees.entry(tree.0).or_default().inodes.insert(inode.get())),
            InodeNameless { tree, inode } => drop(trees.entry(tree.0).or_default().names.nameless.insert(inode.get())),
            SymlinkTarget { tree, inode, .. } => drop(trees.entry(tree.0).or_default().symlinks.insert(inode.get())),
            SnapshotOrphans { tree, .. } | OrphanStale { tree, .. } => trees.entry(tree.0).or_default().orphans = true,
            DirectoryEntries { tree, inode } => {
                trees.entry(tree.0).or_default().names.directories.insert(inode.get());
            }
            EntryWithoutRef { tree, directory, index, inode, .. }
            | RefWithoutEntry { tree, directory, index, inode, .. } => {
                let names = &mut trees.entry(tree.0).or_default().names;
                names.directories.insert(directory.get());
                names.names.insert((directory.get(), *index, inode.get()));
            }
            ExtrefHash { tree, inode, .. } => drop(trees.entry(tree.0).or_default().names.hashes.insert(inode.get())),
            ItemUnknown { tree, key } if tree.0.is_subvolume() => {
                trees.entry(tree.0).or_default().inodes.insert(key.objectid);
            }
            NameImpossible { tree, key, .. } => {
                trees.entry(tree.0).or_default().names.impossible.insert(key.objectid);
            }
            FileOverlap { tree, inode, .. }
            | FileExtentGeneration { tree, inode, .. }
            | FileExtentBounds { tree, inode, .. }
            | FileExtentEmpty { tree, inode, .. }
            | ChecksumUnwritten { tree, inode, .. }
            | FilePacking { tree, inode, .. }
            | FileGap { tree, inode, .. } => drop(trees.entry(tree.0).or_default().files.insert(inode.get())),
            _ => {}
        }
    }
}

/// Puts right the keys of items in sound leaves; true where there were some.
fn keys(forest: &mut Forest, findings: &[Finding], wanted: &BTreeMap<TreeId, TreeDoubts>) -> Result<bool> {
    let mut inodes: BTreeMap<TreeId, BTreeSet<u64>> = wanted.iter().map(|(tree, one)| (*tree, one.all())).collect();
    // A file may have an extent at another place than the extent tree says.
    let unused = findings.iter().filter_map(|finding| match finding {
        Finding::ReferenceExtra { at, .. } => extents::recorded_data(forest, at.get()),
        _ => None,
    });
    let users: BTreeSet<u64> = unused.flat_map(|extent| extent.sources).map(|(source, _)| source.inode).collect();
    for tree in forest.whole_subvolumes().into_iter().filter(|_| !users.is_empty()) {
        inodes.entry(tree).or_default().extend(&users);
    }
    let (mut known, mut has_moved) = (keys::Known::default(), false);
    for (tree, inodes) in inodes.into_iter().filter(|(tree, _)| tree.is_subvolume()) {
        if extents::is_readable(forest, tree) {
            has_moved |= keys::correct(forest, tree, &inodes, &mut known)?;
        }
    }
    Ok(has_moved)
}

/// Puts right what is wrong within subvolumes.
fn trees(forest: &mut Forest, wanted: BTreeMap<TreeId, TreeDoubts>) -> Result<()> {
    for (tree, doubts) in wanted {
        if forest.ptr(tree).is_err() {
            continue;
        }
        let mut touched = names::settle(forest, tree, &doubts.names)?;
        for &inode in &doubts.files {
            files::settle(forest, tree, inode)?;
        }
        for &inode in &doubts.symlinks {
            symlinks::settle(forest, tree, inode)?;
        }
        touched.extend(doubts.inodes.iter().chain(&doubts.files).chain(&doubts.symlinks));
        for inode in touched.into_iter().filter(|inode| names::is_inode(*inode)) {
            inodes::write(forest, tree, inode)?;
        }
        for &inode in &doubts.names.nameless {
            inodes::adopt(forest, tree, inode)?;
        }
        if doubts.orphans {
            inodes::settle_orphans(forest, tree)?;
        }
    }
    Ok(())
}

fn sums(forest: &mut Forest, findings: &[Finding], options: &Options) -> Result<()> {
    if options.init_csum_tree {
        return checksums::init(forest);
    }
    let mut odd = BTreeSet::new();
    let mut missing = BTreeSet::new();
    let mut overlaps = false;
    for finding in findings {
        match finding {
            Finding::ChecksumOverlap { .. } => overlaps = true,
            Finding::ChecksumOdd { tree, inode, .. } => drop(odd.insert((tree.0, inode.get()))),
            Finding::ChecksumMissing { tree, inode, .. } => drop(missing.insert((tree.0, inode.get()))),
            _ => {}
        }
    }
    if overlaps {
        checksums::settle_overlaps(forest)?;
    }
    // What the extent tree does not know may still be data: whether checksums are of nothing is seen once it is right.
    let doubtful = |finding: &Finding| {
        matches!(finding.id(), "extent-missing" | "extent-length" | "extent-overlap" | "root-missing")
    };
    let decides = !findings.iter().any(doubtful);
    for finding in findings.iter().filter(|_| decides) {
        if let Finding::ChecksumStray { at, length } = finding {
            checksums::remove_stray(forest, at.get()..at.get() + length, !missing.is_empty())?;
        }
    }
    for (tree, inode) in odd {
        checksums::settle_odd(forest, tree, inode)?;
    }
    for (tree, inode) in missing.into_iter().filter(|_| options.accept_data) {
        checksums::compute_missing(forest, tree, inode)?;
    }
    Ok(())
}

/// The version 1 cache becomes invalid by the new generation; the free space tree is made right with the extents.
fn caches(forest: &mut Forest, findings: &[Finding], options: &Options) -> Result<()> {
    let has_tree = forest.sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE != 0;
    let is_odd = |finding: &Finding| finding.id().starts_with("space-cache");
    if !has_tree && (findings.iter().any(is_odd) || options.clear_space_cache == Some(1)) {
        // No generation has this number: the kernel throws every cache away.
        forest.sb.cache_generation = u64::MAX.into();
        forest.did(Pass::FreeSpace, "makes the version 1 space cache invalid, which the kernel makes anew");
    }
    if has_tree && options.clear_space_cache == Some(2) {
        forest.start_anew(TreeId::FREE_SPACE)?;
        forest.did(Pass::FreeSpace, "makes the free space tree anew");
    }
    if findings.iter().any(|finding| finding.id().starts_with("free-space")) {
        forest.did(Pass::FreeSpace, "makes the free space tree list what no extent uses");
    }
    Ok(())
}

/// Bad copies, over which good ones are written: the only places that are overwritten where they are.
fn copies(forest: &mut Forest, findings: &[Finding]) -> Result<()> {
    let mut sectors = BTreeSet::new();
    for finding in findings {
        match finding {
            // Rows with parity were repaired before anything was written.
            Finding::BlockCopyBad { at, .. } | Finding::DataBad { at, .. }
                if forest.store.volume.row_of(*at).is_some() => {}
            Finding::BlockCopyBad { at, copy, .. } => {
                let mut bytes = vec![0; forest.store.identity.nodesize as usize];
                let good = good_block(forest, *at, &mut bytes);
                if good {
                    forest.store.volume.write(*at, &bytes)?;
                    forest.did(Pass::Copies, format!("writes the good copy of block {at} over copy {copy}"));
                }
            }
            Finding::DataBad { at, .. } => drop(sectors.insert(at.get())),
            _ => {}
        }
    }
    for at in sectors {
        checksums::restore_copies(forest, at)?;
    }
    Ok(())
}

/// The good copy of a block of whatever tree: its place, its filesystem and its checksum are right.
fn good_block(forest: &Forest, at: butterfs_ondisk::Logical, bytes: &mut [u8]) -> bool {
    let store = &forest.store;
    let mut best: Option<(u64, Vec<u8>)> = None;
    for copy in store.volume.preferred_copies(at, bytes.len()) {
        if store.volume.read_copy(at, copy, bytes).is_err() {
            continue;
        }
        let Some(header) = store.sealed_header(at, bytes) else { continue };
        let generation = header.generation.get();
        let is_newer = best.as_ref().is_none_or(|(best, _)| *best < generation);
        if generation < store.generation.get() && is_newer {
            best = Some((generation, bytes.to_vec()));
        }
    }
    best.map(|(_, best)| bytes.copy_from_slice(&best)).is_some()
}
