//! Which snapshots were made of a subvolume.
//!
//! The format has only the way up: a snapshot names the UUID of its source. The way down is kept in memory, from the
//! first question on; later ones read only what is newer.
//!
//! # Invariants
//! 1. Every snapshot with an id up to [`Snapshots::known`] is listed under its source: ids are never used again, a
//!    snapshot gets its id and its root item while no handle is open but its own, and its source never changes.
//! 2. A listed one may be deleted; whoever asks finds that out from its root item, and it is listed no more.

use super::info;
use crate::error::Result;
use crate::transaction::Core;
use butterfs_ondisk::{Ino, TreeId};
use butterfs_sync::{Mutex, order};
use std::collections::BTreeSet;

/// See the [module](self). Takes 24 bytes and some more for each snapshot of the filesystem.
#[derive(Default)]
pub struct Snapshots(Mutex<Known, { order::SNAPSHOTS }>);

#[derive(Default)]
struct Known {
    /// The last subvolume that was looked at.
    known: TreeId,
    /// UUIDs of sources, and a snapshot of each.
    by_source: BTreeSet<([u8; 16], TreeId)>,
}

impl Snapshots {
    /// Ids and deletions that it knows of may have been taken back.
    pub(crate) fn forget(&self) {
        *self.0.lock() = Known::default();
    }

    /// The living snapshots of the subvolume with this UUID, by id.
    pub fn of(&self, core: &Core, source: &[u8; 16]) -> Result<Vec<TreeId>> {
        if *source == [0; 16] {
            return Ok(Vec::new());
        }
        let mut state = self.0.lock();
        let Known { known, by_source } = &mut *state;
        info::visit(core, TreeId(known.0 + 1), TreeId(Ino::LAST_FREE.0), &mut |id, item| {
            if item.parent_uuid != [0; 16] {
                by_source.insert((item.parent_uuid, id));
            }
            *known = id;
        })?;
        let listed = by_source.range((*source, TreeId(0))..=(*source, TreeId(u64::MAX)));
        let (mut living, mut gone) = (Vec::new(), Vec::new());
        for &(_, id) in listed {
            let mut lives = false;
            info::visit(core, id, id, &mut |_, _| lives = true)?;
            if lives { living.push(id) } else { gone.push(id) }
        }
        for id in gone {
            by_source.remove(&(*source, id));
        }
        Ok(living)
    }
}
