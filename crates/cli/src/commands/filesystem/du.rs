//! `butterfs filesystem du`: how much space files take, and how much of it is shared.
//!
//! # What counts
//! - *Total*: every extent that takes space, by the bytes that the file has of it. Inline data and holes count nothing.
//! - *Exclusive*: of that, what no other file and no snapshot uses.
//! - *Set shared*: the rest, for each argument; of a directory each byte on disk once.
//!
//! Memory: one entry for each directory on the way, one number for each inode with several links, and for what is
//! shared [`Shared`], which is bounded.

mod shared;
mod tree;

use crate::commands::Run;
use crate::error::{CliError, FAILED};
use crate::open_filesystem::ImagesArgument;
use crate::open_filesystem::{OpenFilesystem, about};
use crate::output::{self, Format, UnitFormat, Units};
use crate::report;
use butterfs_control::MeasuredExtent;
use butterfs_control::question::MeasureFile;
use serde::Serialize;
use shared::Shared;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use tree::{Entry, Kind};

/// Show how much space files take, alone and shared with others
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Show the arguments only, not their content
    #[arg(short, long)]
    summarize: bool,
    #[command(flatten)]
    units: Units,
    #[command(flatten)]
    images: ImagesArgument,
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The space that a file or directory uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    total: u64,
    exclusive: u64,
}

impl Use {
    fn add(&mut self, more: Use) {
        self.total += more.total;
        self.exclusive += more.exclusive;
    }
}

/// A row of the result.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    total: u64,
    exclusive: u64,
    /// For arguments only.
    set_shared: Option<u64>,
    filename: String,
}

impl Row {
    fn print(&self, path: &Path, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
        use std::os::unix::ffi::OsStrExt;
        let shared = self.set_shared.map_or("-".to_owned(), |bytes| units.size(bytes));
        write!(out, "{:>10}  {:>10}  {shared:>10}  ", units.size(self.total), units.size(self.exclusive))?;
        Ok(out.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?)
    }
}

/// One argument being measured.
struct Walk<'a> {
    opened: &'a mut OpenFilesystem,
    shared: Shared,
    /// Inodes with several links that were counted.
    seen: HashSet<(u64, u64)>,
    /// Takes each row as it is complete.
    show: &'a mut dyn FnMut(&Path, Use, Option<u64>) -> Result<(), CliError>,
    summarize: bool,
    /// The filesystem of the argument, which is not left.
    device: u64,
}

impl Walk<'_> {
    fn file(&mut self, path: &Path) -> Result<Use, CliError> {
        let object = self.opened.object(path)?;
        let asking = about([&object], |[file]| MeasureFile { file });
        let mut used = Use::default();
        let shared = &mut self.shared;
        let what = format!("cannot measure '{}'", path.display());
        self.opened.each(&what, asking, &mut |MeasuredExtent { address, len, shared: is_shared }| {
            used.total += len;
            if is_shared {
                shared.add(address, len)?;
            } else {
                used.exclusive += len;
            }
            Ok(())
        })?;
        Ok(used)
    }

    /// The content of a directory comes before it, as with du(1). Unreadable entries are skipped with a warning.
    fn directory(&mut self, path: &Path) -> Result<Use, CliError> {
        let mut sum = Use::default();
        for entry in tree::entries(self.opened, path)? {
            match self.entry(&entry) {
                Ok(used) => sum.add(used),
                Err(error @ CliError::BrokenPipe) => return Err(error),
                Err(CliError::Failed { sentence, .. }) => report::warn(&sentence),
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }

    fn entry(&mut self, entry: &Entry) -> Result<Use, CliError> {
        let counts = entry.device == self.device && (entry.links < 2 || self.seen.insert(entry.id));
        let used = match entry.kind {
            Kind::File if counts => self.file(&entry.path)?,
            Kind::Directory if entry.device == self.device => self.directory(&entry.path)?,
            Kind::File | Kind::Directory | Kind::Other => return Ok(Use::default()),
        };
        if !self.summarize {
            (self.show)(&entry.path, used, None)?;
        }
        Ok(used)
    }

    fn argument(mut self, entry: &Entry) -> Result<(), CliError> {
        let (used, shared) = match entry.kind {
            Kind::File => {
                // Of a file, what it has twice counts twice, as btrfs-progs has it.
                let used = self.file(&entry.path)?;
                (used, used.total - used.exclusive)
            }
            Kind::Directory => (self.directory(&entry.path)?, self.shared.bytes()?),
            Kind::Other => return Ok(()),
        };
        (self.show)(&entry.path, used, Some(shared))
    }
}

impl Args {
    fn measure(
        &self,
        path: &Path,
        show: &mut dyn FnMut(&Path, Use, Option<u64>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut opened = self.images.open_for(path)?;
        opened.write_back(path)?;
        let entry = tree::argument(&opened, path)?;
        let (shared, seen, device) = (Shared::default(), HashSet::new(), entry.device);
        Walk { opened: &mut opened, shared, seen, show, summarize: self.summarize, device }.argument(&entry)?;
        opened.close()
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let (units, mut rows, mut failed) = (self.units.format(), Vec::new(), false);
        if format == Format::Text {
            writeln!(out, "{:>10}  {:>10}  {:>10}  Filename", "Total", "Exclusive", "Set shared")?;
        }
        for path in &self.paths {
            let mut show = |path: &Path, used: Use, set_shared| {
                let Use { total, exclusive } = used;
                let row = Row { total, exclusive, set_shared, filename: path.to_string_lossy().into_owned() };
                match format {
                    Format::Text => row.print(path, units, out),
                    Format::Json => {
                        rows.push(row);
                        Ok(())
                    }
                }
            };
            match self.measure(path, &mut show) {
                Err(CliError::Failed { sentence, .. }) => {
                    report::error(&format!("cannot check space of '{}': {sentence}", path.display()));
                    failed = true;
                }
                other => other?,
            }
        }
        if format == Format::Json {
            output::json(out, "filesystem-du", &rows)?;
        }
        if failed { Err(CliError::Reported { code: FAILED }) } else { Ok(()) }
    }
}
