//! The answer to a question on its way out, in pieces. Once whoever reads it is gone or too slow, nothing more is
//! wanted.

use super::GUEST_DELAY;
use butterfs_control::{Record, Refusal, Reply, Report, TooLong};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of an answer that are sent at once.
const BUFFER_BYTES: usize = 1 << 16;
/// A piece waits so long for more.
const MOST_AGE: Duration = Duration::from_millis(100);

/// See the [module](self).
pub struct ReplyWriter<'a> {
    stream: &'a UnixStream,
    buffer: Vec<u8>,
    /// How long the answer may still wait for them; none where they may take their time.
    patience: Option<Duration>,
    is_lost: bool,
    /// When something was last sent.
    sent: Instant,
}

impl<'a> ReplyWriter<'a> {
    pub fn new(stream: &'a UnixStream, is_guest: bool) -> ReplyWriter<'a> {
        ReplyWriter {
            stream,
            buffer: Vec::new(),
            patience: is_guest.then_some(GUEST_DELAY),
            is_lost: false,
            sent: Instant::now(),
        }
    }

    fn put(&mut self, reply: &Reply) -> Result<(), TooLong> {
        self.buffer.append(&mut reply.frame()?);
        Ok(())
    }

    /// A piece of the answer; an error when nobody reads it any more.
    pub fn record(&mut self, record: Record) -> Result<(), Refusal> {
        self.put(&Reply::Record(record)).map_err(|error| Refusal::new(libc::EMSGSIZE, error.to_string()))?;
        if self.buffer.len() < BUFFER_BYTES && self.sent.elapsed() < MOST_AGE && !self.is_gone() {
            return Ok(());
        }
        self.send_buffer().map_err(|error| Refusal::new(libc::EPIPE, format!("the answer is not read: {error}")))
    }

    /// False when nobody listens any more.
    pub fn report(&mut self, report: Report) -> bool {
        // One that is too long to be told is only less to read.
        let _ = self.put(&Reply::Report(report));
        self.send_buffer().is_ok()
    }

    /// The last reply.
    pub fn end(&mut self, end: Result<(), Refusal>) -> io::Result<()> {
        let last = end.map_or_else(Reply::Refused, |()| Reply::Done);
        self.put(&last).map_err(io::Error::other)?;
        self.send_buffer()
    }

    /// Cheap enough to be asked for each record.
    fn is_gone(&self) -> bool {
        let mut state = [PollFd::new(self.stream, PollFlags::empty())];
        poll(&mut state, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    }

    fn send_buffer(&mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let began = Instant::now();
        self.sent = began;
        let buffer = std::mem::take(&mut self.buffer);
        let mut written = Ok(());
        // A piece at a time, so that a slow reader's time is counted.
        for piece in buffer.chunks(BUFFER_BYTES) {
            let is_late = self.patience.is_some_and(|patience| began.elapsed() > patience);
            written = if is_late { Err(io::ErrorKind::TimedOut.into()) } else { (&mut &*self.stream).write_all(piece) };
            if written.is_err() {
                self.is_lost = true;
                break;
            }
        }
        self.patience = self.patience.map(|patience| patience.saturating_sub(began.elapsed()));
        written
    }
}
