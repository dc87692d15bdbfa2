//! Last stage: link counts, inodes without a name, and names that would be too many or too few.
//!
//! The number of links is the number of names that the inode has in the end; what the log says about it decides
//! nothing. But it is a witness: see [`Subvolume::drop_former_names`].

use super::subvolume::{Subvolume, parse_inode};
use crate::error::{Error, Result};
use crate::inode::attr::mode::{S_IFDIR, S_IFMT};
use crate::inode::cache::item_key;
use crate::inode::directory::{self, EntryTarget, index_key};
use crate::inode::entry::{self, NAME_MAX};
use crate::inode::orphan;
use crate::inode::reference::{self, Reference};
use butterfs_ondisk::Ino;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

impl Subvolume<'_> {
    /// Makes the link counts of all inodes right whose names may have changed.
    pub fn fix_links(&mut self) -> Result<()> {
        let logged: Vec<u64> = self.noted.iter().copied().filter(|ino| self.logged.contains_key(ino)).collect();
        for ino in logged {
            self.drop_former_names(Ino(ino))?;
        }
        while let Some(ino) = self.noted.pop_first() {
            self.fix_link(Ino(ino))?;
        }
        self.find_cycles()
    }

    fn fix_link(&mut self, ino: Ino) -> Result<()> {
        let Some(mode) = self.mode(ino)? else { return Ok(()) };
        let tree = std::sync::Arc::clone(&self.tree);
        let names = self.names_in(&tree, ino)?.len();
        let is_directory = mode & S_IFMT == S_IFDIR;
        if is_directory && names > 1 {
            let id = self.log.id;
            return Err(Error::corrupt(format!("log of subvolume {id}: directory {ino} would have {names} names")));
        }
        if names == 0 && self.recover(ino)? {
            return Ok(());
        }
        let links = u32::try_from(names).unwrap_or(u32::MAX);
        if self.inode(ino)?.is_some_and(|item| item.nlink != links) {
            self.change_inode(ino, |item| item.nlink = links.into())?;
        }
        if names > 0 {
            // It may have been without a name in the last commit.
            return self.tree.remove(self.handle, orphan::key(ino)).map(drop);
        }
        if is_directory {
            self.empty(ino)?;
        }
        self.tree.insert(self.handle, orphan::key(ino), &[]).map(drop)
    }

    /// Removes all entries of a directory that has no name any more.
    fn empty(&mut self, directory: Ino) -> Result<()> {
        let mut found = Vec::new();
        self.tree.scan(self.core, index_key(directory, 0), index_key(directory, u64::MAX), &mut |_, payload| {
            for entry in entry::entries(payload) {
                let (_, entry) = entry?;
                found.push((entry.name.to_vec(), entry.location));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        found.iter().try_for_each(|(name, location)| self.unlink(directory, name, *location))
    }

    /// Removes names in other directories of an inode that was moved from there.
    ///
    /// Records of names are logged as they were, so if there are as many in the log as the inode had links, it had no
    /// others: what the subvolume has beside them in directories that the log does not speak of is gone. Only a new
    /// name shows that something was moved at all: without one, a missing name may have been overwritten, see `names`.
    fn drop_former_names(&mut self, ino: Ino) -> Result<()> {
        let logged = self.names_in(&self.log.items, ino)?;
        let Some(item) = self.log.items.get(self.core, item_key(ino))? else { return Ok(()) };
        let links = parse_inode(&item).map_or(0, |item| item.nlink.get());
        drop(item);
        if logged.is_empty() || logged.len() as u64 != u64::from(links) {
            return Ok(());
        }
        let committed = self.names_in(&self.log.committed, ino)?;
        let committed: FxHashSet<_> = committed.into_iter().map(|(_, name)| name).collect();
        let all_old = logged.iter().all(|(_, name)| committed.contains(name));
        if all_old {
            return Ok(());
        }
        let tree = std::sync::Arc::clone(&self.tree);
        let now = self.names_in(&tree, ino)?;
        let taken: FxHashSet<_> = logged.iter().map(|(_, (directory, _, name))| (*directory, name)).collect();
        let has = |(directory, _, name): &super::subvolume::Name| taken.contains(&(*directory, name));
        let keys: FxHashSet<_> = logged.iter().map(|(key, _)| key).collect();
        if !now.iter().any(|(_, name)| has(name)) {
            return Ok(());
        }
        for (key, name) in &now {
            if !keys.contains(key) && !has(name) && name.0 != ino {
                self.unlink(name.0, &name.2, EntryTarget::Inode(ino).location())?;
            }
        }
        Ok(())
    }

    /// Gives an inode a name that lost its last one to a link about which the log may have kept silent. False: it did
    /// not.
    fn recover(&mut self, ino: Ino) -> Result<bool> {
        let Some((directory, _, lost)) = self.displaced.remove(&ino.0) else { return Ok(false) };
        let suffix = format!(".recovered-{ino}").into_bytes();
        let mut name = lost;
        name.truncate(NAME_MAX - suffix.len());
        name.extend_from_slice(&suffix);
        if self.mode(directory)?.is_none() || self.find(directory, &name)?.is_some() {
            return Ok(false);
        }
        let index = directory::last_index(self.core, &self.tree, directory)?.saturating_add(1);
        let slot = reference::plan_addition(self.core, &self.tree, ino, directory, &name, None)?;
        self.add_entry(directory, index, &name, ino)?;
        reference::add(self.handle, &self.tree, slot, &Reference { directory, index, name: &name })?;
        Ok(true)
    }

    /// Refuses directories that contain themselves: every one that came to another place hangs on the root directory.
    fn find_cycles(&mut self) -> Result<()> {
        let mut good = BTreeSet::from([Ino::ROOT_DIR.0]);
        for start in std::mem::take(&mut self.moved) {
            let (mut path, mut at) = (BTreeSet::new(), Ino(start));
            while !good.contains(&at.0) {
                if !path.insert(at.0) {
                    let id = self.log.id;
                    return Err(Error::corrupt(format!("log of subvolume {id}: directory {at} would contain itself")));
                }
                match reference::parent(self.core, &self.tree, at)? {
                    Some(parent) => at = parent,
                    // Without a name: it is about to be deleted, and everything in it.
                    None => break,
                }
            }
            good.append(&mut path);
        }
        Ok(())
    }
}
