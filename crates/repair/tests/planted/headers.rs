//! Blocks of which one bit of the header is wrong, under a right checksum: nothing of them is lost.

use crate::keys::{Damage, FILES, SUBVOLUME, all, shared, step};
use crate::support;
use butterfs_ondisk::{Logical, TreeId};
use butterfs_testkit::editor::Editor;
use std::ops::Range;

/// The bytes of the header behind the checksum.
const FIELDS: Range<usize> = 32..101;
/// Those that nobody reads: flags without a meaning and the UUID of the chunk tree.
const UNREAD: Range<usize> = 56..80;
const OWNER: Range<usize> = 88..96;

/// The root of a tree, and one leaf below it.
fn blocks(editor: &Editor, tree: TreeId) -> Vec<Logical> {
    let mut blocks = editor.blocks(tree);
    let leaf = blocks.iter().copied().filter(|at| editor.node(*at).is_leaf()).nth(1);
    blocks.truncate(1);
    blocks.extend(leaf);
    blocks
}

fn flip(editor: &Editor, at: Logical, bit: usize) {
    let mut bytes = editor.node(at).bytes().to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    editor.stamp(at, bytes);
}

/// Bits of the headers of some blocks of these trees, other ones for each block.
fn damages(editor: &Editor, trees: &[TreeId]) -> Vec<Damage<'static>> {
    let (step, mut damages) = (step(), Vec::new());
    let blocks = trees.iter().flat_map(|tree| blocks(editor, *tree).into_iter().map(move |at| (*tree, at)));
    for (place, (tree, at)) in blocks.enumerate() {
        for bit in (FIELDS.start * 8..FIELDS.end * 8).filter(|bit| bit % step == place % step) {
            damages.push(Damage {
                name: format!("byte {} bit {} of block {place}, of tree {tree}", bit / 8, bit % 8),
                // A subvolume may have blocks that another one owns.
                is_seen: !UNREAD.contains(&(bit / 8)) && !OWNER.contains(&(bit / 8)),
                plant: Box::new(move |editor: &Editor| {
                    flip(editor, at, bit);
                    format!("block {at}")
                }),
            });
        }
    }
    damages
}

#[test]
fn a_block_with_a_wrong_header_is_not_lost() {
    let Some(base) = support::made("headers", FILES) else { return };
    let (editor, _) = Editor::of_copy(&base);
    let derived = [TreeId::ROOT, TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::DEV, TreeId::UUID];
    let trees = [&[SUBVOLUME, TreeId::CSUM], &derived[..]].concat();
    all("headers", &base, &[SUBVOLUME, TreeId::CSUM], damages(&editor, &trees));
}

#[test]
fn a_shared_block_with_a_wrong_header_is_not_lost() {
    let Some(base) = support::made("headers-shared", &shared()) else { return };
    let (editor, _) = Editor::of_copy(&base);
    let trees = [SUBVOLUME, TreeId(257), TreeId::CSUM];
    all("headers-shared", &base, &trees, damages(&editor, &trees));
}
