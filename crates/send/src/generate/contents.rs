//! Files, one after the other: the second of the two passes over what differs.
//!
//! When it begins every directory is where the new snapshot has it, and every name of a new file is free. A new file is
//! made under its first name, gets its other names, its content and its attributes, and is then complete; a file that
//! existed gets what changed. Directories are only noted: their attributes come when nothing in them changes any more.
//!
//! # Invariants
//! 1. Files come in the order of their numbers, each once, and each is written through one path.
//! 2. Of a file, only its item, its capability and one piece of its content are in memory.

use super::Options;
use super::attributes::{self, Disturbed, change_xattrs, set_xattr};
use super::changes::{Changes, inode_item, is_inode, is_same, living};
use super::clones::Clones;
use super::data::FileData;
use super::error::{Error, Result};
use super::inherited::{Inherited, Xattrs, add_xattrs};
use super::output::Output;
use super::paths::{Paths, push_name};
use crate::wire::{Command, Version};
use butterfs_fs::inode::attr::{device_numbers, mode};
use butterfs_fs::inode::xattr::CAPABILITY;
use butterfs_fs::inode::{entry, reference};
use butterfs_fs::{Difference, SnapshotReader, inode_flags};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType};
use std::ops::ControlFlow;

/// The state that all files of a section share.
pub struct Contents<'c, 'r, 'o, 'scope, 'env> {
    pub(super) old: Option<&'r SnapshotReader>,
    pub(super) new: &'r SnapshotReader,
    pub(super) options: &'c Options,
    pub(super) changes: &'c Changes,
    pub(super) inherited: &'c mut Inherited<'r>,
    pub(super) paths: &'c mut Paths<'r>,
    pub(super) clones: &'c mut Clones<'r>,
    pub(super) out: &'o mut Output<'scope, 'env>,
    pub(super) sector: u64,
    /// Directories that differ.
    pub(super) directories: Vec<u64>,
    /// The highest inode number, for the estimate.
    pub(super) highest: u64,
}

/// A file that is being sent.
pub struct File {
    pub ino: u64,
    /// Of the old snapshot, if it is the same inode.
    pub old: Option<InodeItem>,
    pub new: InodeItem,
    /// Empty until it is needed or made.
    pub path: Vec<u8>,
    made: bool,
    disturbed: Disturbed,
    /// A capability that the new snapshot has and the old one has not.
    capability: Option<Vec<u8>>,
    is_verity: bool,
    pub data: FileData,
}

impl File {
    fn new(ino: u64, old: Option<InodeItem>, new: InodeItem) -> File {
        let data = FileData::new(old.as_ref());
        let disturbed = Disturbed::default();
        File { ino, old, new, path: Vec::new(), made: false, disturbed, capability: None, is_verity: false, data }
    }

    pub fn is_fresh(&self) -> bool {
        self.old.is_none()
    }

    fn kind(&self) -> u32 {
        self.new.mode.get() & mode::S_IFMT
    }

    pub fn is_regular(&self) -> bool {
        self.kind() == mode::S_IFREG
    }

    /// Content was written, or the size set.
    pub fn content_changed(&mut self) {
        self.disturbed.content = true;
    }
}

/// Whose items come.
enum Current {
    Nobody,
    /// Nothing is sent for them.
    PassedOver(u64),
    File(Box<File>),
}

impl Contents<'_, '_, '_, '_, '_> {
    /// Sends all files; returns the directories that differ.
    pub fn send(mut self) -> Result<Vec<u64>> {
        let mut current = Current::Nobody;
        let (old, new) = (self.old, self.new);
        new.diff::<Error>(old, &mut |key, difference| {
            if !is_inode(key) {
                return Ok(ControlFlow::Continue(()));
            }
            if key.kind == KeyType::INODE_ITEM {
                self.finish(std::mem::replace(&mut current, Current::Nobody))?;
                current = self.begin(key.objectid, difference)?;
                return Ok(ControlFlow::Continue(()));
            }
            match &mut current {
                Current::File(file) if file.ino == key.objectid => self.item(file, key, difference)?,
                Current::PassedOver(ino) if *ino == key.objectid => {}
                _ => {
                    // Items changed and the inode did not: its extents moved on the devices, its content is the same.
                    self.finish(std::mem::replace(&mut current, Current::PassedOver(key.objectid)))?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.finish(current)?;
        Ok(self.directories)
    }

    fn begin(&mut self, ino: u64, difference: Difference<'_>) -> Result<Current> {
        let (old, new) = match difference {
            Difference::Removed(_) => return Ok(Current::PassedOver(ino)),
            Difference::Added(new) => (None, new),
            Difference::Changed(old, new) => (Some(inode_item(old)?), new),
        };
        self.out.note((ino as u128 * 1000 / u128::from(self.highest.max(1))).min(1000) as u32);
        let Some(new) = living(new)? else { return Ok(Current::PassedOver(ino)) };
        if new.mode.get() & mode::S_IFMT == mode::S_IFDIR {
            self.directories.push(ino);
            return Ok(Current::PassedOver(ino));
        }
        let Some(old) = old else { return Ok(Current::File(Box::new(File::new(ino, None, new)))) };
        if old.nlink.get() > 0 && is_same(ino, &old, &new) {
            return Ok(Current::File(Box::new(File::new(ino, Some(old), new))));
        }
        // Another inode with this number: what both have is new all the same.
        let mut file = Box::new(File::new(ino, None, new));
        let (from, to) = (Key::new(ino, KeyType::INODE_REF, 0), Key::new(ino, KeyType(255), u64::MAX));
        self.new.scan::<Error>(from, to, &mut |key, payload| {
            self.item(&mut file, key, Difference::Added(payload)).map(ControlFlow::Continue)
        })?;
        self.finish(Current::File(file))?;
        Ok(Current::PassedOver(ino))
    }

    fn item(&mut self, file: &mut File, key: Key, difference: Difference<'_>) -> Result<()> {
        match key.kind {
            KeyType::INODE_REF | KeyType::INODE_EXTREF => match difference {
                Difference::Added(payload) if file.is_fresh() => self.names(file, key, payload),
                _ => Ok(()),
            },
            KeyType::XATTR_ITEM => self.xattrs(file, difference),
            KeyType::VERITY_DESC_ITEM => {
                file.is_verity |= !matches!(difference, Difference::Removed(_));
                Ok(())
            }
            KeyType::EXTENT_DATA if file.is_regular() => self.extent(file, key, difference),
            _ => Ok(()),
        }
    }

    fn names(&mut self, file: &mut File, key: Key, payload: &[u8]) -> Result<()> {
        for name in reference::names(key, payload) {
            let (_, name) = name?;
            let directory = self.paths.directory(name.directory.0)?;
            let mut path = directory.to_vec();
            push_name(&mut path, name.name)?;
            if file.made {
                self.out.put(&Command::Link { path: &path, existing: &file.path })?;
                continue;
            }
            let parent = self.changes.new_object(name.directory.0);
            file.disturbed.owner = self.inherited.prepare(parent, &directory, self.out)?;
            file.path = path;
            file.made = true;
            self.make(file)?;
        }
        Ok(())
    }

    fn make(&mut self, file: &File) -> Result<()> {
        let (path, ino) = (file.path.as_slice(), file.ino);
        let full_mode = u64::from(file.new.mode.get());
        match file.kind() {
            mode::S_IFREG => {
                self.out.put(&Command::Mkfile { path, ino })?;
                attributes::flags_before_data(path, &file.new, self.out)
            }
            mode::S_IFLNK => {
                let target = self.target(ino)?;
                self.out.put(&Command::Symlink { path, ino, target: &target })
            }
            mode::S_IFIFO => self.out.put(&Command::Mkfifo { path, ino, rdev: 0, mode: full_mode }),
            mode::S_IFSOCK => self.out.put(&Command::Mksock { path, ino, rdev: 0, mode: full_mode }),
            mode::S_IFCHR | mode::S_IFBLK => {
                let rdev = wire_device(file.new.rdev.get());
                self.out.put(&Command::Mknod { path, ino, rdev, mode: full_mode })
            }
            _ => Err(Error::corrupt(format!("inode {ino} has mode {full_mode:o}"))),
        }
    }

    /// The text of a symbolic link.
    fn target(&self, ino: u64) -> Result<Vec<u8>> {
        let found = super::extents::covering(self.new, ino, 0)?;
        let found = found.ok_or_else(|| Error::corrupt(format!("symbolic link {ino} has no text")))?;
        let mut text = vec![0; self.sector as usize];
        self.new.extent_content(&found.extent, &found.payload, true, 0, &mut text)?;
        text.truncate((found.extent.ram_bytes.min(self.sector)) as usize);
        Ok(text)
    }

    fn xattrs(&mut self, file: &mut File, difference: Difference<'_>) -> Result<()> {
        let (mut old, mut new) = (Xattrs::new(), Xattrs::new());
        match difference {
            Difference::Removed(payload) => add_xattrs(payload, &mut old)?,
            Difference::Added(payload) => add_xattrs(payload, &mut new)?,
            Difference::Changed(before, after) => {
                add_xattrs(before, &mut old)?;
                add_xattrs(after, &mut new)?;
            }
        }
        if let Some(value) = new.get(CAPABILITY).filter(|value| old.get(CAPABILITY) != Some(*value)) {
            file.capability = Some(value.clone());
        }
        self.know_path(file)?;
        file.disturbed.mode |= change_xattrs(&file.path, &old, &new, self.out)?;
        Ok(())
    }

    /// Finds the path of a file that existed.
    pub(super) fn know_path(&mut self, file: &mut File) -> Result<()> {
        if file.path.is_empty() {
            let path = self.paths.first(file.ino)?;
            file.path = path.ok_or_else(|| Error::corrupt(format!("inode {} has no name", file.ino)))?;
        }
        Ok(())
    }

    fn finish(&mut self, current: Current) -> Result<()> {
        let Current::File(mut file) = current else { return Ok(()) };
        let file = file.as_mut();
        if file.is_regular() {
            self.finish_data(file)?;
        }
        let differs = |old: &InodeItem| {
            let new = &file.new;
            let of = |item: &InodeItem| (item.uid, item.gid, item.mode, item.flags, item.atime, item.mtime);
            of(old) != of(new)
        };
        let disturbed = file.disturbed;
        let changed = disturbed.content || disturbed.mode || file.capability.is_some() || file.is_verity;
        if !changed && file.old.as_ref().is_some_and(|old| !differs(old)) {
            return Ok(());
        }
        self.know_path(file)?;
        let chown = attributes::change(&file.path, file.old.as_ref(), &file.new, disturbed, self.out)?;
        if file.is_verity && self.out.version() >= Version::V3 && file.new.flags.get() & inode_flags::VERITY != 0 {
            self.enable_verity(file)?;
        }
        self.capability(file, chown)?;
        attributes::times(&file.path, file.old.as_ref(), &file.new, disturbed, self.out)
    }

    /// Sets the capability if it is new, or if something took it away.
    fn capability(&mut self, file: &mut File, chown: bool) -> Result<()> {
        if file.capability.is_none() && !file.is_fresh() && (chown || file.disturbed.content) {
            let at = self.new.search(Key::new(file.ino, KeyType::XATTR_ITEM, name_hash(CAPABILITY)))?;
            if at.found {
                let found = entry::find(at.leaf.item(at.slot), CAPABILITY)?;
                file.capability = found.map(|(_, entry)| entry.value.to_vec());
            }
        }
        match &file.capability {
            Some(value) => set_xattr(&file.path, CAPABILITY, value, self.out),
            None => Ok(()),
        }
    }

    /// The descriptor lies in items of its own, in pieces: a head with its length, then the descriptor itself.
    fn enable_verity(&mut self, file: &File) -> Result<()> {
        let (kind, ino) = (KeyType::VERITY_DESC_ITEM, file.ino);
        let mut descriptor = Vec::new();
        self.new.scan::<Error>(Key::new(ino, kind, 1), Key::new(ino, kind, u64::MAX), &mut |_, payload| {
            descriptor.extend_from_slice(payload);
            Ok(ControlFlow::Continue(()))
        })?;
        let short = || Error::corrupt(format!("the verity descriptor of inode {ino} is too short"));
        let (head, signature) = descriptor.split_at_checked(256).ok_or_else(short)?;
        let (salt_len, signature_len) =
            (usize::from(head[3]), u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        let salt = head.get(80..80 + salt_len.min(32)).ok_or_else(short)?;
        let signature = signature.get(..signature_len as usize).ok_or_else(short)?;
        let block_size = 1u32.checked_shl(head[2].into()).ok_or_else(short)?;
        let algorithm = head[1];
        self.out.put(&Command::EnableVerity { path: &file.path, algorithm, block_size, salt, signature })
    }
}

/// A device number as streams have it: the kernel's new encoding.
fn wire_device(stored: u64) -> u64 {
    let (major, minor) = device_numbers(stored);
    let (major, minor) = (u64::from(major), u64::from(minor));
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}
