//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The copy-on-write B-tree, pure: it knows nodes and keys, and neither devices nor space nor references.
//!
//! Two traits lead out of it. [`NodeSource`] finds a node, [`NodeEditor`] makes one writable, makes new ones and
//! frees them. Readers and writers use the same functions over the same nodes.
//!
//! # Invariants
//! 1. A node enters through [`verify`] (checksum, then tree checker) and leaves through [`Node::seal_into`].
//! 2. A shared node (`Arc<Node>`) is never changed; editing goes through [`NodeEditor::edit`] or
//!    [`NodeEditor::take`], on an address that [`NodeEditor::shadow`] or [`NodeEditor::new_node`] returned.
//! 3. Every public editing function leaves a valid tree whenever it returns, also with an error: all nodes that it
//!    needs are fetched before the first one is changed. So a caller may answer a missing node by reading it
//!    without any lock and then calling again.
//!
//! # Not here
//! Locks, caches, transactions, reference counts.

#![forbid(unsafe_code)]

mod diff;
mod edit;
mod node;
mod search;

pub use diff::{Difference, DifferenceVisitor, diff};
pub use edit::{insert, insert_many, remove, remove_range, replace, update};
pub use node::{BlockIdentity, Corrupt, MOST_SEEDS, Node, check_block, verify};
pub use search::{ItemVisitor, NodeVisitor, Position, Since, Walk, last_before, scan, search, search_since, walk};

use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};
use std::sync::Arc;

/// The address of a node, and its parent's expectations of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePtr {
    /// Logical address.
    pub at: Logical,
    /// Exact generation.
    pub generation: Generation,
    /// Exact level.
    pub level: Level,
    /// The tree that is being read; decides the owner rule.
    pub tree: TreeId,
    /// First key in the parent's slot; `None` for a root.
    pub first_key: Option<Key>,
}

/// Finds nodes.
pub trait NodeSource {
    /// The error type; includes a corrupt node.
    type Error: From<Corrupt>;

    /// Bytes of a node.
    fn nodesize(&self) -> u32;

    /// The node that `ptr` promises.
    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>, Self::Error>;
}

/// Makes nodes writable. One editor at a time works on one tree.
pub trait NodeEditor: NodeSource {
    /// The generation of every node that is written now.
    fn generation(&self) -> Generation;

    /// Makes `node` writable: in place when it already belongs to this generation (returns its own address), else
    /// by copying it to a new address, updating the references, and freeing or releasing the old one. The caller
    /// then updates the parent's pointer. The parent is always writable before its child is shadowed.
    fn shadow(&self, node: &Arc<Node>, is_root: bool) -> Result<Logical, Self::Error>;

    /// A new, empty, writable node of this tree.
    fn new_node(&self, level: Level) -> Result<Logical, Self::Error>;

    /// Changes a writable node.
    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R;

    /// Takes a writable node out, to change two at once; [`put`](Self::put) it back before returning.
    fn take(&self, at: Logical) -> Node;

    /// Puts a node back that was taken.
    fn put(&self, node: Node);

    /// Frees a writable node that no parent points to any more.
    fn free(&self, at: Logical, level: Level);
}
