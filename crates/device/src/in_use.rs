//! Whether the kernel uses a file or block device, also where a lock cannot tell: a file beneath a loop device, a
//! second loop device over the same file, a block device that is mounted. Everything comes from `/proc`, `/sys` and the
//! loop devices themselves; what is not there counts as not in use.
//!
//! Not here: other processes (locks tell), mounts in other mount namespaces (a claim on the device tells, and for btrfs
//! the list of mounted filesystems).

use crate::block_ioctl;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Loop devices over loop devices are followed this far.
const DEEPEST: usize = 8;
/// Bytes of a sector in `/sys`.
const SYSFS_SECTOR_BYTES: u64 = 512;

/// Bytes of a file or block device, below all loop devices and partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    base: Base,
    start: u64,
    end: u64,
}

/// The storage and the offset at which the bytes of a file or block device begin, below all loop devices and
/// partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Device number of the file's filesystem, or of the block device.
    pub device: u64,
    /// The file's inode number; none of a block device.
    pub inode: Option<u64>,
    /// The first byte.
    pub start: u64,
}

impl Origin {
    /// Of the regular file or block device with this metadata.
    pub fn of(metadata: &fs::Metadata) -> Option<Origin> {
        let kind = metadata.file_type();
        match (kind.is_file(), kind.is_block_device()) {
            (true, _) => Span::of_file(metadata).origin(),
            (_, true) => Span::of_block_device(metadata.rdev())?.origin(),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// A file: device number of its filesystem, and inode number.
    File(u64, u64),
    /// A block device that is no loop device.
    Block(u64),
    /// A loop device whose file cannot be found out.
    Unknown,
}

/// The relation of two spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// They share bytes.
    Overlap,
    /// They share none.
    Apart,
    /// Two names of one device cannot be told from two devices.
    Unclear,
}

impl Span {
    /// All of a regular file.
    pub fn of_file(file: &fs::Metadata) -> Span {
        Span { base: Base::File(file.dev(), file.ino()), start: 0, end: u64::MAX }
    }

    /// The bytes that the block device with this number shows.
    pub fn of_block_device(number: u64) -> Option<Span> {
        Some(Span::of_sysfs(&sysfs_of(number)?))
    }

    /// The storage and the offset in it, the same for every path to the same bytes; `None` where that
    /// cannot be found out.
    pub fn origin(&self) -> Option<Origin> {
        let (device, inode) = match self.base {
            Base::File(device, inode) => (device, Some(inode)),
            Base::Block(number) => (number, None),
            Base::Unknown => return None,
        };
        Some(Origin { device, inode, start: self.start })
    }

    fn of_sysfs(dir: &Path) -> Span {
        let mut dir = dir.to_owned();
        let sector_count = number_in(&dir.join("size")).unwrap_or(u64::MAX);
        let len = sector_count.saturating_mul(SYSFS_SECTOR_BYTES);
        let mut start = 0u64;
        for _ in 0..DEEPEST {
            if dir.join("partition").exists() {
                let first = number_in(&dir.join("start")).unwrap_or(0);
                start = start.saturating_add(first.saturating_mul(SYSFS_SECTOR_BYTES));
                dir.pop();
            }
            let (base, offset) = match beneath(&dir) {
                None => (device_number(&dir).map_or(Base::Unknown, Base::Block), 0),
                Some(found) => found,
            };
            start = start.saturating_add(offset);
            match base {
                Base::Block(number) if dir.join("loop").exists() => match sysfs_of(number) {
                    Some(below) => dir = below,
                    None => return Span { base, start, end: start.saturating_add(len) },
                },
                _ => return Span { base, start, end: start.saturating_add(len) },
            }
        }
        Span { base: Base::Unknown, start, end: start.saturating_add(len) }
    }

    fn relation(&self, other: &Span) -> Relation {
        match (self.base, other.base) {
            (a, b) if a == b && a != Base::Unknown => {
                let overlaps = self.start < other.end && other.start < self.end;
                if overlaps { Relation::Overlap } else { Relation::Apart }
            }
            (Base::File(..), Base::File(..) | Base::Block(_)) | (Base::Block(_), Base::File(..)) => Relation::Apart,
            (Base::Unknown, _) | (_, Base::Unknown) | (Base::Block(_), Base::Block(_)) => Relation::Unclear,
        }
    }
}

/// The use that the kernel makes of this regular file through a loop device: `mounted at /mnt through /dev/loop0`.
pub fn usage_of_file(file: &fs::Metadata) -> Option<String> {
    usage_through_loops(&Span::of_file(file))
}

/// The use that the kernel makes of this block device: `mounted at /mnt`. For a loop device also its use of the
/// file beneath through another one.
pub fn usage_of_block_device(number: u64) -> Option<String> {
    let dir = sysfs_of(number)?;
    usage_of_sysfs(&dir).or_else(|| usage_through_loops(&Span::of_sysfs(&dir)))
}

/// The mount point of a btrfs with this UUID that the kernel has mounted and that lies on `span`, or may lie on it. A
/// copy of a filesystem in another file has the same UUID and is none of it.
pub fn usage_of_filesystem(fsid: &[u8; 16], span: &Span) -> Option<String> {
    let folder = PathBuf::from(format!("/sys/fs/btrfs/{}/devices", hyphenated(fsid)));
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let dir = fs::canonicalize(entry.path()).ok()?;
        match span.relation(&Span::of_sysfs(&dir)) {
            Relation::Overlap => Some(format!("part of a btrfs that the kernel has mounted from /dev/{name}")),
            Relation::Unclear => Some(format!(
                "of the same UUID as a btrfs that the kernel has mounted from /dev/{name}, and may be the same storage"
            )),
            Relation::Apart => None,
        }
    })
}

/// The files that hold what is at a path, as device and inode: its own one, and for a loop device, or a partition of
/// one, those beneath. None where nothing is there.
pub fn files_of(path: &Path) -> Vec<(u64, u64)> {
    let (mut files, mut next) = (Vec::new(), Some(path.to_owned()));
    while let Some(found) = next.take().and_then(|path| fs::metadata(path).ok()) {
        let own = (found.dev(), found.ino());
        if files.contains(&own) {
            break;
        }
        files.push(own);
        next = found.file_type().is_block_device().then(|| backing_file(found.rdev())).flatten();
    }
    files
}

/// The file beneath a loop device, or beneath the loop device that this is a partition of.
pub fn backing_file(number: u64) -> Option<PathBuf> {
    let dir = sysfs_of(number)?;
    let parent = dir.parent()?;
    let path = [dir.as_path(), parent].into_iter().find_map(|dir| fs::read(dir.join("loop/backing_file")).ok());
    path.map(trimmed_path)
}

/// The use that the kernel makes of these bytes through a loop device.
fn usage_through_loops(span: &Span) -> Option<String> {
    let entries = fs::read_dir("/sys/block").ok()?;
    let loops = entries.flatten().map(|entry| entry.path()).filter(|dir| dir.join("loop/backing_file").exists());
    loops.flat_map(|dir| with_partitions(&dir)).find_map(|dir| {
        if Span::of_sysfs(&dir).relation(span) != Relation::Overlap {
            return None;
        }
        Some(format!("{} through /dev/{}", usage_of_one(&dir)?, dir.file_name()?.to_string_lossy()))
    })
}

/// The offset of a loop device in its backing storage; `None` for other devices.
fn beneath(dir: &Path) -> Option<(Base, u64)> {
    let path = trimmed_path(fs::read(dir.join("loop/backing_file")).ok()?);
    let node = dir.file_name().map(|name| Path::new("/dev").join(name));
    let status = node.and_then(|node| fs::File::open(node).ok()).and_then(|node| block_ioctl::loop_status(node).ok());
    if let Some(status) = status {
        let is_block_device = status.block_device != 0;
        let file = Base::File(status.device, status.inode);
        let base = if is_block_device { Base::Block(status.block_device) } else { file };
        return Some((base, status.offset_bytes));
    }
    // Only root and its disk group may ask the device; the path is for everybody, but may be of another namespace.
    let offset = number_in(&dir.join("loop/offset")).unwrap_or(0);
    let base = fs::metadata(path).map_or(Base::Unknown, |found| match found.rdev() {
        0 => Base::File(found.dev(), found.ino()),
        number => Base::Block(number),
    });
    Some((base, offset))
}

fn sysfs_of(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn device_number(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn hyphenated(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn trimmed_path(mut bytes: Vec<u8>) -> PathBuf {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// The use of a block device or of one of its partitions.
fn usage_of_sysfs(dir: &Path) -> Option<String> {
    with_partitions(dir).iter().find_map(|dir| usage_of_one(dir))
}

fn with_partitions(dir: &Path) -> Vec<PathBuf> {
    let is_partition = |path: &PathBuf| path.join("partition").exists();
    let partitions = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_partition);
    std::iter::once(dir.to_owned()).chain(partitions).collect()
}

fn usage_of_one(dir: &Path) -> Option<String> {
    let name = dir.file_name()?.to_str()?;
    let number = fs::read_to_string(dir.join("dev")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(at) = mount_point(&mounts, number.trim(), name) {
        return Some(format!("mounted at {at}"));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == Some(&format!("/dev/{name}"))) {
        return Some("used as swap".to_owned());
    }
    if is_btrfs_member(name) {
        return Some("part of a mounted btrfs".to_owned());
    }
    let holder = fs::read_dir(dir.join("holders")).ok()?.flatten().next()?;
    Some(format!("used by {}", holder.file_name().to_string_lossy()))
}

/// The mount point of the device according to `mountinfo`. Filesystems with numbers of their own, like btrfs, show the
/// device as their source only.
fn mount_point(mountinfo: &str, number: &str, name: &str) -> Option<String> {
    let source = format!("/dev/{name}");
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (mounted, at) = (fields.nth(2)?, fields.nth(1)?);
        (mounted == number || filesystem.split(' ').nth(1)? == source).then(|| unescape(at))
    })
}

/// Undoes the octal escapes of `mountinfo`.
fn unescape(field: &str) -> String {
    const ESCAPES: [(&str, &str); 4] = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    ESCAPES.iter().fold(field.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Whether a btrfs that the kernel has mounted uses the device, also as one of several.
fn is_btrfs_member(name: &str) -> bool {
    let Ok(filesystems) = fs::read_dir("/sys/fs/btrfs") else { return false };
    filesystems.flatten().any(|fs| fs.path().join("devices").join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
36 22 0:31 / /mnt/with\\040space rw - btrfs /dev/loop3 rw,space_cache=v2
37 22 7:5 / /media rw shared:9 master:2 - fuseblk /dev/loop5 rw
38 22 0:40 / /run rw - tmpfs tmpfs rw";

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let cases = [
            ("7:5", "loop5", Some("/media")),
            ("7:3", "loop3", Some("/mnt/with space")),
            ("7:4", "loop4", None),
            ("259:1", "vda1", Some("/")),
            ("7:31", "loop31", None),
        ];
        for (number, name, expected) in cases {
            assert_eq!(mount_point(MOUNTINFO, number, name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn odd_mountinfo_is_ignored() {
        for text in ["", "garbage", "1 2 - ", "1 2 3:4 - ext4", " -  - "] {
            assert_eq!(mount_point(text, "7:1", "loop1"), None, "{text:?}");
        }
    }

    #[test]
    fn spans_of_one_file_overlap_where_they_share_bytes() {
        let span = |base, start, end| Span { base, start, end };
        let (file, other) = (Base::File(1, 2), Base::File(1, 3));
        let cases = [
            (span(file, 0, u64::MAX), span(file, 4096, 8192), Relation::Overlap),
            (span(file, 0, 4096), span(file, 4096, 8192), Relation::Apart),
            (span(file, 0, 4096), span(other, 0, 4096), Relation::Apart),
            (span(file, 0, 4096), span(Base::Block(7), 0, 4096), Relation::Apart),
            (span(Base::Block(7), 0, 4096), span(Base::Block(7), 0, 1), Relation::Overlap),
            (span(Base::Block(7), 0, 4096), span(Base::Block(8), 0, 1), Relation::Unclear),
            (span(file, 0, 4096), span(Base::Unknown, 0, 4096), Relation::Unclear),
            (span(Base::Unknown, 0, 4096), span(Base::Unknown, 0, 4096), Relation::Unclear),
        ];
        for (a, b, expected) in cases {
            assert_eq!((a.relation(&b), b.relation(&a)), (expected, expected), "{a:?} {b:?}");
        }
    }

    #[test]
    fn uuids_are_written_as_sysfs_writes_them() {
        let uuid: [u8; 16] = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(hyphenated(&uuid), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_plain_file_is_not_used_by_the_kernel() {
        let own = fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(usage_of_file(&own), None);
    }
}
