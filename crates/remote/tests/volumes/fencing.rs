//! Two writers: the first one stands still at any of its requests while the second one takes over.

use crate::model::{open, small};
use butterfs_device::BlockDevice;
use butterfs_remote::{Limits, ObjectDevice, Options, make};
use butterfs_store::{Kind, Store};
use butterfs_testkit::object_server::{Fate, Server};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const LEN: u64 = 66 << 20;
/// Blocks that both write.
const BLOCKS: u64 = 300;

/// A request that is held back.
#[derive(Default)]
struct Gate {
    /// The requests of the first writer are counted from here on, and the one with this number waits.
    hold: Option<u64>,
    seen: u64,
    waiting: bool,
    open: bool,
}

type Shared = Arc<(Mutex<Gate>, Condvar)>;

fn server(shared: &Shared) -> Server {
    let shared = shared.clone();
    Server::start(move |_| {
        let (gate, changed) = &*shared;
        let mut gate = gate.lock().unwrap();
        gate.seen += 1;
        if gate.hold == Some(gate.seen) {
            gate.waiting = true;
            changed.notify_all();
            gate = changed.wait_while(gate, |gate| !gate.open).unwrap();
            drop(gate);
        }
        Fate::Served
    })
}

/// Holds the request with this number back, counted from now on.
fn hold_back(shared: &Shared, number: u64) {
    let mut gate = shared.0.lock().unwrap();
    (gate.seen, gate.hold) = (0, Some(number));
}

/// Waits until the request stands still, or the work that makes requests has ended; then none will.
fn stands_still(shared: &Shared, has_ended: impl Fn() -> bool) -> bool {
    let (gate, changed) = &**shared;
    let mut gate = gate.lock().unwrap();
    while !gate.waiting && !has_ended() {
        gate = changed.wait_timeout(gate, Duration::from_millis(20)).unwrap().0;
    }
    if !gate.waiting {
        gate.hold = None;
    }
    gate.waiting
}

/// Lets the request go on.
fn let_go(shared: &Shared) {
    shared.0.lock().unwrap().open = true;
    shared.1.notify_all();
}

/// Writes all blocks with a number, the last one first, and flushes. Says whether that was acknowledged.
fn write_all(device: &ObjectDevice, number: u8) -> bool {
    let big = vec![number; 1 << 20];
    let write = || -> std::io::Result<()> {
        for block in (0..BLOCKS).rev() {
            device.write_at(block * 4096, &[number; 4096])?;
        }
        device.write_at(8 << 20, &big)?;
        device.flush()
    };
    write().is_ok()
}

/// The number that all blocks have; a state that mixes them panics.
fn number(device: &ObjectDevice) -> u8 {
    let (mut small, mut big) = (vec![0; (BLOCKS * 4096) as usize], vec![0; 1 << 20]);
    device.read_at(0, &mut small).unwrap();
    device.read_at(8 << 20, &mut big).unwrap();
    let number = small[0];
    assert!(small == vec![number; small.len()] && big == vec![number; big.len()], "a state that mixes flushes");
    number
}

#[test]
fn a_writer_that_was_replaced_changes_nothing_any_more() {
    let mut reached = 0;
    for hold in 1.. {
        let shared = Shared::default();
        let server = server(&shared);
        let store = open(&server);
        make(&store, "main", LEN).unwrap();
        let first = ObjectDevice::open(&store, &small()).unwrap();
        assert!(write_all(&first, 1));
        hold_back(&shared, hold);
        let (first, acknowledged) = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                // Several tables, so that each kind of request stands still once.
                let acknowledged: Vec<bool> = (2..12).map(|number| write_all(&first, number)).collect();
                // That makes a table and a root, or is refused.
                let _ = first.close();
                acknowledged.iter().filter(|done| **done).count() as u8
            });
            let stood_still = stands_still(&shared, || writing.is_finished());
            if !stood_still {
                return (None, writing.join().unwrap());
            }
            let second = ObjectDevice::open(&store, &small()).unwrap();
            let taken = number(&second);
            assert!(write_all(&second, 100), "the second writer is the writer");
            let_go(&shared);
            let acknowledged = writing.join().unwrap();
            // The first one wrote 1, then 2 and so on.
            assert!(acknowledged < taken + 1, "{acknowledged} flushes were acknowledged, {taken} was found");
            assert_eq!(number(&second), 100);
            assert!(write_all(&second, 101), "the second writer stays the writer");
            drop(second);
            let third = ObjectDevice::open(&store, &small()).unwrap();
            assert_eq!(number(&third), 101, "request {hold} of the first writer changed something");
            (Some(taken), acknowledged)
        });
        let Some(_) = first else {
            assert_eq!(acknowledged, 10, "nothing was held back");
            break;
        };
        reached += 1;
    }
    assert!(reached > 25, "only {reached} requests were held back");
}

#[test]
fn a_volume_that_is_in_use_is_not_taken_over_by_chance() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let first = ObjectDevice::open(&store, &Options::default()).unwrap();
    let careful = Options { gone_after: Duration::from_secs(8), ..Options::default() };
    let error = ObjectDevice::open(&store, &careful).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    first.write_at(0, &[1; 4096]).unwrap();
    first.flush().unwrap();
    drop(first);
    // It is silent from now on.
    let second =
        ObjectDevice::open(&store, &Options { gone_after: Duration::from_secs(6), ..Options::default() }).unwrap();
    let mut block = [0; 4096];
    second.read_at(0, &mut block).unwrap();
    assert_eq!(block, [1; 4096]);
}

#[test]
fn the_sentence_names_the_volume() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let first = ObjectDevice::open(&store, &small()).unwrap();
    let _second = ObjectDevice::open(&store, &small()).unwrap();
    first.write_at(0, &[1; 4096]).unwrap();
    let error = first.flush().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StaleNetworkFileHandle);
    assert_eq!(
        error.to_string(),
        "memory/volumes/main: another host has taken this volume over, so nothing is written any more"
    );
    assert!(first.write_at(0, &[1; 4096]).is_err());
    assert!(first.close().is_err());
}

#[test]
fn a_host_that_stands_still_while_it_takes_over_does_not_mix_states() {
    let mut reached = 0;
    for hold in 1.. {
        let shared = Shared::default();
        let server = server(&shared);
        let store = open(&server);
        make(&store, "main", LEN).unwrap();
        let first = ObjectDevice::open(&store, &small()).unwrap();
        assert!((1..6).all(|number| write_all(&first, number)));
        drop(first);
        hold_back(&shared, hold);
        let stood_still = std::thread::scope(|scope| {
            let opening = scope.spawn(|| ObjectDevice::open(&store, &small()));
            let stood_still = stands_still(&shared, || opening.is_finished());
            let third = ObjectDevice::open(&store, &small()).unwrap();
            assert_eq!(number(&third), 5);
            assert!(write_all(&third, 100));
            let_go(&shared);
            let second = opening.join().unwrap();
            let second_writes = second.as_ref().is_ok_and(|second| {
                let begun_with = number(second);
                let writes = write_all(second, 101);
                assert!(!writes || begun_with == 100, "it began with {begun_with} and writes");
                writes
            });
            let third_writes = write_all(&third, 102);
            assert!(second_writes != third_writes, "request {hold}: one of them is the writer");
            drop((second, third));
            let last = ObjectDevice::open(&store, &small()).unwrap();
            assert_eq!(number(&last), if second_writes { 101 } else { 102 });
            stood_still
        });
        if !stood_still {
            break;
        }
        reached += 1;
    }
    assert!(reached > 8, "only {reached} requests were held back");
}

/// The writer flushes as fast as it can, and the other host needs 5 ms for each request.
#[test]
fn a_writer_that_is_faster_than_the_other_host_is_taken_over() {
    let shared = Arc::new(InMemory::new());
    let wait = Duration::from_millis(5);
    let slow = ThrottleConfig { wait_get_per_call: wait, wait_put_per_call: wait, ..ThrottleConfig::default() };
    let far = Arc::new(ThrottledStore::new(Arc::clone(&shared), slow));
    let near = Store::of(shared, Path::default(), "near".to_owned()).unwrap();
    let far = Store::of(far, Path::default(), "far".to_owned()).unwrap();
    make(&near, "main", LEN).unwrap();
    // No table in between, whose root the other one would have to meet too.
    let options = || Options { limits: Limits { records: 1 << 40, ..small().limits }, ..small() };
    let first = ObjectDevice::open(&near, &options()).unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let flushed = |number: &u64| {
                let block = [(*number % 251) as u8; 4096];
                first.write_at(0, &block).and_then(|()| first.flush()).is_ok()
            };
            (1..1_000_000).take_while(flushed).count() as u64
        });
        let second = ObjectDevice::open(&far, &options()).unwrap();
        let acknowledged = writing.join().unwrap();
        let mut block = [0; 4096];
        second.read_at(0, &mut block).unwrap();
        assert!(acknowledged > 0, "it never wrote");
        assert_eq!(block, [(acknowledged % 251) as u8; 4096], "the last of {acknowledged} flushes is there");
        second.write_at(0, &[255; 4096]).and_then(|()| second.flush()).unwrap();
    });
}
