//! Inodes that no directory leads to any more: each goes to the path that its own references name, as far as they lead
//! to the top; else to `lost+found`, with what else was in its directory.

use super::{Event, ROOT_DIRECTORY, Restorer};
use crate::sink::{Made, safe_name};
use crate::subvolume::{self, DIRECTORY};
use crate::trust::Trust;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::io;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Directories on the way from an inode to the top.
const DEEPEST: usize = 512;

impl Restorer<'_> {
    /// Restores what nothing has led to: inodes of all subvolumes that were gone into, then subvolumes inside of `top`,
    /// until nothing more comes.
    pub(super) fn restore_unreached(&mut self, top: TreeId) -> io::Result<()> {
        let mut at = 0;
        loop {
            // Directories without a name may lead to more subvolumes.
            while at < self.places.len() {
                let tree = self.places[at].0;
                // What the selection has passed over was not looked at.
                if self.selection.is_everything() || self.losses.contains_key(&tree) {
                    let inodes = self.unvisited(tree);
                    self.restore_inodes(tree, &inodes)?;
                }
                at += 1;
            }
            if !self.restore_subvolumes(top)? {
                return Ok(());
            }
        }
    }

    /// The numbers of inodes of which anything is there, that have a name or an item, and that were not visited.
    fn unvisited(&mut self, id: TreeId) -> Vec<u64> {
        let Some(tree) = self.tree(id) else { return Vec::new() };
        let mut found: Vec<u64> = Vec::new();
        let (mut deleted, visited) = (None, self.visited.entry(id).or_default());
        let losses = tree.scan(Key::new(ROOT_DIRECTORY, KeyType(0), 0), Key::MAX, &mut |key, data, _| {
            let is_inode = key.objectid < u64::MAX - 256 && key.kind <= KeyType::EXTENT_DATA;
            if !is_inode || key.kind == KeyType::ORPHAN_ITEM || visited.contains(key.objectid) {
                return ControlFlow::Continue(());
            }
            if key.kind == KeyType::INODE_ITEM
                && InodeItem::read_from_prefix(data).is_ok_and(|(item, _)| item.nlink.get() == 0)
            {
                deleted = Some(key.objectid);
            }
            if deleted != Some(key.objectid) && found.last() != Some(&key.objectid) {
                found.push(key.objectid);
            }
            ControlFlow::Continue(())
        });
        self.lose(id, losses);
        found
    }

    /// Restores inodes at the paths that their references name; directories that are among them first, from the top.
    pub(super) fn restore_inodes(&mut self, tree: TreeId, inodes: &[u64]) -> io::Result<()> {
        for with_parents in [false, true] {
            for ino in inodes {
                let is_visited = self.visited.get(&tree).is_some_and(|visited| visited.contains(*ino));
                if !is_visited && (with_parents || !self.has_parent_among(tree, *ino, inodes)) {
                    self.restore_orphan(tree, *ino)?;
                }
            }
        }
        Ok(())
    }

    /// Whether another one of these inodes, a directory that was not visited, leads to it.
    fn has_parent_among(&self, id: TreeId, ino: u64, inodes: &[u64]) -> bool {
        let Some(tree) = self.tree(id) else { return false };
        let inode = subvolume::inode(&tree, ino);
        let visited = self.visited.get(&id);
        inode.names.iter().any(|(parent, _)| {
            let is_open = !visited.is_some_and(|visited| visited.contains(*parent));
            *parent != ino && is_open && inodes.binary_search(parent).is_ok()
        })
    }

    fn restore_orphan(&mut self, id: TreeId, ino: u64) -> io::Result<()> {
        let Some(mut thing) = self.thing(id, ino, None) else { return Ok(()) };
        if thing.is_only_a_name {
            return Ok(());
        }
        let place = self.place_of(id).cloned().unwrap_or_default();
        let path = self.path_by_references(id, ino, &thing.inode, &place);
        if !self.selection.takes(&path) {
            return Ok(());
        }
        self.make_way(&path)?;
        if !self.expects_older {
            self.summary.orphans += 1;
            (self.tell)(Event::Unreached(&path));
        }
        if thing.inode.names.is_empty() {
            thing.doubts.name = Trust::Guessed;
        }
        if thing.is_directory() {
            return self.walk(id, ino, &mut path.clone(), false);
        }
        if self.inode(id, thing, &path)? == Some(Made::Kept) {
            let aside = lost_path(&place, ino, path.last().map(Vec::as_slice).unwrap_or_default());
            self.make_way(&aside)?;
            if let Some(thing) = self.thing(id, ino, None) {
                self.inode(id, thing, &aside)?;
            }
        }
        Ok(())
    }

    /// Makes the directories above a path, as far as they are missing.
    pub(super) fn make_way(&mut self, path: &[Vec<u8>]) -> io::Result<()> {
        let attributes = crate::sink::Attributes { mode: DIRECTORY | 0o700, ..Default::default() };
        if self.wanted.dry_run {
            return Ok(());
        }
        for len in 1..path.len() {
            if self.made.insert(path[..len].to_vec()) {
                let made = self.sink.directory(&path[..len], &attributes);
                self.note(&path[..len], made.map(|()| Made::Yes))?;
            }
        }
        Ok(())
    }

    pub(super) fn path_by_references(
        &self,
        id: TreeId,
        ino: u64,
        inode: &subvolume::Inode,
        place: &[Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let (mut at, mut references) = (ino, inode.names.clone());
        while names.len() < DEEPEST {
            let Some((parent, name)) = references.into_iter().next() else { break };
            names.push(safe_name(&name));
            if parent == ROOT_DIRECTORY {
                names.reverse();
                return [place, &names[..]].concat();
            }
            if parent == at {
                break;
            }
            at = parent;
            references = self.tree(id).map(|tree| subvolume::inode(&tree, at).names).unwrap_or_default();
        }
        // As far as the names lead.
        if names.len() >= DEEPEST {
            names.truncate(1);
            at = ino;
        }
        names.reverse();
        let top =
            [b"lost+found".to_vec(), format!("{}-{at}", if at == ino { "inode" } else { "directory" }).into_bytes()];
        [place, &top[..], &names[..]].concat()
    }
}

fn lost_path(place: &[Vec<u8>], ino: u64, name: &[u8]) -> Vec<Vec<u8>> {
    let name = safe_name(&[format!("{ino}-").as_bytes(), name].concat());
    [place, &[b"lost+found".to_vec(), name][..]].concat()
}
