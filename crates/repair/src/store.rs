//! Tree blocks: read and verified from the devices, changed in memory only, and written by [`Store::write_out`].
//!
//! Invariants: (1) a block of an earlier generation is never changed, it is copied to a new place; (2) a block that
//! several trees lead to is copied for each that changes it; (3) no references are kept up: they are derived from all
//! trees at the end, so a repair is right whatever the extent tree said before.

use crate::space::Space;
use crate::trouble::{Result, Trouble};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{Generation, Key, Level, Logical, Superblock, TreeId};
use butterfs_tree::{BlockIdentity, Node, NodeEditor, NodePtr, NodeSource, check_block};
use butterfs_volume::Volume;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Blocks that are kept in memory unchanged.
const CACHED_BLOCKS: usize = 4096;

/// A block of a tree that nobody shares came or went, after the references were derived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A new block.
    Made { at: Logical, level: Level, owner: TreeId },
    /// A block that its tree does not use any more.
    Gone { at: Logical },
}

/// All blocks.
#[derive(Debug)]
pub(crate) struct Store {
    pub volume: Volume,
    pub identity: BlockIdentity,
    pub generation: Generation,
    pub space: RefCell<Space>,
    made: RefCell<FxHashMap<u64, Arc<Node>>>,
    cache: RefCell<FxHashMap<u64, Arc<Node>>>,
    /// Blocks of this repair that more than one tree leads to.
    shared: RefCell<FxHashSet<u64>>,
    events: RefCell<Vec<Event>>,
    records: Cell<bool>,
}

impl Store {
    /// Blocks of the filesystem with this superblock; new ones get `generation`.
    pub fn new(volume: Volume, sb: &Superblock, generation: Generation) -> Store {
        let identity = BlockIdentity { super_generation: generation, ..BlockIdentity::of(sb, true) };
        let (space, made, cache, shared, events, records) = Default::default();
        Store { volume, identity, generation, space, made, cache, shared, events, records }
    }

    pub fn nodesize(&self) -> u64 {
        self.identity.nodesize.into()
    }

    pub fn sectorsize(&self) -> u64 {
        self.identity.sectorsize.into()
    }

    /// The block that `ptr` promises, from whatever copy is good.
    pub fn read(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        let known = self.made.borrow().get(&ptr.at.get()).cloned();
        if let Some(node) = known.or_else(|| self.cache.borrow().get(&ptr.at.get()).cloned()) {
            node.confirm(ptr)?;
            return Ok(node);
        }
        let mut reason = Trouble::new(format!("no chunk holds block {}", ptr.at));
        for copy in self.volume.preferred_copies(ptr.at, self.identity.nodesize as usize) {
            let mut bytes = vec![0; self.identity.nodesize as usize].into_boxed_slice();
            let read = self.volume.read_copy(ptr.at, copy, &mut bytes).map_err(Trouble::from);
            match read.and_then(|()| check_block(&bytes, ptr, &self.identity).map_err(Trouble::from)) {
                Ok(()) => {
                    let node = Arc::new(Node::from_checked(bytes));
                    let mut cache = self.cache.borrow_mut();
                    if cache.len() >= CACHED_BLOCKS {
                        cache.clear();
                    }
                    cache.insert(ptr.at.get(), node.clone());
                    return Ok(node);
                }
                Err(trouble) => reason = trouble,
            }
        }
        Err(reason)
    }

    /// The header of a block whose place, filesystem and checksum are right.
    pub fn sealed_header(&self, at: Logical, bytes: &[u8]) -> Option<Header> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        let is_in_place = header.bytenr.get() == at.get() && header.fsid == self.identity.fsid;
        (is_in_place && self.identity.checksum.matches(&bytes[32..], &header.csum)).then_some(header)
    }

    /// The level of the block that `ptr` means, where only the level that it promises is wrong.
    pub fn other_level(&self, ptr: &NodePtr) -> Option<Level> {
        let levels = (0..MAX_LEVELS as u8).map(Level);
        levels.filter(|level| *level != ptr.level).find(|level| self.read(&NodePtr { level: *level, ..*ptr }).is_ok())
    }

    /// Whether this repair made the block.
    pub fn is_made(&self, at: Logical) -> bool {
        self.made.borrow().contains_key(&at.get())
    }

    /// Keeps a block that was built whole, at a place of its own.
    pub fn add(&self, node: Node, is_shared: bool) {
        if is_shared {
            self.shared.borrow_mut().insert(node.at().get());
        }
        self.record(Event::Made { at: node.at(), level: node.level(), owner: node.owner() });
        self.made.borrow_mut().insert(node.at().get(), Arc::new(node));
    }

    /// A place for a new block of a tree.
    pub fn allocate(&self, tree: TreeId) -> Result<Logical> {
        let (kind, map) = (kind_of(tree), self.volume.chunk_map());
        let at = self.space.borrow_mut().allocate(&map, kind, self.nodesize());
        at.ok_or_else(Trouble::no_room)
    }

    /// From now on new and dropped blocks are noted for [`take_events`](Self::take_events).
    pub fn record_events(&self) {
        self.records.set(true);
    }

    /// The events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.borrow_mut())
    }

    fn record(&self, event: Event) {
        if self.records.get() {
            self.events.borrow_mut().push(event);
        }
    }

    /// Where the blocks of this repair are.
    pub fn made(&self) -> Vec<Logical> {
        self.made.borrow().keys().map(|at| Logical(*at)).collect()
    }

    /// Writes every block of this repair, sealed. The rows with parity that begin at `rows` have been repaired.
    pub fn write_out(&self, rows: &[Logical]) -> Result<()> {
        let mut made: Vec<Arc<Node>> = self.made.borrow().values().cloned().collect();
        made.sort_by_key(|node| node.at());
        let mut bytes = vec![0; self.identity.nodesize as usize];
        for node in made {
            node.seal_into(&mut bytes, &self.identity)?;
            self.volume.write_again(node.at(), &bytes, rows)?;
        }
        Ok(())
    }

    /// An editor of one tree.
    pub fn editor(&self, tree: TreeId) -> Editor<'_> {
        Editor { store: self, tree }
    }
}

fn kind_of(tree: TreeId) -> u64 {
    if tree == TreeId::CHUNK { bits::SYSTEM } else { bits::METADATA }
}

/// Edits one tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Editor<'a> {
    store: &'a Store,
    tree: TreeId,
}

impl NodeSource for Editor<'_> {
    type Error = Trouble;

    fn nodesize(&self) -> u32 {
        self.store.identity.nodesize
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        self.store.read(ptr)
    }
}

impl NodeEditor for Editor<'_> {
    fn generation(&self) -> Generation {
        self.store.generation
    }

    fn shadow(&self, node: &Arc<Node>, _is_root: bool) -> Result<Logical> {
        let is_own = self.store.is_made(node.at()) && !self.store.shared.borrow().contains(&node.at().get());
        if is_own {
            return Ok(node.at());
        }
        let at = self.store.allocate(self.tree)?;
        let mut copy = Node::clone(node);
        copy.set_identity(at, self.store.generation, self.tree);
        self.store.record(Event::Gone { at: node.at() });
        self.store.add(copy, false);
        Ok(at)
    }

    fn new_node(&self, level: Level) -> Result<Logical> {
        let at = self.store.allocate(self.tree)?;
        let node = Node::new_empty(&self.store.identity, at, level, self.store.generation, self.tree);
        self.store.add(node, false);
        Ok(at)
    }

    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        let mut made = self.store.made.borrow_mut();
        change(Arc::make_mut(made.get_mut(&at.get()).expect("a writable block")))
    }

    fn take(&self, at: Logical) -> Node {
        Arc::unwrap_or_clone(self.store.made.borrow_mut().remove(&at.get()).expect("a writable block"))
    }

    fn put(&self, node: Node) {
        self.store.made.borrow_mut().insert(node.at().get(), Arc::new(node));
    }

    fn free(&self, at: Logical, _level: Level) {
        self.store.made.borrow_mut().remove(&at.get());
        self.store.space.borrow_mut().give_back(kind_of(self.tree), at);
        self.store.record(Event::Gone { at });
    }
}

/// The first key of a block, or the smallest one.
pub(crate) fn first_key(node: &Node) -> Key {
    node.first_key().unwrap_or(Key::MIN)
}
