//! Operations on attributes: mode, owner, times, extended attributes.

use super::{Answer, ModelFs};
use crate::operation::{Kind, Op, Outcome, RelPath, Reply};
use rustix::io::Errno;

const SET_IDS_AND_STICKY: u32 = 0o7000;
const PERMISSIONS: u32 = 0o777;

impl ModelFs {
    /// The answer, when `op` is about attributes.
    pub(super) fn attribute(&mut self, op: &Op) -> Option<Outcome> {
        let done = |answer: Answer<()>| answer.map(|()| Reply::Done);
        Some(match op {
            Op::Stat { object } => self.object(object).map(|id| Reply::Attributes(self.attributes(id))),
            Op::Chmod { object, mode } => {
                let id = self.object(object);
                done(id.map(|id| self.node_mut(id).mode = mode & (SET_IDS_AND_STICKY | PERMISSIONS)))
            }
            Op::Chown { path, uid, gid } => done(self.chown(path, *uid, *gid)),
            Op::SetTimes { path, atime, mtime } => {
                let id = self.resolve(path);
                done(id.map(|id| (self.node_mut(id).atime, self.node_mut(id).mtime) = (Some(*atime), Some(*mtime))))
            }
            Op::GetXattr { path, name } => self.get_xattr(path, name),
            Op::SetXattr { path, name, value, create, replace } => {
                done(self.set_xattr(path, name, value.bytes(), *create, *replace))
            }
            Op::RemoveXattr { path, name } => done(self.remove_xattr(path, name)),
            Op::ListXattrs { path } => self.list_xattrs(path),
            Op::Fsync { object, .. } => self.object(object).map(|_| Reply::Done),
            _ => return None,
        })
    }

    /// A new owner takes the set-id bits away, except from folders.
    fn chown(&mut self, path: &RelPath, uid: u32, gid: u32) -> Answer<()> {
        let id = self.resolve(path)?;
        let node = self.node_mut(id);
        (node.uid, node.gid) = (uid, gid);
        if node.kind != Kind::Folder {
            let runs_as_group = node.mode & 0o2010 == 0o2010;
            node.mode &= if runs_as_group { !0o6000 } else { !0o4000 };
        }
        Ok(())
    }

    fn get_xattr(&self, path: &RelPath, name: &str) -> Outcome {
        let node = self.node(self.resolve(path)?);
        node.xattrs.get(name).map(|value| Reply::Bytes(value.clone())).ok_or(Errno::NODATA)
    }

    fn set_xattr(&mut self, path: &RelPath, name: &str, value: Vec<u8>, create: bool, replace: bool) -> Answer<()> {
        let id = self.resolve(path)?;
        let exists = self.node(id).xattrs.contains_key(name);
        if create && exists {
            return Err(Errno::EXIST);
        }
        if replace && !exists {
            return Err(Errno::NODATA);
        }
        self.node_mut(id).xattrs.insert(name.to_owned(), value);
        Ok(())
    }

    fn remove_xattr(&mut self, path: &RelPath, name: &str) -> Answer<()> {
        let id = self.resolve(path)?;
        self.node_mut(id).xattrs.remove(name).map(drop).ok_or(Errno::NODATA)
    }

    fn list_xattrs(&self, path: &RelPath) -> Outcome {
        let names = self.node(self.resolve(path)?).xattrs.keys().map(|name| name.clone().into_bytes());
        Ok(Reply::Names(names.collect()))
    }
}
