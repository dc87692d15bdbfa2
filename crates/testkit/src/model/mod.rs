//! A POSIX filesystem in memory that is too simple to be wrong: what the engine is compared with.
//!
//! Invariants: (1) the answer to every operation, the errno included, is the one that Linux's VFS over the kernel's
//! btrfs gives to root; (2) a folder has one link and its size is twice the length of the names in it, as on btrfs;
//! (3) what cannot be known from the operations alone (times that the clock set) is `None`; (4) a clone shares
//! everything with its original until one of them changes, so a state can be kept after every operation.
//! It does not check permissions, does not follow symbolic links, and never runs out of space.

mod attributes;
mod content;
mod namespace;
mod shown;
mod subvolumes;

pub use content::Sparse;

use crate::operation::{Attributes, Kind, Moment, Object, Op, OperationTarget, Outcome, RelPath, Reply};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a node of the model; not an inode number of anything else.
pub type NodeId = u64;

/// The root folder's number.
pub const ROOT: NodeId = 1;

/// Result of a step inside the model.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The content of a node besides its attributes.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Body {
    File(Sparse),
    Folder(Folder),
    Symlink(Vec<u8>),
    /// Fifo, socket, device.
    Special,
}

/// A folder's entries and its own place.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Folder {
    pub entries: BTreeMap<Vec<u8>, NodeId>,
    pub parent: NodeId,
}

/// An inode.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub device: (u32, u32),
    /// Known only when it was set and nothing changed it since.
    pub mtime: Option<Moment>,
    pub atime: Option<Moment>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub body: Body,
    /// Open handles; an inode lives while it has a link or a handle.
    pub opens: u32,
    /// The root folder of the subvolume that it is in; its own number in a subvolume's root folder.
    pub subvolume: NodeId,
    /// Stands for a subvolume that this snapshot does not contain: empty, and nothing can be done with it.
    pub placeholder: bool,
    /// Made without a name, and never had one: it can get one.
    pub linkable: bool,
}

/// The filesystem.
#[derive(Clone, Debug)]
pub struct ModelFs {
    nodes: BTreeMap<NodeId, Arc<Node>>,
    handles: BTreeMap<u32, NodeId>,
    next: NodeId,
    /// Root folders of read-only subvolumes.
    read_only: BTreeSet<NodeId>,
    /// The greatest number of links to one inode.
    pub links_max: u32,
}

impl Default for ModelFs {
    fn default() -> ModelFs {
        ModelFs::new(0o755)
    }
}

impl ModelFs {
    /// A filesystem with an empty root folder of this mode.
    pub fn new(root_mode: u32) -> ModelFs {
        let folder = Folder { entries: BTreeMap::new(), parent: ROOT };
        let root = Node::new(Kind::Folder, root_mode, Body::Folder(folder));
        let nodes = BTreeMap::from([(ROOT, Arc::new(root))]);
        ModelFs { nodes, handles: BTreeMap::new(), next: ROOT + 1, read_only: BTreeSet::new(), links_max: 65535 }
    }

    /// A node that exists.
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(&id).expect("the node lives while something names it")
    }

    /// A node, if it is still there.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(|node| &**node)
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&id).expect("the node lives while something names it"))
    }

    /// All nodes by number.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, &**node))
    }

    /// The first node at or after `id`, going round at the end.
    pub fn node_at_or_after(&self, id: NodeId) -> NodeId {
        *self.nodes.range(id..).next().map_or(&ROOT, |(id, _)| id)
    }

    /// The number that the next new node gets.
    pub fn next_id(&self) -> NodeId {
        self.next
    }

    /// The number of inodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never true: the root stays.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The bytes of all blocks that hold data.
    pub fn data_bytes(&self) -> u64 {
        self.nodes.values().map(|node| if let Body::File(file) = &node.body { file.stored_bytes() } else { 0 }).sum()
    }

    /// Open handles and their nodes.
    pub fn handles(&self) -> &BTreeMap<u32, NodeId> {
        &self.handles
    }

    /// The path of a folder.
    pub fn path_of_folder(&self, mut id: NodeId) -> RelPath {
        let mut names: Vec<Vec<u8>> = Vec::new();
        while id != ROOT {
            let Body::Folder(folder) = &self.node(id).body else { panic!("node {id} is no folder") };
            let above = self.folder(folder.parent).expect("a parent is a folder");
            let name = above.entries.iter().find(|(_, child)| **child == id).expect("a parent names its child").0;
            names.push(name.clone());
            id = folder.parent;
        }
        names.reverse();
        RelPath(names.join(&b'/'))
    }

    /// The entries of a folder.
    pub fn folder(&self, id: NodeId) -> Answer<&Folder> {
        match &self.node(id).body {
            Body::Folder(folder) => Ok(folder),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn folder_mut(&mut self, id: NodeId) -> &mut Folder {
        match &mut self.node_mut(id).body {
            Body::Folder(folder) => folder,
            _ => panic!("node {id} is no folder"),
        }
    }

    /// The node at a path.
    pub fn resolve(&self, path: &RelPath) -> Answer<NodeId> {
        path.names().try_fold(ROOT, |id, name| {
            let folder = self.folder(id)?;
            namespace::check_name(name)?;
            folder.entries.get(name).copied().ok_or(Errno::NOENT)
        })
    }

    /// The folder of a path and its last name, which need not exist.
    fn resolve_parent<'a>(&self, path: &'a RelPath) -> Answer<(NodeId, Vec<u8>)> {
        let (folder, name): (RelPath, &'a [u8]) = path.split().ok_or(Errno::BUSY)?;
        let id = self.resolve(&folder)?;
        self.folder(id)?;
        namespace::check_name(name)?;
        Ok((id, name.to_vec()))
    }

    /// The node that an operation on `object` would be about.
    pub fn find(&self, object: &Object) -> Option<NodeId> {
        self.object(object).ok()
    }

    fn object(&self, object: &Object) -> Answer<NodeId> {
        match object {
            Object::Path(path) => self.resolve(path),
            Object::Handle(handle) => self.handles.get(handle).copied().ok_or(Errno::BADF),
        }
    }

    /// The node of a regular file to read from or write to.
    fn file_object(&self, object: &Object) -> Answer<NodeId> {
        let id = self.object(object)?;
        match self.node(id).kind {
            Kind::File => Ok(id),
            Kind::Folder => Err(Errno::ISDIR),
            Kind::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::INVAL),
        }
    }

    fn file(&self, id: NodeId) -> &Sparse {
        match &self.node(id).body {
            Body::File(file) => file,
            _ => panic!("node {id} is no regular file"),
        }
    }

    /// The content, for a change of it: the time of the last change is not known afterwards.
    fn change_file(&mut self, id: NodeId) -> &mut Sparse {
        let node = self.node_mut(id);
        node.mtime = None;
        match &mut node.body {
            Body::File(file) => file,
            _ => panic!("node {id} is no regular file"),
        }
    }

    /// The attributes that `stat` shows for a node.
    pub fn attributes(&self, id: NodeId) -> Attributes {
        let node = self.node(id);
        Attributes {
            kind: node.kind,
            mode: node.mode,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size: node.size(),
            device: node.device,
            mtime: node.mtime,
        }
    }
}

impl Node {
    fn new(kind: Kind, mode: u32, body: Body) -> Node {
        Node {
            kind,
            mode,
            uid: 0,
            gid: 0,
            links: 1,
            device: (0, 0),
            mtime: None,
            atime: None,
            xattrs: BTreeMap::new(),
            body,
            opens: 0,
            subvolume: ROOT,
            placeholder: false,
            linkable: false,
        }
    }

    /// The size that `stat` shows.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(file) => file.size(),
            Body::Folder(folder) => folder.entries.keys().map(|name| 2 * name.len() as u64).sum(),
            Body::Symlink(target) => target.len() as u64,
            Body::Special => 0,
        }
    }
}

impl OperationTarget for ModelFs {
    fn apply(&mut self, op: &Op) -> Outcome {
        self.namespace(op).or_else(|| self.content(op)).or_else(|| self.attribute(op)).unwrap_or(Ok(Reply::Done))
    }
}

#[cfg(test)]
mod tests;
