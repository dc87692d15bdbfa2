//! The clock of a life: what was written down so far of its device, or of the store that its volume is in.

use crate::objects::journal::Journal;
use butterfs_device::Recorder;
use std::sync::Arc;

/// See the [module](self).
#[derive(Clone)]
pub enum Clock {
    /// Writes and flushes of devices.
    Device(Recorder),
    /// Changes of a store, one of whose hosts lives.
    Store {
        /// The store.
        journal: Arc<Journal>,
        /// The host.
        host: usize,
    },
}

impl Clock {
    /// The events so far.
    pub fn now(&self) -> usize {
        match self {
            Clock::Device(recorder) => recorder.len(),
            Clock::Store { journal, .. } => journal.len(),
        }
    }

    /// Whether another host has taken the volume over, so that writing fails.
    pub fn has_rival(&self) -> bool {
        match self {
            Clock::Device(_) => false,
            Clock::Store { journal, host } => journal.has_rival(*host),
        }
    }
}
