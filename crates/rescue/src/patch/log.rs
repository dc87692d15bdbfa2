//! The content of the log, and clearing it.

use super::Writer;
use crate::Result;
use crate::roots::Roots;
use crate::subvolume;
use crate::tree::{Root, Tree};
use crate::wreck::Wreck;
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::{InodeItem, RootItem};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// An inode that was synced since the last commit.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Logged {
    /// Its subvolume.
    pub tree: u64,
    /// Its number.
    pub ino: u64,
    /// Where it is, in its subvolume, as far as that is known.
    pub path: String,
    /// Bytes that it has in the last commit; `None`: it is new.
    pub committed_bytes: Option<u64>,
    /// Bytes that the log gives it.
    pub logged_bytes: u64,
}

/// Inodes that are listed.
const MOST_LISTED: usize = 100_000;

/// Lists the inodes in the log of the filesystem.
pub fn contents(wreck: &Wreck) -> Vec<Logged> {
    let sb = wreck.superblock();
    let mut found = Vec::new();
    if sb.log_root.get() == 0 {
        return found;
    }
    let roots = Roots::assemble(wreck);
    let (at, level) = (sb.log_root.get(), Some(sb.log_root_level));
    let generation = Some(sb.generation.get().saturating_add(1));
    let logs = Tree::new(wreck, Root { tree: TreeId::TREE_LOG, at, level, generation });
    logs.scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        let item = RootItem::parse(data).filter(|_| key.kind == KeyType::ROOT_ITEM);
        if let Some(item) = item {
            let (at, generation) = (item.bytenr.get(), Some(item.generation.get()));
            let root = Root { tree: TreeId::TREE_LOG, at, level: Some(item.level), generation };
            let committed = roots.trees.get(&TreeId(key.offset)).map(|root| Tree::new(wreck, root.root));
            of_log(&Tree::new(wreck, root), committed, key.offset, &mut found);
        }
        ControlFlow::Continue(())
    });
    found
}

fn of_log(log: &Tree<'_>, committed: Option<Tree<'_>>, tree: u64, found: &mut Vec<Logged>) {
    log.scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        let item = InodeItem::read_from_prefix(data).ok().filter(|_| key.kind == KeyType::INODE_ITEM);
        if let Some((item, _)) = item {
            let before = committed.map(|tree| subvolume::inode(&tree, key.objectid));
            let committed_bytes = before.as_ref().and_then(|inode| inode.item).map(|item| item.size.get());
            let path = path_of(log, committed.as_ref(), key.objectid);
            let (ino, logged_bytes) = (key.objectid, item.size.get());
            found.push(Logged { tree, ino, path, committed_bytes, logged_bytes });
        }
        if found.len() < MOST_LISTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
}

/// The path by the log's references, where it has some, else by those of the last commit.
fn path_of(log: &Tree<'_>, committed: Option<&Tree<'_>>, ino: u64) -> String {
    let (mut parts, mut at) = (Vec::new(), ino);
    while at != crate::restore::ROOT_DIRECTORY && parts.len() < 128 {
        let names = subvolume::inode(log, at).names.into_iter();
        let older = committed.map(|tree| subvolume::inode(tree, at).names).unwrap_or_default();
        let Some((parent, name)) = names.chain(older).next() else {
            parts.push(format!("<{at}>"));
            break;
        };
        parts.push(String::from_utf8_lossy(&name).into_owned());
        if parent == at {
            break;
        }
        at = parent;
    }
    parts.reverse();
    format!("/{}", parts.join("/"))
}

/// Leaves the log behind: no superblock leads to it any more.
pub fn clear(wreck: &Wreck, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    let mut sb = *wreck.superblock();
    sb.log_root = 0.into();
    sb.log_root_level = 0;
    Writer::new(wreck, devices)?.write_superblock(&sb, &|_| ())
}
