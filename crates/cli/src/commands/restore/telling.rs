//! The words of a restore while it runs, and at its end.

use crate::error::CliError;
use crate::output::{Format, json};
use crate::report;
use butterfs_rescue::data::Grade;
use butterfs_rescue::restore::{Event, OlderState, Summary};
use butterfs_rescue::sink::{Path, shown};
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
            Event::Restoring(path) if self.verbose > 0 => self.say(&format!("Restoring {target}{}", printable(path))),
            Event::Searched(path) if self.verbose > 1 => {
                let path = if path.is_empty() { String::new() } else { printable(path) };
                self.say(&format!("Done searching {path}"));
            }
            Event::Kept(path) => {
                self.say(&format!("Skipping existing file {target}{}", printable(path)));
                self.say("If you wish to overwrite use -o");
            }
            Event::SkippedSnapshot(name) => {
                self.say(&format!("Skipping snapshot {}", plain(&String::from_utf8_lossy(name))));
            }
            Event::File(path, outcome, restored) if outcome.grade() > Grade::Unverified => {
                warn_of(path, &outcome.reasons(), *restored);
            }
            Event::Doubted(path, doubts, restored) => warn_of(path, &doubts.reasons(), *restored),
            Event::Linked(path, reasons) => warn_of(path, reasons, true),
            Event::Lost(path, reason) => report::warn(&format!("{}: nothing is restored: {reason}", printable(path))),
            Event::Older(state) => report::warn(&older(state)),
            Event::Unreached(path) if self.verbose > 0 => {
                self.say(&format!("No directory leads to {target}{}", printable(path)));
            }
            Event::Renamed(path, name) => report::warn(&format!(
                "{}: its name is {:?}, which leads elsewhere or is too long",
                printable(path),
                String::from_utf8_lossy(name)
            )),
            Event::Lacking(path, reasons) => warn_of(path, reasons, true),
            Event::Aside(path, aside) => {
                report::warn(&format!("{}: this is {}, whose name another file has", printable(aside), printable(path)))
            }
            Event::Failed(path, error) => report::error(&format!("{target}{}: {error}", printable(path))),
            Event::Complaint(sentence) => report::warn(sentence),
            _ => {}
        }
    }

    /// Whether everything could be said.
    pub fn end(self) -> Result<(), CliError> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// A path for a terminal, which names from a foreign disk must not steer.
fn printable(path: &Path) -> String {
    plain(&shown(path))
}

fn plain(text: &str) -> String {
    let escaped = |letter: char| if letter.is_control() { letter.escape_default().to_string() } else { letter.into() };
    text.chars().map(escaped).collect()
}

fn warn_of(path: &Path, reasons: &[String], is_restored: bool) {
    let left = if is_restored { "" } else { "; it is left out" };
    report::warn(&format!("{}: {}{left}", printable(path), reasons.join("; ")));
}

fn older(state: &OlderState) -> String {
    let OlderState { tree, path, generation, named_by } = state;
    let generation = generation.map_or(String::new(), |generation| format!(", generation {generation}"));
    format!(
        "{path}: the root of tree {tree} is that of {named_by}{generation}: that of the last commit is lost, and what \
         is newer may be missing"
    )
}

/// `12 files with 34 bytes: 10 fit their checksums, …`.
pub fn summary(summary: &Summary) -> String {
    let Summary { files, bytes, verified, unverified, partial, lost, directories, .. } = summary;
    let mut text = format!(
        "{files} files with {bytes} bytes in {directories} directories: {verified} fit their checksums, \
         {unverified} have none, \
         {partial} are damaged, {lost} are lost"
    );
    let more = [
        (summary.checksums_lost, "files have lost their checksums: nothing tells whether they are right"),
        (summary.doubtful, "files come from damaged or older tree blocks, or are partly guessed"),
        (summary.doubtful_others, "directories and others do"),
        (summary.renamed, "names were replaced, because they lead elsewhere or are too long"),
        (summary.aside, "got another name in lost+found, because their own is that of another file"),
        (summary.attributes_missing, "lack attributes that the target refuses (--tar or --image keeps them)"),
        (summary.orphans, "were reached by no directory"),
        (summary.lost_blocks, "tree blocks could not be read"),
        (summary.salvaged_blocks, "tree blocks were used although they are damaged or may be of an older state"),
        (summary.in_the_way, "were not restored because something else has their name (-o overwrites it)"),
        (summary.older_states.len() as u64, "subvolumes are not as the last commit had them"),
    ];
    for (count, words) in more.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("; {count} {words}"));
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
            Grade::Doubtful => "doubtful",
            Grade::Partial => "partial",
            Grade::Lost => "lost",
        };
        let Deleted { generation, tree, ino, size, path, .. } = one;
        let path = plain(path);
        writeln!(out, "{state:<11} {generation:>10} {tree:>6} {ino:>8} {size:>14}  {path}")?;
    }
    Ok(out.flush()?)
}
