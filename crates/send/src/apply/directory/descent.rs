//! Walking through a tree with one descriptor, however deep the tree is.
//!
//! The way back up is `..`. It must lead to the directory that the walk came from: where somebody has moved a directory
//! meanwhile, the walk ends with an error.

use super::super::{Failure, Outcome, paths};
use super::object::{Identity, Object, identity};
use super::system;
use super::tree::PathAt;
use butterfs_fs::Errno;
use rustix::fs::{Dir, OFlags, fstat};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// How a directory is opened to be looked into.
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// See the [module](self).
pub(super) struct Descent {
    at: Rc<OwnedFd>,
    /// Of each directory above this one, and the name of the next one in it.
    above: Vec<(Identity, Vec<u8>)>,
}

impl Descent {
    pub fn new(root: OwnedFd) -> Descent {
        Descent { at: Rc::new(root), above: Vec::new() }
    }

    /// The directory that the walk is in.
    pub fn at(&self) -> &Rc<OwnedFd> {
        &self.at
    }

    pub fn resolve<'p>(&self, name: &'p [u8]) -> PathAt<'p> {
        PathAt { directory: Rc::clone(&self.at), name }
    }

    pub fn is_at_root(&self) -> bool {
        self.above.is_empty()
    }

    /// The names that lead here from the root.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.above.iter().map(|(_, name)| name.as_slice())
    }

    /// The path of a name here, or of this directory itself where that is `.`.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::new();
        self.names()
            .chain([name].into_iter().filter(|name| *name != b"."))
            .for_each(|name| paths::push(&mut path, name));
        path
    }

    /// Calls `each` with every name here.
    pub fn each_name(&self, each: &mut dyn FnMut(&[u8]) -> Outcome) -> Outcome {
        for entry in self.resolve(b".").within(|| Dir::read_from(&*self.at)).map_err(system)? {
            let entry = entry.map_err(system)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                each(name)?;
            }
        }
        Ok(())
    }

    /// Goes into a directory.
    pub fn down(&mut self, name: &[u8]) -> Outcome {
        let below = Object::at(&self.resolve(name))?.open(LOOK)?;
        let here = identity(&fstat(&*self.at).map_err(system)?);
        self.above.push((here, name.to_vec()));
        self.at = Rc::new(below);
        Ok(())
    }

    /// Goes back to the directory above, and returns the name of the one that was left.
    pub fn up(&mut self) -> Result<Vec<u8>, Failure> {
        let root = || Failure::new(Errno::EINVAL, "nothing is above the root");
        let (expected, name) = self.above.pop().ok_or_else(root)?;
        let above = Object::at(&self.resolve(b".."))?;
        if above.identity() != expected {
            let what = String::from_utf8_lossy(&name).into_owned();
            return Err(Failure::new(Errno::EAGAIN, format!("somebody has moved the directory {what} meanwhile")));
        }
        self.at = Rc::new(above.open(LOOK)?);
        Ok(name)
    }
}
