//! The tree checker against good blocks, one planted violation per rule, and random bytes.

mod block;
mod extent_items;
mod inode_items;
mod space_items;

use super::*;
use crate::header::HEADER_LEN;
use block::*;

/// Checks each leaf of a table: an empty word expects it to be good, else the violation's text has the word in it.
fn check_table(cases: Vec<(&str, Leaf)>) {
    for (number, (word, leaf)) in cases.into_iter().enumerate() {
        let outcome = check(&leaf.bytes(), &context());
        match (&outcome, word) {
            (Ok(()), "") => {}
            (Err(violation), word) if !word.is_empty() && violation.to_string().contains(word) => {}
            _ => panic!("case {number} {word:?}: {outcome:?}"),
        }
    }
}

#[test]
fn structure_of_leaves() {
    let two = || leaf(5).item(key(256, 1, 0), inode(DIR)).item(key(256, 12, 256), name_ref("..", 0));
    check_table(vec![
        ("", two()),
        ("", leaf(7)),
        ("", leaf(8)),
        ("", leaf(300)),
        ("", leaf(TreeId::TREE_LOG.0)),
        ("", leaf(5).flags(Header::WRITTEN | Header::RELOC | Header::BACKREF_REV)),
        ("", two().flags(Header::WRITTEN | 1 << 17)),
        ("must never be empty", leaf(0)),
        ("must never be empty", leaf(1)),
        ("must never be empty", leaf(2)),
        ("must never be empty", leaf(3)),
        ("must never be empty", leaf(4)),
        ("must never be empty", leaf(5)),
        ("must never be empty", leaf(TreeId::DATA_RELOC.0)),
        ("WRITTEN not set", two().flags(Header::BACKREF_REV)),
        ("invalid level, have 8", two().level(8)),
        ("invalid nritems, have 1000", two().count(1000)),
        ("invalid nritems, have 4294967295", two().count(u32::MAX)),
        ("bad key order", leaf(9).item(key(0, 0, 0), vec![])),
        ("bad key order", leaf(9).item(key(2, 255, 1), vec![]).item(key(2, 255, 1), vec![])),
        ("bad key order", leaf(9).item(key(2, 255, 1), vec![]).item(key(2, 254, 2), vec![])),
        ("unexpected item end, have 3996 expect 3995", two().shift_item(0, 1)),
        ("unexpected item end", two().shift_item(1, -1)),
        ("unexpected item end", two().resize_item(1, u32::MAX)),
        ("slot overlaps with its data", leaf(9).item(key(1, 255, 0), vec![0; 3971]).item(key(2, 255, 0), vec![])),
        ("", leaf(9).item(key(1, 255, 0), vec![0; 3970])),
    ]);
}

#[test]
fn structure_of_nodes() {
    let pointers = |list: &[(u64, u64)]| node(1, list);
    let cases = [
        ("", pointers(&[(1, 4096)])),
        ("", pointers(&[(1, 4096), (2, 4096)])),
        ("", node(7, &[(1, 4096)])),
        ("invalid level, have 8", node(8, &[(1, 4096)])),
        ("invalid nritems, have 0", pointers(&[])),
        ("invalid nritems, have 122 should be in [1, 121]", set_count(pointers(&[(1, 4096)]), 122)),
        ("slot=1, invalid NULL node pointer", pointers(&[(1, 4096), (2, 0)])),
        ("slot=0, unaligned pointer, have 4097", pointers(&[(1, 4097), (2, 4096)])),
        ("slot=1, invalid key order, prev (2 1 0) current (2 1 0)", pointers(&[(2, 4096), (2, 8192)])),
        ("corrupt node: root=5 block=30408704 slot=1, invalid key order", pointers(&[(2, 4096), (1, 8192)])),
    ];
    for (word, block) in cases {
        match (check(&block, &context()), word) {
            (Ok(()), "") => {}
            (Err(violation), word) if !word.is_empty() => {
                assert!(violation.to_string().contains(word), "{word:?}: {violation}");
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}

#[test]
fn a_violation_names_its_place() {
    let block = leaf(5).item(key(256, 1, 0), inode(DIR)).item(key(256, 12, 0), name_ref("..", 0)).bytes();
    let text = check(&block, &context()).unwrap_err().to_string();
    assert_eq!(text, "corrupt leaf: root=5 block=30408704 slot=1 key=(256 12 0), invalid parent directory 0");
}

#[test]
fn wrong_sizes_are_refused() {
    let block = leaf(7).bytes();
    assert!(check(&block[..4095], &context()).is_err());
    assert!(check(&[], &context()).is_err());
    for (nodesize, sectorsize) in [(0, 4096), (4096, 0), (100, 4096), (4096, 3), (1 << 31, 4096)] {
        assert!(check(&block, &CheckContext { nodesize, sectorsize, ..context() }).is_err());
    }
}

#[test]
fn owners() {
    let (fs, log, reloc) = (TreeId::FS, TreeId::TREE_LOG, TreeId::TREE_RELOC);
    // header's owner, tree, root block, allowed
    let cases = [
        (TreeId(2), TreeId(2), false, true),
        (TreeId(7), TreeId(2), false, false),
        (TreeId(7), TreeId::DATA_RELOC, false, false),
        (fs, fs, true, true),
        (TreeId(256), fs, true, false),
        (TreeId(256), fs, false, true),
        (fs, TreeId(300), false, true),
        (reloc, TreeId(300), false, false),
        (TreeId(1 << 48), TreeId(300), false, false),
        (TreeId::DATA_RELOC, TreeId(300), false, false),
        (log, log, true, true),
        (fs, reloc, true, true),
        (fs, TreeId(0), true, true),
    ];
    for (owner, tree, is_root, allowed) in cases {
        assert_eq!(check_owner(owner, tree, is_root).is_ok(), allowed, "{owner:?} in {tree:?} root {is_root}");
    }
}

/// Random bytes under a plausible header, and good leaves with random damage: any outcome but a panic.
#[test]
fn random_bytes_never_panic() {
    let mut random = butterfs_testkit::rng::Rng::new(1);
    let samples = samples();
    let mut refused = 0;
    for round in 0..20_000 {
        let mut block = samples[random.index(samples.len())].clone();
        if round % 4 == 0 {
            block[HEADER_LEN..].iter_mut().for_each(|byte| *byte = random.bits() as u8);
        }
        for _ in 0..1 + random.index(4) {
            // Half of the damage goes where item headers are, a quarter to the end, where payloads are.
            let at = match random.index(4) {
                0 => random.index(block.len()),
                1 => block.len() - 1 - random.index(200),
                _ => random.index(HEADER_LEN + 50),
            };
            block[at] = random.bits() as u8;
        }
        refused += usize::from(check(&block, &context()).is_err());
    }
    assert!(refused > 5_000, "the damage is not seen: {refused} of 20000 refused");
}

/// A leaf with a good item of every type that has rules.
fn samples() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [inode_items::good(), extent_items::good(), space_items::good()]
        .into_iter()
        .flatten()
        .map(|leaf| leaf.bytes())
        .collect();
    all.push(node(1, &[(1, 4096), (2, 8192)]));
    for block in &all {
        check(block, &context()).unwrap();
    }
    all
}
