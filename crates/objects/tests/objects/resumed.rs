//! Puts that are cut off, and servers that fail: the next put sends the rest, and all that was acknowledged is there.

use crate::world::{World, find, got, on, put, same};
use butterfs_objects::{Access, Depth, Listing, Repository, verify};
use butterfs_send::wire::Version;
use butterfs_testkit::object_server::{Fate, Server};
use butterfs_testkit::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Content of several segments, which cannot be compressed.
fn large(world: &World) -> Vec<u8> {
    let (id, _) = world.subvolume("work");
    let mut rng = Rng::new(1);
    for number in 0..40 {
        let mut content = vec![0; 1 << 20];
        rng.fill(&mut content);
        crate::chains::write(world, &format!("file{number}"), &content);
    }
    world.send(world.snapshot(id, "s"), None, Version::V1)
}

#[test]
fn a_put_that_was_cut_off_sends_the_rest() {
    let world = World::new(1 << 30);
    let stream = large(&world);
    let limit = Arc::new(AtomicU64::new(u64::MAX));
    let until = limit.clone();
    let server =
        Server::start(move |number| if number < until.load(Ordering::SeqCst) { Fate::Served } else { Fate::Failed });
    let store = on(&server, Duration::from_millis(200));
    let repository = Repository::open_or_make(store.clone(), &Access::default()).unwrap();
    let mut total = 0;
    for step in 1..=2 {
        limit.store(server.requests() + 5 + step, Ordering::SeqCst);
        let refused = put(&repository, &stream, 1).unwrap_err();
        assert!(refused.contains("s3://bucket/prefix/"), "{refused}");
        limit.store(u64::MAX, Ordering::SeqCst);
        let there = store.list("segments").unwrap().iter().map(|entry| entry.len).sum::<u64>();
        assert!(there > total && there < 41 << 20, "{there}");
        assert!(Listing::new(&repository).unwrap().all().unwrap().is_empty(), "no manifest of a part");
        total = there;
    }
    let (_, sent) = &put(&repository, &stream, 1).unwrap()[0];
    assert!(sent.bytes + total < 42 << 20, "{} again after {total}", sent.bytes);
    let target = World::new(1 << 30);
    target.receive(&got(&repository, &find(&repository, "s"), None).unwrap()).unwrap();
    same("after all", &world.print("s"), &target.print("s"));
    // Once more: it is there, and nothing is sent.
    assert_eq!(put(&repository, &stream, 5).unwrap()[0].1.bytes, 0);
}

#[test]
fn a_half_failing_server_is_normal() {
    let rounds: u64 = std::env::var("BUTTERFS_OBJECT_ROUNDS").ok().and_then(|count| count.parse().ok()).unwrap_or(3);
    for seed in 0..rounds {
        let world = World::new(512 << 20);
        let chain = world.chain(seed, 3);
        let server = Server::start(move |number| match Rng::new(seed << 32 | number).below(12) {
            0 => Fate::Throttled,
            1 => Fate::Failed,
            2 => Fate::Lost,
            3 => Fate::Cut,
            _ => Fate::Served,
        });
        let store = on(&server, Duration::from_secs(60));
        let repository = Repository::open_or_make(store, &Access::default()).unwrap();
        for (number, id) in chain.iter().enumerate() {
            let parent = number.checked_sub(1).map(|before| chain[before]);
            let stream = world.send(*id, parent, Version::V2);
            put(&repository, &stream, number as i64).unwrap_or_else(|why| panic!("seed {seed}, s{number}: {why}"));
        }
        let all = Listing::new(&repository).unwrap().all().unwrap();
        let verified = verify(&repository, &all, Depth::Deep, &mut |error| panic!("{error}"), &mut |_, _| {}).unwrap();
        assert_eq!((verified.errors, all.len()), (0, 3), "seed {seed}");
        let target = World::new(512 << 20);
        for number in 0..3_usize {
            let name = format!("s{number}");
            let base = number.checked_sub(1).map(|before| find(&repository, &format!("s{before}")));
            target.receive(&got(&repository, &find(&repository, &name), base.as_ref()).unwrap()).unwrap();
            same(&format!("seed {seed}, {name}"), &world.print(&name), &target.print(&name));
        }
    }
}
