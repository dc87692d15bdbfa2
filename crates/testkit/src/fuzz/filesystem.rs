//! Operations on a filesystem against `ModelFs`: same answers, same content after a reopening, and the checker clean.
//!
//! Input: the format, then whatever the generator of workloads draws from.

use crate::engine::FORMATS;
use crate::fingerprint::{Compare, Fingerprint, differences};
use crate::judge::{judge_memory, text};
use crate::library::Library;
use crate::model::ModelFs;
use crate::operation::{Op, OperationTarget};
use crate::workload::{Generator, Shape, run as run_workload};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Filesystem, Options};
use std::sync::{Arc, OnceLock};

/// Bytes of input that an operation takes, about.
const BYTES_PER_OPERATION: usize = 12;
const MOST_OPERATIONS: usize = 400;

pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = crate::rng::Rng::new(57);
    let one = |rng: &mut crate::rng::Rng, number: u8| {
        let mut seed = vec![0; 1500 + 300 * usize::from(number)];
        rng.fill(&mut seed);
        seed[0] = number;
        seed
    };
    (0..12).map(|number| one(&mut rng, number)).collect()
}

/// Empty filesystems, one of each format.
fn empty(number: usize) -> MemoryDevice {
    static EMPTY: OnceLock<Vec<MemoryDevice>> = OnceLock::new();
    let make = || {
        let all = FORMATS.iter().map(|format| {
            let disk = Arc::new(MemoryDevice::new(256 << 20));
            format.make(&(disk.clone() as Arc<dyn BlockDevice>));
            disk.snapshot()
        });
        all.collect()
    };
    EMPTY.get_or_init(make)[number].snapshot()
}

pub fn run(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let disk = Arc::new(empty(usize::from(*first) % FORMATS.len()));
    let options = || Options { commit_interval_secs: 3600, node_cache_bytes: 1 << 20, ..Options::default() };
    let open = || Filesystem::open(vec![disk.clone()], options(), Env::system()).expect("a sound filesystem");
    let mut model = ModelFs::default();
    let mut generator = Generator::from_bytes(rest, Shape::SMALL);
    let count = (rest.len() / BYTES_PER_OPERATION).min(MOST_OPERATIONS);
    for part in [count / 2, count - count / 2] {
        let filesystem = open();
        let mut library = Library::new(&filesystem);
        run_workload(&mut generator, part, &mut model, &mut library).unwrap_or_else(|found| panic!("{found:?}"));
        for handle in model.handles().keys().copied().collect::<Vec<u32>>() {
            let close = Op::Close { handle };
            assert_eq!(model.apply(&close), library.apply(&close));
        }
        drop(library);
        filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    }
    let filesystem = open();
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{error}"));
    let found = differences(&Fingerprint::of_model(&model), &shown, Compare::MODEL);
    assert!(found.is_empty(), "{found:#?}");
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    let report = judge_memory(&disk);
    assert!(report.is_clean(), "{}", text(&report));
}
