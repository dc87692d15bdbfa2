//! One node: every editor against a plain vector, and the way in and out.

mod support;

use butterfs_ondisk::header::{HEADER_LEN, Header, ITEM_LEN, pointers_per_node};
use butterfs_ondisk::{ChecksumKind, Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{BlockIdentity, Node, NodePtr, check_block, verify};
use support::random::Random;
use support::store::TREE;

const AT: Logical = Logical(1 << 20);
const GENERATION: Generation = Generation(7);

fn identity(nodesize: u32) -> BlockIdentity {
    BlockIdentity {
        fsid: [1; 16],
        seeds: Default::default(),
        chunk_tree_uuid: [2; 16],
        checksum: ChecksumKind::Crc32c,
        nodesize,
        sectorsize: 512,
        incompat: 0,
        super_generation: GENERATION,
        ignores_checksums: false,
        writable: true,
    }
}

fn promise(node: &Node) -> NodePtr {
    NodePtr {
        at: node.at(),
        generation: node.generation(),
        level: node.level(),
        tree: TREE,
        first_key: node.first_key(),
    }
}

fn empty(nodesize: u32, level: u8) -> Node {
    Node::new_empty(&identity(nodesize), AT, Level(level), GENERATION, TREE)
}

fn key(n: u64) -> Key {
    Key::new(300 + n / 7, KeyType(2), n % 7)
}

type Items = Vec<(Key, Vec<u8>)>;

/// The leaf is sound, packed, holds `items`, and its free bytes are zero.
fn assert_leaf(leaf: &Node, items: &Items, what: &str) {
    let have: Items = leaf.items().map(|(key, data)| (key, data.to_vec())).collect();
    assert!(have == *items, "{what}");
    let mut sealed = vec![0; leaf.bytes().len()];
    leaf.seal_into(&mut sealed, &identity(leaf.bytes().len() as u32)).expect(what);
    let used: usize = items.iter().map(|(_, data)| ITEM_LEN + data.len()).sum();
    assert_eq!(leaf.used(), used, "{what}");
    let free = HEADER_LEN + items.len() * ITEM_LEN;
    assert!(leaf.bytes()[free..free + leaf.free_space()].iter().all(|byte| *byte == 0), "{what}");
}

fn random_item(random: &mut Random, room: usize) -> Option<Vec<u8>> {
    let len = match random.below(6) {
        0 => 0,
        1 => room.checked_sub(ITEM_LEN)?,
        _ => random.below(room / 4 + 1),
    };
    (len + ITEM_LEN <= room).then(|| random.bytes(len))
}

fn insert_some(random: &mut Random, leaf: &mut Node, items: &mut Items) -> &'static str {
    let mut new = Items::new();
    let mut room = leaf.free_space();
    for n in 0..1 + random.below(6) as u64 {
        let key = key(random.bits() % 60 + n * 60);
        match random_item(random, room) {
            Some(data) if items.binary_search_by_key(&key, |item| item.0).is_err() => {
                room -= ITEM_LEN + data.len();
                new.push((key, data));
            }
            _ => {}
        }
    }
    let borrowed: Vec<(Key, &[u8])> = new.iter().map(|(key, data)| (*key, data.as_slice())).collect();
    leaf.insert_items(&borrowed);
    items.append(&mut new);
    items.sort_by_key(|item| item.0);
    "insert_items"
}

fn edit(random: &mut Random, leaf: &mut Node, items: &mut Items) -> &'static str {
    let slot = random.below(items.len().max(1));
    let new_key = key(random.bits() % 400);
    match (random.below(7), items.binary_search_by_key(&new_key, |item| item.0)) {
        (0, Err(slot)) => {
            let Some(data) = random_item(random, leaf.free_space()) else { return "no room" };
            leaf.insert_item(slot, new_key, &data);
            items.insert(slot, (new_key, data));
            "insert_item"
        }
        (1, Err(slot)) => {
            let Some(data) = random_item(random, leaf.free_space()) else { return "no room" };
            assert_eq!(leaf.insert_space(slot, new_key, data.len()), vec![0; data.len()]);
            items.insert(slot, (new_key, vec![0; data.len()]));
            "insert_space"
        }
        (2, _) => insert_some(random, leaf, items),
        (3, _) if !items.is_empty() => {
            let end = slot + random.below((items.len() - slot).min(4) + 1);
            leaf.remove_items(slot..end);
            items.drain(slot..end);
            "remove_items"
        }
        (4, _) if !items.is_empty() => {
            let len = random.below(items[slot].1.len() + leaf.free_space() + 1);
            leaf.resize_item(slot, len);
            items[slot].1.resize(len, 0);
            "resize_item"
        }
        (5, _) if !items.is_empty() => {
            let len = random.below(items[slot].1.len() + leaf.free_space() + 1);
            items[slot].1 = random.bytes(len);
            leaf.replace_item(slot, &items[slot].1);
            "replace_item"
        }
        (6, _) if !items.is_empty() => {
            leaf.item_mut(slot).fill(9);
            items[slot].1.fill(9);
            "item_mut"
        }
        _ => "nothing",
    }
}

#[test]
fn leaves_agree_as_far_as_keys_and_data_do() {
    let leaf = |items: &[(u64, &[u8])]| {
        let mut leaf = empty(4096, 0);
        items.iter().enumerate().for_each(|(slot, (n, data))| leaf.insert_item(slot, key(*n), data));
        leaf
    };
    let one = leaf(&[(1, b"a"), (2, b""), (3, b"ccc"), (4, b"d")]);
    for (other, slot, other_slot, same) in [
        (leaf(&[(1, b"a"), (2, b""), (3, b"ccc"), (4, b"d")]), 0, 0, 4),
        (leaf(&[(2, b""), (3, b"ccc")]), 1, 0, 2),
        (leaf(&[(2, b""), (3, b"ccx")]), 1, 0, 1),
        (leaf(&[(2, b""), (3, b"cc")]), 1, 0, 1),
        (leaf(&[(0, b"z"), (1, b"a"), (5, b"")]), 0, 1, 1),
        (leaf(&[(2, b"")]), 0, 0, 0),
    ] {
        assert_eq!(one.same_items(slot, &other, other_slot), same);
        assert_eq!(other.same_items(other_slot, &one, slot), same);
    }
}

#[test]
fn leaf_editors_agree_with_a_vector() {
    for (nodesize, seed) in [(512, 1), (512, 2), (4096, 3), (16384, 4), (65536, 5)] {
        let mut random = Random::new(seed);
        let (mut leaf, mut items) = (empty(nodesize, 0), Items::new());
        for step in 0..4000 {
            let what = edit(&mut random, &mut leaf, &mut items);
            assert_leaf(&leaf, &items, &format!("{what}, nodesize {nodesize} step {step}"));
            check_find(&leaf, &items, key(random.bits() % 420));
        }
    }
}

fn check_find(leaf: &Node, items: &Items, key: Key) {
    assert_eq!(leaf.find(key), items.binary_search_by_key(&key, |item| item.0));
}

#[test]
fn find_agrees_with_a_binary_search_for_every_count_and_key() {
    for level in [0, 1] {
        let (mut node, mut keys) = (empty(16384, level), Vec::new());
        for n in 0..200u64 {
            for probe in 0..2 * n + 3 {
                let probe = Key::new(probe / 6, KeyType((probe / 3 % 2) as u8), probe % 3);
                assert_eq!(node.find(probe), keys.binary_search(&probe), "{n} keys, probe {probe}");
            }
            let odd = 2 * n + 1;
            let key = Key::new(odd / 6, KeyType((odd / 3 % 2) as u8), odd % 3);
            keys.push(key);
            match level {
                0 => node.insert_item(n as usize, key, &[]),
                _ => node.insert_pointer(n as usize, key, AT, GENERATION),
            }
        }
    }
}

#[test]
fn leaves_split_and_join() {
    let mut random = Random::new(11);
    for round in 0..600 {
        let nodesize = *random.pick(&[512, 4096, 16384]);
        let (mut leaf, mut items) = (empty(nodesize, 0), Items::new());
        (0..random.below(40)).for_each(|_| {
            edit(&mut random, &mut leaf, &mut items);
        });
        let slot = random.below(items.len() + 1);
        let mut right = empty(nodesize, 0);
        leaf.split_off(slot, &mut right);
        let right_items = items.split_off(slot);
        assert_leaf(&leaf, &items, "left of a split");
        assert_leaf(&right, &right_items, "right of a split");
        if !right.is_empty() && leaf.nritems() > 1 && random.one_in(2) {
            leaf.remove_items(0..1);
            items.remove(0);
        }
        assert!(leaf.fits_with(&right));
        items.extend(right_items);
        if round % 2 == 0 {
            leaf.append(&right);
            assert_leaf(&leaf, &items, "append");
        } else {
            right.prepend(&leaf);
            assert_leaf(&right, &items, "prepend");
        }
    }
}

#[test]
fn pointer_editors_agree_with_a_vector() {
    let mut random = Random::new(5);
    for nodesize in [512, 4096] {
        let most = pointers_per_node(nodesize);
        let (mut node, mut model) = (empty(nodesize, 3), Vec::new());
        for _ in 0..5000 {
            let slot = random.below(model.len() + 1);
            let child = (Logical(random.bits() >> 20 << 12 | 4096), Generation(random.bits() % 7));
            match random.below(5) {
                0 | 1 if model.len() < most => {
                    let key = Key::new(random.bits(), KeyType(random.bits() as u8), random.bits());
                    node.insert_pointer(slot, key, child.0, child.1);
                    model.insert(slot, (key, child));
                }
                2 if slot < model.len() => {
                    node.remove_pointer(slot);
                    model.remove(slot);
                }
                3 if slot < model.len() => {
                    node.set_child(slot, child.0, child.1);
                    model[slot].1 = child;
                }
                4 => {
                    let mut right = empty(nodesize, 3);
                    node.split_off(slot, &mut right);
                    assert_eq!((node.nritems(), right.nritems()), (slot, model.len() - slot));
                    if random.one_in(2) {
                        node.append(&right);
                    } else {
                        right.prepend(&node);
                        right.set_identity(AT, GENERATION, TREE);
                        node = right;
                    }
                }
                _ => {}
            }
            let have: Vec<_> = (0..node.nritems()).map(|slot| (node.key(slot), node.child(slot))).collect();
            assert_eq!(have, model);
            let used = HEADER_LEN + node.used();
            assert!(node.bytes()[used..].iter().all(|byte| *byte == 0));
        }
    }
}

fn sample_leaf() -> Node {
    let mut leaf = empty(4096, 0);
    (0..10).for_each(|n| leaf.insert_item(n as usize, key(n * 3), &[n as u8; 50]));
    leaf
}

fn seal(node: &Node) -> Box<[u8]> {
    let mut out = vec![0xff; node.bytes().len()];
    node.seal_into(&mut out, &identity(node.bytes().len() as u32)).expect("a sound node");
    out.into()
}

fn reseal(bytes: &mut [u8]) {
    let digest = ChecksumKind::Crc32c.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
}

#[test]
fn a_sealed_node_verifies_and_is_the_same() {
    for kind in [ChecksumKind::Crc32c, ChecksumKind::Xxhash64, ChecksumKind::Sha256, ChecksumKind::Blake2b] {
        let (leaf, identity) = (sample_leaf(), BlockIdentity { checksum: kind, ..identity(4096) });
        let mut sealed = vec![0xff; 4096];
        leaf.seal_into(&mut sealed, &identity).expect("sound");
        let read = verify(sealed.clone().into(), &promise(&leaf), &identity).expect("sound");
        assert_eq!(read.header().flags.get(), Header::BACKREF_REV | Header::WRITTEN);
        assert!(read.items().eq(leaf.items()));
        assert_eq!((read.at(), read.owner(), read.generation()), (AT, TREE, GENERATION));
        sealed[4000] ^= 1;
        assert!(verify(sealed.into(), &promise(&leaf), &identity).is_err());
    }
}

#[test]
fn a_shadow_copy_looks_never_written() {
    let mut bytes = seal(&sample_leaf());
    bytes[56] |= Header::RELOC as u8;
    bytes[HEADER_LEN + 10 * ITEM_LEN] = 0xaa;
    bytes[4095 - 10 * 50] = 0xaa;
    reseal(&mut bytes);
    let old = verify(bytes, &promise(&sample_leaf()), &identity(4096)).expect("RELOC is tolerated");
    assert!(old.is_reloc());
    let mut copy = old.clone();
    copy.set_identity(Logical(8192), Generation(8), TreeId(300));
    assert_eq!(copy.flags(), Header::BACKREF_REV);
    assert_eq!((copy.at(), copy.generation(), copy.owner()), (Logical(8192), Generation(8), TreeId(300)));
    assert_eq!(copy.bytes()[..32], [0; 32]);
    assert!(copy.items().eq(old.items()));
    assert!(copy.bytes()[HEADER_LEN + 10 * ITEM_LEN..4096 - 10 * 50].iter().all(|byte| *byte == 0));
}

/// Damage to a sealed leaf and its pointer, and the words of the refusal. `None`: the checksum is not renewed.
type Damage = (&'static str, fn(&mut [u8], &mut NodePtr), &'static str, bool);

#[test]
fn every_expectation_is_checked_in_order() {
    let cases: &[Damage] = &[
        ("address", |bytes, _| bytes[48] ^= 1, "bad tree block start", true),
        ("address before fsid", |bytes, _| (bytes[48], bytes[32]) = (1, 9), "bad tree block start", false),
        ("fsid before level", |bytes, _| (bytes[32], bytes[100]) = (9, 9), "bad fsid", false),
        ("level 8 before checksum", |bytes, _| bytes[100] = 8, "bad tree block level", false),
        ("checksum before promises", |bytes, _| bytes[80] ^= 1, "checksum mismatch", false),
        (
            "level before generation",
            |_, ptr| (ptr.level, ptr.generation) = (Level(1), Generation(1)),
            "level verify",
            true,
        ),
        ("older generation", |_, ptr| ptr.generation = Generation(6), "parent transid verify failed", true),
        ("newer generation", |_, ptr| ptr.generation = Generation(8), "parent transid verify failed", true),
        ("first key", |_, ptr| ptr.first_key = Some(key(1)), "first key mismatch", true),
        ("no first key", |bytes, _| bytes[96] = 0, "first key mismatch", true),
        ("root of another subvolume", |_, ptr| (ptr.tree, ptr.first_key) = (TreeId(257), None), "owner", true),
        ("subvolume block in the extent tree", |_, ptr| ptr.tree = TreeId::EXTENT, "owner", true),
        ("item count", |bytes, _| bytes[98] = 1, "nritems", true),
        ("item end", |bytes, _| bytes[HEADER_LEN + 21] ^= 1, "item end", true),
        ("key order", |bytes, _| bytes[HEADER_LEN + ITEM_LEN] = 0, "key order", true),
        ("not written", |bytes, _| bytes[56] = 0, "WRITTEN", true),
    ];
    for (what, damage, words, renew) in cases {
        let leaf = sample_leaf();
        let (mut bytes, mut ptr) = (seal(&leaf), promise(&leaf));
        damage(&mut bytes, &mut ptr);
        if *renew {
            reseal(&mut bytes);
        }
        let error = verify(bytes, &ptr, &identity(4096)).expect_err(what).to_string();
        assert!(error.contains(words), "{what}: {error}");
        let kind = if ptr.level == Level(0) { "corrupt leaf: " } else { "corrupt node: " };
        assert!(error.starts_with(kind), "{what}: {error}");
        assert!(error.contains(&format!("block={AT}")), "{what}: {error}");
    }
}

#[test]
fn blocks_that_snapshots_share_are_accepted() {
    let leaf = sample_leaf();
    let shared = NodePtr { tree: TreeId(999), ..promise(&leaf) };
    assert!(check_block(&seal(&leaf), &shared, &identity(4096)).is_ok());
    let unknown = NodePtr { tree: TreeId(0), first_key: None, ..promise(&leaf) };
    assert!(check_block(&seal(&leaf), &unknown, &identity(4096)).is_ok());
}

#[test]
fn a_node_that_breaks_a_rule_is_not_sealed() {
    let mut leaf = sample_leaf();
    leaf.set_key(3, key(0));
    let mut out = vec![0; 4096];
    let error = leaf.seal_into(&mut out, &identity(4096)).expect_err("key order").to_string();
    assert!(error.contains("slot=3") && error.contains("key order"), "{error}");
}

#[test]
fn wrong_lengths_are_refused() {
    for len in [0, 1, 100, 101, 4095, 4097, 16384] {
        let bytes = vec![0; len].into_boxed_slice();
        assert!(verify(bytes, &promise(&sample_leaf()), &identity(4096)).is_err(), "{len}");
    }
}

/// Damaged blocks with a good checksum: refused, or as harmless as any.
#[test]
fn no_bytes_make_a_reader_panic() {
    let mut random = Random::new(77);
    let mut accepted = 0;
    for round in 0..60_000 {
        let node = if round % 3 == 0 { sample_node() } else { sample_leaf() };
        let mut bytes = seal(&node);
        for _ in 0..1 + random.below(4) {
            let len = bytes.len();
            let at = if random.one_in(4) { random.below(len) } else { 56 + random.below(400) };
            bytes[at] = if random.one_in(2) { random.bits() as u8 } else { bytes[at] ^ (1 << random.below(8)) };
        }
        reseal(&mut bytes);
        let header = Node::from_checked(bytes.clone()).header();
        let ptr = NodePtr {
            at: Logical(header.bytenr.get()),
            generation: Generation(header.generation.get()),
            level: Level(header.level),
            tree: TreeId(0),
            first_key: None,
        };
        if let Ok(node) = verify(bytes, &ptr, &identity(4096)) {
            accepted += 1;
            read_everything(&node);
        }
    }
    assert!(accepted > 1000, "the damage is too great to test anything");
}

fn sample_node() -> Node {
    let mut node = empty(4096, 1);
    (0..30).for_each(|n| node.insert_pointer(n as usize, key(n), Logical((n + 1) * 4096), GENERATION));
    node
}

fn read_everything(node: &Node) {
    let _ = (node.find(key(5)), node.used(), node.free_space(), node.last_key(), format!("{node:?}"));
    for slot in 0..node.nritems() {
        match node.is_leaf() {
            true => drop(node.item(slot).to_vec()),
            false => drop(node.child_ptr(slot, TREE)),
        }
    }
    let mut copy = node.clone();
    if copy.is_leaf() && !copy.is_empty() {
        copy.resize_item(0, 0);
        copy.remove_items(0..1);
    }
}
