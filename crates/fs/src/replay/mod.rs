//! Replay of the tree log: what was fsynced after the last commit comes into the subvolumes when a filesystem is
//! opened, before anything else happens, and the log is gone with the commit that holds it.
//!
//! ```text
//! pin ─► each log: inodes ─► each log: entries ─► each log: attributes, names, extents, then link counts ─► commit
//! ```
//! Each stage goes over all logs, that of the largest subvolume first, before the next one begins; within a log in the
//! order of the keys.
//!
//! # Invariants
//! 1. Everything is one transaction, and its commit is the only one: a mount that is killed before finds the same log
//!    and the same trees. So nothing here may commit, and the space that a log uses is taken out of what is free
//!    before the first allocation.
//! 2. A log that breaks a rule is an error that names it. Then nothing is written.
//! 3. A name is either in its directory, twice, and in its inode, or in neither, after every step.
//! 4. No inode that the log does not mention loses its last name to guesswork: see `names` and `links`.
//!
//! # Tolerated, because logs of kernels have it
//! Names whose directory or inode is missing, ranges over nothing or over each other, items of inodes that are gone,
//! logs of subvolumes that are gone, link counts that do not match, checksums without an extent, keys by name hash (of
//! kernels before 5.17, beside those by index).
//!
//! # Not here
//! Writing a log (`tree_log`), deciding whether it may be replayed (`mount`).

mod booking;
mod entries;
mod extents;
mod inodes;
mod links;
mod logs;
mod names;
mod subvolume;

use crate::commit::Engine;
use crate::error::Result;
use crate::transaction::Handle;

/// Replays the logs that the superblock names, and commits. `first` is done in the same transaction, after the space of
/// the logs is safe.
pub fn run(engine: &Engine, first: impl FnOnce(&Handle) -> Result<()>) -> Result<()> {
    // No reservation: making room for one could commit, and a commit ends the log.
    let handle = engine.join()?;
    let logs = logs::open(&handle)?;
    first(&handle)?;
    let done = replay(&handle, &logs);
    // Half a replay must not be committed, whatever the caller does with the error.
    done.inspect_err(|error| engine.abort(error))?;
    drop(handle);
    engine.commit()?;
    logs.forget(engine);
    Ok(())
}

fn replay(handle: &Handle, logs: &logs::Logs) -> Result<()> {
    let mut subvolumes = logs.subvolumes(handle)?;
    for subvolume in &mut subvolumes {
        subvolume.replay_inodes()?;
    }
    for subvolume in &mut subvolumes {
        subvolume.replay_entries()?;
    }
    for subvolume in &mut subvolumes {
        subvolume.replay_items(&logs.claims)?;
        subvolume.fix_links()?;
        subvolume.book()?;
    }
    logs.pin_unused(handle);
    // The superblock without the log is written even if the log had nothing to say.
    handle.core().globals().root.touch_root(handle)
}
