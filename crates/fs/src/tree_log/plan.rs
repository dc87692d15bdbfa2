//! The plan of an `fsync`: the inode, and every inode whose names must change together with its own.
//!
//! A log applied to the committed state must leave a state in which each inode that it touches has exactly the names of
//! the running transaction, and every other inode those of the committed one. So the set of inodes is closed:
//!
//! 1. Who takes over a name brings the inode that had it; who loses one brings the inode that has it now.
//! 2. Who gets a name in a directory that the last commit does not have brings the directory.
//! 3. A directory that is synced brings its new entries' inodes, new directories with all that is in them, and the
//!    inodes of entries that it lost.
//! 4. An inode that an earlier log of the transaction touched, and whose names changed since, comes along.
//! 5. A file of the last commit that is synced and whose names changed brings the directories that it had them in, as
//!    if they were synced too: so do kernels, and programs count on it.
//!
//! Changes that a log cannot express without loss in some replay force a commit ([`Stop::Commit`]): moved
//! directories, entries of subvolumes, removed directories that something was moved out of or whose names matter.
//!
//! The caller holds the gate of names exclusively, so no name changes meanwhile; not for [`LogPlan::quick`], which
//! looks at none.

use super::batch::Batch;
use super::names::{self, Name, NameOwner};
use super::{Logged, TreeLog, range_key, range_payload};
use crate::error::{Error, Result};
use crate::extent::items::Items;
use crate::options::Policies;
use crate::transaction::{BlockSource, Changes, Committed, Core, Tree};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Logical};
use butterfs_tree::Position;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use zerocopy::{FromBytes, IntoBytes};

/// Entries of removed directories that are looked at.
const REMOVED_MAX: usize = 4096;

/// Why nothing is logged.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Blocks are not in memory, and noted.
    Missing,
    /// A commit is right or cheaper.
    Commit(&'static str),
    /// Something failed; a commit will show whether it matters.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error {
            Error::Missing(_) => Stop::Missing,
            error => Stop::Failed(error),
        }
    }
}

pub(super) type Planned<T> = std::result::Result<T, Stop>;

/// The two states of a subvolume.
pub(super) struct View<'a> {
    pub source: BlockSource<'a>,
    pub tree: &'a Tree,
    pub committed: Committed<'a>,
    pub generation: Generation,
    /// The items of inodes that are ahead of the tree.
    pub memory: &'a dyn Fn(Ino) -> Option<InodeItem>,
}

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

pub(super) fn is_directory(item: &InodeItem) -> bool {
    item.mode.get() & S_IFMT == S_IFDIR
}

pub(super) fn is_regular(item: &InodeItem) -> bool {
    item.mode.get() & S_IFMT == S_IFREG
}

pub(super) fn is_symlink(item: &InodeItem) -> bool {
    item.mode.get() & S_IFMT == S_IFLNK
}

pub(super) const fn item_key(ino: Ino) -> Key {
    Key::new(ino.0, KeyType::INODE_ITEM, 0)
}

pub(super) fn parse_item(payload: &[u8]) -> Option<InodeItem> {
    InodeItem::read_from_bytes(payload).ok()
}

impl<'a> View<'a> {
    pub fn core(&self) -> &'a Core {
        self.source.core()
    }

    pub fn committed_item(&self, ino: Ino) -> Result<Option<InodeItem>> {
        Ok(self.committed.get(item_key(ino), parse_item)?.flatten())
    }

    pub fn current_item(&self, ino: Ino) -> Result<Option<InodeItem>> {
        let Some(payload) = self.tree.get(self.source, item_key(ino))? else { return Ok(None) };
        Ok((self.memory)(ino).or_else(|| parse_item(&payload)))
    }

    fn committed_names(&self, ino: Ino) -> Result<Vec<Name>> {
        names::names_of(ino, |from, to, visit| self.committed.scan(from, to, visit))
    }

    fn current_names(&self, ino: Ino) -> Result<Vec<Name>> {
        names::names_of(ino, |from, to, visit| self.tree.scan(self.source, from, to, visit))
    }
}

/// Digests of data that the log refers to.
pub(super) struct Sums {
    pub at: Logical,
    pub digests: Vec<u8>,
}

/// The edits of a log tree, in this order.
#[derive(Default)]
pub(super) struct Edits {
    /// Ranges of keys that go.
    pub removals: Vec<(Key, Key)>,
    /// Items whose keys the log does not have.
    pub fresh: Batch,
    /// The same, of new files and of nothing else, in the order of their numbers where they were made in the order of
    /// their entries.
    pub born: Batch,
    /// Items that the log may have.
    pub puts: Batch,
    /// Removed entries: directory and index.
    pub ranges: BTreeMap<Ino, BTreeSet<u64>>,
    pub sums: Vec<Sums>,
    /// The inodes in the log afterwards.
    pub logged: FxHashMap<Ino, Logged>,
    /// The inodes of `born`, of which it knows that they exist.
    pub born_inodes: Vec<Ino>,
    /// Bytes of directory entries among the items.
    pub entry_bytes: usize,
}

impl Edits {
    /// Bytes of items.
    pub fn bytes(&self) -> usize {
        self.fresh.bytes() + self.born.bytes() + self.puts.bytes()
    }
}

/// See the [module](self).
pub(super) struct LogPlan<'a, 'l, L: Items> {
    pub view: View<'a>,
    pub policies: Policies,
    pub log: &'l TreeLog,
    pub log_items: &'l L,
    pub edits: Edits,
    /// Bytes of items beyond which a commit is cheaper.
    pub budget: usize,
    /// The leaf in which the last new entry's inode was found.
    pub(super) leaf: Option<Position>,
    queue: Vec<(Ino, Want)>,
    /// The records of changes that were taken.
    taken: Vec<(Ino, Changes)>,
    pub(super) named: FxHashSet<Ino>,
    full: FxHashSet<Ino>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Want {
    /// It exists, and has its names.
    Names,
    /// Everything.
    Full,
}

impl<'a, 'l, L: Items> LogPlan<'a, 'l, L> {
    pub fn new(
        view: View<'a>,
        policies: Policies,
        (log, log_items): (&'l TreeLog, &'l L),
        budget: usize,
    ) -> LogPlan<'a, 'l, L> {
        let (edits, queue, taken, named, full) = Default::default();
        LogPlan { view, policies, log, log_items, edits, budget, leaf: None, queue, taken, named, full }
    }

    /// Plans the log of `target` and of those whose names changed, and of everything that belongs to them.
    pub fn make(mut self, target: Ino) -> Planned<Edits> {
        for ino in self.view.tree.watch.take_renamed() {
            self.taken.push((ino, Changes { names: true, ..Changes::default() }));
            self.queue.push((ino, Want::Names));
        }
        self.queue.push((target, Want::Full));
        let planned = self.all();
        self.edits.logged.entry(target).or_default();
        self.end(planned)
    }

    /// Plans the log of what changed in a regular file that is logged whole, but for its names.
    pub fn quick(mut self, target: Ino) -> Planned<Edits> {
        let planned = self.quick_contents(target);
        self.end(planned)
    }

    fn quick_contents(&mut self, target: Ino) -> Planned<()> {
        let committed = self.view.committed_item(target)?;
        let item = self.view.current_item(target)?.ok_or(Stop::Commit("the file is gone"))?;
        self.contents(target, committed.as_ref(), &item)
    }

    /// Visits everybody. Where a block is missing it goes on with the next one, so that few rounds find all that is
    /// missing.
    fn all(&mut self) -> Planned<()> {
        let mut visited = Ok(());
        while let Some((ino, want)) = self.queue.pop() {
            match self.visit(ino, want) {
                Err(Stop::Missing) => visited = Err(Stop::Missing),
                other => other?,
            }
            self.check_budget()?;
        }
        visited?;
        self.add_ranges()
    }

    /// The edits. A plan that lacks blocks is made again, from the same notes.
    fn end(self, planned: Planned<()>) -> Planned<Edits> {
        if let Err(Stop::Missing) = planned {
            for (ino, changes) in self.taken {
                self.view.tree.watch.put_back(ino, changes);
            }
        }
        planned.map(|()| self.edits)
    }

    fn take_changes(&mut self, ino: Ino) -> Changes {
        let changes = self.view.tree.watch.take(ino);
        self.taken.push((ino, changes.clone()));
        changes
    }

    pub(super) fn check_budget(&self) -> Planned<()> {
        if self.edits.bytes() > self.budget {
            Err(Stop::Commit("the log would cost more than a commit"))
        } else {
            Ok(())
        }
    }

    fn visit(&mut self, ino: Ino, want: Want) -> Planned<()> {
        let first = self.named.insert(ino);
        let full = want == Want::Full && self.full.insert(ino);
        if !first && !full {
            return Ok(());
        }
        // Before anything of it is looked at, so that no change falls between.
        self.view.tree.watch.begin(ino);
        let (old, new) = (self.view.committed_item(ino)?, self.view.current_item(ino)?);
        let alive = new.filter(|item| item.nlink.get() > 0);
        if first {
            self.names(ino, old.as_ref(), alive.as_ref(), want)?;
        }
        match (&new, want) {
            (Some(new), Want::Full) => self.contents(ino, old.as_ref(), new),
            (_, Want::Names) if !self.is_logged(ino) => match (&old, &alive) {
                (Some(old), Some(alive)) => self.existing(ino, old, alive),
                (None, Some(alive)) if is_symlink(alive) => self.contents(ino, None, alive),
                (None, Some(alive)) => self.born(ino, alive),
                _ => Ok(()),
            },
            (_, Want::Names) => alive.map_or(Ok(()), |alive| self.attributes(ino, old.is_some(), &alive)),
            _ => Ok(()),
        }
    }

    /// Whether the log has the inode, before or after these edits.
    pub(super) fn is_logged(&self, ino: Ino) -> bool {
        self.log.logged.contains_key(&ino)
    }

    /// Compares the names that an inode had with those that it has, and brings in whoever that concerns.
    fn names(&mut self, ino: Ino, old: Option<&InodeItem>, alive: Option<&InodeItem>, want: Want) -> Planned<()> {
        if alive.is_none() && want == Want::Names && !self.is_logged(ino) {
            // Removed; its name went to somebody else. The log says that it is gone, or a replay may want to keep it.
            match old {
                Some(old) if is_directory(old) => {
                    return Err(Stop::Commit("a name of a removed directory is taken over"));
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
        match (old, alive) {
            (Some(old), Some(_)) if old.nlink.get() == 0 => {
                return Err(Stop::Commit("a file that was committed without a name got one"));
            }
            (Some(old), None) if is_directory(old) => self.must_be_gone(ino)?,
            _ => {}
        }
        let had = if old.is_some() { self.view.committed_names(ino)? } else { Vec::new() };
        let has = if alive.is_some() { self.view.current_names(ino)? } else { Vec::new() };
        let is_moved = || had.first().map(|name| name.directory) != has.first().map(|name| name.directory);
        if old.is_some() && alive.is_some_and(is_directory) && is_moved() {
            return Err(Stop::Commit("a directory was moved"));
        }
        if want == Want::Full && had != has && alive.is_some_and(|item| !is_directory(item)) {
            self.queue.extend(had.iter().map(|name| (name.directory, Want::Full)));
        }
        let gained = names::missing_in(&has, &had);
        for name in &gained {
            self.gained(ino, name)?;
        }
        let replaced: FxHashSet<Key> = gained.iter().map(|name| name.key).collect();
        for name in names::missing_in(&had, &has) {
            self.lost(ino, name, replaced.contains(&name.key))?;
        }
        self.write_names(ino, had != has, &has, alive)
    }

    fn gained(&mut self, ino: Ino, name: &Name) -> Planned<()> {
        if self.view.committed_item(name.directory)?.is_none() {
            self.queue.push((name.directory, Want::Names));
            return Ok(());
        }
        match names::committed_owner(&self.view.committed, name.directory, &name.name)? {
            Some(NameOwner::Inode(other)) if other != ino => self.queue.push((other, Want::Names)),
            Some(NameOwner::Subvolume) => return Err(Stop::Commit("a name of a subvolume is taken over")),
            _ => {}
        }
        // After a mount the index of the last entry may be given out again when that was removed.
        let key = Key::new(name.directory.0, KeyType::DIR_INDEX, name.index);
        let target = |payload: &[u8]| names::entry_of(key, payload).map(|(target, _)| target);
        match self.view.committed.get(key, target)?.transpose()? {
            Some(NameOwner::Inode(other)) if other != ino => self.queue.push((other, Want::Names)),
            Some(NameOwner::Subvolume) => return Err(Stop::Commit("an index of a subvolume is taken over")),
            _ => {}
        }
        Ok(())
    }

    /// `replaced`: the item that recorded the name is replaced by the log's, which has a new one instead. A replay
    /// cannot infer the removal from this item if it contains no new name.
    fn lost(&mut self, ino: Ino, name: &Name, replaced: bool) -> Planned<()> {
        if !replaced {
            let directory = self.view.current_item(name.directory)?;
            if directory.is_none_or(|item| item.nlink.get() == 0) {
                return Err(Stop::Commit("a name was lost with its directory"));
            }
            self.edits.ranges.entry(name.directory).or_default().insert(name.index);
        }
        match names::current_owner(self.view.source, self.view.tree, name.directory, &name.name)? {
            Some(NameOwner::Inode(other)) if other != ino => self.queue.push((other, Want::Names)),
            Some(NameOwner::Subvolume) => return Err(Stop::Commit("a subvolume has taken a name over")),
            _ => {}
        }
        Ok(())
    }

    /// Brings the log's record of an inode's names up to date.
    fn write_names(&mut self, ino: Ino, changed: bool, has: &[Name], alive: Option<&InodeItem>) -> Planned<()> {
        let (from, to) = names::name_keys(ino);
        if !self.is_logged(ino) {
            if changed {
                self.copy(from, to, true)?;
            }
            return Ok(());
        }
        let logged = names::names_of(ino, |from, to, visit| self.log_items.scan(from, to, visit))?;
        for name in names::missing_in(&logged, has) {
            self.forget_entry(ino, name)?;
        }
        if logged != has && (changed || !logged.is_empty()) {
            self.edits.removals.push((from, to));
            self.copy(from, to, false)?;
        }
        self.write_links(ino, alive.map_or(0, |item| item.nlink.get()))
    }

    /// A logged entry of a name that the inode no longer has goes.
    fn forget_entry(&mut self, ino: Ino, name: &Name) -> Planned<()> {
        let key = Key::new(name.directory.0, KeyType::DIR_INDEX, name.index);
        let mut leads_here = false;
        self.log_items.scan(key, key, &mut |key, payload| {
            let (target, found) = names::entry_of(key, payload)?;
            leads_here = target == NameOwner::Inode(ino) && found == name.name;
            Ok(ControlFlow::Break(()))
        })?;
        if leads_here {
            self.edits.removals.push((key, key));
        }
        Ok(())
    }

    fn write_links(&mut self, ino: Ino, links: u32) -> Planned<()> {
        let item = self.logged_item(ino)?;
        if let Some(mut item) = item.filter(|item| item.nlink.get() != links) {
            item.nlink = links.into();
            self.edits.puts.push(item_key(ino), item.as_bytes());
        }
        Ok(())
    }

    /// The inode item that the log has already.
    pub(super) fn logged_item(&self, ino: Ino) -> Result<Option<InodeItem>> {
        let (key, mut item) = (item_key(ino), None);
        self.log_items.scan(key, key, &mut |_, payload| {
            item = parse_item(payload);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(item)
    }

    /// Copies items of the running transaction.
    pub(super) fn copy(&mut self, from: Key, to: Key, fresh: bool) -> Planned<()> {
        let batch = if fresh { &mut self.edits.fresh } else { &mut self.edits.puts };
        self.view.tree.scan(self.view.source, from, to, &mut |key, payload| {
            batch.push(key, payload);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn copy_committed(&mut self, from: Key, to: Key) -> Planned<()> {
        let batch = &mut self.edits.fresh;
        self.view.committed.scan(from, to, &mut |key, payload| {
            batch.push(key, payload);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// An inode of the last commit that is logged for its names: everything else stays as it was committed. Space
    /// behind the end of a file is logged too, because replay drops it otherwise.
    fn existing(&mut self, ino: Ino, old: &InodeItem, alive: &InodeItem) -> Planned<()> {
        let size = if is_regular(old) { old.size.get() } else { 0 };
        let item = InodeItem { nlink: alive.nlink, size: size.into(), ..self.exists_form(old) };
        self.edits.fresh.push(item_key(ino), item.as_bytes());
        self.copy_committed(xattr_keys(ino).0, xattr_keys(ino).1)?;
        if is_regular(old) {
            self.committed_tail(ino, size)?;
        }
        self.note_logged(ino, Logged::default());
        Ok(())
    }

    /// An inode that the last commit does not have, and that is logged for its names.
    fn born(&mut self, ino: Ino, alive: &InodeItem) -> Planned<()> {
        let item = InodeItem { size: 0.into(), ..self.exists_form(alive) };
        self.edits.fresh.push(item_key(ino), item.as_bytes());
        self.copy(xattr_keys(ino).0, xattr_keys(ino).1, true)?;
        self.note_logged(ino, Logged::default());
        Ok(())
    }

    /// Brings the attributes of an inode that was logged before up to date, where its extended attributes have changed:
    /// as under the kernel, what was removed before a new name that the log tells of does not come back. The inode item
    /// comes along, because modes and ACLs belong together; its size is that of the contents in the log.
    fn attributes(&mut self, ino: Ino, committed: bool, alive: &InodeItem) -> Planned<()> {
        let Some(logged) = self.logged_item(ino)? else { return Ok(()) };
        // Of what is logged for its names only everything else stays as it was committed.
        if committed && logged.generation == 0 || !self.view.tree.watch.take_xattrs(ino) {
            return Ok(());
        }
        self.taken.push((ino, Changes { xattrs: true, ..Changes::default() }));
        let transid = self.view.generation.0.into();
        let item = InodeItem { generation: logged.generation, size: logged.size, transid, ..*alive };
        self.edits.puts.push(item_key(ino), item.as_bytes());
        let (from, to) = xattr_keys(ino);
        self.edits.removals.push((from, to));
        self.copy(from, to, false)
    }

    /// The form that says no more than that the inode exists.
    pub(super) fn exists_form(&self, item: &InodeItem) -> InodeItem {
        InodeItem { generation: 0.into(), transid: self.view.generation.0.into(), ..*item }
    }

    pub(super) fn note_logged(&mut self, ino: Ino, logged: Logged) {
        self.edits.logged.insert(ino, logged);
    }

    /// Everything of an inode.
    fn contents(&mut self, ino: Ino, old: Option<&InodeItem>, new: &InodeItem) -> Planned<()> {
        let known = self.log.logged.get(&ino).copied();
        let whole = known.is_some_and(|known| known.whole);
        let changes = self.take_changes(ino);
        let item = InodeItem { transid: self.view.generation.0.into(), ..*new };
        let batch = if known.is_some() { &mut self.edits.puts } else { &mut self.edits.fresh };
        batch.push(item_key(ino), item.as_bytes());
        let (from, to) = xattr_keys(ino);
        if !whole || changes.xattrs || self.policies.log_all_xattrs {
            if known.is_some() {
                self.edits.removals.push((from, to));
            }
            self.copy(from, to, known.is_none())?;
        }
        if is_directory(new) {
            self.entries(ino, old.is_some(), known, changes.entries)?;
        } else {
            self.extents(ino, old.is_some(), new, known, changes.extents)?;
        }
        self.note_logged(ino, Logged { whole: true, ..Logged::default() });
        Ok(())
    }

    /// Brings in the inode of an entry that a synced directory got.
    pub(super) fn entry_gained(&mut self, child: Ino) -> Planned<()> {
        let new = self.view.current_item(child)?;
        let is_new_directory =
            new.is_some_and(|item| is_directory(&item)) && self.view.committed_item(child)?.is_none();
        self.queue.push((child, if is_new_directory { Want::Full } else { Want::Names }));
        Ok(())
    }

    /// Brings in the inode of an entry that a synced directory lost.
    pub(super) fn entry_lost(&mut self, child: Ino) -> Planned<()> {
        let alive = self.view.current_item(child)?.is_some_and(|item| item.nlink.get() > 0);
        if alive {
            self.queue.push((child, Want::Names));
            return Ok(());
        }
        match self.view.committed_item(child)? {
            Some(old) if is_directory(&old) => self.must_be_gone(child),
            _ => Ok(()),
        }
    }

    /// Replay removes a directory with everything that was in it, so nothing of that may live on.
    fn must_be_gone(&mut self, directory: Ino) -> Planned<()> {
        let (mut rest, mut seen) = (vec![directory], 0);
        while let Some(directory) = rest.pop() {
            for target in self.committed_targets(directory)? {
                let NameOwner::Inode(child) = target else {
                    return Err(Stop::Commit("a removed directory held a subvolume"));
                };
                seen += 1;
                if seen > REMOVED_MAX {
                    return Err(Stop::Commit("too much was removed"));
                }
                if self.view.current_item(child)?.is_some_and(|item| item.nlink.get() > 0) {
                    return Err(Stop::Commit("something was moved out of a removed directory"));
                }
                if self.view.committed_item(child)?.is_some_and(|item| is_directory(&item)) {
                    rest.push(child);
                }
            }
        }
        Ok(())
    }

    fn committed_targets(&self, directory: Ino) -> Result<Vec<NameOwner>> {
        let mut targets = Vec::new();
        let key = |index| Key::new(directory.0, KeyType::DIR_INDEX, index);
        self.view.committed.scan(key(0), key(u64::MAX), &mut |key, payload| {
            targets.push(names::entry_of(key, payload)?.0);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(targets)
    }

    /// The ranges of removed entries, and the directories that they belong to.
    fn add_ranges(&mut self) -> Planned<()> {
        for directory in self.edits.ranges.keys().copied().collect::<Vec<_>>() {
            self.view.tree.watch.begin(directory);
            if self.is_logged(directory) || self.named.contains(&directory) {
                continue;
            }
            let (old, new) = (self.view.committed_item(directory)?, self.view.current_item(directory)?);
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Stop::Commit("a directory that lost a name is not what it was"));
            };
            self.existing(directory, &old, &new)?;
        }
        let ranges = std::mem::take(&mut self.edits.ranges);
        for (directory, indexes) in &ranges {
            for (first, last) in runs(indexes) {
                self.add_range(*directory, first, last)?;
            }
        }
        Ok(())
    }

    fn add_range(&mut self, directory: Ino, first: u64, last: u64) -> Planned<()> {
        if !self.is_logged(directory) {
            self.edits.fresh.push(range_key(directory, first), &range_payload(last));
            return Ok(());
        }
        // Ranges do not overlap: one that was logged before and touches this one becomes part of it.
        let (mut all, mut absorbed) = (first..=last, Vec::new());
        self.log_items.scan(range_key(directory, 0), range_key(directory, last), &mut |key, payload| {
            let end = super::range_end(payload).unwrap_or(key.offset);
            if end >= first {
                all = key.offset.min(*all.start())..=end.max(*all.end());
                absorbed.push(key);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let key = range_key(directory, *all.start());
        self.edits.removals.extend(absorbed.into_iter().filter(|old| *old != key).map(|old| (old, old)));
        self.edits.puts.push(key, &range_payload(*all.end()));
        Ok(())
    }
}

/// The keys between which an inode's extended attributes are.
pub(super) fn xattr_keys(ino: Ino) -> (Key, Key) {
    (Key::new(ino.0, KeyType::XATTR_ITEM, 0), Key::new(ino.0, KeyType::XATTR_ITEM, u64::MAX))
}

/// Runs of neighbouring numbers: first and last.
fn runs(numbers: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let numbers = [2, 3, 4, 7, 9, 10, u64::MAX - 1, u64::MAX].into();
        assert_eq!(runs(&numbers), [(2, 4), (7, 7), (9, 10), (u64::MAX - 1, u64::MAX)]);
        assert_eq!(runs(&BTreeSet::new()), []);
    }
}
