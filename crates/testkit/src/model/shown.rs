//! The model of what an open filesystem shows.

use super::{Body, Folder, ModelFs, Node, NodeId, ROOT, Sparse};
use crate::operation::{Kind, Moment};
use butterfs_fs::{Attr, Filesystem, InodeId, Result};
use butterfs_ondisk::items::RootItem;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes read at once.
const AT_ONCE: usize = 1 << 20;

impl ModelFs {
    /// Everything that `filesystem` shows, as a model to go on with.
    pub fn of_library(filesystem: &Filesystem) -> Result<ModelFs> {
        let mut model = ModelFs::default();
        let mut known: BTreeMap<InodeId, NodeId> = BTreeMap::from([(filesystem.root(), ROOT)]);
        let root = filesystem.getattr(filesystem.root())?;
        let (node, mut waiting) = (node_of(filesystem, &root, (ROOT, ROOT))?, vec![(root, ROOT)]);
        model.nodes.insert(ROOT, Arc::new(node));
        while let Some((attr, id)) = waiting.pop() {
            let names = crate::library::entries(filesystem, attr.id)?;
            for (name, _) in names {
                let child = filesystem.lookup(attr.id, &name)?;
                filesystem.forget(child.id, 1);
                let new = !known.contains_key(&child.id);
                let number = *known.entry(child.id).or_insert_with(|| model.take_id());
                model.folder_mut(id).entries.insert(name, number);
                if !new {
                    continue;
                }
                let same = child.id.tree == attr.id.tree || child.id.is_placeholder();
                let subvolume = if same { model.node(id).subvolume } else { number };
                let node = node_of(filesystem, &child, (id, subvolume))?;
                let is_folder = node.kind == Kind::Folder;
                model.nodes.insert(number, Arc::new(node));
                if !same && filesystem.subvolume_info(child.id.tree)?.flags & RootItem::RDONLY != 0 {
                    model.read_only.insert(number);
                }
                if is_folder {
                    waiting.push((child, number));
                }
            }
        }
        Ok(model)
    }
}

fn node_of(filesystem: &Filesystem, attr: &Attr, (parent, subvolume): (NodeId, NodeId)) -> Result<Node> {
    let kind = Kind::of_mode(attr.mode);
    let body = match kind {
        Kind::File => Body::File(content(filesystem, attr)?),
        Kind::Folder => Body::Folder(Folder { entries: BTreeMap::new(), parent }),
        Kind::Symlink => Body::Symlink(filesystem.readlink(attr.id)?),
        _ => Body::Special,
    };
    let placeholder = attr.id.is_placeholder();
    let time = |time: butterfs_fs::env::Time| (!placeholder).then_some(Moment { sec: time.sec, nsec: time.nsec });
    let mut node = Node {
        uid: attr.uid,
        gid: attr.gid,
        links: attr.nlink,
        device: attr.rdev,
        mtime: time(attr.mtime),
        atime: time(attr.atime),
        subvolume,
        placeholder,
        ..Node::new(kind, attr.mode & 0o7777, body)
    };
    if !placeholder {
        for name in filesystem.list_xattrs(attr.id)?.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = filesystem.get_xattr(attr.id, name)?;
            node.xattrs.insert(String::from_utf8_lossy(name).into_owned(), value);
        }
    }
    Ok(node)
}

fn content(filesystem: &Filesystem, attr: &Attr) -> Result<Sparse> {
    let mut file = Sparse::default();
    let mut buffer = Vec::new();
    for (start, end) in crate::fingerprint::data_ranges(filesystem, attr.id, attr.size)? {
        let mut at = start;
        while at < end {
            let len = filesystem.read(attr.id, at, AT_ONCE.min((end - at) as usize), &mut buffer)?;
            if len == 0 {
                break;
            }
            file.write(at, &buffer[..len]);
            at += len as u64;
        }
    }
    file.truncate(attr.size);
    Ok(file)
}
