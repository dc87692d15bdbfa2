//! Rename in all its modes.

use crate::world::{World, errno};
use butterfs_fs::RenameMode::{Exchange, NoReplace, Replace};
use butterfs_fs::{Errno, InodeId, RenameMode};

const WHITEOUT: RenameMode = RenameMode::Whiteout { caller: crate::world::USER, replace: true };

/// Two directories, a full and an empty one, below `a`, and files.
fn forest() -> (World, InodeId, InodeId) {
    let world = World::new();
    let root = world.root();
    let (a, b) = (world.dir(root, "a"), world.dir(root, "b"));
    let full = world.dir(a, "full");
    world.file(full, "inside");
    world.dir(a, "empty");
    world.file(a, "file");
    world.file(b, "file");
    world.dir(b, "empty");
    let full = world.dir(b, "full");
    world.file(full, "other");
    (world, a, b)
}

#[test]
fn replacing_objects_by_a_rename() {
    let cases: [(&str, &str, RenameMode, Option<Errno>); 24] = [
        ("file", "new", Replace, None),
        ("file", "new", NoReplace, None),
        ("file", "file", Replace, None),
        ("file", "file", NoReplace, Some(Errno::EEXIST)),
        ("file", "empty", Replace, Some(Errno::EISDIR)),
        ("file", "empty", NoReplace, Some(Errno::EEXIST)),
        ("empty", "file", Replace, Some(Errno::ENOTDIR)),
        ("empty", "empty", Replace, None),
        ("empty", "full", Replace, Some(Errno::ENOTEMPTY)),
        ("full", "empty", Replace, None),
        ("full", "new", Replace, None),
        ("nothing", "new", Replace, Some(Errno::ENOENT)),
        ("nothing", "file", Exchange, Some(Errno::ENOENT)),
        ("file", "new", Exchange, Some(Errno::ENOENT)),
        ("file", "file", Exchange, None),
        ("file", "full", Exchange, None),
        ("full", "full", Exchange, None),
        ("full", "file", Exchange, None),
        ("file", "new", WHITEOUT, None),
        ("file", "file", WHITEOUT, None),
        ("full", "empty", WHITEOUT, None),
        ("full", "file", WHITEOUT, Some(Errno::ENOTDIR)),
        ("file", "new", RenameMode::Whiteout { caller: crate::world::USER, replace: false }, None),
        ("file", "file", RenameMode::Whiteout { caller: crate::world::USER, replace: false }, Some(Errno::EEXIST)),
    ];
    for (old, new, how, want) in cases {
        let (world, a, b) = forest();
        let (old_path, new_path) = (format!("a/{old}"), format!("b/{new}"));
        let (source, target) = (world.stat(&old_path), world.stat(&new_path));
        let got = errno(world.fs.rename(a, old.as_bytes(), b, new.as_bytes(), how));
        assert_eq!(got, want, "{old} to {new}, {how:?}");
        if want.is_none() {
            let (source, target) = (source.unwrap(), target.ok());
            assert_eq!(world.id(&new_path), source.id);
            match how {
                Exchange => assert_eq!(world.id(&old_path), target.unwrap().id),
                RenameMode::Whiteout { .. } => {
                    let left = world.stat(&old_path).unwrap();
                    assert_eq!((left.mode, left.rdev, left.uid), (0o020000, (0, 0), 1000));
                }
                _ => assert_eq!(errno(world.stat(&old_path)), Some(Errno::ENOENT)),
            }
        } else {
            assert_eq!(world.stat(&old_path).ok(), source.ok());
            assert_eq!(world.stat(&new_path).ok(), target.ok());
        }
        world.reopen().finish();
    }
}

#[test]
fn a_name_within_one_directory() {
    let (world, a, _) = forest();
    let fs = &world.fs;
    fs.rename(a, b"file", a, b"renamed", Replace).unwrap();
    fs.rename(a, b"renamed", a, b"renamed", Replace).unwrap();
    fs.rename(a, b"full", a, b"empty", Replace).unwrap();
    fs.rename(a, b"renamed", a, b"empty", Exchange).unwrap();
    assert_eq!(errno(fs.rename(a, b"renamed", a, b"renamed", NoReplace)), Some(Errno::EEXIST));
    assert_eq!(world.list(a), ["empty", "renamed"]);
    assert_eq!(world.id("a/renamed/inside").ino, world.id("a/renamed/inside").ino);
    assert_eq!(world.stat("a").unwrap().size, 2 * 12);
    world.reopen().finish();
}

#[test]
fn a_directory_cannot_contain_itself() {
    let (world, a, b) = forest();
    let (fs, root) = (&world.fs, world.root());
    let full = world.id("a/full");
    let below = world.dir(full, "below");
    assert_eq!(errno(fs.rename(root, b"a", full, b"x", Replace)), Some(Errno::EINVAL));
    assert_eq!(errno(fs.rename(root, b"a", below, b"x", Replace)), Some(Errno::EINVAL));
    assert_eq!(errno(fs.rename(root, b"a", a, b"x", Replace)), Some(Errno::EINVAL));
    assert_eq!(errno(fs.rename(full, b"below", root, b"a", Replace)), Some(Errno::ENOTEMPTY));
    assert_eq!(errno(fs.rename(full, b"below", root, b"a", Exchange)), Some(Errno::EINVAL));
    assert_eq!(errno(fs.rename(root, b"a", full, b"below", Exchange)), Some(Errno::EINVAL));
    fs.rename(a, b"full", b, b"moved", Replace).unwrap();
    assert_eq!(fs.lookup(full, b"..").unwrap().id, b);
    fs.rename(root, b"a", below, b"x", Replace).unwrap();
    assert_eq!(world.id("b/moved/below/x"), a);
    world.reopen().finish();
}

#[test]
fn directory_sizes_follow_names() {
    let (world, a, b) = forest();
    let size = |id| world.fs.getattr(id).unwrap().size;
    let (before_a, before_b) = (size(a), size(b));
    world.fs.rename(a, b"file", b, b"a longer name", Replace).unwrap();
    assert_eq!((size(a), size(b)), (before_a - 8, before_b + 26));
    world.fs.rename(b, b"a longer name", b, b"file", Replace).unwrap();
    assert_eq!((size(a), size(b)), (before_a - 8, before_b));
    world.reopen().finish();
}

#[test]
fn colliding_names_change_places() {
    let names = crate::creation::colliding_names(3);
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let ids: Vec<InodeId> =
        names.iter().map(|name| fs.create(&crate::world::ROOT, root, name, 0o644).unwrap().id).collect();
    let at = |name: &[u8]| fs.lookup(root, name).map(|attr| attr.id).ok();
    fs.rename(root, &names[0], root, &names[1], Exchange).unwrap();
    assert_eq!((at(&names[0]), at(&names[1])), (Some(ids[1]), Some(ids[0])));
    fs.rename(root, &names[0], root, &names[2], Replace).unwrap();
    assert_eq!((at(&names[0]), at(&names[2])), (None, Some(ids[1])));
    fs.rename(root, &names[1], root, &names[0], Replace).unwrap();
    fs.rename(root, &names[0], root, &names[2], Replace).unwrap();
    assert_eq!((at(&names[0]), at(&names[1]), at(&names[2])), (None, None, Some(ids[0])));
    assert_eq!(fs.getattr(root).unwrap().size, 510);
    world.finish();
}
