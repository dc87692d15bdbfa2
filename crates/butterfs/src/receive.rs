//! A stream as a subvolume.

use crate::dir::Dir;
use crate::error::Errno;
use crate::types::{SubvolumeId, Uuid};
use butterfs_send::apply::{self, Engine, Observer, Options, Section};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;

/// Bytes from one report of progress to the next.
const REPORT_BYTES: u64 = 1 << 20;

/// The progress of receiving a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReceiveProgress {
    /// Bytes of the stream.
    pub bytes: u64,
}

/// Receives send streams into a directory; made by [`Dir::receive`].
#[must_use = "nothing is received until `read_from` is called"]
pub struct ReceiveRequest<'a> {
    directory: Dir,
    watch: Box<dyn FnMut(&ReceiveProgress) -> ControlFlow<()> + 'a>,
}

/// A subvolume that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedSubvolume {
    /// Its name in the directory.
    pub name: OsString,
    /// Its id here.
    pub id: SubvolumeId,
    /// The UUID that it has where it was sent from.
    pub uuid: Uuid,
    /// The number of its last transaction there.
    pub generation: u64,
}

/// The result of receiving a stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Received {
    /// The subvolumes, in the order of the stream.
    pub subvolumes: Vec<ReceivedSubvolume>,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Sentences that a user should see.
    pub notices: Vec<String>,
}

/// Why a stream was not received.
pub struct ReceiveError(Box<Inner>);

struct Inner {
    kind: ReceiveErrorKind,
    errno: Errno,
    sentence: String,
    offset: Option<u64>,
    source: Option<io::Error>,
}

/// The kind of a [`ReceiveError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReceiveErrorKind {
    /// The stream is empty, damaged, cut off, or of a version that is not known.
    Stream,
    /// The stream cannot be read. The [source](std::error::Error::source) is the [`io::Error`].
    Input,
    /// A command of the stream cannot be carried out, for example because the parent is not here.
    Command,
    /// The received data cannot be made durable.
    Durability,
    /// The progress callback ended it.
    Stopped,
}

impl Dir {
    /// Receives send streams, of this crate or of `btrfs send`, as subvolumes in this directory.
    ///
    /// ```
    /// # use butterfs::{Access, Device, Filesystem, Mkfs};
    /// # fn made() -> butterfs::Result<Filesystem> {
    /// #     let disk = Device::memory(256 << 20);
    /// #     Mkfs::new().device(disk.clone()).run()?;
    /// #     Filesystem::open(disk)
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (source, target) = (made()?, made()?);
    /// # source.root().create_subvolume("home")?;
    /// # source.root().write("home/letter", "hello")?;
    /// # let snapshot = source.root().snapshot("home", "monday", Access::ReadOnly)?;
    /// let mut stream = Vec::new();
    /// source.send(snapshot).write_to(&mut stream)?;
    ///
    /// let received = target.root().receive().read_from(stream.as_slice())?;
    /// assert_eq!(received.subvolumes[0].name, "monday");
    /// assert_eq!(target.root().read("monday/letter")?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn receive<'a>(&self) -> ReceiveRequest<'a> {
        ReceiveRequest { directory: self.clone(), watch: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl<'a> ReceiveRequest<'a> {
    /// Calls `watch` for each MiB; [`ControlFlow::Break`] ends it with [`ReceiveErrorKind::Stopped`].
    pub fn on_progress(mut self, watch: impl FnMut(&ReceiveProgress) -> ControlFlow<()> + 'a) -> ReceiveRequest<'a> {
        self.watch = Box::new(watch);
        self
    }

    /// Reads streams until `input` ends. When this returns `Ok`, everything is complete and durable.
    ///
    /// A subvolume has its name only when it is complete. After an error, an incomplete one is left as `NAME.partial`;
    /// the next receive of the same name removes it.
    pub fn read_from(mut self, input: impl Read) -> Result<Received, ReceiveError> {
        let node = self.directory.as_node().clone();
        let mut input = Watched { input, watch: &mut self.watch, read: 0, told: 0, stopped: false };
        let mut events = Events::default();
        let engine = node.engine().map_err(ReceiveError::of_filesystem)?.clone();
        let mut target = Engine::new(engine, node.id());
        let summary = apply::receive(&mut input, &mut target, &Options::default(), &mut events);
        drop(target);
        if let Some(error) = events.error {
            return Err(if input.stopped { ReceiveError::stopped() } else { error });
        }
        let mut subvolumes = Vec::new();
        for (name, uuid, generation) in events.finished {
            let id = self.directory.subvolume_at(&name).map_err(ReceiveError::of_filesystem)?;
            subvolumes.push(ReceivedSubvolume { name, id, uuid, generation });
        }
        Ok(Received { subvolumes, bytes: summary.bytes, notices: events.notices })
    }
}

/// Counts what is read, and stops when the callback says so.
struct Watched<'w, R> {
    input: R,
    watch: &'w mut dyn FnMut(&ReceiveProgress) -> ControlFlow<()>,
    read: u64,
    told: u64,
    stopped: bool,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.read - self.told >= REPORT_BYTES {
            self.told = self.read;
            self.stopped |= (self.watch)(&ReceiveProgress { bytes: self.read }).is_break();
        }
        if self.stopped {
            return Err(io::Error::other("stopped"));
        }
        let read = self.input.read(buf)?;
        self.read += read as u64;
        Ok(read)
    }
}

/// Passes the events of the receiver to the callbacks of the caller.
#[derive(Default)]
struct Events {
    finished: Vec<(OsString, Uuid, u64)>,
    notices: Vec<String>,
    error: Option<ReceiveError>,
}

impl Observer for Events {
    fn finished(&mut self, section: &Section<'_>) {
        let name = OsString::from_vec(section.name.to_vec());
        self.finished.push((name, Uuid::from_bytes(section.uuid), section.transid));
    }

    fn notice(&mut self, sentence: &str) {
        self.notices.push(sentence.to_owned());
    }

    fn error(&mut self, error: &apply::Error) {
        // The first one is the cause of the others.
        self.error.get_or_insert_with(|| ReceiveError::of(error));
    }
}

impl ReceiveError {
    fn of(error: &apply::Error) -> ReceiveError {
        use butterfs_send::wire::ErrorKind;
        let errno = |raw| Errno::of(butterfs_fs::Errno(raw));
        let invalid = Errno::of(butterfs_fs::Errno::EINVAL);
        let (kind, errno, offset, source) = match error {
            apply::Error::Stream(stream) => match &stream.kind {
                ErrorKind::Io(cause) => {
                    let copy = io::Error::new(cause.kind(), cause.to_string());
                    (ReceiveErrorKind::Input, errno(cause.raw_os_error().unwrap_or(5)), Some(stream.offset), Some(copy))
                }
                _ => (ReceiveErrorKind::Stream, invalid, Some(stream.offset), None),
            },
            apply::Error::Empty => (ReceiveErrorKind::Stream, invalid, Some(0), None),
            apply::Error::Command { position, failure, .. } => {
                (ReceiveErrorKind::Command, errno(failure.errno), Some(position.offset), None)
            }
            apply::Error::Sync(failure) => (ReceiveErrorKind::Durability, errno(failure.errno), None, None),
        };
        ReceiveError(Box::new(Inner { kind, errno, sentence: error.to_string(), offset, source }))
    }

    fn stopped() -> ReceiveError {
        let (errno, sentence) = (Errno::of(butterfs_fs::Errno::EINTR), "stopped".to_owned());
        let kind = ReceiveErrorKind::Stopped;
        ReceiveError(Box::new(Inner { kind, errno, sentence, offset: None, source: None }))
    }

    /// The filesystem is closed, or the received subvolume cannot be read any more.
    fn of_filesystem(error: crate::Error) -> ReceiveError {
        let (errno, sentence) = (error.errno(), error.to_string());
        let source = Some(io::Error::from(error));
        ReceiveError(Box::new(Inner { kind: ReceiveErrorKind::Command, errno, sentence, offset: None, source }))
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ReceiveErrorKind {
        self.0.kind
    }

    /// The errno.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The byte of the stream at which the failing command begins.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.sentence)
    }
}

impl fmt::Debug for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, errno, sentence, offset, .. } = &*self.0;
        let mut shown = f.debug_struct("ReceiveError");
        shown.field("kind", kind).field("errno", errno).field("message", sentence).field("offset", offset).finish()
    }
}

impl std::error::Error for ReceiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|error| error as _)
    }
}

impl fmt::Debug for ReceiveRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveRequest").field("directory", &self.directory).finish_non_exhaustive()
    }
}
