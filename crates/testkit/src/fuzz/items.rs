//! Items: a leaf of items with any keys and payloads is refused by the tree checker, or can be used and printed.
//!
//! Input: for each item its type, two bytes of objectid, an offset of 8 bytes, a length of 1 byte and a payload.

use super::{Tape, image, nodes};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::Node;
use std::collections::BTreeMap;

const NODESIZE: u32 = 4096;
const OWNERS: [TreeId; 8] = [
    TreeId::FS,
    TreeId::EXTENT,
    TreeId::ROOT,
    TreeId::CHUNK,
    TreeId::DEV,
    TreeId::CSUM,
    TreeId::FREE_SPACE,
    TreeId::TREE_LOG,
];
/// Objectids behind 0x8000 count down from the greatest.
const NEGATIVE: u64 = 0x8000;

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for base in image::bases() {
        for leaf in image::leaves(base) {
            let owner = OWNERS.iter().position(|owner| *owner == leaf.owner()).unwrap_or(0);
            for items in leaf.items().collect::<Vec<_>>().chunks(4) {
                seeds.push(encode(owner as u8, items));
            }
        }
    }
    seeds
}

fn encode(owner: u8, items: &[(Key, &[u8])]) -> Vec<u8> {
    let mut seed = vec![owner];
    for (key, data) in items {
        let objectid = if key.objectid >> 63 != 0 { NEGATIVE | key.objectid & 0x7fff } else { key.objectid & 0x7fff };
        seed.push(key.kind.0);
        seed.extend((objectid as u16).to_le_bytes());
        seed.extend(key.offset.to_le_bytes());
        let data = &data[..data.len().min(510)];
        seed.push(data.len().div_ceil(2) as u8);
        seed.extend(data);
        seed.extend(vec![0; data.len() % 2]);
    }
    seed
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let owner = OWNERS[usize::from(tape.byte()) % OWNERS.len()];
    let mut items = BTreeMap::new();
    while !tape.is_over() && items.len() < 64 {
        let kind = KeyType(tape.byte());
        let objectid = tape.number::<2>();
        let objectid = if objectid & NEGATIVE != 0 { objectid | u64::MAX << 15 } else { objectid };
        let offset = tape.number::<8>();
        let half = usize::from(tape.byte());
        items.insert(Key { objectid, kind, offset }, tape.take(2 * half));
    }
    let identity = nodes::identity(NODESIZE);
    let mut leaf = Node::new_empty(&identity, Logical(1 << 20), Level(0), Generation(5), owner);
    for (key, data) in items {
        if leaf.free_space() >= data.len() + 25 {
            leaf.insert_item(leaf.nritems(), key, data);
        }
    }
    let mut sealed = vec![0; NODESIZE as usize];
    let good = leaf.seal_into(&mut sealed, &identity).is_ok();
    nodes::print(leaf.bytes(), &identity);
    if good {
        nodes::look(Node::from_checked(sealed.into_boxed_slice()), &identity);
    }
}
