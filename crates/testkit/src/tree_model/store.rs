//! A store of nodes in memory that is stricter than a real one.
//!
//! It panics when the tree code breaks the contract of `NodeEditor`: edits a node of an old generation or one that
//! is still shared, shadows a child before its parent, frees a node that is pointed to, forgets to put back what
//! it took. On demand it answers every first fetch of a node with [`Fault::Miss`], and refuses allocations.

use butterfs_ondisk::{ChecksumKind, Generation, Level, Logical, TreeId};
use butterfs_tree::{BlockIdentity, Corrupt, Node, NodeEditor, NodePtr, NodeSource};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The node is not in memory now; it will be next time.
    Miss,
    /// No space.
    Full,
    Corrupt(Corrupt),
    /// A visitor of the test said no.
    Visitor,
}

impl From<Corrupt> for Fault {
    fn from(corrupt: Corrupt) -> Fault {
        Fault::Corrupt(corrupt)
    }
}

pub const TREE: TreeId = TreeId(256);

#[derive(Clone)]
pub struct Store {
    pub identity: BlockIdentity,
    pub nodes: RefCell<HashMap<Logical, Arc<Node>>>,
    taken: RefCell<HashSet<Logical>>,
    generation: Cell<Generation>,
    next_at: Cell<u64>,
    /// When present: the nodes that have been missed once.
    warm: RefCell<Option<HashSet<Logical>>>,
    /// How many more addresses can be allocated.
    allocations: Cell<usize>,
    /// Whether editing a node that is shared is a failure; tests that copy the store turn it off.
    pub forbid_copies: Cell<bool>,
    /// Whether to check on shadowing that the parent is writable (slow in large trees).
    pub check_parents: Cell<bool>,
    /// Whether a root may have one child, as in a tree from elsewhere that has not been repaired.
    pub lone_children: Cell<bool>,
    /// Whether a node that is fetched must be what its parent promises.
    pub confirm_promises: Cell<bool>,
    /// Nodes fetched, shadowed and edited since the last reset.
    pub fetches: Cell<usize>,
    pub shadows: Cell<usize>,
    pub edits: Cell<usize>,
}

impl Store {
    pub fn new(nodesize: u32) -> Store {
        let identity = BlockIdentity {
            fsid: [7; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [8; 16],
            checksum: ChecksumKind::Crc32c,
            nodesize,
            sectorsize: nodesize.min(4096),
            incompat: 0,
            super_generation: Generation(u64::MAX - 1),
            ignores_checksums: false,
            writable: true,
        };
        Store {
            identity,
            nodes: RefCell::default(),
            taken: RefCell::default(),
            generation: Cell::new(Generation(10)),
            next_at: Cell::new(u64::from(nodesize)),
            warm: RefCell::new(None),
            allocations: Cell::new(usize::MAX),
            forbid_copies: Cell::new(true),
            check_parents: Cell::new(false),
            lone_children: Cell::new(false),
            confirm_promises: Cell::new(true),
            fetches: Cell::new(0),
            shadows: Cell::new(0),
            edits: Cell::new(0),
        }
    }

    /// An empty tree.
    pub fn empty_root(&self) -> NodePtr {
        let at = self.new_node(Level(0)).expect("space");
        NodePtr { at, generation: self.generation.get(), level: Level(0), tree: TREE, first_key: None }
    }

    /// From now on every existing node is immutable.
    pub fn next_generation(&self) {
        self.generation.set(self.generation.get().next());
    }

    pub fn set_misses(&self, on: bool) {
        *self.warm.borrow_mut() = on.then(HashSet::new);
    }

    pub fn set_allocations(&self, left: usize) {
        self.allocations.set(left);
    }

    pub fn reset_counters(&self) {
        self.fetches.set(0);
        self.shadows.set(0);
        self.edits.set(0);
    }

    /// The invariants between two operations.
    pub fn assert_at_rest(&self) {
        assert!(self.taken.borrow().is_empty(), "nodes were taken and not put back");
    }

    fn allocate(&self) -> Result<Logical, Fault> {
        if self.allocations.get() == 0 {
            return Err(Fault::Full);
        }
        self.allocations.set(self.allocations.get() - 1);
        let at = self.next_at.get();
        self.next_at.set(at + u64::from(self.identity.nodesize));
        Ok(Logical(at))
    }

    fn assert_parent_is_writable(&self, child: Logical) {
        let nodes = self.nodes.borrow();
        let points = |node: &Arc<Node>| {
            node.generation() == self.generation.get()
                && !node.is_leaf()
                && (0..node.nritems()).any(|slot| node.child(slot).0 == child)
        };
        assert_eq!(nodes.values().filter(|node| points(node)).count(), 1, "the parent of {child} is not writable");
    }

    fn assert_unreachable(&self, child: Logical) {
        let nodes = self.nodes.borrow();
        let points = |node: &Arc<Node>| !node.is_leaf() && (0..node.nritems()).any(|slot| node.child(slot).0 == child);
        let generation = self.generation.get();
        assert!(
            !nodes.values().any(|node| node.generation() == generation && points(node)),
            "{child} is freed and still pointed to"
        );
    }
}

impl NodeSource for Store {
    type Error = Fault;

    fn nodesize(&self) -> u32 {
        self.identity.nodesize
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>, Fault> {
        assert!(self.taken.borrow().is_empty(), "a node is fetched after the first change");
        self.fetches.set(self.fetches.get() + 1);
        if self.warm.borrow_mut().as_mut().is_some_and(|warm| warm.insert(ptr.at)) {
            return Err(Fault::Miss);
        }
        let node = self.nodes.borrow().get(&ptr.at).expect("a node that exists").clone();
        if self.confirm_promises.get() {
            node.confirm(ptr)?;
        }
        Ok(node)
    }
}

impl NodeEditor for Store {
    fn generation(&self) -> Generation {
        self.generation.get()
    }

    fn shadow(&self, node: &Arc<Node>, is_root: bool) -> Result<Logical, Fault> {
        self.shadows.set(self.shadows.get() + 1);
        assert!(self.nodes.borrow().contains_key(&node.at()), "a freed node is shadowed");
        if node.generation() == self.generation.get() {
            return Ok(node.at());
        }
        if !is_root && self.check_parents.get() {
            self.assert_parent_is_writable(node.at());
        }
        let at = self.allocate()?;
        let mut copy = Node::clone(node);
        copy.set_identity(at, self.generation.get(), TREE);
        if let Some(warm) = self.warm.borrow_mut().as_mut() {
            warm.insert(at);
        }
        self.nodes.borrow_mut().insert(at, Arc::new(copy));
        Ok(at)
    }

    fn new_node(&self, level: Level) -> Result<Logical, Fault> {
        let at = self.allocate()?;
        let node = Node::new_empty(&self.identity, at, level, self.generation.get(), TREE);
        self.nodes.borrow_mut().insert(at, Arc::new(node));
        Ok(at)
    }

    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        self.edits.set(self.edits.get() + 1);
        let mut node = self.take(at);
        let result = change(&mut node);
        self.put(node);
        result
    }

    fn take(&self, at: Logical) -> Node {
        let node = self.nodes.borrow_mut().remove(&at).expect("a node that exists");
        assert_eq!(node.generation(), self.generation.get(), "node {at} of an old generation is edited");
        assert!(self.taken.borrow_mut().insert(at));
        match Arc::try_unwrap(node) {
            Ok(node) => node,
            Err(_) if self.forbid_copies.get() => panic!("node {at} is edited while it is held"),
            Err(shared) => Node::clone(&shared),
        }
    }

    fn put(&self, node: Node) {
        assert!(self.taken.borrow_mut().remove(&node.at()), "a node is put back that was not taken");
        self.nodes.borrow_mut().insert(node.at(), Arc::new(node));
    }

    fn free(&self, at: Logical, level: Level) {
        let node = self.nodes.borrow_mut().remove(&at).expect("a node that exists");
        assert_eq!(node.generation(), self.generation.get(), "node {at} of an old generation is freed");
        assert_eq!(node.level(), level);
        if self.check_parents.get() {
            self.assert_unreachable(at);
        }
    }
}
