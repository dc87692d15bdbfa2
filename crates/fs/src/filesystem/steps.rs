//! The work in the background as single steps, for whoever drives a filesystem whose [`Env`](crate::Env) lets it start
//! no threads.

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::node_io::Work;
use crate::subvolume;
use crate::transaction::Reserve;
use butterfs_ondisk::TreeId;
use std::sync::atomic::Ordering;

/// Items that an operation of ordinary size changes at most.
const ORDINARY_ITEMS: u64 = 64;

#[doc(hidden)]
impl Filesystem {
    /// Writes back what is buffered of an inode, as memory pressure does.
    pub fn write_back(&self, id: InodeId) -> Result<()> {
        let _operation = self.begin();
        match self.0.inodes.peek(id) {
            Some(inode) => self.0.files.write_back(&inode),
            None => Ok(()),
        }
    }

    /// Commits without writing back what is buffered, as memory pressure does.
    pub fn commit_recorded(&self) -> Result<()> {
        let _operation = self.begin();
        self.0.engine.commit()
    }

    /// The cost of booking references so far: items of the extent tree that were looked at for references outside of
    /// extent items, and the most changes that were booked while everybody waited.
    pub fn booking_cost(&self) -> (u64, usize) {
        let _operation = self.begin();
        let costs = &self.0.engine.costs;
        (costs.keyed_refs.load(Ordering::Relaxed), costs.most_booked.load(Ordering::Relaxed))
    }

    /// The work with tree blocks so far.
    pub fn work(&self) -> Work {
        let _operation = self.begin();
        self.0.engine.nodes.work()
    }

    /// Whether an operation of ordinary size can begin without a commit or a new chunk. A step inside a commit cannot
    /// wait for one.
    pub fn has_room_to_start(&self) -> bool {
        let _operation = self.begin();
        self.0.engine.reserve_items(Reserve::items(ORDINARY_ITEMS)).is_some()
    }

    /// Forgets every tree block that is as it is on the device and that nobody uses.
    pub fn forget_clean_blocks(&self) {
        let _operation = self.begin();
        self.0.engine.nodes.forget_clean();
    }

    /// The most steps, and the most reads of tree blocks, for which everybody waited in one go since the last call.
    pub fn take_longest_stop(&self) -> (u64, u64) {
        let _operation = self.begin();
        let (steps, reads) = &self.0.engine.costs.longest_stop;
        (steps.swap(0, Ordering::Relaxed), reads.swap(0, Ordering::Relaxed))
    }

    /// A snapshot without what is buffered.
    pub fn snapshot_recorded(&self, source: TreeId, parent: InodeId, name: &[u8], read_only: bool) -> Result<TreeId> {
        let _operation = self.begin();
        subvolume::snapshot(&self.0.inodes, &self.0.files, source, parent, name, read_only)
    }

    /// Whether a snapshot of a subvolume waits for writes in place, or is being made.
    pub fn is_in_place_stopped(&self, tree: TreeId) -> bool {
        let _operation = self.begin();
        self.0.engine.in_place.is_stopped(tree)
    }

    /// One step of dropping the deleted subvolume with the lowest number; false when there is none.
    pub fn clean_once(&self) -> Result<bool> {
        let _operation = self.begin();
        self.clean_step(&mut TreeId(0))
    }
}
