//! A typed editor of images: changes superblocks, blocks, items and single fields below everything that would forbid
//! it, and stamps the checksums anew.
//!
//! Invariants: (1) what it writes has good checksums on every copy, unless a function says that it is raw; (2) it never
//! allocates, and never keeps parents, references or free space up: what is wrong after an edit is what was planted.
//!
//! Not here: parents of changed first keys (choose an item that is not the first of its leaf, see [`Item::is_inner`]).

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Key, KeyType, Logical, Superblock, TreeId};
use butterfs_tree::Node;
use butterfs_volume::{ChunkMap, Volume};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An image that is being edited.
#[derive(Debug)]
pub struct Editor {
    /// Its devices, in the order they were given.
    pub devices: Vec<Arc<dyn BlockDevice>>,
    /// The logical space, with all chunks.
    pub volume: Volume,
    /// The superblock as it was when the image was opened.
    pub sb: Superblock,
}

/// An item of a leaf, as conditions see it.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Its leaf.
    pub leaf: &'a Node,
    /// Its slot.
    pub slot: usize,
}

impl<'a> Item<'a> {
    /// Its key.
    pub fn key(&self) -> Key {
        self.leaf.key(self.slot)
    }

    /// Its payload.
    pub fn data(&self) -> &'a [u8] {
        self.leaf.item(self.slot)
    }

    /// Whether it is of this type.
    pub fn is(&self, kind: KeyType) -> bool {
        self.key().kind == kind
    }

    /// Of this type, and not the first of its leaf, whose key the parent has too.
    pub fn is_inner(&self, kind: KeyType) -> bool {
        self.slot > 0 && self.is(kind)
    }

    /// The last of a leaf that has others.
    pub fn is_last(&self) -> bool {
        self.slot > 0 && self.slot + 1 == self.leaf.nritems()
    }

    /// The beginning of its payload as a structure of the format; `None` when it is shorter.
    pub fn head<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> Option<&'a T> {
        T::ref_from_prefix(self.data()).ok().map(|(head, _)| head)
    }

    /// The item behind it in the same leaf.
    pub fn next(&self) -> Option<Item<'a>> {
        (self.slot + 1 < self.leaf.nritems()).then_some(Item { leaf: self.leaf, slot: self.slot + 1 })
    }
}

/// The position of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemPosition {
    /// The leaf's address.
    pub leaf: Logical,
    /// Its slot.
    pub slot: usize,
}

impl Editor {
    /// An editor of these devices, which are all of the filesystem's.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>) -> Editor {
        let (volume, sb, _) = Volume::open(devices.clone()).expect("the image opens");
        let editor = Editor { devices, volume, sb };
        editor.complete_chunks();
        editor
    }

    /// An editor of a copy of `base`, and the copy.
    pub fn of_copy(base: &MemoryDevice) -> (Editor, Arc<MemoryDevice>) {
        let copy = Arc::new(base.snapshot());
        (Editor::open(vec![copy.clone()]), copy)
    }

    fn complete_chunks(&self) {
        let limits = ChunkLimits { sectorsize: self.sb.sectorsize.get(), incompat: self.sb.incompat_flags.get() };
        let mut chunks = Vec::new();
        self.each_leaf(TreeId::CHUNK, &mut |leaf| {
            for (key, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::CHUNK_ITEM) {
                chunks.push(Chunk::parse(Logical(key.offset), data, &limits).expect("the image is sound"));
            }
            false
        });
        self.volume.set_chunk_map(ChunkMap::from_chunks(chunks).expect("the image is sound"));
    }

    /// The block at an address, by its first copy, unchecked.
    pub fn node(&self, at: Logical) -> Node {
        let mut bytes = vec![0; self.sb.nodesize.get() as usize].into_boxed_slice();
        self.volume.read_copy(at, 0, &mut bytes).expect("the block can be read");
        Node::from_checked(bytes)
    }

    /// The root block of a tree; of [`TreeId::TREE_LOG`] that of the tree of log trees.
    pub fn root(&self, tree: TreeId) -> Logical {
        match tree {
            TreeId::CHUNK => Logical(self.sb.chunk_root.get()),
            TreeId::ROOT => Logical(self.sb.root.get()),
            TreeId::TREE_LOG => Logical(self.sb.log_root.get()),
            tree => self.root_item_of(TreeId::ROOT, |key| key.objectid == tree.get()).expect("the tree is there"),
        }
    }

    /// The root block of a subvolume's log tree, when it has one.
    pub fn log_of(&self, subvolume: TreeId) -> Option<Logical> {
        let has_log = self.sb.log_root.get() != 0;
        has_log.then(|| self.root_item_of(TreeId::TREE_LOG, |key| key.offset == subvolume.get())).flatten()
    }

    fn root_item_of(&self, within: TreeId, wanted: impl Fn(Key) -> bool) -> Option<Logical> {
        let mut found = None;
        self.each_leaf(within, &mut |leaf| {
            let mut roots = leaf.items().filter(|(key, _)| key.kind == KeyType::ROOT_ITEM && wanted(*key));
            found = roots.next().and_then(|(_, data)| RootItem::parse(data)).map(|item| Logical(item.bytenr.get()));
            found.is_some()
        });
        found
    }

    /// Calls `with` for the leaves of a tree in order, until it says true.
    pub fn each_leaf(&self, tree: TreeId, with: &mut dyn FnMut(&Node) -> bool) {
        self.each_leaf_below(self.root(tree), with);
    }

    /// Calls `with` for the leaves below a block in order, until it says true.
    pub fn each_leaf_below(&self, at: Logical, with: &mut dyn FnMut(&Node) -> bool) -> bool {
        let node = self.node(at);
        if node.is_leaf() {
            return with(&node);
        }
        (0..node.nritems()).any(|slot| self.each_leaf_below(node.child(slot).0, with))
    }

    /// Addresses of all blocks of a tree.
    pub fn blocks(&self, tree: TreeId) -> Vec<Logical> {
        let mut found = vec![self.root(tree)];
        let mut next = 0;
        while next < found.len() {
            let node = self.node(found[next]);
            if !node.is_leaf() {
                found.extend((0..node.nritems()).map(|slot| node.child(slot).0));
            }
            next += 1;
        }
        found
    }

    /// The first item of a tree that `wanted` accepts.
    pub fn try_find(&self, tree: TreeId, wanted: impl Fn(Item<'_>) -> bool) -> Option<ItemPosition> {
        self.find_below(self.root(tree), wanted)
    }

    /// The first item of a tree that `wanted` accepts; there must be one.
    pub fn find(&self, tree: TreeId, wanted: impl Fn(Item<'_>) -> bool) -> ItemPosition {
        self.try_find(tree, wanted).unwrap_or_else(|| panic!("tree {tree} has no such item"))
    }

    /// The first item below a block that `wanted` accepts.
    pub fn find_below(&self, at: Logical, wanted: impl Fn(Item<'_>) -> bool) -> Option<ItemPosition> {
        let mut found = None;
        self.each_leaf_below(at, &mut |leaf| {
            found = (0..leaf.nritems())
                .find(|slot| wanted(Item { leaf, slot: *slot }))
                .map(|slot| ItemPosition { leaf: leaf.at(), slot });
            found.is_some()
        });
        found
    }

    /// Changes a block and stamps it, on all copies.
    pub fn edit(&self, at: Logical, change: impl FnOnce(&mut Node)) {
        let mut node = self.node(at);
        change(&mut node);
        self.stamp(at, node.bytes().to_vec());
    }

    /// Changes an item that begins with a structure of the format.
    pub fn edit_item<T>(&self, position: ItemPosition, change: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + KnownLayout + Unaligned,
    {
        self.edit(position.leaf, |leaf| {
            let (head, _) =
                T::mut_from_prefix(leaf.item_mut(position.slot)).expect("the item is as long as its structure");
            change(head);
        });
    }

    /// Finds an item and changes it.
    pub fn change<T>(&self, tree: TreeId, wanted: impl Fn(Item<'_>) -> bool, change: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + KnownLayout + Unaligned,
    {
        self.edit_item(self.find(tree, wanted), change);
    }

    /// Changes an item's key, which must stay in order.
    pub fn set_key(&self, position: ItemPosition, change: impl FnOnce(Key) -> Key) {
        self.edit(position.leaf, |leaf| leaf.set_key(position.slot, change(leaf.key(position.slot))));
    }

    /// Finds an item and removes it.
    pub fn remove(&self, tree: TreeId, wanted: impl Fn(Item<'_>) -> bool) {
        self.remove_at(self.find(tree, wanted));
    }

    /// Removes an item.
    pub fn remove_at(&self, ItemPosition { leaf, slot }: ItemPosition) {
        self.edit(leaf, |leaf| leaf.remove_items(slot..slot + 1));
    }

    /// Inserts an item where it belongs; the leaf must have room, and the key must not become its first.
    pub fn insert(&self, tree: TreeId, key: Key, data: &[u8]) {
        self.insert_below(self.root(tree), key, data);
    }

    /// Inserts an item in the tree below a block.
    pub fn insert_below(&self, root: Logical, key: Key, data: &[u8]) {
        let mut position = None;
        self.each_leaf_below(root, &mut |leaf| {
            if leaf.first_key().is_none_or(|first| first < key) {
                position = Some((leaf.at(), leaf.free_space()));
            }
            false
        });
        let (at, free) = position.expect("there is a leaf before the key");
        assert!(free >= data.len() + 25, "no room for {key}: {free}");
        self.edit(at, |leaf| {
            let slot = leaf.find(key).expect_err("the key is new");
            leaf.insert_item(slot, key, data);
        });
    }

    /// Writes a block with its checksum, on all copies.
    pub fn stamp(&self, at: Logical, mut bytes: Vec<u8>) {
        let digest = self.sb.checksum_kind().expect("a known checksum").digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        self.write_raw(at, &bytes);
    }

    /// Writes bytes as they are, on all copies.
    pub fn write_raw(&self, at: Logical, bytes: &[u8]) {
        if self.volume.write(at, bytes).is_ok() {
            return;
        }
        // Where a superblock was changed beneath it, the volume writes no more.
        let devices = self.volume.present_devices();
        for (id, offset) in self.copies(at) {
            let found = devices.iter().find(|(item, _)| item.devid.get() == id);
            let (_, device) = found.expect("the copies are on devices that are there");
            device.write_at(offset, bytes).expect("the devices can be written");
        }
    }

    /// Changes the superblock and stamps it, on all copies of all devices.
    pub fn superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut sb = self.sb;
        change(&mut sb);
        self.volume.write_superblock(&sb).expect("the devices can be written");
    }

    /// The copies of a mirrored or single block: index of the device (as its id is given, from 1) and offset.
    pub fn copies(&self, at: Logical) -> Vec<(u64, u64)> {
        let map = self.volume.chunk_map();
        let chunk = map.get(at).expect("the block is mapped");
        let inside = at.get() - chunk.start.get();
        chunk.stripes.iter().map(|stripe| (stripe.device.get(), stripe.physical.get() + inside)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FORMATS;
    use butterfs_ondisk::items::InodeItem;

    #[test]
    fn a_changed_field_is_read_back_and_the_block_is_good() {
        for format in FORMATS {
            let base = Arc::new(MemoryDevice::new(256 << 20));
            format.make(&(base.clone() as Arc<dyn BlockDevice>));
            let (editor, copy) = Editor::of_copy(&base);
            let is_root_dir = |item: Item<'_>| item.is(KeyType::INODE_ITEM) && item.key().objectid == 256;
            editor.change(TreeId::FS, is_root_dir, |inode: &mut InodeItem| inode.uid = 1234.into());
            let reopened = Editor::open(vec![copy]);
            let position = reopened.find(TreeId::FS, is_root_dir);
            let leaf = reopened.node(position.leaf);
            let item = Item { leaf: &leaf, slot: position.slot };
            assert_eq!(item.head::<InodeItem>().map(|inode| inode.uid.get()), Some(1234));
            let digest = editor.sb.checksum_kind().expect("known").digest(&leaf.bytes()[32..]);
            assert_eq!(leaf.bytes()[..32], digest);
            let untouched = Editor::open(vec![base]);
            let leaf = untouched.node(untouched.find(TreeId::FS, is_root_dir).leaf);
            assert_ne!(leaf.bytes()[..32], digest);
        }
    }
}
