//! How a stream begins, beside the kernel's; and what is refused before it begins.

use crate::kernel::{received, same_tree};
use crate::world::{TOP, World, job, travel};
use butterfs_fs::{Errno, InodeId};
use butterfs_send::generate::{self, Error};
use butterfs_send::wire::{Command, Decoder, Event, Version};
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::library::ROOT;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{engine, requirement};

/// The commands of a stream up to the first that makes something, and those behind it that are about the root
/// directory.
fn beginning(stream: &[u8]) -> (Vec<String>, Vec<String>) {
    let mut decoder = Decoder::new(stream);
    let (mut first, mut rest, mut begun) = (Vec::new(), Vec::new(), false);
    while let Some(event) = decoder.next().unwrap() {
        let Event::Command(_, command) = event else { continue };
        let is_made = matches!(command, Command::Mkfile { .. } | Command::Mkdir { .. } | Command::End { .. });
        begun |= is_made;
        let about_root = format!("{command:?}").contains("path: [],");
        match (begun, about_root) {
            (false, _) => first.push(format!("{command:?}")),
            (true, true) => rest.push(format!("{command:?}")),
            _ => {}
        }
    }
    (first, rest)
}

#[test]
fn a_full_stream_begins_and_ends_as_the_kernels() {
    const TEST: &str = "a_full_stream_begins_as_the_kernels";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 100);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", 1 << 30);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let modes = [("plain", "0:0", "755"), ("closed", "7:8", "700"), ("group", "0:50", "2775"), ("odd", "5:6", "1557")];
    for (name, owner, mode) in modes {
        let script = format!(
            "cd '{at}'; btrfs -q subvolume create w; echo a > w/f; mkdir w/d; echo b > w/d/g; chown 0:0 w/f w/d w/d/g
             chmod 755 w/d; chown {owner} w; chmod {mode} w; btrfs -q subvolume snapshot -r w {name}
             btrfs -q subvolume delete w; btrfs -q send -f '{to}' {name}",
            at = mount.path().display(),
            to = scratch.join(name).display(),
        );
        run_ok(60, "bash", &["-euc", &script]);
    }
    assert_eq!(mount.finish(), [""; 0]);
    let world = World::open(engine::device(&image));
    let mut all = Vec::new();
    for (name, ..) in modes {
        let id = world.fs.lookup(TOP, name.as_bytes()).unwrap().id.tree;
        let (ours, kernels) = (world.send(&job(id, None, Version::V1)), std::fs::read(scratch.join(name)).unwrap());
        assert_eq!(beginning(&ours), beginning(&kernels), "{name}");
        assert_eq!(beginning(&ours).0.len(), 3, "{name}: subvol, chown, chmod");
        all.extend(ours);
    }
    let prints = modes.map(|(name, ..)| (name, world.print(name)));
    // Also where the root hands down its group.
    received(&scratch, &all, |top| {
        prints.iter().for_each(|(name, print)| same_tree(name, print, &top.join(name)));
    });
}

/// The root directory hands down its group from the beginning of a full stream on.
#[test]
fn a_root_that_hands_down_its_group_travels() {
    let world = World::new(512 << 20);
    let (id, at) = world.subvolume("w");
    let _ = at;
    let root = InodeId::root_of(id);
    let set = |id, uid, gid, mode| {
        let set = butterfs_fs::SetAttr { uid: Some(uid), gid: Some(gid), mode: Some(mode), ..Default::default() };
        world.fs.setattr(&ROOT, id, &set).unwrap();
    };
    set(root, 0, 50, 0o2775);
    let folder = world.fs.mkdir(&ROOT, root, b"d", 0o755).unwrap().id;
    set(folder, 0, 0, 0o700);
    for (directory, name) in [(root, b"f"), (folder, b"g")] {
        let file = world.fs.create(&ROOT, directory, name, 0o644).unwrap().id;
        set(file, 0, 0, 0o600);
    }
    let old = world.snapshot(id, "old");
    world.fs.create(&ROOT, root, b"h", 0o600).unwrap();
    let new = world.snapshot(id, "new");
    travel("a root that hands down its group", &world, (old, "old"), (new, "new"));
}

/// Nested folders, each in the one before.
fn nested(world: &World, mut at: InodeId, levels: usize, name: &[u8]) -> InodeId {
    for _ in 0..levels {
        let made = world.fs.mkdir(&ROOT, at, name, 0o755).unwrap().id;
        world.fs.forget(made, 1);
        at = made;
    }
    at
}

/// The number and the sentence of the refusal, and how much was written before.
fn refusal(world: &World, id: butterfs_fs::TreeId, parent: Option<butterfs_fs::TreeId>) -> (Errno, String, usize) {
    let mut stream = Vec::new();
    let job = job(id, parent, Version::V2);
    match generate::run(&world.fs, &job, &mut stream, &mut |_| true, &mut |_| {}) {
        Err(Error::Filesystem(error)) => (error.errno(), error.to_string(), stream.len()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_that_nobody_takes_are_refused_before_anything_is_written() {
    const TEST: &str = "paths_that_nobody_takes";
    let _watchdog = Watchdog::new(TEST, 60);
    let world = World::new(512 << 20);
    // 4095 bytes are a path, 4096 are none: of a folder, and of a file.
    let (id, _) = world.subvolume("w");
    let root = InodeId::root_of(id);
    let folder = nested(&world, root, 2047, b"d");
    world.fs.create(&ROOT, folder, b"f", 0o600).unwrap();
    let longest = world.snapshot(id, "longest");
    let stream = world.send(&job(longest, None, Version::V2));
    assert!(stream.len() > 8 << 20, "each command has the whole path");
    world.fs.create(&ROOT, folder, b"ff", 0o600).unwrap();
    let too_long = world.snapshot(id, "too-long");
    for parent in [None, Some(longest)] {
        let (errno, sentence, written) = refusal(&world, too_long, parent);
        assert_eq!(errno, Errno::ENAMETOOLONG);
        assert!(sentence.contains("at most 4095 bytes") && sentence.contains("d/d/ff"), "{sentence}");
        assert_eq!(written, 0);
    }
    // Far deeper than a path can be, with something else before and behind it.
    for (name, levels) in [("deep", 10_000), ("deeper", 70_000)] {
        let (id, _) = world.subvolume(name);
        let root = InodeId::root_of(id);
        for number in 0..100u32 {
            world.fs.create(&ROOT, root, format!("f{number}").as_bytes(), 0o600).unwrap();
        }
        nested(&world, root, levels, b"n");
        let snapshot = world.snapshot(id, &format!("{name}-snapshot"));
        let (errno, sentence, written) = refusal(&world, snapshot, None);
        assert_eq!((errno, written), (Errno::ENAMETOOLONG, 0), "{sentence}");
        assert!(sentence.contains("at most 4095 bytes"), "{sentence}");
        if name == "deep" {
            assert_eq!(refusal(&world, snapshot, Some(longest)).0, Errno::ENAMETOOLONG);
        }
    }
}
