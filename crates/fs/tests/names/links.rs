//! Hard links: both kinds of records, and their limits.

use crate::world::{ROOT, World, errno};
use butterfs_fs::mkfs::{FeatureChoice, MkfsOptions};
use butterfs_fs::{Errno, RenameMode};

fn long(number: usize) -> String {
    format!("{number:0>200}")
}

#[test]
fn three_thousand_names_of_one_file() {
    let world = World::new();
    let dir = world.dir(world.root(), "dir");
    let file = world.file(dir, &long(0));
    for number in 1..3000 {
        let attr = world.fs.link(file, dir, long(number).as_bytes()).unwrap();
        assert_eq!(attr.nlink, number as u32 + 1);
    }
    world.fs.forget(file, 3000);
    let world = world.reopen();
    for number in (0..3000).step_by(7) {
        assert_eq!(world.id(&format!("dir/{}", long(number))), file);
    }
    // The first names are in the INODE_REF, the others in INODE_EXTREFs; both leave.
    for number in (0..3000).filter(|number| number % 3 != 0) {
        world.fs.unlink(dir, long(number).as_bytes()).unwrap();
    }
    assert_eq!(world.fs.getattr(file).unwrap().nlink, 1000);
    for number in (0..3000).step_by(6) {
        let (old, new) = (long(number), format!("renamed{number}"));
        world.fs.rename(dir, old.as_bytes(), dir, new.as_bytes(), RenameMode::Replace).unwrap();
    }
    // A rename to another name of the same file does nothing.
    world.fs.rename(dir, b"renamed0", dir, b"renamed6", RenameMode::Replace).unwrap();
    assert_eq!(world.fs.getattr(file).unwrap().nlink, 1000);
    let names = world.list(dir);
    assert_eq!(names.len(), 1000);
    for name in &names {
        world.fs.unlink(dir, name.as_bytes()).unwrap();
    }
    assert_eq!(errno(world.fs.getattr(file)), Some(Errno::ENOENT));
    assert_eq!(world.fs.getattr(dir).unwrap().size, 0);
    world.finish();
}

#[test]
fn without_the_feature_an_item_is_the_limit() {
    let features = FeatureChoice::default();
    let options = MkfsOptions { features: without_extref(features), ..MkfsOptions::default() };
    let world = World::with(&options);
    let root = world.root();
    let file = world.file(root, &long(0));
    let most = 16258 / (10 + 200);
    for number in 1..most {
        world.fs.link(file, root, long(number).as_bytes()).unwrap();
    }
    assert_eq!(errno(world.fs.link(file, root, long(most).as_bytes())), Some(Errno::EMLINK));
    assert_eq!(errno(world.stat(&long(most))), Some(Errno::ENOENT));
    let elsewhere = world.dir(root, "dir");
    world.fs.link(file, elsewhere, b"name").unwrap();
    // A rename in place needs no more room than it frees.
    world.fs.rename(root, long(0).as_bytes(), root, long(most).as_bytes(), RenameMode::Replace).unwrap();
    let too_long = format!("{:0>201}", 7);
    let refused = world.fs.rename(root, long(1).as_bytes(), root, too_long.as_bytes(), RenameMode::Replace);
    let room = 16258 - most * 210;
    assert_eq!(errno(refused), (room < 1).then_some(Errno::EMLINK));
    world.finish();
}

fn without_extref(features: FeatureChoice) -> FeatureChoice {
    let mut features = features;
    features.apply("^extref").expect("a feature");
    features
}

#[test]
fn refusals_of_linking() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let (dir, file) = (world.dir(root, "dir"), world.file(root, "file"));
    assert_eq!(errno(fs.link(dir, root, b"second")), Some(Errno::EPERM));
    assert_eq!(errno(fs.link(file, root, b"dir")), Some(Errno::EEXIST));
    assert_eq!(errno(fs.link(file, file, b"name")), Some(Errno::ENOTDIR));
    fs.unlink(root, b"file").unwrap();
    assert_eq!(errno(fs.link(file, root, b"again")), Some(Errno::ENOENT));
    fs.forget(file, 1);
    world.finish();
}

#[test]
fn a_file_without_a_name_gets_one() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let made = fs.tmpfile(&ROOT, root, 0o600).unwrap();
    assert_eq!((made.nlink, made.mode), (0, 0o100600));
    fs.acquire(made.id);
    assert_eq!(world.list(root), [""; 0]);
    fs.sync().unwrap();
    assert_eq!(fs.link(made.id, root, b"named").unwrap().nlink, 1);
    fs.release(made.id);
    fs.forget(made.id, 2);
    let forgotten = fs.tmpfile(&ROOT, root, 0o600).unwrap();
    fs.forget(forgotten.id, 1);
    assert_eq!(errno(fs.getattr(forgotten.id)), Some(Errno::ENOENT));
    let world = world.reopen();
    assert_eq!(world.stat("named").unwrap().nlink, 1);
    world.finish();
}
