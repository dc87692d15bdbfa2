//! Who may be opened how: features, logs, unfinished work of others, quotas.

use crate::error::{Errno, Error, Result};
use crate::options::Options;
use crate::transaction::{Core, Reserve};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{Admission, Key, KeyType, TreeId, admission};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Checks what the superblock says against what was asked for.
pub(super) fn admit(superblock: &Superblock, options: &mut Options, notes: &mut Vec<String>) -> Result<()> {
    match admission(superblock) {
        Admission::ReadWrite => {}
        Admission::ReadOnly(reason) if options.read_only => notes.push(reason),
        Admission::ReadOnly(reason) => {
            return Err(refused(Errno::EROFS, format!("{reason}; only reading is possible (mount with -o ro)")));
        }
        Admission::Refused(reason) => return Err(refused(Errno::EINVAL, reason)),
    }
    if options.no_log_replay && !options.read_only {
        return Err(refused(Errno::EINVAL, "nologreplay is only possible with ro".to_owned()));
    }
    if superblock.log_root.get() == 0 {
        return Ok(());
    }
    if !options.no_log_replay {
        let what = "the filesystem has a log tree with changes that were fsynced before a crash, and replaying it is \
                    not possible here; mount it with the kernel once, or read-only without those changes \
                    (-o ro,rescue=nologreplay)";
        return Err(refused(Errno::EROFS, what.to_owned()));
    }
    notes.push("the log tree is not replayed: what was fsynced last before a crash is not shown".to_owned());
    Ok(())
}

fn refused(errno: Errno, what: String) -> Error {
    Error::refused_at(errno, what)
}

/// Refuses to write where somebody else's work is half-done.
pub(super) fn refuse_unfinished_work(core: &Core) -> Result<()> {
    let unfinished = |what: &str| {
        let what = format!("{what} is unfinished; let the kernel finish it, or mount with -o ro");
        Err(refused(Errno::EROFS, what))
    };
    let globals = core.globals();
    if globals.root.get(core, Key::new(objectid::BALANCE, KeyType::TEMPORARY_ITEM, 0))?.is_some() {
        return unfinished("a balance");
    }
    let mut relocation = false;
    let reloc = TreeId::TREE_RELOC.0;
    let (from, to) = (Key::new(reloc, KeyType::ROOT_ITEM, 0), Key::new(reloc, KeyType::ROOT_ITEM, u64::MAX));
    globals.root.scan(core, from, to, &mut |_, _| {
        relocation = true;
        Ok(ControlFlow::Break(()))
    })?;
    if relocation {
        return unfinished("a relocation");
    }
    // The state of a replacement: 1 is "started", 4 is "suspended".
    let replace = globals.dev.get(core, Key::new(0, KeyType::DEV_REPLACE, 0))?;
    let state = replace.and_then(|item| item.get(24..32).map(|s| u64::from_le_bytes(s.try_into().expect("eight"))));
    if matches!(state, Some(1 | 4)) {
        return unfinished("a device replacement");
    }
    Ok(())
}

/// Quotas are not kept here: says so in the first transaction, so that others rescan.
pub(super) fn give_up_quotas(core: &Arc<Core>) -> Result<()> {
    const ON: u64 = 1;
    const INCONSISTENT: u64 = 4;
    let tree = match core.tree(TreeId::QUOTA) {
        Err(error) if error.is(Errno::ENOENT) => return Ok(()),
        other => other?,
    };
    let key = Key::new(0, KeyType::QGROUP_STATUS, 0);
    let flags_of = |data: &[u8]| data.get(16..24).map(|f| u64::from_le_bytes(f.try_into().expect("eight")));
    let flags = tree.get(core, key)?.and_then(|item| flags_of(&item));
    let Some(flags) = flags.filter(|flags| flags & ON != 0 && flags & INCONSISTENT == 0) else { return Ok(()) };
    let handle = core.start(Reserve::items(1))?;
    tree.update(&handle, key, |data| data[16..24].copy_from_slice(&(flags | INCONSISTENT).to_le_bytes()))?;
    Ok(())
}
