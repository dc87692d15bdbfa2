//! Builders of tree blocks and payloads for the tests.

use super::super::*;
use crate::header::HEADER_LEN;
use crate::items::*;
use crate::key::DiskKey;
use zerocopy::{FromZeros, IntoBytes};

pub const NODESIZE: usize = 4096;
pub const DIR: u32 = 0o040755;
pub const FILE: u32 = 0o100644;
/// The last committed generation in the tests.
pub const GEN: u64 = 100;

pub fn context() -> CheckContext {
    CheckContext {
        nodesize: NODESIZE as u32,
        sectorsize: 4096,
        super_generation: Generation(GEN),
        incompat: incompat::SKINNY_METADATA | incompat::NO_HOLES,
        csum_len: 4,
        writable: true,
    }
}

pub fn key(objectid: u64, kind: u8, offset: u64) -> Key {
    Key::new(objectid, KeyType(kind), offset)
}

/// A leaf being built.
#[derive(Clone)]
pub struct Leaf {
    header: Header,
    items: Vec<(ItemHeader, Vec<u8>)>,
    count: Option<u32>,
}

fn header(owner: u64) -> Header {
    let mut header = Header::new_zeroed();
    header.bytenr = 30408704.into();
    header.owner = owner.into();
    header.generation = GEN.into();
    header.flags = (Header::WRITTEN | Header::BACKREF_REV).into();
    header
}

pub fn leaf(owner: u64) -> Leaf {
    Leaf { header: header(owner), items: Vec::new(), count: None }
}

impl Leaf {
    pub fn item(mut self, key: Key, data: Vec<u8>) -> Leaf {
        let end = self.items.last().map_or(NODESIZE - HEADER_LEN, |(last, _)| last.offset.get() as usize);
        let offset = (end.wrapping_sub(data.len()) as u32).into();
        let head = ItemHeader { key: key.into(), offset, size: (data.len() as u32).into() };
        self.items.push((head, data));
        self
    }
    pub fn flags(mut self, flags: u64) -> Leaf {
        self.header.flags = flags.into();
        self
    }
    pub fn level(mut self, level: u8) -> Leaf {
        self.header.level = level;
        self
    }
    pub fn count(mut self, count: u32) -> Leaf {
        self.count = Some(count);
        self
    }
    pub fn shift_item(mut self, slot: usize, by: i32) -> Leaf {
        let offset = &mut self.items[slot].0.offset;
        *offset = offset.get().wrapping_add_signed(by).into();
        self
    }
    pub fn resize_item(mut self, slot: usize, size: u32) -> Leaf {
        self.items[slot].0.size = size.into();
        self
    }
    pub fn bytes(mut self) -> Vec<u8> {
        let mut block = vec![0; NODESIZE];
        self.header.nritems = self.count.unwrap_or(self.items.len() as u32).into();
        block[..HEADER_LEN].copy_from_slice(self.header.as_bytes());
        for (slot, (head, data)) in self.items.iter().enumerate() {
            let at = HEADER_LEN + head.offset.get() as usize;
            if let Some(bytes) = block.get_mut(at..at + data.len()) {
                bytes.copy_from_slice(data);
            }
            let at = HEADER_LEN + slot * ITEM_LEN;
            block[at..at + ITEM_LEN].copy_from_slice(head.as_bytes());
        }
        block
    }
}

pub fn node(level: u8, pointers: &[(u64, u64)]) -> Vec<u8> {
    let mut block = vec![0; NODESIZE];
    let mut header = header(5);
    header.level = level;
    header.nritems = (pointers.len() as u32).into();
    block[..HEADER_LEN].copy_from_slice(header.as_bytes());
    for (slot, (object, at)) in pointers.iter().enumerate() {
        let pointer = KeyPointer { key: key(*object, 1, 0).into(), blockptr: (*at).into(), generation: GEN.into() };
        let offset = HEADER_LEN + slot * size_of::<KeyPointer>();
        block[offset..offset + size_of::<KeyPointer>()].copy_from_slice(pointer.as_bytes());
    }
    block
}

pub fn set_count(mut block: Vec<u8>, count: u32) -> Vec<u8> {
    block[96..100].copy_from_slice(&count.to_le_bytes());
    block
}

pub fn inode_item(mode: u32) -> InodeItem {
    InodeItem { generation: 1.into(), transid: GEN.into(), mode: mode.into(), nlink: 1.into(), ..InodeItem::default() }
}

pub fn inode(mode: u32) -> Vec<u8> {
    inode_item(mode).as_bytes().to_vec()
}

/// `payload` with one of its bytes set.
pub fn poke(mut payload: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    payload[at] = value;
    payload
}

pub fn name_ref(name: &str, index: u64) -> Vec<u8> {
    let head = InodeRef { index: index.into(), name_len: (name.len() as u16).into() };
    [head.as_bytes(), name.as_bytes()].concat()
}

pub fn extref(parent: u64, name: &str) -> Vec<u8> {
    let head = InodeExtref { parent: parent.into(), index: 7.into(), name_len: (name.len() as u16).into() };
    [head.as_bytes(), name.as_bytes()].concat()
}

pub fn dir_entry(location: Key, kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let head = DirItem {
        location: DiskKey::from(location),
        transid: GEN.into(),
        data_len: (data.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        kind,
    };
    [head.as_bytes(), name.as_bytes(), data].concat()
}
