//! Lines that come with descriptors: how a question hands over the file or pipe that its answer goes into.
//!
//! Invariant: a peer can make the other side hold at most `MOST_DESCRIPTORS` at a time; more are closed at once.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

const MOST_DESCRIPTORS: usize = 4;

/// The lines of a socket.
pub struct Lines<'a> {
    stream: &'a UnixStream,
    waiting: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl<'a> Lines<'a> {
    pub fn new(stream: &'a UnixStream) -> Lines<'a> {
        Lines { stream, waiting: Vec::new(), descriptors: VecDeque::new() }
    }

    /// The next line without its end; a longer one than `most` bytes is cut there.
    pub fn next(&mut self, most: usize) -> io::Result<Option<String>> {
        loop {
            let end = self.waiting.iter().position(|byte| *byte == b'\n');
            if let Some(len) = end.map(|end| end + 1).or((self.waiting.len() >= most).then_some(most)) {
                let line: Vec<u8> = self.waiting.drain(..len).collect();
                let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
                return String::from_utf8(line).map(|line| Some(line.trim_end().to_owned())).map_err(malformed);
            }
            if self.receive()? == 0 {
                return Ok(None);
            }
        }
    }

    /// The descriptor that came first.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.descriptors.truncate(MOST_DESCRIPTORS);
        self.waiting.extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes)
    }
}

/// Sends a line together with a descriptor.
pub fn send(mut stream: &UnixStream, line: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for one descriptor");
    let bytes = line.as_bytes();
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    stream.write_all(&bytes[sent..])
}
