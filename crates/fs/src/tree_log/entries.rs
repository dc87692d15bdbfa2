//! The logged part of a directory that is synced: a DIR_INDEX for each entry that it got since the last commit, a range
//! for each that it lost, and the inodes of both.
//!
//! DIR_ITEMs say the same as DIR_INDEXes, and replay derives them; they are written only where a policy asks for what
//! older kernels did.

use super::Logged;
use super::names::{self, NameOwner};
use super::plan::{LogPlan, Planned, Stop, is_directory, is_symlink, item_key, parse_item};
use crate::extent::items::Items;
use crate::transaction::merge_leaves;
use butterfs_ondisk::header::ITEM_LEN;
use butterfs_ondisk::items::InodeRef;
use butterfs_ondisk::{Ino, Key, KeyType};
use butterfs_tree::Position;
use std::ops::ControlFlow;
use zerocopy::{FromBytes, IntoBytes};

const fn index_key(directory: Ino, index: u64) -> Key {
    Key::new(directory.0, KeyType::DIR_INDEX, index)
}

fn inode(target: NameOwner) -> Planned<Ino> {
    match target {
        NameOwner::Inode(ino) => Ok(ino),
        NameOwner::Subvolume => Err(Stop::Commit("an entry of a subvolume came or went")),
    }
}

impl<L: Items> LogPlan<'_, '_, L> {
    /// Logs what became of a directory's entries; `points` are the indexes that changed since it was logged last.
    pub(super) fn entries(
        &mut self,
        directory: Ino,
        committed: bool,
        known: Option<Logged>,
        points: Vec<u64>,
    ) -> Planned<()> {
        let (from, to) = (index_key(directory, 0), index_key(directory, u64::MAX));
        if known.is_some_and(|known| known.whole) {
            return self.changed_entries(directory, points);
        }
        if !committed {
            return self.all_entries(from, to);
        }
        let (old, new) = self.view.tree.changed_leaves(&self.view.committed, from, to)?;
        merge_leaves((&old, &new), (from, to), &mut |key, old, new| {
            if let Some(old) = old {
                self.lost_entry(key, old)?;
            }
            new.map_or(Ok(()), |new| self.new_entry(key, new, true))
        })
    }

    fn all_entries(&mut self, from: Key, to: Key) -> Planned<()> {
        let mut next = Some(from);
        while let Some(from) = next.filter(|from| *from <= to) {
            let at = self.view.tree.position(self.view.source, from)?;
            for slot in at.slot..at.leaf.nritems() {
                if at.leaf.key(slot) > to {
                    return Ok(());
                }
                self.new_entry(at.leaf.key(slot), at.leaf.item(slot), true)?;
            }
            self.check_budget()?;
            next = at.upper;
        }
        Ok(())
    }

    fn changed_entries(&mut self, directory: Ino, mut points: Vec<u64>) -> Planned<()> {
        points.sort_unstable();
        points.dedup();
        for index in points {
            let key = index_key(directory, index);
            let old = self.view.committed.get(key, <[u8]>::to_vec)?;
            let new = self.view.tree.get(self.view.source, key)?;
            let mut logged = None;
            self.log_items.scan(key, key, &mut |_, payload| {
                logged = Some(payload.to_vec());
                Ok(ControlFlow::Break(()))
            })?;
            if let Some(old) = old.filter(|old| new.as_deref() != Some(old)) {
                self.lost_entry(key, &old)?;
            }
            match (new, logged) {
                (Some(new), Some(logged)) if *new == *logged => {}
                (Some(new), logged) => self.new_entry(key, &new, logged.is_none())?,
                (None, Some(_)) => self.edits.removals.push((key, key)),
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn lost_entry(&mut self, key: Key, payload: &[u8]) -> Planned<()> {
        let child = inode(names::entry_of(key, payload)?.0)?;
        self.edits.ranges.entry(Ino(key.objectid)).or_default().insert(key.offset);
        self.entry_lost(child)
    }

    fn new_entry(&mut self, key: Key, payload: &[u8], fresh: bool) -> Planned<()> {
        let (target, name) = names::entry_of(key, payload)?;
        let child = inode(target)?;
        let directory = Ino(key.objectid);
        let batch = if fresh { &mut self.edits.fresh } else { &mut self.edits.puts };
        batch.push(key, payload);
        self.edits.entry_bytes += ITEM_LEN + payload.len();
        if self.policies.log_dir_items {
            let key = names::hash_key(directory, name);
            if let Some(payload) = self.view.tree.get(self.view.source, key)? {
                self.edits.puts.push(key, &payload);
                self.edits.entry_bytes += ITEM_LEN + payload.len();
            }
        }
        if self.new_child(directory, key.offset, name, child)? {
            return Ok(());
        }
        self.entry_gained(child)
    }

    /// Logs the inode of a new entry at once if it is the usual case: new, a file or a special file, with this one
    /// name, and all that is to be logged in one leaf. Nobody else's name is concerned then but those that the
    /// directory lost.
    fn new_child(&mut self, directory: Ino, index: u64, name: &[u8], child: Ino) -> Planned<bool> {
        if child <= self.log.last_committed || self.is_logged(child) || self.named.contains(&child) {
            return Ok(false);
        }
        self.view.tree.watch.begin(child);
        let key = item_key(child);
        let is_near = |at: &Position| {
            at.leaf.first_key().is_some_and(|first| first <= key) && at.upper.is_none_or(|upper| key < upper)
        };
        let at = match self.leaf.take().filter(is_near) {
            Some(at) => at,
            None => self.view.tree.position(self.view.source, key)?,
        };
        let taken = self.take_child(&at, (directory, index, name), child);
        self.leaf = Some(at);
        Ok(taken)
    }

    fn take_child(&mut self, at: &Position, (directory, index, name): (Ino, u64, &[u8]), child: Ino) -> bool {
        let leaf = &at.leaf;
        let Ok(slot) = leaf.find(item_key(child)) else { return false };
        let Some(item) = (self.view.memory)(child).or_else(|| parse_item(leaf.item(slot))) else { return false };
        if is_directory(&item) || is_symlink(&item) || item.nlink.get() != 1 || slot + 1 >= leaf.nritems() {
            return false;
        }
        let reference = Key::new(child.0, KeyType::INODE_REF, directory.0);
        if leaf.key(slot + 1) != reference || !is_only_name(leaf.item(slot + 1), index, name) {
            return false;
        }
        let own = |slot: &usize| {
            let key = leaf.key(*slot);
            key.objectid == child.0 && key.kind <= KeyType::XATTR_ITEM
        };
        let end = (slot + 2..leaf.nritems()).find(|slot| !own(slot)).unwrap_or(leaf.nritems());
        let more_elsewhere = end == leaf.nritems() && at.upper.is_some();
        if more_elsewhere || (slot + 2..end).any(|slot| leaf.key(slot).kind != KeyType::XATTR_ITEM) {
            return false;
        }
        let item = butterfs_ondisk::items::InodeItem { size: 0.into(), ..self.exists_form(&item) };
        self.edits.born.push(item_key(child), item.as_bytes());
        (slot + 1..end).for_each(|slot| self.edits.born.push(leaf.key(slot), leaf.item(slot)));
        self.edits.born_inodes.push(child);
        self.named.insert(child);
        true
    }
}

fn is_only_name(payload: &[u8], index: u64, name: &[u8]) -> bool {
    let Ok((head, rest)) = InodeRef::ref_from_prefix(payload) else { return false };
    head.index.get() == index && usize::from(head.name_len.get()) == rest.len() && rest == name
}
