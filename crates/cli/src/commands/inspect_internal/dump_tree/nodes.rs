//! The content of a block whose layout has been checked.

use butterfs_ondisk::header::{HEADER_LEN, Header, ItemHeader, KeyPointer};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical};
use zerocopy::FromBytes;

/// A parent's record of a child.
#[derive(Clone, Copy)]
pub struct Child {
    /// The address.
    pub at: Logical,
    /// Its exact generation.
    pub generation: Generation,
    /// Its exact level.
    pub level: Level,
}

impl Child {
    /// Whether the block with this header is the child.
    pub fn check(&self, header: &Header) -> Result<(), String> {
        if header.generation.get() != self.generation.get() {
            return Err(format!("its generation is {}, its parent says {}", header.generation, self.generation));
        }
        if header.level != self.level.get() {
            return Err(format!("its level is {}, its parent says {}", header.level, self.level));
        }
        Ok(())
    }
}

/// The level of a block.
pub fn level_of(block: &[u8]) -> Level {
    Level(split(block).0.level)
}

/// The children of a node; none of a leaf.
pub fn children(block: &[u8]) -> impl Iterator<Item = Child> {
    let (header, body) = split(block);
    let count = if header.level > 0 { header.nritems.get() as usize } else { 0 };
    let pointers = <[KeyPointer]>::ref_from_prefix_with_elems(body, count).map_or(&[][..], |(pointers, _)| pointers);
    let level = Level(header.level.saturating_sub(1));
    pointers.iter().map(move |pointer| Child {
        at: Logical(pointer.blockptr.get()),
        generation: Generation(pointer.generation.get()),
        level,
    })
}

/// The items of one type in a leaf; none of a node.
pub fn items(block: &[u8], kind: KeyType) -> impl Iterator<Item = (Key, &[u8])> {
    let (header, body) = split(block);
    let count = if header.level == 0 { header.nritems.get() as usize } else { 0 };
    let items = <[ItemHeader]>::ref_from_prefix_with_elems(body, count).map_or(&[][..], |(items, _)| items);
    items.iter().filter(move |item| item.key.kind == kind.0).filter_map(|item| {
        let start = HEADER_LEN + item.offset.get() as usize;
        Some((item.key.into(), block.get(start..start + item.size.get() as usize)?))
    })
}

fn split(block: &[u8]) -> (&Header, &[u8]) {
    Header::ref_from_prefix(block).expect("a block whose layout has been checked has a header")
}
