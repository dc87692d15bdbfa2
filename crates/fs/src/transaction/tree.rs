//! One tree of an open filesystem: its root, its lock, and the operations on it.
//!
//! # Invariants
//! 1. Readers share the lock while they descend; one editor at a time holds it exclusively.
//! 2. No lock is held across a device read: a node that is not in memory ends the descent, is read without locks,
//!    and the operation starts again.
//! 3. A callback of [`Tree::scan`] runs without the lock, over a leaf that cannot change.

use super::block_source::Misses;
use super::editor::Editor;
use super::preload::Calm;
use super::{BlockSource, Core, Handle, Watch};
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use butterfs_ondisk::items::{RootItem, Timespec};
use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};
use butterfs_sync::{Mutex, RwLock, order};
use butterfs_tree::{Node, NodeEditor, NodePtr, NodeSource, Since};
use rustc_hash::FxHashMap;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// An item, shared with the leaf that holds it.
#[derive(Clone)]
pub struct ItemRef {
    leaf: Arc<Node>,
    slot: usize,
}

impl Deref for ItemRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.leaf.item(self.slot)
    }
}

/// Nodes that an operation has read because they were missing: they stay in memory until it has passed them.
#[derive(Default)]
pub(crate) struct Fetched {
    held: Vec<Arc<Node>>,
    times: FxHashMap<Logical, u32>,
    /// Pointers that had another target on disk.
    doubtful: Vec<NodePtr>,
}

impl Fetched {
    /// Times that a node may be missing after it was read. A tree that changes meanwhile explains some.
    const MOST_TIMES: u32 = 64;

    /// Keeps a node in memory.
    pub(super) fn hold(&mut self, node: Arc<Node>) {
        self.held.push(node);
    }

    /// Reads a node that was missing.
    pub fn load(&mut self, core: &Core, ptr: &NodePtr) -> Result<()> {
        let times = self.times.entry(ptr.at).or_default();
        *times += 1;
        if *times > Fetched::MOST_TIMES {
            return Err(Error::corrupt(format!(
                "tree {}: block {} of generation {} lies where the running transaction has another one",
                ptr.tree, ptr.at, ptr.generation
            )));
        }
        // The tree may have changed, and the block been used again, since it was found missing. Who finds it once more
        // before it reads it makes sure of that.
        let node = match self.doubtful.contains(ptr) {
            true => Some(core.nodes.load(ptr)?),
            false => core.nodes.load_unless_doubtful(ptr)?,
        };
        match node {
            Some(node) => self.held.push(node),
            None => self.doubtful.push(*ptr),
        }
        Ok(())
    }
}

/// See the [module](self).
pub struct Tree {
    id: TreeId,
    key_offset: u64,
    root: RwLock<NodePtr, { order::TREE }>,
    item: Mutex<RootItem, { order::ROOT_ITEM }>,
    /// The root that the ROOT_ITEM in the running transaction names, and whether other fields changed.
    recorded: Mutex<(NodePtr, bool), { order::RECORDED_ROOT }>,
    /// Whether the commit knows that there may be something to record.
    noted: AtomicBool,
    /// The size that the root item states, here because each reservation asks for it.
    recorded_bytes: AtomicU64,
    /// Blocks added since then.
    nodes_added: AtomicI64,
    last_snapshot: AtomicU64,
    /// In this generation every block is copied again, even one of this generation: a snapshot shares it.
    pub(crate) forced_cow: AtomicU64,
    /// The changes of inodes that are in a log.
    pub(crate) watch: Watch,
    /// The next inode number, 0 while unknown; kept by `inode`.
    pub next_ino: AtomicU64,
    /// Whether blocks of it may be gone: nothing is written into it any more.
    dropping: AtomicBool,
    /// How long nothing was missing.
    pub(super) calm: Calm,
    /// While the tree is dropped: how far its shared blocks have full back references; kept by `subvolume`.
    pub(crate) converted_to: Mutex<Option<Key>, { order::FULL_BACKREFS }>,
}

/// Edits of a subvolume's tree queue references, those of other trees too; booking them edits the last ones.
fn rank_of(tree: TreeId) -> u8 {
    match tree {
        TreeId::EXTENT => order::EXTENT_TREE,
        TreeId::FREE_SPACE => order::FREE_SPACE_TREE,
        _ if tree.is_subvolume() => order::SUBVOLUME_TREE,
        _ => order::TREE,
    }
}

impl Tree {
    /// The tree that a root item describes.
    pub fn from_item(id: TreeId, key_offset: u64, item: RootItem) -> Tree {
        let ptr = NodePtr {
            at: Logical(item.bytenr.get()),
            generation: Generation(item.generation.get()),
            level: Level(item.level),
            tree: id,
            first_key: None,
        };
        Tree {
            id,
            key_offset,
            root: RwLock::new(ptr).with_rank(rank_of(id)),
            recorded: Mutex::new((ptr, false)),
            last_snapshot: AtomicU64::new(item.last_snapshot.get()),
            recorded_bytes: AtomicU64::new(item.bytes_used.get()),
            item: Mutex::new(item),
            noted: AtomicBool::new(false),
            nodes_added: AtomicI64::new(0),
            forced_cow: AtomicU64::new(0),
            watch: Watch::default(),
            next_ino: AtomicU64::new(0),
            dropping: AtomicBool::new(false),
            calm: Calm::default(),
            converted_to: Mutex::default(),
        }
    }

    /// A tree that has no root item: the root tree and the chunk tree.
    pub fn from_superblock(id: TreeId, (at, level, generation): (Logical, Level, Generation)) -> Tree {
        let item = RootItem {
            bytenr: at.0.into(),
            level: level.0,
            generation: generation.0.into(),
            refs: 1.into(),
            ..RootItem::default()
        };
        Tree::from_item(id, 0, item)
    }

    /// The tree's id.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// The key of its root item.
    pub fn root_item_key(&self) -> Key {
        Key::new(self.id.0, butterfs_ondisk::KeyType::ROOT_ITEM, self.key_offset)
    }

    /// The present root.
    pub fn root(&self) -> NodePtr {
        *self.root.read()
    }

    /// Its root item, without the fields that follow the root node.
    pub fn root_item(&self) -> RootItem {
        *self.item.lock()
    }

    /// Changes its root item; written when the transaction freezes.
    pub fn change_root_item(&self, handle: &Handle, change: impl FnOnce(&mut RootItem)) {
        self.note(handle);
        let mut item = self.item.lock();
        change(&mut item);
        self.follow(&item);
        self.recorded.lock().1 = true;
    }

    /// Takes over the fields that are read without the lock of the root item.
    fn follow(&self, item: &RootItem) {
        self.last_snapshot.store(item.last_snapshot.get(), Ordering::Relaxed);
        self.recorded_bytes.store(item.bytes_used.get(), Ordering::Relaxed);
    }

    /// Becomes what `stored` is again: nothing of the running transaction is left of it. No handle is open.
    pub(crate) fn start_again(&self, stored: &Tree) {
        let (root, item) = (stored.root(), stored.root_item());
        *self.root.write() = root;
        *self.item.lock() = item;
        *self.recorded.lock() = (root, false);
        self.noted.store(false, Ordering::Relaxed);
        self.nodes_added.store(0, Ordering::Relaxed);
        self.follow(&item);
        self.forced_cow.store(0, Ordering::Relaxed);
        self.watch.end();
    }

    /// The transaction that made the tree is taken back. Who still holds it finds it deleted.
    pub(crate) fn vanish(&self) {
        self.item.lock().refs = 0.into();
        self.begin_dropping();
    }

    /// Whether this is a read-only subvolume.
    pub fn is_readonly(&self) -> bool {
        self.item.lock().flags.get() & RootItem::RDONLY != 0
    }

    /// Whether this is a subvolume that was deleted.
    pub fn is_deleted(&self) -> bool {
        self.item.lock().refs.get() == 0
    }

    /// From now on nothing is written into the tree: its blocks are about to be freed.
    pub(crate) fn begin_dropping(&self) {
        self.dropping.store(true, Ordering::Release);
    }

    /// Whether [`begin_dropping`](Self::begin_dropping) was called.
    pub(crate) fn is_dropping(&self) -> bool {
        self.dropping.load(Ordering::Acquire)
    }

    /// The transaction of the last snapshot taken of this tree.
    pub fn last_snapshot(&self) -> Generation {
        Generation(self.last_snapshot.load(Ordering::Relaxed))
    }

    pub(crate) fn count_nodes(&self, change: i64) {
        self.nodes_added.fetch_add(change, Ordering::Relaxed);
    }

    /// The root item to write now, if it differs from what was written last.
    pub(crate) fn take_unrecorded(&self, nodesize: u32, generation: Generation, now: Time) -> Option<RootItem> {
        let root = self.root();
        let mut item = self.item.lock();
        let mut recorded = self.recorded.lock();
        if *recorded == (root, false) {
            return None;
        }
        if self.id.is_subvolume() && recorded.0 != root {
            item.ctransid = generation.0.into();
            item.ctime = Timespec { sec: now.sec.into(), nsec: now.nsec.into() };
        }
        *recorded = (root, false);
        let added = self.nodes_added.swap(0, Ordering::Relaxed) * i64::from(nodesize);
        item.bytes_used = item.bytes_used.get().saturating_add_signed(added).into();
        self.follow(&item);
        item.bytenr = root.at.0.into();
        item.level = root.level.0;
        item.generation = root.generation.0.into();
        item.generation_v2 = item.generation;
        Some(*item)
    }

    /// Tells the commit of the running transaction to look at this tree.
    fn note(&self, handle: &Handle) {
        if !self.noted.swap(true, Ordering::Relaxed) {
            handle.transaction().note_unrecorded(self.id);
        }
    }

    /// The commit looks at this tree now; the next change is noted again.
    pub(crate) fn looked_at(&self) {
        self.noted.store(false, Ordering::Relaxed);
    }

    /// Whether the root item in the root tree is out of date.
    pub(crate) fn has_unrecorded(&self) -> bool {
        *self.recorded.lock() != (self.root(), false)
    }

    /// Its root as of the last transaction that froze; `None` for a tree that the running one made. What it leads to
    /// never changes, and stays readable until the running transaction is durable.
    pub(crate) fn committed_root(&self, running: Generation) -> Option<NodePtr> {
        let (root, _) = *self.recorded.lock();
        (root.at.0 != 0 && root.generation < running).then_some(root)
    }

    /// Approximate bytes of the tree's blocks, without any lock.
    pub(crate) fn bytes_used(&self, nodesize: u32) -> u64 {
        let added = self.nodes_added.load(Ordering::Relaxed) * i64::from(nodesize);
        self.recorded_bytes.load(Ordering::Relaxed).saturating_add_signed(added)
    }

    /// Looks at the tree from its root; it does not change meanwhile. Nothing is read from a device in there.
    pub(super) fn with_root<R>(&self, look: impl FnOnce(&NodePtr) -> Result<R>) -> Result<R> {
        look(&self.root.read())
    }

    fn read<'a, R>(
        &self,
        source: impl Into<BlockSource<'a>>,
        look: impl Fn(&BlockSource<'_>, &NodePtr) -> Result<R>,
    ) -> Result<R> {
        let source: BlockSource<'_> = source.into();
        // Under the tree's lock nothing is read.
        let own = Misses::default();
        let misses = source.misses().unwrap_or(&own);
        let in_memory = BlockSource::in_memory(source.core(), misses);
        loop {
            let result = {
                let root = self.root.read();
                look(&in_memory, &root)
            };
            match result {
                Err(Error::Missing(_)) if source.is_loading() => misses.load(source.core(), self)?,
                other => return other,
            }
        }
    }

    /// The error to return for a failed read: a tree that is being dropped has lost blocks, which is no damage.
    pub(super) fn excused(&self, error: Error) -> Error {
        match self.is_dropping() {
            true => Error::refused(Errno::ESTALE, "the subvolume was deleted"),
            false => error,
        }
    }

    /// The item at `key`.
    pub fn get<'a>(&self, source: impl Into<BlockSource<'a>>, key: Key) -> Result<Option<ItemRef>> {
        self.read(source, |reader, root| {
            let found = butterfs_tree::search(reader, root, &key)?;
            Ok(found.found.then_some(ItemRef { leaf: found.leaf, slot: found.slot }))
        })
    }

    /// The leaf in whose range `key` lies, and the place there.
    pub(crate) fn position<'a>(&self, source: impl Into<BlockSource<'a>>, key: Key) -> Result<butterfs_tree::Position> {
        self.read(source, |reader, root| butterfs_tree::search(reader, root, &key))
    }

    /// The greatest item before `key`.
    pub fn last_before<'a>(&self, source: impl Into<BlockSource<'a>>, key: Key) -> Result<Option<(Key, ItemRef)>> {
        self.read(source, |reader, root| {
            let found = butterfs_tree::last_before(reader, root, &key)?;
            Ok(found.map(|(leaf, slot)| (leaf.key(slot), ItemRef { leaf, slot })))
        })
    }

    /// Shows the items from `from` to `to`, both included, in order, until the callback breaks.
    pub fn scan<'a>(
        &self,
        source: impl Into<BlockSource<'a>>,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.scan_since(source, Generation(0), from, to, visit)
    }

    /// The same for leaves that were made in transaction `since` or later; older ones are not read.
    pub fn scan_since<'a>(
        &self,
        source: impl Into<BlockSource<'a>>,
        since: Generation,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let source: BlockSource<'_> = source.into();
        let (mut next, core) = (Some(from), source.core());
        while let Some(from) = next.filter(|from| *from <= to) {
            let at = match self.read(source, |reader, root| butterfs_tree::search_since(reader, root, &from, since))? {
                Since::Leaf(at) => at,
                Since::Nothing(upper) => {
                    next = upper;
                    continue;
                }
            };
            for slot in at.slot..at.leaf.nritems() {
                let key = at.leaf.key(slot);
                if key > to || visit(key, at.leaf.item(slot))?.is_break() {
                    core.nodes.count_items(slot - at.slot);
                    return Ok(());
                }
            }
            core.nodes.count_items(at.leaf.nritems().saturating_sub(at.slot));
            next = at.upper;
        }
        Ok(())
    }

    fn write<R>(&self, handle: &Handle, edit: impl Fn(&Editor<'_>, &mut NodePtr) -> Result<R>) -> Result<R> {
        let core = handle.core();
        self.note(handle);
        let mut fetched = Fetched::default();
        loop {
            core.env().passes("a tree is about to be edited");
            let result = {
                let mut root = self.root.write();
                edit(&Editor { core, transaction: handle.transaction(), tree: self }, &mut root)
            };
            let provided = match result {
                Err(Error::Missing(ptr)) => fetched.load(core, &ptr),
                Err(Error::Unloaded(group)) => core.load_group(group),
                Err(Error::NoNode { system }) => core.allocate_chunk_for_node(system),
                // An edit that fails has changed no item, so only earlier ones can be left half-done.
                other => {
                    core.env().passes("a tree is edited");
                    if let Some(conflict) = handle.transaction().refs.conflict() {
                        core.abort(&conflict);
                        return Err(conflict);
                    }
                    return other.inspect(|_| handle.edited()).inspect_err(|error| handle.failed(error));
                }
            };
            provided.inspect_err(|error| handle.failed(error))?;
        }
    }

    /// Inserts an item; false when the key exists.
    pub fn insert(&self, handle: &Handle, key: Key, data: &[u8]) -> Result<bool> {
        let inserted = self.write(handle, |editor, root| butterfs_tree::insert(editor, root, &key, data))?;
        self.watch.note(key);
        Ok(inserted)
    }

    /// Inserts items with ascending keys, all new.
    pub fn insert_many(&self, handle: &Handle, items: &[(Key, &[u8])]) -> Result<()> {
        let done = std::cell::Cell::new(0);
        self.write(handle, |editor, root| {
            while done.get() < items.len() {
                let inserted = butterfs_tree::insert_many(editor, root, &items[done.get()..])?;
                done.set(done.get() + inserted);
            }
            Ok(())
        })?;
        items.iter().for_each(|(key, _)| self.watch.note(*key));
        Ok(())
    }

    /// Changes an item of the same size in place; `None` when there is none.
    pub fn update<R>(&self, handle: &Handle, key: Key, change: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        let change = std::cell::Cell::new(Some(change));
        let updated = self.write(handle, |editor, root| {
            butterfs_tree::update(editor, root, &key, |data: &mut [u8]| {
                let change = change.take().expect("an item is changed once");
                change(data)
            })
        })?;
        self.watch.note(key);
        Ok(updated)
    }

    /// Gives an item a new content of any size; false when there is none.
    pub fn replace(&self, handle: &Handle, key: Key, data: &[u8]) -> Result<bool> {
        let replaced = self.write(handle, |editor, root| butterfs_tree::replace(editor, root, &key, data))?;
        self.watch.note(key);
        Ok(replaced)
    }

    /// Inserts an item or replaces it.
    pub fn put(&self, handle: &Handle, key: Key, data: &[u8]) -> Result<()> {
        if !self.insert(handle, key, data)? {
            self.replace(handle, key, data)?;
        }
        Ok(())
    }

    /// Removes an item; false when there is none.
    pub fn remove(&self, handle: &Handle, key: Key) -> Result<bool> {
        let removed = self.write(handle, |editor, root| butterfs_tree::remove(editor, root, &key))?;
        self.watch.note(key);
        Ok(removed)
    }

    /// Removes items from `from` to `to`, both included, at most one leaf's worth, showing each to `visit` first.
    /// True when there may be more.
    pub fn remove_range(
        &self,
        handle: &Handle,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let visit = std::cell::RefCell::new(visit);
        self.write(handle, |editor, root| {
            butterfs_tree::remove_range(editor, root, &from, &to, &mut |key, data| {
                self.watch.note(key);
                (visit.borrow_mut())(key, data)
            })
        })
    }

    /// A new tree whose root is an empty leaf. Its root item is written when the transaction freezes.
    pub fn create(handle: &Handle, id: TreeId, item: RootItem) -> Result<Tree> {
        let tree = Tree::from_item(id, 0, item);
        tree.write(handle, |editor, root| {
            root.at = editor.new_node(Level(0))?;
            root.generation = editor.generation();
            root.level = Level(0);
            Ok(())
        })?;
        Ok(tree)
    }

    /// A snapshot of this tree: a copy of its root node, and references to everything below it. From now on, and until
    /// the transaction ends, both trees copy even blocks of the running generation. No other handle is open. Blocks of
    /// generations up to `created` are never the snapshot's own.
    pub fn snapshot(&self, handle: &Handle, (id, created): (TreeId, u64), item: RootItem) -> Result<Tree> {
        let generation = handle.generation();
        let copy = Tree::from_item(id, created, item);
        let source = self.write(handle, |editor, root| editor.node(root))?;
        copy.write(handle, |editor, root| {
            root.at = editor.copy_shared(&source)?;
            root.generation = generation;
            root.level = source.level();
            Ok(())
        })?;
        self.change_root_item(handle, |item| item.last_snapshot = generation.0.into());
        for tree in [self, &copy] {
            tree.forced_cow.store(generation.0, Ordering::Relaxed);
        }
        Ok(copy)
    }

    /// The tree begins at another block, which has the same items, from now on. No handle but `handle` is open.
    pub(crate) fn move_root(&self, handle: &Handle, root: NodePtr) {
        self.note(handle);
        handle.edited();
        *self.root.write() = root;
    }

    /// Whether the tree copies even blocks of the running generation, which a snapshot shares.
    pub(crate) fn is_copying_again(&self, running: Generation) -> bool {
        self.forced_cow.load(Ordering::Relaxed) == running.0
    }

    /// Makes the root node a block of this generation, even if nothing else changes.
    pub(crate) fn touch_root(&self, handle: &Handle) -> Result<()> {
        self.write(handle, |editor, root| editor.touch_root(root))
    }
}
