//! Losses after which everything that is there must come back, and scans that are interrupted.

use crate::saved::{below, by_us};
use crate::{file, in_memory, limit, made_by_kernel, plain, scanned};
use butterfs_device::{BlockDevice, FaultyDevice, MemoryDevice};
use butterfs_rescue::data::Grade;
use butterfs_rescue::roots::{self, Roots};
use butterfs_rescue::scan::{Ddrescue, Map, Settings, scan};
use butterfs_rescue::undelete;
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::sync::Arc;

/// Everything of a sound image comes back with names and attributes, with a scan and without, and a deleted file too.
#[test]
fn a_sound_filesystem_is_restored_whole() {
    const TEST: &str = "restored_whole";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, _) = made_by_kernel(&scratch);
    let mount = KernelMount::new(&image, "ro");
    let all = below(mount.path());
    mount.finish();
    let devices = [file(&image)];
    for wreck in [plain(&devices).unwrap(), scanned(&devices, &scratch).unwrap()] {
        let (sink, summary) = by_us(&wreck);
        let summary = summary.unwrap();
        assert_eq!(sink.contents, all);
        assert_eq!((summary.verified, summary.partial, summary.lost_blocks), (summary.files, 0, 0), "{summary:?}");
        let of = |path: &str| sink.others.get(path.as_bytes());
        assert!(of("round0/link").is_some() && of("round1/subvolume").is_some());
        assert_eq!(sink.paths["round0/lzo".as_bytes()], sink.paths["round0/second".as_bytes()]);
    }
    // The file that was removed last is in an older tree.
    let wreck = scanned(&devices, &scratch).unwrap();
    let found = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default()).unwrap();
    let deleted: Vec<_> =
        found.iter().filter(|one| one.path.ends_with("file3") && one.grade == Grade::Verified).collect();
    assert!(!deleted.is_empty() && deleted.iter().all(|one| one.size == 6000), "{found:?}");
    let wanted = undelete::Wanted { name: Some("nothing*".to_owned()), ..undelete::Wanted::default() };
    assert!(undelete::find(&wreck, &Roots::assemble(&wreck), &wanted).unwrap().is_empty());
    // Every root that the superblock remembers is listed, each with what it yields.
    let listed = roots::all(&wreck);
    let of_files = listed.iter().find(|one| one.tree == 5).unwrap();
    assert!(of_files.yields.files > 300 && of_files.yields.missing_blocks == 0, "{of_files:?}");
}

/// A scan that is interrupted goes on, touches nothing that is known to be bad, and notes what cannot be read.
#[test]
fn scans_go_on_and_note_what_they_cannot_read() {
    let scratch = Scratch::new("scans_go_on");
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = butterfs_fs::mkfs::MkfsOptions::default();
    let empty: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    butterfs_fs::mkfs::mkfs(&empty, &options, &butterfs_fs::Env::system()).unwrap();
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    let path = scratch.join("map");
    let whole = scan(&devices, &path, &Settings::default(), &mut |_| ()).unwrap();
    assert!(whole.is_complete() && whole.len() > 10);
    // Cut anywhere, the map is gone on with and becomes the same.
    let bytes = fs::read(&path).unwrap();
    for cut in [17, 40, bytes.len() / 3, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let mut pieces = 0;
        let again = scan(&devices, &path, &Settings::default(), &mut |_| pieces += 1).unwrap();
        assert_eq!((again.len(), again.is_complete()), (whole.len(), true), "cut at {cut}");
        assert!(pieces > 0);
        assert_eq!(Map::load(&path, limit()).unwrap().len(), whole.len());
    }
    let mut pieces = 0;
    scan(&devices, &path, &Settings::default(), &mut |_| pieces += 1).unwrap();
    assert_eq!(pieces, 0, "what is complete is not read again");
    fs::write(&path, [&bytes[..], b"garbage behind it"].concat()).unwrap();
    assert_eq!(Map::load(&path, limit()).unwrap().len(), whole.len());
    fs::write(&path, "something else").unwrap();
    assert!(scan(&devices, &path, &Settings::default(), &mut |_| ()).is_err(), "no other file is overwritten");
    fs::remove_file(&path).unwrap();
    // Bad sectors, and ones that must not be touched.
    let (bad, known) = (8192..12288, (1 << 20)..(1 << 20) + 65536);
    let faulty = Arc::new(FaultyDevice::new(device.clone()));
    faulty.break_range(bad.clone());
    let devices: Vec<Arc<dyn BlockDevice>> = vec![faulty];
    let map = scan(&devices, &path, &Settings::default(), &mut |_| ()).unwrap();
    assert_eq!(map.devices()[0].bad, std::slice::from_ref(&bad));
    assert_eq!(map.len(), whole.len());
    fs::remove_file(&path).unwrap();
    let faulty = Arc::new(FaultyDevice::new(device));
    faulty.break_range(known.clone());
    let devices: Vec<Arc<dyn BlockDevice>> = vec![faulty.clone()];
    let settings = Settings { known: vec![Some(Ddrescue::of_bad(vec![known.clone()]))], ..Settings::default() };
    let map = scan(&devices, &path, &settings, &mut |_| ()).unwrap();
    assert_eq!((map.devices()[0].bad.as_slice(), faulty.counts().reads), (std::slice::from_ref(&known), 0));
}

/// An image that ends in the middle: what lies before is restored.
#[test]
fn a_truncated_image_gives_what_it_has() {
    const TEST: &str = "truncated";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, _) = made_by_kernel(&scratch);
    let whole = in_memory(&image);
    let all = by_us(&plain(&[Arc::new(whole.snapshot()) as Arc<dyn BlockDevice>]).unwrap()).0.contents;
    let bytes = whole.to_bytes();
    let mut last = all.len() + 1;
    for len in [bytes.len() * 3 / 4, bytes.len() / 2, bytes.len() / 4] {
        let cut: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes[..len]));
        let saved = match scanned(&[cut], &scratch) {
            Ok(wreck) => by_us(&wreck).0.contents.intersection(&all).count(),
            Err(_) => 0,
        };
        println!("{len} of {} bytes: {saved} of {} files", bytes.len(), all.len());
        assert!(saved <= last);
        last = saved;
    }
    // All trees and data of this image lie in its first half.
    assert!(last > 0);
}
