//! Content that the receiver has already: in what this section has sent, or in a snapshot that it is said to have.
//!
//! # Invariants
//! 1. A source is complete and final: a range that was sent earlier in this section, a file of the subvolume with a
//!    smaller number, or a file of a clone source.
//! 2. Ranges are what every receiver can clone: sectors, or up to the end of both files; cut at 64 KiB where the
//!    receiver's sector may be larger than ours.
//! 3. Memory is bounded: what was sent is remembered for at most `MOST_EXTENTS` extents that are shared, and of an
//!    extent's references at most about `MOST_POSITIONS` are looked at.

use super::changes::living_inode;
use super::error::Result;
use super::extents::covering;
use super::paths::Paths;
use crate::wire::Uuid;
use butterfs_fs::SnapshotReader;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::Logical;
use rustc_hash::FxHashMap;

/// Shared extents that are remembered.
const MOST_EXTENTS: usize = 1 << 16;
/// Ranges of one extent that are remembered.
const MOST_RANGES: usize = 8;
/// References of one extent that are looked at.
const MOST_POSITIONS: usize = 256;
/// The largest sector that a receiver can have.
const LARGEST_SECTOR: u64 = 64 << 10;

/// The source of content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The UUID that the source's subvolume is known by; none for the one being sent.
    pub subvolume: Option<(Uuid, u64)>,
    /// The file.
    pub path: Vec<u8>,
    /// The offset in the file.
    pub offset: u64,
    /// How much.
    pub len: u64,
}

/// A part of a file that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The file.
    pub ino: u64,
    /// The position at which it begins.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
    /// Size of the file.
    pub size: u64,
    /// The extent that holds it.
    pub extent: &'a FileExtent,
}

impl Wanted<'_> {
    /// The offset in the extent at which it begins.
    fn within(&self) -> u64 {
        self.extent.offset + (self.start - self.extent.start)
    }
}

/// A range that was sent.
#[derive(Clone, Copy)]
struct Sent {
    ino: u64,
    start: u64,
    within: u64,
    len: u64,
    size: u64,
}

struct Root<'r> {
    reader: &'r SnapshotReader,
    identity: (Uuid, u64),
    paths: Paths<'r>,
}

/// A position in a file that has the content.
#[derive(Clone, Copy)]
struct Candidate {
    root: Option<usize>,
    ino: u64,
    start: u64,
    len: u64,
    size: u64,
}

/// See the [module](self).
pub struct Clones<'r> {
    roots: Vec<Root<'r>>,
    sent: FxHashMap<Logical, Vec<Sent>>,
    sector: u64,
}

impl<'r> Clones<'r> {
    pub fn new(roots: &[&'r SnapshotReader], sector: u64, remember: bool) -> Clones<'r> {
        let root = |reader: &&'r SnapshotReader| Root {
            reader,
            identity: super::identity(reader),
            paths: Paths::new(reader, remember),
        };
        Clones { roots: roots.iter().map(root).collect(), sent: FxHashMap::default(), sector }
    }

    /// A source for the beginning of what is wanted, and whether the extent is shared at all. `own` has the paths of
    /// the subvolume being sent.
    pub fn find(
        &mut self,
        wanted: &Wanted<'_>,
        own: &mut Paths<'_>,
        new: &SnapshotReader,
    ) -> Result<(Option<Source>, bool)> {
        let extent = wanted.extent;
        if extent.kind != ExtentKind::Regular || !extent.is_on_disk() {
            return Ok((None, false));
        }
        let mut best = self.among_sent(wanted);
        let mut shared = best.is_some();
        if best.is_none_or(|best| best.len < wanted.len) {
            let sharers = new.sharers(extent.at, extent.disk_len, MOST_POSITIONS)?;
            shared |= sharers.references > 1;
            'search: for (ino, position) in sharers.positions {
                let (ino, start) = (ino.get(), position.wrapping_add(wanted.within()));
                // The subvolume itself counts as far as it is complete.
                let own = (ino < wanted.ino).then_some(None);
                for root in own.into_iter().chain((0..self.roots.len()).map(Some)) {
                    let reader = root.map_or(new, |root| self.roots[root].reader);
                    best = better(best, self.in_root((root, reader), ino, start, wanted)?);
                    if best.is_some_and(|best| best.len >= wanted.len) {
                        break 'search;
                    }
                }
            }
        }
        let Some(best) = best else { return Ok((None, shared)) };
        let path = match best.root {
            None => own.first(best.ino)?,
            Some(root) => self.roots[root].paths.first(best.ino)?,
        };
        let subvolume = best.root.map(|root| self.roots[root].identity);
        let source = path.map(|path| Source { subvolume, path, offset: best.start, len: best.len });
        Ok((source, shared))
    }

    /// Remembers a range of a shared extent that was sent.
    pub fn remember(&mut self, wanted: &Wanted<'_>) {
        if self.sent.len() >= MOST_EXTENTS {
            self.sent.clear();
        }
        let ranges = self.sent.entry(wanted.extent.at).or_default();
        if ranges.len() < MOST_RANGES {
            let Wanted { ino, start, len, size, .. } = *wanted;
            ranges.push(Sent { ino, start, within: wanted.within(), len, size });
        }
    }

    fn among_sent(&self, wanted: &Wanted<'_>) -> Option<Candidate> {
        let within = wanted.within();
        let mut best = None;
        for sent in self.sent.get(&wanted.extent.at)? {
            if within < sent.within || within >= sent.within + sent.len {
                continue;
            }
            let into = within - sent.within;
            let len = (sent.len - into).min(wanted.len);
            let start = sent.start + into;
            if sent.ino == wanted.ino && start.abs_diff(wanted.start) < len {
                continue;
            }
            let found = Candidate { root: None, ino: sent.ino, start, len, size: sent.size };
            best = better(best, self.cut(found, wanted));
        }
        best
    }

    /// The part of a file of a snapshot that shares the content at `start`.
    fn in_root(
        &self,
        (root, reader): (Option<usize>, &SnapshotReader),
        ino: u64,
        start: u64,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Candidate>> {
        if !start.is_multiple_of(self.sector) {
            return Ok(None);
        }
        let Some(size) = living_inode(reader, ino)?.map(|item| item.size.get()).filter(|size| *size > start) else {
            return Ok(None);
        };
        let Some(covering) = covering(reader, ino, start)? else { return Ok(None) };
        let there = covering.extent;
        let same = there.kind == ExtentKind::Regular
            && (there.at, there.disk_len, there.compression, there.generation)
                == (wanted.extent.at, wanted.extent.disk_len, wanted.extent.compression, wanted.extent.generation)
            && there.offset + (start - there.start) == wanted.within();
        let len = (there.end().min(size.next_multiple_of(self.sector)) - start).min(wanted.len);
        let found = Candidate { root, ino, start, len, size };
        Ok(if same { self.cut(found, wanted) } else { None })
    }

    /// Cuts a range to what can be cloned.
    fn cut(&self, found: Candidate, wanted: &Wanted<'_>) -> Option<Candidate> {
        let len = found.len.min(found.size.saturating_sub(found.start)).min(wanted.size - wanted.start);
        let (source_end, end) = (found.start + len, wanted.start + len);
        let len = match () {
            () if end == wanted.size && source_end == found.size => len,
            () if source_end == found.size && !source_end.is_multiple_of(LARGEST_SECTOR) => {
                len.saturating_sub(source_end % LARGEST_SECTOR)
            }
            () => len - end % self.sector,
        };
        let may_be_inline = found.start == 0 && len <= self.sector;
        (len > 0 && !may_be_inline).then_some(Candidate { len, ..found })
    }
}

fn better(one: Option<Candidate>, other: Option<Candidate>) -> Option<Candidate> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.len > one.len { other } else { one }),
        (one, other) => one.or(other),
    }
}
