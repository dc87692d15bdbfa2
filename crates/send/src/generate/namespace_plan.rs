//! The namespace, from the old snapshot's to the new one's, as a graph: each step is taken as soon as nothing stands in
//! its way, and what stands in the way is seen to first.
//!
//! | step | waits for |
//! |---|---|
//! | a directory or a file moves | the directory it goes to exists; the name there is free; a directory does not go into itself |
//! | a directory is made, a link is made | the directory exists; the name is free |
//! | a file's name is removed | nothing |
//! | a directory is removed | everything in it has left |
//!
//! # Invariants
//! 1. Where steps wait for each other in a ring, one of them is taken half: what it moves, makes or removes gets a name
//!    in the root directory that neither snapshot has there. That ends the waiting for it for good, so there are at
//!    most as many such names as rings.
//! 2. When all steps are taken, every directory is where the new snapshot has it, and every name of a new file is free.
//! 3. Nothing is written into files meanwhile.

use super::changes::{Changes, DirEntry, Object, ROOT};
use super::directory_paths::DirectoryPaths;
use super::error::{Error, Result};
use super::inherited::Inherited;
use super::output::Output;
use super::paths::first_name;
use crate::wire::Command;
use butterfs_fs::SnapshotReader;
use butterfs_fs::inode::entry;
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::{Key, KeyType};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Move,
    Make,
    Link,
    Unlink,
    RemoveDirectory,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Waiting,
    /// Others are being seen to for it.
    Begun,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct NamespaceStep {
    kind: Kind,
    progress: Progress,
    /// Its subject has a temporary name in the root directory.
    aside: bool,
    /// Number of the removed entry.
    from: u32,
    /// Number of the added entry; for removing a directory, the removed entry inside it that is looked at next.
    to: u32,
}

/// See the [module](self).
pub struct NamespacePlan<'a, 'r> {
    changes: &'a Changes,
    old: Option<&'r SnapshotReader>,
    new: &'r SnapshotReader,
    steps: Vec<NamespaceStep>,
    /// The step of each removed entry.
    of_removed: Vec<u32>,
    /// The step that moves, makes or removes a directory.
    of_directory: FxHashMap<Object, u32>,
    /// A step that moves a name of a file, for links to it.
    of_file: FxHashMap<u64, u32>,
    /// Temporary names, by step.
    aside: FxHashMap<u32, Arc<[u8]>>,
}

impl<'a, 'r> NamespacePlan<'a, 'r> {
    /// Plans the changes of names.
    pub fn new(
        changes: &'a Changes,
        old: Option<&'r SnapshotReader>,
        new: &'r SnapshotReader,
    ) -> NamespacePlan<'a, 'r> {
        let of_removed = vec![NONE; changes.removed.len()];
        let (steps, of_directory, of_file, aside) = Default::default();
        let mut plan = NamespacePlan { changes, old, new, steps, of_removed, of_directory, of_file, aside };
        plan.add_steps();
        plan
    }

    /// Whether a temporary name was in the root directory.
    pub fn passed_through_root(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Pairs the names that an inode lost with those it got, in order.
    fn add_steps(&mut self) {
        let changes = self.changes;
        let mut lost: Vec<u32> = (0..changes.removed.len() as u32).collect();
        lost.retain(|&index| !changes.is_gone(changes.removed[index as usize].ino));
        lost.sort_by_key(|&index| changes.removed[index as usize].ino);
        let mut taken: FxHashMap<u64, usize> = FxHashMap::default();
        for (to, entry) in changes.added.iter().enumerate() {
            let object = changes.new_object(entry.ino);
            let from = if object.fresh { None } else { next_of(&lost, &changes.removed, entry.ino, &mut taken) };
            let kind = match from {
                _ if object.fresh => Kind::Make,
                Some(_) => Kind::Move,
                None => Kind::Link,
            };
            let step = self.add(kind, from.unwrap_or(NONE), to as u32);
            if entry.is_directory {
                self.of_directory.insert(object, step);
            } else if kind == Kind::Move {
                self.of_file.insert(entry.ino, step);
            }
        }
        for (from, entry) in changes.removed.iter().enumerate() {
            if self.of_removed[from] != NONE {
                continue;
            }
            if entry.is_directory {
                let first = changes.removed_in(entry.ino).start as u32;
                let step = self.add(Kind::RemoveDirectory, from as u32, first);
                self.of_directory.insert(Object { ino: entry.ino, fresh: false }, step);
            } else {
                self.add(Kind::Unlink, from as u32, NONE);
            }
        }
    }

    fn add(&mut self, kind: Kind, from: u32, to: u32) -> u32 {
        let number = self.steps.len() as u32;
        self.steps.push(NamespaceStep { kind, progress: Progress::Waiting, aside: false, from, to });
        if from != NONE {
            self.of_removed[from as usize] = number;
        }
        number
    }

    /// Takes all steps.
    pub fn carry_out(
        &mut self,
        paths: &mut DirectoryPaths<'r>,
        inherited: &mut Inherited<'r>,
        out: &mut Output<'_, '_>,
    ) -> Result<()> {
        let mut stack = Vec::new();
        for first in 0..self.steps.len() as u32 {
            if self.steps[first as usize].progress == Progress::Waiting {
                stack.push(first);
            }
            while let Some(&step) = stack.last() {
                self.steps[step as usize].progress = Progress::Begun;
                match self.in_the_way(step, paths)? {
                    None => {
                        self.take(step, paths, inherited, out)?;
                        self.steps[step as usize].progress = Progress::Done;
                        stack.pop();
                    }
                    Some(other) if self.steps[other as usize].progress == Progress::Begun => {
                        self.put_aside(other, paths, inherited, out)?;
                    }
                    Some(other) => stack.push(other),
                }
            }
        }
        Ok(())
    }

    /// A step that must be taken before this one.
    fn in_the_way(&mut self, number: u32, paths: &mut DirectoryPaths<'r>) -> Result<Option<u32>> {
        let step = self.steps[number as usize];
        match step.kind {
            Kind::Unlink => Ok(None),
            Kind::RemoveDirectory => Ok(self.still_inside(number)),
            Kind::Move | Kind::Make | Kind::Link => {
                let changes = self.changes;
                let entry = &changes.added[step.to as usize];
                let directory = changes.new_object(entry.directory);
                if !paths.exists(directory) {
                    let made = self.of_directory.get(&directory).copied();
                    return made.map(Some).ok_or_else(|| lost(entry));
                }
                if let Some(occupant) = self.occupant(directory, entry)
                    && !self.may_replace(&step, occupant)
                {
                    return Ok(Some(occupant));
                }
                if step.kind != Kind::Move || !entry.is_directory {
                    return Ok(None);
                }
                match paths.between(directory, Object { ino: entry.ino, fresh: false })? {
                    None => Ok(None),
                    Some(way) => self.mover(&way).map(Some).ok_or_else(|| lost(entry)),
                }
            }
        }
    }

    /// The step of a removed entry inside a directory that has not left it yet.
    fn still_inside(&mut self, number: u32) -> Option<u32> {
        let step = &mut self.steps[number as usize];
        let mut at = step.to as usize;
        let directory = self.changes.removed[step.from as usize].ino;
        while let Some(entry) = self.changes.removed.get(at).filter(|entry| entry.directory == directory) {
            let _ = entry;
            let other = self.of_removed[at];
            if !self.has_left(other) {
                self.steps[number as usize].to = at as u32;
                return Some(other);
            }
            at += 1;
        }
        self.steps[number as usize].to = at as u32;
        None
    }

    fn has_left(&self, number: u32) -> bool {
        let step = &self.steps[number as usize];
        step.progress == Progress::Done || step.aside
    }

    /// The step of what has the name that an entry needs.
    fn occupant(&self, directory: Object, entry: &DirEntry) -> Option<u32> {
        let removed = self.changes.removed_at(directory, self.changes.name(entry))?;
        Some(self.of_removed[removed]).filter(|&step| !self.has_left(step))
    }

    /// A file may be moved over a file's name that is removed.
    fn may_replace(&self, step: &NamespaceStep, occupant: u32) -> bool {
        let is_file = !self.changes.added[step.to as usize].is_directory;
        step.kind == Kind::Move && is_file && self.steps[occupant as usize].kind == Kind::Unlink
    }

    /// The last of these directories that has yet to move.
    fn mover(&self, way: &[Object]) -> Option<u32> {
        let steps = way.iter().rev().filter_map(|directory| self.of_directory.get(directory).copied());
        steps.filter(|&step| self.steps[step as usize].kind == Kind::Move).find(|&step| !self.has_left(step))
    }

    /// The present path of a step's subject.
    fn path_now(&self, number: u32, paths: &mut DirectoryPaths<'r>) -> Result<Vec<u8>> {
        if let Some(name) = self.aside.get(&number) {
            return Ok(name.to_vec());
        }
        let entry = &self.changes.removed[self.steps[number as usize].from as usize];
        paths.path_of(Object { ino: entry.directory, fresh: false }, self.changes.name(entry))
    }

    fn take(
        &mut self,
        number: u32,
        paths: &mut DirectoryPaths<'r>,
        inherited: &mut Inherited<'r>,
        out: &mut Output<'_, '_>,
    ) -> Result<()> {
        let step = self.steps[number as usize];
        let changes = self.changes;
        match step.kind {
            Kind::Unlink => return out.put(&Command::Unlink { path: &self.path_now(number, paths)? }),
            Kind::RemoveDirectory => return out.put(&Command::Rmdir { path: &self.path_now(number, paths)? }),
            Kind::Move | Kind::Make | Kind::Link => {}
        }
        let entry = &changes.added[step.to as usize];
        let (directory, name) = (changes.new_object(entry.directory), changes.name(entry));
        let object = changes.new_object(entry.ino);
        let to = paths.path_of(directory, name)?;
        match step.kind {
            Kind::Make if !step.aside => {
                if inherited.prepare(directory, &paths.path(directory)?, out)? {
                    inherited.mark(object);
                }
                out.put(&Command::Mkdir { path: &to, ino: entry.ino })?;
            }
            Kind::Link if entry.is_directory => return Err(lost(entry)),
            Kind::Link => {
                let existing = self.some_name(entry.ino, paths)?;
                out.put(&Command::Link { path: &to, existing: &existing })?;
            }
            _ => {
                let path = self.path_now(number, paths)?;
                if let Some(replaced) = self.occupant(directory, entry) {
                    self.steps[replaced as usize].progress = Progress::Done;
                }
                out.put(&Command::Rename { path: &path, to: &to })?;
            }
        }
        if entry.is_directory {
            paths.put(object, directory, name);
        }
        Ok(())
    }

    /// A path that leads to a file now.
    fn some_name(&self, ino: u64, paths: &mut DirectoryPaths<'r>) -> Result<Vec<u8>> {
        if let Some(&step) = self.of_file.get(&ino) {
            if self.steps[step as usize].progress != Progress::Done {
                return self.path_now(step, paths);
            }
            let entry = &self.changes.added[self.steps[step as usize].to as usize];
            return paths.path_of(self.changes.new_object(entry.directory), self.changes.name(entry));
        }
        let old = self.old.map(|old| first_name(old, ino)).transpose()?.flatten();
        let (directory, name) = old.ok_or_else(|| Error::corrupt(format!("inode {ino} has no name")))?;
        paths.path_of(Object { ino: directory, fresh: false }, &name)
    }

    /// Gives what a step moves, makes or removes a temporary name.
    fn put_aside(
        &mut self,
        number: u32,
        paths: &mut DirectoryPaths<'r>,
        inherited: &mut Inherited<'r>,
        out: &mut Output<'_, '_>,
    ) -> Result<()> {
        let step = self.steps[number as usize];
        let changes = self.changes;
        if step.aside {
            return Err(Error::corrupt("names cannot be put into an order"));
        }
        let (entry, object) = match step.kind {
            Kind::Make => {
                let entry = &changes.added[step.to as usize];
                (entry, changes.new_object(entry.ino))
            }
            _ => {
                let entry = &changes.removed[step.from as usize];
                (entry, Object { ino: entry.ino, fresh: false })
            }
        };
        let name = self.temporary_name(object)?;
        if step.kind == Kind::Make {
            if inherited.prepare(ROOT, b"", out)? {
                inherited.mark(object);
            }
            out.put(&Command::Mkdir { path: &name, ino: object.ino })?;
        } else {
            let path = self.path_now(number, paths)?;
            out.put(&Command::Rename { path: &path, to: &name })?;
        }
        if entry.is_directory {
            paths.put(object, ROOT, &name);
        }
        self.aside.insert(number, name.into());
        self.steps[number as usize].aside = true;
        Ok(())
    }

    /// A name that is in neither snapshot's root directory, as the kernel makes them.
    fn temporary_name(&self, object: Object) -> Result<Vec<u8>> {
        let owner = if object.fresh { Some(self.new) } else { self.old };
        let at = owner.map(|reader| reader.search(Key::new(object.ino, KeyType::INODE_ITEM, 0))).transpose()?;
        let item = at.filter(|at| at.found).map(|at| super::changes::inode_item(at.leaf.item(at.slot))).transpose()?;
        let generation = item.map_or(0, |item| item.generation.get());
        for index in 0u64.. {
            let name = format!("o{}-{generation}-{index}", object.ino).into_bytes();
            if !is_in_root(self.old, &name)? && !is_in_root(Some(self.new), &name)? {
                return Ok(name);
            }
        }
        Err(Error::corrupt("all temporary names are taken"))
    }
}

/// The next of an inode's lost names that has not been paired.
fn next_of(lost: &[u32], removed: &[DirEntry], ino: u64, taken: &mut FxHashMap<u64, usize>) -> Option<u32> {
    let at = taken.entry(ino).or_insert_with(|| lost.partition_point(|&index| removed[index as usize].ino < ino));
    let found = lost.get(*at).copied().filter(|&index| removed[index as usize].ino == ino);
    *at += usize::from(found.is_some());
    found
}

fn lost(entry: &DirEntry) -> Error {
    Error::corrupt(format!("the way to directory {} of inode {} is broken", entry.directory, entry.ino))
}

fn is_in_root(reader: Option<&SnapshotReader>, name: &[u8]) -> Result<bool> {
    let Some(reader) = reader else { return Ok(false) };
    let at = reader.search(Key::new(ROOT.ino, KeyType::DIR_ITEM, name_hash(name)))?;
    Ok(at.found && entry::find(at.leaf.item(at.slot), name)?.is_some())
}
