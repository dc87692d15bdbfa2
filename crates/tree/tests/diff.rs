//! The difference of two trees that share blocks, against the difference of two maps.

mod support;

use butterfs_ondisk::Key;
use butterfs_tree::{Difference, NodePtr, diff, insert, remove, replace};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use support::model::{Items, Model, key};
use support::random::Random;
use support::store::Fault;

type Found = BTreeMap<Key, (Option<Vec<u8>>, Option<Vec<u8>>)>;

fn differences(model: &Model, old: Option<&NodePtr>) -> Found {
    let mut found = Found::new();
    let mut last = None;
    let done: Result<(), Fault> = diff(&model.store, old, &model.root, &mut |key, difference| {
        assert!(last < Some(key), "{key} comes after {last:?}");
        last = Some(key);
        found.insert(
            key,
            match difference {
                Difference::Removed(old) => (Some(old.to_vec()), None),
                Difference::Added(new) => (None, Some(new.to_vec())),
                Difference::Changed(old, new) => (Some(old.to_vec()), Some(new.to_vec())),
            },
        );
        Ok(ControlFlow::Continue(()))
    });
    done.expect("a sound tree");
    found
}

fn expected(old: &Items, new: &Items) -> Found {
    let keys = old.keys().chain(new.keys());
    let both = keys.map(|key| (*key, (old.get(key).cloned(), new.get(key).cloned())));
    both.filter(|(_, (old, new))| old != new).collect()
}

#[test]
fn random_trees_differ_where_their_maps_do() {
    for (nodesize, keys, sizes) in [(512, 400, &[0, 8, 40, 200][..]), (4096, 3000, &[1, 100, 900][..])] {
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let mut model = Model::new(nodesize);
            for _ in 0..600 {
                let op = model.random_op(&mut random, keys, sizes, true);
                model.apply(&op);
            }
            model.freeze();
            let (root, items) = (model.root, model.items.clone());
            for round in [0, 1, 5, 60, 900] {
                for _ in 0..round {
                    let growing = random.one_in(2);
                    let op = model.random_op(&mut random, keys, sizes, growing);
                    model.apply(&op);
                }
                assert_eq!(differences(&model, Some(&root)), expected(&items, &model.items), "seed {seed}");
            }
            assert_eq!(differences(&model, None), expected(&Items::new(), &model.items), "seed {seed}");
        }
    }
}

#[test]
fn shared_subtrees_are_not_read() {
    let mut model = Model::new(4096);
    for n in 0..8000 {
        assert!(insert(&model.store, &mut model.root, &key(2 * n), &[1; 160]).expect("no failure"));
        model.items.insert(key(2 * n), vec![1; 160]);
    }
    model.freeze();
    let root = model.root;
    assert!(root.level.get() >= 2);
    model.store.fetches.set(0);
    assert!(differences(&model, Some(&root)).is_empty());
    assert_eq!(model.store.fetches.get(), 0);
    assert!(replace(&model.store, &mut model.root, &key(4000), &[2; 160]).expect("no failure"));
    assert!(insert(&model.store, &mut model.root, &key(9001), &[1; 10]).expect("no failure"));
    assert!(remove(&model.store, &mut model.root, &key(12000)).expect("no failure"));
    model.store.fetches.set(0);
    assert_eq!(differences(&model, Some(&root)).len(), 3);
    assert!(model.store.fetches.get() < 40, "{} blocks were read", model.store.fetches.get());
}
