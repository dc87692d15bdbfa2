//! All subvolumes of a filesystem and how they lie in each other.
//!
//! Records come from disk through the server, and may claim that a subvolume lies in itself: walks upwards end after as
//! many steps as there are subvolumes.

use crate::error::CliError;
use crate::target::{Object, Question, Target, nonsense};
use butterfs_fuse::subvolumes::SubvolumeRecord;
use std::collections::BTreeMap;

/// The id of the top level.
pub const TOP_LEVEL: u64 = 5;

/// See the [module](self).
pub struct Forest {
    /// The subvolume that the question was asked about.
    pub asked_in: u64,
    /// All of them by id, the top level included.
    pub all: BTreeMap<u64, SubvolumeRecord>,
}

impl Forest {
    /// Asks for all subvolumes of the filesystem that `place` is on.
    pub fn ask(target: &mut Target, place: &Object) -> Result<Forest, CliError> {
        let records = target.ask("cannot list subvolumes", &Question::new("list").about(place))?;
        let (first, rest) = records.split_first().ok_or_else(nonsense)?;
        let asked_in = first.first().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
        let all = rest.iter().map(|words| SubvolumeRecord::from_words(words).map(|record| (record.id, record)));
        let all = all.collect::<Option<_>>().ok_or_else(nonsense)?;
        Ok(Forest { asked_in: asked_in.ok_or_else(nonsense)?, all })
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
        Forest { asked_in: TOP_LEVEL, all: all.iter().map(record).collect() }
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
        assert_eq!(forest.below(5), []);
    }
}
