//! Whether the paths of what is new fit into a stream, found before anything is written.
//!
//! Looked at are the directories that the new snapshot has at new places, and what is in those that leave little room
//! for a name. What else is sent lies where the old snapshot had it too, or is refused when its path is made.

use super::changes::{Changes, DirEntry, ROOT};
use super::error::{Error, Result};
use super::paths::{PATH_MAX, Paths, push_name, too_deep};
use butterfs_fs::SnapshotReader;
use butterfs_fs::inode::entry;
use butterfs_ondisk::{Key, KeyType};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;

/// The longest name.
const NAME_MAX: usize = 255;

/// Refuses paths that are too long.
pub fn check(changes: &Changes, new: &SnapshotReader) -> Result<()> {
    let added = changes.added.iter().filter(|entry| entry.is_directory);
    let placed: FxHashMap<u64, &DirEntry> = added.map(|entry| (entry.ino, entry)).collect();
    let mut lengths = FxHashMap::from_iter([(ROOT.ino, 0)]);
    let mut paths = Paths::new(new, true);
    for &ino in placed.keys() {
        let len = length(ino, changes, &placed, &mut lengths, &mut paths)?;
        if len + 1 + NAME_MAX > PATH_MAX {
            names_fit(ino, new, &mut paths)?;
        }
    }
    Ok(())
}

/// The length of a directory's path, remembered for those on the way.
fn length(
    ino: u64,
    changes: &Changes,
    placed: &FxHashMap<u64, &DirEntry>,
    lengths: &mut FxHashMap<u64, usize>,
    paths: &mut Paths<'_>,
) -> Result<usize> {
    let (mut way, mut at) = (Vec::new(), ino);
    let mut len = loop {
        if let Some(len) = lengths.get(&at) {
            break *len;
        }
        // More names than fit: some directory above is too deep as well, or they form a loop.
        if way.len() * 2 > PATH_MAX {
            return Err(too_deep(at));
        }
        let Some(entry) = placed.get(&at) else { break paths.directory(at)?.len() };
        way.push(*entry);
        at = entry.directory;
    };
    for entry in way.iter().rev() {
        len += usize::from(len > 0) + changes.name(entry).len();
        if len > PATH_MAX {
            // Says which.
            paths.directory(entry.ino)?;
            return Err(too_deep(entry.ino));
        }
        lengths.insert(entry.ino, len);
    }
    Ok(len)
}

/// Refuses names in a directory for which there is no room behind its path.
fn names_fit(ino: u64, new: &SnapshotReader, paths: &mut Paths<'_>) -> Result<()> {
    let directory = paths.directory(ino)?;
    let (from, to) = (Key::new(ino, KeyType::DIR_INDEX, 0), Key::new(ino, KeyType::DIR_INDEX, u64::MAX));
    new.scan::<Error>(from, to, &mut |_, payload| {
        for entry in entry::entries(payload) {
            let (_, entry) = entry?;
            if entry.location.kind == KeyType::INODE_ITEM {
                push_name(&mut directory.to_vec(), entry.name)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}
