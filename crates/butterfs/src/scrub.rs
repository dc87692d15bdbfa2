//! Scrub: verifies the whole filesystem, all copies included, and repairs bad copies.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::types::{DeviceId, SubvolumeId};
use butterfs_fs::Env;
use butterfs_fs::scrub::{self as engine, End, LaneProgress};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The interval of progress reports.
const INTERVAL: Duration = Duration::from_millis(250);

/// Whether a scrub repairs the damage that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Rewrite a bad copy from a good one.
    #[default]
    Rewrite,
    /// Only report it.
    ReportOnly,
}

/// The counts of a scrub on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubbedDevice {
    /// The device.
    pub id: DeviceId,
    /// Its path or name.
    pub name: String,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// Errors that were found.
    pub errors: u64,
    /// Errors that were repaired, or could be if nothing is written.
    pub corrected: u64,
    /// Errors that cannot be repaired.
    pub uncorrectable: u64,
    /// The reason why it ended early, if it did.
    pub failure: Option<String>,
}

/// The progress of a scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubProgress {
    /// Bytes that were verified on all devices.
    pub verified_bytes: u64,
    /// Bytes in use on all devices.
    pub total_bytes: u64,
    /// Errors so far.
    pub errors: u64,
}

/// Damage that a scrub found. `Display` is one sentence with the place, the cause and the outcome.
#[derive(Clone, Debug)]
pub struct Damage(Arc<engine::Finding>);

/// A part of a file that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedFile {
    /// The subvolume.
    pub subvolume: SubvolumeId,
    /// The path from the top level, if it could be found.
    pub path: Option<PathBuf>,
    /// The offset in the file.
    pub offset: u64,
    /// The length of the damaged part.
    pub len: u64,
}

/// The result of a scrub.
#[derive(Clone, Debug)]
pub struct ScrubReport {
    devices: Vec<ScrubbedDevice>,
    damage: Vec<Damage>,
    omitted: u64,
    is_complete: bool,
}

/// A scrub; made by [`Filesystem::scrub`].
#[must_use = "nothing is verified until `run` is called"]
pub struct ScrubRequest<'a> {
    filesystem: Filesystem,
    settings: engine::Settings,
    watch: Box<dyn FnMut(&ScrubProgress) -> ControlFlow<()> + 'a>,
}

impl Filesystem {
    /// Verifies every block in use, on all devices at once, and repairs bad copies.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::Repair;
    ///
    /// # fn main() -> butterfs::Result<()> {
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// let report = filesystem.scrub().repair(Repair::Rewrite).run()?;
    /// for damage in report.damage() {
    ///     println!("{damage}");
    ///     damage.files().iter().for_each(|file| println!("  {:?} at {}", file.path, file.offset));
    /// }
    /// assert!(report.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn scrub<'a>(&self) -> ScrubRequest<'a> {
        let settings = engine::Settings::default();
        ScrubRequest { filesystem: self.clone(), settings, watch: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl<'a> ScrubRequest<'a> {
    /// Sets whether bad copies are rewritten. A filesystem that is open read-only needs [`Repair::ReportOnly`].
    pub fn repair(mut self, repair: Repair) -> ScrubRequest<'a> {
        self.settings.read_only = repair == Repair::ReportOnly;
        self
    }

    /// Verifies this device, and others that are named so; by default all.
    pub fn device(mut self, id: DeviceId) -> ScrubRequest<'a> {
        self.settings.devices.push(id.engine());
        self
    }

    /// Calls `watch` several times a second; [`ControlFlow::Break`] ends the scrub. The report covers the part that was
    /// verified.
    pub fn on_progress(mut self, watch: impl FnMut(&ScrubProgress) -> ControlFlow<()> + 'a) -> ScrubRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Verifies, with threads on all processors, and returns when everything is done.
    pub fn run(mut self) -> Result<ScrubReport> {
        let engine = self.filesystem.shared.engine()?;
        let total_bytes = engine.scrub_totals().iter().map(|(_, bytes)| bytes).sum();
        let env = Env::system();
        let scrub = engine.start_scrub(self.settings, Vec::new())?;
        while !scrub.is_over() {
            scrub.wait_for_news(INTERVAL);
            let devices = scrub.progress(env.uptime()).devices;
            let sum = |of: fn(&LaneProgress) -> u64| devices.iter().map(of).sum();
            let (verified_bytes, errors) = (sum(|lane| lane.counters.bytes()), sum(|lane| lane.counters.errors()));
            if (self.watch)(&ScrubProgress { verified_bytes, total_bytes, errors }).is_break() {
                scrub.cancel();
            }
        }
        let progress = scrub.progress(env.uptime());
        Ok(ScrubReport {
            is_complete: progress.devices.iter().all(|lane| lane.end == Some(End::Finished)),
            devices: progress.devices.iter().map(ScrubbedDevice::of).collect(),
            damage: scrub.findings(0).into_iter().map(Damage).collect(),
            omitted: progress.omitted,
        })
    }
}

impl ScrubbedDevice {
    fn of(lane: &LaneProgress) -> ScrubbedDevice {
        let failure = match &lane.end {
            Some(End::Failed(why)) => Some(why.clone()),
            _ => None,
        };
        ScrubbedDevice {
            id: DeviceId::of(lane.device),
            name: lane.name.clone(),
            verified_bytes: lane.counters.bytes(),
            errors: lane.counters.errors(),
            corrected: lane.counters.corrected,
            uncorrectable: lane.counters.uncorrectable,
            failure,
        }
    }
}

impl ScrubReport {
    /// Returns true if everything was verified and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.is_complete && self.devices.iter().all(|device| device.errors == 0)
    }

    /// Returns true if all devices were verified to their end.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The counts of each device.
    pub fn devices(&self) -> &[ScrubbedDevice] {
        &self.devices
    }

    /// The damage, with the files it is in: up to 65,536 places.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The number of damaged places that are counted but not listed.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }
}

impl Damage {
    /// Returns true if a good copy was found: the bad one was rewritten, or could be.
    pub fn is_corrected(&self) -> bool {
        self.0.damage.outcome.is_corrected()
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        DeviceId::of(self.0.damage.device)
    }

    /// The offset on the device.
    pub fn physical(&self) -> u64 {
        self.0.damage.physical.get()
    }

    /// The logical address; none for a superblock.
    pub fn logical(&self) -> Option<u64> {
        self.0.damage.at.map(|at| at.get())
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.damage.len
    }

    /// The files that it belongs to, in every subvolume and snapshot; none for metadata.
    pub fn files(&self) -> Vec<DamagedFile> {
        let file = |range: &engine::FileRange| DamagedFile {
            subvolume: SubvolumeId(range.tree.get()),
            path: range.path.clone().map(crate::resolve::path_of),
            offset: range.offset,
            len: range.len,
        };
        self.0.files.iter().map(file).collect()
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.damage.fmt(f)
    }
}

impl fmt::Debug for ScrubRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrubRequest").field("settings", &self.settings).finish_non_exhaustive()
    }
}
