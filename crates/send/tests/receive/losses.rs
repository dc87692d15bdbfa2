//! Cases that the kernel's streams or `btrfs receive` lose or leave to chance, and that are right here.

use crate::world::{Stream, World, time};
use butterfs_fs::env::Time;
use butterfs_fs::file::codec::{Algorithm, Encoder};
use butterfs_fs::inode_flags;
use butterfs_send::wire::Command;

fn moment(sec: i64) -> Time {
    let time = time(sec);
    Time { sec: time.sec, nsec: time.nsec }
}

#[test]
fn the_roots_times_survive_temporary_names() {
    let world = World::new();
    world.receive_ok(&Stream::subvol("a", 1).dir("d").utimes("d", 50).utimes("", 100).end());
    // The kernel makes everything under a temporary name in the root, and says nothing of the root.
    let stream = Stream::snapshot("b", 2, 1).file("o259-8-0").rename("o259-8-0", "d/f").utimes("d", 60).end();
    world.receive_ok(&stream);
    for subvolume in ["a", "b"] {
        let root = world.attr(subvolume);
        assert_eq!((root.mtime, root.atime), (moment(100), moment(101)), "{subvolume}");
    }
    assert_eq!(world.attr("b/d").mtime, moment(60));
    // Said too early, it holds all the same.
    world.receive_ok(&Stream::snapshot("c", 3, 2).utimes("", 200).file("o1").rename("o1", "d/g").end());
    assert_eq!(world.attr("c").mtime, moment(200));
}

#[test]
fn set_id_bits_survive_a_change_of_the_owner() {
    let world = World::new();
    let stream = Stream::subvol("a", 1).file("f").chown("f", 1, 1).chmod("f", 0o6755).file("g").chmod("g", 0o4700);
    world.receive_ok(&stream.end());
    // Owner changed, permissions equal in both snapshots: the kernel sends no CHMOD.
    world.receive_ok(&Stream::snapshot("b", 2, 1).chown("f", 5, 6).chown("g", u64::from(u32::MAX), 9).end());
    let (f, g) = (world.attr("b/f"), world.attr("b/g"));
    assert_eq!((f.mode & 0o7777, f.uid, f.gid), (0o6755, 5, 6));
    assert_eq!((g.mode & 0o7777, g.uid, g.gid), (0o4700, 0, 9), "all ones leave the owner as it is");
    // A chmod counts, before or behind.
    world.receive_ok(&Stream::snapshot("c", 3, 2).chown("f", 7, 7).chmod("f", 0o755).end());
    assert_eq!(world.attr("c/f").mode & 0o7777, 0o755);
    // Writing, cutting and sharing keep them too.
    let changed = Stream::snapshot("d", 4, 2)
        .write("f", 0, &[7; 8192])
        .clone_from(4, "f", 0, 4096, "g", 0)
        .add(Command::Truncate { path: b"f", size: 100 })
        .add(Command::Fallocate { path: b"f", mode: 3, offset: 0, len: 50 });
    world.receive_ok(&changed.end());
    assert_eq!((world.attr("d/f").mode & 0o7777, world.attr("d/g").mode & 0o7777), (0o6755, 0o4700));
}

/// A default ACL: user::rwx, user:99:rwx, group::r-x, mask::rwx, other::r-x.
pub const DEFAULT_ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 99, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 7, 0,
    255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255,
];

#[test]
fn nothing_leaks_from_directories_into_what_is_made_there() {
    let world = World::new();
    let stream = Stream::subvol("a", 1)
        .xattr("", "system.posix_acl_default", DEFAULT_ACL)
        .xattr("", "btrfs.compression", b"zstd")
        .chown("", 1, 2)
        .chmod("", 0o2775)
        .file("f")
        .dir("d")
        .file("d/g")
        .add(Command::Mkfifo { path: b"p", ino: 9, rdev: 0, mode: 0 });
    world.receive_ok(&stream.end());
    for (path, mode) in [("a/f", 0o100_600), ("a/d", 0o40_700), ("a/d/g", 0o100_600), ("a/p", 0o10_600)] {
        let attr = world.attr(path);
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.flags), (mode, 0, 0, 0), "{path}");
        assert_eq!(world.fs.list_xattrs(attr.id).unwrap(), b"", "{path}");
    }
    assert_eq!(world.xattr("a", "system.posix_acl_default").as_deref(), Some(DEFAULT_ACL));
    // Generators that know of the leak take away what was inherited; here it is not there.
    let careful = Stream::snapshot("b", 2, 1)
        .add(Command::RemoveXattr { path: b"f", name: b"system.posix_acl_access" })
        .add(Command::RemoveXattr { path: b"f", name: b"btrfs.compression" })
        .add(Command::RemoveXattr { path: b"f", name: b"user.none" });
    world.receive_ok(&careful.end());
}

#[test]
fn attributes_named_like_the_beginning_of_another() {
    let world = World::new();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let stream = Stream::subvol("a", 1)
        .file("f")
        .xattr("f", "security.cap", b"prefix")
        .xattr("f", "security.capabilit", b"")
        .chown("f", 5, 5)
        .chmod("f", 0o755)
        .xattr("f", "security.capability", &capability)
        .utimes("f", 9);
    world.receive_ok(&stream.end());
    assert_eq!(world.xattr("a/f", "security.cap").as_deref(), Some(&b"prefix"[..]));
    assert_eq!(world.xattr("a/f", "security.capabilit").as_deref(), Some(&b""[..]));
    assert_eq!(world.xattr("a/f", "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(world.attr("a/f").mtime, moment(9));
}

#[test]
fn a_file_that_took_anothers_name_gets_its_own_data() {
    let world = World::new();
    let stream = Stream::subvol("a", 1)
        .file("x")
        .write("x", 0, b"first")
        .rename("x", "y")
        .file("x")
        .write("x", 0, b"second")
        .unlink("x")
        .file("x")
        .write("x", 0, b"third");
    world.receive_ok(&stream.end());
    assert_eq!((world.content("a/x"), world.content("a/y")), (b"third".to_vec(), b"first".to_vec()));
    // The same with directories on the way.
    let stream = Stream::snapshot("b", 2, 1)
        .dir("d")
        .file("d/f")
        .rename("d", "e")
        .dir("d")
        .file("d/f")
        .write("d/f", 0, b"in d")
        .write("e/f", 0, b"in e");
    world.receive_ok(&stream.end());
    assert_eq!((world.content("b/d/f"), world.content("b/e/f")), (b"in d".to_vec(), b"in e".to_vec()));
}

#[test]
fn flags_are_set_and_do_not_stand_in_the_way() {
    let world = World::new();
    let fixed = inode_flags::IMMUTABLE | inode_flags::NOATIME;
    let flags = |path: &'static [u8], flags| Command::Fileattr { path, flags };
    let stream = Stream::subvol("a", 1)
        .file("f")
        .add(flags(b"f", fixed))
        .write("f", 0, b"later")
        .chmod("f", 0o640)
        .dir("d")
        .add(flags(b"d", inode_flags::APPEND))
        .file("d/g")
        .utimes("f", 3);
    world.receive_ok(&stream.end());
    assert_eq!((world.attr("a/f").flags, world.attr("a/d").flags), (fixed, inode_flags::APPEND));
    assert_eq!((world.content("a/f"), world.attr("a/f").mtime), (b"later".to_vec(), moment(3)));
    // Immutable in both snapshots, changed in between.
    let stream = Stream::snapshot("b", 2, 1)
        .write("f", 0, b"LATER")
        .rename("d/g", "d/h")
        .utimes("f", 4)
        .add(Command::Link { path: b"hard", existing: b"f" });
    world.receive_ok(&stream.end());
    assert_eq!((world.attr("b/f").flags, world.attr("b/d").flags), (fixed, inode_flags::APPEND));
    assert_eq!((world.content("b/hard"), world.attr("b/f").mtime), (b"LATER".to_vec(), moment(4)));
    assert!(world.find("b/d/h").is_some() && world.find("b/d/g").is_none());
    // Flags go as well.
    world.receive_ok(&Stream::snapshot("c", 3, 2).add(flags(b"f", 0)).end());
    assert_eq!(world.attr("c/f").flags, 0);
    world.check("flags_are_set_and_do_not_stand_in_the_way");
}

#[test]
fn the_encoding_of_content_travels() {
    use inode_flags::{COMPRESS, NOCOMPRESS, NODATACOW, NODATASUM};
    let world = World::new();
    let flags = |path: &'static [u8], flags| Command::Fileattr { path, flags };
    let stream = Stream::subvol("a", 1)
        .file("nocow")
        .add(flags(b"nocow", NODATACOW | NODATASUM))
        .write("nocow", 0, &[1; 9000])
        .file("late")
        .write("late", 0, &[2; 9000])
        .add(flags(b"late", NODATACOW | NODATASUM | NOCOMPRESS))
        .file("packed")
        .xattr("packed", "btrfs.compression", b"zstd")
        .add(flags(b"packed", COMPRESS | NODATACOW | NOCOMPRESS))
        .dir("d")
        .add(flags(b"d", NODATACOW))
        .file("d/inside");
    world.receive_ok(&stream.end());
    let found = ["nocow", "late", "packed", "d", "d/inside"].map(|path| world.attr(&format!("a/{path}")).flags);
    assert_eq!(found, [NODATACOW | NODATASUM, NOCOMPRESS, COMPRESS, NODATACOW, 0]);
    assert_eq!(world.xattr("a/packed", "btrfs.compression").as_deref(), Some(&b"zstd"[..]));
    // Content is shared where both have checksums, and copied where only one has.
    let stream = Stream::snapshot("b", 2, 1)
        .file("copy")
        .clone_from(1, "nocow", 0, 8192, "copy", 0)
        .clone_from(1, "late", 0, 8192, "nocow", 0)
        .add(flags(b"d", 0));
    world.receive_ok(&stream.end());
    assert_eq!((world.content("b/copy"), world.attr("b/d").flags), (vec![1; 8192], 0));
    assert_eq!(world.content("b/nocow"), [vec![2; 8192], vec![1; 808]].concat());
    world.check("the_encoding_of_content_travels");
}

#[test]
fn preallocated_space_and_holes() {
    let world = World::new();
    let allocate = |mode, offset, len| Command::Fallocate { path: b"f", mode, offset, len };
    let stream = Stream::subvol("a", 1)
        .file("f")
        .add(allocate(1, 0, 65536))
        .write("f", 0, &[1; 20000])
        .add(allocate(3, 4096, 8192))
        .add(allocate(16, 16384, 100));
    world.receive_ok(&stream.end());
    let content = world.content("a/f");
    assert!(content.len() == 20000 && content[4096..12288].iter().chain(&content[16384..16484]).all(|byte| *byte == 0));
    assert!(content[..4096].iter().chain(&content[12288..16384]).all(|byte| *byte == 1));
    assert!(world.attr("a/f").blocks > 64, "space is preallocated behind the end");
    let refusal = world.refusal(&Stream::subvol("b", 2).file("f").add(allocate(8, 0, 4096)).end());
    assert!(refusal.starts_with("fallocate f (byte "), "{refusal}");
    world.check("preallocated_space_and_holes");
}

#[test]
fn clones_that_cannot_be_made_are_errors() {
    let world = World::new();
    world.receive_ok(&Stream::subvol("a", 1).file("f").write("f", 0, &[9; 10_000]).end());
    let with = |uuid, source: &str, offset, len| {
        Stream::subvol("b", 2).file("t").clone_from(uuid, source, offset, len, "t", 0).end()
    };
    for (stream, reason) in [
        (with(8, "f", 0, 4096), "cannot find the clone source's subvolume"),
        (with(1, "none", 0, 4096), "no such"),
        (with(1, "f", 8192, 4096), "behind the source's 10000 bytes"),
        (with(1, "f", u64::MAX - 10, 4096), "behind the source's 10000 bytes"),
        (with(2, "t", 0, 4096), "behind the source's 0 bytes"),
        (with(1, "../a/f", 0, 4096), "leads out of the subvolume"),
    ] {
        let refusal = world.refusal(&stream);
        assert!(refusal.starts_with("clone ") && refusal.contains(reason), "{refusal}");
        world.fs.delete_subvolume(crate::world::TOP, b"b.partial").unwrap();
    }
    // In whole, in part, from itself, inline, and at odd places.
    let good = Stream::subvol("b", 2)
        .file("whole")
        .clone_from(1, "f", 0, 10_000, "whole", 0)
        .clone_from(2, "whole", 0, 4096, "whole", 16_384)
        .file("small")
        .write("small", 0, b"tiny")
        .file("copy")
        .clone_from(2, "small", 0, 4, "copy", 0)
        .file("rest")
        .clone_from(1, "f", 4096, 0, "rest", 0);
    world.receive_ok(&good.end());
    let whole = world.content("b/whole");
    assert!(whole.len() == 20_480 && whole[..10_000].iter().chain(&whole[16_384..]).all(|byte| *byte == 9));
    assert!(whole[10_000..16_384].iter().all(|byte| *byte == 0));
    assert_eq!((world.content("b/copy"), world.content("b/rest")), (b"tiny".to_vec(), vec![9; 5904]));
    world.check("clones");
}

fn compress(algorithm: Algorithm, data: &[u8], sectorsize: u32) -> Vec<u8> {
    Encoder::default().compress(algorithm.into(), data, sectorsize).expect("it repeats itself")
}

fn text(len: usize) -> Vec<u8> {
    b"a line of text that repeats itself, and repeats itself\n".iter().copied().cycle().take(len).collect()
}

fn encoded<'a>(data: &'a [u8], compression: u32, len: u64, window: (u64, u64), offset: u64) -> Command<'a> {
    Command::EncodedWrite {
        path: b"f",
        offset,
        unencoded_file_len: window.1,
        unencoded_len: len,
        unencoded_offset: window.0,
        compression,
        encryption: 0,
        data,
    }
}

#[test]
fn compressed_extents_stay_compressed() {
    let plain = text(131_072);
    for (algorithm, number) in [(Algorithm::Zlib, 1), (Algorithm::Zstd, 2), (Algorithm::Lzo, 3)] {
        let packed = compress(algorithm, &plain, 4096);
        let world = World::new();
        let stream = Stream::subvol("a", 1)
            .file("f")
            .add(encoded(&packed, number, 131_072, (0, 131_072), 0))
            .add(encoded(&packed, number, 131_072, (65_536, 65_536), 131_072))
            .add(encoded(&packed, number, 131_072, (0, 5_000), 196_608))
            .file("g")
            .clone_from(1, "f", 0, 131_072, "g", 0)
            .end();
        let before = used(&world);
        world.receive_ok(&stream);
        let wanted = [&plain[..], &plain[65_536..], &plain[..5_000]].concat();
        assert!(world.content("a/f") == wanted && world.content("a/g") == plain, "{algorithm:?}");
        let stored = used(&world) - before;
        assert!(stored < 200_000, "{algorithm:?}: {stored} bytes");
        // Over old data, over a part of what is compressed, and as plain data.
        let over = Stream::snapshot("b", 2, 1)
            .add(encoded(&packed, number, 131_072, (4096, 8192), 16_384))
            .write("f", 20_000, b"across")
            .end();
        world.receive_ok(&over);
        let mut wanted = wanted;
        wanted[16_384..24_576].copy_from_slice(&plain[4096..12_288]);
        wanted[20_000..20_006].copy_from_slice(b"across");
        assert!(world.content("b/f") == wanted, "{algorithm:?}");
        let mut engine = world.engine().force_decompress(true);
        let plain_stream =
            Stream::subvol("c", 3).file("f").add(encoded(&packed, number, 131_072, (0, 131_072), 0)).end();
        let before = used(&world);
        let received = world.receive_with(&plain_stream, &mut engine, &Default::default());
        assert_eq!(received.errors, [""; 0]);
        assert!(world.content("c/f") == plain && used(&world) - before >= 131_072);
        world.check("compressed_extents_stay_compressed");
    }
}

/// Bytes in use, metadata included.
fn used(world: &World) -> u64 {
    world.fs.sync().unwrap();
    world.fs.superblock().bytes_used.get()
}

#[test]
fn data_that_cannot_stay_compressed_is_written_decompressed() {
    let plain = text(40_000);
    let packed = compress(Algorithm::Zlib, &plain, 4096);
    let world = World::new();
    // An odd place, an odd window, a window inside the file, and LZO made for other sectors.
    let lzo = compress(Algorithm::Lzo, &text(65_536), 16_384);
    let stream = Stream::subvol("a", 1)
        .file("f")
        .add(encoded(&packed, 1, 40_000, (0, 40_000), 100))
        .add(encoded(&packed, 1, 40_000, (1, 9_999), 4096))
        .add(encoded(&packed, 1, 40_000, (4096, 1000), 8192))
        .add(encoded(&lzo, 5, 65_536, (0, 65_536), 65_536));
    world.receive_ok(&stream.end());
    let mut wanted = vec![0; 131_072];
    wanted[100..40_100].copy_from_slice(&plain);
    wanted[4096..14_095].copy_from_slice(&plain[1..10_000]);
    wanted[8192..9192].copy_from_slice(&plain[4096..5096]);
    wanted[65_536..].copy_from_slice(&text(65_536));
    assert!(world.content("a/f") == wanted);
    world.check("decompressed");
}

#[test]
fn encoded_nonsense_is_refused_and_changes_nothing() {
    let packed = compress(Algorithm::Zstd, &text(65_536), 4096);
    let mut broken = packed.clone();
    broken.truncate(packed.len() / 2);
    let world = World::new();
    world.receive_ok(&Stream::subvol("a", 1).file("f").write("f", 0, b"old").end());
    let cases: [(Command<'_>, &str); 6] = [
        (encoded(&broken, 2, 65_536, (0, 65_536), 0), "does not decode"),
        (encoded(&packed, 2, 65_536, (65_536, 4096), 0), "make no sense"),
        (encoded(&packed, 2, 1 << 40, (0, 1 << 40), 0), "make no sense"),
        (encoded(&packed, 2, 65_536, (u64::MAX, 2), 0), "make no sense"),
        (encoded(&packed, 9, 65_536, (0, 65_536), 0), "unknown compression: 9"),
        (encoded(&packed, 0, 65_536, (0, 65_536), 0), "unknown compression: 0"),
    ];
    for (command, reason) in cases {
        let refusal = world.refusal(&Stream::snapshot("b", 2, 1).add(command).end());
        assert!(refusal.starts_with("encoded_write f (byte 96 ") && refusal.contains(reason), "{refusal}");
        assert_eq!(world.content("b.partial/f"), b"old");
        world.fs.delete_subvolume(crate::world::TOP, b"b.partial").unwrap();
    }
    let encrypted = match encoded(&packed, 2, 65_536, (0, 65_536), 0) {
        Command::EncodedWrite {
            path,
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            data,
            ..
        } => Command::EncodedWrite {
            path,
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            encryption: 1,
            data,
        },
        other => other,
    };
    assert!(world.refusal(&Stream::snapshot("b", 2, 1).add(encrypted).end()).contains("encrypted data"));
}

#[test]
fn unsupported_commands_are_refused_by_name() {
    let world = World::new();
    let verity = Command::EnableVerity { path: b"f", algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
    let refusal = world.refusal(&Stream::subvol("a", 1).file("f").add(verity).end());
    assert!(refusal.contains("enable_verity f") && refusal.contains("fs-verity is not supported"), "{refusal}");
    let update = Command::UpdateExtent { path: b"f", offset: 0, len: 1 };
    let refusal = world.refusal(&Stream::subvol("b", 1).file("f").add(update).end());
    assert!(refusal.contains("--no-data"), "{refusal}");
    let refusal = world.refusal(&Stream::subvol("c", 1).add(Command::Unknown { number: 99 }).end());
    assert!(refusal.contains("command 99 is not known"), "{refusal}");
}
