//! One planted violation per rule for inodes, names, directory entries, file extents, checksums and roots.

use super::block::*;
use super::check_table;
use crate::checksum::name_hash;
use crate::items::*;
use zerocopy::IntoBytes;

const CSUM_OBJECT: u64 = (-10i64) as u64;
const MINUS_ONE: u64 = u64::MAX;

/// A leaf of tree 5 whose inode 257 has `mode`, followed by one item of it.
fn of_inode(mode: u32, kind: u8, offset: u64, data: Vec<u8>) -> Leaf {
    leaf(5).item(key(257, 1, 0), inode(mode)).item(key(257, kind, offset), data)
}

fn inode_with(change: impl FnOnce(&mut InodeItem)) -> Leaf {
    let mut item = inode_item(FILE);
    change(&mut item);
    leaf(5).item(key(257, 1, 0), item.as_bytes().to_vec())
}

fn entry(name: &str) -> Vec<u8> {
    dir_entry(key(258, 1, 0), dir_type::REG_FILE, name, &[])
}

fn dir_item(data: Vec<u8>, name: &str) -> Leaf {
    of_inode(DIR, 84, name_hash(name.as_bytes()), data)
}

fn xattr(data: Vec<u8>, name: &str) -> Leaf {
    of_inode(FILE, 24, name_hash(name.as_bytes()), data)
}

fn regular() -> FileExtent {
    let head = FileExtentHead { kind: file_extent_type::REGULAR, ram_bytes: 8192.into(), ..FileExtentHead::default() };
    let body = FileExtentBody {
        disk_bytenr: 65536.into(),
        disk_num_bytes: 8192.into(),
        num_bytes: 8192.into(),
        ..FileExtentBody::default()
    };
    FileExtent { head, body }
}

fn extent(change: impl FnOnce(&mut FileExtent)) -> Vec<u8> {
    let mut item = regular();
    change(&mut item);
    item.as_bytes().to_vec()
}

fn inline(ram_bytes: u64, compression: u8, data: &[u8]) -> Vec<u8> {
    let head = FileExtentHead { ram_bytes: ram_bytes.into(), compression, ..FileExtentHead::default() };
    [head.as_bytes(), data].concat()
}

fn root(change: impl FnOnce(&mut RootItem)) -> Vec<u8> {
    let mut item = RootItem {
        generation: GEN.into(),
        generation_v2: GEN.into(),
        bytenr: 65536.into(),
        refs: 1.into(),
        ..RootItem::default()
    };
    change(&mut item);
    item.as_bytes().to_vec()
}

pub fn good() -> Vec<Leaf> {
    vec![
        of_inode(DIR, 12, 256, name_ref("dir", 2)).item(key(257, 84, name_hash(b"a")), entry("a")),
        of_inode(FILE, 24, name_hash(b"user.a"), dir_entry(key(0, 0, 0), 8, "user.a", b"value"))
            .item(key(257, 108, 0), inline(5, 0, b"hello"))
            .item(key(257, 108, 4096), extent(|_| ())),
        of_inode(FILE, 13, 1, extref(256, "link")),
        leaf(7).item(key(CSUM_OBJECT, 128, 4096), vec![1; 8]).item(key(CSUM_OBJECT, 128, 12288), vec![1; 4]),
        leaf(1).item(key(5, 132, 0), root(|_| ())).item(key(6, 12, 6), name_ref("..", 0)),
    ]
}

#[test]
fn inode_items() {
    let number = |objectid, offset| leaf(1).item(key(objectid, 1, offset), inode(FILE));
    check_table(vec![
        ("", inode_with(|_| ())),
        ("", number(6, 0)),
        ("", number((-12i64) as u64, 0)),
        ("", number((-256i64) as u64, 0)),
        ("invalid key objectid, have 255", number(255, 0)),
        ("invalid key objectid", number((-255i64) as u64, 0)),
        ("invalid key offset, have 1", number(256, 1)),
        ("invalid item size, have 159", leaf(5).item(key(257, 1, 0), vec![0; 159])),
        ("", inode_with(|item| item.generation = (GEN + 1).into())),
        ("invalid inode generation, have 102", inode_with(|item| item.generation = (GEN + 2).into())),
        ("invalid inode transid generation", inode_with(|item| item.transid = (GEN + 2).into())),
        ("unknown mode bit", inode_with(|item| item.mode = 0o200644.into())),
        ("S_IF* bit", inode_with(|item| item.mode = 0o644.into())),
        ("S_IF* bit", inode_with(|item| item.mode = 0o130644.into())),
        ("", inode_with(|item| item.nlink = 70000.into())),
        ("invalid nlink: have 2", inode_with(|item| (item.mode, item.nlink) = (DIR.into(), 2.into()))),
        ("", inode_with(|item| item.flags = (0xfff | 1 << 31).into())),
        ("", inode_with(|item| item.flags = (1 << 32).into())),
        ("unknown incompat flags detected: 0x1000", inode_with(|item| item.flags = (1 << 12).into())),
        ("ro-compat flags", inode_with(|item| item.flags = (1 << 33).into())),
    ]);
    let mut read_only = context();
    read_only.writable = false;
    super::check(&inode_with(|item| item.flags = (1 << 33).into()).bytes(), &read_only).unwrap();
}

#[test]
fn names_of_inodes() {
    let long = "n".repeat(255);
    check_table(vec![
        ("", of_inode(FILE, 12, 256, name_ref("a", 2))),
        ("", of_inode(FILE, 12, 256, [name_ref("a", 2), name_ref(&long, 3)].concat())),
        ("invalid item size, have 10", of_inode(FILE, 12, 256, name_ref("", 2))),
        ("invalid name length, have 0", of_inode(FILE, 12, 256, [name_ref("", 2), name_ref("", 2)].concat())),
        ("invalid name length, have 256", of_inode(FILE, 12, 256, name_ref(&"n".repeat(256), 2))),
        ("inode ref overflow", of_inode(FILE, 12, 256, [name_ref("a", 2), vec![0; 3]].concat())),
        ("name overflow", of_inode(FILE, 12, 256, poke(name_ref("a", 2), 8, 2))),
        ("invalid parent directory 255", of_inode(FILE, 12, 255, name_ref("a", 2))),
        ("invalid parent directory 6", of_inode(FILE, 12, 6, name_ref("a", 2))),
        ("", leaf(1).item(key(5, 12, 6), name_ref("default", 0)).item(key(6, 12, 6), name_ref("..", 0))),
        ("", of_inode(FILE, 13, 77, [extref(256, "a"), extref(300, "b")].concat())),
        ("invalid parent directory 5", of_inode(FILE, 13, 77, extref(5, "a"))),
        ("invalid name length, have 0", of_inode(FILE, 13, 77, [extref(256, ""), extref(256, "")].concat())),
        ("inode extref overflow", of_inode(FILE, 13, 77, [extref(256, "a"), vec![0; 17]].concat())),
        ("name overflow", of_inode(FILE, 13, 77, poke(extref(256, "a"), 16, 9))),
        ("invalid item size, have 4", of_inode(FILE, 13, 77, vec![0; 4])),
    ]);
}

#[test]
fn directory_entries() {
    let at = |location| dir_item(dir_entry(location, 1, "a", &[]), "a");
    check_table(vec![
        ("", dir_item(entry("a"), "a")),
        ("", dir_item([entry("a"), entry("a")].concat(), "a")),
        ("", of_inode(DIR, 96, 2, entry("a"))),
        ("", at(key(300, 132, MINUS_ONE))),
        ("", at(key(5, 132, 0))),
        ("", at(key(258, 0, 0))),
        ("not a subvolume", at(key(0, 132, MINUS_ONE))),
        ("not a subvolume", at(key(7, 132, MINUS_ONE))),
        ("not a subvolume", at(key(1 << 48, 132, MINUS_ONE))),
        ("invalid key objectid, have 2", at(key(2, 1, 0))),
        ("invalid key offset, have 9", at(key(258, 1, 9))),
        ("location type, have 12", at(key(258, 12, 0))),
        ("invalid dir item type, have 0", dir_item(dir_entry(key(258, 1, 0), 0, "a", &[]), "a")),
        ("invalid dir item type, have 9", dir_item(dir_entry(key(258, 1, 0), 9, "a", &[]), "a")),
        ("have 8 in key type 84", dir_item(dir_entry(key(258, 1, 0), 8, "a", &[]), "a")),
        ("data len, have 1", dir_item(dir_entry(key(258, 1, 0), 1, "a", b"v"), "a")),
        ("name hash mismatch", dir_item(entry("b"), "a")),
        ("name hash mismatch", dir_item([entry("a"), entry("b")].concat(), "a")),
        ("", of_inode(DIR, 96, 2, entry("anything"))),
        ("name len too long, have 256", of_inode(DIR, 96, 2, entry(&"n".repeat(256)))),
        ("header crosses item boundary", dir_item([entry("a"), vec![0; 29]].concat(), "a")),
        ("data crosses item boundary", of_inode(DIR, 96, 2, poke(entry("a"), 27, 2))),
    ]);
}

#[test]
fn extended_attributes() {
    let value = |len: usize| dir_entry(key(0, 0, 0), 8, "user.a", &vec![7; len]);
    check_table(vec![
        ("", xattr(value(0), "user.a")),
        ("", xattr(value(100), "user.a")),
        ("", leaf(TREE_LOG).item(key(257, 24, name_hash(b"user.a")), value(3934))),
        (
            "too long, have 3941 max 3940",
            leaf(TREE_LOG).item(key(257, 24, name_hash(b"user.a")), poke(value(3934), 25, 95)),
        ),
        ("xattr location", xattr(dir_entry(key(258, 1, 0), 8, "user.a", &[]), "user.a")),
        ("have 1 in key type 24", xattr(dir_entry(key(0, 0, 0), 1, "user.a", &[]), "user.a")),
        ("name hash mismatch", xattr(value(1), "user.b")),
        ("data crosses item boundary", xattr(poke(value(1), 25, 2), "user.a")),
    ]);
}

const TREE_LOG: u64 = (-6i64) as u64;

#[test]
fn items_stand_with_their_inode() {
    let stray =
        |owner, kind, offset, data| leaf(owner).item(key(257, 1, 0), inode(DIR)).item(key(258, kind, offset), data);
    let hash = name_hash(b"a");
    check_table(vec![
        ("", leaf(5).item(key(258, 12, 256), name_ref("a", 2))),
        ("", stray(TREE_LOG, 12, 256, name_ref("a", 2))),
        ("", stray(1, 108, 0, inline(1, 0, b"a"))),
        ("previous key objectid", stray(5, 12, 256, name_ref("a", 2))),
        ("previous key objectid", stray(300, 13, 5, extref(256, "a"))),
        ("previous key objectid", stray(5, 24, hash, dir_entry(key(0, 0, 0), 8, "a", &[]))),
        ("previous key objectid", stray(5, 84, hash, entry("a"))),
        ("previous key objectid", stray(5, 96, 2, entry("a"))),
        ("previous key objectid", stray(5, 108, 0, inline(1, 0, b"a"))),
    ]);
}

#[test]
fn file_extents() {
    let one = |data| of_inode(FILE, 108, 0, data);
    let two = |first, at, second| of_inode(FILE, 108, 0, first).item(key(257, 108, at), second);
    check_table(vec![
        ("", one(extent(|_| ()))),
        ("", one(extent(|item| item.head.kind = 2))),
        ("", one(extent(|item| item.head.ram_bytes = 4096.into()))),
        ("", one(inline(5, 0, b"hello"))),
        ("", one(inline(500, 1, b"zzz"))),
        ("", one(inline(0, 0, b""))),
        ("unaligned file offset", of_inode(FILE, 108, 1, extent(|_| ()))),
        ("invalid type for file extent, have 3", one(extent(|item| item.head.kind = 3))),
        ("invalid compression for file extent, have 4", one(extent(|item| item.head.compression = 4))),
        ("invalid encryption for file extent, have 1", one(extent(|item| item.head.encryption = 1))),
        ("invalid item size, have 20", one(vec![0; 20])),
        ("invalid item size, have 54", one([extent(|_| ()), vec![0]].concat())),
        ("invalid item size, have 52", one(extent(|_| ())[..52].to_vec())),
        ("inline file extent, have 4096", of_inode(FILE, 108, 4096, inline(1, 0, b"a"))),
        ("uncompressed inline extent, have 6 expect 5", one(inline(6, 0, b"hello"))),
        ("invalid ram_bytes", one(extent(|item| item.head.ram_bytes = 1.into()))),
        ("invalid disk_bytenr", one(extent(|item| item.body.disk_bytenr = 1.into()))),
        ("invalid disk_num_bytes", one(extent(|item| item.body.disk_num_bytes = 1.into()))),
        ("invalid offset", one(extent(|item| item.body.offset = 1.into()))),
        ("invalid num_bytes", one(extent(|item| item.body.num_bytes = 1.into()))),
        ("extent end overflow", of_inode(FILE, 108, 0u64.wrapping_sub(4096), extent(|_| ()))),
        ("", two(extent(|_| ()), 8192, extent(|_| ()))),
        ("", two(inline(5, 0, b"hello"), 4096, extent(|_| ()))),
        ("goes beyond start offset (4096)", two(extent(|_| ()), 4096, extent(|_| ()))),
        ("goes beyond start offset (4096)", two(inline(4097, 1, b"z"), 4096, extent(|_| ()))),
        ("special file", of_inode(0o020644, 108, 0, extent(|_| ()))),
        ("special file", of_inode(0o010644, 108, 0, extent(|_| ()))),
        ("special file", of_inode(0o140644, 108, 0, extent(|_| ()))),
        ("special file", of_inode(0o060644, 108, 0, extent(|_| ()))),
        ("", of_inode(0o120777, 108, 0, inline(1, 0, b"a"))),
    ]);
}

#[test]
fn checksums_of_data() {
    let csum = |objectid, offset, len| leaf(7).item(key(objectid, 128, offset), vec![1; len]);
    check_table(vec![
        ("", csum(CSUM_OBJECT, 4096, 8)),
        ("", csum(CSUM_OBJECT, 4096, 8).item(key(CSUM_OBJECT, 128, 12288), vec![1; 4])),
        ("csum item, have 7", csum(7, 4096, 8)),
        ("unaligned key offset", csum(CSUM_OBJECT, 4097, 8)),
        ("unaligned item size", csum(CSUM_OBJECT, 4096, 7)),
        ("csum end range (12288)", csum(CSUM_OBJECT, 4096, 8).item(key(CSUM_OBJECT, 128, 8192), vec![1; 4])),
        ("overflows", csum(CSUM_OBJECT, 0u64.wrapping_sub(4096), 8)),
    ]);
}

#[test]
fn roots() {
    const RELOC: u64 = (-8i64) as u64;
    let of = |objectid, offset| leaf(1).item(key(objectid, 132, offset), root(|_| ()));
    let with = |change: fn(&mut RootItem)| leaf(1).item(key(5, 132, 0), root(change));
    check_table(vec![
        ("", of(5, 0)),
        ("", of(257, 50)),
        ("", of(RELOC, 257)),
        ("", leaf(1).item(key(5, 132, 0), root(|_| ())[..239].to_vec())),
        ("", with(|item| item.flags = (1 | 1 << 48).into())),
        ("", with(|item| item.generation_v2 = 1.into())),
        ("", with(|item| (item.drop_progress.objectid, item.drop_level) = (9.into(), 1))),
        ("invalid root id 0", of(0, 1)),
        ("invalid reloc tree for root 7", of(RELOC, 7)),
        ("invalid root item size, have 240", leaf(1).item(key(5, 132, 0), vec![0; 240])),
        ("invalid root generation", with(|item| item.generation = (GEN + 2).into())),
        ("invalid root v2 generation", with(|item| item.generation_v2 = (GEN + 2).into())),
        ("invalid root last_snapshot generation", with(|item| item.last_snapshot = (GEN + 2).into())),
        ("invalid root bytenr, have 1", with(|item| item.bytenr = 1.into())),
        ("invalid root level, have 8", with(|item| item.level = 8)),
        ("invalid root drop_level, have 8", with(|item| item.drop_level = 8)),
        ("with drop_progress of object 9", with(|item| item.drop_progress.objectid = 9.into())),
        ("unknown bits 0x2", with(|item| item.flags = 2.into())),
    ]);
}
