//! Data that is written and not yet committed, on RAID5 and RAID6: what rots meanwhile is found before parity hides it.

use super::scene::*;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Filesystem, InodeId, Options};
use butterfs_volume::Layout;
use std::sync::Arc;

/// Where the byte `offset` of a file is: the device from 0, and the place.
fn place(fs: &Filesystem, id: InodeId, offset: u64) -> (usize, u64) {
    let extent = fs.extents(id, offset..offset + 1).unwrap().remove(0);
    let at = extent.at.plus(offset - extent.start + extent.offset);
    let chunks = fs.chunks();
    let layout = Layout::of(chunks.get(at).unwrap()).unwrap();
    let piece = layout.pieces(at, 1).next().unwrap();
    let address = layout.stripe_address(&piece, 0);
    (layout.chunk().stripes[address.stripe].device.0 as usize - 1, address.physical.0)
}

fn flip(device: &MemoryDevice, at: u64) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 0x10]).unwrap();
}

/// Files whose content is another one, whole or without some device, after a bit of the first file has rotted between
/// its write-back and the next write.
fn damaged(count: usize, profile: &str, first: usize, second: usize, rotten: u64) -> Vec<String> {
    let devices = memory(&vec![160 << 20; count]);
    make(&devices, profile, "RAID1");
    let fs = open(dynamic(&devices), Options::default());
    let root = fs.root();
    let create = |name: &[u8]| fs.create(&ROOT, root, name, 0o600).unwrap().id;
    let (one, other) = (create(b"one"), create(b"other"));
    fs.sync().unwrap();
    let contents = [("one", noise(1, first)), ("other", noise(2, second))];
    fs.write(one, 0, &contents[0].1, false).unwrap();
    fs.write_back(one).unwrap();
    let (device, at) = place(&fs, one, rotten);
    flip(&devices[device], at);
    fs.write(other, 0, &contents[1].1, false).unwrap();
    fs.write_back(other).unwrap();
    fs.sync().unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let mut found = Vec::new();
    for away in 0..=count {
        let given: Vec<Arc<MemoryDevice>> = devices
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != away)
            .map(|(_, device)| Arc::new(device.snapshot()))
            .collect();
        let fs = open(dynamic(&given), Options { degraded: true, ..Options::default() });
        for (name, content) in &contents {
            let id = file(&fs, name);
            let mut read = Vec::new();
            let outcome = fs.read(id, 0, content.len(), &mut read);
            // With a device gone a row of RAID5 can make up for nothing else.
            let must_be_good = away == count || *name == "other";
            if must_be_good && (outcome.is_err() || read != *content) {
                let what = format!("{profile} of {count}, {first} and {second} bytes, rotten at {rotten}");
                found.push(format!("{what}: {name} without {away}: {outcome:?}"));
            }
        }
    }
    found
}

#[test]
fn what_rots_before_a_commit_is_not_hidden_by_parity() {
    let mut found = Vec::new();
    for (count, profile) in [(3, "RAID5"), (4, "RAID5"), (4, "RAID6")] {
        for (first, second) in [(4096, 4096), (16 << 10, 150 << 10), (100 << 10, 28 << 10), (100 << 10, 200 << 10)] {
            for rotten in [0, first as u64 / 2, first as u64 - 1] {
                found.extend(damaged(count, profile, first, second, rotten));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
