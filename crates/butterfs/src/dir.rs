//! A directory, and everything that can be done by path below it.

use crate::error::{AtPath, Error, Result};
use crate::file::File;
use crate::metadata::Metadata;
use crate::node::{Follow, Node};
use crate::open_options::{Create, OpenOptions, Start};
use crate::read_dir::ReadDir;
use crate::resolve::{self, End};
use crate::types::{Access, Mode};
use butterfs_fs::{Attr, Errno, RenameMode, SetAttr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A directory of the filesystem. Paths begin at it and never lead out of it.
///
/// An absolute path, an absolute symbolic link, and `..` at the directory itself begin at this directory, as after
/// `chroot(2)`. [`open_dir`](Dir::open_dir) confines further: its result is the root of all paths that are given to it.
/// Methods follow a symbolic link at the end of a path as their counterparts in [`std::fs`] do.
///
/// ```
/// # use butterfs::{Device, Filesystem, Mkfs};
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// # let root = Filesystem::open(disk)?.root();
/// root.create_dir_all("srv/www")?;
/// root.write("srv/www/index.html", "<h1>hello</h1>")?;
/// root.symlink("www/index.html", "srv/home")?;
/// assert_eq!(root.read("srv/home")?, b"<h1>hello</h1>");
///
/// let www = root.open_dir("srv/www")?;
/// assert!(www.read("../home").is_err()); // `..` stays inside of `www`
/// # Ok::<(), butterfs::Error>(())
/// ```
#[derive(Clone)]
pub struct Dir {
    node: Node,
}

/// The behaviour of [`Dir::rename`] if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Rename {
    /// Replaces it, as `rename(2)` does.
    #[default]
    Replace,
    /// Fails with [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists).
    KeepExisting,
    /// Both names exist, and change places.
    Exchange,
}

impl Dir {
    pub(crate) fn of(node: Node) -> Dir {
        Dir { node }
    }

    /// The directory's own attributes.
    pub fn as_node(&self) -> &Node {
        &self.node
    }

    /// The node that a path leads to.
    pub(crate) fn find(&self, path: &Path, follow: Follow) -> Result<(Node, Attr)> {
        resolve::existing(&self.node, path, follow).at(path)
    }

    /// The directory and the name that a path ends with.
    pub(crate) fn place(&self, path: &Path) -> Result<(Node, Vec<u8>)> {
        resolve::parent(&self.node, path).at(path)
    }

    /// A file, directory, link or special file, for its attributes.
    pub fn node(&self, path: impl AsRef<Path>, follow: Follow) -> Result<Node> {
        self.find(path.as_ref(), follow).map(|(node, _)| node)
    }

    /// Attributes of what `path` leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), Follow::Links).map(|(_, attr)| Metadata::of(attr))
    }

    /// Attributes of `path`, of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), Follow::Nothing).map(|(_, attr)| Metadata::of(attr))
    }

    /// Returns true if `path` leads to something.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        Ok(matches!(resolve::walk(&self.node, path, Follow::Links).at(path)?, End::There(..)))
    }

    /// A directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let path = path.as_ref();
        let (node, attr) = self.find(path, Follow::Links)?;
        if !Metadata::of(attr).is_dir() {
            return Err(Error::refused(Errno::ENOTDIR, "not a directory").at(path));
        }
        Ok(Dir { node })
    }

    /// The entries of a directory, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        ReadDir::new(self.open_dir(path)?).at(path)
    }

    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenOptions::read_only())
    }

    /// Opens a file for reading and writing; makes it if it does not exist and removes its content if it does.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenOptions::read_write().create(Create::IfMissing).truncate())
    }

    /// Opens a file as `options` say.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        if options.access.is_read_only() && options.start != Start::Keep {
            return Err(Error::refused(Errno::EINVAL, "truncating and appending need a file that is open for writing"))
                .at(path);
        }
        // Another thread can make or remove the name between the walk and the creation.
        loop {
            match self.try_open(path, options) {
                Err(error) if error.errno().raw() == Errno::EEXIST.0 && options.create == Create::IfMissing => {}
                opened => return opened.at(path),
            }
        }
    }

    fn try_open(&self, path: &Path, options: &OpenOptions) -> Result<File> {
        let follow = if options.create == Create::New { Follow::Nothing } else { Follow::Links };
        let (node, attr) = match resolve::walk(&self.node, path, follow)? {
            End::There(..) if options.create == Create::New => {
                return Err(Error::refused(Errno::EEXIST, "the name exists"));
            }
            End::There(node, attr) => (node, attr),
            End::Missing(..) if options.create == Create::Never => {
                return Err(Error::refused(Errno::ENOENT, "no such file"));
            }
            End::Missing(directory, name) => return self.make_file(&directory, &name, options),
        };
        let file = File::open(node, &attr, options)?;
        if options.start == Start::Truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn make_file(&self, directory: &Node, name: &[u8], options: &OpenOptions) -> Result<File> {
        let caller = directory.shared().caller();
        let attr = directory.engine()?.create(&caller, directory.id(), name, options.mode.bits())?;
        File::open(Node::counted(directory.shared(), &attr), &attr, options)
    }

    /// The content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.open_file(path)?.read_all().at(path)
    }

    /// Makes a file with this content, or replaces the content of one that exists.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.create_file(path)?.write_all_at(content.as_ref(), 0).at(path)
    }

    /// Makes a directory with the mode [`Mode::DIRECTORY`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, Mode::DIRECTORY)
    }

    /// Makes a directory.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: Mode) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        let made = directory.engine()?.mkdir(&directory.shared().caller(), directory.id(), &name, mode.bits());
        let made = made.map(|attr| Node::counted(directory.shared(), &attr));
        made.map(drop).at(path)
    }

    /// Makes a directory and those above it that do not exist.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        let mut at = Some(path);
        while let Some(wanted) = at.filter(|wanted| !wanted.as_os_str().is_empty()) {
            match resolve::walk(&self.node, wanted, Follow::Links) {
                Ok(End::There(..)) => break,
                Ok(End::Missing(..)) => missing.push(wanted),
                Err(error) if error.errno().raw() == Errno::ENOENT.0 => missing.push(wanted),
                Err(error) => return Err(error.at(path)),
            }
            at = wanted.parent();
        }
        for wanted in missing.into_iter().rev() {
            match self.create_dir(wanted) {
                Err(error) if error.errno().raw() == Errno::EEXIST.0 => {}
                made => made?,
            }
        }
        self.open_dir(path).map(drop)
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        let (caller, target) = (directory.shared().caller(), target.as_ref().as_os_str().as_bytes());
        let made = directory.engine()?.symlink(&caller, directory.id(), &name, target);
        made.map(|attr| drop(Node::counted(directory.shared(), &attr))).at(path)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<std::path::PathBuf> {
        let path = path.as_ref();
        self.node(path, Follow::Nothing)?.read_link().at(path)
    }

    /// Gives what `original` names another name. A symbolic link at the end of `original` is not followed.
    pub fn hard_link(&self, original: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        self.link_node(&self.node(original, Follow::Nothing)?, path)
    }

    /// Gives a node of this filesystem another name.
    pub fn link_node(&self, node: &Node, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        if !std::sync::Arc::ptr_eq(directory.shared(), node.shared()) {
            return Err(Error::refused(Errno::EXDEV, "the node belongs to another filesystem")).at(path);
        }
        let made = directory.engine()?.link(node.id(), directory.id(), &name);
        made.map(|attr| drop(Node::counted(directory.shared(), &attr))).at(path)
    }

    /// Makes a FIFO, a socket or a device file. `numbers`: major and minor of a device.
    pub fn make_special(
        &self,
        path: impl AsRef<Path>,
        kind: crate::FileType,
        mode: Mode,
        numbers: (u32, u32),
    ) -> Result<()> {
        use butterfs_fs::inode::attr::mode as bits;
        let path = path.as_ref();
        let kind = match kind {
            crate::FileType::Fifo => bits::S_IFIFO,
            crate::FileType::Socket => bits::S_IFSOCK,
            crate::FileType::BlockDevice => bits::S_IFBLK,
            crate::FileType::CharDevice => bits::S_IFCHR,
            _ => return Err(Error::refused(Errno::EINVAL, "not a type of special file")).at(path),
        };
        let (directory, name) = self.place(path)?;
        let caller = directory.shared().caller();
        let made = directory.engine()?.mknod(&caller, directory.id(), &name, kind | mode.bits(), numbers);
        made.map(|attr| drop(Node::counted(directory.shared(), &attr))).at(path)
    }

    /// Gives `from` the name `to`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, how: Rename) -> Result<()> {
        let from = from.as_ref();
        let (old, old_name) = self.place(from)?;
        let (new, new_name) = self.place(to.as_ref())?;
        let how = match how {
            Rename::Replace => RenameMode::Replace,
            Rename::KeepExisting => RenameMode::NoReplace,
            Rename::Exchange => RenameMode::Exchange,
        };
        old.engine()?.rename(old.id(), &old_name, new.id(), &new_name, how).at(from)
    }

    /// Removes the name of something that is not a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        directory.engine()?.unlink(directory.id(), &name).at(path)
    }

    /// Removes an empty directory, or deletes an empty subvolume.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        directory.engine()?.rmdir(directory.id(), &name).at(path)
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed; subvolumes in it are
    /// deleted.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (directory, name) = self.place(path)?;
        crate::subvolume::remove_tree(&directory, &name).at(path)
    }

    /// Makes a file at `to` that shares the content of the file at `from`, which takes no space and no time.
    pub fn reflink(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let source = self.open_file(from)?;
        let mode = source.metadata()?.mode();
        let to = to.as_ref();
        let target = self.open_with(to, &OpenOptions::read_write().create(Create::New).mode(mode))?;
        target.clone_from(&source).at(to)
    }

    /// Sets the size of a file.
    pub fn set_len(&self, path: impl AsRef<Path>, len: u64) -> Result<()> {
        let path = path.as_ref();
        self.node(path, Follow::Links)?.set(SetAttr { size: Some(len), ..SetAttr::default() }).at(path)
    }

    /// The access that the filesystem allows now.
    pub fn access(&self) -> Access {
        Access::of_read_only(self.node.shared().memory().is_read_only())
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir").field("id", &crate::InodeId::from(self.node.id())).finish_non_exhaustive()
    }
}
