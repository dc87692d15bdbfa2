//! One wrong field in the header of a tree block whose checksum is right: nothing below it is lost, and that is told.

use crate::noise;
use crate::opened::{plain, scanned};
use crate::saved::{below, by_btrfs_restore, by_us};
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice};
use butterfs_ondisk::{Logical, TreeId};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Fields of a header: their names, the byte and the bits that are flipped.
const FIELDS: [(&str, usize, u8); 9] = [
    ("fsid", 32, 1),
    ("bytenr", 49, 16),
    ("flags", 63, 16),
    ("generation", 80, 1),
    ("generation, newer", 80, 0x80),
    ("owner", 88, 2),
    ("level", 100, 1),
    ("level of a node", 100, 2),
    ("level, all bits", 100, 7),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// A filesystem of the kernel with a tree of two levels, of two commits.
fn made(scratch: &Scratch) -> PathBuf {
    let image = scratch.sparse_file("made.img", 160 << 20);
    mkfs(&image, &["-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    fs::create_dir(mount.path().join("d")).unwrap();
    for number in 0..60 {
        fs::write(mount.path().join(format!("d/f{number}")), noise(number, [30, 5000][number % 2])).unwrap();
    }
    run_ok(20, "btrfs", &["filesystem", "sync", text(mount.path())]);
    fs::write(mount.path().join("d/newest"), noise(1000, 300)).unwrap();
    mount.finish();
    image
}

fn flip(editor: &Editor, at: Logical, byte: usize, bits: u8) {
    let mut bytes = editor.node(at).bytes().to_vec();
    bytes[byte] ^= bits;
    editor.stamp(at, bytes);
}

#[test]
fn a_wrong_field_in_a_header_loses_nothing() {
    const TEST: &str = "wrong_header";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let mount = KernelMount::new(&image, "ro");
    let all = below(mount.path());
    mount.finish();
    assert_eq!(all.len(), 61);
    let base = load(&image);
    for tree in [TreeId::FS, TreeId::CSUM, TreeId::ROOT] {
        let blocks = Editor::of_copy(&base).0.blocks(tree);
        let chosen = if tree == TreeId::FS { vec![blocks[0], blocks[blocks.len() / 2]] } else { vec![blocks[0]] };
        for (at, (name, byte, bits)) in chosen.into_iter().flat_map(|at| FIELDS.map(|field| (at, field))) {
            let (editor, copy) = Editor::of_copy(&base);
            flip(&editor, at, byte, bits);
            let devices = [copy as Arc<dyn BlockDevice>];
            for (with_scan, wreck) in [plain(&devices), scanned(&devices, &scratch)].into_iter().enumerate() {
                let (sink, summary) = by_us(&wreck.unwrap());
                let summary = summary.unwrap();
                assert_eq!(sink.contents, all, "{tree} {at} {name}, scan {with_scan}: {summary:?}");
                assert_eq!(summary.verified + summary.doubtful, 61, "{tree} {at} {name}: {summary:?}");
                // Of checksums the data is the proof.
                let is_told = !summary.complete || name == "flags" || tree == TreeId::CSUM;
                assert!(is_told, "{tree} {at} {name}, scan {with_scan}: {summary:?}");
            }
        }
    }
}

/// The same on disk, beside `btrfs restore`.
#[test]
fn a_wrong_owner_costs_no_more_than_elsewhere() {
    const TEST: &str = "wrong_owner";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&image, &FileOptions::read_write()).unwrap());
    let editor = Editor::open(vec![Arc::clone(&device)]);
    let blocks = editor.blocks(TreeId::FS);
    flip(&editor, blocks[blocks.len() / 2], 88, 2);
    let (theirs, ours) = (by_btrfs_restore(&image, &scratch), by_us(&plain(&[device]).unwrap()).0.contents);
    assert!(ours.is_superset(&theirs) && ours.len() == 61, "{} and {}", ours.len(), theirs.len());
}

/// A block that lies where another one should be is not taken for it: its header and its keys are that one's own.
#[test]
fn a_misplaced_block_is_not_believed() {
    const TEST: &str = "misplaced_block";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let base: Arc<MemoryDevice> = Arc::new(load(&image));
    let sound = by_us(&plain(&[base.clone() as Arc<dyn BlockDevice>]).unwrap()).0;
    let (blocks, sums) = {
        let editor = Editor::of_copy(&base).0;
        (editor.blocks(TreeId::FS), editor.blocks(TreeId::CSUM))
    };
    let middle = blocks[blocks.len() / 2];
    let mut sources = vec![sums[0], blocks[0]];
    sources.extend(blocks.iter().copied().filter(|at| *at != middle));
    for source in sources {
        let (editor, copy) = Editor::of_copy(&base);
        let bytes = editor.node(source).bytes().to_vec();
        editor.write_raw(middle, &bytes);
        let (sink, summary) = by_us(&plain(&[copy as Arc<dyn BlockDevice>]).unwrap());
        assert!(summary.unwrap().lost_blocks > 0, "{source}");
        let is_right = |(path, what): (&Vec<u8>, &(u64, u64))| sound.paths.get(path).is_none_or(|own| own == what);
        let lost = sink.paths.iter().filter(|one| !is_right(*one)).count();
        assert!(sink.paths.len() > 40 && lost < 20, "{source}: {lost} of {}", sink.paths.len());
    }
}
