//! Attributes in the kernel's form and back.

use crate::protocol::flags::setattr as bits;
use crate::protocol::wire::{AttrWire, SetattrIn, StatxOut, StatxTime};
use butterfs_fs::env::Time;
use butterfs_fs::inode::attr::mode;
use butterfs_fs::inode::attr::{SetAttr, SetTime};
use butterfs_fs::{Attr, inode_flags};

/// `statx` fields that are always filled: the basic ones and the time of birth.
const STATX_FIELDS: u32 = 0x7ff | 0x800;

/// `statx` attributes by the flags of an inode.
const STATX_ATTRIBUTES: [(u64, u64); 4] = [
    (inode_flags::COMPRESS, 0x4),
    (inode_flags::IMMUTABLE, 0x10),
    (inode_flags::APPEND, 0x20),
    (inode_flags::NODUMP, 0x40),
];

/// Seconds out of `most` for which the kernel may keep attributes. It asks about a file with set-id bits each time
/// before it decides by them: a write takes them away, and nothing in the answer to a write says so.
pub fn valid_secs(attr: &Attr, most: u64) -> u64 {
    let lends = attr.kind() == mode::S_IFREG && attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
    if lends { 0 } else { most }
}

/// A device number as the kernel passes it: 12 bits of major, 20 of minor, the minor's upper 12 at the top.
pub fn packed_device(device: (u32, u32)) -> u32 {
    let (major, minor) = device;
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Major and minor of a packed device number.
pub fn device(packed: u32) -> (u32, u32) {
    (packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xf_ff00)
}

/// The attributes that `stat` shows; `ino` is the number shown.
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

/// The attributes that `statx` shows; the kernel may keep them for `most` seconds.
pub fn statx(attr: &Attr, ino: u64, most: u64) -> StatxOut {
    let time = |time: Time| StatxTime { sec: time.sec, nsec: time.nsec, reserved: 0 };
    StatxOut {
        attr_valid: valid_secs(attr, most),
        mask: STATX_FIELDS,
        blksize: attr.blksize,
        attributes: attributes(attr.flags),
        attributes_mask: attributes(u64::MAX),
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

fn attributes(flags: u64) -> u64 {
    let set = STATX_ATTRIBUTES.iter().filter(|(flag, _)| flags & flag != 0);
    set.fold(0, |bits, (_, attribute)| bits | attribute)
}

/// The source of a change of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Nobody has the file open for writing.
    NoWriter,
    /// Somebody has, but perhaps not who asks.
    Anybody,
    /// An ordinary user who opened the file for writing.
    Writer,
}

/// The change that a SETATTR asks for. A change of nothing comes from a chown that changes neither owner nor group,
/// which ends the rights that set-id bits lend; and before a write to a file that has such bits or capabilities. The
/// two look alike, but a write needs somebody who has the file open for writing. Where that is an ordinary user the
/// bits go at once: this answer brings the mode to the kernel, that of the write does not, and a program that is being
/// started must not find the old mode beside the new content. Otherwise the write says whether the bits go, and a chown
/// takes none.
pub fn change(arguments: &SetattrIn, asking: Asking) -> SetAttr {
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
        // ftruncate(2) moves the times whatever the size was, truncate(2) with the size alone.
        mtime: time(bits::MTIME, bits::MTIME_NOW, mtime, mtimensec)
            .or((has(bits::SIZE) && has(bits::FH)).then_some(SetTime::Now)),
        ctime: has(bits::CTIME).then_some(Time { sec: ctime, nsec: ctimensec }),
        kill_suidgid: has(bits::KILL_SUIDGID) || of_nothing && asking == Asking::NoWriter,
        kill_capability: of_nothing && asking != Asking::NoWriter,
        written_by_user: of_nothing && asking == Asking::Writer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::{Ino, InodeId, TreeId};

    fn attr(mode: u32, flags: u64) -> Attr {
        let time = Time { sec: 0, nsec: 0 };
        let id = InodeId { tree: TreeId(5), ino: Ino(257) };
        Attr {
            id,
            generation: 1,
            size: 0,
            blocks: 0,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            blksize: 4096,
            flags,
        }
    }

    #[test]
    fn rights_that_are_lent_are_asked_for_each_time() {
        for (mode, is_kept) in [(0o100_755, true), (0o104_755, false), (0o102_755, false), (0o042_755, true)] {
            assert_eq!(valid_secs(&attr(mode, 0), 7) == 7, is_kept, "{mode:o}");
        }
    }

    #[test]
    fn statx_is_told_the_flags() {
        let shown = statx(&attr(0o100_644, inode_flags::APPEND | inode_flags::NODUMP | inode_flags::NOATIME), 257, 1);
        assert_eq!((shown.attributes, shown.attributes_mask), (0x60, 0x74));
    }

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
        assert_eq!(change(&arguments, Asking::Anybody), SetAttr { kill_capability: true, ..SetAttr::default() });
        let written = SetAttr { kill_capability: true, written_by_user: true, ..SetAttr::default() };
        assert_eq!(change(&arguments, Asking::Writer), written);
        let same_owner = SetattrIn { valid: bits::FH, ..arguments };
        assert_eq!(change(&same_owner, Asking::NoWriter), SetAttr { kill_suidgid: true, ..SetAttr::default() });
        let valid = bits::MODE | bits::MTIME | bits::ATIME | bits::ATIME_NOW | bits::KILL_SUIDGID;
        let asked = change(&SetattrIn { valid, ..arguments }, Asking::Anybody);
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
