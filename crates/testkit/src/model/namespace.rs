//! Operations on names: create, link, unlink, rename, open handles, folders listed.
//!
//! The order of the checks is the VFS's, because it decides which errno wins where two would fit.

use super::{Answer, Body, Folder, ModelFs, Node, NodeId, Sparse};
use crate::names::NAME_MAX;
use crate::operation::{Kind, Op, Outcome, RelPath, RenameHow, Reply};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

const SET_GID: u32 = 0o2000;

/// The rule for the length of one name.
pub(super) fn check_name(name: &[u8]) -> Answer<()> {
    if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

impl ModelFs {
    /// The answer, when `op` is about names.
    pub(super) fn namespace(&mut self, op: &Op) -> Option<Outcome> {
        let done = |answer: Answer<()>| Some(answer.map(|()| Reply::Done));
        match op {
            Op::Create { path, mode } => {
                done(self.make(path, Kind::File, *mode, (0, 0), Body::File(Sparse::default())))
            }
            Op::Mkdir { path, mode } => {
                let folder = Folder { entries: BTreeMap::new(), parent: 0 };
                done(self.make(path, Kind::Folder, *mode, (0, 0), Body::Folder(folder)))
            }
            Op::Mknod { path, kind, mode, major, minor } => {
                let body = if *kind == Kind::File { Body::File(Sparse::default()) } else { Body::Special };
                done(self.make(path, *kind, *mode, (*major, *minor), body))
            }
            Op::Symlink { path, target } => {
                done(self.make(path, Kind::Symlink, 0o777, (0, 0), Body::Symlink(target.0.clone())))
            }
            Op::Link { from, to } => done(self.link(from, to)),
            Op::Unlink { path } => done(self.unlink(path)),
            Op::Rmdir { path } => done(self.rmdir(path)),
            Op::Rename { from, to, how } => done(self.rename(from, to, *how)),
            Op::Open { path, handle } => done(self.open(path, *handle)),
            Op::Tmpfile { folder, mode, handle } => done(self.tmpfile(folder, *mode, *handle)),
            Op::Close { handle } => done(self.close(*handle)),
            Op::ReadFolder { path } => Some(self.read_folder(path)),
            Op::ReadLink { path } => Some(self.read_link(path)),
            _ => None,
        }
    }

    fn make(&mut self, path: &RelPath, kind: Kind, mode: u32, device: (u32, u32), body: Body) -> Answer<()> {
        let (folder, name) = self.resolve_parent(path)?;
        if self.folder(folder)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        let id = self.insert(folder, kind, mode, device, body);
        self.enter(folder, name, id);
        Ok(())
    }

    /// A new node that inherits from its folder; not yet named by it.
    fn insert(&mut self, folder: NodeId, kind: Kind, mode: u32, device: (u32, u32), mut body: Body) -> NodeId {
        if let Body::Folder(inside) = &mut body {
            inside.parent = folder;
        }
        let above = self.node(folder);
        let mut node = Node { device, subvolume: above.subvolume, ..Node::new(kind, mode, body) };
        if above.mode & SET_GID != 0 {
            node.gid = above.gid;
            node.mode |= if kind == Kind::Folder { SET_GID } else { 0 };
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, Arc::new(node));
        id
    }

    pub(super) fn enter(&mut self, folder: NodeId, name: Vec<u8>, id: NodeId) {
        self.node_mut(folder).mtime = None;
        self.folder_mut(folder).entries.insert(name, id);
        if let Body::Folder(inside) = &mut self.node_mut(id).body {
            inside.parent = folder;
        }
    }

    pub(super) fn leave(&mut self, folder: NodeId, name: &[u8]) -> NodeId {
        self.node_mut(folder).mtime = None;
        self.folder_mut(folder).entries.remove(name).expect("the name was looked up")
    }

    fn drop_link(&mut self, id: NodeId) {
        self.node_mut(id).links -= 1;
        self.forget_unused(id);
    }

    fn forget_unused(&mut self, id: NodeId) {
        if self.node(id).links == 0 && self.node(id).opens == 0 {
            self.nodes.remove(&id);
        }
    }

    fn link(&mut self, from: &RelPath, to: &RelPath) -> Answer<()> {
        let id = self.resolve(from)?;
        let (folder, name) = self.resolve_parent(to)?;
        if self.folder(folder)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        if self.node(id).kind == Kind::Folder {
            return Err(Errno::PERM);
        }
        if self.node(id).subvolume != self.node(folder).subvolume {
            return Err(Errno::XDEV);
        }
        if self.node(id).links >= self.links_max {
            return Err(Errno::MLINK);
        }
        self.node_mut(id).links += 1;
        self.enter(folder, name, id);
        Ok(())
    }

    fn unlink(&mut self, path: &RelPath) -> Answer<()> {
        let (folder, name) = self.resolve_parent(path)?;
        let id = *self.folder(folder)?.entries.get(&name).ok_or(Errno::NOENT)?;
        if self.node(id).kind == Kind::Folder {
            return Err(Errno::ISDIR);
        }
        self.leave(folder, &name);
        self.drop_link(id);
        Ok(())
    }

    fn rmdir(&mut self, path: &RelPath) -> Answer<()> {
        let (folder, name) = self.resolve_parent(path)?;
        let id = *self.folder(folder)?.entries.get(&name).ok_or(Errno::NOENT)?;
        if !self.folder(id)?.entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(folder, &name);
        self.drop_link(id);
        Ok(())
    }

    /// True when `folder` is `id` or lies below it.
    fn lies_in(&self, mut folder: NodeId, id: NodeId) -> bool {
        loop {
            if folder == id {
                return true;
            }
            match &self.node(folder).body {
                Body::Folder(inside) if folder != super::ROOT => folder = inside.parent,
                _ => return false,
            }
        }
    }

    fn rename(&mut self, from: &RelPath, to: &RelPath, how: RenameHow) -> Answer<()> {
        let (old_folder, old_name) = self.resolve_parent(from)?;
        let (new_folder, new_name) = self.resolve_parent(to)?;
        let id = *self.folder(old_folder)?.entries.get(&old_name).ok_or(Errno::NOENT)?;
        let replaced = self.folder(new_folder)?.entries.get(&new_name).copied();
        match (how, replaced) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        if self.lies_in(new_folder, id) {
            return Err(Errno::INVAL);
        }
        if let Some(other) = replaced {
            if self.lies_in(old_folder, other) {
                return Err(if how == RenameHow::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if other == id {
                return Ok(());
            }
            if how == RenameHow::Exchange {
                self.leave(old_folder, &old_name);
                self.leave(new_folder, &new_name);
                self.enter(new_folder, new_name, id);
                self.enter(old_folder, old_name, other);
                return Ok(());
            }
            self.check_replace(id, other)?;
            self.leave(new_folder, &new_name);
            self.drop_link(other);
        }
        self.leave(old_folder, &old_name);
        self.enter(new_folder, new_name, id);
        if how == RenameHow::Whiteout {
            let whiteout = self.insert(old_folder, Kind::CharDevice, 0, (0, 0), Body::Special);
            self.enter(old_folder, old_name, whiteout);
        }
        Ok(())
    }

    fn check_replace(&self, id: NodeId, other: NodeId) -> Answer<()> {
        match (self.node(id).kind == Kind::Folder, &self.node(other).body) {
            (true, Body::Folder(folder)) if folder.entries.is_empty() => Ok(()),
            (true, Body::Folder(_)) => Err(Errno::NOTEMPTY),
            (true, _) => Err(Errno::NOTDIR),
            (false, Body::Folder(_)) => Err(Errno::ISDIR),
            (false, _) => Ok(()),
        }
    }

    fn open(&mut self, path: &RelPath, handle: u32) -> Answer<()> {
        let id = self.file_object(&crate::operation::Object::Path(path.clone()))?;
        self.attach(id, handle);
        Ok(())
    }

    fn tmpfile(&mut self, folder: &RelPath, mode: u32, handle: u32) -> Answer<()> {
        let folder = self.resolve(folder)?;
        self.folder(folder)?;
        let id = self.insert(folder, Kind::File, mode, (0, 0), Body::File(Sparse::default()));
        (self.node_mut(id).links, self.node_mut(id).linkable) = (0, true);
        self.attach(id, handle);
        Ok(())
    }

    fn attach(&mut self, id: NodeId, handle: u32) {
        self.node_mut(id).opens += 1;
        assert!(self.handles.insert(handle, id).is_none(), "handle {handle} is open already");
    }

    fn close(&mut self, handle: u32) -> Answer<()> {
        let id = self.handles.remove(&handle).ok_or(Errno::BADF)?;
        self.node_mut(id).opens -= 1;
        self.forget_unused(id);
        Ok(())
    }

    fn read_folder(&self, path: &RelPath) -> Outcome {
        let folder = self.folder(self.resolve(path)?)?;
        let entries = folder.entries.iter().map(|(name, id)| (name.clone(), self.node(*id).kind));
        Ok(Reply::Entries(entries.collect()))
    }

    fn read_link(&self, path: &RelPath) -> Outcome {
        match &self.node(self.resolve(path)?).body {
            Body::Symlink(target) => Ok(Reply::Bytes(target.clone())),
            _ => Err(Errno::INVAL),
        }
    }
}
