//! The log laid over the trees of the last commit, for reading: the second way, where the log cannot be replayed.
//!
//! ```text
//! log of a subvolume ─► its items, as far as they can be read ─► a layer over the subvolume: in place of items, or new
//! checksums in the logs ─► a layer over the checksum tree
//! ```
//!
//! The order is that of a replay: inode items with deletions, entries, attributes and names and extents, link counts.
//!
//! Invariants: (1) nothing of the last commit goes because the log lacks it, unless the part of the log where it would
//! be is whole; (2) at most [`MOST_BYTES`] of items are kept; (3) payloads are parsed without trust.

mod extents;
mod names;

use crate::block::Quality;
use crate::roots::Roots;
use crate::tree::{Losses, Root, Tree, Visit};
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::items::{InodeItem, RootItem};
use butterfs_ondisk::{Key, KeyType, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of items of all logs at most.
const MOST_BYTES: usize = 256 << 20;
/// The first number of an object that is no inode.
const FIRST_SPECIAL: u64 = u64::MAX - 255;
/// Lost parts of a log that are named.
const MOST_NAMED: usize = 16;

/// An item, and how sure its block is.
type Item = (Vec<u8>, Quality);
/// Items of a tree; `None`: there is no such item any more.
type Items = BTreeMap<Key, Option<Item>>;
/// The layers over trees, by tree and address of the root.
pub(crate) type Layers = FxHashMap<(TreeId, u64), Layer>;

/// Items that lie over those of a tree.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    items: Items,
    /// Objects that the log has something about.
    known: FxHashSet<u64>,
    /// The parts of the log that could not be read.
    losses: Losses,
}

impl Layer {
    /// Shows the items of a tree with those of the layer; see [`Tree::scan`].
    pub(crate) fn scan(&self, tree: &Tree<'_>, first: Key, last: Key, visit: &mut Visit<'_>) -> Losses {
        if last < first {
            return Losses::default();
        }
        let mut own = self.items.range(first..=last).peekable();
        let mut flow = ControlFlow::Continue(());
        let mut losses = tree.scan_committed(first, last, &mut |key, data, quality| {
            while let Some((before, item)) = own.next_if(|(own, _)| **own < key)
                && flow.is_continue()
            {
                flow = show(*before, item, visit);
            }
            if flow.is_continue() {
                flow = match own.next_if(|(own, _)| **own == key) {
                    Some((_, item)) => show(key, item, visit),
                    None => visit(key, data, quality),
                };
            }
            flow
        });
        for (key, item) in own {
            if flow.is_continue() {
                flow = show(*key, item, visit);
            }
        }
        if first.objectid == last.objectid && self.known.contains(&first.objectid) && lacks(&self.losses, first, last) {
            losses.add(self.losses.clone());
        }
        losses
    }
}

fn show(key: Key, item: &Option<Item>, visit: &mut Visit<'_>) -> ControlFlow<()> {
    item.as_ref().map_or(ControlFlow::Continue(()), |(data, quality)| visit(key, data, *quality))
}

/// Whether keys from `first` to `last` may have lain in blocks that are gone.
fn lacks(losses: &Losses, first: Key, last: Key) -> bool {
    let is_in = |(from, end): &(Key, Option<Key>)| *from <= last && end.is_none_or(|end| first < end);
    losses.blocks() > losses.ranges.len() as u64 || losses.ranges.iter().any(is_in)
}

/// The layers of the logs of a filesystem.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    pub(crate) layers: Layers,
    /// Blocks of logs that are gone.
    pub(crate) losses: Losses,
    /// A sentence for each part that is missing.
    pub(crate) notes: Vec<String>,
}

/// Reads all logs.
pub(crate) fn of(wreck: &Wreck) -> Laid {
    let (sb, mut laid) = (wreck.superblock(), Laid::default());
    let roots = Roots::assemble(wreck);
    let generation = sb.generation.get().saturating_add(1);
    let (at, level) = (sb.log_root.get(), Some(sb.log_root_level));
    let list = Tree::new(wreck, Root { tree: TreeId::TREE_LOG, at, level, generation: Some(generation) });
    let mut logs: BTreeMap<TreeId, Root> = BTreeMap::new();
    let losses = list.scan_committed(Key::MIN, Key::MAX, &mut |key, data, quality| {
        let is_log = key.kind == KeyType::ROOT_ITEM && key.objectid == TreeId::TREE_LOG.0 && is_own(quality);
        if let Some(item) = is_log.then(|| RootItem::parse(data)).flatten() {
            let (at, generation) = (item.bytenr.get(), Some(item.generation.get()));
            logs.insert(TreeId(key.offset), Root { tree: TreeId::TREE_LOG, at, level: Some(item.level), generation });
        }
        ControlFlow::Continue(())
    });
    if losses.blocks() > 0 {
        laid.notes.push("the list of the logs cannot be read whole: what was synced last may be missing".to_owned());
    }
    laid.losses.add(losses);
    let (mut room, mut checksums) = (MOST_BYTES, BTreeMap::new());
    for (id, root) in logs {
        let Some(committed) = roots.trees.get(&id).map(|known| known.root) else {
            laid.notes.push(format!("subvolume {id} has a log, and nothing else is left of it"));
            continue;
        };
        let mut merge = Merge::read(Tree::new(wreck, root), Tree::new(wreck, committed), generation, &mut room);
        laid.losses.add(merge.losses.clone());
        laid.notes.extend(merge.lost_parts(id));
        checksums.extend(merge.log.iter().filter(|(key, _)| key.kind == KeyType::EXTENT_CSUM).map(owned));
        merge.run();
        let known = merge.log.keys().map(|key| key.objectid).collect();
        let layer = Layer { items: merge.items, known, losses: merge.losses };
        laid.layers.insert((id, committed.at), layer);
    }
    if let Some(root) = roots.checksums() {
        let items = extents::checksums(&Tree::new(wreck, root), &checksums);
        laid.layers.insert((TreeId::CSUM, root.at), Layer { items, ..Layer::default() });
    }
    laid
}

fn owned((key, item): (&Key, &Item)) -> (Key, Item) {
    (*key, item.clone())
}

/// Whether items are of this log, and not of one before.
fn is_own(quality: Quality) -> bool {
    quality.trust() != Trust::Older && quality != Quality::Confirmed
}

/// A subvolume and its log on the way to a layer.
struct Merge<'a> {
    committed: Tree<'a>,
    log: BTreeMap<Key, Item>,
    losses: Losses,
    /// Some of the log's items come from damaged blocks, of which others may be missing.
    has_doubtful: bool,
    /// Inodes without a name when they were synced: nothing of them comes back.
    nameless: FxHashSet<u64>,
    /// The generation that a replay would have.
    generation: u64,
    items: Items,
    /// Inodes whose names may have changed.
    renamed: BTreeSet<u64>,
}

impl<'a> Merge<'a> {
    fn read(tree: Tree<'_>, committed: Tree<'a>, generation: u64, room: &mut usize) -> Merge<'a> {
        let (mut log, mut has_doubtful) = (BTreeMap::new(), false);
        let losses = tree.scan_committed(Key::MIN, Key::MAX, &mut |key, data, quality| {
            if !is_own(quality) {
                return ControlFlow::Continue(());
            }
            has_doubtful |= quality.trust() > Trust::Proved;
            let Some(rest) = room.checked_sub(data.len() + size_of::<Key>()) else {
                has_doubtful = true;
                return ControlFlow::Break(());
            };
            *room = rest;
            log.insert(key, (data.to_vec(), quality));
            ControlFlow::Continue(())
        });
        let (nameless, items, renamed) = (FxHashSet::default(), Items::new(), BTreeSet::new());
        Merge { committed, log, losses, has_doubtful, nameless, generation, items, renamed }
    }

    /// Sentences about the parts of the log that are lost.
    fn lost_parts(&self, id: TreeId) -> Vec<String> {
        let parts = self.losses.ranges.iter().take(MOST_NAMED).map(|(from, end)| {
            let (from, end) = (from.objectid, end.map(|end| end.objectid).filter(|end| *end < FIRST_SPECIAL));
            let missing = match (from, end) {
                (FIRST_SPECIAL.., _) => "the checksums of what was synced last".to_owned(),
                (0, None) => "what was synced last".to_owned(),
                (_, None) => format!("what was synced last of inodes from {from} on"),
                (_, Some(end)) => format!("what was synced last of inodes from {from} to {end}"),
            };
            format!("a block of the log of subvolume {id} cannot be read: {missing} may be missing")
        });
        parts.collect()
    }

    fn run(&mut self) {
        let inodes = self.of_log(KeyType::INODE_ITEM);
        let parsed = |data: &[u8]| InodeItem::read_from_prefix(data).ok().map(|(item, _)| item);
        let is_nameless = |data: &[u8]| parsed(data).is_some_and(|item| item.nlink.get() == 0);
        self.nameless = inodes.iter().filter(|(_, (data, _))| is_nameless(data)).map(|(key, _)| key.objectid).collect();
        for (key, (data, quality)) in self.of_log(KeyType::INODE_ITEM) {
            self.drop_attributes(key.objectid);
            self.drop_entries(key.objectid);
            self.renamed.insert(key.objectid);
            if let Some(item) = parsed(&data) {
                self.inode(key.objectid, item, quality);
            }
        }
        for (key, (data, quality)) in self.of_log(KeyType::DIR_INDEX) {
            self.entry(key, &data, quality);
        }
        for (key, (data, quality)) in self.of_log(KeyType::XATTR_ITEM) {
            self.put(key, data, quality);
        }
        for kind in [KeyType::INODE_REF, KeyType::INODE_EXTREF] {
            for (key, item) in self.of_log(kind) {
                self.names(key, item);
            }
        }
        self.extents();
        self.count_names();
    }

    /// The items of one type that the log has of inodes with names.
    fn of_log(&self, kind: KeyType) -> Vec<(Key, Item)> {
        let is_of_kind = |key: &Key| key.kind == kind && !self.nameless.contains(&key.objectid);
        self.log.iter().filter(|(key, _)| is_of_kind(key)).map(owned).collect()
    }

    /// Whether the log has lost items with such keys, as far as can be told.
    fn may_lack(&self, first: Key, last: Key) -> bool {
        self.has_doubtful || lacks(&self.losses, first, last)
    }

    /// An item as it is by now.
    fn get(&self, key: Key) -> Option<Item> {
        if let Some(known) = self.items.get(&key) {
            return known.clone();
        }
        let mut found = None;
        self.committed.scan_committed(key, key, &mut |_, data, quality| {
            found = Some((data.to_vec(), quality));
            ControlFlow::Break(())
        });
        found
    }

    fn put(&mut self, key: Key, data: Vec<u8>, quality: Quality) {
        self.items.insert(key, Some((data, quality)));
    }

    fn drop(&mut self, key: Key) {
        self.items.insert(key, None);
    }

    /// The items of the last commit with keys from `first` to `last`.
    fn committed(&self, first: Key, last: Key) -> Vec<(Key, Item)> {
        let mut found = Vec::new();
        self.committed.scan_committed(first, last, &mut |key, data, quality| {
            found.push((key, (data.to_vec(), quality)));
            ControlFlow::Continue(())
        });
        found
    }

    fn inode_item(&self, ino: u64) -> Option<(InodeItem, Quality)> {
        let (data, quality) = self.get(inode_key(ino))?;
        Some((InodeItem::read_from_prefix(&data).ok()?.0, quality))
    }

    /// Whether an inode is there, or may have been.
    fn exists(&self, ino: u64) -> bool {
        let key = inode_key(ino);
        let is_logged = || self.log.range(key..).next().is_some_and(|(known, _)| known.objectid == ino);
        self.get(key).is_some() || (is_logged() && self.may_lack(key, key))
    }

    /// An inode item of the log. That of an inode which was not synced itself says little about one that is there.
    fn inode(&mut self, ino: u64, logged: InodeItem, quality: Quality) {
        let before = self.inode_item(ino).map(|(item, _)| item);
        let is_synced = logged.generation.get() != 0;
        let item = match before {
            Some(before) if is_synced => InodeItem { nbytes: before.nbytes, ..logged },
            Some(before) if is_file(&logged) && is_file(&before) && logged.size.get() != 0 => {
                InodeItem { size: logged.size, ..before }
            }
            Some(_) => return,
            // The last commit may have lost its item.
            None if !is_synced && self.has_extents(ino) => return,
            None => {
                let generation = if is_synced { logged.generation } else { self.generation.into() };
                InodeItem { generation, nbytes: 0.into(), ..logged }
            }
        };
        self.put(inode_key(ino), item.as_bytes().to_vec(), quality);
    }

    fn has_extents(&self, ino: u64) -> bool {
        let key = |offset| Key::new(ino, KeyType::EXTENT_DATA, offset);
        !self.committed(key(0), key(u64::MAX)).is_empty()
    }

    /// The log has all extended attributes of an inode, or none were left.
    fn drop_attributes(&mut self, ino: u64) {
        let (first, last) = all_of(ino, KeyType::XATTR_ITEM);
        if self.may_lack(first, last) {
            return;
        }
        let gone = self.committed(first, last).into_iter().filter(|(key, _)| !self.log.contains_key(key));
        let gone: Vec<Key> = gone.map(|(key, _)| key).collect();
        gone.into_iter().for_each(|key| self.drop(key));
    }
}

fn inode_key(ino: u64) -> Key {
    Key::new(ino, KeyType::INODE_ITEM, 0)
}

/// The first and the last key of an object's items of one type.
fn all_of(object: u64, kind: KeyType) -> (Key, Key) {
    (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX))
}

fn is_file(item: &InodeItem) -> bool {
    item.mode.get() & crate::subvolume::TYPE_MASK == crate::subvolume::REGULAR
}
