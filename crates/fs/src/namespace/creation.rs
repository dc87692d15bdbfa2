//! Making inodes: what they inherit, the items they begin with, and their first name.

use super::Namespace;
use crate::error::{Errno, Error, Result};
use crate::inode::acl::{self, Acl};
use crate::inode::attr::{Attr, Caller, InodeId, device_of, dir_type_of, mode, timespec};
use crate::inode::directory::{self, EntryTarget, FIRST_INDEX, check_name, item_room};
use crate::inode::entry::DirItemEntry;
use crate::inode::property::{COMPRESSION, Compression};
use crate::inode::reference::{self, Reference};
use crate::inode::{Inode, Known, Orphan, cache, number, preload, xattr};
use crate::options::DataPolicy;
use crate::transaction::{Core, Handle, Reserve};
use butterfs_ondisk::items::{FileExtentHead, InodeItem, compression, file_extent_type, inode_flags};
use butterfs_ondisk::{Ino, Key, KeyType};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Items that making an inode with a name changes: two entries, the inode's own leaf, the directory.
const ITEMS: u64 = 5;

/// The inode to create.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted<'a> {
    /// Type and permissions.
    pub mode: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Nothing is inherited from the directory.
    pub bare: bool,
}

/// A new inode before its items are inserted, with what it has inherited.
struct NewInode<'a> {
    ino: Ino,
    item: InodeItem,
    target: &'a [u8],
    attributes: Vec<(&'static [u8], Box<[u8]>)>,
}

impl Namespace {
    /// Makes a regular file.
    pub fn create(&self, caller: &Caller, parent: InodeId, name: &[u8], permissions: u32) -> Result<Attr> {
        self.make(caller, parent, name, &Wanted { mode: mode::S_IFREG | permissions, ..Wanted::default() })
    }

    /// Makes a directory.
    pub fn mkdir(&self, caller: &Caller, parent: InodeId, name: &[u8], permissions: u32) -> Result<Attr> {
        self.make(caller, parent, name, &Wanted { mode: mode::S_IFDIR | permissions, ..Wanted::default() })
    }

    /// Makes a regular file, a device, a FIFO or a socket; the type is in `file_mode`, none means a regular file.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: InodeId,
        name: &[u8],
        file_mode: u32,
        rdev: (u32, u32),
    ) -> Result<Attr> {
        let kind = match file_mode & mode::S_IFMT {
            0 => mode::S_IFREG,
            kind @ (mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK | mode::S_IFCHR | mode::S_IFBLK) => kind,
            mode::S_IFDIR => return Err(Error::refused(Errno::EPERM, "mknod makes no directories")),
            _ => return Err(Error::refused(Errno::EINVAL, "mknod does not make this type")),
        };
        let rdev = if matches!(kind, mode::S_IFCHR | mode::S_IFBLK) { rdev } else { (0, 0) };
        self.make(
            caller,
            parent,
            name,
            &Wanted { mode: kind | file_mode & mode::PERMISSIONS, rdev, ..Wanted::default() },
        )
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: &Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.check_target(target)?;
        self.make(caller, parent, name, &Wanted { mode: mode::S_IFLNK | 0o777, target, ..Wanted::default() })
    }

    fn check_target(&self, target: &[u8]) -> Result<()> {
        let longest =
            (self.core().sectorsize() as usize - 1).min(item_room(self.core()) - FileExtentHead::LEN).min(4095);
        if target.is_empty() {
            return Err(Error::refused(Errno::ENOENT, "a symbolic link's target cannot be empty"));
        }
        if target.len() > longest {
            return Err(Error::refused(Errno::ENAMETOOLONG, "the symbolic link's target is too long"));
        }
        Ok(())
    }

    /// Makes an inode of any type that owes nothing to its directory: it belongs to root, has exactly this mode, and
    /// neither ACLs nor properties. `target` is that of a symbolic link.
    pub fn make_bare(
        &self,
        parent: InodeId,
        name: &[u8],
        file_mode: u32,
        rdev: (u32, u32),
        target: &[u8],
    ) -> Result<Attr> {
        if file_mode & mode::S_IFMT == mode::S_IFLNK {
            self.check_target(target)?;
        }
        if dir_type_of(file_mode).is_none() {
            return Err(Error::refused(Errno::EINVAL, "there is no such type of inode"));
        }
        let caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };
        self.make(&caller, parent, name, &Wanted { mode: file_mode, rdev, target, bare: true })
    }

    /// Makes a regular file without a name, which [`link`](Self::link) can give it one.
    pub fn tmpfile(&self, caller: &Caller, parent: InodeId, permissions: u32) -> Result<Attr> {
        let directory = self.directory(parent)?;
        let wanted = Wanted { mode: mode::S_IFREG | permissions & mode::PERMISSIONS, ..Wanted::default() };
        preload::creation(self.core(), &directory);
        let inode = self.run(Reserve::items(ITEMS), |handle| {
            let _guard = directory.lock_shared()?;
            directory.must_take_entries()?;
            let mut new = self.prepare_inode(handle, caller, &directory, &wanted)?;
            new.item.nlink = 0.into();
            let inode = self.create_inode(handle, &directory, &new, None)?;
            inode.change(|state| {
                state.orphan = Orphan::Due;
                state.linkable = true;
            });
            self.inodes.retain(inode.id());
            Ok(inode)
        })?;
        self.inodes.dispose(inode.id());
        Ok(inode.attr())
    }

    fn make(&self, caller: &Caller, parent: InodeId, name: &[u8], wanted: &Wanted<'_>) -> Result<Attr> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        preload::addition(self.core(), &directory, name);
        preload::creation(self.core(), &directory);
        let attr = self.run(Reserve::items(ITEMS), |handle| {
            let _guard = directory.lock_exclusive()?;
            directory.must_take_entries()?;
            let inode = self.make_entry(handle, caller, &directory, name, wanted)?;
            self.inodes.retain(inode.id());
            Ok(inode.attr())
        })?;
        Ok(attr)
    }

    /// Makes an inode with a name in a directory that is locked and takes entries. `EEXIST` and the like come before
    /// anything is changed.
    pub(super) fn make_entry(
        &self,
        handle: &Handle,
        caller: &Caller,
        directory: &Arc<Inode>,
        name: &[u8],
        wanted: &Wanted<'_>,
    ) -> Result<Arc<Inode>> {
        let new = self.prepare_inode(handle, caller, directory, wanted)?;
        let location = EntryTarget::Inode(new.ino).location();
        let kind = dir_type_of(wanted.mode).unwrap_or_default();
        let entry = DirItemEntry::of_directory(location, handle.generation(), kind, name);
        let index = directory::add(handle, directory, &entry)?;
        let inode = self.create_inode(handle, directory, &new, Some((index, name)))?;
        let now = new.item.mtime;
        directory.change(|state| {
            state.grow_directory(2 * name.len() as i64);
            (state.item.mtime, state.item.ctime) = (now, now);
        });
        Ok(inode)
    }

    /// Decides what a new inode will be. Nothing is changed but the counter of inode numbers.
    fn prepare_inode<'a>(
        &self,
        handle: &Handle,
        caller: &Caller,
        directory: &Inode,
        wanted: &Wanted<'a>,
    ) -> Result<NewInode<'a>> {
        let core = self.core();
        let (parent_mode, parent_gid, parent_flags) =
            directory.with(|state| (state.mode(), state.item.gid.get(), state.flags()));
        let mut attributes = Vec::new();
        let (mut gid, mut file_mode, mut flags) =
            (caller.gid, wanted.mode, inherit_flags(0, wanted.mode, &core.data_policy()));
        if !wanted.bare {
            (gid, file_mode) = group_of_new(caller, parent_mode, parent_gid, wanted.mode);
            file_mode = inherit_acl(core, directory, caller, file_mode, &mut attributes)?;
            flags = inherit_flags(parent_flags, file_mode, &core.data_policy());
            inherit_compression(core, directory, file_mode, &mut flags, &mut attributes)?;
        }
        let now = timespec(core.env().now());
        let len = wanted.target.len() as u64;
        let item = InodeItem {
            generation: handle.generation().0.into(),
            transid: handle.generation().0.into(),
            size: len.into(),
            nbytes: len.into(),
            nlink: 1.into(),
            uid: caller.uid.into(),
            gid: gid.into(),
            mode: file_mode.into(),
            rdev: device_of(wanted.rdev).into(),
            flags: flags.into(),
            atime: now,
            ctime: now,
            mtime: now,
            otime: now,
            ..InodeItem::default()
        };
        let ino = number::allocate(core, &directory.tree)?;
        Ok(NewInode { ino, item, target: wanted.target, attributes })
    }

    /// Inserts the items of a new inode and takes it into memory.
    fn create_inode(
        &self,
        handle: &Handle,
        directory: &Arc<Inode>,
        new: &NewInode<'_>,
        name: Option<(u64, &[u8])>,
    ) -> Result<Arc<Inode>> {
        let ino = new.ino;
        let mut items = Vec::with_capacity(3);
        if let Some((index, name)) = name {
            items.push(reference::first(ino, &Reference { directory: directory.ino, index, name }));
        }
        for (name, value) in &new.attributes {
            items.push(xattr::item(ino, handle.generation(), name, value));
        }
        if !new.target.is_empty() {
            items.push(inline_target(ino, handle.generation().0, new.target));
        }
        items.sort_unstable_by_key(|item| item.0);
        let mut borrowed = Vec::with_capacity(items.len() + 1);
        borrowed.push((cache::item_key(ino), new.item.as_bytes()));
        borrowed.extend(items.iter().map(|(key, payload)| (*key, payload.as_slice())));
        directory.tree.insert_many(handle, &borrowed)?;
        let inode = self.inodes.add_new(&directory.tree, ino, new.item);
        inode.remember(|state| {
            state.next_index = FIRST_INDEX;
            state.capability = Known::Absent;
            state.default_acl = inherited(new, acl::DEFAULT);
            state.compression = inherited(new, COMPRESSION);
        });
        Ok(inode)
    }
}

fn inherited(new: &NewInode<'_>, name: &[u8]) -> Known<Box<[u8]>> {
    let found = new.attributes.iter().find(|(known, _)| *known == name);
    found.map_or(Known::Absent, |(_, value)| Known::Present(value.clone()))
}

fn inline_target(ino: Ino, generation: u64, target: &[u8]) -> (Key, Vec<u8>) {
    let head = FileExtentHead {
        generation: generation.into(),
        ram_bytes: (target.len() as u64).into(),
        compression: compression::NONE,
        kind: file_extent_type::INLINE,
        ..FileExtentHead::default()
    };
    (Key::new(ino.0, KeyType::EXTENT_DATA, 0), [head.as_bytes(), target].concat())
}

/// The group of a new inode, and its mode with what the directory's set-group-id bit makes of it.
fn group_of_new(caller: &Caller, parent_mode: u32, parent_gid: u32, file_mode: u32) -> (u32, u32) {
    if parent_mode & mode::S_ISGID == 0 {
        return (caller.gid, file_mode);
    }
    if file_mode & mode::S_IFMT == mode::S_IFDIR {
        return (parent_gid, file_mode | mode::S_ISGID);
    }
    let lends = file_mode & (mode::S_ISGID | mode::S_IXGRP) == mode::S_ISGID | mode::S_IXGRP;
    if lends && !caller.privileged && caller.gid != parent_gid {
        return (parent_gid, file_mode & !mode::S_ISGID);
    }
    (parent_gid, file_mode)
}

/// The mode of a new inode, and the ACLs that it gets from its directory's default ACL; where there is none the
/// umask counts.
fn inherit_acl(
    core: &Core,
    directory: &Inode,
    caller: &Caller,
    file_mode: u32,
    attributes: &mut Vec<(&'static [u8], Box<[u8]>)>,
) -> Result<u32> {
    let kind = file_mode & mode::S_IFMT;
    if kind == mode::S_IFLNK {
        return Ok(file_mode);
    }
    let Some(default) = directory.default_acl(core)? else { return Ok(file_mode & !(caller.umask & 0o777)) };
    let Some(parsed) = Acl::parse(&default)? else { return Ok(file_mode & !(caller.umask & 0o777)) };
    let (access, file_mode) = parsed.for_new(file_mode);
    if !access.is_mode_only() {
        attributes.push((acl::ACCESS, access.to_bytes().into_boxed_slice()));
    }
    if kind == mode::S_IFDIR {
        attributes.push((acl::DEFAULT, default));
    }
    Ok(file_mode)
}

/// The flags that a new inode has from its directory and the mount.
fn inherit_flags(parent: u64, file_mode: u32, policy: &DataPolicy) -> u64 {
    let mut flags = parent & inode_flags::NODATACOW;
    if parent & inode_flags::NOCOMPRESS != 0 {
        flags |= inode_flags::NOCOMPRESS;
    } else {
        flags |= parent & inode_flags::COMPRESS;
    }
    if file_mode & mode::S_IFMT == mode::S_IFREG {
        if policy.nodatacow {
            flags |= inode_flags::NODATACOW;
        }
        if policy.nodatasum || flags & inode_flags::NODATACOW != 0 {
            flags |= inode_flags::NODATASUM;
        }
    }
    flags
}

/// The compression property that a new file or directory has from its directory.
fn inherit_compression(
    core: &Core,
    directory: &Inode,
    file_mode: u32,
    flags: &mut u64,
    attributes: &mut Vec<(&'static [u8], Box<[u8]>)>,
) -> Result<()> {
    let takes_it = matches!(file_mode & mode::S_IFMT, mode::S_IFREG | mode::S_IFDIR);
    if !takes_it || *flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0 {
        return Ok(());
    }
    let Some(value) = directory.compression(core)? else { return Ok(()) };
    let Ok(property) = Compression::parse(&value) else { return Ok(()) };
    if let Some(value) = property.inherited_value() {
        *flags = *flags & !inode_flags::NOCOMPRESS | inode_flags::COMPRESS;
        if property.incompat() != 0 && !core.has_incompat(property.incompat()) {
            core.set_incompat(property.incompat());
        }
        attributes.push((COMPRESSION, value.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_group_id_directory_gives_its_group() {
        let caller = Caller { uid: 1, gid: 10, umask: 0, privileged: false };
        let root = Caller { privileged: true, ..caller };
        for (caller, parent_mode, file_mode, want) in [
            (caller, 0o040755, 0o102755, (10, 0o102755)),
            (caller, 0o042755, 0o100644, (20, 0o100644)),
            (caller, 0o042755, 0o040755, (20, 0o042755)),
            (caller, 0o042755, 0o102755, (20, 0o100755)),
            (caller, 0o042755, 0o102745, (20, 0o102745)),
            (root, 0o042755, 0o102755, (20, 0o102755)),
        ] {
            assert_eq!(group_of_new(&caller, parent_mode, 20, file_mode), want, "{parent_mode:o} {file_mode:o}");
        }
    }

    #[test]
    fn inherited_attributes_have_items_of_their_own() {
        use butterfs_ondisk::checksum::name_hash;
        let mut hashes = [acl::ACCESS, acl::DEFAULT, COMPRESSION].map(name_hash).to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
    }

    #[test]
    fn flags_are_inherited() {
        use inode_flags::{APPEND, COMPRESS, NOCOMPRESS, NODATACOW, NODATASUM};
        for (parent, file_mode, want) in [
            (COMPRESS | APPEND, mode::S_IFREG, COMPRESS),
            (COMPRESS | NOCOMPRESS, mode::S_IFDIR, NOCOMPRESS),
            (NODATACOW, mode::S_IFREG, NODATACOW | NODATASUM),
            (NODATACOW, mode::S_IFDIR, NODATACOW),
        ] {
            assert_eq!(inherit_flags(parent, file_mode, &DataPolicy::default()), want);
        }
    }
}
