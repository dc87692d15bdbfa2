//! The content of a block group, as the extent tree lists it.

use crate::error::Result;
use crate::space::GroupInfo;
use crate::transaction::Core;
use crate::transaction::extent_item::ExtentRecord;
use butterfs_ondisk::items::extent_flags;
use butterfs_ondisk::{Key, KeyType, Level, Logical};
use std::ops::ControlFlow;

/// An extent of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A tree block.
    Block(Logical, Level),
    /// Data, and its bytes.
    Data(Logical, u64),
}

/// How much is taken at once.
pub(super) struct Most {
    pub extents: usize,
    pub data_bytes: u64,
}

/// The extents of `group` from `from` on, at most `most`, and where to look on; nowhere at the end.
pub(super) fn contents(
    core: &Core,
    group: &GroupInfo,
    from: Logical,
    most: &Most,
) -> Result<(Vec<Content>, Option<Logical>)> {
    let end = group.start.plus(group.length);
    let (mut found, mut bytes, mut next) = (Vec::new(), 0, None);
    let last = Key::new(end.0 - 1, KeyType(255), u64::MAX);
    core.globals().extent.scan(core, Key::new(from.0, KeyType(0), 0), last, &mut |key, payload| {
        if !matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) {
            return Ok(ControlFlow::Continue(()));
        }
        if found.len() >= most.extents || bytes >= most.data_bytes {
            next = Some(Logical(key.objectid));
            return Ok(ControlFlow::Break(()));
        }
        let content = parse(key, payload)?;
        if let Content::Data(_, len) = content {
            bytes += len;
        }
        found.push(content);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((found, next))
}

fn parse(key: Key, payload: &[u8]) -> Result<Content> {
    let at = Logical(key.objectid);
    if key.kind == KeyType::METADATA_ITEM {
        return Ok(Content::Block(at, Level(key.offset as u8)));
    }
    let record = ExtentRecord::parse(at, key.kind, payload)?;
    match record.block_info {
        Some(info) if record.flags & extent_flags::TREE_BLOCK != 0 => Ok(Content::Block(at, Level(info.level))),
        _ => Ok(Content::Data(at, key.offset)),
    }
}
