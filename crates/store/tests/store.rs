//! Stores in memory, in a folder and on an S3 server obey the same rules, also where the server misbehaves.

use butterfs_store::{Cancel, Kind, Settings, Store};
use butterfs_testkit::object_server::{Fate, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A folder of its own for one test, removed with it.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("butterfs-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn store(&self) -> Store {
        Store::open(self.0.to_str().unwrap(), &Settings { makes_folder: true, ..Settings::default() }).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A prefix of a bucket on a server here.
fn bucket(endpoint: &str, give_up_after: Duration) -> Store {
    let variables = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("HOME", "/nonexistent")];
    let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let settings = Settings { endpoint: Some(endpoint.to_owned()), give_up_after, ..Settings::from_vars(variables) };
    Store::open("s3://bucket/prefix", &settings).unwrap()
}

/// Conditional puts, ranges, lists and errors of any store.
fn obeys_the_rules(store: &Store) {
    let first = store.create("a/root", b"one".to_vec()).unwrap();
    // The answer to the first attempt was lost: the same bytes are no conflict.
    assert_eq!(store.create("a/root", b"one".to_vec()).unwrap(), first);
    let refused = store.create("a/root", b"two".to_vec()).unwrap_err();
    assert_eq!((refused.kind(), refused.errno()), (Kind::Exists, 17));
    assert!(refused.to_string().contains("a/root: the object exists already"), "{refused}");

    let second = store.replace("a/root", b"second".to_vec(), &first).unwrap();
    assert_ne!(first, second);
    assert_eq!(store.replace("a/root", b"second".to_vec(), &first).unwrap(), second);
    let refused = store.replace("a/root", b"third".to_vec(), &first).unwrap_err();
    assert_eq!(refused.kind(), Kind::Conflict, "{refused}");
    let object = store.get("a/root", 100).unwrap();
    assert_eq!((&object.bytes[..], &object.version), (&b"second"[..], &second));

    assert_eq!(&store.get_range("a/root", 1..4).unwrap()[..], b"eco");
    assert_eq!(store.get_range("a/root", 4..9).unwrap_err().kind(), Kind::Length);
    assert_eq!(store.get("a/root", 5).unwrap_err().kind(), Kind::Length);
    assert_eq!(store.get("a/none", 5).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(store.head("a/root").unwrap(), (6, second.clone()));

    store.put("b", b"x".to_vec()).unwrap();
    let keys = |below: &str| -> Vec<String> {
        let mut keys: Vec<String> = store.list(below).unwrap().into_iter().map(|entry| entry.key).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(""), ["a/root", "b"]);
    assert_eq!(keys("a"), ["a/root"]);
    store.delete("b").unwrap();
    store.delete("b").unwrap();
    assert_eq!(keys(""), ["a/root"]);
}

#[test]
fn a_store_in_memory_obeys_the_rules() {
    obeys_the_rules(&Store::in_memory());
}

#[test]
fn a_folder_obeys_the_rules() {
    let scratch = Scratch::new("rules");
    obeys_the_rules(&scratch.store());
}

#[test]
fn one_of_many_writers_replaces_a_version() {
    let scratch = Scratch::new("race");
    let store = scratch.store();
    let mut version = store.create("root", b"0".to_vec()).unwrap();
    for round in 0..20 {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (store, version) = (scratch.store(), version.clone());
                std::thread::spawn(move || store.replace("root", format!("{round} {writer}").into_bytes(), &version))
            })
            .collect();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let mut won = done.into_iter().filter_map(|done| match done {
            Ok(version) => Some(version),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Conflict, "{error}");
                None
            }
        });
        version = won.next().expect("one writer wins");
        assert!(won.next().is_none(), "two writers replaced the same version");
    }
}

#[test]
fn urls_that_make_no_sense_are_refused_with_a_sentence() {
    for (url, words) in [("ftp://a/b", "no store has the scheme 'ftp'"), ("s3:///x", "the bucket is missing")] {
        let error = Store::open(url, &Settings::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_folder_is_made_where_that_is_asked_for() {
    let scratch = Scratch::new("made");
    let path = scratch.0.to_str().unwrap();
    let error = Store::open(path, &Settings::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(error.to_string(), format!("cannot open the folder '{path}' as a store: there is none"));
    assert!(!scratch.0.exists());
    scratch.store();
    assert!(scratch.0.is_dir());
}

#[test]
fn a_server_that_is_not_there_is_an_error_when_the_time_is_up() {
    let error = bucket("http://127.0.0.1:9", Duration::from_millis(300)).get("key", 1).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.to_string().starts_with("cannot get s3://bucket/prefix/key: "), "{error}");
}

#[test]
fn a_server_that_behaves_obeys_the_rules() {
    let server = Server::start(|_| Fate::Served);
    obeys_the_rules(&bucket(&server.endpoint, Duration::from_secs(20)));
}

#[test]
fn a_server_that_loses_every_second_answer_obeys_the_rules() {
    let server = Server::start(|number| if number % 2 == 0 { Fate::Lost } else { Fate::Served });
    obeys_the_rules(&bucket(&server.endpoint, Duration::from_secs(20)));
}

#[test]
fn a_server_that_throttles_fails_and_cuts_answers_obeys_the_rules() {
    const FATES: [Fate; 5] = [Fate::Throttled, Fate::Served, Fate::Failed, Fate::Cut, Fate::Served];
    let server = Server::start(|number| FATES[number as usize % FATES.len()]);
    obeys_the_rules(&bucket(&server.endpoint, Duration::from_secs(20)));
}

#[test]
fn a_server_that_always_throttles_is_an_error_when_the_time_is_up() {
    let server = Server::start(|_| Fate::Throttled);
    let error = bucket(&server.endpoint, Duration::from_millis(500)).get("key", 1).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    assert!(error.to_string().contains("bucket/prefix/key") && error.to_string().contains("503"), "{error}");
    assert!(server.requests() > 1, "a throttled request is sent again");
}

/// A server whose answers trickle while the flag is set.
fn trickling() -> (Server, Arc<AtomicBool>) {
    let trickles = Arc::new(AtomicBool::new(false));
    let for_server = trickles.clone();
    let fate = move |_| if for_server.load(Ordering::Relaxed) { Fate::Trickled } else { Fate::Served };
    (Server::start(fate), trickles)
}

#[test]
fn a_server_that_never_falls_silent_is_an_error_when_the_time_is_up() {
    let (server, trickles) = trickling();
    let store = bucket(&server.endpoint, Duration::from_millis(400));
    store.put("key", vec![7; 32 << 10]).unwrap();
    trickles.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    type Call = fn(&Store) -> butterfs_store::Error;
    let calls: [(&str, Call); 6] = [
        ("get s3://bucket/prefix/key: the store did not finish its answer within 5.9 s", |store| {
            store.get("key", 1 << 20).unwrap_err()
        }),
        ("get a part of s3://bucket/prefix/key: the store did not finish its answer", |store| {
            store.get_range("key", 1..32 << 10).unwrap_err()
        }),
        ("list s3://bucket/prefix: the store did not finish its answer", |store| store.list("").unwrap_err()),
        // The client waits for the beginning of an answer by itself.
        ("put s3://bucket/prefix/new: ", |store| store.put("new", vec![8; 32 << 10]).unwrap_err()),
        ("look at s3://bucket/prefix/key: ", |store| store.head("key").unwrap_err()),
        ("delete s3://bucket/prefix/old: ", |store| store.delete("old").unwrap_err()),
    ];
    std::thread::scope(|scope| {
        for (words, call) in calls {
            let store = &store;
            scope.spawn(move || {
                let error = call(store);
                assert_eq!(error.kind(), Kind::Unreachable, "{error}");
                assert!(error.to_string().starts_with(&format!("cannot {words}")), "{error}");
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // A slow answer that is fast enough for its length is none.
    trickles.store(false, Ordering::Relaxed);
    store.put("short", vec![9; 3]).unwrap();
    trickles.store(true, Ordering::Relaxed);
    assert_eq!(bucket(&server.endpoint, Duration::from_secs(20)).get("short", 10).unwrap().bytes, vec![9; 3]);
}

#[test]
fn a_call_ends_when_nobody_needs_it_any_more() {
    let (server, trickles) = trickling();
    let (store, cancel) = (bucket(&server.endpoint, Duration::from_secs(600)), Cancel::default());
    store.put("key", vec![7; 1 << 20]).unwrap();
    trickles.store(true, Ordering::Relaxed);
    let until = store.until(&cancel);
    let begun = Instant::now();
    let call = std::thread::spawn(move || (until.get("key", 1 << 20).unwrap_err(), until.head("key").unwrap_err()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!call.is_finished());
    cancel.cancel();
    let (during, later) = call.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!((during.kind(), later.kind()), (Kind::Cancelled, Kind::Cancelled));
    assert_eq!(during.to_string(), "cannot get s3://bucket/prefix/key: nobody needs it any more");
    trickles.store(false, Ordering::Relaxed);
    assert_eq!(store.head("key").unwrap().0, 1 << 20, "other calls go on");
}
