//! Subvolumes and snapshots.

use crate::dir::Dir;
use crate::error::{AtPath, Error, Result};
use crate::filesystem::Filesystem;
use crate::metadata::FileType;
use crate::node::{Follow, Node};
use crate::resolve::path_of;
use crate::types::{Access, SubvolumeId, Timestamp, Uuid};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Errno, InodeId};
use std::path::{Path, PathBuf};

/// A subvolume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: SubvolumeId,
    /// Its path from the top level; empty for the top level itself.
    pub path: PathBuf,
    /// Whether it may be changed.
    pub access: Access,
    /// Its UUID; none for the top level of filesystems made by old tools.
    pub uuid: Option<Uuid>,
    /// The UUID of the subvolume that it is a snapshot of.
    pub parent_uuid: Option<Uuid>,
    /// The UUID that it had where it was sent from, if it was received.
    pub received_uuid: Option<Uuid>,
    /// The time when it was made.
    pub created: Timestamp,
    /// The number of the last transaction that changed it.
    pub generation: u64,
}

impl Filesystem {
    /// All subvolumes by id, the top level included.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let all = self.shared.engine()?.subvolumes()?;
        all.into_iter().map(|info| self.described(info)).collect()
    }

    /// One subvolume.
    pub fn subvolume(&self, id: SubvolumeId) -> Result<SubvolumeInfo> {
        self.described(self.shared.engine()?.subvolume_info(id.tree())?)
    }

    fn described(&self, info: butterfs_fs::subvolume::SubvolumeInfo) -> Result<SubvolumeInfo> {
        let path = match info.backref {
            Some(_) => path_of(self.shared.engine()?.subvolume_path(info.id)?),
            None => PathBuf::new(),
        };
        Ok(SubvolumeInfo {
            id: SubvolumeId(info.id.get()),
            path,
            access: Access::of_read_only(info.is_readonly()),
            uuid: Uuid::unless_zero(info.uuid),
            parent_uuid: Uuid::unless_zero(info.parent_uuid),
            received_uuid: Uuid::unless_zero(info.received_uuid),
            created: Timestamp::of(info.times[1]),
            generation: info.generation.get(),
        })
    }

    /// Makes a subvolume read-only or writable. When this returns, nothing changes in a read-only one any more.
    pub fn set_subvolume_access(&self, id: SubvolumeId, access: Access) -> Result<()> {
        Ok(self.shared.engine()?.set_subvolume_readonly(id.tree(), access.is_read_only())?)
    }

    /// The subvolume that is opened and mounted if none is named.
    pub fn default_subvolume(&self) -> Result<SubvolumeId> {
        Ok(SubvolumeId(self.shared.engine()?.default_subvolume_id()?.get()))
    }

    /// Chooses that subvolume.
    pub fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()> {
        Ok(self.shared.engine()?.set_default_subvolume(id.tree())?)
    }
}

impl Dir {
    /// Makes an empty subvolume.
    pub fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<SubvolumeId> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        let made = directory.engine()?.create_subvolume(&directory.shared().caller(), directory.id(), &name);
        made.map(|id| SubvolumeId(id.get())).at(path)
    }

    /// Makes a snapshot at `path` of the subvolume whose root `source` is, with everything that was written before. It
    /// is durable when this returns.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::Access;
    ///
    /// # let disk = Device::memory(128 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// # let root = filesystem.root();
    /// root.create_subvolume("home")?;
    /// root.write("home/letter", "draft")?;
    /// root.snapshot("home", "home-monday", Access::ReadOnly)?;
    /// root.write("home/letter", "final")?;
    /// assert_eq!(root.read("home-monday/letter")?, b"draft");
    /// # Ok::<(), butterfs::Error>(())
    /// ```
    pub fn snapshot(&self, source: impl AsRef<Path>, path: impl AsRef<Path>, access: Access) -> Result<SubvolumeId> {
        let (source, path) = (self.subvolume_at(source)?, path.as_ref());
        let (directory, name) = self.place(path)?;
        let read_only = access.is_read_only();
        let made = directory.engine()?.snapshot(source.tree(), directory.id(), &name, read_only);
        made.map(|id| SubvolumeId(id.get())).at(path)
    }

    /// The id of the subvolume whose root `path` is; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for
    /// anything else.
    pub fn subvolume_at(&self, path: impl AsRef<Path>) -> Result<SubvolumeId> {
        let path = path.as_ref();
        let id = self.node(path, Follow::Links)?.id();
        if id != InodeId::root_of(id.tree) {
            return Err(Error::refused(Errno::EINVAL, "not the root of a subvolume").at(path));
        }
        Ok(SubvolumeId(id.tree.get()))
    }

    /// Deletes a subvolume with everything in it. Subvolumes inside of it must be deleted first. Its space comes back
    /// in the background.
    pub fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        directory.engine()?.delete_subvolume(directory.id(), &name).map(drop).at(path)
    }
}

/// A directory that is being emptied.
struct Emptied {
    /// The directory that holds it, and its name there.
    parent: Node,
    name: Vec<u8>,
    directory: Node,
}

/// Removes what `name` leads to, with everything in it. Without recursion: an image can be deeper than any stack.
pub(crate) fn remove_tree(parent: &Node, name: &[u8]) -> Result<()> {
    let mut open = vec![enter(parent, name)?];
    while let Some(Emptied { parent, name, directory }) = open.last() {
        if let Some((below, below_name)) = remove_files(directory)? {
            open.push(enter(&below, &below_name)?);
            continue;
        }
        match parent.engine()?.rmdir(parent.id(), name) {
            // Another thread made something in it.
            Err(error) if error.is(Errno::ENOTEMPTY) => continue,
            removed => removed?,
        }
        open.pop();
    }
    Ok(())
}

fn enter(parent: &Node, name: &[u8]) -> Result<Emptied> {
    let attr = parent.engine()?.lookup(parent.id(), name)?;
    let directory = Node::counted(parent.shared(), &attr);
    if attr.kind() != mode::S_IFDIR {
        return Err(Error::refused(Errno::ENOTDIR, "not a directory"));
    }
    Ok(Emptied { parent: parent.clone(), name: name.to_vec(), directory })
}

/// Removes the files of a directory up to the first directory in it, and returns that.
fn remove_files(directory: &Node) -> Result<Option<(Node, Vec<u8>)>> {
    use std::os::unix::ffi::OsStrExt;
    for entry in Dir::of(directory.clone()).read_dir(".")? {
        let entry = entry?;
        let name = entry.file_name().as_bytes();
        if entry.file_type() == FileType::Directory {
            return Ok(Some((directory.clone(), name.to_vec())));
        }
        directory.engine()?.unlink(directory.id(), name)?;
    }
    Ok(None)
}
