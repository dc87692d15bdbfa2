//! Many inodes, and no space for more.

use crate::world::{ROOT, World};
use butterfs_fs::{Errno, SetAttr};

#[test]
fn more_changed_inodes_than_are_kept_in_memory() {
    const FILES: usize = 50_000;
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dirs: Vec<_> = (0..50).map(|number| world.dir(root, &format!("dir{number}"))).collect();
    let name = |number: usize| format!("file{number}");
    let mut ids = Vec::new();
    for number in 0..FILES {
        let attr = fs.create(&ROOT, dirs[number % 50], name(number).as_bytes(), 0o644).unwrap();
        fs.forget(attr.id, 1);
        ids.push(attr.id);
    }
    for (number, id) in ids.iter().enumerate() {
        fs.setattr(&ROOT, *id, &SetAttr { uid: Some(number as u32), ..SetAttr::default() }).unwrap();
    }
    for (number, id) in ids.iter().enumerate().step_by(17) {
        assert_eq!(fs.getattr(*id).unwrap().uid, number as u32);
    }
    let world = world.reopen();
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(world.fs.getattr(*id).unwrap().uid, number as u32);
    }
    world.finish();
}

#[test]
fn a_full_filesystem_can_be_emptied() {
    let world = World::of_size(128 << 20);
    let (fs, root) = (&world.fs, world.root());
    let name = |number: usize| format!("{number:0>200}").into_bytes();
    let mut made = 0;
    let full = loop {
        match fs.create(&ROOT, root, &name(made), 0o644) {
            Ok(attr) => fs.forget(attr.id, 1),
            Err(error) => break error,
        }
        made += 1;
    };
    assert_eq!(full.errno(), Errno::ENOSPC);
    assert!(made > 20_000, "only {made}");
    let refused = fs.mkdir(&ROOT, root, b"dir", 0o755);
    assert_eq!(crate::world::errno(refused), Some(Errno::ENOSPC));
    let world = world.reopen();
    assert_eq!(world.list(root).len(), made);
    for number in 0..made {
        world.fs.unlink(root, &name(number)).unwrap();
    }
    assert_eq!(world.list(root).len(), 0);
    world.fs.sync().unwrap();
    world.file(root, "again");
    world.finish();
}
