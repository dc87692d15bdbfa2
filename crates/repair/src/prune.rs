//! The pass `blocks`: what leads to blocks that cannot be read is taken out of the trees, with everything below it, and
//! items that stand behind the range of their block.
//!
//! A block that several trees share gets one new version, which they share again. Of a lost node the children are found
//! by the references that the extent tree still has (`orphans`); only what a lost leaf had is gone.

use crate::action::Pass;
use crate::forest::Forest;
use crate::orphans::{self, Orphan};
use crate::salvage;
use crate::store::Store;
use crate::trouble::Result;
use butterfs_ondisk::{Generation, Key, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::FxHashMap;
use std::cell::OnceCell;
use std::sync::Arc;

/// The fate of a block.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Same,
    Gone,
    New { at: Logical, first: Key },
}

struct Pruner<'a> {
    forest: &'a Forest,
    store: &'a Store,
    orphans: &'a OnceCell<Vec<Orphan>>,
    tree: TreeId,
    known: FxHashMap<(u64, u64), Outcome>,
    /// The losses, in words.
    lost: Vec<String>,
}

/// Prunes the trees that have blocks which cannot be used. Trees that follow from others are left to their passes.
pub(crate) fn run(forest: &mut Forest, damaged: &[TreeId]) -> Result<()> {
    let (mut known, orphans) = (FxHashMap::default(), OnceCell::new());
    for &tree in damaged {
        let Ok(ptr) = forest.ptr(tree) else { continue };
        let (store, orphans) = (&forest.store, &orphans);
        let mut pruner = Pruner { forest, store, orphans, tree, known: std::mem::take(&mut known), lost: Vec::new() };
        let outcome = pruner.root(&ptr)?;
        let lost = pruner.lost;
        known = pruner.known;
        match outcome {
            Outcome::Same => continue,
            Outcome::New { at, .. } => {
                let generation = forest.store.generation;
                forest.set_root(tree, NodePtr { at, generation, ..ptr });
            }
            Outcome::Gone => forest.start_anew(tree)?,
        }
        let lost = match lost.is_empty() {
            true => "nothing of its own: another tree shares the blocks".to_owned(),
            false => lost.join("; "),
        };
        let what = format!("takes blocks that cannot be used out of tree {}", tree.get() as i64);
        forest.lose(Pass::Blocks, what, lost);
    }
    Ok(())
}

impl Pruner<'_> {
    fn root(&mut self, ptr: &NodePtr) -> Result<Outcome> {
        let outcome = self.visit(ptr, None)?;
        Ok(outcome)
    }

    fn visit(&mut self, ptr: &NodePtr, upper: Option<Key>) -> Result<Outcome> {
        let id = (ptr.at.get(), ptr.generation.get());
        if let Some(known) = self.known.get(&id).filter(|_| ptr.first_key.is_some()) {
            return Ok(*known);
        }
        let outcome = match self.store.read(ptr) {
            Ok(node) => self.node(ptr, &node, upper)?,
            Err(trouble) => self.replace(ptr, upper, &trouble.to_string())?,
        };
        self.known.insert(id, outcome);
        Ok(outcome)
    }

    /// Makes a new node of the children that a lost one had.
    fn replace(&mut self, ptr: &NodePtr, upper: Option<Key>, reason: &str) -> Result<Outcome> {
        if ptr.level.get() == 0
            && let Some(bytes) = salvage::intact_leaf(self.store, ptr)
        {
            let at = self.store.allocate(self.tree)?;
            let salvaged = salvage::leaf(self.store, &bytes, at, self.tree, upper);
            if let Some(first) = salvaged.node.first_key() {
                let left_out = salvaged.left_out;
                self.lost
                    .push(format!("items of block {} of tree {} that break a rule: {left_out}", ptr.at, self.tree));
                self.store.add(salvaged.node, true);
                return Ok(Outcome::New { at, first });
            }
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
        for slot in 0..count {
            let child_upper = if slot + 1 < count { Some(node.key(slot + 1)) } else { upper };
            outcomes.push(self.visit(&node.child_ptr(slot, ptr.tree), child_upper)?);
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

    fn lose(&mut self, ptr: &NodePtr, upper: Option<Key>, reason: &str) {
        let from = ptr.first_key.unwrap_or(Key::MIN);
        let to = upper.map_or_else(|| "its end".to_owned(), |upper| upper.to_string());
        let tree = self.tree.get() as i64;
        self.lost.push(format!(
            "the items of tree {tree} from {from} to {to}, because block {} cannot be read: {reason}",
            ptr.at
        ));
    }

    fn node(&mut self, ptr: &NodePtr, node: &Arc<Node>, upper: Option<Key>) -> Result<Outcome> {
        let kept = (0..node.nritems()).take_while(|slot| upper.is_none_or(|upper| node.key(*slot) < upper)).count();
        if kept < node.nritems() {
            let (first, last) = (node.key(kept), node.key(node.nritems() - 1));
            let tree = self.tree.get() as i64;
            self.lost
                .push(format!("what block {} of tree {tree} has from {first} to {last}, behind its range", ptr.at));
        }
        if node.is_leaf() {
            return match kept {
                _ if kept == node.nritems() => Ok(Outcome::Same),
                0 => Ok(Outcome::Gone),
                kept => self.copy(node, |copy| copy.remove_items(kept..copy.nritems())),
            };
        }
        let mut outcomes = Vec::new();
        for slot in 0..kept {
            let child_upper = if slot + 1 < kept { Some(node.key(slot + 1)) } else { upper };
            outcomes.push(self.visit(&node.child_ptr(slot, ptr.tree), child_upper)?);
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
            Some(Outcome::New { at, first }) => {
                node.set_child(slot, *at, generation);
                node.set_key(slot, *first);
            }
            Some(Outcome::Gone) | None => node.remove_pointer(slot),
        }
    }
}
