//! The plan: what is wrong, what a repair would do about it, what is lost, and the bytes that it would write. The
//! repair is run in full on an overlay and checked there, so applying a plan is writing bytes that are known already.

use crate::action::{Action, Pass};
use crate::overlay::{Change, Overlay};
use crate::round;
use crate::start::{self, Start};
use crate::table::{Means, Repair, repair_of};
use crate::trouble::{Result, Trouble};
use butterfs_check::{Finding, Options as CheckOptions, Report, Severity, check};
use butterfs_device::BlockDevice;
use butterfs_ondisk::{DeviceId, Superblock, TreeId};
use butterfs_volume::Volume;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many rounds in a row may leave as many findings as there were: what one round restores, the next one may find to
/// be damaged.
const MOST_IDLE: usize = 4;

/// The orders for a repair.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The checker's.
    pub check: CheckOptions,
    /// The superblock or roots from which the filesystem is read.
    pub start: Start,
    /// Make the checksum tree anew from the data.
    pub init_csum_tree: bool,
    /// Make the extent tree anew from the other trees.
    pub init_extent_tree: bool,
    /// Make the free space cache of this version anew.
    pub clear_space_cache: Option<u8>,
    /// Remove the UUID tree, which the next mount for writing makes anew.
    pub clear_uuid_tree: bool,
    /// Remove what the inode number cache of old kernels has left in the subvolumes.
    pub clear_ino_cache: bool,
    /// Do what is demanded and repair nothing else.
    pub only_demands: bool,
    /// Compute checksums that are missing from what the devices hold.
    pub accept_data: bool,
    /// Drop a log that could still be replayed.
    pub drop_log: bool,
    /// Seconds since 1970.
    pub now: i64,
}

impl Options {
    /// Whether something is to be done even where nothing is wrong.
    fn demands(&self) -> bool {
        let anew = self.init_csum_tree || self.init_extent_tree || self.clear_space_cache.is_some();
        let cleared = self.clear_uuid_tree || self.clear_ino_cache;
        anew || cleared || self.drop_log || self.start != Start::default()
    }
}

/// A part of a plan begins: its round, counted from 1, and what it does.
pub type Told<'a> = &'a dyn Fn(usize, &str);

/// A plan.
#[derive(Debug)]
pub struct Plan {
    /// The report of the first check.
    pub before: Report,
    /// The report of a check after the repair.
    pub after: Report,
    /// The steps of the repair, in order.
    pub actions: Vec<Action>,
    /// The subvolumes that are not deleted, as far as a round has read them.
    pub subvolumes: Vec<TreeId>,
    /// Why it could not do more.
    pub trouble: Option<Trouble>,
    /// The changes by device, in the order in which they were given.
    pub(crate) changes: Vec<Vec<Change>>,
    /// The superblock that rules now.
    pub(crate) old: Superblock,
    /// Rounds that it took.
    pub rounds: usize,
    /// See [`Estimate`].
    pub estimate: Estimate,
}

/// The cost of applying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes that are written on the devices.
    pub write_bytes: u64,
    /// Bytes of the undo file.
    pub undo_bytes: u64,
    /// Memory that the plan took for references, and holds for what is written.
    pub memory_bytes: u64,
    /// How long making the plan took.
    pub planned_in: Duration,
    /// How long applying takes, at 50 MB/s.
    pub apply_in: Duration,
}

impl Plan {
    /// Whether a check after the repair finds no error.
    pub fn is_clean(&self) -> bool {
        self.after.is_clean() && self.trouble.is_none()
    }

    /// The generation that the filesystem has before the repair.
    pub fn generation(&self) -> u64 {
        self.old.generation.get()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.iter().all(Vec::is_empty)
    }

    /// Findings that stay, each with its line of the table.
    pub fn left(&self) -> Vec<(&Finding, Option<&'static Repair>)> {
        self.after.findings.iter().map(|finding| (finding, repair_of(finding.id()))).collect()
    }
}

/// Makes a plan for the filesystem on `devices`, which are all of its devices. Nothing is written.
pub fn plan(devices: &[Arc<dyn BlockDevice>], options: &Options, told: Told<'_>) -> Result<Plan> {
    let begun = Instant::now();
    let overlays: Vec<Arc<Overlay>> = devices.iter().map(|device| Arc::new(Overlay::new(device.clone()))).collect();
    let originals = start::superblocks(devices);
    start::enter(&overlays, &options.start)?;
    told(1, "checking");
    let before = judge(&overlays, options);
    let mut plan = Plan {
        after: before.clone(),
        before,
        actions: Vec::new(),
        subvolumes: Vec::new(),
        trouble: None,
        changes: Vec::new(),
        old: *start::newest(&originals).ok_or_else(|| Trouble::new("no device has a valid superblock"))?,
        rounds: 0,
        estimate: Estimate::default(),
    };
    plan.actions.extend(left_behind(&overlays, &originals));
    refuse_log(&overlays, &plan.before, options)?;
    refuse_behind(devices, &plan.before)?;
    let mut references = 0;
    let (mut demands, mut idle) = (options.demands(), 0);
    let is_left = |plan: &Plan| !options.only_demands && plan.after.findings.iter().any(can_be_repaired(options));
    // Checksums that are missing may stand under a wrong key, which the first round sees.
    let is_lost = |finding: &Finding| matches!(finding, Finding::ChecksumMissing { .. });
    let may_be_misplaced = !options.only_demands && plan.after.findings.iter().any(is_lost);
    while idle < MOST_IDLE && (demands || is_left(&plan) || (may_be_misplaced && plan.rounds == 0)) {
        told(plan.rounds + 1, "repairing");
        let once = Options { start: Start::default(), ..options.clone() };
        let wishes = if plan.rounds == 0 { once } else { without_demands(options) };
        let findings = if options.only_demands { &[] } else { &plan.after.findings[..] };
        let round = match round::run(&overlays, findings, &wishes, &originals) {
            Ok(round) => round,
            Err(trouble) => {
                plan.trouble = Some(trouble);
                break;
            }
        };
        if round.actions.is_empty() && !demands && !is_left(&plan) {
            break;
        }
        plan.rounds += 1;
        demands = false;
        references = references.max(round.references);
        // Each round comes to what must stay as it is.
        let is_new = |action: &Action| !plan.actions.contains(action);
        let new: Vec<Action> = round.actions.into_iter().filter(is_new).collect();
        plan.actions.extend(new);
        plan.subvolumes = round.subvolumes;
        told(plan.rounds, "checking again");
        let after = judge(&overlays, options);
        let total = |report: &Report| report.errors + report.warnings;
        idle = if total(&after) < total(&plan.after) { 0 } else { idle + 1 };
        let same = after.findings == plan.after.findings;
        plan.after = after;
        if same {
            break;
        }
    }
    for overlay in &overlays {
        plan.changes.push(if plan.rounds > 0 { overlay.changes()? } else { Vec::new() });
    }
    plan.estimate = estimate(&plan.changes, references, begun.elapsed());
    Ok(plan)
}

/// The devices as they are entered by `start`, for a check: the superblock is changed in memory only.
pub fn entered(devices: Vec<Arc<dyn BlockDevice>>, start: &Start) -> Result<Vec<Arc<dyn BlockDevice>>> {
    if *start == Start::default() {
        return Ok(devices);
    }
    let overlays: Vec<Arc<Overlay>> = devices.into_iter().map(|device| Arc::new(Overlay::new(device))).collect();
    start::enter(&overlays, start)?;
    Ok(overlays.into_iter().map(|overlay| overlay as Arc<dyn BlockDevice>).collect())
}

fn without_demands(options: &Options) -> Options {
    let (check, start) = (options.check.clone(), Start::default());
    Options { check, start, accept_data: options.accept_data, now: options.now, ..Options::default() }
}

fn can_be_repaired(options: &Options) -> impl Fn(&Finding) -> bool {
    move |finding| match repair_of(finding.id()).map(|repair| repair.means) {
        Some(Means::Automatic | Means::WhereCertain) => true,
        Some(Means::Consent) => options.accept_data || options.init_csum_tree,
        Some(Means::Instead) | None => false,
    }
}

fn judge(overlays: &[Arc<Overlay>], options: &Options) -> Report {
    let devices = overlays.iter().map(|overlay| Arc::clone(overlay) as Arc<dyn BlockDevice>).collect();
    check(devices, &CheckOptions { super_copy: 0, ..options.check.clone() }, &|_| {})
}

/// The loss by entering where an earlier commit is.
fn left_behind(overlays: &[Arc<Overlay>], originals: &[Superblock]) -> Option<Action> {
    let devices: Vec<Arc<dyn BlockDevice>> =
        overlays.iter().map(|overlay| Arc::clone(overlay) as Arc<dyn BlockDevice>).collect();
    let entered = start::superblocks(&devices);
    let (from, newest) = (start::newest(&entered)?, start::newest(originals)?);
    let (generation, last) = (from.generation.get(), newest.generation.get());
    let what = format!("enters by the root tree of generation {generation}");
    let log = if newest.log_root.get() != 0 { ", and changes that were fsynced since" } else { "" };
    let lost = format!("everything that was committed after generation {generation}; the last commit is {last}{log}");
    (generation < last).then_some(Action { pass: Pass::Roots, what, lost: Some(lost) })
}

/// Blocks that a device has missed are no damage: a scrub of the mounted filesystem brings it up to date, and the
/// superblock that a repair writes would hide that data without checksums on it is old.
fn refuse_behind(devices: &[Arc<dyn BlockDevice>], before: &Report) -> Result<()> {
    let Some((volume, ..)) = Volume::open(devices.to_vec()).ok().filter(|_| before.errors > 0) else { return Ok(()) };
    let behind = volume.stale_devices();
    if behind.is_empty() || !volume.can_do_without(&volume.chunk_map(), &behind) {
        return Ok(());
    }
    let present = volume.present_devices();
    let names = present.iter().filter(|(item, _)| behind.contains(&DeviceId(item.devid.get())));
    let names: Vec<String> = names.map(|(_, device)| device.name()).collect();
    Err(Trouble::new(format!(
        "{} has missed commits: mount the filesystem with all devices and run 'butterfs scrub start' on it, or repair \
         without this device",
        names.join(", ")
    )))
}

/// A log that could be replayed is not dropped unasked.
fn refuse_log(overlays: &[Arc<Overlay>], before: &Report, options: &Options) -> Result<()> {
    let devices: Vec<Arc<dyn BlockDevice>> =
        overlays.iter().map(|overlay| Arc::clone(overlay) as Arc<dyn BlockDevice>).collect();
    let has_log = start::superblocks(&devices).iter().any(|sb| sb.log_root.get() != 0);
    let is_damaged = |finding: &Finding| finding.id().starts_with("log-") && finding.severity() == Severity::Error;
    let wants = !before.findings.is_empty() || options.demands();
    if has_log && wants && !options.drop_log && !before.findings.iter().any(is_damaged) {
        let sentence = "there is a log of changes that were fsynced since the last commit; mount the filesystem, \
                        which replays it, or drop it with --drop-log";
        return Err(Trouble::new(sentence));
    }
    Ok(())
}

fn estimate(changes: &[Vec<Change>], references: u64, planned_in: Duration) -> Estimate {
    let write_bytes: u64 = changes.iter().flatten().map(|change| change.new.len() as u64).sum();
    Estimate {
        write_bytes,
        undo_bytes: 2 * write_bytes,
        memory_bytes: 2 * write_bytes + references * size_of::<crate::references::Reference>() as u64,
        planned_in,
        apply_in: Duration::from_millis(write_bytes * 3 / 50_000 + 100),
    }
}
