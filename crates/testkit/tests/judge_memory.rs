//! The checker's memory is bounded by what its options say, also while it finds out which references are wrong.

use butterfs_check::{Options, check};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Caller, InodeId, TreeId};
use butterfs_ondisk::KeyType;
use butterfs_ondisk::items::ExtentItem;
use butterfs_testkit::editor::Editor;
use butterfs_testkit::engine::{FORMATS, device, open};
use butterfs_testkit::memory::peak_kib;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const FILES: u64 = 60_000;
const IMAGE: &str = "BUTTERFS_JUDGED_IMAGE";
const CACHE: u64 = 2 << 20;
const RECORDS: usize = 20_000;
/// Twice the cache, the records, and what the fragments and the program itself take.
const MOST_KIB: u64 = (2 * CACHE + 56 * RECORDS as u64 + (10 << 20)) >> 10;

/// Not a test of its own: what the other one runs in a process whose memory is its own.
#[test]
fn child() {
    let Some(image) = std::env::var_os(IMAGE) else { return };
    let opened = FileDevice::open(&image, &FileOptions::inspect()).expect("it was made");
    let options = Options { cache_bytes: CACHE, reference_budget: RECORDS, threads: 2, ..Options::default() };
    let before = peak_kib();
    let report = check(vec![Arc::new(opened)], &options, &|_| {});
    println!("PEAK {} {} {}", peak_kib() - before, report.errors, report.bytes_used);
}

/// Kibibytes, errors, bytes in use.
fn judged(image: &Path) -> [u64; 3] {
    let program = std::env::current_exe().expect("a program knows its own path");
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(IMAGE, image);
    let output = command.output().expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("PEAK ")).unwrap_or_else(|| panic!("{text}")).1;
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("three numbers")
}

fn make(image: &Path) {
    FORMATS[0].make(&device(image));
    let filesystem = open(image, butterfs_fs::Options::default());
    let caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
    let top = InodeId::root_of(TreeId::FS);
    for number in 0..FILES {
        let file = filesystem.create(&caller, top, format!("file-{number}").as_bytes(), 0o644).expect("room").id;
        filesystem.write(file, 0, &[number as u8; 700], false).expect("room");
        filesystem.forget(file, 1);
    }
    filesystem.snapshot(TreeId::FS, top, b"snapshot", true).expect("room");
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn memory_is_bounded() {
    let _watchdog = Watchdog::new("memory_is_bounded", 300);
    let scratch = Scratch::new("judge-memory");
    let image = scratch.sparse_file("image", 1 << 30);
    make(&image);
    let [peak, errors, used] = judged(&image);
    assert_eq!(errors, 0);
    assert!(used > (3 * MOST_KIB) << 10, "{used} bytes of metadata are too few to show anything");
    assert!(peak <= MOST_KIB, "{peak} KiB, at most {MOST_KIB}");
    let editor = Editor::open(vec![device(&image) as Arc<dyn BlockDevice>]);
    let is_block = |item: butterfs_testkit::editor::Item<'_>| item.is_inner(KeyType::METADATA_ITEM);
    editor.change(TreeId::EXTENT, is_block, |extent: &mut ExtentItem| extent.refs = (extent.refs.get() + 1).into());
    drop(editor);
    let [peak, errors, _] = judged(&image);
    assert_ne!(errors, 0);
    assert!(peak <= MOST_KIB, "{peak} KiB while it explains, at most {MOST_KIB}");
}
