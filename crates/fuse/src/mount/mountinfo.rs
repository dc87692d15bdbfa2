//! `/proc/self/mountinfo`: what is mounted where, without touching any filesystem.
//!
//! A path is never looked up here: asking a filesystem whose server is gone would fail, and asking one's own would wait
//! for oneself.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the superblock's device.
    pub device: (u32, u32),
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Flags of the mount, comma-separated.
    pub options: OsString,
    /// Type, such as `fuse.butterfs`.
    pub kind: OsString,
    /// The source of the mount, as it was given.
    pub source: OsString,
    /// Options of the superblock, comma-separated.
    pub super_options: OsString,
}

impl Mount {
    /// Whether one of our servers is behind it.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.butterfs" || self.kind == "fuseblk.butterfs"
    }

    /// The user who made a FUSE mount.
    pub fn user(&self) -> Option<u32> {
        let option =
            self.super_options.as_bytes().split(|byte| *byte == b',').find_map(|o| o.strip_prefix(b"user_id="))?;
        std::str::from_utf8(option).ok()?.parse().ok()
    }

    /// Whether writing is refused, by the mount or by its superblock.
    pub fn is_read_only(&self) -> bool {
        [&self.options, &self.super_options]
            .iter()
            .any(|list| list.as_bytes().split(|byte| *byte == b',').any(|o| o == b"ro"))
    }
}

/// All mounts, in the order they were made.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that a mount point shows: the last one made there.
pub fn at(mountpoint: &Path) -> io::Result<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.mountpoint == mountpoint))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, with any number of fields before
/// the dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = device(fields.nth(2)?)?;
    let mountpoint = PathBuf::from(unescaped(fields.nth(1)?));
    let options = unescaped(fields.next()?);
    fields.find(|field| *field == b"-")?;
    Some(Mount {
        device,
        mountpoint,
        options,
        kind: unescaped(fields.next()?),
        source: unescaped(fields.next()?),
        super_options: unescaped(fields.next().unwrap_or_default()),
    })
}

fn device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The kernel writes space, tab, newline, backslash and hash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (byte, octal) {
            (b'\\', Some(value)) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// The mount point as mountinfo writes it: absolute, without links. That asks nothing of what is mounted there; when it
/// fails because its server is gone, the links in the path to it are resolved all the same.
pub fn absolute_mountpoint(path: &Path) -> io::Result<PathBuf> {
    // A slash at the end would ask whether it is a directory.
    let path: PathBuf = path.components().collect();
    path.canonicalize().or_else(|error| match (error.raw_os_error(), path.parent(), path.file_name()) {
        (Some(libc::ENOTCONN), Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let text = b"36 35 98:0 /sub /a\\040b rw,noatime master:1 - fuse.butterfs /im\\134g\\011 ro,user_id=5,x\n\
                     37 36 0:7 / /a\\040b rw - fuseblk.butterfs /dev/sda rw\nnonsense\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].device, (98, 0));
        assert_eq!(mounts[0].mountpoint, Path::new("/a b"));
        assert_eq!(mounts[0].source, "/im\\g\t");
        assert_eq!(mounts[0].user(), Some(5));
        assert!(mounts[0].is_read_only() && !mounts[1].is_read_only());
        assert!(mounts.iter().all(Mount::is_ours));
        assert_eq!(mounts[1].user(), None);
    }

    #[test]
    fn mount_points_become_absolute() {
        assert_eq!(absolute_mountpoint(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(absolute_mountpoint(Path::new("/proc/../proc/")).unwrap(), Path::new("/proc"));
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(absolute_mountpoint(Path::new(".")).unwrap(), here);
        assert!(absolute_mountpoint(Path::new("no-such-entry/")).is_err());
    }
}
