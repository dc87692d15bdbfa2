//! The source of tree blocks for a reader of trees.
//!
//! A caller that holds nothing that others wait for reads missing blocks. Everybody else looks in memory only: a block
//! that is not there ends the operation with [`Error::Missing`] before it has changed anything, and is noted; whoever
//! called lets go of everything, reads what was noted, and begins again.

use super::tree::Fetched;
use super::{Core, Tree};
use crate::error::{Error, Result};
use butterfs_tree::{Node, NodePtr, NodeSource};
use std::cell::RefCell;
use std::sync::Arc;

/// The blocks that an operation did not find in memory.
#[derive(Default)]
pub struct Misses(RefCell<Option<Box<Missed>>>);

#[derive(Default)]
struct Missed {
    noted: Vec<NodePtr>,
    fetched: Fetched,
}

impl Misses {
    /// These are missing.
    pub fn note(&self, missing: &[NodePtr]) {
        self.0.borrow_mut().get_or_insert_default().noted.extend_from_slice(missing);
    }

    /// Reads what was noted since the last call; it stays in memory as long as this lives. Nothing that others wait for
    /// may be held. `tree`: where the blocks were missed.
    pub fn load(&self, core: &Core, tree: &Tree) -> Result<()> {
        let mut missed = self.0.borrow_mut();
        let Missed { noted, fetched } = &mut **missed.get_or_insert_default();
        noted.drain(..).try_for_each(|ptr| fetched.load(core, &ptr).map_err(|error| tree.excused(error)))
    }

    /// Reads a block, which stays in memory as long as this lives; none where the device has another one there.
    fn fetch(&self, core: &Core, ptr: &NodePtr) -> Result<Option<Arc<Node>>> {
        let node = core.nodes.load_unless_doubtful(ptr)?;
        if let Some(node) = &node {
            self.0.borrow_mut().get_or_insert_default().fetched.hold(Arc::clone(node));
        }
        Ok(node)
    }
}

/// See the [module](self).
#[derive(Clone, Copy)]
pub struct BlockSource<'a> {
    core: &'a Core,
    misses: Option<&'a Misses>,
    is_loading: bool,
}

impl<'a> BlockSource<'a> {
    /// Looks in memory only, and notes missing blocks.
    pub fn in_memory(core: &'a Core, misses: &'a Misses) -> BlockSource<'a> {
        BlockSource { core, misses: Some(misses), is_loading: false }
    }

    /// Memory and the devices, for who looks ahead with nothing held: `misses` keeps what was read in memory. A block
    /// that is no longer what a pointer promises is missing, and no damage.
    pub fn ahead(core: &'a Core, misses: &'a Misses) -> BlockSource<'a> {
        BlockSource { core, misses: Some(misses), is_loading: true }
    }

    /// Memory and the devices.
    pub fn loading(core: &'a Core) -> BlockSource<'a> {
        BlockSource { core, misses: None, is_loading: true }
    }

    /// The filesystem.
    pub fn core(&self) -> &'a Core {
        self.core
    }

    /// The list of missing blocks, or of those that were read ahead.
    pub fn misses(&self) -> Option<&'a Misses> {
        self.misses
    }

    /// Whether it reads from the devices.
    pub fn is_loading(&self) -> bool {
        self.is_loading
    }
}

impl NodeSource for BlockSource<'_> {
    type Error = Error;

    fn nodesize(&self) -> u32 {
        self.core.nodesize()
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        let Some(misses) = self.misses else { return self.core.nodes.load(ptr) };
        if let Some(node) = self.core.nodes.get(ptr) {
            return Ok(node);
        }
        if self.is_loading {
            return misses.fetch(self.core, ptr)?.ok_or_else(|| Error::Missing(Box::new(*ptr)));
        }
        misses.note(&[*ptr]);
        Err(Error::Missing(Box::new(*ptr)))
    }
}

impl<'a> From<&'a Core> for BlockSource<'a> {
    fn from(core: &'a Core) -> BlockSource<'a> {
        BlockSource::loading(core)
    }
}

impl<'a> From<&'a Arc<Core>> for BlockSource<'a> {
    fn from(core: &'a Arc<Core>) -> BlockSource<'a> {
        BlockSource::loading(core)
    }
}

/// Tries again until nothing is missing from memory. `attempt` takes what it holds, and lets go of it before it
/// returns.
pub(crate) fn without_waiting<R>(
    core: &Core,
    tree: &Tree,
    mut attempt: impl FnMut(BlockSource<'_>) -> Result<R>,
) -> Result<R> {
    let misses = Misses::default();
    loop {
        match attempt(BlockSource::in_memory(core, &misses)) {
            Err(Error::Missing(_)) => misses.load(core, tree)?,
            other => return other,
        }
    }
}
