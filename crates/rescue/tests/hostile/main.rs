//! Images that lie: a sentence or some files, in bounded memory and time. A program of its own, because memory is
//! measured of the whole process.

#[path = "../rescue/opened.rs"]
mod opened;
#[allow(dead_code)] // a part is used
#[path = "../rescue/saved.rs"]
mod saved;

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_rescue::roots::Roots;
use butterfs_rescue::{patch, roots, undelete};
use butterfs_testkit::memory;
use butterfs_testkit::mutants::{mutant, shapes};
use butterfs_testkit::progress::Progress;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use opened::{plain, scanned};
use saved::by_us;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    let measured = memory::start_measuring();
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
    let used = measured.taken_kib();
    assert!(used < MOST_KIB, "{used} KiB");
}

/// The longest that one mutant may take.
const LONGEST: Duration = Duration::from_secs(20);

/// Mutants: one to three fields lie under good checksums. Everything that reads them ends, in bounded memory and time.
/// Every one is scanned and opened with its map; those whose seed is a multiple of `plain_too` also without.
fn mutants(seeds: std::ops::Range<u64>, plain_too: u64) {
    let scratch = Scratch::new("rescued_mutants");
    let mut watchdog = Watchdog::new("rescued_mutants", 3600);
    let mut progress = Progress::new("rescued_mutants", seeds.end - seeds.start);
    // The images that are changed stay in memory.
    assert!(!shapes().is_empty());
    let measured = memory::start_measuring();
    let (mut opened, mut restored) = (0, 0);
    for seed in seeds {
        if seed.is_multiple_of(1000) {
            watchdog = Watchdog::new("rescued_mutants", 3600);
        }
        let (devices, outcome) = mutant(&mut Rng::new(seed));
        watchdog.note(&format!("seed {seed}: {outcome:?}"));
        let start = Instant::now();
        let own = memory::peak_kib();
        let without = seed.is_multiple_of(plain_too).then(|| plain(&devices));
        for wreck in without.into_iter().chain([scanned(&devices, &scratch)]).flatten() {
            opened += 1;
            restored += by_us(&wreck).0.contents.len();
            roots::all(&wreck);
            // Readers of plans read the same trees; whether they find anything wrong does not matter here.
            let _ = undelete::find(&wreck, &Roots::assemble(&wreck), &undelete::Wanted::default());
            let _ = (patch::chunk_tree::plan(&wreck), patch::sizes::plan(&wreck));
            patch::log::contents(&wreck);
        }
        if memory::peak_kib() > own + (20 << 10) {
            progress.finding(&format!("seed {seed}: {} KiB more: {outcome:?}", memory::peak_kib() - own));
        }
        assert!(start.elapsed() < LONGEST, "seed {seed}: {:?}: {outcome:?}", start.elapsed());
        progress.step();
    }
    let used = measured.taken_kib();
    println!("{opened} times opened, {restored} files, {used} KiB");
    assert!(used < MOST_KIB && restored > 0, "{used} KiB");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn mutants_end_in_a_sentence_or_files() {
    let first = number("BUTTERFS_FUZZ_SEED").unwrap_or(1);
    mutants(first..first + 24 * number("BUTTERFS_FUZZ").unwrap_or(1), 1);
}

#[test]
#[ignore = "long: cargo xtask soak rescue-mutants"]
fn many_mutants_end_in_a_sentence_or_files() {
    let first = number("BUTTERFS_FUZZ_SEED").unwrap_or(1_000_000);
    mutants(first..first + number("BUTTERFS_RESCUES").unwrap_or(20_000), 8);
}
