//! Attributes in the kernel's form and back.

use crate::protocol::flags::setattr as bits;
use crate::protocol::wire::{AttrWire, SetattrIn, StatxOut, StatxTime};
use butterfs_fs::Attr;
use butterfs_fs::env::Time;
use butterfs_fs::inode::attr::{SetAttr, SetTime};

/// `statx` fields that are always filled: the basic ones and the time of birth.
const STATX_FIELDS: u32 = 0x7ff | 0x800;

/// A device number as the kernel passes it: 12 bits of major, 20 of minor, the minor's upper 12 at the top.
pub fn packed_device(device: (u32, u32)) -> u32 {
    let (major, minor) = device;
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Major and minor of a packed device number.
pub fn device(packed: u32) -> (u32, u32) {
    (packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xf_ff00)
}

/// What `stat` shows; `ino` is the number shown.
pub fn stat(attr: &Attr, ino: u64) -> AttrWire {
    AttrWire {
        ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec,
        mtime: attr.mtime.sec,
        ctime: attr.ctime.sec,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: packed_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// What `statx` shows.
pub fn statx(attr: &Attr, ino: u64, valid_secs: u64) -> StatxOut {
    let time = |time: Time| StatxTime { sec: time.sec, nsec: time.nsec, reserved: 0 };
    StatxOut {
        attr_valid: valid_secs,
        mask: STATX_FIELDS,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.0,
        rdev_minor: attr.rdev.1,
        ..StatxOut::default()
    }
}

/// The change that a SETATTR asks for. A change of nothing comes from a chown that changes neither owner nor group, which
/// ends the rights that set-id bits lend; and before a write to a file that has such bits or capabilities, where the
/// write itself says whether the bits go. The two look alike, but a write needs somebody who has the file open for
/// writing: while there is one (`is_written`), such a chown takes no set-id bits away.
pub fn change(arguments: &SetattrIn, is_written: bool) -> SetAttr {
    let has = |bit: u32| arguments.valid & bit != 0;
    let time = |set: u32, now: u32, sec: i64, nsec: u32| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(Time { sec, nsec })),
        (false, false) => None,
    };
    let of_nothing = arguments.valid & !(bits::FH | bits::LOCKOWNER) == 0;
    let SetattrIn { atime, atimensec, mtime, mtimensec, ctime, ctimensec, .. } = *arguments;
    SetAttr {
        mode: has(bits::MODE).then_some(arguments.mode),
        uid: has(bits::UID).then_some(arguments.uid),
        gid: has(bits::GID).then_some(arguments.gid),
        size: has(bits::SIZE).then_some(arguments.size),
        atime: time(bits::ATIME, bits::ATIME_NOW, atime, atimensec),
        mtime: time(bits::MTIME, bits::MTIME_NOW, mtime, mtimensec),
        ctime: has(bits::CTIME).then_some(Time { sec: ctime, nsec: ctimensec }),
        kill_suidgid: has(bits::KILL_SUIDGID) || of_nothing && !is_written,
        kill_capability: of_nothing && is_written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for numbers in [(0, 0), (8, 1), (259, 0xf_ffff), (0xfff, 0x1_2345)] {
            assert_eq!(device(packed_device(numbers)), numbers);
        }
        assert_eq!(packed_device((8, 1)), 0x801);
        assert_eq!(packed_device((0, 0x1ff)), 0x10_00ff);
    }

    #[test]
    fn only_what_is_marked_changes() {
        let arguments = SetattrIn { mode: 0o600, uid: 7, mtime: -5, mtimensec: 9, ..SetattrIn::default() };
        assert_eq!(change(&arguments, true), SetAttr { kill_capability: true, ..SetAttr::default() });
        let same_owner = SetattrIn { valid: bits::FH, ..arguments };
        assert_eq!(change(&same_owner, false), SetAttr { kill_suidgid: true, ..SetAttr::default() });
        let valid = bits::MODE | bits::MTIME | bits::ATIME | bits::ATIME_NOW | bits::KILL_SUIDGID;
        let asked = change(&SetattrIn { valid, ..arguments }, true);
        let expected = SetAttr {
            mode: Some(0o600),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time { sec: -5, nsec: 9 })),
            kill_suidgid: true,
            ..SetAttr::default()
        };
        assert_eq!(asked, expected);
    }
}
