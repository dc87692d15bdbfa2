//! Space for logs: blocks that no tree of the filesystem ever records.
//!
//! # Invariants
//! 1. A log block is taken from the metadata space and from nothing else; on disk it is free space.
//! 2. What logs have taken in a transaction comes back when that transaction is durable, written or not: until then the
//!    superblock on disk may lead to it.
//! 3. On profiles with parity no log shares parity with another one, nor with the transaction's blocks, as long as
//!    there is room.
//! 4. A log leaves alone what is reserved for others and what the commit needs: it is refused, and its caller commits.
//!
//! A log lies where the one before lay, as far as that is free again: a sparse file that holds the device does not grow
//! then, and its flush costs about half.

use super::{Core, Transaction, Tree};
use crate::error::{Error, Result};
use crate::space::{Class, Found};
use butterfs_ondisk::Logical;
use std::sync::Arc;

impl Core {
    /// Takes a block for a log of `transaction`. The caller has a handle of it, and a reservation.
    pub(crate) fn allocate_log_block(&self, transaction: &Transaction) -> Result<Logical> {
        if let Some(at) = self.log_block_again(transaction) {
            return Ok(at);
        }
        loop {
            match self.space.allocate_log_node() {
                Found::Extent(at, _) => {
                    transaction.log_blocks.lock().taken.push(at);
                    return Ok(at);
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => return Err(Error::NoNode { system: false }),
            }
        }
    }

    /// Takes the next block of those that the logs of an earlier transaction had, if any of them is free.
    fn log_block_again(&self, transaction: &Transaction) -> Option<Logical> {
        let mut blocks = transaction.log_blocks.lock();
        let is_free = |at: &Logical| self.space.retake_node(Class::Metadata, *at);
        let at = std::iter::from_fn(|| blocks.reusable.pop()).find(is_free)?;
        blocks.taken.push(at);
        Some(at)
    }
}

impl Transaction {
    /// A subvolume has a log, and inodes that are watched.
    pub(crate) fn note_logged(&self, tree: &Arc<Tree>) {
        self.log_blocks.lock().trees.push(Arc::clone(tree));
    }
}
