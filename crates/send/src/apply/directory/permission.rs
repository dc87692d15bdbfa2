//! Access that an owner can give itself: where permissions that a stream has given forbid a user who is not root the
//! next command, they are lent for as long as it takes.
//!
//! 1. Nothing is lent before a call has failed with `EACCES`: root never needs it.
//! 2. Only the owner's own bits are lent, of the directories and the object that the call is about, none of them
//!    outside of trees that were received; they are given back when the call has returned.

use super::tree::PathAt;
use rustix::fs::{CWD, FileType, Mode, OFlags, chmodat, fstat, openat};
use rustix::io::Errno as Number;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The permissions that the owner needs on a directory, and on a file.
const OF_DIRECTORY: u32 = 0o700;
const OF_FILE: u32 = 0o600;

/// Permissions that are given back on drop.
pub(super) struct Lent {
    object: OwnedFd,
    mode: Mode,
}

fn set(object: &OwnedFd, mode: Mode) -> Result<(), Number> {
    // What is opened as a path only has no other way to it.
    let path = format!("/proc/self/fd/{}", object.as_raw_fd());
    chmodat(CWD, path, mode, rustix::fs::AtFlags::empty())
}

impl Lent {
    /// Lends what the owner lacks of a directory or a regular file; `None` where that is nothing, or not the user's.
    pub fn of(object: impl AsFd) -> Option<Lent> {
        let object = object.as_fd().try_clone_to_owned().ok()?;
        let raw = fstat(&object).ok()?.st_mode;
        let needed = match FileType::from_raw_mode(raw) {
            FileType::Directory => OF_DIRECTORY,
            FileType::RegularFile => OF_FILE,
            _ => return None,
        };
        if raw & needed == needed {
            return None;
        }
        set(&object, Mode::from_raw_mode(raw & 0o7777 | needed)).ok()?;
        Some(Lent { object, mode: Mode::from_raw_mode(raw & 0o7777) })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = set(&self.object, self.mode);
    }
}

/// Does something to an object, again with permissions lent where they were missing.
pub(super) fn of_object<R>(object: impl AsFd, call: impl Fn() -> Result<R, Number>) -> Result<R, Number> {
    match call() {
        Err(Number::ACCESS) => {}
        other => return other,
    }
    let Some(_lent) = Lent::of(object) else { return Err(Number::ACCESS) };
    call()
}

/// Which permissions a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// The directory's.
    Directory,
    /// The directory's, and those of what is there.
    Object,
}

/// Does something at these paths, again with permissions lent where they were missing.
pub(super) fn at<R>(paths_at: &[(&PathAt<'_>, Needs)], call: impl Fn() -> Result<R, Number>) -> Result<R, Number> {
    match call() {
        Err(Number::ACCESS) => {}
        other => return other,
    }
    let mut lent = Vec::new();
    for (path_at, needs) in paths_at {
        lent.extend(Lent::of(&*path_at.directory));
        if *needs == Needs::Object {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let object = openat(&*path_at.directory, path_at.name, flags, Mode::empty());
            lent.extend(object.ok().and_then(Lent::of));
        }
    }
    if lent.is_empty() { Err(Number::ACCESS) } else { call() }
}
