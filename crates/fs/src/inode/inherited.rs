//! Attributes of a directory that what is made in it inherits, read once.

use super::property::COMPRESSION;
use super::{Inode, InodeState, Known, acl, xattr};
use crate::error::Result;
use crate::transaction::Core;
use butterfs_ondisk::items::inode_flags;

impl Inode {
    /// The default ACL of a directory.
    pub(crate) fn default_acl(&self, core: &Core) -> Result<Option<Box<[u8]>>> {
        let known = self.with(|state| state.default_acl.clone());
        self.known_attribute(core, known, acl::DEFAULT, |state| &mut state.default_acl)
    }

    /// The value of the compression property. Only inodes with the flag have one to inherit.
    pub(crate) fn compression(&self, core: &Core) -> Result<Option<Box<[u8]>>> {
        if !self.with(|state| state.has(inode_flags::COMPRESS)) {
            return Ok(None);
        }
        let known = self.with(|state| state.compression.clone());
        self.known_attribute(core, known, COMPRESSION, |state| &mut state.compression)
    }

    fn known_attribute(
        &self,
        core: &Core,
        known: Known<Box<[u8]>>,
        name: &[u8],
        field: impl FnOnce(&mut InodeState) -> &mut Known<Box<[u8]>>,
    ) -> Result<Option<Box<[u8]>>> {
        match known {
            Known::Present(value) => Ok(Some(value)),
            Known::Absent => Ok(None),
            Known::Unknown => {
                let value = xattr::get(core, &self.tree, self.ino, name)?.map(Vec::into_boxed_slice);
                let now_known = value.clone().map_or(Known::Absent, Known::Present);
                self.remember(|state| *field(state) = now_known);
                Ok(value)
            }
        }
    }
}
