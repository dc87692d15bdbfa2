//! A search for the files that use a data extent, without going up to the roots.
//!
//! A reference names a tree, or a leaf, at the time it was made; snapshots share both without being named. An inode
//! number and a position in the file are the same in all of them. Whoever asks looks there before believing it.

use super::references::References;
use super::view::View;
use super::{ExtentAt, items_that_refer};
use crate::error::{Errno, Error, Result};
use crate::transaction::Core;
use crate::transaction::refs::RefBy;
use butterfs_ondisk::{Ino, KeyType, Level, Logical, TreeId};
use rustc_hash::FxHashSet;

/// The sharers of an extent, by its references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharers {
    /// References, those of one leaf or one file counted one by one.
    pub references: u64,
    /// Inodes, and the position in the file of the extent's first byte, modulo 2^64. Each once.
    pub positions: Vec<(Ino, u64)>,
}

/// The references of the extent of `len` bytes at `at`, of which at least two have positions; at most about `most`
/// positions. `None` when there is no such extent.
pub fn sharers_of(core: &Core, at: Logical, len: u64, most: usize) -> Result<Option<Sharers>> {
    let extent = ExtentAt { start: at, len, level: None };
    View::look(core, |view| {
        let Some(record) = view.data_record(&extent)? else { return Ok(None) };
        let mut found = Sharers { references: record.refs, positions: Vec::new() };
        if record.refs < 2 {
            return Ok(Some(found));
        }
        let (mut references, mut seen) = (References::default(), FxHashSet::default());
        while let Some(by) = references.first(view, &extent)?
            && found.positions.len() < most
        {
            let positions = positions_of(view, &extent, by)?;
            found.positions.extend(positions.into_iter().filter(|position| seen.insert(*position)));
            references.pop();
        }
        Ok(Some(found))
    })
}

fn positions_of(view: &View<'_>, extent: &ExtentAt, by: RefBy) -> Result<Vec<(Ino, u64)>> {
    match by {
        RefBy::File { ino, offset, .. } => Ok(vec![(Ino(ino), offset)]),
        RefBy::Leaf(leaf) => {
            let node = match view.block(leaf, Level(0)) {
                // What cannot be read has nothing to say.
                Err(Error::Device(_)) | Ok(None) => return Ok(Vec::new()),
                Err(error) => return Err(error),
                Ok(Some(node)) => node,
            };
            let items = items_that_refer(view, &node, extent, by)?;
            let begins = |key: butterfs_ondisk::Key, offset: u64| (Ino(key.objectid), key.offset.wrapping_sub(offset));
            Ok(items.into_iter().filter_map(|(key, item)| Some(begins(key, item?.offset))).collect())
        }
        RefBy::Tree(_) | RefBy::Block(_) => Ok(Vec::new()),
    }
}

/// Files that wrote what lies at `at`, at most `most`: tree, inode, and the position of the address in the file. Not
/// the snapshots that share their trees. Costs no more than reading that many references. None where no data is.
pub fn writers_of(core: &Core, at: Logical, most: usize) -> Result<Vec<(TreeId, Ino, u64)>> {
    let extent = match super::extent_at(core, at) {
        Err(error) if error.is(Errno::ENOENT) => return Ok(Vec::new()),
        found => found?,
    };
    View::look(core, |view| {
        let (mut references, mut found) = (References::default(), Vec::new());
        while let Some(by) = references.first(view, &extent)?
            && found.len() < most
            // Those of leaves come last.
            && by.kind() != KeyType::SHARED_DATA_REF
        {
            if let RefBy::File { tree, ino, offset } = by {
                found.push((tree, Ino(ino), offset.wrapping_add(at.0 - extent.start.0)));
            }
            references.pop();
        }
        Ok(found)
    })
}
