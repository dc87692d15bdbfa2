//! Whether the devices have one history: a device that is behind was away, or it was written without the others, who
//! were written without it. In the second case both sides have things that the other lacks, and of each address both
//! have a block that looks right; such devices are refused.
//!
//! The *side* of a device is all that its superblock leads to on it and on those that are as old. With `newest` the
//! generation that rules and `last` that of the side:
//!
//! 1. `last == newest`: two copies of a block of the last commit that are both sound and differ are of two histories.
//!    So they are where a device counts as whole although a power cut kept its superblock from the last commit. Blocks
//!    of the root tree and of the device tree are compared: the first commit without a device says in the device tree
//!    that this one was left behind, so where nothing differs there, it is known, and read last.
//! 2. The others could not have been written without the side, or the side cannot be opened by itself: it was away, or
//!    a power cut came between superblocks.
//! 3. The device tree of the newest says in which states a device was left behind (`extent::stale_devices`): the side
//!    is one of them, to the checksum of its root, or it is of another history.
//! 4. A block that the side wrote in its last commit is found on the others. Another one of the same commit: it is of
//!    another history, whatever else is found, because no commit writes an address twice. Else the same one: it was
//!    away. Else an older one, which the others never overwrote: it is of another history. An inode that the side
//!    changed last in that commit is found in the others' trees: another one of that commit, the same, or one of
//!    before. Where neither is found, the device tree may say that the side was left with an older state than it has:
//!    then it is of another history, too.
//! 5. What nothing of this tells is refused too, because the others have overwritten everything: only whoever moved the
//!    devices knows.
//!
//! In 4 only what people write counts, subvolumes, because it carries times in nanoseconds: blocks of the extent tree,
//! the free space tree and others may well be alike in two histories. A side whose last commits changed no subvolume
//! has nothing to lose in them, so its last commit is the last one that changed one.
//!
//! The answer to a refusal is `stale=DEVID`: what those devices have is given up.

use super::open_chunks;
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::options::Options;
use crate::transaction::{Core, Tree};
use butterfs_device::{BlockDevice, ReadOnlyDevice};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::{InodeItem, LeftState, RootItem, StaleDevice};
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{DeviceId, Generation, Key, KeyType, Logical, TreeId};
use butterfs_tree::{BlockIdentity, Node, NodePtr};
use butterfs_volume::{SPLIT_HINT, Volume};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Blocks of one tree that are looked at.
const MOST_BLOCKS: usize = 256;
/// Clean tree blocks of a side that are kept in memory.
const SIDE_CACHE: usize = 8 << 20;

type Side = Vec<(DeviceId, Superblock, Arc<dyn BlockDevice>)>;

/// The verdict of a comparison, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verdict {
    /// Nothing tells.
    Unknown,
    /// The others have something older than the side: it was never there, or a device has lost the write.
    Missing,
    /// The side is an earlier state of what the others have. Two histories can have the same block, too, if it has no
    /// times.
    Away,
    /// The side has something that the others never had.
    Split,
}

/// Refuses devices that were written without each other, and those of which nobody can tell.
pub(super) fn check(core: &Core, newest: &Superblock) -> Result<()> {
    let mut sides: BTreeMap<u64, Side> = BTreeMap::new();
    for member in core.volume.opened_as() {
        sides.entry(member.1.generation.get()).or_default().push(member);
    }
    let Some(leading) = sides.remove(&newest.generation.get()) else { return Ok(()) };
    let forgiven = sides.values().flatten().filter(|(id, ..)| core.volume.is_whole_device(*id)).cloned();
    check_leading(core, newest, &forgiven.chain(leading.iter().cloned()).collect())?;
    let leading: Vec<DeviceId> = leading.iter().map(|(id, ..)| *id).collect();
    for side in sides.values() {
        let what = match judge(core, &leading, side)? {
            Verdict::Away => continue,
            Verdict::Split | Verdict::Missing => "was written without the other devices, and they without it",
            Verdict::Unknown => {
                "has missed so many commits that nothing tells whether it was away or was written without the other \
                 devices"
            }
        };
        return Err(refused(format!("{} {what}", names(side))));
    }
    Ok(())
}

fn refused(sentence: String) -> Error {
    Error::refused_at(Errno::EINVAL, format!("{sentence} ({SPLIT_HINT})"))
}

fn names(side: &Side) -> String {
    let names: Vec<String> = side.iter().map(|(id, _, device)| format!("{} (devid {id})", device.name())).collect();
    names.join(", ")
}

/// 1: the devices that have the newest generation, or count as if they had.
fn check_leading(core: &Core, newest: &Superblock, leading: &Side) -> Result<()> {
    let globals = core.globals();
    for tree in [&globals.root, &globals.dev] {
        let Some((one, other)) = differing(core, tree, newest.generation(), leading)? else { continue };
        let pair: Side = leading.iter().filter(|(id, ..)| [one, other].contains(id)).cloned().collect();
        return Err(refused(format!("{} were written without each other: their last commits differ", names(&pair))));
    }
    Ok(())
}

/// Two devices that have sound blocks of `generation` at one address of the tree, which differ.
fn differing(core: &Core, tree: &Tree, generation: Generation, leading: &Side) -> Result<Option<(DeviceId, DeviceId)>> {
    if leading.len() < 2 {
        return Ok(None);
    }
    let mut differing = None;
    visit(core, tree.root(), generation, &mut |node| {
        let mut seen: Option<(DeviceId, [u8; 32])> = None;
        for (id, ..) in leading {
            let Some(header) = block_on(core, node.at(), *id).filter(|header| header.generation.get() == generation.0)
            else {
                continue;
            };
            match seen {
                Some((other, checksum)) if checksum != significant(core, header.csum) => differing = Some((other, *id)),
                _ => seen = Some((*id, significant(core, header.csum))),
            }
        }
        if differing.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(differing)
}

fn judge(core: &Core, leading: &[DeviceId], side: &Side) -> Result<Verdict> {
    let superblock = side[0].1;
    let ids: Vec<DeviceId> = side.iter().map(|(id, ..)| *id).collect();
    if !core.volume.can_do_without(&core.volume.chunk_map(), &ids) {
        return Ok(Verdict::Away);
    }
    if side.iter().any(|(_, other, _)| other.root != superblock.root) {
        return Ok(Verdict::Split);
    }
    let Ok(lone) = open_side(side, core.env().clone()) else { return Ok(Verdict::Away) };
    let root = lone.globals_root();
    let Ok(block) = lone.core.nodes.load(&root.root()) else { return Ok(Verdict::Away) };
    if let Some(verdict) = left_behind(core, side, &superblock, &block) {
        return Ok(verdict);
    }
    if lone.core.volume.check_survivable(&lone.core.volume.chunk_map()).is_err() {
        // Nobody could have written it alone.
        return Ok(Verdict::Away);
    }
    let previous = core.superblock().previous_commit();
    match compare(core, leading, &lone, &root)? {
        Verdict::Unknown if was_left_earlier(core, side, &superblock) => Ok(Verdict::Split),
        // The others still have all blocks of the commit before their last one. What contradicts would be there.
        Verdict::Unknown if superblock.generation() == previous => Ok(Verdict::Away),
        verdict => Ok(verdict),
    }
}

/// 3: what the newest's device tree says.
fn left_behind(core: &Core, side: &Side, superblock: &Superblock, root: &Node) -> Option<Verdict> {
    let stale = core.devices.stale.lock();
    let known: Vec<LeftState> =
        side.iter().filter_map(|(id, ..)| stale.get(id)).flat_map(|known| known.item.left).collect();
    let same = known.into_iter().find(|state| state.generation == superblock.generation)?;
    let is_it =
        same.root == superblock.root && significant(core, same.checksum) == significant(core, root.header().csum);
    Some(if is_it { Verdict::Away } else { Verdict::Split })
}

/// Whether the newest's device tree says that the side was not written any more before it reached its last commit,
/// which the others have not made with it then.
fn was_left_earlier(core: &Core, side: &Side, superblock: &Superblock) -> bool {
    let stale = core.devices.stale.lock();
    side.iter().filter_map(|(id, ..)| stale.get(id)).any(|known| {
        let is_before = |state: &LeftState| state.generation.get() < superblock.generation.get();
        known.item.flags.get() & StaleDevice::IN_USE == 0 && known.item.left.iter().all(is_before)
    })
}

/// A side, opened by itself.
struct Lone {
    core: Core,
    root: Arc<Tree>,
}

impl Lone {
    fn globals_root(&self) -> Arc<Tree> {
        Arc::clone(&self.root)
    }
}

fn open_side(side: &Side, env: Env) -> Result<Lone> {
    let alone =
        |device: &Arc<dyn BlockDevice>| Arc::new(ReadOnlyDevice::new(Arc::clone(device))) as Arc<dyn BlockDevice>;
    let devices = side.iter().map(|(.., device)| alone(device)).collect();
    let (volume, superblock, _) = Volume::open_some(devices, true)?;
    let options = Options { read_only: true, degraded: true, no_log_replay: true, ..Options::default() };
    let options = Options { node_cache_bytes: SIDE_CACHE, ..options };
    let (core, _) = open_chunks(volume, &superblock, BlockIdentity::of(&superblock, false), options, env)?;
    let root = Arc::new(Tree::from_superblock(TreeId::ROOT, superblock.tree_root()));
    Ok(Lone { core, root })
}

/// 4: blocks and inodes of the side's last commit that changed a subvolume.
fn compare(core: &Core, leading: &[DeviceId], lone: &Lone, root: &Tree) -> Result<Verdict> {
    let mut subvolumes: Vec<(TreeId, RootItem)> = Vec::new();
    let listed = root.scan(&lone.core, Key::MIN, Key::MAX, &mut |key, data| {
        if let Some(item) = RootItem::parse(data).filter(|_| key.kind == KeyType::ROOT_ITEM && is_subvolume(&key)) {
            subvolumes.push((TreeId(key.objectid), item));
        }
        Ok(ControlFlow::Continue(()))
    });
    if listed.is_err() {
        // Parts of it are gone, so it cannot be mounted by itself.
        return Ok(Verdict::Away);
    }
    let last = Generation(subvolumes.iter().map(|(_, item)| item.generation.get()).max().unwrap_or(0));
    let mut evidence = Evidence::default();
    // What is gone says nothing.
    let _ = visit(&lone.core, root.root(), last, &mut |node| {
        let lists = |(key, data): (Key, &[u8])| {
            let item = RootItem::parse(data).filter(|_| key.kind == KeyType::ROOT_ITEM && is_subvolume(&key));
            item.is_some_and(|item| item.generation.get() == last.0)
        };
        if node.is_leaf() && node.items().any(lists) {
            evidence.add(blocks(core, leading, node, node.generation()));
        }
        evidence.is_enough()
    });
    for (id, item) in subvolumes.iter().filter(|(_, item)| item.generation.get() == last.0) {
        let _ = visit(&lone.core, root_of(*id, item), last, &mut |node| {
            evidence.add(blocks(core, leading, node, last));
            if node.is_leaf() {
                evidence.add(inodes(core, *id, node, last));
            }
            evidence.is_enough()
        });
    }
    Ok(evidence.verdict)
}

/// The verdict of all comparisons together: the strongest.
struct Evidence {
    verdict: Verdict,
}

impl Default for Evidence {
    fn default() -> Evidence {
        Evidence { verdict: Verdict::Unknown }
    }
}

impl Evidence {
    fn add(&mut self, found: Verdict) {
        self.verdict = self.verdict.max(found);
    }

    fn is_enough(&self) -> ControlFlow<()> {
        if self.verdict == Verdict::Split { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn is_subvolume(key: &Key) -> bool {
    key.objectid == TreeId::FS.0 || (256..=u64::MAX - 256).contains(&key.objectid)
}

fn root_of(id: TreeId, item: &RootItem) -> NodePtr {
    let tree = Tree::from_item(id, 0, *item);
    tree.root()
}

/// Calls `each` for the blocks of a tree that were written in `since` or later, parents first.
fn visit(core: &Core, root: NodePtr, since: Generation, each: &mut dyn FnMut(&Node) -> ControlFlow<()>) -> Result<()> {
    let (mut next, mut seen) = (vec![root], 0);
    while let Some(ptr) = next.pop() {
        if ptr.generation < since || seen == MOST_BLOCKS {
            continue;
        }
        seen += 1;
        let node = core.nodes.load(&ptr)?;
        if each(&node).is_break() {
            return Ok(());
        }
        if !node.is_leaf() {
            next.extend((0..node.nritems()).map(|slot| node.child_ptr(slot, ptr.tree)));
        }
    }
    Ok(())
}

/// The bytes of a block's checksum that count: the field is as long as that of the longest kind, and nothing protects
/// the rest.
fn significant(core: &Core, mut checksum: [u8; 32]) -> [u8; 32] {
    checksum[core.checksum_kind().len()..].fill(0);
    checksum
}

/// The header of a sound block at `at` on a device.
fn block_on(core: &Core, at: Logical, on: DeviceId) -> Option<Header> {
    let bytes = core.volume.read_on(at, core.nodesize() as usize, on)?;
    let (header, _) = Header::read_from_prefix(&bytes).ok()?;
    let kind = core.checksum_kind();
    let is_block = header.bytenr.get() == at.0 && header.fsid == core.superblock().block_fsid();
    (is_block && kind.matches(&bytes[32..], &header.csum[..kind.len()])).then_some(header)
}

/// Compares the content of the other devices with `node` of the side, which is of its commit `last`.
fn blocks(core: &Core, leading: &[DeviceId], node: &Node, last: Generation) -> Verdict {
    let own = node.header();
    if own.generation.get() != last.0 {
        return Verdict::Unknown;
    }
    let verdict = |header: Header| match header.generation.get().cmp(&last.0) {
        Ordering::Equal if significant(core, header.csum) != significant(core, own.csum) => Verdict::Split,
        // A node holds no times.
        Ordering::Equal if node.is_leaf() => Verdict::Away,
        Ordering::Less => Verdict::Missing,
        _ => Verdict::Unknown,
    };
    let found = leading.iter().filter_map(|id| block_on(core, node.at(), *id)).map(verdict);
    found.max().unwrap_or(Verdict::Unknown)
}

/// Compares the inodes that the side changed last, in its commit `last`, with those of the other devices.
fn inodes(core: &Core, id: TreeId, leaf: &Node, last: Generation) -> Verdict {
    let Ok(tree) = core.tree(id) else { return Verdict::Unknown };
    let mut verdict = Verdict::Unknown;
    for (key, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::INODE_ITEM) {
        let Ok((own, _)) = InodeItem::read_from_prefix(data) else { continue };
        if own.transid.get() != last.0 {
            continue;
        }
        let Ok(Some(found)) = tree.get(core, key) else { continue };
        let Ok((found, _)) = InodeItem::read_from_prefix(&found) else { continue };
        verdict = verdict.max(match found.transid.get().cmp(&last.0) {
            _ if found == own => Verdict::Away,
            Ordering::Equal => Verdict::Split,
            Ordering::Less => Verdict::Missing,
            Ordering::Greater => Verdict::Unknown,
        });
    }
    verdict
}
