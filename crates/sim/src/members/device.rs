//! A device to which things happen.

use super::trouble::{Failing, Part, Trouble};
use super::watch::Watch;
use butterfs_device::{BlockDevice, Operation, SECTOR};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_volume::ChunkMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A member to which things happen.
#[derive(Debug)]
pub struct Member {
    inner: Arc<dyn BlockDevice>,
    number: usize,
    watch: Watch,
    /// Ranges of chunks of data.
    data: Vec<Range<u64>>,
    /// Each with the number of operations that it has seen.
    troubles: Mutex<Vec<(Trouble, u64)>>,
}

impl Member {
    /// Device `number` of a life, where the chunks are `chunks`.
    pub fn new(
        inner: Arc<dyn BlockDevice>,
        number: usize,
        troubles: &[Trouble],
        chunks: &ChunkMap,
        watch: &Watch,
    ) -> Member {
        let own = troubles.iter().filter(|trouble| trouble.device == number).map(|trouble| (*trouble, 0)).collect();
        let is_data = |kind: u64| kind & bits::DATA != 0 && kind & bits::METADATA == 0;
        let stripes = chunks.iter().filter(|chunk| is_data(chunk.kind)).flat_map(|chunk| {
            let own = chunk.stripes.iter().filter(|stripe| stripe.device.0 == number as u64 + 1);
            own.map(|stripe| stripe.physical.0..stripe.physical.0 + chunk.stripe_length())
        });
        Member { inner, number, watch: watch.clone(), data: stripes.collect(), troubles: Mutex::new(own) }
    }

    /// The part that contains a range: in a chunk of data that was there when the life began, or not.
    fn part(&self, range: &Range<u64>) -> Part {
        let is_data = self.data.iter().any(|data| data.start <= range.start && range.end <= data.end);
        match range.start {
            start if start == OFFSETS[0].0 => Part::Superblock,
            _ if is_data => Part::Data,
            _ => Part::Metadata,
        }
    }

    /// Counts an operation; what fails, if it does.
    fn strike(&self, on: Operation, part: Part) -> Option<Failing> {
        let mut troubles = self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut strikes = None;
        for (trouble, seen) in troubles.iter_mut() {
            let concerns = match trouble.failing {
                Failing::Read => on == Operation::Read && trouble.part.holds(part),
                Failing::Write | Failing::TornWrite => on == Operation::Write && trouble.part.holds(part),
                // The writes after a failed flush fail too.
                Failing::Flush => on == Operation::Flush || on == Operation::Write && *seen > trouble.after,
                Failing::Gone => on != Operation::Read,
            };
            if concerns {
                strikes = trouble.strikes(*seen).then_some(trouble.failing).or(strikes);
                *seen += 1;
            }
        }
        let failing = strikes?;
        let whole = matches!(failing, Failing::Flush | Failing::Gone);
        self.watch.strike(self.number, failing, if whole { Part::All } else { part });
        Some(failing)
    }

    fn is_gone(&self) -> bool {
        let troubles = self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        troubles.iter().any(|(trouble, seen)| trouble.failing == Failing::Gone && *seen > trouble.after)
    }
}

fn failed(what: &str) -> io::Error {
    io::Error::other(format!("injected fault: {what}"))
}

impl BlockDevice for Member {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_gone() {
            return Err(failed("the device is gone"));
        }
        match self.strike(Operation::Read, self.part(&(offset..offset + buf.len() as u64))) {
            None => self.inner.read_at(offset, buf),
            Some(_) => Err(failed("the read fails")),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.strike(Operation::Write, self.part(&(offset..offset + data.len() as u64))) {
            None => self.inner.write_at(offset, data),
            Some(Failing::TornWrite) => {
                // A device that tears all copies of its superblock is none of the filesystem's any more.
                let is_copy = OFFSETS[1..].iter().any(|copy| copy.0 == offset);
                let stored = if is_copy { 0 } else { data.len() as u64 / SECTOR / 2 * SECTOR };
                self.inner.write_at(offset, &data[..stored as usize])?;
                Err(failed("the write is torn"))
            }
            Some(_) => Err(failed("the write fails")),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.strike(Operation::Flush, Part::All) {
            None => self.inner.flush(),
            Some(_) => Err(failed("the flush fails")),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.is_gone() { Err(failed("the device is gone")) } else { self.inner.discard(offset, len) }
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
