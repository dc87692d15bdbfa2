//! The state that all passes share: the volume, the verified blocks, the set of seen blocks, the findings.
//!
//! Invariants: (1) a block's content reaches a pass only after checksum, parent's promise and tree checker; (2) a block
//! is verified in every copy once, whoever points to it; (3) at most [`MAX_FINDINGS`] findings are kept, all are
//! counted.

use crate::block_set::BlockSet;
use crate::finding::{Finding, Severity, Tree};
use crate::packing::Suspect;
use crate::{Options, Progress, Stage};
use butterfs_ondisk::Superblock;
use butterfs_tree::{BlockIdentity, Node, NodePtr, check_block};
use butterfs_volume::Volume;
use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Findings that are kept; more are only counted.
pub const MAX_FINDINGS: usize = 10_000;
/// Nodes in the cache at most, whatever its size in bytes: its tables are allocated by this number.
const MOST_CACHED: usize = 1 << 20;

/// The record of a good block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub level: u8,
    pub generation: u64,
    pub owner: u64,
    /// A balance made it.
    pub is_reloc: bool,
}

struct Blocks {
    /// Promises about blocks that were not kept, so that each is told once.
    failed: HashSet<(u64, u64, u8)>,
    /// Nodes above the leaves, at most `Options::cache_bytes` of them.
    cache: Cache<u64, Arc<Node>>,
}

#[derive(Default)]
pub(crate) struct Sink {
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
    pub errors: u64,
    pub warnings: u64,
}

pub(crate) struct Session<'a> {
    pub volume: Volume,
    pub sb: Superblock,
    pub identity: BlockIdentity,
    pub options: &'a Options,
    /// Blocks of which every copy was looked at.
    verified: BlockSet,
    blocks: Mutex<Blocks>,
    sink: Mutex<Sink>,
    /// At most [`MAX_FINDINGS`].
    suspects: Mutex<Vec<Suspect>>,
    progress: &'a (dyn Fn(Progress) + Sync),
    stage: AtomicUsize,
    blocks_read: AtomicU64,
    data_read: AtomicU64,
    /// The work done in this stage, and how much there is to do: blocks, or bytes of data.
    done: AtomicU64,
    due: AtomicU64,
}

impl<'a> Session<'a> {
    pub fn new(
        volume: Volume,
        sb: Superblock,
        sink: Sink,
        options: &'a Options,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Session<'a> {
        let identity = BlockIdentity::of(&sb, true).with_seeds(&volume.seed_fsids());
        let nodes = options.cache_bytes / u64::from(identity.nodesize.max(1));
        let cache = Cache::new(usize::try_from(nodes).unwrap_or(usize::MAX).clamp(1, MOST_CACHED));
        let (blocks, sink) = (Mutex::new(Blocks { failed: HashSet::new(), cache }), Mutex::new(sink));
        let (stage, blocks_read, data_read, done, due) = Default::default();
        let suspects = Mutex::default();
        let verified = BlockSet::new(identity.sectorsize.into());
        Session {
            volume,
            sb,
            identity,
            options,
            verified,
            blocks,
            sink,
            suspects,
            progress,
            stage,
            blocks_read,
            data_read,
            done,
            due,
        }
    }

    pub fn nodesize(&self) -> u64 {
        self.identity.nodesize.into()
    }

    pub fn sectorsize(&self) -> u64 {
        self.identity.sectorsize.into()
    }

    pub fn report(&self, finding: Finding) {
        self.sink.lock().add(finding);
    }

    pub fn note(&self, note: impl Into<String>) {
        self.sink.lock().notes.push(note.into());
    }

    /// Remembers an extent that may be packed otherwise than it is marked.
    pub fn suspect(&self, suspect: Suspect) {
        let mut suspects = self.suspects.lock();
        if suspects.len() < MAX_FINDINGS {
            suspects.push(suspect);
        }
    }

    pub fn take_suspects(&self) -> Vec<Suspect> {
        std::mem::take(&mut self.suspects.lock())
    }

    pub fn into_sink(self) -> Sink {
        self.sink.into_inner()
    }

    /// Tells that a stage begins.
    pub fn stage(&self, stage: Stage) {
        let number = Stage::ALL.iter().position(|other| *other == stage).unwrap_or(0);
        self.stage.store(number, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.tell(true);
    }

    /// How many blocks, or bytes of data, are read in this stage.
    pub fn expect(&self, due: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
    }

    fn tell(&self, begins: bool) {
        let (done, due) = (self.done.load(Ordering::Relaxed), self.due.load(Ordering::Relaxed));
        // Trees may be other than the extent tree has them.
        let percent = (due > 0).then(|| (u128::from(done) * 100 / u128::from(due)).min(100) as u8);
        let (blocks, data_bytes) = (self.blocks_read.load(Ordering::Relaxed), self.data_read.load(Ordering::Relaxed));
        let stage = Stage::ALL[self.stage.load(Ordering::Relaxed)];
        (self.progress)(Progress { stage, blocks, data_bytes, percent, begins });
    }

    fn tick(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if self.blocks_read.fetch_add(1, Ordering::Relaxed) % 1024 == 1023 {
            self.tell(false);
        }
    }

    /// Counts data that was read.
    pub fn count_data(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        let before = self.data_read.fetch_add(bytes, Ordering::Relaxed);
        if before >> 24 != (before + bytes) >> 24 {
            self.tell(false);
        }
    }

    /// The block that `ptr` promises; `None` when it cannot be had, which has been reported then.
    pub fn block(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let cached = {
            let blocks = self.blocks.lock();
            if !blocks.failed.is_empty() && blocks.failed.contains(&promise(ptr)) {
                return None;
            }
            if ptr.level.get() > 0 { blocks.cache.get(&ptr.at.get()).cloned() } else { None }
        };
        if let Some(node) = cached {
            return match node.confirm(ptr) {
                Ok(()) => Some(node),
                Err(corrupt) => self.fail(ptr, corrupt.rule),
            };
        }
        let first = self.verified.insert(ptr.at.get());
        self.tick();
        match self.read(ptr, first) {
            Ok(node) => {
                if !node.is_leaf() {
                    self.keep(&node);
                }
                Some(node)
            }
            Err(rule) => self.fail(ptr, rule),
        }
    }

    fn fail(&self, ptr: &NodePtr, reason: String) -> Option<Arc<Node>> {
        // Two threads may reach a shared block at once; it is told once.
        if self.blocks.lock().failed.insert(promise(ptr)) {
            self.report(Finding::BlockBad { tree: Tree(ptr.tree), at: ptr.at, reason });
        }
        None
    }

    /// Reads all copies, or those up to the first good one. A copy that has the same bytes as a good one is good.
    fn read(&self, ptr: &NodePtr, all: bool) -> Result<Arc<Node>, String> {
        let (mut good, mut bad): (Option<Node>, Vec<_>) = (None, Vec::new());
        // A device that missed writes can hold blocks of a commit that a crash cut off. They look right.
        for copy in self.volume.preferred_copies(ptr.at, self.identity.nodesize as usize) {
            let mut bytes = vec![0; self.identity.nodesize as usize].into_boxed_slice();
            let read = self.volume.read_copy(ptr.at, copy, &mut bytes).map_err(|error| error.to_string());
            let alike = read.is_ok() && good.as_ref().is_some_and(|good| *good.bytes() == *bytes);
            let check = || check_block(&bytes, ptr, &self.identity).map_err(|corrupt| corrupt.to_string());
            match read.and_then(|()| if alike { Ok(()) } else { check() }) {
                Ok(()) if good.is_none() => good = Some(Node::from_checked(bytes)),
                Ok(()) => {}
                Err(rule) => bad.push((copy, rule)),
            }
            if good.is_some() && !all {
                break;
            }
        }
        let Some(good) = good else {
            return Err(bad.into_iter().next().map_or_else(|| "no chunk holds it".to_owned(), |(_, rule)| rule));
        };
        for (copy, reason) in bad.into_iter().filter(|_| all) {
            self.report(Finding::BlockCopyBad { tree: Tree(ptr.tree), at: ptr.at, copy: copy as u64, reason });
        }
        Ok(Arc::new(good))
    }

    fn keep(&self, node: &Arc<Node>) {
        self.blocks.lock().cache.insert(node.at().get(), node.clone());
    }
}

fn promise(ptr: &NodePtr) -> (u64, u64, u8) {
    (ptr.at.get(), ptr.generation.get(), ptr.level.get())
}

impl Sink {
    pub fn add(&mut self, finding: Finding) {
        match finding.severity() {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }
}
