//! The words of a restore while it runs, and at its end.

use crate::error::CliError;
use crate::output::{Format, json};
use crate::report;
use butterfs_rescue::data::Grade;
use butterfs_rescue::restore::{Event, Summary};
use butterfs_rescue::sink::shown;
use butterfs_rescue::undelete::Deleted;
use std::io::Write;

/// Prints events in the words of btrfs restore, where that has any.
pub struct Teller<'a> {
    out: &'a mut dyn Write,
    target: String,
    verbose: u8,
    is_silent: bool,
    failed: Option<std::io::Error>,
}

impl<'a> Teller<'a> {
    /// A teller of a restore into `target`.
    pub fn new(out: &'a mut dyn Write, target: String, verbose: u8, is_silent: bool) -> Teller<'a> {
        Teller { out, target, verbose, is_silent, failed: None }
    }

    fn say(&mut self, line: &str) {
        if !self.is_silent
            && let Err(error) = writeln!(self.out, "{line}")
        {
            self.failed.get_or_insert(error);
        }
    }

    /// Tells of one event.
    pub fn tell(&mut self, event: &Event<'_>) {
        let target = self.target.clone();
        match event {
            Event::Restoring(path) if self.verbose > 0 => self.say(&format!("Restoring {target}{}", shown(path))),
            Event::Searched(path) if self.verbose > 1 => {
                let path = if path.is_empty() { String::new() } else { shown(path) };
                self.say(&format!("Done searching {path}"));
            }
            Event::Kept(path) => {
                self.say(&format!("Skipping existing file {target}{}", shown(path)));
                self.say("If you wish to overwrite use -o");
            }
            Event::SkippedSnapshot(name) => self.say(&format!("Skipping snapshot {}", String::from_utf8_lossy(name))),
            Event::File(path, outcome, restored) if outcome.grade() > Grade::Unverified => {
                let range = outcome.ranges.first().map_or(String::new(), |range| format!(", first at {}", range.start));
                let left = if *restored { "" } else { "; it is left out" };
                report::warn(&format!(
                    "{}: {} bytes do not fit their checksums, {} bytes are missing{range}{left}",
                    shown(path),
                    outcome.damaged,
                    outcome.missing
                ));
            }
            Event::Renamed(path, name) => report::warn(&format!(
                "{}: its name is {:?}, which leads elsewhere",
                shown(path),
                String::from_utf8_lossy(name)
            )),
            Event::Failed(path, error) => report::error(&format!("{target}{}: {error}", shown(path))),
            Event::Complaint(sentence) => report::warn(sentence),
            _ => {}
        }
    }

    /// Whether everything could be said.
    pub fn end(self) -> Result<(), CliError> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// `12 files with 34 bytes: 10 fit their checksums, …`.
pub fn summary(summary: &Summary) -> String {
    let Summary { files, bytes, verified, unverified, partial, lost, directories, orphans, lost_blocks, .. } = *summary;
    let mut text = format!(
        "{files} files with {bytes} bytes in {directories} directories: {verified} fit their checksums, \
         {unverified} have none, \
         {partial} are damaged, {lost} are lost"
    );
    if orphans > 0 {
        text.push_str(&format!("; no directory led to {orphans}"));
    }
    if lost_blocks > 0 {
        text.push_str(&format!("; {lost_blocks} tree blocks could not be read"));
    }
    text
}

/// Lists deleted files.
pub fn deleted(found: &[Deleted], format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    if format == Format::Json {
        return json(out, "deleted", &found);
    }
    writeln!(out, "{:<11} {:>10} {:>6} {:>8} {:>14}  PATH", "STATE", "GENERATION", "TREE", "INODE", "BYTES")?;
    for one in found {
        let state = match one.grade {
            Grade::Verified => "complete",
            Grade::Unverified => "unverified",
            Grade::Partial => "partial",
            Grade::Lost => "lost",
        };
        let Deleted { generation, tree, ino, size, path, .. } = one;
        writeln!(out, "{state:<11} {generation:>10} {tree:>6} {ino:>8} {size:>14}  {path}")?;
    }
    Ok(out.flush()?)
}
