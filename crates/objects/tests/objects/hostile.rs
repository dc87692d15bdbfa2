//! Stores that lie: objects that were changed, cut, swapped, emptied, or are older. An error names the object, and
//! nothing wrong is ever handed out.

use crate::world::{World, find, got, put, same};
use butterfs_objects::{Access, Archive, Depth, Keep, Listing, Repository, View, copy, differences, prune, verify};
use butterfs_send::wire::Version;
use butterfs_store::Store;
use butterfs_testkit::rng::Rng;
use std::collections::BTreeMap;

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let keys = store.list("").unwrap().into_iter().map(|entry| entry.key);
    keys.map(|key| (key.clone(), store.get(&key, 1 << 30).unwrap().bytes.to_vec())).collect()
}

#[test]
fn a_lying_store_is_found_out() {
    let world = World::new(512 << 20);
    let chain = world.chain(9, 3);
    let store = Store::in_memory();
    let repository = Repository::open_or_make(store.clone(), &Access::default()).unwrap();
    for (number, id) in chain.iter().enumerate() {
        let parent = number.checked_sub(1).map(|before| chain[before]);
        put(&repository, &world.send(*id, parent, Version::V2), number as i64).unwrap();
    }
    let truth: Vec<Vec<u8>> =
        (0..3).map(|number| got(&repository, &find(&repository, &format!("s{number}")), None).unwrap()).collect();
    let good = contents(&store);
    let keys: Vec<String> = good.keys().cloned().collect();
    let mut rng = Rng::new(4);
    let rounds = std::env::var("BUTTERFS_OBJECT_LIES").ok().and_then(|count| count.parse().ok()).unwrap_or(100);
    let mut found_out = 0;
    for round in 0..rounds {
        let key = rng.pick(&keys).clone();
        let mut bytes = good[&key].clone();
        let what = match rng.below(6) {
            0 => {
                let at = rng.index(bytes.len());
                bytes[at] ^= 1 << rng.below(8);
                "a flipped bit"
            }
            1 => {
                bytes.truncate(rng.index(bytes.len()));
                "cut"
            }
            2 => {
                bytes = good[rng.pick(&keys)].clone();
                "swapped"
            }
            3 => {
                bytes.extend(std::iter::repeat_n(0, 1 + rng.index(5000)));
                "longer"
            }
            4 => {
                let (at, len) = (rng.index(bytes.len()), 1 + rng.index(64));
                let end = (at + len).min(bytes.len());
                rng.fill(&mut bytes[at..end]);
                "overwritten"
            }
            _ => {
                bytes.clear();
                "empty"
            }
        };
        if bytes == good[&key] {
            continue;
        }
        store.put(&key, bytes).unwrap();
        let what = format!("round {round}: {key} {what}");
        let opened = Repository::open(store.clone(), &Access::default());
        let mut errors = Vec::new();
        match opened {
            Err(error) => errors.push(error),
            Ok(repository) => {
                errors.extend(lies(&what, &repository, &truth));
            }
        }
        for error in &errors {
            assert!(error.to_string().contains("memory"), "{what}: {error} names no object");
        }
        found_out += u64::from(!errors.is_empty());
        store.put(&key, good[&key].clone()).unwrap();
    }
    assert!(found_out * 10 > rounds * 9, "{found_out} of {rounds}");
    let target = World::new(512 << 20);
    target.receive(&got(&repository, &find(&repository, "s2"), None).unwrap()).unwrap();
    same("afterwards", &world.print("s2"), &target.print("s2"));
}

/// Uses everything; what is handed out must be right. Returns the errors.
fn lies(what: &str, repository: &Repository, truth: &[Vec<u8>]) -> Vec<butterfs_store::Error> {
    let mut errors = Vec::new();
    for (number, right) in truth.iter().enumerate() {
        let name = format!("s{number}");
        match Listing::new(repository).and_then(|listing| listing.find(&name)) {
            Err(error) => errors.push(error),
            Ok(manifest) => match got(repository, &manifest, None) {
                Ok(stream) => assert!(stream == *right, "{what}: another stream of {name}"),
                Err(error) => errors.push(error),
            },
        }
    }
    let all = match Listing::new(repository).and_then(|listing| listing.all()) {
        Ok(all) => all,
        Err(error) => return vec![error],
    };
    for depth in [Depth::Present, Depth::Digests, Depth::Deep] {
        let found = std::sync::Mutex::new(Vec::new());
        let mut tell = |error: &butterfs_store::Error| found.lock().unwrap().push(error.clone());
        let verified = verify(repository, &all, depth, &mut tell, &mut |_, _| {}).unwrap();
        let found = found.into_inner().unwrap();
        assert_eq!(found.len() as u64, verified.errors, "{what}");
        if depth >= Depth::Digests && !errors.is_empty() {
            assert!(!found.is_empty(), "{what}: {errors:?} and verified as sound");
        }
        errors.extend(found);
    }
    let archive = Archive::new(repository);
    for pair in all.windows(2) {
        errors.extend(differences(&archive, (&pair[0], &pair[1]), &mut |_, _| Ok(())).err());
        errors.extend(
            View::new(&archive, &pair[0])
                .and_then(|view| view.find(b"a/b/c").map(|_| ()))
                .err()
                .filter(|error| error.kind() != butterfs_store::Kind::NotFound),
        );
    }
    let other = Repository::open_or_make(Store::in_memory(), &Access::default()).unwrap();
    errors.extend(copy(repository, &other, &all, &mut |_, _| {}).err());
    // A dry run removes nothing; a real one may not remove what a snapshot needs because it cannot be read.
    assert!(Keep::default().plan(&all, &jiff::tz::TimeZone::UTC).iter().all(|rules| !rules.is_empty()));
    errors.extend(prune(repository, &[], true).err());
    errors
}
