//! The claims of a restore, compared with the truth: a thing that it does not name is what it was, and a run
//! that calls itself complete has left out nothing.

use crate::saved::Hashing;
use butterfs_rescue::restore::Summary;
use butterfs_rescue::sink::Attributes;
use butterfs_rescue::subvolume::{DIRECTORY, TYPE_MASK};
use std::collections::BTreeSet;

/// The damage of an image, as far as claims depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Checksums do not fit what was changed.
    Seen,
    /// Checksums were made anew: an extended attribute that is gone leaves no trace.
    Sealed,
}

struct Claims<'a> {
    truth: &'a Hashing,
    /// As the summary shows them.
    named: BTreeSet<&'a str>,
    older: Vec<&'a str>,
    has_orphans: bool,
    kind: Kind,
}

/// The claims that are false: a sentence each.
pub fn false_claims(truth: &Hashing, found: &Hashing, summary: &Summary, kind: Kind) -> Vec<String> {
    let named = summary.findings.iter().map(|finding| finding.path.trim_start_matches('/')).collect();
    let older = summary.older_states.iter().map(|state| state.path.trim_matches('/')).collect();
    let claims = Claims { truth, named, older, has_orphans: summary.orphans > 0, kind };
    assert_eq!(summary.findings_left_out, 0);
    let mut wrong: Vec<String> = found.paths.iter().filter_map(|(path, what)| claims.file(path, what, found)).collect();
    wrong.extend(found.others.iter().filter_map(|(path, attributes)| claims.other(path, attributes)));
    wrong.extend(found.files.iter().chain(&found.others).filter_map(|(path, one)| claims.rights(path, one)));
    if summary.complete {
        let keys = |of: &Hashing| -> (BTreeSet<Vec<u8>>, BTreeSet<Vec<u8>>) {
            (of.paths.keys().cloned().collect(), of.others.keys().cloned().collect())
        };
        if keys(truth) != keys(found) {
            let missing = truth.paths.keys().chain(truth.others.keys());
            let missing = missing.filter(|path| !found.paths.contains_key(*path) && !found.others.contains_key(*path));
            wrong.extend(missing.map(|path| format!("complete, but {} is missing", text(path))));
        }
    }
    wrong
}

impl Claims<'_> {
    /// Whether nothing is claimed of this path: it is named, or of an older state.
    fn is_open(&self, path: &[u8]) -> bool {
        let shown = text(path);
        let is_below = |top: &&str| {
            shown.strip_prefix(top).is_some_and(|rest| top.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        self.named.contains(&*shown) || self.older.iter().any(is_below)
    }

    fn file(&self, path: &[u8], what: &(u64, u64), found: &Hashing) -> Option<String> {
        // A file is named once, by the name that it was made with.
        let is_link = !found.files.contains_key(path);
        if is_link || self.is_open(path) || (is_aside(path) && self.truth.contents.contains(what)) {
            return None;
        }
        match self.truth.paths.get(path) {
            None => Some(format!("{} was never there", text(path))),
            Some(right) if right != what => Some(format!("{} has other content: {what:?}", text(path))),
            Some(_) => {
                let (right, own) = (self.truth.files.get(path)?, found.files.get(path)?);
                (!self.is_same(right, own)).then(|| format!("{}: {own:?} instead of {right:?}", text(path)))
            }
        }
    }

    fn is_same(&self, right: &Attributes, own: &Attributes) -> bool {
        let mut own = own.clone();
        if self.kind == Kind::Sealed {
            own.xattrs.clone_from(&right.xattrs);
        }
        own == *right
    }

    fn other(&self, path: &[u8], own: &Attributes) -> Option<String> {
        let is_directory = own.mode & TYPE_MASK == DIRECTORY;
        // Directories on the way to what no directory leads to are made with what is at hand.
        if self.is_open(path) || (is_directory && self.has_orphans) {
            return None;
        }
        let mut all = self.truth.others.values();
        let is_right = match self.truth.others.get(path) {
            Some(right) => self.is_same(right, own),
            None => is_aside(path) && all.any(|right| self.is_same(right, own)),
        };
        (!is_right).then(|| format!("{}: {own:?} instead of {:?}", text(path), self.truth.others.get(path)))
    }

    /// Devices and set-id bits are those that were there, named or not.
    fn rights(&self, path: &[u8], own: &Attributes) -> Option<String> {
        let is_device = matches!(own.mode & TYPE_MASK, 0o020000 | 0o060000);
        let is_special = is_device || (own.mode & 0o6000 != 0 && own.mode & TYPE_MASK != DIRECTORY);
        let mut all = self.truth.files.values().chain(self.truth.others.values());
        let mut is_known = || all.any(|one| one.mode == own.mode && one.device == own.device);
        (is_special && !is_known()).then(|| format!("{}: mode {:o} of {:?}", text(path), own.mode, own.device))
    }
}

fn is_aside(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"lost+found")
}

fn text(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}
