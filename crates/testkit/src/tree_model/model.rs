//! A tree and a `BTreeMap` that go through the same operations.

use super::random::Random;
use super::store::{Fault, Store};
use super::validator::{assert_no_leak, census};
use butterfs_ondisk::{Key, KeyType, Logical};
use butterfs_tree::{self as tree, Node, NodePtr};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub type Items = BTreeMap<Key, Vec<u8>>;

#[derive(Clone, Debug)]
pub enum Op {
    Insert(Key, Vec<u8>),
    InsertMany(Vec<(Key, Vec<u8>)>),
    Update(Key, u8),
    Replace(Key, Vec<u8>),
    Remove(Key),
    RemoveRange(Key, Key),
}

/// A generation that has been frozen.
pub struct Frozen {
    pub root: NodePtr,
    items: Items,
    bytes: HashMap<Logical, Arc<Node>>,
    copies: HashMap<Logical, Vec<u8>>,
}

pub struct Model {
    pub store: Store,
    pub root: NodePtr,
    pub items: Items,
    pub frozen: Option<Frozen>,
    /// Whether to compare everything also after each injected failure.
    pub thorough: bool,
    /// Failures that were met and survived.
    pub misses: usize,
    pub refusals: usize,
}

/// The `n`th of the keys that tests use; there is room for 63 others after each.
pub fn key(n: u64) -> Key {
    Key::new(256 + n / 16, KeyType(2 + (n / 8 % 2) as u8), n % 8 * 64)
}

impl Model {
    pub fn new(nodesize: u32) -> Model {
        let store = Store::new(nodesize);
        let root = store.empty_root();
        Model { store, root, items: Items::new(), frozen: None, thorough: true, misses: 0, refusals: 0 }
    }

    /// Does `op` on both sides, through every failure that the store injects.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Insert(key, data) => {
                let fresh = !self.items.contains_key(key);
                assert_eq!(self.retry(|store, root| tree::insert(store, root, key, data)), fresh);
                self.items.entry(*key).or_insert_with(|| data.clone());
            }
            Op::InsertMany(items) => self.insert_many(items),
            Op::Update(key, value) => {
                let expected = self.items.get_mut(key).map(|data| {
                    data.iter_mut().for_each(|byte| *byte = *value);
                    data.len()
                });
                let done = self.retry_unchecked(|store, root| {
                    tree::update(store, root, key, |data| {
                        data.fill(*value);
                        data.len()
                    })
                });
                assert_eq!(done, expected);
            }
            Op::Replace(key, data) => {
                let exists = self.items.contains_key(key);
                assert_eq!(self.retry(|store, root| tree::replace(store, root, key, data)), exists);
                self.items.entry(*key).and_modify(|old| old.clone_from(data));
            }
            Op::Remove(key) => {
                let exists = self.items.contains_key(key);
                assert_eq!(self.retry(|store, root| tree::remove(store, root, key)), exists);
                self.items.remove(key);
            }
            Op::RemoveRange(from, to) => self.remove_range(*from, *to),
        }
    }

    fn insert_many(&mut self, items: &[(Key, Vec<u8>)]) {
        let mut rest: Vec<(Key, &[u8])> = items.iter().map(|(key, data)| (*key, data.as_slice())).collect();
        while !rest.is_empty() {
            let exists = self.items.contains_key(&rest[0].0);
            let done = self.retry(|store, root| match tree::insert_many(store, root, &rest) {
                Err(Fault::Corrupt(error)) if exists => {
                    assert!(error.to_string().ends_with("exists already"));
                    Ok(0)
                }
                other => other,
            });
            assert_eq!(done == 0, exists);
            for (key, data) in rest.drain(..done) {
                assert!(self.items.insert(key, data.to_vec()).is_none());
            }
            if exists {
                rest.remove(0);
            }
        }
    }

    fn remove_range(&mut self, from: Key, to: Key) {
        loop {
            let mut seen = Vec::new();
            let more = self.retry(|store, root| {
                tree::remove_range(store, root, &from, &to, &mut |key, data| {
                    seen.push((key, data.to_vec()));
                    Ok(())
                })
            });
            for (key, data) in &seen {
                let first = *self.items.range(from..).next().expect("an item").0;
                assert_eq!(first, *key, "items are removed in order");
                assert_eq!(self.items.remove(key).as_ref(), Some(data));
                assert!(*key <= to);
            }
            assert_eq!(more, from <= to && self.items.range(from..=to).next().is_some());
            assert!(!more || !seen.is_empty(), "no progress");
            if !more {
                return;
            }
        }
    }

    /// Calls `op` until it gets through; after each failure the tree must hold what it held before.
    fn retry<R>(&mut self, op: impl FnMut(&Store, &mut NodePtr) -> Result<R, Fault>) -> R {
        self.retry_with(self.thorough, op)
    }

    fn retry_unchecked<R>(&mut self, op: impl FnMut(&Store, &mut NodePtr) -> Result<R, Fault>) -> R {
        self.retry_with(false, op)
    }

    fn retry_with<R>(&mut self, check: bool, mut op: impl FnMut(&Store, &mut NodePtr) -> Result<R, Fault>) -> R {
        for refusals in 0..1000 {
            match op(&self.store, &mut self.root) {
                Ok(result) => return result,
                Err(Fault::Miss) => self.misses += 1,
                Err(Fault::Full) => {
                    self.refusals += 1;
                    self.store.set_allocations(refusals);
                }
                Err(other) => panic!("{other:?}"),
            }
            if check {
                self.check();
            }
        }
        panic!("no end of failures");
    }

    /// The tree is sound, it holds what the model holds, and what is frozen has not changed.
    pub fn check(&self) {
        let census = census(&self.store, &self.root);
        assert_eq!(census.items.len(), self.items.len());
        for ((key, data), (model_key, model_data)) in census.items.iter().zip(&self.items) {
            assert_eq!((key, data), (model_key, model_data));
        }
        assert_no_leak(&self.store, &census);
        if let Some(frozen) = &self.frozen {
            for (at, node) in &frozen.bytes {
                assert!(node.bytes() == frozen.copies[at], "frozen node {at} has changed");
                let now = self.store.nodes.borrow().get(at).cloned().expect("a frozen node exists");
                assert!(Arc::ptr_eq(node, &now), "frozen node {at} was replaced");
            }
        }
    }

    /// Freezes the tree as it is, after checking what was frozen before, and begins a new generation.
    pub fn freeze(&mut self) {
        self.check();
        if let Some(frozen) = self.frozen.take() {
            let census = census(&self.store, &frozen.root);
            assert!(census.items.iter().map(|(key, data)| (key, data)).eq(&frozen.items));
        }
        let census = census(&self.store, &self.root);
        self.store.nodes.borrow_mut().retain(|at, _| census.reachable.contains(at));
        let bytes = self.store.nodes.borrow().clone();
        let copies = bytes.iter().map(|(at, node)| (*at, node.bytes().to_vec())).collect();
        self.frozen = Some(Frozen { root: self.root, items: self.items.clone(), bytes, copies });
        self.store.next_generation();
    }

    /// A random operation on about `keys` keys, with items of `sizes`.
    pub fn random_op(&self, random: &mut Random, keys: u64, sizes: &[usize], growing: bool) -> Op {
        let one = key(random.bits() % keys);
        let data = |random: &mut Random| {
            let len = *random.pick(sizes);
            random.bytes(len)
        };
        match random.below(20) {
            0..=5 if growing => Op::Insert(one, data(random)),
            0..=2 => Op::Insert(one, data(random)),
            6 | 7 if growing => Op::InsertMany(self.run(random, keys, sizes)),
            8 | 9 => Op::Update(one, random.bits() as u8),
            10..=12 => Op::Replace(one, data(random)),
            13 => {
                let first = random.bits() % keys;
                Op::RemoveRange(key(first), key(first + random.bits() % (keys / 8 + 2)))
            }
            14 if growing => Op::Insert(one, data(random)),
            _ => Op::Remove(one),
        }
    }

    fn run(&self, random: &mut Random, keys: u64, sizes: &[usize]) -> Vec<(Key, Vec<u8>)> {
        let first = random.bits() % keys;
        let skip = 1 + random.bits() % 3;
        let count = random.bits() % 40;
        (0..count)
            .map(|n| {
                let len = *random.pick(sizes);
                (key(first + n * skip), random.bytes(len))
            })
            .collect()
    }
}
