//! Blocks below a node that cannot be read: the extent tree still has the references that the node made to them.
//!
//! A reference that the extent tree has and that no readable block makes was made by a lost one. So the children of a
//! lost node are found with certainty as long as the extent tree can be read whole.

use crate::extent_items::Stored;
use crate::extents::full_blocks;
use crate::forest::Forest;
use crate::references::{self, References, Source};
use crate::store::Store;
use crate::walk;
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{NodePtr, check_block};

/// A block whose parent is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub at: Logical,
    pub level: u8,
    pub generation: Generation,
    pub first: Key,
    pub last: Key,
    /// The reference that nobody makes any more.
    pub source: Source,
}

impl Orphan {
    /// Whether it may be a child of the block that `ptr` promises.
    pub fn fits(&self, ptr: &NodePtr, upper: Option<Key>) -> bool {
        let is_in_range =
            ptr.first_key.is_none_or(|from| self.first >= from) && upper.is_none_or(|upper| self.first < upper);
        let is_named = match KeyType(self.source.kind) {
            KeyType::SHARED_BLOCK_REF => self.source.from == ptr.at.get(),
            _ if ptr.tree.is_subvolume() => TreeId(self.source.from).is_subvolume(),
            _ => self.source.from == ptr.tree.get(),
        };
        self.level + 1 == ptr.level.get() && is_in_range && is_named
    }

    /// A pointer to it, in place of another one.
    pub fn as_child(&self, instead_of: &NodePtr) -> NodePtr {
        NodePtr { at: self.at, generation: self.generation, first_key: Some(self.first), ..*instead_of }
    }

    /// Whether the reference names a tree.
    pub fn is_of_tree(&self) -> bool {
        self.source.kind == KeyType::TREE_BLOCK_REF.0
    }

    /// Whether the lost parent was certainly this block, or one of this tree.
    fn is_certain(&self, ptr: &NodePtr) -> bool {
        self.source.from == ptr.at.get() || self.source.from == ptr.tree.get()
    }
}

/// All blocks whose parents are lost.
pub(crate) fn find(forest: &Forest) -> Vec<Orphan> {
    let Ok(ptr) = forest.ptr(TreeId::EXTENT) else { return Vec::new() };
    let references = references::collect(forest, &full_blocks(forest));
    let (mut found, mut current) = (Vec::new(), None::<Stored>);
    let store = &forest.store;
    let complete = walk::items(store, &ptr, &mut |key, data| match key.kind {
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
            let next = Stored::parse(key, data, store.nodesize());
            if let Some(stored) = current.replace(next) {
                add(store, &references, &stored, &mut found);
            }
        }
        KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF => {
            let own = current.as_mut().filter(|stored| stored.keys[0].objectid == key.objectid);
            own.into_iter().for_each(|stored| stored.add_keyed(key, data));
        }
        _ => {}
    });
    if let Some(stored) = current {
        add(store, &references, &stored, &mut found);
    }
    if complete { found } else { Vec::new() }
}

fn add(store: &Store, references: &References, stored: &Stored, found: &mut Vec<Orphan>) {
    let Some(extent) = stored.extent.as_ref().filter(|extent| !extent.is_data) else { return };
    for (source, _) in &extent.sources {
        let is_made =
            references.records.binary_search_by(|record| (record.at, record.source).cmp(&(extent.at, *source))).is_ok();
        if is_made {
            continue;
        }
        let (at, generation, level) = (Logical(extent.at), Generation(extent.generation), Level(extent.level));
        let ptr = NodePtr { at, generation, level, tree: TreeId(0), first_key: None };
        if let Some((first, last)) = keys(store, &ptr) {
            found.push(Orphan { at, level: extent.level, generation, first, last, source: *source });
        }
    }
}

/// The first and the last key of a block, if a copy of it is good.
fn keys(store: &Store, ptr: &NodePtr) -> Option<(Key, Key)> {
    let mut bytes = vec![0; store.identity.nodesize as usize].into_boxed_slice();
    store.volume.preferred_copies(ptr.at, bytes.len()).into_iter().find_map(|copy| {
        store.volume.read_copy(ptr.at, copy, &mut bytes).ok()?;
        check_block(&bytes, ptr, &store.identity).ok()?;
        let node = butterfs_tree::Node::from_checked(bytes.clone());
        node.first_key().zip(node.last_key())
    })
}

/// The children of a lost block, ascending and apart.
pub(crate) fn children(orphans: &[Orphan], ptr: &NodePtr, upper: Option<Key>) -> Vec<Orphan> {
    let mut fitting: Vec<Orphan> = orphans.iter().filter(|orphan| orphan.fits(ptr, upper)).copied().collect();
    fitting.sort_by_key(|orphan| (std::cmp::Reverse(orphan.is_certain(ptr)), std::cmp::Reverse(orphan.generation)));
    let mut chosen: Vec<Orphan> = Vec::new();
    for orphan in fitting {
        // Of two versions of a range the certain or newer one counts.
        if chosen.iter().all(|other| orphan.last < other.first || other.last < orphan.first) {
            chosen.push(orphan);
        }
    }
    chosen.sort_by_key(|orphan| orphan.first);
    chosen
}
