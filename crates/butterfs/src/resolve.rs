//! From a path to a node, inside the filesystem.
//!
//! # Invariants
//! 1. The walk begins at a directory and never leaves it: `..` at that directory, and a symbolic link with an absolute
//!    target, stay at it or begin there again. Nothing is ever looked up on the host.
//! 2. At most [`MOST_LINKS`] symbolic links are followed, so that the walk ends on every image.
//!
//! `..` after a symbolic link to a directory leads to the parent of that directory, as in the kernel.

use crate::error::{Error, Result};
use crate::node::{Follow, Node};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Attr, Errno};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// As in the kernel.
const MOST_LINKS: usize = 40;

/// The end of a path.
pub(crate) enum End {
    /// At something that exists.
    There(Node, Attr),
    /// At a name that a directory does not have.
    Missing(Node, Vec<u8>),
}

/// A path on its way.
struct Walk {
    /// The directories from the start to where the walk is, and perhaps a last one that is none.
    passed: Vec<(Node, Attr)>,
    /// Components that are still to come, the next one last.
    coming: Vec<Vec<u8>>,
    links: usize,
}

/// The end of `path`, which begins at `start`.
pub(crate) fn walk(start: &Node, path: &Path, follow: Follow) -> Result<End> {
    let mut walk = Walk { passed: vec![(start.clone(), start.attr()?)], coming: Vec::new(), links: 0 };
    walk.push(path.as_os_str().as_bytes())?;
    while let Some(name) = walk.coming.pop() {
        if let Some(name) = walk.step(name, follow)? {
            let (directory, _) = walk.passed.pop().expect("a walk never leaves its start");
            return Ok(End::Missing(directory, name));
        }
    }
    let (node, attr) = walk.passed.pop().expect("a walk never leaves its start");
    Ok(End::There(node, attr))
}

/// The node at `path`, which must exist.
pub(crate) fn existing(start: &Node, path: &Path, follow: Follow) -> Result<(Node, Attr)> {
    match walk(start, path, follow)? {
        End::There(node, attr) => Ok((node, attr)),
        End::Missing(..) => Err(Error::refused(Errno::ENOENT, "no such file or directory")),
    }
}

/// The directory that holds the last component of `path`, and that component, which need not exist.
pub(crate) fn parent(start: &Node, path: &Path) -> Result<(Node, Vec<u8>)> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let begin = bytes[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let name = &bytes[begin..end];
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Error::refused(Errno::EINVAL, "the path must end with a name"));
    }
    check_component(name)?;
    let directory = match begin {
        0 => start.clone(),
        _ => existing(start, Path::new(std::ffi::OsStr::from_bytes(&bytes[..begin])), Follow::Links)?.0,
    };
    Ok((directory, name.to_vec()))
}

impl Walk {
    /// Puts the components of a path before those that are still to come.
    fn push(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(Error::refused(Errno::ENOENT, "the path is empty ('.' names the directory itself)"));
        }
        if path.ends_with(b"/") {
            // What a trailing slash names is a directory.
            self.coming.push(b".".to_vec());
        }
        for component in path.split(|&byte| byte == b'/').rev().filter(|component| !component.is_empty()) {
            check_component(component)?;
            self.coming.push(component.to_vec());
        }
        Ok(())
    }

    /// Takes a step. Returns the name if nothing has it and it is the last one.
    fn step(&mut self, name: Vec<u8>, follow: Follow) -> Result<Option<Vec<u8>>> {
        let (here, attr) = self.passed.last().expect("a walk never leaves its start");
        if attr.kind() != mode::S_IFDIR {
            return Err(Error::refused(Errno::ENOTDIR, "a component of the path is not a directory"));
        }
        match name.as_slice() {
            b"." => {}
            b".." if self.passed.len() > 1 => drop(self.passed.pop()),
            b".." => {}
            _ => {
                let found = match here.engine()?.lookup(here.id(), &name) {
                    Err(error) if error.is(Errno::ENOENT) && self.coming.is_empty() => return Ok(Some(name)),
                    found => found?,
                };
                let node = Node::counted(here.shared(), &found);
                let is_passed = !self.coming.is_empty() || follow == Follow::Links;
                if found.kind() == mode::S_IFLNK && is_passed {
                    self.follow(&node)?;
                } else {
                    self.passed.push((node, found));
                }
            }
        }
        Ok(None)
    }

    fn follow(&mut self, link: &Node) -> Result<()> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Error::refused(Errno::ELOOP, format!("more than {MOST_LINKS} symbolic links")));
        }
        let target = link.engine()?.readlink(link.id())?;
        if target.first() == Some(&b'/') {
            self.passed.truncate(1);
        }
        self.push(&target)
    }
}

fn check_component(name: &[u8]) -> Result<()> {
    if name.contains(&0) {
        return Err(Error::refused(Errno::EINVAL, "a name cannot contain a NUL byte"));
    }
    Ok(())
}

/// Bytes from the disk as a path.
pub(crate) fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}
