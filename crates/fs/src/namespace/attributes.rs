//! Changing what `stat` shows.

use super::Namespace;
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::inode::acl::{self, Acl};
use crate::inode::attr::{Attr, Caller, InodeId, SetAttr, SetTime, mode, timespec};
use crate::inode::privilege::without_set_id;
use crate::inode::refusals::FIXED;
use crate::inode::xattr::{self, Demand};
use crate::inode::{Inode, InodeState, Known, preload};
use crate::options::AccessTimes;
use crate::space::Class;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::items::inode_flags;
use std::sync::Arc;

impl Namespace {
    /// Changes attributes. A new size is given by `resize`, which runs first, holds no lock when it is called, and
    /// sees to the times and set-id bits that go with the size, also to a time of modification that is to be now.
    pub fn setattr(
        &self,
        caller: &Caller,
        id: InodeId,
        set: &SetAttr,
        resize: &mut dyn FnMut(&Arc<Inode>, u64) -> Result<()>,
    ) -> Result<Attr> {
        let inode = self.inode(id)?;
        check(&inode, set)?;
        if let Some(size) = set.size {
            resize(&inode, size)?;
        }
        let mtime = set.mtime.filter(|time| set.size.is_none() || *time != SetTime::Now);
        let rest = SetAttr { size: None, mtime, kill_suidgid: set.kill_suidgid && set.size.is_none(), ..*set };
        if rest != SetAttr::default() {
            self.preload_attributes(&inode, &rest);
            self.run(Reserve::items(3), |handle| {
                let _guard = inode.lock_exclusive()?;
                check(&inode, &rest)?;
                change(handle, caller, &inode, &rest)
            })?;
        }
        Ok(inode.attr())
    }

    fn preload_attributes(&self, inode: &Inode, set: &SetAttr) {
        if set.mode.is_some() {
            preload::attribute(self.core(), &inode.tree, inode.ino, acl::ACCESS);
        }
        let may_lose_capability = set.uid.is_some() || set.gid.is_some() || set.kill_suidgid || set.kill_capability;
        if may_lose_capability && inode.with(|state| state.capability != Known::Absent) {
            preload::attribute(self.core(), &inode.tree, inode.ino, xattr::CAPABILITY);
        }
    }

    /// An inode was read: its access time follows, as the mount's options have it.
    pub fn note_access(&self, inode: &Arc<Inode>) {
        let always = self.core().options().access_times == AccessTimes::Always;
        self.move_access_time(inode, |state, now| always || access_is_due(state, now));
    }

    /// An inode is about to be read, and perhaps from a cache of somebody who does not tell: only a time that is due
    /// under `relatime` follows. Says whether it did.
    pub fn note_coming_access(&self, inode: &Arc<Inode>) -> bool {
        self.move_access_time(inode, access_is_due)
    }

    /// Whether the next commit finds room for one more access time. Nothing is reserved for them, and each may change a
    /// leaf of its own: on a full disk many of them would leave no room for the commit itself, so they stay as they
    /// are.
    fn has_room_for_access_time(&self) -> bool {
        let core = self.core();
        let needed = (core.dirty_inodes.len() as u64 + 1) * u64::from(core.nodesize());
        core.space.available(Class::Metadata) >= needed || core.has_spare_chunks()
    }

    fn move_access_time(&self, inode: &Arc<Inode>, is_due: impl Fn(&InodeState, Time) -> bool) -> bool {
        let core = self.core();
        let never = core.options().access_times == AccessTimes::Never;
        let off = never || core.is_read_only() || inode.tree.is_readonly() || core.aborted().is_some();
        if off || inode.with(|state| state.has(inode_flags::NOATIME)) {
            return false;
        }
        let now = core.env().now();
        let moves = inode.with(|state| is_due(state, now)) && self.has_room_for_access_time();
        if moves {
            inode.change_uncounted(|state| state.item.atime = timespec(now));
        }
        moves
    }
}

/// `relatime`: the old access time is not later than a change, or a day old.
fn access_is_due(state: &InodeState, now: Time) -> bool {
    let of = crate::inode::attr::time_of;
    let (atime, item) = (of(state.item.atime), &state.item);
    atime <= of(item.mtime) || atime <= of(item.ctime) || now.sec.saturating_sub(atime.sec) >= 24 * 60 * 60
}

fn check(inode: &Inode, set: &SetAttr) -> Result<()> {
    inode.must_be_writable()?;
    let explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let fixed =
        set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || explicit(set.atime) || explicit(set.mtime);
    // An append-only file may still be touched; truncating it is as forbidden as overwriting it.
    inode.must_not_have(if fixed || set.size.is_some() { FIXED } else { inode_flags::IMMUTABLE })?;
    if set.size.is_some() {
        match inode.with(|state| state.mode()) & mode::S_IFMT {
            mode::S_IFREG => {}
            mode::S_IFDIR => return Err(Error::refused(Errno::EISDIR, "a directory has no size to set")),
            _ => return Err(Error::refused(Errno::EINVAL, "only regular files have a size to set")),
        }
    }
    Ok(())
}

fn change(handle: &Handle, caller: &Caller, inode: &Arc<Inode>, set: &SetAttr) -> Result<()> {
    let core = handle.core();
    let (old_mode, old_gid) = inode.with(|state| (state.mode(), state.item.gid.get()));
    let kind = old_mode & mode::S_IFMT;
    let is_directory = kind == mode::S_IFDIR;
    // What is not written to loses its capabilities only by a chown, be it one that changes nothing.
    let chown_to_the_same = set.kill_suidgid || set.kill_capability && kind != mode::S_IFREG;
    let owner = inode.with(|state| state.item.uid.get());
    if chown_to_the_same && !is_directory && without_set_id(old_mode) != old_mode && ![0, owner].contains(&caller.uid) {
        return Err(Error::refused(Errno::EPERM, "only the owner takes set-id bits away"));
    }
    let owner_changes = !is_directory && (set.uid.is_some() || set.gid.is_some() || chown_to_the_same);
    let mut new_mode = match set.mode {
        Some(new_mode) => kind | new_mode & mode::PERMISSIONS,
        None if owner_changes => without_set_id(old_mode),
        None if set.written_by_user && !is_directory => without_set_id(old_mode),
        None => old_mode,
    };
    let gid = set.gid.unwrap_or(old_gid);
    if set.mode.is_some() && !caller.privileged && caller.gid != gid {
        new_mode &= !mode::S_ISGID;
    }
    if set.mode.is_some() {
        adapt_acl(handle, inode, new_mode)?;
    }
    if owner_changes || set.kill_capability && !is_directory {
        inode.drop_capability(handle)?;
    }
    let now = core.env().now();
    let time = |set| match set {
        SetTime::Now => timespec(now),
        SetTime::At(time) => timespec(time),
    };
    inode.change(|state| {
        let item = &mut state.item;
        item.mode = new_mode.into();
        item.uid = set.uid.unwrap_or(item.uid.get()).into();
        item.gid = gid.into();
        item.atime = set.atime.map_or(item.atime, time);
        item.mtime = set.mtime.map_or(item.mtime, time);
        item.ctime = timespec(set.ctime.unwrap_or(now));
    });
    Ok(())
}

/// The access ACL says the same as the new mode.
fn adapt_acl(handle: &Handle, inode: &Inode, new_mode: u32) -> Result<()> {
    if new_mode & mode::S_IFMT == mode::S_IFLNK {
        return Ok(());
    }
    let stored = xattr::get(handle.core(), &inode.tree, inode.ino, acl::ACCESS)?;
    let Some(access) = stored.as_deref().map(Acl::parse).transpose()?.flatten() else { return Ok(()) };
    let value = access.after_chmod(new_mode).to_bytes();
    xattr::set(handle, &inode.tree, inode.ino, acl::ACCESS, &value, Demand::Any)
}
