//! Subvolumes: those that entries lead to, and those that none does.
//!
//! A subvolume without an entry goes to the place that its references in the root tree name, where nothing else has
//! that name; else to `lost+found`.

use super::{Event, Frame, ROOT_DIRECTORY, Restorer};
use crate::roots::Home;
use crate::sink::{Attributes, Made, Path, safe_name};
use crate::subvolume::{self, DIRECTORY, Entry, Target};
use butterfs_ondisk::TreeId;
use std::io;

impl Restorer<'_> {
    /// Goes into a subvolume. In a snapshot, and where it has been deleted, it is an empty directory.
    pub(super) fn subvolume(
        &mut self,
        id: TreeId,
        parent: (TreeId, u64),
        entry: &Entry,
        path: &[Vec<u8>],
        stack: &mut Vec<Frame>,
    ) -> io::Result<()> {
        if !self.is_home(id, parent, &entry.name) {
            // A directory has one entry for a subvolume: this one has a wrong name, or a wrong number.
            if self.homes(id).any(|home| (home.parent, home.directory) == parent) {
                self.give_up(path, "the references of the subvolume contradict this name");
                return Ok(());
            }
            return self.empty_directory(path, parent);
        }
        let Some(root) = self.roots.trees.get(&id) else {
            if self.roots.losses.is_none() && !self.roots.names.contains_key(&id) {
                return self.empty_directory(path, parent);
            }
            self.give_up(path, "the root of this subvolume is lost");
            return Ok(());
        };
        if root.key_offset != 0 && !self.wanted.snapshots {
            (self.tell)(Event::SkippedSnapshot(&entry.name));
            return Ok(());
        }
        (self.tell)(Event::Restoring(path));
        let Some(thing) = self.directory(id, ROOT_DIRECTORY) else { return Ok(()) };
        self.open(id, thing, path, false, stack)
    }

    /// Whether a subvolume is here.
    fn is_home(&self, id: TreeId, parent: (TreeId, u64), name: &[u8]) -> bool {
        let homes = self.roots.names.get(&id);
        homes.is_none_or(|homes| homes.iter().any(|home| (home.parent, home.directory) == parent && home.name == name))
    }

    /// The empty directory that a mount shows for a subvolume that is not here. It has no times of its own: it gets
    /// those of the directory that it is in.
    fn empty_directory(&mut self, path: &Path, (tree, ino): (TreeId, u64)) -> io::Result<()> {
        let outer = self.directory(tree, ino).map(|thing| thing.attributes).unwrap_or_default();
        let Attributes { atime, mtime, ctime, is_wanted, .. } = outer;
        let mode = DIRECTORY | 0o755;
        let attributes = Attributes { mode, atime, mtime, ctime, is_wanted, ..Attributes::default() };
        if !self.wanted.dry_run {
            let made = self.sink.directory(path, &attributes).and_then(|()| self.sink.leave(path, &attributes));
            self.note(path, made.map(|()| Made::Yes))?;
        }
        self.summary.directories += 1;
        Ok(())
    }

    /// Restores the subvolumes inside of `top` that nothing has led to yet, outer ones first; says whether there were
    /// any.
    pub(super) fn restore_subvolumes(&mut self, top: TreeId) -> io::Result<bool> {
        let mut left: Vec<TreeId> = self.unreached(top);
        let has_any = !left.is_empty();
        while !left.is_empty() {
            // One whose parent has a place, else any.
            let with_place =
                left.iter().position(|id| self.homes(*id).any(|home| self.place_of(home.parent).is_some()));
            let id = left.remove(with_place.unwrap_or(0));
            let path = self.path_of_subvolume(id);
            if !self.selection.takes(&path) {
                self.visit(id, ROOT_DIRECTORY);
            } else {
                self.make_way(&path)?;
                self.summary.orphans += 1;
                (self.tell)(Event::Unreached(&path));
                (self.tell)(Event::Restoring(&path));
                self.walk(id, ROOT_DIRECTORY, &mut path.clone(), false)?;
            }
            left.retain(|id| !self.is_visited(*id, ROOT_DIRECTORY));
        }
        Ok(has_any)
    }

    /// Subvolumes that are wanted and that nothing has led to.
    fn unreached(&self, top: TreeId) -> Vec<TreeId> {
        let is_wanted = |(id, root): &(&TreeId, &crate::roots::TreeRoot)| {
            let is_kind = root.key_offset == 0 || self.wanted.snapshots;
            is_kind && !root.is_deleted() && !self.is_visited(**id, ROOT_DIRECTORY) && self.is_inside(**id, top)
        };
        self.roots.subvolumes().filter(is_wanted).map(|(id, _)| *id).collect()
    }

    /// Everything is inside of the top level; else references say so.
    fn is_inside(&self, id: TreeId, top: TreeId) -> bool {
        let (mut at, mut steps) = (id, 0);
        while at != top && top != TreeId::FS && steps < 64 {
            let Some(home) = self.homes(at).next() else { return false };
            (at, steps) = (home.parent, steps + 1);
        }
        at == top || top == TreeId::FS
    }

    fn homes(&self, id: TreeId) -> impl Iterator<Item = &Home> {
        self.roots.names.get(&id).into_iter().flatten()
    }

    pub(super) fn place_of(&self, id: TreeId) -> Option<&Vec<Vec<u8>>> {
        self.places.iter().find(|(tree, _)| *tree == id).map(|(_, path)| path)
    }

    fn path_of_subvolume(&self, id: TreeId) -> Vec<Vec<u8>> {
        let free = self.homes(id).find_map(|home| self.free_place(id, home));
        free.unwrap_or_else(|| vec![b"lost+found".to_vec(), format!("subvolume-{id}").into_bytes()])
    }

    /// The place that a reference names, where its directory is restored and no other thing has the name.
    fn free_place(&self, id: TreeId, home: &Home) -> Option<Vec<Vec<u8>>> {
        let (place, tree) = (self.place_of(home.parent)?.clone(), self.tree(home.parent)?);
        let (entries, _) = subvolume::entries(&tree, home.directory);
        let is_taken = entries.iter().any(|entry| entry.name == home.name && entry.target != Target::Subvolume(id));
        if is_taken {
            return None;
        }
        let mut path = match home.directory {
            ROOT_DIRECTORY => place,
            directory => {
                let inode = subvolume::inode(&tree, directory);
                self.path_by_references(home.parent, directory, &inode, &place)
            }
        };
        path.push(safe_name(&home.name));
        Some(path)
    }
}
