//! Questions about the file extents of subvolumes: which are new, and who uses an address.

use crate::backref::{self, ExtentAt, Referrer, Referrers};
use crate::error::{Errno, Error, Result};
use crate::file_extent::FileExtent;
use crate::transaction::Core;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Logical, TreeId};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// Shows the file extents of a subvolume that were written in transaction `since` or later. What is written, and not in
/// the trees, is not seen.
pub fn newer_than(
    core: &Core,
    id: TreeId,
    since: Generation,
    show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>,
) -> Result<()> {
    let (from, to) = (Key::new(Ino::ROOT_DIR.0, KeyType(0), 0), Key::new(Ino::LAST_FREE.0, KeyType(255), u64::MAX));
    let tree = core.tree(id)?;
    let sectorsize = u64::from(core.sectorsize());
    tree.scan_since(core, since, from, to, &mut |key, payload| {
        if key.kind == KeyType::EXTENT_DATA {
            let extent = FileExtent::parse(key, payload, sectorsize)?;
            if extent.generation >= since.0 {
                show(Ino(key.objectid), &extent)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// A file that uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// The offset of the address in the file; for a compressed extent, or when the whole extent was asked for, where
    /// the used part of the extent is.
    pub offset: u64,
}

/// The files that use the data at an address, as of the last commit.
#[derive(Debug)]
pub struct UsersOf {
    at: Logical,
    whole_extent: bool,
    extent: ExtentAt,
    referrers: Referrers,
    found: VecDeque<Referrer>,
}

impl UsersOf {
    /// Those of the address; those of its whole extent when `whole_extent`. `ENOENT` when there is no data.
    pub fn new(core: &Core, at: Logical, whole_extent: bool) -> Result<UsersOf> {
        let none = || Error::refused_at(Errno::ENOENT, format!("there is no file data at {at}"));
        let extent = match backref::extent_at(core, at) {
            Err(error) if error.is(Errno::ENOENT) => return Err(none()),
            found => found?,
        };
        if extent.level.is_some() {
            return Err(none());
        }
        Ok(UsersOf { at, whole_extent, extent, referrers: Referrers::new(extent), found: VecDeque::new() })
    }

    /// The next one.
    pub fn next(&mut self, core: &Core) -> Result<Option<User>> {
        /// The number that is looked for at a time: after a commit the search begins anew.
        const MANY: usize = 4096;
        loop {
            while let Some(found) = self.found.pop_front() {
                if let Some(user) = self.user(&found)
                    && core.tree(user.tree).is_ok()
                {
                    return Ok(Some(user));
                }
            }
            self.found.extend(self.referrers.next(core, MANY)?);
            if self.found.is_empty() {
                return Ok(None);
            }
        }
    }

    fn user(&self, found: &Referrer) -> Option<User> {
        let extent = found.extent?;
        let (into, plain) = (self.at.0 - self.extent.start.0, extent.compression == 0);
        let covered = into >= extent.offset && into < extent.offset + extent.len;
        let offset = match self.whole_extent || !plain {
            true => extent.start,
            false if covered => extent.start + into - extent.offset,
            false => return None,
        };
        Some(User { tree: found.tree, ino: Ino(found.key.objectid), offset })
    }
}
