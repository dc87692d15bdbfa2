//! All trees of the filesystem, as they are being repaired: where each root is, and reading and changing items.
//!
//! Root items in the root tree are brought up to date by [`Forest::store_roots`]; until then the table here is what
//! counts.

use crate::action::{Action, Pass};
use crate::store::Store;
use crate::trouble::{Result, Trouble};
use crate::walk::{self, DropPoint};
use butterfs_ondisk::items::{InodeItem, RootItem, Timespec, inode_flags};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, Superblock, TreeId};
use butterfs_tree::{self as tree, NodeEditor, NodePtr};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use zerocopy::{FromZeros, IntoBytes};

/// A tree that has a root item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    /// Where its root item is.
    pub key: Key,
    /// The root item as it was read.
    pub item: RootItem,
    /// Where the tree is now.
    pub ptr: NodePtr,
    /// The root item has to be written.
    pub changed: bool,
}

impl Root {
    pub fn id(&self) -> TreeId {
        TreeId(self.key.objectid)
    }

    pub fn is_dead(&self) -> bool {
        self.item.refs.get() == 0
    }

    /// A subvolume that people see.
    pub fn is_live_subvolume(&self) -> bool {
        self.id().is_subvolume() && !self.is_dead()
    }
}

/// All trees.
#[derive(Debug)]
pub(crate) struct Forest {
    pub store: Store,
    pub sb: Superblock,
    /// The root tree.
    pub root: NodePtr,
    /// The chunk tree.
    pub chunk: NodePtr,
    /// All others, by the id of each.
    pub trees: BTreeMap<TreeId, Root>,
    /// Root items that stand beside another one of the same tree.
    pub doubled: Vec<(Key, RootItem)>,
    /// Root items under a type that does not exist.
    pub strays: Vec<Key>,
    /// Trees of a balance.
    pub relocations: Vec<Root>,
    /// Every block of the root tree could be read.
    pub complete: bool,
    /// Seconds since 1970, for what the repair makes.
    pub now: i64,
    /// The steps so far.
    pub actions: Vec<Action>,
}

/// A pointer to a tree's root block.
pub(crate) fn root_ptr(tree: TreeId, at: u64, generation: u64, level: u8) -> NodePtr {
    NodePtr { at: Logical(at), generation: Generation(generation), level: Level(level), tree, first_key: None }
}

fn ptr_of(id: TreeId, item: &RootItem) -> NodePtr {
    root_ptr(id, item.bytenr.get(), item.generation.get(), item.level)
}

impl Forest {
    /// The trees to which the superblock leads.
    pub fn open(store: Store, sb: Superblock, now: i64) -> Forest {
        let root = root_ptr(TreeId::ROOT, sb.root.get(), sb.generation.get(), sb.root_level);
        let chunk = root_ptr(TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_generation.get(), sb.chunk_root_level);
        let (trees, doubled, strays, relocations, actions) = Default::default();
        Forest { store, sb, root, chunk, trees, doubled, strays, relocations, complete: true, now, actions }
    }

    /// Notes something that was done.
    pub fn did(&mut self, pass: Pass, what: impl Into<String>) {
        self.actions.push(Action { pass, what: what.into(), lost: None });
    }

    /// Notes something that was done, and what is lost by it.
    pub fn lose(&mut self, pass: Pass, what: impl Into<String>, lost: impl Into<String>) {
        self.actions.push(Action { pass, what: what.into(), lost: Some(lost.into()) });
    }

    /// Reads the root items.
    pub fn read_roots(&mut self) {
        let (mut trees, mut doubled, mut relocations) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut strays = Vec::new();
        self.complete = walk::items(&self.store, &self.root, &mut |key, data| {
            let is_stray = key.kind.is_unknown() && data.len() == size_of::<RootItem>();
            let is_root = key.kind == KeyType::ROOT_ITEM || is_stray;
            let Some(item) = RootItem::parse(data).filter(|_| is_root) else { return };
            let id = TreeId(key.objectid);
            if is_stray {
                return strays.push((Key { kind: KeyType::ROOT_ITEM, ..key }, key, item));
            }
            let root = Root { key, item, ptr: ptr_of(id, &item), changed: false };
            if id == TreeId::TREE_RELOC {
                return relocations.push(root);
            }
            let is_snapshot = id.is_subvolume() && id != TreeId::FS;
            let is_odd = key.offset != 0 && !is_snapshot;
            if is_odd || trees.contains_key(&id) {
                return doubled.push((key, item));
            }
            trees.insert(id, root);
        });
        self.strays = strays.iter().map(|(_, stored, _)| *stored).collect();
        for (key, _, item) in strays {
            let id = TreeId(key.objectid);
            let root = Root { key, item, ptr: ptr_of(id, &item), changed: true };
            if self.store.read(&root.ptr).is_ok() {
                trees.entry(id).or_insert(root);
            }
        }
        (self.trees, self.doubled, self.relocations) = (trees, doubled, relocations);
    }

    /// Where a tree is.
    pub fn ptr(&self, id: TreeId) -> Result<NodePtr> {
        match id {
            TreeId::ROOT => Ok(self.root),
            TreeId::CHUNK => Ok(self.chunk),
            id => {
                let root = self.trees.get(&id).map(|root| root.ptr);
                root.ok_or_else(|| Trouble::new(format!("there is no tree {}", id.get() as i64)))
            }
        }
    }

    fn set_ptr(&mut self, id: TreeId, ptr: NodePtr) {
        match id {
            TreeId::ROOT => self.root = ptr,
            TreeId::CHUNK => self.chunk = ptr,
            id => {
                if let Some(root) = self.trees.get_mut(&id).filter(|root| root.ptr != ptr) {
                    (root.ptr, root.changed) = (ptr, true);
                }
            }
        }
    }

    /// An item's data.
    pub fn get(&self, id: TreeId, key: Key) -> Result<Option<Vec<u8>>> {
        let found = tree::search(&self.store.editor(id), &self.ptr(id)?, &key)?;
        Ok(found.found.then(|| found.leaf.item(found.slot).to_vec()))
    }

    /// The items from one key to another one.
    pub fn range(&self, id: TreeId, from: Key, to: Key) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut items = Vec::new();
        tree::scan(&self.store.editor(id), &self.ptr(id)?, &from, &to, &mut |key, data| {
            items.push((key, data.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(items)
    }

    /// All items of one object.
    pub fn object(&self, id: TreeId, objectid: u64) -> Result<Vec<(Key, Vec<u8>)>> {
        let (from, to) = (Key::new(objectid, KeyType(0), 0), Key::new(objectid, KeyType(255), u64::MAX));
        self.range(id, from, to)
    }

    /// Items of one object and one type.
    pub fn of_kind(&self, id: TreeId, objectid: u64, kind: KeyType) -> Result<Vec<(Key, Vec<u8>)>> {
        self.range(id, Key::new(objectid, kind, 0), Key::new(objectid, kind, u64::MAX))
    }

    /// The first key that is not below `key`.
    pub fn first_from(&self, id: TreeId, key: Key) -> Result<Option<Key>> {
        let mut first = None;
        tree::scan(&self.store.editor(id), &self.ptr(id)?, &key, &Key::MAX, &mut |key, _| {
            first = Some(key);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }

    /// Whether an item is the first one of its leaf.
    pub fn begins_leaf(&self, id: TreeId, key: Key) -> Result<bool> {
        Ok(tree::search(&self.store.editor(id), &self.ptr(id)?, &key)?.slot == 0)
    }

    /// The item with the greatest key below `key`.
    pub fn before(&self, id: TreeId, key: Key) -> Result<Option<Key>> {
        let found = tree::last_before(&self.store.editor(id), &self.ptr(id)?, &key)?;
        Ok(found.map(|(leaf, slot)| leaf.key(slot)))
    }

    /// Gives an item this data, whether it exists or not. True when that changed anything.
    pub fn put(&mut self, id: TreeId, key: Key, data: &[u8]) -> Result<bool> {
        match self.get(id, key)? {
            Some(old) if old == data => return Ok(false),
            Some(_) => self.edit(id, |editor, ptr| tree::replace(editor, ptr, &key, data))?,
            None => self.edit(id, |editor, ptr| tree::insert(editor, ptr, &key, data))?,
        };
        Ok(true)
    }

    /// Removes an item; false when there is none.
    pub fn remove(&mut self, id: TreeId, key: Key) -> Result<bool> {
        if self.get(id, key)?.is_none() {
            return Ok(false);
        }
        self.edit(id, |editor, ptr| tree::remove(editor, ptr, &key))
    }

    fn edit<R>(
        &mut self,
        id: TreeId,
        change: impl FnOnce(&crate::store::Editor<'_>, &mut NodePtr) -> Result<R>,
    ) -> Result<R> {
        let mut ptr = self.ptr(id)?;
        let result = change(&self.store.editor(id), &mut ptr);
        self.set_ptr(id, ptr);
        result
    }

    /// The point up to which a deleted tree is dropped, if its dropping has begun.
    pub fn drop_point(&self, id: TreeId) -> Option<DropPoint> {
        self.trees.get(&id).and_then(|root| DropPoint::of(&root.item))
    }

    /// Makes the beginning of a tree the point at which its dropping goes on, as a key of a node of this level. A tree
    /// without such a node is dropped as a whole.
    pub fn move_drop_point(&mut self, id: TreeId, level: u8) -> Result<()> {
        let mut ptr = self.ptr(id)?;
        let mut key = None;
        while ptr.level.get() >= level && ptr.level.get() > 0 {
            let node = self.store.read(&ptr)?;
            key = node.first_key();
            ptr = node.child_ptr(0, id);
        }
        if let Some(root) = self.trees.get_mut(&id) {
            root.item.drop_progress = key.unwrap_or(Key::MIN).into();
            root.item.drop_level = if key.is_some() { level } else { 0 };
            root.changed = true;
        }
        Ok(())
    }

    /// Points a tree somewhere else.
    pub fn set_root(&mut self, id: TreeId, ptr: NodePtr) {
        self.set_ptr(id, ptr);
    }

    /// Makes the root tree empty: root items are found by other means.
    pub fn start_root_anew(&mut self) -> Result<()> {
        let at = self.store.editor(TreeId::ROOT).new_node(Level(0))?;
        self.root = NodePtr { at, generation: self.store.generation, level: Level(0), ..self.root };
        self.trees.clear();
        self.doubled.clear();
        Ok(())
    }

    /// Makes the chunk tree empty: the chunk map has what belongs into it.
    pub fn start_chunks_anew(&mut self) -> Result<()> {
        let at = self.store.editor(TreeId::CHUNK).new_node(Level(0))?;
        self.chunk = NodePtr { at, generation: self.store.generation, level: Level(0), ..self.chunk };
        Ok(())
    }

    /// Makes a tree empty: nothing of what it had is read again.
    pub fn start_anew(&mut self, id: TreeId) -> Result<()> {
        let editor = self.store.editor(id);
        let at = editor.new_node(Level(0))?;
        let ptr = NodePtr { at, generation: self.store.generation, level: Level(0), tree: id, first_key: None };
        if matches!(id, TreeId::ROOT | TreeId::CHUNK) {
            return Err(Trouble::new("the root tree and the chunk tree are not made anew"));
        }
        let root = self.trees.entry(id).or_insert_with(|| Root {
            key: Key::new(id.get(), KeyType::ROOT_ITEM, 0),
            item: empty_root_item(),
            ptr,
            changed: true,
        });
        (root.ptr, root.changed) = (ptr, true);
        Ok(())
    }

    /// Writes the root items of trees whose roots have moved; true when there were some.
    pub fn store_roots(&mut self) -> Result<bool> {
        let changed: Vec<TreeId> = self.trees.values().filter(|root| root.changed).map(Root::id).collect();
        for id in &changed {
            let Some(root) = self.trees.get_mut(id) else { continue };
            root.changed = false;
            let ptr = root.ptr;
            root.item.bytenr = ptr.at.get().into();
            root.item.level = ptr.level.get();
            root.item.generation = ptr.generation.get().into();
            root.item.generation_v2 = ptr.generation.get().into();
            if id.is_subvolume() {
                // A block that this repair made may be shared from the beginning: then writers look references up.
                root.item.last_snapshot = self.store.generation.get().into();
            }
            let (key, item) = (root.key, root.item);
            self.put(TreeId::ROOT, key, item.as_bytes())?;
        }
        Ok(!changed.is_empty())
    }

    /// Makes sure that the root tree's root is new, as each commit has it.
    pub fn touch_root(&mut self) -> Result<()> {
        if self.root.generation == self.store.generation {
            return Ok(());
        }
        let node = self.store.read(&self.root)?;
        let at = self.store.editor(TreeId::ROOT).shadow(&node, true)?;
        self.root = NodePtr { at, generation: self.store.generation, ..self.root };
        Ok(())
    }

    /// The live subvolumes.
    pub fn subvolumes(&self) -> Vec<TreeId> {
        self.trees.values().filter(|root| root.is_live_subvolume()).map(Root::id).collect()
    }

    /// The subvolumes of which nothing is dropped, deleted or not.
    pub fn whole_subvolumes(&self) -> Vec<TreeId> {
        let is_whole = |root: &&Root| root.id().is_subvolume() && DropPoint::of(&root.item).is_none();
        self.trees.values().filter(is_whole).map(Root::id).collect()
    }

    /// Every tree with a root, and where its dropping has come to.
    pub fn all(&self) -> Vec<(NodePtr, Option<DropPoint>)> {
        let named = self.trees.values().map(|root| (root.ptr, DropPoint::of(&root.item)));
        let moved = self.relocations.iter().map(|root| (root.ptr, DropPoint::of(&root.item)));
        [(self.chunk, None), (self.root, None)].into_iter().chain(named).chain(moved).collect()
    }

    /// The moment at which the repair makes something.
    pub fn time(&self) -> Timespec {
        Timespec { sec: self.now.into(), nsec: 0.into() }
    }

    /// The highest number of an inode in a tree, or one that is lower than any.
    pub fn last_inode(&self, id: TreeId) -> Result<u64> {
        let behind = Key::new(Ino::LAST_FREE.get() + 1, KeyType(0), 0);
        Ok(self.before(id, behind)?.map_or(0, |key| key.objectid).max(Ino::ROOT_DIR.get()))
    }
}

/// The root item of a tree that is made anew.
pub(crate) fn empty_root_item() -> RootItem {
    let mut item = RootItem::new_zeroed();
    item.inode = InodeItem::new_zeroed();
    item.inode.generation = 1.into();
    item.inode.size = 3.into();
    item.inode.nlink = 1.into();
    item.inode.mode = 0o040_755.into();
    item.inode.flags = inode_flags::ROOT_ITEM_INIT.into();
    item.refs = 1.into();
    item
}
