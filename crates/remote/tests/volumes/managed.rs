//! Clones, snapshots, removal, and objects that no volume needs.

use crate::model::{content, small};
use butterfs_device::BlockDevice;
use butterfs_remote::manage::{self, Garbage};
use butterfs_remote::{Limits, ObjectDevice, Options, make};
use butterfs_store::{Kind, Store};
use butterfs_testkit::rng::Rng;
use std::time::Duration;

const LEN: u64 = 70 << 20;

fn named(name: &str) -> Options {
    // A clone that is being made needs the objects of the root that it has read.
    let limits = Limits { keep: Duration::from_secs(3600), ..small().limits };
    Options { volume: name.to_owned(), limits, ..small() }
}

fn fill(device: &ObjectDevice, seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..30 {
        let mut bytes = vec![0; (1 + rng.below(80)) as usize * 4096];
        rng.fill(&mut bytes);
        device.write_at(rng.below(4000) * 4096, &bytes).unwrap();
        device.flush().unwrap();
    }
}

#[test]
fn the_writer_of_a_removed_volume_is_refused() {
    let store = Store::in_memory();
    let sleeps = |name| {
        let device = ObjectDevice::open(&store, &named(name)).unwrap();
        fill(&device, 1);
        device
    };
    let is_refused = |device: ObjectDevice| {
        device.write_at(0, &[1; 4096]).unwrap();
        assert!(device.flush().is_err() && device.flush().is_err() && device.close().is_err());
    };
    make(&store, "main", LEN).unwrap();
    let (first, second) = (sleeps("main"), sleeps("main"));
    manage::remove(&store, &named("main")).unwrap();
    [first, second].into_iter().for_each(is_refused);
    assert_eq!(manage::list(&store).unwrap().len(), 0);
    // Neither does anything of it meet a new volume of the name.
    make(&store, "main", LEN).unwrap();
    let third = sleeps("main");
    store.put("volumes/main/root", "garbage").unwrap();
    let careful = Options { takeover: false, ..named("main") };
    assert_eq!(manage::remove(&store, &careful).unwrap_err().kind(), Kind::Damaged);
    make(&store, "other", LEN).unwrap();
    let listed = manage::list(&store).unwrap();
    assert!(listed[0].is_err() && listed[1].as_ref().is_ok_and(|one| one.name == "other"));
    manage::remove(&store, &named("other")).unwrap();
    manage::remove(&store, &named("main")).unwrap();
    assert!(third.close().is_err());
    make(&store, "main", LEN).unwrap();
    assert!(content(&ObjectDevice::open(&store, &named("main")).unwrap()) == vec![0; LEN as usize]);
}

#[test]
fn a_store_that_is_put_back_shows_a_reader_no_mixture() {
    let (store, older) = (Store::in_memory(), Store::in_memory());
    let copy = |from: &Store, to: &Store| {
        to.list("").unwrap().iter().for_each(|entry| to.delete(&entry.key).unwrap());
        let put = |key: &str| to.put(key, from.get(key, 1 << 30).unwrap().bytes).map(drop).unwrap();
        from.list("").unwrap().iter().for_each(|entry| put(&entry.key));
    };
    make(&store, "main", LEN).unwrap();
    let device = ObjectDevice::open(&store, &named("main")).unwrap();
    fill(&device, 1);
    device.close().unwrap();
    copy(&store, &older);
    let write = |seed| {
        let device = ObjectDevice::open(&store, &named("main")).unwrap();
        fill(&device, seed);
        device
    };
    let first = write(2);
    let mut reader = ObjectDevice::open_read_only(&store, &named("main")).unwrap();
    assert!(content(&reader) == content(&first));
    drop(first);
    copy(&older, &store);
    let second = write(3);
    for seed in 4..8 {
        // Roots and logs of the two histories have the same numbers.
        reader = reader.newer().unwrap().unwrap_or(reader);
        assert!(content(&reader) == content(&second));
        fill(&second, seed);
    }
}

#[test]
fn clones_share_and_stay_apart() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let main = ObjectDevice::open(&store, &named("main")).unwrap();
    fill(&main, 1);
    let first = content(&main);
    let before: u64 = store.list("segments").unwrap().iter().map(|entry| entry.len).sum();
    // While it is being written to, with a log.
    manage::clone(&store, "main", "clone", false).unwrap();
    manage::clone(&store, "main", "kept", true).unwrap();
    let after: u64 = store.list("segments").unwrap().iter().map(|entry| entry.len).sum();
    // The writer may write its pieces together meanwhile; clones that shared nothing would be three times as much.
    assert!(after < 2 * before + (2 << 20), "{before} bytes, {after} with two clones");
    fill(&main, 2);
    main.close().unwrap();
    let second = content(&ObjectDevice::open_read_only(&store, &named("main")).unwrap());
    let clone = ObjectDevice::open(&store, &named("clone")).unwrap();
    assert!(content(&clone) == first);
    fill(&clone, 3);
    clone.close().unwrap();
    assert!(first != second);
    assert!(content(&ObjectDevice::open_read_only(&store, &named("kept")).unwrap()) == first);
    assert!(content(&ObjectDevice::open_read_only(&store, &named("main")).unwrap()) == second);
    assert_eq!(ObjectDevice::open(&store, &named("kept")).unwrap_err().kind(), Kind::Permission);
    assert_eq!(manage::clone(&store, "main", "kept", false).unwrap_err().kind(), Kind::Exists);
    let listed = manage::list(&store).unwrap();
    let listed: Vec<_> = listed.into_iter().map(Result::unwrap).collect();
    let shown: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.length, one.frozen)).collect();
    assert_eq!(shown, [("clone", LEN, false), ("kept", LEN, true), ("main", LEN, false)]);

    // Nothing that a volume needs is garbage, and nothing that none needs stays.
    manage::gc(&store, Duration::ZERO, false).unwrap();
    assert!(content(&ObjectDevice::open_read_only(&store, &named("kept")).unwrap()) == first);
    assert!(content(&ObjectDevice::open_read_only(&store, &named("main")).unwrap()) == second);
    ["kept", "main", "clone"].iter().for_each(|name| manage::remove(&store, &named(name)).unwrap());
    assert!(manage::list(&store).unwrap().is_empty());
    let dry = manage::gc(&store, Duration::ZERO, true).unwrap();
    assert!(dry.objects > 0 && dry.bytes > 0);
    assert_eq!(manage::gc(&store, Duration::from_secs(3600), false).unwrap().objects, 0, "they are young");
    assert_eq!(manage::gc(&store, Duration::ZERO, false).unwrap(), dry);
    assert_eq!(manage::gc(&store, Duration::ZERO, false).unwrap(), Garbage::default());
    assert!(store.list("segments").unwrap().is_empty());
}

#[test]
fn removing_a_volume_ends_its_writer() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let main = ObjectDevice::open(&store, &named("main")).unwrap();
    fill(&main, 1);
    let careful = Options { takeover: false, gone_after: Duration::from_secs(8), ..named("main") };
    assert_eq!(manage::remove(&store, &careful).unwrap_err().kind(), Kind::Exists);
    fill(&main, 2);
    manage::remove(&store, &named("main")).unwrap();
    make(&store, "main", LEN).unwrap();
    let other = ObjectDevice::open(&store, &named("main")).unwrap();
    fill(&other, 3);
    other.close().unwrap();
    assert!(manage::log(&store, "main").unwrap().is_empty());
}

#[test]
fn names_and_sizes_that_cannot_be_are_refused() {
    let store = Store::in_memory();
    for name in ["", "a/b", "..", ".hidden", "ä", &"x".repeat(101)] {
        assert_eq!(make(&store, name, LEN).unwrap_err().kind(), Kind::Invalid, "{name}");
    }
    for len in [0, 4095, 4097, u64::MAX, (8 << 60) + 4096] {
        assert_eq!(make(&store, "main", len).unwrap_err().kind(), Kind::Invalid, "{len}");
    }
    make(&store, "main", LEN).unwrap();
    assert_eq!(make(&store, "main", LEN).unwrap_err().kind(), Kind::Exists);
    assert_eq!(ObjectDevice::open(&store, &named("other")).unwrap_err().kind(), Kind::NotFound);
}
