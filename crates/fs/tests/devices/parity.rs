//! Devices with chunks of RAID5 and RAID6: replaced, removed, made smaller; and chunks that no whole place is left for.

use super::scene::*;
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, ReplaceRequest, SourceReads, Storage};
use butterfs_fs::{DeviceId, Filesystem, Options};
use butterfs_ondisk::items::DevReplaceItem;
use std::sync::Arc;

const LEN: u64 = 320 << 20;

fn request(source: u64, reads: SourceReads) -> ReplaceRequest {
    ReplaceRequest { source: DeviceId(source), reads, force: true, old: OldContent::Keep }
}

fn replace(fs: &Filesystem, source: u64, reads: SourceReads, target: &Arc<butterfs_device::MemoryDevice>) {
    fs.begin_replace(target.clone(), &request(source, reads)).unwrap().run().unwrap();
    let item = fs.replace_status().item;
    assert_eq!((item.state.get(), item.uncorrectable_read_errors.get()), (DevReplaceItem::FINISHED, 0));
}

/// Looks at each set of devices that is one device short.
fn without_any(devices: &[Arc<butterfs_device::MemoryDevice>], look: impl Fn(&Filesystem, &str)) {
    for missing in 0..devices.len() {
        let others: Vec<_> =
            devices.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, d)| d.clone()).collect();
        let fs = open(dynamic(&others), Options { degraded: true, read_only: true, ..Options::default() });
        look(&fs, &format!("without the device number {missing}"));
    }
}

#[test]
fn devices_with_parity_are_replaced() {
    for (profile, count) in [("RAID5", 3), ("RAID6", 4)] {
        let spare = LEN + (8 << 20);
        let mut devices = memory(&[&vec![LEN; count][..], &[spare; 2]].concat());
        let mut spares = devices.split_off(count);
        make(&devices, profile, profile);
        let fs = open(dynamic(&devices), Options::default());
        fill(&fs);
        let before = seen(&fs);
        let (source, reads) = if count == 3 { (1, SourceReads::Allowed) } else { (3, SourceReads::Avoided) };
        let target = spares.remove(0);
        replace(&fs, source, reads, &target);
        devices[source as usize - 1] = target;
        assert_same(&before, &seen(&fs), "what it holds");
        fs.shutdown().unwrap();
        drop(fs);
        let test = format!("{profile}_replaced");
        assert_clean(&devices, &test);
        let before = without_kernel(&devices);
        without_any(&devices, |fs, what| assert_same(&before, &seen(fs), what));
        if count == 4 {
            continue;
        }
        // A missing one.
        let present: Vec<_> = [&devices[..1], &devices[2..]].concat();
        let fs = open(dynamic(&present), Options { degraded: true, ..Options::default() });
        let target = spares.remove(0);
        replace(&fs, 2, SourceReads::Allowed, &target);
        fs.shutdown().unwrap();
        drop(fs);
        devices[1] = target;
        without_any(&devices, |fs, what| assert_same(&before, &seen(fs), what));
        assert_clean(&devices, &test);
    }
}

/// The content that all devices show.
fn without_kernel(devices: &[Arc<butterfs_device::MemoryDevice>]) -> butterfs_testkit::fingerprint::Fingerprint {
    seen(&open(dynamic(devices), Options { read_only: true, ..Options::default() }))
}

#[test]
fn devices_with_parity_leave_and_shrink() {
    for (profile, count) in [("RAID5", 3), ("RAID6", 4)] {
        let devices = memory(&vec![400 << 20; count]);
        make(&devices, profile, "RAID1");
        let fs = open(dynamic(&devices), Options::default());
        fill(&fs);
        let before = seen(&fs);
        fs.remove_device(RemovedDevice::Id(DeviceId(2))).unwrap();
        assert!(fs.chunks().iter().all(|chunk| chunk.stripes.iter().all(|stripe| stripe.device != DeviceId(2))));
        fs.resize_device(DeviceId(1), NewSize::Bytes(300 << 20), Storage::Stays).unwrap();
        assert_same(&before, &seen(&fs), "what it holds");
        fs.shutdown().unwrap();
        drop(fs);
        assert_clean(&[&devices[..1], &devices[2..]].concat(), &format!("{profile}_removed"));
    }
}

/// A chunk that is longer than every hole in front of the new end, and nearly empty.
#[test]
fn a_chunk_is_emptied_where_it_has_no_room_as_a_whole() {
    let devices = memory(&[2 << 30]);
    make(&devices, "single", "DUP");
    let fs = open(dynamic(&devices), Options::default());
    fill(&fs);
    let filler = fs.create(&ROOT, fs.root(), b"filler", 0o600).unwrap().id;
    fs.fallocate(filler, 0, 0, 1200 << 20, false).unwrap();
    let late = fs.create(&ROOT, fs.root(), b"late", 0o600).unwrap().id;
    fs.write(late, 0, &noise(9, 3 << 20), false).unwrap();
    fs.forget(filler, 1);
    fs.sync().unwrap();
    fs.unlink(fs.root(), b"filler").unwrap();
    // The empty groups go.
    for mib in [2040, 2039, 2038] {
        fs.resize_device(DeviceId(1), NewSize::Bytes(mib << 20), Storage::Stays).unwrap();
        fs.sync().unwrap();
    }
    let before = seen(&fs);
    let end = |chunk: &butterfs_volume::Chunk| chunk.stripes[0].physical.0 + chunk.stripe_length();
    let chunks = fs.chunks();
    let last = chunks.iter().max_by_key(|chunk| end(chunk)).unwrap();
    let others: u64 = chunks.iter().map(|chunk| chunk.stripe_length() * chunk.stripes.len() as u64).sum();
    let room = (others - last.length + (last.length / 2) + (1 << 20)).max(256 << 20);
    let places: Vec<_> = chunks.iter().map(|chunk| (chunk.stripes[0].physical.0 >> 20, chunk.length >> 20)).collect();
    assert!(room < end(last), "the last chunk lies behind {room} of {places:?}");
    let start = last.start;
    fs.resize_device(DeviceId(1), NewSize::Bytes(room), Storage::Stays).unwrap();
    assert!(fs.chunks().get(start).is_none(), "it was emptied, with {room} bytes: {places:?}");
    assert_same(&before, &seen(&fs), "what it holds");
    fs.shutdown().unwrap();
    assert_clean(&devices, "a_chunk_is_emptied");
}
