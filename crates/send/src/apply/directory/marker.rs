//! The record of a tree that was received into an ordinary directory, beside it, as text.
//!
//! | file | says |
//! |---|---|
//! | `.NAME.butterfs-received` | that the tree `NAME` beside it is complete, what it was received as, and what of the stream it could not keep |
//! | `NAME.partial/butterfs-received` | that the directory it lies in is what a receive has begun; the tree grows in `tree` beside it |
//!
//! ```text
//! butterfs received tree, version 1
//! uuid 2536056e-c0de-7f42-ae73-b1d6b5c191c9
//! transid 7
//! lost chown a/b: Operation not permitted
//! ```
//!
//! An incremental stream finds its parent by these files. They are a promise that nobody changes the tree.

use super::super::words::uuid_text;
use super::object::Object;
use crate::wire::Uuid;
use rustix::fs::{FileType, Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

const FIRST_LINE: &str = "butterfs received tree, version 1";
/// The marker inside what is not complete.
pub(super) const INSIDE: &str = "butterfs-received";
const SUFFIX: &[u8] = b".butterfs-received";
/// A longer marker is none.
const MOST_BYTES: u64 = 1 << 20;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The UUID that the tree was received as.
    pub uuid: Uuid,
    /// The sender's transaction.
    pub transid: u64,
    /// The losses, one line each.
    pub lost: Vec<String>,
}

/// The name of the marker beside a tree. A name that has no room for it is cut, and told apart by a hash.
pub fn name_beside(tree: &[u8]) -> Vec<u8> {
    let room = 255 - 1 - SUFFIX.len();
    if tree.len() <= room {
        return [b".", tree, SUFFIX].concat();
    }
    let hash = format!("~{:08x}", butterfs_ondisk::checksum::crc32c_raw(!0, tree));
    [b".", &tree[..room - hash.len()], hash.as_bytes(), SUFFIX].concat()
}

/// The name of the tree that a marker of this name lies beside.
pub(super) fn tree_of(marker: &[u8]) -> Option<&[u8]> {
    marker.strip_prefix(b".")?.strip_suffix(SUFFIX)
}

impl Marker {
    fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\nuuid {}\ntransid {}\n", uuid_text(&self.uuid), self.transid);
        for lost in &self.lost {
            text += &format!("lost {}\n", lost.replace('\n', "\\n"));
        }
        text
    }

    fn parse(text: &str) -> Option<Marker> {
        let mut lines = text.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let mut marker = Marker { uuid: [0; 16], transid: 0, lost: Vec::new() };
        for line in lines {
            match line.split_once(' ')? {
                ("uuid", text) => marker.uuid = uuid_of(text)?,
                ("transid", number) => marker.transid = number.parse().ok()?,
                ("lost", what) => marker.lost.push(what.to_owned()),
                _ => return None,
            }
        }
        (marker.uuid != [0; 16]).then_some(marker)
    }

    /// Writes it durably, into a new file.
    pub(super) fn write(&self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o644))?);
        file.write_all(self.to_text().as_bytes())?;
        file.sync_all()
    }

    /// Reads one, and who owns it; `None` where there is none, or something else.
    pub(super) fn read(directory: BorrowedFd<'_>, name: &[u8]) -> Option<(Marker, u32)> {
        let found = Object::find(directory, name).ok().filter(|found| found.kind() == FileType::RegularFile)?;
        let mut text = String::new();
        File::from(found.open(OFlags::RDONLY).ok()?).take(MOST_BYTES).read_to_string(&mut text).ok()?;
        Some((Marker::parse(&text)?, found.stat.st_uid))
    }
}

fn uuid_of(text: &str) -> Option<Uuid> {
    let digits: String = text.split('-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_text() {
        let marker = Marker { uuid: [0xab; 16], transid: 9, lost: vec!["chown a b: no".to_owned()] };
        assert_eq!(Marker::parse(&marker.to_text()), Some(marker));
        for bad in ["", "else", FIRST_LINE, "butterfs received tree, version 1\nuuid x\n"] {
            assert_eq!(Marker::parse(bad), None);
        }
    }

    #[test]
    fn names_lead_to_markers_and_back() {
        assert_eq!(name_beside(b"snap"), b".snap.butterfs-received");
        assert_eq!(tree_of(b".snap.butterfs-received"), Some(&b"snap"[..]));
        let (one, other) = ([b'x'; 255], {
            let mut name = [b'x'; 255];
            name[254] = b'y';
            name
        });
        assert_eq!(name_beside(&one).len(), 255);
        assert_ne!(name_beside(&one), name_beside(&other));
    }
}
