//! Two snapshots to the stream of commands that makes one out of the other; or one snapshot to the stream that makes
//! it.
//!
//! ```text
//! changes ─► plan: directories, moves, removals ─► contents: files ─► directories: their attributes
//! ```
//!
//! Both snapshots are compared as trees twice: once for the names, which are planned as a graph and changed first, and
//! once for everything else, file by file. What both share is read neither time.
//!
//! # Memory
//! Besides buffers and caches of a fixed size (about 40 MiB, and 16 MiB for each clone source), a section holds 150
//! bytes and the names for each file that was renamed, moved or deleted, and about 300 bytes and the path for each
//! directory that is made, moved or given something new. It holds nothing for a file that is new, or that changed under
//! its old name.
//!
//! # Not here
//! Which snapshot is the parent, and what a command line says; how the stream is applied.

mod attributes;
mod changes;
mod clones;
mod contents;
mod data;
mod directories;
mod directory_paths;
mod error;
mod extents;
mod inherited;
mod job;
mod lengths;
mod namespace_plan;
mod output;
mod paths;

pub use error::{Error, Result};
pub use job::{Job, run};
pub use output::{Output, Progress, Sink, Watch};

use crate::wire::{Command, Uuid, Version};
use butterfs_fs::SnapshotReader;
use butterfs_fs::inode::attr::mode;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Ino, Key, KeyType};
use changes::{Changes, living_inode};
use clones::Clones;
use contents::Contents;
use directory_paths::DirectoryPaths;
use inherited::Inherited;
use namespace_plan::NamespacePlan;
use paths::Paths;

/// How content travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only that content changed, not the content.
    pub no_data: bool,
    /// Compressed extents travel as they are; from version 2 on.
    pub compressed_data: bool,
    /// Test and benchmark policies.
    pub policies: Policies,
}

/// Policies with a "before" and an "after" that benchmarks compare; users never set them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Paths and names of directories are remembered; else each is looked up whenever it is needed.
    pub remember_paths: bool,
}

impl Default for Policies {
    fn default() -> Policies {
        Policies { remember_paths: true }
    }
}

/// One subvolume to send.
pub struct Section<'r> {
    /// The snapshot.
    pub subvolume: &'r SnapshotReader,
    /// The snapshot that the receiver has and that it is made from.
    pub parent: Option<&'r SnapshotReader>,
    /// Snapshots that the receiver has and that content can be shared with; the parent only if it is among them.
    pub clone_sources: Vec<&'r SnapshotReader>,
}

/// The UUID and the transaction that a subvolume is known by at receivers.
pub fn identity(reader: &SnapshotReader) -> (Uuid, u64) {
    let info = reader.info();
    let uuid = if info.received_uuid == [0; 16] { info.uuid } else { info.received_uuid };
    (uuid, info.transids[0])
}

/// Makes streams in `sink`: `work` says of what. Returns how much there was.
pub fn streams(
    version: Version,
    sink: Sink<'_>,
    watch: Watch<'_>,
    work: impl FnOnce(&mut Output<'_, '_>) -> Result<()>,
) -> Result<Progress> {
    std::thread::scope(|scope| {
        let mut out = Output::new(scope, sink, version, watch);
        work(&mut out)?;
        out.finish()?;
        Ok(out.progress())
    })
}

impl Output<'_, '_> {
    /// Begins a stream.
    pub fn begin(&mut self) {
        self.header();
    }

    /// Ends a stream.
    pub fn end(&mut self) -> Result<()> {
        self.put(&Command::End {})
    }

    /// Sends one subvolume.
    pub fn section(&mut self, section: &Section<'_>, options: &Options) -> Result<()> {
        let Section { subvolume: new, parent: old, .. } = *section;
        let remember = options.policies.remember_paths;
        let changes = Changes::collect(old, new)?;
        // Before anything is written: nobody receives half a stream.
        lengths::check(&changes, new)?;
        let root = open(new, old, self)?;
        let mut inherited = Inherited::new(old, &root);
        let mut plan = NamespacePlan::new(&changes, old, new);
        plan.carry_out(&mut DirectoryPaths::new(old, remember), &mut inherited, self)?;
        let through_root = plan.passed_through_root();
        drop(plan);
        let mut paths = Paths::new(new, remember);
        let sector = u64::from(new.sectorsize());
        let mut clones = Clones::new(&section.clone_sources, sector, remember);
        let contents = Contents {
            old,
            new,
            options,
            changes: &changes,
            inherited: &mut inherited,
            paths: &mut paths,
            clones: &mut clones,
            out: self,
            sector,
            directories: Vec::new(),
            highest: highest(new)?,
        };
        let mut directories = contents.send()?;
        if through_root {
            directories.push(Ino::ROOT_DIR.0);
        }
        directories::finish(directories, (old, new), &changes, &inherited, &mut paths, self)
    }
}

/// The commands that a section begins with, as the kernel has them. Returns the root directory as it is at the receiver
/// then.
fn open(new: &SnapshotReader, old: Option<&SnapshotReader>, out: &mut Output<'_, '_>) -> Result<InodeItem> {
    let lost = || Error::corrupt("the root directory has no inode item");
    let backref = new.info().backref.as_ref();
    let top = || butterfs_fs::Error::refused(butterfs_fs::Errno::ENOENT, "the top level cannot be sent");
    let path = backref.map(|(_, _, name)| name.as_slice()).ok_or_else(top)?;
    let (uuid, transid) = identity(new);
    let Some(old) = old else {
        out.put(&Command::Subvol { path, uuid, transid })?;
        let root = living_inode(new, Ino::ROOT_DIR.0)?.ok_or_else(lost)?;
        out.put(&Command::Chown { path: b"", uid: root.uid.get().into(), gid: root.gid.get().into() })?;
        out.put(&Command::Chmod { path: b"", mode: (root.mode.get() & mode::PERMISSIONS).into() })?;
        return Ok(root);
    };
    let (parent_uuid, parent_transid) = identity(old);
    out.put(&Command::Snapshot { path, uuid, transid, parent_uuid, parent_transid })?;
    living_inode(old, Ino::ROOT_DIR.0)?.ok_or_else(lost)
}

fn highest(reader: &SnapshotReader) -> Result<u64> {
    let behind = Key::new(Ino::LAST_FREE.0 + 1, KeyType(0), 0);
    Ok(reader.last_before(behind)?.map_or(0, |(key, _)| key.objectid))
}
