//! Two fingerprints compared, in sentences.

use super::{Entry, Fingerprint};
use std::fmt::Debug;

/// What is compared besides names, types, modes, owners, links, sizes, contents, xattrs and targets.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Compare {
    pub atime: bool,
    pub mtime: bool,
    pub ctime: bool,
    pub btime: bool,
    pub blocks: bool,
    /// Where data and holes are.
    pub holes: bool,
}

impl Compare {
    /// Everything that both sides know.
    pub const ALL: Compare = Compare { atime: true, mtime: true, ctime: true, btime: true, blocks: true, holes: true };
    /// Nothing that the clock or the allocation decides, except the times that were set.
    pub const MODEL: Compare =
        Compare { atime: false, mtime: true, ctime: false, btime: false, blocks: false, holes: false };
}

/// One sentence for each difference, in order of paths.
pub fn differences(expected: &Fingerprint, actual: &Fingerprint, compare: Compare) -> Vec<String> {
    let mut found = Vec::new();
    for (path, entry) in &expected.entries {
        match actual.entries.get(path) {
            Some(other) => found.extend(entry_differences(path, entry, other, compare)),
            None => found.push(format!("{}: missing ({:?})", shown(path), entry.kind)),
        }
    }
    let added = actual.entries.iter().filter(|(path, _)| !expected.entries.contains_key(*path));
    found.extend(added.map(|(path, entry)| format!("{}: should not be there ({:?})", shown(path), entry.kind)));
    found
}

fn shown(path: &[u8]) -> String {
    format!("{:?}", crate::operation::RelPath(path.to_vec()))
}

fn entry_differences(path: &[u8], expected: &Entry, actual: &Entry, compare: Compare) -> Vec<String> {
    let mut found = Vec::new();
    let mut field = |name: &str, expected: &dyn Debug, actual: &dyn Debug, same: bool| {
        if !same {
            found.push(format!("{}: {name} is {actual:?}, expected {expected:?}", shown(path)));
        }
    };
    macro_rules! known {
        ($($name:ident)*) => { $(field(stringify!($name), &expected.$name, &actual.$name, expected.$name == actual.$name);)* };
    }
    macro_rules! where_both_know {
        ($($name:ident if $wanted:expr;)*) => { $(
            if let (Some(expected), Some(actual)) = (&expected.$name, &actual.$name) {
                field(stringify!($name), expected, actual, !$wanted || expected == actual);
            }
        )* };
    }
    known!(kind mode links uid gid size device xattrs first_path target);
    where_both_know! {
        content if true;
        atime if compare.atime;
        mtime if compare.mtime;
        ctime if compare.ctime;
        btime if compare.btime;
        blocks if compare.blocks;
        data if compare.holes;
    }
    found
}
