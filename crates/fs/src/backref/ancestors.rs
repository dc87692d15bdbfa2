//! From a tree block up to the roots that reach it.
//!
//! Each step goes up by one level, so that it ends on any image; a block above is looked at once.

use super::ExtentAt;
use super::references::References;
use super::view::{Block, View};
use crate::error::Result;
use crate::transaction::refs::RefBy;
use butterfs_ondisk::{Level, TreeId};
use rustc_hash::FxHashSet;

/// The trees that reach a block, by id.
pub(super) fn trees_above(view: &View<'_>, block: &Block) -> Result<Vec<TreeId>> {
    let (mut trees, mut seen, mut waiting) = (Vec::new(), FxHashSet::default(), vec![*block]);
    while let Some(block) = waiting.pop() {
        if !seen.insert((block.at, block.level)) {
            continue;
        }
        let extent = ExtentAt { start: block.at, len: view.core.nodesize().into(), level: Some(block.level) };
        let mut references = References::default();
        while let Some(by) = references.first(view, &extent)? {
            match by {
                RefBy::Tree(tree) => match view.root(tree)? {
                    Some(root) if root.at == block.at => trees.push(tree),
                    Some(root) if root.level > block.level => {
                        let parent = view.above(&root, block.key, Level(block.level.0 + 1))?;
                        let slot = parent.child_slot(block.key);
                        // A tree that is being dropped no longer leads there.
                        let leads = !parent.is_leaf() && parent.child(slot).0 == block.at;
                        waiting.extend(Block::of(&parent).filter(|_| leads));
                    }
                    _ => {}
                },
                RefBy::Block(at) => {
                    let parent = view.block(at, Level(block.level.0 + 1))?;
                    waiting.extend(parent.and_then(|parent| Block::of(&parent)));
                }
                RefBy::File { .. } | RefBy::Leaf(_) => {}
            }
            references.pop();
        }
    }
    trees.sort_unstable();
    trees.dedup();
    Ok(trees)
}
