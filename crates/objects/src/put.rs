//! Putting: a target of streams whose sections become snapshots in a store.
//!
//! # Invariants
//! 1. The manifest is written last, after the store has acknowledged every segment that it needs.
//! 2. The same stream makes the same segments; so a put that was interrupted sends what is missing and nothing else.
//! 3. Memory does not depend on the size of the snapshot, but for 8 bytes for each new piece: a few segments, edits of
//!    the index up to a limit, a cache of nodes, and a bounded list of known pieces.

mod commands;
mod contents;
mod publish;

use crate::archive::Archive;
use crate::index::Index;
use crate::items::{self, Inode};
use crate::manifest::{self, Listing, Manifest};
use crate::repository::Repository;
use crate::scratch::{Scratch, Spill};
use crate::segment::{self, Filling, Sent, Uploads};
use crate::session::Session;
use butterfs_fs::Errno;
use butterfs_send::apply::{Failure, Outcome, Section, StreamTarget};
use butterfs_send::wire::{Command, Uuid};
use contents::{Known, Pending};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// How snapshots are put.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zstd level; 0 does not compress.
    pub level: i32,
    /// The folder of a local file for nodes.
    pub scratch: PathBuf,
    /// The time that manifests get, in seconds since 1970.
    pub now: i64,
}

/// See the [module](self).
pub struct Put {
    repository: Repository,
    options: Options,
    session: Session,
    current: Option<Current>,
    /// Snapshots that were put, with what was sent.
    done: Vec<(Manifest, Sent)>,
}

/// The section at hand.
enum Current {
    /// The store has the snapshot with this id: the stream is read to its end, and nothing is sent.
    There(String),
    Open(Box<Open>),
}

/// The section that is being put.
struct Open {
    name: Vec<u8>,
    uuid: Uuid,
    transid: u64,
    parent: Option<Manifest>,
    index: Index,
    uploads: Uploads,
    /// The segment that is being filled.
    filling: Filling,
    /// Pieces that need not be stored again.
    known: Known,
    /// References to the pieces that came with this snapshot.
    new: Spill,
    pending: Option<Pending>,
    /// Inodes of paths, until a name changes.
    paths: FxHashMap<Vec<u8>, u64>,
    next_inode: u64,
    inodes: u64,
    bytes: u64,
    /// The version of streams that the content needs.
    stream: u32,
}

fn failure(error: butterfs_store::Error) -> Failure {
    Failure { errno: error.errno(), reason: error.to_string() }
}

fn refused(errno: Errno, reason: &str) -> Failure {
    Failure::new(errno, reason)
}

fn none_begun() -> Failure {
    refused(Errno::EINVAL, "no subvolume was begun")
}

impl Put {
    /// Puts into this repository. Until [`Put::end`], no prune removes anything from it.
    pub fn new(repository: &Repository, options: Options) -> butterfs_store::Result<Put> {
        let session = Session::put(repository)?;
        Ok(Put { repository: repository.clone(), options, session, current: None, done: Vec::new() })
    }

    /// Ends the session; returns the snapshots that were put, with what was sent for each.
    pub fn end(self) -> butterfs_store::Result<Vec<(Manifest, Sent)>> {
        self.session.end()?;
        Ok(self.done)
    }

    /// Segments and bytes of the snapshot at hand that were sent.
    pub fn sent(&self) -> Sent {
        match &self.current {
            Some(Current::Open(open)) => open.uploads.sent(),
            _ => Sent::default(),
        }
    }

    fn start(&self, section: &Section<'_>) -> Result<Current, Failure> {
        let repository = &self.repository;
        let manifests = Listing::new(repository).and_then(|listing| listing.all()).map_err(failure)?;
        let own = manifest::id(&section.uuid, section.transid);
        let parent = match section.parent {
            None => None,
            Some((uuid, transid)) => {
                let id = manifest::id(&uuid, transid);
                let missing = || {
                    let rule = format!(
                        "{} has no snapshot {id}, which the stream builds on; put that one first",
                        repository.store().shown("")
                    );
                    refused(Errno::ENOENT, &rule)
                };
                Some(manifests.iter().find(|manifest| manifest.id() == id).cloned().ok_or_else(missing)?)
            }
        };
        if manifests.iter().any(|manifest| manifest.id() == own) {
            return Ok(Current::There(own));
        }
        let existing = segment::all(repository.store()).map_err(failure)?;
        let archive = Archive::new(repository);
        let known = Known::of(&archive, &manifests, &existing).map_err(failure)?;
        let root = parent.as_ref().map(|parent| parent.root(repository)).transpose().map_err(failure)?.flatten();
        let scratch = Scratch::new(archive, &self.options.scratch).map_err(failure)?;
        let mut open = Open {
            name: section.name.to_vec(),
            uuid: section.uuid,
            transid: section.transid,
            index: Index::new(scratch, root),
            uploads: Uploads::new(repository, existing, self.options.level),
            filling: Filling::new(repository.keys(), Vec::new()),
            known,
            new: Spill::new(&self.options.scratch).map_err(failure)?,
            pending: None,
            paths: FxHashMap::default(),
            next_inode: parent.as_ref().map_or(items::ROOT + 1, |parent| parent.next_inode),
            inodes: parent.as_ref().map_or(1, |parent| parent.inodes),
            bytes: parent.as_ref().map_or(0, |parent| parent.bytes),
            stream: parent.as_ref().map_or(1, |parent| parent.stream),
            parent,
        };
        if open.parent.is_none() {
            let root = Inode { mode: items::DIRECTORY | 0o755, links: 1, ..Inode::default() };
            open.set_inode(items::ROOT, &root)?;
        }
        Ok(Current::Open(Box::new(open)))
    }
}

impl StreamTarget for Put {
    fn begin(&mut self, section: &Section<'_>) -> Outcome {
        self.current = Some(self.start(section)?);
        Ok(())
    }

    fn command(&mut self, command: &Command<'_>) -> Outcome {
        self.session.refresh().map_err(failure)?;
        match self.current.as_mut().ok_or_else(none_begun)? {
            Current::There(_) => Ok(()),
            Current::Open(open) => open.carry_out(command),
        }
    }

    fn finish(&mut self) -> Outcome {
        let done = match self.current.take().ok_or_else(none_begun)? {
            Current::There(id) => {
                let found = Listing::new(&self.repository).and_then(|listing| listing.by_id(&id)).map_err(failure)?;
                let gone = || refused(Errno::ENOENT, "the snapshot was removed from the store meanwhile");
                (found.ok_or_else(gone)?, Sent::default())
            }
            Current::Open(open) => open.publish(&self.repository, &self.options, &mut self.session)?,
        };
        self.done.push(done);
        Ok(())
    }

    fn abandon(&mut self) {
        self.current = None;
    }

    /// Every segment and manifest was acknowledged when it was put.
    fn sync(&mut self) -> Outcome {
        Ok(())
    }
}
