//! The references of one extent, as they lie in the extent tree: those inside its item, then those with keys of their
//! own.

use super::ExtentAt;
use super::view::View;
use crate::error::Result;
use crate::transaction::extent_item::counted;
use crate::transaction::refs::RefBy;
use butterfs_ondisk::items::ExtentDataRef;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// References that are read at a time.
const SLICE: usize = 256;

/// See the [module](self). Holds one slice.
#[derive(Debug, Default)]
pub(super) struct References {
    slice: VecDeque<RefBy>,
    /// The key at which the search continues; the item itself comes first.
    next: Option<Key>,
    /// Nothing follows the slice.
    is_last: bool,
}

impl References {
    /// None at all.
    pub fn ended() -> References {
        References { is_last: true, ..References::default() }
    }

    /// Whether all have been taken.
    pub fn at_end(&self) -> bool {
        self.is_last && self.slice.is_empty()
    }

    /// The first reference that has not been taken.
    pub fn first(&mut self, view: &View<'_>, extent: &ExtentAt) -> Result<Option<RefBy>> {
        while self.slice.is_empty() && !self.is_last {
            match self.next {
                None => self.read_item(view, extent)?,
                Some(from) => self.read_keyed(view, extent, from)?,
            }
        }
        Ok(self.slice.front().copied())
    }

    /// Takes it.
    pub fn pop(&mut self) {
        self.slice.pop_front();
    }

    fn read_item(&mut self, view: &View<'_>, extent: &ExtentAt) -> Result<()> {
        let record = match extent.level {
            Some(level) => view.record(extent.start, level)?,
            None => view.data_record(extent)?,
        };
        match record {
            Some(record) => self.slice.extend(record.inline.iter().map(|reference| reference.by)),
            None => self.is_last = true,
        }
        self.next = Some(Key::new(extent.start.0, KeyType::TREE_BLOCK_REF, 0));
        Ok(())
    }

    fn read_keyed(&mut self, view: &View<'_>, extent: &ExtentAt, from: Key) -> Result<()> {
        let (mut found, mut next) = (VecDeque::new(), from);
        let last = Key::new(extent.start.0, KeyType::SHARED_DATA_REF, u64::MAX);
        butterfs_tree::scan(view, &view.extents()?, &from, &last, &mut |key, payload| {
            found.extend(keyed(key, payload));
            next = key;
            Ok(if found.len() < SLICE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        self.is_last = found.len() < SLICE || next == last;
        self.next = Some(if self.is_last { last } else { next.successor() });
        self.slice = found;
        Ok(())
    }
}

/// The reference in an item with a key of its own.
pub(crate) fn keyed(key: Key, payload: &[u8]) -> Option<RefBy> {
    match key.kind {
        KeyType::TREE_BLOCK_REF => Some(RefBy::Tree(TreeId(key.offset))),
        KeyType::SHARED_BLOCK_REF => Some(RefBy::Block(Logical(key.offset))),
        KeyType::EXTENT_DATA_REF => ExtentDataRef::read_from_bytes(payload).ok().map(|item| counted(&item).by),
        KeyType::SHARED_DATA_REF => Some(RefBy::Leaf(Logical(key.offset))),
        _ => None,
    }
}
