//! One planted violation per rule for block groups, chunks, devices and free space.

use super::super::check;
use super::block::*;
use super::check_table;
use crate::chunk::{Chunk, ChunkStripe};
use crate::features::incompat;
use crate::items::*;
use crate::units::{DeviceId, Logical, Physical};
use block_group_flags as bits;
use zerocopy::IntoBytes;

const MIB: u64 = 1 << 20;

fn group(used: u64, chunk_objectid: u64, flags: u64) -> Leaf {
    let item = BlockGroupItem { used: used.into(), chunk_objectid: chunk_objectid.into(), flags: flags.into() };
    leaf(11).item(key(MIB, 192, 8 * MIB), item.as_bytes().to_vec())
}

fn chunk(kind: u64, stripes: u64) -> Vec<u8> {
    let stripe = |n| ChunkStripe { device: DeviceId(n), physical: Physical(MIB), dev_uuid: [1; 16] };
    Chunk::new(Logical(MIB), 8 * MIB, kind, 4096, (1..=stripes).map(stripe).collect()).encode()
}

fn device(change: impl FnOnce(&mut DevItem)) -> Vec<u8> {
    let mut item = DevItem { devid: 1.into(), total_bytes: MIB.into(), bytes_used: MIB.into(), ..DevItem::default() };
    change(&mut item);
    item.as_bytes().to_vec()
}

fn dev_extent(change: impl FnOnce(&mut DevExtent)) -> Vec<u8> {
    let mut item = DevExtent {
        chunk_tree: 3.into(),
        chunk_objectid: 256.into(),
        chunk_offset: MIB.into(),
        length: MIB.into(),
        ..DevExtent::default()
    };
    change(&mut item);
    item.as_bytes().to_vec()
}

fn info(count: u32, flags: u32) -> Vec<u8> {
    FreeSpaceInfo { extent_count: count.into(), flags: flags.into() }.as_bytes().to_vec()
}

pub fn good() -> Vec<Leaf> {
    vec![
        group(0, 256, bits::DATA),
        leaf(3).item(key(1, 216, 1), device(|_| ())).item(key(256, 228, MIB), chunk(bits::SYSTEM | bits::DUP, 2)),
        leaf(4).item(key(1, 204, MIB), dev_extent(|_| ())).item(key(1, 204, 2 * MIB), dev_extent(|_| ())),
        leaf(10).item(key(MIB, 198, 8 * MIB), info(1, 0)).item(key(MIB, 199, 4096), vec![]),
        leaf(10).item(key(MIB, 198, 8 * MIB), info(1, 1)).item(key(MIB, 200, 8 * MIB), vec![0; 256]),
    ]
}

#[test]
fn block_groups() {
    check_table(vec![
        ("", group(8 * MIB, 256, bits::DATA | bits::RAID0)),
        ("", group(0, 256, bits::DATA | bits::METADATA)),
        ("invalid block group size", leaf(11).item(key(MIB, 192, 0), BlockGroupItem::default().as_bytes().to_vec())),
        ("invalid item size, have 23", leaf(11).item(key(MIB, 192, MIB), vec![0; 23])),
        ("chunk objectid, have 255", group(0, 255, bits::DATA)),
        ("invalid block group used, have 8388609", group(8 * MIB + 1, 256, bits::DATA)),
        ("invalid profile flags", group(0, 256, bits::DATA | bits::RAID0 | bits::DUP)),
        ("invalid block group type", group(0, 256, bits::DUP)),
        ("invalid block group type", group(0, 256, bits::DATA | bits::SYSTEM)),
    ]);
}

#[test]
fn chunks() {
    let of = |data| leaf(3).item(key(256, 228, MIB), data);
    let good = || chunk(bits::DATA, 1);
    let set = |at: usize, value: u64| {
        let mut data = good();
        data[at..at + 8].copy_from_slice(&value.to_le_bytes());
        of(data)
    };
    check_table(vec![
        ("", of(good())),
        ("", of(poke(good(), 46, 0))),
        ("", of(chunk(bits::DATA | bits::RAID0, 1))),
        ("", of(chunk(bits::DATA | bits::RAID10, 4))),
        ("", of(chunk(bits::METADATA | bits::RAID6, 3))),
        ("invalid chunk item size, have 47", of(good()[..47].to_vec())),
        ("invalid chunk num_stripes, have 0", of(poke(good(), 44, 0))),
        ("invalid chunk item size, have 80 expect 112", of(poke(good(), 44, 2))),
        ("invalid chunk item size, have 112 expect 80", of(poke(chunk(bits::DUP, 2), 44, 1))),
        ("invalid chunk logical", leaf(3).item(key(256, 228, 1), good())),
        ("invalid chunk length, have 1", set(0, 1)),
        ("invalid chunk length, have 0", set(0, 0)),
        ("overflow", leaf(3).item(key(256, 228, 0u64.wrapping_sub(4096)), good())),
        ("chunk length too large", set(0, 65536 * u64::from(u32::MAX))),
        ("invalid chunk stripe length, have 4096", set(16, 4096)),
        ("invalid chunk sectorsize, have 4097", of(poke(good(), 40, 1))),
        ("unrecognized chunk type bits", set(24, bits::DATA | 1 << 40)),
        ("more than one profile bit", set(24, bits::DATA | bits::RAID0 | bits::RAID1)),
        ("missing chunk type bits", set(24, 0)),
        ("conflicting chunk type", set(24, bits::SYSTEM | bits::METADATA)),
        ("mixed chunk type", set(24, bits::DATA | bits::METADATA)),
        ("for profile single", of(chunk(bits::DATA, 2))),
        ("for profile DUP", of(chunk(bits::DATA | bits::DUP, 1))),
        ("for profile DUP", of(chunk(bits::DATA | bits::DUP, 3))),
        ("for profile RAID1", of(chunk(bits::DATA | bits::RAID1, 3))),
        ("for profile RAID1C3", of(chunk(bits::DATA | bits::RAID1C3, 2))),
        ("for profile RAID1C4", of(chunk(bits::DATA | bits::RAID1C4, 3))),
        ("for profile RAID5", of(chunk(bits::DATA | bits::RAID5, 1))),
        ("for profile RAID6", of(chunk(bits::DATA | bits::RAID6, 2))),
        ("for profile RAID10", of(chunk(bits::DATA | bits::RAID10, 3))),
        ("2:1 for profile RAID10", of(poke(chunk(bits::DATA | bits::RAID10, 2), 46, 1))),
        ("overflows", set(56, u64::MAX)),
    ]);
    let mixed = CheckOf { incompat: incompat::MIXED_GROUPS };
    mixed.accepts(set(24, bits::DATA | bits::METADATA));
}

/// A context that differs in its features.
struct CheckOf {
    incompat: u64,
}

impl CheckOf {
    fn accepts(&self, leaf: Leaf) {
        let mut context = context();
        context.incompat |= self.incompat;
        check(&leaf.bytes(), &context).unwrap();
    }
}

#[test]
fn devices() {
    let item = |objectid, offset, data| leaf(3).item(key(objectid, 216, offset), data);
    check_table(vec![
        ("", item(1, 1, device(|_| ()))),
        ("invalid objectid: has 2", item(2, 1, device(|_| ()))),
        ("invalid item size: has 97", item(1, 1, vec![0; 97])),
        ("devid mismatch: key has 2", item(1, 2, device(|_| ()))),
        ("invalid bytes used", item(1, 1, device(|item| item.bytes_used = (MIB + 1).into()))),
    ]);
    let extent = |offset, data| leaf(4).item(key(1, 204, offset), data);
    let good = || dev_extent(|_| ());
    check_table(vec![
        ("", extent(MIB, good()).item(key(1, 204, 2 * MIB), good())),
        ("", extent(MIB, good()).item(key(2, 204, MIB), good())),
        ("dev extent overlap", extent(MIB, good()).item(key(1, 204, 2 * MIB - 4096), good())),
        ("invalid item size: has 47", extent(MIB, vec![0; 47])),
        ("chunk tree, have 2", extent(MIB, dev_extent(|item| item.chunk_tree = 2.into()))),
        ("chunk objectid, have 2", extent(MIB, dev_extent(|item| item.chunk_objectid = 2.into()))),
        ("physical offset, have 1", extent(1, good())),
        ("chunk offset, have 1", extent(MIB, dev_extent(|item| item.chunk_offset = 1.into()))),
        ("invalid dev extent length, have 1", extent(MIB, dev_extent(|item| item.length = 1.into()))),
        ("overflows", extent(0u64.wrapping_sub(4096), good())),
    ]);
}

#[test]
fn free_space() {
    let item = |start, kind, len, data| leaf(10).item(key(start, kind, len), data);
    let group = |data| item(MIB, 198, 8 * MIB, data);
    check_table(vec![
        ("", group(info(2048, 1))),
        ("", item(MIB, 199, 4096, vec![])),
        ("", item(MIB, 200, 8 * MIB, vec![0; 256])),
        ("", item(MIB, 200, 9 * 4096, vec![0; 2])),
        ("unaligned free space range", item(1, 199, 4096, vec![])),
        ("unaligned free space range", item(MIB, 199, 1, vec![])),
        ("invalid free space length", item(MIB, 199, 0, vec![])),
        ("overflows", item(0u64.wrapping_sub(4096), 199, 8192, vec![])),
        ("unaligned free space range", item(1, 198, MIB, info(0, 0))),
        ("unaligned free space range", item(1, 200, MIB, vec![0; 32])),
        ("invalid item size, have 7", group(vec![0; 7])),
        ("info flags, have 0x2", group(info(0, 2))),
        ("extent count, have 2049", group(info(2049, 0))),
        ("invalid item size, have 1 expect 0", item(MIB, 199, 4096, vec![0])),
        ("invalid item size, have 255 expect 256", item(MIB, 200, 8 * MIB, vec![0; 255])),
    ]);
}

#[test]
fn raid_stripes() {
    let item = |at| leaf(12).item(key(at, 230, 4096), vec![0; 16]);
    check_table(vec![("without the RAID_STRIPE_TREE feature", item(4096))]);
    CheckOf { incompat: incompat::RAID_STRIPE_TREE }.accepts(item(4096));
    let mut context = context();
    context.incompat |= incompat::RAID_STRIPE_TREE;
    assert!(check(&item(1).bytes(), &context).unwrap_err().rule.contains("have 1"));
}
