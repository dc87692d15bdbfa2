//! Leftovers of a relocation by the kernel: reloc trees, and inodes of the data relocation tree.
//!
//! ```text
//! (-8, ROOT_ITEM, s) refs 0: being dropped when it was cut short      dropped from where that was
//!                    refs 1: not merged into subvolume s, or not all  dropped from the beginning
//! inode of tree -9 with an orphan item: copies of data                deleted, with the copies nobody else has
//! ```
//! A reloc tree is complete in itself, and so is its subvolume at every moment of a merge: pointers are exchanged, and
//! their references with them. So what is not merged can be dropped; the extents stay where they were before the
//! balance, which goes on by its own item.
//!
//! # Invariants
//! 1. Each step is one transaction, after which the kernel could go on too. What was `drop_progress` of a merge is
//!    forgotten in the transaction that makes the tree a dropped one.

use super::drop_tree::{self, Stop};
use crate::commit::Engine;
use crate::error::{Error, Result};
use crate::file_extent::FileExtent;
use crate::transaction::{Core, Fetched, Reserve, Tree};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::key::{DiskKey, objectid};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Items that one step removes, about: those of a leaf.
const ITEMS_PER_STEP: u64 = 512;

/// Takes away what is left of relocations; whether there was anything.
pub fn recover(engine: &Engine) -> Result<bool> {
    let mut any = false;
    while let Some(tree) = first_reloc_tree(engine)? {
        any = true;
        drop_reloc_tree(engine, &tree)?;
        engine.book_what_is_too_much()?;
    }
    any |= delete_copies(engine)?;
    if any {
        engine.commit()?;
    }
    Ok(any)
}

/// The reloc tree with the lowest number of a subvolume.
fn first_reloc_tree(core: &Core) -> Result<Option<Arc<Tree>>> {
    let key = |offset| Key::new(TreeId::TREE_RELOC.0, KeyType::ROOT_ITEM, offset);
    let mut found = None;
    core.globals().root.scan(core, key(0), key(u64::MAX), &mut |key, payload| {
        let item = RootItem::parse(payload)
            .ok_or_else(|| Error::corrupt(format!("root item {key} has {} bytes", payload.len())))?;
        found = Some(Tree::from_item(TreeId::TREE_RELOC, key.offset, item));
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found.map(|tree| core.trees.enter(tree)))
}

fn drop_reloc_tree(engine: &Engine, tree: &Tree) -> Result<()> {
    let root = &engine.globals().root;
    if tree.root_item().refs.get() != 0 {
        let handle = engine.start(drop_tree::reserve())?;
        tree.change_root_item(&handle, |item| {
            item.refs = 0.into();
            item.drop_progress = DiskKey::default();
            item.drop_level = 0;
        });
    }
    let mut fetched = Fetched::default();
    loop {
        let handle = engine.start(drop_tree::reserve())?;
        let stop = drop_tree::step(&handle, tree).inspect_err(|error| handle.failed(error))?;
        if matches!(stop, Stop::Gone) {
            root.remove(&handle, tree.root_item_key())?;
            engine.trees.forget(tree.id());
            return Ok(());
        }
        drop(handle);
        if let Stop::Missing(ptr) = stop {
            fetched.load(engine, &ptr)?;
        }
        engine.book_what_is_too_much()?;
    }
}

/// Deletes the inodes that hold copies of data.
fn delete_copies(engine: &Engine) -> Result<bool> {
    let Some(tree) = engine.stored_tree(&engine.globals().root, TreeId::DATA_RELOC)? else { return Ok(false) };
    let tree = engine.trees.enter(tree);
    let orphan = |ino| Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, ino);
    let mut inodes = Vec::new();
    tree.scan(engine.core(), orphan(0), orphan(u64::MAX), &mut |key, _| {
        inodes.push(key.offset);
        Ok(ControlFlow::Continue(()))
    })?;
    for &ino in &inodes {
        while delete_some(engine, &tree, ino)? {
            engine.book_what_is_too_much()?;
        }
        let handle = engine.start(Reserve::removal(1))?;
        tree.remove(&handle, orphan(ino))?;
    }
    Ok(!inodes.is_empty())
}

/// Removes a leaf's worth of an inode's items; whether there may be more.
fn delete_some(engine: &Engine, tree: &Tree, ino: u64) -> Result<bool> {
    let (from, to) = (Key::new(ino, KeyType(0), 0), Key::new(ino, KeyType(255), u64::MAX));
    tree.preload_range(engine, from, to, 1);
    let handle = engine.start(Reserve::removal(ITEMS_PER_STEP))?;
    let sector = u64::from(engine.sectorsize());
    let mut visit = |key: Key, payload: &[u8]| {
        if key.kind == KeyType::EXTENT_DATA
            && let Some(data) = FileExtent::parse(key, payload, sector)?.data_ref(tree.id(), ino)
        {
            handle.drop_data_ref(data);
        }
        Ok(())
    };
    tree.remove_range(&handle, from, to, &mut visit).inspect_err(|error| handle.failed(error))
}
