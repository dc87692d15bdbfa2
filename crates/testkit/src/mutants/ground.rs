//! The places of a sound image that can be changed: every structure in every item of every tree, found by the
//! declarations of the format, and what lies beside structures.

use crate::editor::Editor;
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::layout::{self, Part, Structure};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_tree::Node;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A piece of an item's payload.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// The leaf.
    pub leaf: Logical,
    /// The slot of the item.
    pub slot: usize,
    /// Its key.
    pub key: Key,
    /// The position at which the piece begins in the payload.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// The kind; `None` for names, values, checksums, bitmaps and undeclared types.
    pub structure: Option<&'static Structure>,
}

/// A tree's spots, and its blocks.
#[derive(Debug)]
pub struct TreeGround {
    /// The tree; [`TreeId::TREE_LOG`] for all logs.
    pub tree: TreeId,
    /// Spots by what they are.
    pub spots: Vec<(String, Vec<Spot>)>,
    /// All blocks.
    pub blocks: Vec<Logical>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ground {
    /// Every tree with an item.
    pub trees: Vec<TreeGround>,
    /// Pointers to each block: the block that holds it, and the slot.
    pub parents: HashMap<Logical, Vec<(Logical, usize)>>,
    /// Spots of all trees by structure, as places to copy values from.
    pub alike: HashMap<&'static str, Vec<Spot>>,
}

impl Ground {
    /// Of an image that is sound.
    pub fn of(editor: &Editor) -> Ground {
        let mut ground = Ground { trees: Vec::new(), parents: HashMap::new(), alike: HashMap::new() };
        for (tree, roots) in roots(editor) {
            let grown = ground.of_tree(editor, tree, roots);
            ground.trees.push(grown);
        }
        ground
    }

    /// Names of the structures that it holds.
    pub fn structures(&self) -> BTreeSet<&'static str> {
        self.alike.keys().copied().collect()
    }

    fn of_tree(&mut self, editor: &Editor, tree: TreeId, roots: Vec<Logical>) -> TreeGround {
        let (mut spots, mut blocks) = (BTreeMap::<String, Vec<Spot>>::new(), roots);
        let mut next = 0;
        while next < blocks.len() {
            let node = editor.node(blocks[next]);
            next += 1;
            if !node.is_leaf() {
                self.add_children(&node, &mut blocks);
                continue;
            }
            for spot in spots_of(&node) {
                let name = match spot.structure {
                    Some(structure) => structure.name.to_owned(),
                    None => format!("beside {}", spot.key.kind.name().unwrap_or("?")),
                };
                if let Some(structure) = spot.structure {
                    self.alike.entry(structure.name).or_default().push(spot);
                }
                spots.entry(name).or_default().push(spot);
            }
        }
        TreeGround { tree, spots: spots.into_iter().collect(), blocks }
    }

    /// Blocks that snapshots share are taken once.
    fn add_children(&mut self, node: &Node, blocks: &mut Vec<Logical>) {
        for slot in 0..node.nritems() {
            let child = node.child(slot).0;
            let parents = self.parents.entry(child).or_default();
            if !parents.contains(&(node.at(), slot)) {
                parents.push((node.at(), slot));
            }
            if !blocks.contains(&child) {
                blocks.push(child);
            }
        }
    }
}

/// Trees with their roots. Subvolumes count as one tree each; logs as one together.
fn roots(editor: &Editor) -> Vec<(TreeId, Vec<Logical>)> {
    let mut found =
        vec![(TreeId::ROOT, vec![editor.root(TreeId::ROOT)]), (TreeId::CHUNK, vec![editor.root(TreeId::CHUNK)])];
    let roots_in = |tree: TreeId| {
        let mut roots = Vec::new();
        editor.each_leaf(tree, &mut |leaf| {
            let items = leaf.items().filter(|(key, _)| key.kind == KeyType::ROOT_ITEM);
            roots.extend(items.filter_map(|(key, data)| Some((key, Logical(RootItem::parse(data)?.bytenr.get())))));
            false
        });
        roots
    };
    found.extend(roots_in(TreeId::ROOT).into_iter().map(|(key, at)| (TreeId(key.objectid), vec![at])));
    if editor.sb.log_root.get() != 0 {
        let logs = roots_in(TreeId::TREE_LOG).into_iter().map(|(_, at)| at);
        found.push((TreeId::TREE_LOG, std::iter::once(editor.root(TreeId::TREE_LOG)).chain(logs).collect()));
    }
    found
}

fn spots_of(leaf: &Node) -> Vec<Spot> {
    let mut spots = Vec::new();
    for slot in 0..leaf.nritems() {
        let (key, payload) = (leaf.key(slot), leaf.item(slot));
        let spot = |at, len, structure| Spot { leaf: leaf.at(), slot, key, at, len, structure };
        let mut free = 0;
        for Part { at, structure } in layout::parts(key, payload) {
            if at > free {
                spots.push(spot(free, at - free, None));
            }
            spots.push(spot(at, structure.len, Some(structure)));
            free = free.max(at + structure.len);
        }
        if free < payload.len() || payload.is_empty() {
            spots.push(spot(free, payload.len() - free, None));
        }
    }
    spots
}
