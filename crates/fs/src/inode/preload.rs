//! Which tree blocks operations on names and attributes are going to need, brought into memory before they hold
//! anything.
//!
//! Nothing here decides anything: it looks without locks. See [`Tree::preload`].

use super::directory::{self, EntryTarget};
use super::{Inode, Known, acl, cache, orphan, reference, subvolume_entry, xattr};
use crate::transaction::{Core, Tree};
use butterfs_ondisk::items::inode_flags;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};

/// One attribute.
pub fn attribute(core: &Core, tree: &Tree, ino: Ino, name: &[u8]) {
    tree.preload(core, &[xattr::key(ino, name)]);
}

/// The record that an inode without names leaves.
pub fn orphan(core: &Core, tree: &Tree, ino: Ino) {
    tree.preload(core, &[orphan::key(ino), cache::item_key(ino)]);
}

/// An entry, and what it leads to.
pub fn name(core: &Core, directory: &Inode, name: &[u8]) {
    let tree = &directory.tree;
    tree.preload(core, &[directory::hash_key(directory.ino, name)]);
    let found = directory::find(core, tree, directory.ino, name);
    let index = match found.ok().flatten().map(|found| found.target) {
        Some(EntryTarget::Inode(child)) => {
            record(core, tree, child, directory.ino, name);
            let place = reference::find(core, tree, child, directory.ino, name);
            place.ok().flatten().map(|place| place.index)
        }
        Some(EntryTarget::Subvolume(subvolume)) => {
            place(core, tree.id(), subvolume);
            let place = subvolume_entry::confirm(core, directory.id(), name, subvolume);
            place.ok().flatten().map(|place| place.index)
        }
        None => None,
    };
    if let Some(index) = index {
        tree.preload(core, &[directory::index_key(directory.ino, index)]);
    }
}

/// The items of an inode that record a name in a directory, or will.
pub fn record(core: &Core, tree: &Tree, ino: Ino, directory: Ino, name: &[u8]) {
    tree.preload(core, &reference::keys(ino, directory, name));
}

/// The records of a subvolume's place.
pub fn place(core: &Core, tree: TreeId, subvolume: TreeId) {
    core.globals().root.preload(core, &subvolume_entry::keys(tree, subvolume));
}

/// Preloads the place of a directory's next entry.
pub fn addition(core: &Core, directory: &Inode, name: &[u8]) {
    directory.tree.preload_keys(core, || addition_keys(directory, name));
}

/// The same after a snapshot of the directory's subvolume.
pub fn addition_to_shared(core: &Core, directory: &Inode, name: &[u8]) {
    directory.tree.preload_shared(core, &addition_keys(directory, name));
}

fn addition_keys(directory: &Inode, name: &[u8]) -> [Key; 2] {
    let behind = directory.with(|state| state.next_index.max(1)) - 1;
    let last = if behind == 0 { u64::MAX } else { behind };
    [directory::hash_key(directory.ino, name), directory::index_key(directory.ino, last)]
}

/// Preloads the place of the next inode in a directory's tree, and the items that it inherits.
pub fn creation(core: &Core, directory: &Inode) {
    let tree = &directory.tree;
    tree.preload(core, &[Key::new(Ino::LAST_FREE.0, KeyType(u8::MAX), u64::MAX)]);
    let (acl_unknown, property_unknown) = directory.with(|state| {
        let property = state.has(inode_flags::COMPRESS) && state.compression == Known::Unknown;
        (state.default_acl == Known::Unknown, property)
    });
    if acl_unknown {
        attribute(core, tree, directory.ino, acl::DEFAULT);
    }
    if property_unknown {
        attribute(core, tree, directory.ino, super::property::COMPRESSION);
    }
}
