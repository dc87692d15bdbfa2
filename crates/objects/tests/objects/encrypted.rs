//! Encrypted repositories: opened by their identities alone, and telling the store nothing.

use crate::world::{World, find, got, put, same};
use butterfs_objects::{Access, Depth, Listing, Repository, copy, verify};
use butterfs_send::wire::Version;
use butterfs_store::{Kind, Store};
use butterfs_testkit::scratch::Scratch;

/// A new identity in a file, and access by it.
fn identity(scratch: &Scratch, name: &str) -> (age::x25519::Identity, Access) {
    use age::secrecy::ExposeSecret as _;
    let identity = age::x25519::Identity::generate();
    let file = scratch.join(name);
    std::fs::write(&file, format!("# made for a test\n{}\n", identity.to_string().expose_secret())).unwrap();
    let mut access = Access::default();
    access.add_identity_file(&file).unwrap();
    (identity, access)
}

#[test]
fn only_an_identity_opens_it_and_the_store_learns_nothing() {
    let scratch = Scratch::new("only_an_identity_opens_it");
    let store = Store::in_memory();
    let (_, own) = identity(&scratch, "own");
    let repository = Repository::open_or_make(store.clone(), &own).unwrap();
    let world = World::new(512 << 20);
    let chain = world.chain(5, 3);
    for (number, id) in chain.iter().enumerate() {
        let parent = number.checked_sub(1).map(|before| chain[before]);
        put(&repository, &world.send(*id, parent, Version::V2), number as i64).unwrap();
    }
    // A second opening, and the whole way back.
    let repository = Repository::open_or_make(store.clone(), &own).unwrap();
    let target = World::new(512 << 20);
    for name in ["s0", "s1", "s2"] {
        target.receive(&got(&repository, &find(&repository, name), None).unwrap()).unwrap();
        same(name, &world.print(name), &target.print(name));
    }
    let all = Listing::new(&repository).unwrap().all().unwrap();
    let verified = verify(&repository, &all, Depth::Deep, &mut |error| panic!("{error}"), &mut |_, _| {}).unwrap();
    assert_eq!(verified.errors, 0);

    // Nobody else, and nobody without any.
    for access in [identity(&scratch, "other").1, Access::default()] {
        let refused = Repository::open(store.clone(), &access).err().expect("it must not open");
        assert_eq!(refused.kind(), Kind::Permission, "{refused}");
    }
    // Neither names of snapshots or files nor their UUIDs are anywhere.
    let uuid = all[0].uuid.clone();
    for entry in store.list("").unwrap() {
        let bytes = store.get(&entry.key, 1 << 30).unwrap().bytes;
        for word in ["s0", "s1", &uuid] {
            assert!(!entry.key.contains(word) || word.len() < 4, "{}", entry.key);
        }
        for word in [&b"transid"[..], b"next_inode", &uuid.as_bytes()[..16]] {
            assert!(!bytes.windows(word.len()).any(|part| part == word), "{}", entry.key);
        }
    }
    // An encrypted repository is not copied into a plain one.
    let plain = Repository::open_or_make(Store::in_memory(), &Access::default()).unwrap();
    let refused = copy(&repository, &plain, &all, &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
}

#[test]
fn recipients_are_needed_once() {
    let scratch = Scratch::new("recipients_are_needed_once");
    let (own, access) = identity(&scratch, "own");
    let (other, access_of_other) = identity(&scratch, "other");
    let store = Store::in_memory();
    let mut both = Access::default();
    for recipient in [own.to_public(), other.to_public()] {
        both.add_recipient(&recipient.to_string()).unwrap();
    }
    // A recipient alone can make it and not open it.
    let refused = Repository::open_or_make(store.clone(), &both).err().expect("there is no identity");
    assert_eq!(refused.kind(), Kind::Permission, "{refused}");
    Repository::open(store.clone(), &access).unwrap();
    Repository::open(store, &access_of_other).unwrap();
    assert_eq!(Access::default().add_recipient("age1nonsense").unwrap_err().kind(), Kind::Invalid);
}
