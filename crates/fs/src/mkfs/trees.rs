//! The items of a new filesystem, tree by tree. Everything is of one generation, [`GENERATION`].

use super::blocks::{Item, PlacedTree};
use super::layout::MemberDevice;
use super::options::Settings;
use crate::env::Time;
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::features::{compat_ro, incompat};
use butterfs_ondisk::items::*;
use butterfs_ondisk::key::{DiskKey, objectid};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use zerocopy::IntoBytes;

/// The generation of everything in a new filesystem.
pub const GENERATION: Generation = Generation(1);
/// `S_IFDIR` with the permissions of a new root directory.
const DIRECTORY_MODE: u32 = 0o040755;
/// Seconds and nanoseconds of no time at all.
const NEVER: Time = Time { sec: 0, nsec: 0 };

/// The parameters that all trees are made from.
#[derive(Clone, Debug)]
pub struct FilesystemSpec {
    /// The settings.
    pub settings: Settings,
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
    /// In the header of every tree block.
    pub chunk_tree_uuid: [u8; 16],
    /// The top-level subvolume's UUID.
    pub subvolume_uuid: [u8; 16],
    /// When it is made.
    pub now: Time,
    /// Ascending by number.
    pub devices: Vec<MemberDevice>,
    /// In logical order.
    pub chunks: Vec<Chunk>,
}

impl FilesystemSpec {
    /// The trees of the filesystem, in the order in which their blocks are placed.
    pub fn trees(&self) -> Vec<TreeId> {
        let mut trees = vec![TreeId::CHUNK, TreeId::ROOT, TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM];
        trees.push(TreeId::UUID);
        if self.settings.compat_ro & compat_ro::FREE_SPACE_TREE != 0 {
            trees.push(TreeId::FREE_SPACE);
        }
        if self.has_block_group_tree() {
            trees.push(TreeId::BLOCK_GROUP);
        }
        trees.push(TreeId::DATA_RELOC);
        trees
    }

    fn has_block_group_tree(&self) -> bool {
        self.settings.compat_ro & compat_ro::BLOCK_GROUP_TREE != 0
    }

    /// The items of `tree`, ascending, when all blocks lie as in `placed`.
    pub fn items(&self, tree: TreeId, placed: &[PlacedTree]) -> Vec<Item> {
        let mut items = match tree {
            TreeId::ROOT => self.root_tree(placed),
            TreeId::CHUNK => self.chunk_tree(),
            TreeId::EXTENT => self.extent_tree(placed),
            TreeId::DEV => self.device_tree(),
            TreeId::FS => self.directory_tree(u64::from(self.settings.nodesize), self.now),
            TreeId::DATA_RELOC => self.directory_tree(0, NEVER),
            TreeId::UUID => vec![uuid_item(&self.subvolume_uuid, TreeId::FS)],
            TreeId::FREE_SPACE => self.chunks.iter().flat_map(|chunk| self.free_space(chunk, placed)).collect(),
            TreeId::BLOCK_GROUP => self.block_groups(placed),
            _ => Vec::new(),
        };
        items.sort_by_key(|(key, _)| *key);
        items
    }

    fn root_tree(&self, placed: &[PlacedTree]) -> Vec<Item> {
        let in_root_tree = |tree: &&PlacedTree| !matches!(tree.id, TreeId::ROOT | TreeId::CHUNK);
        let mut items: Vec<Item> = placed.iter().filter(in_root_tree).map(|tree| self.root_item(tree)).collect();
        let directory = Ino::TREE_ROOT_DIR.0;
        let inode = directory_inode(u64::from(self.settings.nodesize), self.now, self.now);
        items.push((Key::new(directory, KeyType::INODE_ITEM, 0), inode.as_bytes().to_vec()));
        items.push((Key::new(directory, KeyType::INODE_REF, directory), inode_ref(b"..")));
        items.push((Key::new(TreeId::FS.0, KeyType::INODE_REF, directory), inode_ref(b"default")));
        items.push(default_entry(directory, TreeId::FS));
        items
    }

    /// The item that says where a tree is. The embedded inodes are those of mkfs.btrfs; the kernel reads only their
    /// flags.
    pub fn root_item(&self, tree: &PlacedTree) -> Item {
        let mut item = RootItem {
            generation: GENERATION.0.into(),
            generation_v2: GENERATION.0.into(),
            bytenr: tree.root().0.into(),
            level: tree.height().0,
            bytes_used: (tree.blocks().count() as u64 * u64::from(self.settings.nodesize)).into(),
            refs: 1.into(),
            ..RootItem::default()
        };
        if !matches!(tree.id, TreeId::UUID | TreeId::DATA_RELOC) {
            item.inode = directory_inode(u64::from(self.settings.nodesize), NEVER, NEVER);
            item.inode.size = 3.into();
        }
        if matches!(tree.id, TreeId::FS | TreeId::DATA_RELOC) {
            item.root_dirid = Ino::ROOT_DIR.0.into();
            item.inode.flags = inode_flags::ROOT_ITEM_INIT.into();
        }
        if tree.id == TreeId::FS {
            item.uuid = self.subvolume_uuid;
            item.ctime = Timespec::from(Time { nsec: 0, ..self.now });
            item.otime = item.ctime;
        }
        (Key::new(tree.id.0, KeyType::ROOT_ITEM, 0), item.as_bytes().to_vec())
    }

    fn chunk_tree(&self) -> Vec<Item> {
        let devices = self.device_items();
        let key = |item: &DevItem| Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, item.devid.get());
        let mut items: Vec<Item> = devices.iter().map(|item| (key(item), item.as_bytes().to_vec())).collect();
        items.extend(self.chunks.iter().map(|chunk| (chunk.key(), chunk.encode())));
        items
    }

    /// The devices as the chunk tree and their superblocks describe them.
    pub fn device_items(&self) -> Vec<DevItem> {
        self.devices.iter().map(|device| self.device_item(device)).collect()
    }

    /// Bytes of all devices.
    pub fn total_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.total_bytes).sum()
    }

    fn device_item(&self, device: &MemberDevice) -> DevItem {
        let sector = self.settings.sectorsize.into();
        let on_device = |chunk: &Chunk| {
            let stripes = chunk.stripes.iter().filter(|stripe| stripe.device == device.id).count();
            chunk.stripe_length() * stripes as u64
        };
        DevItem {
            devid: device.id.0.into(),
            total_bytes: device.total_bytes.into(),
            bytes_used: self.chunks.iter().map(on_device).sum::<u64>().into(),
            io_align: sector,
            io_width: sector,
            sector_size: sector,
            uuid: device.uuid,
            fsid: self.fsid,
            ..DevItem::default()
        }
    }

    fn device_tree(&self) -> Vec<Item> {
        let statistics = |device: &MemberDevice| {
            let key = Key::new(objectid::DEV_STATS, KeyType::PERSISTENT_ITEM, device.id.0);
            (key, DevStats::default().as_bytes().to_vec())
        };
        let mut items: Vec<Item> = self.devices.iter().map(statistics).collect();
        for chunk in &self.chunks {
            let extent = DevExtent {
                chunk_tree: TreeId::CHUNK.0.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                chunk_offset: chunk.start.0.into(),
                length: chunk.stripe_length().into(),
                chunk_tree_uuid: self.chunk_tree_uuid,
            };
            items.extend(chunk.stripes.iter().map(|stripe| {
                let key = Key::new(stripe.device.0, KeyType::DEV_EXTENT, stripe.physical.0);
                (key, extent.as_bytes().to_vec())
            }));
        }
        items
    }

    fn extent_tree(&self, placed: &[PlacedTree]) -> Vec<Item> {
        let blocks = placed.iter().flat_map(|tree| tree.blocks().map(|(at, level)| (tree.id, at, level)));
        let mut items: Vec<Item> = blocks.map(|(tree, at, level)| self.block_extent(tree, at, level)).collect();
        if !self.has_block_group_tree() {
            items.extend(self.block_groups(placed));
        }
        items
    }

    /// The extent item of a tree block, with its one reference. The first key that the older form stores is only a
    /// hint and stays zero, as the kernel leaves it in a new tree's first leaf.
    pub fn block_extent(&self, tree: TreeId, at: Logical, level: Level) -> Item {
        let item =
            ExtentItem { refs: 1.into(), generation: GENERATION.0.into(), flags: extent_flags::TREE_BLOCK.into() };
        let mut data = item.as_bytes().to_vec();
        let key = if self.settings.incompat & incompat::SKINNY_METADATA != 0 {
            Key::new(at.0, KeyType::METADATA_ITEM, level.0.into())
        } else {
            data.extend_from_slice(TreeBlockInfo { level: level.0, ..TreeBlockInfo::default() }.as_bytes());
            Key::new(at.0, KeyType::EXTENT_ITEM, self.settings.nodesize.into())
        };
        data.push(KeyType::TREE_BLOCK_REF.0);
        data.extend_from_slice(&tree.0.to_le_bytes());
        (key, data)
    }

    fn block_groups(&self, placed: &[PlacedTree]) -> Vec<Item> {
        let item = |chunk: &Chunk| BlockGroupItem {
            used: (blocks_in(chunk, placed).len() as u64 * u64::from(self.settings.nodesize)).into(),
            chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
            flags: chunk.kind.into(),
        };
        let key = |chunk: &Chunk| Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
        self.chunks.iter().map(|chunk| (key(chunk), item(chunk).as_bytes().to_vec())).collect()
    }

    /// The free space of one block group: what its blocks leave.
    fn free_space(&self, chunk: &Chunk, placed: &[PlacedTree]) -> Vec<Item> {
        let mut runs = Vec::new();
        let mut at = chunk.start;
        for block in blocks_in(chunk, placed) {
            if block > at {
                runs.push((at, block.0 - at.0));
            }
            at = block.plus(self.settings.nodesize.into());
        }
        if at < chunk.end() {
            runs.push((at, chunk.end().0 - at.0));
        }
        let info = FreeSpaceInfo { extent_count: (runs.len() as u32).into(), flags: 0.into() };
        let mut items =
            vec![(Key::new(chunk.start.0, KeyType::FREE_SPACE_INFO, chunk.length), info.as_bytes().to_vec())];
        items.extend(runs.iter().map(|&(at, len)| (Key::new(at.0, KeyType::FREE_SPACE_EXTENT, len), Vec::new())));
        items
    }

    /// A tree with nothing but its root directory.
    fn directory_tree(&self, nbytes: u64, btime: Time) -> Vec<Item> {
        let directory = Ino::ROOT_DIR.0;
        let inode = directory_inode(nbytes, self.now, btime);
        vec![
            (Key::new(directory, KeyType::INODE_ITEM, 0), inode.as_bytes().to_vec()),
            (Key::new(directory, KeyType::INODE_REF, directory), inode_ref(b"..")),
        ]
    }
}

/// The blocks inside a chunk, ascending.
fn blocks_in(chunk: &Chunk, placed: &[PlacedTree]) -> Vec<Logical> {
    let blocks = placed.iter().flat_map(PlacedTree::blocks).map(|(at, _)| at);
    let mut inside: Vec<Logical> = blocks.filter(|at| (chunk.start..chunk.end()).contains(at)).collect();
    inside.sort();
    inside
}

/// The inode of an empty directory.
pub fn directory_inode(nbytes: u64, now: Time, btime: Time) -> InodeItem {
    let time = Timespec::from(now);
    InodeItem {
        generation: GENERATION.0.into(),
        transid: GENERATION.0.into(),
        nbytes: nbytes.into(),
        nlink: 1.into(),
        mode: DIRECTORY_MODE.into(),
        atime: time,
        ctime: time,
        mtime: time,
        otime: Timespec::from(btime),
        ..InodeItem::default()
    }
}

/// The name of an inode that is nobody's child.
pub fn inode_ref(name: &[u8]) -> Vec<u8> {
    let head = InodeRef { index: 0.into(), name_len: (name.len() as u16).into() };
    [head.as_bytes(), name].concat()
}

/// The entry of the root tree's directory that names the default subvolume.
pub fn default_entry(directory: u64, subvolume: TreeId) -> Item {
    let name = b"default";
    let entry = DirItem {
        location: DiskKey::from(Key::new(subvolume.0, KeyType::ROOT_ITEM, u64::MAX)),
        transid: 0.into(),
        data_len: 0.into(),
        name_len: (name.len() as u16).into(),
        kind: dir_type::DIR,
    };
    (Key::new(directory, KeyType::DIR_ITEM, name_hash(name)), [entry.as_bytes(), name].concat())
}

/// A subvolume by its UUID.
pub fn uuid_item(uuid: &[u8; 16], subvolume: TreeId) -> Item {
    let (high, low) = uuid.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16 bytes"));
    (Key::new(half(high), KeyType::UUID_KEY_SUBVOL, half(low)), subvolume.0.to_le_bytes().to_vec())
}
