//! Tree blocks in memory: a sharded cache of nodes by address, and reading the missing ones.
//!
//! # Invariants
//! 1. A node enters through [`butterfs_tree::verify`] or was made here; its address is its key.
//! 2. Dirty nodes (of the running generation) and nodes that are being written are never evicted.
//! 3. A shared `Arc<Node>` never changes: [`NodeCache::edit`] copies the node first when somebody else holds it.
//!
//! The cache is our own: a general one (quick_cache) knows no nodes that are dirty, being written or held, its locks
//! are none that the tests can schedule, and it cannot give up nodes by their age.
//!
//! It does not know trees, locks or transactions: who edits an address has the right to.

use crate::error::{Error, Result};
use butterfs_ondisk::{Generation, Key, Logical};
use butterfs_sync::{Mutex, RwLock, order};
use butterfs_tree::{BlockIdentity, Node, NodePtr};
use butterfs_volume::{Volume, VolumeError};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// More than all nodes on the way to a leaf and one edit's neighbours: what was just read must stay until it is used.
const LEAST_PER_SHARD: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Clean,
    Dirty,
    Writing,
}

struct CachedNode {
    node: Arc<Node>,
    state: NodeState,
    touched: bool,
    /// Its number in the sweep while it is clean.
    ticket: u64,
}

#[derive(Default)]
struct Shard {
    nodes: FxHashMap<u64, CachedNode>,
    dirty: FxHashSet<u64>,
    /// Clean nodes with their tickets, in the order of the second-chance sweep. An address whose entry has another
    /// ticket, or none, is left over from an earlier node there and means nothing.
    sweep: VecDeque<(u64, u64)>,
    /// Clean nodes.
    clean: usize,
    last_ticket: u64,
    /// The number of times that a node was asked for or changed.
    visits: u64,
}

impl Shard {
    /// Takes an entry out, whatever its state.
    fn remove(&mut self, at: u64) -> Option<CachedNode> {
        let cached = self.nodes.remove(&at)?;
        self.clean -= usize::from(cached.state == NodeState::Clean);
        Some(cached)
    }

    /// Puts a node in the place of whatever was there.
    fn insert(&mut self, node: Arc<Node>, state: NodeState, touched: bool) {
        let at = node.at().0;
        self.remove(at);
        self.nodes.insert(at, CachedNode { node, state, touched, ticket: 0 });
        if state == NodeState::Clean {
            self.enqueue(at);
        }
    }

    /// An entry is clean from now on.
    fn enqueue(&mut self, at: u64) {
        let Some(cached) = self.nodes.get_mut(&at) else { return };
        self.last_ticket += 1;
        cached.state = NodeState::Clean;
        cached.ticket = self.last_ticket;
        self.sweep.push_back((at, self.last_ticket));
        self.clean += 1;
    }

    /// Evicts clean nodes that nobody has asked for lately until at most `most` are left. A node that somebody holds
    /// stays, however many there are: an operation that begins again where a node was missing needs its whole path.
    fn evict(&mut self, most: usize) {
        // What is left over must not grow where addresses are used again and again.
        if self.sweep.len() > 2 * most.max(self.clean) + 64 {
            let nodes = &self.nodes;
            let current = |at: &u64, ticket: u64| {
                nodes.get(at).is_some_and(|cached| cached.state == NodeState::Clean && cached.ticket == ticket)
            };
            self.sweep.retain(|(at, ticket)| current(at, *ticket));
        }
        for _ in 0..2 * self.sweep.len() {
            if self.clean <= most {
                return;
            }
            let Some((at, ticket)) = self.sweep.pop_front() else { return };
            let Some(cached) = self.nodes.get_mut(&at) else { continue };
            if cached.state != NodeState::Clean || cached.ticket != ticket {
                continue;
            }
            if std::mem::take(&mut cached.touched) || Arc::strong_count(&cached.node) > 1 {
                self.sweep.push_back((at, ticket));
            } else {
                self.remove(at);
            }
        }
    }
}

impl Shard {
    /// Gives each clean node up that nobody has asked for since the last time, as long as there are more than `least`.
    fn age(&mut self, least: usize) {
        for _ in 0..self.sweep.len() {
            let Some((at, ticket)) = self.sweep.pop_front() else { return };
            let Some(cached) = self.nodes.get_mut(&at) else { continue };
            if cached.state != NodeState::Clean || cached.ticket != ticket {
                continue;
            }
            let needed = std::mem::take(&mut cached.touched) || Arc::strong_count(&cached.node) > 1;
            if needed || self.clean <= least {
                self.sweep.push_back((at, ticket));
            } else {
                self.remove(at);
            }
        }
    }
}

/// Counts of work with nodes, for tests of the cost: the same calls make the same counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nodes that were asked for or changed, in memory or not.
    pub nodes: u64,
    /// Items that scans have shown.
    pub items: u64,
    /// Nodes that were read from a device.
    pub reads: u64,
}

impl Work {
    /// The work since `earlier`.
    pub fn since(&self, earlier: &Work) -> Work {
        Work { nodes: self.nodes - earlier.nodes, items: self.items - earlier.items, reads: self.reads - earlier.reads }
    }

    /// Nodes and items together.
    pub fn steps(&self) -> u64 {
        self.nodes + self.items
    }
}

/// See the [module](self).
pub struct NodeCache {
    volume: Arc<Volume>,
    identity: RwLock<BlockIdentity, { order::NODE_IDENTITY }>,
    shards: Vec<Mutex<Shard, { order::NODES }>>,
    clean_per_shard: usize,
    nodesize: u32,
    dirty: AtomicUsize,
    items: AtomicU64,
    reads: AtomicU64,
    /// The number of times that a node was read from a device, or evicted.
    departures: AtomicU64,
}

impl NodeCache {
    /// An empty cache that keeps about `capacity_bytes` of clean nodes.
    pub fn new(volume: Arc<Volume>, identity: BlockIdentity, capacity_bytes: usize) -> NodeCache {
        let nodesize = identity.nodesize;
        NodeCache {
            volume,
            identity: RwLock::new(identity),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clean_per_shard: (capacity_bytes / nodesize as usize / SHARDS).max(LEAST_PER_SHARD),
            nodesize,
            dirty: AtomicUsize::new(0),
            items: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            departures: AtomicU64::new(0),
        }
    }

    /// A number that is raised whenever a node was not in memory, or leaves it.
    pub fn departures(&self) -> u64 {
        self.departures.load(Ordering::Relaxed)
    }

    /// Bytes of a node.
    pub fn nodesize(&self) -> u32 {
        self.nodesize
    }

    /// The identity that every block of this filesystem carries.
    pub fn identity(&self) -> BlockIdentity {
        *self.identity.read()
    }

    /// Follows a change of generation or features.
    pub fn change_identity(&self, change: impl FnOnce(&mut BlockIdentity)) {
        change(&mut self.identity.write());
    }

    fn shard(&self, at: Logical) -> &Mutex<Shard, { order::NODES }> {
        let hash = (at.0 / u64::from(self.nodesize)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 58) as usize]
    }

    /// The work that was done with nodes so far.
    pub fn work(&self) -> Work {
        Work {
            nodes: self.shards.iter().map(|shard| shard.lock().visits).sum(),
            items: self.items.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
        }
    }

    /// Somebody has looked at `count` items of a leaf, one after the other.
    pub fn count_items(&self, count: usize) {
        self.items.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// The node, if it is in memory and is the one that `ptr` promises.
    pub fn get(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let mut shard = self.shard(ptr.at).lock();
        shard.visits += 1;
        let cached = shard.nodes.get_mut(&ptr.at.0)?;
        if cached.node.generation() != ptr.generation || cached.node.level() != ptr.level {
            return None;
        }
        cached.touched = true;
        Some(Arc::clone(&cached.node))
    }

    /// The node that `ptr` promises, from memory or from disk.
    pub fn load(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        if let Some(node) = self.get(ptr) {
            return Ok(node);
        }
        self.read(ptr).map(|node| self.keep(ptr, node))
    }

    /// The same; none where the first copy on disk is another block. A tree that changes meanwhile explains that: who
    /// still finds the pointer in it loads the node.
    pub fn load_unless_doubtful(&self, ptr: &NodePtr) -> Result<Option<Arc<Node>>> {
        if let Some(node) = self.get(ptr) {
            return Ok(Some(node));
        }
        let mut bytes = vec![0; self.nodesize as usize];
        self.departures.fetch_add(1, Ordering::Relaxed);
        // Whatever it is, it is no bad copy yet.
        match self.volume.read(ptr.at, &mut bytes, &mut |_| Ok(())) {
            Err(VolumeError::Unmapped { .. }) => return Ok(None),
            read => read?,
        }
        let node = butterfs_tree::verify(bytes.into_boxed_slice(), ptr, &self.identity()).ok();
        Ok(node.map(|node| self.keep(ptr, node)))
    }

    /// Puts what was read into the cache.
    fn keep(&self, ptr: &NodePtr, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        let mut shard = self.shard(ptr.at).lock();
        if let Some(cached) = shard.nodes.get(&ptr.at.0)
            && cached.state != NodeState::Clean
        {
            // Only a stale pointer can name an address that is being written under another generation.
            let same = cached.node.generation() == ptr.generation;
            return if same { Arc::clone(&cached.node) } else { node };
        }
        shard.insert(Arc::clone(&node), NodeState::Clean, false);
        shard.evict(self.clean_per_shard);
        node
    }

    fn read(&self, ptr: &NodePtr) -> Result<Node> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.departures.fetch_add(1, Ordering::Relaxed);
        let identity = self.identity();
        if !ptr.at.0.is_multiple_of(u64::from(identity.sectorsize)) {
            return Err(Error::corrupt(format!("tree {}: block address {} is not aligned", ptr.tree, ptr.at)));
        }
        let mut bytes = vec![0; self.nodesize as usize];
        let mut node = None;
        let mut failure = None;
        let read = self.volume.read(ptr.at, &mut bytes, &mut |bytes| match butterfs_tree::verify(
            bytes.to_vec().into_boxed_slice(),
            ptr,
            &identity,
        ) {
            Ok(good) => {
                node = Some(good);
                Ok(())
            }
            Err(corrupt) => {
                let sentence = corrupt.to_string();
                failure = Some(corrupt);
                Err(sentence)
            }
        });
        match (read, node, failure) {
            (Ok(()), Some(node), _) => Ok(node),
            (_, _, Some(corrupt)) => Err(corrupt.into()),
            (Err(error), ..) => Err(error.into()),
            (Ok(()), None, None) => Err(Error::corrupt(format!("tree block {} was not verified", ptr.at))),
        }
    }

    /// The first key of the block at `at`, if it is in memory and not empty.
    pub fn first_key(&self, at: Logical) -> Option<Key> {
        self.shard(at).lock().nodes.get(&at.0)?.node.first_key()
    }

    /// Adds a node of the running generation.
    pub fn insert_dirty(&self, node: Node) {
        let at = node.at();
        let mut shard = self.shard(at).lock();
        shard.visits += 1;
        if shard.dirty.insert(at.0) {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        shard.insert(Arc::new(node), NodeState::Dirty, true);
    }

    /// Changes a dirty node; it is copied first when somebody else holds it.
    pub fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        let mut shard = self.shard(at).lock();
        shard.visits += 1;
        let cached = shard.nodes.get_mut(&at.0).expect("a writable node is in memory");
        assert!(cached.state == NodeState::Dirty, "node {at} is edited, but it is not of the running generation");
        change(Arc::make_mut(&mut cached.node))
    }

    /// Takes a dirty node out; [`put`](Self::put) brings it back.
    pub fn take(&self, at: Logical) -> Node {
        let cached = self.shard(at).lock().remove(at.0).expect("a writable node is in memory");
        assert!(cached.state == NodeState::Dirty, "node {at} is taken, but it is not of the running generation");
        Arc::try_unwrap(cached.node).unwrap_or_else(|shared| (*shared).clone())
    }

    /// Brings back what was taken.
    pub fn put(&self, node: Node) {
        self.insert_dirty(node);
    }

    /// Forgets a node, whatever its state.
    pub fn remove(&self, at: Logical) {
        let mut shard = self.shard(at).lock();
        shard.remove(at.0);
        if shard.dirty.remove(&at.0) {
            self.dirty.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all nodes of the running generation.
    pub fn forget_dirty(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let dirty = std::mem::take(&mut shard.dirty);
            self.dirty.fetch_sub(dirty.len(), Ordering::Relaxed);
            dirty.into_iter().for_each(|at| drop(shard.remove(at)));
        }
    }

    /// Nothing of the running generation refers to this node any more. A node of an earlier one stays in memory as long
    /// as there is room: the last commit still refers to it, and a log is written against that.
    pub fn drop_dirty(&self, at: Logical) {
        let mut shard = self.shard(at).lock();
        if shard.dirty.remove(&at.0) {
            self.dirty.fetch_sub(1, Ordering::Relaxed);
            shard.remove(at.0);
        }
    }

    /// Forgets a node that no tree refers to any more since `generation` is durable. One that was made at its address
    /// since then stays.
    pub fn forget_dead(&self, at: Logical, generation: Generation) {
        let mut shard = self.shard(at).lock();
        let dead = |cached: &CachedNode| cached.state == NodeState::Clean && cached.node.generation() <= generation;
        if shard.nodes.get(&at.0).is_some_and(dead) {
            shard.remove(at.0);
        }
    }

    /// Evicts what nobody has asked for since the last call, as long as more than `floor_bytes` are clean.
    pub fn age(&self, floor_bytes: usize) {
        self.departures.fetch_add(1, Ordering::Relaxed);
        let least = (floor_bytes / self.nodesize as usize / SHARDS).max(LEAST_PER_SHARD);
        for shard in &self.shards {
            shard.lock().age(least);
        }
    }

    /// Evicts every clean node that nobody holds.
    pub fn forget_clean(&self) {
        self.departures.fetch_add(1, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.age(0);
            shard.age(0);
        }
    }

    /// Number of nodes in memory, whatever their state.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.len()).sum()
    }

    /// Number of dirty nodes.
    pub fn dirty_count(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Freezes all dirty nodes for writing and returns them by address. No one may be editing.
    pub fn freeze(&self, generation: Generation) -> Vec<Arc<Node>> {
        let mut frozen = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let dirty = std::mem::take(&mut shard.dirty);
            self.dirty.fetch_sub(dirty.len(), Ordering::Relaxed);
            for at in dirty {
                let cached = shard.nodes.get_mut(&at).expect("a dirty node is in memory");
                assert_eq!(cached.node.generation(), generation, "node {at} is dirty, but of another generation");
                cached.state = NodeState::Writing;
                frozen.push(Arc::clone(&cached.node));
            }
        }
        frozen.sort_unstable_by_key(|node| node.at());
        frozen
    }

    /// The frozen nodes are on disk now.
    pub fn written(&self, nodes: &[Arc<Node>]) {
        for node in nodes {
            let mut shard = self.shard(node.at()).lock();
            let current = shard.nodes.get(&node.at().0).is_some_and(|cached| {
                cached.state == NodeState::Writing && cached.node.generation() == node.generation()
            });
            if current {
                shard.enqueue(node.at().0);
            }
            shard.evict(self.clean_per_shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::{ChecksumKind, Level, TreeId};

    fn node(at: u64) -> Arc<Node> {
        let identity = BlockIdentity {
            fsid: [1; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [2; 16],
            checksum: ChecksumKind::Crc32c,
            nodesize: 4096,
            sectorsize: 4096,
            incompat: 0,
            super_generation: Generation(1),
            ignores_checksums: false,
            writable: true,
        };
        Arc::new(Node::new_empty(&identity, Logical(at), Level(0), Generation(1), TreeId::FS))
    }

    fn held(shard: &Shard) -> Vec<u64> {
        let mut held: Vec<u64> = shard.nodes.keys().copied().collect();
        held.sort_unstable();
        held
    }

    #[test]
    fn an_address_used_again_evicts_nobody() {
        let mut shard = Shard::default();
        (1..=4).for_each(|number| shard.insert(node(number * 4096), NodeState::Clean, false));
        for _ in 0..10_000 {
            shard.insert(node(4 * 4096), NodeState::Clean, false);
            shard.evict(4);
        }
        assert_eq!(held(&shard), [4096, 8192, 12288, 16384]);
        assert!(shard.sweep.len() < 100);
    }

    #[test]
    fn nodes_in_use_stay() {
        let mut shard = Shard::default();
        (1..=4).for_each(|number| shard.insert(node(number * 4096), NodeState::Clean, true));
        let path = node(5 * 4096);
        shard.insert(Arc::clone(&path), NodeState::Clean, false);
        shard.evict(2);
        assert!(held(&shard).contains(&path.at().0), "{:?}", held(&shard));
        shard.evict(0);
        assert_eq!(held(&shard), [path.at().0]);
    }

    #[test]
    fn unused_nodes_are_evicted_with_time() {
        let mut shard = Shard::default();
        (1..=4).for_each(|number| shard.insert(node(number * 4096), NodeState::Clean, number == 1));
        shard.age(2);
        assert_eq!(held(&shard), [4096, 16384]);
        shard.age(0);
        assert_eq!((held(&shard), shard.clean, shard.sweep.len()), (vec![], 0, 0));
    }

    #[test]
    fn used_nodes_get_a_second_chance() {
        let mut shard = Shard::default();
        (1..=4).for_each(|number| shard.insert(node(number * 4096), NodeState::Clean, number == 1));
        shard.evict(3);
        assert_eq!(held(&shard), [4096, 12288, 16384]);
        shard.evict(0);
        assert_eq!((held(&shard), shard.clean), (vec![], 0));
    }
}
