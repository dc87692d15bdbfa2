//! Extended attributes.

use crate::error::{Error, Result};
use crate::node::Node;
use butterfs_fs::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

impl Node {
    /// The value of an extended attribute, such as `user.comment` or `security.selinux`; none if there is no such
    /// attribute.
    pub fn xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        match self.engine()?.get_xattr(self.id(), name.as_ref().as_bytes()) {
            Err(error) if error.is(Errno::ENODATA) => Ok(None),
            value => Ok(Some(value?)),
        }
    }

    /// Sets an extended attribute. POSIX ACLs are the attributes `system.posix_acl_access` and
    /// `system.posix_acl_default`, in the binary form of Linux.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: &[u8]) -> Result<()> {
        let caller = self.shared().caller();
        self.engine()?.set_xattr(&caller, self.id(), name.as_ref().as_bytes(), value, 0).map_err(Error::from)
    }

    /// Removes an extended attribute; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let caller = self.shared().caller();
        self.engine()?.remove_xattr(&caller, self.id(), name.as_ref().as_bytes()).map_err(Error::from)
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self) -> Result<Vec<OsString>> {
        let list = self.engine()?.list_xattrs(self.id())?;
        let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }
}
