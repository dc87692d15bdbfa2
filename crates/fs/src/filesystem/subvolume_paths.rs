//! The paths of subvolumes and inodes, and the users of an address.

use super::Filesystem;
use super::listing::{Listing, ReferrersOf};
use crate::backref::{self, Referrers};
use crate::error::{Errno, Error, Result};
use crate::file_extent::FileExtent;
use crate::inode::InodeId;
use crate::subvolume;
use crate::subvolume::extents::{self, UsersOf};
use crate::subvolume::paths::{self, PathsOf};
use butterfs_ondisk::{Generation, Ino, Logical, TreeId};
use std::collections::VecDeque;

impl Filesystem {
    /// The path of a subvolume from the top level, without slashes at its ends.
    pub fn subvolume_path(&self, id: TreeId) -> Result<Vec<u8>> {
        let _operation = self.begin();
        paths::of_subvolume(&self.0.engine, id)
    }

    /// The path of a directory inside its subvolume.
    pub fn directory_path(&self, id: InodeId) -> Result<Vec<u8>> {
        let _operation = self.begin();
        paths::of_directory(&self.0.engine, id.tree, id.ino)
    }

    /// The paths of an inode inside its subvolume, one for each name. None of an inode that is not there or has no
    /// name.
    pub fn inode_paths(&self, id: InodeId) -> Listing<PathsOf> {
        let _operation = self.begin();
        Listing::new(self, PathsOf::inode(id.tree, id.ino))
    }

    /// Which subvolume is mounted when none is named.
    pub fn default_subvolume_id(&self) -> Result<TreeId> {
        let _operation = self.begin();
        subvolume::default_id(&self.0.engine)
    }

    /// Shows the file extents of a subvolume that were written in transaction `since` or later.
    pub fn new_extents(
        &self,
        id: TreeId,
        since: Generation,
        show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>,
    ) -> Result<()> {
        let _operation = self.begin();
        self.sync()?;
        extents::newer_than(&self.0.engine, id, since, show)
    }

    /// The files that use the data at an address; those of its whole extent when `whole_extent`. `ENOENT` when no data
    /// is there.
    pub fn users_of(&self, at: Logical, whole_extent: bool) -> Result<Listing<UsersOf>> {
        let _operation = self.begin();
        self.sync()?;
        Ok(Listing::new(self, UsersOf::new(&self.0.engine, at, whole_extent)?))
    }

    /// Every place in every tree that leads to the extent at an address, data or tree block, as of the last commit.
    /// `ENOENT` when nothing is allocated there.
    pub fn referrers_of(&self, at: Logical) -> Result<Listing<ReferrersOf>> {
        let _operation = self.begin();
        let referrers = Referrers::new(backref::extent_at(&self.0.engine, at)?);
        Ok(Listing::new(self, ReferrersOf { referrers, found: VecDeque::new() }))
    }

    /// Generation of the root node of a deleted subvolume that is not dropped yet; 0 when nothing is left of it.
    pub fn deleted_generation(&self, id: TreeId) -> Result<Generation> {
        let _operation = self.begin();
        subvolume::deleted_generation(&self.0.engine, id)
    }

    /// Deletes the subvolume with this id; `ENOENT` when there is none. Returns the directory that held it, and its
    /// name there.
    pub fn delete_subvolume_by_id(&self, id: TreeId) -> Result<(InodeId, Vec<u8>)> {
        let _operation = self.begin();
        loop {
            let backref = self.subvolume_info(id)?.backref;
            let (tree, ino, name) =
                backref.ok_or_else(|| Error::refused(Errno::EPERM, "the top-level subvolume cannot be deleted"))?;
            let parent = InodeId::new(tree, ino);
            match self.delete_expected_subvolume(parent, &name, id) {
                // Renamed meanwhile: it is elsewhere now.
                Err(_) if self.subvolume_info(id)?.backref != Some((tree, ino, name.clone())) => {}
                other => return other.map(|()| (parent, name)),
            }
        }
    }
}
