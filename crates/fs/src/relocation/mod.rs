//! Moving what lies in one block group elsewhere, so that the group can go.
//!
//! ```text
//! close the group ─► commit ─► ┌ list some extents ─► copy data ─► plan ─► rewrite ┐ ─► commit ─► list again ─► delete
//!                              └────────────── until the end of the group ────────┘
//! ```
//! No tree and no inode on disk says that it goes on: each commit is a filesystem like any other. Data is copied with
//! nothing held; its new place is known in memory only until the trees lead there. Then, while no handle is open,
//! everything that must change is found ([`closure`]) and changed ([`rewrite`]) in memory: all pointers to an extent
//! change in one transaction.
//!
//! # Invariants
//! 1. Whoever shares an extent or a block shares it afterwards too, snapshots that are read-only as well.
//! 2. What a rewrite may allocate is reserved before it begins. Where that is not possible the group stays as it is,
//!    `ENOSPC`.
//! 3. Nobody waits longer than for one rewrite: at most about [`MOST_BLOCKS`] blocks, in memory.
//! 4. The content of the last commit stays readable: what moved is pinned until the transaction is durable, and longer
//!    for those who read it.
//! 5. While a subvolume is half dropped nothing is moved ([`Step::Blocked`]): its tree leads to blocks that are gone.
//!
//! # Not here
//! Which groups are emptied, and why (`filesystem/balance`).

mod closed_group;
mod closure;
mod copy;
mod live;
mod rewrite;
mod scan;

pub(crate) use closed_group::ClosedGroup;

use crate::commit::Engine;
use crate::env::Point;
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::options::Canary;
use crate::space::{Class, Found, GroupInfo, Sharing, Stream};
use crate::transaction::{Copied, Core, Handle, Misses};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use closure::{Closure, DataMove};
use live::Live;
use rewrite::{Addresses, Rewrite};
use scan::{Content, Most};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Blocks that one rewrite copies, about: what one extent needs may be more.
const MOST_BLOCKS: usize = 384;

/// Extents that are moved together.
const MOST: Most = Most { extents: 128, data_bytes: 8 << 20 };

/// Bytes of data after which a commit is due: it makes what was copied durable.
const COMMIT_BYTES: u64 = 256 << 20;

/// Bytes of changed blocks after which a commit is due. Blocks that were copied since the last one are changed in
/// place, so that the nodes above many leaves are copied once for each commit.
const COMMIT_NODE_BYTES: u64 = 64 << 20;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Some extents lie elsewhere now.
    Moved,
    /// This subvolume must be dropped completely first.
    Blocked(TreeId),
    /// Everything that was listed has been moved.
    End,
}

/// Empties a closed group, step by step. See the [module](self).
pub(crate) struct Mover {
    engine: Arc<Engine>,
    group: GroupInfo,
    next: Option<Logical>,
    blocks: VecDeque<Content>,
    data: VecDeque<DataMove>,
    /// Bytes moved since the last commit.
    bytes: u64,
}

/// Data that was copied and to which nothing leads yet.
impl Drop for Mover {
    fn drop(&mut self) {
        self.data.iter().for_each(|data| self.engine.return_data(data.to, data.len));
    }
}

impl Mover {
    /// Begins at the group's first extent. Everything that is allocated in it has been committed.
    pub fn new(engine: &Arc<Engine>, closed: &ClosedGroup) -> Mover {
        let (group, next) = (*closed.group(), Some(closed.group().start));
        Mover { engine: Arc::clone(engine), group, next, blocks: VecDeque::new(), data: VecDeque::new(), bytes: 0 }
    }

    /// Moves some extents. No handle and no lock may be held.
    pub fn step(&mut self) -> Result<Step> {
        if self.blocks.is_empty() && self.data.is_empty() {
            let Some(from) = self.next else { return Ok(Step::End) };
            self.list(from)?;
            self.engine.env().reached(Point::PieceMoved);
        }
        let step = self.rewrite()?;
        let engine = &self.engine;
        let changed_bytes = engine.nodes.dirty_count() as u64 * u64::from(engine.nodesize());
        if self.bytes >= COMMIT_BYTES || changed_bytes >= COMMIT_NODE_BYTES {
            self.bytes = 0;
            engine.commit()?;
        }
        Ok(step)
    }

    /// Lists extents, and copies those that are data.
    fn list(&mut self, from: Logical) -> Result<()> {
        let (found, next) = scan::contents(&self.engine, &self.group, from, &MOST)?;
        let mut copied = self.data.len();
        for content in found {
            match content {
                Content::Block(..) => self.blocks.push_back(content),
                Content::Data(from, len) => {
                    let to = match self.place_now(len)? {
                        Some(to) => to,
                        // Writes end before anybody waits for a commit.
                        None => {
                            self.copy_placed(&mut copied)?;
                            self.place(len)?
                        }
                    };
                    self.data.push_back(DataMove { from, to, len });
                }
            }
        }
        self.copy_placed(&mut copied)?;
        self.next = next;
        Ok(())
    }

    /// Copies the listed data from number `copied` on.
    fn copy_placed(&self, copied: &mut usize) -> Result<()> {
        let placed: Vec<DataMove> = self.data.range(*copied..).copied().collect();
        *copied = self.data.len();
        let outcome = copy::copy_data(self.engine.core(), &placed);
        placed.iter().for_each(|data| self.engine.space.end_write(data.to));
        outcome
    }

    /// A place in the groups that there are, if they have one.
    fn place_now(&self, len: u64) -> Result<Option<Logical>> {
        loop {
            match self.try_place(len, Sharing::Never) {
                Found::Extent(at, _) => return Ok(Some(at)),
                Found::Load(group) => self.engine.core().load_group_at(group)?,
                Found::Nothing => return Ok(None),
            }
        }
    }

    fn try_place(&self, len: u64, sharing: Sharing) -> Found {
        let (space, class) = (&self.engine.space, Class::Data);
        // Space that others have reserved is theirs.
        if !space.reserve(class, len, self.engine.data_floor()) {
            return Found::Nothing;
        }
        let found = match space.target(class) {
            Some(profile) => space.allocate_extent_of(class, len, (Stream::Data, sharing), profile),
            None => space.allocate_extent(class, len, len, (Stream::Data, sharing)),
        };
        space.unreserve(class, len);
        found
    }

    /// A place for an extent of data, which is never split.
    fn place(&self, len: u64) -> Result<Logical> {
        let engine = &self.engine;
        let class = Class::Data;
        let (mut committed, mut sharing) = (false, Sharing::Never);
        loop {
            match self.try_place(len, sharing) {
                Found::Extent(at, _) => return Ok(at),
                Found::Load(group) => engine.core().load_group_at(group)?,
                Found::Nothing if engine.allocate_chunk(class).is_ok() => {}
                Found::Nothing if sharing == Sharing::Never && engine.space.has_rows(class) => {
                    sharing = Sharing::Allowed
                }
                Found::Nothing if !committed => {
                    committed = true;
                    engine.commit_for_space()?;
                }
                Found::Nothing => {
                    let what = format!("no free run of {len} bytes for the extent that a balance must move");
                    return Err(Error::refused_at(Errno::ENOSPC, what));
                }
            }
        }
    }

    /// Rewrites what leads to the first of the listed extents.
    fn rewrite(&mut self) -> Result<Step> {
        let (misses, mut most, mut relief) = (Misses::default(), MOST_BLOCKS, Relief::default());
        self.warm_up(&misses);
        loop {
            match self.attempt(&misses, most)? {
                Attempt::Done(done) => {
                    self.take_done(&done);
                    return Ok(Step::Moved);
                }
                Attempt::Missing => misses.load(&self.engine, &self.engine.globals().extent)?,
                Attempt::Blocked(tree) => return Ok(Step::Blocked(tree)),
                Attempt::Load(group) => self.engine.core().load_group_at(group)?,
                // Less at a time costs less.
                Attempt::NoSpace { .. } if most > 1 => most /= 8,
                Attempt::NoSpace { system } => relief.apply(&self.engine, system)?,
            }
        }
    }

    /// Has most of what an attempt looks at in memory, while nobody waits. What it finds may be wrong.
    fn warm_up(&self, misses: &Misses) {
        let core = self.engine.core();
        let running = core.gate.running();
        // The attempt reports errors, where it meets them.
        let _ = self.plan(&Live::ahead(core, &running.refs, misses), MOST_BLOCKS);
        let sums: Vec<Key> = self.data.iter().flat_map(|data| [sum_key(data.from), sum_key(data.to)]).collect();
        core.globals().csum.preload_copied(core, &sums, &mut Copied::new());
    }

    /// Finds what must change, for as many extents as `most` blocks allow.
    fn plan(&self, live: &Live<'_>, most: usize) -> Result<(Closure, Planned)> {
        let (mut closure, mut planned) = (Closure::default(), Planned::default());
        for content in &self.blocks {
            let Content::Block(at, level) = *content else { continue };
            if planned.blocks > 0 && closure.copies() >= most {
                break;
            }
            closure.add_block(live, at, level)?;
            planned.blocks += 1;
        }
        for data in &self.data {
            if planned.blocks + planned.data > 0 && closure.copies() >= most {
                break;
            }
            if !closure.add_data(live, *data)? {
                planned.unused.push(*data);
            }
            planned.data += 1;
        }
        closure.judge_privacy(live)?;
        Ok((closure, planned))
    }

    fn attempt(&self, misses: &Misses, most: usize) -> Result<Attempt> {
        let engine = &self.engine;
        let stopped = engine.stop_handles_in_turn()?;
        let handle = stopped.handle();
        let live = Live::new(engine, &handle.transaction().refs, misses);
        let (closure, planned) = match half_dropped(&live).and_then(|tree| match tree {
            Some(tree) => Ok(Err(tree)),
            None => self.plan(&live, most).map(Ok),
        }) {
            Err(Error::Missing(_)) => return Ok(Attempt::Missing),
            Err(error) => return Err(error),
            Ok(Err(tree)) => return Ok(Attempt::Blocked(tree)),
            Ok(Ok(plan)) => plan,
        };
        let Some(_reservation) = engine.core().reserve_nodes(cost(engine, &closure)) else {
            return Ok(Attempt::NoSpace { system: false });
        };
        let blocks = match rewrite::allocate(engine, &closure) {
            Addresses::Found(blocks) => blocks,
            Addresses::Load(group) => return Ok(Attempt::Load(group)),
            Addresses::Nothing { system } => return Ok(Attempt::NoSpace { system }),
        };
        let data = closure.data.iter().map(|data| (data.from, data.to)).collect();
        let rewrite = Rewrite { handle, closure: &closure, blocks, data };
        let done = copy_checksums(handle, &closure.data).and_then(|()| rewrite.run());
        done.inspect_err(|error| engine.abort(error))?;
        engine.env().passes("extents have been moved");
        Ok(Attempt::Done(planned))
    }

    fn take_done(&mut self, planned: &Planned) {
        self.blocks.drain(..planned.blocks);
        for data in self.data.drain(..planned.data) {
            self.bytes += data.len;
            if planned.unused.contains(&data) {
                self.engine.return_data(data.to, data.len);
            }
        }
    }
}

/// The listed extents that an attempt covers.
#[derive(Default)]
struct Planned {
    blocks: usize,
    data: usize,
    /// Copied, and freed since by its owner.
    unused: Vec<DataMove>,
}

enum Attempt {
    Done(Planned),
    /// Blocks are missing from memory, and noted.
    Missing,
    Blocked(TreeId),
    /// The free space of this group must be read.
    Load(Logical),
    NoSpace {
        system: bool,
    },
}

/// Remedies for missing tree space, each once.
#[derive(Default)]
struct Relief {
    committed: bool,
    chunks: usize,
}

impl Relief {
    fn apply(&mut self, engine: &Engine, system: bool) -> Result<()> {
        const MOST_CHUNKS: usize = 4;
        let class = if system { Class::System } else { Class::Metadata };
        if !self.committed {
            self.committed = true;
            return engine.commit_for_space();
        }
        if self.chunks < MOST_CHUNKS && engine.allocate_chunk(class).is_ok() {
            self.chunks += 1;
            return Ok(());
        }
        Err(rewrite::no_addresses())
    }
}

/// Tree blocks that a rewrite, and booking what it queues, may allocate.
fn cost(core: &Core, closure: &Closure) -> u64 {
    let nodesize = u64::from(core.nodesize());
    let (changes, extents) = closure.changes();
    let globals = core.globals();
    let books = [Some(&globals.extent), Some(&globals.csum), globals.free_space.as_ref(), globals.block_group.as_ref()];
    let present: u64 = books.into_iter().flatten().map(|tree| tree.bytes_used(core.nodesize()) / nodesize).sum();
    let sums: u64 = closure.data.iter().map(|data| data.len / u64::from(core.sectorsize()) * 32).sum();
    closure.copies() as u64 + (changes + extents).min(present) + (extents * 256 + changes * 128 + sums) / nodesize + 32
}

/// The new places of data get the checksums of the old ones.
fn copy_checksums(handle: &Handle, data: &[DataMove]) -> Result<()> {
    let core = handle.core();
    if core.has_canary(Canary::RelocationWithoutChecksums) {
        return Ok(());
    }
    let layout = checksums::Layout::of(core);
    for data in data {
        let sums = copy::checksums_of(core, data.from, data.len)?;
        for (first, digests) in sums.runs() {
            let at = data.to.plus(first as u64 * u64::from(core.sectorsize()));
            checksums::insert(&mut TreeItems::editing(handle, &core.globals().csum), layout, at, digests)?;
        }
    }
    Ok(())
}

fn sum_key(at: Logical) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at.0)
}

/// A deleted subvolume of which a part is gone.
fn half_dropped(live: &Live<'_>) -> Result<Option<TreeId>> {
    let key = |offset| Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, offset);
    let mut deleted = Vec::new();
    live.core.globals().root.scan(live.source(), key(0), key(u64::MAX), &mut |key, _| {
        deleted.push(TreeId(key.offset));
        Ok(ControlFlow::Continue(()))
    })?;
    for id in deleted {
        let Some(tree) = live.tree(id)? else { continue };
        let item = tree.root_item();
        if item.refs.get() == 0 && Key::from(item.drop_progress).objectid != 0 {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
