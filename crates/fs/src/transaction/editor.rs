//! The engine's answers to the B-tree: nodes, new nodes, and the one question when a node is shadowed: *is it mine,
//! or shared with a snapshot, and what do I owe its children if I copy it?*
//!
//! # Shadowing node B (references r, FULL_BACKREF flag f) in tree t
//! | r | f | B's owner | owed to each child | B |
//! |---|---|---|---|---|
//! | 1 | no | t | nothing: the references by t now stand for the copy | freed |
//! | 1 | yes | any | a reference by t, minus the one by B | freed |
//! | >1 | no | t | a reference by B; B gets the flag | keeps its other references |
//! | >1 | no | other | a reference by t | keeps its other references |
//! | >1 | yes | any | a reference by t | keeps its other references |
//!
//! In every case t's own reference to B is dropped, and the copy starts with one by t.
//! Only blocks of subvolume trees can be shared, and only below the root, and only when they are not younger than
//! the tree's last snapshot or carry the RELOC flag; for all others r is 1 and f is no.

use super::lookup::BlockRefs;
use super::refs::{Changed, ExtentKind, RefBy};
use super::{Core, Transaction, Tree};
use crate::error::{Error, Result};
use crate::space::{Class, Found};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::{Generation, Level, Logical, TreeId};
use butterfs_tree::{Node, NodeEditor, NodePtr, NodeSource};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Edits one tree in the running transaction.
pub(crate) struct Editor<'a> {
    pub core: &'a Core,
    pub transaction: &'a Transaction,
    pub tree: &'a Tree,
}

impl NodeSource for Editor<'_> {
    type Error = Error;

    fn nodesize(&self) -> u32 {
        self.core.nodesize()
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        self.core.nodes.get(ptr).ok_or_else(|| Error::Missing(Box::new(*ptr)))
    }
}

impl NodeEditor for Editor<'_> {
    fn generation(&self) -> Generation {
        self.transaction.generation()
    }

    fn shadow(&self, node: &Arc<Node>, is_root: bool) -> Result<Logical> {
        if self.is_writable(node) {
            return Ok(node.at());
        }
        // Between asking how many refer to a block and dropping our reference nobody else may do the same.
        let _turn = self.may_be_shared(node, is_root).then(|| self.core.sharing.lock());
        let refs = self.refs_of(node, is_root)?;
        let at = self.allocate()?;
        let mut copy = (**node).clone();
        copy.set_identity(at, self.generation(), self.tree.id());
        self.update_references(node, &refs);
        self.core.env().passes("a block is copied and not yet known");
        self.own(at, node.level());
        self.core.nodes.insert_dirty(copy);
        self.tree.count_nodes(if refs.shared() { 1 } else { 0 });
        Ok(at)
    }

    fn new_node(&self, level: Level) -> Result<Logical> {
        let at = self.allocate()?;
        let identity = self.core.nodes.identity();
        let node = Node::new_empty(&identity, at, level, self.generation(), self.tree.id());
        self.own(at, level);
        self.core.nodes.insert_dirty(node);
        self.tree.count_nodes(1);
        Ok(at)
    }

    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        self.core.nodes.edit(at, change)
    }

    fn take(&self, at: Logical) -> Node {
        self.core.nodes.take(at)
    }

    fn put(&self, node: Node) {
        self.core.nodes.put(node);
    }

    fn free(&self, at: Logical, level: Level) {
        self.tree.count_nodes(-1);
        self.drop_own(at, level, true);
    }
}

impl Editor<'_> {
    fn nodesize(&self) -> u64 {
        u64::from(self.core.nodesize())
    }

    /// Of this generation, not shared with a snapshot taken in it, and not copied from a relocated block.
    fn is_writable(&self, node: &Node) -> bool {
        node.generation() == self.generation()
            && node.flags() & (Header::RELOC | Header::WRITTEN) == 0
            && self.tree.forced_cow.load(Ordering::Relaxed) != self.generation().0
            || node.generation() == self.generation() && self.copied_since_snapshot(node)
    }

    /// While a tree must copy again, a block that it owns alone in this generation has been copied already.
    fn copied_since_snapshot(&self, node: &Node) -> bool {
        self.tree.forced_cow.load(Ordering::Relaxed) == self.generation().0
            && self
                .transaction
                .refs
                .look(node.at(), |head| {
                    head.new && !head.set_full && head.net() == 1 && head.changes.is_only(RefBy::Tree(self.tree.id()))
                })
                .unwrap_or(false)
            && node.owner() == self.tree.id()
    }

    fn class(&self) -> Class {
        if self.tree.id() == TreeId::CHUNK { Class::System } else { Class::Metadata }
    }

    fn allocate(&self) -> Result<Logical> {
        match self.core.space.allocate_node(self.class()) {
            Found::Extent(at, _) => Ok(at),
            Found::Load(group) => Err(Error::Unloaded(group)),
            Found::Nothing => Err(Error::NoNode { system: self.class() == Class::System }),
        }
    }

    /// The first reference of a block that was just allocated.
    fn own(&self, at: Logical, level: Level) {
        let by = RefBy::Tree(self.tree.id());
        self.transaction.refs.change(at, self.nodesize(), ExtentKind::Block(level), by, 1, true);
    }

    /// Drops this tree's reference; `gone` when it was the last one.
    fn drop_own(&self, at: Logical, level: Level, gone: bool) {
        let by = RefBy::Tree(self.tree.id());
        let changed = self.transaction.refs.change(at, self.nodesize(), ExtentKind::Block(level), by, -1, false);
        if gone && changed != Changed::Conflict {
            self.core.nodes.drop_dirty(at);
        }
        if changed == Changed::Vanished {
            self.core.space.give_back(at, self.nodesize());
        }
    }

    fn may_be_shared(&self, node: &Node, is_root: bool) -> bool {
        self.tree.id().is_subvolume()
            && !is_root
            && (node.generation() <= self.tree.last_snapshot() || node.flags() & Header::RELOC != 0)
    }

    fn refs_of(&self, node: &Node, is_root: bool) -> Result<BlockRefs> {
        if !self.may_be_shared(node, is_root) {
            return Ok(BlockRefs { refs: 1, full: false });
        }
        let refs = self.core.block_refs(&self.transaction.refs, node.at(), node.level())?;
        if refs.refs == 1 && !refs.full && node.owner() != self.tree.id() {
            return Err(Error::corrupt(format!(
                "tree block {}: tree {} has its only reference, but tree {} owns it",
                node.at(),
                self.tree.id(),
                node.owner()
            )));
        }
        Ok(refs)
    }

    fn update_references(&self, node: &Node, refs: &BlockRefs) {
        let own = node.owner() == self.tree.id();
        match (refs.shared(), refs.full) {
            (false, false) => {}
            (false, true) => {
                self.change_children(node, None, 1);
                self.change_children(node, Some(node.at()), -1);
            }
            (true, false) if own => {
                self.change_children(node, Some(node.at()), 1);
                self.transaction.refs.set_full(node.at(), self.nodesize(), node.level());
            }
            (true, _) => self.change_children(node, None, 1),
        }
        self.drop_own(node.at(), node.level(), !refs.shared());
    }

    /// Changes the reference of each child of `node`: by its parent block if given, else by this tree.
    fn change_children(&self, node: &Node, parent: Option<Logical>, count: i64) {
        self.transaction.refs.change_children(node, self.tree.id(), parent, count);
    }

    /// Copies another tree's root node, which stays as it is; its children are this tree's too from now on.
    pub(crate) fn copy_shared(&self, node: &Arc<Node>) -> Result<Logical> {
        let at = self.allocate()?;
        let mut copy = (**node).clone();
        copy.set_identity(at, self.generation(), self.tree.id());
        self.change_children(node, None, 1);
        self.own(at, node.level());
        self.core.nodes.insert_dirty(copy);
        Ok(at)
    }

    pub(crate) fn touch_root(&self, root: &mut NodePtr) -> Result<()> {
        let node = self.node(root)?;
        root.at = self.shadow(&node, true)?;
        root.generation = self.generation();
        Ok(())
    }
}
