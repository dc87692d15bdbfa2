//! References to an address: from a logical address to every tree and key that leads there.
//!
//! ```text
//! extent item ── keyed reference (tree, inode, offset) ──► search the tree: the leaf with the file extent item
//!             └─ shared reference (address of a leaf) ───► that leaf
//! leaf ── its own extent item ── reference of a tree, or of a parent ──► … ──► the roots that reach it
//! ```
//!
//! A reference says who made it. Snapshots share whole subtrees without a reference of their own at the bottom, so the
//! trees that reach an extent are found by going up from the leaf, block by block, to the roots.
//!
//! # Invariants
//! 1. [`Referrers`] and [`sharers`] answer for the last commit: references of later changes are still queued.
//! 2. Each file extent item lies in one leaf of a tree, and that leaf counts under one reference. So no referrer is
//!    found twice: a leaf that was found through a keyed reference counts only if the tree owns it and its references
//!    are not shared ones.
//! 3. Blocks of a commit may be used again after the next one. An error counts only while the commit that was being
//!    read is still the last one; otherwise the step is taken again.
//! 4. A referrer that is there all the time is found, whatever is committed meanwhile: after another commit the search
//!    begins anew and leaves out what was given already, because copying a leaf moves references to any position among
//!    the others.
//! 5. Memory: one slice of references, one reference's leaves, for each tree above one leaf some bytes, and some tens
//!    of bytes for each referrer that was given, of which there are at most [`MOST_REFERRERS`].

mod ancestors;
mod exclusive;
mod references;
pub mod sharers;
mod view;

pub use exclusive::{is_exclusive, is_only_user};
pub(crate) use references::keyed as keyed_reference;

use crate::error::{Errno, Error, Result};
use crate::file_extent::{FileExtent, MAX_UNCOMPRESSED};
use crate::transaction::refs::RefBy;
use crate::transaction::{Core, DataRef};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::Node;
use references::References;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use view::Block;
pub(crate) use view::View;

/// A tree and a key that lead to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Referrer {
    /// The tree; it may be deleted and not dropped yet.
    pub tree: TreeId,
    /// The key of the file extent item; the first key of a tree block.
    pub key: Key,
    /// The level of the tree block; 0 for data.
    pub level: Level,
    /// The file extent item; none of a tree block.
    pub extent: Option<FileExtent>,
}

/// An extent as its item in the extent tree has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentAt {
    /// The position at which it starts.
    pub start: Logical,
    /// Bytes on disk.
    pub len: u64,
    /// The level of a tree block; none for data.
    pub level: Option<Level>,
}

/// The extent that `at` lies in, as of the last commit. `ENOENT` when there is none.
pub fn extent_at(core: &Core, at: Logical) -> Result<ExtentAt> {
    View::look(core, |view| view.extent_at(at))?
        .ok_or_else(|| Error::refused_at(Errno::ENOENT, format!("nothing is allocated at {at}")))
}

/// Whether something beside `own` refers to the data of `extent`, as of the last commit: another file, the same file in
/// another subvolume, or this one at another distance. What nothing refers to yet has no other user.
pub fn has_other_users(core: &Core, extent: &FileExtent, own: &DataRef) -> Result<bool> {
    /// Most extents have few users.
    const FEW: usize = 4;
    let Some(found) = View::look(core, |view| view.extent_at(extent.at))? else { return Ok(false) };
    let mut referrers = Referrers::new(found);
    let is_other = |referrer: &Referrer| {
        let data_ref = referrer.extent.and_then(|extent| extent.data_ref(referrer.tree, referrer.key.objectid));
        data_ref.is_none_or(|data_ref| data_ref != *own)
    };
    loop {
        let some = referrers.next(core, FEW)?;
        if some.iter().any(is_other) {
            return Ok(true);
        }
        if some.is_empty() {
            return Ok(false);
        }
    }
}

/// More referrers than these are an error: the kernel's own answer ends long before.
pub const MOST_REFERRERS: usize = 4_000_000;

/// All referrers of one extent, some at a time. What changes between two calls may be missing or be there.
#[derive(Debug)]
pub struct Referrers {
    extent: ExtentAt,
    /// The commit that is being read.
    commit: Generation,
    given: FxHashSet<(TreeId, Key)>,
    references: References,
    /// Leaves of the reference that is being followed, with the items in them that refer to the extent.
    leaves: VecDeque<Found>,
    open: Option<Product>,
}

/// A block, and the keys in it that lead to the extent.
#[derive(Debug)]
struct Found {
    block: Block,
    keys: Vec<(Key, Option<FileExtent>)>,
}

/// Each of the keys in each of the trees.
#[derive(Debug)]
struct Product {
    keys: Vec<(Key, Option<FileExtent>)>,
    trees: Vec<TreeId>,
    next: usize,
}

impl Product {
    /// The next referrer, tree by tree.
    fn take(&mut self, level: Level) -> Option<Referrer> {
        let tree = *self.trees.get(self.next / self.keys.len())?;
        let (key, extent) = self.keys[self.next % self.keys.len()];
        self.next += 1;
        Some(Referrer { tree, key, level, extent })
    }
}

impl Referrers {
    /// The referrers of `extent`.
    pub fn new(extent: ExtentAt) -> Referrers {
        Referrers {
            extent,
            commit: Generation(0),
            given: FxHashSet::default(),
            references: References::default(),
            leaves: VecDeque::new(),
            open: None,
        }
    }

    /// The next referrers, at most `most`; none at the end.
    pub fn next(&mut self, core: &Core, most: usize) -> Result<Vec<Referrer>> {
        let mut found = Vec::new();
        let level = self.extent.level.unwrap_or(Level(0));
        View::look(core, |view| {
            if self.commit != view.generation {
                self.commit = view.generation;
                (self.references, self.open) = Default::default();
                self.leaves.clear();
            }
            while found.len() < most {
                match self.open.as_mut().and_then(|open| open.take(level)) {
                    Some(referrer) => {
                        found.extend(self.given.insert((referrer.tree, referrer.key)).then_some(referrer))
                    }
                    None if self.step(view)? => {}
                    None => break,
                }
            }
            Ok(())
        })?;
        if self.given.len() > MOST_REFERRERS {
            let at = self.extent.start;
            return Err(Error::refused_at(Errno::E2BIG, format!("more than {MOST_REFERRERS} places lead to {at}")));
        }
        Ok(found)
    }

    /// Goes on to the next block, or to the next reference. False at the end. After an error it can be called again.
    fn step(&mut self, view: &View<'_>) -> Result<bool> {
        if let Some(Found { block, keys }) = self.leaves.front() {
            let trees = ancestors::trees_above(view, block)?;
            self.open = Some(Product { keys: keys.clone(), trees, next: 0 });
            self.leaves.pop_front();
            return Ok(true);
        }
        if let Some(level) = self.extent.level {
            return self.step_to_block(view, level);
        }
        let Some(by) = self.references.first(view, &self.extent)? else { return Ok(false) };
        self.leaves.extend(leaves_of(view, &self.extent, by)?);
        self.references.pop();
        Ok(true)
    }

    /// A tree block is found once, whatever refers to it.
    fn step_to_block(&mut self, view: &View<'_>, level: Level) -> Result<bool> {
        if self.references.at_end() {
            return Ok(false);
        }
        let block = view.block(self.extent.start, level)?.and_then(|node| Block::of(&node));
        self.leaves.extend(block.map(|block| Found { keys: vec![(block.key, None)], block }));
        self.references = References::ended();
        Ok(true)
    }
}

/// The leaves that a reference of data stands for.
fn leaves_of(view: &View<'_>, extent: &ExtentAt, by: RefBy) -> Result<Vec<Found>> {
    let found = |node: &Node| -> Result<Option<Found>> {
        let keys = items_that_refer(view, node, extent, by)?;
        Ok(Block::of(node).filter(|_| !keys.is_empty()).map(|block| Found { block, keys }))
    };
    match by {
        RefBy::Leaf(at) => match view.block(at, Level(0))? {
            Some(node) => Ok(found(&node)?.into_iter().collect()),
            None => Ok(Vec::new()),
        },
        RefBy::File { tree, ino, offset } => {
            let Some(root) = view.root(tree)? else { return Ok(Vec::new()) };
            let (mut leaves, (from, to)) = (Vec::new(), range_of(extent, ino, offset));
            let mut next = Some(from);
            while let Some(key) = next.filter(|key| *key <= to) {
                let position = butterfs_tree::search(view, &root, &key)?;
                next = position.upper;
                let Some(leaf) = found(&position.leaf)? else { continue };
                if position.leaf.owner() == tree && !view.is_full(&leaf.block)? {
                    leaves.push(leaf);
                }
            }
            Ok(leaves)
        }
        RefBy::Tree(_) | RefBy::Block(_) => Ok(Vec::new()),
    }
}

/// The keys between which the items of a keyed reference lie: `offset` is where the extent begins in the file, which
/// may be before the file's first byte.
pub(crate) fn range_of(extent: &ExtentAt, ino: u64, offset: u64) -> (Key, Key) {
    let first = if i64::try_from(offset).is_ok() { offset } else { 0 };
    let last = offset.wrapping_add(extent.len.max(MAX_UNCOMPRESSED as u64) - 1);
    (Key::new(ino, KeyType::EXTENT_DATA, first), Key::new(ino, KeyType::EXTENT_DATA, last))
}

/// The items of a leaf that refer to the extent, as `by` says.
fn items_that_refer(
    view: &View<'_>,
    node: &Node,
    extent: &ExtentAt,
    by: RefBy,
) -> Result<Vec<(Key, Option<FileExtent>)>> {
    let mut keys = Vec::new();
    for (key, payload) in node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
        let item = FileExtent::parse(key, payload, u64::from(view.core.sectorsize()))?;
        let by_this = match by {
            RefBy::File { ino, offset, .. } => key.objectid == ino && item.start.wrapping_sub(item.offset) == offset,
            _ => true,
        };
        if by_this && item.is_on_disk() && item.at == extent.start {
            keys.push((key, Some(item)));
        }
    }
    Ok(keys)
}
