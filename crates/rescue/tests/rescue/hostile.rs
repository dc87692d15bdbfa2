//! Images that lie: a sentence or some files, in bounded memory and time.

use crate::saved::by_us;
use crate::{plain, scanned};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_testkit::memory;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;

/// KiB of memory that one image may take.
const MOST_KIB: u64 = 400 << 10;

#[test]
fn the_hostile_images_end_in_a_sentence_or_files() {
    const TEST: &str = "hostile_images";
    let Some(folder) = requirement::shared_data(TEST, "corpus/fuzz") else { return };
    if !requirement::programs(TEST, &["xz"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let watchdog = Watchdog::new(TEST, 300);
    let mut packed: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    packed.sort();
    assert_eq!(packed.len(), 31);
    let before = memory::start_measuring();
    for path in packed {
        watchdog.note(&path.display().to_string());
        let image = scratch.join("image");
        let command = format!("xz -dc {} | dd of={} conv=sparse bs=64k status=none", path.display(), image.display());
        butterfs_testkit::kernel::run_ok(60, "sh", &["-c", &command]);
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&image, &FileOptions::inspect()).unwrap());
        for wreck in [plain(std::slice::from_ref(&device)), scanned(&[device], &scratch)] {
            match wreck {
                Ok(wreck) => drop(by_us(&wreck)),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    let used = memory::peak_kib() - before;
    assert!(used < MOST_KIB, "{used} KiB");
}
