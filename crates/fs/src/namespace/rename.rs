//! Rename: a name moves, takes the place of another, or two names change places.
//!
//! A rename moves an inode of the directory's own tree, or a subvolume, whose name is recorded in the root tree
//! and which may move between subvolumes.

use super::creation::Wanted;
use super::lookup::Object;
use super::removal::{must_be_empty, own_record, take_name};
use super::{Namespace, lock_all};
use crate::env::Point;
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{Caller, InodeId, mode, timespec};
use crate::inode::directory::{self, EntryTarget, Found, check_name};
use crate::inode::entry::DirItemEntry;
use crate::inode::reference::{self, Reference};
use crate::inode::refusals::FIXED;
use crate::inode::{Inode, preload, subvolume_entry};
use crate::options::Canary;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::items::dir_type;
use std::sync::Arc;

/// Items that a rename changes: two entries go and two come, two inodes' records, two subvolumes' records, whiteout.
const ITEMS: u64 = 16;

/// The treatment of an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// The new name is taken over.
    #[default]
    Replace,
    /// The new name must not exist.
    NoReplace,
    /// Both names exist and change places.
    Exchange,
    /// A whiteout, a character device 0:0, stays at the old name.
    Whiteout {
        /// The owner of the whiteout.
        caller: Caller,
        /// Whether the new name is taken over; if not, it must not exist.
        replace: bool,
    },
}

/// One of the two names.
struct Side<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    entry: Option<(Found, Object)>,
}

impl Object {
    fn is_directory(&self) -> bool {
        match self {
            Object::Inode(inode) => inode.is_directory(),
            Object::Subvolume(..) | Object::Placeholder(_) => true,
        }
    }

    fn target(&self) -> EntryTarget {
        match self {
            Object::Inode(inode) => EntryTarget::Inode(inode.ino),
            Object::Subvolume(tree, _) | Object::Placeholder(tree) => EntryTarget::Subvolume(*tree),
        }
    }

    fn inode(&self) -> Option<&Arc<Inode>> {
        match self {
            Object::Inode(inode) => Some(inode),
            _ => None,
        }
    }

    fn id(&self) -> Option<InodeId> {
        match self {
            Object::Inode(inode) => Some(inode.id()),
            Object::Subvolume(tree, _) => Some(InodeId::root_of(*tree)),
            Object::Placeholder(_) => None,
        }
    }

    /// The directory inode that it is, if it is one.
    fn directory_id(&self) -> Option<InodeId> {
        match self {
            Object::Inode(inode) => inode.is_directory().then(|| inode.id()),
            Object::Subvolume(tree, _) => Some(InodeId::root_of(*tree)),
            Object::Placeholder(_) => None,
        }
    }
}

/// The outcome of one attempt.
enum Attempt {
    /// The names lead somewhere else than before they were locked.
    Again,
    /// Done; this inode lost its last name.
    Done(Option<InodeId>),
}

impl Namespace {
    /// Renames.
    pub fn rename(
        &self,
        old: (InodeId, &[u8]),
        new: (InodeId, &[u8]),
        how: RenameMode,
        expected: Option<InodeId>,
    ) -> Result<()> {
        let ((old_parent, old_name), (new_parent, new_name)) = (old, new);
        check_name(old_name)?;
        check_name(new_name)?;
        let (old, new) = (self.directory(old_parent)?, self.directory(new_parent)?);
        self.preload_rename((&old, old_name), (&new, new_name), how);
        let _renames = (old_parent != new_parent).then(|| self.renames.lock());
        loop {
            let attempt = self.run(Reserve::items(ITEMS), |handle| {
                let old = self.side(&old, old_name)?;
                let new = self.side(&new, new_name)?;
                self.try_rename(handle, old, new, (how, expected))
            })?;
            match attempt {
                Attempt::Again => {}
                Attempt::Done(orphan) => {
                    orphan.into_iter().for_each(|id| self.inodes.dispose(id));
                    return Ok(());
                }
            }
        }
    }

    fn preload_rename(&self, old: (&Inode, &[u8]), new: (&Inode, &[u8]), how: RenameMode) {
        let core = self.core();
        for (from, to) in [(old, new), (new, old)] {
            preload::name(core, from.0, from.1);
            preload::addition(core, from.0, from.1);
            let Ok(Some(found)) = directory::find(core, &from.0.tree, from.0.ino, from.1) else { continue };
            match found.target {
                EntryTarget::Inode(child) => preload::record(core, &to.0.tree, child, to.0.ino, to.1),
                EntryTarget::Subvolume(subvolume) => preload::place(core, to.0.tree_id(), subvolume),
            }
            if found.kind == dir_type::DIR && old.0.id() != new.0.id() {
                self.preload_way_up(to.0.id());
            }
        }
        if matches!(how, RenameMode::Whiteout { .. }) {
            preload::creation(core, old.0);
        }
    }

    fn preload_way_up(&self, directory: InodeId) {
        let mut at = directory;
        for _ in 0..1 << 20 {
            match self.parent(at) {
                // A damaged tree may lead in a circle.
                Ok(parent) if parent != at && parent != directory => at = parent,
                _ => return,
            }
        }
    }

    fn side<'a>(&self, directory: &'a Arc<Inode>, name: &'a [u8]) -> Result<Side<'a>> {
        let _guard = directory.lock_shared()?;
        let found = directory::find(self.core(), &directory.tree, directory.ino, name)?;
        let entry = match found {
            Some(found) => Some((found, self.resolve(directory, name, found.target)?)),
            None => None,
        };
        Ok(Side { directory, name, entry })
    }

    fn try_rename(
        &self,
        handle: &Handle,
        mut old: Side<'_>,
        mut new: Side<'_>,
        (how, expected): (RenameMode, Option<InodeId>),
    ) -> Result<Attempt> {
        let inodes: Vec<Arc<Inode>> = [&old, &new].into_iter().filter_map(Side::inode).cloned().collect();
        let locked: Vec<&Arc<Inode>> = [old.directory, new.directory].into_iter().chain(&inodes).collect();
        let _guards = match lock_all(&locked) {
            // The inode is gone, and so is its name.
            Err(error)
                if error.is(Errno::ESTALE)
                    && [old.directory, new.directory].iter().all(|side| side.must_exist().is_ok()) =>
            {
                return Ok(Attempt::Again);
            }
            guards => guards?,
        };
        if !self.refresh(&mut old)? || !self.refresh(&mut new)? {
            return Ok(Attempt::Again);
        }
        // From here on no subvolume comes to be or goes: neither the one that moves nor the one that it moves into.
        let of_subvolumes = [&old, &new].into_iter().any(Side::is_subvolume);
        let lock = of_subvolumes && !self.core().has_canary(Canary::SubvolumeCheckedEarly);
        let _table = lock.then(|| self.core().subvolume_table.lock());
        let Some((found, source)) = old.entry.take() else {
            return Err(Error::refused(Errno::ENOENT, "there is no such name"));
        };
        if expected.is_some_and(|expected| source.id() != Some(expected)) {
            return Err(Error::refused(Errno::ESTALE, "the name leads somewhere else by now"));
        }
        let target = new.entry.take();
        if let Some((_, target)) = &target {
            if matches!(how, RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }) {
                return Err(Error::refused(Errno::EEXIST, "the name exists"));
            }
            if target.target() == source.target() && old.directory.tree_id() == new.directory.tree_id() {
                return Ok(Attempt::Done(None));
            }
        }
        check_ends(&old, &new, &source, target.as_ref().map(|(_, object)| object))?;
        if old.directory.id() != new.directory.id() {
            self.must_be_movable(&source)?;
            if let (RenameMode::Exchange, Some((_, target))) = (how, &target) {
                self.must_be_movable(target)?;
            }
        }
        let moved = Moved { found, object: source };
        match (how, target) {
            (RenameMode::Exchange, None) => Err(Error::refused(Errno::ENOENT, "there is nothing to exchange with")),
            (RenameMode::Exchange, Some((found, object))) => {
                self.exchange(handle, (&old, moved), (&new, Moved { found, object }))?;
                Ok(Attempt::Done(None))
            }
            (_, target) => self.replace(handle, (&old, moved), &new, target, how).map(Attempt::Done),
        }
    }

    /// Looks a name up again now that everything is locked; false when it leads somewhere else.
    fn refresh(&self, side: &mut Side<'_>) -> Result<bool> {
        let found = directory::find(self.core(), &side.directory.tree, side.directory.ino, side.name)?;
        let same = found.map(|found| found.target) == side.entry.as_ref().map(|(found, _)| found.target);
        if let (true, Some(found), Some(entry)) = (same, found, &mut side.entry) {
            entry.0 = found;
            // A subvolume may have left and come back, to another place.
            if entry.1.inode().is_none() {
                entry.1 = self.resolve(side.directory, side.name, found.target)?;
            }
        }
        Ok(same)
    }

    /// Refuses to move a read-only subvolume to another directory, as the kernel does.
    fn must_be_movable(&self, object: &Object) -> Result<()> {
        match object {
            Object::Subvolume(id, _) if self.core().tree(*id)?.is_readonly() => {
                Err(Error::refused(Errno::EROFS, "a read-only subvolume cannot move to another directory"))
            }
            _ => Ok(()),
        }
    }

    fn replace(
        &self,
        handle: &Handle,
        (old, moved): (&Side<'_>, Moved),
        new: &Side<'_>,
        target: Option<(Found, Object)>,
        how: RenameMode,
    ) -> Result<Option<InodeId>> {
        let same_directory = old.directory.id() == new.directory.id();
        match &target {
            Some((_, object)) => {
                check_replaced(&moved.object, object)?;
                self.must_not_contain(object, old.directory, same_directory, Errno::ENOTEMPTY)?;
            }
            None => {
                let leaving = same_directory.then_some(old.name);
                directory::plan_addition(self.core(), &new.directory.tree, new.directory.ino, new.name, leaving)?;
            }
        }
        self.must_not_contain(&moved.object, new.directory, same_directory, Errno::EINVAL)?;
        let checked = moved.check(handle, old, new)?;
        if matches!(moved.object, Object::Subvolume(..)) {
            self.core().env().reached(Point::SubvolumeChecked);
        }
        let mut orphan = None;
        if let Some((found, Object::Inode(victim))) = &target {
            let last = take_name(handle, new.directory, new.name, found, victim)?;
            orphan = last.then(|| victim.id());
        }
        checked.leave(handle, old, moved.found)?;
        checked.arrive(handle, new)?;
        grow(handle, old.directory, -2 * old.name.len() as i64);
        grow(handle, new.directory, if target.is_some() { 0 } else { 2 * new.name.len() as i64 });
        if let RenameMode::Whiteout { caller, .. } = how {
            let wanted = Wanted { mode: mode::S_IFCHR, ..Wanted::default() };
            let made = self.make_entry(handle, &caller, old.directory, old.name, &wanted);
            // The name has already moved: a refusal comes too late to be one.
            made.inspect_err(|error| handle.failed(error))?;
        }
        Ok(orphan)
    }

    fn exchange(
        &self,
        handle: &Handle,
        (old, first): (&Side<'_>, Moved),
        (new, second): (&Side<'_>, Moved),
    ) -> Result<()> {
        let same_directory = old.directory.id() == new.directory.id();
        self.must_not_contain(&first.object, new.directory, same_directory, Errno::EINVAL)?;
        self.must_not_contain(&second.object, old.directory, same_directory, Errno::EINVAL)?;
        let same_tree = old.directory.tree_id() == new.directory.tree_id();
        if !same_tree {
            return Err(Error::refused(Errno::EXDEV, "names of two subvolumes do not change places"));
        }
        let there = first.check(handle, old, new)?;
        let back = second.check(handle, new, old)?;
        there.leave(handle, old, first.found)?;
        back.leave(handle, new, second.found)?;
        there.arrive(handle, new)?;
        back.arrive(handle, old)?;
        grow(handle, old.directory, 0);
        grow(handle, new.directory, 0);
        Ok(())
    }

    /// Refuses to move a directory below itself. Renames between directories exclude each other, so that nobody
    /// changes the way up meanwhile.
    fn must_not_contain(&self, object: &Object, inside: &Inode, same_directory: bool, errno: Errno) -> Result<()> {
        let Some(top) = object.directory_id().filter(|_| !same_directory) else { return Ok(()) };
        let mut at = inside.id();
        // No path is longer than this; a tree whose directories form a circle ends here too.
        for _ in 0..1 << 20 {
            if at == top {
                return Err(Error::refused(errno, "a directory cannot contain itself"));
            }
            let parent = self.parent(at)?;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Error::corrupt(format!("tree {}: directory {} has no way up", inside.tree_id(), inside.ino)))
    }
}

impl Side<'_> {
    fn is_subvolume(&self) -> bool {
        matches!(self.entry, Some((_, Object::Subvolume(..))))
    }

    fn inode(&self) -> Option<&Arc<Inode>> {
        self.entry.as_ref().and_then(|(_, object)| object.inode())
    }
}

/// The object that a rename moves.
struct Moved {
    found: Found,
    object: Object,
}

/// A move that nothing refuses any more.
struct CheckedMove<'a> {
    moved: &'a Moved,
    record: Record,
}

/// How what is moved records its name.
enum Record {
    Inode(reference::NameRecord, reference::Slot),
    Subvolume(subvolume_entry::RootBackref),
}

impl Moved {
    /// Finds out whether the object can move from one name to the other, which it does not have.
    fn check(&self, handle: &Handle, from: &Side<'_>, to: &Side<'_>) -> Result<CheckedMove<'_>> {
        let record = match &self.object {
            Object::Inode(inode) => {
                let record = own_record(handle, from.directory, from.name, inode)?;
                let (directory, name) = (to.directory.ino, to.name);
                let slot =
                    reference::plan_addition(handle.core(), &inode.tree, inode.ino, directory, name, Some(&record))?;
                Record::Inode(record, slot)
            }
            Object::Subvolume(_, backref) => {
                let (tree, directory) = (&from.directory.tree, from.directory.ino);
                let target = self.object.target();
                directory::check_index(handle.core(), tree, directory, backref.index, from.name, target)?;
                Record::Subvolume(*backref)
            }
            Object::Placeholder(_) => {
                return Err(Error::refused(Errno::ENOTEMPTY, "a placeholder for a subvolume stays where it is"));
            }
        };
        Ok(CheckedMove { moved: self, record })
    }
}

impl CheckedMove<'_> {
    fn leave(&self, handle: &Handle, from: &Side<'_>, found: Found) -> Result<()> {
        let index = match &self.record {
            Record::Inode(record, _) => record.index,
            Record::Subvolume(backref) => backref.index,
        };
        directory::remove(handle, from.directory, from.name, &found, index)?;
        match &self.moved.object {
            Object::Subvolume(tree, _) => subvolume_entry::remove(handle, from.directory.tree_id(), *tree),
            _ => Ok(()),
        }
    }

    fn arrive(&self, handle: &Handle, to: &Side<'_>) -> Result<()> {
        let location = self.moved.object.target().location();
        let entry = DirItemEntry::of_directory(location, handle.generation(), self.moved.found.kind, to.name);
        let index = directory::add(handle, to.directory, &entry)?;
        match (&self.moved.object, &self.record) {
            (Object::Inode(inode), Record::Inode(record, slot)) => {
                let reference = Reference { directory: to.directory.ino, index, name: to.name };
                reference::replace(handle, &inode.tree, record, *slot, &reference)?;
                let now = timespec(handle.core().env().now());
                inode.change(|state| state.item.ctime = now);
                Ok(())
            }
            (Object::Subvolume(tree, _), _) => {
                let backref = subvolume_entry::RootBackref { directory: to.directory.id(), index };
                subvolume_entry::add(handle, backref, to.name, *tree)
            }
            _ => unreachable!("a checked move records what its object is"),
        }
    }
}

fn grow(handle: &Handle, directory: &Arc<Inode>, bytes: i64) {
    let now = timespec(handle.core().env().now());
    directory.change(|state| {
        state.grow_directory(bytes);
        (state.item.mtime, state.item.ctime) = (now, now);
    });
}

/// Checks that both ends permit the rename, whatever its mode.
fn check_ends(old: &Side<'_>, new: &Side<'_>, source: &Object, target: Option<&Object>) -> Result<()> {
    old.directory.must_lose_entries()?;
    match target {
        Some(_) => new.directory.must_lose_entries()?,
        None => new.directory.must_take_entries()?,
    }
    for inode in [Some(source), target].into_iter().flatten().filter_map(Object::inode) {
        inode.must_not_have(FIXED)?;
    }
    let across = old.directory.tree_id() != new.directory.tree_id();
    if across && source.inode().is_some() {
        return Err(Error::refused(Errno::EXDEV, "a file cannot move to another subvolume"));
    }
    Ok(())
}

/// Checks that the source may replace the target.
fn check_replaced(source: &Object, target: &Object) -> Result<()> {
    match (source.is_directory(), target.is_directory()) {
        (true, false) => return Err(Error::refused(Errno::ENOTDIR, "a directory cannot replace a file")),
        (false, true) => return Err(Error::refused(Errno::EISDIR, "a file cannot replace a directory")),
        _ => {}
    }
    match target {
        Object::Inode(inode) if inode.is_directory() => must_be_empty(inode),
        Object::Inode(_) => Ok(()),
        _ => Err(Error::refused(Errno::ENOTEMPTY, "a subvolume cannot be replaced")),
    }
}
