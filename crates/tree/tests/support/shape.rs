//! Trees of a shape that is given, as they may come from elsewhere.

use super::model::{Items, Model, key};
use super::random::Random;
use super::store::{Store, TREE};
use butterfs_ondisk::{Key, Level};
use butterfs_tree::{Node, NodeEditor, NodePtr};
use std::sync::Arc;

/// A subtree.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Lengths of the items.
    Leaf(Vec<usize>),
    Node(Vec<Shape>),
}

/// `count` times the same.
pub fn times(count: usize, shape: Shape) -> Vec<Shape> {
    vec![shape; count]
}

/// A leaf of `count` items of `len` bytes.
pub fn leaf(count: usize, len: usize) -> Shape {
    Shape::Leaf(vec![len; count])
}

/// The key of the item `n` of a shape; between two of them there is room for another.
pub fn shape_key(n: u64) -> Key {
    key(2 * n + 1)
}

/// A model whose tree has this shape; nothing of it is writable.
pub fn build(nodesize: u32, shape: &Shape) -> Model {
    let mut model = Model::new(nodesize);
    model.store.free(model.root.at, Level(0));
    let mut next = 0;
    let mut items = Items::new();
    let root = build_at(&model.store, shape, &mut next, &mut items);
    model.root = NodePtr { first_key: None, ..root };
    model.items = items;
    model.store.lone_children.set(true);
    model.store.next_generation();
    model
}

fn build_at(store: &Store, shape: &Shape, next: &mut u64, items: &mut Items) -> NodePtr {
    match shape {
        Shape::Leaf(lengths) => {
            let at = store.new_node(Level(0)).expect("space");
            let mut leaf = store.take(at);
            for (slot, len) in lengths.iter().enumerate() {
                let (key, data) = (shape_key(*next), vec![*next as u8; *len]);
                *next += 1;
                leaf.insert_item(slot, key, &data);
                items.insert(key, data);
            }
            finish(store, leaf)
        }
        Shape::Node(children) => {
            let children: Vec<NodePtr> = children.iter().map(|child| build_at(store, child, next, items)).collect();
            let level = Level(children[0].level.get() + 1);
            let mut node = store.take(store.new_node(level).expect("space"));
            for (slot, child) in children.iter().enumerate() {
                node.insert_pointer(slot, child.first_key.expect("not empty"), child.at, child.generation);
            }
            finish(store, node)
        }
    }
}

fn finish(store: &Store, node: Node) -> NodePtr {
    let ptr = NodePtr {
        at: node.at(),
        generation: node.generation(),
        level: node.level(),
        tree: TREE,
        first_key: node.first_key(),
    };
    store.put(node);
    ptr
}

/// The same tree again, whose nodes the first one still has.
pub fn copy(model: &Model) -> Model {
    let copy = Model {
        store: model.store.clone(),
        root: model.root,
        items: model.items.clone(),
        frozen: None,
        thorough: model.thorough,
        misses: 0,
        refusals: 0,
    };
    copy.store.forbid_copies.set(false);
    copy
}

/// A tree of `levels` levels with anything that may legally occur, at 512 bytes per node.
pub fn random_shape(random: &mut Random, levels: usize) -> Shape {
    if levels == 0 {
        let mut room: usize = 411;
        let mut lengths = Vec::new();
        for _ in 0..1 + random.below(16) {
            let len = *random.pick(&[0, 0, 5, 20, 100, 386]);
            if room >= len + 25 {
                room -= len + 25;
                lengths.push(len);
            }
        }
        return Shape::Leaf(lengths);
    }
    let children = *random.pick(&[1, 1, 2, 3, 11, 12]);
    Shape::Node((0..children).map(|_| random_shape(random, levels - 1)).collect())
}

/// A node as a test likes it, put into the store.
pub fn plant(store: &Store, level: u8, fill: impl FnOnce(&mut Node)) -> Arc<Node> {
    let mut node = store.take(store.new_node(Level(level)).expect("space"));
    fill(&mut node);
    let planted = Arc::new(node);
    store.put(Node::clone(&planted));
    planted
}
