//! The changes of a call to its inodes and their folders.

use super::call::Call;
use std::path::{Path, PathBuf};

/// The attributes of one path: inode, time of the content, time of the inode; `None` where there is nothing.
type Look = Option<(u64, (i64, u64), (i64, u64))>;

/// The paths of a call, and what is seen there.
#[derive(Debug)]
pub struct Seen(Vec<(PathBuf, Look)>);

impl Seen {
    /// Looks below `root`.
    pub fn of(root: &Path, call: &Call) -> Seen {
        let mut paths: Vec<PathBuf> = Vec::new();
        for path in call.paths() {
            paths.push(path.to_owned());
            paths.push(path.parent().unwrap_or(Path::new("")).to_owned());
        }
        paths.sort_unstable();
        paths.dedup();
        let look = |path: &PathBuf| {
            let stat = rustix::fs::lstat(root.join(path)).ok()?;
            let times =
                ((stat.st_mtime as i64, stat.st_mtime_nsec as u64), (stat.st_ctime as i64, stat.st_ctime_nsec as u64));
            Some((stat.st_ino as u64, times.0, times.1))
        };
        Seen(paths.into_iter().map(|path| (path.clone(), look(&path))).collect())
    }
}

/// For each path: whether there was and is something, and whether it is another inode, with another time of the
/// content, with another time of the inode.
pub fn changes(before: &Seen, after: &Seen) -> Vec<String> {
    let describe = |before: &Look, after: &Look| match (before, after) {
        (Some(before), Some(after)) => {
            format!("inode {} content {} change {}", before.0 != after.0, before.1 != after.1, before.2 != after.2)
        }
        (before, after) => format!("was there {} is there {}", before.is_some(), after.is_some()),
    };
    before
        .0
        .iter()
        .zip(&after.0)
        .map(|((path, before), (_, after))| format!("{}: {}", path.display(), describe(before, after)))
        .collect()
}
