//! The tree that an image is going to show, in memory, without the contents of its files.
//!
//! # Invariants
//! 1. Every inode but the root has a name; what has lost its last name is emptied, so that memory follows what is
//!    there.
//! 2. A folder has one name.
//! 3. Names in a folder are sorted by their bytes: nothing depends on the order in which a source gave them.

use crate::data::ContentId;
use crate::entry::Time;
use crate::error::{Error, ErrorKind, Result, shown};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// An inode of the tree.
pub type Id = u32;

/// The root folder.
pub const ROOT: Id = 0;

/// File types in a mode.
pub mod file_type {
    /// The bits.
    pub const MASK: u32 = 0o170000;
    /// Socket.
    pub const SOCKET: u32 = 0o140000;
    /// Symbolic link.
    pub const SYMLINK: u32 = 0o120000;
    /// Regular file.
    pub const FILE: u32 = 0o100000;
    /// Block device.
    pub const BLOCK: u32 = 0o060000;
    /// Folder.
    pub const FOLDER: u32 = 0o040000;
    /// Character device.
    pub const CHARACTER: u32 = 0o020000;
    /// FIFO.
    pub const FIFO: u32 = 0o010000;
}

/// The time of what no source has: resolved when the tree is complete.
pub const IMPLIED: Time = Time { sec: i64::MIN, nsec: 0 };

/// An extended attribute.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `btrfs_inode_item`'s flags.
    pub flags: u32,
    /// Names in the tree.
    pub names: u32,
    /// The layer that has made or changed it.
    pub layer: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Access, change and birth, where they are not the time of the last change.
    pub other_times: Option<Box<[Time; 3]>>,
    /// Sorted by name.
    pub xattrs: Box<[Xattr]>,
    /// Its kind.
    pub body: Body,
}

/// The kind of an inode.
#[derive(Clone, Debug)]
pub enum Body {
    /// A folder.
    Folder(Folder),
    /// A regular file: its size and where its content is.
    File(u64, ContentId),
    /// A symbolic link.
    Symlink(Box<[u8]>),
    /// A device, by its number as the format has it.
    Device(u64),
    /// A FIFO, a socket, or nothing any more.
    Empty,
}

/// A folder.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    /// By name.
    pub children: BTreeMap<Box<[u8]>, Id>,
    /// Which of the image's subvolumes it is the root of.
    pub subvolume: Option<u32>,
    /// The folder that it is a copy of.
    pub origin: Option<Id>,
}

impl Inode {
    /// A folder that no source has.
    pub fn implied_folder(layer: u32) -> Inode {
        Inode {
            mode: file_type::FOLDER | 0o755,
            uid: 0,
            gid: 0,
            flags: 0,
            names: 1,
            layer,
            mtime: IMPLIED,
            other_times: None,
            xattrs: Box::default(),
            body: Body::Folder(Folder::default()),
        }
    }

    /// The folder that it is.
    pub fn folder(&self) -> Option<&Folder> {
        match &self.body {
            Body::Folder(folder) => Some(folder),
            _ => None,
        }
    }

    /// Access, change and birth.
    pub fn other_times(&self) -> [Time; 3] {
        self.other_times.as_deref().copied().unwrap_or([self.mtime; 3])
    }
}

/// The policy for a name that exists already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replace {
    /// As tar does when it extracts: a folder that is not empty is not replaced by something else.
    #[default]
    LikeTar,
    /// As layers of containers do: whatever is there goes.
    Anything,
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    inodes: Vec<Inode>,
    memory: u64,
    limit: u64,
    /// The last layer that has given names to inodes of earlier ones, and these names with their folders.
    new_names: (u32, FxHashSet<(Id, Box<[u8]>)>),
}

/// Bytes of memory that an inode and its name take, apart from the name.
const INODE_COST: u64 = size_of::<Inode>() as u64 + 64;

impl Tree {
    /// A tree with nothing but its root, which may take about `limit` bytes of memory.
    pub fn new(limit: u64) -> Tree {
        Tree { inodes: vec![Inode::implied_folder(0)], memory: 0, limit, new_names: Default::default() }
    }

    /// The inode.
    pub fn get(&self, id: Id) -> &Inode {
        &self.inodes[id as usize]
    }

    /// The inode, to be changed.
    pub fn get_mut(&mut self, id: Id) -> &mut Inode {
        &mut self.inodes[id as usize]
    }

    /// All inodes, also those that have lost their names.
    pub fn iter(&self) -> impl Iterator<Item = &Inode> {
        self.inodes.iter()
    }

    /// Notes memory that is taken.
    fn take_memory(&mut self, bytes: u64) -> Result<()> {
        self.memory += bytes;
        if self.memory > self.limit {
            let sentence = format!(
                "names and attributes of the sources take more than {} bytes of memory, which is the limit",
                self.limit
            );
            return Err(Error::new(ErrorKind::Limit, sentence));
        }
        Ok(())
    }

    /// The inode at a path, without following links.
    pub fn find(&self, components: &[&[u8]]) -> Option<Id> {
        components.iter().try_fold(ROOT, |at, name| self.get(at).folder()?.children.get(*name).copied())
    }

    /// The folder at a path; what is missing is made. What is there and no folder is refused.
    pub fn make_folders(&mut self, components: &[&[u8]], layer: u32) -> Result<Id> {
        let mut at = ROOT;
        for (depth, name) in components.iter().enumerate() {
            let child = self.get(at).folder().expect("every step is a folder").children.get(*name).copied();
            at = match child {
                Some(child) if self.get(child).folder().is_some() => child,
                Some(_) => {
                    let path = components[..=depth].join(&b'/');
                    return Err(Error::content(format!("{} is no folder, but something lies below it", shown(&path))));
                }
                None => self.add(at, name, Inode::implied_folder(layer))?,
            };
        }
        Ok(at)
    }

    /// Adds an inode with its first name, which does not exist yet.
    fn add(&mut self, parent: Id, name: &[u8], inode: Inode) -> Result<Id> {
        let xattrs: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        let target = if let Body::Symlink(target) = &inode.body { target.len() } else { 0 };
        let times = inode.other_times.as_ref().map_or(0, |times| size_of_val(&**times));
        self.take_memory(INODE_COST + (name.len() + xattrs + target + times) as u64)?;
        let id = Id::try_from(self.inodes.len()).map_err(|_| Error::new(ErrorKind::Limit, "too many files"))?;
        self.inodes.push(inode);
        self.children_mut(parent).insert(name.into(), id);
        Ok(id)
    }

    fn children_mut(&mut self, folder: Id) -> &mut BTreeMap<Box<[u8]>, Id> {
        match &mut self.get_mut(folder).body {
            Body::Folder(folder) => &mut folder.children,
            _ => panic!("only folders have children"),
        }
    }

    /// Puts an inode at a path. A folder over a folder keeps what is inside and takes the new attributes.
    pub fn put(&mut self, components: &[&[u8]], inode: Inode, replace: Replace) -> Result<Id> {
        let Some((name, parents)) = components.split_last() else { return self.put_root(inode) };
        let parent = self.make_folders(parents, inode.layer)?;
        let old = self.get(parent).folder().and_then(|folder| folder.children.get(*name).copied());
        if let Some(old) = old {
            if self.get(old).folder().is_some() && inode.folder().is_some() {
                self.change_folder(old, inode);
                return Ok(old);
            }
            self.refuse_loss(old, components, replace)?;
            self.unlink(parent, name);
        }
        self.add(parent, name, inode)
    }

    fn refuse_loss(&self, old: Id, components: &[&[u8]], replace: Replace) -> Result<()> {
        match self.get(old).folder() {
            Some(folder) if replace == Replace::LikeTar && !folder.children.is_empty() => {
                let path = components.join(&b'/');
                Err(Error::content(format!("{} is a folder that is not empty, and something else later", shown(&path))))
            }
            _ => Ok(()),
        }
    }

    fn put_root(&mut self, inode: Inode) -> Result<Id> {
        if inode.folder().is_none() {
            return Err(Error::content("the root of an image is a folder, the source has something else there"));
        }
        self.change_folder(ROOT, inode);
        Ok(ROOT)
    }

    /// Gives a folder the attributes of another one.
    fn change_folder(&mut self, id: Id, new: Inode) {
        let old = self.get_mut(id);
        let body = std::mem::replace(&mut old.body, Body::Empty);
        *old = Inode { body, flags: old.flags | new.flags, ..new };
    }

    /// Gives the inode `original` another name.
    pub fn link(&mut self, components: &[&[u8]], original: Id, layer: u32, replace: Replace) -> Result<()> {
        let refused = |what: &str| Err(Error::content(format!("{}: {what}", shown(&components.join(&b'/')))));
        if self.get(original).folder().is_some() {
            return refused("a folder cannot have a second name");
        }
        let Some((name, parents)) = components.split_last() else {
            return refused("the root cannot be a link");
        };
        let parent = self.make_folders(parents, layer)?;
        match self.get(parent).folder().and_then(|folder| folder.children.get(*name).copied()) {
            Some(old) if old == original => return self.note_name(parent, name, original, layer),
            Some(old) => {
                self.refuse_loss(old, components, replace)?;
                self.unlink(parent, name);
            }
            None => {}
        }
        self.take_memory(64 + name.len() as u64)?;
        self.get_mut(original).names += 1;
        self.children_mut(parent).insert((*name).into(), original);
        self.note_name(parent, name, original, layer)
    }

    /// Notes that `layer` has given an inode this name; the inode can be older.
    fn note_name(&mut self, parent: Id, name: &[u8], id: Id, layer: u32) -> Result<()> {
        if self.get(id).layer == layer {
            return Ok(());
        }
        if self.new_names.0 != layer {
            self.new_names = (layer, FxHashSet::default());
        }
        self.take_memory(64 + name.len() as u64)?;
        self.new_names.1.insert((parent, name.into()));
        Ok(())
    }

    /// Whether a name of an inode is older than `layer`, the last one.
    pub fn is_old(&self, parent: Id, name: &[u8], id: Id, layer: u32) -> bool {
        let (noted, names) = &self.new_names;
        self.get(id).layer < layer && !(*noted == layer && names.contains(&(parent, name.into())))
    }

    /// Takes a name away, with everything below it.
    pub fn unlink(&mut self, parent: Id, name: &[u8]) {
        let Some(id) = self.children_mut(parent).remove(name) else { return };
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            let inode = self.get_mut(id);
            inode.names -= 1;
            if inode.names > 0 {
                continue;
            }
            inode.xattrs = Box::default();
            if let Body::Folder(folder) = std::mem::replace(&mut inode.body, Body::Empty) {
                waiting.extend(folder.children.into_values());
            }
        }
    }

    /// Takes away everything below a folder that is older than `layer`; folders in which something newer is stay.
    pub fn prune(&mut self, folder: Id, layer: u32) {
        // Folders below, parents first; worked off from the end, so that each is empty of old things before its
        // parent's turn.
        let mut folders = vec![(None, folder)];
        let mut next = 0;
        while let Some(&(_, at)) = folders.get(next) {
            let children = &self.get(at).folder().expect("only folders are listed").children;
            let below: Vec<_> = children
                .iter()
                .filter(|(_, id)| self.get(**id).folder().is_some())
                .map(|(name, id)| (Some((at, name.clone())), *id))
                .collect();
            folders.extend(below);
            next += 1;
        }
        while let Some((name, at)) = folders.pop() {
            let old: Vec<Box<[u8]>> = self.get(at).folder().map_or_else(Vec::new, |folder| {
                let is_old = |name: &[u8], id: Id| self.get(id).folder().is_none() && self.is_old(at, name, id, layer);
                folder.children.iter().filter(|(name, id)| is_old(name, **id)).map(|(name, _)| name.clone()).collect()
            });
            old.iter().for_each(|name| self.unlink(at, name));
            let is_gone = self.get(at).layer < layer && self.get(at).folder().is_some_and(|it| it.children.is_empty());
            if let Some((parent, name)) = name.filter(|_| is_gone) {
                self.unlink(parent, &name);
            }
        }
    }

    /// A copy of the folder at `from` under another, new name: files are shared, folders are not.
    pub fn copy(&mut self, from: Id, components: &[&[u8]]) -> Result<Id> {
        let top = self.put(components, Inode { names: 1, ..self.without_children(from) }, Replace::LikeTar)?;
        let mut waiting = vec![(from, top)];
        while let Some((from, to)) = waiting.pop() {
            let children: Vec<(Box<[u8]>, Id)> = self
                .get(from)
                .folder()
                .map_or_else(Vec::new, |folder| folder.children.iter().map(|(name, id)| (name.clone(), *id)).collect());
            for (name, id) in children.into_iter().filter(|(_, id)| *id != top) {
                if let Some(folder) = self.get(id).folder() {
                    let is_subvolume = folder.subvolume.is_some();
                    let copy = self.add(to, &name, self.without_children(id))?;
                    waiting.extend((!is_subvolume).then_some((id, copy)));
                } else {
                    self.take_memory(64 + name.len() as u64)?;
                    self.get_mut(id).names += 1;
                    self.children_mut(to).insert(name, id);
                }
            }
        }
        Ok(top)
    }

    /// The attributes of a folder. A nested subvolume is an empty folder in a snapshot.
    fn without_children(&self, folder: Id) -> Inode {
        let body = Body::Folder(Folder { origin: Some(self.origin(folder)), ..Folder::default() });
        Inode { body, ..self.get(folder).clone() }
    }

    /// The inode of which this one is a copy, in the end, or itself. Only folders are copied.
    pub fn origin(&self, id: Id) -> Id {
        self.get(id).folder().and_then(|folder| folder.origin).unwrap_or(id)
    }
}
