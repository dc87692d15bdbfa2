//! The description of one entry of a source: its attributes, and a file's content.

pub use butterfs_fs::env::Time;
use std::fs::File;
use std::io::Read;
use std::ops::Range;

/// Attributes of anything that has a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, with set-id and sticky bits: `0o7777` at most.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Last access; `None`: that of the last change.
    pub atime: Option<Time>,
    /// Last change of the attributes; `None`: that of the last change of the content.
    pub ctime: Option<Time>,
    /// Birth; `None`: the time of the last change of the content.
    pub btime: Option<Time>,
    /// Extended attributes: ACLs, capabilities and labels are among them, as the kernel stores them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Something without content that is not a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// A device for characters, with its major and minor number.
    CharacterDevice(u32, u32),
    /// A device for blocks, with its major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

/// The subvolume that one was sent from: what streams that go on from it look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its last transaction.
    pub generation: u64,
}

/// A file's content.
pub struct Content<'a> {
    /// Bytes of the file.
    pub size: u64,
    /// Where data is, ascending and inside of `size`; everything else is a hole.
    pub data: Vec<Range<u64>>,
    /// The bytes of all ranges of data, one after the other.
    pub reader: &'a mut dyn Read,
    /// The file of the host that has them, at the same places, where there is one.
    pub file: Option<&'a File>,
}

impl<'a> Content<'a> {
    /// A file of `size` bytes without holes.
    pub fn whole(size: u64, reader: &'a mut dyn Read) -> Content<'a> {
        let data = if size > 0 { std::iter::once(0..size).collect() } else { Vec::new() };
        Content { size, data, reader, file: None }
    }
}
