//! Roots of another level than the one that names them says, or with another tree in their headers.
//!
//! The level of a node is one above that of its children: these tell whether it is wrong in its header. Else that of
//! the name is wrong, or the address is, and the block is a part of the tree. A block of a higher level than its name
//! says then needs no witness: a tree has nothing above its root.
//!
//! A root whose header names another tree may be that tree's, and its address wrong: the extent tree knows.

use crate::block::{Block, Expect, Quality};
use crate::key::KeyRange;
use crate::tree::{Tree, children};
use crate::trust::Trust;
use crate::wreck::{Wreck, tree_block};
use butterfs_ondisk::items::{ExtentItem, TreeBlockInfo};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

impl Wreck {
    /// A root of another level as what it is: sound if a witness confirms it, nothing if one knows a block above it.
    pub(crate) fn with_level_confirmed(&self, block: Block, want: &Expect) -> Option<Block> {
        if block.quality == Quality::OtherHeader && want.is_root && self.is_of_other_tree(want) {
            return None;
        }
        let level = block.node.level().get();
        let said = want.level.filter(|said| *said != level);
        if let Some(said) = said.filter(|said| level > 0 && *said > 0)
            && self.level_by_children(&block, want) == Some(said)
        {
            return self.read_with_header_corrected(want);
        }
        if block.quality != Quality::OtherLevel {
            return Some(block);
        }
        let witnesses: [&dyn Fn() -> Option<bool>; 4] = [
            &|| self.is_root_of_slot(want, level).then_some(true),
            &|| is_list_of_logs(&block, want).then_some(true),
            &|| self.has_found_above(want, level).map(|has| !has),
            &|| self.has_extent_above(want, level).map(|has| !has),
        ];
        match witnesses.iter().find_map(|witness| witness()) {
            Some(true) => Some(Block { quality: Quality::Good, ..block }),
            Some(false) => None,
            None => Some(block),
        }
    }

    /// The level of a node by the first of its children that can be read.
    fn level_by_children(&self, block: &Block, want: &Expect) -> Option<u8> {
        let of_child = |child: Expect| {
            let read = self.block(&Expect { level: None, ..child });
            let sound = read.filter(|child| child.quality == Quality::Good)?;
            sound.node.level().get().checked_add(1)
        };
        children(&block.node, want, KeyRange::ALL).take(MOST_CHILDREN).find_map(of_child)
    }

    /// Whether the extent tree of the last commit has the root of a subvolume as a block of other trees only.
    fn is_of_other_tree(&self, want: &Expect) -> bool {
        let Some(extents) = self.extent_root().filter(|_| want.tree.is_subvolume()) else { return false };
        let key = |kind, offset| Key::new(want.at.0, kind, offset);
        let (first, last) = (key(KeyType::EXTENT_ITEM, 0), key(KeyType::TREE_BLOCK_REF, u64::MAX));
        let mut known: Vec<u64> = Vec::new();
        Tree::new(self, extents).scan(first, last, &mut |key, data, quality| {
            if quality.trust() != Trust::Proved {
                return ControlFlow::Continue(());
            }
            match key.kind {
                KeyType::TREE_BLOCK_REF => known.push(key.offset),
                KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
                    let (generation, trees) = tree_block(key, data).unwrap_or_default();
                    known.extend(trees.into_iter().filter(|_| Some(generation) == want.generation));
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        !known.is_empty() && !known.contains(&want.tree.0)
    }

    /// Whether a backup root names this root with its own level.
    fn is_root_of_slot(&self, want: &Expect, level: u8) -> bool {
        self.superblock().super_roots.iter().any(|slot| {
            let (at, generation, said) = match want.tree {
                TreeId::ROOT => (slot.tree_root, slot.tree_root_gen, slot.tree_root_level),
                TreeId::CHUNK => (slot.chunk_root, slot.chunk_root_gen, slot.chunk_root_level),
                TreeId::EXTENT => (slot.extent_root, slot.extent_root_gen, slot.extent_root_level),
                TreeId::FS => (slot.fs_root, slot.fs_root_gen, slot.fs_root_level),
                TreeId::DEV => (slot.dev_root, slot.dev_root_gen, slot.dev_root_level),
                TreeId::CSUM => (slot.csum_root, slot.csum_root_gen, slot.csum_root_level),
                _ => return false,
            };
            (at.get(), Some(generation.get()), said) == (want.at.0, want.generation, level)
        })
    }

    /// Whether a scan has found a higher block of the tree and its generation; `None` without a scan.
    fn has_found_above(&self, want: &Expect, level: u8) -> Option<bool> {
        let mut all = self.index()?.of_tree(want.tree).iter();
        Some(all.any(|found| Some(found.generation) == want.generation && found.level > level))
    }

    /// Whether the extent tree of the last commit has a higher block of the subvolume and its generation; `None` where
    /// that cannot be read.
    fn has_extent_above(&self, want: &Expect, level: u8) -> Option<bool> {
        let extents = Tree::new(self, self.extent_root().filter(|_| want.tree.is_subvolume())?);
        let (mut above, mut is_above, mut is_sure) = (None, false, true);
        let losses = extents.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            is_sure &= quality.trust() == Trust::Proved;
            match key.kind {
                KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
                    let (generation, trees) = tree_block(key, data).unwrap_or_default();
                    let is_higher = Some(generation) == want.generation && level_of(key, data) > Some(level);
                    above = is_higher.then_some(key.objectid);
                    is_above |= is_higher && trees.contains(&want.tree.0);
                }
                KeyType::TREE_BLOCK_REF => is_above |= above == Some(key.objectid) && key.offset == want.tree.0,
                _ => {}
            }
            if is_above { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (is_above || (is_sure && losses.is_none())).then_some(is_above)
    }
}

/// Children of a node that are asked for its level.
const MOST_CHILDREN: usize = 16;

/// Whether it is the leaf that lists the logs of subvolumes: those logs have no such items, and the list is short.
fn is_list_of_logs(block: &Block, want: &Expect) -> bool {
    let is_log = |(key, _): (Key, &[u8])| key.kind == KeyType::ROOT_ITEM;
    want.tree == TreeId::TREE_LOG && block.node.is_leaf() && block.node.items().next().is_some_and(is_log)
}

/// The level of a tree block, by its extent item.
fn level_of(key: Key, data: &[u8]) -> Option<u8> {
    if key.kind == KeyType::METADATA_ITEM {
        return u8::try_from(key.offset).ok();
    }
    let (_, rest) = ExtentItem::read_from_prefix(data).ok()?;
    let (info, _) = TreeBlockInfo::read_from_prefix(rest).ok()?;
    Some(info.level)
}
