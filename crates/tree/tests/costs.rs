//! The cost limits of operations: fetches, shadows, edits; and the fill of the leaves that they leave behind.

mod support;

use butterfs_ondisk::header::leaf_data_size;
use butterfs_ondisk::{Generation, Key, KeyType};
use butterfs_tree::{self as tree, Since, Walk};
use support::model::Model;
use support::random::Random;
use support::store::Fault;
use support::validator::census;

fn key(n: u64) -> Key {
    Key::new(256 + n, KeyType(2), 0)
}

/// A tree of three levels.
fn three_levels() -> Model {
    let mut model = Model::new(4096);
    for n in 0..4000 {
        assert!(tree::insert(&model.store, &mut model.root, &key(4 * n), &[1; 160]).expect("no failure"));
    }
    assert_eq!(model.root.level.get(), 2);
    model
}

fn cost(model: &mut Model, op: impl FnOnce(&mut Model)) -> (usize, usize, usize) {
    model.store.reset_counters();
    op(model);
    (model.store.fetches.get(), model.store.shadows.get(), model.store.edits.get())
}

#[test]
fn the_common_operations_cost_one_descent_and_one_edit() {
    let mut model = three_levels();
    let insert = |model: &mut Model| {
        assert!(tree::insert(&model.store, &mut model.root, &key(5), &[1; 10]).expect("no failure"));
    };
    // The leaves are full: the first insertion splits one.
    insert(&mut model);
    let again = |model: &mut Model| {
        assert!(tree::insert(&model.store, &mut model.root, &key(6), &[1; 10]).expect("no failure"));
    };
    assert_eq!(cost(&mut model, again), (3, 3, 1));
    let update = |model: &mut Model| {
        tree::update(&model.store, &mut model.root, &key(6), |_| ()).expect("no failure").expect("there");
    };
    assert_eq!(cost(&mut model, update), (3, 3, 1));
    let replace = |model: &mut Model| {
        assert!(tree::replace(&model.store, &mut model.root, &key(6), &[1; 20]).expect("no failure"));
    };
    assert_eq!(cost(&mut model, replace), (3, 3, 1));
    let remove = |model: &mut Model| {
        assert!(tree::remove(&model.store, &mut model.root, &key(6)).expect("no failure"));
    };
    assert_eq!(cost(&mut model, remove), (3, 3, 1));
}

/// The store panics when it would have to copy a node because the tree code still holds it.
#[test]
fn a_removal_that_its_visitor_stops_copies_nothing() {
    let mut model = three_levels();
    let mut left = 3;
    let result = tree::remove_range(&model.store, &mut model.root, &key(0), &Key::MAX, &mut |_, _| {
        left -= 1;
        if left == 0 { Err(Fault::Visitor) } else { Ok(()) }
    });
    assert_eq!(result, Err(Fault::Visitor));
    assert_eq!(census(&model.store, &model.root).items[0].0, key(8));
}

#[test]
fn an_edit_that_changes_nothing_shadows_nothing() {
    let mut model = three_levels();
    model.store.next_generation();
    let nothing = |model: &mut Model| {
        let (store, root) = (&model.store, &mut model.root);
        assert!(!tree::insert(store, root, &key(8), &[]).expect("no failure"));
        assert!(!tree::remove(store, root, &key(9)).expect("no failure"));
        assert!(!tree::replace(store, root, &key(9), &[]).expect("no failure"));
        assert!(tree::update(store, root, &key(9), |_| ()).expect("no failure").is_none());
        let more = tree::remove_range(store, root, &key(9), &key(11), &mut |_, _| panic!("nothing is there"));
        assert!(!more.expect("no failure"));
    };
    let root = model.root;
    assert_eq!(cost(&mut model, nothing), (15, 0, 0));
    assert_eq!(model.root, root);
}

#[test]
fn an_old_path_is_copied_once() {
    let mut model = three_levels();
    model.store.next_generation();
    let nodes = model.store.nodes.borrow().len();
    for n in 0..10 {
        tree::update(&model.store, &mut model.root, &key(4 * n), |data| data.fill(7)).expect("no failure");
    }
    // The store keeps what was copied.
    assert_eq!(model.store.nodes.borrow().len(), nodes + 3);
}

/// All items of leaves that are not older than `since`, found step by step from `from`.
fn items_since(model: &Model, from: Key, since: Generation) -> Vec<Key> {
    let (mut found, mut next) = (Vec::new(), Some(from));
    while let Some(from) = next {
        match tree::search_since(&model.store, &model.root, &from, since).expect("a sound tree") {
            Since::Leaf(at) => {
                found.extend((at.slot..at.leaf.nritems()).map(|slot| at.leaf.key(slot)));
                next = at.upper;
            }
            Since::Nothing(upper) => next = upper,
        }
    }
    found
}

#[test]
fn older_subtrees_are_not_read() {
    let mut model = three_levels();
    let old = model.root.generation;
    let all: Vec<Key> = (0..4000).map(|n| key(4 * n)).collect();
    assert_eq!(items_since(&model, Key::MIN, old), all);
    assert_eq!(items_since(&model, key(4 * 3000 - 1), old), all[3000..]);
    model.store.next_generation();
    let since = old.next();
    assert_eq!(items_since(&model, Key::MIN, since), []);
    let changed = [0, 1700, 1701, 3999];
    for n in changed {
        tree::update(&model.store, &mut model.root, &key(4 * n), |data| data.fill(7)).expect("no failure");
    }
    let mut expected = Vec::new();
    tree::walk(&model.store, &model.root, &mut |_, node| {
        if node.is_leaf() && node.generation() >= since {
            expected.extend((0..node.nritems()).map(|slot| node.key(slot)));
        }
        Ok(Walk::Into)
    })
    .expect("a sound tree");
    assert!(changed.iter().all(|n| expected.contains(&key(4 * n))) && expected.len() < 200);
    let (fetches, ..) = cost(&mut model, |model| assert_eq!(items_since(model, Key::MIN, since), expected));
    // Descents to three or four leaves, and one that ends above the leaves in each gap between them.
    assert!(fetches <= 30, "{fetches}");
    assert_eq!(items_since(&model, key(4 * 1800), since), expected[expected.len() - items_of_last_leaf(&model)..]);
}

fn items_of_last_leaf(model: &Model) -> usize {
    tree::last_before(&model.store, &model.root, &Key::MAX).expect("a sound tree").expect("it has items").0.nritems()
}

/// Orders of insertion, and how full the leaves must be at least.
#[test]
fn leaves_are_filled() {
    let mut random = Random::new(1);
    let ascending: Vec<u64> = (0..4000).collect();
    let descending = ascending.iter().rev().copied().collect();
    let mut shuffled = ascending.clone();
    (1..shuffled.len()).rev().for_each(|last| shuffled.swap(last, random.below(last + 1)));
    // Ascending within each of 8 ranges, one after the other in turn.
    let interleaved = (0..4000).map(|n| n % 8 * 500 + n / 8).collect();
    for (name, order, least) in [
        ("ascending", ascending, 0.95),
        ("descending", descending, 0.95),
        ("shuffled", shuffled, 0.62),
        ("interleaved", interleaved, 0.88),
    ] {
        let mut model = Model::new(4096);
        for n in order {
            let key = Key::new(256 + n / 500, KeyType(3), n % 500);
            assert!(tree::insert(&model.store, &mut model.root, &key, &[1; 100]).expect("no failure"));
        }
        assert_fill(&model, name, least);
    }
}

#[test]
fn nodes_are_filled_by_ascending_insertion() {
    let model = three_levels();
    let first = model.store.nodes.borrow()[&model.root.at].child(0).0;
    let node = model.store.nodes.borrow()[&first].clone();
    assert_eq!(node.nritems(), node.max_pointers());
}

fn assert_fill(model: &Model, name: &str, least: f64) {
    let census = census(&model.store, &model.root);
    let fill = census.used as f64 / (census.leaves * leaf_data_size(4096)) as f64;
    println!("{name}: {fill:.2}");
    assert!(fill >= least, "{name}: {fill:.2}");
}

#[test]
fn runs_fill_leaves_also_between_other_items() {
    let mut model = Model::new(4096);
    for n in 0..100 {
        assert!(tree::insert(&model.store, &mut model.root, &key(1000 * n), &[1; 100]).expect("no failure"));
    }
    for n in 0..100 {
        let run: Vec<(Key, &[u8])> = (1..200).map(|m| (key(1000 * n + m), [2; 100].as_slice())).collect();
        model.store.reset_counters();
        assert_eq!(tree::insert_many(&model.store, &mut model.root, &run).expect("no failure"), run.len());
        assert!(model.store.edits.get() < 60, "{} edits", model.store.edits.get());
    }
    assert_fill(&model, "runs", 0.75);
}

#[test]
fn a_run_among_the_items_of_one_leaf_is_one_edit() {
    let mut model = Model::new(4096);
    for n in 0..10 {
        assert!(tree::insert(&model.store, &mut model.root, &key(10 * n), &[1; 100]).expect("no failure"));
    }
    let insert = |model: &mut Model| {
        let run: Vec<(Key, &[u8])> = (0..12).map(|n| (key(10 * n + 3), [2; 90].as_slice())).collect();
        assert_eq!(tree::insert_many(&model.store, &mut model.root, &run).expect("no failure"), 12);
    };
    assert_eq!(cost(&mut model, insert), (1, 1, 1));
}

#[test]
fn removing_keeps_leaves_from_becoming_thin() {
    let mut model = three_levels();
    let mut random = Random::new(3);
    let mut left: Vec<u64> = (0..4000).map(|n| 4 * n).collect();
    while left.len() > 400 {
        let n = left.swap_remove(random.below(left.len()));
        assert!(tree::remove(&model.store, &mut model.root, &key(n)).expect("no failure"));
    }
    assert_fill(&model, "thinned", 0.40);
}
