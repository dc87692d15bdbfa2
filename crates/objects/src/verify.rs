//! Verifying: everything that a snapshot needs is there and is what was put.

use crate::archive::Archive;
use crate::digest::Digest;
use crate::items::{self, DIRECTORY, ENTRY, EXTENT, Extent, INODE, Inode, LINK_TEXT, NAME, parts};
use crate::manifest::{Manifest, damaged};
use crate::node::Node;
use crate::piece::PieceRef;
use crate::repository::Repository;
use crate::segment::{self, MAX_SEGMENT};
use crate::tree;
use crate::view::View;
use butterfs_store::{Error, Kind, Result, each};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Mutex;

/// The thoroughness of verifying.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Depth {
    /// The index is read, and every segment is there with the length that it needs.
    Present,
    /// The bytes of every segment have its digest.
    Digests,
    /// Every piece is decoded and compared with its digest.
    Deep,
}

/// The outcome of verifying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Segments.
    pub segments: u64,
    /// Bytes that were read of them.
    pub bytes: u64,
    /// Findings.
    pub errors: u64,
}

/// Segments that are read at once.
const READERS: usize = 4;

/// The pieces of segments that snapshots need.
#[derive(Default)]
pub struct Needed {
    /// The segments, with a number for each.
    numbers: FxHashMap<Digest, u32>,
    /// By number: where the last needed piece ends, and bytes of all needed pieces.
    ends: Vec<(Digest, u64, u64)>,
    /// Nodes that were visited, by segment and offset.
    nodes: FxHashSet<(u32, u32)>,
    /// Data that was met, by segment and offset.
    data: FxHashSet<(u32, u32)>,
}

impl Needed {
    fn number(&mut self, segment: Digest) -> u32 {
        let next = self.ends.len() as u32;
        *self.numbers.entry(segment).or_insert_with(|| {
            self.ends.push((segment, 0, 0));
            next
        })
    }

    fn meet(&mut self, at: &PieceRef) -> (u32, u32) {
        let number = self.number(at.segment);
        let end = &mut self.ends[number as usize].1;
        *end = (*end).max(u64::from(at.offset) + u64::from(at.stored));
        (number, at.offset)
    }

    fn count(&mut self, place: (u32, u32), at: &PieceRef) {
        self.ends[place.0 as usize].2 += u64::from(at.stored);
    }

    /// Takes in what a snapshot needs. Nodes that an earlier one had are not read again.
    pub fn add(
        &mut self,
        archive: &Archive,
        manifest: &Manifest,
        visit: &mut dyn FnMut(&PieceRef, &Node) -> Result<()>,
    ) -> Result<()> {
        for list in manifest.lists(archive.repository())? {
            let place = self.meet(&list);
            if self.data.insert(place) {
                self.count(place, &list);
            }
        }
        let Some(root) = manifest.root(archive.repository())? else { return Ok(()) };
        let needed = std::cell::RefCell::new(self);
        let mut enter = |at: &PieceRef| {
            let mut needed = needed.borrow_mut();
            let place = needed.meet(at);
            let is_new = needed.nodes.insert(place);
            if is_new {
                needed.count(place, at);
            }
            is_new
        };
        let mut look = |at: &PieceRef, node: &Node| {
            visit(at, node)?;
            if node.level > 0 {
                return Ok(());
            }
            for (key, value) in &node.entries {
                let Some((_, EXTENT, _)) = parts(key) else { continue };
                let wrong = || tree::Nodes::damaged(archive, at, "the node has an extent that is none");
                if let Some((_, piece)) = Extent::from_bytes(value).ok_or_else(wrong)?.data {
                    let mut needed = needed.borrow_mut();
                    let place = needed.meet(&piece);
                    if needed.data.insert(place) {
                        needed.count(place, &piece);
                    }
                }
            }
            Ok(())
        };
        tree::walk(archive, root, &mut enter, &mut look)
    }

    /// The segments: name, where the last needed piece ends, bytes of all needed pieces.
    pub fn segments(&self) -> &[(Digest, u64, u64)] {
        &self.ends
    }
}

/// Verifies snapshots; findings go to `tell`.
pub fn verify(
    repository: &Repository,
    manifests: &[Manifest],
    depth: Depth,
    tell: &mut (dyn FnMut(&Error) + Send),
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Verified> {
    let archive = Archive::sequential(repository);
    let (mut needed, mut done) = (Needed::default(), Verified::default());
    let mut pieces: FxHashMap<Digest, Vec<PieceRef>> = FxHashMap::default();
    for manifest in manifests {
        let mut keep = |_: &PieceRef, node: &Node| {
            for (key, value) in node.entries.iter().filter(|_| depth == Depth::Deep && node.level == 0) {
                if let Some((_, EXTENT, _)) = parts(key)
                    && let Some((_, at)) = Extent::from_bytes(value).and_then(|extent| extent.data)
                {
                    let known = pieces.entry(at.segment).or_default();
                    if known.last() != Some(&at) {
                        known.push(at);
                    }
                }
            }
            Ok(())
        };
        let mut found = needed.add(&archive, manifest, &mut keep);
        if found.is_ok() && depth == Depth::Deep {
            found = structure(&archive, manifest);
        }
        if let Err(error) = found {
            done.errors += 1;
            tell(&error);
        }
    }
    let total = needed.segments().len() as u64;
    let lengths: FxHashMap<Digest, u64> = segment::lengths(repository.store())?.into_iter().collect();
    let state = Mutex::new((done, tell, progress));
    let look = |(name, end, _): &(Digest, u64, u64)| -> Result<u64> {
        let key = segment::key(name);
        let missing = || Error::new(Kind::NotFound, format!("{} is missing", repository.store().shown(&key)));
        let len = *lengths.get(name).ok_or_else(missing)?;
        if len < *end || len > MAX_SEGMENT {
            return Err(damaged(repository.store(), &key, &format!("it has {len} bytes, its pieces end at {end}")));
        }
        if depth == Depth::Present {
            return Ok(0);
        }
        let object = repository.store().get(&key, MAX_SEGMENT)?;
        if Digest::of(&object.bytes) != *name {
            return Err(damaged(repository.store(), &key, "its digest is not the one that it is named by"));
        }
        let pieces = pieces.get(name).map_or(&[][..], |pieces| pieces);
        for at in pieces {
            let (begin, end) = (at.offset as usize, at.offset as usize + at.stored as usize);
            let stored = if end <= object.bytes.len() { object.bytes.slice(begin..end) } else { Bytes::new() };
            let loaded = crate::piece::load(stored, at, repository.keys());
            loaded.map_err(|rule| tree::Nodes::damaged(&archive, at, rule))?;
        }
        Ok(object.bytes.len() as u64)
    };
    each(needed.segments(), READERS, |segment| {
        let looked = look(segment);
        let mut state = state.lock().expect("no thread panics with the lock");
        let (done, tell, progress) = &mut *state;
        done.segments += 1;
        match looked {
            Ok(bytes) => done.bytes += bytes,
            Err(error) => {
                done.errors += 1;
                tell(&error);
            }
        }
        progress(done.segments, total);
        Ok(())
    })?;
    Ok(state.into_inner().expect("no thread panics with the lock").0)
}

/// Checks that names, inodes and extents fit together.
fn structure(archive: &Archive, manifest: &Manifest) -> Result<()> {
    let view = View::new(archive, manifest)?;
    let Some(root) = view.root() else { return Ok(()) };
    let wrong = |ino: u64, rule: &str| {
        let place = format!("{rule} (inode {ino} of snapshot '{}')", manifest.name);
        damaged(archive.repository().store(), &manifest.key(archive.repository()), &place)
    };
    let mut scan = tree::Scan::new(archive, root, &[]);
    let (mut at, mut names, mut inodes): (Option<(u64, Inode)>, u32, u64) = (None, 0, 0);
    let finish = |at: Option<(u64, Inode)>, names: u32| match at {
        Some((ino, inode)) if ino != items::ROOT && names != inode.links => {
            Err(wrong(ino, &format!("it has {names} names and counts {}", inode.links)))
        }
        _ => Ok(()),
    };
    while let Some((key, value)) = scan.next()? {
        let (ino, kind, rest) = parts(&key).ok_or_else(|| wrong(0, "a key is none"))?;
        if kind == INODE {
            finish(at, names)?;
            let inode = Inode::from_bytes(&value).ok_or_else(|| wrong(ino, "it is none"))?;
            (at, names) = (Some((ino, inode)), 0);
            inodes += 1;
        }
        let own = at.filter(|(own, _)| *own == ino).map(|(_, inode)| inode);
        let own = own.ok_or_else(|| wrong(ino, "it has items and no inode"))?;
        match kind {
            ENTRY => {
                let entry = view.entry(ino, rest)?.ok_or_else(|| wrong(ino, "an entry is gone"))?;
                let target = view.inode(entry.ino)?;
                if !own.is(DIRECTORY) || !target.is(entry.kind) {
                    return Err(wrong(ino, "an entry has another type than its inode, or is in no directory"));
                }
            }
            NAME => {
                let (directory, name) = rest.split_first_chunk::<8>().ok_or_else(|| wrong(ino, "a name is none"))?;
                let entry = view.entry(u64::from_be_bytes(*directory), name)?;
                if entry.is_none_or(|entry| entry.ino != ino) {
                    return Err(wrong(ino, "it has a name that does not lead to it"));
                }
                names += 1;
            }
            INODE | items::XATTR | EXTENT | LINK_TEXT => {}
            _ => return Err(wrong(ino, "it has an item of an unknown kind")),
        }
        if kind == INODE && own.is(items::REGULAR) {
            view.extents(ino, 0, u64::MAX, |_, _| Ok(()))?;
        }
    }
    finish(at, names)?;
    if inodes != manifest.inodes {
        return Err(wrong(0, &format!("it has {inodes} inodes and counts {}", manifest.inodes)));
    }
    Ok(())
}
