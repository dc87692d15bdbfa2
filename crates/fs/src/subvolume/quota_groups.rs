//! The quota group of a new subvolume, where quotas are on. Nothing is counted here: the numbers are marked
//! inconsistent when the filesystem is opened for writing. But a rescan counts only groups that exist.

use crate::error::{Errno, Result};
use crate::transaction::Handle;
use butterfs_ondisk::items::{QgroupInfo, QgroupLimit, QgroupStatus};
use butterfs_ondisk::{Key, KeyType, TreeId};
use zerocopy::{FromZeros, IntoBytes};

/// Inserts the items of the subvolume's group, without numbers or limits.
pub(super) fn add(handle: &Handle, id: TreeId) -> Result<()> {
    let core = handle.core();
    let tree = match core.tree(TreeId::QUOTA) {
        Err(error) if error.is(Errno::ENOENT) => return Ok(()),
        other => other?,
    };
    let status = tree.get(core, Key::new(0, KeyType::QGROUP_STATUS, 0))?;
    let flags = status.as_ref().and_then(|item| item.get(16..24)).map(|flags| flags.try_into().expect("eight bytes"));
    if flags.map_or(0, u64::from_le_bytes) & QgroupStatus::ON == 0 {
        return Ok(());
    }
    let info = QgroupInfo { generation: handle.generation().0.into(), ..QgroupInfo::new_zeroed() };
    let limit = QgroupLimit::new_zeroed();
    for (kind, data) in [(KeyType::QGROUP_INFO, info.as_bytes()), (KeyType::QGROUP_LIMIT, limit.as_bytes())] {
        // A group that was made before its subvolume stays as it is.
        tree.insert(handle, Key::new(0, kind, id.0), data)?;
    }
    Ok(())
}
