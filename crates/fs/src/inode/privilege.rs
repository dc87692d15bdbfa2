//! The privileges that a file loses by a change of content or owner: set-id bits and `security.capability`.

use crate::error::Result;
use crate::inode::attr::mode::{S_ISGID, S_ISUID, S_IXGRP};
use crate::inode::attr::{mode, timespec};
use crate::inode::xattr::{self, CAPABILITY};
use crate::inode::{Inode, Known};
use crate::transaction::{Core, Handle};
use std::sync::Arc;

/// `mode` without the bits that lend the owner's or the group's rights. Without execution by the group, the
/// set-group-id bit lends nothing and stays.
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let group = if mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    mode & !(S_ISUID | group)
}

impl Inode {
    /// Whether [`kill_privileges`](Self::kill_privileges) would change anything; asked before a handle is joined.
    pub fn has_privileges(&self, core: &Core, set_id: bool) -> Result<bool> {
        let (file_mode, known) = self.with(|state| (state.mode(), state.capability.clone()));
        if file_mode & mode::S_IFMT == mode::S_IFDIR {
            return Ok(false);
        }
        if set_id && without_set_id(file_mode) != file_mode {
            return Ok(true);
        }
        if known != Known::Unknown {
            return Ok(known != Known::Absent);
        }
        let found = lends_capabilities(xattr::get(core, &self.tree, self.ino, CAPABILITY)?);
        self.remember(|state| state.capability = if found { Known::Present(()) } else { Known::Absent });
        Ok(found)
    }

    /// The content changes: the file loses its capabilities, and with `set_id` its set-id bits, in the same
    /// transaction. Two items are changed at most. The operation lock is held exclusively.
    pub fn kill_privileges(self: &Arc<Self>, handle: &Handle, set_id: bool) -> Result<()> {
        let core = handle.core();
        if !self.has_privileges(core, set_id)? {
            return Ok(());
        }
        self.drop_capability(handle)?;
        let now = core.env().now();
        self.change(|state| {
            if set_id {
                state.item.mode = without_set_id(state.mode()).into();
            }
            state.item.ctime = timespec(now);
        });
        Ok(())
    }

    /// Removes `security.capability`, if it lends anything. The operation lock is held exclusively.
    pub(crate) fn drop_capability(&self, handle: &Handle) -> Result<()> {
        if self.with(|state| state.capability == Known::Absent) {
            return Ok(());
        }
        if lends_capabilities(xattr::get(handle.core(), &self.tree, self.ino, CAPABILITY)?) {
            xattr::remove(handle, &self.tree, self.ino, CAPABILITY)?;
        }
        self.remember(|state| state.capability = Known::Absent);
        Ok(())
    }
}

/// An empty value lends nothing, and as in the kernel it stays.
fn lends_capabilities(value: Option<Vec<u8>>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::without_set_id;

    #[test]
    fn only_lent_rights_go() {
        for (before, after) in [(0o106755, 0o100755), (0o104644, 0o100644), (0o102644, 0o102644), (0o102710, 0o100710)]
        {
            assert_eq!(without_set_id(before), after, "{before:o}");
        }
    }
}
