//! Inodes that no directory leads to any more: each goes to the path that its own references name, as far as they lead
//! to the top; else to `lost+found`, with what else was in its directory.

use super::{Event, Linked, ROOT_DIRECTORY, Restorer};
use crate::data::Grade;
use crate::sink::{Made, Path, safe_name, shown};
use crate::subvolume::{self, DIRECTORY, Target};
use crate::trust::Trust;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::io;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Directories on the way from an inode to the top.
const DEEPEST: usize = 512;
/// Names that are tried for something whose own is taken.
const MOST_ASIDE: usize = 1000;

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
                    self.restore_links(tree)?;
                }
                at += 1;
            }
            if !self.restore_subvolumes(top)? {
                return Ok(());
            }
        }
    }

    /// The numbers of inodes of which anything is there, that have a name or an item, and that were not visited; and of
    /// those whose items are lost and whose extents the extent tree has.
    fn unvisited(&mut self, id: TreeId) -> Vec<u64> {
        let Some(tree) = self.tree(id) else { return Vec::new() };
        let mut found: Vec<u64> = Vec::new();
        let (mut deleted, visited) = (None, &*self.visited.entry(id).or_default());
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
        let mut without_items = self.without_items(id, &losses);
        without_items.retain(|ino| !self.is_visited(id, *ino));
        found.extend(without_items);
        found.sort_unstable();
        found.dedup();
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
        let made = self.inode_at(id, &thing, &path)?;
        if matches!(made, Some(Made::Kept | Made::Taken)) {
            self.aside(id, ino, &path, &mut |run, path| run.inode_at(id, &thing, path))?;
        }
        if let Some((parent, name)) = thing.inode.names.first() {
            self.name_made(id, ino, (*parent, name));
        }
        Ok(())
    }

    /// Has `make` make something at a path; aside, if this run has made something else there. What was there before
    /// stays.
    pub(super) fn unless_taken(
        &mut self,
        id: TreeId,
        ino: u64,
        path: &Path,
        make: &mut dyn FnMut(&mut Self, &Path) -> io::Result<Option<Made>>,
    ) -> io::Result<Option<Made>> {
        match make(self, path)? {
            Some(Made::Taken) => self.aside(id, ino, path, make),
            Some(Made::Kept) => Ok(self.keep(path)),
            made => Ok(made),
        }
    }

    /// Tells that something stays, which has a name.
    fn keep(&mut self, path: &Path) -> Option<Made> {
        self.summary.find_in_the_way(path);
        (self.tell)(Event::Kept(path));
        Some(Made::Kept)
    }

    /// Has `make` make something whose name is taken under one in `lost+found` that nothing has: subvolume, inode and
    /// name, and a number if need be.
    fn aside(
        &mut self,
        id: TreeId,
        ino: u64,
        path: &Path,
        make: &mut dyn FnMut(&mut Self, &Path) -> io::Result<Option<Made>>,
    ) -> io::Result<Option<Made>> {
        let place = self.place_of(id).cloned().unwrap_or_default();
        let name = path.last().map(Vec::as_slice).unwrap_or_default();
        for number in 1..=MOST_ASIDE {
            let number = if number == 1 { String::new() } else { format!("{number}-") };
            let name = safe_name(&[format!("{id}-{ino}-{number}").as_bytes(), name].concat());
            let aside = [&place[..], &[b"lost+found".to_vec(), name][..]].concat();
            self.make_way(&aside)?;
            let made = make(self, &aside)?;
            if matches!(made, Some(Made::Kept | Made::Taken)) {
                continue;
            }
            if made.is_some_and(Made::is_there) {
                self.summary.aside += 1;
                (self.tell)(Event::Aside(path, &aside));
            }
            return Ok(made);
        }
        Ok(self.keep(path))
    }

    /// Notes that a name of an inode was restored.
    pub(super) fn name_made(&mut self, id: TreeId, ino: u64, (parent, name): (u64, &[u8])) {
        let Some(linked) = self.links.get_mut(&(id, ino)) else { return };
        linked.made += 1;
        linked.left.retain(|known| known.0 != parent || known.1 != name);
    }

    /// Restores the names of files that no entry has and that their inodes know, and tells of those that nothing knows.
    fn restore_links(&mut self, id: TreeId) -> io::Result<()> {
        let is_open = |linked: &Linked| !linked.left.is_empty() || linked.made < linked.count;
        let open = self.links.iter().filter(|((tree, _), linked)| *tree == id && is_open(linked));
        let mut open: Vec<u64> = open.map(|((_, ino), _)| *ino).collect();
        open.sort_unstable();
        for ino in open {
            let Some(linked) = self.links.get_mut(&(id, ino)) else { continue };
            let (left, missing) = (std::mem::take(&mut linked.left), linked.count.saturating_sub(linked.made));
            (linked.made, linked.count) = (0, 0);
            let (first, lost) = (linked.first.clone(), missing.saturating_sub(left.len() as u64));
            if missing == 0 {
                // All that it counts are there: one of the others is wrong.
                self.doubt_names(&first, format!("its inode has {} more names than it counts", left.len()));
                continue;
            }
            for name in left {
                self.restore_link(id, ino, name)?;
            }
            if lost > 0 && self.selection.is_everything() {
                self.doubt_names(&first, format!("its inode counts {lost} more names, which are lost"));
            }
        }
        Ok(())
    }

    /// Tells what is wrong with the names of a file.
    fn doubt_names(&mut self, path: &[Vec<u8>], reason: String) {
        self.summary.doubtful_others += 1;
        (self.tell)(Event::Complaint(&format!("{}: {reason}", shown(path))));
        self.summary.find(path, Grade::Doubtful, vec![reason], true);
    }

    /// Restores a name that the inode knows, unless its directory has another file of that name.
    fn restore_link(&mut self, id: TreeId, ino: u64, (parent, name): (u64, Vec<u8>)) -> io::Result<()> {
        let Some(tree) = self.tree(id) else { return Ok(()) };
        let place = self.place_of(id).cloned().unwrap_or_default();
        let other = subvolume::hashed_target(&tree, parent, &name).filter(|target| *target != Target::Inode(ino));
        let path = self.path_by_names(id, ino, vec![(parent, name)], &place);
        if !self.selection.takes(&path) {
            return Ok(());
        }
        if other.is_some() {
            self.give_up(&path, "another file of its directory has its name");
            return Ok(());
        }
        self.make_way(&path)?;
        self.summary.orphans += 1;
        (self.tell)(Event::Unreached(&path));
        if self.link(id, ino, &path)? {
            return Ok(());
        }
        match self.thing(id, ino, None) {
            Some(thing) => self.inode(id, &thing, &path).map(drop),
            None => Ok(()),
        }
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
        self.path_by_names(id, ino, inode.names.clone(), place)
    }

    /// The path of an inode by the first of these names: directory and name.
    fn path_by_names(
        &self,
        id: TreeId,
        ino: u64,
        mut references: Vec<(u64, Vec<u8>)>,
        place: &[Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let (mut names, mut at) = (Vec::new(), ino);
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
