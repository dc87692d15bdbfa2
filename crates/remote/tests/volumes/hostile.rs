//! A store whose owner changes objects: an error that names one, never other data.

use crate::model::{content, small};
use butterfs_device::BlockDevice;
use butterfs_remote::{ObjectDevice, make};
use butterfs_store::Store;
use butterfs_testkit::rng::Rng;

const LEN: u64 = 70 << 20;

/// A store with a volume that has a table, a log and several segments, and its content.
fn filled(closed: bool) -> (Store, Vec<u8>) {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let device = ObjectDevice::open(&store, &small()).unwrap();
    let mut rng = Rng::new(9);
    for round in 0..25u64 {
        let mut bytes = vec![0; (1 + rng.below(80)) as usize * 4096];
        rng.fill(&mut bytes);
        device.write_at(rng.below(1000) * 4096, &bytes).unwrap();
        device.write_at((64 << 20) + round * 4096, &[7; 4096]).unwrap();
        device.flush().unwrap();
    }
    if closed {
        device.close().unwrap();
    }
    let content = content(&device);
    (store, content)
}

/// Opens the volume and reads everything; the sentences of the errors.
fn read_all(store: &Store, wanted: &[u8]) -> Vec<String> {
    let device = match ObjectDevice::open_read_only(store, &small()) {
        Ok(device) => device,
        Err(error) => return vec![error.to_string()],
    };
    let mut errors = Vec::new();
    for (at, wanted) in wanted.chunks(16 << 10).enumerate() {
        let mut bytes = vec![0; wanted.len()];
        match device.read_at(at as u64 * (16 << 10), &mut bytes) {
            Ok(()) => assert!(bytes == wanted, "other data without an error"),
            Err(error) => errors.push(error.to_string()),
        }
    }
    errors
}

#[test]
fn a_changed_cut_swapped_or_grown_object_is_an_error_that_names_it() {
    for closed in [true, false] {
        let (store, wanted) = filled(closed);
        assert_eq!(read_all(&store, &wanted), Vec::<String>::new());
        let objects = store.list("").unwrap();
        let objects: Vec<_> = objects.into_iter().filter(|entry| !entry.key.ends_with("alive")).collect();
        assert!(objects.len() > 5, "{objects:?}");
        let mut rng = Rng::new(1);
        let (mut found, mut tried) = (0, 0);
        for entry in &objects {
            let good = store.get(&entry.key, 1 << 30).unwrap().bytes;
            let other = &objects[rng.below(objects.len() as u64) as usize];
            for how in 0..5 {
                let mut bytes = good.to_vec();
                match how {
                    0 => bytes[rng.below(good.len() as u64) as usize] ^= 1 << rng.below(8),
                    1 => bytes.truncate(rng.below(good.len() as u64) as usize),
                    2 => bytes = store.get(&other.key, 1 << 30).unwrap().bytes.to_vec(),
                    3 => bytes.extend(vec![7; 5 << 20]),
                    _ => bytes[good.len() / 2..].fill(0xff),
                }
                store.put(&entry.key, bytes).unwrap();
                let errors = read_all(&store, &wanted);
                tried += 1;
                found += usize::from(!errors.is_empty());
                let named = |sentence: &String| sentence.contains("memory/");
                assert!(errors.iter().all(named), "{errors:?}");
            }
            store.put(&entry.key, good).unwrap();
        }
        assert!(found * 2 > tried, "{found} of {tried}");
    }
}

#[test]
fn any_bytes_as_an_object_are_a_sentence() {
    let (store, _) = filled(false);
    let objects = store.list("").unwrap();
    let mut rng = Rng::new(2);
    for _ in 0..400 {
        let entry = &objects[rng.below(objects.len() as u64) as usize];
        let good = store.get(&entry.key, 1 << 30).unwrap().bytes;
        let mut bytes = vec![0; rng.below(300) as usize];
        rng.fill(&mut bytes);
        store.put(&entry.key, bytes).unwrap();
        if let Ok(device) = ObjectDevice::open_read_only(&store, &small()) {
            let mut all = vec![0; LEN as usize];
            let _ = device.read_at(0, &mut all);
        }
        store.put(&entry.key, good).unwrap();
    }
}
