//! Events of a run, and its counters and findings at the end.

use crate::data::{Grade, Outcome};
use crate::sink::{Path, shown};
use crate::trust::Doubts;
use std::io;

/// Something that has happened in a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is being restored.
    Restoring(&'a Path),
    /// A directory has been looked through.
    Searched(&'a Path),
    /// Something has its name already, and stays, the same or something else.
    Kept(&'a Path),
    /// Another name of a file that is not certainly whole, and why.
    Linked(&'a Path, &'a [String]),
    /// A snapshot is left out.
    SkippedSnapshot(&'a [u8]),
    /// A file has been restored, or left out because only whole ones are wanted.
    File(&'a Path, &'a Outcome, bool),
    /// Something else may not be what it was; it was restored, or left out because only whole things are wanted.
    Doubted(&'a Path, &'a Doubts, bool),
    /// Nothing was restored, for this reason.
    Lost(&'a Path, &'a str),
    /// A subvolume is not restored as the last commit had it.
    Older(&'a OlderState),
    /// No directory has led to it.
    Unreached(&'a Path),
    /// A name that leads elsewhere was replaced.
    Renamed(&'a Path, &'a [u8]),
    /// It did not get all of its attributes, for these reasons.
    Lacking(&'a Path, &'a [String]),
    /// Something whose name is taken got another one: the path of its own, and the one that it got.
    Aside(&'a Path, &'a Path),
    /// Something could not be made.
    Failed(&'a Path, &'a io::Error),
    /// A sentence about something that went wrong beside the content.
    Complaint(&'a str),
}

/// A subvolume of which the last commit's root is lost, and another one is restored.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OlderState {
    /// Its number.
    pub tree: u64,
    /// Where it was restored.
    pub path: String,
    /// The generation of the root that was taken; none where all leaves of the tree were.
    pub generation: Option<u64>,
    /// The source of that root.
    pub named_by: String,
}

/// A thing that is not certainly whole.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Where it was restored, or would have been.
    pub path: String,
    /// How sure it is.
    pub grade: Grade,
    /// Why, in words.
    pub reasons: Vec<String>,
    /// It was restored all the same.
    pub restored: bool,
}

impl Finding {
    /// The sentences of several findings about one thing.
    pub(super) fn of_all(findings: &[Finding]) -> Option<Finding> {
        let mut whole = findings.first()?.clone();
        for other in &findings[1..] {
            whole.grade = whole.grade.max(other.grade);
            whole.reasons.extend(other.reasons.iter().cloned());
        }
        Some(whole)
    }
}

/// Why something that was there before counts as not restored.
const IN_THE_WAY: &str = "something else with its name was there before, and stays";

/// Why something that got another name counts as doubtful.
const RENAMED: &str = "its name leads elsewhere or is too long: it was replaced";

/// Findings that a summary keeps; the rest is counted.
const MOST_FINDINGS: usize = 10_000;

/// The counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Nothing is missing, and nothing is doubtful: set by [`Summary::conclude`].
    pub complete: bool,
    /// Regular files.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Of the files, those whose content fits its checksums, and of which tree blocks that fit theirs say everything.
    pub verified: u64,
    /// Those for whose content there are no checksums, or not for all of it.
    pub unverified: u64,
    /// Those, of whatever kind, whose checksums are lost: nothing tells whether their contents are right.
    pub checksums_lost: u64,
    /// Those that come from damaged or older tree blocks, or are partly guessed.
    pub doubtful: u64,
    /// Those of whose content something is damaged or missing.
    pub partial: u64,
    /// Those of whose content nothing is left.
    pub lost: u64,
    /// Directories, links and other things that come from damaged or older tree blocks, or are partly guessed.
    pub doubtful_others: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs, sockets.
    pub special: u64,
    /// Other names of files.
    pub links: u64,
    /// Things that were there before, as they would have been made; they count as restored.
    pub kept: u64,
    /// Things that were not made because something else had their name.
    pub in_the_way: u64,
    /// Things whose names lead elsewhere or are too long, and were replaced.
    pub renamed: u64,
    /// Things that got another name in `lost+found`, because their own is that of another one.
    pub aside: u64,
    /// Things that the target did not give all of their attributes.
    pub attributes_missing: u64,
    /// Things that no directory led to, subvolumes among them.
    pub orphans: u64,
    /// Things that could not be made.
    pub failed: u64,
    /// The error after which nothing more could be made, such as a full disk.
    pub ended: Option<String>,
    /// Tree blocks that could not be read.
    pub lost_blocks: u64,
    /// Tree blocks that were used although they are damaged or may be of an older state.
    pub salvaged_blocks: u64,
    /// Subvolumes that were not restored as the last commit had them.
    pub older_states: Vec<OlderState>,
    /// Things that are not certainly whole, the first of them.
    pub findings: Vec<Finding>,
    /// More of them.
    pub findings_left_out: u64,
}

impl Summary {
    /// Takes in what another run has restored.
    pub fn add(&mut self, other: &Summary) {
        let pairs = [
            (&mut self.files, other.files),
            (&mut self.bytes, other.bytes),
            (&mut self.verified, other.verified),
            (&mut self.unverified, other.unverified),
            (&mut self.checksums_lost, other.checksums_lost),
            (&mut self.doubtful, other.doubtful),
            (&mut self.partial, other.partial),
            (&mut self.lost, other.lost),
            (&mut self.doubtful_others, other.doubtful_others),
            (&mut self.directories, other.directories),
            (&mut self.symlinks, other.symlinks),
            (&mut self.special, other.special),
            (&mut self.links, other.links),
            (&mut self.kept, other.kept),
            (&mut self.in_the_way, other.in_the_way),
            (&mut self.renamed, other.renamed),
            (&mut self.aside, other.aside),
            (&mut self.attributes_missing, other.attributes_missing),
            (&mut self.orphans, other.orphans),
            (&mut self.failed, other.failed),
            (&mut self.lost_blocks, other.lost_blocks),
            (&mut self.salvaged_blocks, other.salvaged_blocks),
            (&mut self.findings_left_out, other.findings_left_out),
        ];
        pairs.into_iter().for_each(|(own, more)| *own += more);
        self.ended = self.ended.take().or_else(|| other.ended.clone());
        self.older_states.extend(other.older_states.iter().cloned());
        let room = MOST_FINDINGS.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.iter().take(room).cloned());
        self.findings_left_out += other.findings.len().saturating_sub(room) as u64;
    }

    /// Notes a thing that is not certainly whole.
    pub(super) fn find(&mut self, path: &Path, grade: Grade, reasons: Vec<String>, restored: bool) {
        if self.findings.len() >= MOST_FINDINGS {
            self.findings_left_out += 1;
            return;
        }
        self.findings.push(Finding { path: shown(path), grade, reasons, restored });
    }

    /// Notes a thing that was not made because something else has its name.
    pub(super) fn find_in_the_way(&mut self, path: &Path) {
        self.in_the_way += 1;
        self.find(path, Grade::Lost, vec![IN_THE_WAY.to_owned()], false);
    }

    /// Notes a thing whose name was replaced.
    pub(super) fn find_renamed(&mut self, path: &Path) {
        self.renamed += 1;
        self.find(path, Grade::Doubtful, vec![RENAMED.to_owned()], true);
    }

    /// Notes a thing that did not get all of its attributes.
    pub(super) fn find_lacking(&mut self, path: &Path, reasons: Vec<String>) {
        self.attributes_missing += 1;
        self.find(path, Grade::Partial, reasons, true);
    }

    /// Says in [`complete`](Summary::complete) whether everything was restored as the last commit had it.
    pub fn conclude(&mut self) {
        let wrong = [
            self.checksums_lost,
            self.doubtful,
            self.partial,
            self.lost,
            self.doubtful_others,
            self.renamed,
            self.attributes_missing,
            self.orphans,
            self.failed,
            self.in_the_way,
            self.lost_blocks,
            self.salvaged_blocks,
        ];
        self.complete = wrong.iter().all(|count| *count == 0) && self.older_states.is_empty() && self.ended.is_none();
    }
}
