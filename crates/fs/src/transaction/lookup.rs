//! The number of references a tree block has, with those that are still pending.

use super::extent_item::ExtentRecord;
use super::refs::{Pending, RefQueue};
use super::{BlockSource, Core, Misses};
use crate::error::{Error, Result};
use butterfs_ondisk::{Key, KeyType, Level, Logical};

/// References of a tree block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRefs {
    /// The number.
    pub refs: u64,
    /// Whether its children are referenced by its address.
    pub full: bool,
}

impl BlockRefs {
    /// Whether somebody else refers to the block too.
    pub fn shared(&self) -> bool {
        self.refs > 1
    }
}

impl Core {
    /// References of the block at `at`, those that wait in `refs` included. May be called under a subvolume tree's
    /// lock; a node of the extent tree that is not in memory is `Error::Missing`.
    pub(crate) fn block_refs(&self, refs: &RefQueue, at: Logical, level: Level) -> Result<BlockRefs> {
        let misses = Misses::default();
        let stored = self.stored_refs(&BlockSource::in_memory(self, &misses), at, level)?;
        let Pending { net, new, set_full } = refs.pending(at).unwrap_or_default();
        let (refs, full) = match stored {
            Some(record) => (record.refs, record.is_full()),
            None if new => (0, false),
            None => return Err(Error::corrupt(format!("tree block {at} (level {level}) has no extent item"))),
        };
        let refs = refs
            .checked_add_signed(net)
            .filter(|&refs| refs > 0)
            .ok_or_else(|| Error::corrupt(format!("tree block {at}: {refs} references and {net} pending ones")))?;
        Ok(BlockRefs { refs, full: full || set_full })
    }

    /// The references in the extent tree to the block at `at`.
    pub(super) fn stored_refs(
        &self,
        source: &BlockSource<'_>,
        at: Logical,
        level: Level,
    ) -> Result<Option<ExtentRecord>> {
        let root = self.globals().extent.root();
        let skinny = Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level.0));
        let full = Key::new(at.0, KeyType::EXTENT_ITEM, u64::from(self.nodesize()));
        for key in [skinny, full] {
            let found = butterfs_tree::search(source, &root, &key)?;
            if found.found {
                return ExtentRecord::parse(at, key.kind, found.leaf.item(found.slot)).map(Some);
            }
        }
        Ok(None)
    }
}
