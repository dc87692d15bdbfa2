//! The text of each kind of item, as btrfs-progs 6.2 printed it for the same bytes; and random bytes.

use super::*;
use crate::items::*;
use crate::tree_checker::{CheckContext, check_layout};
use crate::units::Generation;

pub(super) fn options() -> DumpOptions<'static> {
    DumpOptions {
        hide_names: false,
        csum_headers: false,
        csum_items: false,
        checksum: ChecksumKind::Crc32c,
        sectorsize: 4096,
        utc_offset: &|_| 0,
    }
}

fn key(objectid: i64, kind: u8, offset: u64) -> Key {
    Key::new(objectid as u64, KeyType(kind), offset)
}

fn text(key: Key, data: &[u8], options: &DumpOptions) -> String {
    let mut out = Vec::new();
    print_payload(&mut out, key, data, options).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

/// Checks one item's text; each line of `expected` stands behind two tabs.
fn check(key: Key, data: &[u8], expected: &[&str]) {
    let expected: String = expected.iter().map(|line| format!("\t\t{line}\n")).collect();
    assert_eq!(text(key, data, &options()), expected, "{key}");
}

fn numbers(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn disk_key(objectid: u64, kind: u8, offset: u64) -> Vec<u8> {
    [&objectid.to_le_bytes()[..], &[kind], &offset.to_le_bytes()].concat()
}

fn dir_entry(location: Vec<u8>, kind: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let lens = [(value.len() as u16).to_le_bytes(), (name.len() as u16).to_le_bytes()].concat();
    [&location[..], &5u64.to_le_bytes(), &lens, &[kind], name, value].concat()
}

#[test]
fn keys() {
    let max = u64::MAX;
    let cases = [
        (key(256, 1, 0), "key (256 INODE_ITEM 0)"),
        (key(5, 84, max), "key (FS_TREE DIR_ITEM -1)"),
        (key(5, 132, max), "key (FS_TREE ROOT_ITEM 18446744073709551615)"),
        (key(-8, 132, 7), "key (TREE_RELOC ROOT_ITEM CSUM_TREE)"),
        (key(-6, 132, 7), "key (TREE_LOG ROOT_ITEM 7)"),
        (key(1, 216, 1), "key (DEV_ITEMS DEV_ITEM 1)"),
        (key(1, 204, 1), "key (1 DEV_EXTENT 1)"),
        (key(256, 228, 0), "key (FIRST_CHUNK_TREE CHUNK_ITEM 0)"),
        (key(0, 249, 1), "key (DEV_STATS PERSISTENT_ITEM 1)"),
        (key(-1, 249, 1), "key (18446744073709551615 PERSISTENT_ITEM 1)"),
        (key(5 | 3 << 48, 246, 1 << 48), "key (3/5 QGROUP_RELATION 1/0)"),
        (key(0, 240, 1 << 48), "key (0 QGROUP_STATUS 281474976710656)"),
        (key(300, 251, 10), "key (0x000000000000012c UUID_KEY_SUBVOL 0x000000000000000a)"),
        (key(-11, 0, 5), "key (FREE_SPACE UNTYPED 5)"),
        (key(-1, 0, max), "key (-1 UNKNOWN.0 -1)"),
        (key(4096, 172, 1), "key (4096 UNKNOWN.172 1)"),
        (key(-255, 120, 1), "key (MULTIPLE CSUM_ITEM 1)"),
        (key(-2, 180, 1), "key (18446744073709551614 EXTENT_REF_V0 1)"),
    ];
    for (key, expected) in cases {
        assert_eq!(KeyText(key).to_string(), expected);
    }
}

#[test]
fn inodes_and_roots() {
    let inode = InodeItem {
        generation: 5.into(),
        transid: 6.into(),
        size: 11.into(),
        nlink: 3.into(),
        mode: 0o100644.into(),
        flags: (1 << 4 | 1 << 9 | 1 << 31).into(),
        atime: Timespec { sec: (-1).into(), nsec: 999_999_999.into() },
        ctime: Timespec { sec: (1 << 33).into(), nsec: 5.into() },
        ..InodeItem::default()
    };
    check(
        key(300, 1, 0),
        inode.as_bytes(),
        &[
            "generation 5 transid 6 size 11 nbytes 0",
            "block group 0 mode 100644 links 3 uid 0 gid 0 rdev 0",
            "sequence 0 flags 0x80000210(PREALLOC|NOATIME)",
            "atime 18446744073709551615.999999999 (1969-12-31 23:59:59)",
            "ctime 8589934592.5 (2242-03-16 12:56:32)",
            "mtime 0.0 (1970-01-01 00:00:00)",
            "otime 0.0 (1970-01-01 00:00:00)",
        ],
    );
    let root = RootItem {
        generation: 6.into(),
        flags: (1 << 48 | 1).into(),
        drop_progress: key(256, 84, 77).into(),
        drop_level: 1,
        generation_v2: 6.into(),
        ..RootItem::default()
    };
    let head = [
        "generation 6 root_dirid 0 bytenr 0 byte_limit 0 bytes_used 0",
        "last_snapshot 0 flags 0x1000000000001(RDONLY) refs 0",
        "drop_progress key (256 DIR_ITEM 77) drop_level 1",
        "level 0 generation_v2 6",
    ];
    let zero = "00000000-0000-0000-0000-000000000000";
    let (uuid, parent, received) =
        (format!("uuid {zero}"), format!("parent_uuid {zero}"), format!("received_uuid {zero}"));
    let tail = [
        &uuid,
        &parent,
        &received,
        "ctransid 0 otransid 0 stransid 0 rtransid 0",
        "ctime 0.0 (1970-01-01 00:00:00)",
        "otime 0.0 (1970-01-01 00:00:00)",
        "stime 0.0 (1970-01-01 00:00:00)",
        "rtime 0.0 (1970-01-01 00:00:00)",
    ];
    check(key(300, 132, 0), root.as_bytes(), &[&head[..], &tail].concat());
    let legacy = [&head[..3], &["level 0 generation_v2 0"]].concat();
    check(key(300, 132, 0), &root.as_bytes()[..RootItem::LEGACY_LEN], &legacy);
}

#[test]
fn names_and_entries() {
    let names = [&numbers(&[1])[..], &[1, 0], b"a", &numbers(&[u64::MAX]), &[3, 0], b"b\0c"].concat();
    check(key(300, 12, 256), &names, &["index 1 namelen 1 name: a", "index 18446744073709551615 namelen 3 name: b"]);
    let extref = [&numbers(&[256, 7])[..], &[1, 0], b"a"].concat();
    check(key(300, 13, 5), &extref, &["index 7 parent 256 namelen 1 name: a"]);
    let long = [&numbers(&[1])[..], &300u16.to_le_bytes(), &[b'x'; 300]].concat();
    check(key(300, 12, 256), &long, &[&format!("index 1 namelen 300 name: {}", "x".repeat(255))]);
    let two = [dir_entry(disk_key(257, 132, u64::MAX), 2, b"sv", b""), dir_entry(disk_key(258, 1, 0), 9, b"x", b"")];
    check(
        key(256, 84, 1),
        &two.concat(),
        &[
            "location key (257 ROOT_ITEM 18446744073709551615) type DIR",
            "transid 5 data_len 0 name_len 2",
            "name: sv",
            "location key (258 INODE_ITEM 0) type DIR_ITEM.9",
            "transid 5 data_len 0 name_len 1",
            "name: x",
        ],
    );
    let xattr = dir_entry(disk_key(0, 0, 0), 8, b"user.x", b"value");
    let head = ["location key (0 UNKNOWN.0 0) type XATTR", "transid 5 data_len 5 name_len 6"];
    check(key(300, 24, 1), &xattr, &[&head[..], &["name: user.x", "data value"]].concat());
    let hidden = text(key(300, 24, 1), &xattr, &DumpOptions { hide_names: true, ..options() });
    assert!(hidden.ends_with("\t\tname: HIDDEN\n\t\tdata HIDDEN\n") && !hidden.contains("user"), "{hidden}");
    let root_ref = [&numbers(&[256, 7])[..], &[3, 0], b"abc"].concat();
    check(key(5, 156, 256), &root_ref, &["root ref key dirid 256 sequence 7 name abc"]);
    check(key(256, 144, 5), &root_ref, &["root backref key dirid 256 sequence 7 name abc"]);
}

#[test]
fn file_extents_and_checksums() {
    let extent = |kind, compression| {
        let head =
            FileExtentHead { generation: 7.into(), ram_bytes: 100.into(), compression, kind, ..Default::default() };
        let body = numbers(&[1, 2, 3, 4]);
        [head.as_bytes(), &body].concat()
    };
    let regular = ["extent data disk byte 1 nr 2", "extent data offset 3 nr 4 ram 100"];
    let first = "generation 7 type 1 (regular)";
    check(key(300, 108, 0), &extent(1, 3), &[&[first], &regular[..], &["extent compression 3 (zstd)"]].concat());
    check(key(300, 108, 0), &extent(1, 4), &[&[first], &regular[..], &["extent compression 4 (UNKNOWN.4)"]].concat());
    let first = "generation 7 type 3 (unknown)";
    check(key(300, 108, 0), &extent(3, 0), &[&[first], &regular[..], &["extent compression 0 (none)"]].concat());
    let prealloc = ["generation 7 type 2 (prealloc)", "prealloc data disk byte 1 nr 2", "prealloc data offset 3 nr 4"];
    check(key(300, 108, 0), &extent(2, 0), &prealloc);
    let inline = ["generation 7 type 0 (inline)", "inline extent data size 3 ram_bytes 100 compression 2 (lzo)"];
    check(key(300, 108, 0), &extent(0, 2)[..24], &inline);

    let digests: Vec<u8> = (0..20).collect();
    check(key(-10, 128, 40960), &digests, &["range start 40960 end 61440 length 20480"]);
    let shown = DumpOptions { csum_items: true, ..options() };
    let expected = "\t\trange start 40960 end 61440 length 20480\n\
        \t\t[40960] 0x00010203 [45056] 0x04050607 [49152] 0x08090a0b [53248] 0x0c0d0e0f\n\
        \t\t[57344] 0x10111213\n";
    assert_eq!(text(key(-10, 128, 40960), &digests, &shown), expected);
    let shown = DumpOptions { checksum: ChecksumKind::Xxhash64, ..shown };
    let expected = "\t\trange start 0 end 8192 length 8192\n\t\t[0] 0x0001020304050607 [4096] 0x08090a0b0c0d0e0f\n";
    assert_eq!(text(key(-10, 128, 0), &digests[..16], &shown), expected);
}

#[test]
fn extents() {
    let data_ref = [numbers(&[5, 257, 0u64.wrapping_sub(4096)]), vec![1, 0, 0, 0]].concat();
    let item = |flags, parts: &[&[u8]]| [&numbers(&[2, 3, flags])[..], &parts.concat()].concat();
    let plain = |kind: u8, offset: u64| [&[kind][..], &offset.to_le_bytes()].concat();
    let shared = [plain(184, 4096), vec![3, 0, 0, 0]].concat();
    check(
        key(4096, 168, 4096),
        &item(1, &[&[178], &data_ref, &shared]),
        &[
            "refs 2 gen 3 flags DATA",
            "extent data backref root FS_TREE objectid 257 offset 18446744073709547520 count 1",
            "shared data backref parent 4096 count 3",
        ],
    );
    check(
        key(4096, 169, 1),
        &item(2 | 1 << 8, &[&plain(176, (-9i64) as u64), &plain(182, 8192), &plain(100, 1), &plain(176, 5)]),
        &[
            "refs 2 gen 3 flags TREE_BLOCK|FULL_BACKREF",
            "tree block skinny level 1",
            "tree block backref root DATA_RELOC_TREE",
            "shared block backref parent 8192",
        ],
    );
    check(
        key(4096, 168, 16384),
        &item(2, &[&disk_key(300, 1, 5), &[3], &plain(176, 300)]),
        &["refs 2 gen 3 flags TREE_BLOCK", "tree block key (300 INODE_ITEM 5) level 3", "tree block backref root 300"],
    );
    check(key(4096, 168, 4096), &[1, 2, 3], &[]);
    check(key(4096, 176, 5), &[], &["tree block backref"]);
    check(key(4096, 182, 5), &[], &["shared block backref"]);
    let expected = "extent data backref root FS_TREE objectid 257 offset 18446744073709547520 count 1";
    check(key(4096, 178, 5), &data_ref, &[expected]);
    check(key(4096, 184, 5), &[77, 0, 0, 0], &["shared data backref count 77"]);
}

#[test]
fn space() {
    let kinds = [
        (0, "|single"),
        (1, "DATA|single"),
        (3, "DATA|SYSTEM|single"),
        (5, "DATA|METADATA|single"),
        (6, "METADATASYSTEM|single"),
        (0x22, "SYSTEM|DUP"),
        (0x31, "DATA|RAID1"),
        (0xc01, "DATA|RAID1C4"),
        (u64::MAX, "DATA|METADATA|SYSTEM|RAID10"),
    ];
    for (flags, name) in kinds {
        let expected = format!("block group used 5 chunk_objectid 256 flags {name}");
        check(key(4096, 192, 4096), &numbers(&[5, 256, flags]), &[&expected]);
    }
    let stripe = Stripe { devid: 1.into(), offset: 2.into(), dev_uuid: [0x11; 16] };
    let head = ChunkHead { length: 1.into(), kind: 1.into(), num_stripes: 1.into(), ..ChunkHead::default() };
    check(
        key(256, 228, 0),
        &[head.as_bytes(), stripe.as_bytes()].concat(),
        &[
            "length 1 owner 0 stripe_len 0 type DATA|single",
            "io_align 0 io_width 0 sector_size 0",
            "num_stripes 1 sub_stripes 0",
            "\tstripe 0 devid 1 offset 2",
            "\tdev_uuid 11111111-1111-1111-1111-111111111111",
        ],
    );
    check(key(256, 228, 0), head.as_bytes(), &["chunk item invalid"]);
    assert_eq!(text(key(256, 228, 0), &[0; 48], &options()), "invalid num_stripes: 0\n");
    let extent = [numbers(&[3, 256, 4096, 8192]), vec![0x22; 16]].concat();
    check(
        key(1, 204, 0),
        &extent,
        &[
            "dev extent chunk_tree 3",
            "chunk_objectid 256 chunk_offset 4096 length 8192",
            "chunk_tree_uuid 22222222-2222-2222-2222-222222222222",
        ],
    );
    check(key(4096, 198, 4096), &[7, 0, 0, 0, 1, 0, 0, 0], &["free space info extent count 7 flags 1"]);
    check(key(4096, 199, 4096), &[], &["free space extent"]);
    check(key(4096, 200, 4096), &[255], &["free space bitmap"]);
    let header = [disk_key(256, 1, 0), numbers(&[1, 2, 3])].concat();
    check(key(-11, 0, 4096), &header, &["location key (256 INODE_ITEM 0)", "cache generation 1 entries 2 bitmaps 3"]);
}

#[test]
fn the_rest() {
    let max = u64::MAX;
    check(key(0, 240, 0), &numbers(&[1, 5, 6, 9]), &["version 1 generation 5 flags OFF|SCANNING|INCONSISTENT scan 9"]);
    let info = ["generation 1", "referenced 2 referenced_compressed 3", "exclusive 4 exclusive_compressed 5"];
    check(key(0, 242, 5), &numbers(&[1, 2, 3, 4, 5]), &info);
    let limit =
        ["flags ff", "max_referenced -1 max_exclusive 2", "rsv_referenced -9223372036854775808 rsv_exclusive 0"];
    check(key(0, 244, 5), &numbers(&[255, max, 2, 1 << 63, 0]), &limit);
    check(key(5, 251, 9), &numbers(&[5, max]), &["subvol_id 5", "subvol_id 18446744073709551615"]);
    assert_eq!(text(key(5, 252, 9), &[0; 13], &options()), "btrfs: uuid item with illegal size 13!\n");
    let stats = ["persistent item objectid DEV_STATS offset 1", "device stats"];
    let counters = "write_errs 1 read_errs 2 flush_errs 3 corruption_errs 4 generation 5";
    check(key(0, 249, 1), &numbers(&[1, 2, 3, 4, 5]), &[&stats[..], &[counters]].concat());
    let unknown = "unknown stats item bytes 8\t\tunknown item 5 offset 40 value 6";
    check(key(0, 249, 1), &numbers(&[1, 2, 3, 4, 5, 6]), &[&stats[..], &[counters, unknown]].concat());
    let other = ["persistent item objectid 5 offset 1", "unknown persistent item objectid 5"];
    check(key(5, 249, 1), &[], &other);
    let other = ["temporary item objectid FS_TREE offset 0", "unknown temporary item objectid 5"];
    check(key(5, 248, 0), &[], &other);
    let balance = text(key(-4, 248, 0), &numbers(&[7]), &options());
    assert!(
        balance.starts_with("\t\ttemporary item objectid BALANCE offset 0\n\t\tbalance status flags 7\n\t\tDATA\n")
    );
    assert_eq!(balance.lines().count(), 17);
    check(key(300, 48, 5), &[], &["orphan item"]);
    check(key(300, 60, 5), &numbers(&[max]), &["dir log end 18446744073709551615"]);
    check(key(300, 253, 5), b"abc\0def", &["item data abc"]);
    check(key(300, 36, 0), b"abc", &[]);
    check(key(300, 250, 0), b"abc", &[]);
}

/// Bytes that look like blocks, printed by every option: text or nothing, never a panic.
#[test]
fn random_bytes_never_panic() {
    let context = CheckContext {
        nodesize: 4096,
        sectorsize: 4096,
        super_generation: Generation(1),
        incompat: 0,
        csum_len: 4,
        writable: false,
    };
    let mut rng = butterfs_testkit::rng::Rng::new(1);
    let mut random = || rng.bits();
    let (mut out, mut whole) = (Vec::new(), 0);
    for round in 0..4000 {
        let mut block = vec![0; 4096];
        block.iter_mut().for_each(|byte| *byte = (random() >> 32) as u8);
        // Few items, of types that exist, most of them inside the block.
        let count = random() % 20;
        block[96..100].copy_from_slice(&(count as u32).to_le_bytes());
        block[100] = (random() % 4 == 0) as u8;
        for item in 0..count as usize {
            let (at, kinds) =
                (HEADER_LEN + item * ITEM_LEN, [1, 12, 13, 24, 84, 108, 128, 132, 144, 168, 169, 228, 249]);
            block[at + 8] = kinds[random() as usize % kinds.len()];
            block[at + 17..at + 21].copy_from_slice(&((random() % 4200) as u32).to_le_bytes());
            block[at + 21..at + 25].copy_from_slice(&((random() % 500) as u32).to_le_bytes());
        }
        let options = DumpOptions {
            hide_names: round % 2 == 0,
            csum_headers: round % 3 == 0,
            csum_items: round % 5 == 0,
            checksum: ChecksumKind::from_raw(round % 4).unwrap(),
            ..options()
        };
        out.clear();
        tree_block(&mut out, &block, &options).unwrap();
        whole += usize::from(check_layout(&block, &context).is_ok());
        let sb = crate::Superblock::read_from_bytes(&block).unwrap();
        superblock(&mut out, &sb, true).unwrap();
    }
    assert!(whole < 4000, "the layout check sees nothing");
    for len in [0, 1, 100, 101, 120] {
        tree_block(&mut out, &vec![255; len], &options()).unwrap();
    }
}
