//! Verifying a filesystem that is not open.

use crate::device::{Device, of_engine, open_all};
use crate::error::Result;
use crate::types::{Access, Uuid};
use butterfs_check as checker;
use std::fmt;

/// Whether a check reads the data of files and compares it with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DataCheck {
    /// Only the metadata is read.
    #[default]
    Skip,
    /// All data is read too.
    Verify,
}

/// Checks a whole filesystem. It changes nothing, and shares no code with the part of this library that writes.
///
/// ```
/// # use butterfs::{Device, Filesystem, Mkfs};
/// use butterfs::{Check, DataCheck};
///
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// let report = Check::new().device(disk).data(DataCheck::Verify).run()?;
/// for finding in report.findings() {
///     println!("{finding}");
/// }
/// assert!(report.is_clean());
/// # Ok::<(), butterfs::Error>(())
/// ```
#[must_use = "nothing is checked until `run` is called"]
pub struct Check<'a> {
    devices: Vec<Device>,
    options: checker::Options,
    watch: Box<dyn Fn(&CheckProgress) + Sync + 'a>,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The name of the stage.
    pub stage: &'static str,
    /// The number of the stage, from 1.
    pub number: usize,
    /// The number of stages.
    pub stages: usize,
    /// Tree blocks that were read so far.
    pub blocks: u64,
    /// Bytes of data that were read so far.
    pub data_bytes: u64,
    /// The percentage of this stage that is done, if it can be known.
    pub percent: Option<u8>,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The filesystem works, and the kernel or the next commit corrects it.
    Warning,
    /// The filesystem is inconsistent or has lost something.
    Error,
}

/// An inconsistency that a check found. `Display` is one sentence with the place and the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding(checker::Finding);

/// The result of a check.
#[derive(Clone, Debug)]
pub struct CheckReport {
    findings: Vec<Finding>,
    report: checker::Report,
}

impl Default for Check<'_> {
    fn default() -> Self {
        Check::new()
    }
}

impl<'a> Check<'a> {
    /// No devices, and the default options.
    pub fn new() -> Check<'a> {
        // The checker compares sums of hashes. With a secret seed nobody can prepare an image that deceives them.
        let secret = butterfs_fs::Env::system().uuid();
        let seed = u64::from_le_bytes(std::array::from_fn(|at| secret[at] ^ secret[at + 8]));
        let options = checker::Options { seed, ..checker::Options::default() };
        Check { devices: Vec::new(), options, watch: Box::new(|_| {}) }
    }

    /// Adds a device. A check needs all devices of the filesystem.
    pub fn device(mut self, device: impl Into<Device>) -> Check<'a> {
        self.devices.push(device.into());
        self
    }

    /// Sets whether data is read.
    pub fn data(mut self, data: DataCheck) -> Check<'a> {
        self.options.check_data = data == DataCheck::Verify;
        self
    }

    /// Bytes of tree blocks that are kept in memory. 256 MiB by default.
    pub fn cache_bytes(mut self, bytes: u64) -> Check<'a> {
        self.options.cache_bytes = bytes;
        self
    }

    /// Calls `watch` when a stage begins and from time to time, from several threads.
    pub fn on_progress(mut self, watch: impl Fn(&CheckProgress) + Sync + 'a) -> Check<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Checks. Problems of the filesystem are findings of the report; an error means that a device cannot be opened.
    pub fn run(self) -> Result<CheckReport> {
        let devices = of_engine(&open_all(&self.devices, Access::ReadOnly)?);
        let report = checker::check(devices, &self.options, &|progress| (self.watch)(&CheckProgress::of(progress)));
        let findings = report.findings.iter().cloned().map(Finding).collect();
        Ok(CheckReport { findings, report })
    }
}

impl CheckProgress {
    fn of(progress: checker::Progress) -> CheckProgress {
        let stages = checker::Stage::ALL;
        let number = stages.iter().position(|stage| *stage == progress.stage).map_or(0, |at| at + 1);
        let checker::Progress { stage, blocks, data_bytes, percent, .. } = progress;
        CheckProgress { stage: stage.title(), number, stages: stages.len(), blocks, data_bytes, percent }
    }
}

impl CheckReport {
    /// Returns true if there is no error. Warnings and [notes](CheckReport::notes) are possible.
    pub fn is_clean(&self) -> bool {
        self.report.is_clean()
    }

    /// Everything that was found, up to 10,000 findings.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The number of findings that are errors, also of those that are not kept.
    pub fn errors(&self) -> u64 {
        self.report.errors
    }

    /// The number of findings that are warnings.
    pub fn warnings(&self) -> u64 {
        self.report.warnings
    }

    /// Parts that were not checked, each with the reason.
    pub fn notes(&self) -> &[String] {
        &self.report.notes
    }

    /// The UUID of the filesystem.
    pub fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.report.fsid)
    }

    /// Bytes that extents use.
    pub fn used_bytes(&self) -> u64 {
        self.report.bytes_used
    }
}

impl Finding {
    /// A word that names the kind of finding and never changes its meaning, such as `extent-unused`.
    pub fn id(&self) -> &'static str {
        self.0.id()
    }

    /// The severity.
    pub fn severity(&self) -> Severity {
        match self.0.severity() {
            checker::Severity::Warning => Severity::Warning,
            checker::Severity::Error => Severity::Error,
        }
    }

    /// The finding as one JSON object, with all its values.
    pub fn to_json(&self) -> String {
        self.0.to_json()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("devices", &self.devices).finish_non_exhaustive()
    }
}
