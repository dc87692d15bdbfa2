//! A tree as [`Items`] to look at or to edit.

use super::items::{EditItems, Items, Visit};
use crate::error::Result;
use crate::transaction::{BlockSource, Handle, ItemRef, Tree};
use butterfs_ondisk::Key;

/// See the [module](self).
pub struct TreeItems<'a> {
    source: BlockSource<'a>,
    tree: &'a Tree,
    handle: Option<&'a Handle>,
}

impl<'a> TreeItems<'a> {
    /// To look at.
    pub fn reading(source: impl Into<BlockSource<'a>>, tree: &'a Tree) -> TreeItems<'a> {
        TreeItems { source: source.into(), tree, handle: None }
    }

    /// To edit under `handle`.
    pub fn editing(handle: &'a Handle, tree: &'a Tree) -> TreeItems<'a> {
        TreeItems { source: handle.core().into(), tree, handle: Some(handle) }
    }

    fn handle(&self) -> &'a Handle {
        self.handle.expect("items are edited under a handle")
    }
}

impl Items for TreeItems<'_> {
    type Payload = ItemRef;

    fn last_before(&self, key: Key) -> Result<Option<(Key, ItemRef)>> {
        self.tree.last_before(self.source, key)
    }

    fn scan(&self, from: Key, to: Key, each: &mut Visit<'_>) -> Result<()> {
        self.tree.scan(self.source, from, to, each)
    }
}

impl EditItems for TreeItems<'_> {
    fn insert(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
        self.tree.insert(self.handle(), key, payload)
    }

    fn replace(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
        self.tree.replace(self.handle(), key, payload)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        Ok(self.tree.update(self.handle(), key, |payload| change(payload))?.is_some())
    }

    fn remove(&mut self, key: Key) -> Result<bool> {
        self.tree.remove(self.handle(), key)
    }
}
