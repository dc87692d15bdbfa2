//! Leaves whose checksum is right and whose items are not: written so by somebody with bad memory, or with bad intent.
//! The items that keep the rules are saved one by one.

use crate::store::Store;
use butterfs_ondisk::header::{HEADER_LEN, Header, ITEM_LEN};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use zerocopy::FromBytes;

/// Keys that are shown.
const SHOWN: usize = 8;

/// A leaf of the items that could be saved.
pub(crate) struct Salvaged {
    pub node: Node,
    /// The keys of the others, in words.
    pub left_out: String,
}

/// The bytes of a leaf that is what `ptr` promises, with a good checksum, whatever its items are.
pub(crate) fn intact_leaf(store: &Store, ptr: &NodePtr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; store.identity.nodesize as usize];
    let kind = store.identity.checksum;
    store.volume.preferred_copies(ptr.at, bytes.len()).into_iter().find_map(|copy| {
        store.volume.read_copy(ptr.at, copy, &mut bytes).ok()?;
        let (header, _) = Header::read_from_prefix(&bytes).ok()?;
        let is_it = header.bytenr.get() == ptr.at.get()
            && header.fsid == store.identity.fsid
            && header.level == 0
            && header.generation.get() == ptr.generation.get()
            && kind.matches(&bytes[32..], &header.csum);
        is_it.then(|| bytes.clone())
    })
}

/// A leaf at `at` with the items of `bytes` that keep the rules.
pub(crate) fn leaf(store: &Store, bytes: &[u8], at: Logical, tree: TreeId, upper: Option<Key>) -> Salvaged {
    let mut node = Node::new_empty(&store.identity, at, Level(0), store.generation, tree);
    let (mut left_out, mut count) = (Vec::new(), 0);
    let mut sealed = vec![0; bytes.len()];
    for (key, data) in items(bytes) {
        let is_next = node.last_key().is_none_or(|last| last < key) && upper.is_none_or(|upper| key < upper);
        let data = data.filter(|data| is_next && node.free_space() >= ITEM_LEN + data.len());
        let is_kept = data.is_some_and(|data| {
            let slot = node.nritems();
            node.insert_item(slot, key, data);
            let is_good = node.seal_into(&mut sealed, &store.identity).is_ok();
            if !is_good {
                node.remove_items(slot..slot + 1);
            }
            is_good
        });
        if !is_kept {
            count += 1;
            left_out.extend((count <= SHOWN).then(|| key.to_string()));
        }
    }
    let more = if count > SHOWN { format!(" and {} more", count - SHOWN) } else { String::new() };
    let left_out = if count == 0 { "none".to_owned() } else { left_out.join(", ") + &more };
    Salvaged { node, left_out }
}

/// The items as their headers say; without data where that would lie outside.
pub(crate) fn items(bytes: &[u8]) -> impl Iterator<Item = (Key, Option<&[u8]>)> {
    let number = |at: usize| bytes.get(at..at + 4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
    let said = number(HEADER_LEN - 5).unwrap_or(0) as usize;
    let most = (bytes.len() - HEADER_LEN) / ITEM_LEN;
    (0..said.min(most)).filter_map(move |slot| {
        let at = HEADER_LEN + slot * ITEM_LEN;
        let (key, _) = DiskKey::read_from_prefix(&bytes[at..]).ok()?;
        let (offset, len) = (number(at + 17)? as usize, number(at + 21)? as usize);
        let start = HEADER_LEN.checked_add(offset)?;
        Some((key.into(), start.checked_add(len).and_then(|end| bytes.get(start..end))))
    })
}
