//! The next step of a thread that writes a log for others: a state machine over the two protocols, the
//! [group](super::group) of those who wait and the [order of superblocks](crate::superblock_order).
//!
//! ```text
//! WriteBlocks ─► FlushBlocks ─► (the commit before is durable) ─► WriteSuperblock ─► FlushSuperblock ─► Ended
//!                                                                         └ others wait, who flush anyway ─► Ended
//! ```
//! Whoever drives it does the I/O and asks for the next one; to drop it is to give up, which lets others go on.

use super::group::{Group, Reached};
use crate::superblock_order::{Leading, Logging, SuperblockOrder, Turn};

/// A step. Asking for the next one says that it has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write the log's blocks.
    WriteBlocks,
    /// Make them durable.
    FlushBlocks,
    /// Lead the superblock to them.
    WriteSuperblock,
    /// Make that durable.
    FlushSuperblock,
    /// Nothing more.
    Ended(Outcome),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The superblock leads to the log.
    Led(Reached),
    /// The log's transaction has been committed instead.
    Committed,
    /// The commit before the log's transaction got no superblock that a log could lie on.
    LeftToNext,
    /// Writing has stopped.
    Stopped,
}

enum Phase<'a> {
    Begun(Logging<'a>),
    Written(Logging<'a>),
    /// The group's point of what is written when the flush begins.
    Flushing(Logging<'a>, u64),
    Leading(Leading<'a>),
    LastFlush(Leading<'a>),
    Ended(Outcome),
}

/// See the [module](self).
pub struct Lead<'a> {
    group: &'a Group,
    /// Up to where the log was frozen.
    point: u64,
    phase: Phase<'a>,
}

impl<'a> Lead<'a> {
    /// For a log of `generation` that was frozen up to `point`.
    pub fn begin(order: &'a SuperblockOrder, group: &'a Group, generation: u64, point: u64) -> Lead<'a> {
        let phase = order.log(generation).map_or(Phase::Ended(Outcome::Committed), Phase::Begun);
        Lead { group, point, phase }
    }

    /// The next step; the last one has succeeded. May wait for other commits and logs.
    pub fn next(&mut self) -> Next {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended(Outcome::Stopped));
        let (phase, next) = match phase {
            Phase::Begun(logging) => (Phase::Written(logging), Next::WriteBlocks),
            Phase::Written(logging) => (Phase::Flushing(logging, self.group.written()), Next::FlushBlocks),
            Phase::Flushing(logging, written) => {
                self.group.flushed(written);
                match logging.lead() {
                    Turn::Leading(leading) => (Phase::Leading(leading), Next::WriteSuperblock),
                    Turn::LeftToNext => ended(Outcome::LeftToNext),
                    Turn::Stopped => ended(Outcome::Stopped),
                }
            }
            Phase::Leading(_leading) if self.group.others_wait(self.point) => {
                ended(Outcome::Led(Reached::Written(self.point)))
            }
            Phase::Leading(leading) => (Phase::LastFlush(leading), Next::FlushSuperblock),
            Phase::LastFlush(_leading) => ended(Outcome::Led(Reached::Durable(self.point))),
            Phase::Ended(how) => ended(how),
        };
        self.phase = phase;
        next
    }
}

fn ended<'a>(how: Outcome) -> (Phase<'a>, Next) {
    (Phase::Ended(how), Next::Ended(how))
}
