//! One state that a crash left: opened, judged, and compared with what is allowed.

use crate::meanwhile::environment;
use crate::plan::Plan;
use butterfs_check::{Finding, Report};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::library::Library;
use butterfs_testkit::promise::{History, through};
use std::sync::Arc;

/// How much is asked about a state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thorough {
    /// Recovery is ended by a commit, and the disk is judged again.
    pub recovered: bool,
}

/// Judges a disk and returns it as it is after recovery, or says what is wrong with it.
pub fn judge(plan: &Plan, disk: &MemoryDevice, allowed: &History, how: Thorough) -> Result<(), String> {
    clean(disk).map_err(|what| format!("as the crash left it: {what}"))?;
    let recovering = Arc::new(disk.snapshot());
    let device: Arc<dyn BlockDevice> = recovering.clone();
    let options = Options { policies: Default::default(), ..plan.options() };
    let filesystem = Filesystem::open(vec![device], options, environment(plan.seed));
    let filesystem = filesystem.map_err(|error| format!("it does not open: {error}"))?;
    let shown = Fingerprint::of_library(&filesystem).map_err(|what| format!("it cannot be read: {what}"))?;
    let read = through(Library::new(&filesystem));
    allowed.explain(&shown, &read)?;
    if how.recovered {
        while filesystem.clean_once().map_err(|error| format!("cleaning fails: {error}"))? {}
        filesystem.shutdown().map_err(|error| format!("it cannot be closed: {error}"))?;
        clean(&recovering).map_err(|what| format!("after recovery: {what}"))?;
    }
    Ok(())
}

/// Asks the judge about a disk, all data checksums included.
pub fn clean(disk: &MemoryDevice) -> Result<(), String> {
    let options = butterfs_check::Options {
        check_data: true,
        reference_budget: 1 << 16,
        cache_bytes: 4 << 20,
        threads: 1,
        ..butterfs_check::Options::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(disk.snapshot());
    let report: Report = butterfs_check::check(vec![device], &options, &|_| {});
    // A torn primary superblock is what the second copy is for.
    let bad = report.findings.iter().filter(|finding| is_error(finding) && !is_torn_superblock(finding));
    let said: Vec<String> = bad.take(8).map(ToString::to_string).collect();
    if said.is_empty() { Ok(()) } else { Err(format!("{} errors: {said:#?}", report.errors)) }
}

fn is_error(finding: &Finding) -> bool {
    let info = butterfs_check::TABLE.iter().find(|info| info.id == finding.id());
    info.is_none_or(|info| info.severity == butterfs_check::Severity::Error)
}

fn is_torn_superblock(finding: &Finding) -> bool {
    matches!(finding, Finding::SuperblockPrimary { .. })
}
