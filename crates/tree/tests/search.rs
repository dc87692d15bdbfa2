//! Finding items, also in trees that are damaged beyond what one block shows.

mod support;

use butterfs_ondisk::{Key, Logical};
use butterfs_tree::{self as tree, Node, NodePtr, Walk};
use std::ops::{Bound, ControlFlow};
use support::model::{Items, Model, key};
use support::random::Random;
use support::shape::{Shape, build, leaf, plant, random_shape, times};
use support::store::{Fault, TREE};

/// Every search agrees with a map.
fn check_searches(model: &Model) {
    for n in 0..2 * model.items.len() as u64 + 3 {
        let probe = key(n);
        let at = tree::search(&model.store, &model.root, &probe).expect("a sound tree");
        assert_eq!(at.found, model.items.contains_key(&probe));
        let next = model.items.range(probe..).next().map(|(key, _)| *key);
        let here = (at.slot < at.leaf.nritems()).then(|| at.leaf.key(at.slot));
        assert_eq!(here.or(at.upper), next);
        assert!(at.upper.is_none_or(|upper| probe < upper && model.items.contains_key(&upper)));

        let before = tree::last_before(&model.store, &model.root, &probe).expect("a sound tree");
        let before = before.map(|(leaf, slot)| (leaf.key(slot), leaf.item(slot).to_vec()));
        let expected = model.items.range((Bound::Unbounded, Bound::Excluded(probe))).next_back();
        assert_eq!(before, expected.map(|(key, data)| (*key, data.clone())));
    }
}

fn scan(model: &Model, from: Key, to: Key, most: usize) -> Items {
    let mut found = Items::new();
    tree::scan(&model.store, &model.root, &from, &to, &mut |key, data| {
        assert!(found.last_key_value().is_none_or(|(last, _)| *last < key));
        found.insert(key, data.to_vec());
        Ok(if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
    .expect("a sound tree");
    found
}

/// Scans agree with the map's ranges.
fn check_scans(model: &Model, random: &mut Random) {
    let keys = 2 * model.items.len() as u64 + 3;
    for _ in 0..30 {
        let (from, to) = (key(random.bits() % keys), key(random.bits() % keys));
        let most = 1 + random.below(keys as usize);
        let expected = model.items.iter().filter(|(key, _)| (from..=to).contains(key)).take(most);
        let expected: Items = expected.map(|(key, data)| (*key, data.clone())).collect();
        assert_eq!(scan(model, from, to, most), expected);
    }
    assert_eq!(scan(model, Key::MIN, Key::MAX, usize::MAX), model.items);
}

#[test]
fn searches_agree_with_a_map() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let model = build(512, &random_shape(&mut random, seed as usize % 4));
        check_searches(&model);
        check_scans(&model, &mut random);
    }
    check_searches(&Model::new(512));
    let ends = |model: &Model| {
        let last = tree::last_before(&model.store, &model.root, &Key::MAX).expect("a sound tree");
        last.map(|(leaf, slot)| leaf.key(slot))
    };
    let model = build(512, &Shape::Node(times(5, leaf(3, 9))));
    assert_eq!(ends(&model), model.items.keys().next_back().copied());
    assert_eq!(ends(&Model::new(512)), None);
}

#[test]
fn last_before_passes_empty_leaves() {
    let model = build(512, &Shape::Node(times(4, leaf(2, 9))));
    let root = model.store.nodes.borrow()[&model.root.at].clone();
    let wanted = root.key(1);
    for slot in [1, 2, 0] {
        let (at, _) = root.child(slot);
        let mut emptied = Node::clone(&model.store.nodes.borrow()[&at]);
        emptied.remove_items(0..emptied.nritems());
        model.store.nodes.borrow_mut().insert(at, emptied.into());
        model.store.confirm_promises.set(false);
        let found = tree::last_before(&model.store, &model.root, &root.key(3)).expect("tolerated");
        let found = found.map(|(leaf, slot)| leaf.key(slot));
        match slot {
            0 => assert_eq!(found, None),
            1 => assert!(found.is_some_and(|found| found > wanted)),
            _ => assert!(found.is_some_and(|found| found < wanted)),
        }
    }
}

#[test]
fn a_walk_sees_every_node_and_can_be_cut() {
    let model = build(512, &Shape::Node(times(3, Shape::Node(times(4, leaf(2, 9))))));
    let mut order = Vec::new();
    let mut walk = |decide: &dyn Fn(&Node) -> Walk| {
        order.clear();
        let done = tree::walk(&model.store, &model.root, &mut |ptr, node| {
            assert_eq!((ptr.at, ptr.level), (node.at(), node.level()));
            order.push((node.level().get(), node.first_key()));
            Ok(decide(node))
        });
        (done, order.clone())
    };
    let (done, all) = walk(&|_| Walk::Into);
    assert_eq!((done, all.len()), (Ok(true), 1 + 3 + 12));
    assert_eq!(all.iter().map(|(level, _)| *level).take(7).collect::<Vec<_>>(), [2, 1, 0, 0, 0, 0, 1]);
    assert!(all.is_sorted_by_key(|(_, first)| *first));
    let (done, some) = walk(&|node| if node.level().get() == 1 { Walk::Over } else { Walk::Into });
    assert_eq!((done, some.len()), (Ok(true), 4));
    let (done, some) = walk(&|node| if node.is_leaf() { Walk::Stop } else { Walk::Into });
    assert_eq!((done, some.len()), (Ok(false), 3));
    let result = tree::walk(&model.store, &model.root, &mut |_, _| Err(Fault::Visitor));
    assert_eq!(result, Err(Fault::Visitor));
}

/// Each node of seven levels shares all but its first child with its siblings: 12^7 ways lead through 100 nodes.
#[test]
fn nodes_that_share_children_do_not_hold_up_a_walk() {
    let model = Model::new(512);
    let store = &model.store;
    let mut below: Vec<NodePtr> =
        (0..12).map(|n| planted(&plant(store, 0, |leaf| leaf.insert_item(0, key(n), &[])))).collect();
    for level in 1..8u8 {
        below = (0..12)
            .map(|own: usize| {
                let children = &below;
                planted(&plant(store, level, |node| {
                    for (slot, child) in children[own..].iter().enumerate() {
                        node.insert_pointer(slot, child.first_key.expect("a key"), child.at, child.generation);
                    }
                }))
            })
            .collect();
    }
    let mut visits = 0;
    let root = NodePtr { first_key: None, ..below[0] };
    let result = tree::walk(store, &root, &mut |_, _| {
        visits += 1;
        Ok(Walk::Into)
    });
    assert!(matches!(result, Err(Fault::Corrupt(_))), "{result:?}");
    assert!(visits < 100, "{visits} visits");
}

fn planted(node: &Node) -> NodePtr {
    NodePtr {
        at: node.at(),
        generation: node.generation(),
        level: node.level(),
        tree: TREE,
        first_key: node.first_key(),
    }
}

/// A root of level 7 on a way of full nodes: it must refuse to grow, and nothing may change.
#[test]
fn the_highest_tree_does_not_grow() {
    let mut model = Model::new(512);
    let mut child = plant(&model.store, 0, |leaf| leaf.insert_item(0, key(1), &[0; 386]));
    for level in 1..8 {
        let below = planted(&child);
        child = plant(&model.store, level, |node| {
            node.insert_pointer(0, key(1), below.at, below.generation);
            for slot in 1..12 {
                node.insert_pointer(
                    slot,
                    key(100 * u64::from(level) + slot as u64),
                    Logical(1 << 40),
                    below.generation,
                );
            }
        });
    }
    let root = NodePtr { first_key: None, ..planted(&child) };
    let nodes = model.store.nodes.borrow().len();
    drop(child);
    model.root = root;
    for key in [key(0), key(2)] {
        let result = tree::insert(&model.store, &mut model.root, &key, &[0; 300]);
        let Err(Fault::Corrupt(error)) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("cannot grow"), "{error}");
    }
    let run: Vec<(Key, &[u8])> = vec![(key(2), &[0; 200]), (key(3), &[0; 200])];
    assert!(matches!(tree::insert_many(&model.store, &mut model.root, &run), Err(Fault::Corrupt(_))));
    assert_eq!((model.store.nodes.borrow().len(), model.store.edits.get(), model.root), (nodes, 0, root));
}
