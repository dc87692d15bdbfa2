//! Just enough of trees to read the chunk tree: checksums, node pointers, items.

use butterfs_ondisk::chunk::{Chunk, ChunkLimits};
use butterfs_ondisk::header::{HEADER_LEN, Header, ItemHeader, KeyPointer};
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_volume::{ChunkMap, Volume};
use zerocopy::FromBytes;

/// The chunk map that the chunk tree has.
pub fn read(volume: &Volume, sb: &Superblock) -> ChunkMap {
    let mut chunks = Vec::new();
    walk(volume, sb, Logical(sb.chunk_root.get()), &mut |key, payload| {
        if key.kind == KeyType::CHUNK_ITEM {
            chunks.push(Chunk::parse(Logical(key.offset), payload, &ChunkLimits::from(sb)).unwrap());
        }
    });
    ChunkMap::from_chunks(chunks).unwrap()
}

fn walk(volume: &Volume, sb: &Superblock, at: Logical, item: &mut dyn FnMut(Key, &[u8])) {
    let mut block = vec![0; sb.nodesize.get() as usize];
    volume.read(at, &mut block, &mut |block| verify(sb, at, block)).unwrap();
    let (header, rest) = Header::ref_from_prefix(&block).unwrap();
    let count = header.nritems.get() as usize;
    if header.level > 0 {
        let (pointers, _) = <[KeyPointer]>::ref_from_prefix_with_elems(rest, count).unwrap();
        return pointers.iter().for_each(|pointer| walk(volume, sb, Logical(pointer.blockptr.get()), item));
    }
    let (items, _) = <[ItemHeader]>::ref_from_prefix_with_elems(rest, count).unwrap();
    for head in items {
        let start = HEADER_LEN + head.offset.get() as usize;
        item(head.key.into(), &block[start..start + head.size.get() as usize]);
    }
}

fn verify(sb: &Superblock, at: Logical, block: &[u8]) -> Result<(), String> {
    let (header, _) = Header::ref_from_prefix(block).map_err(|_| "short")?;
    if !sb.checksum_kind().unwrap().matches(&block[32..], &header.csum) {
        return Err("checksum mismatch".to_owned());
    }
    if header.bytenr.get() != at.0 { Err(format!("it is block {}", header.bytenr)) } else { Ok(()) }
}

/// Every copy of these trees' roots is a good block of that tree.
pub fn every_copy_of_the_roots(volume: &Volume, sb: &Superblock, trees: &[TreeId]) {
    for tree in trees {
        let at = Logical(if *tree == TreeId::ROOT { sb.root.get() } else { sb.chunk_root.get() });
        let mut block = vec![0; sb.nodesize.get() as usize];
        for copy in 0..volume.copies(at) {
            volume.read_copy(at, copy, &mut block).unwrap();
            verify(sb, at, &block).unwrap_or_else(|rule| panic!("copy {copy} of root {tree}: {rule}"));
            let (header, _) = Header::ref_from_prefix(&block).unwrap();
            assert_eq!(header.owner.get(), tree.0);
        }
    }
}
