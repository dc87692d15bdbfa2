//! One tree block in memory: its on-disk bytes, and everything that reads or edits them.
//!
//! ```text
//! leaf:  [header 101][item 25]… free …[data of the last item]…[data of item 0]
//! node:  [header 101][key pointer 33]… free
//! ```
//!
//! # Invariants
//! 1. The bytes always have a sound structure: [`verify`] admits nothing else, and no editor leaves anything else.
//!    So reading a slot below [`Node::nritems`] cannot fail.
//! 2. A leaf is packed: data lies from the end of the block towards the front in slot order, without gaps.
//!    One function moves item data ([`Node::shift_data`]).
//! 3. Free bytes are zero in every block that is going to be written. A block from elsewhere may have anything there
//!    until it is shadowed.
//!
//! # Not here
//! Whether an edit is wanted, what the parent must learn about it, and where a node lives.

mod leaf;
mod pointers;
mod verify;

pub use verify::{BlockIdentity, Corrupt, MOST_SEEDS, check_block, verify};

use crate::NodePtr;
use butterfs_ondisk::header::{HEADER_LEN, Header, ITEM_LEN, KEY_POINTER_LEN, pointers_per_node};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// A tree block (the kernel's `extent_buffer`).
#[derive(Clone)]
pub struct Node {
    bytes: Box<[u8]>,
    /// The header's generation, `nritems` and `level` once more, so that a lookup need not wait for the header's cache
    /// line.
    generation: Generation,
    nritems: u32,
    level: u8,
}

/// The offsets of the fields that are read without decoding the whole header.
mod at {
    pub const FSID: usize = 32;
    pub const BYTENR: usize = 48;
    pub const FLAGS: usize = 56;
    pub const GENERATION: usize = 80;
    pub const OWNER: usize = 88;
    pub const NRITEMS: usize = 96;
    pub const LEVEL: usize = 100;
    /// In an item header.
    pub const ITEM_OFFSET: usize = 17;
    pub const ITEM_SIZE: usize = 21;
    /// In a key pointer.
    pub const POINTER_BLOCK: usize = 17;
    pub const POINTER_GENERATION: usize = 25;
}

impl Node {
    /// A node without items that has not been written.
    pub fn new_empty(
        identity: &BlockIdentity,
        at: Logical,
        level: Level,
        generation: Generation,
        owner: TreeId,
    ) -> Node {
        let mut bytes = vec![0; identity.nodesize as usize].into_boxed_slice();
        let header = Header {
            csum: [0; 32],
            fsid: identity.fsid,
            bytenr: at.get().into(),
            flags: Header::BACKREF_REV.into(),
            chunk_tree_uuid: identity.chunk_tree_uuid,
            generation: generation.get().into(),
            owner: owner.get().into(),
            nritems: 0.into(),
            level: level.get(),
        };
        bytes[..HEADER_LEN].copy_from_slice(header.as_bytes());
        Node { bytes, generation, nritems: 0, level: level.get() }
    }

    /// Wraps bytes that [`check_block`] has accepted.
    pub fn from_checked(bytes: Box<[u8]>) -> Node {
        let nritems = u32::from_le_bytes(bytes[at::NRITEMS..at::NRITEMS + 4].try_into().expect("4 bytes"));
        let generation = u64::from_le_bytes(bytes[at::GENERATION..at::GENERATION + 8].try_into().expect("8 bytes"));
        let level = bytes[at::LEVEL];
        Node { bytes, generation: Generation(generation), nritems, level }
    }

    /// Makes this a shadow copy: a new address, this generation, this owner; flags as of a block never written.
    pub fn set_identity(&mut self, at: Logical, generation: Generation, owner: TreeId) {
        self.put_u64(at::BYTENR, at.get());
        self.put_u64(at::FLAGS, Header::BACKREF_REV);
        self.put_u64(at::GENERATION, generation.get());
        self.generation = generation;
        self.put_u64(at::OWNER, owner.get());
        self.bytes[..32].fill(0);
        let free = self.bytes_in_front();
        let end = free + self.free_space();
        self.bytes[free..end].fill(0);
    }

    /// Says that relocation made this block, so that every writer looks up who refers to it
    /// (`BTRFS_HEADER_FLAG_RELOC`).
    pub fn mark_reloc(&mut self) {
        let flags = self.flags() | Header::RELOC;
        self.put_u64(at::FLAGS, flags);
    }

    /// The whole block. The checksum is that of the block that was read, or zero.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The decoded header.
    pub fn header(&self) -> Header {
        Header::read_from_prefix(&self.bytes).expect("a block is longer than its header").0
    }

    /// The block's own logical address.
    pub fn at(&self) -> Logical {
        Logical(self.u64_at(at::BYTENR))
    }

    /// The transaction that made this block.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The tree that made this block.
    pub fn owner(&self) -> TreeId {
        TreeId(self.u64_at(at::OWNER))
    }

    /// Header flags.
    pub fn flags(&self) -> u64 {
        self.u64_at(at::FLAGS)
    }

    /// Whether the block was made by relocation, so that its references may be full ones.
    pub fn is_reloc(&self) -> bool {
        self.flags() & Header::RELOC != 0
    }

    /// Height above the leaves.
    pub fn level(&self) -> Level {
        Level(self.level)
    }

    /// Whether this is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Items or key pointers in the block.
    pub fn nritems(&self) -> usize {
        self.nritems as usize
    }

    /// Whether there is neither item nor pointer.
    pub fn is_empty(&self) -> bool {
        self.nritems() == 0
    }

    /// The key in `slot`.
    pub fn key(&self, slot: usize) -> Key {
        debug_assert!(slot < self.nritems());
        self.key_at(HEADER_LEN + slot * self.stride())
    }

    /// The first key, if there is one.
    pub fn first_key(&self) -> Option<Key> {
        (!self.is_empty()).then(|| self.key(0))
    }

    /// The last key, if there is one.
    pub fn last_key(&self) -> Option<Key> {
        self.nritems().checked_sub(1).map(|last| self.key(last))
    }

    /// The slot that has `key`, or the slot where it belongs.
    pub fn find(&self, key: Key) -> Result<usize, usize> {
        let slot = self.count_below(key, self.nritems());
        if slot < self.nritems() && self.key(slot) == key { Ok(slot) } else { Err(slot) }
    }

    /// How many of the keys in the first `slots` are smaller than `key`.
    ///
    /// Without branches on keys, because their outcome cannot be predicted. In a leaf, which is rarely in the CPU's
    /// cache, several keys are probed at once, so that their cache lines arrive together.
    fn count_below(&self, key: Key, slots: usize) -> usize {
        const PROBES: usize = 7;
        let (stride, mut base, mut len) = (self.stride(), 0, slots);
        let below = |slot: usize| usize::from(self.is_below(HEADER_LEN + slot * stride, key));
        if self.is_leaf() {
            while len > 2 * PROBES {
                let step = len / (PROBES + 1);
                let steps: usize = (1..=PROBES).map(|probe| below(base + probe * step - 1)).sum();
                base += steps * step;
                len = if steps == PROBES { len - steps * step } else { step };
            }
            return base + (base..base + len).map(below).sum::<usize>();
        }
        while len > 1 {
            let half = len / 2;
            base += below(base + half - 1) * half;
            len -= half;
        }
        base + if len == 1 { below(base) } else { 0 }
    }

    fn is_below(&self, offset: usize, key: Key) -> bool {
        let raw: &[u8; 17] = self.bytes[offset..offset + 17].try_into().expect("17 bytes");
        let objectid = u64::from_le_bytes(raw[..8].try_into().expect("8 bytes"));
        let rest = u64::from_le_bytes(raw[9..].try_into().expect("8 bytes"));
        (objectid < key.objectid)
            | ((objectid == key.objectid) & ((raw[8] < key.kind.0) | ((raw[8] == key.kind.0) & (rest < key.offset))))
    }

    /// Bytes in use after the header.
    pub fn used(&self) -> usize {
        self.bytes.len() - HEADER_LEN - self.free_space()
    }

    /// Bytes that are free: for item headers and data in a leaf, for key pointers in a node.
    pub fn free_space(&self) -> usize {
        let end = if self.is_leaf() { self.data_start() } else { self.bytes.len() };
        end - self.bytes_in_front()
    }

    /// The most pointers that a node of this size has.
    pub fn max_pointers(&self) -> usize {
        pointers_per_node(self.bytes.len() as u32)
    }

    /// Whether this node is what `expect` promises. [`verify`] asks this of a block that was read; a cache asks it
    /// again on a hit, because another parent may promise something else about the same address.
    pub fn confirm(&self, expect: &NodePtr) -> Result<(), Corrupt> {
        verify::confirm(&self.bytes, expect)
    }

    /// The byte where the free space begins: after the header, and the item headers or pointers.
    fn bytes_in_front(&self) -> usize {
        HEADER_LEN + self.nritems() * self.stride()
    }

    fn stride(&self) -> usize {
        if self.is_leaf() { ITEM_LEN } else { KEY_POINTER_LEN }
    }

    fn set_nritems(&mut self, count: usize) {
        self.nritems = count as u32;
        self.put_u32(at::NRITEMS, count as u32);
    }

    fn key_at(&self, offset: usize) -> Key {
        let raw: &[u8; 17] = self.bytes[offset..offset + 17].try_into().expect("17 bytes");
        Key {
            objectid: u64::from_le_bytes(raw[..8].try_into().expect("8 bytes")),
            kind: KeyType(raw[8]),
            offset: u64::from_le_bytes(raw[9..].try_into().expect("8 bytes")),
        }
    }

    fn put_key(&mut self, offset: usize, key: Key) {
        self.bytes[offset..offset + 17].copy_from_slice(DiskKey::from(key).as_bytes());
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes[offset..offset + 4].try_into().expect("4 bytes"))
    }

    fn u64_at(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[offset..offset + 8].try_into().expect("8 bytes"))
    }

    fn put_u32(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("at", &self.at())
            .field("level", &self.level())
            .field("generation", &self.generation())
            .field("owner", &self.owner())
            .field("nritems", &self.nritems())
            .field("free", &self.free_space())
            .finish()
    }
}
