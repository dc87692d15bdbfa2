//! Losses after which everything that is there must come back, and scans that are interrupted.

use crate::opened::{plain, scanned};
use crate::saved::{Contents, Hashing, below, by_us, everything};
use crate::{file, limit, made_by_kernel};
use butterfs_device::{BlockDevice, FaultyDevice, MemoryDevice};
use butterfs_ondisk::Logical;
use butterfs_rescue::Wreck;
use butterfs_rescue::data::Grade;
use butterfs_rescue::restore::{Restorer, Selection};
use butterfs_rescue::roots::{self, Roots};
use butterfs_rescue::scan::{Ddrescue, Map, Settings, scan};
use butterfs_rescue::subvolume;
use butterfs_rescue::tree::Tree;
use butterfs_rescue::undelete;
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use butterfs_volume::{Layout, Piece};
use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, Range};
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

/// The places of one file: for each piece of its leaves and of its data those of all copies, and its contents.
type Placed = (Vec<(u64, Vec<u64>)>, Contents);

/// All files with their places.
fn placed(wreck: &Wreck) -> Vec<Placed> {
    let roots = Roots::assemble(wreck);
    let places_of = |at: Logical, len: u64| {
        let chunk = wreck.chunks().map.get(at).unwrap();
        let layout = Layout::of(chunk).unwrap();
        let places = |piece: &Piece| {
            (0..layout.mirrors()).map(|mirror| layout.stripe_address(piece, mirror).physical.0).collect()
        };
        layout.pieces(at, len as usize).map(|piece| (piece.range.len() as u64, places(&piece))).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    let mut tell = |_: butterfs_rescue::restore::Event<'_>| ();
    for (id, root) in roots.subvolumes() {
        let tree = Tree::new(wreck, root.root);
        let mut inodes: BTreeMap<u64, Vec<(u64, Vec<u64>)>> = BTreeMap::new();
        tree.blocks(&mut |block, _| {
            let node = &block.node;
            for slot in 0..if node.is_leaf() { node.nritems() } else { 0 } {
                let of_leaf = places_of(node.at(), node.bytes().len() as u64);
                inodes.entry(node.key(slot).objectid).or_default().extend(of_leaf);
            }
            true
        });
        let is_file = |ino: &u64| {
            let item = subvolume::inode(&tree, *ino).item;
            item.is_some_and(|item| item.mode.get() & subvolume::TYPE_MASK == subvolume::REGULAR)
        };
        for (ino, mut places) in inodes.into_iter().filter(|(ino, _)| is_file(ino)) {
            subvolume::extents(&tree, ino, &mut |extent| {
                let extent = extent.extent;
                if extent.is_on_disk() {
                    places.extend(places_of(extent.at, extent.disk_len));
                }
                ControlFlow::Continue(())
            });
            let mut sink = Hashing::default();
            let (wanted, selection) = (everything(), Selection::default());
            let restorer = Restorer::new(wreck, &roots, wanted, selection, &mut sink, &mut tell);
            restorer.run_inodes(*id, &[ino]).unwrap();
            found.push((places, sink.contents));
        }
    }
    found
}

/// The contents of files of which some copy of everything lies outside of a lost part of the device.
fn physically_there(all: &[Placed], lost: &Range<u64>) -> Contents {
    let is_left = |(len, places): &(u64, Vec<u64>)| places.iter().any(|at| at + len <= lost.start || *at >= lost.end);
    let whole = all.iter().filter(|(places, _)| places.iter().all(is_left));
    whole.flat_map(|(_, contents)| contents.iter().copied()).collect()
}

/// A lost beginning, middle or end of the device: every file of which everything lies elsewhere comes back.
#[test]
fn what_is_physically_there_comes_back() {
    const TEST: &str = "physically_there";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, _) = made_by_kernel(&scratch);
    let whole = load(&image);
    let sound = plain(&[Arc::new(whole.snapshot()) as Arc<dyn BlockDevice>]).unwrap();
    let (all, files) = (by_us(&sound).0.contents, placed(&sound));
    let len = whole.len();
    for (lost, is_cut) in
        [(0..64 << 20, false), (20 << 20..34 << 20, false), (30 << 20..len, true), (len / 2..len, true)]
    {
        let device: Arc<dyn BlockDevice> = match is_cut {
            true => Arc::new(MemoryDevice::from_bytes(&whole.to_bytes()[..lost.start as usize])),
            false => {
                let copy = whole.snapshot();
                copy.write_at(lost.start, &vec![0; (lost.end - lost.start) as usize]).unwrap();
                Arc::new(copy)
            }
        };
        let expected = physically_there(&files, &lost);
        let saved = scanned(&[device], &scratch).map(|wreck| by_us(&wreck).0.contents).unwrap_or_default();
        let missing: Vec<_> = expected.difference(&saved).collect();
        println!("{lost:?} lost: {} of {} files are there, {} saved", expected.len(), all.len(), saved.len());
        assert!(missing.is_empty(), "{lost:?}: {missing:?}");
    }
}
