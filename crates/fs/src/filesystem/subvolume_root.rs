//! Which directory is the root of a mount: by subvolume id, by path, or the default subvolume.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;
use crate::options::Subvolume;
use crate::subvolume;
use butterfs_ondisk::{Ino, TreeId};

impl Filesystem {
    /// The root directory of a subvolume that is to be shown. `ENOENT` where there is none, `EINVAL` where the path
    /// leads to a directory that is no subvolume's.
    pub fn find_subvolume(&self, which: &Subvolume) -> Result<InodeId> {
        let _operation = self.begin();
        match which {
            Subvolume::Default => self.subvolume(subvolume::default_id(self.0.engine.core())?),
            Subvolume::Id(TreeId(0)) => self.subvolume(TreeId::FS),
            Subvolume::Id(id) => self.subvolume(*id),
            Subvolume::Path(path) => self.subvolume_at(path),
        }
    }

    fn subvolume(&self, id: TreeId) -> Result<InodeId> {
        if !id.is_subvolume() {
            return Err(Error::refused_at(Errno::ENOENT, format!("{id} is not a subvolume's id")));
        }
        self.0.engine.tree(id).map_err(|error| match error.is(Errno::ENOENT) {
            true => Error::refused_at(Errno::ENOENT, format!("there is no subvolume with id {id}")),
            false => error,
        })?;
        Ok(InodeId { tree: id, ino: Ino::ROOT_DIR })
    }

    fn subvolume_at(&self, path: &[u8]) -> Result<InodeId> {
        let mut above = vec![InodeId { tree: TreeId::FS, ino: Ino::ROOT_DIR }];
        let mut rest = names(path);
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let at = *above.last().expect("the top level stays");
            if name == b".." {
                above.truncate(above.len().saturating_sub(1).max(1));
                continue;
            }
            let found = self.lookup(at, &name).map_err(|error| match error.is(Errno::ENOENT) {
                true => {
                    let path = String::from_utf8_lossy(path);
                    Error::refused_at(Errno::ENOENT, format!("there is no subvolume at {path}"))
                }
                false => error,
            });
            let found = found?;
            self.forget(found.id, 1);
            match found.mode & KIND {
                LINK => rest.extend(self.target(found.id, &mut links)?),
                _ => above.push(found.id),
            }
        }
        let at = *above.last().expect("the top level stays");
        if at.ino != Ino::ROOT_DIR {
            let path = String::from_utf8_lossy(path);
            return Err(Error::refused_at(Errno::EINVAL, format!("{path} is a directory, not a subvolume")));
        }
        Ok(at)
    }

    /// The names that a symbolic link stands for, the last one first. Those that begin at the root of another
    /// filesystem lead nowhere.
    fn target(&self, link: InodeId, links: &mut usize) -> Result<Vec<Vec<u8>>> {
        *links += 1;
        let target = self.readlink(link)?;
        match (target.first(), *links > MOST_LINKS) {
            (_, true) => Err(Error::refused(Errno::ELOOP, "there are too many symbolic links on the way")),
            (Some(b'/'), _) => Err(Error::refused(Errno::ENOENT, "a symbolic link leads out of the filesystem")),
            _ => Ok(names(&target)),
        }
    }
}

/// Symbolic links that are followed, as by the kernel.
const MOST_LINKS: usize = 40;
const KIND: u32 = 0o170_000;
const LINK: u32 = 0o120_000;

/// The names of a path, the last one first.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).rev().collect()
}
