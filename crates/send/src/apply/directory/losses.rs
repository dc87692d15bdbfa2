//! The losses of a receive into a directory: counted by kind, so that a million files whose owner cannot be set are
//! one sentence; and remembered line by line, up to a limit, for the marker beside the tree.

use super::super::{Failure, Outcome};
use butterfs_fs::Errno;
use rustix::fs::{fstatfs, fstatvfs};
use std::os::fd::BorrowedFd;

/// The error numbers by which a filesystem refuses properties that it or the user cannot keep. A full disk, a quota or
/// a broken device is not among them: there something is lost that could have been kept.
const REFUSALS: [Errno; 5] = [Errno::EPERM, Errno::EOPNOTSUPP, Errno::ENOTTY, Errno::EINVAL, Errno::E2BIG];
/// The number of ext2, ext3 and ext4 in `statfs(2)`.
const EXT_MAGIC: u64 = 0xef53;
/// A disk with as much free space is not full.
const ROOM: u64 = 1 << 20;

/// Lines that are remembered.
const MOST_LINES: usize = 1000;

/// One kind of loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The command that could not be carried out as it stands.
    pub command: String,
    /// Why not.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// The subject of the first loss.
    pub first: String,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Loss { command, reason, count, first } = self;
        match count {
            1 => write!(f, "{command} {first}: {reason}"),
            _ => write!(f, "{count} times {command}, first {first}: {reason}"),
        }
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Losses {
    kinds: Vec<Loss>,
    lines: Vec<String>,
}

impl Losses {
    /// A section begins, with lines of its own.
    pub fn begin(&mut self) {
        self.lines.clear();
    }

    /// Notes one; `what` is the command and what it is about.
    pub fn note(&mut self, what: &str, failure: &Failure) {
        if self.lines.len() < MOST_LINES {
            self.lines.push(format!("{what}: {}", failure.reason));
        }
        let (command, about) = what.split_once(' ').unwrap_or((what, ""));
        let known = self.kinds.iter_mut().find(|loss| loss.command == command && loss.reason == failure.reason);
        match known {
            Some(loss) => loss.count += 1,
            None => self.kinds.push(Loss {
                command: command.to_owned(),
                reason: failure.reason.clone(),
                count: 1,
                first: about.to_owned(),
            }),
        }
    }

    /// Notes what could not be done to something in the directory `at`, or returns it where that is an error.
    pub fn take(&mut self, at: BorrowedFd<'_>, what: &str, failure: Failure) -> Outcome {
        let is_full = failure.errno == Errno::ENOSPC.0;
        let is_loss = REFUSALS.iter().any(|number| number.0 == failure.errno)
            || is_full && what.starts_with("set_xattr ") && is_limit_of_attributes(at);
        if !is_loss {
            return Err(failure);
        }
        self.note(what, &failure);
        Ok(())
    }

    pub fn all(&self) -> &[Loss] {
        &self.kinds
    }

    /// The losses of the section, a line each.
    pub fn lines(&self) -> Vec<String> {
        self.lines.clone()
    }
}

/// Whether `ENOSPC` for an attribute means that it is too large: ext4 gives the attributes of a file one block, and has
/// no other number for that.
fn is_limit_of_attributes(at: BorrowedFd<'_>) -> bool {
    let is_ext = fstatfs(at).is_ok_and(|disk| disk.f_type as u64 == EXT_MAGIC);
    is_ext && fstatvfs(at).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= ROOM)
}
