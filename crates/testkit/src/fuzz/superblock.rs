//! Superblocks: whatever has a good checksum is refused with a sentence, or can be used and printed.

use super::image;
use butterfs_ondisk::chunk::parse_sys_chunk_array;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{ChecksumKind, Superblock, admission, dump};
use butterfs_volume::ChunkMap;
use zerocopy::FromBytes;

pub fn seeds() -> Vec<Vec<u8>> {
    image::bases().iter().map(image::superblock).collect()
}

pub fn run(input: &[u8]) {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    let len = input.len().min(SUPERBLOCK_LEN);
    bytes[..len].copy_from_slice(&input[..len]);
    let _ = Superblock::parse(&bytes, OFFSETS[0]);
    let kind = u16::from_le_bytes([bytes[0xc4], bytes[0xc5]]);
    let kind = ChecksumKind::from_raw(kind).unwrap_or_default();
    let digest = kind.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    if let Ok(raw) = Superblock::read_from_bytes(&bytes) {
        dump::superblock(&mut std::io::sink(), &raw, true).expect("nothing fails to be written into nothing");
        let _ = parse_sys_chunk_array(&raw);
    }
    let Ok(sb) = Superblock::parse(&bytes, OFFSETS[0]) else { return };
    let _ = admission(&sb);
    let _ = (sb.label(), sb.block_fsid(), sb.tree_root(), Superblock::copies_on(sb.total_bytes.get()).count());
    let chunks = parse_sys_chunk_array(&sb).unwrap_or_default();
    if let Ok(map) = ChunkMap::from_chunks(chunks) {
        for chunk in map.iter() {
            assert!(map.get(chunk.start).is_some());
            let _ = (chunk.profile(), chunk.stripe_length(), chunk.encode());
        }
    }
}
