//! Reading: nodes and data of a store by reference, each checked, with a bounded cache of nodes.

use crate::manifest::damaged;
use crate::node::Node;
use crate::piece::{self, PieceRef};
use crate::repository::Repository;
use crate::segment;
use crate::tree::Nodes;
use butterfs_store::{Error, Result, Store, each};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex};

/// Bytes of decoded nodes that are kept.
const CACHE_BYTES: usize = 32 << 20;
/// Pieces that lie close to each other come with one request of at most so many bytes: 4 MiB of content, and a little.
const REQUEST_BYTES: u64 = (4 << 20) + GAP_BYTES;
/// So many bytes between two pieces cost less than another request.
const GAP_BYTES: u64 = 64 << 10;
/// Requests that are made at once.
const READERS: usize = 8;
/// Leaves that are read ahead, if they are in the same segment as the one that is wanted.
const AHEAD: usize = 128;

#[derive(Default)]
struct Cache {
    nodes: FxHashMap<PieceRef, Arc<Node>>,
    bytes: usize,
}

/// See the [module](self).
pub struct Archive {
    repository: Repository,
    /// All of a snapshot will be read: leaves come with their neighbours.
    is_sequential: bool,
    cache: Mutex<Cache>,
}

impl Archive {
    /// For reading parts of snapshots.
    pub fn new(repository: &Repository) -> Archive {
        Archive { repository: repository.clone(), is_sequential: false, cache: Mutex::default() }
    }

    /// For reading whole snapshots.
    pub fn sequential(repository: &Repository) -> Archive {
        Archive { is_sequential: true, ..Archive::new(repository) }
    }

    /// The repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    fn store(&self) -> &Store {
        self.repository.store()
    }

    /// The raw bytes of a piece.
    pub fn piece(&self, at: &PieceRef) -> Result<Bytes> {
        let mut found = self.run(std::slice::from_ref(at))?;
        Ok(found.pop().expect("one piece was asked for").1)
    }

    /// The raw bytes of pieces, each once. Those that lie close to each other come with one request; several requests
    /// are made at once.
    pub fn pieces(&self, wanted: impl IntoIterator<Item = PieceRef>) -> Result<FxHashMap<PieceRef, Bytes>> {
        let mut wanted: Vec<PieceRef> = wanted.into_iter().collect();
        wanted.sort_unstable_by_key(|at| (at.segment, at.offset));
        wanted.dedup();
        let runs: Vec<&[PieceRef]> = wanted.chunk_by(is_close).flat_map(|run| run.chunk_by(fits(run))).collect();
        let found = each(&runs, READERS, |run| self.run(run))?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Pieces of one segment in the order of their offsets, with one request.
    fn run(&self, run: &[PieceRef]) -> Result<Vec<(PieceRef, Bytes)>> {
        let (Some(first), Some(end)) = (run.first(), run.iter().map(end_of).max()) else { return Ok(Vec::new()) };
        let bytes = self.store().get_range(&segment::key(&first.segment), first.offset.into()..end)?;
        let load = |at: &PieceRef| {
            let from = (at.offset - first.offset) as usize;
            let stored = bytes.slice(from..from + at.stored as usize);
            Ok((*at, piece::load(stored, at, self.repository.keys()).map_err(|rule| self.error(at, rule))?))
        };
        run.iter().map(load).collect()
    }

    fn error(&self, at: &PieceRef, rule: &str) -> Error {
        let place = format!("{rule}, at byte {}", at.offset);
        damaged(self.store(), &segment::key(&at.segment), &place)
    }
}

fn end_of(at: &PieceRef) -> u64 {
    u64::from(at.offset) + u64::from(at.stored)
}

/// Whether the second piece lies behind the first one, with at most [`GAP_BYTES`] between.
fn is_close(first: &PieceRef, second: &PieceRef) -> bool {
    first.segment == second.segment && u64::from(second.offset) <= end_of(first) + GAP_BYTES
}

/// Cuts a run where a request would be longer than [`REQUEST_BYTES`].
fn fits(run: &[PieceRef]) -> impl FnMut(&PieceRef, &PieceRef) -> bool {
    let mut begin = run.first().map_or(0, |at| u64::from(at.offset));
    move |_, next| {
        let fits = end_of(next) - begin <= REQUEST_BYTES;
        if !fits {
            begin = next.offset.into();
        }
        fits
    }
}

/// Gives references to the segment zero the segment that they are in.
fn resolve(node: &mut Node, at: &PieceRef) -> Option<()> {
    if node.level == 0 {
        return Some(());
    }
    for (_, value) in &mut node.entries {
        let mut child = PieceRef::from_bytes(value)?;
        if child.segment == Default::default() {
            child.segment = at.segment;
            *value = child.to_bytes().to_vec();
        }
    }
    Some(())
}

impl Archive {
    /// A node that is in the cache.
    pub(crate) fn cached(&self, at: &PieceRef) -> Option<Arc<Node>> {
        self.cache.lock().expect(LOCK).nodes.get(at).cloned()
    }

    fn keep(&self, at: &PieceRef, raw: &[u8]) -> Result<Arc<Node>> {
        let node = Node::decode(raw).and_then(|mut node| resolve(&mut node, at).map(|()| node));
        let node = node.ok_or_else(|| self.error(at, "the piece is no node"))?;
        Ok(self.cache(at, node, raw.len()))
    }

    /// Keeps a node of so many raw bytes, until there are too many.
    pub(crate) fn cache(&self, at: &PieceRef, node: Node, raw: usize) -> Arc<Node> {
        let node = Arc::new(node);
        let mut cache = self.cache.lock().expect(LOCK);
        // Keys are cut in the raw bytes, so that a node takes more in memory.
        cache.bytes += raw * 4;
        if cache.bytes > CACHE_BYTES {
            *cache = Cache { bytes: raw * 4, ..Cache::default() };
        }
        cache.nodes.insert(*at, node.clone());
        node
    }
}

impl Nodes for Archive {
    fn read(&self, at: &PieceRef) -> Result<Arc<Node>> {
        if let Some(node) = self.cached(at) {
            return Ok(node);
        }
        self.keep(at, &self.piece(at)?)
    }

    fn read_child(&self, at: &PieceRef, parent: &Node, position: usize) -> Result<Arc<Node>> {
        if !self.is_sequential || parent.level != 1 {
            return self.read(at);
        }
        if let Some(node) = self.cached(at) {
            return Ok(node);
        }
        let ahead = parent.entries[position..].iter().take(AHEAD);
        let mut run: Vec<PieceRef> = ahead.filter_map(|(_, value)| PieceRef::from_bytes(value)).collect();
        let count = {
            let mut fits = fits(&run);
            let follows = |pair: &&[PieceRef]| {
                pair[0].offset < pair[1].offset && is_close(&pair[0], &pair[1]) && fits(&pair[0], &pair[1])
            };
            run.windows(2).take_while(follows).count()
        };
        run.truncate(count + 1);
        let mut found = None;
        for (place, raw) in self.run(&run)?.into_iter().rev() {
            let node = self.keep(&place, &raw)?;
            if place == *at {
                found = Some(node);
            }
        }
        found.ok_or_else(|| self.error(at, "the node is not the child of its parent"))
    }

    fn damaged(&self, at: &PieceRef, rule: &str) -> Error {
        self.error(at, rule)
    }
}

const LOCK: &str = "no thread panics with the lock";
