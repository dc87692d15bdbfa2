//! The logs on disk: every block read and checked, and its space taken out of what is free; then the space of the data
//! that they refer to and that the extent tree does not know.
//!
//! The last commit knows nothing of a log: its blocks and its new data lie in what the free space tree calls free. That
//! they do is demanded here, which also means that no block occurs twice and that no extent overlaps anything in use.

use super::subvolume::Subvolume;
use crate::error::{Errno, Error, Result};
use crate::file_extent::FileExtent;
use crate::space::{Claimed, Class};
use crate::transaction::{Core, Handle, Tree};
use crate::tree_log::OWNER;
use butterfs_ondisk::items::{ExtentItem, RootItem, extent_flags};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// One subvolume's log, and the subvolume as the last commit left it.
pub(super) struct Log {
    pub id: TreeId,
    /// The log tree.
    pub items: Tree,
    /// The subvolume in the last commit. Its blocks are not overwritten before the replay is committed.
    pub committed: Tree,
}

/// All logs, and what they use.
pub(super) struct Logs {
    logs: Vec<Log>,
    blocks: Vec<Logical>,
    pub claims: Claims,
}

/// Opens all logs. From now on their space is nobody's until the running transaction is durable.
pub(super) fn open(handle: &Handle) -> Result<Logs> {
    let core = handle.core();
    let superblock = core.superblock();
    let mut walk = Walk { handle, blocks: Vec::new() };
    let root = NodePtr {
        at: Logical(superblock.log_root.get()),
        generation: handle.generation(),
        level: Level(superblock.log_root_level),
        tree: OWNER,
        first_key: None,
    };
    let mut found = BTreeMap::new();
    walk.tree(&root, &mut |key, payload| {
        let (id, item) = root_item(key, payload, handle.generation())?;
        found.insert(id, item);
        Ok(())
    })?;
    let mut logs = Vec::new();
    let mut claims = Claims::default();
    for (id, item) in found.into_iter().rev() {
        let items = Tree::from_item(OWNER, id.0, item);
        let exists = exists(core, id)?;
        walk.tree(&items.root(), &mut |key, payload| {
            let concerns = exists && key.kind == KeyType::EXTENT_DATA;
            if concerns { claims.claim_extent(handle, key, payload) } else { Ok(()) }
        })?;
        if exists {
            let live = core.tree(id)?;
            let mut item = live.root_item();
            let root = live.root();
            (item.bytenr, item.generation, item.level) = (root.at.0.into(), root.generation.0.into(), root.level.0);
            let committed = Tree::from_item(id, live.root_item_key().offset, item);
            logs.push(Log { id, items, committed });
        }
    }
    Ok(Logs { logs, blocks: walk.blocks, claims })
}

/// Whether the subvolume is alive; a log can outlive its subvolume.
fn exists(core: &Core, id: TreeId) -> Result<bool> {
    match core.tree(id) {
        Ok(_) => Ok(true),
        Err(error) if error.is(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn root_item(key: Key, payload: &[u8], generation: Generation) -> Result<(TreeId, RootItem)> {
    let id = TreeId(key.offset);
    let bad = |rule: &str| Error::corrupt(format!("log root tree: item {key}: {rule}"));
    if key != crate::tree_log::root_key(id) || !id.is_subvolume() {
        return Err(bad("it is not the root of a subvolume's log"));
    }
    let item = RootItem::parse(payload).ok_or_else(|| bad("wrong size"))?;
    if item.generation.get() != generation.0 {
        let has = item.generation.get();
        return Err(bad(&format!("the log is of generation {has}, wanted {generation}")));
    }
    Ok((id, item))
}

/// Reads log trees whole and pins their blocks.
struct Walk<'a> {
    handle: &'a Handle,
    blocks: Vec<Logical>,
}

impl Walk<'_> {
    fn tree(&mut self, root: &NodePtr, visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>) -> Result<()> {
        self.block(root, None, visit)
    }

    /// Visits the items below a block, whose keys are all smaller than `end`. It goes as deep as levels fall.
    fn block(
        &mut self,
        ptr: &NodePtr,
        end: Option<Key>,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let node = self.load(ptr)?;
        let bad = |rule: String| Error::corrupt(format!("log tree block {}: {rule}", ptr.at));
        let count = node.nritems();
        if count > 0 && end.is_some_and(|end| node.key(count - 1) >= end) {
            return Err(bad(format!("the key {} does not belong there", node.key(count - 1))));
        }
        for slot in 0..count {
            if node.level().0 == 0 {
                visit(node.key(slot), node.item(slot))?;
                continue;
            }
            let child = node.child_ptr(slot, OWNER);
            let next = if slot + 1 < count { Some(node.key(slot + 1)) } else { end };
            self.block(&child, next, visit)?;
        }
        Ok(())
    }

    fn load(&mut self, ptr: &NodePtr) -> Result<Arc<Node>> {
        let (core, generation) = (self.handle.core(), self.handle.generation());
        let bad = |rule: String| Error::corrupt(format!("log tree block {}: {rule}", ptr.at));
        if ptr.generation != generation {
            return Err(bad(format!("it is said to be of generation {}, wanted {generation}", ptr.generation)));
        }
        let node = core.nodes.load(ptr)?;
        if node.owner() != OWNER {
            return Err(bad(format!("it belongs to tree {}", node.owner())));
        }
        let nodesize = u64::from(core.nodesize());
        if !claim(self.handle, ptr.at, nodesize, Class::Metadata)? {
            return Err(bad("its space is in use, or it occurs twice, or is no place for a tree block".to_owned()));
        }
        core.space.pin(ptr.at, nodesize, generation);
        self.blocks.push(ptr.at);
        Ok(node)
    }
}

/// Takes free space; false when it is not wholly free, or of another class.
fn claim(handle: &Handle, at: Logical, len: u64, class: Class) -> Result<bool> {
    let core = handle.core();
    loop {
        match core.space.claim(class, at, len) {
            Claimed::Yes => return Ok(true),
            Claimed::No => return Ok(false),
            Claimed::Load(group) => core.load_group(group)?,
        }
    }
}

/// New data of logs: its space is taken, and it has no extent item yet.
#[derive(Default)]
pub(super) struct Claims {
    by_address: BTreeMap<u64, NewData>,
}

struct NewData {
    len: u64,
    /// Whether a file has come to use it.
    used: Cell<bool>,
}

impl Claims {
    fn claim_extent(&mut self, handle: &Handle, key: Key, payload: &[u8]) -> Result<()> {
        let core = handle.core();
        let extent = FileExtent::parse(key, payload, u64::from(core.sectorsize()))?;
        let bad = |rule: &str| Error::corrupt(format!("log: file extent {key}: {rule}"));
        if !extent.is_on_disk() {
            return Ok(());
        }
        let (at, len) = (extent.at, extent.disk_len);
        if len == 0 || extent.len == 0 {
            return Err(bad("it has no bytes"));
        }
        if self.by_address.get(&at.0).is_some_and(|known| known.len == len) || is_allocated(core, at, len)? {
            return Ok(());
        }
        if !claim(handle, at, len, Class::Data)? {
            return Err(bad(&format!("its data at {at}+{len} overlaps space in use, or is no place for data")));
        }
        self.by_address.insert(at.0, NewData { len, used: Cell::new(false) });
        Ok(())
    }

    /// Whether the data at `at` is new with the log. Remembers that a file uses it.
    pub fn take(&self, at: Logical) -> bool {
        self.by_address.get(&at.0).inspect(|data| data.used.set(true)).is_some()
    }
}

/// Whether the last commit has this very extent, as data.
fn is_allocated(core: &Core, at: Logical, len: u64) -> Result<bool> {
    let key = Key::new(at.0, KeyType::EXTENT_ITEM, len);
    let Some(payload) = core.globals().extent.get(core, key)? else { return Ok(false) };
    let item = ExtentItem::ref_from_prefix(&payload).ok();
    Ok(item.is_some_and(|(item, _)| item.flags.get() & extent_flags::DATA != 0))
}

impl Logs {
    /// The subvolumes that have a log, that with the largest id first.
    pub fn subvolumes<'a>(&'a self, handle: &'a Handle) -> Result<Vec<Subvolume<'a>>> {
        self.logs.iter().map(|log| Subvolume::new(handle, log)).collect()
    }

    /// Data that no file uses: it must survive until the log is gone, like the log's blocks.
    pub fn pin_unused(&self, handle: &Handle) {
        for (&at, data) in self.claims.by_address.iter().filter(|(_, data)| !data.used.get()) {
            handle.core().space.pin(Logical(at), data.len, handle.generation());
        }
    }

    /// Drops the logs' blocks from memory: the log is gone.
    pub fn forget(&self, core: &Core) {
        self.blocks.iter().for_each(|&at| core.nodes.remove(at));
    }
}
