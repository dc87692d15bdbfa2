//! Retention: which snapshots stay, what is removed, and that puts and prunes keep out of each other's way.

use crate::world::{World, find, got, in_memory, put, same};
use butterfs_objects::{Access, Keep, Listing, Manifest, Options, Put, Repository, copy, prune};
use butterfs_send::wire::Version;
use butterfs_store::{Kind, Store};
use jiff::tz::TimeZone;

fn at(repository: &Repository, world: &World, chain: &[butterfs_fs::TreeId], times: &[i64]) {
    for (number, (id, time)) in chain.iter().zip(times).enumerate() {
        let parent = number.checked_sub(1).map(|before| chain[before]);
        put(repository, &world.send(*id, parent, Version::V2), *time).unwrap();
    }
}

#[test]
fn rules_keep_the_newest_of_each_period() {
    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;
    let template = Manifest {
        name: String::new(),
        uuid: String::new(),
        transid: 1,
        parent: None,
        time: 0,
        bytes: 0,
        inodes: 1,
        next_inode: 2,
        stream: 1,
        root: String::new(),
        level: 0,
        pieces: Vec::new(),
        sent: 0,
    };
    // Every six hours for 60 days, from Monday, 1 January 2024 on.
    let first = 1_704_067_200;
    let manifests: Vec<Manifest> = (0..240)
        .map(|number| Manifest { name: number.to_string(), time: first + number * 6 * HOUR, ..template.clone() })
        .collect();
    let kept = |keep: Keep| -> Vec<usize> {
        let plan = keep.plan(&manifests, &TimeZone::UTC);
        (0..240).filter(|at| !plan[*at].is_empty()).collect()
    };
    let now = first + 60 * DAY;
    assert_eq!(kept(Keep { last: 2, ..Keep::default() }), [238, 239]);
    assert_eq!(kept(Keep { daily: 3, ..Keep::default() }), [231, 235, 239]);
    assert_eq!(kept(Keep { hourly: 2, ..Keep::default() }), [238, 239]);
    // 29 February 2024 is a Thursday: the weeks end with Sunday, 25 and 18 February.
    assert_eq!(kept(Keep { weekly: 3, ..Keep::default() }), [195, 223, 239]);
    assert_eq!(kept(Keep { monthly: 5, ..Keep::default() }), [123, 239]);
    assert_eq!(kept(Keep { yearly: 5, ..Keep::default() }), [239]);
    assert_eq!(kept(Keep { within: Some(DAY), now, ..Keep::default() }), [236, 237, 238, 239]);
    assert_eq!(kept(Keep { names: vec!["7".to_owned()], ..Keep::default() }), [7]);
    assert_eq!(kept(Keep { last: 1, daily: 2, names: vec!["0".into()], ..Keep::default() }), [0, 235, 239]);
    assert_eq!(kept(Keep::default()).len(), 240);
}

#[test]
fn what_is_kept_stays_whole_and_the_rest_goes() {
    let world = World::new(512 << 20);
    let chain = world.chain(21, 5);
    let store = Store::in_memory();
    let repository = Repository::open_or_make(store.clone(), &Access::default()).unwrap();
    at(&repository, &world, &chain, &[1, 2, 3, 4, 5]);
    let segments = || store.list("segments").unwrap().len() as u64;
    // A copy of everything first.
    let other = in_memory();
    let all = Listing::new(&repository).unwrap().all().unwrap();
    let sent = copy(&repository, &other, &all, &mut |_, _| {}).unwrap();
    assert_eq!(sent.segments, segments());
    assert_eq!(copy(&repository, &other, &all, &mut |_, _| {}).unwrap().segments, 0);

    let remove: Vec<Manifest> = ["s0", "s1", "s3"].map(|name| find(&repository, name)).into();
    let before = segments();
    let dry = prune(&repository, &remove, true).unwrap();
    assert_eq!((segments(), Listing::new(&repository).unwrap().all().unwrap().len()), (before, 5));
    let done = prune(&repository, &remove, false).unwrap();
    assert_eq!(dry, done);
    assert!(done.segments > 0 && segments() == before - done.segments, "{done:?}");
    for repository in [&repository, &other] {
        let target = World::new(512 << 20);
        let base = find(repository, "s2");
        target.receive(&got(repository, &base, None).unwrap()).unwrap();
        target.receive(&got(repository, &find(repository, "s4"), Some(&base)).unwrap()).unwrap();
        for name in ["s2", "s4"] {
            same(name, &world.print(name), &target.print(name));
        }
    }
    // Without any snapshot nothing is left.
    let rest = Listing::new(&repository).unwrap().all().unwrap();
    prune(&repository, &rest, false).unwrap();
    assert_eq!(store.list("").unwrap().into_iter().map(|entry| entry.key).collect::<Vec<_>>(), ["repository"]);
}

#[test]
fn puts_and_prunes_exclude_each_other() {
    let repository = in_memory();
    let store = repository.store().clone();
    let options = || Options { level: 1, scratch: std::env::temp_dir(), now: 1 };
    let first = Put::new(&repository, options()).unwrap();
    let second = Put::new(&repository, options()).unwrap();
    let refused = prune(&repository, &[], false).unwrap_err();
    assert_eq!(refused.kind(), Kind::Conflict, "{refused}");
    assert!(refused.to_string().contains("a put is at work") && refused.to_string().contains("sessions/put-"));
    first.end().unwrap();
    drop(second);
    prune(&repository, &[], false).unwrap();

    store.put("sessions/prune", b"another host".to_vec()).unwrap();
    let refused = Put::new(&repository, options()).err().expect("a prune is at work");
    assert!(refused.to_string().contains("a prune is at work"), "{refused}");
    let refused = prune(&repository, &[], false).unwrap_err();
    assert!(refused.to_string().contains("another prune is at work"), "{refused}");
    store.delete("sessions/prune").unwrap();
    Put::new(&repository, options()).unwrap().end().unwrap();
}

#[test]
fn a_put_that_was_taken_for_dead_publishes_nothing() {
    let world = World::new(512 << 20);
    let chain = world.chain(2, 1);
    let repository = in_memory();
    let store = repository.store().clone();
    let mut put = Put::new(&repository, Options { level: 1, scratch: std::env::temp_dir(), now: 1 }).unwrap();
    // A prune on another host, a quarter of an hour later.
    for session in store.list("sessions").unwrap() {
        store.delete(&session.key).unwrap();
    }
    let refused = crate::world::applied(&world.send(chain[0], None, Version::V1), &mut put).unwrap_err();
    assert!(refused.contains("took it for dead"), "{refused}");
    assert!(Listing::new(&repository).unwrap().all().unwrap().is_empty());
}
