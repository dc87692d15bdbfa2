//! Everything that must hold between two operations.

use super::store::Store;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use butterfs_ondisk::{Key, Logical};
use butterfs_tree::{Node, NodePtr, check_block};
use std::collections::HashSet;
use std::sync::Arc;

/// The counts of a tree, taken from outside.
pub struct Census {
    pub items: Vec<(Key, Vec<u8>)>,
    pub reachable: HashSet<Logical>,
    pub leaves: usize,
    pub used: usize,
}

/// Checks every node of the tree, and returns what is in it.
pub fn census(store: &Store, root: &NodePtr) -> Census {
    store.assert_at_rest();
    let mut census = Census { items: Vec::new(), reachable: HashSet::new(), leaves: 0, used: 0 };
    visit(store, root, None, &mut census);
    census
}

fn visit(store: &Store, ptr: &NodePtr, upper: Option<Key>, census: &mut Census) {
    let node: Arc<Node> = store.nodes.borrow().get(&ptr.at).expect("a node that exists").clone();
    assert!(census.reachable.insert(ptr.at), "{} is reached twice", ptr.at);
    let mut sealed = vec![0; store.identity.nodesize as usize];
    node.seal_into(&mut sealed, &store.identity).expect("a sound node");
    check_block(&sealed, ptr, &store.identity).expect("what the parent promises");
    assert_free_bytes_are_zero(&node);
    if let (Some(last), Some(upper)) = (node.last_key(), upper) {
        assert!(last < upper, "{last} lies in the next node's range, which begins at {upper}");
    }
    let is_root = ptr.first_key.is_none();
    if node.is_leaf() {
        assert!(is_root || !node.is_empty(), "an empty leaf");
        census.items.extend(node.items().map(|(key, data)| (key, data.to_vec())));
        census.leaves += 1;
        census.used += node.used();
        return;
    }
    assert!(!is_root || node.nritems() > 1 || store.lone_children.get(), "a root with one child");
    for slot in 0..node.nritems() {
        let upper = if slot + 1 < node.nritems() { Some(node.key(slot + 1)) } else { upper };
        visit(store, &node.child_ptr(slot, ptr.tree), upper, census);
    }
}

fn assert_free_bytes_are_zero(node: &Node) {
    let bytes = node.bytes();
    let used = node.used();
    let free = if node.is_leaf() {
        let headers_end = HEADER_LEN + node.nritems() * ITEM_LEN;
        headers_end..headers_end + node.free_space()
    } else {
        HEADER_LEN + used..bytes.len()
    };
    assert!(bytes[free].iter().all(|byte| *byte == 0), "free bytes of {node:?} are not zero");
}

/// No node of this generation is out of reach.
pub fn assert_no_leak(store: &Store, census: &Census) {
    use butterfs_tree::NodeEditor;
    let generation = store.generation();
    for (at, node) in store.nodes.borrow().iter() {
        assert!(node.generation() != generation || census.reachable.contains(at), "{node:?} leaked");
    }
}
