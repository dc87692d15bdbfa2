//! Our view of filesystems that the real mkfs.btrfs and the kernel made, one per profile, and the kernel's view of what
//! we wrote into them: every copy and every way to compute one, with every tolerated set of devices lost.
//!
//! Needs root, mkfs.btrfs and the kernel's btrfs.

mod chunk_tree;
mod filesystem;

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::{Logical, TreeId};
use butterfs_volume::Volume;
use filesystem::{Extent, Filesystem, noise};
use std::sync::Arc;
use std::time::Duration;

/// Profile of data and metadata, devices.
const SHAPES: [(&str, usize); 14] = [
    ("single", 1),
    ("dup", 1),
    ("raid0", 2),
    ("raid0", 3),
    ("raid1", 2),
    ("raid1", 3),
    ("raid1c3", 3),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 2),
    ("raid5", 3),
    ("raid6", 3),
    ("raid6", 4),
    ("raid6", 5),
];
const FILE_LEN: usize = 5 << 20;
const DEVICE_LEN: u64 = 300 << 20;

/// Says why a test cannot run here; where everything must run, that is a failure.
fn skip(why: &str) {
    println!("SKIPPED: kernel profiles: {why}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "skipped where nothing may be: {why}");
}

#[test]
fn kernel_and_volume_agree_on_every_profile() {
    if let Err(why) = filesystem::requirements() {
        return skip(&why);
    }
    for (profile, devices) in SHAPES {
        println!("{profile} on {devices}");
        agree(profile, devices);
    }
}

fn agree(profile: &str, devices: usize) {
    let mut kernel = Filesystem::make(profile, devices, DEVICE_LEN);
    let (checked, plain) = (noise(1, FILE_LEN), noise(2, FILE_LEN));
    kernel.mount(&[]);
    kernel.write_file("checked", &checked, false);
    kernel.write_file("plain", &plain, true);
    let (checked_extents, plain_extents) = (kernel.extents("checked"), kernel.extents("plain"));
    kernel.unmount();

    let volume = open(&kernel, true);
    every_copy_is(&volume, &checked_extents, &checked, profile);
    every_copy_is(&volume, &plain_extents, &plain, profile);
    let ours = noise(3, FILE_LEN);
    overwrite(&volume, &plain_extents, &ours);
    every_copy_is(&volume, &plain_extents, &ours, profile);
    volume.flush().unwrap();
    drop(volume);

    let tolerated = Profile::named(profile).unwrap().tolerated_failures;
    for lost in sets_of_lost_devices(devices, tolerated) {
        kernel.mount(&lost);
        assert!(kernel.read_file("checked") == checked, "{profile} x{devices} without {lost:?}: checked");
        assert!(kernel.read_file("plain") == ours, "{profile} x{devices} without {lost:?}: plain");
        kernel.unmount();
    }
    kernel.check();
}

/// The volume with its whole chunk map.
fn open(kernel: &Filesystem, write: bool) -> Volume {
    let options = FileOptions { write, wait: Duration::from_secs(20), ..FileOptions::read_only() };
    let device = |path| Arc::new(FileDevice::open(path, &options).unwrap()) as Arc<dyn BlockDevice>;
    let (volume, sb, notes) = Volume::open(kernel.images().map(device).collect()).unwrap();
    assert!(notes.lines.is_empty(), "{notes:?}");
    let map = chunk_tree::read(&volume, &sb);
    volume.check_chunk_map(&map).unwrap();
    volume.set_chunk_map(map);
    chunk_tree::every_copy_of_the_roots(&volume, &sb, &[TreeId::ROOT, TreeId::CHUNK]);
    volume
}

fn every_copy_is(volume: &Volume, extents: &[Extent], content: &[u8], profile: &str) {
    let bit = Profile::named(profile).unwrap().bit;
    for extent in extents {
        let at = Logical(extent.logical);
        let kind = volume.chunk_map().get(at).unwrap().kind;
        assert_eq!(kind & (bits::DATA | bits::PROFILE_MASK), bits::DATA | bit, "{profile}");
        let expected = &content[extent.file_offset..][..extent.len];
        let mut found = vec![0; extent.len];
        for copy in 0..volume.copies(at) {
            volume.read_copy(at, copy, &mut found).unwrap();
            assert!(found == expected, "{profile}: copy {copy} of {extent:?}");
        }
    }
}

/// Overwrites the extents in pieces of odd sizes, so that rows are written whole, in part, and in steps.
fn overwrite(volume: &Volume, extents: &[Extent], content: &[u8]) {
    let sizes = [4096, 70_000, 65_536, 12_345, 300_000, 1 << 20];
    for extent in extents {
        let mut done = 0;
        for size in sizes.into_iter().cycle() {
            let take = size.min(extent.len - done);
            let data = &content[extent.file_offset + done..][..take];
            volume.write(Logical(extent.logical + done as u64), data).unwrap();
            done += take;
            if done == extent.len {
                break;
            }
        }
    }
}

/// No device, and every set of devices that the profile survives the loss of.
fn sets_of_lost_devices(devices: usize, tolerated: usize) -> Vec<Vec<usize>> {
    (0..1usize << devices)
        .map(|set| (0..devices).filter(|device| set >> device & 1 == 1).collect::<Vec<_>>())
        .filter(|lost| lost.len() <= tolerated)
        .collect()
}

/// Fills the data of small filesystems: no extent lies on what we exclude, and the kernel leaves nothing else free.
#[test]
fn the_kernel_leaves_out_what_we_exclude() {
    if let Err(why) = filesystem::requirements() {
        return skip(&why);
    }
    let mut exclusions = 0;
    for (profile, devices) in [("single", 1), ("dup", 1), ("raid0", 3), ("raid10", 4), ("raid5", 3), ("raid6", 4)] {
        let mut kernel = Filesystem::make(profile, devices, 260 << 20);
        kernel.mount(&[]);
        kernel.fill(["large", "small"]);
        let extents = [kernel.extents("large"), kernel.extents("small")].concat();
        kernel.unmount();
        exclusions += excluded_is_left_out(&open(&kernel, false), &extents, profile);
    }
    assert!(exclusions >= 6, "{exclusions}");
}

fn excluded_is_left_out(volume: &Volume, extents: &[Extent], profile: &str) -> usize {
    let map = volume.chunk_map();
    let ranges: Vec<_> = map.iter().filter(|chunk| chunk.kind & bits::DATA != 0).collect();
    let ranges: Vec<_> = ranges.into_iter().flat_map(|chunk| map.superblock_exclusions(chunk)).collect();
    for range in &ranges {
        let overlaps = |extent: &&Extent| extent.logical < range.end.0 && range.start.0 < extent.end();
        assert_eq!(extents.iter().find(overlaps), None, "{profile}: {range:?}");
        let before = extents.iter().any(|extent| extent.end() == range.start.0)
            || map.get(range.start).unwrap().start == range.start;
        let after = extents.iter().any(|extent| extent.logical == range.end.0)
            || map.get(range.start).unwrap().end() == range.end;
        assert!(before && after, "{profile}: the kernel left more free than {range:?}: {extents:?}");
    }
    ranges.len()
}
