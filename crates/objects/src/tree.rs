//! The index of a snapshot: a tree of [nodes](crate::node) that are never changed. A new version shares every node
//! that no edit touched.
//!
//! # Invariants
//! 1. A node ends behind a key whose digest says so, or when it is full; so where nodes end depends on their keys and
//!    not on the order of the edits, and an edit changes its own node in each level and rarely the next.
//! 2. A node is never empty; the root of an empty index is `None`.

use crate::digest::Digest;
use crate::node::{Entry, Node};
use crate::piece::PieceRef;
use butterfs_store::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node of so many bytes ends.
const FULL: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };
/// A leaf of fewer bytes does not end, and an inner node of fewer bytes neither.
const FEW: [usize; 2] = if cfg!(test) { [256, 300] } else { [8 << 10, 16 << 10] };
/// One of so many keys ends a node.
const ONE_IN: u8 = 64;
/// More levels than any index has.
const MAX_LEVELS: u8 = 16;

/// Nodes by reference.
pub trait Nodes {
    /// Reads a node; a reference inside it never has the segment zero.
    fn read(&self, at: &PieceRef) -> Result<Arc<Node>>;
    /// Reads the child of a node at a position; its neighbours may be asked for next.
    fn read_child(&self, at: &PieceRef, _parent: &Node, _position: usize) -> Result<Arc<Node>> {
        self.read(at)
    }
    /// An error about a node.
    fn damaged(&self, at: &PieceRef, rule: &str) -> butterfs_store::Error;
}

/// Takes new nodes.
pub trait NewNodes: Nodes {
    /// Keeps a node.
    fn write(&mut self, node: Node) -> Result<PieceRef>;
}

/// The root of an index, and its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The root node.
    pub at: PieceRef,
    /// Its level.
    pub level: u8,
}

/// Edits in the order of their keys: a value, or nothing where the key goes.
pub type Edits = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A node with a level and references that make sense.
pub(crate) fn read(nodes: &(impl Nodes + ?Sized), at: &PieceRef, level: u8) -> Result<Arc<Node>> {
    sane(nodes, at, level, nodes.read(at)?)
}

/// The child of a node at a position, with its reference.
fn read_child(nodes: &(impl Nodes + ?Sized), at: &PieceRef, parent: &Node, position: usize) -> Result<Arc<Node>> {
    let below = parent.level.saturating_sub(1);
    sane(nodes, at, below, nodes.read_child(at, parent, position)?)
}

fn sane(nodes: &(impl Nodes + ?Sized), at: &PieceRef, level: u8, node: Arc<Node>) -> Result<Arc<Node>> {
    if node.level != level || node.entries.is_empty() {
        return Err(nodes.damaged(at, "the node has another level than its parent says, or no entry"));
    }
    Ok(node)
}

pub(crate) fn child(nodes: &(impl Nodes + ?Sized), at: &PieceRef, value: &[u8]) -> Result<PieceRef> {
    PieceRef::from_bytes(value).ok_or_else(|| nodes.damaged(at, "the node has a child that is no reference"))
}

/// The position of the last entry that is not above `key`, or of the first.
fn position(node: &Node, key: &[u8]) -> usize {
    node.entries.partition_point(|(first, _)| &first[..] <= key).saturating_sub(1)
}

/// A way from the root down to a node of one level.
struct Cursor<'n, N: ?Sized> {
    nodes: &'n N,
    /// The inner nodes with the position of the child that is next.
    path: Vec<(PieceRef, Arc<Node>, usize)>,
    root: Root,
    level: u8,
    /// The root itself is of the wanted level and was not passed yet.
    is_before_root: bool,
}

impl<'n, N: Nodes + ?Sized> Cursor<'n, N> {
    fn new(nodes: &'n N, root: Root, level: u8) -> Cursor<'n, N> {
        Cursor { nodes, path: Vec::new(), root, level, is_before_root: root.level == level }
    }

    /// Goes to the node that `key` belongs to; it is the next one then.
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.path.clear();
        let mut at = self.root.at;
        for level in (self.level + 1..=self.root.level).rev() {
            let node = read(self.nodes, &at, level)?;
            let position = position(&node, key);
            let next = child(self.nodes, &at, &node.entries[position].1)?;
            // A node that is entered here is passed above.
            let passed = usize::from(level > self.level + 1);
            self.path.push((at, node, position + passed));
            at = next;
        }
        Ok(())
    }

    /// The first key of the next node, by its parent; `None` behind the last one.
    fn next_key(&self) -> Option<&[u8]> {
        if self.path.is_empty() {
            return self.is_before_root.then_some(&[]);
        }
        let next = self.path.iter().rev().find(|(_, node, position)| *position < node.entries.len());
        next.map(|(_, node, position)| &node.entries[*position].0[..])
    }

    /// The next node with the key that its parent knows it by.
    fn next(&mut self) -> Result<Option<(Vec<u8>, PieceRef)>> {
        if self.root.level == self.level {
            return Ok(std::mem::take(&mut self.is_before_root).then(|| (Vec::new(), self.root.at)));
        }
        while self.path.last().is_some_and(|(_, node, position)| *position >= node.entries.len()) {
            self.path.pop();
        }
        loop {
            let Some((at, node, position)) = self.path.last_mut() else { return Ok(None) };
            let (key, value) = &node.entries[*position];
            let (key, next) = (key.clone(), child(self.nodes, at, value)?);
            let level = node.level - 1;
            *position += 1;
            if level == self.level {
                return Ok(Some((key, next)));
            }
            let inner = read(self.nodes, &next, level)?;
            self.path.push((next, inner, 0));
        }
    }
}

/// Entries of a range of keys in order, read as they are asked for.
pub struct Scan<'n, N: ?Sized> {
    cursor: Cursor<'n, N>,
    leaf: Option<(Arc<Node>, usize)>,
    from: Vec<u8>,
    is_sought: bool,
}

/// Leaves come in the order of their keys; so no leaf comes twice, and a scan has an end.
fn follows<N: Nodes + ?Sized>(nodes: &N, before: Option<&Node>, at: &PieceRef, next: &Node) -> Result<()> {
    match (before.and_then(|node| node.entries.last()), next.entries.first()) {
        (Some((last, _)), Some((first, _))) if first <= last => {
            Err(nodes.damaged(at, "the node is not in the order of the keys"))
        }
        _ => Ok(()),
    }
}

impl<'n, N: Nodes + ?Sized> Scan<'n, N> {
    /// From the key `from` on.
    pub fn new(nodes: &'n N, root: Root, from: &[u8]) -> Scan<'n, N> {
        Scan { cursor: Cursor::new(nodes, root, 0), leaf: None, from: from.to_vec(), is_sought: false }
    }

    /// The next entry.
    #[allow(clippy::should_implement_trait)] // it fails
    pub fn next(&mut self) -> Result<Option<Entry>> {
        if !std::mem::replace(&mut self.is_sought, true) {
            self.cursor.seek(&self.from)?;
        }
        loop {
            if let Some((leaf, position)) = &mut self.leaf
                && let Some(entry) = leaf.entries.get(*position)
            {
                *position += 1;
                return Ok(Some(entry.clone()));
            }
            let Some((_, at)) = self.cursor.next()? else { return Ok(None) };
            let leaf = match self.cursor.path.last() {
                Some((_, parent, passed)) => read_child(self.cursor.nodes, &at, parent, passed - 1)?,
                None => read(self.cursor.nodes, &at, 0)?,
            };
            follows(self.cursor.nodes, self.leaf.as_ref().map(|(leaf, _)| &**leaf), &at, &leaf)?;
            let position = leaf.entries.partition_point(|(key, _)| *key < self.from);
            self.leaf = Some((leaf, position));
        }
    }
}

/// The value of a key.
pub fn get(nodes: &(impl Nodes + ?Sized), root: Option<Root>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(root) = root else { return Ok(None) };
    check_height(nodes, root)?;
    let mut node = read(nodes, &root.at, root.level)?;
    let mut at = root.at;
    while node.level > 0 {
        let position = position(&node, key);
        at = child(nodes, &at, &node.entries[position].1)?;
        node = read_child(nodes, &at, &node, position)?;
    }
    let found = node.entries.binary_search_by(|(other, _)| other[..].cmp(key));
    Ok(found.ok().map(|position| node.entries[position].1.clone()))
}

/// The last entry that is below `key`.
pub fn before(nodes: &(impl Nodes + ?Sized), root: Option<Root>, key: &[u8]) -> Result<Option<Entry>> {
    let Some(root) = root else { return Ok(None) };
    check_height(nodes, root)?;
    let mut at = root.at;
    for level in (0..=root.level).rev() {
        let node = read(nodes, &at, level)?;
        let Some(position) = node.entries.partition_point(|(first, _)| &first[..] < key).checked_sub(1) else {
            return Ok(None);
        };
        if level == 0 {
            return Ok(Some(node.entries[position].clone()));
        }
        at = child(nodes, &at, &node.entries[position].1)?;
    }
    Ok(None)
}

/// Refuses a root of a level that no index has.
pub fn check_height(nodes: &(impl Nodes + ?Sized), root: Root) -> Result<()> {
    let fits = root.level < MAX_LEVELS;
    if fits { Ok(()) } else { Err(nodes.damaged(&root.at, "the root has more levels than any index")) }
}

/// Carries out edits; returns the new root.
pub fn edit(nodes: &mut impl NewNodes, root: Option<Root>, edits: Edits) -> Result<Option<Root>> {
    if edits.is_empty() {
        return Ok(root);
    }
    let (mut edits, mut level, base) = (edits, 0, root);
    loop {
        let base = base.filter(|root| root.level >= level);
        let is_whole = base.is_none_or(|root| root.level == level);
        let above = edit_level(nodes, base, level, edits)?;
        let made = above.values().flatten().count();
        if is_whole && made <= 1 {
            let only = above.into_values().flatten().next();
            let only = only.map(|value| PieceRef::from_bytes(&value).expect("a reference that was made here"));
            return only.map(|at| lowest(nodes, Root { at, level })).transpose();
        }
        (edits, level) = (above, level + 1);
    }
}

/// Below a root with a single child that child is root enough.
fn lowest(nodes: &impl Nodes, mut root: Root) -> Result<Root> {
    while root.level > 0 {
        let node = read(nodes, &root.at, root.level)?;
        let [(_, only)] = &node.entries[..] else { break };
        root = Root { at: child(nodes, &root.at, only)?, level: root.level - 1 };
    }
    Ok(root)
}

/// Edits the nodes of one level; returns the edits of the level above.
fn edit_level(nodes: &mut impl NewNodes, base: Option<Root>, level: u8, edits: Edits) -> Result<Edits> {
    let mut above = Edits::new();
    let mut builder = Builder { level, entries: Vec::new(), bytes: 0 };
    let mut edits = edits.into_iter().peekable();
    // The position of the cursor, because the cursor borrows the nodes.
    let mut passed: Option<Vec<u8>> = None;
    loop {
        let next = match (base, edits.peek()) {
            (None, _) => None,
            (Some(root), peeked) => {
                let mut cursor = Cursor::new(&*nodes, root, level);
                let wanted = match (&passed, peeked) {
                    // The open node goes on with the next one.
                    (Some(passed), _) if !builder.entries.is_empty() => Some((passed.clone(), true)),
                    (_, Some((key, _))) => Some((key.clone(), false)),
                    _ => None,
                };
                match wanted {
                    None => None,
                    Some((key, is_behind)) => {
                        cursor.seek(&key)?;
                        if is_behind {
                            cursor.next()?;
                        }
                        let next = cursor.next()?;
                        let until = cursor.next_key().filter(|_| root.level != level).map(<[u8]>::to_vec);
                        next.map(|(key, at)| (key, at, until))
                    }
                }
            }
        };
        let Some((key, at, until)) = next else {
            for (key, value) in edits.by_ref() {
                if let Some(value) = value {
                    builder.push(nodes, (key, value), &mut above)?;
                }
            }
            builder.cut(nodes, &mut above)?;
            return Ok(above);
        };
        let old = read(&*nodes, &at, level)?;
        above.entry(key.clone()).or_insert(None);
        let mut old = old.entries.iter().cloned().peekable();
        loop {
            let edit = edits.peek().map(|(key, _)| key).filter(|key| until.as_ref().is_none_or(|until| *key < until));
            match (old.peek(), edit) {
                (None, None) => break,
                (Some((there, _)), Some(edited)) if there < edited => {
                    builder.push(nodes, old.next().expect("peeked"), &mut above)?;
                }
                (Some(_), None) => builder.push(nodes, old.next().expect("peeked"), &mut above)?,
                (there, Some(edited)) => {
                    if there.is_some_and(|(there, _)| there == edited) {
                        old.next();
                    }
                    let (key, value) = edits.next().expect("peeked");
                    if let Some(value) = value {
                        builder.push(nodes, (key, value), &mut above)?;
                    }
                }
            }
        }
        passed = Some(key);
        if until.is_none() {
            builder.cut(nodes, &mut above)?;
            return Ok(above);
        }
    }
}

/// The node that is being filled.
struct Builder {
    level: u8,
    entries: Vec<Entry>,
    bytes: usize,
}

impl Builder {
    fn push(&mut self, nodes: &mut impl NewNodes, (key, value): Entry, above: &mut Edits) -> Result<()> {
        let ends = Digest::of(&key).0[0].is_multiple_of(ONE_IN);
        self.bytes += key.len() + value.len() + 3;
        self.entries.push((key, value));
        // A node of inner levels has two entries at least, so that each level has fewer nodes than the one below.
        let is_enough = self.bytes >= FULL || (ends && self.bytes >= FEW[usize::from(self.level > 0)]);
        if is_enough && (self.level == 0 || self.entries.len() > 1) { self.cut(nodes, above) } else { Ok(()) }
    }

    fn cut(&mut self, nodes: &mut impl NewNodes, above: &mut Edits) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        let Some((first, _)) = entries.first() else { return Ok(()) };
        let first = first.clone();
        let at = nodes.write(Node { level: self.level, entries })?;
        above.insert(first, Some(at.to_bytes().to_vec()));
        Ok(())
    }
}

/// One difference of two indexes: a key with its old and its new value.
pub type Difference<'d> = (&'d [u8], Option<&'d [u8]>, Option<&'d [u8]>);

/// Shows the differences of two indexes in the order of their keys. Nodes that both share are not read.
pub fn diff<N: Nodes + ?Sized>(
    nodes: &N,
    old: Option<Root>,
    new: Option<Root>,
    visit: &mut dyn FnMut(Difference<'_>) -> Result<()>,
) -> Result<()> {
    let (mut old, mut new) = (Side::new(nodes, old)?, Side::new(nodes, new)?);
    loop {
        let (there, here) = (old.peek()?, new.peek()?);
        match (there, here) {
            (None, None) => return Ok(()),
            (Some(Unit::Node(_, a)), Some(Unit::Node(_, b))) if a.at == b.at => {
                old.pass();
                new.pass();
            }
            (Some(Unit::Node(_, a)), Some(Unit::Node(_, b))) => {
                let (high, low) = (a.level, b.level);
                if high >= low {
                    old.enter()?;
                }
                if low >= high {
                    new.enter()?;
                }
            }
            (Some(Unit::Node(first, _)), Some(Unit::Entry(key, value))) if key < first => {
                visit((&key, None, Some(&value)))?;
                new.pass();
            }
            (Some(Unit::Node(..)), _) => old.enter()?,
            (Some(Unit::Entry(key, value)), Some(Unit::Node(first, _))) if key < first => {
                visit((&key, Some(&value), None))?;
                old.pass();
            }
            (_, Some(Unit::Node(..))) => new.enter()?,
            (Some(Unit::Entry(key, value)), None) => {
                visit((&key, Some(&value), None))?;
                old.pass();
            }
            (None, Some(Unit::Entry(key, value))) => {
                visit((&key, None, Some(&value)))?;
                new.pass();
            }
            (Some(Unit::Entry(a, was)), Some(Unit::Entry(b, is))) => {
                if a <= b {
                    old.pass();
                }
                if b <= a {
                    new.pass();
                }
                match a.cmp(&b) {
                    std::cmp::Ordering::Less => visit((&a, Some(&was), None))?,
                    std::cmp::Ordering::Greater => visit((&b, None, Some(&is)))?,
                    std::cmp::Ordering::Equal if was != is => visit((&a, Some(&was), Some(&is)))?,
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
    }
}

/// The next thing of one side of a comparison.
enum Unit {
    /// A node that was not entered, with its first key.
    Node(Vec<u8>, Root),
    Entry(Vec<u8>, Vec<u8>),
}

/// One side of a comparison: nodes that were entered, with the position in each.
struct Side<'n, N: ?Sized> {
    nodes: &'n N,
    root: Option<Root>,
    path: Vec<(PieceRef, Arc<Node>, usize)>,
    /// The leaf that was entered last.
    leaf: Option<Arc<Node>>,
}

impl<'n, N: Nodes + ?Sized> Side<'n, N> {
    fn new(nodes: &'n N, root: Option<Root>) -> Result<Side<'n, N>> {
        root.map_or(Ok(()), |root| check_height(nodes, root))?;
        Ok(Side { nodes, root, path: Vec::new(), leaf: None })
    }

    fn peek(&mut self) -> Result<Option<Unit>> {
        if let Some(root) = self.root {
            return Ok(Some(Unit::Node(Vec::new(), root)));
        }
        while self.path.last().is_some_and(|(_, node, position)| *position >= node.entries.len()) {
            self.path.pop();
        }
        let Some((at, node, position)) = self.path.last() else { return Ok(None) };
        let (key, value) = node.entries[*position].clone();
        if node.level == 0 {
            return Ok(Some(Unit::Entry(key, value)));
        }
        let at = child(self.nodes, at, &value)?;
        Ok(Some(Unit::Node(key, Root { at, level: node.level - 1 })))
    }

    fn pass(&mut self) {
        if self.root.take().is_none()
            && let Some((.., position)) = self.path.last_mut()
        {
            *position += 1;
        }
    }

    fn enter(&mut self) -> Result<()> {
        if let Some(root) = self.root.take() {
            self.path.push((root.at, read(self.nodes, &root.at, root.level)?, 0));
            return Ok(());
        }
        if let Some((at, node, position)) = self.path.last_mut()
            && let Some((_, value)) = node.entries.get(*position)
        {
            let below = child(self.nodes, at, value)?;
            let inner = read_child(self.nodes, &below, node, *position)?;
            *position += 1;
            if inner.level == 0 {
                follows(self.nodes, self.leaf.as_deref(), &below, &inner)?;
                self.leaf = Some(inner.clone());
            }
            self.path.push((below, inner, 0));
        }
        Ok(())
    }
}

/// Shows every node of an index, parents first; the visitor says whether to look at what is below one.
pub fn walk<N: Nodes + ?Sized>(
    nodes: &N,
    root: Root,
    enter: &mut dyn FnMut(&PieceRef) -> bool,
    visit: &mut dyn FnMut(&PieceRef, &Node) -> Result<()>,
) -> Result<()> {
    check_height(nodes, root)?;
    if !enter(&root.at) {
        return Ok(());
    }
    let node = read(nodes, &root.at, root.level)?;
    visit(&root.at, &node)?;
    let mut path = vec![(root.at, node, 0)];
    while let Some((at, node, position)) = path.last_mut() {
        let Some((_, value)) = node.entries.get(*position).filter(|_| node.level > 0) else {
            path.pop();
            continue;
        };
        let below = child(nodes, at, value)?;
        *position += 1;
        if enter(&below) {
            let inner = read_child(nodes, &below, node, *position - 1)?;
            visit(&below, &inner)?;
            path.push((below, inner, 0));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_testkit::rng::Rng;
    use std::collections::HashMap;

    /// Nodes in memory, by number.
    #[derive(Default)]
    struct Memory(HashMap<u64, Arc<Node>>);

    impl Nodes for Memory {
        fn read(&self, at: &PieceRef) -> Result<Arc<Node>> {
            Ok(self.0[&u64::from_le_bytes(at.segment.0[..8].try_into().unwrap())].clone())
        }
        fn damaged(&self, _: &PieceRef, rule: &str) -> butterfs_store::Error {
            butterfs_store::Error::new(butterfs_store::Kind::Damaged, rule)
        }
    }

    impl NewNodes for Memory {
        /// Equal nodes are one, as in a store.
        fn write(&mut self, node: Node) -> Result<PieceRef> {
            let bytes = node.encode();
            assert_eq!(Node::decode(&bytes).as_ref(), Some(&node));
            let digest = Digest::of(&bytes);
            let number = u64::from_le_bytes(digest.0[..8].try_into().unwrap());
            assert!(self.0.len() < 100_000, "the tree has no end");
            self.0.insert(number, Arc::new(node));
            Ok(PieceRef { segment: digest, stored: 1, ..PieceRef::default() })
        }
    }

    fn all(nodes: &Memory, root: Option<Root>) -> Vec<Entry> {
        let mut found = Vec::new();
        let mut scan = root.map(|root| Scan::new(nodes, root, &[]));
        while let Some(entry) = scan.as_mut().and_then(|scan| scan.next().unwrap()) {
            found.push(entry);
        }
        found
    }

    #[test]
    fn edits_are_those_of_a_map_in_any_order_and_diff_shows_them() {
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let (mut nodes, mut root, mut model) = (Memory::default(), None, BTreeMap::new());
            for round in 0..6 {
                let before: BTreeMap<Vec<u8>, Vec<u8>> = model.clone();
                let mut edits = Edits::new();
                let count = if round == 0 { 20_000 } else { *rng.pick(&[1, 10, 500, 8_000]) };
                for _ in 0..count {
                    let key = rng.below(30_000).to_be_bytes().to_vec();
                    let value = rng.chance(70).then(|| vec![rng.below(256) as u8; 20 + rng.index(100)]);
                    match &value {
                        Some(value) => drop(model.insert(key.clone(), value.clone())),
                        None => drop(model.remove(&key)),
                    }
                    edits.insert(key, value);
                }
                let old = root;
                root = edit(&mut nodes, root, edits).unwrap();
                assert!(all(&nodes, root).into_iter().eq(model.clone()), "seed {seed}, round {round}");
                for _ in 0..50 {
                    let key = rng.below(30_000).to_be_bytes().to_vec();
                    assert_eq!(get(&nodes, root, &key).unwrap(), model.get(&key).cloned());
                    let last = model.range(..key.clone()).next_back().map(|(key, value)| (key.clone(), value.clone()));
                    assert_eq!(super::before(&nodes, root, &key).unwrap(), last);
                    let mut scan = Scan::new(&nodes, root.unwrap(), &key);
                    let next = model.range(key..).next().map(|(key, value)| (key.clone(), value.clone()));
                    assert_eq!(scan.next().unwrap(), next);
                }
                let mut told = Vec::new();
                let mut tell = |(key, was, is): Difference<'_>| {
                    told.push((key.to_vec(), was.map(<[u8]>::to_vec), is.map(<[u8]>::to_vec)));
                    Ok(())
                };
                diff(&nodes, old, root, &mut tell).unwrap();
                let keys: std::collections::BTreeSet<&Vec<u8>> = before.keys().chain(model.keys()).collect();
                let changed = keys.into_iter().filter(|key| before.get(*key) != model.get(*key));
                let expected: Vec<_> =
                    changed.map(|key| (key.clone(), before.get(key).cloned(), model.get(key).cloned())).collect();
                assert!(told == expected, "seed {seed}, round {round}: {} and {}", told.len(), expected.len());
            }
            assert!(root.is_some_and(|root| root.level >= 3), "{root:?}");
            // Made at once it is the same tree.
            let mut fresh = Memory::default();
            let edits = model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            let made = edit(&mut fresh, None, edits).unwrap();
            assert_eq!(made.map(|root| root.at.segment), root.map(|root| root.at.segment), "seed {seed}");
            // And empty again.
            let edits = model.keys().map(|key| (key.clone(), None)).collect();
            assert_eq!(edit(&mut nodes, root, edits).unwrap(), None);
        }
    }

    #[test]
    fn a_leaf_that_comes_twice_is_damage() {
        let mut nodes = Memory::default();
        let entries = |from: u8| (from..from + 5).map(|key| (vec![key], vec![key; 3])).collect();
        let leaf = nodes.write(Node { level: 0, entries: entries(10) }).unwrap();
        let other = nodes.write(Node { level: 0, entries: entries(30) }).unwrap();
        let mut root = |children: [(u8, PieceRef); 3]| {
            let entries = children.map(|(key, at)| (vec![key], at.to_bytes().to_vec())).into();
            Root { at: nodes.write(Node { level: 1, entries }).unwrap(), level: 1 }
        };
        let (good, bad) = (root([(10, leaf), (30, other), (40, other)]), root([(10, leaf), (30, other), (50, leaf)]));
        for root in [good, bad] {
            let mut scan = Scan::new(&nodes, root, &[]);
            let found = (0..20).map(|_| scan.next()).find(Result::is_err);
            assert!(found.is_some_and(|error| error.unwrap_err().to_string().contains("order")));
            assert!(diff(&nodes, None, Some(root), &mut |_| Ok(())).is_err());
        }
    }
}
