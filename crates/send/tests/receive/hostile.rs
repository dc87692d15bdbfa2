//! Streams that mean harm, and streams that make no sense: an error that names command and offset, and nothing outside
//! the subvolume is touched.

use crate::world::{Stream, TOP, World, time};
use butterfs_fs::Caller;
use butterfs_send::apply::Options;
use butterfs_send::fuzz;
use butterfs_send::wire::{Command, Timespec, Version};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::watchdog::Watchdog;

fn with_a_victim() -> (World, Fingerprint) {
    let world = World::new();
    world.fs.create_subvolume(&Caller::default(), TOP, b"home").unwrap();
    let home = world.attr("home").id;
    let file = world.fs.create(&Caller::default(), home, b"victim", 0o600).unwrap().id;
    world.fs.write(file, 0, b"precious", false).unwrap();
    world.fs.mkdir(&Caller::default(), home, b"inside", 0o700).unwrap();
    let print = world.fingerprint("home");
    (world, print)
}

fn assert_untouched(world: &World, print: &Fingerprint, doing: &str) {
    let found = differences(print, &world.fingerprint("home"), Compare { atime: false, ..Compare::ALL });
    assert!(found.is_empty(), "{doing}: {found:#?}");
}

/// Every command with this path, and with it in the second place.
pub fn everywhere(path: &[u8]) -> Vec<Command<'_>> {
    let (now, other) = (time(1), &b"ok"[..]);
    vec![
        Command::Mkfile { path, ino: 1 },
        Command::Mkdir { path, ino: 1 },
        Command::Mknod { path, ino: 1, rdev: 0x103, mode: 0o20666 },
        Command::Mkfifo { path, ino: 1, rdev: 0, mode: 0 },
        Command::Mksock { path, ino: 1, rdev: 0, mode: 0 },
        Command::Symlink { path, ino: 1, target: b"/etc/passwd" },
        Command::Rename { path, to: other },
        Command::Rename { path: other, to: path },
        Command::Link { path, existing: other },
        Command::Link { path: other, existing: path },
        Command::Unlink { path },
        Command::Rmdir { path },
        Command::SetXattr { path, name: b"user.x", value: b"y" },
        Command::RemoveXattr { path, name: b"user.x" },
        Command::Write { path, offset: 0, data: b"harm" },
        Command::Clone {
            offset: 0,
            len: 4,
            path,
            source_uuid: [1; 16],
            source_transid: 7,
            source: other,
            source_offset: 0,
        },
        Command::Clone {
            offset: 0,
            len: 4,
            path: other,
            source_uuid: [1; 16],
            source_transid: 7,
            source: path,
            source_offset: 0,
        },
        Command::Truncate { path, size: 0 },
        Command::Chmod { path, mode: 0o7777 },
        Command::Chown { path, uid: 1, gid: 1 },
        Command::Utimes { path, atime: now, mtime: now, ctime: now, otime: None },
        Command::Fallocate { path, mode: 3, offset: 0, len: 4096 },
        Command::Fileattr { path, flags: 64 },
        Command::EncodedWrite {
            path,
            offset: 0,
            unencoded_file_len: 1,
            unencoded_len: 1,
            unencoded_offset: 0,
            compression: 1,
            encryption: 0,
            data: b"x",
        },
    ]
}

#[test]
fn no_path_leads_out() {
    let (world, print) = with_a_victim();
    let paths: [&[u8]; 9] = [
        b"../home/victim",
        b"..",
        b"/home/victim",
        b"dir/../../home/victim",
        b"up/victim",
        b"up/inside/x",
        b"abs",
        b"./ok",
        b"dir//ok",
    ];
    for path in paths {
        for command in everywhere(path) {
            // `up` leads to the victim's directory, `abs` to the victim; symbolic links themselves may be touched.
            let harmless = path == b"abs"
                && matches!(
                    command,
                    Command::Rename { .. }
                        | Command::Link { .. }
                        | Command::Unlink { .. }
                        | Command::Chown { .. }
                        | Command::Utimes { .. }
                        | Command::Fileattr { .. }
                        | Command::RemoveXattr { .. }
                );
            let stream = Stream::subvol("s", 1)
                .dir("dir")
                .file("ok")
                .write("ok", 0, b"data")
                .add(Command::Symlink { path: b"up", ino: 9, target: b"../home" })
                .add(Command::Symlink { path: b"abs", ino: 9, target: b"/home/victim" })
                .add(command)
                .end();
            let received = world.receive(&stream);
            let name = command.name();
            assert!(harmless || received.errors.len() == 1, "{command:?}: {received:?}");
            assert!(received.errors.iter().all(|error| error.starts_with(name) && error.contains("(byte ")));
            let left = if received.errors.is_empty() { &b"s"[..] } else { b"s.partial" };
            world.fs.delete_subvolume(TOP, left).unwrap();
        }
    }
    assert_untouched(&world, &print, "paths");
    assert_eq!(world.names(), ["home"]);
    world.check("no_path_leads_out");
}

#[test]
fn names_of_subvolumes_are_names() {
    let (world, print) = with_a_victim();
    for name in ["", ".", "..", "home/x", "/x", "../x"] {
        let refusal = world.refusal(&Stream::subvol(name, 1).file("f").end());
        assert!(refusal.starts_with("subvol ") && refusal.contains("(byte 17 "), "{refusal}");
    }
    assert!(world.refusal(&Stream::subvol("home", 1).end()).contains("File exists"));
    assert_untouched(&world, &print, "names");
    assert_eq!(world.names(), ["home"]);
}

#[test]
fn nothing_is_done_before_a_subvolume_is_begun() {
    let (world, print) = with_a_victim();
    for command in everywhere(b"home/victim") {
        let refusal = world.refusal(&Stream::new(Version::V2).add(command).end());
        assert!(refusal.contains("no subvolume was begun") && refusal.contains("(byte 17 "), "{refusal}");
    }
    // Nor behind an end, nor behind a subvolume that could not be begun.
    let lost = Stream::subvol("home", 1).file("new").unlink("victim").end();
    let received = world.receive_with(&lost, &mut world.engine(), &Options { max_errors: 0, ..Options::default() });
    assert_eq!(received.summary.errors, 1);
    assert_untouched(&world, &print, "commands without a subvolume");
}

#[test]
fn absurd_values_are_refused() {
    let world = World::new();
    let bad_time = Timespec { sec: 0, nsec: 0x3fff_fffe };
    let good_time = Timespec { sec: -1, nsec: 0 };
    let times = |atime, mtime| Command::Utimes { path: b"f", atime, mtime, ctime: bad_time, otime: None };
    let long = vec![b'x'; 5000];
    let cases = [
        times(bad_time, good_time),
        times(good_time, bad_time),
        Command::Write { path: b"f", offset: u64::MAX - 1, data: b"xx" },
        Command::Truncate { path: b"f", size: u64::MAX },
        Command::Fallocate { path: b"f", mode: 0, offset: u64::MAX - 1, len: 10 },
        Command::Chown { path: b"f", uid: 1 << 32, gid: 0 },
        Command::Mknod { path: b"n", ino: 1, rdev: 1 << 40, mode: 0o60600 },
        Command::Mknod { path: b"n", ino: 1, rdev: 0, mode: 0o40700 },
        Command::Mknod { path: b"n", ino: 1, rdev: 0, mode: 0o120777 },
        Command::Mknod { path: b"n", ino: 1, rdev: 0, mode: 1 << 35 },
        Command::Symlink { path: b"l", ino: 1, target: &long },
        Command::Symlink { path: b"l", ino: 1, target: b"" },
        Command::Mkfile { path: &long, ino: 1 },
        Command::SetXattr { path: b"f", name: &long, value: b"" },
        Command::SetXattr { path: b"f", name: b"system.nonsense", value: b"" },
        Command::Mkfile { path: b"f", ino: 1 },
        Command::Mkdir { path: b"f/d", ino: 1 },
        Command::Rmdir { path: b"f" },
        Command::Unlink { path: b"d" },
        Command::Rmdir { path: b"d" },
        Command::Rename { path: b"d", to: b"d/e/f" },
        Command::Link { path: b"l", existing: b"d" },
        Command::Chmod { path: b"", mode: 1 << 40 },
        Command::Unlink { path: b"" },
        Command::Rename { path: b"d", to: b"" },
    ];
    for command in cases {
        let stream = Stream::subvol("s", 1).file("f").dir("d").dir("d/e").add(command).end();
        let refusal = world.refusal(&stream);
        assert!(refusal.starts_with(command.name()), "{refusal}");
        world.fs.delete_subvolume(TOP, b"s.partial").unwrap();
    }
    world.receive_ok(&Stream::subvol("s", 1).file("f").add(times(good_time, good_time)).end());
}

/// A stream with something of everything.
pub fn rich() -> Vec<Vec<u8>> {
    let body = Stream::subvol("s", 1)
        .dir("d")
        .file("d/f")
        .write("d/f", 0, &[5; 9000])
        .file("g")
        .clone_from(1, "d/f", 0, 8192, "g", 4096)
        .add(Command::Symlink { path: b"up", ino: 9, target: b"../home" })
        .rename("d", "e")
        .add(Command::Link { path: b"e/h", existing: b"g" })
        .xattr("e/f", "user.a", b"value")
        .xattr("", "btrfs.compression", b"zlib")
        .chown("e/f", 1, 2)
        .chmod("e/f", 0o4755)
        .utimes("e/f", 5)
        .add(Command::Fallocate { path: b"g", mode: 3, offset: 0, len: 8192 })
        .add(Command::Truncate { path: b"g", size: 100 })
        .add(Command::Fileattr { path: b"g", flags: 64 })
        .unlink("e/h")
        .utimes("", 6)
        .open_end();
    fuzz::commands(&body[17..])
}

#[test]
fn streams_out_of_order_harm_nothing() {
    const TEST: &str = "streams_out_of_order_harm_nothing";
    let _watchdog = Watchdog::new(TEST, 100);
    let (world, print) = with_a_victim();
    let parts = rich();
    for seed in 0..250 {
        let stream = fuzz::mutated(&parts, &mut {
            let mut rng = Rng::new(seed);
            move || rng.bits()
        });
        let max_errors = seed % 3;
        let mut engine = world.engine();
        fuzz::apply(&stream, &mut engine, max_errors);
        drop(engine);
        for info in world.fs.subvolumes().unwrap() {
            if info.backref.as_ref().is_some_and(|(_, _, name)| name != b"home") {
                world.fs.delete_subvolume_by_id(info.id).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        }
        if seed % 25 == 0 {
            assert_untouched(&world, &print, &format!("seed {seed}"));
        }
    }
    assert_untouched(&world, &print, "all seeds");
    world.check(TEST);
}

#[test]
fn every_truncation_is_an_error() {
    let (world, print) = with_a_victim();
    let mut whole = b"btrfs-stream\0\x02\0\0\0".to_vec();
    rich().iter().for_each(|part| whole.extend_from_slice(part));
    for len in (0..whole.len()).filter(|len| len % 97 == 0 || *len < 60) {
        let mut engine = world.engine();
        let received = world.receive_with(&whole[..len], &mut engine, &Options::default());
        assert_eq!(received.summary.errors, 1, "{len}: {received:?}");
        assert!(world.find("s").is_none());
    }
    assert_untouched(&world, &print, "truncations");
}
