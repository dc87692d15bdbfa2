//! The ioctls that reach a FUSE server: those whose number says how much they carry.
//!
//! Here: making everything durable, stopping for good, the attributes that chattr(1) shows, the label, trimming free
//! space. Not yet here: the rest of btrfs'.
//!
//! The kernel has checked who may set attributes, and knows nothing of them itself: the engine sees to it that an
//! immutable inode stays what it is.

use super::administrator::{is_administrator, is_killed, number_at};
use super::{Outcome, Shared, errno};
use crate::protocol::wire::{InHeader, IoctlIn, IoctlOut};
use butterfs_fs::{GoingDown, InodeId, Trim, inode_flags as on_disk};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// BTRFS_IOC_SYNC: everything is durable when it returns. On mounts of type `fuse` it is the only call of that kind
/// that reaches the server.
pub const BTRFS_SYNC: u32 = 0x9408;

/// FS_IOC_SHUTDOWN: nothing is written any more. Its number says that it returns a number, but it takes one.
pub const SHUTDOWN: u32 = 0x8004_587d;
/// FITRIM.
const TRIM: u32 = 0xc018_5879;
/// FS_IOC_GETFSLABEL and FS_IOC_SETFSLABEL.
const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
/// FS_IOC_GETVERSION.
const GET_VERSION: u32 = 0x8008_7601;

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

/// struct fstrim_range.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct FsTrimRange {
    start: u64,
    len: u64,
    least: u64,
}

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
    pub(super) fn ioctl(
        &self,
        header: &InHeader,
        id: InodeId,
        (arguments, data): (&IoctlIn, &[u8]),
        payload: &mut Vec<u8>,
    ) -> Outcome {
        let attr = || self.filesystem().getattr(id).map_err(errno);
        let flags = || attr().map(|attr| attr.flags);
        let (form, wanted) = match arguments.cmd {
            TRIM => return self.trim(header, data, payload),
            GET_LABEL => return answer(&self.filesystem().superblock().label, payload),
            SET_LABEL => return self.set_label(header, data, payload),
            GET_VERSION => return answer(&(attr()?.generation as u32), payload),
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
        // The kernel takes no notice of what an ioctl does to times and attributes.
        let _ = self.device.forget_attributes(header.nodeid);
        answer(&(), payload)
    }

    fn set_label(&self, header: &InHeader, data: &[u8], payload: &mut Vec<u8>) -> Outcome {
        if !is_administrator(header) {
            return Err(Errno::PERM);
        }
        let end = data.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        self.filesystem().set_label(&data[..end]).map_err(errno)?;
        answer(&(), payload)
    }

    /// The answer is the question with the bytes that were discarded as its length.
    fn trim(&self, header: &InHeader, data: &[u8], payload: &mut Vec<u8>) -> Outcome {
        if !is_administrator(header) {
            return Err(Errno::PERM);
        }
        let asked = FsTrimRange::read_from_prefix(data).map_err(|_| Errno::INVAL)?.0;
        let request = Trim { start: asked.start, len: asked.len, least: asked.least };
        let len = self.filesystem().trim(&request, &|| is_killed(header)).map_err(errno)?;
        answer(&FsTrimRange { len, ..asked }, payload)
    }

    /// Stops all writing, for tests of what a crash leaves.
    pub(super) fn go_down(&self, header: &InHeader, arguments: &IoctlIn, payload: &mut Vec<u8>) -> Outcome {
        if !is_administrator(header) {
            return Err(Errno::PERM);
        }
        let how = match number_at(header, arguments.arg).ok_or(Errno::FAULT)? {
            0 => GoingDown::Synced,
            1 => GoingDown::Committed,
            2 => GoingDown::AtOnce,
            _ => return Err(Errno::INVAL),
        };
        if how == GoingDown::Synced {
            self.write_back_all();
        }
        self.filesystem().go_down(how).map_err(errno)?;
        self.is_down.store(true, Ordering::Release);
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
