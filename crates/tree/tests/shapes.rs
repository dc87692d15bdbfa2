//! Trees of given shapes, and every small thing that can be done to them: at every place, with every failure.

mod support;

use butterfs_ondisk::Key;
use butterfs_ondisk::header::max_item_size;
use butterfs_tree::{self as tree};
use support::model::{Model, Op, key};
use support::random::Random;
use support::shape::{Shape, build, copy, leaf, random_shape, times};
use support::store::{Fault, Store};

const NODESIZE: u32 = 512;
const MAX: usize = max_item_size(NODESIZE);

/// At 512 bytes a leaf has room for 411 bytes, and a node for 12 pointers.
fn shapes() -> Vec<(&'static str, Shape)> {
    let full = || leaf(8, 26);
    let lone = |shape| Shape::Node(vec![shape]);
    vec![
        ("empty", Shape::Leaf(vec![])),
        ("one full leaf", full()),
        ("one leaf, one item", leaf(1, MAX)),
        ("two leaves, one item each", Shape::Node(times(2, leaf(1, 10)))),
        ("two leaves, one large item each", Shape::Node(times(2, leaf(1, MAX)))),
        ("full leaves, full root", Shape::Node(times(12, full()))),
        ("small leaves, full root", Shape::Node(times(12, leaf(2, 20)))),
        ("full, three levels", Shape::Node(times(3, Shape::Node(times(12, leaf(2, 170)))))),
        ("all full, three levels", Shape::Node(times(12, Shape::Node(times(12, leaf(1, MAX)))))),
        ("thin, three levels", Shape::Node(times(3, Shape::Node(times(2, leaf(1, 30)))))),
        ("lone children", lone(lone(lone(leaf(3, 5))))),
        ("lone children below two", Shape::Node(vec![lone(lone(leaf(1, 5))), lone(lone(leaf(1, 300)))])),
        (
            "lone children beside a full node",
            Shape::Node(vec![lone(leaf(1, 5)), Shape::Node(times(12, full())), lone(leaf(1, 5))]),
        ),
        ("mixed leaves", Shape::Node(vec![leaf(1, 0), full(), leaf(1, 0), leaf(16, 0), leaf(1, MAX), leaf(2, 0)])),
    ]
}

/// Every key of the shape and every key between two of them.
fn keys_to_try(model: &Model) -> impl Iterator<Item = Key> + use<> {
    (0..2 * model.items.len() as u64 + 2).map(key)
}

fn ops_at(key: Key) -> Vec<Op> {
    let mut ops = vec![Op::Remove(key), Op::Update(key, 3)];
    for len in [0, 26, 193, MAX] {
        ops.push(Op::Insert(key, vec![1; len]));
        ops.push(Op::Replace(key, vec![2; len]));
    }
    ops
}

#[test]
fn every_operation_at_every_key() {
    for (name, shape) in shapes() {
        let base = build(NODESIZE, &shape);
        base.check();
        for op in keys_to_try(&base).flat_map(ops_at) {
            for (misses, allocations) in [(false, usize::MAX), (true, 0)] {
                let mut model = copy(&base);
                model.store.check_parents.set(true);
                model.store.set_misses(misses);
                model.store.set_allocations(allocations);
                model.apply(&op);
                model.store.lone_children.set(!matches!(op, Op::Remove(_)));
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.check()));
                assert!(result.is_ok(), "{name}: {op:?}");
            }
        }
    }
}

#[test]
fn every_range_is_removed() {
    for (name, shape) in shapes() {
        let base = build(NODESIZE, &shape);
        let keys: Vec<Key> = keys_to_try(&base).collect();
        let step = keys.len() / 14 + 1;
        for from in keys.iter().step_by(step) {
            for to in keys.iter().rev().step_by(step) {
                let mut model = copy(&base);
                model.apply(&Op::RemoveRange(*from, *to));
                println!("{name}: {from}..={to}");
                model.check();
            }
        }
        let mut model = copy(&base);
        model.apply(&Op::RemoveRange(Key::MIN, Key::MAX));
        model.store.lone_children.set(false);
        model.check();
        assert_eq!(model.root.level.get(), 0, "{name}");
    }
}

#[test]
fn runs_of_every_size_are_inserted_at_every_place() {
    for (name, shape) in shapes() {
        let base = build(NODESIZE, &shape);
        for key in keys_to_try(&base).step_by(3) {
            for (count, len) in [(2, MAX), (3, 193), (20, 0), (40, 26)] {
                let items = (0..count)
                    .map(|n| (Key::new(key.objectid, key.kind, key.offset + 1 + n), vec![n as u8; len]))
                    .collect();
                let mut model = copy(&base);
                model.store.set_misses(true);
                model.store.set_allocations(1);
                model.apply(&Op::InsertMany(items));
                println!("{name}: {count} of {len} bytes at {key}");
                model.check();
            }
        }
    }
}

/// All sequences of four operations on four keys, on an empty tree and on one of two leaves.
#[test]
fn all_short_sequences() {
    let mut ops = Vec::new();
    for key in [0, 1, 2, 3].map(key) {
        ops.extend([0, 190, MAX].map(|len| Op::Insert(key, vec![len as u8; len])));
        ops.push(Op::Remove(key));
        ops.push(Op::Replace(key, vec![9; 200]));
    }
    for shape in [Shape::Leaf(vec![]), Shape::Node(vec![leaf(1, MAX), leaf(1, 100)])] {
        let mut base = build(NODESIZE, &shape);
        base.thorough = false;
        all_sequences(&base, &ops, 4);
    }
}

fn all_sequences(model: &Model, ops: &[Op], depth: usize) {
    if depth == 0 {
        return;
    }
    for op in ops {
        let mut model = copy(model);
        model.apply(op);
        model.check();
        all_sequences(&model, ops, depth - 1);
    }
}

#[test]
fn trees_from_elsewhere_are_edited_and_emptied() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let levels = random.below(4);
        let mut model = build(NODESIZE, &random_shape(&mut random, levels));
        model.check();
        let keys = 2 * model.items.len() as u64 + 2;
        for _ in 0..80 {
            let growing = random.one_in(2);
            let op = model.random_op(&mut random, keys, &[0, 10, 50, 200, MAX], growing);
            model.thorough = random.one_in(4);
            model.store.set_misses(random.one_in(2));
            model.apply(&op);
            model.check();
        }
        model.store.set_misses(false);
        model.apply(&Op::RemoveRange(Key::MIN, Key::MAX));
        model.store.lone_children.set(false);
        model.check();
    }
}

/// A visitor that refuses an item: those that it accepted are gone, that one and the rest are there.
#[test]
fn a_visitor_can_stop_a_removal_at_every_item() {
    for (name, shape) in shapes() {
        let base = build(NODESIZE, &shape);
        for stop in 0..base.items.len().min(30) {
            let mut model = copy(&base);
            model.store.set_misses(true);
            let (from, mut left, mut result) = (key(0), stop, Ok(true));
            while result == Ok(true) || result == Err(Fault::Miss) {
                result = tree::remove_range(&model.store, &mut model.root, &from, &Key::MAX, &mut |key, _| {
                    if left == 0 {
                        return Err(Fault::Visitor);
                    }
                    left -= 1;
                    assert_eq!(model.items.pop_first().map(|(first, _)| first), Some(key));
                    Ok(())
                });
            }
            assert_eq!(result, Err(Fault::Visitor), "{name}");
            model.check();
        }
    }
}

#[test]
fn every_edit_is_refused_where_ranges_overlap() {
    // The first leaf's last key is the first one of the second leaf.
    let mut model = build(NODESIZE, &Shape::Node(vec![leaf(2, 10), leaf(2, 10)]));
    let first = model.store.nodes.borrow()[&model.root.at].child(0).0;
    let mut bad = butterfs_tree::Node::clone(&model.store.nodes.borrow()[&first]);
    bad.set_key(1, key(5));
    model.store.nodes.borrow_mut().insert(first, bad.into());
    let (store, root): (&Store, _) = (&model.store, &mut model.root);
    let is_corrupt = |result: Result<(), Fault>| matches!(result, Err(Fault::Corrupt(_)));
    assert!(is_corrupt(tree::insert(store, root, &key(0), &[]).map(drop)));
    assert!(is_corrupt(tree::remove(store, root, &key(1)).map(drop)));
    assert!(is_corrupt(tree::update(store, root, &key(1), |_| ()).map(drop)));
    assert!(is_corrupt(tree::search(store, root, &key(1)).map(drop)));
    // The neighbour is removed to the point where it would join the first leaf.
    assert!(is_corrupt(tree::remove(store, root, &key(5)).map(drop)));
    assert_eq!(store.shadows.get(), 0);
}
