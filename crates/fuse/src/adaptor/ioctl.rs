//! The ioctls that reach a FUSE server: those whose number says how much they carry.
//!
//! Here: making everything durable, and the attributes that chattr(1) shows. Not yet here: the rest of btrfs'.
//!
//! The kernel has checked who may set attributes, and knows nothing of them itself: the engine sees to it that an
//! immutable inode stays what it is.

use super::{Outcome, Shared, errno};
use crate::protocol::wire::{IoctlIn, IoctlOut};
use butterfs_fs::{InodeId, inode_flags as on_disk};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// BTRFS_IOC_SYNC: everything is durable when it returns. On mounts of type `fuse` it is the only call of that kind
/// that reaches the server.
pub const BTRFS_SYNC: u32 = 0x9408;

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS. Their numbers say `long`, but they carry an `int`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR.
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

/// struct fsxattr.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct ExtendedFlags {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}
const _: () = assert!(size_of::<ExtendedFlags>() == 28);

/// A flag of an inode, as the disk, FS_IOC_GETFLAGS and FS_IOC_FSGETXATTR (0: not there) have it.
struct Flag {
    on_disk: u64,
    shown: u32,
    extended: u32,
}

const fn flag(on_disk: u64, shown: u32, extended: u32) -> Flag {
    Flag { on_disk, shown, extended }
}

const FLAGS: [Flag; 9] = [
    flag(on_disk::COMPRESS, 0x4, 0),
    flag(on_disk::SYNC, 0x8, 0x20),
    flag(on_disk::IMMUTABLE, 0x10, 0x8),
    flag(on_disk::APPEND, 0x20, 0x10),
    flag(on_disk::NODUMP, 0x40, 0x80),
    flag(on_disk::NOATIME, 0x80, 0x40),
    flag(on_disk::NOCOMPRESS, 0x400, 0),
    flag(on_disk::DIRSYNC, 0x1_0000, 0),
    flag(on_disk::NODATACOW, 0x80_0000, 0),
];

/// Bits that FS_IOC_FSSETXATTR ignores: preallocated, has attributes.
const SHOWN_ONLY: u32 = 0x8000_0002;

/// One of the two forms that flags are shown in.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Extended,
}

impl Form {
    fn bit(self, flag: &Flag) -> u32 {
        match self {
            Form::Plain => flag.shown,
            Form::Extended => flag.extended,
        }
    }

    fn shown(self, flags: u64) -> u32 {
        let set = FLAGS.iter().filter(|flag| flags & flag.on_disk != 0);
        set.fold(0, |bits, flag| bits | self.bit(flag))
    }

    /// The flags on disk that shall be set, and all that the form speaks of.
    fn wanted(self, bits: u32) -> Result<(u64, u64), Errno> {
        let (mut wanted, mut scope, mut unknown) = (0, 0, bits);
        for flag in FLAGS.iter().filter(|flag| self.bit(flag) != 0) {
            scope |= flag.on_disk;
            wanted |= if bits & self.bit(flag) != 0 { flag.on_disk } else { 0 };
            unknown &= !self.bit(flag);
        }
        if unknown == 0 { Ok((wanted, scope)) } else { Err(Errno::OPNOTSUPP) }
    }
}

impl Shared {
    pub(super) fn ioctl(&self, id: InodeId, arguments: &IoctlIn, data: &[u8], payload: &mut Vec<u8>) -> Outcome {
        let flags = || Ok(self.filesystem().getattr(id).map_err(errno)?.flags);
        let (form, wanted) = match arguments.cmd {
            GET_FLAGS => return answer(&Form::Plain.shown(flags()?), payload),
            GET_XFLAGS => {
                let flags = Form::Extended.shown(flags()?);
                return answer(&ExtendedFlags { flags, ..ExtendedFlags::default() }, payload);
            }
            SET_FLAGS => (Form::Plain, u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?.0),
            SET_XFLAGS => {
                let wanted = ExtendedFlags::read_from_prefix(data).map_err(|_| Errno::INVAL)?.0;
                if (wanted.extent_size, wanted.project, wanted.cow_extent_size) != (0, 0, 0) {
                    return Err(Errno::OPNOTSUPP);
                }
                (Form::Extended, wanted.flags & !SHOWN_ONLY)
            }
            _ => return Err(Errno::NOTTY),
        };
        let (wanted, scope) = form.wanted(wanted)?;
        self.filesystem().set_flags(id, wanted, scope).map_err(errno)?;
        answer(&(), payload)
    }

    pub(super) fn sync_by_ioctl(&self, payload: &mut Vec<u8>) -> Outcome {
        self.filesystem().sync().map_err(errno)?;
        answer(&(), payload)
    }
}

fn answer(result: &(impl IntoBytes + Immutable), payload: &mut Vec<u8>) -> Outcome {
    payload.extend_from_slice(IoctlOut::default().as_bytes());
    payload.extend_from_slice(result.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_in_both_forms() {
        let flags = on_disk::IMMUTABLE | on_disk::NODATACOW | on_disk::NODATASUM;
        assert_eq!((Form::Plain.shown(flags), Form::Extended.shown(flags)), (0x80_0010, 0x8));
    }

    #[test]
    fn a_form_speaks_of_what_it_shows() {
        let (wanted, scope) = Form::Plain.wanted(0x80_0010).unwrap();
        assert_eq!(wanted, on_disk::IMMUTABLE | on_disk::NODATACOW);
        assert_eq!(scope & on_disk::COMPRESS, on_disk::COMPRESS);
        let (wanted, scope) = Form::Extended.wanted(0x10).unwrap();
        assert_eq!((wanted, scope & (on_disk::COMPRESS | on_disk::DIRSYNC)), (on_disk::APPEND, 0));
        assert_eq!(Form::Plain.wanted(0x2), Err(Errno::OPNOTSUPP));
        assert_eq!(Form::Extended.wanted(0x100), Err(Errno::OPNOTSUPP));
    }
}
