//! The pass `blocks`: what leads to blocks that cannot be read is taken out of the trees, with everything below it, and
//! items that stand behind the range of their block.
//!
//! A block that several trees share gets one new version, which they share again. Of a lost node the children are found
//! by the references that the extent tree still has (`orphans`); what a lost leaf had is put together from
//! other structures later, as far as they know it (`lost_files`).

use crate::action::Pass;
use crate::forest::Forest;
use crate::headers;
use crate::orphans::{self, Orphan};
use crate::ranges::Ranges;
use crate::salvage;
use crate::store::Store;
use crate::trouble::Result;
use crate::walk::{DropPoint, walk};
use butterfs_ondisk::{Generation, Key, KeyType, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::FxHashMap;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The fate of a block.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Same,
    Gone,
    New {
        at: Logical,
        first: Key,
    },
    /// The block is sound where it is, and only its pointer is wrong.
    OfGeneration(Generation),
    /// A sound block elsewhere, to which the pointer should lead.
    Elsewhere {
        at: Logical,
        generation: Generation,
        first: Key,
    },
}

struct Pruner<'a> {
    forest: &'a Forest,
    store: &'a Store,
    orphans: &'a OnceCell<Vec<Orphan>>,
    tree: TreeId,
    /// By address, generation and first key of the pointer: of two pointers to one block one may be wrong.
    known: FxHashMap<(u64, u64, Option<Key>), Outcome>,
    /// The losses, in words.
    lost: Vec<String>,
    /// Inodes of which the items are lost and other items were saved, of any tree.
    without_item: BTreeSet<u64>,
    /// Inodes of which extents may be lost, of any tree.
    without_extents: BTreeSet<u64>,
    /// Keys from which on items are lost, of any tree.
    gaps: BTreeSet<Key>,
    lost_keys: LostKeys,
    /// Sound blocks had more items than their headers said.
    has_shown: bool,
}

/// The keys of inodes that lost leaves may have had, of any tree, and where these leaves were.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostKeys {
    /// Numbers of inodes of which every item may be lost.
    whole: Ranges,
    /// Inodes at the beginning or the end of a lost leaf, and the places in each from which extents may be lost.
    parts: BTreeMap<u64, Ranges>,
    blocks: BTreeSet<u64>,
}

impl LostKeys {
    fn insert(&mut self, at: Logical, from: Option<Key>, upper: Option<Key>) {
        let (from, to) = (from.unwrap_or(Key::MIN), upper.unwrap_or(Key::MAX));
        self.blocks.insert(at.get());
        self.whole.insert(from.objectid.saturating_add(1)..to.objectid);
        // Which places of a file are behind a key, and which before it.
        let place = |key: Key| match key.kind.cmp(&KeyType::EXTENT_DATA) {
            Ordering::Less => 0,
            Ordering::Equal => key.offset,
            Ordering::Greater => u64::MAX,
        };
        let end = if from.objectid == to.objectid { place(to) } else { u64::MAX };
        self.parts.entry(from.objectid).or_default().insert(place(from)..end);
        if from.objectid != to.objectid {
            self.parts.entry(to.objectid).or_default().insert(0..place(to));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether items of an inode may have been lost.
    pub fn may_have(&self, inode: u64) -> bool {
        self.parts.contains_key(&inode) || self.has_all_of(inode)
    }

    fn has_all_of(&self, inode: u64) -> bool {
        self.whole.last_overlap(inode..inode.saturating_add(1)).is_some()
    }

    /// The places in a file where no extent can be lost.
    pub fn known_places(&self, inode: u64) -> Vec<Range<u64>> {
        let part = self.parts.get(&inode).filter(|_| !self.has_all_of(inode));
        part.map_or_else(Vec::new, |lost| lost.gaps(0..u64::MAX))
    }

    /// Whether a lost block was at this address.
    pub fn has_block(&self, at: u64) -> bool {
        self.blocks.contains(&at)
    }
}

/// Tasks for other passes, by tree and inode.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// Inodes that have a stand-in for their items now.
    pub without_item: Vec<(TreeId, u64)>,
    /// Inodes that may have lost extents.
    pub without_extents: Vec<(TreeId, u64)>,
    /// Inodes of which the first items are lost with a leaf, and others stand at the beginning of the next one.
    pub without_start: Vec<(TreeId, u64)>,
    /// Subvolumes that were damaged.
    pub subvolumes: Vec<TreeId>,
    pub lost_keys: LostKeys,
    /// Sound blocks had more items than their headers said, so that the findings are out of date.
    pub has_shown: bool,
}

/// Prunes the trees that have blocks which cannot be used. Trees that follow from others are left to their passes.
pub(crate) fn run(forest: &mut Forest, damaged: &[TreeId]) -> Result<Pruned> {
    let (mut known, orphans) = (FxHashMap::default(), OnceCell::new());
    let (mut without_item, mut without_extents, mut gaps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut lost_keys = LostKeys::default();
    let mut has_shown = false;
    for &tree in damaged {
        let Ok(ptr) = forest.ptr(tree) else { continue };
        let from = forest.drop_point(tree);
        if from.is_some() && walk(&forest.store, &ptr, from, &mut |_, _| true) {
            continue;
        }
        let (store, orphans) = (&forest.store, &orphans);
        let (known_before, items, extents) =
            (std::mem::take(&mut known), std::mem::take(&mut without_item), std::mem::take(&mut without_extents));
        let mut pruner = Pruner {
            forest,
            store,
            orphans,
            tree,
            known: known_before,
            lost: Vec::new(),
            without_item: items,
            without_extents: extents,
            gaps: std::mem::take(&mut gaps),
            lost_keys: std::mem::take(&mut lost_keys),
            has_shown,
        };
        let outcome = pruner.visit(&ptr, None, from)?;
        let lost = pruner.lost;
        (known, without_item, without_extents) = (pruner.known, pruner.without_item, pruner.without_extents);
        (gaps, lost_keys, has_shown) = (pruner.gaps, pruner.lost_keys, pruner.has_shown);
        match outcome {
            Outcome::Same => continue,
            Outcome::OfGeneration(generation) => forest.set_root(tree, NodePtr { generation, ..ptr }),
            Outcome::Elsewhere { at, generation, .. } => forest.set_root(tree, NodePtr { at, generation, ..ptr }),
            Outcome::New { at, .. } => {
                let generation = forest.store.generation;
                forest.set_root(tree, NodePtr { at, generation, ..ptr });
            }
            Outcome::Gone if tree == TreeId::ROOT => forest.start_root_anew()?,
            Outcome::Gone => forest.start_anew(tree)?,
        }
        if let Some(from) = from {
            forest.move_drop_point(tree, from.level)?;
        }
        let lost = match lost.is_empty() {
            true => "nothing of its own: another tree shares the blocks".to_owned(),
            false => lost.join("; "),
        };
        let what = format!("takes blocks that cannot be used out of tree {}", tree.get() as i64);
        forest.lose(Pass::Blocks, what, lost);
    }
    let mut found = Pruned { has_shown, lost_keys, ..Pruned::default() };
    let is_whole = |tree: &&TreeId| tree.is_subvolume() && forest.drop_point(**tree).is_none();
    for &tree in damaged.iter().filter(is_whole) {
        found.subvolumes.push(tree);
        for &inode in &without_item {
            let key = Key::new(inode, KeyType::INODE_ITEM, 0);
            let stand_in = salvage::stand_in(forest.store.generation);
            if forest.get(tree, key)?.is_some_and(|data| data == stand_in.as_bytes()) {
                found.without_item.push((tree, inode));
            }
        }
        found.without_extents.extend(without_extents.iter().map(|inode| (tree, *inode)));
        for &gap in &gaps {
            let next = forest.first_from(tree, gap)?.filter(|next| salvage::is_of_inode(*next));
            found.without_start.extend(next.map(|next| (tree, next.objectid)));
        }
    }
    Ok(found)
}

impl Pruner<'_> {
    /// `from` is the drop point of the tree where the path to it leads through this block: what lies before it is no
    /// part of the tree any more, and is taken out.
    fn visit(&mut self, ptr: &NodePtr, upper: Option<Key>, from: Option<DropPoint>) -> Result<Outcome> {
        let id = (ptr.at.get(), ptr.generation.get(), ptr.first_key);
        let from = from.filter(|from| ptr.level.get() >= from.level);
        if let Some(known) = self.known.get(&id).filter(|_| ptr.first_key.is_some() && from.is_none()) {
            return Ok(*known);
        }
        let outcome = match self.store.read(ptr) {
            Ok(node) => match headers::of_sound(self.forest, ptr, &node, upper) {
                Some((whole, field)) => {
                    self.has_shown |= whole.nritems() > node.nritems();
                    self.with_header(ptr, &Arc::new(whole), field, (upper, from))?
                }
                None => self.node(ptr, &node, upper, from)?,
            },
            Err(trouble) => {
                if let Some((ptr, node)) = self.with_recorded_generation(ptr) {
                    match self.node(&ptr, &node, upper, from)? {
                        Outcome::Same => Outcome::OfGeneration(ptr.generation),
                        changed => changed,
                    }
                } else if let Some((node, field)) = headers::put_right(self.forest, ptr, upper) {
                    self.with_header(ptr, &Arc::new(node), field, (upper, from))?
                } else if let Some(right) = self.led_astray(ptr, upper) {
                    self.elsewhere(ptr, &right, upper, from)?
                } else {
                    self.replace(ptr, upper, from, &trouble.to_string())?
                }
            }
        };
        if from.is_none() {
            self.known.insert(id, outcome);
        }
        Ok(outcome)
    }

    /// The block, if its pointer has a wrong generation: it is sound, and of the generation that its extent item has.
    fn with_recorded_generation(&mut self, ptr: &NodePtr) -> Option<(NodePtr, Arc<Node>)> {
        let generation = crate::extents::recorded_generation(self.forest, ptr)?;
        let right = NodePtr { generation, ..*ptr };
        let node = self.store.read(&right).ok().filter(|_| generation != ptr.generation)?;
        self.lost.push(format!("nothing of block {}, whose pointer had a wrong generation", ptr.at));
        Some((right, node))
    }

    /// A copy of the block, which has a header of its own.
    fn with_header(
        &mut self,
        ptr: &NodePtr,
        node: &Arc<Node>,
        field: &str,
        (upper, from): (Option<Key>, Option<DropPoint>),
    ) -> Result<Outcome> {
        self.lost.push(format!("nothing of block {}, whose header had another {field}", ptr.at));
        match self.node(ptr, node, upper, from)? {
            Outcome::Same => self.copy(node, |_| {}),
            changed => Ok(changed),
        }
    }

    /// The block to which a pointer led before it was damaged: a sound one of this tree, level and range to which
    /// nothing leads any more, and whose first key or generation the pointer still has.
    fn led_astray(&self, ptr: &NodePtr, upper: Option<Key>) -> Option<Orphan> {
        let first = ptr.first_key?;
        let orphans = self.orphans.get_or_init(|| orphans::find(self.forest));
        let fits = |orphan: &&Orphan| {
            let is_within = first <= orphan.first && upper.is_none_or(|upper| orphan.last < upper);
            let is_named = orphan.first == first || orphan.generation == ptr.generation;
            let is_own = orphan.is_of_tree() && orphan.source.from == self.tree.get();
            orphan.level == ptr.level.get() && is_within && is_named && is_own
        };
        let right = orphans.iter().filter(fits).max_by_key(|orphan| (orphan.first == first, orphan.generation))?;
        self.store.read(&right.as_child(ptr)).is_ok().then_some(*right)
    }

    fn elsewhere(
        &mut self,
        ptr: &NodePtr,
        right: &Orphan,
        upper: Option<Key>,
        from: Option<DropPoint>,
    ) -> Result<Outcome> {
        let Orphan { at, generation, first, .. } = *right;
        let outcome = self.visit(&right.as_child(ptr), upper, from)?;
        if matches!(outcome, Outcome::Same) {
            self.lost.push(format!("nothing of block {at}, to which a pointer led to {} instead", ptr.at));
            return Ok(Outcome::Elsewhere { at, generation, first });
        }
        Ok(outcome)
    }

    /// Makes a new node of the children that a lost one had.
    fn replace(&mut self, ptr: &NodePtr, upper: Option<Key>, from: Option<DropPoint>, reason: &str) -> Result<Outcome> {
        if ptr.level.get() == 0
            && let Some(bytes) = salvage::intact_leaf(self.store, ptr)
            && let Some(salvaged) = self.salvage(ptr, &bytes, upper)?
        {
            return Ok(salvaged);
        }
        let orphans =
            if ptr.level.get() > 0 { self.orphans.get_or_init(|| orphans::find(self.forest)) } else { &vec![] };
        let children = orphans::children(orphans, ptr, upper);
        let generation = self.store.generation;
        let at = if children.is_empty() { ptr.at } else { self.store.allocate(self.tree)? };
        let mut node = Node::new_empty(&self.store.identity, at, ptr.level, generation, self.tree);
        let count = children.len().min(node.max_pointers());
        let mut outcomes = Vec::new();
        for (slot, child) in children[..count].iter().enumerate() {
            node.insert_pointer(slot, child.first, child.at, child.generation);
        }
        // A lost leaf may have been in front of each child.
        self.gaps.extend(children.iter().map(|child| child.first));
        for slot in 0..count {
            let child_upper = if slot + 1 < count { Some(node.key(slot + 1)) } else { upper };
            let child_from = from.filter(|from| slot == node.child_slot(from.key));
            outcomes.push(self.visit(&node.child_ptr(slot, ptr.tree), child_upper, child_from)?);
        }
        if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Gone)) {
            self.lose(ptr, upper, reason);
            return Ok(Outcome::Gone);
        }
        change_children(&mut node, &outcomes, generation);
        let first = crate::store::first_key(&node);
        self.lost.push(format!("nothing of block {}, whose {count} children were found", ptr.at));
        self.store.add(node, true);
        Ok(Outcome::New { at, first })
    }

    /// Notes that items of inodes may be lost.
    fn note_lost(&mut self, ptr: &NodePtr, upper: Option<Key>) {
        if self.tree.is_subvolume() {
            self.lost_keys.insert(ptr.at, ptr.first_key, upper);
        }
    }

    /// Makes a new leaf of the items that keep the rules.
    fn salvage(&mut self, ptr: &NodePtr, bytes: &[u8], upper: Option<Key>) -> Result<Option<Outcome>> {
        let at = self.store.allocate(self.tree)?;
        let salvaged = salvage::leaf(self.forest, bytes, at, self.tree, (ptr.first_key, upper));
        let Some(first) = salvaged.node.first_key() else { return Ok(None) };
        self.without_item.extend(salvaged.without_item);
        self.without_extents.extend(salvaged.without_extents);
        self.gaps.extend(upper);
        self.note_lost(ptr, upper);
        let (left_out, put_right, tree) = (salvaged.left_out, salvaged.put_right, self.tree.get() as i64);
        let keys = if put_right == "none" { String::new() } else { format!("; its keys are put right: {put_right}") };
        self.lost.push(format!("items of block {} of tree {tree} that break a rule: {left_out}{keys}", ptr.at));
        self.store.add(salvaged.node, true);
        Ok(Some(Outcome::New { at, first }))
    }

    fn lose(&mut self, ptr: &NodePtr, upper: Option<Key>, reason: &str) {
        let from = ptr.first_key.unwrap_or(Key::MIN);
        self.gaps.insert(from);
        self.note_lost(ptr, upper);
        // The inode's item stands in the leaf before.
        self.without_extents.extend((from.kind > KeyType::INODE_ITEM).then_some(from.objectid));
        let to = upper.map_or_else(|| "its end".to_owned(), |upper| upper.to_string());
        let tree = self.tree.get() as i64;
        self.lost.push(format!(
            "the items of tree {tree} from {from} to {to}, because block {} cannot be read: {reason}",
            ptr.at
        ));
    }

    fn node(
        &mut self,
        ptr: &NodePtr,
        node: &Arc<Node>,
        upper: Option<Key>,
        from: Option<DropPoint>,
    ) -> Result<Outcome> {
        let kept = (0..node.nritems()).take_while(|slot| upper.is_none_or(|upper| node.key(*slot) < upper)).count();
        if kept < node.nritems()
            && node.is_leaf()
            && let Some(salvaged) = self.salvage(ptr, node.bytes(), upper)?
        {
            return Ok(salvaged);
        }
        if kept < node.nritems() {
            let (first, last) = (node.key(kept), node.key(node.nritems() - 1));
            let tree = self.tree.get() as i64;
            self.gaps.insert(first);
            self.lost
                .push(format!("what block {} of tree {tree} has from {first} to {last}, behind its range", ptr.at));
        }
        if node.is_leaf() {
            return Ok(if kept == node.nritems() { Outcome::Same } else { Outcome::Gone });
        }
        let first = from.map_or(0, |from| node.child_slot(from.key)).min(kept);
        let mut outcomes = vec![Outcome::Gone; first];
        for slot in first..kept {
            let child_upper = if slot + 1 < kept { Some(node.key(slot + 1)) } else { upper };
            let child_from = from.filter(|from| slot == first && node.level().get() > from.level);
            outcomes.push(self.visit(&node.child_ptr(slot, ptr.tree), child_upper, child_from)?);
        }
        if kept == node.nritems() && outcomes.iter().all(|outcome| matches!(outcome, Outcome::Same)) {
            return Ok(Outcome::Same);
        }
        if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Gone)) {
            return Ok(Outcome::Gone);
        }
        let generation = self.store.generation;
        self.copy(node, |copy| change_children(copy, &outcomes, generation))
    }

    fn copy(&self, node: &Arc<Node>, change: impl FnOnce(&mut Node)) -> Result<Outcome> {
        let at = self.store.allocate(self.tree)?;
        let mut copy = Node::clone(node);
        copy.set_identity(at, self.store.generation, self.tree);
        change(&mut copy);
        let first = crate::store::first_key(&copy);
        self.store.add(copy, true);
        Ok(Outcome::New { at, first })
    }
}

fn change_children(node: &mut Node, outcomes: &[Outcome], generation: Generation) {
    for slot in (0..node.nritems()).rev() {
        match outcomes.get(slot) {
            Some(Outcome::Same) => {}
            Some(Outcome::OfGeneration(generation)) => {
                let (at, _) = node.child(slot);
                node.set_child(slot, at, *generation);
            }
            Some(Outcome::Elsewhere { at, generation, first }) => {
                node.set_child(slot, *at, *generation);
                node.set_key(slot, *first);
            }
            Some(Outcome::New { at, first }) => {
                node.set_child(slot, *at, generation);
                node.set_key(slot, *first);
            }
            Some(Outcome::Gone) | None => node.remove_pointer(slot),
        }
    }
}
