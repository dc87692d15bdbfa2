//! Bytes that are on their way from a store: how many there are at once, and devices that end before they arrive.

use crate::model::open;
use butterfs_device::BlockDevice;
use butterfs_remote::{ObjectDevice, Options, RangedImage, make};
use butterfs_store::Store;
use butterfs_testkit::object_server::{Fate, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A volume of which every block has its number, on a server whose answers trickle while the flag is set.
fn slow_volume(bytes: u64) -> (Server, Store, Arc<AtomicBool>) {
    let trickles = Arc::new(AtomicBool::new(false));
    let for_server = trickles.clone();
    let fate = move |_| if for_server.load(Ordering::Relaxed) { Fate::Trickled } else { Fate::Served };
    let server = Server::start(fate);
    let store = open(&server).give_up_after(Duration::from_secs(600));
    make(&store, "main", bytes).unwrap();
    let device = ObjectDevice::open(&store, &Options::default()).unwrap();
    for at in (0..bytes).step_by(1 << 20) {
        device.write_at(at, &numbered(at, 1 << 20)).unwrap();
    }
    device.close().unwrap();
    (server, store, trickles)
}

fn numbered(at: u64, len: u64) -> Vec<u8> {
    (at / 8..(at + len) / 8).flat_map(u64::to_le_bytes).collect()
}

fn quickly(what: &str, work: impl FnOnce()) {
    let begun = Instant::now();
    work();
    assert!(begun.elapsed() < Duration::from_secs(20), "{what} took {:?}", begun.elapsed());
}

#[test]
fn a_device_is_dropped_without_what_is_on_its_way() {
    let (_server, store, trickles) = slow_volume(32 << 20);
    store.put("image", vec![1; 16 << 20]).unwrap();
    let device = ObjectDevice::open_read_only(&store, &Options::default()).unwrap();
    let image = RangedImage::open(&store, "image", 32 << 20, None).unwrap();
    // The map is there already for the second half.
    device.read_at(0, &mut [0; 4096]).unwrap();
    trickles.store(true, Ordering::Relaxed);
    device.begin_read(16 << 20, 16 << 20);
    image.begin_read(0, 16 << 20);
    std::thread::sleep(Duration::from_millis(500));
    quickly("the drop of a volume", || drop(device));
    quickly("the drop of an image", || drop(image));
}

#[test]
fn a_reader_goes_on_when_the_device_that_reads_ahead_for_it_ends() {
    let (_server, store, trickles) = slow_volume(8 << 20);
    let first = ObjectDevice::open_read_only(&store, &Options::default()).unwrap();
    first.read_at(0, &mut [0; 4096]).unwrap();
    trickles.store(true, Ordering::Relaxed);
    first.begin_read(4 << 20, 1 << 20);
    std::thread::sleep(Duration::from_millis(500));
    trickles.store(false, Ordering::Relaxed);
    let writer = ObjectDevice::open(&store, &Options::default()).unwrap();
    writer.write_at(0, &[1; 4096]).unwrap();
    writer.flush().unwrap();
    // It shares the cache, and waits for the same answer.
    let newer = first.newer().unwrap().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = vec![0; 1 << 20];
            newer.read_at(4 << 20, &mut read).map(|()| read)
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!reader.is_finished());
        quickly("the drop of the device before", || drop(first));
        let begun = Instant::now();
        assert!(reader.join().unwrap().unwrap() == numbered(4 << 20, 1 << 20));
        assert!(begun.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn what_is_on_its_way_to_many_readers_is_bounded() {
    const EACH: u64 = 16 << 20;
    let (_server, store, _) = slow_volume(8 * EACH);
    let device = ObjectDevice::open_read_only(&store, &Options::default()).unwrap();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let device = &device;
            scope.spawn(move || {
                device.begin_read(reader * EACH, EACH);
                for at in (reader * EACH..(reader + 1) * EACH).step_by(1 << 20) {
                    let mut read = vec![0; 1 << 20];
                    device.read_at(at, &mut read).unwrap();
                    assert!(read == numbered(at, 1 << 20), "1 MiB at {at} is wrong");
                }
            });
        }
    });
    let most = device.most_on_the_way();
    assert!(most <= 32 << 20, "{most} bytes were on their way");
    let (_, ranges) = device.requests();
    assert!(ranges < 400, "{ranges} ranges for 128 MiB");
}
