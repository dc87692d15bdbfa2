//! Owner, permissions and times, gathered as long as they are about one inode, and set at once.
//!
//! A change of the owner does not take the set-id bits: a stream that lost them sets the permissions as well, and one
//! that does not, the kernel's, means that they stay.

use crate::wire::Timespec;
use butterfs_fs::env::Time;
use butterfs_fs::inode::attr::mode::{S_ISGID, S_ISUID};
use butterfs_fs::{Attr, InodeId, SetAttr, SetTime};

/// The attributes to set on one inode.
#[derive(Default)]
pub(super) struct Gathered {
    pub id: Option<InodeId>,
    set: SetAttr,
}

impl Gathered {
    /// Whether this can be added to what is gathered; the caller has set the rest before otherwise.
    pub fn takes(&self, id: InodeId) -> bool {
        self.id.is_none_or(|own| own == id)
    }

    /// Adds the owner; a value of all ones leaves one as it is.
    pub fn own(&mut self, id: InodeId, uid: u32, gid: u32) {
        self.id = Some(id);
        let given = |value: u32| (value != u32::MAX).then_some(value);
        self.set.uid = given(uid).or(self.set.uid);
        self.set.gid = given(gid).or(self.set.gid);
    }

    /// Adds the permissions.
    pub fn permit(&mut self, id: InodeId, mode: u32) {
        self.id = Some(id);
        self.set.mode = Some(mode & 0o7777);
    }

    /// Adds the times.
    pub fn time(&mut self, id: InodeId, atime: Timespec, mtime: Timespec) {
        self.id = Some(id);
        let time = |time: Timespec| Some(SetTime::At(Time { sec: time.sec, nsec: time.nsec }));
        (self.set.atime, self.set.mtime) = (time(atime), time(mtime));
    }

    /// Takes what was gathered. `attr` is how the inode is now.
    pub fn take(&mut self, attr: impl FnOnce(InodeId) -> Option<Attr>) -> Option<(InodeId, SetAttr)> {
        let id = self.id.take()?;
        let mut set = std::mem::take(&mut self.set);
        if (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none() {
            let lent = attr(id).filter(|attr| attr.mode & (S_ISUID | S_ISGID) != 0);
            set.mode = lent.map(|attr| attr.mode & 0o7777);
        }
        Some((id, set))
    }
}
