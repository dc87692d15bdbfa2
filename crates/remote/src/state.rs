//! Changes that the map in the store does not have yet.

use crate::bytes_of::Digest;
use crate::local::Kept;
use crate::pieces::Stored;
use crate::ranges::{Part, Ranges, Run};
use crate::record::Content;
use crate::table::{BLOCK, PIECE_BLOCKS, Piece, Segment, Table};
use butterfs_store::{Error, Kind, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// Blocks that were written together.
#[derive(Debug)]
pub struct Write {
    /// The first block.
    pub start: u64,
    /// The content.
    pub kept: Kept,
    /// The number of the change.
    pub stamp: u64,
    /// Its pieces, one for each [`PIECE_BLOCKS`] blocks; set when a segment with them is in the store.
    pub home: OnceLock<Vec<Piece>>,
}

impl Write {
    /// How many blocks.
    pub fn blocks(&self) -> u64 {
        self.kept.len() as u64 / BLOCK
    }

    /// The pieces of its blocks from `skip` on, if it is in a segment.
    fn pieces(&self, start: u64, skip: u64, blocks: u64) -> Option<Vec<Run<Piece>>> {
        let home = self.home.get()?;
        let first = start - skip;
        let whole = home.iter().enumerate().map(|(index, piece)| Run {
            start: first + index as u64 * PIECE_BLOCKS,
            blocks: u64::from(piece.whole),
            value: *piece,
        });
        Some(whole.filter_map(|run| run.within(start, start + blocks)).collect())
    }

    /// The content of its blocks from `skip` on.
    pub fn part(&self, skip: u64, blocks: u64) -> Result<Bytes> {
        let part = self.kept.part((skip * BLOCK) as usize, (blocks * BLOCK) as usize);
        part.map_err(|error| Error::new(Kind::Damaged, format!("the file of written blocks cannot be read: {error}")))
    }
}

/// The content of a range.
#[derive(Clone, Debug)]
pub enum Held {
    /// Zeros.
    Zeros,
    /// A piece of a segment.
    Piece(Piece),
    /// Blocks of a write, from `skip` on.
    Write {
        /// The write.
        write: Arc<Write>,
        /// Its blocks in front.
        skip: u64,
    },
}

/// The content of a range, and the number of the change that brought it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Later changes have higher numbers.
    pub stamp: u64,
    /// The content.
    pub held: Held,
}

impl Part for Change {
    fn part(&self, skip: u64) -> Change {
        let held = match &self.held {
            Held::Zeros => Held::Zeros,
            Held::Piece(piece) => Held::Piece(piece.part(skip)),
            Held::Write { write, skip: before } => Held::Write { write: write.clone(), skip: before + skip },
        };
        Change { stamp: self.stamp, held }
    }
}

impl Change {
    /// Whether the blocks are zeros.
    pub fn is_zeros(&self) -> bool {
        matches!(self.held, Held::Zeros)
    }

    /// Whether the content is in memory only.
    pub fn is_homeless(&self) -> bool {
        matches!(&self.held, Held::Write { write, .. } if write.home.get().is_none())
    }
}

/// The ranges of a change as they stand in a record.
pub fn contents(run: &Run<Change>) -> Result<Vec<Run<Content>>> {
    let of = |value| vec![Run { start: run.start, blocks: run.blocks, value }];
    Ok(match &run.value.held {
        Held::Zeros => of(Content::Zeros),
        Held::Piece(piece) => of(Content::Piece(*piece)),
        Held::Write { write, skip } => match write.pieces(run.start, *skip, run.blocks) {
            None => of(Content::Data(write.part(*skip, run.blocks)?)),
            Some(pieces) => pieces
                .into_iter()
                .map(|Run { start, blocks, value }| Run { start, blocks, value: Content::Piece(value) })
                .collect(),
        },
    })
}

/// A moment between two changes.
pub struct Snapshot {
    /// The number of the last change in it.
    pub stamp: u64,
    /// Everything that the table does not have.
    pub recent: Ranges<Change>,
    /// The next segment's number then.
    pub next: u64,
    /// The log has everything in it from this record on: number and digest.
    pub logged: (u64, Digest),
}

/// Everything of a volume that is written, but for its store.
pub struct State {
    /// Changes since the table.
    pub recent: Ranges<Change>,
    /// Those of them that the log does not have.
    pub unlogged: Ranges<()>,
    /// The number of the last change.
    pub stamp: u64,
    /// The number of the last change that the log has.
    pub logged_stamp: u64,
    /// Writes that are in no segment, the oldest first.
    pub queue: VecDeque<Arc<Write>>,
    /// Bytes of them.
    pub queued: u64,
    /// Bytes on their way into a segment.
    pub putting: u64,
    /// Writes up to this change shall go into segments, even if they fill none.
    pub wanted: u64,
    /// Segments that the log does not know.
    pub unnamed: Vec<(u64, u32)>,
    /// Segments that the table does not know.
    pub segments: BTreeMap<u64, Segment>,
    /// The number of the next segment.
    pub next: u64,
    /// The table in the store.
    pub table: Arc<Table>,
    /// The last record of the log, and its digest.
    pub logged: (u64, Digest),
    /// Records and their bytes since the table.
    pub since_table: (u64, u64),
    /// A moment that the next table is to be made of.
    pub due: Option<Snapshot>,
    /// A new table is being made.
    pub checkpointing: bool,
    /// Why nothing is written any more.
    pub failed: Option<Failure>,
    /// The threads shall end.
    pub closing: bool,
}

/// Why nothing is written any more.
#[derive(Clone, Debug)]
pub struct Failure {
    /// A sentence.
    pub sentence: String,
    /// Its errno.
    pub errno: i32,
}

impl State {
    /// Nothing but a table.
    pub fn new(table: Arc<Table>) -> State {
        State {
            recent: Ranges::default(),
            unlogged: Ranges::default(),
            stamp: 0,
            logged_stamp: 0,
            queue: VecDeque::new(),
            queued: 0,
            putting: 0,
            wanted: 0,
            unnamed: Vec::new(),
            segments: BTreeMap::new(),
            next: table.next,
            table,
            logged: (0, Digest::default()),
            since_table: (0, 0),
            due: None,
            checkpointing: false,
            failed: None,
            closing: false,
        }
    }

    /// A copy for a reader, who goes on with the log from here.
    pub fn copy(&self) -> State {
        State {
            recent: self.recent.clone(),
            segments: self.segments.clone(),
            next: self.next,
            logged: self.logged,
            stamp: self.stamp,
            logged_stamp: self.logged_stamp,
            ..State::new(self.table.clone())
        }
    }

    /// A piece with the writer of its segment.
    pub fn stored(&self, piece: Piece) -> Stored {
        match self.segments.get(&piece.segment) {
            Some(segment) => Stored { piece, writer: segment.writer },
            None => self.table.stored(piece),
        }
    }

    /// Takes blocks over; whether the log still has to learn of them is the caller's to say.
    pub fn write(&mut self, start: u64, kept: Kept, logged: bool) {
        self.stamp += 1;
        let write = Arc::new(Write { start, kept, stamp: self.stamp, home: OnceLock::new() });
        let blocks = write.blocks();
        self.queued += write.kept.len() as u64;
        self.queue.push_back(write.clone());
        self.change(start, blocks, Held::Write { write, skip: 0 }, logged);
    }

    /// Gives a range a content that is not in memory.
    pub fn set(&mut self, start: u64, blocks: u64, held: Held, logged: bool) {
        self.stamp += 1;
        self.change(start, blocks, held, logged);
    }

    fn change(&mut self, start: u64, blocks: u64, held: Held, logged: bool) {
        self.recent.insert(start, blocks, Change { stamp: self.stamp, held });
        if logged {
            self.logged_stamp = self.stamp;
        } else {
            self.unlogged.insert(start, blocks, ());
        }
    }

    /// Writes for a segment, if there are enough of them or they are wanted: the first one, and those that follow it on
    /// the device. Threads that write one file mix its parts in the queue; read again, they should be one range.
    pub fn take_for_segment(&mut self, most: u64) -> Vec<Arc<Write>> {
        let is_wanted = self.queue.front().is_some_and(|write| write.stamp <= self.wanted);
        if self.queued < most && !is_wanted {
            return Vec::new();
        }
        // Nobody needs a write that was replaced as a whole.
        self.queue.retain(|write| Arc::strong_count(write) > 1);
        let Some(first) = self.queue.front().map(|write| write.start) else {
            self.queued = 0;
            return Vec::new();
        };
        let mut taken: Vec<Arc<Write>> = self.queue.drain(..).collect();
        taken.sort_by_key(|write| (write.start < first, write.start));
        let mut bytes = 0;
        let mut fits = |write: &Arc<Write>| {
            bytes += write.kept.len() as u64;
            bytes <= most
        };
        let mut rest = taken.split_off(taken.iter().take_while(|write| fits(write)).count().max(1));
        rest.sort_unstable_by_key(|write| write.stamp);
        self.queue = rest.into();
        self.queued = bytes_of(&self.queue);
        self.putting += bytes_of(&taken);
        taken
    }

    /// Writes have come into a segment.
    pub fn settled(&mut self, number: u64, segment: Segment, writes: &[Arc<Write>]) {
        self.segments.insert(number, segment);
        self.unnamed.push((number, segment.len));
        for write in writes {
            self.putting -= write.kept.len() as u64;
            for run in self.recent.over(write.start, write.blocks()) {
                let Held::Write { write: held, skip } = &run.value.held else { continue };
                if !Arc::ptr_eq(held, write) {
                    continue;
                }
                for piece in held.pieces(run.start, *skip, run.blocks).unwrap_or_default() {
                    let change = Change { stamp: run.value.stamp, held: Held::Piece(piece.value) };
                    self.recent.insert(piece.start, piece.blocks, change);
                }
            }
        }
    }

    /// The changes that the log does not have; from now on they count as logged.
    pub fn cut(&mut self) -> Vec<Run<Change>> {
        let unlogged = std::mem::take(&mut self.unlogged);
        unlogged.iter().flat_map(|run| self.recent.over(run.start, run.blocks)).collect()
    }
}

fn bytes_of<'w>(writes: impl IntoIterator<Item = &'w Arc<Write>>) -> u64 {
    writes.into_iter().map(|write| write.kept.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_gets_neighbours_on_the_device_beginning_with_the_oldest_write() {
        let mut state = State::new(Arc::new(Table::new(1 << 30)));
        let write = |state: &mut State, start: u64| state.write(start, Kept::Memory(vec![1; 4096].into()), false);
        // Two threads, each of which writes forwards; one block is written twice.
        for number in 0..6 {
            write(&mut state, 100 + number);
            write(&mut state, 10 + number);
        }
        write(&mut state, 10);
        let take = |state: &mut State| {
            let taken = state.take_for_segment(4 * 4096);
            taken.iter().map(|write| write.start).collect::<Vec<_>>()
        };
        assert_eq!(take(&mut state), [100, 101, 102, 103]);
        assert_eq!(take(&mut state), [11, 12, 13, 14]);
        assert_eq!(take(&mut state), [104, 105, 10, 15]);
        assert_eq!((state.queued, state.putting), (0, 12 * 4096));
        write(&mut state, 7);
        assert!(take(&mut state).is_empty(), "too few that nobody waits for");
        state.wanted = state.stamp;
        assert_eq!(take(&mut state), [7]);
    }
}
