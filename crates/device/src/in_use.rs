//! Whether the kernel uses a file or block device, also where a lock cannot tell: a file beneath a loop device, a
//! block device that is mounted. Everything comes from `/proc` and `/sys`; what is not there counts as not in use.
//!
//! Not here: other processes (locks tell), mounts in other mount namespaces (only a claim on the device tells).

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the kernel uses the regular file with this metadata through a loop device: `mounted at /mnt through /dev/loop0`.
pub fn usage_of_file(file: &fs::Metadata) -> Option<String> {
    loops_over(file).into_iter().find_map(|dir| {
        let usage = usage_of_sysfs(&dir)?;
        Some(format!("{usage} through /dev/{}", dir.file_name()?.to_string_lossy()))
    })
}

/// How the kernel uses the block device with this number: `mounted at /mnt`.
pub fn usage_of_block_device(number: u64) -> Option<String> {
    usage_of_sysfs(&sysfs_of(number)?)
}

/// The file beneath a loop device, or beneath the loop device that this is a partition of.
pub fn backing_file(number: u64) -> Option<PathBuf> {
    let dir = sysfs_of(number)?;
    let parent = dir.parent()?;
    let path = [dir.as_path(), parent].into_iter().find_map(|dir| fs::read(dir.join("loop/backing_file")).ok());
    path.map(trimmed_path)
}

/// The `/sys` directories of the loop devices over this file.
fn loops_over(file: &fs::Metadata) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let is_over = |dir: &PathBuf| {
        let backing = fs::read(dir.join("loop/backing_file")).ok().map(trimmed_path);
        let found = backing.and_then(|path| fs::metadata(path).ok());
        found.is_some_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_over).collect()
}

fn sysfs_of(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn trimmed_path(mut bytes: Vec<u8>) -> PathBuf {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// How a block device or one of its partitions is used.
fn usage_of_sysfs(dir: &Path) -> Option<String> {
    let is_partition = |path: &PathBuf| path.join("partition").exists();
    let partitions = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_partition);
    std::iter::once(dir.to_owned()).chain(partitions).find_map(|dir| usage_of_one(&dir))
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

/// Where `mountinfo` says that the device is mounted. Filesystems with numbers of their own, like btrfs, show the
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
    fn a_plain_file_is_not_used_by_the_kernel() {
        let own = fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(usage_of_file(&own), None);
    }
}
