//! A snapshot as a stream.

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::types::SubvolumeId;
use butterfs_send::generate::{self, Job, Options};
use butterfs_send::wire::Version;
use std::fmt;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// The version of a send stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum StreamVersion {
    /// Every kernel receives it.
    #[default]
    V1,
    /// Linux 6.0 and later: compressed extents can travel as they are.
    V2,
}

/// The progress of sending a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SendProgress {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    /// The part of the snapshot that was looked at, in thousandths; an estimate.
    pub permille: u32,
}

/// Sends a read-only snapshot; made by [`Filesystem::send`].
#[must_use = "nothing is sent until `write_to` is called"]
pub struct SendRequest<'a> {
    filesystem: Filesystem,
    job: Job,
    watch: Box<dyn FnMut(&SendProgress) -> ControlFlow<()> + 'a>,
}

/// Why a stream was not made.
pub struct SendError(Box<Inner>);

struct Inner {
    kind: SendErrorKind,
    sentence: String,
    source: Option<Source>,
}

enum Source {
    Filesystem(Error),
    Output(io::Error),
}

/// The kind of a [`SendError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// The snapshot cannot be read, is not read-only, or does not exist. The [source](std::error::Error::source) is an
    /// [`Error`].
    Filesystem,
    /// The stream cannot be written. The source is the [`io::Error`].
    Output,
    /// Something in the snapshot has no place in a stream of this version.
    Unencodable,
    /// The progress callback ended it.
    Stopped,
}

impl Filesystem {
    /// Sends a read-only snapshot: as a whole, or as the difference from a [parent](SendRequest::parent) that the
    /// receiver has.
    ///
    /// ```
    /// # use butterfs::{Device, Filesystem, Mkfs};
    /// use butterfs::Access;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let disk = Device::memory(256 << 20);
    /// # Mkfs::new().device(disk.clone()).run()?;
    /// # let filesystem = Filesystem::open(disk)?;
    /// let root = filesystem.root();
    /// root.create_subvolume("home")?;
    /// let monday = root.snapshot("home", "monday", Access::ReadOnly)?;
    /// root.write("home/letter", "hello")?;
    /// let tuesday = root.snapshot("home", "tuesday", Access::ReadOnly)?;
    ///
    /// let (mut full, mut difference) = (Vec::new(), Vec::new());
    /// filesystem.send(monday).write_to(&mut full)?;
    /// filesystem.send(tuesday).parent(monday).write_to(&mut difference)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn send<'a>(&self, snapshot: SubvolumeId) -> SendRequest<'a> {
        let job = Job { subvolumes: vec![snapshot.tree()], ..Job::default() };
        SendRequest { filesystem: self.clone(), job, watch: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl<'a> SendRequest<'a> {
    /// A read-only snapshot that the receiver has; only the difference from it is sent.
    pub fn parent(mut self, parent: SubvolumeId) -> SendRequest<'a> {
        self.job.parent = Some(parent.tree());
        self
    }

    /// A read-only snapshot that the receiver has, with which content can be shared.
    pub fn clone_source(mut self, source: SubvolumeId) -> SendRequest<'a> {
        self.job.clone_sources.push(source.tree());
        self
    }

    /// The version of the stream.
    pub fn version(mut self, version: StreamVersion) -> SendRequest<'a> {
        self.job.version = match version {
            StreamVersion::V1 => Version::V1,
            StreamVersion::V2 => Version::V2,
        };
        self
    }

    /// Sends compressed extents as they are. Needs [`StreamVersion::V2`].
    pub fn compressed(mut self) -> SendRequest<'a> {
        self.job.options = Options { compressed_data: true, ..self.job.options };
        self
    }

    /// Says which files have changed, without their content. Nobody can receive such a stream.
    pub fn without_data(mut self) -> SendRequest<'a> {
        self.job.options = Options { no_data: true, ..self.job.options };
        self
    }

    /// Calls `watch` several times a second; [`ControlFlow::Break`] ends the stream with [`SendErrorKind::Stopped`].
    pub fn on_progress(mut self, watch: impl FnMut(&SendProgress) -> ControlFlow<()> + 'a) -> SendRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Writes the stream to a file, a pipe, or by reference to something that is used afterwards. `out` gets large
    /// pieces and needs no buffer of its own; it is written from another thread.
    pub fn write_to(mut self, mut out: impl Write + Send) -> Result<SendProgress, SendError> {
        let mut told = |progress: &generate::Progress| (self.watch)(&SendProgress::of(progress)).is_continue();
        let engine = self.filesystem.shared.engine().map_err(SendError::of_filesystem)?;
        match generate::run(engine, &self.job, &mut out, &mut told, &mut |_| {}) {
            Ok(progress) => Ok(SendProgress::of(&progress)),
            Err(error) => Err(SendError::of(error)),
        }
    }
}

impl SendProgress {
    fn of(progress: &generate::Progress) -> SendProgress {
        SendProgress { bytes: progress.bytes, commands: progress.commands, permille: progress.permille }
    }
}

impl SendError {
    fn of(error: generate::Error) -> SendError {
        let sentence = error.to_string();
        let (kind, source) = match error {
            generate::Error::Filesystem(error) => return SendError::of_filesystem(Error::from(error)),
            generate::Error::Output(error) => (SendErrorKind::Output, Some(Source::Output(error))),
            generate::Error::Unencodable(_) => (SendErrorKind::Unencodable, None),
            generate::Error::Stopped => (SendErrorKind::Stopped, None),
        };
        SendError(Box::new(Inner { kind, sentence, source }))
    }

    fn of_filesystem(error: Error) -> SendError {
        let sentence = error.to_string();
        SendError(Box::new(Inner {
            kind: SendErrorKind::Filesystem,
            sentence,
            source: Some(Source::Filesystem(error)),
        }))
    }

    /// The kind, for programs.
    pub fn kind(&self) -> SendErrorKind {
        self.0.kind
    }

    /// The error of the filesystem, with its errno and place, if that is the cause.
    pub fn filesystem(&self) -> Option<&Error> {
        match &self.0.source {
            Some(Source::Filesystem(error)) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.sentence)
    }
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("kind", &self.0.kind).field("message", &self.0.sentence).finish()
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.source.as_ref()? {
            Source::Filesystem(error) => Some(error),
            Source::Output(error) => Some(error),
        }
    }
}

impl fmt::Debug for SendRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest").field("job", &self.job).finish_non_exhaustive()
    }
}
