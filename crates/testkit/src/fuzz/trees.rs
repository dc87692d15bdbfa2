//! Operations on a tree against a `BTreeMap`, through misses and refused allocations; every tree is sound afterwards.
//!
//! Input: the size of a node and the failures, then for each operation its kind, two numbers of keys and a length.

use super::Tape;
use crate::tree_model::model::{Model, Op, key};
use butterfs_ondisk::header::max_item_size;

/// Keys in play: few enough that operations meet.
const KEYS: u64 = 500;
const MOST_OPERATIONS: usize = 600;

pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = crate::rng::Rng::new(31);
    let one = |rng: &mut crate::rng::Rng, len: usize| {
        let mut seed = vec![0; len];
        rng.fill(&mut seed);
        seed
    };
    (0..24).map(|number| one(&mut rng, 300 + 60 * number)).collect()
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let setup = tape.byte();
    let nodesize = if setup & 1 == 0 { 512 } else { 4096 };
    let mut model = Model::new(nodesize);
    model.thorough = false;
    model.store.check_parents.set(nodesize == 512);
    model.store.set_misses(setup & 2 != 0);
    let refuse = setup & 4 != 0;
    for number in 0..MOST_OPERATIONS {
        if tape.is_over() {
            break;
        }
        if refuse {
            model.store.set_allocations(usize::from(tape.byte()) % 4);
        }
        let op = operation(&mut tape, max_item_size(nodesize));
        model.apply(&op);
        if number % 32 == 31 {
            model.freeze();
        }
    }
    model.store.set_allocations(usize::MAX);
    model.check();
}

fn operation(tape: &mut Tape<'_>, longest: usize) -> Op {
    let kind = tape.byte();
    let (one, other) = (key(tape.number::<2>() % KEYS), tape.number::<1>());
    let len = tape.number::<1>() as usize;
    // Most items are short; some fill a leaf.
    let len = if len > 250 { longest - (len - 250) } else { len % 120 };
    let data = |salt: u64| vec![(salt ^ other) as u8; len.min(longest)];
    match kind % 12 {
        0..=4 => Op::Insert(one, data(0)),
        5 => {
            let first = tape.number::<2>() % KEYS;
            Op::InsertMany((0..other % 40).map(|n| (key(first + n * (1 + other % 3)), data(n))).collect())
        }
        6 => Op::Update(one, other as u8),
        7 | 8 => Op::Replace(one, data(1)),
        9 => {
            let first = tape.number::<2>() % KEYS;
            Op::RemoveRange(key(first), key(first + other))
        }
        _ => Op::Remove(one),
    }
}
