//! Subvolumes, snapshots, and names for files without one.
//!
//! A subvolume is a folder whose inodes say that they belong to it. A snapshot is a copy of one subvolume's nodes;
//! where another subvolume is nested in it, the copy has a placeholder. Writing in read-only subvolumes is not refused
//! here: whoever chooses operations leaves them alone.

use super::{Answer, Body, Folder, ModelFs, Node, NodeId};
use crate::operation::{Kind, RelPath};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

impl ModelFs {
    /// Whether a node is the root folder of a subvolume.
    pub fn is_subvolume(&self, id: NodeId) -> bool {
        self.node(id).subvolume == id
    }

    /// Whether a node is in a read-only subvolume.
    pub fn is_read_only(&self, id: NodeId) -> bool {
        self.read_only.contains(&self.node(id).subvolume)
    }

    /// Makes a subvolume read-only or writable.
    pub fn set_read_only(&mut self, root: NodeId, read_only: bool) {
        if read_only {
            self.read_only.insert(root);
        } else {
            self.read_only.remove(&root);
        }
    }

    /// Root folders of all subvolumes, the top level included.
    pub fn subvolumes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(id, node)| node.subvolume == **id).map(|(id, _)| *id)
    }

    /// Whether an inode of the subvolume with this root folder is open.
    pub fn is_in_use(&self, subvolume: NodeId) -> bool {
        self.handles.values().any(|id| self.node(*id).subvolume == subvolume)
    }

    /// Makes an empty subvolume.
    pub fn create_subvolume(&mut self, path: &RelPath) -> Answer<()> {
        let (folder, name) = self.resolve_parent(path)?;
        if self.folder(folder)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        let id = self.take_id();
        let body = Body::Folder(Folder { entries: BTreeMap::new(), parent: folder });
        let node = Node { subvolume: id, ..Node::new(Kind::Folder, 0o777, body) };
        self.nodes.insert(id, Arc::new(node));
        self.enter(folder, name, id);
        Ok(())
    }

    /// Makes a snapshot of the subvolume at `from`.
    pub fn snapshot(&mut self, from: &RelPath, to: &RelPath, read_only: bool) -> Answer<()> {
        let source = self.resolve(from)?;
        if !self.is_subvolume(source) {
            return Err(Errno::INVAL);
        }
        let (folder, name) = self.resolve_parent(to)?;
        if self.folder(folder)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        let root = self.copy_subvolume(source);
        if read_only {
            self.read_only.insert(root);
        }
        self.enter(folder, name, root);
        Ok(())
    }

    pub(super) fn take_id(&mut self) -> NodeId {
        self.next += 1;
        self.next - 1
    }

    /// Copies all nodes of a subvolume; returns the number of the copy's root folder, which nothing names yet.
    fn copy_subvolume(&mut self, source: NodeId) -> NodeId {
        let inside: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.subvolume == source && node.links > 0)
            .map(|(id, _)| *id)
            .collect();
        let copies: BTreeMap<NodeId, NodeId> = inside.iter().map(|id| (*id, self.take_id())).collect();
        let root = copies[&source];
        for id in inside {
            let mut node = self.node(id).clone();
            (node.subvolume, node.opens) = (root, 0);
            if let Body::Folder(folder) = &mut node.body {
                folder.parent = copies.get(&folder.parent).copied().unwrap_or(folder.parent);
                for child in folder.entries.values_mut() {
                    *child = copies.get(child).copied().unwrap_or_else(|| self.add_placeholder(copies[&id], root));
                }
            }
            self.nodes.insert(copies[&id], Arc::new(node));
        }
        root
    }

    fn add_placeholder(&mut self, parent: NodeId, subvolume: NodeId) -> NodeId {
        let id = self.take_id();
        let body = Body::Folder(Folder { entries: BTreeMap::new(), parent });
        let node = Node { subvolume, placeholder: true, ..Node::new(Kind::Folder, 0o755, body) };
        self.nodes.insert(id, Arc::new(node));
        id
    }

    /// Deletes the subvolume at `path`.
    pub fn delete_subvolume(&mut self, path: &RelPath) -> Answer<()> {
        let (folder, name) = self.resolve_parent(path)?;
        let root = *self.folder(folder)?.entries.get(&name).ok_or(Errno::NOENT)?;
        if !self.is_subvolume(root) {
            return Err(Errno::INVAL);
        }
        let nested = |id: &NodeId| {
            let Body::Folder(inside) = &self.node(*id).body else { return false };
            *id != root && self.node(inside.parent).subvolume == root
        };
        if self.subvolumes().any(|id| nested(&id)) {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(folder, &name);
        self.nodes.retain(|_, node| node.subvolume != root);
        self.read_only.remove(&root);
        Ok(())
    }

    /// Gives the file behind a handle a name.
    pub fn link_handle(&mut self, handle: u32, to: &RelPath) -> Answer<()> {
        let id = *self.handles.get(&handle).ok_or(Errno::BADF)?;
        let (folder, name) = self.resolve_parent(to)?;
        if self.folder(folder)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        if self.node(id).subvolume != self.node(folder).subvolume {
            return Err(Errno::XDEV);
        }
        if self.node(id).links == 0 && !self.node(id).linkable {
            return Err(Errno::NOENT);
        }
        (self.node_mut(id).links, self.node_mut(id).linkable) = (self.node(id).links + 1, false);
        self.enter(folder, name, id);
        Ok(())
    }
}
