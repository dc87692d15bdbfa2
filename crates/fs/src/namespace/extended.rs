//! Extended attributes as users see them, and what some of them mean: ACLs, the compression property, capabilities.

use super::Namespace;
use crate::error::{Errno, Error, Result};
use crate::inode::acl::{self, Acl};
use crate::inode::attr::{Caller, InodeId, mode};
use crate::inode::capability;
use crate::inode::property::{self, COMPRESSION, Compression};
use crate::inode::refusals::FIXED;
use crate::inode::xattr::{self, CAPABILITY, Demand};
use crate::inode::{Inode, Known, preload};
use crate::transaction::{Handle, Reserve};
use std::sync::Arc;

/// Items that setting an attribute changes: its own, and the inode's.
const ITEMS: u64 = 2;

/// Prefixes of names that are stored as they are.
const PLAIN: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The meaning of an attribute's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Plain,
    AccessAcl,
    DefaultAcl,
    Compression,
}

impl Meaning {
    fn of(name: &[u8]) -> Result<Meaning> {
        xattr::check_name(name)?;
        let plain = PLAIN.iter().find_map(|prefix| name.strip_prefix(*prefix));
        match (name, plain) {
            (_, Some(b"")) => Err(Error::refused(Errno::EINVAL, "the attribute's name ends after its prefix")),
            (_, Some(_)) => Ok(Meaning::Plain),
            (acl::ACCESS, _) => Ok(Meaning::AccessAcl),
            (acl::DEFAULT, _) => Ok(Meaning::DefaultAcl),
            (COMPRESSION, _) => Ok(Meaning::Compression),
            (name, _) if name.starts_with(property::PREFIX) => {
                Err(Error::refused(Errno::EINVAL, "there is no such property"))
            }
            _ => Err(Error::refused(Errno::EOPNOTSUPP, "attributes are in user., trusted., security. or btrfs.")),
        }
    }
}

impl Namespace {
    /// The value of an attribute; `ENODATA` when there is none.
    pub fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let missing = || Error::refused(Errno::ENODATA, "there is no such attribute");
        match Meaning::of(name) {
            Err(error) if name.starts_with(property::PREFIX) && error.is(Errno::EINVAL) => return Err(missing()),
            other => other?,
        };
        if id.is_placeholder() {
            return Err(missing());
        }
        let inode = self.inode(id)?;
        xattr::get(self.core(), &inode.tree, inode.ino, name)?.ok_or_else(missing)
    }

    /// The names of all attributes, each followed by a zero byte.
    pub fn list_xattrs(&self, id: InodeId) -> Result<Vec<u8>> {
        if id.is_placeholder() {
            return Ok(Vec::new());
        }
        let inode = self.inode(id)?;
        xattr::list(self.core(), &inode.tree, inode.ino)
    }

    /// Sets an attribute; `flags` as for `setxattr`.
    pub fn set_xattr(&self, caller: &Caller, id: InodeId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let (meaning, demand) = (Meaning::of(name)?, Demand::of_flags(flags)?);
        if name == CAPABILITY {
            capability::check(value)?;
        }
        let inode = self.inode(id)?;
        preload::attribute(self.core(), &inode.tree, inode.ino, name);
        self.run(Reserve::items(ITEMS), |handle| {
            let _guard = inode.lock_exclusive()?;
            must_take_attributes(&inode, name)?;
            match meaning {
                Meaning::Plain => set_plain(handle, &inode, name, value, demand)?,
                Meaning::AccessAcl => set_access_acl(handle, caller, &inode, Acl::parse(value)?)?,
                Meaning::DefaultAcl => set_default_acl(handle, &inode, Acl::parse(value)?)?,
                Meaning::Compression if inode.with(|state| !property::concerns(state)) => {
                    return Compression::parse(value).map(drop);
                }
                Meaning::Compression => set_compression(handle, &inode, value, demand)?,
            }
            touch(handle, &inode);
            Ok(())
        })
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, caller: &Caller, id: InodeId, name: &[u8]) -> Result<()> {
        let meaning = Meaning::of(name)?;
        let inode = self.inode(id)?;
        preload::attribute(self.core(), &inode.tree, inode.ino, name);
        self.run(Reserve::removal(ITEMS), |handle| {
            let _guard = inode.lock_exclusive()?;
            must_take_attributes(&inode, name)?;
            match meaning {
                Meaning::Plain => {
                    xattr::remove(handle, &inode.tree, inode.ino, name)?;
                    if name == CAPABILITY {
                        inode.remember(|state| state.capability = Known::Absent);
                    }
                }
                Meaning::AccessAcl => set_access_acl(handle, caller, &inode, None)?,
                Meaning::DefaultAcl => set_default_acl(handle, &inode, None)?,
                Meaning::Compression if inode.with(|state| !property::concerns(state)) => return Ok(()),
                Meaning::Compression => set_compression(handle, &inode, b"", Demand::Replace)?,
            }
            touch(handle, &inode);
            Ok(())
        })
    }
}

fn touch(handle: &Handle, inode: &Arc<Inode>) {
    let now = handle.core().env().now();
    inode.change(|state| state.touch(now));
}

fn must_take_attributes(inode: &Inode, name: &[u8]) -> Result<()> {
    inode.must_be_writable()?;
    inode.must_not_have(FIXED)?;
    let kind = inode.with(|state| state.mode()) & mode::S_IFMT;
    if name.starts_with(b"user.") && !matches!(kind, mode::S_IFREG | mode::S_IFDIR) {
        return Err(Error::refused(Errno::EPERM, "only files and directories have user attributes"));
    }
    Ok(())
}

fn set_plain(handle: &Handle, inode: &Inode, name: &[u8], value: &[u8], demand: Demand) -> Result<()> {
    xattr::set(handle, &inode.tree, inode.ino, name, value, demand)?;
    if name == CAPABILITY {
        inode.remember(|state| state.capability = Known::Present(()));
    }
    Ok(())
}

/// Removes an attribute that may be missing.
pub(super) fn unset(handle: &Handle, inode: &Inode, name: &[u8]) -> Result<()> {
    match xattr::remove(handle, &inode.tree, inode.ino, name) {
        Err(error) if error.is(Errno::ENODATA) => Ok(()),
        other => other,
    }
}

/// The mode follows the ACL; one that says no more than the mode is not stored.
fn set_access_acl(handle: &Handle, caller: &Caller, inode: &Arc<Inode>, access: Option<Acl>) -> Result<()> {
    let (old_mode, gid) = inode.with(|state| (state.mode(), state.item.gid.get()));
    if old_mode & mode::S_IFMT == mode::S_IFLNK {
        return Err(Error::refused(Errno::EOPNOTSUPP, "a symbolic link has no ACL"));
    }
    let Some(access) = access else { return unset(handle, inode, acl::ACCESS) };
    if access.is_mode_only() {
        unset(handle, inode, acl::ACCESS)?;
    } else {
        xattr::set(handle, &inode.tree, inode.ino, acl::ACCESS, &access.to_bytes(), Demand::Any)?;
    }
    let mut new_mode = access.mode(old_mode);
    if !caller.privileged && caller.gid != gid {
        new_mode &= !mode::S_ISGID;
    }
    inode.change(|state| state.item.mode = new_mode.into());
    Ok(())
}

fn set_default_acl(handle: &Handle, inode: &Arc<Inode>, default: Option<Acl>) -> Result<()> {
    let Some(default) = default else {
        unset(handle, inode, acl::DEFAULT)?;
        inode.remember(|state| state.default_acl = Known::Absent);
        return Ok(());
    };
    if !inode.is_directory() {
        return Err(Error::refused(Errno::EACCES, "only directories have a default ACL"));
    }
    let value = default.to_bytes();
    xattr::set(handle, &inode.tree, inode.ino, acl::DEFAULT, &value, Demand::Any)?;
    inode.remember(|state| state.default_acl = Known::Present(value.into_boxed_slice()));
    Ok(())
}

pub(super) fn set_compression(handle: &Handle, inode: &Arc<Inode>, value: &[u8], demand: Demand) -> Result<()> {
    let property = Compression::parse(value)?;
    inode.with(|state| property::check_inode(state, property))?;
    if property == Compression::Unset {
        match demand {
            Demand::Replace => xattr::remove(handle, &inode.tree, inode.ino, COMPRESSION)?,
            _ => unset(handle, inode, COMPRESSION)?,
        }
    } else {
        xattr::set(handle, &inode.tree, inode.ino, COMPRESSION, value, demand)?;
    }
    let core = handle.core();
    if property.incompat() != 0 && !core.has_incompat(property.incompat()) {
        core.set_incompat(property.incompat());
    }
    inode.change(|state| {
        property.apply(state);
        state.compression = if property == Compression::Unset { Known::Absent } else { Known::Present(value.into()) };
    });
    Ok(())
}
