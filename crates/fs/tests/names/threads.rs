//! Many threads in the same directories: nothing waits forever, and names, link counts and sizes agree afterwards.

use crate::world::{ROOT, World};
use butterfs_fs::{Attr, Filesystem, InodeId, RenameMode, SetAttr};
use butterfs_testkit::rng::Rng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

fn name(rng: &mut Rng) -> Vec<u8> {
    format!("name{}", rng.below(12)).into_bytes()
}

/// One random operation; whatever it is refused with is fine.
fn step(fs: &Filesystem, rng: &mut Rng, dirs: &[InodeId]) {
    let (a, b) = (dirs[rng.below(dirs.len() as u64) as usize], dirs[rng.below(dirs.len() as u64) as usize]);
    let (old, new) = (name(rng), name(rng));
    let made = match rng.below(16) {
        0..3 => fs.create(&ROOT, a, &old, 0o644).ok(),
        3 => fs.mkdir(&ROOT, a, &old, 0o755).ok(),
        4 => fs.symlink(&ROOT, a, &old, b"target").ok(),
        5 | 6 => fs.lookup(a, &old).ok().and_then(|found| {
            let linked = fs.link(found.id, b, &new).ok();
            fs.forget(found.id, 1);
            linked
        }),
        7 | 8 => fs.unlink(a, &old).err().and(None),
        9 => fs.rmdir(a, &old).err().and(None),
        10 => fs.rename(a, &old, b, &new, RenameMode::Exchange).err().and(None),
        11..14 => fs.rename(a, &old, b, &new, RenameMode::Replace).err().and(None),
        14 => fs.lookup(a, &old).ok().inspect(|found| {
            let _ = fs.set_xattr(&ROOT, found.id, b"trusted.a", &old, 0);
            let _ = fs.setattr(&ROOT, found.id, &SetAttr { mode: Some(0o600), ..SetAttr::default() });
        }),
        _ => {
            let _ = fs.readdirplus(a, 0, u64::MAX, &mut |_, _| false);
            fs.tmpfile(&ROOT, a, 0o600).ok()
        }
    };
    if let Some(made) = made {
        fs.forget(made.id, 1);
    }
}

/// Walks everything below `id`; counts the names of each inode.
fn walk(fs: &Filesystem, id: InodeId, seen: &mut HashMap<InodeId, (Attr, u32)>) {
    let (mut size, mut entries) = (0, Vec::new());
    fs.readdir(id, 2, &mut |entry| {
        size += 2 * entry.name.len() as u64;
        entries.push((entry.id, entry.name.to_vec()));
        true
    })
    .unwrap();
    assert_eq!(fs.getattr(id).unwrap().size, size, "{id:?}");
    for (child, name) in entries {
        let attr = fs.lookup(id, &name).unwrap();
        fs.forget(child, 1);
        assert_eq!(attr.id, child);
        let count = &mut seen.entry(child).or_insert((attr, 0)).1;
        *count += 1;
        if attr.mode & 0o170000 == 0o040000 {
            assert_eq!(*count, 1, "{child:?} has two names");
            assert_eq!(fs.parent(child).unwrap(), id);
            walk(fs, child, seen);
        }
    }
}

#[test]
fn threads_in_the_same_directories() {
    let world = World::new();
    let dirs: Vec<InodeId> = (0..4).map(|number| world.dir(world.root(), &format!("dir{number}"))).collect();
    let dirs = [dirs, vec![world.root()]].concat();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                world.fs.sync().unwrap();
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (fs, dirs) = (&world.fs, &dirs);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    (0..20_000).for_each(|_| step(fs, &mut rng, dirs));
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        committer.join().unwrap();
    });
    for dir in &dirs[..4] {
        world.fs.forget(*dir, 1);
    }
    let mut before = HashMap::new();
    walk(&world.fs, world.root(), &mut before);
    let world = world.reopen();
    let mut after = HashMap::new();
    walk(&world.fs, world.root(), &mut after);
    for (id, (attr, names)) in &after {
        assert_eq!(attr.nlink, *names, "{id:?}");
        // Walking reads, and so changes access times.
        assert_eq!(Attr { atime: attr.atime, ..before[id].0 }, *attr);
    }
    assert_eq!(before.len(), after.len());
    world.finish();
}
