//! Reading directories.

use crate::world::{ROOT, World};
use butterfs_fs::RenameMode;

#[test]
fn offsets_survive_changes() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let names: Vec<String> = (0..1000).map(|number| format!("file{number}")).collect();
    for name in &names {
        world.file(root, name);
    }
    let mut shown = Vec::new();
    let mut offset = 0;
    let last = fs.last_offset(root).unwrap();
    for round in 0.. {
        let mut room = 7;
        let before = shown.len();
        fs.readdir_until(root, offset, last, &mut |entry| {
            if room == 0 {
                return false;
            }
            room -= 1;
            offset = entry.offset_next;
            shown.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
        if shown.len() == before {
            break;
        }
        // One already shown goes, one comes, one moves to the end.
        if round < 100 {
            fs.unlink(root, shown[before + 2].as_bytes()).unwrap();
            world.file(root, &format!("new{round}"));
            fs.rename(
                root,
                shown[before + 3].as_bytes(),
                root,
                format!("moved{round}").as_bytes(),
                RenameMode::Replace,
            )
            .unwrap();
        }
    }
    assert_eq!(shown[..2], [".", ".."]);
    assert_eq!(shown[2..], names);
    world.finish();
}

#[test]
fn readdirplus_counts_what_it_shows() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    let ids: Vec<_> = (0..10).map(|number| world.file(dir, &format!("f{number}"))).collect();
    ids.iter().for_each(|id| fs.forget(*id, 1));
    let world = world.reopen();
    let fs = &world.fs;
    let mut seen = Vec::new();
    fs.readdirplus(dir, 0, u64::MAX, &mut |entry, attr| {
        if seen.len() == 7 {
            return false;
        }
        seen.push((entry.name.to_vec(), entry.id, attr.copied()));
        true
    })
    .unwrap();
    assert_eq!((seen[0].0.as_slice(), seen[0].1, seen[0].2), (&b"."[..], dir, None));
    assert_eq!((seen[1].0.as_slice(), seen[1].1, seen[1].2), (&b".."[..], root, None));
    for (name, id, attr) in &seen[2..] {
        assert_eq!(Some(*id), attr.map(|attr| attr.id));
        assert_eq!(*attr, Some(fs.getattr(*id).unwrap()));
        fs.unlink(dir, name).unwrap();
        // The reference that readdirplus counted keeps it.
        assert_eq!(fs.getattr(*id).unwrap().nlink, 0);
        fs.forget(*id, 1);
        assert!(fs.getattr(*id).is_err());
    }
    world.finish();
}

#[test]
fn a_removed_directory_shows_itself() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    fs.rmdir(root, b"dir").unwrap();
    let mut ids = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        ids.push(entry.id);
        true
    })
    .unwrap();
    assert_eq!(ids, [dir, dir]);
    fs.forget(dir, 1);
    world.finish();
}

#[test]
fn many_names_in_one_directory() {
    let world = World::new();
    let dir = world.dir(world.root(), "dir");
    for number in 0..20_000 {
        let attr = world.fs.create(&ROOT, dir, format!("{number}").as_bytes(), 0o644).unwrap();
        world.fs.forget(attr.id, 1);
    }
    let world = world.reopen();
    let names = world.list(dir);
    assert!(names.iter().enumerate().all(|(number, name)| *name == number.to_string()));
    assert_eq!(names.len(), 20_000);
    for name in names.iter().rev() {
        world.fs.unlink(dir, name.as_bytes()).unwrap();
    }
    world.fs.rmdir(world.root(), b"dir").unwrap();
    world.finish();
}
