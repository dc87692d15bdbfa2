//! Reports to the administrator: bad copies and lost data, with the names of the files.

use super::Filesystem;
use crate::backref::sharers;
use crate::env::Time;
use crate::subvolume::paths::{self, PathsOf};
use butterfs_ondisk::{Ino, Logical, TreeId};
use butterfs_volume::Report;
use rustc_hash::FxHashMap;

/// Files that are named for an address.
const NAMED_MOST: usize = 3;
/// A report is not repeated for so long.
const QUIET_SECS: i64 = 60;
/// Reports that are remembered for that.
const REMEMBERED_MOST: usize = 1024;

/// When each report was last passed on.
#[derive(Default)]
pub struct Told(FxHashMap<(Option<Logical>, String), i64>);

impl Told {
    /// Whether it is news.
    fn is_news(&mut self, report: &Report, now: Time) -> bool {
        self.0.retain(|_, at| (*at..=*at + QUIET_SECS).contains(&now.sec));
        if self.0.len() >= REMEMBERED_MOST {
            self.0.clear();
        }
        self.0.insert((report.at, report.text.clone()), now.sec).is_none()
    }
}

impl Filesystem {
    /// Messages about events below, oldest first: bad copies and bad data, with device,
    /// address and files, and what became of them. What is read again and again is told once a minute.
    pub fn take_messages(&self) -> Vec<String> {
        let reports = self.0.engine.volume().take_reports();
        let now = self.0.engine.env().now();
        let mut told = self.0.told.lock();
        let news: Vec<Report> = reports.into_iter().filter(|report| told.is_news(report, now)).collect();
        drop(told);
        news.into_iter().map(|report| self.with_files(report)).collect()
    }

    fn with_files(&self, report: Report) -> String {
        let files = report.at.map(|at| self.files_at(at)).unwrap_or_default();
        if files.is_empty() { report.text } else { format!("{}; used by {}", report.text, files.join(", ")) }
    }

    /// The files at an address, as of the last commit. What cannot be found out is not said.
    fn files_at(&self, at: Logical) -> Vec<String> {
        let writers = sharers::writers_of(&self.0.engine, at, NAMED_MOST).unwrap_or_default();
        writers.into_iter().map(|writer| self.described(writer)).collect()
    }

    fn described(&self, (tree, ino, offset): (TreeId, Ino, u64)) -> String {
        let core = &self.0.engine;
        let subvolume = paths::of_subvolume(core, tree);
        let name = PathsOf::inode(tree, ino).next(core);
        match (subvolume, name) {
            (Ok(subvolume), Ok(Some(name))) => {
                let path = if subvolume.is_empty() { name } else { paths::joined(subvolume, &name) };
                format!("'/{}' (inode {ino} of tree {tree}) at offset {offset}", String::from_utf8_lossy(&path))
            }
            _ => format!("inode {ino} of tree {tree} at offset {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_repeated_after_a_while() {
        let mut told = Told::default();
        let report = |at: u64| Report { at: Some(Logical(at)), text: "bad".to_owned() };
        let mut is_news = |at, sec| told.is_news(&report(at), Time { sec, nsec: 0 });
        assert!(is_news(1, 100) && is_news(2, 100));
        assert!(!is_news(1, 130));
        assert!(is_news(2, 161), "after a minute");
        assert!(is_news(2, 5), "the clock was set back");
    }
}
