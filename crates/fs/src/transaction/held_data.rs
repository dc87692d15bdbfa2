//! Data that somebody reads: as long as it is held, what a file gives up of it is not used again.
//!
//! Invariant: a hold begins while a file refers to the extent and cannot give it up, because its lock is held.

use super::Core;
use butterfs_ondisk::Logical;
use std::sync::Arc;

/// See the [module](self). Ends when dropped.
pub(crate) struct HeldData {
    core: Arc<Core>,
    extents: Vec<(Logical, u64)>,
}

impl Core {
    /// Holds extents, by their addresses and lengths on disk.
    pub(crate) fn hold_data(self: &Arc<Self>, extents: Vec<(Logical, u64)>) -> HeldData {
        self.space.hold(&extents);
        HeldData { core: Arc::clone(self), extents }
    }
}

impl Drop for HeldData {
    fn drop(&mut self) {
        self.core.space.end_hold(&self.extents);
    }
}
