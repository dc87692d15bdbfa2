//! One planted violation per rule for extents and their references.

use super::super::check;
use super::block::*;
use super::check_table;
use crate::checksum::extent_data_ref_hash;
use crate::features::incompat;
use crate::items::*;
use zerocopy::IntoBytes;

const DATA: u64 = extent_flags::DATA;
const TREE: u64 = extent_flags::TREE_BLOCK;

fn payload(refs: u64, flags: u64, parts: &[Vec<u8>]) -> Vec<u8> {
    let head = ExtentItem { refs: refs.into(), generation: GEN.into(), flags: flags.into() };
    [head.as_bytes(), &parts.concat()].concat()
}

/// A reference of one of the types that hold only an offset.
fn plain(kind: u8, offset: u64) -> Vec<u8> {
    [&[kind][..], &offset.to_le_bytes()].concat()
}

fn shared_data(parent: u64, count: u32) -> Vec<u8> {
    [plain(184, parent), count.to_le_bytes().to_vec()].concat()
}

fn data_ref(root: u64, objectid: u64, offset: u64, count: u32) -> Vec<u8> {
    let item =
        ExtentDataRef { root: root.into(), objectid: objectid.into(), offset: offset.into(), count: count.into() };
    item.as_bytes().to_vec()
}

fn inline_data_ref(root: u64, objectid: u64, offset: u64, count: u32) -> Vec<u8> {
    [vec![178], data_ref(root, objectid, offset, count)].concat()
}

fn block_info(level: u8) -> Vec<u8> {
    TreeBlockInfo { level, ..TreeBlockInfo::default() }.as_bytes().to_vec()
}

fn metadata(parts: &[Vec<u8>]) -> Leaf {
    leaf(2).item(key(65536, 169, 0), payload(parts.len() as u64, TREE, parts))
}

fn data(parts: &[Vec<u8>]) -> Leaf {
    leaf(2).item(key(65536, 168, 8192), payload(100, DATA, parts))
}

/// Two data references in the order of their hashes.
fn ordered_pair() -> [Vec<u8>; 2] {
    let (a, b) = (extent_data_ref_hash(5, 257, 0), extent_data_ref_hash(5, 258, 0));
    let (first, second) = if a > b { (257, 258) } else { (258, 257) };
    [inline_data_ref(5, first, 0, 1), inline_data_ref(5, second, 0, 1)]
}

pub fn good() -> Vec<Leaf> {
    let [first, second] = ordered_pair();
    vec![
        metadata(&[plain(176, 5), plain(182, 4096)]),
        data(&[plain(172, 5), first, second, shared_data(8192, 2), shared_data(4096, 2)]),
        leaf(2)
            .item(key(4096, 168, 4096), payload(1, TREE, &[block_info(0)]))
            .item(key(4096, 176, 5), vec![])
            .item(key(4096, 178, 9), data_ref(5, 257, 0, 1))
            .item(key(4096, 182, 4096), vec![])
            .item(key(4096, 184, 4096), vec![1, 0, 0, 0]),
    ]
}

#[test]
fn extents() {
    let raw = |at, kind, offset, data| leaf(2).item(key(at, kind, offset), data);
    let tree = |flags| payload(1, flags, &[plain(176, 5)]);
    let future = || {
        let head = ExtentItem { refs: 1.into(), generation: (GEN + 2).into(), flags: TREE.into() };
        head.as_bytes().to_vec()
    };
    let full = |level| payload(1, TREE, &[block_info(level), plain(176, 5)]);
    check_table(vec![
        ("", raw(65536, 169, 7, tree(TREE))),
        ("", raw(65536, 169, 0, tree(TREE | 1 << 8))),
        ("", raw(65536, 168, 4096, full(7))),
        ("", raw(65536, 168, 8192, payload(1, DATA, &[inline_data_ref(5, 257, 0, 1)]))),
        ("", raw(65536, 168, 8192, payload(1, DATA, &[]))),
        ("invalid key objectid, have 65537", raw(65537, 169, 0, tree(TREE))),
        ("invalid item size, have 23", raw(65536, 169, 0, vec![0; 23])),
        ("invalid extent generation, have 102", raw(65536, 169, 0, future())),
        ("exactly one of", raw(65536, 169, 0, tree(0))),
        ("exactly one of", raw(65536, 169, 0, tree(TREE | DATA))),
        ("full backref", raw(65536, 168, 8192, payload(0, DATA | 1 << 8, &[]))),
        ("METADATA_ITEM for a data extent", raw(65536, 169, 0, payload(0, DATA, &[]))),
        ("block info level, have 8", raw(65536, 169, 8, tree(TREE))),
        ("block info level, have 8", raw(65536, 168, 4096, full(8))),
        ("invalid extent length, have 8192", raw(65536, 168, 8192, full(0))),
        ("left for the tree block info", raw(65536, 168, 4096, payload(0, TREE, &[vec![0; 17]]))),
        ("invalid extent length, have 1", raw(65536, 168, 1, payload(0, DATA, &[]))),
        ("overlaps current extent", data(&[]).item(key(69632, 169, 0), tree(TREE))),
        ("overlaps current extent", data(&[]).item(key(65536, 169, 0), tree(TREE))),
        ("", data(&[]).item(key(73728, 169, 0), tree(TREE))),
        ("", data(&[]).item(key(65536, 178, 1), data_ref(5, 257, 0, 1)).item(key(73728, 169, 0), tree(TREE))),
    ]);
    let mut old = context();
    old.incompat &= !incompat::SKINNY_METADATA;
    let violation = check(&raw(65536, 169, 0, tree(TREE)).bytes(), &old).unwrap_err();
    assert!(violation.rule.contains("without SKINNY_METADATA"), "{violation}");
}

#[test]
fn inline_references() {
    let [first, second] = ordered_pair();
    check_table(vec![
        ("", metadata(&[plain(176, 5), plain(182, 4096)])),
        ("", metadata(&[plain(176, 7), plain(176, 5)])),
        ("", data(&[plain(172, 5), first.clone(), second.clone(), shared_data(8192, 1), shared_data(4096, 1)])),
        ("", data(&[first.clone(), first.clone()])),
        ("out of order", metadata(&[plain(182, 4096), plain(176, 5)])),
        ("out of order", metadata(&[plain(176, 5), plain(176, 7)])),
        ("out of order", data(&[second.clone(), first.clone()])),
        ("out of order", data(&[first, plain(172, 5)])),
        ("unknown inline ref type: 0", data(&[second, vec![0; 9]])),
        ("exceeds the item", metadata(&[plain(176, 5)[..8].to_vec()])),
        ("exceeds the item", data(&[inline_data_ref(5, 257, 0, 1)[..28].to_vec()])),
        ("exceeds the item", data(&[shared_data(4096, 1)[..12].to_vec()])),
        ("unknown inline ref type: 177", metadata(&[plain(177, 5)])),
        ("tree parent bytenr, have 1", metadata(&[plain(182, 1)])),
        ("tree parent bytenr, have 1", data(&[shared_data(1, 1)])),
        ("shared data ref count", data(&[shared_data(4096, 0)])),
        ("", data(&[inline_data_ref(1, 256, 0, 1)])),
        ("", data(&[inline_data_ref((-9i64) as u64, 256, 0u64.wrapping_sub(4096), 1)])),
        ("backref root, have 7", data(&[inline_data_ref(7, 257, 0, 1)])),
        ("backref objectid, have 255", data(&[inline_data_ref(5, 255, 0, 1)])),
        ("backref offset, have 1", data(&[inline_data_ref(5, 257, 1, 1)])),
        ("backref count", data(&[inline_data_ref(5, 257, 0, 0)])),
        ("invalid extent refs, have 100 expect >= inline 101", data(&[inline_data_ref(5, 257, 0, 101)])),
    ]);
}

#[test]
fn keyed_references() {
    let keyed = |at, kind, offset, data| leaf(2).item(key(at, kind, offset), data);
    check_table(vec![
        ("", keyed(4096, 176, 5, vec![])),
        ("", keyed(4096, 178, 5, [data_ref(5, 257, 0, 1), data_ref(5, 258, 0, 1)].concat())),
        ("", keyed(4096, 182, 4096, vec![])),
        ("", keyed(4096, 184, 4096, vec![1, 0, 0, 0])),
        ("invalid item size, have 1 expect 0", keyed(4096, 176, 5, vec![0])),
        ("invalid item size, have 1 expect 0", keyed(4096, 182, 4096, vec![0])),
        ("invalid item size, have 0 expect 4", keyed(4096, 184, 4096, vec![])),
        ("invalid item size, have 29", keyed(4096, 178, 5, vec![0; 29])),
        ("invalid key objectid, have 1", keyed(1, 176, 5, vec![])),
        ("invalid key objectid, have 1", keyed(1, 178, 5, vec![])),
        ("tree parent bytenr, have 5", keyed(4096, 182, 5, vec![])),
        ("tree parent bytenr, have 5", keyed(4096, 184, 5, vec![1, 0, 0, 0])),
        ("shared data backref count", keyed(4096, 184, 4096, vec![0; 4])),
        ("backref count", keyed(4096, 178, 5, data_ref(5, 257, 0, 0))),
        ("backref root, have 2", keyed(4096, 178, 5, data_ref(2, 257, 0, 1))),
    ]);
}
