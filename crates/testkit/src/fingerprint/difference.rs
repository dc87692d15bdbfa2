//! Two fingerprints compared, in sentences.

use super::{Fingerprint, PathFingerprint};
use crate::operation::Moment;
use std::fmt::Debug;

/// The properties that are compared besides names, types, modes, owners, links, sizes, contents, xattrs and targets.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Compare {
    pub atime: bool,
    pub mtime: bool,
    pub ctime: bool,
    pub btime: bool,
    pub blocks: bool,
    /// The positions of data and holes.
    pub holes: bool,
    /// Nanoseconds by which the times of changes may differ.
    pub slack_ns: u64,
}

impl Compare {
    /// Everything that both sides know.
    pub const ALL: Compare =
        Compare { atime: true, mtime: true, ctime: true, btime: true, blocks: true, holes: true, slack_ns: 0 };
    /// Nothing that the clock or the allocation decides, except the times that were set.
    pub const MODEL: Compare =
        Compare { atime: false, mtime: true, ctime: false, btime: false, blocks: false, holes: false, slack_ns: 0 };
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

fn entry_differences(
    path: &[u8],
    expected: &PathFingerprint,
    actual: &PathFingerprint,
    compare: Compare,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut field = |name: &str, expected: &dyn Debug, actual: &dyn Debug, same: bool| {
        if !same {
            found.push(format!("{}: {name} is {actual:?}, expected {expected:?}", shown(path)));
        }
    };
    macro_rules! known {
        ($($name:ident)*) => {
            $(field(stringify!($name), &expected.$name, &actual.$name, expected.$name == actual.$name);)*
        };
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
        btime if compare.btime;
        blocks if compare.blocks;
        data if compare.holes;
    }
    for (name, wanted, expected, actual) in
        [("mtime", compare.mtime, expected.mtime, actual.mtime), ("ctime", compare.ctime, expected.ctime, actual.ctime)]
    {
        if let (Some(expected), Some(actual)) = (expected, actual) {
            field(name, &expected, &actual, !wanted || apart_ns(expected, actual) <= compare.slack_ns.into());
        }
    }
    found
}

fn apart_ns(one: Moment, other: Moment) -> u128 {
    let ns = |moment: Moment| i128::from(moment.sec) * 1_000_000_000 + i128::from(moment.nsec);
    (ns(one) - ns(other)).unsigned_abs()
}
