//! Blocks: whatever has a good checksum is refused with a sentence, or can be read, printed, searched and edited.
//!
//! Input: a block. What identifies it (filesystem, checksum) is put right first.

use super::image;
use butterfs_ondisk::dump::{self, DumpOptions};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::tree_checker::{self, CheckContext};
use butterfs_ondisk::{ChecksumKind, Generation, Key, Logical};
use butterfs_tree::{BlockIdentity, Node, NodePtr, verify};
use zerocopy::FromBytes;

const FSID: [u8; 16] = [7; 16];

pub fn identity(nodesize: u32) -> BlockIdentity {
    BlockIdentity {
        fsid: FSID,
        seeds: Default::default(),
        chunk_tree_uuid: [8; 16],
        checksum: ChecksumKind::Crc32c,
        nodesize,
        sectorsize: 4096,
        incompat: u64::MAX >> 1,
        super_generation: Generation(1 << 40),
        ignores_checksums: false,
        writable: true,
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    image::bases().iter().flat_map(image::blocks).map(|node| node.bytes().to_vec()).collect()
}

pub fn run(input: &[u8]) {
    let nodesize = if input.len() <= 4096 { 4096 } else { 16384 };
    let identity = identity(nodesize);
    let mut block = vec![0; nodesize as usize];
    let len = input.len().min(block.len());
    block[..len].copy_from_slice(&input[..len]);
    block[32..48].copy_from_slice(&FSID);
    let digest = identity.checksum.digest(&block[32..]);
    block[..32].copy_from_slice(&digest);
    print(&block, &identity);
    let header = Header::read_from_prefix(&block).expect("a block is longer").0;
    let ptr = NodePtr {
        at: Logical(header.bytenr.get()),
        generation: Generation(header.generation.get()),
        level: butterfs_ondisk::Level(header.level),
        tree: butterfs_ondisk::TreeId(0),
        first_key: None,
    };
    if let Ok(node) = verify(block.into_boxed_slice(), &ptr, &identity) {
        look(node, &identity);
    }
}

fn context(identity: &BlockIdentity) -> CheckContext {
    CheckContext {
        nodesize: identity.nodesize,
        sectorsize: identity.sectorsize,
        super_generation: identity.super_generation,
        incompat: identity.incompat,
        csum_len: identity.checksum.len(),
        writable: identity.writable,
    }
}

/// Prints a block of which only the layout is sound.
pub fn print(block: &[u8], identity: &BlockIdentity) {
    if tree_checker::check_layout(block, &context(identity)).is_err() {
        return;
    }
    let options = DumpOptions {
        hide_names: false,
        csum_headers: true,
        csum_items: true,
        checksum: identity.checksum,
        sectorsize: identity.sectorsize,
        utc_offset: &|_| 3600,
    };
    dump::tree_block(&mut std::io::sink(), block, &options).expect("nothing fails to be written into nothing");
}

/// Does with a good block what the engine does.
pub fn look(mut node: Node, identity: &BlockIdentity) {
    for slot in 0..node.nritems() {
        let key = node.key(slot);
        assert_eq!(node.find(key), Ok(slot));
        if node.is_leaf() {
            assert_eq!(node.item(slot).len(), node.item_len(slot));
        } else {
            let _ = (node.child_ptr(slot, node.owner()), node.child_slot(key));
        }
    }
    let _ = (node.find(Key::MIN), node.free_space(), node.used(), node.first_key(), node.last_key());
    if node.is_leaf() {
        assert_eq!(node.items().count(), node.nritems());
        edit_leaf(&mut node);
    } else if node.nritems() > 1 {
        node.remove_pointer(0);
    }
    let mut out = vec![0; identity.nodesize as usize];
    // It may be refused now: items of an inode may have lost their inode.
    let _ = node.seal_into(&mut out, identity);
}

fn edit_leaf(node: &mut Node) {
    if node.nritems() == 0 {
        return;
    }
    let middle = node.nritems() / 2;
    let (before, len) = (node.free_space(), node.item_len(middle));
    node.resize_item(middle, len / 2);
    assert_eq!(node.free_space(), before + len - len / 2);
    node.remove_items(middle..middle + 1);
    assert_eq!(node.free_space(), before + len + 25);
}
