//! Owner, mode, flags, extended attributes and times, in the order in which they do not undo each other: attributes but
//! capabilities, owner, mode, flags, capabilities, times.

use super::error::Result;
use super::inherited::Xattrs;
use super::output::Output;
use crate::wire::{Command, Timespec, Version};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::inode::xattr::CAPABILITY;
use butterfs_fs::inode_flags;
use butterfs_ondisk::items::{InodeItem, Timespec as DiskTime};

/// Flags that a user can set; that a file is compressed follows from its property, which is an attribute.
const FLAGS_OF_USERS: u64 = inode_flags::NODATACOW
    | inode_flags::NODATASUM
    | inode_flags::NOCOMPRESS
    | inode_flags::SYNC
    | inode_flags::IMMUTABLE
    | inode_flags::APPEND
    | inode_flags::NODUMP
    | inode_flags::NOATIME
    | inode_flags::DIRSYNC;
/// Flags that only an empty file can get.
const FLAGS_OF_DATA: u64 = inode_flags::NODATACOW | inode_flags::NODATASUM;
/// Flags that forbid what comes after them.
const FLAGS_THAT_LOCK: u64 = inode_flags::IMMUTABLE | inode_flags::APPEND;

/// The attribute whose value the kernel stores empty for an ACL without entries, and does not take empty.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const EMPTY_ACL: [u8; 4] = [2, 0, 0, 0];

/// Operations on an inode that have consequences for its attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disturbed {
    /// Owner or group may be others than one would think.
    pub owner: bool,
    /// The mode may be another one than one would think.
    pub mode: bool,
    /// Content was written.
    pub content: bool,
    /// Entries were made or removed.
    pub entries: bool,
}

fn time(time: DiskTime) -> Timespec {
    Timespec { sec: time.sec.get(), nsec: time.nsec.get() }
}

/// The mode that an object has when it was just made.
fn initial_mode(kind: u32) -> Option<u32> {
    match kind {
        mode::S_IFREG => Some(0o600),
        mode::S_IFDIR => Some(0o700),
        _ => None,
    }
}

/// Sends an attribute.
pub fn set_xattr(path: &[u8], name: &[u8], value: &[u8], out: &mut Output<'_, '_>) -> Result<()> {
    let value = if value.is_empty() && ACLS.contains(&name) { &EMPTY_ACL } else { value };
    out.put(&Command::SetXattr { path, name, value })
}

/// Sends what differs between two sets of attributes, but for a capability that is set. True when one sets the mode.
pub fn change_xattrs(path: &[u8], old: &Xattrs, new: &Xattrs, out: &mut Output<'_, '_>) -> Result<bool> {
    let mut sets_mode = false;
    for (name, value) in new {
        if old.get(name) != Some(value) && name != CAPABILITY {
            set_xattr(path, name, value, out)?;
            sets_mode |= name == ACLS[0];
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        out.put(&Command::RemoveXattr { path, name })?;
    }
    Ok(sets_mode)
}

/// Sends the flags that must be set before there is content.
pub fn flags_before_data(path: &[u8], new: &InodeItem, out: &mut Output<'_, '_>) -> Result<()> {
    let flags = new.flags.get() & FLAGS_OF_DATA;
    if flags != 0 && out.version() >= Version::V2 {
        out.put(&Command::Fileattr { path, flags: new.flags.get() & !FLAGS_THAT_LOCK })?;
    }
    Ok(())
}

/// Sends owner, mode and flags where they are not what they are at the receiver. True when capabilities are lost.
pub fn change(
    path: &[u8],
    old: Option<&InodeItem>,
    new: &InodeItem,
    disturbed: Disturbed,
    out: &mut Output<'_, '_>,
) -> Result<bool> {
    let (uid, gid) = (new.uid.get(), new.gid.get());
    let (kind, permissions) = (new.mode.get() & mode::S_IFMT, new.mode.get() & mode::PERMISSIONS);
    let chown = disturbed.owner || old.map_or((0, 0), |old| (old.uid.get(), old.gid.get())) != (uid, gid);
    if chown {
        out.put(&Command::Chown { path, uid: uid.into(), gid: gid.into() })?;
    }
    let before = old.map_or(initial_mode(kind), |old| Some(old.mode.get() & mode::PERMISSIONS));
    let lost = chown && permissions & (mode::S_ISUID | mode::S_ISGID) != 0;
    if kind != mode::S_IFLNK && (disturbed.mode || lost || before != Some(permissions)) {
        out.put(&Command::Chmod { path, mode: permissions.into() })?;
    }
    let flags = |item: &InodeItem| item.flags.get() & FLAGS_OF_USERS;
    let known = old.map_or(0, flags);
    // Those of a new file's data were sent before the data.
    let sent = old.is_none() && kind == mode::S_IFREG && flags(new) & !FLAGS_OF_DATA == 0;
    if out.version() >= Version::V2 && flags(new) != known && !sent {
        out.put(&Command::Fileattr { path, flags: new.flags.get() })?;
    }
    Ok(chown)
}

/// Sends the times, where they are not what they are at the receiver.
pub fn times(
    path: &[u8],
    old: Option<&InodeItem>,
    new: &InodeItem,
    disturbed: Disturbed,
    out: &mut Output<'_, '_>,
) -> Result<()> {
    let same = old.is_some_and(|old| (old.atime, old.mtime) == (new.atime, new.mtime));
    if same && !disturbed.content && !disturbed.entries {
        return Ok(());
    }
    let otime = (old.is_none() && out.version() >= Version::V2).then(|| time(new.otime));
    let [atime, mtime, ctime] = [new.atime, new.mtime, new.ctime].map(time);
    out.put(&Command::Utimes { path, atime, mtime, ctime, otime })
}
