//! Items of a tree that may have holes.
//!
//! Invariants: (1) items come in the order of their keys, each at most once; (2) a block is visited at most once in a
//! scan of its whole tree: levels descend by one, windows of keys do not overlap, and a block whose first key lies
//! outside of its window does not count; (3) what could not be read is counted.

use crate::block::{Block, Expect, Quality};
use crate::index::Segment;
use crate::key::KeyRange;
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_tree::Node;
use rustc_hash::FxHashSet;
use std::ops::{ControlFlow, Range};

/// A root of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Root {
    /// The tree.
    pub tree: TreeId,
    /// Where its root is; 0: nowhere, only what a scan has found of the tree.
    pub at: u64,
    /// Its level, where that is known.
    pub level: Option<u8>,
    /// Its generation, where that is known; of what a scan has found, the newest that counts.
    pub generation: Option<u64>,
}

impl Root {
    /// Everything of a tree that a scan has found, up to a generation.
    pub fn of_found(tree: TreeId, generation: Option<u64>) -> Root {
        Root { tree, at: 0, level: None, generation }
    }

    fn expect(&self) -> Expect {
        Expect::root(self.tree, Logical(self.at), self.level, self.generation)
    }
}

/// Blocks that a scan could not read, and the worst of those that it has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Addresses of blocks that are gone, each once; so many that no report needs all are left out.
    gone: FxHashSet<u64>,
    /// Addresses of blocks that were read although they are damaged or of another state.
    salvaged: FxHashSet<u64>,
    /// The keys that lay in the first of those that are gone.
    pub ranges: Vec<(Key, Option<Key>)>,
    /// The worst block that was read.
    pub worst: Option<Quality>,
}

/// Ranges of keys that are remembered.
const MOST_RANGES: usize = 4096;
/// Addresses that are remembered.
const MOST_BLOCKS: usize = 1 << 16;

impl Losses {
    fn lose(&mut self, at: u64, window: &KeyRange) {
        note(&mut self.gone, at);
        if self.ranges.len() < MOST_RANGES {
            self.ranges.push((window.from, window.end));
        }
    }

    fn meet(&mut self, at: Logical, quality: Quality) {
        if quality.trust() > Trust::Proved {
            note(&mut self.salvaged, at.0);
        }
        self.worst = self.worst.max(Some(quality));
    }

    /// Blocks that are gone.
    pub fn blocks(&self) -> u64 {
        self.gone.len() as u64
    }

    /// Whether a block is among those that are gone.
    pub(crate) fn has_lost(&self, at: u64) -> bool {
        self.gone.contains(&at)
    }

    /// Whether some block is gone in another scan too.
    pub(crate) fn shares(&self, other: &Losses) -> bool {
        self.gone.iter().any(|at| other.has_lost(*at))
    }

    /// Blocks that were read although they are damaged or of another state.
    pub fn salvaged(&self) -> u64 {
        self.salvaged.len() as u64
    }

    /// Takes in those of another scan.
    pub fn add(&mut self, other: Losses) {
        other.gone.into_iter().for_each(|at| note(&mut self.gone, at));
        other.salvaged.into_iter().for_each(|at| note(&mut self.salvaged, at));
        self.worst = self.worst.max(other.worst);
        let room = MOST_RANGES - self.ranges.len();
        self.ranges.extend(other.ranges.into_iter().take(room));
    }

    /// Whether everything was there, and sound.
    pub fn is_none(&self) -> bool {
        self.gone.is_empty() && self.worst.is_none_or(|worst| worst == Quality::Good)
    }
}

/// Ranges in order, without overlaps.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match found.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => found.push(range),
        }
    }
    found
}

/// Whether a range meets one of others, which are [`merged`].
pub(crate) fn meets(others: &[Range<u64>], range: &Range<u64>) -> bool {
    let first = others.partition_point(|other| other.end <= range.start);
    others.get(first).is_some_and(|other| other.start < range.end)
}

fn note(addresses: &mut FxHashSet<u64>, at: u64) {
    if addresses.len() < MOST_BLOCKS {
        addresses.insert(at);
    }
}

/// Gets an item; says whether to go on.
pub type Visit<'a> = dyn FnMut(Key, &[u8], Quality) -> ControlFlow<()> + 'a;

/// The children of a node that may have wanted keys, in order.
pub(crate) fn children<'a>(
    node: &'a Node,
    own: &'a Expect,
    wanted: KeyRange,
) -> impl Iterator<Item = Expect> + use<'a> {
    let level = node.level().get().checked_sub(1);
    let first = node.find(wanted.from).unwrap_or_else(|slot| slot.saturating_sub(1));
    let slots = if level.is_some() { first..node.nritems() } else { 0..0 };
    let is_wanted = move |slot: &usize| wanted.end.is_none_or(|end| node.key(*slot) < end);
    slots.take_while(is_wanted).filter_map(move |slot| {
        let (at, generation) = node.child(slot);
        let end = (slot + 1 < node.nritems()).then(|| node.key(slot + 1));
        let window = KeyRange { from: node.key(slot), end }.and(&own.window);
        let expect = Expect { at, level, generation: Some(generation.0), tree: own.tree, is_root: false, window };
        (!window.and(&wanted).is_empty()).then_some(expect)
    })
}

/// A tree as it is read.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    /// The filesystem.
    pub wreck: &'a Wreck,
    /// Where it begins.
    pub root: Root,
}

impl<'a> Tree<'a> {
    /// The tree with this root.
    pub fn new(wreck: &'a Wreck, root: Root) -> Tree<'a> {
        Tree { wreck, root }
    }

    /// Whether its root block can be read.
    pub fn has_root(&self) -> bool {
        self.root.at != 0 && self.wreck.block(&self.root.expect()).is_some()
    }

    /// The level of its root block, where that can be read.
    pub fn level(&self) -> Option<u8> {
        let block = self.wreck.block(&self.root.expect()).filter(|_| self.root.at != 0);
        block.map(|block| block.node.level().get())
    }

    /// Shows all items from `first` to `last`, until the visitor has seen enough.
    pub fn scan(&self, first: Key, last: Key, visit: &mut Visit<'_>) -> Losses {
        match self.wreck.layer(&self.root) {
            Some(layer) => layer.scan(self, first, last, visit),
            None => self.scan_committed(first, last, visit),
        }
    }

    /// The same without the log, where one is laid over the tree.
    pub(crate) fn scan_committed(&self, first: Key, last: Key, visit: &mut Visit<'_>) -> Losses {
        let wanted = KeyRange::through(first, last);
        let mut walk = Walk { wreck: self.wreck, wanted, losses: Losses::default() };
        let expect = self.root.expect();
        let above = Quality::Good;
        let _ = if self.root.at == 0 { walk.stand_in(&expect, visit) } else { walk.descend(&expect, above, visit) };
        walk.losses
    }

    /// Shows all items of an object with a type from `first` to `last`.
    pub fn scan_object(&self, object: u64, first: KeyType, last: KeyType, visit: &mut Visit<'_>) -> Losses {
        self.scan(Key::new(object, first, 0), Key::new(object, last, u64::MAX), visit)
    }

    /// The item with this key.
    pub fn item(&self, key: Key) -> Option<Vec<u8>> {
        let mut found = None;
        self.scan(key, key, &mut |_, data, _| {
            found = Some(data.to_vec());
            ControlFlow::Break(())
        });
        found
    }

    /// The first item from `first` to `last`.
    pub fn first(&self, first: Key, last: Key) -> Option<(Key, Vec<u8>)> {
        let mut found = None;
        self.scan(first, last, &mut |key, data, _| {
            found = Some((key, data.to_vec()));
            ControlFlow::Break(())
        });
        found
    }

    /// The last item from `first` to `last` among the leaves that may have it.
    pub fn last(&self, first: Key, last: Key) -> Option<(Key, Vec<u8>)> {
        let mut found: Option<(Key, Vec<u8>)> = None;
        self.scan(first, last, &mut |key, data, _| {
            let slot = found.get_or_insert_default();
            slot.0 = key;
            slot.1.clear();
            slot.1.extend_from_slice(data);
            ControlFlow::Continue(())
        });
        found
    }

    /// Shows every block that can be read, parents first; the visitor says whether to look at what is below it.
    pub fn blocks(&self, visit: &mut dyn FnMut(&Block, &Expect) -> bool) -> Losses {
        let mut walk = Walk { wreck: self.wreck, wanted: KeyRange::ALL, losses: Losses::default() };
        if self.root.at != 0 {
            walk.blocks(&self.root.expect(), visit);
        }
        walk.losses
    }
}

struct Walk<'a> {
    wreck: &'a Wreck,
    wanted: KeyRange,
    losses: Losses,
}

impl Walk<'_> {
    /// Shows what is below a block. Children of an older node are of an older state too, sound as they are.
    fn descend(&mut self, expect: &Expect, above: Quality, visit: &mut Visit<'_>) -> ControlFlow<()> {
        let Some(block) = self.wreck.block(expect).filter(|block| block.fits(&expect.window)) else {
            return self.stand_in(expect, visit);
        };
        let is_older = above.trust() == Trust::Older && block.quality.trust() == Trust::Proved;
        let quality = if is_older { above } else { block.quality };
        self.losses.meet(expect.at, quality);
        if block.node.is_leaf() {
            return self.show(&block, &expect.window, quality, visit);
        }
        for child in children(&block.node, expect, self.wanted) {
            self.descend(&child, quality, visit)?;
        }
        ControlFlow::Continue(())
    }

    fn show(&self, block: &Block, window: &KeyRange, quality: Quality, visit: &mut Visit<'_>) -> ControlFlow<()> {
        let range = window.and(&self.wanted);
        let first = block.node.find(range.from).unwrap_or_else(|slot| slot);
        for slot in first..block.node.nritems() {
            let key = block.node.key(slot);
            if !range.contains(key) {
                break;
            }
            visit(key, block.node.item(slot), quality)?;
        }
        ControlFlow::Continue(())
    }

    /// In place of a lost block: leaves of its tree that a scan has found.
    fn stand_in(&mut self, expect: &Expect, visit: &mut Visit<'_>) -> ControlFlow<()> {
        let segments = self.wreck.stand_ins(expect);
        if expect.at.0 != 0 {
            self.losses.lose(expect.at.0, &expect.window);
        }
        let first = segments.partition_point(|one| one.range.end.is_some_and(|end| end <= self.wanted.from));
        for Segment { range, found, is_confirmed } in segments[first..].iter() {
            if self.wanted.end.is_some_and(|end| end <= range.from) {
                break;
            }
            let quality = if *is_confirmed { Quality::Confirmed } else { Quality::StandIn };
            match self.wreck.found_block(found) {
                Some(block) => {
                    self.losses.meet(Logical(found.logical), quality);
                    self.show(&block, range, quality, visit)?;
                }
                None => self.losses.lose(found.logical, range),
            }
        }
        ControlFlow::Continue(())
    }

    fn blocks(&mut self, expect: &Expect, visit: &mut dyn FnMut(&Block, &Expect) -> bool) {
        let Some(block) = self.wreck.block(expect).filter(|block| block.fits(&expect.window)) else {
            return self.losses.lose(expect.at.0, &expect.window);
        };
        self.losses.meet(expect.at, block.quality);
        if visit(&block, expect) && !block.node.is_leaf() {
            for child in children(&block.node, expect, self.wanted) {
                self.blocks(&child, visit);
            }
        }
    }
}
