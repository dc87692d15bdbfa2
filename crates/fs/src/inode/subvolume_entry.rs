//! The back reference of a subvolume to its directory entry, as the root tree records it: ROOT_REF seen from the tree
//! that holds the directory, ROOT_BACKREF seen from the subvolume; both say the same.
//!
//! A directory entry that leads to a subvolume is believed only if these records name the same directory and the
//! same name. Snapshots copy entries but not the records: there the entry is an empty placeholder directory.

use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::inode::attr::{Attr, InodeId, mode};
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::RootRef;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::ops::ControlFlow;
use zerocopy::{FromBytes, IntoBytes};

/// The place of a subvolume's entry, from ROOT_BACKREF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootBackref {
    /// The directory.
    pub directory: InodeId,
    /// Index of the entry in it.
    pub index: u64,
}

pub(crate) fn keys(tree: TreeId, subvolume: TreeId) -> [Key; 2] {
    [Key::new(tree.0, KeyType::ROOT_REF, subvolume.0), Key::new(subvolume.0, KeyType::ROOT_BACKREF, tree.0)]
}

fn parse(tree: TreeId, key: Key, payload: &[u8]) -> Result<(RootBackref, &[u8])> {
    let parsed = RootRef::ref_from_prefix(payload).ok();
    let parsed = parsed.filter(|(head, name)| usize::from(head.name_len.get()) == name.len());
    let (head, name) = parsed.ok_or_else(|| Error::corrupt(format!("item {key} of the root tree is malformed")))?;
    let directory = InodeId::new(tree, Ino(head.dirid.get()));
    Ok((RootBackref { directory, index: head.sequence.get() }, name))
}

/// The back reference of `subvolume`, if its records agree with an entry of this name in `directory`.
pub fn confirm(core: &Core, directory: InodeId, name: &[u8], subvolume: TreeId) -> Result<Option<RootBackref>> {
    let [key, _] = keys(directory.tree, subvolume);
    let Some(payload) = core.globals().root.get(core, key)? else { return Ok(None) };
    let (backref, recorded) = parse(directory.tree, key, &payload)?;
    Ok((backref.directory == directory && recorded == name).then_some(backref))
}

/// The directory that holds a subvolume's entry; `None` for the top level and for a subvolume without a back reference.
pub fn parent(core: &Core, subvolume: TreeId) -> Result<Option<InodeId>> {
    let mut parent = None;
    let (from, to) =
        (Key::new(subvolume.0, KeyType::ROOT_BACKREF, 0), Key::new(subvolume.0, KeyType::ROOT_BACKREF, u64::MAX));
    core.globals().root.scan(core, from, to, &mut |key, payload| {
        parent = Some(parse(TreeId(key.offset), key, payload)?.0.directory);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(parent)
}

/// Records the back reference of a subvolume.
pub fn add(handle: &Handle, backref: RootBackref, name: &[u8], subvolume: TreeId) -> Result<()> {
    let head = RootRef {
        dirid: backref.directory.ino.0.into(),
        sequence: backref.index.into(),
        name_len: (name.len() as u16).into(),
    };
    let payload = [head.as_bytes(), name].concat();
    for key in keys(backref.directory.tree, subvolume) {
        if !handle.core().globals().root.insert(handle, key, &payload)? {
            return Err(Error::corrupt(format!("subvolume {subvolume} has the record {key} already")));
        }
    }
    handle.transaction().traces.note_placed(subvolume);
    Ok(())
}

/// Removes the records of a subvolume's entry in `tree`.
pub fn remove(handle: &Handle, tree: TreeId, subvolume: TreeId) -> Result<()> {
    for key in keys(tree, subvolume) {
        if !handle.core().globals().root.remove(handle, key)? {
            return Err(Error::corrupt(format!("subvolume {subvolume} lacks the record {key}")));
        }
    }
    Ok(())
}

/// The attributes that `stat` shows for a placeholder: it has the owner of the directory that it is in, and was changed
/// when that was.
pub fn placeholder(id: InodeId, directory: &Attr) -> Attr {
    Attr { uid: directory.uid, gid: directory.gid, ..unplaced(id, directory.mtime) }
}

/// The attributes that `stat` shows for a placeholder when nothing is known of its directory.
pub fn unplaced(id: InodeId, time: Time) -> Attr {
    Attr {
        id,
        generation: 0,
        size: 0,
        blocks: 0,
        mode: mode::S_IFDIR | 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        blksize: 4096,
        flags: 0,
    }
}

/// The refusal of everything that would change a placeholder.
pub fn placeholder_refusal() -> Error {
    Error::refused(Errno::EACCES, "the directory stands for a subvolume that this snapshot does not contain")
}
