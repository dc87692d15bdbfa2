//! Chunk migration: a chunk gets other stripes and keeps its logical addresses, so no tree that refers to it changes.
//!
//! ```text
//! begin: places are taken, writes go to both ─► step, step, …: copy used ranges ─► finish: a commit swaps the items
//!    └──────────────── dropped: the new places are released, and nothing has changed
//! ```
//!
//! # Invariants
//! 1. Until the commit of [`Migration::finish`] is durable the old stripes are complete and nobody else uses their
//!    places: a crash leaves the old chunk or the new one, and nothing to finish.
//! 2. What is copied was in use, or on its way there, after writes began to go to both: everything that is neither free
//!    nor excluded. So no tree is walked.
//! 3. What has a checksum is compared with it before it is copied. What no copy has is an error, and the chunk stays; a
//!    replacement counts it and goes on, because the checksum tells afterwards, too.
//! 4. Nobody waits for more than one write of a piece of [`PIECE`] bytes, and only who writes to it.
//!
//! Not here: what is to be moved, and where nothing new may lie (`filesystem::devices`).

use crate::commit::Engine;
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums::{self, Checksums, Layout};
use crate::options::Canary;
use crate::parallel::map_waiting;
pub use crate::transaction::Keep;
use crate::transaction::{Core, DeviceSpace, MovedChunk, Reserve, system_array_len};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::{ExtentItem, block_group_flags as bits, extent_flags};
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::SYS_CHUNK_ARRAY_LEN;
use butterfs_ondisk::{ChecksumKind, DeviceId, Key, KeyType, Logical};
use butterfs_volume::{Chunk, Confirmed, CopyTo, SourceReads, can_move, is_kept};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes that are copied at once.
pub const PIECE: u64 = 512 << 10;

/// Pieces that several threads copy between two looks at whether to go on.
const PIECES_TOGETHER: usize = 32;

/// The new place of a chunk.
#[derive(Clone, Debug, Default)]
pub struct MigrationTarget {
    /// Its profile; `None` for the one that it has.
    pub profile: Option<&'static Profile>,
    /// Devices that none of its stripes may lie on, beside those that are about to leave.
    pub avoid: Vec<DeviceId>,
    /// Whether stripes that could stay where they are do.
    pub keep: Keep,
}

/// A chunk that is moving. Dropping it leaves the chunk where it is.
pub(crate) struct Migration {
    engine: Arc<Engine>,
    from: Chunk,
    to: Chunk,
    /// The ranges that are not copied yet.
    left: VecDeque<(Logical, u64)>,
    is_finished: bool,
    /// For a test of the tests: what is copied only after the commit.
    late: Option<(Logical, Vec<u8>)>,
}

impl Migration {
    /// Begins to move the chunk at `start`. `None` where it is as wanted already, or gone. `ENOSPC` where there is no
    /// room.
    pub fn begin(engine: &Arc<Engine>, start: Logical, target: &MigrationTarget) -> Result<Option<Migration>> {
        let Some((from, to)) = place(engine, start, target)? else { return Ok(None) };
        engine.volume.begin_move(to.clone());
        let mut migration =
            Migration { engine: Arc::clone(engine), from, to, left: VecDeque::new(), is_finished: false, late: None };
        migration.left = occupied(engine, start)?;
        Ok(Some(migration))
    }

    /// Copies the next piece; says how many bytes of the chunk are done with it. `None` when everything is copied.
    pub fn step(&mut self) -> Result<Option<u64>> {
        let mut pieces = self.next_pieces();
        if pieces.is_empty() {
            return Ok(None);
        }
        let bytes = pieces.iter().map(|(_, len)| len).sum();
        if self.left.is_empty() && self.engine.has_canary(Canary::StripesSwappedEarly) {
            let (at, len) = pieces.pop().expect("there is one");
            let mut bytes = vec![0; len as usize];
            self.engine.volume.read_unverified(at, &mut bytes)?;
            self.late = Some((at, bytes));
        }
        let lost = copy_pieces(&self.engine, CopyTo::Stripes, self.from.kind, &pieces);
        for ((at, _), lost) in pieces.iter().zip(lost) {
            if lost? > 0 {
                return Err(Error::Device(
                    format!("checksum error at logical {at} or behind it, in every copy").into(),
                ));
            }
        }
        self.must_not_have_failed()?;
        Ok(Some(bytes))
    }

    fn next_pieces(&mut self) -> Vec<(Logical, u64)> {
        let mut pieces = Vec::new();
        while pieces.len() < pieces_together(&self.engine)
            && let Some((at, len)) = self.left.pop_front()
        {
            let piece = len.min(PIECE);
            if len > piece {
                self.left.push_front((at.plus(piece), len - piece));
            }
            pieces.push((at, piece));
        }
        pieces
    }

    /// Commits the new place. Everything is copied.
    pub fn finish(mut self) -> Result<()> {
        assert!(self.left.is_empty(), "a chunk moves when all of it is copied");
        self.engine.volume.flush()?;
        self.must_not_have_failed()?;
        let generation = {
            let handle = self.engine.start(Reserve::removal(items(&self.from, &self.to)))?;
            let moved = MovedChunk { from: self.from.clone(), to: self.to.clone() };
            handle.transaction().books().moves.push(moved);
            handle.transaction().books().must_happen = true;
            handle.generation()
        };
        // The commit gives the old place back, or aborts everything.
        self.is_finished = true;
        if self.to.kind & (bits::RAID1C3 | bits::RAID1C4) != 0 {
            self.engine.set_incompat(incompat::RAID1C34);
        }
        self.engine.commit_through(generation)?;
        if let Some((at, bytes)) = self.late.take() {
            self.engine.volume.write(at, &bytes)?;
        }
        Ok(())
    }

    fn must_not_have_failed(&self) -> Result<()> {
        match self.engine.volume.move_failure() {
            Some(sentence) => Err(Error::refused_at(Errno::EIO, format!("the chunk cannot be moved: {sentence}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Migration {
    fn drop(&mut self) {
        if !self.is_finished {
            self.engine.volume.cancel_move(self.to.start);
            self.engine.devices.space.lock().remove_stripes(&self.to, &self.from);
        }
    }
}

fn items(from: &Chunk, to: &Chunk) -> u64 {
    2 * (from.stripes.len() + to.stripes.len()) as u64 + 2
}

/// Takes the places for a move.
fn place(core: &Core, start: Logical, target: &MigrationTarget) -> Result<Option<(Chunk, Chunk)>> {
    // What is being discarded is a place, too.
    let _pause = core.discards.pause();
    let mut devices = core.devices.space.lock();
    devices.note_lost(&core.volume);
    let map = core.volume.chunk_map();
    let Some(from) = map.get(start).filter(|chunk| chunk.start == start) else { return Ok(None) };
    let profile = target.profile.unwrap_or_else(|| from.profile());
    let to =
        devices.plan_move(from, profile, &target.avoid, target.keep).ok_or_else(|| no_room(from, profile, &devices))?;
    if to.kind == from.kind && (0..to.stripes.len()).all(|stripe| is_kept(from, &to, stripe)) {
        return Ok(None);
    }
    if from.kind & (bits::METADATA | bits::SYSTEM) != 0 && core.volume.is_on_seed(from) {
        let what = "the blocks of a seed filesystem have its UUID, and are copied one by one";
        return Err(Error::refused(Errno::EOPNOTSUPP, what));
    }
    if !can_move(from, &to) {
        let (from, to) = (from.profile().name, to.profile().name);
        let what = format!("moving chunks from profile {from} to {to} is not supported");
        return Err(Error::refused_at(Errno::EOPNOTSUPP, what));
    }
    let others = map.iter().filter(|chunk| chunk.start != start);
    if system_array_len(others.chain([&to])) > SYS_CHUNK_ARRAY_LEN {
        return Err(Error::refused(Errno::EFBIG, "no room in the superblock for more stripes of system chunks"));
    }
    devices.add_chunk(&to);
    Ok(Some((from.clone(), to)))
}

fn no_room(chunk: &Chunk, profile: &Profile, devices: &DeviceSpace) -> Error {
    let (start, name, len) = (chunk.start, profile.name, chunk.stripe_length());
    let free = devices.unallocated_bytes();
    let what = format!(
        "no room to move chunk {start} ({name}): a stripe of {len} bytes needs as much unallocated space in one piece \
         on one device, and {free} bytes are unallocated"
    );
    Error::refused_at(Errno::ENOSPC, what)
}

/// The part of a chunk that is in use or on its way there.
pub(crate) fn occupied(engine: &Engine, start: Logical) -> Result<VecDeque<(Logical, u64)>> {
    loop {
        if let Some(found) = engine.space.occupied(start) {
            return Ok(found.into());
        }
        let Some(group) = engine.space.group_of(start) else { return Ok(VecDeque::new()) };
        engine.load_group_ahead(&group)?;
    }
}

/// The number of pieces that are copied at once.
pub(crate) fn pieces_together(core: &Core) -> usize {
    if core.env().background() { PIECES_TOGETHER } else { 1 }
}

/// Copies pieces of chunks of `kind`, several at a time. See [`copy_piece`].
pub(crate) fn copy_pieces(core: &Core, to: CopyTo, kind: u64, pieces: &[(Logical, u64)]) -> Vec<Result<u64>> {
    map_waiting(core.env(), pieces.len(), |index| copy_piece(core, to, kind, pieces[index].0, pieces[index].1))
}

/// Copies a piece of a chunk of `kind` to where `to` says. Returns how many sectors of data were not, because no copy
/// of them has their checksum.
fn copy_piece(core: &Core, to: CopyTo, kind: u64, at: Logical, len: u64) -> Result<u64> {
    if core.has_canary(Canary::PieceNotCopied) && (at.0 / PIECE).is_multiple_of(4) {
        return Ok(0);
    }
    match kind & bits::DATA {
        0 => copy_blocks(core, to, at, len).map(|()| 0),
        _ => copy_data(core, to, kind & bits::METADATA != 0, at, len),
    }
}

/// Tree blocks: all at once where one copy of each has the generation that the extent tree names, else each from the
/// copy with the highest one.
fn copy_blocks(core: &Core, to: CopyTo, at: Logical, len: u64) -> Result<()> {
    let nodesize = u64::from(core.nodesize());
    if copy_known_blocks(core, to, at, len)? {
        return Ok(());
    }
    (0..len.div_ceil(nodesize)).try_for_each(|number| copy_block(core, to, at.plus(number * nodesize)))
}

/// False, and nothing is copied, where a block of the range is not known, or is not good.
fn copy_known_blocks(core: &Core, to: CopyTo, at: Logical, len: u64) -> Result<bool> {
    let nodesize = u64::from(core.nodesize());
    let generations = block_generations(core, at, len)?;
    if !len.is_multiple_of(nodesize) || generations.len() as u64 != len / nodesize {
        return Ok(false);
    }
    let (kind, fsid) = (core.checksum_kind(), core.superblock().block_fsid());
    let confirm = &mut |bytes: &[u8]| {
        let mut blocks = bytes.chunks(nodesize as usize).zip(&generations);
        let is_known = |(block, (at, generation)): (&[u8], &(Logical, u64))| {
            confirm_block(kind, &fsid, *at, block) == Confirmed::Yes(*generation)
        };
        if blocks.all(is_known) { Confirmed::Best } else { Confirmed::No }
    };
    Ok(core.volume.copy_moving(to, (at, len as usize), false, confirm)? == Confirmed::Best)
}

fn copy_block(core: &Core, to: CopyTo, at: Logical) -> Result<()> {
    let (kind, fsid) = (core.checksum_kind(), core.superblock().block_fsid());
    let best = match to {
        CopyTo::Twin(_, SourceReads::Avoided) => block_generation(core, at)?,
        _ => None,
    };
    let confirm = &mut |bytes: &[u8]| match confirm_block(kind, &fsid, at, bytes) {
        Confirmed::Yes(generation) if Some(generation) == best => Confirmed::Best,
        confirmed => confirmed,
    };
    let committed = core.superblock().generation.get();
    let found = core.volume.copy_moving(to, (at, core.nodesize() as usize), false, confirm)?;
    // A block that is not written yet has a place and an extent item all the same; it is written to both places.
    let is_written = |generation: Option<u64>| generation.is_some_and(|generation| generation <= committed);
    if found == Confirmed::No && is_written(block_generation(core, at)?) && core.space.group_of(at).is_some() {
        return Err(Error::Device(format!("no copy of the tree block at {at} is good").into()));
    }
    Ok(())
}

/// A block that could be a tree block of this address.
pub(crate) fn confirm_block(kind: ChecksumKind, fsid: &[u8; 16], at: Logical, bytes: &[u8]) -> Confirmed {
    let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Confirmed::No };
    let is_block =
        header.bytenr.get() == at.0 && header.fsid == *fsid && kind.matches(&bytes[32..], &header.csum[..kind.len()]);
    if is_block { Confirmed::Yes(header.generation.get()) } else { Confirmed::No }
}

/// Whether the running transaction has a tree block there.
fn is_tree_block(core: &Core, at: Logical) -> Result<bool> {
    Ok(block_generation(core, at)?.is_some() && core.space.group_of(at).is_some())
}

/// The generation of the tree block that the extent tree has there.
fn block_generation(core: &Core, at: Logical) -> Result<Option<u64>> {
    Ok(block_generations(core, at, 1)?.first().map(|(_, generation)| *generation))
}

/// The tree blocks that begin in a range, and their generations, as the extent tree has them.
fn block_generations(core: &Core, at: Logical, len: u64) -> Result<Vec<(Logical, u64)>> {
    let last = at.plus(len - 1);
    let (from, to) = (Key::new(at.0, KeyType::EXTENT_ITEM, 0), Key::new(last.0, KeyType::METADATA_ITEM, u64::MAX));
    let mut found = Vec::new();
    core.globals().extent.scan(core, from, to, &mut |key, data| {
        if matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) {
            let (item, _) =
                ExtentItem::read_from_prefix(data).map_err(|_| Error::corrupt("an extent item is too short"))?;
            // Data without checksums lies beside blocks in mixed groups.
            if item.flags.get() & extent_flags::TREE_BLOCK != 0 {
                found.push((Logical(key.objectid), item.generation.get()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Data: runs of sectors with checksums, and runs without.
fn copy_data(core: &Core, to: CopyTo, is_mixed: bool, at: Logical, len: u64) -> Result<u64> {
    let sector = u64::from(core.sectorsize());
    let sums = sums_of(core, at, len)?;
    let has_sum = |index: usize| sums.get(index).is_some();
    let (mut first, count, mut lost) = (0, (len / sector) as usize, 0);
    while first < count {
        let same = (first..count).take_while(|index| has_sum(*index) == has_sum(first)).count();
        let (run, bytes) = (at.plus(first as u64 * sector), same as u64 * sector);
        if has_sum(first) {
            lost += copy_verified(core, to, run, bytes)?;
        } else {
            copy_unverified(core, to, is_mixed, run, bytes)?;
        }
        first += same;
    }
    Ok(lost)
}

fn sums_of(core: &Core, at: Logical, len: u64) -> Result<Checksums> {
    let csum_tree = TreeItems::reading(core, &core.globals().csum);
    checksums::lookup(&csum_tree, Layout::of(core), at, len)
}

/// All at once, or sector by sector where no copy is good as a whole. Returns how many sectors are good in none.
fn copy_verified(core: &Core, to: CopyTo, at: Logical, len: u64) -> Result<u64> {
    let sector = u64::from(core.sectorsize());
    if copy_confirmed(core, to, at, len)? {
        return Ok(0);
    }
    let mut lost = 0;
    for number in 0..len / sector {
        let at = at.plus(number * sector);
        // The sector may have been freed and written anew since its checksum was looked up.
        if !copy_confirmed(core, to, at, sector)? && !copy_confirmed(core, to, at, sector)? {
            lost += 1;
        }
    }
    if lost > 0 {
        core.volume.tell(format!("logical {at}, {len} bytes: {lost} sectors have no good copy and are not copied"));
    }
    Ok(lost)
}

/// Copies what the checksums of now confirm. Where they are gone meanwhile, what is there.
fn copy_confirmed(core: &Core, to: CopyTo, at: Logical, len: u64) -> Result<bool> {
    let (kind, sector) = (core.checksum_kind(), core.sectorsize() as usize);
    let sums = sums_of(core, at, len)?;
    let confirm = &mut |bytes: &[u8]| {
        let fits = |(index, part): (usize, &[u8])| sums.get(index).is_none_or(|sum| kind.matches(part, sum));
        if bytes.chunks(sector).enumerate().all(fits) { Confirmed::Yes(0) } else { Confirmed::No }
    };
    Ok(core.volume.copy_moving(to, (at, len as usize), false, confirm)? != Confirmed::No)
}

/// From devices that have missed nothing. In mixed groups it may be tree blocks.
fn copy_unverified(core: &Core, to: CopyTo, is_mixed: bool, at: Logical, len: u64) -> Result<()> {
    if is_mixed {
        let nodesize = u64::from(core.nodesize());
        for number in 0..len / nodesize {
            let at = at.plus(number * nodesize);
            if is_tree_block(core, at)? {
                copy_block(core, to, at)?;
            } else {
                copy_blindly(core, to, at, nodesize)?;
            }
        }
        return Ok(());
    }
    copy_blindly(core, to, at, len)
}

fn copy_blindly(core: &Core, to: CopyTo, at: Logical, len: u64) -> Result<()> {
    let found = core.volume.copy_moving(to, (at, len as usize), true, &mut |_| Confirmed::Unknown)?;
    if found == Confirmed::No {
        return Err(Error::Device(format!("{len} bytes at logical {at} cannot be read from any device").into()));
    }
    Ok(())
}
