//! Which paths a stream may name: those that lead down from the root of its subvolume and nowhere else.

use super::{Failure, Outcome};
use crate::wire::Command;
use butterfs_fs::Errno;

/// The longest name of a directory entry.
const NAME_MAX: usize = 255;
/// The suffix of the name of a subvolume that is not complete.
const SUFFIX: &[u8] = b".partial";

/// The name of a subvolume while it is being received. A name that has no room for the suffix is cut.
pub fn partial_name(name: &[u8]) -> Vec<u8> {
    let kept = name.len().min(NAME_MAX - SUFFIX.len());
    [&name[..kept], SUFFIX].concat()
}

/// The components of a checked path.
pub(super) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// The directory and the name that a checked path ends in; `None` for the root.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => Some((&path[..slash], &path[slash + 1..])),
        None => Some((b"", path)),
    }
}

/// Appends a component.
pub(super) fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Refuses what is not one component.
pub(super) fn check_name(name: &[u8]) -> Outcome {
    if name.contains(&b'/') {
        return Err(Failure::new(Errno::EINVAL, "the name of a subvolume has no slash"));
    }
    check_component(name)
}

fn check_component(name: &[u8]) -> Outcome {
    match name {
        b"" => Err(Failure::new(Errno::EINVAL, "the path has an empty component")),
        b"." | b".." => Err(Failure::new(Errno::EINVAL, "the path leads out of the subvolume")),
        name if name.len() > NAME_MAX => Err(Failure::new(Errno::ENAMETOOLONG, "a name has at most 255 bytes")),
        name if name.contains(&0) => Err(Failure::new(Errno::EINVAL, "the path has a zero byte")),
        _ => Ok(()),
    }
}

fn check_path(path: &[u8]) -> Outcome {
    if path.is_empty() {
        return Ok(());
    }
    if path[0] == b'/' {
        return Err(Failure::new(Errno::EINVAL, "the path is absolute"));
    }
    path.split(|byte| *byte == b'/').try_for_each(check_component)
}

/// A path that is not the root's.
fn check_entry(path: &[u8]) -> Outcome {
    if path.is_empty() {
        return Err(Failure::new(Errno::EINVAL, "this cannot be done to the root of the subvolume"));
    }
    check_path(path)
}

/// Refuses a command with a path that leads elsewhere, a time that is none, or more than a target can be asked for.
pub(super) fn check(command: &Command<'_>) -> Outcome {
    match *command {
        Command::Mkfile { path, .. }
        | Command::Mkdir { path, .. }
        | Command::Mknod { path, .. }
        | Command::Mkfifo { path, .. }
        | Command::Mksock { path, .. }
        | Command::Symlink { path, .. }
        | Command::Unlink { path }
        | Command::Rmdir { path }
        | Command::Write { path, .. }
        | Command::EncodedWrite { path, .. }
        | Command::Truncate { path, .. }
        | Command::Fallocate { path, .. }
        | Command::EnableVerity { path, .. } => check_entry(path),
        Command::Rename { path, to: other }
        | Command::Link { path, existing: other }
        | Command::Clone { path, source: other, .. } => check_entry(path).and_then(|()| check_entry(other)),
        Command::SetXattr { path, .. }
        | Command::RemoveXattr { path, .. }
        | Command::Chmod { path, .. }
        | Command::Chown { path, .. }
        | Command::Fileattr { path, .. } => check_path(path),
        Command::Utimes { path, atime, mtime, .. } => {
            if atime.nsec >= 1_000_000_000 || mtime.nsec >= 1_000_000_000 {
                return Err(Failure::new(Errno::EINVAL, "a time has a billion nanoseconds or more"));
            }
            check_path(path)
        }
        Command::UpdateExtent { .. } => {
            let reason = "the stream was made without data (--no-data), files cannot be received from it";
            Err(Failure::new(Errno::EOPNOTSUPP, reason))
        }
        Command::Unknown { number } => {
            Err(Failure::new(Errno::EOPNOTSUPP, format!("command {number} is not known, it needs a newer version")))
        }
        Command::Subvol { .. } | Command::Snapshot { .. } | Command::End {} => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_down() {
        for path in ["a", "a/b", "...", "a b/..c", "o257-7-0"] {
            assert!(check_entry(path.as_bytes()).is_ok(), "{path}");
        }
        let long = "x".repeat(256);
        for path in ["/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b", &long, ""] {
            assert!(check_entry(path.as_bytes()).is_err(), "{path}");
        }
        assert!(check_path(b"").is_ok());
        assert!(check_name(b"a/b").is_err() && check_name(b"").is_err() && check_name(b"..").is_err());
    }

    #[test]
    fn partial_names_fit() {
        assert_eq!(partial_name(b"snap"), b"snap.partial");
        assert_eq!(partial_name(&[b'x'; 255]).len(), 255);
    }

    #[test]
    fn paths_split() {
        assert_eq!(split(b"a/b/c"), Some((&b"a/b"[..], &b"c"[..])));
        assert_eq!(split(b"c"), Some((&b""[..], &b"c"[..])));
        assert_eq!(split(b""), None);
        assert_eq!(components(b"").count(), 0);
    }
}
