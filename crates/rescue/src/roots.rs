//! Roots: which trees there are, where each begins, and what it yields.
//!
//! Invariant: a root is the one that the last commit names as long as it can be read; every other choice is told
//! ([`Source`]).

use crate::block::{Expect, Quality};
use crate::index::Found;
use crate::key::KeyRange;
use crate::tree::{Losses, Root, Tree, children};
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::items::{InodeItem, RootItem, RootRef};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// The source of a root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// The superblock, or the root tree that it names.
    Current,
    /// A slot of the superblock's backup roots, or the root tree that it names.
    Backup(usize),
    /// An older root tree that a scan has found.
    OlderRootTree,
    /// Blocks that a scan has found.
    Found,
    /// The user.
    Asked,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Current => f.write_str("the last commit"),
            Source::Backup(slot) => write!(f, "backup root {slot}"),
            Source::OlderRootTree => f.write_str("an older root tree"),
            Source::Found => f.write_str("blocks that a scan has found"),
            Source::Asked => f.write_str("the command line"),
        }
    }
}

/// A subvolume, or another tree that a root item names.
#[derive(Clone, Debug)]
pub struct TreeRoot {
    /// Where it begins.
    pub root: Root,
    /// Its item, where there is one.
    pub item: Option<RootItem>,
    /// The offset of the item's key: the transaction that made a snapshot.
    pub key_offset: u64,
    /// The source of the statement.
    pub source: Source,
}

impl TreeRoot {
    /// Whether it is a subvolume that is being deleted.
    pub fn is_deleted(&self) -> bool {
        self.item.is_some_and(|item| item.refs.get() == 0)
    }
}

/// The place of a subvolume, as one of the references in the root tree has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The subvolume that it is in.
    pub parent: TreeId,
    /// The directory there.
    pub directory: u64,
    /// Its name there.
    pub name: Vec<u8>,
}

/// The trees of one moment.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// By number.
    pub trees: BTreeMap<TreeId, TreeRoot>,
    /// Places of subvolumes; several of one where its references contradict each other.
    pub names: BTreeMap<TreeId, Vec<Home>>,
    /// Where the root tree itself begins.
    pub root_tree: Option<Root>,
    /// Blocks of the root tree that are gone or damaged.
    pub losses: Losses,
    /// Later allocations, where the trees are those of an earlier time.
    pub(crate) since: Option<crate::live::Since>,
}

/// Places of one subvolume that are compared.
const MOST_HOMES: usize = 8;
/// Root trees that are looked at for a tree whose own root is lost.
const MOST_OLDER: usize = 64;

/// The time of the last change of any subvolume in the state that a root tree belongs to, in seconds since 1970; `None`
/// where it names no subvolume.
pub fn last_change(wreck: &Wreck, root: Root) -> Option<i64> {
    let mut last = None;
    Tree::new(wreck, root).scan(Key::MIN, Key::MAX, &mut |key, item, _| {
        let is_subvolume = key.kind == KeyType::ROOT_ITEM && TreeId(key.objectid).is_subvolume();
        if let Some(item) = is_subvolume.then(|| RootItem::parse(item)).flatten() {
            last = last.max(Some(item.ctime.sec.get()));
        }
        ControlFlow::Continue(())
    });
    last
}

/// The root trees that are known, the current one first, then the newest.
pub fn root_trees(wreck: &Wreck) -> Vec<(Root, Source)> {
    let sb = wreck.superblock();
    let root = |at: u64, level: u8, generation: u64| Root {
        tree: TreeId::ROOT,
        at,
        level: Some(level),
        generation: Some(generation),
    };
    let mut all = vec![(root(sb.root.get(), sb.root_level, sb.generation.get()), Source::Current)];
    let slots = sb.super_roots.iter().enumerate().filter(|(_, slot)| slot.tree_root.get() != 0);
    let mut older: Vec<(Root, Source)> = slots
        .map(|(number, slot)| {
            (root(slot.tree_root.get(), slot.tree_root_level, slot.tree_root_gen.get()), Source::Backup(number))
        })
        .collect();
    let found = tops(wreck, TreeId::ROOT);
    older.extend(found.into_iter().map(|top| (root(top.logical, top.level, top.generation), Source::OlderRootTree)));
    older.sort_by_key(|(root, source)| (std::cmp::Reverse(root.generation), *source));
    all.extend(older);
    let mut seen = FxHashSet::default();
    all.retain(|(root, _)| root.at != 0 && seen.insert((root.at, root.generation)));
    all
}

/// Of the blocks that a scan has found of a tree, the highest of each generation, the newest first.
pub fn tops(wreck: &Wreck, tree: TreeId) -> Vec<Found> {
    let Some(index) = wreck.index() else { return Vec::new() };
    let mut highest: BTreeMap<u64, Found> = BTreeMap::new();
    for found in index.of_tree(tree) {
        let known = highest.entry(found.generation).or_insert(*found);
        // Of a transaction's blocks of one level the last one counts: addresses ascend.
        if known.level < found.level || (known.level == found.level && known.logical < found.logical) {
            *known = *found;
        }
    }
    highest.into_values().rev().collect()
}

impl Roots {
    /// Reads one root tree.
    pub fn of(wreck: &Wreck, root_tree: Root, source: Source) -> Roots {
        let mut roots = Roots { root_tree: Some(root_tree), ..Roots::default() };
        let tree = Tree::new(wreck, root_tree);
        let losses = tree.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            let is_other = quality.trust() == Trust::Older && source != Source::Asked;
            roots.learn(key, data, if is_other { Source::OlderRootTree } else { source });
            ControlFlow::Continue(())
        });
        roots.losses = losses;
        roots.note_origins(wreck);
        roots
    }

    /// Tells of which subvolume each snapshot was taken.
    fn note_origins(&self, wreck: &Wreck) {
        let items = || self.trees.iter().filter_map(|(id, root)| Some((*id, root.item?)));
        let by_uuid: FxHashMap<[u8; 16], TreeId> = items().map(|(id, item)| (item.uuid, id)).collect();
        for (id, item) in items().filter(|(_, item)| item.parent_uuid != [0; 16]) {
            if let Some(source) = by_uuid.get(&item.parent_uuid).filter(|source| **source != id) {
                wreck.note_origin(id, *source, item.otransid.get());
            }
        }
    }

    fn learn(&mut self, key: Key, data: &[u8], source: Source) {
        match key.kind {
            KeyType::ROOT_ITEM => {
                let Some(item) = RootItem::parse(data).filter(|item| item.bytenr.get() != 0) else { return };
                let tree = TreeId(key.objectid);
                let (at, level, generation) = (item.bytenr.get(), Some(item.level), Some(item.generation.get()));
                let root = Root { tree, at, level, generation };
                self.trees.insert(tree, TreeRoot { root, item: Some(item), key_offset: key.offset, source });
            }
            KeyType::ROOT_REF | KeyType::ROOT_BACKREF => {
                let (parent, child) = match key.kind {
                    KeyType::ROOT_REF => (key.objectid, key.offset),
                    _ => (key.offset, key.objectid),
                };
                let Ok((reference, name)) = RootRef::read_from_prefix(data) else { return };
                if let Some(name) = name.get(..usize::from(reference.name_len.get())) {
                    let home = Home { parent: TreeId(parent), directory: reference.dirid.get(), name: name.to_vec() };
                    let homes = self.names.entry(TreeId(child)).or_default();
                    if homes.len() < MOST_HOMES && !homes.contains(&home) {
                        homes.push(home);
                    }
                }
            }
            _ => {}
        }
    }

    /// The trees of the last commit, each by its newest root that can be read.
    pub fn assemble(wreck: &Wreck) -> Roots {
        let known = root_trees(wreck);
        let mut all = known.iter();
        let mut roots = match all.next() {
            Some((root, source)) => Roots::of(wreck, *root, *source),
            None => Roots::default(),
        };
        let wanted = |roots: &Roots| {
            let is_there = |root: &Root| Tree::new(wreck, *root).has_root() || has_leaves(wreck, root);
            let lost = |tree: &TreeId| roots.trees.get(tree).is_none_or(|root| !is_there(&root.root));
            [TreeId::FS, TreeId::CSUM].iter().any(lost) || roots.trees.keys().any(lost)
        };
        if let Some(extents) = roots.trees.get(&TreeId::EXTENT) {
            wreck.note_extents(extents.root);
        }
        let complete_at = if roots.losses.is_none() { u64::MAX } else { complete_at(wreck, &known[1..]) };
        for (root, source) in all.take(MOST_OLDER) {
            if !wanted(&roots) {
                break;
            }
            roots.complete(wreck, Roots::of(wreck, *root, *source));
        }
        if wanted(&roots) {
            roots.complete_by_slots(wreck);
            roots.complete_by_found(wreck, complete_at);
        }
        roots.renew_by_found(wreck, complete_at);
        roots
    }

    /// Takes what a scan has found of trees that the root tree of the last commit does not name any more: where an
    /// older root tree names one, a newer state; and trees that were made after the generation at which a root tree
    /// was complete. Where no root is left, all of the tree's leaves.
    fn renew_by_found(&mut self, wreck: &Wreck, complete_at: u64) {
        let Some(index) = wreck.index() else { return };
        let committed = wreck.superblock().generation.get();
        for tree in index.trees().into_iter().filter(|tree| tree.is_subvolume() || *tree == TreeId::CSUM) {
            let known = self.trees.get(&tree);
            let older = match known {
                Some(known) if matches!(known.source, Source::Current | Source::Found) => continue,
                Some(known) => known.root.generation.unwrap_or(0),
                // Deleted before.
                None => complete_at,
            };
            let written = index.of_tree(tree).iter().map(|found| found.generation);
            if !written.into_iter().any(|generation| older < generation && generation <= committed) {
                continue;
            }
            let level = known.and_then(|known| known.root.level);
            let may_be = |top: &&Found| is_highest(wreck, top) && may_be_root(top, level);
            let tops = tops(wreck, tree);
            let newest = tops.iter().find(|top| top.generation <= committed).filter(may_be);
            let of =
                |top: &Found| Root { tree, at: top.logical, level: Some(top.level), generation: Some(top.generation) };
            let root = newest.map_or(Root::of_found(tree, Some(committed)), of);
            let (item, key_offset) = known.map_or((None, 0), |known| (known.item, known.key_offset));
            self.trees.insert(tree, TreeRoot { root, item, key_offset, source: Source::Found });
        }
    }

    /// Takes over trees whose own roots cannot be read, and names.
    fn complete(&mut self, wreck: &Wreck, older: Roots) {
        // A tree that a readable root tree does not name any more has been deleted.
        let is_whole = self.root_tree.is_some() && self.losses.is_none();
        for (id, root) in older.trees {
            let can_be_read = |root: &TreeRoot| Tree::new(wreck, root.root).has_root();
            let replaces = match self.trees.get(&id) {
                // What a scan has found of it is newer than an older root.
                Some(known) => !can_be_read(known) && !has_leaves(wreck, &known.root),
                None => !is_whole,
            };
            if replaces && can_be_read(&root) {
                self.trees.insert(id, root);
            }
        }
        for (id, name) in older.names {
            self.names.entry(id).or_insert(name);
        }
    }

    fn complete_by_slots(&mut self, wreck: &Wreck) {
        let sb = wreck.superblock();
        let mut slots: Vec<_> = sb.super_roots.iter().enumerate().collect();
        slots.sort_by_key(|(_, slot)| std::cmp::Reverse(slot.tree_root_gen.get()));
        for (number, slot) in slots {
            let of_slot = [
                (TreeId::FS, slot.fs_root, slot.fs_root_level, slot.fs_root_gen),
                (TreeId::CSUM, slot.csum_root, slot.csum_root_level, slot.csum_root_gen),
            ];
            for (tree, at, level, generation) in of_slot {
                let root = Root { tree, at: at.get(), level: Some(level), generation: Some(generation.get()) };
                self.replace_lost(wreck, TreeRoot { root, item: None, key_offset: 0, source: Source::Backup(number) });
            }
        }
    }

    /// Trees that only a scan knows; where no root of a tree is left, all of its leaves.
    fn complete_by_found(&mut self, wreck: &Wreck, complete_at: u64) {
        let Some(index) = wreck.index() else { return };
        let trees: Vec<TreeId> =
            index.trees().into_iter().filter(|tree| tree.is_subvolume() || *tree == TreeId::CSUM).collect();
        for tree in trees {
            let known = self.trees.get(&tree);
            let newest = known.and_then(|known| known.root.generation);
            let tops = tops(wreck, tree);
            let is_deleted = tops.first().is_none_or(|top| top.generation <= complete_at);
            if known.is_none() && is_deleted && tree.is_subvolume() && tree != TreeId::FS {
                continue;
            }
            // The newest that is found is the one that is lost, or older.
            let top = tops.iter().find(|top| newest.is_none_or(|newest| top.generation <= newest));
            let level = known.and_then(|known| known.root.level);
            let root = match top.filter(|top| is_highest(wreck, top) && may_be_root(top, level)) {
                Some(top) => {
                    let (at, generation) = (top.logical, Some(top.generation));
                    Root { tree, at, level: Some(top.level), generation }
                }
                None => Root::of_found(tree, newest),
            };
            let (item, key_offset) = known.map_or((None, 0), |known| (known.item, known.key_offset));
            self.replace_lost(wreck, TreeRoot { root, item, key_offset, source: Source::Found });
        }
    }

    fn replace_lost(&mut self, wreck: &Wreck, other: TreeRoot) {
        let can_be_read = |root: &Root| root.at == 0 || Tree::new(wreck, *root).has_root() || has_leaves(wreck, root);
        let is_lost = self.trees.get(&other.root.tree).is_none_or(|known| !can_be_read(&known.root));
        if is_lost && can_be_read(&other.root) {
            self.trees.insert(other.root.tree, other);
        }
    }

    /// The root at an address, whatever tree it belongs to.
    pub fn at(wreck: &Wreck, at: u64) -> Option<(TreeId, TreeRoot)> {
        let block = wreck.block(&Expect::root(TreeId(0), Logical(at), None, None))?;
        let (tree, level) = (block.node.owner(), Some(block.node.level().get()));
        let root = Root { tree, at, level, generation: Some(block.node.generation().0) };
        Some((tree, TreeRoot { root, item: None, key_offset: 0, source: Source::Asked }))
    }

    /// The subvolumes, the top level among them.
    pub fn subvolumes(&self) -> impl Iterator<Item = (&TreeId, &TreeRoot)> {
        self.trees.iter().filter(|(id, _)| id.is_subvolume())
    }

    /// The checksum tree.
    pub fn checksums(&self) -> Option<Root> {
        self.trees.get(&TreeId::CSUM).map(|root| root.root)
    }

    /// The path of a subvolume, as far as names lead; an unknown part is its number.
    pub fn path_of(&self, id: TreeId) -> String {
        let (mut parts, mut at) = (Vec::new(), id);
        while at != TreeId::FS && parts.len() < 64 {
            match self.names.get(&at).and_then(|homes| homes.first()) {
                Some(home) => {
                    parts.push(String::from_utf8_lossy(&home.name).into_owned());
                    at = home.parent;
                }
                None => {
                    parts.push(format!("<{at}>"));
                    break;
                }
            }
        }
        parts.reverse();
        parts.join("/")
    }
}

/// The generation up to which the newest whole one of these root trees names all trees. One that a scan has found may
/// have been written before the end of its transaction.
fn complete_at(wreck: &Wreck, older: &[(Root, Source)]) -> u64 {
    let mut whole = older.iter().take(MOST_OLDER).filter(|(root, _)| {
        let losses = Tree::new(wreck, *root).scan(Key::MIN, Key::MAX, &mut |_, _, _| ControlFlow::Continue(()));
        losses.is_none()
    });
    let newest = whole.next().map(|(root, source)| (root.generation.unwrap_or(0), *source));
    newest.map_or(0, |(generation, source)| match source {
        Source::OlderRootTree => generation.saturating_sub(1),
        _ => generation,
    })
}

/// Whether no block of the tree that is as old or older stands higher: else this one is a part of what is lost.
fn is_highest(wreck: &Wreck, top: &Found) -> bool {
    let Some(index) = wreck.index() else { return false };
    index.of_tree(TreeId(top.owner)).iter().all(|found| found.level <= top.level || found.generation > top.generation)
}

/// Whether a scan has found leaves that stand for a lost root with something below it.
fn has_leaves(wreck: &Wreck, root: &Root) -> bool {
    let is_node = root.at != 0 && root.level.is_some_and(|level| level > 0);
    is_node
        && root.tree.is_subvolume()
        && !wreck.stand_ins(&Expect::root(root.tree, Logical(root.at), root.level, root.generation)).is_empty()
}

/// Whether a found block can stand for a root of this level. A leaf may be one of several, whose root is lost.
fn may_be_root(top: &Found, level: Option<u8>) -> bool {
    level.is_none_or(|level| top.level >= level) && (top.level > 0 || level == Some(0))
}

/// The yield of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Yield {
    /// Tree blocks that can be read.
    pub blocks: u64,
    /// Tree blocks that cannot, as far as their parents are known.
    pub missing_blocks: u64,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Yield {
    fn add(&mut self, other: Yield) {
        self.blocks += other.blocks;
        self.missing_blocks += other.missing_blocks;
        self.files = self.files.saturating_add(other.files);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Counts what trees yield; what they share is looked at once.
#[derive(Debug, Default)]
pub struct Yields {
    known: FxHashMap<(u64, u64), Yield>,
}

/// Subtrees whose yield is remembered.
const MOST_KNOWN: usize = 2 << 20;

impl Yields {
    /// The yield of the tree with this root.
    pub fn of(&mut self, wreck: &Wreck, root: &Root) -> Yield {
        self.below(wreck, &Expect::root(root.tree, Logical(root.at), root.level, root.generation))
    }

    fn below(&mut self, wreck: &Wreck, expect: &Expect) -> Yield {
        let identity = (expect.at.0, expect.generation.unwrap_or(0));
        if let Some(known) = self.known.get(&identity) {
            return *known;
        }
        let block = wreck.block(expect).filter(|block| block.fits(&expect.window) && block.quality <= Quality::Pieces);
        let Some(block) = block else { return Yield { missing_blocks: 1, ..Yield::default() } };
        let mut sum = Yield { blocks: 1, ..Yield::default() };
        if block.node.is_leaf() {
            let (files, bytes) = files_in(&block.node, &expect.window);
            sum.add(Yield { files, bytes, ..Yield::default() });
        } else {
            children(&block.node, expect, KeyRange::ALL).for_each(|child| sum.add(self.below(wreck, &child)));
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(identity, sum);
        sum
    }
}

/// The regular files whose inodes lie in a leaf, and their bytes.
pub fn files_in(leaf: &butterfs_tree::Node, window: &KeyRange) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0u64);
    for (key, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::INODE_ITEM && window.contains(*key)) {
        let item = InodeItem::read_from_prefix(data).ok().map(|(item, _)| item);
        let regular = |item: &InodeItem| item.mode.get() & crate::subvolume::TYPE_MASK == crate::subvolume::REGULAR;
        // The free space cache of version 1 lies in the root tree as such files.
        if let Some(item) = item.filter(|item| regular(item) && item.nlink.get() > 0 && key.objectid >= 256) {
            files += 1;
            bytes = bytes.saturating_add(item.size.get());
        }
    }
    (files, bytes)
}

/// A root of any tree and generation, and what it yields.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Listed {
    /// The tree.
    pub tree: u64,
    /// The transaction that wrote the root.
    pub generation: u64,
    /// Its address.
    pub bytenr: u64,
    /// Its level.
    pub level: u8,
    /// The source that names it.
    pub named_by: String,
    /// The yield of its tree.
    #[serde(flatten)]
    pub yields: Yield,
}

/// Every root of every tree: those that something names, and of what a scan has found the highest block of each
/// generation. By tree, the newest first.
pub fn all(wreck: &Wreck) -> Vec<Listed> {
    let mut named: BTreeMap<(TreeId, std::cmp::Reverse<u64>, u64), (u8, String)> = BTreeMap::new();
    let mut add = |root: &Root, source: String| {
        let generation = root.generation.unwrap_or_default();
        let key = (root.tree, std::cmp::Reverse(generation), root.at);
        named.entry(key).or_insert((root.level.unwrap_or_default(), source));
    };
    let sb = wreck.superblock();
    if sb.chunk_root.get() != 0 {
        let generation = Some(sb.chunk_root_generation.get());
        let root = Root { tree: TreeId::CHUNK, at: sb.chunk_root.get(), level: Some(sb.chunk_root_level), generation };
        add(&root, Source::Current.to_string());
    }
    for (root, source) in root_trees(wreck) {
        if !Tree::new(wreck, root).has_root() {
            add(&root, source.to_string());
            continue;
        }
        add(&root, source.to_string());
        Roots::of(wreck, root, source).trees.values().for_each(|tree| add(&tree.root, source.to_string()));
    }
    for tree in wreck.index().map(crate::Index::trees).unwrap_or_default() {
        for top in tops(wreck, tree).iter().filter(|top| is_highest(wreck, top)) {
            let root = Root { tree, at: top.logical, level: Some(top.level), generation: Some(top.generation) };
            add(&root, Source::Found.to_string());
        }
    }
    let mut yields = Yields::default();
    let mut listed = Vec::new();
    for ((tree, std::cmp::Reverse(generation), bytenr), (level, named_by)) in named {
        let root = Root { tree, at: bytenr, level: Some(level), generation: Some(generation) };
        let yields = yields.of(wreck, &root);
        let level = Tree::new(wreck, root).level().unwrap_or(level);
        listed.push(Listed { tree: tree.0, generation, bytenr, level, named_by, yields });
    }
    listed
}
