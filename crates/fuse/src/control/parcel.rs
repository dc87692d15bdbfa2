//! Bytes that come with descriptors: how a question hands over the inodes that it names, and the stream.
//!
//! Invariant: a peer can make the other side hold at most so many at a time as it may; more are closed at once.

use butterfs_control::MOST_DESCRIPTORS;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The input from a socket.
pub struct Incoming<'a> {
    stream: &'a UnixStream,
    waiting: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    most_descriptors: usize,
}

impl<'a> Incoming<'a> {
    pub fn new(stream: &'a UnixStream, most_descriptors: usize) -> Incoming<'a> {
        Incoming { stream, waiting: Vec::new(), descriptors: VecDeque::new(), most_descriptors }
    }

    /// Holds at most so many descriptors from now on.
    pub fn limit(&mut self, most_descriptors: usize) {
        self.most_descriptors = most_descriptors;
        self.descriptors.truncate(most_descriptors);
    }

    /// The next line without its end; a longer one than `most` bytes is cut there.
    pub fn line(&mut self, most: usize) -> io::Result<Option<String>> {
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

    /// The next `len` bytes; `None` when there are not so many.
    pub fn bytes(&mut self, len: usize) -> io::Result<Option<Vec<u8>>> {
        while self.waiting.len() < len {
            if self.receive()? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(self.waiting.drain(..len).collect()))
    }

    /// The `count` descriptors that came first; `None` when there are not so many.
    pub fn descriptors(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        (count <= self.descriptors.len()).then(|| self.descriptors.drain(..count).collect())
    }

    fn receive(&mut self) -> io::Result<usize> {
        let (bytes, descriptors) = receive(self.stream)?;
        self.descriptors.extend(descriptors);
        self.descriptors.truncate(self.most_descriptors);
        self.waiting.extend_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// The next bytes, with the descriptors that came with the first of them. No bytes: there are no more.
pub fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 4096];
    let (len, descriptors) = receive_into(stream, &mut bytes)?;
    bytes.truncate(len);
    Ok((bytes, descriptors))
}

/// The same into a buffer; returns how many bytes came.
pub fn receive_into(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut all = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            all.extend(descriptors);
        }
    }
    Ok((received.bytes, all))
}

/// Sends bytes together with descriptors.
pub fn send(mut stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::Error::other(format!("a command takes at most {MOST_DESCRIPTORS} paths")));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for so many");
    }
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    stream.write_all(&bytes[sent..])
}
