//! Which tree blocks changes of subvolumes are going to need, brought into memory before they hold anything.
//!
//! Nothing here decides anything: it looks without locks. See [`Tree::preload`].

use super::delete::orphan_key;
use super::info;
use super::uuid_tree::{self, UuidKind};
use crate::inode::directory::{self, EntryTarget};
use crate::inode::{Inode, InodeCache, InodeId, preload};
use crate::transaction::{Core, Tree};
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};

/// Preloads the blocks that creating a subvolume with this UUID changes.
pub fn making(core: &Core, parent: &Inode, name: &[u8], uuid: &[u8; 16]) {
    preload::addition(core, parent, name);
    let places = Key::new(parent.tree_id().0, KeyType::ROOT_REF, u64::MAX);
    let new = Key::new(Ino::LAST_FREE.0, KeyType(0), 0);
    core.globals().root.preload(core, &[places, new]);
    uuid_tree::preload(core, UuidKind::Subvolume, uuid);
}

/// Preloads the blocks that a snapshot of `source` with a name in `parent` changes beside that.
pub fn copying(core: &Core, source: &Tree, parent: &Inode, name: &[u8]) {
    preload::addition_to_shared(core, parent, name);
    core.dirty_inodes.preload(core, &mut Vec::new());
    source.preload(core, &[Key::MIN]);
    uuid_tree::preload(core, UuidKind::Received, &source.root_item().received_uuid);
}

/// Preloads the blocks that deleting the named subvolume reads and changes.
pub fn deleting(inodes: &InodeCache, parent: &Inode, name: &[u8]) {
    let core = inodes.engine().core();
    preload::name(core, parent, name);
    let found = directory::find(core, &parent.tree, parent.ino, name);
    let Ok(Some(EntryTarget::Subvolume(id))) = found.map(|found| found.map(|found| found.target)) else { return };
    let _ = inodes.get(InodeId::root_of(id));
    naming_default(core);
    let (from, to) = (Key::new(id.0, KeyType::ROOT_REF, 0), Key::new(id.0, KeyType::ROOT_REF, u64::MAX));
    core.globals().root.preload(core, &[orphan_key(id)]);
    core.globals().root.preload_range(core, from, to, 2);
    identity(core, id);
}

/// The entry that names the default subvolume.
pub fn naming_default(core: &Core) {
    core.globals().root.preload(core, &[info::default_key(core)]);
}

/// Preloads the blocks with the UUIDs of a subvolume.
pub fn identity(core: &Core, id: TreeId) {
    let Ok(tree) = core.tree(id) else { return };
    let item = tree.root_item();
    uuid_tree::preload(core, UuidKind::Subvolume, &item.uuid);
    uuid_tree::preload(core, UuidKind::Received, &item.received_uuid);
}
