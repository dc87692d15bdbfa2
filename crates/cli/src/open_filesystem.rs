//! The filesystem of a command about subvolumes: a mount, whose serving process is asked, or an image that this process
//! opens.
//!
//! Questions and answers are those of [`butterfs_control`], the same for both.

use crate::error::{CliError, os_message};
use crate::report;
use crate::streams;
use butterfs_control::question::SendSubvolumes;
use butterfs_control::{Ask, AskStream, InodeRef, Refusal, Report, SendStatus, SendSummary};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Env, Filesystem, InodeId, Options, Subvolume, TreeId};
use butterfs_fuse::client;
use butterfs_fuse::control::ControlClient;
use butterfs_fuse::control::descriptors::is_pipe;
use butterfs_fuse::subvolumes::{Inodes, Peer, Stage, perform};
use rustix::fs::{Mode, OFlags, Stat, fstat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// Blocks of trees that are cached where nothing changes: such commands go through trees once, in order.
const LOOK_CACHE_BYTES: usize = 64 << 20;

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

/// The images that `--image` names: the devices of one filesystem.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ImagesArgument {
    /// Work on this image or device, which is not mounted; of a filesystem on several devices name each
    #[arg(long = "image", value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

impl ImagesArgument {
    /// The filesystem on the images, or the mount that `path` is on.
    pub fn open_for_balance(&self, path: &Path, intent: Intent) -> Result<OpenFilesystem, CliError> {
        match &self.images[..] {
            [] => mounted(path),
            images => open_paused(images, intent).map(OpenFilesystem::Image),
        }
    }
}

/// The same for commands that change the set of devices.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WritableImagesArgument {
    #[command(flatten)]
    argument: ImagesArgument,
    /// With --image: change the filesystem although some of its devices are not given
    #[arg(long, requires = "images")]
    degraded: bool,
}

impl WritableImagesArgument {
    /// The filesystem on the images, opened for writing, or the mount that `path` is on.
    pub fn open(&self, path: Option<&Path>) -> Result<OpenFilesystem, CliError> {
        match (path, self.images()) {
            (Some(path), []) => mounted(path),
            (None, []) => Err(CliError::usage("a directory of a mount is needed, or images with --image")),
            (Some(_), _) => Err(CliError::usage("either a directory of a mount or images with --image, not both")),
            (None, images) => {
                let incomplete = "give all of its devices, each with --image, or do without the missing ones with \
                                  --degraded";
                let filesystem = open_images(images, Intent::Change, self.degraded, incomplete)?;
                filesystem.notes().iter().for_each(|note| report::warn(note));
                Ok(OpenFilesystem::Image(filesystem))
            }
        }
    }

    /// The same for adding a device, which a seed filesystem allows too.
    pub fn open_to_add(&self, path: Option<&Path>) -> Result<OpenFilesystem, CliError> {
        let opened = self.open(path);
        match opened {
            Err(_) if path.is_none() && !self.images().is_empty() => {
                let seed = open_images(self.images(), Intent::Look, self.degraded, "").ok().filter(Filesystem::is_seed);
                seed.map_or(opened, |seed| Ok(OpenFilesystem::Image(seed)))
            }
            opened => opened,
        }
    }

    /// The images; none if a mount is meant.
    pub fn images(&self) -> &[PathBuf] {
        &self.argument.images
    }
}

/// Opens the filesystem on these devices. `incomplete` is the hint if some are missing.
fn open_images(images: &[PathBuf], intent: Intent, degraded: bool, incomplete: &str) -> Result<Filesystem, CliError> {
    let read_only = intent == Intent::Look;
    let file = if read_only { FileOptions::read_only() } else { FileOptions::read_write() };
    let open =
        |path: &PathBuf| -> Result<Arc<dyn BlockDevice>, CliError> { Ok(Arc::new(FileDevice::open(path, &file)?)) };
    let devices = images.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let subvolume = Subvolume::Id(TreeId::FS);
    let options = Options { read_only, no_log_replay: read_only, degraded, subvolume, ..Options::default() };
    Filesystem::open(devices, options, Env::system()).map_err(|error| {
        let failed = CliError::failed(format!("{}: {error}", images[0].display()));
        match error {
            butterfs_fs::Error::Incomplete(_) => failed.hint(incomplete),
            _ => failed,
        }
    })
}

/// See the [module](self).
pub enum OpenFilesystem {
    /// Somebody serves it.
    Mount(Box<Mount>),
    /// We have opened it.
    Image(Filesystem),
}

/// A mount whose serving process answers.
pub struct Mount {
    client: ControlClient,
    /// The path that was given.
    path: PathBuf,
    /// The inode that it refers to.
    root: Arc<OwnedFd>,
    device: u64,
}

/// Something on a filesystem that a question is about.
#[derive(Clone, Debug)]
pub struct Object(Held);

#[derive(Clone, Debug)]
enum Held {
    /// Opened with `O_PATH`, on the filesystem itself.
    Open(Arc<OwnedFd>),
    Numbered(InodeId),
}

/// A question, and the descriptors of what it is about.
#[derive(Clone, Debug)]
pub struct Asking<Q> {
    question: Q,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// A question about no inode.
pub fn plain<Q>(question: Q) -> Asking<Q> {
    Asking { question, descriptors: Vec::new() }
}

/// The question that `make` makes of references to these objects.
pub fn about<Q, const N: usize>(objects: [&Object; N], make: impl FnOnce([InodeRef; N]) -> Q) -> Asking<Q> {
    let mut named = Named::default();
    let question = make(objects.map(|object| named.reference(object)));
    named.asking(question)
}

/// The objects that a question is about, one by one.
#[derive(Default)]
pub struct Named(Vec<Arc<OwnedFd>>);

impl Named {
    /// The reference to an object in the question.
    pub fn reference(&mut self, object: &Object) -> InodeRef {
        match &object.0 {
            Held::Open(descriptor) => {
                self.0.push(Arc::clone(descriptor));
                // More than the index can say are refused before they are sent.
                InodeRef::Descriptor(u8::try_from(self.0.len() - 1).unwrap_or(u8::MAX))
            }
            Held::Numbered(id) => InodeRef::Number { tree: id.tree.0, ino: id.ino.0 },
        }
    }

    /// The question with these references.
    pub fn asking<Q>(self, question: Q) -> Asking<Q> {
        Asking { question, descriptors: self.0 }
    }
}

impl ImageArgument {
    /// Opens the filesystem of `path`.
    pub fn open(&self, path: &Path, intent: Intent) -> Result<OpenFilesystem, CliError> {
        match &self.image {
            Some(image) => open_paused(std::slice::from_ref(image), intent).map(OpenFilesystem::Image),
            None => mounted(path),
        }
    }
}

/// Opens the filesystem on these images for one command.
fn open_paused(images: &[PathBuf], intent: Intent) -> Result<Filesystem, CliError> {
    let read_only = intent == Intent::Look;
    let file = if read_only { FileOptions::read_only() } else { FileOptions::read_write() };
    let open =
        |path: &PathBuf| -> Result<Arc<dyn BlockDevice>, CliError> { Ok(Arc::new(FileDevice::open(path, &file)?)) };
    let devices = images.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // To look is not to change: a log is replayed by whoever writes, or mounts.
    // A balance that somebody left goes on when it is mounted, or when that is asked for.
    let usual = Options::default();
    let options = Options {
        read_only,
        no_log_replay: read_only,
        skip_balance: true,
        subvolume: Subvolume::Id(TreeId::FS),
        node_cache_bytes: if read_only { LOOK_CACHE_BYTES } else { usual.node_cache_bytes },
        ..usual
    };
    let filesystem = Filesystem::open(devices, options, Env::system())
        .map_err(|error| CliError::failed(format!("{}: {error}", images[0].display())))?;
    if filesystem.superblock().log_root.get() != 0 {
        filesystem.notes().iter().for_each(|note| report::warn(note));
    }
    Ok(filesystem)
}

/// The mount that a path is on.
pub fn mounted(path: &Path) -> Result<OpenFilesystem, CliError> {
    let root = open_path(path).map_err(|error| cannot_access(path, error))?;
    let device = fstat(&root).map_err(|error| cannot_access(path, error.into()))?.st_dev;
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    let client = client::ask_about(number).map_err(|why| CliError::failed(format!("{}: {why}", path.display())))?;
    Ok(OpenFilesystem::Mount(Box::new(Mount { client, path: path.to_owned(), root: Arc::new(root), device })))
}

/// Opens no more than the way to something.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// The filesystem on these devices; some may be missing where it is only looked at.
pub fn images_for(paths: &[PathBuf], intent: Intent) -> Result<OpenFilesystem, CliError> {
    let incomplete = "give all of its devices, each with --image";
    open_images(paths, intent, intent == Intent::Look, incomplete).map(OpenFilesystem::Image)
}

/// The failure to get at a path.
pub fn cannot_access(path: &Path, error: io::Error) -> CliError {
    if client::left_alone(&error) {
        return CliError::failed(format!("{}: {}", path.display(), client::LEFT_ALONE));
    }
    CliError::failed(format!("cannot access '{}': {}", path.display(), os_message(&error)))
}

impl OpenFilesystem {
    /// Asks a question; `what` begins the sentence when it is refused, as in `cannot WHAT`.
    pub fn ask<Q: Ask>(&mut self, what: &str, asking: Asking<Q>) -> Result<Vec<Q::Record>, CliError> {
        let answer = self.try_ask(asking)?;
        answer.map_err(|refusal| CliError::failed(format!("{what}: {}", refusal.sentence)))
    }

    /// Asks a question whose answer is one record.
    pub fn ask_one<Q: Ask>(&mut self, what: &str, asking: Asking<Q>) -> Result<Q::Record, CliError> {
        self.ask(what, asking)?.pop().ok_or_else(nonsense)
    }

    /// Asks a question. The inner error is the engine's.
    pub fn try_ask<Q: Ask>(&mut self, asking: Asking<Q>) -> Result<Result<Vec<Q::Record>, Refusal>, CliError> {
        let mut records = Vec::new();
        let end = self.try_each(asking, &mut |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(end.map(|()| records))
    }

    /// Asks a question whose answer can be long: `take` gets its records one by one.
    pub fn each<Q: Ask>(
        &mut self,
        what: &str,
        asking: Asking<Q>,
        take: &mut dyn FnMut(Q::Record) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let end = self.try_each(asking, take)?;
        end.map_err(|refusal| CliError::failed(format!("{what}: {}", refusal.sentence)))
    }

    /// The same; the inner error is the engine's.
    pub fn try_each<Q: Ask>(
        &mut self,
        asking: Asking<Q>,
        take: &mut dyn FnMut(Q::Record) -> Result<(), CliError>,
    ) -> Result<Result<(), Refusal>, CliError> {
        let mut failure = None;
        let end = match self {
            OpenFilesystem::Mount(mount) => mount.ask(asking, &mut |record| {
                take(record).map_err(|error| {
                    failure = Some(error);
                    io::Error::other("the answer is not wanted")
                })
            }),
            OpenFilesystem::Image(filesystem) => {
                let peer = own_peer();
                Ok(perform(&image_stage(filesystem, &peer), &asking.question.into(), &mut |record| {
                    let taken = Q::Record::try_from(record).map_err(|_| nonsense()).and_then(&mut *take);
                    taken.map_err(|error| {
                        failure = Some(error);
                        Refusal::new(libc::EPIPE, "the answer is not wanted")
                    })
                }))
            }
        };
        failure.map_or(end, Err)
    }

    /// Asks a question about the stream of a descriptor; `report` learns how far the work is.
    pub fn ask_stream<Q: AskStream>(
        &mut self,
        asking: Asking<Q>,
        stream: OwnedFd,
        report: &mut dyn FnMut(Q::Report),
    ) -> Result<Result<Q::Record, Refusal>, CliError> {
        match self {
            OpenFilesystem::Mount(mount) => {
                let descriptors = borrowed(&asking.descriptors);
                mount.client.ask_stream(asking.question, stream.as_fd(), &descriptors, report).map_err(cannot_ask)
            }
            OpenFilesystem::Image(filesystem) => {
                let mut tell = |news: Report| {
                    // One of another type is no news.
                    let _ = Q::Report::try_from(news).map(&mut *report);
                    true
                };
                let (peer, question) = (own_peer(), asking.question.into());
                match streams::carry(&image_stage(filesystem, &peer), &question, stream, &mut tell) {
                    Ok(record) => Q::Record::try_from(record).map(Ok).map_err(|_| nonsense()),
                    Err(refusal) => Ok(Err(refusal)),
                }
            }
        }
    }

    /// Sends subvolumes in a thread of its own while `take` reads the stream. Returns both outcomes.
    pub fn send_to<T>(
        &mut self,
        asking: Asking<SendSubvolumes>,
        take: impl FnOnce(&mut dyn Read) -> T,
        report: &mut (dyn FnMut(SendStatus) + Send),
    ) -> Result<(T, Result<Result<SendSummary, Refusal>, CliError>), CliError> {
        fn both<T, S>(
            mut stream: impl Read,
            take: impl FnOnce(&mut dyn Read) -> T,
            sent: ScopedJoinHandle<'_, S>,
        ) -> (T, S) {
            let taken = take(&mut stream);
            // A send whose reader is gone ends.
            drop(stream);
            (taken, sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        }
        if let OpenFilesystem::Image(filesystem) = self {
            let (exit, entrance) = streams::passage::passage();
            return Ok(std::thread::scope(|scope| {
                let sending = scope.spawn(move || {
                    let mut tell = |news: Report| {
                        // One of another type is no news.
                        let _ = SendStatus::try_from(news).map(&mut *report);
                        true
                    };
                    let peer = own_peer();
                    Ok(streams::send_here(&image_stage(filesystem, &peer), &asking.question, entrance, &mut tell))
                });
                both(exit, take, sending)
            }));
        }
        let cannot = |error: io::Error| CliError::failed(format!("cannot make a pipe: {}", os_message(&error)));
        let (reader, writer) = io::pipe().map_err(cannot)?;
        Ok(std::thread::scope(|scope| {
            let sending = scope.spawn(move || self.ask_stream(asking, writer.into(), &mut |status| report(status)));
            both(reader, take, sending)
        }))
    }

    /// Whether a stream can go through this descriptor. The serving process takes nothing but pipes: it may wait for
    /// ever for its own mount, and for others' filesystems.
    pub fn takes(&self, stream: impl AsFd) -> bool {
        match self {
            OpenFilesystem::Mount(_) => is_pipe(stream),
            OpenFilesystem::Image(_) => true,
        }
    }

    /// The object at the path by which the filesystem was found.
    pub fn root(&self) -> Object {
        match self {
            OpenFilesystem::Mount(mount) => Object(Held::Open(Arc::clone(&mount.root))),
            OpenFilesystem::Image(_) => Object(Held::Numbered(InodeId::root_of(TreeId::FS))),
        }
    }

    /// The object that a path refers to, which must be on the filesystem.
    pub fn object(&self, path: &Path) -> Result<Object, CliError> {
        match self {
            OpenFilesystem::Mount(mount) => {
                let opened = open_path(path).map_err(|error| cannot_access(path, error))?;
                mount.object(path, opened)
            }
            OpenFilesystem::Image(_) => Ok(Object(Held::Numbered(self.id_in_image(path)?))),
        }
    }

    /// The object of an open file of a mount; `path` is for the sentence.
    pub fn object_of(&self, path: &Path, file: &File) -> Result<Object, CliError> {
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        match self {
            OpenFilesystem::Mount(mount) => {
                let opened = open_path(Path::new(&again)).map_err(|error| cannot_access(path, error))?;
                mount.object(path, opened)
            }
            OpenFilesystem::Image(_) => self.object(path),
        }
    }

    /// The inode that a path inside an image leads to.
    pub fn id_in_image(&self, path: &Path) -> Result<InodeId, CliError> {
        match self {
            OpenFilesystem::Image(filesystem) => lookup(filesystem, path).map_err(|error| cannot_access(path, error)),
            OpenFilesystem::Mount(_) => Err(CliError::failed(format!("'{}' is not in an image", path.display()))),
        }
    }

    /// Bytes of a file.
    pub fn size(&self, object: &Object) -> Result<u64, CliError> {
        match (&object.0, self) {
            (Held::Open(opened), _) => {
                let stat: Stat = fstat(opened).map_err(|error| CliError::failed(error.to_string()))?;
                Ok(stat.st_size as u64)
            }
            (Held::Numbered(id), OpenFilesystem::Image(filesystem)) => Ok(filesystem.getattr(*id)?.size),
            (Held::Numbered(_), OpenFilesystem::Mount(_)) => Err(nonsense()),
        }
    }

    /// Whether a path leads to a directory, to something else, or nowhere.
    pub fn is_directory(&self, path: &Path) -> Result<Option<bool>, CliError> {
        let found = match self {
            OpenFilesystem::Mount(_) => std::fs::metadata(path).map(|metadata| metadata.is_dir()),
            OpenFilesystem::Image(filesystem) => lookup(filesystem, path).and_then(|id| {
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
        if let OpenFilesystem::Mount(_) = self {
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
            OpenFilesystem::Mount(_) => Ok(()),
            OpenFilesystem::Image(filesystem) => Ok(filesystem.shutdown()?),
        }
    }
}

impl Mount {
    fn ask<Q: Ask>(
        &mut self,
        asking: Asking<Q>,
        take: &mut dyn FnMut(Q::Record) -> io::Result<()>,
    ) -> Result<Result<(), Refusal>, CliError> {
        let mut descriptors = borrowed(&asking.descriptors);
        if descriptors.is_empty() {
            // Shows that whoever asks can get there.
            descriptors.push(self.root.as_fd());
        }
        self.client.ask_each(asking.question, &descriptors, take).map_err(cannot_ask)
    }

    fn object(&self, path: &Path, opened: OwnedFd) -> Result<Object, CliError> {
        let device = fstat(&opened).map_err(|error| cannot_access(path, error.into()))?.st_dev;
        if device == self.device {
            return Ok(Object(Held::Open(Arc::new(opened))));
        }
        let (path, own) = (path.display(), self.path.display());
        Err(CliError::failed(format!("'{path}' is on another filesystem than '{own}'")))
    }
}

fn borrowed(descriptors: &[Arc<OwnedFd>]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(|descriptor| descriptor.as_fd()).collect()
}

fn cannot_ask(error: io::Error) -> CliError {
    CliError::failed(format!("cannot ask the process that serves the mount: {error}"))
}

/// The stage for questions about an image.
fn image_stage<'a>(filesystem: &'a Filesystem, peer: &'a Peer) -> Stage<'a> {
    Stage { filesystem, peer, inodes: Inodes::Numbered, changed: &|_, _| {}, closed: &|_, _, _| {} }
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
