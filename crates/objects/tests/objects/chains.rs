//! Chains of random work, put in full and as increments, and got from every place.

use crate::world::{TOP, World, find, got, in_memory, put, same};
use butterfs_objects::{Depth, Repository, verify};
use butterfs_send::wire::Version;

fn seeds(always: u64) -> u64 {
    std::env::var("BUTTERFS_OBJECT_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(always)
}

fn is_sound(what: &str, repository: &Repository) {
    let all = butterfs_objects::Listing::new(repository).unwrap().all().unwrap();
    let mut tell = |error: &butterfs_store::Error| panic!("{what}: {error}");
    let verified = verify(repository, &all, Depth::Deep, &mut tell, &mut |_, _| {}).unwrap();
    assert_eq!(verified.errors, 0);
}

/// A file of the subvolume `work`.
pub fn write(world: &World, name: &str, content: &[u8]) {
    let caller = &butterfs_testkit::library::ROOT;
    let top = world.fs.lookup(TOP, b"work").expect("it was made").id;
    let id = match world.fs.lookup(top, name.as_bytes()) {
        Ok(found) => found.id,
        Err(_) => world.fs.create(caller, top, name.as_bytes(), 0o644).expect("a free name").id,
    };
    world.fs.write(id, 0, content, false).expect("there is room");
    world.fs.forget(id, 1);
    world.fs.forget(top, 1);
}

#[test]
fn snapshots_are_got_as_they_were_put() {
    for seed in 0..seeds(16) {
        let world = World::new(512 << 20);
        let chain = world.chain(seed, 4);
        let repository = in_memory();
        let version = if seed % 3 == 0 { Version::V1 } else { Version::V2 };
        for (number, id) in chain.iter().enumerate() {
            // Any parent, or none.
            let parent = (number > 0 && seed % 5 != 4).then(|| chain[(seed as usize + number) % number]);
            let stream = world.send(*id, parent, version);
            put(&repository, &stream, number as i64).unwrap_or_else(|why| panic!("seed {seed}, s{number}: {why}"));
        }
        is_sound(&format!("seed {seed}"), &repository);
        // One alone, out of the middle.
        for number in 0..chain.len() {
            let what = format!("seed {seed}, s{number}");
            let target = World::new(512 << 20);
            let name = format!("s{number}");
            target.receive(&got(&repository, &find(&repository, &name), None).unwrap()).expect(&what);
            same(&what, &world.print(&name), &target.print(&name));
        }
        // All, with content that is shared.
        let target = World::new(512 << 20);
        for number in 0..chain.len() {
            let what = format!("seed {seed}, s{number} with a base");
            let (name, before) = (format!("s{number}"), number.checked_sub(1).map(|before| format!("s{before}")));
            let base = before.map(|before| find(&repository, &before));
            target.receive(&got(&repository, &find(&repository, &name), base.as_ref()).unwrap()).expect(&what);
            same(&what, &world.print(&name), &target.print(&name));
        }
    }
}

#[test]
fn equal_content_is_stored_once_and_an_increment_sends_its_change() {
    let world = World::new(1 << 30);
    let (id, _) = world.subvolume("work");
    let write = |name: &str, seed: u64, bytes: usize| {
        let mut content = vec![0; bytes];
        butterfs_testkit::rng::Rng::new(seed).fill(&mut content);
        write(&world, name, &content);
    };
    (0..20).for_each(|number| write(&format!("file{number}"), number, 1 << 20));
    let first = world.snapshot(id, "first");
    write("file3", 77, 1 << 20);
    let second = world.snapshot(id, "second");
    let repository = in_memory();
    let sent = |stream: &[u8], now: i64| put(&repository, stream, now).unwrap()[0].1.bytes;
    let whole = sent(&world.send(first, None, Version::V1), 1);
    assert!((20 << 20..21 << 20).contains(&whole), "{whole}");
    let change = sent(&world.send(second, Some(first), Version::V1), 2);
    assert!((1 << 20..(1 << 20) * 105 / 100).contains(&change), "{change}");
    // In full from another filesystem: everything is there already.
    let other = World::new(1 << 30);
    other.receive(&got(&repository, &find(&repository, "second"), None).unwrap()).unwrap();
    let tree = other.fs.lookup(crate::world::TOP, b"second").unwrap().id.tree;
    let copy = other.snapshot(tree, "copy");
    let again = sent(&other.send(copy, None, Version::V1), 3);
    assert!(again < 64 << 10, "{again}");
    is_sound("equal content", &repository);
}
