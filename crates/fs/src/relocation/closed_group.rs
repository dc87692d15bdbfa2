//! A group that serves no allocation, so that it can be emptied.

use crate::commit::Engine;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo};
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::block_group_flags as bits;
use std::sync::Arc;

/// Chunks that are added at most for the content of one group.
const MOST_CHUNKS: usize = 64;

/// See the [module](self). When it is dropped the group serves allocations again, unless it is gone.
pub(crate) struct ClosedGroup {
    engine: Arc<Engine>,
    group: GroupInfo,
    is_leaving: bool,
}

impl Drop for ClosedGroup {
    fn drop(&mut self) {
        if !self.is_leaving {
            self.engine.space.reopen_group(self.group.start);
        }
    }
}

impl ClosedGroup {
    /// Closes the group that begins at `start`, when the others have room for what it holds, another chunk if need be.
    /// `ENOSPC` where they have not. Afterwards nothing is allocated in it any more and nothing is written there in
    /// place. No handle and no lock may be held.
    pub fn close(engine: &Arc<Engine>, start: Logical) -> Result<ClosedGroup> {
        let group = engine.space.group(start);
        let group =
            group.ok_or_else(|| Error::refused_at(Errno::ENOENT, format!("there is no block group {start}")))?;
        let class = Class::of(group.flags).expect("the tree checker has seen the flags");
        engine.core().load_whole_group(&group)?;
        make_room(engine, &group, class)?;
        let closed = ClosedGroup { engine: Arc::clone(engine), group, is_leaving: false };
        engine.await_in_place(start..start.plus(group.length));
        Ok(closed)
    }

    /// The group.
    pub fn group(&self) -> &GroupInfo {
        &self.group
    }

    /// Bytes that are in use now.
    pub fn used(&self) -> u64 {
        self.engine.space.group(self.group.start).map_or(0, |group| group.used)
    }

    /// Nothing is in use any more: a commit deletes it, this one or, if somebody still reads what was there, a later
    /// one. No handle and no lock may be held.
    pub fn delete(&mut self) -> Result<()> {
        self.engine.space.let_leave(self.group.start);
        self.is_leaving = true;
        self.engine.commit_for_space()
    }
}

/// Closes `group` as soon as the others have room for its content and all reservations.
fn make_room(engine: &Engine, group: &GroupInfo, class: Class) -> Result<()> {
    let (mut chunks, mut committed) = (0, false);
    loop {
        let reserve = match class {
            Class::Data => 0,
            Class::System => 2 * u64::from(engine.nodesize()),
            Class::Metadata | Class::Mixed => engine.commit_cost() + engine.global_reserve() / 2,
        };
        let is_alone =
            !engine.space.groups().iter().any(|other| other.start != group.start && replaces(engine, group, other));
        if !is_alone
            && has_room_in_target(engine, group, class)
            && engine.space.close_group(group.start, reserve + group.used)
        {
            return Ok(());
        }
        if chunks < MOST_CHUNKS && engine.allocate_chunk(class).is_ok() {
            chunks += 1;
        } else if !committed {
            committed = true;
            engine.commit_for_space()?;
        } else {
            let used = group.used >> 20;
            let start = group.start;
            return Err(Error::refused_at(
                Errno::ENOSPC,
                format!("no room elsewhere for the {used} MiB in block group {start}"),
            ));
        }
    }
}

/// Whether `other` can stay for the class when `group` is gone.
fn replaces(engine: &Engine, group: &GroupInfo, other: &GroupInfo) -> bool {
    group.flags & bits::TYPE_MASK == other.flags & bits::TYPE_MASK && !engine.space.is_closed(other.start)
}

/// During a conversion: whether groups of the new profile have room for what the group holds.
fn has_room_in_target(engine: &Engine, group: &GroupInfo, class: Class) -> bool {
    let Some(target) = engine.space.target(class) else { return true };
    let of_target = |other: &&GroupInfo| {
        other.start != group.start
            && other.flags & bits::TYPE_MASK == group.flags & bits::TYPE_MASK
            && other.flags & bits::PROFILE_MASK == target
    };
    let groups = engine.space.groups();
    let (room, any) = groups
        .iter()
        .filter(of_target)
        .fold((0, false), |(room, _), other| (room + other.length.saturating_sub(other.used), true));
    any && room >= group.used
}
