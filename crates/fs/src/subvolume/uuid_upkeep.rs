//! Keeping the UUID tree: making it where there is none, and mending it where somebody left it behind.

use super::uuid_tree::{self, mend};
use crate::error::Result;
use crate::transaction::{Core, Reserve, Tree};
use butterfs_ondisk::TreeId;
use butterfs_ondisk::items::{InodeItem, RootItem};
use std::sync::Arc;

/// Flaws that one transaction mends.
const BATCH: usize = 256;

/// Makes the UUID tree complete and right, whatever it holds; from then on commits say that it is. Returns how many
/// entries were wrong. `go_on` is asked between batches.
pub fn mend_uuid_tree(core: &Arc<Core>, go_on: &dyn Fn() -> bool) -> Result<usize> {
    if uuid_tree::tree(core)?.is_none() {
        let handle = core.start(Reserve::items(2))?;
        let generation = handle.generation().0;
        let item = RootItem {
            inode: InodeItem { generation: 1.into(), size: 3.into(), nlink: 1.into(), ..InodeItem::default() },
            generation: generation.into(),
            generation_v2: generation.into(),
            refs: 1.into(),
            ..RootItem::default()
        };
        core.remember_tree(Arc::new(Tree::create(&handle, TreeId::UUID, item)?));
    }
    let mut mended = 0;
    loop {
        let flaws = uuid_tree::flaws(core, BATCH)?;
        if flaws.is_empty() || !go_on() {
            break;
        }
        mended += flaws.len();
        let handle = core.start(Reserve::items(flaws.len() as u64))?;
        for flaw in flaws {
            mend(&handle, flaw)?;
        }
    }
    core.set_uuid_tree_current();
    Ok(mended)
}
