//! A descriptor of `/dev/fuse`: one read is one request, one write is one reply.

use crate::protocol::wire::OutHeader;
use crate::system;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

/// See the [module](self).
#[derive(Debug)]
pub struct DevFuse(OwnedFd);

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing this time: the request was withdrawn, or a signal came.
    Nothing,
    /// The connection has ended.
    Ended,
}

/// How a reply fared.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel took it.
    Taken,
    /// The kernel no longer waits for it.
    Refused,
}

impl DevFuse {
    /// Opens a descriptor without a connection; mounting with it makes one.
    pub fn open() -> io::Result<DevFuse> {
        Ok(DevFuse(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Takes a descriptor that has a connection, such as `fusermount3` sends.
    pub fn from_connected(fd: OwnedFd) -> DevFuse {
        DevFuse(fd)
    }

    /// One more descriptor of the same connection. Where the kernel or the sandbox allows no channel of its own, the
    /// new descriptor shares this one's.
    pub fn another(&self) -> io::Result<DevFuse> {
        let channel =
            DevFuse::open().and_then(|fresh| system::join_connection(fresh.0.as_fd(), self.as_fd()).map(|()| fresh));
        match channel {
            Ok(channel) => Ok(channel),
            Err(_) => Ok(DevFuse(self.0.try_clone()?)),
        }
    }

    /// Whether the connection has ended: its mount is gone.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents().contains(PollFlags::ERR)
    }

    /// The same channel by another descriptor.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Waits for a request.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match rustix::io::read(&self.0, buffer) {
            Ok(len) => Ok(Received::Request(len)),
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Ended),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a reply.
    pub fn send(&self, header: &OutHeader, payload: &[u8]) -> io::Result<Sent> {
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
        let used = if payload.is_empty() { 1 } else { 2 };
        match rustix::io::writev(&self.0, &parts[..used]) {
            Ok(_) => Ok(Sent::Taken),
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => Ok(Sent::Refused),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// FUSE_NOTIFY_INVAL_INODE, sent where a reply has its error.
const INVALIDATE_INODE: i32 = 2;

/// fuse_notify_inval_inode_out, after its header. An offset below zero: attributes only.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct InvalidateInode {
    node: u64,
    offset: i64,
    len: i64,
}

impl DevFuse {
    /// Has the kernel write back and drop what it caches of a node's content, and waits for it: other threads must be
    /// serving. A node that the kernel does not know has nothing to drop.
    pub fn drop_cached_data(&self, node: u64) -> io::Result<()> {
        let message = InvalidateInode { node, offset: 0, len: 0 };
        let len = (size_of::<OutHeader>() + size_of::<InvalidateInode>()) as u32;
        match self.send(&OutHeader { len, error: INVALIDATE_INODE, unique: 0 }, message.as_bytes())? {
            Sent::Taken | Sent::Refused => Ok(()),
        }
    }
}

/// fuse_notify_inval_entry_out, after its header and before the name.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct InvalidateEntry {
    parent: u64,
    name_len: u32,
    flags: u32,
}

impl DevFuse {
    /// Has the kernel forget what it knows about an entry of a directory, also that there is none, and about the
    /// directory's attributes. The kernel takes the directory's lock for it: not for threads that serve requests, and
    /// with no lock held that they need.
    pub fn forget_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        /// FUSE_NOTIFY_INVAL_ENTRY.
        const INVALIDATE_ENTRY: i32 = 3;
        let head = InvalidateEntry { parent, name_len: name.len() as u32, flags: 0 };
        let message = [head.as_bytes(), name, b"\0"].concat();
        let header = |error, len: usize| OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: 0 };
        self.send(&header(INVALIDATE_ENTRY, message.len()), &message)?;
        self.forget_attributes(parent)
    }

    /// Has the kernel ask again before it shows a node's attributes or decides by them. Waits for nothing, so threads
    /// that serve a request about the node may call it.
    pub fn forget_attributes(&self, node: u64) -> io::Result<()> {
        let message = InvalidateInode { node, offset: -1, len: 0 };
        let len = (size_of::<OutHeader>() + size_of::<InvalidateInode>()) as u32;
        self.send(&OutHeader { len, error: INVALIDATE_INODE, unique: 0 }, message.as_bytes()).map(drop)
    }
}

impl AsFd for DevFuse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
