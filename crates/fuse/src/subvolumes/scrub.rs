//! Questions about scrub, error counters and health.
//!
//! A scrub belongs to whoever asked for it: it is cancelled when the answer is not wanted any more. Only those who may
//! do everything may ask: findings have names of files that others may not read.

use super::perform::{Answering, Each, malformed};
use super::{Refused, records};
use butterfs_control::question::{self, MOST_SCRUB_RANGES};
use butterfs_control::{
    DamagedFile, DeviceHealth, DeviceRecord, Health, HealthRecord, ScrubDevice, ScrubEarlier, ScrubEnd, ScrubFinding,
    ScrubNews, ScrubOutcome, ScrubState,
};
use butterfs_fs::filesystem::DeviceCondition;
use butterfs_fs::scrub::{
    Cause, Content, Counters, End, Finding, IoClass, LaneProgress, Outcome, Priority, Progress, Scrub, Selection,
    Settings,
};
use butterfs_fs::{DeviceId, Errno, Filesystem};
use std::time::{Duration, Instant};

/// The interval of progress reports to the asker.
const EACH: Duration = Duration::from_secs(1);
/// Polling interval for findings.
const LOOK: Duration = Duration::from_millis(100);

impl Answering<'_> {
    pub(super) fn start_scrub(
        &self,
        question: &question::StartScrub,
        each: Each<'_, ScrubNews>,
    ) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        if question.read_only {
            self.inode(question.through)?
        } else {
            self.changed(question.through)?
        };
        let filesystem = self.filesystem();
        let settings = self.settings(question)?;
        let earlier = question.earlier.iter().map(lane).collect();
        let limits = filesystem.scrub_limits();
        let scrub = filesystem.start_scrub(settings, earlier)?;
        // A limit of this run only, so the next one has those that are set.
        if let Some(limit) = question.limit {
            limits.iter().for_each(|(id, ..)| scrub.set_limit(*id, limit));
        }
        let told = tell(filesystem, &scrub, each);
        if told.is_err() {
            scrub.cancel();
        }
        told
    }

    fn settings(&self, question: &question::StartScrub) -> Result<Settings, Refused> {
        let class = IoClass::from_number(question.priority_class).ok_or_else(malformed)?;
        if question.ranges.len() > MOST_SCRUB_RANGES {
            return Err(malformed());
        }
        let only = question.only.iter().map(|inode| self.inode(*inode)).collect::<Result<Vec<_>, _>>()?;
        let mut ranges: Vec<_> = question.ranges.iter().map(|(from, to)| *from..*to).collect();
        if !only.is_empty() {
            ranges.extend(self.filesystem().scrub_selection(&only)?.into_ranges());
        }
        let is_limited = !only.is_empty() || !question.ranges.is_empty();
        Ok(Settings {
            read_only: question.read_only,
            devices: question.devices.iter().copied().map(DeviceId).collect(),
            priority: Priority { class, level: question.priority_level.min(7) },
            only: is_limited.then(|| Selection::of(ranges)),
        })
    }

    pub(super) fn scrub_state(&self) -> Result<ScrubState, Refused> {
        self.access().must_be_privileged()?;
        Ok(state_of(self.filesystem()))
    }

    pub(super) fn cancel_scrub(&self, question: &question::CancelScrub) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.inode(question.through)?;
        Ok(self.filesystem().cancel_scrub()?)
    }

    pub(super) fn limit_scrub(&self, question: &question::LimitScrub) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.inode(question.through)?;
        let filesystem = self.filesystem();
        let devices: Vec<DeviceId> = match question.device {
            Some(device) => vec![DeviceId(device)],
            None => filesystem.scrub_limits().into_iter().map(|(id, ..)| id).collect(),
        };
        Ok(devices.into_iter().try_for_each(|id| filesystem.limit_scrub(id, question.bytes_per_sec))?)
    }

    pub(super) fn reset_errors(
        &self,
        question: &question::ResetDeviceErrors,
        each: Each<'_, DeviceRecord>,
    ) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.changed(question.through)?;
        let before = self.filesystem().reset_device_stats(question.device.map(DeviceId))?;
        before.into_iter().map(records::device).try_for_each(each)
    }

    pub(super) fn health(&self) -> Result<HealthRecord, Refused> {
        self.access().must_be_privileged()?;
        Ok(health_of(self.filesystem()))
    }
}

/// Tells how far a scrub is, and what it finds, until it is over.
fn tell(filesystem: &Filesystem, scrub: &Scrub, each: Each<'_, ScrubNews>) -> Result<(), Refused> {
    let (mut told, mut last) = (0, None::<Instant>);
    loop {
        // Looked at first: what comes before the end is then told.
        let is_over = scrub.is_over();
        for finding in scrub.findings(told) {
            told += 1;
            each(ScrubNews::Finding(finding_of(&finding)))?;
        }
        if is_over || last.is_none_or(|last| last.elapsed() >= EACH) {
            last = Some(Instant::now());
            each(ScrubNews::State(state_of(filesystem)))?;
        }
        if is_over {
            return Ok(());
        }
        scrub.wait_for_news(LOOK);
    }
}

/// The progress of the scrub of a filesystem, or how the last one ended.
fn state_of(filesystem: &Filesystem) -> ScrubState {
    let fsid = filesystem.superblock().fsid;
    let (totals, limits) = (filesystem.scrub_totals(), filesystem.scrub_limits());
    let progress = filesystem.scrub_progress();
    let devices = limits.into_iter().zip(totals).map(|((id, name, limit), (_, total_bytes))| {
        let lane = progress.iter().flat_map(|progress| &progress.devices).find(|lane| lane.device == id);
        let idle = ScrubDevice { id: id.0, name, total_bytes, limit, ..ScrubDevice::default() };
        lane.map_or(idle.clone(), |lane| device_of(lane, idle))
    });
    let devices = devices.collect();
    let run =
        progress.unwrap_or(Progress { devices: Vec::new(), read_only: false, findings: 0, omitted: 0, is_over: true });
    let (read_only, findings, omitted) = (run.read_only, run.findings, run.omitted);
    ScrubState { fsid, is_running: !run.is_over, read_only, findings, omitted, devices }
}

fn device_of(lane: &LaneProgress, idle: ScrubDevice) -> ScrubDevice {
    let counters = lane.counters.named().into_iter().filter(|(_, value)| *value != 0);
    let mut counters: Vec<(String, u64)> = counters.map(|(name, value)| (name.to_owned(), value)).collect();
    let own = [("unchecked_parity", lane.counters.unchecked_parity), ("parity_errors", lane.counters.parity_errors)];
    counters.extend(own.iter().filter(|(_, value)| *value > 0).map(|(name, value)| ((*name).to_owned(), *value)));
    ScrubDevice {
        counters,
        started: lane.started,
        resumed: lane.resumed,
        duration_secs: lane.duration,
        limit: lane.limit,
        end: match &lane.end {
            None => ScrubEnd::Running,
            Some(End::Finished) => ScrubEnd::Finished,
            Some(End::Cancelled) => ScrubEnd::Cancelled,
            Some(End::Failed(why)) => ScrubEnd::Failed(why.clone()),
        },
        ..idle
    }
}

/// The position at which an earlier run ended.
fn lane(device: &ScrubEarlier) -> LaneProgress {
    let mut counters = Counters::default();
    for ((name, _), value) in Counters::default().named().iter().zip(&device.counters) {
        counters.set(name, *value);
    }
    LaneProgress {
        device: DeviceId(device.id),
        name: String::new(),
        counters,
        started: device.started,
        resumed: 0,
        duration: device.duration_secs,
        end: device.is_finished.then_some(End::Finished),
        limit: 0,
    }
}

fn finding_of(Finding { damage, files, trees, is_cut }: &Finding) -> ScrubFinding {
    let content = match damage.content {
        Content::Data => "data",
        Content::TreeBlock(_) => "tree block",
        Content::Superblock => "superblock",
        Content::Parity => "parity",
    };
    let file = |file: &butterfs_fs::scrub::FileRange| DamagedFile {
        tree: file.tree.0,
        ino: file.ino.0,
        offset: file.offset,
        len: file.len,
        path: file.path.clone().unwrap_or_default(),
    };
    ScrubFinding {
        device: damage.device.0,
        device_name: damage.device_name.clone(),
        physical: damage.physical.0,
        logical: damage.at.map(|at| at.0),
        len: damage.len,
        content: content.to_owned(),
        cause: damage.cause.to_string(),
        outcome: match (&damage.outcome, &damage.cause) {
            (Outcome::Repaired(_) | Outcome::Rewritten | Outcome::Recomputed, _) => ScrubOutcome::Repaired,
            (Outcome::Repairable(_) | Outcome::Recomputable, _) => ScrubOutcome::Repairable,
            (Outcome::Noticed, _) | (_, Cause::CopiesDiffer) => ScrubOutcome::Noticed,
            (Outcome::Lost(_), _) => ScrubOutcome::Lost,
        },
        outcome_text: damage.outcome.to_string(),
        files: files.iter().map(file).collect(),
        trees: trees.iter().map(|tree| tree.0).collect(),
        is_cut: *is_cut,
    }
}

fn health_of(filesystem: &Filesystem) -> HealthRecord {
    let superblock = filesystem.superblock();
    let label = superblock.label.iter().copied().take_while(|byte| *byte != 0).collect();
    let conditions = filesystem.device_conditions();
    let device = |stats: (DeviceId, String, butterfs_fs::DeviceStats)| {
        let condition = conditions.iter().find(|(id, _)| *id == stats.0).map(|(_, condition)| *condition);
        device_health(records::device(stats), condition.unwrap_or(DeviceCondition::Whole))
    };
    let devices = filesystem.device_stats().into_iter().map(device).collect();
    let scrub = filesystem.last_scrub().map(|_| state_of(filesystem));
    let mut health = HealthRecord {
        fsid: superblock.fsid,
        label,
        devices,
        missing: filesystem.missing_devices(),
        stopped: filesystem.stopped(),
        scrub,
        ..HealthRecord::default()
    };
    judge(&mut health);
    health
}

fn device_health(errors: DeviceRecord, condition: DeviceCondition) -> DeviceHealth {
    let counted = [
        errors.write_errors,
        errors.read_errors,
        errors.flush_errors,
        errors.corruption_errors,
        errors.generation_errors,
    ];
    let (state, condition) = match condition {
        DeviceCondition::Failed => (Health::Faulted, "failed"),
        DeviceCondition::Stale => (Health::Degraded, "stale"),
        DeviceCondition::Whole if counted.iter().any(|count| *count > 0) => (Health::Degraded, "whole"),
        DeviceCondition::Whole => (Health::Online, "whole"),
    };
    DeviceHealth { errors, state, condition: condition.to_owned() }
}

/// Says what is the matter, and what to do about it.
fn judge(health: &mut HealthRecord) {
    let mut found: Vec<(Health, String, &str)> = Vec::new();
    if let Some(why) = &health.stopped {
        let meaning = format!("the filesystem stopped writing after an error: {why}");
        found.push((Health::Faulted, meaning, "unmount, check the devices and run 'butterfs check'"));
    }
    if health.missing > 0 {
        let meaning = format!("{} devices are missing; data has fewer copies than it should", health.missing);
        found.push((Health::Degraded, meaning, "attach the missing devices and mount again, or replace them"));
    }
    for device in &health.devices {
        let (name, id) = (&device.errors.name, device.errors.id);
        match device.condition.as_str() {
            "failed" => found.push((
                Health::Degraded,
                format!("{name} (devid {id}) failed; nothing is written to it any more"),
                "replace the device",
            )),
            "stale" => found.push((
                Health::Degraded,
                format!("{name} (devid {id}) has missed writes and is being brought up to date"),
                "wait; if it stays so, look at the system log",
            )),
            _ if device.state != Health::Online => found.push((
                Health::Degraded,
                format!("{name} (devid {id}) has counted errors"),
                "run 'butterfs scrub start', then 'butterfs device stats -z' to begin anew",
            )),
            _ => {}
        }
    }
    if let Some(scrub) = &health.scrub {
        let lost: u64 = scrub.devices.iter().map(|device| counter(device, "uncorrectable_errors")).sum();
        if lost > 0 {
            let meaning = format!("the last scrub found {lost} sectors that no copy is good of");
            let action = "restore the files that 'butterfs scrub status --files' names from a backup, or delete them";
            found.push((Health::Faulted, meaning, action));
        }
    }
    health.state = found.iter().map(|(state, ..)| *state).max().unwrap_or_default();
    for (_, meaning, action) in found {
        health.meaning.push(meaning);
        if !health.action.iter().any(|known| known == action) {
            health.action.push(action.to_owned());
        }
    }
}

fn counter(device: &ScrubDevice, name: &str) -> u64 {
    device.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
}

/// The refusal of a scrub while another one runs.
pub const IN_PROGRESS: i32 = Errno::EINPROGRESS.0;
/// The refusal to cancel what does not run.
pub const NOT_RUNNING: i32 = Errno::ENOTCONN.0;
