//! What a user may do, checked as the kernel checks it before one of its ioctls: by mode, owner and ACL of the inodes.
//! Whether the user can get to them, the descriptors of a question have shown.

use super::Refusal;
use butterfs_fs::inode::acl::{self, Acl, Asker};
use butterfs_fs::{Attr, Errno, Filesystem, InodeId};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// More groups.
    pub groups: Vec<u32>,
    /// May do everything.
    pub privileged: bool,
}

impl Peer {
    /// Root, or whoever has opened the image itself.
    pub fn privileged(uid: u32, gid: u32) -> Peer {
        Peer { uid, gid, groups: Vec::new(), privileged: true }
    }

    fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A peer in front of a filesystem.
pub struct Access<'a> {
    /// The filesystem.
    pub filesystem: &'a Filesystem,
    /// The peer.
    pub peer: &'a Peer,
}

impl Access<'_> {
    /// Refuses those who are not privileged.
    pub fn must_be_privileged(&self) -> Result<(), Refusal> {
        if self.peer.privileged {
            return Ok(());
        }
        Err(Refusal::new(Errno::EPERM.0, "only root, or the user who mounted the filesystem, may do this"))
    }

    /// Refuses when the peer cannot make or remove entries in a directory.
    pub fn must_change_entries(&self, directory: InodeId) -> Result<Attr, Refusal> {
        let attr = self.filesystem.getattr(directory)?;
        self.must_allow(&attr, WRITE | SEARCH)?;
        Ok(attr)
    }

    /// Refuses those who do not own the inode.
    pub fn must_own(&self, attr: &Attr) -> Result<(), Refusal> {
        if self.peer.privileged || self.peer.uid == attr.uid {
            return Ok(());
        }
        Err(Refusal::new(Errno::EPERM.0, "only its owner and root may do this"))
    }

    /// Refuses when the peer may not delete a subvolume from a directory.
    pub fn must_delete(&self, directory: InodeId, subvolume: InodeId) -> Result<(), Refusal> {
        let holder = self.must_change_entries(directory)?;
        if self.peer.privileged {
            return Ok(());
        }
        if !self.filesystem.options().user_subvol_rm_allowed {
            let sentence = "only root deletes subvolumes, unless the mount has the option user_subvol_rm_allowed";
            return Err(Refusal::new(Errno::EPERM.0, sentence));
        }
        let attr = self.filesystem.getattr(subvolume)?;
        if holder.mode & STICKY != 0 && ![attr.uid, holder.uid].contains(&self.peer.uid) {
            return Err(Refusal::new(Errno::EPERM.0, "the directory is sticky and the subvolume another user's"));
        }
        self.must_allow(&attr, WRITE | SEARCH)
    }

    /// Refuses those who may not read the inode.
    pub fn must_read(&self, attr: &Attr) -> Result<(), Refusal> {
        self.must_allow(attr, READ)
    }

    /// Refuses those who may not write to the inode.
    pub fn must_write(&self, attr: &Attr) -> Result<(), Refusal> {
        self.must_allow(attr, WRITE)
    }

    fn must_allow(&self, attr: &Attr, want: u32) -> Result<(), Refusal> {
        if self.peer.privileged || self.permissions(attr, want)? {
            return Ok(());
        }
        Err(Refusal::new(Errno::EACCES.0, "permission denied"))
    }

    fn permissions(&self, attr: &Attr, want: u32) -> Result<bool, Refusal> {
        let peer = self.peer;
        let acl = match self.filesystem.get_xattr(attr.id, acl::ACCESS) {
            Ok(value) => Acl::parse(&value)?,
            Err(error) if [Errno::ENODATA, Errno::EOPNOTSUPP].contains(&error.errno()) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(acl) = acl {
            let in_group = |gid| peer.in_group(gid);
            let asker = Asker { uid: peer.uid, in_group: &in_group, owner: attr.uid, group: attr.gid };
            return Ok(acl.allows(&asker, want));
        }
        let shift = match () {
            () if peer.uid == attr.uid => 6,
            () if peer.in_group(attr.gid) => 3,
            () => 0,
        };
        Ok(attr.mode >> shift & want == want)
    }
}
