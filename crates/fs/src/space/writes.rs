//! Writes of new data into groups with parity, from the allocation until the data is on the devices.
//!
//! Data that shares slices with a write must not become needed while the write is in flight. So whoever is about to
//! make something durable begins a new epoch, in which allocations share slices with nothing before it, and waits until
//! the writes of earlier epochs have ended.
//!
//! # Invariants
//! 1. A write ends before its writer waits for a commit or a log.

use super::{Space, SpaceState, Stream};
use butterfs_ondisk::Logical;
use std::collections::BTreeMap;

/// The writes that are on their way.
#[derive(Default)]
pub(super) struct Writes {
    epoch: u64,
    /// By epoch.
    running: BTreeMap<u64, usize>,
    /// The epoch of each, by its address.
    at: BTreeMap<u64, u64>,
}

impl SpaceState {
    pub(super) fn begin_write(&mut self, at: Logical) {
        let has_rows = self.groups.range(..=at.0).next_back().is_some_and(|(_, group)| group.columns > 0);
        if has_rows {
            let Writes { epoch, running, at: places } = &mut self.writes;
            *running.entry(*epoch).or_default() += 1;
            places.insert(at.0, *epoch);
        }
    }
}

impl Space {
    /// The data that was allocated at `at` is on the devices, or is not going to be written. To be called once.
    pub fn end_write(&self, at: Logical) {
        let mut state = self.state.lock();
        let Writes { running, at: places, .. } = &mut state.writes;
        let Some(epoch) = places.remove(&at.0) else { return };
        let count = running.get_mut(&epoch).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            running.remove(&epoch);
            drop(state);
            self.written.notify_all();
        }
    }

    /// The data written so far is about to be needed: later allocations share no slices with it. Returns what
    /// [`await_writes`](Self::await_writes) needs.
    pub fn end_epoch(&self) -> u64 {
        let mut state = self.state.lock();
        state.close(&[Stream::Data, Stream::InPlace]);
        state.writes.epoch += 1;
        state.writes.epoch
    }

    /// Waits until all writes of epochs before this one have ended.
    pub fn await_writes(&self, epoch: u64) {
        let mut state = self.state.lock();
        while state.writes.running.range(..epoch).next().is_some() {
            self.written.wait(&mut state);
        }
    }
}
