//! `butterfs stream verify`, `prune` and `cp`: what keeps a store in order.

use super::place::{StoreArgs, snapshots};
use crate::args::pretty_size;
use crate::commands::Run;
use crate::error::{CliError, FAILED};
use crate::moments;
use crate::output::{self, Format};
use crate::progress::{Progress, Unit};
use crate::report;
use butterfs_objects::{Depth, Keep, Manifest, copy, prune, verify};
use serde::Serialize;
use std::io::Write;
use std::sync::Mutex;

/// Verify snapshots without restoring them
///
/// The index of each snapshot is read, and all bytes of its segments are compared with their digests. The exit code is
/// 1 where something is missing or damaged.
#[derive(clap::Args, Clone, Debug)]
pub struct VerifyArgs {
    /// Decode all content, and check that names, inodes and extents fit together
    #[arg(long)]
    deep: bool,
    /// Only check that every segment is there with its length
    #[arg(long, conflicts_with = "deep")]
    quick: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The snapshots, all if none is named
    #[arg(value_name = "SNAPSHOT")]
    snapshots: Vec<String>,
}

#[derive(Serialize)]
struct VerifyJson {
    snapshots: u64,
    segments: u64,
    bytes: u64,
    errors: Vec<String>,
}

impl Run for VerifyArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let repository = self.store.open(&self.url)?;
        let manifests = snapshots(&repository, &self.snapshots)?;
        let depth = match (self.deep, self.quick) {
            (true, _) => Depth::Deep,
            (_, true) => Depth::Present,
            _ => Depth::Digests,
        };
        let progress =
            Mutex::new(if self.quiet { Progress::none() } else { Progress::new("verified", Unit::Permille) });
        let errors = Mutex::new(Vec::new());
        let locked = "no thread panics with the lock";
        let mut tell = |error: &butterfs_store::Error| {
            progress.lock().expect(locked).above(|| report::error(&error.to_string()));
            errors.lock().expect(locked).push(error.to_string());
        };
        let mut at = |done: u64, total: u64| progress.lock().expect(locked).at(done * 1000 / total.max(1), Some(1000));
        let verified = verify(&repository, &manifests, depth, &mut tell, &mut at)?;
        drop(progress);
        let errors = errors.into_inner().expect(locked);
        let snapshots = manifests.len() as u64;
        if format == Format::Json {
            let (segments, bytes, errors) = (verified.segments, verified.bytes, errors);
            output::json(out, "stream-verify", &VerifyJson { snapshots, segments, bytes, errors })?;
        } else if !self.quiet {
            let read = pretty_size(verified.bytes);
            writeln!(
                out,
                "{snapshots} snapshots, {} segments, {read} read, {} errors",
                verified.segments, verified.errors
            )?;
        }
        if verified.errors > 0 { Err(CliError::Reported { code: FAILED }) } else { Ok(()) }
    }
}

const PRUNE_HELP: &str = "\
Every rule keeps snapshots; those that no rule keeps go. Snapshots do not depend on each other: removing one never \
breaks another, and nothing has to be merged. Without a rule no snapshot goes, and only segments that no snapshot \
needs are removed, as interrupted puts leave them. Times are those of the puts, in the local zone. While a put is at \
work nothing is removed.";

/// Remove snapshots that no rule keeps, and all content that no snapshot needs
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = PRUNE_HELP)]
pub struct PruneArgs {
    /// Keep so many of the newest snapshots
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_last: usize,
    /// Keep the newest snapshot of each of so many hours
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_hourly: usize,
    /// Keep the newest snapshot of each of so many days
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_daily: usize,
    /// Keep the newest snapshot of each of so many weeks
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_weekly: usize,
    /// Keep the newest snapshot of each of so many months
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_monthly: usize,
    /// Keep the newest snapshot of each of so many years
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Rules")]
    keep_yearly: usize,
    /// Keep everything that was put within this time: 12h, 30d, 8w
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Rules")]
    keep_within: Option<i64>,
    /// Keep this snapshot, by name or id; can be given several times
    #[arg(long, value_name = "SNAPSHOT", help_heading = "Rules")]
    keep: Vec<String>,
    /// The rules are for snapshots with names that begin so; all others stay
    #[arg(long, value_name = "PREFIX", help_heading = "Rules")]
    names: Option<String>,
    /// Remove this snapshot; can be given several times
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["keep", "names"])]
    remove: Vec<String>,
    /// Only show the plan
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
}

fn duration(text: &str) -> Result<i64, String> {
    let advice = || "it takes a number and h, d or w, such as 30d".to_owned();
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let seconds = match unit {
        "h" => 3600,
        "d" => 86400,
        "w" => 7 * 86400,
        _ => return Err(advice()),
    };
    number.parse::<u32>().map(|number| i64::from(number) * seconds).map_err(|_| advice())
}

#[derive(Serialize)]
struct PlanJson {
    name: String,
    id: String,
    time: i64,
    kept_by: Vec<&'static str>,
}

#[derive(Serialize)]
struct PruneJson {
    dry_run: bool,
    snapshots: Vec<PlanJson>,
    removed_segments: u64,
    removed_bytes: u64,
    kept_bytes: u64,
    slack_bytes: u64,
}

impl Run for PruneArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let repository = self.store.open(&self.url)?;
        let all = snapshots(&repository, &[])?;
        let plan = self.plan(&repository, &all)?;
        let remove: Vec<Manifest> =
            all.iter().zip(&plan).filter(|(_, rules)| rules.is_empty()).map(|(manifest, _)| manifest.clone()).collect();
        if format == Format::Text {
            for (manifest, rules) in all.iter().zip(&plan) {
                let word = if rules.is_empty() { "remove".to_owned() } else { format!("keep ({})", rules.join(", ")) };
                writeln!(out, "{word:<24} {}", manifest.name)?;
            }
            out.flush()?;
        }
        let pruned = prune(&repository, &remove, self.dry_run)?;
        if format == Format::Json {
            let line = |(manifest, kept_by): (&Manifest, Vec<&'static str>)| PlanJson {
                name: manifest.name.clone(),
                id: manifest.id(),
                time: manifest.time,
                kept_by,
            };
            let shown = PruneJson {
                dry_run: self.dry_run,
                snapshots: all.iter().zip(plan).map(line).collect(),
                removed_segments: pruned.segments,
                removed_bytes: pruned.bytes,
                kept_bytes: pruned.kept_bytes,
                slack_bytes: pruned.slack_bytes,
            };
            return output::json(out, "stream-prune", &shown);
        }
        let (would, freed) = (if self.dry_run { "would remove" } else { "removed" }, pretty_size(pruned.bytes));
        let (kept, slack) = (pretty_size(pruned.kept_bytes), pretty_size(pruned.slack_bytes));
        writeln!(out, "{would} {} snapshots and {freed} in {} segments", pruned.snapshots, pruned.segments)?;
        Ok(writeln!(out, "{kept} stay, of which no snapshot needs {slack}")?)
    }
}

impl PruneArgs {
    /// For each snapshot the rules by which it stays.
    fn plan(
        &self,
        repository: &butterfs_objects::Repository,
        all: &[Manifest],
    ) -> Result<Vec<Vec<&'static str>>, CliError> {
        let keep = Keep {
            last: self.keep_last,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            yearly: self.keep_yearly,
            within: self.keep_within,
            names: self.keep.clone(),
            now: jiff::Timestamp::now().as_second(),
        };
        if !self.remove.is_empty() {
            if keep.is_some() {
                return Err(CliError::usage("--remove and rules exclude each other"));
            }
            let named = snapshots(repository, &self.remove)?;
            let stays = |manifest: &Manifest| !named.iter().any(|named| named.id() == manifest.id());
            return Ok(all
                .iter()
                .map(|manifest| if stays(manifest) { vec!["not named"] } else { Vec::new() })
                .collect());
        }
        // A name that is mistyped must not cost a snapshot.
        snapshots(repository, &self.keep)
            .map(drop)
            .or_else(|error| if self.keep.is_empty() { Ok(()) } else { Err(error) })?;
        let prefix = self.names.as_deref().unwrap_or_default();
        let (ours, _): (Vec<Manifest>, Vec<Manifest>) =
            all.iter().cloned().partition(|manifest| manifest.name.starts_with(prefix));
        let mut plan = keep.plan(&ours, &moments::zone()).into_iter();
        let rules = |manifest: &Manifest| match manifest.name.starts_with(prefix) {
            true => plan.next().unwrap_or_default(),
            false => vec!["other name"],
        };
        Ok(all.iter().map(rules).collect())
    }
}

/// Copy snapshots from one store to another
///
/// Content that the other store has is not sent again. Both stores have to be encrypted with the same key, or not at
/// all.
#[derive(clap::Args, Clone, Debug)]
pub struct CpArgs {
    /// The URL of the other store's server
    #[arg(long, value_name = "URL", help_heading = "Store")]
    to_endpoint: Option<String>,
    /// The profile for the other store
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    to_profile: Option<String>,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The snapshots, all if none is named
    #[arg(short, long = "snapshot", value_name = "SNAPSHOT")]
    snapshots: Vec<String>,
    /// The store
    #[arg(value_name = "URL")]
    from: String,
    /// The other store
    #[arg(value_name = "URL")]
    to: String,
}

impl Run for CpArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let from = self.store.open(&self.from)?;
        let to = self.store.elsewhere(self.to_endpoint.clone(), self.to_profile.clone()).open_like(&self.to, &from)?;
        let manifests = snapshots(&from, &self.snapshots)?;
        let mut progress = if self.quiet { Progress::none() } else { Progress::new("copied", Unit::Permille) };
        let sent =
            copy(&from, &to, &manifests, &mut |done, total| progress.at(done * 1000 / total.max(1), Some(1000)))?;
        drop(progress);
        if !self.quiet {
            let count = manifests.len();
            writeln!(out, "{count} snapshots, {} sent in {} segments", pretty_size(sent.bytes), sent.segments)?;
        }
        Ok(())
    }
}
