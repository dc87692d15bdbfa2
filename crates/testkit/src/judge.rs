//! Our own checker in tests: on image files and on devices in memory, alone or beside `btrfs check`.

use crate::kernel::{Verdict, judge_all};
use butterfs_check::{Options, Report, check};
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice};
use std::path::Path;
use std::sync::Arc;

/// The verdict with all data read.
pub fn judge(devices: Vec<Arc<dyn BlockDevice>>) -> Report {
    check(devices, &Options { check_data: true, ..Options::default() }, &|_| {})
}

/// The verdict on an image in memory.
pub fn judge_memory(device: &Arc<MemoryDevice>) -> Report {
    judge(vec![device.clone()])
}

/// The verdict on an image file that nobody writes.
pub fn judge_file(image: &Path) -> Report {
    judge_files(&[image])
}

/// The verdict on a filesystem on several image files that nobody writes.
pub fn judge_files(images: &[impl AsRef<Path>]) -> Report {
    let open = |image: &Path| FileDevice::open(image, &FileOptions::inspect()).expect("the image can be opened");
    judge(images.iter().map(|image| Arc::new(open(image.as_ref())) as Arc<dyn BlockDevice>).collect())
}

/// Panics with the findings unless the image is clean.
pub fn assert_clean(image: &Path) {
    let report = judge_file(image);
    assert!(report.is_clean(), "our judge of {}: {}", image.display(), text(&report));
}

/// The findings, one on a line.
pub fn text(report: &Report) -> String {
    report.findings.iter().map(|finding| format!("{} [{}]\n", finding, finding.id())).collect()
}

/// The verdicts of both checkers on an image.
#[derive(Debug)]
pub struct Both {
    /// Our own verdict.
    pub ours: Report,
    /// The verdict of every btrfs-progs there is.
    pub theirs: Vec<Verdict>,
}

impl Both {
    /// Asks both.
    pub fn of(image: &Path) -> Both {
        Both { ours: judge_file(image), theirs: judge_all(image) }
    }

    /// Whether all have the same verdict.
    pub fn agree(&self) -> bool {
        self.theirs.iter().all(|verdict| verdict.clean == self.ours.is_clean())
    }
}
