//! All subvolumes of a filesystem and how they lie in each other.
//!
//! Records come from disk through the server, and may claim that a subvolume lies in itself: walks upwards end after as
//! many steps as there are subvolumes.

use crate::error::CliError;
use crate::open_filesystem::{OpenFilesystem, plain};
use butterfs_control::SubvolumeRecord;
use butterfs_control::question::ListSubvolumes;
use std::collections::BTreeMap;

/// The id of the top level.
pub const TOP_LEVEL: u64 = 5;

/// See the [module](self).
pub struct Forest {
    /// All of them by id, the top level included.
    pub all: BTreeMap<u64, SubvolumeRecord>,
}

impl Forest {
    /// Asks for all subvolumes of the filesystem.
    pub fn ask(opened: &mut OpenFilesystem) -> Result<Forest, CliError> {
        let records = opened.ask("cannot list subvolumes", plain(ListSubvolumes {}))?;
        Ok(Forest { all: records.into_iter().map(|record| (record.id, record)).collect() })
    }

    /// The path of a subvolume from the top level.
    pub fn path_from_top(&self, id: u64) -> Vec<u8> {
        self.path_from(TOP_LEVEL, id)
    }

    /// The path of a subvolume from the subvolume `root`, or from the top level if it is not below `root`.
    pub fn path_from(&self, root: u64, id: u64) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = id;
        for _ in 0..self.all.len() {
            let Some(record) = self.all.get(&at).filter(|record| record.parent != 0) else { break };
            parts.push(&record.name);
            if !record.directory_path.is_empty() {
                parts.push(&record.directory_path);
            }
            at = record.parent;
            if at == root {
                break;
            }
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The subvolumes below `id`, inner ones before those that hold them.
    pub fn below(&self, id: u64) -> Vec<u64> {
        let depth = |mut at: u64| {
            for steps in 1..=self.all.len() {
                at = self.all.get(&at)?.parent;
                if at == id {
                    return Some(steps);
                }
            }
            None
        };
        let mut found: Vec<(usize, u64)> = self.all.keys().filter_map(|&one| Some((depth(one)?, one))).collect();
        found.sort_by_key(|&(depth, id)| (std::cmp::Reverse(depth), id));
        found.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forest(all: &[(u64, u64, &str, &str)]) -> Forest {
        let record = |&(id, parent, directory, name): &(u64, u64, &str, &str)| {
            let (directory_path, name) = (directory.into(), name.into());
            (id, SubvolumeRecord { id, parent, directory_path, name, ..SubvolumeRecord::default() })
        };
        Forest { all: all.iter().map(record).collect() }
    }

    #[test]
    fn paths_and_nesting() {
        let all = [(5, 0, "", ""), (256, 5, "", "a"), (257, 256, "", "in"), (258, 5, "d/e", "s"), (259, 257, "x", "y")];
        let forest = forest(&all);
        assert_eq!(forest.path_from_top(259), b"a/in/x/y");
        assert_eq!(forest.path_from(256, 259), b"in/x/y");
        assert_eq!(forest.path_from(256, 258), b"d/e/s");
        assert_eq!(forest.path_from_top(5), b"");
        assert_eq!(forest.below(256), [259, 257]);
        assert_eq!(forest.below(5), [259, 257, 256, 258]);
    }

    #[test]
    fn loops_end() {
        let forest = forest(&[(256, 257, "", "a"), (257, 256, "", "b")]);
        assert_eq!(forest.path_from_top(256), b"b/a");
        assert!(forest.below(5).is_empty());
    }
}
