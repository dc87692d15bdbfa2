//! The permissions of a user, checked as the kernel checks it before one of its ioctls: by mode, owner and ACL of the
//! inodes. Whether the user can get to them, the descriptors of a question have shown.

use super::Refused;
use super::perform::must_be_subvolume;
use butterfs_fs::inode::acl::{self, Acl, Asker};
use butterfs_fs::{Attr, Errno, Filesystem, InodeId};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;

const NOT_PRIVILEGED: &str = "only root with CAP_SYS_ADMIN, or the user who mounted the filesystem, may do this";

/// The asker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// More groups.
    pub groups: Vec<u32>,
    /// Further privileges.
    pub capabilities: Capabilities,
}

/// Those of capabilities(7), in the user namespace that the filesystem is mounted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// An ordinary user.
    pub const NONE: Capabilities = Capabilities(0);
    /// Root, or whoever has opened the image itself.
    pub const ALL: Capabilities = Capabilities(u64::MAX);
    /// CAP_DAC_OVERRIDE: permissions do not count.
    pub const OVERRIDE: Capabilities = Capabilities(1 << 1);
    /// CAP_DAC_READ_SEARCH: permissions to read do not count.
    pub const READ: Capabilities = Capabilities(1 << 2);
    /// CAP_FOWNER: as if it owned everything.
    pub const OWNER: Capabilities = Capabilities(1 << 3);
    /// CAP_FSETID: may make programs that lend their group.
    pub const SET_ID: Capabilities = Capabilities(1 << 4);
    /// CAP_SYS_ADMIN.
    pub const ADMINISTRATION: Capabilities = Capabilities(1 << 21);

    /// From the bits of the kernel.
    pub fn from_bits(bits: u64) -> Capabilities {
        Capabilities(bits)
    }

    /// As bits of the kernel.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `others` are among them.
    pub fn include(self, others: Capabilities) -> bool {
        self.0 & others.0 == others.0
    }
}

impl Peer {
    /// A peer with every privilege.
    pub fn privileged(uid: u32, gid: u32) -> Peer {
        Peer { uid, gid, groups: Vec::new(), capabilities: Capabilities::ALL }
    }

    /// Whether it has all of these capabilities.
    pub fn has(&self, capabilities: Capabilities) -> bool {
        self.capabilities.include(capabilities)
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
    pub fn must_be_privileged(&self) -> Result<(), Refused> {
        if self.peer.has(Capabilities::ADMINISTRATION) {
            return Ok(());
        }
        Err(Refused::new(Errno::EPERM.0, NOT_PRIVILEGED))
    }

    /// Refuses those who may not search every directory.
    pub fn must_see_all_paths(&self) -> Result<(), Refused> {
        if self.peer.has(Capabilities::READ) {
            return Ok(());
        }
        Err(Refused::new(Errno::EPERM.0, "only root with CAP_DAC_READ_SEARCH may do this"))
    }

    /// Refuses when the peer cannot make or remove entries in a directory.
    pub fn must_change_entries(&self, directory: InodeId) -> Result<Attr, Refused> {
        let attr = self.filesystem.getattr(directory)?;
        self.must_allow(&attr, WRITE | SEARCH)?;
        Ok(attr)
    }

    /// Refuses those who do not own the inode.
    pub fn must_own(&self, attr: &Attr) -> Result<(), Refused> {
        if self.peer.has(Capabilities::OWNER) || self.peer.uid == attr.uid {
            return Ok(());
        }
        Err(Refused::new(Errno::EPERM.0, "only its owner and root may do this"))
    }

    /// Refuses when the peer may not delete from a directory what a lookup found in it. The order is the kernel's.
    pub fn must_delete(&self, directory: InodeId, found: InodeId) -> Result<(), Refused> {
        let is_administrator = self.peer.has(Capabilities::ADMINISTRATION);
        if !is_administrator && !self.filesystem.options().user_subvol_rm_allowed {
            let sentence = "only root deletes subvolumes, unless the mount has the option user_subvol_rm_allowed";
            return Err(Refused::new(Errno::EPERM.0, sentence));
        }
        must_be_subvolume(found)?;
        let attr = self.filesystem.getattr(found)?;
        if !is_administrator {
            if self.filesystem.subvolume_info(found.tree)?.is_readonly() {
                return Err(Refused::new(Errno::EROFS.0, "only root deletes subvolumes that are read-only"));
            }
            self.must_allow(&attr, WRITE | SEARCH)?;
        }
        let holder = self.must_change_entries(directory)?;
        let owns_one = [attr.uid, holder.uid].contains(&self.peer.uid) || self.peer.has(Capabilities::OWNER);
        if holder.mode & STICKY != 0 && !owns_one {
            return Err(Refused::new(Errno::EPERM.0, "the directory is sticky and the subvolume another user's"));
        }
        Ok(())
    }

    /// Refuses those who may not read the inode.
    pub fn must_read(&self, attr: &Attr) -> Result<(), Refused> {
        self.must_allow(attr, READ)
    }

    /// Refuses those who may not search a directory.
    pub fn must_search(&self, directory: InodeId) -> Result<(), Refused> {
        self.must_allow(&self.filesystem.getattr(directory)?, SEARCH)
    }

    /// Refuses those who may not write to the inode.
    pub fn must_write(&self, attr: &Attr) -> Result<(), Refused> {
        self.must_allow(attr, WRITE)
    }

    fn must_allow(&self, attr: &Attr, want: u32) -> Result<(), Refused> {
        let reads_all = want & WRITE == 0 && self.peer.has(Capabilities::READ);
        if reads_all || self.peer.has(Capabilities::OVERRIDE) || self.permissions(attr, want)? {
            return Ok(());
        }
        Err(Refused::new(Errno::EACCES.0, "permission denied"))
    }

    fn permissions(&self, attr: &Attr, want: u32) -> Result<bool, Refused> {
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
