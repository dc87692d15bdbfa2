//! `butterfs check --repair` and `--undo`: a plan, a question, an undo file, and writing.

use super::PATIENCE;
use super::plan_text;
use crate::error::{CliError, FAILED};
use butterfs_device::{BlockDevice, FileDevice, FileOptions, OpenError, OpenErrorKind};
use butterfs_repair::{Applied, Options, Plan, Start, Trouble, plan, resume, save, undo};
use std::cell::RefCell;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The orders for a repair, and the place where a damaged filesystem is entered.
#[derive(clap::Args, Debug, Default)]
pub struct RepairArgs {
    /// Plan a repair, show it, and after a question carry it out
    #[arg(long, conflicts_with = "readonly", help_heading = "Repair")]
    repair: bool,
    /// With --repair: show the plan and write nothing
    #[arg(long, help_heading = "Repair")]
    plan: bool,
    /// Ask nothing, for scripts. A mounted filesystem is refused all the same
    #[arg(long, help_heading = "Repair")]
    force: bool,
    /// The undo file, which gets what a repair overwrites; butterfs-UUID-GENERATION.undo in the current folder if not
    /// given
    #[arg(long, value_name = "FILE", help_heading = "Repair")]
    undo_file: Option<PathBuf>,
    /// Bring back what was there before the repair that wrote this undo file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair", "readonly"], help_heading = "Repair")]
    undo: Option<PathBuf>,
    /// Make the checksum tree anew from the data: what is damaged counts as right then. Implies --repair
    #[arg(long, conflicts_with = "readonly", help_heading = "Repair")]
    init_csum_tree: bool,
    /// Make the extent tree anew from all other trees. Implies --repair
    #[arg(long, conflicts_with = "readonly", help_heading = "Repair")]
    init_extent_tree: bool,
    /// Make the space cache of version 1 invalid, or the free space tree (version 2) anew. Implies --repair
    #[arg(long, value_name = "v1|v2", value_parser = ["v1", "v2"])]
    #[arg(conflicts_with = "readonly", help_heading = "Repair")]
    clear_space_cache: Option<String>,
    /// With --repair: compute missing checksums from the data on the devices
    #[arg(long, help_heading = "Repair")]
    accept_data: bool,
    /// With --repair: drop the log, and changes that were fsynced since the last commit
    #[arg(long, help_heading = "Repair")]
    drop_log: bool,
    /// Print the references of each quota group, counted and stored, and check nothing else
    #[arg(short = 'Q', long, conflicts_with_all = ["repair", "undo"])]
    pub qgroup_report: bool,
    /// Enter by the newest backup root that can be read
    #[arg(short, long, conflicts_with_all = ["tree_root", "copy"], help_heading = "Where to enter")]
    backup: bool,
    /// Enter by the root tree at this address
    #[arg(short = 'r', long, value_name = "BYTENR", value_parser = super::number, help_heading = "Where to enter")]
    tree_root: Option<u64>,
    /// Enter by the chunk tree at this address
    #[arg(long, value_name = "BYTENR", value_parser = super::number, help_heading = "Where to enter")]
    chunk_root: Option<u64>,
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Voice {
    pub json: bool,
    pub quiet: bool,
}

impl RepairArgs {
    /// Whether anything is to be written or planned.
    pub fn is_asked(&self) -> bool {
        self.repair
            || self.undo.is_some()
            || self.init_csum_tree
            || self.init_extent_tree
            || self.clear_space_cache.is_some()
    }

    /// Where the filesystem is entered.
    pub fn start(&self, super_copy: usize) -> Start {
        Start { super_copy, backup: self.backup, tree_root: self.tree_root, chunk_root: self.chunk_root }
    }

    fn options(&self, check: butterfs_check::Options) -> Options {
        let start = self.start(check.super_copy);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        Options {
            check: butterfs_check::Options { super_copy: 0, ..check },
            start,
            init_csum_tree: self.init_csum_tree,
            init_extent_tree: self.init_extent_tree,
            clear_space_cache: self.clear_space_cache.as_ref().map(|version| if version == "v1" { 1 } else { 2 }),
            accept_data: self.accept_data,
            drop_log: self.drop_log,
            now,
            ..Options::default()
        }
    }

    /// Does what is asked.
    pub fn run(
        &self,
        out: &mut dyn Write,
        paths: &[PathBuf],
        check: butterfs_check::Options,
        voice: Voice,
    ) -> Result<(), CliError> {
        if let Some(file) = &self.undo {
            return self.take_back(out, paths, file, voice);
        }
        let mut options = self.options(check);
        let devices = open(paths, !self.plan)?;
        if !self.plan
            && let Some(file) = self.undo_file.as_deref().filter(|file| file.exists())
        {
            finish(out, &devices, file, voice)?;
            // The demanded work is done; this run only checks the result.
            options = Options { check: options.check, now: options.now, ..Options::default() };
        }
        let plan = {
            let shared = RefCell::new(&mut *out);
            let told = |round: usize, what: &str| {
                if !voice.json && !voice.quiet {
                    // Progress that cannot be shown is no failure.
                    let _ = writeln!(shared.borrow_mut(), "[round {round}] {what}");
                }
            };
            plan(&devices, &options, &told).map_err(failed)?
        };
        if voice.json {
            plan_text::json(out, &plan)?;
        } else if !voice.quiet {
            plan_text::text(out, &plan)?;
        }
        if self.plan || plan.is_empty() {
            return verdict(&plan);
        }
        if !self.force && !self.agrees(out, &plan)? {
            return Err(CliError::failed("nothing was written"));
        }
        if self.undo_file.as_deref().is_some_and(Path::exists) {
            let error = CliError::failed("the undo file is that of an earlier repair, and something is left to repair");
            return Err(error.hint("name another one by --undo-file"));
        }
        self.carry_out(out, &plan, &devices, voice)?;
        verdict(&plan)
    }

    /// Asks whether to go on.
    fn agrees(&self, out: &mut dyn Write, plan: &Plan) -> Result<bool, CliError> {
        if !std::io::stdin().is_terminal() {
            let error = CliError::failed("nobody is there to be asked whether the plan is to be carried out");
            return Err(error.hint("add --force, or --plan to only see the plan"));
        }
        let lost = plan.actions.iter().filter(|action| action.lost.is_some()).count();
        write!(out, "Carry this out? {lost} steps lose something. [y/N] ")?;
        out.flush()?;
        let mut answer = String::new();
        let _ = std::io::stdin().lock().read_line(&mut answer);
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    fn carry_out(
        &self,
        out: &mut dyn Write,
        plan: &Plan,
        devices: &[Arc<dyn BlockDevice>],
        voice: Voice,
    ) -> Result<(), CliError> {
        let file = self.undo_file.clone().unwrap_or_else(|| default_name(plan));
        let undo = save_undo(&file, plan, devices)?;
        resume(devices, &undo).map_err(|trouble| {
            let name = file.display();
            failed(trouble)
                .hint(format!("the same command with '--undo-file {name}' finishes the repair"))
                .hint(format!("'butterfs check --undo {name} DEVICE...' takes back what was written"))
        })?;
        if !voice.json && !voice.quiet {
            writeln!(out, "repaired; 'butterfs check --undo {} DEVICE...' takes it back", file.display())?;
        }
        Ok(())
    }

    fn take_back(&self, out: &mut dyn Write, paths: &[PathBuf], file: &Path, voice: Voice) -> Result<(), CliError> {
        let devices = open(paths, true)?;
        let undo_file = FileDevice::open(file, &FileOptions::read_only())?;
        let done = undo(&devices, &undo_file).map_err(failed)?;
        if !voice.json && !voice.quiet {
            writeln!(
                out,
                "{}",
                if done == Applied::Already { "nothing to take back" } else { "the repair is taken back" }
            )?;
        }
        Ok(())
    }
}

/// Makes the undo file under another name and gives it its own when it is complete: so what has the name is always
/// complete.
fn save_undo(file: &Path, plan: &Plan, devices: &[Arc<dyn BlockDevice>]) -> Result<FileDevice, CliError> {
    if file.exists() {
        return Err(
            CliError::failed(format!("{} exists already", file.display())).hint("name another one by --undo-file")
        );
    }
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    // One that an interrupted repair has left: nothing was written with it.
    let _ = std::fs::remove_file(&part);
    let undo = FileDevice::create(&part, plan.undo_len())?;
    if let Err(trouble) = save(plan, devices, &undo) {
        // It is of no use, and may have filled its filesystem.
        let _ = std::fs::remove_file(&part);
        let error = failed(trouble).hint("nothing was written to the devices");
        return Err(error.hint("--undo-file names a place for the undo file on another filesystem"));
    }
    let renamed = std::fs::rename(&part, file);
    renamed.map_err(|error| CliError::failed(format!("cannot name the undo file {}: {error}", file.display())))?;
    sync_folder(file);
    Ok(undo)
}

/// An undo file that is there already: the repair that made it is finished.
fn finish(out: &mut dyn Write, devices: &[Arc<dyn BlockDevice>], file: &Path, voice: Voice) -> Result<(), CliError> {
    let undo_file = FileDevice::open(file, &FileOptions::read_only())?;
    let name = file.display();
    let say = |out: &mut dyn Write, text: &str| match voice.json || voice.quiet {
        true => Ok(()),
        false => writeln!(out, "{text}"),
    };
    match resume(devices, &undo_file).map_err(failed)? {
        Some(Applied::Written) => Ok(say(out, "the repair that had been interrupted is finished")?),
        Some(Applied::Already) => Ok(say(out, "the repair of this undo file is complete")?),
        None => {
            let error = CliError::failed(format!("{name} is not a complete undo file"));
            Err(error.hint("name one that does not exist yet"))
        }
    }
}

fn verdict(plan: &Plan) -> Result<(), CliError> {
    if plan.is_clean() { Ok(()) } else { Err(CliError::Reported { code: FAILED }) }
}

fn failed(trouble: Trouble) -> CliError {
    CliError::failed(trouble.to_string())
}

fn open(paths: &[PathBuf], write: bool) -> Result<Vec<Arc<dyn BlockDevice>>, CliError> {
    let options = if write { FileOptions::read_write() } else { FileOptions::read_only() };
    let options = FileOptions { wait: PATIENCE, ..options };
    let open = |path| FileDevice::open(path, &options).map_err(refused);
    paths.iter().map(|path| Ok(Arc::new(open(path)?) as Arc<dyn BlockDevice>)).collect()
}

/// A repair has to write: opening for reading is no way out, the plan is.
fn refused(error: OpenError) -> CliError {
    match error.kind {
        OpenErrorKind::WriteProtected | OpenErrorKind::PermissionDenied => {
            CliError::failed(error.to_string()).hint("--plan shows what would be repaired, and writes nothing")
        }
        _ => error.into(),
    }
}

fn default_name(plan: &Plan) -> PathBuf {
    let fsid = uuid::Uuid::from_bytes(plan.before.fsid);
    PathBuf::from(format!("butterfs-{fsid}-{}.undo", plan.generation()))
}

/// Makes the name of a new file durable, as far as the folder can.
fn sync_folder(file: &Path) {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
}
