//! The items of the index: keys and values.
//!
//! ```text
//! key     = inode:u64-big-endian kind:u8 rest
//! kind 1  inode        no rest
//! kind 2  xattr        rest: the name;               value: the value
//! kind 3  entry        rest: the name;               value: the inode, u64, and the type of its mode >> 12, u8
//! kind 4  extent       rest: offset, u64-big-endian; value: len:u64 type:u8, and for data skip:u32 reference
//! kind 5  link text    no rest
//! kind 6  name         rest: directory:u64-big-endian name; no value
//! inode   = mode:u32 uid:u32 gid:u32 links:u32 size:u64 device:u64 flags:u64, then four times (seconds:i64
//!           nanoseconds:u32): of access, modification, change, creation
//! ```
//! Integers are little-endian where nothing else is said. The root directory is inode 1. An extent is data (type 0:
//! `len` bytes of the piece from `skip` on) or preallocated (type 1); what no extent covers is a hole.

use crate::piece::PieceRef;
use butterfs_send::wire::Timespec;

/// The root directory.
pub const ROOT: u64 = 1;
/// The kinds of keys.
pub const INODE: u8 = 1;
/// See the [module](self).
pub const XATTR: u8 = 2;
/// See the [module](self).
pub const ENTRY: u8 = 3;
/// See the [module](self).
pub const EXTENT: u8 = 4;
/// See the [module](self).
pub const LINK_TEXT: u8 = 5;
/// See the [module](self).
pub const NAME: u8 = 6;

/// The bits of a mode that say what an inode is.
pub const TYPE: u32 = 0o170_000;
/// A directory.
pub const DIRECTORY: u32 = 0o040_000;
/// A regular file.
pub const REGULAR: u32 = 0o100_000;
/// A symbolic link.
pub const SYMLINK: u32 = 0o120_000;

/// A key.
pub fn key(ino: u64, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.extend_from_slice(&ino.to_be_bytes());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}

/// The value of an entry.
pub fn entry_value(ino: u64, mode: u32) -> Vec<u8> {
    let mut value = ino.to_le_bytes().to_vec();
    value.push((mode >> 12) as u8);
    value
}

/// The inode of an entry, and the type bits of its mode.
pub fn entry_from(value: &[u8]) -> Option<(u64, u32)> {
    let (ino, rest) = value.split_first_chunk::<8>()?;
    let [kind] = rest else { return None };
    Some((u64::from_le_bytes(*ino), u32::from(*kind) << 12))
}

/// The rest of the key of a name.
pub fn name_rest(directory: u64, name: &[u8]) -> Vec<u8> {
    [&directory.to_be_bytes(), name].concat()
}

/// Inode, kind and rest of a key.
pub fn parts(key: &[u8]) -> Option<(u64, u8, &[u8])> {
    let (ino, rest) = key.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first()?;
    Some((u64::from_be_bytes(*ino), *kind, rest))
}

/// An inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes of a file.
    pub size: u64,
    /// A device number in the kernel's encoding of 32 bits.
    pub device: u64,
    /// The flags of the inode item.
    pub flags: u64,
    /// Of access, modification, change and creation.
    pub times: [Timespec; 4],
}

impl Inode {
    const LEN: usize = 40 + 4 * 12;

    /// The bytes of the inode.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Inode::LEN);
        [self.mode, self.uid, self.gid, self.links].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        [self.size, self.device, self.flags].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        for time in self.times {
            out.extend_from_slice(&time.sec.to_le_bytes());
            out.extend_from_slice(&time.nsec.to_le_bytes());
        }
        out
    }

    /// The inode of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Inode> {
        if bytes.len() != Inode::LEN {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let time = |at: usize| Timespec { sec: u64_at(at) as i64, nsec: u32_at(at + 8) };
        Some(Inode {
            mode: u32_at(0),
            uid: u32_at(4),
            gid: u32_at(8),
            links: u32_at(12),
            size: u64_at(16),
            device: u64_at(24),
            flags: u64_at(32),
            times: [time(40), time(52), time(64), time(76)],
        })
    }

    /// Whether it is of this type.
    pub fn is(&self, kind: u32) -> bool {
        self.mode & TYPE == kind
    }
}

/// Bytes of a file that are together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes of the file.
    pub len: u64,
    /// The place of the bytes; `None` for preallocated space.
    pub data: Option<(u32, PieceRef)>,
}

impl Extent {
    /// The bytes of the extent.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = self.len.to_le_bytes().to_vec();
        out.push(u8::from(self.data.is_none()));
        if let Some((skip, piece)) = self.data {
            out.extend_from_slice(&skip.to_le_bytes());
            out.extend_from_slice(&piece.to_bytes());
        }
        out
    }

    /// The extent of these bytes; data lies inside its piece.
    pub fn from_bytes(bytes: &[u8]) -> Option<Extent> {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let len = u64::from_le_bytes(*len);
        match rest.split_first()? {
            (1, []) => Some(Extent { len, data: None }),
            (0, rest) => {
                let (skip, piece) = rest.split_first_chunk::<4>()?;
                let (skip, piece) = (u32::from_le_bytes(*skip), PieceRef::from_bytes(piece)?);
                let fits = u64::from(skip).checked_add(len)? <= u64::from(piece.raw);
                fits.then_some(Extent { len, data: Some((skip, piece)) })
            }
            _ => None,
        }
    }

    /// The part from `skip` bytes on, of `len` bytes.
    pub fn part(self, skip: u64, len: u64) -> Extent {
        Extent { len, data: self.data.map(|(before, piece)| (before + skip as u32, piece)) }
    }
}
