//! Where subvolumes and inodes are, and what uses an address.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::file::item::FileExtent;
use crate::inode::InodeId;
use crate::subvolume::{self, extents, paths};
use butterfs_ondisk::{Generation, Ino, Logical, TreeId};

impl Filesystem {
    /// The path of a subvolume from the top level, without slashes at its ends.
    pub fn subvolume_path(&self, id: TreeId) -> Result<Vec<u8>> {
        let _alarm = self.0.core.alarm();
        paths::of_subvolume(&self.0.core, id)
    }

    /// The path of a directory inside its subvolume.
    pub fn directory_path(&self, id: InodeId) -> Result<Vec<u8>> {
        let _alarm = self.0.core.alarm();
        paths::of_directory(&self.0.core, id.tree, id.ino)
    }

    /// The paths of an inode inside its subvolume, one for each name; at most `most`. `ENOENT` when it has none.
    pub fn inode_paths(&self, id: InodeId, most: usize) -> Result<Vec<Vec<u8>>> {
        let _alarm = self.0.core.alarm();
        let found = paths::of_inode(&self.0.core, id.tree, id.ino, most)?;
        if found.is_empty() {
            return Err(Error::refused(Errno::ENOENT, "there is no such inode, or it has no name"));
        }
        Ok(found)
    }

    /// Which subvolume is mounted when none is named.
    pub fn default_subvolume_id(&self) -> Result<TreeId> {
        let _alarm = self.0.core.alarm();
        subvolume::default_id(&self.0.core)
    }

    /// Shows the file extents of a subvolume that were written in transaction `since` or later.
    pub fn new_extents(
        &self,
        id: TreeId,
        since: Generation,
        show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>,
    ) -> Result<()> {
        let _alarm = self.0.core.alarm();
        self.sync()?;
        extents::newer_than(&self.0.core, id, since, show)
    }

    /// The files that use the data at an address; those of its whole extent when `whole_extent`.
    pub fn users_of(&self, at: Logical, whole_extent: bool) -> Result<Vec<extents::User>> {
        let _alarm = self.0.core.alarm();
        self.sync()?;
        extents::users_of(&self.0.core, at, whole_extent)
    }

    /// Generation of the root node of a deleted subvolume that is not dropped yet; 0 when nothing is left of it.
    pub fn deleted_generation(&self, id: TreeId) -> Result<Generation> {
        let _alarm = self.0.core.alarm();
        subvolume::deleted_generation(&self.0.core, id)
    }

    /// Deletes the subvolume with this id; `ENOENT` when there is none. Returns the directory that held it, and its
    /// name there.
    pub fn delete_subvolume_by_id(&self, id: TreeId) -> Result<(InodeId, Vec<u8>)> {
        let _alarm = self.0.core.alarm();
        loop {
            let place = self.subvolume_info(id)?.place;
            let (tree, ino, name) =
                place.ok_or_else(|| Error::refused(Errno::EPERM, "the top-level subvolume cannot be deleted"))?;
            let parent = InodeId::new(tree, ino);
            match self.delete_expected_subvolume(parent, &name, id) {
                // Renamed meanwhile: it is elsewhere now.
                Err(_) if self.subvolume_info(id)?.place != Some((tree, ino, name.clone())) => {}
                other => return other.map(|()| (parent, name)),
            }
        }
    }
}
