//! Random operations on a tree and on a `BTreeMap`, compared and validated after every step, with misses, refused
//! allocations and frozen generations.

mod support;

use butterfs_ondisk::header::max_item_size;
use support::model::{Model, Op, key};
use support::random::Random;

struct Case {
    nodesize: u32,
    keys: u64,
    steps: usize,
    /// Item sizes to choose from; larger ones than an item can have are cut.
    sizes: &'static [usize],
    misses: bool,
    refusals: bool,
}

const ALL: usize = usize::MAX;

const CASES: &[Case] = &[
    Case { nodesize: 512, keys: 60, steps: 1500, sizes: &[0, 1, 30, 100, ALL], misses: false, refusals: false },
    Case { nodesize: 512, keys: 2000, steps: 2500, sizes: &[0, 8, 40, 90], misses: false, refusals: false },
    Case { nodesize: 512, keys: 2000, steps: 1500, sizes: &[0, 8, 40, 90, 300], misses: true, refusals: true },
    Case { nodesize: 512, keys: 300, steps: 1500, sizes: &[170, 190, 200, 380, ALL], misses: true, refusals: true },
    Case {
        nodesize: 4096,
        keys: 500,
        steps: 1200,
        sizes: &[0, 10, 160, 500, 2000, 3900, ALL],
        misses: true,
        refusals: true,
    },
    Case {
        nodesize: 4096,
        keys: 3000,
        steps: 1500,
        sizes: &[1000, 1900, 2000, 3900, ALL],
        misses: false,
        refusals: true,
    },
    Case {
        nodesize: 16384,
        keys: 4000,
        steps: 1200,
        sizes: &[0, 53, 160, 439, 4000, 9000, ALL],
        misses: true,
        refusals: true,
    },
];

fn run(case: &Case, seed: u64) {
    let mut random = Random::new(seed);
    let mut model = Model::new(case.nodesize);
    model.store.check_parents.set(case.nodesize == 512);
    let sizes: Vec<usize> = case.sizes.iter().map(|size| *size.min(&max_item_size(case.nodesize))).collect();
    for step in 0..case.steps {
        // Phases of growing and of shrinking, so that the tree becomes high and empty again.
        let growing = (6 * step / case.steps).is_multiple_of(2);
        let op = model.random_op(&mut random, case.keys, &sizes, growing);
        model.thorough = random.one_in(8);
        model.store.set_misses(case.misses && random.one_in(2));
        model.store.set_allocations(if case.refusals && random.one_in(2) { random.below(4) } else { usize::MAX });
        model.apply(&op);
        if random.one_in(if growing { 3 } else { 2 }) || step + 20 > case.steps {
            model.check();
        }
        if random.one_in(60) {
            model.freeze();
        }
    }
    assert!(!case.misses || model.misses > 100, "misses were injected");
    assert!(!case.refusals || model.refusals > 20, "refusals were injected: {}", model.refusals);
    empty(&mut model, &mut random);
}

/// Removes everything, in random order.
fn empty(model: &mut Model, random: &mut Random) {
    model.store.set_allocations(usize::MAX);
    model.thorough = false;
    while !model.items.is_empty() {
        let keys: Vec<_> = model.items.keys().copied().collect();
        model.apply(&Op::Remove(*random.pick(&keys)));
        if random.one_in(10) {
            model.check();
        }
    }
    model.check();
    assert_eq!(model.root.level.get(), 0, "the empty tree is a leaf");
}

#[test]
fn random_operations_agree_with_a_map() {
    for (index, case) in CASES.iter().enumerate() {
        for seed in 1..=2 {
            println!("case {index} seed {seed}");
            run(case, seed * 1000 + index as u64);
        }
    }
}

/// Goes on for as many seeds as `BUTTERFS_SEEDS=from..to` names; without it, over one more.
#[test]
fn random_operations_over_chosen_seeds() {
    let seeds = std::env::var("BUTTERFS_SEEDS").unwrap_or("7..8".into());
    let (from, to) = seeds.split_once("..").expect("from..to");
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        for (index, case) in CASES.iter().enumerate() {
            println!("case {index} seed {seed}");
            run(case, seed);
        }
    }
}

#[test]
fn the_canary_dies() {
    // The validator must notice a parent's key that is not its child's first key.
    let mut model = Model::new(512);
    for n in 0..200 {
        model.apply(&Op::Insert(key(n), vec![1; 20]));
    }
    let root = model.root;
    use butterfs_tree::NodeEditor;
    model.store.edit(root.at, |node| {
        let wrong = node.key(1).successor();
        node.set_key(1, wrong);
    });
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.check()));
    assert!(died.is_err());
}
