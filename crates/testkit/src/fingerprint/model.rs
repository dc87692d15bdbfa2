//! The fingerprint of a model.

use super::{ContentHash, Fingerprint, PathFingerprint};
use crate::model::{Body, ModelFs, NodeId, ROOT};
use crate::operation::Kind;

impl Fingerprint {
    /// Everything the model knows.
    pub fn of_model(model: &ModelFs) -> Fingerprint {
        Fingerprint::of_model_with(model, true)
    }

    /// Everything the model knows except what the content of files is.
    pub fn of_model_without_content(model: &ModelFs) -> Fingerprint {
        Fingerprint::of_model_with(model, false)
    }

    fn of_model_with(model: &ModelFs, content: bool) -> Fingerprint {
        let mut print = Fingerprint::default();
        let mut inodes = Vec::new();
        let mut waiting = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = waiting.pop() {
            if let Body::Folder(folder) = &model.node(id).body {
                for (name, child) in &folder.entries {
                    let inside = if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                    waiting.push((inside, *child));
                }
            }
            print.entries.insert(path.clone(), entry(model, id, content));
            inodes.push((path, id));
        }
        print.group_links(inodes);
        print
    }
}

fn entry(model: &ModelFs, id: NodeId, content: bool) -> PathFingerprint {
    let node = model.node(id);
    let attributes = model.attributes(id);
    // A placeholder has the owner of the folder that it is in.
    let owner = match &node.body {
        Body::Folder(folder) if node.placeholder => model.node(folder.parent),
        _ => node,
    };
    let xattrs = node.xattrs.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone()));
    let mut entry = PathFingerprint {
        kind: attributes.kind,
        mode: attributes.mode,
        links: attributes.links,
        uid: owner.uid,
        gid: owner.gid,
        size: attributes.size,
        device: attributes.device,
        atime: node.atime,
        mtime: node.mtime,
        ctime: None,
        btime: None,
        blocks: None,
        xattrs: xattrs.collect(),
        first_path: None,
        target: None,
        content: None,
        data: None,
    };
    match &node.body {
        Body::File(file) if content => {
            let mut hash = ContentHash::default();
            file.written().for_each(|(offset, bytes)| hash.update(offset, bytes));
            entry.content = Some(hash.finish());
        }
        Body::Symlink(target) => entry.target = Some(target.clone()),
        Body::File(_) | Body::Folder(_) | Body::Special => {}
    }
    debug_assert!(entry.kind != Kind::Folder || entry.links <= 1);
    entry
}
