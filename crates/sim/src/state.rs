//! One state that a crash left: opened, checked, and compared with what is allowed.

use crate::faults::Damaged;
use crate::maintenance;
use crate::meanwhile::environment;
use crate::members::{Given, tolerance};
use crate::parts;
use crate::plan::Plan;
use butterfs_check::{Finding, Report};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::options::Policies;
use butterfs_fs::{Filesystem, Options};
use butterfs_ondisk::Physical;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::operation::{Object, Op, OperationTarget, RelPath, Reply};
use butterfs_testkit::promise::logged::Numbers;
use butterfs_testkit::promise::{History, ModelState, Read};
use butterfs_volume::ChunkMap;
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Arc;

/// How much is asked about a state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thorough {
    /// Recovery is ended by a commit, and the disk is checked again.
    pub recovered: bool,
}

/// The expectation that a state is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The states that may be shown.
    pub allowed: &'a History,
    /// The inodes' numbers.
    pub numbers: &'a Numbers,
    /// The disk at the start of the life, and its content.
    pub beginning: (&'a MemoryDevice, &'a Arc<ModelState>),
    /// Sectors that faults have damaged in this run.
    pub damaged: &'a Damaged,
    /// Those of them of which nobody has another copy.
    pub unreadable: &'a Damaged,
    /// The devices that are given.
    pub given: &'a Given,
    /// Too few devices are given, or some that were written apart, so it may be refused.
    pub may_refuse: bool,
}

/// The outcome of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It shows what is allowed.
    Shown,
    /// It was refused, which was allowed.
    Refused,
}

impl Expected<'_> {
    /// Whether what is shown of `disk` is allowed.
    pub fn explain(
        &self,
        plan: &Plan,
        disk: &MemoryDevice,
        shown: &Fingerprint,
        read: &Read<'_>,
    ) -> Result<(), String> {
        if !plan.logs {
            return self.allowed.explain(shown, read).map(drop);
        }
        // Until its first commit a life that began with a log still has that one, and nothing else.
        let (before, first) = self.beginning;
        let given = self.given;
        let rules = ruling(plan, disk, given);
        let leads_to_log = rules.is_some_and(|(_, log, _)| log != 0);
        if leads_to_log && rules == ruling(plan, before, given) {
            return History::of(Arc::clone(first)).explain(shown, read).map(drop);
        }
        let options = Options { read_only: true, no_log_replay: true, ..recovering(plan) };
        let without_log = open(disk, options, plan, given)?;
        let base = Fingerprint::of_damaged_library(&without_log).map_err(|what| format!("without its log: {what}"))?;
        self.allowed.explain_logged(&base, shown, self.numbers, read)
    }
}

/// The engine that recovers has no bugs on purpose.
pub fn recovering(plan: &Plan) -> Options {
    Options { policies: Policies::default(), ..plan.options() }
}

/// The engine that opens the checked disk. It contains the canaries that concern opening.
pub fn judging(plan: &Plan) -> Options {
    let canary = plan.canary.filter(|canary| canary.is_about_opening());
    Options { policies: Policies { canary, ..Policies::default() }, ..plan.options() }
}

/// Opens the given devices of a copy of a disk.
pub fn open(disk: &MemoryDevice, options: Options, plan: &Plan, given: &Given) -> Result<Filesystem, String> {
    open_given(&Arc::new(disk.snapshot()), options, plan, given)
}

fn open_given(disk: &Arc<MemoryDevice>, options: Options, plan: &Plan, given: &Given) -> Result<Filesystem, String> {
    let opened = Filesystem::open(given.devices(plan, disk), given.options(options), environment(plan.seed));
    opened.map_err(|error| format!("it does not open: {error}"))
}

/// The chunks of a disk.
pub fn chunks(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Result<ChunkMap, String> {
    let options = Options { read_only: true, no_log_replay: true, ..recovering(plan) };
    Ok((*open(disk, options, plan, given)?.chunks()).clone())
}

/// Reads an open filesystem; what lies in a damaged sector may be lost, and anything for a moment when reads go wrong.
pub fn tolerant(
    filesystem: &Filesystem,
    damaged: &Damaged,
    reads_go_wrong: bool,
) -> impl Fn(&RelPath, u64, usize) -> Option<Vec<u8>> {
    let chunks = filesystem.chunks();
    let (library, damaged) = (RefCell::new(Library::new(filesystem)), damaged.clone());
    let filesystem = filesystem.clone();
    move |path, offset, len| {
        let op = Op::Read { object: Object::Path(path.clone()), offset, len };
        match library.borrow_mut().apply(&op) {
            Ok(Reply::Bytes(bytes)) => return Some(bytes),
            Err(Errno::IO) => {}
            other => panic!("{path:?}: {other:?}"),
        }
        let library = library.borrow();
        let id = library.find(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let extents = filesystem.extents(id, offset..offset + len as u64);
        let extents = match extents {
            Ok(extents) => extents,
            // Asking for extents writes data back, which a filesystem that has stopped does not.
            Err(_) if filesystem.sync().is_err_and(|error| error.errno() == butterfs_fs::Errno::EROFS) => {
                assert!(reads_go_wrong || !damaged.is_empty(), "{path:?} at {offset}: nothing is damaged");
                return None;
            }
            Err(error) => panic!("{path:?}: {error}"),
        };
        let lost =
            extents.iter().any(|extent| extent.at.0 != 0 && damaged.holds(&chunks, extent.at, extent.disk_len, None));
        assert!(lost || reads_go_wrong, "{path:?} at {offset}: nothing damaged it: {}", library.said());
        None
    }
}

/// Checks a disk, or says what is wrong with it.
pub fn judge(plan: &Plan, disk: &MemoryDevice, expected: Expected<'_>, how: Thorough) -> Result<Verdict, String> {
    let (damaged, given) = (expected.damaged, expected.given);
    if *given == Given::default() && !expected.may_refuse {
        as_left(plan, disk, damaged).map_err(|what| format!("as the crash left it: {what}"))?;
    }
    let recovered = Arc::new(disk.snapshot());
    let filesystem = match open_given(&recovered, judging(plan), plan, given) {
        Ok(filesystem) => filesystem,
        Err(_) if expected.may_refuse => return Ok(Verdict::Refused),
        Err(what) => return Err(what),
    };
    let shown = Fingerprint::of_damaged_library(&filesystem).map_err(|what| format!("it cannot be read: {what}"))?;
    let read = tolerant(&filesystem, expected.unreadable, false);
    expected.explain(plan, disk, &shown, &read)?;
    if how.recovered {
        let is_whole =
            plan.members && filesystem.resync().map_err(|error| format!("it cannot be brought up to date: {error}"))?;
        if plan.maintenance {
            finish_maintenance(&filesystem).map_err(|what| format!("what was under way cannot be finished: {what}"))?;
        }
        while filesystem.clean_once().map_err(|error| format!("cleaning fails: {error}"))? {}
        filesystem.shutdown().map_err(|error| format!("it cannot be closed: {error}"))?;
        drop(read);
        drop(filesystem);
        if plan.maintenance {
            return shown_again(plan, &recovered, given, &shown).map(|()| Verdict::Shown);
        }
        if is_whole && given.away.is_empty() {
            clean(&recovered, plan.devices).map_err(|what| format!("after a resync: {what}"))?;
            return shown_without_any(plan, disk, &recovered, expected).map(|()| Verdict::Shown);
        }
        if given.away.is_empty() {
            clean_but(plan, &recovered, damaged).map_err(|what| format!("after recovery: {what}"))?;
        }
        if *given == Given::default() {
            repaired(plan, &recovered, damaged)?;
        }
    }
    Ok(Verdict::Shown)
}

/// The disk as a crash left it, all devices that belong to it.
fn as_left(plan: &Plan, disk: &MemoryDevice, damaged: &Damaged) -> Result<(), String> {
    match plan.maintenance {
        true => clean_devices(Given::default().devices(plan, &Arc::new(disk.snapshot()))),
        false => clean_but(plan, disk, damaged),
    }
}

/// A mount goes on with what the last one left.
fn finish_maintenance(filesystem: &Filesystem) -> Result<(), String> {
    filesystem.resync().map_err(|error| format!("resync: {error}"))?;
    let unless_refused = |done: butterfs_fs::Result<()>| match done {
        Err(error) if !maintenance::is_refusal(&error) => Err(error.to_string()),
        _ => Ok(()),
    };
    let replacement = filesystem.continue_replace().map_err(|error| error.to_string())?;
    unless_refused(replacement.map_or(Ok(()), |replacement| replacement.run()))?;
    if filesystem.balance_status().is_some() {
        unless_refused(filesystem.balance_resume().map(drop))?;
    }
    Ok(())
}

/// A disk that was closed is clean, and shows the same again.
fn shown_again(plan: &Plan, disk: &Arc<MemoryDevice>, given: &Given, before: &Fingerprint) -> Result<(), String> {
    let filesystem = open_given(disk, recovering(plan), plan, given)?;
    let shown = Fingerprint::of_damaged_library(&filesystem)?;
    let different = differences(before, &shown, Compare::MODEL);
    if !different.is_empty() {
        return Err(format!("after recovery it shows something else: {:#?}", &different[..different.len().min(8)]));
    }
    let is_complete = filesystem.missing_devices() == 0;
    drop(filesystem);
    if is_complete && given.away.is_empty() {
        clean_devices(given.devices(plan, disk)).map_err(|what| format!("after recovery: {what}"))?;
    }
    Ok(())
}

/// After a resync every device counts: whichever may be away is away, and the others show the same.
fn shown_without_any(
    plan: &Plan,
    disk: &MemoryDevice,
    recovered: &MemoryDevice,
    expected: Expected<'_>,
) -> Result<(), String> {
    for device in (0..plan.devices).filter(|_| tolerance(plan) > 0) {
        let given = Given::without(&[device].into());
        let look = || {
            let filesystem = open(recovered, judging(plan), plan, &given)?;
            let shown = Fingerprint::of_damaged_library(&filesystem)?;
            expected.explain(plan, disk, &shown, &tolerant(&filesystem, &Damaged::default(), false))
        };
        look().map_err(|what| format!("after a resync, without device {device}: {what}"))?;
    }
    Ok(())
}

/// Reading twice: the second time every copy that is tried first is good, because the first time has repaired it. What
/// was read while a device was stale, which is the source of no repair, stays in memory behind the resync: it is read
/// once more.
fn repaired(plan: &Plan, disk: &Arc<MemoryDevice>, damaged: &Damaged) -> Result<(), String> {
    // A failed device is repaired by a scrub.
    if damaged.is_empty() || damaged.is_stale() {
        return Ok(());
    }
    let read = || -> Result<Vec<String>, String> {
        let filesystem = Filesystem::open(plan.parts(disk), recovering(plan), environment(plan.seed));
        let filesystem = filesystem.map_err(|error| format!("it does not open again: {error}"))?;
        // What only a stale device holds is not copied from it.
        filesystem.resync().map_err(|error| format!("it cannot be brought up to date: {error}"))?;
        Fingerprint::of_damaged_library(&filesystem).map_err(|what| format!("it cannot be read again: {what}"))?;
        Ok(filesystem.take_messages())
    };
    if read()?.iter().any(|message| message.contains("has been brought up to date")) {
        read()?;
    }
    let mut told = read()?;
    told.retain(|message| message.contains("repaired"));
    if told.is_empty() { Ok(()) } else { Err(format!("read before, and still bad: {told:#?}")) }
}

/// A device's superblock at `at`, if it is valid.
fn superblock_at(device: &dyn BlockDevice, at: Physical) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    let is_there = at.0 + SUPERBLOCK_LEN as u64 <= device.len();
    is_there.then(|| device.read_at(at.0, &mut bytes).expect("it is in memory"))?;
    Superblock::parse(&bytes, at).ok()
}

/// Of each device that may rule the superblock that counts: the primary one, or where that is torn the secondary one.
fn superblocks(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Vec<Superblock> {
    let devices = parts::devices(disk, plan.devices).into_iter().enumerate();
    let believed = devices.filter(|(number, _)| given.believes(*number));
    let found = believed.filter_map(|(_, device)| OFFSETS.iter().find_map(|at| superblock_at(&*device, *at)));
    // A device that is about to take over has no number of its own.
    found.filter(|found| found.dev_item.devid.get() != 0).collect()
}

/// Generation, log and root of the superblock that counts.
pub fn ruling(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Option<(u64, u64, u64)> {
    let all = superblocks(plan, disk, given).into_iter();
    all.map(|found| (found.generation.get(), found.log_root.get(), found.root.get())).max()
}

/// Whether the primary superblock is whole: Linux and btrfs-progs look at no other.
pub fn has_primary(plan: &Plan, disk: &MemoryDevice) -> bool {
    parts::devices(disk, plan.devices).iter().all(|device| superblock_at(&**device, OFFSETS[0]).is_some())
}

/// Whether a superblock that counts leads to a log.
pub fn has_log(plan: &Plan, disk: &MemoryDevice) -> bool {
    superblocks(plan, disk, &Given::default()).iter().any(|found| found.log_root.get() != 0)
}

/// Runs the checker on a disk, all data checksums included.
pub fn clean(disk: &MemoryDevice, devices: usize) -> Result<(), String> {
    clean_devices(parts::devices(disk, devices))
}

/// Runs the checker on devices, all data checksums included.
pub fn clean_devices(devices: Vec<Arc<dyn BlockDevice>>) -> Result<(), String> {
    verdict(devices, &|_| true)
}

/// Runs the checker on a disk of which these sectors were damaged.
fn clean_but(plan: &Plan, disk: &MemoryDevice, damaged: &Damaged) -> Result<(), String> {
    if damaged.is_empty() {
        return clean(disk, plan.devices);
    }
    let chunks = chunks(plan, disk, &Given::default())?;
    let explained = |finding: &Finding| match finding {
        Finding::BlockCopyBad { at, copy, .. } => {
            damaged.holds(&chunks, *at, u64::from(plan.nodesize), Some(*copy as usize))
        }
        Finding::DataBad { at, copy, .. } => damaged.holds(&chunks, *at, 1, Some(*copy as usize)),
        _ => false,
    };
    verdict(parts::devices(disk, plan.devices), &|finding| !explained(finding))
}

fn verdict(devices: Vec<Arc<dyn BlockDevice>>, counts: &dyn Fn(&Finding) -> bool) -> Result<(), String> {
    let options = butterfs_check::Options {
        check_data: true,
        reference_budget: 1 << 16,
        cache_bytes: 4 << 20,
        threads: 1,
        ..butterfs_check::Options::default()
    };
    let report: Report = butterfs_check::check(devices, &options, &|_| {});
    // A torn primary superblock is what the second copy is for.
    let bad = |finding: &&Finding| is_error(finding) && !is_torn_superblock(finding) && counts(finding);
    let said: Vec<String> = report.findings.iter().filter(bad).take(8).map(ToString::to_string).collect();
    if said.is_empty() { Ok(()) } else { Err(format!("{} errors: {said:#?}", report.errors)) }
}

fn is_error(finding: &Finding) -> bool {
    let info = butterfs_check::TABLE.iter().find(|info| info.id == finding.id());
    info.is_none_or(|info| info.severity == butterfs_check::Severity::Error)
}

fn is_torn_superblock(finding: &Finding) -> bool {
    matches!(finding, Finding::SuperblockPrimary { .. })
}
