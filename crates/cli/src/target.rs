//! What commands about subvolumes work on: a mount, whose serving process is asked, or an image that this process opens.
//!
//! Questions and answers are those of [`butterfs_fuse::subvolumes`], the same for both.

use crate::error::{CliError, os_message};
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Env, Filesystem, InodeId, Options, Subvolume, TreeId};
use butterfs_fuse::client;
use butterfs_fuse::control::Caller;
use butterfs_fuse::subvolumes::{Answer, Peer, Record, Stage, perform};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether a command only looks at an image or changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing on it changes.
    Look,
    /// It is opened for writing.
    Change,
}

/// The image that `--image` names.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ImageArgument {
    /// Work on this image or device, which is not mounted; paths are those inside it, from the top level
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
}

/// See the [module](self).
pub enum Target {
    /// Somebody serves it.
    Mount(Box<Caller>),
    /// We have opened it.
    Image(Filesystem),
}

impl ImageArgument {
    /// What `path` lies on.
    pub fn target(&self, path: &Path, intent: Intent) -> Result<Target, CliError> {
        match &self.image {
            Some(image) => open_image(image, intent).map(Target::Image),
            None => served(path).map(|caller| Target::Mount(Box::new(caller))),
        }
    }
}

fn open_image(image: &Path, intent: Intent) -> Result<Filesystem, CliError> {
    let read_only = intent == Intent::Look;
    let file = if read_only { FileOptions::read_only() } else { FileOptions::read_write() };
    let device = FileDevice::open(image, &file)?;
    // To look is not to change: a log is replayed by whoever writes, or mounts.
    let options =
        Options { read_only, no_log_replay: read_only, subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
    let filesystem = Filesystem::open(vec![Arc::new(device)], options, Env::system())
        .map_err(|error| CliError::failed(format!("{}: {error}", image.display())))?;
    if filesystem.superblock().log_root.get() != 0 {
        filesystem.notes().iter().for_each(|note| report::warn(note));
    }
    Ok(filesystem)
}

/// The mount that a directory is on.
pub fn mounted(path: &Path) -> Result<Target, CliError> {
    served(path).map(|caller| Target::Mount(Box::new(caller)))
}

/// The filesystem on these devices, only to look at it; some may be missing.
pub fn images(paths: &[PathBuf]) -> Result<Target, CliError> {
    let open = |path: &PathBuf| -> Result<Arc<dyn BlockDevice>, CliError> {
        Ok(Arc::new(FileDevice::open(path, &FileOptions::read_only())?))
    };
    let devices = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let options = Options {
        read_only: true,
        no_log_replay: true,
        degraded: true,
        subvolume: Subvolume::Id(TreeId::FS),
        ..Options::default()
    };
    let filesystem = Filesystem::open(devices, options, Env::system())
        .map_err(|error| CliError::failed(format!("{}: {error}", paths[0].display())))?;
    Ok(Target::Image(filesystem))
}

fn served(path: &Path) -> Result<Caller, CliError> {
    let stat = rustix::fs::stat(path).map_err(|error| cannot_access(path, error.into()))?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    client::ask_about(device).map_err(|why| CliError::failed(format!("{}: {why}", path.display())))
}

/// The failure to get at a path.
pub fn cannot_access(path: &Path, error: io::Error) -> CliError {
    CliError::failed(format!("cannot access '{}': {}", path.display(), os_message(&error)))
}

impl Target {
    /// Asks a question; `what` begins the sentence when it is refused, as in `cannot WHAT`.
    pub fn ask(&mut self, what: &str, words: &[&[u8]]) -> Result<Vec<Record>, CliError> {
        let answer = self.try_ask(words)?;
        answer.map_err(|refusal| CliError::failed(format!("{what}: {}", refusal.sentence)))
    }

    /// Asks a question. The inner error is the engine's.
    pub fn try_ask(&mut self, words: &[&[u8]]) -> Result<Answer, CliError> {
        let words: Record = words.iter().map(|word| word.to_vec()).collect();
        match self {
            Target::Mount(caller) => caller
                .question(&words)
                .map_err(|error| CliError::failed(format!("cannot ask the process that serves the mount: {error}"))),
            Target::Image(filesystem) => {
                let peer = own_peer();
                Ok(perform(
                    &Stage { filesystem, peer: &peer, find: &|_| None, changed: &|_, _| {}, closed: &|_, _, _| {} },
                    &words,
                ))
            }
        }
    }

    /// Asks a question that a descriptor belongs to; `report` is told how far the work is.
    pub fn ask_with(
        &mut self,
        words: &Record,
        descriptor: OwnedFd,
        report: &mut dyn FnMut(&[Vec<u8>]),
    ) -> Result<Answer, CliError> {
        match self {
            Target::Mount(caller) => caller
                .question_with(words, descriptor.as_fd(), report)
                .map_err(|error| CliError::failed(format!("cannot ask the process that serves the mount: {error}"))),
            Target::Image(filesystem) => {
                let peer = own_peer();
                let stage =
                    Stage { filesystem, peer: &peer, find: &|_| None, changed: &|_, _| {}, closed: &|_, _, _| {} };
                let mut report = |words: &[Vec<u8>]| {
                    report(words);
                    true
                };
                Ok(crate::streams::carry(&stage, words, descriptor, &mut report))
            }
        }
    }

    /// Asks a question whose answer is one number.
    pub fn ask_number(&mut self, what: &str, words: &[&[u8]]) -> Result<u64, CliError> {
        let records = self.ask(what, words)?;
        let text = records.first().and_then(|record| std::str::from_utf8(record.first()?).ok());
        text.and_then(|text| text.parse().ok()).ok_or_else(nonsense)
    }

    /// The word for what a path leads to.
    pub fn inode(&self, path: &Path) -> Result<Vec<u8>, CliError> {
        self.find(path).map_err(|error| cannot_access(path, error))
    }

    fn find(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Target::Mount(_) => Ok(format!("@{}", rustix::fs::stat(path)?.st_ino).into_bytes()),
            Target::Image(filesystem) => {
                let id = lookup(filesystem, path)?;
                Ok(format!("{}:{}", id.tree.0, id.ino.0).into_bytes())
            }
        }
    }

    /// The inode that a path inside an image leads to.
    pub fn id_in_image(&self, path: &Path) -> Result<InodeId, CliError> {
        match self {
            Target::Image(filesystem) => lookup(filesystem, path).map_err(|error| cannot_access(path, error)),
            Target::Mount(_) => Err(CliError::failed(format!("'{}' is not in an image", path.display()))),
        }
    }

    /// Bytes of a file.
    pub fn size(&self, path: &Path) -> Result<u64, CliError> {
        match self {
            Target::Mount(_) => {
                std::fs::metadata(path).map(|metadata| metadata.len()).map_err(|error| cannot_access(path, error))
            }
            Target::Image(filesystem) => Ok(filesystem.getattr(self.id_in_image(path)?)?.size),
        }
    }

    /// Whether a path leads to a directory, to something else, or nowhere.
    pub fn is_directory(&self, path: &Path) -> Result<Option<bool>, CliError> {
        let found = match self {
            Target::Mount(_) => std::fs::metadata(path).map(|metadata| metadata.is_dir()),
            Target::Image(filesystem) => lookup(filesystem, path).and_then(|id| {
                let attr = filesystem.getattr(id).map_err(|error| io::Error::from_raw_os_error(error.errno().0))?;
                Ok(attr.mode & 0o170_000 == 0o040_000)
            }),
        };
        match found {
            Ok(is_directory) => Ok(Some(is_directory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot_access(path, error)),
        }
    }

    /// Has the kernel send the contents and times that it caches, before a question whose answer depends on them. What
    /// it caches of files that are still open for writing, the serving process asks for itself.
    pub fn write_back(&self, path: &Path) -> Result<(), CliError> {
        if let Target::Mount(_) = self {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            // Who may not open it has written nothing through it; the serving process still asks for the rest.
            if let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) {
                rustix::fs::syncfs(file).map_err(|error| cannot_access(path, error.into()))?;
            }
        }
        Ok(())
    }

    /// Finishes the work on an image.
    pub fn close(self) -> Result<(), CliError> {
        match self {
            Target::Mount(_) => Ok(()),
            Target::Image(filesystem) => Ok(filesystem.shutdown()?),
        }
    }
}

fn own_peer() -> Peer {
    Peer::privileged(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Names one after the other; symbolic links and `..` are not followed inside an image.
fn lookup(filesystem: &Filesystem, path: &Path) -> io::Result<InodeId> {
    let mut at = InodeId::root_of(TreeId::FS);
    for name in path.as_os_str().as_bytes().split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." {
            continue;
        }
        let found = filesystem.lookup(at, name).map_err(|error| io::Error::from_raw_os_error(error.errno().0))?;
        filesystem.forget(found.id, 1);
        at = found.id;
    }
    Ok(at)
}

/// The directory and the name that a path ends in.
pub fn parent_and_name(path: &Path) -> Result<(PathBuf, Vec<u8>), CliError> {
    let name = path.file_name().ok_or_else(|| CliError::failed(format!("'{}' ends in no name", path.display())))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), name.as_bytes().to_vec()))
}

/// A server that answers something else than was asked.
pub fn nonsense() -> CliError {
    CliError::failed("the answer of the process that serves the mount makes no sense")
}
