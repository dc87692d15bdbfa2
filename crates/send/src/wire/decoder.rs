//! Bytes to commands, read from anything in large pieces.
//!
//! 1. Memory is one buffer: it holds the longest command met so far, at most [`MAX_COMMAND_LEN`], and grows with what
//!    has arrived, not with what a length field says.
//! 2. After an error that [is passable](Error::is_passable) the next call goes on behind the command; after any other,
//!    every further call says the same.

use super::command::Values;
use super::{COMMAND_HEADER_LEN, Command, Error, ErrorKind, MAGIC, MAX_COMMAND_LEN, STREAM_HEADER_LEN, Version};
use butterfs_ondisk::checksum::send_command_crc;
use std::io::{self, Read};

/// Bytes that are asked for at once.
const READ_BYTES: usize = 256 << 10;

/// A position in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamPosition {
    /// Bytes from the beginning of the input.
    pub offset: u64,
    /// The number of the command.
    pub command: u16,
}

/// The next event in the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A stream begins.
    Header(Version),
    /// A command; END is one.
    Command(StreamPosition, Command<'a>),
}

/// The state of the decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    /// The beginning of a stream, or the end of the input.
    Header,
    /// A command.
    Command(Version),
    /// Nothing: the stream is damaged in a way that hides what follows.
    Failed,
}

/// See the [module](self).
pub struct Decoder<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes that are not decoded yet are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes of the input before `start`.
    offset: u64,
    state: DecoderState,
}

impl<R: Read> Decoder<R> {
    /// A decoder at the beginning of `input`, which needs no buffer of its own.
    pub fn new(input: R) -> Decoder<R> {
        Decoder { input, buffer: Vec::new(), start: 0, end: 0, offset: 0, state: DecoderState::Header }
    }

    /// Bytes of the input that have been decoded.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next header or command; `None` where the input ends behind an END, or is empty.
    #[allow(clippy::should_implement_trait)] // what it returns borrows from the decoder
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        match self.state {
            DecoderState::Header => self.header(),
            DecoderState::Command(version) => self.command(version).map(Some),
            DecoderState::Failed => Err(self.error(None, ErrorKind::Truncated)),
        }
    }

    fn header(&mut self) -> Result<Option<Event<'_>>, Error> {
        let arrived = self.fill(STREAM_HEADER_LEN)?;
        if arrived == 0 {
            return Ok(None);
        }
        let compared = arrived.min(MAGIC.len());
        if self.buffer[self.start..self.start + compared] != MAGIC[..compared] {
            return Err(self.fail(None, ErrorKind::NoMagic));
        }
        if arrived < STREAM_HEADER_LEN {
            return Err(self.fail(None, ErrorKind::Truncated));
        }
        let raw = self.u32_at(MAGIC.len());
        let Some(version) = Version::from_raw(raw) else { return Err(self.fail(None, ErrorKind::Version(raw))) };
        self.consume(STREAM_HEADER_LEN);
        self.state = DecoderState::Command(version);
        Ok(Some(Event::Header(version)))
    }

    fn command(&mut self, version: Version) -> Result<Event<'_>, Error> {
        match self.fill(COMMAND_HEADER_LEN)? {
            COMMAND_HEADER_LEN => {}
            0 => return Err(self.fail(None, ErrorKind::NoEnd)),
            _ => return Err(self.fail(None, ErrorKind::Truncated)),
        }
        let number = u16::from_le_bytes([self.buffer[self.start + 4], self.buffer[self.start + 5]]);
        let declared = u64::from(self.u32_at(0)) + COMMAND_HEADER_LEN as u64;
        if declared > MAX_COMMAND_LEN as u64 {
            return Err(self.fail(Some(number), ErrorKind::TooLong(declared)));
        }
        let len = declared as usize;
        if self.fill(len)? < len {
            return Err(self.fail(Some(number), ErrorKind::Truncated));
        }
        let position = StreamPosition { offset: self.offset, command: number };
        let at = self.start;
        self.consume(len);
        parse(&self.buffer[at..at + len], number, version, &mut self.state)
            .map(|command| Event::Command(position, command))
            .map_err(|kind| Error { offset: position.offset, command: Some(number), kind })
    }

    fn u32_at(&self, at: usize) -> u32 {
        let at = self.start + at;
        u32::from_le_bytes([self.buffer[at], self.buffer[at + 1], self.buffer[at + 2], self.buffer[at + 3]])
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    fn error(&self, command: Option<u16>, kind: ErrorKind) -> Error {
        Error { offset: self.offset, command, kind }
    }

    fn fail(&mut self, command: Option<u16>, kind: ErrorKind) -> Error {
        self.state = DecoderState::Failed;
        self.error(command, kind)
    }

    /// Has the next `len` bytes in the buffer and returns `len`, or fewer where the input ends.
    fn fill(&mut self, len: usize) -> Result<usize, Error> {
        while self.end - self.start < len {
            self.make_room();
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(self.end - self.start),
                Ok(arrived) => self.end += arrived,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(None, ErrorKind::Io(error))),
            }
        }
        Ok(len)
    }

    /// Makes room behind what has arrived: moves it to the front, and where it fills the buffer, doubles that.
    fn make_room(&mut self) {
        if self.start > 0 && (self.start == self.end || self.end == self.buffer.len()) {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            let len = (self.buffer.len() * 2).clamp(READ_BYTES, MAX_COMMAND_LEN + READ_BYTES);
            self.buffer.resize(len, 0);
        }
    }
}

/// The command of these bytes, header included.
fn parse<'a>(
    bytes: &'a [u8],
    number: u16,
    version: Version,
    state: &mut DecoderState,
) -> Result<Command<'a>, ErrorKind> {
    let (head, payload) = bytes.split_at(COMMAND_HEADER_LEN);
    let stored = u32::from_le_bytes([head[6], head[7], head[8], head[9]]);
    let without_crc = [head[0], head[1], head[2], head[3], head[4], head[5], 0, 0, 0, 0];
    if send_command_crc(&without_crc, payload) != stored {
        return Err(ErrorKind::Checksum);
    }
    if super::command::name(number).is_none() {
        return Ok(Command::Unknown { number });
    }
    let command = Command::of(number, &Values::split(payload, version)?)?;
    if command == (Command::End {}) {
        *state = DecoderState::Header;
    }
    Ok(command)
}
